package diagnosis

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
)

// Limits on the records that a daemon keeps for callers.
const (
	keptRecords   = 1000
	keptLevel     = slog.LevelInfo
	followerQueue = 1000 // records that a follower may lag behind
	maxFollowers  = 16
	maxText       = 4 << 10 // bytes of a message or of a value
)

// Log keeps the recent records of a daemon's log, and passes new ones to followers. Its handlers
// wrap the handler that writes the log.
type Log struct {
	lowest   atomic.Int64 // level of the most verbose follower, or keptLevel
	instance uint64       // random; distinguishes this log from the log of another daemon

	mu        sync.Mutex
	recent    []record // a ring when full
	next      int      // in a full ring, the index of the oldest record
	sequence  uint64   // of the newest record
	followers map[*follower]bool
}

// NewLog returns a Log without records.
func NewLog() *Log {
	l := &Log{followers: map[*follower]bool{}, instance: rand.Uint64()}
	l.lowest.Store(int64(keptLevel))
	return l
}

// Handler returns a handler that keeps each record, and passes it on to next if next is enabled for
// its level.
func (l *Log) Handler(next slog.Handler) slog.Handler { return &handler{log: l, next: next} }

// record is a kept record.
type record struct {
	*droverv1.LogRecord
	sequence uint64
	level    slog.Level
}

// follower receives new records.
type follower struct {
	level   slog.Level
	records chan *droverv1.LogRecord
	dropped int64 // since the last record that was queued; guarded by Log.mu
}

// follow returns the recent records that match a request, the position before the first of them,
// and a follower of new records. It returns an error if there are too many followers, and
// fault.Invalid if the request's position is malformed. The caller must end the follower with
// leave.
func (l *Log) follow(level slog.Level, req *droverv1.MonitorRequest) ([]*droverv1.LogRecord, string, *follower, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.followers) >= maxFollowers {
		return nil, "", nil, fault.Overload("%d callers follow this log already: end one of them", maxFollowers)
	}
	chosen := l.recentLocked(int(req.GetRecent()))
	if after := req.GetAfter(); after != "" {
		p, err := parsePosition(after)
		if err != nil {
			return nil, "", nil, err
		}
		chosen = nil
		for _, r := range l.recentLocked(keptRecords) {
			if r.level >= level && p.before(r, l.instance) {
				chosen = append(chosen, r)
			}
		}
	}
	begin := position{l.instance, l.sequence, time.Now().UnixMicro()}
	if len(chosen) > 0 {
		begin = position{l.instance, chosen[0].sequence - 1, chosen[0].AtUs - 1}
	}
	out := make([]*droverv1.LogRecord, len(chosen))
	for i, r := range chosen {
		out[i] = r.LogRecord
	}
	f := &follower{level: level, records: make(chan *droverv1.LogRecord, followerQueue)}
	l.followers[f] = true
	l.setLowest()
	return out, begin.String(), f, nil
}

func (l *Log) leave(f *follower) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.followers, f)
	l.setLowest()
}

func (l *Log) setLowest() {
	lowest := keptLevel
	for f := range l.followers {
		lowest = min(lowest, f.level)
	}
	l.lowest.Store(int64(lowest))
}

// recentLocked returns the last n records, oldest first.
func (l *Log) recentLocked(n int) []record {
	all := append(append([]record(nil), l.recent[l.next:]...), l.recent[:l.next]...)
	return all[len(all)-min(max(n, 0), len(all)):]
}

// add keeps one record. A follower that does not keep up loses records and receives their number:
// the daemon never waits for a follower.
func (l *Log) add(level slog.Level, r *droverv1.LogRecord) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sequence++
	r.Position = position{l.instance, l.sequence, r.AtUs}.String()
	if level >= keptLevel {
		kept := record{r, l.sequence, level}
		if len(l.recent) < keptRecords {
			l.recent = append(l.recent, kept)
		} else {
			l.recent[l.next] = kept
			l.next = (l.next + 1) % keptRecords
		}
	}
	for f := range l.followers {
		if level < f.level {
			continue
		}
		sent := r
		if f.dropped > 0 {
			sent = &droverv1.LogRecord{AtUs: r.AtUs, Level: r.Level, Message: r.Message, Attributes: r.Attributes, Position: r.Position, Dropped: f.dropped}
		}
		select {
		case f.records <- sent:
			f.dropped = 0
		default:
			f.dropped++
		}
	}
}

// handler implements slog.Handler.
type handler struct {
	log    *Log
	next   slog.Handler
	attrs  []*droverv1.LogAttribute // from WithAttrs
	groups string                   // open groups, each followed by a dot
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return int64(level) >= h.log.lowest.Load() || h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if int64(r.Level) >= h.log.lowest.Load() {
		out := &droverv1.LogRecord{AtUs: r.Time.UnixMicro(), Level: r.Level.String(), Message: clip(r.Message), Attributes: h.attrs[:len(h.attrs):len(h.attrs)]}
		r.Attrs(func(a slog.Attr) bool {
			out.Attributes = appendAttr(out.Attributes, h.groups, a)
			return true
		})
		h.log.add(r.Level, out)
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	c := *h
	c.attrs = h.attrs[:len(h.attrs):len(h.attrs)]
	for _, a := range attrs {
		c.attrs = appendAttr(c.attrs, h.groups, a)
	}
	c.next = h.next.WithAttrs(attrs)
	return &c
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	c := *h
	c.groups += name + "."
	c.next = h.next.WithGroup(name)
	return &c
}

func appendAttr(list []*droverv1.LogAttribute, groups string, a slog.Attr) []*droverv1.LogAttribute {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		if a.Key != "" {
			groups += a.Key + "."
		}
		for _, x := range v.Group() {
			list = appendAttr(list, groups, x)
		}
		return list
	}
	if a.Key == "" {
		return list
	}
	return append(list, &droverv1.LogAttribute{Key: groups + a.Key, Value: clip(v.String())})
}

// clip bounds the length of a text that may come from a task or a user, and replaces bytes that are
// not text.
func clip(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "") + "…"
	}
	return plain.Line(s)
}

package replica

import (
	"context"
	"log/slog"
	"net"
	"regexp"
	"strings"
	"sync"
	"time"
)

// quietTime is how long a line of raft's log is not repeated: of a server that is away raft says so
// twice a second, for as long as it is.
const quietTime = time.Minute

// maxQuiet bounds the lines that are remembered.
const maxQuiet = 256

// changing matches the parts in which lines of the same message differ.
var changing = regexp.MustCompile(`\b(backoff time|time|term|next|last-index|previous-index)=\S+`)

// raftLog passes raft's log lines to slog: the first of those that say the same as a warning, the
// others of a minute, and those about connections that this server closed, for debugging. It is an
// io.Writer, safe for concurrent use.
type raftLog struct {
	log *slog.Logger // nil for nobody
	now func() time.Time

	mu   sync.Mutex // guards said
	said map[string]repeats
}

// repeats are the lines that said the same as one that was logged.
type repeats struct {
	since time.Time
	n     int
}

func newRaftLog(l *slog.Logger, now func() time.Time) *raftLog {
	return &raftLog{log: l, now: now, said: map[string]repeats{}}
}

// Write takes one line.
func (w *raftLog) Write(b []byte) (int, error) {
	if w.log == nil {
		return len(b), nil
	}
	line := strings.TrimSpace(string(b))
	level, more := w.note(changing.ReplaceAllString(line, ""))
	if strings.Contains(line, net.ErrClosed.Error()) { // this server closed it, as it does when it ends
		level = slog.LevelDebug
	}
	args := []any{"line", line}
	if more > 0 {
		args = append(args, "more_like_it", more)
	}
	w.log.Log(context.Background(), level, "raft", args...)
	return len(b), nil
}

// note returns the level of a line, and how many like it were for debugging alone before it.
func (w *raftLog) note(key string) (slog.Level, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	r, known := w.said[key]
	if known && now.Sub(r.since) < quietTime {
		r.n++
		w.said[key] = r
		return slog.LevelDebug, 0
	}
	if len(w.said) >= maxQuiet {
		clear(w.said)
	}
	w.said[key] = repeats{since: now}
	return slog.LevelWarn, r.n
}

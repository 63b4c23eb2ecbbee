package coordinator

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

const (
	eventsBatch = 500                   // events that are read under one lock
	eventsGap   = 50 * time.Millisecond // between two looks for new events: of each change all streams would hear
)

// eventReader reads the events that a caller may see.
type eventReader struct {
	view     func(func(*facts.Facts))
	rights   *authorizer
	pastJobs *pastReader
	changed  *changeSignal
	looks    *turns
}

// stream sends past events, oldest first, and with follow also new ones.
func (r *eventReader) stream(ctx context.Context, q *droverv1.EventsRequest, stream *connect.ServerStream[droverv1.Event]) error {
	var job uint64
	var err error
	r.view(func(f *facts.Facts) { job, err = r.resolveJob(ctx, f, q.GetJob()) })
	if errors.Is(err, fault.NotFound) {
		if j, pastErr := r.pastJobs.find(ctx, q.GetJob()); pastErr == nil {
			return r.sendPast(q, j, stream)
		}
	}
	if err != nil {
		return err
	}
	seq, err := r.first(ctx, q, job)
	if err != nil {
		return err
	}
	stream.ResponseHeader().Set(wire.Position, strconv.FormatUint(seq, 10))
	if err := stream.Send(nil); err != nil { // the header alone: the next event may come late
		return err
	}
	for {
		changes, began := r.changed.next(), time.Now()
		list, next, err := r.read(ctx, q, job, seq)
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		if next > seq {
			seq = next
			continue
		}
		if !q.GetFollow() {
			return nil
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return errStreamEnded
		}
		if !sleep.For(ctx, eventsGap-time.Since(began)) {
			return errStreamEnded
		}
	}
}

// errStreamEnded ends a stream whose context has ended although the caller has not left.
var errStreamEnded = fault.New(fault.Unavailable, "the coordinator is stopping, or leads no longer: ask again")

// first returns the sequence number after which a stream of events begins.
func (r *eventReader) first(ctx context.Context, q *droverv1.EventsRequest, job uint64) (seq uint64, err error) {
	if after := q.GetAfter(); after != "" {
		if seq, err = strconv.ParseUint(after, 10, 64); err != nil {
			return 0, fault.New(fault.Invalid, "position %q: give one that an event had", after)
		}
		return seq, nil
	}
	if n := int(q.GetLimit()); n != 0 {
		return r.skipTo(ctx, q, job, max(n, 0))
	}
	return 0, nil
}

// resolveJob returns the number of the job that a request is restricted
// to, 0 for all.
func (r *eventReader) resolveJob(ctx context.Context, f *facts.Facts, name string) (uint64, error) {
	if name == "" {
		return 0, nil
	}
	j, err := r.rights.findJob(ctx, f, name)
	if err != nil {
		return 0, err
	}
	return j.ID, r.rights.needJob(ctx, mayRead, f, j)
}

// skipTo returns the sequence number before the last n matching events.
func (r *eventReader) skipTo(ctx context.Context, q *droverv1.EventsRequest, job uint64, n int) (seq uint64, err error) {
	done, err := r.look(ctx)
	if err != nil {
		return 0, err
	}
	defer done()
	r.view(func(f *facts.Facts) {
		var at []uint64
		shown := r.filter(ctx, f, q, job)
		for _, e := range f.EventLog().Since(0, facts.MaxEvents+facts.MaxClusterEvents) {
			if shown(e) {
				at = append(at, e.Seq)
			}
		}
		switch {
		case n == 0 && len(at) > 0:
			seq = at[len(at)-1]
		case len(at) > n:
			seq = at[len(at)-n] - 1
		}
	})
	return seq, nil
}

// read returns the matching events among the next ones after seq, and the
// number to continue from. It waits for a turn.
func (r *eventReader) read(ctx context.Context, q *droverv1.EventsRequest, job, seq uint64) (out []*droverv1.Event, next uint64, err error) {
	done, err := r.look(ctx)
	if err != nil {
		return nil, 0, err
	}
	defer done()
	next = seq
	r.view(func(f *facts.Facts) {
		shown := r.filter(ctx, f, q, job)
		for _, e := range f.EventLog().Since(seq, eventsBatch) {
			next = e.Seq
			if shown(e) {
				m := eventMessage(e)
				if e.JobID == 0 {
					m.Text = r.rights.visibleReason(ctx, m.Text)
				}
				out = append(out, m)
			}
		}
	})
	return out, next, nil
}

// look waits for a turn to look for events, which ends with done.
func (r *eventReader) look(ctx context.Context) (done func(), err error) {
	if done, err = r.looks.wait(ctx, caller(ctx)); ctx.Err() != nil && err != nil {
		return nil, errStreamEnded
	}
	return done, err
}

func eventMessage(e *facts.Event) *droverv1.Event {
	return &droverv1.Event{Index: e.Index, AtMs: e.At / 1e6, Actor: e.Actor, Kind: e.Kind, Job: e.Job, Task: e.Task, Node: e.Node, Text: e.Text, Position: strconv.FormatUint(e.Seq, 10)}
}

// sendPast sends the events of a job that only the history still has. No new events can follow.
func (r *eventReader) sendPast(q *droverv1.EventsRequest, j *droverv1.PastJob, stream *connect.ServerStream[droverv1.Event]) error {
	list := slices.DeleteFunc(slices.Clone(j.GetEvents()), func(e *droverv1.Event) bool { return e.GetAtMs() < q.GetSinceMs() })
	if n := int(q.GetLimit()); n != 0 {
		list = list[max(0, len(list)-max(n, 0)):]
	}
	if q.GetAfter() != "" { // what is after it there is elsewhere
		list = nil
	}
	for _, e := range list {
		if err := stream.Send(e); err != nil {
			return err
		}
	}
	return nil
}

// filter returns a function that reports whether the caller requested an event and may see it. Only
// operators see events of forgotten jobs. The caller's rights to a job are looked up once for all
// its events.
func (r *eventReader) filter(ctx context.Context, f *facts.Facts, q *droverv1.EventsRequest, job uint64) func(*facts.Event) bool {
	operator, since, may := r.rights.operator(caller(ctx)), q.GetSinceMs(), map[uint64]bool{}
	return func(e *facts.Event) bool {
		switch {
		case e.At/1e6 < since || (job != 0 && e.JobID != job):
			return false
		case operator:
			return true
		case e.JobID == 0:
			return !strings.HasPrefix(e.Kind, "token.") && !strings.HasPrefix(e.Kind, "secret.") // whose they are is nobody else's business
		}
		ok, known := may[e.JobID]
		if !known {
			j := f.Job(e.JobID)
			ok = j != nil && r.rights.needJob(ctx, mayRead, f, j) == nil
			may[e.JobID] = ok
		}
		return ok
	}
}

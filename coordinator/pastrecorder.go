package coordinator

import (
	"context"
	"log/slog"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

// Limits of the recorder.
const (
	maxRecords  = 50_000                 // waiting to be written; then the log waits
	recordPause = 200 * time.Millisecond // between two writes, so that many ends share one transaction
	maxPastTail = 1 << 10                // bytes of a failed attempt's standard error
	maxPastText = 512                    // bytes of its message
)

// recorder writes ended jobs and attempts of the log to the history, on every server. It is never
// ahead of the log, and a snapshot of the log waits for it: see replica.Recorder.
//
// If the history cannot be written and too much is queued, recording stops until the next start.
// Snapshots then fail, so that the log keeps everything that the history lacks; nothing else stops.
type recorder struct {
	store  *past.Store
	log    *slog.Logger
	status func(*facts.Job) *droverv1.GetJobResponse
	wrote  func([]facts.Ended, past.Batch) // is called after they were written

	mu     sync.Mutex // guards queue and broken
	queue  []facts.Ended
	broken error

	// writeMu is held while records are written; it comes before mu.
	writeMu sync.Mutex
	ends    map[stageKey]int64 // last end of a winner of a stage of a live job, Unix ns

	more chan struct{} // a token: there is something to write
}

type stageKey struct {
	job   uint64
	stage int32
}

var _ replica.Recorder = (*recorder)(nil)

func newRecorder(store *past.Store, log *slog.Logger, status func(*facts.Job) *droverv1.GetJobResponse, wrote func([]facts.Ended, past.Batch)) *recorder {
	return &recorder{store: store, log: log, status: status, wrote: wrote, ends: map[stageKey]int64{}, more: make(chan struct{}, 1)}
}

// Applied implements replica.Recorder.
func (r *recorder) Applied() uint64 { return r.store.Applied() }

// Rewind implements replica.Recorder.
func (r *recorder) Rewind(index uint64) error {
	r.log.Warn("the history is ahead of the log, which was restored; it follows it again", "history", r.store.Applied(), "log", index)
	return r.store.Rewind(index)
}

// Record implements replica.Recorder.
func (r *recorder) Record(list []facts.Ended) {
	applied := r.store.Applied()
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range list {
		if list[i].Index > applied && r.broken == nil {
			r.queue = append(r.queue, list[i])
		}
	}
	if len(r.queue) == 0 {
		return
	}
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// WaitForRoom implements replica.Recorder: if too much is queued, it writes the queue.
func (r *recorder) WaitForRoom() {
	r.mu.Lock()
	full := len(r.queue) >= maxRecords
	r.mu.Unlock()
	if !full {
		return
	}
	if err := r.flush(); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.broken, r.queue = err, nil
		r.log.Error("the history cannot be written and is given up until the next start; the log keeps what it misses, and grows", "err", err)
	}
}

// Sync implements replica.Recorder.
func (r *recorder) Sync(index uint64) error {
	if err := r.flush(); err != nil {
		return err
	}
	if index <= r.store.Applied() {
		return nil
	}
	return r.store.Advance(index)
}

// health returns why the history is not written, or nil.
func (r *recorder) health() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.broken
}

// run writes records until ctx ends.
func (r *recorder) run(ctx context.Context) error {
	for {
		select {
		case <-r.more:
		case <-ctx.Done():
			return nil
		}
		if err := r.flush(); err != nil {
			r.log.Error("the history cannot be written; it is tried again", "err", err)
			if !sleep.For(ctx, 10*recordPause) {
				return nil
			}
			select {
			case r.more <- struct{}{}:
			default:
			}
		}
		if !sleep.For(ctx, recordPause) {
			return nil
		}
	}
}

// flush writes the queue. After an error the records stay queued.
func (r *recorder) flush() error {
	r.writeMu.Lock()
	defer r.writeMu.Unlock()
	r.mu.Lock()
	list, broken := r.queue, r.broken
	r.queue = nil
	r.mu.Unlock()
	if broken != nil {
		return fault.New(fault.Unavailable, "the history was given up: %w", broken)
	}
	if len(list) == 0 {
		return nil
	}
	if err := r.write(list); err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.queue = append(list, r.queue...)
		return err
	}
	return nil
}

func (r *recorder) write(list []facts.Ended) error {
	b := past.Batch{Index: list[len(list)-1].Index}
	for i := range list {
		e := &list[i]
		if e.Attempt == nil {
			b.Jobs = append(b.Jobs, past.Job{Index: e.Index, PastJob: r.pastJob(e)})
			continue
		}
		a, err := r.pastAttempt(e)
		if err != nil {
			return err
		}
		b.Attempts = append(b.Attempts, past.Attempt{Index: e.Index, Tenant: e.Spec.Tenant, User: e.Actor, Name: e.Name, PastAttempt: a})
	}
	if err := r.store.Write(b); err != nil {
		return err
	}
	for i := range list { // no earlier: the records of a failed batch are converted again
		if j := list[i].Job; j != nil {
			for s := range j.Stages {
				delete(r.ends, stageKey{j.ID, int32(s)})
			}
		}
	}
	r.wrote(list, b)
	return nil
}

func (r *recorder) pastJob(e *facts.Ended) *droverv1.PastJob {
	j := e.Job
	s := r.status(j)
	out := &droverv1.PastJob{Summary: s.GetJob(), Stages: s.GetStages(), Spec: s.GetSpec(), Counters: s.GetCounters(), Output: s.GetOutput(), OutputBytes: s.GetOutputBytes(),
		Emulated: s.GetEmulated(), Preempted: s.GetPreempted(), FailedTask: s.GetFailedTask(), FailureTail: s.GetFailureTail(), Quote: j.Quote}
	if j.Miss != nil {
		out.MissedMs = j.Miss.At / 1e6
	}
	for _, ev := range e.Events {
		out.Events = append(out.Events, eventMessage(ev))
	}
	for i := range j.Stages {
		out.Order = append(out.Order, &droverv1.StageOrder{After: j.Spec.StagesBefore(i)})
	}
	return out
}

func (r *recorder) pastAttempt(e *facts.Ended) (*droverv1.PastAttempt, error) {
	a, seen := e.Attempt, e.Attempt.Seen()
	out := &droverv1.PastAttempt{Key: e.Key.Proto(a.Run), Node: e.Node, State: a.State.String(), Locality: a.Locality, PlacedMs: a.Placed / 1e6, EndedMs: a.Ended / 1e6,
		StartedMs: seen.GetStartedMs(), Usage: seen.GetUsage(), Demand: e.Demand.Proto(), Limits: seen.GetLimits(), InputBytes: seen.GetInputBytes(),
		OutputBytes: seen.GetOutputLength(), Disk: seen.GetDiskOccupied(), Winner: e.Winner, Speculative: a.Speculative, EstimateMs: a.EstimateNS / 1e6,
		Message: clipText(seen.GetMessage(), maxPastText), Suspends: a.Suspension.Count, SuspendedAtMs: a.Suspension.SuspendedAt / 1e6}
	if a.State == facts.AttemptFailed {
		out.Cause, out.ExitCode = a.Cause(), seen.GetExitCode()
		tail := seen.GetStderrTail()
		out.StderrTail = clipText(tail[max(0, len(tail)-maxPastTail):], maxPastTail)
	}
	ready, err := r.readyAt(e)
	if err != nil {
		return nil, err
	}
	out.WaitingMs = max(0, (a.Placed-ready)/1e6)
	addPhases(out, a, seen)
	if e.Winner {
		k := stageKey{e.Key.Job, e.Key.Stage}
		r.ends[k] = max(r.ends[k], a.Ended)
	}
	return out, nil
}

// addPhases divides the time of an attempt after its placement into phases. The coordinator's clock
// gives the placement and the node's clock the start, so the phases are clipped to the whole.
func addPhases(out *droverv1.PastAttempt, a *facts.Attempt, seen *droverv1.SeenAttempt) {
	whole := max(0, out.EndedMs-out.PlacedMs)
	suspended := a.Suspension.SuspendedMS
	if a.Level > droverv1.Level_LEVEL_RUNNING && a.Suspension.SuspendedAt > 0 {
		suspended += max(0, (a.Ended-a.Suspension.SuspendedAt)/1e6)
	}
	out.SuspendedMs = min(suspended, whole)
	out.RunningMs = min(seen.GetRunningMs(), whole-out.SuspendedMs)
	rest := whole - out.SuspendedMs - out.RunningMs
	defer func() {
		out.FetchingMs = min(seen.GetFetchingMs(), out.StartingMs)
		out.StartPauseMs = min(max(0, seen.GetStartPauseMs()), out.StartingMs-out.FetchingMs)
	}()
	if out.StartedMs == 0 {
		out.StartingMs = rest
		return
	}
	out.StartingMs = max(0, min(out.StartedMs-out.PlacedMs, rest))
	out.CommittingMs = rest - out.StartingMs
}

// readyAt returns when an attempt could have been placed at the earliest, Unix ns: after the job's
// submission, the previous attempt, and the stages that its stage waits for.
func (r *recorder) readyAt(e *facts.Ended) (int64, error) {
	ready := max(e.Submitted, e.Before)
	for _, s := range e.Spec.StagesBefore(int(e.Key.Stage)) {
		end, err := r.stageEnd(stageKey{e.Key.Job, s})
		if err != nil {
			return 0, err
		}
		if end <= e.Attempt.Placed { // else it ended once more, after a loss
			ready = max(ready, end)
		}
	}
	return ready, nil
}

// stageEnd returns the last end of a winner of a stage; after a restart it reads it from the store.
func (r *recorder) stageEnd(k stageKey) (end int64, err error) {
	if end, ok := r.ends[k]; ok {
		return end, nil
	}
	for page := ""; ; {
		list, next, err := r.store.Attempts(k.job, k.stage, 1000, page)
		if err != nil {
			return 0, err
		}
		for _, a := range list {
			if a.GetWinner() {
				end = max(end, a.GetEndedMs()*1e6)
			}
		}
		if next == "" {
			break
		}
		page = next
	}
	r.ends[k] = end
	return end, nil
}

package replica

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// Propose adds e to the log, waits until it is applied, and returns its result.
// It sets the entry's version and time; e belongs to Propose afterwards.
// Unavailable: this server does not lead, or it is unknown whether the entry
// will be applied.
func (r *Replica) Propose(ctx context.Context, e *droverv1.Entry) (facts.Result, error) {
	results, err := r.ProposeAll(ctx, []*droverv1.Entry{e})
	if err != nil {
		return facts.Result{}, err
	}
	return results[0], nil
}

// ProposeAll is Propose for entries that follow each other in the log and share its writes. It
// returns the results of the first ones, and with an error not those of all.
func (r *Replica) ProposeAll(ctx context.Context, list []*droverv1.Entry) (results []facts.Result, err error) {
	var proposed []pending
	for _, e := range list {
		e.Version = facts.EntryVersion
		e.At, e.StepRules = r.entryTime(e)
		enqueue := r.enqueue
		if e.GetJobAccepted() != nil {
			enqueue = r.enqueueAccepted
		}
		var p pending
		if p, err = enqueue(e); err != nil {
			break
		}
		proposed = append(proposed, p)
	}
	for _, p := range proposed {
		res, err := r.await(ctx, p)
		if err != nil {
			return results, err
		}
		results = append(results, res)
	}
	return results, err
}

// enqueueAccepted numbers an accepted job and enqueues its entry. The number is in the entry and
// not counted when it is applied, so that whatever a replay makes of one entry, no other job's
// number changes. The lock keeps numbers in the order of the log. Nothing may wait under it, above
// all not for the facts: submitters would queue behind it.
func (r *Replica) enqueueAccepted(e *droverv1.Entry) (pending, error) {
	r.acceptMu.Lock()
	defer r.acceptMu.Unlock()
	e.GetJobAccepted().Job = r.nextJobNumber()
	return r.enqueue(e)
}

// nextJobNumber returns a job number that no entry has. The caller holds
// acceptMu.
func (r *Replica) nextJobNumber() uint64 {
	r.lastJob = max(r.lastJob, r.appliedJob.Load()) + 1
	return r.lastJob
}

// pending is a proposal that is on its way into the log.
type pending struct {
	future raft.ApplyFuture
	n      uint64 // which proposal of this server it is
}

// queue puts proposals into raft's queue. Raft answers what it has taken from there, at the latest when it ends, and never what it finds there
// then.
type queue struct {
	mu    sync.RWMutex // guards ended, and is held by those who put a proposal there
	ended bool
}

func (q *queue) put(r *raft.Raft, entry []byte) (raft.ApplyFuture, error) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.ended || r.State() == raft.Shutdown {
		return nil, classifyRaftError(raft.ErrRaftShutdown)
	}
	return r.Apply(entry, enqueueTimeout), nil
}

// end refuses further proposals, and gives raft a moment to take those that are there.
func (q *queue) end() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	time.Sleep(takeTime)
}

// enqueue encodes e and gives it to raft.
func (r *Replica) enqueue(e *droverv1.Entry) (pending, error) {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return pending{}, fault.New(fault.Invalid, "entry for the log: %w", err)
	}
	if len(b) > MaxEntry {
		return pending{}, fault.New(fault.Exhausted, "an entry of %d bytes, at most %d go into the log at once", len(b), MaxEntry)
	}
	n := r.nextProposal()
	if r.crash != nil && r.crash(Before, n) {
		return pending{}, ErrCrashed
	}
	future, err := r.queue.put(r.raft, b)
	return pending{future, n}, err
}

func (r *Replica) await(ctx context.Context, p pending) (facts.Result, error) {
	res, err := wait(ctx, p.future)
	if r.crash != nil && r.crash(After, p.n) {
		return facts.Result{}, ErrCrashed
	}
	return res, err
}

func (r *Replica) nextProposal() uint64 {
	r.proposeMu.Lock()
	defer r.proposeMu.Unlock()
	r.proposals++
	return r.proposals
}

// entryTime returns the time of an entry proposed now, see facts.ClockTolerance, and the
// rules by which it is applied.
func (r *Replica) entryTime(e *droverv1.Entry) (at int64, stepRules uint32) {
	now := r.now().UnixNano()
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.facts.Clock().EntryTime(now), r.facts.Clock().ApplyRules(e, now)
}

func wait(ctx context.Context, f raft.ApplyFuture) (facts.Result, error) {
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // ends when raft answers, at the latest at its end: see queue
	limit := time.NewTimer(applyTimeout)
	defer limit.Stop()
	select {
	case err := <-done:
		if err != nil {
			return facts.Result{}, classifyRaftError(err)
		}
		res, ok := f.Response().(facts.Result)
		if !ok {
			return facts.Result{}, fault.New(fault.Corrupt, "the log answered with %T", f.Response())
		}
		return res, nil
	case <-ctx.Done():
		return facts.Result{}, fault.New(fault.Unavailable, "gave up waiting for the log; the entry may still be applied: %w", ctx.Err())
	case <-limit.C:
		return facts.Result{}, fault.New(fault.Unavailable, "the log did not answer within %s; the entry may still be applied", applyTimeout)
	}
}

// LedNoMore reports whether err means that an entry was proposed while this server did not lead,
// stopped leading, or transferred the leadership. The next leader may accept the entry, or have it
// already.
func LedNoMore(err error) bool {
	for _, e := range []error{raft.ErrNotLeader, raft.ErrLeadershipLost, raft.ErrLeadershipTransferInProgress, raft.ErrRaftShutdown} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// classifyRaftError gives a raft error a class of package fault.
func classifyRaftError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return fault.New(fault.Unavailable, "this coordinator does not lead: %w", err)
	case errors.Is(err, raft.ErrLeadershipLost):
		return fault.New(fault.Unavailable, "this coordinator stopped leading; the entry may still be applied: %w", err)
	case errors.Is(err, raft.ErrEnqueueTimeout):
		return fault.Overload("the log is overloaded: try again in a second")
	case errors.Is(err, raft.ErrRaftShutdown), errors.Is(err, raft.ErrAbortedByRestore):
		return fault.New(fault.Unavailable, "this coordinator is stopping: %w", err)
	default:
		return fault.New(fault.Unavailable, "the log: %w", err)
	}
}

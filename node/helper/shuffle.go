package helper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/shuffle"
)

// Limits of a shuffle.
const (
	maxShuffleFetches = 5                      // partitions fetched at once
	maxShuffleTries   = 6                      // for one output of a node that has failed for failingLimit; then it is lost
	shufflePause      = 200 * time.Millisecond // doubles with each retry …
	maxShufflePause   = 5 * time.Second        // … up to this
	maxBusyTime       = 10 * time.Minute       // that a fetch waits for busy nodes; from then on a refusal is a failed try
	maxCorruptTries   = 2                      // an output that is damaged that often is lost

	// failingLimit is longer than a node's lease, 15 s by default: until the lease ends, the daemon
	// may come back with its outputs. If it does not, an update says so.
	failingLimit = 30 * time.Second
)

// reduceShuffle fetches the partitions of one reduce task.
type reduceShuffle struct {
	spec   *Shuffle
	client *shuffle.Client
	emit   func(Event)
	pause  time.Duration

	results chan fetchResult
	wg      sync.WaitGroup

	// Owned by the loop in run.
	known   map[int32]MapOutput // by task, as the last update has them
	busy    map[int32]fetching
	lost    map[int32]MapOutput // given up; an update without it clears it
	absent  map[int32]string    // by task: the address of a node that did not answer, so that its output was given up
	ready   []int32             // known, not busy, not lost and not present; by distance
	segment *mapreduce.SegmentWriter
	event   Event

	mu      sync.Mutex
	failing map[string]time.Time // address -> since when fetches from there get no answer
}

// fetching is a fetch in progress.
type fetching struct {
	output MapOutput
	giveUp context.CancelFunc // it is not tried again
}

type fetchResult struct {
	output    MapOutput
	file      string
	partition *shuffle.Fetched
	err       error
}

// runShuffle fetches the partitions as their map outputs become known, until all are present. An
// output that cannot be fetched is reported as lost until another one replaces it. If the
// replacement is on another node that does not answer either, this node is assumed to be at fault:
// Exhausted.
func runShuffle(ctx context.Context, r *Request, t Tools) error {
	w, err := mapreduce.NewSegmentWriter(r.Shuffle.Journal)
	if err != nil {
		return err
	}
	defer w.Close()
	scheme := "http"
	if r.Shuffle.CA != "" {
		scheme = "https"
	}
	s := &reduceShuffle{
		spec: r.Shuffle, client: &shuffle.Client{HTTP: t.HTTP, Scheme: scheme, Token: r.Shuffle.Token},
		emit: t.Emit, pause: shufflePause, results: make(chan fetchResult),
		busy: map[int32]fetching{}, lost: map[int32]MapOutput{}, absent: map[int32]string{}, segment: w, failing: map[string]time.Time{},
	}
	ctx, cancel := context.WithCancel(ctx)
	defer s.wg.Wait()
	defer cancel()
	s.applyUpdate(r.Shuffle.Update)
	return s.run(ctx, t.Updates)
}

func (s *reduceShuffle) run(ctx context.Context, updates <-chan Update) error {
	for s.segment.Count() < s.spec.Maps {
		s.startMore(ctx)
		select {
		case f := <-s.results:
			if err := s.handleFetched(f); err != nil {
				return err
			}
		case u, ok := <-updates:
			if !ok {
				updates = nil
				continue
			}
			s.applyUpdate(u)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return s.segment.Done()
}

// applyUpdate replaces the known outputs. A lost output that was made again is fetched again; a
// fetch of an output that is no longer known is not retried. O(outputs) for each update: a job may
// have 100,000 maps.
func (s *reduceShuffle) applyUpdate(u Update) {
	s.known, s.ready = make(map[int32]MapOutput, len(u.Outputs)), s.ready[:0]
	for _, o := range u.Outputs {
		if o.Task >= 0 && int(o.Task) < s.spec.Maps { // else it is no partition of this task
			s.known[o.Task] = o
		}
	}
	lost := len(s.lost)
	maps.DeleteFunc(s.lost, func(task int32, o MapOutput) bool { return s.known[task] != o })
	for task, f := range s.busy {
		if s.known[task] != f.output {
			f.giveUp()
		}
	}
	for task := range s.known {
		_, busy := s.busy[task]
		_, lost := s.lost[task]
		if !busy && !lost && !s.segment.Has(int(task)) {
			s.ready = append(s.ready, task)
		}
	}
	slices.SortFunc(s.ready, s.compare)
	if len(s.lost) < lost {
		s.emitEvent()
	}
}

// distance returns how far a task is after the task that this partition begins with. Each partition
// begins with another task, since otherwise all reducers of the job would fetch from the first
// task's node at once.
func (s *reduceShuffle) distance(task int32) int {
	return (int(task) + s.spec.Maps - s.spec.Partition*maxShuffleFetches%s.spec.Maps) % s.spec.Maps
}

func (s *reduceShuffle) compare(a, b int32) int { return cmp.Compare(s.distance(a), s.distance(b)) }

// startMore starts fetches in the order of ready, up to the limit. The harness sorts what is
// fetched by task.
func (s *reduceShuffle) startMore(ctx context.Context) {
	for len(s.ready) > 0 && len(s.busy) < maxShuffleFetches {
		task := s.ready[0]
		s.ready = s.ready[1:]
		o := s.known[task]
		pausing, giveUp := context.WithCancel(ctx)
		s.busy[task] = fetching{o, giveUp}
		s.wg.Go(func() {
			defer giveUp()
			f := s.fetch(ctx, pausing, o)
			select {
			case s.results <- f:
			case <-ctx.Done():
			}
		})
	}
}

// fetch fetches one partition, with retries until pausing ends. A busy node has not lost the
// output, so its refusal is not a failed try. Nor is the silence of a node whose daemon may be
// restarting.
func (s *reduceShuffle) fetch(ctx, pausing context.Context, o MapOutput) fetchResult {
	f := fetchResult{output: o, file: fmt.Sprintf("map-%d.%d.%d", o.Task, o.Attempt, o.Run)}
	path, pause, corrupt := filepath.Join(s.spec.Dir, f.file), s.pause, 0
	var waited time.Duration // for busy nodes
	var failing time.Time    // since when the node has not answered; zero: it has answered
	for try := 1; ; {
		f.partition, f.err = s.client.Fetch(ctx, o.Address, o.key(s.spec), s.spec.Partition, path)
		var busy *shuffle.Busy
		isBusy := errors.As(f.err, &busy)
		since := s.noteAnswer(o.Address, isBusy || !errors.Is(f.err, fault.Unavailable))
		if since.IsZero() || failing.IsZero() || since.Before(failing) { // an answer to another fetch does not count: each transfer may break off
			failing = since
		}
		if isBusy && waited < maxBusyTime {
			wait := busy.Pause + rand.N(busy.Pause) // reducers that were refused together must not all return at once
			if !sleep.For(pausing, wait) {
				return f
			}
			waited += wait
			continue
		}
		if errors.Is(f.err, fault.Corrupt) {
			corrupt++
		}
		again := errors.Is(f.err, fault.Unavailable) && (try < maxShuffleTries || time.Since(failing) < failingLimit) ||
			errors.Is(f.err, fault.Corrupt) && corrupt < maxCorruptTries
		if !again || !sleep.For(pausing, pause) {
			return f
		}
		try++
		pause = min(2*pause, maxShufflePause)
	}
}

// noteAnswer records whether a node has answered a fetch. It returns since when the node has not
// answered, zero if it has.
func (s *reduceShuffle) noteAnswer(address string, answered bool) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if answered {
		delete(s.failing, address)
	} else if s.failing[address].IsZero() {
		s.failing[address] = time.Now()
	}
	return s.failing[address]
}

// handleFetched records a fetched partition, or its output as lost.
func (s *reduceShuffle) handleFetched(f fetchResult) error {
	delete(s.busy, f.output.Task)
	switch {
	case f.err == nil:
		s.event.Bytes += f.partition.Range.Length
		err := s.segment.Add(mapreduce.Segment{Map: int(f.output.Task), File: filepath.Base(f.partition.Path), Codec: f.partition.Codec, Range: f.partition.Range})
		s.emitEvent()
		return err
	case errors.Is(f.err, fault.NotFound), errors.Is(f.err, fault.Corrupt), errors.Is(f.err, fault.Unavailable), errors.Is(f.err, fault.Denied):
		if err := os.Remove(filepath.Join(s.spec.Dir, f.file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if o, ok := s.known[f.output.Task]; o == f.output {
			var busy *shuffle.Busy // which is an answer
			if errors.Is(f.err, fault.Unavailable) && !errors.As(f.err, &busy) {
				if was := s.absent[f.output.Task]; was != "" && was != f.output.Address {
					// If the output were made again and again for this task, the job would fail.
					// The class of f.err is not that of this error.
					return fault.New(fault.Exhausted, "the output of map task %d was made again, and its node does not answer either: %v", f.output.Task, f.err)
				}
				s.absent[f.output.Task] = f.output.Address
			}
			s.lost[f.output.Task] = f.output
			s.emitEvent()
		} else if ok { // another one is known already
			at, _ := slices.BinarySearchFunc(s.ready, f.output.Task, s.compare)
			s.ready = slices.Insert(s.ready, at, f.output.Task)
		}
		return nil
	case IsRetryable(f.err): // the local disk failed
		return f.err
	default:
		return errors.Join(f.err, s.segment.Fail(f.err.Error()))
	}
}

func (s *reduceShuffle) emitEvent() {
	s.event.Lost = slices.SortedFunc(maps.Values(s.lost), func(a, b MapOutput) int { return cmp.Compare(a.Task, b.Task) })
	s.emit(s.event)
}

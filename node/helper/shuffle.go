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
	maxShuffleTries   = 6                      // for one output, about 12 s; then it is lost
	shufflePause      = 200 * time.Millisecond // doubles with each retry
	maxBusyTime       = 10 * time.Minute       // that a fetch waits for busy nodes; from then on a refusal is a failed try
	maxCorruptTries   = 2                      // an output that is damaged that often is lost
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
	known   map[int32]MapOutput // by task: the newest known output
	busy    map[int32]bool
	lost    map[int32]MapOutput // given up; a newer output clears it
	ready   []int32             // known, not busy, not lost and not present; by distance
	segment *mapreduce.SegmentWriter
	event   Event
}

type fetchResult struct {
	output    MapOutput
	file      string
	partition *shuffle.Fetched
	err       error
}

// runShuffle fetches the partitions as their map outputs become known, until all
// are present. An output that cannot be fetched is reported as lost until another
// one replaces it.
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
		known: map[int32]MapOutput{}, busy: map[int32]bool{}, lost: map[int32]MapOutput{}, segment: w,
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

// applyUpdate records the known outputs. A lost output that was made again is
// fetched again. O(outputs), and that for each update alone: a job may have 100,000 maps.
func (s *reduceShuffle) applyUpdate(u Update) {
	changed := false
	for _, o := range u.Outputs {
		if o.Task < 0 || int(o.Task) >= s.spec.Maps {
			continue // no partition of this task
		}
		_, was := s.known[o.Task]
		s.known[o.Task] = o
		if lost, ok := s.lost[o.Task]; ok && lost != o {
			delete(s.lost, o.Task)
			changed, was = true, false
		}
		if !was && !s.segment.Has(int(o.Task)) {
			s.ready = append(s.ready, o.Task)
		}
	}
	slices.SortFunc(s.ready, s.compare)
	if changed {
		s.emitEvent()
	}
}

// distance returns how far a task is behind the one that the partition begins with. Each partition begins with another
// one: the node of the first task would be busy with all reducers of the job.
func (s *reduceShuffle) distance(task int32) int {
	return (int(task) + s.spec.Maps - s.spec.Partition*maxShuffleFetches%s.spec.Maps) % s.spec.Maps
}

func (s *reduceShuffle) compare(a, b int32) int { return cmp.Compare(s.distance(a), s.distance(b)) }

// startMore starts fetches in the order of ready, up to the limit. The harness sorts what is fetched by task.
func (s *reduceShuffle) startMore(ctx context.Context) {
	for len(s.ready) > 0 && len(s.busy) < maxShuffleFetches {
		task := s.ready[0]
		s.ready = s.ready[1:]
		s.busy[task] = true
		o := s.known[task]
		s.wg.Go(func() {
			f := s.fetch(ctx, o)
			select {
			case s.results <- f:
			case <-ctx.Done():
			}
		})
	}
}

// fetch fetches one partition, with retries. A node that is busy has not lost the output: that is no failed try.
func (s *reduceShuffle) fetch(ctx context.Context, o MapOutput) fetchResult {
	f := fetchResult{output: o, file: fmt.Sprintf("map-%d.%d.%d", o.Task, o.Attempt, o.Run)}
	path, pause, corrupt := filepath.Join(s.spec.Dir, f.file), s.pause, 0
	var waited time.Duration // for busy nodes
	for try := 1; ; {
		f.partition, f.err = s.client.Fetch(ctx, o.Address, o.key(s.spec), s.spec.Partition, path)
		var busy *shuffle.Busy
		if errors.As(f.err, &busy) && waited < maxBusyTime {
			wait := busy.Pause + rand.N(busy.Pause) // reducers that were refused together come again one after the other
			if !sleep.For(ctx, wait) {
				return f
			}
			waited += wait
			continue
		}
		if errors.Is(f.err, fault.Corrupt) {
			corrupt++
		}
		again := errors.Is(f.err, fault.Unavailable) && try < maxShuffleTries || errors.Is(f.err, fault.Corrupt) && corrupt < maxCorruptTries
		if !again || !sleep.For(ctx, pause) {
			return f
		}
		try++
		pause *= 2
	}
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
		if s.known[f.output.Task] == f.output {
			s.lost[f.output.Task] = f.output
			s.emitEvent()
		} else { // another one is known already
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

package helper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/shuffle"
)

// Limits of a shuffle.
const (
	shuffleAtOnce = 5                      // partitions fetched at once
	shuffleTries  = 6                      // for one output, about 12 s; then it is lost
	shufflePause  = 200 * time.Millisecond // doubles
	corruptTries  = 2                      // an output that is damaged twice is lost
)

// shuffling is one reduce task's fetches.
type shuffling struct {
	spec   *Shuffle
	client *shuffle.Client
	emit   func(Event)
	pause  time.Duration

	results chan fetched
	wg      sync.WaitGroup

	// The rest belongs to the loop in run.
	known   map[int32]MapOutput // by task: the newest output known
	busy    map[int32]bool
	lost    map[int32]MapOutput // given up; another attempt or run clears it
	segment *mapreduce.SegmentWriter
	event   Event
}

type fetched struct {
	output MapOutput
	file   string
	got    *shuffle.Fetched
	err    error
}

// runShuffle brings the partitions as their map outputs become known. It ends
// when all are there; an output that cannot be had is reported as lost and
// waited for until another one takes its place.
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
	s := &shuffling{
		spec: r.Shuffle, client: &shuffle.Client{HTTP: t.HTTP, Scheme: scheme, Token: r.Shuffle.Token},
		emit: t.Emit, pause: shufflePause, results: make(chan fetched),
		known: map[int32]MapOutput{}, busy: map[int32]bool{}, lost: map[int32]MapOutput{}, segment: w,
	}
	ctx, cancel := context.WithCancel(ctx)
	defer s.wg.Wait()
	defer cancel()
	s.learn(r.Shuffle.Update)
	return s.run(ctx, t.Updates)
}

func (s *shuffling) run(ctx context.Context, updates <-chan Update) error {
	for s.left() > 0 {
		s.startMore(ctx)
		select {
		case f := <-s.results:
			if err := s.take(f); err != nil {
				return err
			}
		case u, ok := <-updates:
			if !ok {
				updates = nil
				continue
			}
			s.learn(u)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return s.segment.Done()
}

// left is how many partitions are not in the folder.
func (s *shuffling) left() int {
	n := 0
	for m := range s.spec.Maps {
		if !s.segment.Has(m) {
			n++
		}
	}
	return n
}

// learn takes in what is known of the outputs now. A lost one that was made
// again is tried again.
func (s *shuffling) learn(u Update) {
	changed := false
	for _, o := range u.Outputs {
		s.known[o.Task] = o
		if was, ok := s.lost[o.Task]; ok && was != o {
			delete(s.lost, o.Task)
			changed = true
		}
	}
	if changed {
		s.tell()
	}
}

// startMore starts fetches in the order of the tasks, up to the limit.
func (s *shuffling) startMore(ctx context.Context) {
	tasks := make([]int32, 0, len(s.known))
	for task := range s.known {
		if _, lost := s.lost[task]; !lost && !s.busy[task] && !s.segment.Has(int(task)) {
			tasks = append(tasks, task)
		}
	}
	slices.Sort(tasks)
	for _, task := range tasks {
		if len(s.busy) >= shuffleAtOnce {
			return
		}
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

// fetch brings one partition, with retries.
func (s *shuffling) fetch(ctx context.Context, o MapOutput) fetched {
	f := fetched{output: o, file: fmt.Sprintf("map-%d.%d.%d", o.Task, o.Attempt, o.Run)}
	path, pause, corrupt := filepath.Join(s.spec.Dir, f.file), s.pause, 0
	for try := 1; ; try++ {
		f.got, f.err = s.client.Fetch(ctx, o.Address, o.key(s.spec), s.spec.Partition, path)
		if errors.Is(f.err, fault.Corrupt) {
			corrupt++
		}
		again := errors.Is(f.err, fault.Unavailable) && try < shuffleTries || errors.Is(f.err, fault.Corrupt) && corrupt < corruptTries
		if !again || hdfs.Sleep(ctx, pause) != nil {
			return f
		}
		pause *= 2
	}
}

// take announces a partition, or notes that its output is lost.
func (s *shuffling) take(f fetched) error {
	delete(s.busy, f.output.Task)
	switch {
	case f.err == nil:
		s.event.Bytes += f.got.Range.Length
		err := s.segment.Add(mapreduce.Segment{Map: int(f.output.Task), File: f.file, Codec: f.got.Codec, Range: f.got.Range})
		s.tell()
		return err
	case errors.Is(f.err, fault.NotFound), errors.Is(f.err, fault.Corrupt), errors.Is(f.err, fault.Unavailable), errors.Is(f.err, fault.Denied):
		if err := os.Remove(filepath.Join(s.spec.Dir, f.file)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if s.known[f.output.Task] == f.output { // else another one is known already
			s.lost[f.output.Task] = f.output
			s.tell()
		}
		return nil
	default: // the disk, or our own end
		return errors.Join(f.err, s.segment.Fail(f.err.Error()))
	}
}

func (s *shuffling) tell() {
	s.event.Lost = s.event.Lost[:0:0]
	for task := range s.lost {
		s.event.Lost = append(s.event.Lost, task)
	}
	slices.Sort(s.event.Lost)
	s.emit(s.event)
}

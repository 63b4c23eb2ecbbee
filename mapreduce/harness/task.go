package harness

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/drover-run/drover/internal/peakmem"
	"github.com/drover-run/drover/mapreduce"
)

const (
	chunkBytes    = 256 << 10 // text moved at once
	reserveBytes  = 64 << 10  // disk space reserved for the result
	progressEvery = time.Second
)

// flowCounter counts records and bytes while other goroutines read the counts.
type flowCounter struct{ records, bytes atomic.Int64 }

func (f *flowCounter) add(records, bytes int) {
	f.records.Add(int64(records))
	f.bytes.Add(int64(bytes))
}

func (f *flowCounter) value() mapreduce.Flow {
	return mapreduce.Flow{Records: f.records.Load(), Bytes: f.bytes.Load()}
}

// task is the execution of one task.
type task struct {
	ctx      context.Context
	spec     *mapreduce.TaskSpec
	coder    *mapreduce.KeyCoder // encodes keys that are not ordered by their bytes; else nil
	stdout   *os.File            // receives the stdout of a group task
	reporter *reporter
	spawner  *spawner
	sortDir  string // directory of this task below spec.TempDir
	started  time.Time

	in, out  flowCounter
	piece    atomic.Int64 // index of the input piece being read
	segments atomic.Int64
	partial  mapreduce.Result // filled in step by step; buildResult completes it
	user     struct {
		exit   int
		signal string
		cpu    time.Duration
		peak   int64
	}
}

func newTask(ctx context.Context, spec *mapreduce.TaskSpec, stdout *os.File, log io.Writer) *task {
	t := &task{ctx: ctx, spec: spec, coder: spec.Keys.Coder(spec.Reduces), stdout: stdout, reporter: &reporter{log: log}, started: time.Now()}
	t.user.exit = -1
	t.partial = mapreduce.Result{Version: mapreduce.ResultVersion, Identity: spec.Identity, Kind: spec.Kind}
	return t
}

func (t *task) reservePath() string { return t.spec.Result + ".reserve" }

// reserveResultSpace allocates disk space for the result in advance, so that a
// task that filled its quota can still report that.
func (t *task) reserveResultSpace() error {
	return os.WriteFile(t.reservePath(), make([]byte, reserveBytes), 0o600)
}

// execute runs the task. In any case it removes the directory for spills, and
// after a failure also the outputs.
func (t *task) execute() (err error) {
	if t.sortDir, err = os.MkdirTemp(t.spec.TempDir, "sort-"); err != nil {
		return err
	}
	defer os.RemoveAll(t.sortDir)
	t.spawner = newSpawner()
	defer t.spawner.close()
	stop := t.startBackground()
	defer stop()
	defer func() {
		if err != nil {
			t.removeOutputs()
		}
	}()
	if err := t.runKind(); err != nil {
		return err
	}
	return t.reporter.checkCounters()
}

func (t *task) runKind() error {
	switch t.spec.Kind {
	case mapreduce.KindMap:
		return t.runMap()
	case mapreduce.KindReduce:
		return t.runReduce()
	case mapreduce.KindGroup:
		return t.runProgram(program{argv: t.spec.Program.Argv})
	default:
		return classErrorf(mapreduce.ClassSpec, "kind %s", t.spec.Kind)
	}
}

func (t *task) removeOutputs() {
	if o := t.spec.Output; o != nil {
		os.Remove(o.Path)
	}
	if m := t.spec.MapOutput; m != nil {
		os.Remove(m.Data)
		os.Remove(m.Index)
	}
}

// startBackground reports progress and, as process 1, reaps orphans, until stop
// is called.
func (t *task) startBackground() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if t.spec.Progress != "" {
		wg.Go(func() { t.reportProgress(ctx) })
	}
	if os.Getpid() == 1 {
		wg.Go(func() { reapOrphans(ctx, t.spawner) })
	}
	return func() { cancel(); wg.Wait() }
}

func (t *task) reportProgress(ctx context.Context) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		t.writeProgress()
		select {
		case <-ctx.Done():
			t.writeProgress()
			return
		case <-tick.C:
		}
	}
}

// writeProgress ignores errors, e.g. of a full disk: the task continues without
// progress reports.
func (t *task) writeProgress() {
	c, _, status, _ := t.reporter.snapshot()
	mapreduce.WriteProgress(t.spec.Progress, &mapreduce.Progress{Version: mapreduce.ResultVersion,
		Input: t.in.value(), Output: t.out.value(), Segments: int(t.segments.Load()), Status: status, Counters: c})
}

// buildResult completes the result with everything known at the end.
func (t *task) buildResult(err error) *mapreduce.Result {
	r := t.partial
	r.Class = classOf(err, t.spec.Kind)
	r.Error = messageOf(err, r.Class)
	r.Permanent = err != nil && isPermanent(err, r.Class)
	if err != nil {
		r.Index, r.Output = nil, nil
	}
	r.UserExit, r.UserSignal = t.user.exit, t.user.signal
	r.Counters, r.CountersDropped, r.Status, r.StderrTail = t.reporter.snapshot()
	r.Input, r.Final = t.in.value(), t.out.value()
	r.WallMS = time.Since(t.started).Milliseconds()
	r.UserCPUMS, r.UserPeakRSS = t.user.cpu.Milliseconds(), t.user.peak
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		cpu := time.Duration(u.Utime.Nano() + u.Stime.Nano())
		r.HarnessCPUMS, r.HarnessPeakRSS = cpu.Milliseconds(), peakmem.HighWaterMark("self")
	}
	return &r
}

// writeResult frees the reserved space and writes the result.
func (t *task) writeResult(r *mapreduce.Result) error {
	os.Remove(t.reservePath())
	if err := mapreduce.WriteResult(t.spec.Result, r); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(t.spec.Result), err)
	}
	return nil
}

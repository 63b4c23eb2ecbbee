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

	"github.com/drover-run/drover/mapreduce"
)

const (
	chunkBytes    = 256 << 10 // of text moved at once
	reserveBytes  = 64 << 10  // kept on disk for the result
	progressEvery = time.Second
)

// flow counts what passes while other goroutines look.
type flow struct{ records, bytes atomic.Int64 }

func (f *flow) add(records, bytes int) {
	f.records.Add(int64(records))
	f.bytes.Add(int64(bytes))
}

func (f *flow) value() mapreduce.Flow {
	return mapreduce.Flow{Records: f.records.Load(), Bytes: f.bytes.Load()}
}

// task is one task on its way.
type task struct {
	ctx    context.Context
	spec   *mapreduce.TaskSpec
	stdout *os.File // where the stdout of a group task goes
	rep    *reporter
	spawn  *spawner
	temp   string // our folder below spec.TempDir
	begin  time.Time

	in, out  flow
	segments atomic.Int64
	res      mapreduce.Result // filled in by the step that knows
	user     struct {
		exit   int
		signal string
		cpu    time.Duration
		peak   int64
	}
}

func newTask(ctx context.Context, spec *mapreduce.TaskSpec, stdout *os.File, log io.Writer) *task {
	t := &task{ctx: ctx, spec: spec, stdout: stdout, rep: &reporter{log: log}, begin: time.Now()}
	t.user.exit = -1
	t.res = mapreduce.Result{Version: mapreduce.ResultVersion, Names: spec.Names, Kind: spec.Kind}
	return t
}

func (t *task) reservePath() string { return t.spec.Result + ".reserve" }

// reserve takes the room for the result while there is some: a task that
// filled its quota must still be able to say so.
func (t *task) reserve() error {
	return os.WriteFile(t.reservePath(), make([]byte, reserveBytes), 0o600)
}

// do runs the task; whatever happens its folder for spills is gone after it,
// and after a failure so are the outputs.
func (t *task) do() (err error) {
	if t.temp, err = os.MkdirTemp(t.spec.TempDir, "sort-"); err != nil {
		return err
	}
	defer os.RemoveAll(t.temp)
	t.spawn = newSpawner()
	defer t.spawn.close()
	stop := t.background()
	defer stop()
	defer func() {
		if err != nil {
			t.dropOutputs()
		}
	}()
	switch t.spec.Kind {
	case mapreduce.KindMap:
		return t.doMap()
	case mapreduce.KindReduce:
		return t.doReduce()
	case mapreduce.KindGroup:
		return t.run(program{argv: t.spec.Program.Argv})
	default:
		return failf(mapreduce.ClassSpec, "kind %s", t.spec.Kind)
	}
}

func (t *task) dropOutputs() {
	if o := t.spec.Output; o != nil {
		os.Remove(o.Path)
	}
	if m := t.spec.MapOutput; m != nil {
		os.Remove(m.Data)
		os.Remove(m.Index)
	}
}

// background reports progress and, as process 1, reaps orphans, until stop.
func (t *task) background() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	if t.spec.Progress != "" {
		wg.Go(func() { t.reportProgress(ctx) })
	}
	if os.Getpid() == 1 {
		wg.Go(func() { reapOrphans(ctx) })
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

// writeProgress may fail (a full disk): the task goes on without it.
func (t *task) writeProgress() {
	c, _, status, _ := t.rep.snapshot()
	mapreduce.WriteProgress(t.spec.Progress, &mapreduce.Progress{Version: mapreduce.ResultVersion,
		In: t.in.value(), Out: t.out.value(), Segments: int(t.segments.Load()), Status: status, Counters: c})
}

// result gathers all that is known at the end.
func (t *task) result(err error) *mapreduce.Result {
	r := t.res
	r.Class = classOf(err, t.spec.Kind)
	r.Error = messageOf(err, r.Class)
	if err != nil {
		r.Index, r.Output = nil, nil
	}
	r.UserExit, r.UserSignal = t.user.exit, t.user.signal
	r.Counters, r.CountersDropped, r.Status, r.StderrTail = t.rep.snapshot()
	r.In, r.Out = t.in.value(), t.out.value()
	r.WallMS = time.Since(t.begin).Milliseconds()
	r.UserCPUMS, r.UserPeakRSS = t.user.cpu.Milliseconds(), t.user.peak
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) == nil {
		cpu := time.Duration(u.Utime.Nano() + u.Stime.Nano())
		r.HarnessCPUMS, r.HarnessPeakRSS = cpu.Milliseconds(), u.Maxrss<<10
	}
	return &r
}

// deliver writes the result in the room that was kept for it.
func (t *task) deliver(r *mapreduce.Result) error {
	os.Remove(t.reservePath())
	if err := mapreduce.WriteResult(t.spec.Result, r); err != nil {
		return fmt.Errorf("%s: %w", filepath.Base(t.spec.Result), err)
	}
	return nil
}

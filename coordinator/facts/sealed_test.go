package facts

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/jobspec"
)

// readTask returns what readers see of a task.
func readTask(t *Task) any {
	type attempt struct {
		A    Attempt
		Seen *droverv1.SeenAttempt
		Why  droverv1.Cause
	}
	out := struct {
		Task     Task
		Attempts []attempt
	}{Task: *t}
	out.Task.Attempts = nil
	for _, a := range t.Attempts {
		c := *a
		c.seen, c.sealed, c.report, c.cause = nil, nil, 0, 0
		out.Attempts = append(out.Attempts, attempt{c, a.Seen(), a.Cause()})
	}
	return out
}

var readOptions = cmp.Options{protocmp.Transform(), cmp.AllowUnexported(Attempt{}, Task{})}

func genAttempt(t *rapid.T, n int32) *Attempt {
	i64 := rapid.Int64()
	i32 := rapid.Int32()
	a := &Attempt{Attempt: n, Run: i32.Draw(t, "run"), Node: i32.Draw(t, "node"), Epoch: rapid.Uint64().Draw(t, "epoch"), Disk: rapid.Int32Range(-1, 5).Draw(t, "disk"),
		State: AttemptState(rapid.IntRange(3, 6).Draw(t, "state")), Level: droverv1.Level(rapid.IntRange(0, 4).Draw(t, "level")), Speculative: rapid.Bool().Draw(t, "speculative"),
		Locality: rapid.SampledFrom([]string{"", "none", "node", "rack", "remote", "elsewhere"}).Draw(t, "locality"), Placed: i64.Draw(t, "placed"), Ended: i64.Draw(t, "ended"),
		EstimateNS: i64.Draw(t, "estimate"), Retained: rapid.Bool().Draw(t, "retained"), Seq: rapid.Uint64().Draw(t, "seq"), EndSeq: rapid.Uint64().Draw(t, "end"), LostSeq: rapid.Uint64().Draw(t, "lost")}
	if rapid.Bool().Draw(t, "suspended") {
		a.Suspension = Suspension{Reason: rapid.String().Draw(t, "reason"), SuspendedMS: 5, RestoreFailedOn: []int32{1, 2}}
		a.Occupied = Amounts{1, 2, 3}
	}
	if rapid.Bool().Draw(t, "reported") {
		a.seen = &droverv1.SeenAttempt{Key: Key{Job: 1, Attempt: n}.Proto(a.Run), Cause: droverv1.Cause(rapid.IntRange(0, 5).Draw(t, "cause")), StderrTail: "tail of a task",
			Counters: map[string]int64{"a": i64.Draw(t, "counter")}, Usage: &droverv1.Usage{CpuMs: i64.Draw(t, "cpu")}}
	}
	return a
}

// TestSealedTasksReadAsBefore seals random tasks, also a second time and out of a
// snapshot, and compares what readers see.
func TestSealedTasksReadAsBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tasks [chunkTasks]*Task
		for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(0, chunkTasks-1), 0, 12, rapid.ID).Draw(t, "tasks") {
			task := &Task{State: TaskDone, Failures: rapid.Int32().Draw(t, "failures"), InfraFailures: rapid.Int32().Draw(t, "infra"), Winner: 1}
			for n := range rapid.Int32Range(0, 3).Draw(t, "attempts") {
				task.Attempts = append(task.Attempts, genAttempt(t, n+1))
			}
			tasks[i] = task
		}
		first := seal(&tasks)
		again := seal(first.all())
		if !bytes.Equal(first.heads, again.heads) || !bytes.Equal(first.reports, again.reports) {
			t.Fatal("sealed again it is another encoding")
		}
		restored, err := restoreSealed(first.heads, first.reports)
		if err != nil {
			t.Fatal(err)
		}
		for i := range tasks {
			want := tasks[i]
			if want == nil {
				want = untriedTask
			}
			if d := cmp.Diff(readTask(want), readTask(restored.task(int32(i))), readOptions); d != "" {
				t.Fatalf("task %d: %s", i, d)
			}
		}
	})
}

// FuzzRestoreSealed reads damaged blocks: an error, or a block that can be read.
func FuzzRestoreSealed(f *testing.F) {
	s := seal(&[chunkTasks]*Task{3: {State: TaskDone, Winner: 1, Attempts: []*Attempt{{Attempt: 1, State: AttemptSucceeded, Locality: "elsewhere", seen: &droverv1.SeenAttempt{Message: "m"}}}}})
	f.Add(s.heads, s.reports)
	fuzztest.Run(f, func(t *testing.T, heads, reports []byte) {
		s, err := restoreSealed(heads, reports)
		if err != nil {
			return
		}
		for i := range int32(chunkTasks) {
			readTask(s.task(i))
		}
	})
}

// shortTasks runs a job of n short tasks on one node, 100 at a time, and calls
// each after every hundred.
func shortTasks(t testing.TB, f *Facts, n int, each func(done int)) {
	t.Helper()
	index := f.Index()
	apply := func(e *droverv1.Entry) Result {
		index++
		e.Version, e.At = EntryVersion, int64(index)*1e6
		r := f.Apply(index, e)
		if r.Err != nil || len(r.Dropped) > 0 {
			t.Fatal(r.Err, r.Dropped)
		}
		f.TakeJournal()
		return r
	}
	big := &droverv1.Resources{Cpu: 1 << 40, Memory: 1 << 50, Io: 1 << 50}
	node := apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: "n1", Allocatable: big,
		Disks: []*droverv1.Disk{{Name: "d", Path: "/d", Io: 1 << 50, Space: 1 << 50}}}}}})
	spec, err := jobspec.Encode(&jobspec.Job{Version: 1, Name: "short", Tenant: DefaultTenant, Priority: jobspec.PriorityLow, Stages: []jobspec.Stage{{Name: "main",
		Kind: jobspec.KindGroup, Tasks: n, Command: []string{"true"}, Resources: jobspec.Resources{CPU: 1000, Memory: 1 << 27, IO: 1 << 20}, Attempts: 4}}})
	if err != nil {
		t.Fatal(err)
	}
	job := apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(spec)}}})
	for done := 0; done < n; done += 100 {
		d, a := &droverv1.DecisionFact{}, &droverv1.AttemptsFact{Node: node.Node, Epoch: node.Epoch}
		for i := done; i < done+100; i++ {
			k := &droverv1.AttemptKey{Job: job.Job, Task: int32(i), Attempt: 1, Run: 1}
			d.Actions = append(d.Actions, &droverv1.ActionFact{Kind: int32(ActPlace), Key: k, Node: node.Node})
			a.Seen = append(a.Seen, shortReport(k, i))
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: d}})
		apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: a}})
		each(done + 100)
	}
}

// shortReport is what a node says of a task of some milliseconds.
func shortReport(k *droverv1.AttemptKey, i int) *droverv1.SeenAttempt {
	at := int64(1_700_000_000_000 + i)
	return &droverv1.SeenAttempt{Key: k, Phase: droverv1.Phase_PHASE_SUCCEEDED, Level: droverv1.Level_LEVEL_RUNNING, Progress: 1, StderrTail: fmt.Sprintf("ready after %d ms\n", i%97),
		Usage:  &droverv1.Usage{CpuMs: int64(i % 13), MemoryPeak: int64(1<<20 + i*4096%(1<<22)), ReadBytes: int64(i % 7), WriteBytes: 4096},
		Limits: &droverv1.Limits{CpuMax: "100000 100000", MemoryMax: "134217728", PidsMax: "4096"}, StartedMs: at, EndedMs: at + 20, RunningMs: 19,
		Counters: map[string]int64{"app:records": int64(i), "app:bytes": int64(i * 31)}, DiskOccupied: 4096}
}

// TestEndedTasksOccupyLittleMemory runs a job of 50,000 short tasks: what is left
// of each that ended is bounded, while the job lives, after a restore, and when
// it has ended. Before tasks were sealed it was over 2,000 bytes.
func TestEndedTasksOccupyLittleMemory(t *testing.T) {
	const tasks, perTask = 50_000, 256
	f := New()
	var base uint64
	shortTasks(t, f, tasks, func(done int) {
		switch done {
		case tasks / 2: // the ring of events and the completions are full
			base = heapInUse()
		case tasks - 100:
			got := int64(heapInUse()-base) / (tasks / 2)
			t.Logf("%d bytes for each ended task", got)
			if got > perTask {
				t.Errorf("%d bytes for each ended task of a live job, at most %d", got, perTask)
			}
		}
	})
	if j := f.Job(1); !j.HasEnded() || j.Stages[0].Done != tasks || j.Stages[0].Task(7).WinningAttempt().Seen().GetUsage().GetCpuMs() != 7 {
		t.Fatalf("%+v", j)
	}
	for n := range f.onNode {
		if len(f.onNode[n]) > 0 {
			t.Errorf("%d attempts are still on node %d", len(f.onNode[n]), n)
		}
	}
	var snapshot bytes.Buffer
	if err := f.Snapshot().Encode(&snapshot); err != nil {
		t.Fatal(err)
	}
	text := snapshot.Bytes()
	before := heapInUse()
	g, err := Restore(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if got := int64(heapInUse()-before) / tasks; got > 2*perTask { // with events and completions
		t.Errorf("%d bytes for each task after a restore, at most %d", got, 2*perTask)
	}
	runtime.KeepAlive(f)
	runtime.KeepAlive(g)
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what has a finalizer or a pool goes with the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

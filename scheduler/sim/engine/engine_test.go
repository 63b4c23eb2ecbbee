package engine_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

const sec = time.Second

// nodes returns n nodes in racks of the given size.
func nodes(n, rack int, capacity scheduler.Resources) []engine.Node {
	var out []engine.Node
	for i := range n {
		out = append(out, engine.Node{NodeSpec: schedtest.NodeSpec(scheduler.NodeID(i), fmt.Sprintf("/r%d", i/rack), capacity)})
	}
	return out
}

func policy(t testing.TB, name string, kv ...string) scheduler.Policy {
	t.Helper()
	params := map[string]string{}
	for i := 0; i+1 < len(kv); i += 2 {
		params[kv[i]] = kv[i+1]
	}
	p, err := policies.New(name, params)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// singleStageJob returns a job of one stage.
func singleStageJob(submit time.Duration, tasks int32, demand scheduler.Resources, work time.Duration) engine.Job {
	return engine.Job{Name: "j", Submit: submit, Stages: []engine.Stage{{Name: "main", Tasks: tasks, Demand: demand, Work: work}}}
}

func mustSimulate(t testing.TB, c engine.Config) *engine.Result {
	t.Helper()
	r, err := engine.Simulate(c)
	if err != nil {
		t.Fatal(err)
	}
	if d := r.LittlesLaw[0] - r.LittlesLaw[1]; d > 1e-6*r.LittlesLaw[0] || -d > 1e-6*r.LittlesLaw[0] {
		t.Fatalf("Little's law: %v jobs in the system on average, rate times response is %v", r.LittlesLaw[0], r.LittlesLaw[1])
	}
	return r
}

func TestTasksRunInWaves(t *testing.T) {
	r := mustSimulate(t, engine.Config{Nodes: nodes(2, 2, schedtest.R(2, 8, 100)), Policy: policy(t, "fifo"),
		Jobs: []engine.Job{singleStageJob(0, 10, schedtest.R(1, 1, 0), 10*sec), singleStageJob(5*sec, 1, schedtest.R(1, 1, 0), sec)}})
	if j := r.Jobs[0]; j.Finish != 30*sec || j.Start != 0 || j.Alone != 30*sec || j.Work != 100 {
		t.Errorf("first job: %+v", j)
	}
	if j := r.Jobs[1]; j.Start != 20*sec || j.Finish != 21*sec || j.Wait() != 15*sec {
		t.Errorf("second job: %+v", j)
	}
	if r.Makespan != 30*sec || r.Used[scheduler.CPU] != 101.0/120 || r.UsefulCPU != 101.0/120 {
		t.Errorf("makespan %v, used %v, useful %v", r.Makespan, r.Used, r.UsefulCPU)
	}
}

// Alone, a stage of unequal tasks takes as long as its tasks in their order on all slots: at least its longest task.
func TestAloneTimeOfUnequalTasks(t *testing.T) {
	for name, c := range map[string]struct {
		work, delays []time.Duration
		want         time.Duration
	}{
		"a long task first":          {[]time.Duration{10 * sec, sec, sec, sec}, nil, 10 * sec},
		"a long task last":           {[]time.Duration{sec, sec, sec, 10 * sec}, nil, 11 * sec},
		"one task for each slot":     {[]time.Duration{sec, 5 * sec}, nil, 5 * sec},
		"equal tasks":                {[]time.Duration{sec, sec, sec}, nil, 2 * sec},
		"tasks that start unequally": {[]time.Duration{sec, sec}, []time.Duration{0, 4 * sec}, 5 * sec},
	} {
		j := singleStageJob(0, int32(len(c.work)), schedtest.R(1, 1, 0), 0)
		j.Stages[0].WorkPerTask, j.Stages[0].StartDelays = c.work, c.delays
		r := mustSimulate(t, engine.Config{Nodes: nodes(2, 2, schedtest.R(1, 8, 100)), Policy: policy(t, "fifo"), Jobs: []engine.Job{j}})
		if got := &r.Jobs[0]; got.Alone != c.want || got.Finish != c.want {
			t.Errorf("%s: %v alone, want %v; the job itself took %v", name, got.Alone, c.want, got.Finish)
		}
	}
}

// Launch and start delays occupy a task's demand, and a slow node does not make them longer.
func TestStartingTaskOccupiesItsDemand(t *testing.T) {
	slow := nodes(1, 1, schedtest.R(1, 8, 0))
	slow[0].Speed = 0.5
	j := singleStageJob(0, 2, schedtest.R(1, 1, 0), 5*sec)
	j.Stages[0].StartDelays = []time.Duration{3 * sec, 7 * sec}
	r := mustSimulate(t, engine.Config{Nodes: slow, Policy: policy(t, "fifo"), Jobs: []engine.Job{j}, Models: engine.Models{Launch: sec}})
	// 1 s launch, 3 s start, 10 s work; 1 s launch, 7 s start, 10 s work
	if j := r.Jobs[0]; j.Finish != 32*sec || j.Work != 22 || r.Used[scheduler.CPU] != 1 {
		t.Errorf("%+v, used %v", j, r.Used)
	}
	j.Stages[0].StartDelays = j.Stages[0].StartDelays[:1]
	if _, err := engine.Simulate(engine.Config{Nodes: slow, Policy: policy(t, "fifo"), Jobs: []engine.Job{j}}); err == nil || err.Error() != "job 1 (j) stage 0: 2 tasks and 1 start delays" {
		t.Errorf("%v", err)
	}
}

func TestReduceWaitsForMaps(t *testing.T) {
	j := engine.Job{Stages: []engine.Stage{
		{Name: "map", Kind: scheduler.KindMap, Tasks: 4, Demand: schedtest.R(1, 1, 0), Work: 10 * sec, InputBytes: 4 * 100 * schedtest.MiB, BlockBytes: 100 * schedtest.MiB},
		{Name: "reduce", Kind: scheduler.KindReduce, After: []int32{0}, Tasks: 2, Demand: schedtest.R(1, 1, 0), Work: 5 * sec, ShuffleBytes: 200 * schedtest.MiB, OutputBytes: 100 * schedtest.MiB}}}
	m := engine.Models{Transfer: engine.TransferFixed, LocalRate: 100 * schedtest.MiB, RackRate: 50 * schedtest.MiB, RemoteRate: 20 * schedtest.MiB, Launch: sec}
	r := mustSimulate(t, engine.Config{Nodes: nodes(2, 1, schedtest.R(2, 8, 100)), Policy: policy(t, "fifo"), Jobs: []engine.Job{j}, Models: m})
	// 1 s start, 1 s read, 10 s work; 1 s start, 10 s shuffle, 5 s work, 1 s write
	if f := r.Jobs[0].Finish; f != 29*sec {
		t.Errorf("finished at %v, want 29s", f)
	}
}

// A reduce that starts beside the last map fetches meanwhile, and works when the map is done.
func TestReduceFetchesBesideTheLastMap(t *testing.T) {
	for slow, want := range map[float64]time.Duration{
		0:   37 * sec, // 20 s of maps; 1 s start, 10 s shuffle, 5 s work, 1 s write
		0.5: 26 * sec, // the start and the shuffle are done when the maps are
	} {
		j := engine.Job{Stages: []engine.Stage{
			{Name: "map", Kind: scheduler.KindMap, Tasks: 2, Demand: schedtest.R(1, 1, 0), WorkPerTask: []time.Duration{sec, 19 * sec}},
			{Name: "reduce", Kind: scheduler.KindReduce, After: []int32{0}, Tasks: 2, Demand: schedtest.R(1, 1, 0), Work: 5 * sec, SlowStart: slow,
				ShuffleBytes: 200 * schedtest.MiB, OutputBytes: 100 * schedtest.MiB}}}
		m := engine.Models{Transfer: engine.TransferFixed, LocalRate: 100 * schedtest.MiB, RackRate: 50 * schedtest.MiB, RemoteRate: 20 * schedtest.MiB, Launch: sec}
		// An attempt that waits for maps runs: nobody has suspended it.
		waits := func(a *engine.AttemptRecord) {
			if a.Ran != a.Ended-a.Placed || a.Suspensions != 0 {
				t.Errorf("slow start %v: attempt %v ran for %v from %v to %v", slow, a.ID, a.Ran, a.Placed, a.Ended)
			}
		}
		r := mustSimulate(t, engine.Config{Nodes: nodes(2, 1, schedtest.R(2, 8, 100)), Policy: policy(t, "fifo"), Jobs: []engine.Job{j}, Models: m, OnAttempt: waits})
		if f := r.Jobs[0].Finish; f != want {
			t.Errorf("slow start %v: finished at %v, want %v", slow, f, want)
		}
	}
}

func TestReadTimeDependsOnLocality(t *testing.T) {
	for name, c := range map[string]struct {
		at   scheduler.NodeID
		want time.Duration
	}{"on the node": {0, 11 * sec}, "in the rack": {1, 12 * sec}, "in another rack": {2, 15 * sec}} {
		t.Run(name, func(t *testing.T) {
			j := singleStageJob(0, 1, schedtest.R(1, 1, 0), 10*sec)
			j.Stages[0].Inputs = schedtest.Inputs(100*schedtest.MiB, []scheduler.NodeID{c.at})
			m := engine.Models{Transfer: engine.TransferFixed, LocalRate: 100 * schedtest.MiB, RackRate: 50 * schedtest.MiB, RemoteRate: 20 * schedtest.MiB}
			r := mustSimulate(t, engine.Config{Nodes: nodes(4, 2, schedtest.R(1, 8, 100)), Policy: firstNode{}, Jobs: []engine.Job{j}, Models: m})
			if f := r.Jobs[0].Finish; f != c.want {
				t.Errorf("finished at %v, want %v", f, c.want)
			}
			if local := r.Jobs[0].NodeLocal == 1; local != (c.at == 0) {
				t.Errorf("node-local %v", local)
			}
		})
	}
}

// Input that the State would refuse during a simulation is refused before it.
func TestJobsThatTheStateRefusesAreNamed(t *testing.T) {
	for want, change := range map[string]func(j *engine.Job){
		"job 2: the name \"\\xff\" is not valid UTF-8":                        func(j *engine.Job) { j.Name = "\xff" },
		"job 2 (j) stage 0: a name of 5000 bytes: at most 4096":               func(j *engine.Job) { j.Stages[0].Name = strings.Repeat("x", 5000) },
		"job 2 (j): submitted at 5s with the deadline 5s, which is not later": func(j *engine.Job) { j.Deadline = 5 * sec },
		"job 2 (j): 4097 stages: expected 1 to 4096":                          func(j *engine.Job) { j.Stages = make([]engine.Stage, 4097) },
	} {
		jobs := []engine.Job{singleStageJob(0, 1, schedtest.R(1, 1, 0), sec), singleStageJob(5*sec, 1, schedtest.R(1, 1, 0), sec)}
		change(&jobs[1])
		if _, err := engine.Simulate(engine.Config{Nodes: nodes(1, 1, schedtest.R(1, 8, 0)), Policy: policy(t, "fifo"), Jobs: jobs}); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// Input on a node that is not simulated is refused, not read beyond the list of nodes.
func TestInputOnAnUnknownNodeIsRefused(t *testing.T) {
	for _, n := range []scheduler.NodeID{-1, 4} {
		j := singleStageJob(0, 1, schedtest.R(1, 1, 0), 10*sec)
		j.Stages[0].Inputs = schedtest.Inputs(100*schedtest.MiB, []scheduler.NodeID{0, n})
		_, err := engine.Simulate(engine.Config{Nodes: nodes(4, 2, schedtest.R(1, 8, 100)), Policy: firstNode{}, Jobs: []engine.Job{j}})
		if err == nil || err.Error() != fmt.Sprintf("job 1 (j) stage 0: its input is on node %d of 4", n) {
			t.Errorf("node %d: error %v", n, err)
		}
	}
}

// A deadline whose guarantee was refused is accepted without one, and that is decided on at once: nothing else happens here
// before the regular task ends.
func TestRefusedDeadlineIsDecidedOnAgain(t *testing.T) {
	regular, urgent := singleStageJob(0, 1, schedtest.R(1, 1, 0), time.Hour), singleStageJob(60*sec, 1, schedtest.R(1, 1, 0), 60*sec)
	urgent.Deadline = 150 * sec
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(1, 8, 0)), Policy: policy(t, "3dsf"), Jobs: []engine.Job{regular, urgent}, Models: engine.Models{EstimateError: 0.6}}
	if r := mustSimulate(t, c); r.Jobs[1].Start < 0 || r.Jobs[1].Start > 2*time.Minute {
		t.Errorf("the job with the deadline starts at %v: %+v", r.Jobs[1].Start, r.Jobs)
	}
}

func TestFlowsShareALink(t *testing.T) {
	j := singleStageJob(0, 2, schedtest.R(1, 1, 0), 10*sec)
	j.Stages[0].Inputs = schedtest.Inputs(100*schedtest.MiB, []scheduler.NodeID{1}, []scheduler.NodeID{1})
	m := engine.Models{Transfer: engine.TransferShared, LocalRate: 100 * schedtest.MiB, RackRate: 100 * schedtest.MiB, RemoteRate: 100 * schedtest.MiB,
		NodeLink: 50 * schedtest.MiB, RackLink: 1000 * schedtest.MiB}
	r := mustSimulate(t, engine.Config{Nodes: nodes(2, 2, schedtest.R(2, 8, 100)), Policy: firstNode{}, Jobs: []engine.Job{j}, Models: m})
	// 200 MiB over one link of 50 MiB/s
	if f := r.Jobs[0].Finish.Round(time.Millisecond); f != 14*sec {
		t.Errorf("finished at %v, want 14s", f)
	}
}

func TestEnforcementReservesDeclaredIO(t *testing.T) {
	jobs := func() []engine.Job {
		small, big := singleStageJob(0, 1, schedtest.R(1, 1, 80), 0), singleStageJob(0, 3, schedtest.R(1, 1, 5), 0)
		small.Stages[0].OutputBytes, big.Stages[0].OutputBytes = 80*schedtest.MiB, 1000*schedtest.MiB
		return []engine.Job{small, big}
	}
	m := engine.Models{Transfer: engine.TransferShared, LocalRate: 100 * schedtest.MiB, RackRate: 1, RemoteRate: 1, NodeLink: 1, RackLink: 1}
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(8, 8, 100)), Policy: policy(t, "fifo"), Jobs: jobs(), Models: m}
	free := mustSimulate(t, c)
	c.Models.EnforceIO, c.Policy = true, policy(t, "fifo")
	enforced := mustSimulate(t, c)
	if f := free.Jobs[0].Finish.Round(time.Millisecond); f != 3200*time.Millisecond {
		t.Errorf("without enforcement the small job ends at %v, want 3.2s (a quarter of the disk)", f)
	}
	if f := enforced.Jobs[0].Finish.Round(time.Millisecond); f != sec {
		t.Errorf("with enforcement the small job ends at %v, want 1s", f)
	}
}

func TestSameSeedGivesSameResult(t *testing.T) {
	mk := func(seed uint64) engine.Config {
		c := engine.Config{Nodes: nodes(6, 2, schedtest.R(4, 16, 100)), Policy: policy(t, "fair"), Seed: seed, MaxTaskExecutions: 100,
			Models: engine.Models{Transfer: engine.TransferShared, LocalRate: 100 << 20, RackRate: 50 << 20, RemoteRate: 20 << 20, NodeLink: 100 << 20, RackLink: 200 << 20,
				Replicas: 3, Spread: 0.5, StragglerFraction: 0.1, StragglerFactor: 5, MTBF: 200 * sec, Repair: 20 * sec, EstimateError: 0.5, Heartbeat: 3 * sec, Launch: sec}}
		for i := range 30 {
			j := engine.Job{Submit: time.Duration(i) * 3 * sec, Stages: []engine.Stage{
				{Name: "map", Kind: scheduler.KindMap, Tasks: 8, Demand: schedtest.R(1, 1, 5), Work: 10 * sec, InputBytes: 8 << 26, BlockBytes: 1 << 26},
				{Name: "reduce", Kind: scheduler.KindReduce, After: []int32{0}, Tasks: 2, Demand: schedtest.R(1, 2, 5), Work: 5 * sec, ShuffleBytes: 1 << 26, OutputBytes: 1 << 24}}}
			c.Jobs = append(c.Jobs, j)
		}
		return c
	}
	a, b, other := mustSimulate(t, mk(7)), mustSimulate(t, mk(7)), mustSimulate(t, mk(8))
	if !reflect.DeepEqual(a, b) {
		t.Error("two runs of seed 7 differ")
	}
	if reflect.DeepEqual(a.Jobs, other.Jobs) {
		t.Error("seeds 7 and 8 have equal results")
	}
	if a.NodesLost == 0 || a.OutputsLost == 0 || a.WorkLostCPU == 0 || a.Unfinished != 0 {
		t.Errorf("%d nodes lost, %d outputs lost, %v CPU-s lost, %d jobs unfinished", a.NodesLost, a.OutputsLost, a.WorkLostCPU, a.Unfinished)
	}
}

func TestErrorNamesWaitingStage(t *testing.T) {
	caps := scheduler.Caps{Task: scheduler.Limit(schedtest.R(1, 0, 0))}
	_, err := engine.Simulate(engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 2, 0)), Policy: policy(t, "fifo"),
		Jobs: []engine.Job{singleStageJob(0, 1, schedtest.R(2, 1, 0), sec)}, BeforeSubmit: func(s *scheduler.State, _ scheduler.Time, _ *scheduler.JobSpec, _ []scheduler.StageSpec) error {
			spec := s.Tenant(0).Spec // a cap that the simulation did not know at its start
			spec.Caps = caps
			return s.Events().PutTenant(spec)
		}})
	if err == nil || !strings.HasPrefix(err.Error(), "at 0s: 1 jobs cannot end because no event is left: stage 1.0: 1 waiting") {
		t.Errorf("%v", err)
	}
}

// firstNode places every task on the first node with free capacity.
type firstNode struct{}

func (firstNode) Name() string { return "first" }

func (firstNode) Decide(s *scheduler.State, now scheduler.Time, maxActions int) scheduler.Decision {
	d := scheduler.Decision{Base: s.Index(), At: now}
	m := s.Journal().Mark()
	for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
		for _, g := range j.Stages {
			for g.Ready() {
				n := s.Cluster().NextNode(g, 0)
				if n == scheduler.NoNode || len(d.Actions) == maxActions {
					break
				}
				d.Actions = append(d.Actions, s.Attempts().PlaceAction(g, g.NextPending(0), n, 0))
				if err := s.Apply(&d.Actions[len(d.Actions)-1], now); err != nil {
					panic(err)
				}
			}
		}
	}
	s.Journal().Rollback(m)
	return d
}

func TestContentionSlowsAllTasksOfANode(t *testing.T) {
	// Four tasks of 1 core each run on 2 cores, and the scheduler knows only their memory: 10 s of
	// work take 20 s. The fifth arrives at 10 s with 1 s of work.
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 8, 100)), Policy: policy(t, "fifo"), Models: engine.Models{Contention: true},
		Jobs: []engine.Job{singleStageJob(0, 4, schedtest.R(0, 1, 0), 10*sec), singleStageJob(10*sec, 1, schedtest.R(0, 1, 0), sec)}}
	for i := range c.Jobs {
		c.Jobs[i].Stages[0].ActualDemand = schedtest.R(1, 1, 0)
	}
	r := mustSimulate(t, c)
	// from 10 s on five share 2 cores: 1 s takes 2.5 s, the four have 4 s left at 12.5 s
	if a, b := r.Jobs[0].Finish.Round(time.Millisecond), r.Jobs[1].Finish.Round(time.Millisecond); a != 20500*time.Millisecond || b != 12500*time.Millisecond {
		t.Errorf("they end at %v and %v, want 20.5s and 12.5s", a, b)
	}
	if u := r.Used[scheduler.CPU]; u < 0.999999 {
		t.Errorf("CPU use %v, want 1", u)
	}
}

func TestAdmissionDelaysJobs(t *testing.T) {
	r := mustSimulate(t, engine.Config{Nodes: nodes(1, 1, schedtest.R(4, 8, 100)), Policy: policy(t, "fifo"), MaxAdmittedJobs: 1,
		Jobs: []engine.Job{singleStageJob(0, 1, schedtest.R(1, 1, 0), 10*sec), singleStageJob(sec, 1, schedtest.R(1, 1, 0), 10*sec), singleStageJob(2*sec, 1, schedtest.R(1, 1, 0), 10*sec)}})
	for i, want := range []time.Duration{0, 10 * sec, 20 * sec} {
		if j := r.Jobs[i]; j.Admitted != want || j.Finish != want+10*sec {
			t.Errorf("job %d: %+v", i, j)
		}
	}
}

package engine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// TestAbsentNodes: one node of two cores, three tasks of 10 s on one core each, one at a time or two.
func TestAbsentNodes(t *testing.T) {
	tasks := func(n int32) []engine.Job { return []engine.Job{singleStageJob(0, n, schedtest.R(1, 1, 0), 10*sec)} }
	for name, c := range map[string]struct {
		nodes    int
		tasks    int32
		absences []engine.Absence
		makespan time.Duration
		lost     uint64
	}{
		"always there":                           {1, 3, nil, 20 * sec, 0},
		"joins after 5 s":                        {1, 3, []engine.Absence{{To: 5 * sec}}, 25 * sec, 0},
		"an outage loses what runs":              {1, 2, []engine.Absence{{From: 4 * sec, To: 7 * sec}}, 17 * sec, 1},
		"an outage of one of two nodes":          {2, 4, []engine.Absence{{Node: 1, From: 4 * sec}}, 20 * sec, 1},
		"maintenance lets tasks end":             {1, 4, []engine.Absence{{From: 12 * sec, To: 15 * sec, Drain: 5 * sec}}, 25 * sec, 1},
		"two absences that overlap":              {1, 2, []engine.Absence{{From: 4 * sec, To: 7 * sec}, {From: 5 * sec, To: 9 * sec}}, 19 * sec, 1},
		"one absence right after another":        {1, 2, []engine.Absence{{To: 5 * sec}, {From: 5 * sec, To: 9 * sec}}, 19 * sec, 0},
		"a task that ends at the outage is done": {1, 2, []engine.Absence{{From: 10 * sec, To: 20 * sec}}, 10 * sec, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := engine.Simulate(engine.Config{Nodes: nodes(c.nodes, 1, schedtest.R(2, 8, 0)), Policy: policy(t, "fifo"), Jobs: tasks(c.tasks), Absences: c.absences})
			if err != nil {
				t.Fatal(err)
			}
			if r.Makespan != c.makespan || r.NodesLost != c.lost || r.Unfinished != 0 {
				t.Errorf("makespan %v, %d nodes lost, %d unfinished; want %v, %d", r.Makespan, r.NodesLost, r.Unfinished, c.makespan, c.lost)
			}
		})
	}
}

// The use in each step is a fraction of the capacity that was there in the step, also when steps are merged.
func TestSeriesCountsTheCapacityThatWasThere(t *testing.T) {
	for name, c := range map[string]struct {
		work     time.Duration
		absences []engine.Absence
		want     []float64 // in the first quarter and in the last
	}{
		"a node that leaves":    {40 * sec, []engine.Absence{{Node: 1, From: 20 * sec}}, []float64{0.25, 0.5}},
		"a node that joins":     {40 * sec, []engine.Absence{{Node: 1, To: 20 * sec}}, []float64{0.5, 0.25}},
		"with merged steps":     {4000 * sec, []engine.Absence{{Node: 1, From: 2000 * sec}}, []float64{0.25, 0.5}},
		"a node that returns":   {40 * sec, []engine.Absence{{Node: 1, From: 20 * sec, To: 25 * sec}}, []float64{0.25, 0.25}},
		"no capacity is no use": {40 * sec, []engine.Absence{{To: 20 * sec}, {Node: 1, To: 20 * sec}}, []float64{0, 0.25}},
	} {
		r := mustSimulate(t, engine.Config{Nodes: nodes(2, 1, schedtest.R(2, 8, 0)), Policy: policy(t, "fifo"), Absences: c.absences,
			Jobs: []engine.Job{singleStageJob(0, 1, schedtest.R(1, 1, 0), c.work)}})
		n := len(r.Series.Used)
		if got := []float64{r.Series.Used[n/8][scheduler.CPU], r.Series.Used[n-1-n/8][scheduler.CPU]}; !slices.Equal(got, c.want) {
			t.Errorf("%s: %v of the CPU is used, want %v", name, got, c.want)
		}
	}
}

// Of maintenance every policy knows: nothing that would not end before it is started, and nothing is
// lost, with however many windows.
func TestKnownAbsencesLoseNothing(t *testing.T) {
	var absences []engine.Absence
	for i := range 3 * scheduler.MaxWindows {
		from := time.Duration(i+1) * 25 * sec
		absences = append(absences, engine.Absence{From: from, To: from + 5*sec, Known: true}, engine.Absence{From: from + 4*sec, To: from + 7*sec, Known: true})
	}
	for _, name := range []string{"fifo", "fair", "easy", "conservative", "two_tier", "3dsf", "las_mq"} {
		job := singleStageJob(0, 100, schedtest.R(1, 1, 0), 8*sec)
		job.Bound = 8 * sec
		r, err := engine.Simulate(engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 8, 0)), Policy: policy(t, name), Jobs: []engine.Job{job}, Absences: absences})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if r.Unfinished != 0 || r.WorkLostCPU != 0 || r.NodesLost == 0 {
			t.Errorf("%s: %d jobs unfinished, %g s of work lost, %d nodes lost", name, r.Unfinished, r.WorkLostCPU, r.NodesLost)
		}
	}
}

func TestBadAbsencesAreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		absence engine.Absence
		want    string
	}{
		"an unknown node":      {engine.Absence{Node: 3, From: sec}, "absence 1 of node 3: there are 1 nodes"},
		"an end before":        {engine.Absence{From: 3 * sec, To: 2 * sec}, "ends at 2s, not after it begins at 3s"},
		"a drain of less than": {engine.Absence{From: 3 * sec, Drain: -sec}, "drains for -1s"},
	} {
		_, err := engine.Simulate(engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 8, 0)), Policy: policy(t, "fifo"), Absences: []engine.Absence{c.absence}})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want …%s…", name, err, c.want)
		}
	}
}

// TestJobThatFitsNowhereIsCounted: the other jobs continue, also those of its project and those
// behind it in the queue.
func TestJobThatFitsNowhereIsCounted(t *testing.T) {
	small, large := schedtest.R(1, 1, 0), schedtest.R(3, 1, 0)
	capped := scheduler.TenantSpec{Name: "capped", Parent: 0, Weight: 1}
	above := scheduler.TenantSpec{Name: "above", Parent: scheduler.NoTenant, Weight: 1, Caps: scheduler.Caps{Total: scheduler.Limit(schedtest.R(2, 0, 0))}}
	for name, c := range map[string]struct {
		nodes    int
		cores    float64
		refused  engine.Job
		tenants  []scheduler.TenantSpec
		projects []engine.Project
		want     string
	}{
		"wider than every node":       {2, 2, singleStageJob(0, 1, large, sec), nil, nil, "job 1 (j): stage 0: a task needs"},
		"above a cap of the ancestor": {2, 8, engine.Job{Tenant: 1, Stages: singleStageJob(0, 1, large, sec).Stages}, []scheduler.TenantSpec{above, capped}, nil, `above the cpu cap of tenant "above"`},
		"a job of a project":          {2, 2, engine.Job{Project: 1, Stages: singleStageJob(0, 1, large, sec).Stages}, nil, []engine.Project{{Name: "p", Jobs: 2}}, "which no node has"},
	} {
		t.Run(name, func(t *testing.T) {
			second := singleStageJob(0, 4, small, 10*sec)
			if c.projects != nil {
				second.Project = 1
			}
			for _, p := range []string{"fifo", "3dsf"} {
				r, err := engine.Simulate(engine.Config{Nodes: nodes(c.nodes, 1, schedtest.R(c.cores, 8, 0)), Policy: policy(t, p), Tenants: c.tenants, Projects: c.projects,
					Jobs: []engine.Job{c.refused, second}})
				if err != nil {
					t.Fatal(err)
				}
				if r.Unfinished != 1 || r.Refused != 1 || !r.Jobs[0].Refused || !strings.Contains(r.FirstRefused, c.want) || r.Jobs[1].Outcome != engine.JobSucceeded {
					t.Errorf("%s: %d unfinished, %d refused (%s), the other job %v", p, r.Unfinished, r.Refused, r.FirstRefused, r.Jobs[1].Outcome)
				}
			}
		})
	}
}

// idle is a policy that never places anything.
type idle struct{}

func (idle) Name() string { return "idle" }

func (idle) Decide(s *scheduler.State, now scheduler.Time, _ int) scheduler.Decision {
	return scheduler.Decision{Base: s.Index(), At: now}
}

func TestStuckSimulationReturnsWhatRan(t *testing.T) {
	r, err := engine.Simulate(engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 2, 0)), Policy: idle{}, Jobs: []engine.Job{singleStageJob(0, 1, schedtest.R(1, 1, 0), sec)}})
	var stuck *engine.StuckError
	if !errors.As(err, &stuck) || stuck.Left != 1 || r == nil || r.Unfinished != 1 {
		t.Errorf("%v, %+v", err, r)
	}
}

// TestStuckSimulationsEnd: when the last nodes have left for good, no policy waits for ever, not even one that
// wakes regularly for waiting jobs, and heartbeats are no sign of life. A task of a month is no standstill.
func TestStuckSimulationsEnd(t *testing.T) {
	one := schedtest.R(1, 1, 0)
	for _, name := range []string{"fifo", "3dsf", "multifactor", "las_mq", "two_tier"} {
		for _, beat := range []time.Duration{0, 10 * time.Minute} {
			jobs := []engine.Job{singleStageJob(0, 1, one, 30*24*time.Hour), singleStageJob(sec, 2, one, 10*sec)}
			c := engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 2, 0)), Policy: policy(t, name), Jobs: jobs, Models: engine.Models{Heartbeat: beat},
				Absences: []engine.Absence{{Node: 0, From: 31 * 24 * time.Hour}}}
			if r, err := engine.Simulate(c); err != nil || r.Unfinished != 0 {
				t.Errorf("%s, heartbeat %v, a long task: %v, %+v", name, beat, err, r)
			}
			c.Policy, c.Absences = policy(t, name), []engine.Absence{{Node: 0, From: 2 * sec}}
			r, err := engine.Simulate(c)
			var stuck *engine.StuckError
			if !errors.As(err, &stuck) || stuck.Left != 2 || r == nil || r.Unfinished != 2 {
				t.Errorf("%s, heartbeat %v, no node: %v, %+v", name, beat, err, r)
			}
		}
	}
}

// TestNodesThatFailTooOftenEnd: a task that runs for hours never ends on nodes that fail each minute, and maps whose output
// is lost before their reduces have ended are done again and again. Many short tasks on such nodes do end.
func TestNodesThatFailTooOftenEnd(t *testing.T) {
	one := schedtest.R(1, 1, 0)
	long := singleStageJob(0, 1, one, 3*time.Hour)
	maps := singleStageJob(0, 20, one, 30*sec)
	reduces := maps.Stages[0]
	reduces.Tasks, reduces.After, reduces.Work = 1, []int32{0}, time.Hour
	maps.Stages = append(maps.Stages, reduces)
	for name, c := range map[string]struct {
		job  engine.Job
		ends bool
	}{"a long task": {long, false}, "maps done again": {maps, false}, "short tasks": {singleStageJob(0, 2000, one, 5*sec), true}} {
		r, err := engine.Simulate(engine.Config{Nodes: nodes(3, 1, schedtest.R(2, 8, 0)), Policy: policy(t, "3dsf"), Jobs: []engine.Job{c.job}, Seed: 1,
			Models: engine.Models{MTBF: time.Minute, Repair: 10 * sec}, MaxEvents: 2_000_000})
		var stuck *engine.StuckError
		if errors.As(err, &stuck) == c.ends || r == nil || (r.Unfinished == 0) != c.ends {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
}

// TestTenantSeriesAndAttempts: two tenants on two cores. One has one task of 10 s and the other two of
// which one waits.
func TestTenantSeriesAndAttempts(t *testing.T) {
	one := singleStageJob(0, 1, schedtest.R(1, 1, 0), 10*sec)
	two := singleStageJob(0, 2, schedtest.R(1, 1, 0), 10*sec)
	two.Tenant = 1
	tenants := []scheduler.TenantSpec{{Name: "a", Parent: scheduler.NoTenant, Weight: 1}, {Name: "b", Parent: scheduler.NoTenant, Weight: 1}}
	var log []engine.AttemptRecord
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(2, 8, 0)), Policy: policy(t, "fifo"), Tenants: tenants, Jobs: []engine.Job{one, two}, TenantSeries: true,
		OnAttempt: func(a *engine.AttemptRecord) { log = append(log, *a) }}
	r, err := engine.Simulate(c)
	if err != nil {
		t.Fatal(err)
	}
	s := r.Series.Tenants
	if len(s) != 20 || r.Series.Step != sec {
		t.Fatalf("%d steps of %v", len(s), r.Series.Step)
	}
	for i, want := range map[int][3]engine.TenantStep{
		5: {{Used: [3]float64{2000, 2 << 30, 0}, Jobs: 2, Running: 2, Waiting: 1}, {Used: [3]float64{1000, 1 << 30, 0}, Jobs: 1, Running: 1},
			{Used: [3]float64{1000, 1 << 30, 0}, Jobs: 1, Running: 1, Waiting: 1}},
		15: {{Used: [3]float64{1000, 1 << 30, 0}, Jobs: 1, Running: 1}, {}, {Used: [3]float64{1000, 1 << 30, 0}, Jobs: 1, Running: 1}},
	} {
		for k := range want {
			if s[i][k] != want[k] {
				t.Errorf("step %d entry %d: %+v, want %+v", i, k, s[i][k], want[k])
			}
		}
	}
	if len(log) != 3 || log[2].Placed != 10*sec || log[2].Ended != 20*sec || log[2].Ran != 10*sec || log[2].Tenant != 1 || log[2].Outcome != scheduler.OutcomeSucceeded {
		t.Errorf("attempts %+v", log)
	}
	if r.Jobs[1].UsefulCPU != 20 {
		t.Errorf("useful CPU %v s, want 20", r.Jobs[1].UsefulCPU)
	}
}

// TestTenantSeriesSumsToTheUse: in a world with failures, suspensions and second attempts the values by
// tenant sum up to the total, and nothing is left at the end.
func TestTenantSeriesSumsToTheUse(t *testing.T) {
	tenants := []scheduler.TenantSpec{{Name: "a", Parent: scheduler.NoTenant, Weight: 1}, {Name: "b", Parent: scheduler.NoTenant, Weight: 3}}
	var jobs []engine.Job
	for i := range 60 {
		j := singleStageJob(time.Duration(i)*7*sec, 6, schedtest.R(1, 2, 0), 40*sec)
		j.Tenant = scheduler.TenantID(i % 2)
		if i%5 == 0 {
			j.Deadline = j.Submit + 60*sec
		}
		jobs = append(jobs, j)
	}
	r, err := engine.Simulate(engine.Config{Nodes: nodes(3, 1, schedtest.R(4, 8, 0)), Policy: policy(t, "3dsf"), Tenants: tenants, Jobs: jobs, TenantSeries: true, Seed: 1,
		Models: engine.Models{MTBF: 300 * sec, Repair: 20 * sec, Spread: 0.5, AcceptDeadlines: true, StragglerFraction: 0.1, StragglerFactor: 4}})
	if err != nil {
		t.Fatal(err)
	}
	if r.NodesLost == 0 || r.Suspensions == 0 {
		t.Errorf("%d nodes lost, %d suspensions: the world is too calm", r.NodesLost, r.Suspensions)
	}
	for i, step := range r.Series.Tenants {
		all, sum := step[0], engine.TenantStep{}
		for _, x := range step[1:] {
			for k := range sum.Used {
				sum.Used[k] += x.Used[k]
			}
			sum.Jobs += x.Jobs
			sum.Running += x.Running
		}
		near := func(a, b float64) bool { return a-b < 1e-6*max(1, a) && b-a < 1e-6*max(1, a) }
		if !near(all.Used[0], sum.Used[0]) || !near(all.Used[1], sum.Used[1]) || !near(all.Jobs, sum.Jobs) || !near(all.Running, sum.Running) || !near(all.Jobs, r.Series.Jobs[i]) || all.Used[0] < 0 {
			t.Fatalf("step %d: all %+v, sum %+v, jobs %v", i, all, sum, r.Series.Jobs[i])
		}
	}
}

package deadline

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func submitJob(w *schedtest.World, deadline, run time.Duration) *scheduler.Job {
	return w.State.Job(w.Submit("t", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, g.Estimate = j.Submitted.Add(deadline), run
	}))
}

// 3DSF 7.1: a has 180 s and runs 100 s, slack 80 s; b has 600 s and runs 550 s,
// slack 50 s. EMWTF runs b first, EDF a.
func TestEMWTF71(t *testing.T) {
	w := schedtest.New(t).AddTenants("t")
	a, b := submitJob(w, 180*time.Second, 100*time.Second), submitJob(w, 600*time.Second, 550*time.Second)
	var o Slack
	key := func(j *scheduler.Job, by Order) scheduler.Time { o.Compute(j); return o.SortKey(by) }
	if got := key(a, EMWTF).Sub(w.Now); got != 80*time.Second {
		t.Errorf("slack of a is %v", got)
	}
	if got := key(b, EMWTF).Sub(w.Now); got != 50*time.Second {
		t.Errorf("slack of b is %v", got)
	}
	if key(b, EMWTF) >= key(a, EMWTF) || key(a, EDF) >= key(b, EDF) {
		t.Error("the orders are not b, a and a, b")
	}
}

func TestLatestStarts(t *testing.T) {
	const s = time.Second
	maps := scheduler.StageSpec{Name: "map", Kind: scheduler.KindMap, Tasks: 6, Estimate: 10 * s}
	reduce := scheduler.StageSpec{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 1, After: []int32{0}, Estimate: 20 * s}
	unknown := scheduler.StageSpec{Name: "a", Kind: scheduler.KindGroup, Tasks: 1}
	after := unknown
	after.After = []int32{0}
	for what, c := range map[string]struct {
		stages   []scheduler.StageSpec
		estimate time.Duration
		slots    int32
		start    time.Duration // latest start of the job
		stage    time.Duration // latest start of its first stage on that many slots
	}{
		"one wave of maps, then a reduce":           {[]scheduler.StageSpec{maps, reduce}, 0, 6, 70 * s, 70 * s},
		"three waves on two slots":                  {[]scheduler.StageSpec{maps, reduce}, 0, 2, 70 * s, 50 * s},
		"the job's own estimate includes its waves": {[]scheduler.StageSpec{maps, reduce}, 60 * s, 6, 40 * s, 70 * s},
		"only the job's estimate: in equal parts":   {[]scheduler.StageSpec{unknown, after}, 40 * s, 1, 60 * s, 60 * s},
		"no estimate: it takes no time":             {[]scheduler.StageSpec{unknown, after}, 0, 1, 100 * s, 100 * s},
	} {
		w := schedtest.New(t).AddTenants("t")
		id := w.SubmitStages("t", c.stages, func(j *scheduler.JobSpec) { j.Deadline, j.Estimate = j.Submitted.Add(100*s), c.estimate })
		var o Slack
		o.Compute(w.State.Job(id))
		if got := o.LatestStart().Sub(w.Now); got != c.start {
			t.Errorf("%s: latest start %v, want %v", what, got, c.start)
		}
		if got := o.LatestStartOfTasks(0, w.State.Job(id).Stages[0].Pending, c.slots).Sub(w.Now); got != c.stage {
			t.Errorf("%s: on %d slots %v, want %v", what, c.slots, got, c.stage)
		}
	}
}

// A job is infeasible once all capacity of the cluster would be too little.
func TestInfeasible(t *testing.T) {
	w := schedtest.New(t).AddTenants("t")
	j := submitJob(w, 100*time.Second, 30*time.Second)
	var o Slack
	o.Compute(j)
	for at, want := range map[time.Duration]bool{0: false, 70 * time.Second: false, 70*time.Second + 1: true} {
		got, until := o.Infeasible(w.Now.Add(at))
		if got != want || until != w.Now.Add(70*time.Second) {
			t.Errorf("after %v: %v until %v", at, got, until.Sub(w.Now))
		}
	}
}

// A bound that is taken for an estimate, since nothing like the job has run, says nothing of how long a task takes at least: the
// deadline is infeasible only if a tenth of the bound does not fit. Estimates of other stages count as they are.
func TestABoundIsNoReasonForInfeasible(t *testing.T) {
	for what, c := range map[string]struct{ bound, first, then, want time.Duration }{
		"no bound":                      {0, 30 * time.Second, 20 * time.Second, 50 * time.Second},
		"estimates below the bound":     {40 * time.Second, 30 * time.Second, 20 * time.Second, 50 * time.Second},
		"both from the bound":           {200 * time.Second, 200 * time.Second, 200 * time.Second, 60 * time.Second},
		"the second one from the bound": {200 * time.Second, 30 * time.Second, 200 * time.Second, 50 * time.Second},
		"a bound without an estimate":   {200 * time.Second, 0, 0, 100 * time.Second},
	} {
		w := schedtest.New(t).AddTenants("t")
		stage := func(name string, run time.Duration, after ...int32) scheduler.StageSpec {
			return scheduler.StageSpec{Name: name, Kind: scheduler.KindGroup, Tasks: 2, Demand: schedtest.R(1, 1, 1), Estimate: run, After: after}
		}
		id := w.SubmitStages("t", []scheduler.StageSpec{stage("first", c.first), stage("then", c.then, 0)}, func(j *scheduler.JobSpec) {
			j.Deadline, j.Bound = j.Submitted.Add(100*time.Second), c.bound
		})
		var o Slack
		o.Compute(w.State.Job(id))
		if infeasible, until := o.Infeasible(w.Now); infeasible || until != w.Now.Add(c.want) {
			t.Errorf("%s: infeasible %v, from %v on, want %v", what, infeasible, until.Sub(w.Now), c.want)
		}
		if got, want := o.LatestStart().Sub(w.Now), 100*time.Second-c.first-c.then; got != want {
			t.Errorf("%s: the latest start for the order is %v, want %v", what, got, want)
		}
	}
}

// The order of victims, 3DSF 7.3: low priority with the same dominant resource, newest
// first; low with another; high with the same; high with another. A job whose deadline is infeasible counts as low.
func TestOrderOfVictims(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(100, 100, 100)).AddTenants("t")
	var want []scheduler.JobID
	add := func(d scheduler.Resources, p scheduler.Priority) scheduler.JobID {
		id := w.Submit("t", 1, d, func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Priority = p })
		w.Place(scheduler.TaskID{Job: id}, 0)
		w.Advance(time.Second)
		return id
	}
	cpu, mem := schedtest.R(5, 1, 1), schedtest.R(1, 5, 1)
	highMem := add(mem, scheduler.PriorityHigh)
	highCPU := add(cpu, scheduler.PriorityHigh)
	old := add(cpu, scheduler.PriorityLow)
	newer := add(cpu, scheduler.PriorityLow)
	lowMem := add(mem, scheduler.PriorityLow)
	infeasible := add(cpu, scheduler.PriorityHigh)
	if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.InfeasibleState, Job: infeasible}, At: w.Now}}); err != nil {
		t.Fatal(err)
	}
	want = []scheduler.JobID{infeasible, newer, old, lowMem, highCPU, highMem}
	w.Start()
	need := w.State.Job(w.Submit("t", 1, schedtest.R(100, 100, 100))).Stages[0]
	p := newPreemptor(Preemptor{Mode: Suspend})
	plan, ok := p.FindVictims(w.State, need, w.Now)
	if !ok || len(plan.Victims) != len(want) {
		t.Fatalf("%+v %v", plan, ok)
	}
	for i, v := range plan.Victims {
		if v.Attempt.ID.Job != want[i] {
			t.Errorf("victim %d is job %d (%v), want %d", i, v.Attempt.ID.Job, v.group, want[i])
		}
	}
	p.IsProtected = func(j *scheduler.Job) bool { return j.Spec.ID == newer }
	if _, ok := p.FindVictims(w.State, need, w.Now); ok {
		t.Error("a protected job is a victim")
	}
}

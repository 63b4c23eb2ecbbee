package policies

import (
	"math"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Each factor by its formula, on 2 nodes of 4 cores.
func TestFactorsOfPriority(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a", "b")
	m := mustNew(t, "multifactor", map[string]string{"max_age": "100s", "deadline_window": "1000s", "size_weight": "1"}).(*multifactor)
	submitted := w.Now
	for _, c := range []struct {
		what   string
		change func(j *scheduler.JobSpec, g *scheduler.StageSpec)
		after  time.Duration
		want   factors
	}{
		{"a new job of half the cluster", func(*scheduler.JobSpec, *scheduler.StageSpec) {}, 0, factors{fairShare: 1, size: 0.5}},
		{"a quarter of the age", func(*scheduler.JobSpec, *scheduler.StageSpec) {}, 25 * time.Second, factors{age: 0.25, fairShare: 1, size: 0.5}},
		{"older than the largest age", func(*scheduler.JobSpec, *scheduler.StageSpec) {}, time.Hour, factors{age: 1, fairShare: 1, size: 0.5}},
		{"more than the cluster", func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Tasks = 100 }, 0, factors{fairShare: 1, size: 1}},
		{"half of the window before the deadline", func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Deadline = submitted.Add(500 * time.Second) }, 0, factors{fairShare: 1, size: 0.5, deadline: 0.5}},
		{"after the deadline", func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Deadline = submitted.Add(time.Second) }, 50 * time.Second, factors{age: 0.5, fairShare: 1, size: 0.5, deadline: 1}},
		{"high priority", func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Priority = scheduler.PriorityHigh }, 0, factors{fairShare: 1, size: 0.5, priority: 1}},
	} {
		at := submitted.Add(c.after)
		m.calculateFairShares(w.State, at)
		got := m.factorsOf(w.State, w.State.Job(w.Submit("a", 4, schedtest.R(1, 1, 1), c.change)), at)
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// Use halves every half-life, and tenants share by weight: U of three quarters at S of
// one half is 2^-1.5; a child's factor is multiplied with its parent's.
func TestFairShareOfDecayedUse(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a", "b")
	if err := w.State.Events().PutTenant(scheduler.TenantSpec{ID: 2, Name: "a1", Parent: 0, Weight: 1}); err != nil {
		t.Fatal(err)
	}
	if err := w.State.Events().PutTenant(scheduler.TenantSpec{ID: 3, Name: "a2", Parent: 0, Weight: 3}); err != nil {
		t.Fatal(err)
	}
	m := mustNew(t, "multifactor", map[string]string{"half_life": "100s"}).(*multifactor)
	late := w.Now.Add(200 * time.Second) // two half-lives after the sample of a
	if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{
		{PolicyStateKey: useKey(0), Real: 120, At: w.Now}, {PolicyStateKey: useKey(1), Real: 10, At: late},
		{PolicyStateKey: useKey(2), Real: 30, At: late}, {PolicyStateKey: useKey(3), Real: 0, At: late}}); err != nil {
		t.Fatal(err)
	}
	m.calculateFairShares(w.State, late)
	a := math.Exp2(-1.5)
	for i, want := range []float64{a, math.Exp2(-0.5), a * math.Exp2(-4), a} {
		if got := m.fairShares[i]; math.Abs(got-want) > 1e-12 {
			t.Errorf("tenant %d: %v, want %v", i, got, want)
		}
	}
}

// A tenant that computes while another one does not is overtaken by it, and use that
// lies far back counts for nothing.
func TestUseDecides(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 8, 100)).AddTenants("a", "b")
	p := mustNew(t, "multifactor", map[string]string{"half_life": "60s", "age_weight": "1"})
	w.Submit("a", 1, schedtest.R(2, 1, 1))
	for range 5 {
		w.Cycle(p)
		w.Start()
		w.Now = w.Now.Add(time.Minute)
	}
	use, ok := w.State.PolicyState(useKey(0))
	if want := 60 * (1 + 1/2. + 1/4. + 1/8.); !ok || math.Abs(use.Real-want) > 1e-6 {
		t.Errorf("four samples of the whole cluster: %v, want %v", use.Real, want)
	}
	w.Submit("a", 1, schedtest.R(2, 1, 1))
	second := w.Submit("b", 1, schedtest.R(2, 1, 1))
	w.End(w.Attempts()[0], scheduler.OutcomeSucceeded)
	if d := w.Cycle(p); len(d.Actions) != 1 || d.Actions[0].Task.Job != second {
		t.Errorf("not b's job %v first:\n%s", second, d.String())
	}
}

// While a tenant uses something the next sample is requested, even if nothing waits; otherwise none is.
func TestSamplesAreRequested(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 10)).AddTenants("a", "b", "c")
	p := mustNew(t, "multifactor", map[string]string{"calc_period": "60s"})
	if d := w.Cycle(p); d.Wake != 0 {
		t.Errorf("nobody uses anything, and a decision is requested in %v", d.Wake.Sub(w.Now))
	}
	w.Submit("b", 1, schedtest.R(1, 1, 1))
	w.Advance(20 * time.Second)
	w.Cycle(p) // the sample of all tenants is 20 s old
	w.Start().Advance(10 * time.Second)
	if d := w.Cycle(p); d.Wake.Sub(w.Now) != 30*time.Second {
		t.Errorf("the next decision is requested in %v, want 30s", d.Wake.Sub(w.Now))
	}
}

// The suite with other weights, and with periods of the length of the worlds' steps.
func TestMultifactorConforms(t *testing.T) {
	for name, params := range map[string]map[string]string{
		"often":       {"calc_period": "1s", "half_life": "5s", "max_age": "10s", "deadline_window": "10s"},
		"small first": {"size_weight": "100000", "favor_small": "true"},
	} {
		t.Run(name, func(t *testing.T) {
			policytest.Run(t, func() scheduler.Policy { return mustNew(t, "multifactor", params) })
		})
	}
}

package policies

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func TestOutOfRangeParametersAreRejected(t *testing.T) {
	for what, c := range map[string]struct {
		policy, name, value, words string
	}{
		"a negative slack factor":               {"3dsf", "sf", "-0.1", `"sf" is "-0.1"`},
		"a negative slack factor, two-tier":     {"two_tier", "sf", "-1", `"sf" is "-1"`},
		"a slack factor that is no number":      {"3dsf", "sf", "NaN", `"sf" is "NaN"`},
		"a negative preemption limit, two-tier": {"two_tier", "pl", "-2", `"pl" is "-2"`},
		"a negative number of spare nodes":      {"3dsf", "spare_nodes", "-1", `"spare_nodes"`},
		"Lev 4":                                 {"drf", "lev", "4", `"lev" is "4"`},
		"zero queues":                           {"las_mq", "queues", "0", `"queues" is "0"`},
		"neither true nor false":                {"3dsf", "reserve", "yes", "want true or false"},
		"a misspelt name":                       {"3dsf", "margins", "1s", `did you mean "margin"`},
	} {
		if _, err := New(c.policy, map[string]string{c.name: c.value}); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%s: got %v, want words %q", what, err, c.words)
		}
	}
}

// Every policy handles degenerate but valid input: tasks without demand are placed,
// tasks that no node or cap will ever admit wait for that reason, and an infeasible
// deadline blocks nothing.
func TestDegenerateInputIsHandled(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			maker := func() scheduler.Policy { return mustNew(t, info.Name, nil) }
			p := maker()
			w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a", "capped")
			spec := w.Tenant("capped").Spec
			spec.Caps.Total[scheduler.CPU] = 500
			if err := w.State.Events().PutTenant(spec); err != nil {
				t.Fatal(err)
			}
			nothing := w.Submit("a", 1, scheduler.Resources{})
			partly := w.Submit("a", 1, schedtest.R(1, 0, 0))
			huge := w.Submit("a", 1, schedtest.R(5, 1, 1))
			capped := w.Submit("capped", 1, schedtest.R(1, 1, 1))
			late := w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.Deadline, g.Estimate = j.Submitted.Add(time.Second), time.Hour
			})
			d := policytest.Round(t, w.State, p, maker, w.Now, 100)
			for what, id := range map[string]scheduler.JobID{"needs nothing": nothing, "needs CPU alone": partly, "cannot meet its deadline": late} {
				if w.State.Job(id).Live != 1 {
					t.Errorf("the job that %s is not running:\n%s", what, d.String())
				}
			}
			reasons := map[scheduler.JobID]scheduler.Reason{}
			for _, x := range d.Waiting {
				reasons[x.Stage.Job] = x.Reason
			}
			if reasons[huge] != scheduler.ReasonNoCPU || reasons[capped] != scheduler.ReasonCap {
				t.Errorf("larger than any node: %v; over its cap: %v", reasons[huge], reasons[capped])
			}
			// A node shrinks below the use of its tasks.
			for _, n := range w.State.Nodes() {
				s := n.Spec
				s.Capacity[scheduler.CPU] = 500
				if err := w.State.Events().UpdateNode(s); err != nil {
					t.Fatal(err)
				}
			}
			w.Submit("a", 1, schedtest.R(1, 1, 1))
			policytest.Round(t, w.State, p, maker, w.Now, 100)
		})
	}
}

// State refuses a bound or an estimate that cannot be added to a time, and each policy handles the longest that it
// takes, beside a guarantee on a node whose tasks stay.
func TestLongestBoundIsHandled(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			params := map[string]string{}
			if slices.ContainsFunc(info.Params, func(p Param) bool { return p.Name == "margin" }) {
				params["margin"] = "1s"
			}
			maker := func() scheduler.Policy { return mustNew(t, info.Name, params) }
			p := maker()
			w, guaranteed := newReservedWorld(t, scheduler.Levels(scheduler.LevelRunning))
			longest := scheduler.MaxRunTime
			for _, spec := range []scheduler.JobSpec{{Bound: longest + 1}, {Estimate: longest + 1}, {Bound: math.MaxInt64}} {
				spec.ID, spec.Priority = 100, scheduler.PriorityLow
				if err := w.State.Events().SubmitJob(spec, nil); err == nil {
					t.Errorf("State takes a job with the bound %v and the estimate %v", spec.Bound, spec.Estimate)
				}
			}
			for _, g := range []scheduler.StageSpec{{Bound: longest + 1}, {Estimate: longest + 1}} {
				g.Kind = scheduler.KindGroup
				if err := w.State.Events().SubmitJob(scheduler.JobSpec{ID: 100, Priority: scheduler.PriorityLow}, []scheduler.StageSpec{g}); err == nil {
					t.Errorf("State takes a stage with the bound %v and the estimate %v", g.Bound, g.Estimate)
				}
			}
			if err := w.State.Events().SetEstimate(scheduler.StageID{Job: guaranteed}, longest+1); err == nil {
				t.Error("State takes a longer estimate of a stage that is there")
			}
			for range 3 { // one may start, the others wait for it
				w.Submit("b", 1, schedtest.R(4, 8, 50), func(j *scheduler.JobSpec, g *scheduler.StageSpec) { j.Bound, g.Estimate = longest, longest })
			}
			for range 3 {
				policytest.Round(t, w.State, p, maker, w.Now, 100)
				w.Start().Advance(10 * time.Second)
			}
		})
	}
}

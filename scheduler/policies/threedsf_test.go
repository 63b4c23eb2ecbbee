package policies

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func mustNew(t testing.TB, name string, params map[string]string) scheduler.Policy {
	t.Helper()
	p, err := New(name, params)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// placementOrder returns whose tasks a decision places, one letter each.
func placementOrder(w *schedtest.World, d *scheduler.Decision) string {
	out := ""
	for i := range d.Actions {
		out += w.State.Tenants()[w.State.Job(d.Actions[i].Task.Job).Spec.Tenant].Spec.Name
	}
	return out
}

// 3DSF Table 1, through the policy on one node: capacity <24, 36, 54>, a <2, 4, 3>,
// b <3, 2, 6>, c <1, 3, 6>.
func Test3DSFTable1(t *testing.T) {
	for _, c := range []struct {
		what, policy string
		params       map[string]string
		want         string
	}{
		{"Lev 1", "3dsf", map[string]string{"lev": "1", "reserve": "false"}, "acbacbacbac"},
		{"Lev 2", "3dsf", map[string]string{"lev": "2", "reserve": "false"}, "acbacbacabc"},
		{"Lev 3", "3dsf", map[string]string{"lev": "3", "reserve": "false"}, "cabcabcabca"},
		{"enhanced DRF alone", "drf", map[string]string{"resources": "3"}, "acbacbacbac"},
		{"naive DRF that stops at the first misfit", "drf", map[string]string{"stop_at_first_misfit": "true"}, "cabcabcacb"},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(24, 36, 54)).AddTenants("a", "b", "c")
			w.Submit("a", 50, schedtest.R(2, 4, 3))
			w.Submit("b", 50, schedtest.R(3, 2, 6))
			w.Submit("c", 50, schedtest.R(1, 3, 6))
			d := w.Cycle(mustNew(t, c.policy, c.params))
			if got := placementOrder(w, &d); got != c.want {
				t.Errorf("order %s, want %s", got, c.want)
			}
		})
	}
}

// The paper's text says of naive DRF 3, 3, 4 tasks at 19/24, 30/36, 51/54; with
// skipping it is 4, 3, 4 as well.
func TestNaiveDRFSkipping(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(24, 36, 54)).AddTenants("a", "b", "c")
	w.Submit("a", 50, schedtest.R(2, 4, 3))
	w.Submit("b", 50, schedtest.R(3, 2, 6))
	w.Submit("c", 50, schedtest.R(1, 3, 6))
	w.Cycle(mustNew(t, "drf", nil))
	got := fmt.Sprint(w.State.Job(1).Live, w.State.Job(2).Live, w.State.Job(3).Live)
	if got != "4 3 4" {
		t.Errorf("tasks %s", got)
	}
}

// A task of one tenant may leave the next task of another no room under their common cap. With stop_at_first_misfit, the tenant
// whose task does not fit is next only by the shares of tasks that may still start.
func TestNaiveDRFStopsAtATaskWithinCaps(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 16, 0)).AddTenants("a", "c", "c/d")
	spec := w.Tenant("c").Spec
	spec.Caps.Total = scheduler.Limit(schedtest.R(3, 0, 0))
	if err := w.State.Events().PutTenant(spec); err != nil {
		t.Fatal(err)
	}
	w.Submit("a", 1, schedtest.R(3.5, 1, 0))
	w.Submit("c", 1, schedtest.R(2.5, 1, 0))
	w.Submit("c/d", 1, schedtest.R(2.5, 1, 0))
	w.Submit("c/d", 1, schedtest.R(0.5, 1, 0))
	newPolicy := func() scheduler.Policy { return mustNew(t, "drf", map[string]string{"stop_at_first_misfit": "true"}) }
	d := policytest.Round(t, w.State, newPolicy(), newPolicy, w.Now, 100)
	if got := placementOrder(w, &d); got != "cd" {
		t.Errorf("placed tasks of %q, want cd", got)
	}
}

// Three nodes of four slots, 32 map tasks of one block with one replica each, 16, 10
// and 6 on a node, with unpredicted run times of 2 to 6 s (a user's cluster). Every
// task runs at its input.
func TestMapTasksFindTheirOnlyReplica(t *testing.T) {
	w := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 400)).AddTenants("a")
	var on [][]scheduler.NodeID
	for node, tasks := range []int{16, 10, 6} {
		for range tasks {
			on = append(on, []scheduler.NodeID{scheduler.NodeID(node)})
		}
	}
	maps := scheduler.StageSpec{Name: "map", Kind: scheduler.KindMap, Tasks: 32, Demand: schedtest.R(1, 1, 50), Inputs: schedtest.Inputs(schedtest.MiB, on...)}
	reduces := scheduler.StageSpec{Name: "reduce", Kind: scheduler.KindReduce, Tasks: 2, After: []int32{0}, Demand: schedtest.R(1, 1, 50)}
	w.SubmitStages("a", []scheduler.StageSpec{maps, reduces})
	local, cycles := runToEnd(t, w, mustNew(t, "3dsf", nil), func() scheduler.Policy { return mustNew(t, "3dsf", nil) })
	if local < 30 {
		t.Errorf("%d of 32 tasks at their input", local)
	}
	t.Logf("%d of 32 at their input in %d cycles, %v", local, cycles, w.Now.Sub(scheduler.Time(time.Second)))
}

// runToEnd simulates everything with run times of 2 to 6 s and returns the number of
// map tasks placed at their input.
func runToEnd(t *testing.T, w *schedtest.World, p scheduler.Policy, newPolicy policytest.Maker) (local, cycles int) {
	r := rand.New(rand.NewPCG(1, 2))
	ends := map[scheduler.AttemptID]scheduler.Time{}
	for ; cycles < 1000; cycles++ {
		d := policytest.Round(t, w.State, p, newPolicy, w.Now, 1000)
		for i := range d.Actions {
			a := w.State.Attempt(d.Actions[i].AttemptID())
			ends[a.ID] = w.Now.Add(2*time.Second + time.Duration(r.IntN(4000))*time.Millisecond)
			_, nodes, _ := w.State.StageOf(a).Input(a.ID.Index)
			for _, n := range nodes {
				if n == a.Node {
					local++
				}
			}
		}
		w.Start()
		next := scheduler.Never
		if d.Wake > 0 {
			next = d.Wake
		}
		for _, at := range ends {
			next = min(next, at)
		}
		if next == scheduler.Never {
			return local, cycles
		}
		w.Now = max(w.Now, next)
		for _, a := range w.Attempts() {
			if ends[a.ID] <= w.Now {
				delete(ends, a.ID)
				w.End(a, scheduler.OutcomeSucceeded)
			}
		}
	}
	t.Fatalf("not done after %d cycles", cycles)
	return 0, 0
}

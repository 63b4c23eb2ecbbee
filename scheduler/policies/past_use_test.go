package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// If tasks run one at a time, no tenant uses anything when the next task is chosen. Then past use
// counts: a tenant with few tasks does not wait for one with many, equal tenants alternate, and a
// tenant with shorter tasks is served more often.
func TestPastUseDecidesWhereTasksRunOneAtATime(t *testing.T) {
	for _, name := range []string{"3dsf", "drf", "pdsonqueue"} {
		t.Run(name, func(t *testing.T) {
			newPolicy := func() scheduler.Policy { return mustNew(t, name, nil) }
			p := newPolicy()
			w := schedtest.New(t).AddNodes(1, schedtest.R(1, 1, 100)).AddTenants("a", "b", "c")
			task := schedtest.R(1, 1, 10)
			took := map[scheduler.TenantID]time.Duration{w.Tenant("a").Spec.ID: 4 * time.Second, w.Tenant("b").Spec.ID: 4 * time.Second, w.Tenant("c").Spec.ID: time.Second}
			w.Submit("a", 30, task)
			order := ""
			run := func(tasks int) {
				for range tasks {
					policytest.DecideWarmAndCold(t, w.State, p, newPolicy, w.Now, 100)
					w.Cycle(p)
					w.Start()
					running := w.Attempts()
					if len(running) != 1 {
						t.Fatalf("%d tasks run after %q", len(running), order)
					}
					owner := w.State.StageOf(running[0]).Job.Spec.Tenant
					order += w.State.Tenant(owner).Spec.Name
					w.Advance(took[owner])
					w.End(running[0], scheduler.OutcomeSucceeded)
				}
			}
			run(2)
			w.Submit("b", 3, task)
			run(4)
			w.Submit("c", 8, task)
			run(9)
			if want := "aa" + "bbab" + "cccccccca"; order != want {
				t.Errorf("tasks ran in the order %s, want %s", order, want)
			}
		})
	}
}

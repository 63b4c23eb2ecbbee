package policies

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// overloadedWorld is a cluster on which small jobs keep coming, as many of each tenant as ended,
// and sometimes a larger one: it has many tasks, a task needs up to a whole node, and it reaches a
// late queue.
type overloadedWorld struct {
	*schedtest.World
	r       *rand.Rand
	tenants []string
	ends    map[scheduler.AttemptID]scheduler.Time
	served  map[scheduler.JobID]scheduler.Time    // when a job had capacity last, at first its submission
	placed  map[scheduler.TenantID]scheduler.Time // when a task of a tenant was placed last
}

const (
	crowd         = 6  // small jobs of each tenant that wait before a cycle
	maxLargeJobs  = 24 // jobs with which no larger one is submitted
	overloadedCPU = 4  // of each node
	smallTask     = 2 * time.Second
	largeTask     = 12 * time.Second
	cappedJobs    = 70 // of a tenant that may use nothing: they wait longest, and nobody may wait for them
)

func newOverloadedWorld(t *testing.T, seed uint64) *overloadedWorld {
	w := &overloadedWorld{r: rand.New(rand.NewPCG(seed, 7)), ends: map[scheduler.AttemptID]scheduler.Time{}, served: map[scheduler.JobID]scheduler.Time{},
		placed: map[scheduler.TenantID]scheduler.Time{}, tenants: []string{"a", "b"}[:1+seed%2]}
	w.World = schedtest.New(t).AddNodes(2+w.r.IntN(2), schedtest.R(overloadedCPU, 8, 100)).AddTenants(append(w.tenants, "capped")...)
	capped := w.Tenant("capped").Spec
	capped.Caps.Total = scheduler.Limit(schedtest.R(0, 0, 1))
	if err := w.State.Events().PutTenant(capped); err != nil {
		w.Fatalf("%v", err)
	}
	for range cappedJobs {
		w.Submit("capped", 1, schedtest.R(0, 0, 2))
	}
	return w
}

// submit keeps the cluster crowded.
func (w *overloadedWorld) submit() {
	small := map[scheduler.TenantID]int{}
	jobs := 0
	for j := range w.State.Jobs() {
		if j.Spec.Tenant == w.Tenant("capped").Spec.ID {
			continue
		}
		jobs++
		if j.Ready > 0 && j.Stages[0].Spec.Tasks == 1 {
			small[j.Spec.Tenant]++
		}
	}
	for _, name := range w.tenants {
		for range crowd - small[w.Tenant(name).Spec.ID] {
			w.served[w.Submit(name, 1, schedtest.R(1, 1, 1))] = w.Now
		}
		if w.r.IntN(60) == 0 && jobs < maxLargeJobs {
			w.served[w.Submit(name, int32(2+w.r.IntN(12)), schedtest.R(float64(1+w.r.IntN(overloadedCPU)), 1, 1))] = w.Now
		}
	}
}

// endTasks ends the tasks whose time is over, and the jobs that are done.
func (w *overloadedWorld) endTasks() {
	for _, a := range w.Attempts() {
		if w.ends[a.ID] <= w.Now {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	for j := range w.State.Jobs() {
		if schedtest.Complete(j) && j.Live == 0 {
			if err := w.State.Events().EndJob(j.Spec.ID); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
}

// step is a second, from a decision on.
func (w *overloadedWorld) step(p scheduler.Policy) {
	d := w.Cycle(p)
	for i := range d.Actions {
		if a := &d.Actions[i]; a.Kind == scheduler.ActPlace {
			j := w.State.Job(a.Task.Job)
			w.served[a.Task.Job], w.placed[j.Spec.Tenant] = w.Now, w.Now
			took := smallTask
			if j.Stages[0].Spec.Tasks > 1 {
				took = largeTask
			}
			w.ends[scheduler.AttemptID{TaskID: a.Task, Attempt: a.Attempt}] = w.Now.Add(took)
		}
	}
	w.Start().Advance(time.Second)
	w.endTasks()
}

// Under the default scheduler no job of any size or queue and no tenant waits for ever, however
// many small jobs keep coming. The judge has a clock for each job, reset whenever the job gets or
// has capacity: it may show Aging for each stage that was ready at a time plus the time that
// running tasks take to end.
func TestNobodyWaitsForEver(t *testing.T) {
	const aging, grace, seconds = 3 * time.Second, 2 * time.Minute, 4000
	first := seed.New(t)
	for world := range uint64(4) {
		w := newOverloadedWorld(t, first+world)
		p := mustNew(t, "3dsf", map[string]string{"first": "5", "step": "3", "aging": aging.String()})
		mostReady, longest, late := 0, time.Duration(0), 0
		for range seconds {
			w.submit()
			mostReady = max(mostReady, w.State.Queue().Ready())
			w.step(p)
			for j := range w.State.Jobs() {
				if j.Spec.Tenant == w.Tenant("capped").Spec.ID {
					continue
				}
				if j.Live > 0 {
					w.served[j.Spec.ID] = w.Now
				}
				waited := w.Now.Sub(w.served[j.Spec.ID])
				if longest = max(longest, waited); j.Queue() >= 5 {
					late++
				}
				if waited > aging*time.Duration(mostReady)+grace {
					t.Fatalf("seed %d: job %d in queue %d with %d tasks of %v left waits for %v", first+world, j.Spec.ID, j.Queue(), j.Stages[0].Remaining(), j.Stages[0].Spec.Demand, waited)
				}
			}
			for _, name := range w.tenants {
				if waited := w.Now.Sub(w.placed[w.Tenant(name).Spec.ID]); waited > grace {
					t.Fatalf("seed %d: tenant %s waits for %v", first+world, name, waited)
				}
			}
		}
		if late == 0 {
			t.Errorf("seed %d: no job came to a late queue", first+world)
		}
		t.Logf("seed %d: %d nodes, %d tenants, up to %d ready stages: a job waits for at most %v", first+world, len(w.State.Nodes()), len(w.tenants), mostReady, longest)
	}
}

package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A task started behind the head of line takes the head's tenant to its cap: the head no longer has
// a reservation, and the work that it held back starts at once.
func TestEasyLooksAgainWhenItsHeadIsCapped(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a", "b")
	spec := w.Tenant("a").Spec
	spec.Caps.Total = scheduler.Limit(schedtest.R(6, 0, 0))
	if err := w.State.Events().PutTenant(spec); err != nil {
		t.Fatal(err)
	}
	submit := func(tenant string, cores float64, bound time.Duration) scheduler.JobID {
		return w.Submit(tenant, 1, schedtest.R(cores, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
	}
	w.Place(scheduler.TaskID{Job: submit("b", 2, 50*time.Second)}, 0)
	w.Place(scheduler.TaskID{Job: submit("b", 1, 100*time.Second)}, 1)
	head := submit("a", 4, time.Minute)
	behind := submit("a", 3, time.Minute)
	held := submit("b", 2, time.Hour) // on the first node it would delay the head
	p := mustNew(t, "easy", nil)
	if d := w.Cycle(p); w.State.Job(behind).Live != 1 || w.State.Job(head).Live+w.State.Job(held).Live != 0 || d.Wake != w.Now+1 {
		t.Fatalf("the next decision is due at %d, now it is %d:\n%s", d.Wake, w.Now, d.String())
	}
	if d := w.Advance(1).Cycle(p); w.State.Job(held).Live != 1 {
		t.Errorf("it is still held back:\n%s", d.String())
	}
}

// If no startable stage fits on a node, easy requests no decision for the end of running tasks: whether it
// visits a stage at its max_parallel that fits depends on the queue's cache, which a new State lacks.
func TestEasyReservesOnlyBeforeWhatMayStart(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 16, 100)).AddTenants("a")
	bounded := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = time.Minute }
	place := func(id scheduler.JobID) {
		w.Place(scheduler.TaskID{Job: id}, 0)
	}
	place(w.Submit("a", 1, schedtest.R(4, 1, 0), bounded))
	for range 16 {
		w.Submit("a", 1, schedtest.R(4, 1, 0), bounded) // waits
	}
	// This task fitted, and keeps the queue's floor low, since few of many stages are gone.
	place(w.Submit("a", 1, schedtest.R(0, 1, 0)))
	place(w.Submit("a", 2, schedtest.R(0, 1, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.MaxParallel = 1 }))
	w.Start()
	newPolicy := func() scheduler.Policy { return mustNew(t, "easy", nil) }
	if d := policytest.DecideWarmAndCold(t, w.State, newPolicy(), newPolicy, w.Now, 100); d.Wake != 0 {
		t.Errorf("the next decision is requested for %v: %s", d.Wake, d.String())
	}
}

// A task that waits for one past its bound has a reservation that begins now, as long as it would end before the
// head starts. After that, the task behind it starts, although nothing but the time has changed.
func TestEasyDecidesAgainWhenAWaitingTaskWouldDelayTheHead(t *testing.T) {
	for name, params := range map[string]map[string]string{"easy": nil, "multifactor": {"calc_period": "1h"}} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 16, 100)).AddTenants("a")
			submit := func(cores float64, bound time.Duration) scheduler.JobID {
				return w.Submit("a", 1, schedtest.R(cores, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
			}
			w.Place(scheduler.TaskID{Job: submit(2, 10*time.Second)}, 0)
			w.Place(scheduler.TaskID{Job: submit(1, 100*time.Second)}, 0)
			w.Start().Advance(30 * time.Second)
			submit(4, 50*time.Second) // the head, in 70 seconds
			submit(3, time.Minute)
			behind := submit(1, 10*time.Second)
			newPolicy := func() scheduler.Policy { return mustNew(t, name, params) }
			warm := newPolicy()
			w.Cycle(warm) // multifactor samples the use
			if d := policytest.DecideWarmAndCold(t, w.State, warm, newPolicy, w.Now, 100); !d.Empty() {
				t.Fatalf("the last task starts at once: %s", d.String())
			}
			w.Advance(11 * time.Second)
			d := policytest.DecideWarmAndCold(t, w.State, warm, newPolicy, w.Now, 100)
			if len(d.Actions) != 1 || d.Actions[0].Task.Job != behind {
				t.Errorf("the last task waits: %s", d.String())
			}
		})
	}
}

// A task behind the head starts on the second disk of a node, although the first has free capacity as soon as a
// task past its bound ends. It waited, and started when another task made the first disk too full for it.
func TestEasyTriesEachDiskBehindTheHead(t *testing.T) {
	w := schedtest.New(t).AddTenants("a")
	node := schedtest.NodeSpec(0, "/r1", schedtest.R(4, 16, 200))
	node.Disks = []scheduler.Disk{{Name: "sda", IO: 100 * schedtest.MiB, Space: schedtest.GiB}, {Name: "sdb", IO: 100 * schedtest.MiB, Space: schedtest.GiB}}
	if err := w.State.Events().AddNode(node); err != nil {
		t.Fatal(err)
	}
	submit := func(cores, io float64, bound time.Duration) scheduler.JobID {
		return w.Submit("a", 1, schedtest.R(cores, 1, io), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
	}
	w.Place(scheduler.TaskID{Job: submit(1, 60, 10*time.Second)}, 0) // on the first disk
	w.Place(scheduler.TaskID{Job: submit(1, 0, 100*time.Second)}, 0)
	w.Start().Advance(30 * time.Second)
	submit(4, 0, time.Minute) // the head, in 70 seconds
	behind := submit(1, 60, 20*time.Second)
	newPolicy := func() scheduler.Policy { return mustNew(t, "easy", nil) }
	d := policytest.Round(t, w.State, newPolicy(), newPolicy, w.Now, 100)
	if len(d.Actions) != 1 || d.Actions[0].Task.Job != behind || d.Actions[0].Disk != 1 {
		t.Errorf("it does not start on the second disk:\n%s", d.String())
	}
}

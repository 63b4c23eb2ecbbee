package policies

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// suspendedWorld is nodes of four cores; a task of four cores is suspended on the first.
type suspendedWorld struct {
	*retryWorld
	job scheduler.JobID
}

func newSuspendedWorld(t *testing.T, policy string, nodes int) *suspendedWorld {
	return newSuspendedWorldAt(t, policy, nodes, scheduler.LevelCheckpointed)
}

func newSuspendedWorldAt(t *testing.T, policy string, nodes int, level scheduler.Level) *suspendedWorld {
	w := &suspendedWorld{retryWorld: newRetryWorld(t, policy, nodes)}
	w.AddTenants("b")
	w.job = w.Submit("a", 1, schedtest.R(4, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) { j.Bound, g.Estimate = time.Hour, time.Minute })
	a := w.Place(scheduler.TaskID{Job: w.job}, 0)
	w.Start().Advance(time.Second)
	act := a.Act(scheduler.ActSuspend)
	act.Level = level
	w.must(w.State.Apply(&act, w.Now))
	footprint := scheduler.Footprint{Image: schedtest.GiB}
	if level == scheduler.LevelFrozen {
		footprint = scheduler.Footprint{Memory: schedtest.GiB}
	}
	w.must(w.State.Events().AttemptSuspended(a.ID, a.Run, level, footprint, w.Now))
	return w
}

func (w *suspendedWorld) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%v", err)
	}
}

func (w *suspendedWorld) round() {
	w.Helper()
	policytest.Round(w, w.State, w.policy, w.maker, w.Now, 100)
}

// A task that is suspended on a node that begins to drain resumes there: the node waits for its end.
func TestSuspendedTasksResumeOnDrainingNodes(t *testing.T) {
	for _, info := range table {
		for other, nodes := range map[string]int{"the only node": 1, "another node is idle": 2} {
			t.Run(info.Name+"/"+other, func(t *testing.T) {
				w := newSuspendedWorld(t, info.Name, nodes)
				w.must(w.State.Events().SetDrain(0, true))
				w.round()
				if a := w.at(w.job, 0); a.Phase != scheduler.AttemptResuming || a.Node != 0 {
					t.Errorf("it is %v on node %d, want it resuming on node 0", a.Phase, a.Node)
				}
			})
		}
	}
}

// A frozen task resumes on a node that shrank below the memory that the task occupies: it needs no more of it.
// Policies that plan all tasks plan nothing on such a node, and it would stay so for ever.
func TestFrozenTasksResumeOnNodesThatShrank(t *testing.T) {
	for _, info := range table {
		t.Run(info.Name, func(t *testing.T) {
			w := newSuspendedWorldAt(t, info.Name, 1, scheduler.LevelFrozen)
			spec := w.State.Node(0).Spec
			spec.Capacity[scheduler.Memory] = schedtest.GiB / 2
			w.must(w.State.Events().UpdateNode(spec))
			if n := w.State.Node(0); n.Free[scheduler.Memory] >= 0 {
				t.Fatalf("free: %v", n.Free)
			}
			w.round()
			if a := w.at(w.job, 0); a.Phase != scheduler.AttemptResuming {
				t.Errorf("it is %v, want it resuming", a.Phase)
			}
		})
	}
}

// A task that may move to another node leaves one that drains.
func TestSuspendedTasksLeaveDrainingNodes(t *testing.T) {
	for draining, want := range map[bool]scheduler.NodeID{false: 0, true: 1} {
		w := newSuspendedWorld(t, "3dsf", 2)
		w.maker = func() scheduler.Policy { return mustNew(t, "3dsf", map[string]string{"migrate": "true"}) }
		w.policy = w.maker()
		w.must(w.State.Events().SetDrain(0, draining))
		w.round()
		if a := w.at(w.job, 0); a.Phase != scheduler.AttemptResuming || a.Node != want {
			t.Errorf("draining %v: it is %v on node %d, want it resuming on node %d", draining, a.Phase, a.Node, want)
		}
	}
}

// No capacity is reserved for a suspended task that could not resume with it, nor remains reserved.
func TestNothingIsReservedForWhatCannotResume(t *testing.T) {
	shrink := func(w *suspendedWorld) {
		spec := w.State.Node(0).Spec
		spec.Capacity[scheduler.CPU] = 2000
		w.must(w.State.Events().UpdateNode(spec))
	}
	slowDisk := func(w *suspendedWorld) {
		spec := w.State.Node(0).Spec
		spec.Disks = []scheduler.Disk{{Name: "sda", IO: 0, Space: spec.Disks[0].Space}}
		spec.Capacity[scheduler.IO] = 0
		w.must(w.State.Events().UpdateNode(spec))
	}
	lowerCap := func(w *suspendedWorld) {
		spec := w.Tenant("a").Spec
		spec.Caps.Task[scheduler.CPU] = 3000
		w.must(w.State.Events().PutTenant(spec))
	}
	park := func(w *suspendedWorld) {
		a := w.at(w.job, 0)
		w.must(w.State.Events().SetParked(a.ID, a.Run, true))
	}
	for name, change := range map[string]func(*suspendedWorld){"a smaller node": shrink, "a slower disk": slowDisk, "a lower cap": lowerCap, "parked": park} {
		for _, policy := range []string{"3dsf", "drf", "pdsonqueue"} {
			for when, reserved := range map[string]bool{"before": false, "after": true} { // is it reserved for it first?
				t.Run(name+"/"+policy+"/"+when, func(t *testing.T) {
					w := newSuspendedWorld(t, policy, 1)
					if reserved {
						w.Place(scheduler.TaskID{Job: w.Submit("b", 1, schedtest.R(1, 1, 0))}, 0)
					} else {
						change(w)
					}
					w.Start().Advance(time.Hour)
					w.round()
					if got := len(w.State.Reservations().On(0)); reserved != (got == 1) {
						t.Fatalf("%d reservations, want one: %v", got, reserved)
					}
					if reserved {
						change(w)
					}
					next := w.Submit("b", 1, schedtest.R(1, 1, 0))
					w.round()
					if w.node(next, 0) != 0 {
						t.Error("another tenant's task does not start")
					}
				})
			}
		}
	}
}

package threedsf_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/threedsf"
)

func guaranteeing() *threedsf.Policy {
	return threedsf.New(threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Deadlines: true, Order: deadline.EMWTF,
		Preempt: deadline.Suspend, MaxSuspended: 10 * time.Minute,
		Guarantees: threedsf.Guarantees{Enabled: true, SF: 0.5, MaxTries: 100, Margin: 2 * time.Second, CompressEvery: 10 * time.Second}})
}

// twoStages are n maps and as many reduces of a quarter of a node.
func twoStages(n int32) []scheduler.StageSpec {
	d := schedtest.R(2, 2, 10)
	return []scheduler.StageSpec{
		{Name: "map", Kind: scheduler.KindMap, Tasks: n, Demand: d, Estimate: 20 * time.Second},
		{Name: "reduce", Kind: scheduler.KindReduce, Tasks: n, Demand: d, Estimate: 20 * time.Second, After: []int32{0}},
	}
}

const testBound = 30 * time.Second

// A request that takes many cycles to plan is accepted in the end, no cycle does more than
// its budget allows, others are served meanwhile, and the guarantee holds.
func TestRequestIsPlannedInParts(t *testing.T) {
	for name, submit := range map[string]func(*schedtest.World) func() (accepted, violated bool){
		"a job with a deadline": func(w *schedtest.World) func() (bool, bool) {
			id := w.SubmitStages("a", twoStages(60), func(j *scheduler.JobSpec) { j.Bound, j.Deadline = testBound, w.Now.Add(time.Hour) })
			return func() (bool, bool) {
				j := w.State.Job(id)
				return j.HasState(scheduler.AcceptedState), j.HasState(scheduler.ViolatedState)
			}
		},
		"a project": func(w *schedtest.World) func() (bool, bool) {
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			w.SubmitStages("a", twoStages(60), func(j *scheduler.JobSpec) { j.Bound, j.Project = testBound, 1 })
			return func() (bool, bool) {
				pr := w.State.Project(1)
				return pr.HasState(scheduler.GuaranteeState), pr.HasState(scheduler.ViolatedState)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(5, schedtest.R(8, 8, 100)).AddTenants("a", "b")
			status := submit(w)
			other := w.Submit("b", 3, schedtest.R(1, 1, 1))
			p := guaranteeing()
			const work = 3000 // a few tasks
			p.SetPlanWork(work)
			parts := 0
			ends := map[scheduler.AttemptID]scheduler.Time{}
			for round := 0; w.State.Job(1) != nil; round++ {
				if round > 20_000 {
					t.Fatal("the jobs do not end")
				}
				d := w.Cycle(p)
				if planned, _, _ := p.PlanSteps(); planned > work+8_000 { // what one task may exceed it by
					t.Fatalf("cycle %d planned %d units of work, the budget is %d", round, planned, work)
				}
				accepted, violated := status()
				switch {
				case violated:
					t.Fatal("the guarantee is violated")
				case !accepted:
					if parts++; len(d.Actions) == 0 && len(d.PolicyStates) == 0 {
						t.Fatalf("cycle %d does nothing, and the request is not decided", round)
					}
					if d.Wake != w.Now+1 {
						t.Fatalf("cycle %d requests the next one at %d, now is %d", round, d.Wake, w.Now)
					}
				}
				if round == 0 && w.State.Job(other).Live != 3 {
					t.Errorf("%d tasks of another tenant run after the first cycle, want 3", w.State.Job(other).Live)
				}
				w.Advance(10 * time.Millisecond)
				if accepted {
					w.Advance(time.Second)
				}
				for _, a := range w.Attempts() {
					if a.Phase == scheduler.AttemptStarting {
						ends[a.ID] = w.Now.Add(20 * time.Second)
					} else if w.Now >= ends[a.ID] {
						w.End(a, scheduler.OutcomeSucceeded)
					}
				}
				w.Start()
				for j := range w.State.Jobs() {
					if left := int32(0); j.Live == 0 {
						for _, g := range j.Stages {
							left += g.Remaining()
						}
						if left == 0 {
							if err := w.State.Events().EndJob(j.Spec.ID); err != nil {
								t.Fatal(err)
							}
						}
					}
				}
			}
			if parts < 10 {
				t.Errorf("the request took %d cycles: the budget does not bind", parts)
			}
		})
	}
}

// However large the inputs, the counted work of a cycle stays within its limits.
func TestDecisionIsBounded(t *testing.T) {
	bounded := func(w *schedtest.World) func(*scheduler.JobSpec, *scheduler.StageSpec) {
		return func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			j.Bound, j.Deadline, g.Estimate = testBound, w.Now.Add(1000*time.Hour), 20*time.Second
		}
	}
	for name, submit := range map[string]func(*schedtest.World){
		"a job of many tasks": func(w *schedtest.World) { w.Submit("a", 20_000, schedtest.R(1, 1, 1), bounded(w)) },
		"more tasks than a plan may have": func(w *schedtest.World) {
			w.Submit("a", threedsf.MaxPlannedTasks+1, schedtest.R(1, 1, 1), bounded(w))
		},
		"many jobs": func(w *schedtest.World) {
			for range 3000 {
				w.Submit("a", 10, schedtest.R(1, 1, 1), bounded(w))
			}
		},
		"many demands": func(w *schedtest.World) {
			for i := range 45_000 {
				w.Submit("a", 1, schedtest.R(3, 1+float64(i)/100_000, 1))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(100, schedtest.R(8, 8, 100)).AddTenants("a", "b")
			submit(w)
			other := w.Submit("b", 10, schedtest.R(1, 1, 1))
			p := guaranteeing()
			for cycle := range 6 {
				d, err := scheduler.Cycle(w.State, p, w.Now, 1000, scheduler.AcceptAll)
				if err != nil {
					t.Fatal(err)
				}
				planned, read, examined := p.PlanSteps()
				if planned > threedsf.DefaultPlanWork+20_000 || read > threedsf.MaxPlannedTasks+threedsf.RequestBatch || examined > max(threedsf.MinExamined, threedsf.MaxExamined/len(w.State.Nodes())) {
					t.Errorf("cycle %d: planned %d, read %d, examined %d", cycle, planned, read, examined)
				}
				reserved := 0
				for _, a := range d.Actions {
					if a.Kind == scheduler.ActReserve {
						reserved++
					}
				}
				if reserved > 501 {
					t.Errorf("cycle %d makes %d reservations: at most half of its actions serve requests", cycle, reserved)
				}
				w.Advance(10 * time.Millisecond).Start()
			}
			if live := w.State.Job(other).Live; live != 10 {
				t.Errorf("%d of 10 tasks of another tenant run", live)
			}
		})
	}
}

// However many stages of a tenant are delayed, since no node at their input is free, its
// jobs are gone through at most twice in each pass of a decision.
func TestDelayedStagesRestartTheirTenantOnce(t *testing.T) {
	const jobs = 300
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 100)).AddTenants("a")
	for range 4 { // the node with the input is full
		w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 1))}, 0)
	}
	for range jobs {
		w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 1), Estimate: time.Minute,
			Inputs: schedtest.Inputs(128*schedtest.MiB, []scheduler.NodeID{0})}})
	}
	p := threedsf.New(threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Locality: true, ReserveNodes: true,
		MaxLocalityWait: time.Second, MaxLocalityYield: time.Minute, Preempt: deadline.None})
	w.Cycle(p)
	if got := p.Restarts(); got < 2 || got > 20 {
		t.Errorf("%d delayed stages made the decision restart their tenant %d times, want 2 for each pass, at most 20", jobs, got)
	}
}

// Guarantees that are late all at once, more than the budget of a cycle suffices for, are planned again by and by; none is
// dropped meanwhile.
func TestLateGuaranteesArePlannedAgainInParts(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(8, 64, 1000)).AddTenants("a")
	p := guaranteeing()
	submit := func(cores float64) *scheduler.Job {
		return w.State.Job(w.Submit("a", 1, schedtest.R(cores, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			j.Bound, j.Deadline, g.Estimate = testBound, w.Now.Add(time.Hour), 20*time.Second
		}))
	}
	for range 16 {
		submit(1)
	}
	w.Cycle(p)
	w.Start()
	var behind []*scheduler.Job
	for i := range 20 {
		behind = append(behind, submit(2+float64(i)/10))
	}
	w.Cycle(p)
	for _, j := range behind {
		if !j.HasState(scheduler.AcceptedState) || j.Live > 0 || len(j.Reservations()) != 1 {
			t.Fatalf("job %d: %d tasks run, %d reservations", j.Spec.ID, j.Live, len(j.Reservations()))
		}
	}
	w.Advance(10 * time.Minute) // all of them are late: nothing ended
	p.SetRestoreSteps(1)
	isLate := func(j *scheduler.Job) bool {
		return j.Live == 0 && (len(j.Reservations()) == 0 || j.Reservations()[0].Start.Add(2*time.Second) < w.Now)
	}
	cycles, late := 0, len(behind)
	for ; late > 0 && cycles < 100; cycles++ {
		d := w.Cycle(p)
		late = 0
		for _, j := range behind {
			if j.HasState(scheduler.ViolatedState) {
				t.Fatalf("the guarantee of job %d is violated", j.Spec.ID)
			}
			if isLate(j) {
				late++
			}
		}
		if late > 0 && d.Wake != w.Now+1 {
			t.Fatalf("cycle %d leaves %d jobs late and requests the next one at %d, now is %d", cycles, late, d.Wake, w.Now)
		}
		w.Advance(time.Millisecond)
	}
	if t.Logf("%d cycles", cycles); late > 0 || cycles < 5 {
		t.Errorf("%d jobs are late after %d cycles", late, cycles)
	}
}

package threedsf_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/threedsf"
)

// why is a situation in which the last job waits, and the reason that it gets, which policytest proves besides.
type why struct {
	config func(*threedsf.Config)
	build  func(*schedtest.World)
	limit  int
	want   scheduler.Waiting // without the stage
}

// fill occupies a part of a node with a regular task, for an hour.
func fill(w *schedtest.World, node scheduler.NodeID, d scheduler.Resources) {
	w.Place(scheduler.TaskID{Job: w.Submit("a", 1, d, func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = time.Hour })}, node)
	w.Start()
}

func reserve(w *schedtest.World, r scheduler.Reservation) {
	if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.Now); err != nil {
		w.Fatalf("%v", err)
	}
}

// Each reason of the closed list that 3dsf gives, in the smallest situation that has it. Two nodes of <4, 8, 100>; the first second is 1 s.
func TestEachReasonInItsSmallestSituation(t *testing.T) {
	second := func(n int) scheduler.Time { return scheduler.Time(n) * scheduler.Time(time.Second) }
	for name, x := range map[string]why{
		"no CPU is free": {build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(4, 1, 0))
			fill(w, 1, schedtest.R(3, 1, 0))
			w.Submit("a", 1, schedtest.R(2, 1, 0))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonNoCPU, Nodes: 2, Tasks: 1}},
		"no memory is free": {build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(1, 8, 0))
			fill(w, 1, schedtest.R(1, 7, 0))
			w.Submit("a", 1, schedtest.R(2, 2, 0))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonNoMemory, Nodes: 2, Tasks: 1}},
		"no I/O is free": {build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(1, 1, 90))
			fill(w, 1, schedtest.R(1, 1, 90))
			w.Submit("a", 1, schedtest.R(1, 1, 20))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonNoIO, Nodes: 2, Tasks: 1}},
		"no node is there": {build: func(w *schedtest.World) {
			for id := range scheduler.NodeID(2) {
				if err := w.State.Events().NodeLost(id, w.Now); err != nil {
					t.Fatal(err)
				}
			}
			w.Submit("a", 1, schedtest.R(1, 1, 20))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonNoNode, Tasks: 1}},
		"as many run as may": {build: func(w *schedtest.World) {
			w.Submit("a", 3, schedtest.R(1, 1, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.MaxParallel = 2 })
		}, want: scheduler.Waiting{Reason: scheduler.ReasonMaxParallel, Tasks: 1}},
		"its tenant is at a cap": {build: func(w *schedtest.World) {
			spec := w.Tenant("a").Spec
			spec.Caps.Total = scheduler.Limit(schedtest.R(2, 0, 0))
			if err := w.State.Events().PutTenant(spec); err != nil {
				t.Fatal(err)
			}
			w.Submit("a", 3, schedtest.R(1, 1, 0))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonCap, Tasks: 1, Cap: scheduler.CapTotal, Resource: scheduler.CPU}},
		"the decision has no action left": {limit: 2, build: func(w *schedtest.World) { w.Submit("a", 3, schedtest.R(1, 1, 0)) },
			want: scheduler.Waiting{Reason: scheduler.ReasonCycleFull, Tasks: 1}},
		"the head of the line does not fit": {config: func(c *threedsf.Config) { c.StopAtFirstMisfit, c.ReserveNodes = true, false }, build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(1, 1, 0))
			fill(w, 1, schedtest.R(1, 1, 0))
			w.Submit("a", 1, schedtest.R(4, 1, 0))
			w.Submit("a", 1, schedtest.R(1, 1, 0))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonHeadOfLine, Tasks: 1, Behind: scheduler.StageID{Job: 3}}},
		"all nodes are reserved": {build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(1, 1, 0))
			fill(w, 1, schedtest.R(1, 1, 0))
			w.Submit("a", 2, schedtest.R(4, 1, 0))
			w.Submit("a", 1, schedtest.R(1, 1, 0))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonShare, Tasks: 1, Behind: scheduler.StageID{Job: 3}}},
		"what is free was freed for another": {build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(4, 1, 0))
			fill(w, 1, schedtest.R(2, 1, 0))
			other := w.Submit("a", 1, schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Minute), true, time.Minute
			})
			reserve(w, scheduler.Reservation{ID: 1, Kind: scheduler.ReservePreempt, Job: other, Task: -1, Node: 1, Demand: schedtest.R(4, 1, 0), OnDisk: -1, Start: w.Now, End: second(61) + 1})
			suspend(w, 2)
			w.Submit("a", 1, schedtest.R(2, 1, 0))
		}, want: scheduler.Waiting{Reason: scheduler.ReasonReservation, Tasks: 1, Reservation: 1, Until: second(61) + 1}},
		"capacity is being freed for it": {build: func(w *schedtest.World) {
			fill(w, 0, schedtest.R(4, 1, 0))
			fill(w, 1, schedtest.R(4, 1, 0))
			w.Submit("a", 1, schedtest.R(3, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(time.Minute), true, time.Minute
			})
		}, want: scheduler.Waiting{Reason: scheduler.ReasonSuspending, Tasks: 1}}, // equal victims: on the first node
		"it waits for its input": {build: func(w *schedtest.World) {
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(4, 1, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 2 * time.Second })}, 1)
			w.Start()
			w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(1, 1, 0),
				Inputs: schedtest.Inputs(schedtest.GiB, []scheduler.NodeID{1})}})
		}, want: scheduler.Waiting{Reason: scheduler.ReasonData, Tasks: 1, Node: 1, Until: second(6)}},
		"its deadline is infeasible, and it is to stop": {build: func(w *schedtest.World) {
			w.Submit("a", 1, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote, j.OnMiss, g.Estimate = w.Now.Add(time.Second), true, scheduler.OnMissStop, time.Minute
			})
		}, want: scheduler.Waiting{Reason: scheduler.ReasonNotAdmitted, Tasks: 1}},
		"only its own later guarantee is in the way": {build: func(w *schedtest.World) {
			for id := range scheduler.NodeID(2) {
				spec := w.State.Node(id).Spec
				spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)
				if err := w.State.Events().UpdateNode(spec); err != nil {
					t.Fatal(err)
				}
				w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(2, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
					j.Bound, g.Estimate = 20*time.Second, 20*time.Second
				})}, id)
			}
			w.Start()
			d := schedtest.R(2, 1, 0)
			w.SubmitStages("a", []scheduler.StageSpec{
				{Name: "large", Kind: scheduler.KindGroup, Tasks: 2, Demand: schedtest.R(4, 1, 0), Estimate: 20 * time.Second},
				{Name: "small", Kind: scheduler.KindGroup, Tasks: 1, Demand: d, Estimate: 40 * time.Second},
			}, func(j *scheduler.JobSpec) { j.Bound, j.Deadline = 40*time.Second, w.Now.Add(5*time.Minute) })
		}, want: scheduler.Waiting{Reason: scheduler.ReasonLater, Tasks: 1, Until: second(63)}},
	} {
		t.Run(name, func(t *testing.T) { x.check(t) })
	}
}

// suspend completes the suspension of a job's task to memory.
func suspend(w *schedtest.World, job scheduler.JobID) {
	for _, a := range w.Attempts() {
		if a.ID.Job != job {
			continue
		}
		act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: scheduler.LevelFrozen}
		if err := w.State.Apply(&act, w.Now); err != nil {
			w.Fatalf("%v", err)
		}
	}
}

func (x *why) check(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")
	x.build(w)
	cfg := threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Locality: true, Network: locality.Network{Bandwidth: 50_000_000},
		MaxLocalityWait: 5 * time.Second, SmallTaskBytes: schedtest.MiB, ReserveNodes: true, Deadlines: true, Order: deadline.EMWTF, Preempt: deadline.Suspend,
		MaxSuspended: 10 * time.Minute, Guarantees: threedsf.Guarantees{Enabled: true, SF: 0.5, MaxTries: 100, Margin: 2 * time.Second, CompressEvery: 10 * time.Second}}
	if x.config != nil {
		x.config(&cfg)
	}
	limit := 1000
	if x.limit > 0 {
		limit = x.limit
	}
	maker := func() scheduler.Policy { return threedsf.New(cfg) }
	d := policytest.Round(t, w.State, maker(), maker, w.Now, limit)
	if len(d.Waiting) == 0 {
		t.Fatalf("nothing waits:\n%s", d.String())
	}
	got := d.Waiting[len(d.Waiting)-1]
	if got.Stage = (scheduler.StageID{}); got != x.want {
		t.Errorf("the reason is\n%+v, want\n%+v\n%s", got, x.want, d.String())
	}
}

// A job whose guarantee takes several decisions to plan waits for that, and for nothing else.
func TestReasonOfWhatIsBeingPlanned(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 100)).AddTenants("a")
	id := w.SubmitStages("a", twoStages(40), func(j *scheduler.JobSpec) { j.Bound, j.Deadline = testBound, w.Now.Add(time.Hour) })
	p := guaranteeing()
	p.SetPlanWork(1)
	for limit, want := range map[int]scheduler.Reason{1: scheduler.ReasonPlanning, 1000: scheduler.ReasonNoCPU} { // of a large decision, tasks start
		d := p.Decide(w.State, w.Now, limit)
		if len(d.Waiting) != 1 || d.Waiting[0].Stage.Job != id || d.Waiting[0].Reason != want || d.Wake != w.Now+1 {
			t.Errorf("with %d actions at most: %s", limit, d.String())
		}
	}
}

package threedsf

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// newTestCycle begins a decision on a world, without a policy.
func newTestCycle(w *schedtest.World, cfg Config) *cycle {
	cfg.Level, cfg.Resources = 2, 3
	c := &cycle{view: view{cfg: &cfg, assumptions: assumptions{cfg.Deadlines, cfg.AllDeadlines}}, shares: &shares{}, nodeUsed: func(scheduler.NodeID) {}}
	c.begin(w.State, w.Now, 100)
	return c
}

// reserveFor reserves a part of a node for any task of a stage.
func reserveFor(t *testing.T, w *schedtest.World, r scheduler.Reservation) {
	t.Helper()
	if err := w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.Now); err != nil {
		t.Fatal(err)
	}
}

func actionKinds(c *cycle) (out []scheduler.ActionKind) {
	for i := range c.actions {
		out = append(out, c.actions[i].Kind)
	}
	return out
}

// A cycle wakes at the earliest requested time, and keeps State and decision in agreement:
// withdrawn actions are in neither.
func TestCycleWithdrawsFromStateAndDecision(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 10)).AddTenants("a")
	g := w.State.Job(w.Submit("a", 2, schedtest.R(1, 1, 0))).Stages[0]
	c := newTestCycle(w, Config{})
	for _, at := range []scheduler.Time{30, 10, 20} {
		c.wakeAt(at)
	}
	if c.wake != 10 {
		t.Errorf("the cycle wakes at %d, want 10", c.wake)
	}
	var used []scheduler.NodeID
	c.nodeUsed = func(id scheduler.NodeID) { used = append(used, id) }
	c.place(g, 0, 1)
	if !slices.Equal(used, []scheduler.NodeID{1}) || c.nonPlacement || c.actionsLeft != 99 || g.Running != 1 {
		t.Errorf("after a placement: nodes used %v, other actions %v, %d actions left, %d tasks run", used, c.nonPlacement, c.actionsLeft, g.Running)
	}
	reserve := scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: c.s.Reservations().NextID(), Kind: scheduler.ReservePreempt,
		Job: g.Job.Spec.ID, Task: -1, Node: 0, Demand: g.Spec.Demand, Start: w.Now, End: scheduler.Never}}
	drop := scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: reserve.Reservation.ID}}
	c.apply(reserve)
	c.apply(drop)
	c.apply(reserve)
	if at := c.withdrawReservation(reserve.Reservation.ID); at != 3 { // not the first one of this id
		t.Errorf("withdrew action %d, want 3", at)
	}
	if want := []scheduler.ActionKind{scheduler.ActPlace, scheduler.ActReserve, scheduler.ActUnreserve}; !slices.Equal(actionKinds(c), want) || c.actionsLeft != 97 {
		t.Errorf("actions %v with %d left, want %v with 97", actionKinds(c), c.actionsLeft, want)
	}
	if at := c.withdrawReservation(77); at != -1 || len(w.State.Reservations().All()) != 0 {
		t.Errorf("withdrew action %d of a reservation that nobody made; the State has %d", at, len(w.State.Reservations().All()))
	}
	c.withdrawPlacement(0)
	c.replacePlacement(0, w.State.Attempts().PlaceAction(g, 1, 0, 0))
	if c.actions[0].Task.Index != 1 || c.actions[0].Node != 0 || !g.IsPending(0) || g.IsPending(1) {
		t.Errorf("the placement was not replaced: %+v", c.actions[0])
	}
	if w.State.Journal().Rollback(c.mark); g.Pending != 2 || g.Running != 0 {
		t.Errorf("%d tasks wait and %d run after the rollback", g.Pending, g.Running)
	}
}

// A reservation of this decision leaves no trace when it is dropped, one of an earlier
// decision is dropped by an action.
func TestPreemptReservationsAreDropped(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 10)).AddTenants("a")
	g := w.State.Job(w.Submit("a", 2, schedtest.R(1, 1, 0))).Stages[0]
	reserveFor(t, w, scheduler.Reservation{ID: 1, Kind: scheduler.ReservePreempt, Job: g.Job.Spec.ID, Task: -1, Demand: g.Spec.Demand, Start: w.Now, End: scheduler.Never})
	c := newTestCycle(w, Config{})
	placed := &exchangeIndex{}
	placed.begin(1)
	x := preemptReservations{c: c, placed: placed}
	if x.refresh(); x.total != 1 || x.count(g) != 1 || x.countOn(g, 0) != 1 {
		t.Fatalf("%d reservations, %d of the stage, %d of it on the node, want 1 of each", x.total, x.count(g), x.countOn(g, 0))
	}
	x.reserve(g, -1, 0, g.Spec.Demand, 0, scheduler.Never)
	c.place(g, 0, 0)
	placed.addTask(g, 0, 0, len(c.actions)-1, true)
	if x.count(g) != 2 {
		t.Errorf("%d reservations of the stage, want 2", x.count(g))
	}
	x.drop(w.State.Reservations().Get(2))
	if want := []scheduler.ActionKind{scheduler.ActPlace}; !slices.Equal(actionKinds(c), want) || placed.tasks[0].action != 0 {
		t.Errorf("actions %v, the placement is remembered as action %d", actionKinds(c), placed.tasks[0].action)
	}
	x.drop(w.State.Reservations().Get(1))
	if want := []scheduler.ActionKind{scheduler.ActPlace, scheduler.ActUnreserve}; !slices.Equal(actionKinds(c), want) || x.total != 0 || x.count(g) != 0 {
		t.Errorf("actions %v, %d reservations", actionKinds(c), x.total)
	}
}

// A stage is delayed until MaxLocalityYield after it last had a task at its input; its clock
// is recorded when the cycle ends before it was served, and forgotten once it has such a task.
func TestInputWaitsKeepClocks(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 10)).AddTenants("a")
	g := w.State.Stage(scheduler.StageID{Job: w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 2,
		Demand: schedtest.R(1, 1, 0), Inputs: schedtest.Inputs(schedtest.GiB, []scheduler.NodeID{1}, []scheduler.NodeID{1})}})})
	c := newTestCycle(w, Config{Locality: true, MaxLocalityYield: time.Second, MaxLocalityWait: time.Second})
	x := inputWaits{c: c}
	x.begin()
	if x.waitsWhole(g) || x.setWhole(g) {
		t.Error("a stage waits before anybody delayed it")
	}
	if !x.delayStage(g) || !x.waitsWhole(g) || x.of(g).node != 1 || x.of(g).until != w.Now.Add(time.Second) {
		t.Fatalf("the stage is not delayed as it should be: %+v", x.of(g))
	}
	if x.record(); len(c.states) != 0 {
		t.Errorf("%v recorded although all delayed stages were served", c.states)
	}
	c.actionsLeft = 0
	if x.record(); len(c.states) != 1 || c.states[0].Kind != scheduler.WaitSinceState || c.states[0].At != w.Now {
		t.Fatalf("recorded %+v, want the clock of the stage", c.states)
	}
	if x.beginDelayed(); x.waitsWhole(g) || !x.servingDelayed {
		t.Error("a delayed stage waits while the delayed stages are served")
	}
	for _, late := range []time.Duration{time.Second - 1, time.Second} {
		c.now = w.Now.Add(late)
		x.begin()
		if got, want := x.delayStage(g), late < time.Second; got != want || x.servingDelayed {
			t.Errorf("%v later: delayed %v, want %v", late, got, want)
		}
	}
	x.edit(g).withoutExchange, x.edit(g).withoutAlternative = true, true
	if x.begin(); x.of(g).withoutExchange || x.of(g).withoutAlternative {
		t.Error("a new pass remembers who found no exchange")
	}
	x.recordLocal(g)
	x.recordLocal(g)
	if len(x.localStages) != 1 || x.waitingSince(g) != c.now {
		t.Errorf("%d stages with a task at their input; the stage waits since %d, now is %d", len(x.localStages), x.waitingSince(g), c.now)
	}
	if x.record(); len(c.states) != 2 || c.states[1].Kind != scheduler.TombstoneState {
		t.Errorf("recorded %+v, want that the clock is forgotten", c.states)
	}
	if since, waits := g.WaitingSince(); waits {
		t.Errorf("the stage still waits since %d", since)
	}
}

// The index of placed tasks follows tasks that move, and actions that are withdrawn.
func TestExchangeIndexFollowsActions(t *testing.T) {
	x := exchangeIndex{}
	x.begin(3)
	g := &scheduler.Stage{}
	for task, node := range []scheduler.NodeID{2, 0, 2, 2} {
		x.addTask(g, int32(task), node, task, task == 0)
	}
	on := func(node scheduler.NodeID) (out []int32) {
		for at := x.firstOnNode[node]; at >= 0; at = x.tasks[at].nextOnNode {
			out = append(out, x.tasks[at].task)
		}
		return out
	}
	if got := on(2); !slices.Equal(got, []int32{3, 2, 0}) {
		t.Fatalf("tasks %v on the node, want 3, 2, 0", got)
	}
	x.unlink(2, 2)
	if got := on(2); !slices.Equal(got, []int32{3, 0}) {
		t.Errorf("tasks %v on the node after one left, want 3, 0", got)
	}
	x.removeAction(1)
	for task, want := range map[int32]int32{0: 0, 2: 1, 3: 2} {
		if x.tasks[task].action != want {
			t.Errorf("task %d was placed by action %d, want %d", task, x.tasks[task].action, want)
		}
	}
	if x.begin(4); len(on(2))+len(on(0))+len(on(3))+len(x.tasks) != 0 {
		t.Error("a new decision remembers tasks of the last one")
	}
}

// A task may start beside a later guarantee if it ends before it or both fit, or can be
// moved away; for a guarantee of its own job only if that depends on it.
func TestWhatMayStartBesideALaterGuarantee(t *testing.T) {
	fixed := scheduler.LevelSet(0)
	for name, x := range map[string]struct {
		levels scheduler.LevelSet
		bound  time.Duration
		cores  float64
		own    int32 // the stage of the job's own that the guarantee is for, 0 for another job
		want   bool
	}{
		"ends before":                   {fixed, 30 * time.Second, 8, 0, true},
		"has no bound":                  {fixed, 0, 8, 0, false},
		"ends after its begin":          {fixed, 90 * time.Second, 8, 0, false},
		"fits beside it":                {fixed, 0, 2, 0, true},
		"can be moved away":             {scheduler.AllLevels, 0, 8, 0, true},
		"a later stage that depends":    {fixed, 0, 8, 2, true},
		"a later stage of its own":      {fixed, 0, 8, 3, false},
		"a later stage that fits, too":  {fixed, 0, 2, 3, true},
		"a later stage, which ends not": {fixed, 90 * time.Second, 8, 3, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddTenants("a")
			spec := schedtest.NodeSpec(0, "/r1", schedtest.R(8, 8, 10))
			spec.Levels = x.levels
			if err := w.State.Events().AddNode(spec); err != nil {
				t.Fatal(err)
			}
			stage := func(name string, after ...int32) scheduler.StageSpec {
				return scheduler.StageSpec{Name: name, Kind: scheduler.KindGroup, Tasks: 1, Demand: schedtest.R(x.cores, 1, 0), After: after}
			}
			// 0 <- 1 <- 2 depend on each other, 3 on none of them
			job := w.State.Job(w.SubmitStages("a", []scheduler.StageSpec{stage("s0"), stage("s1", 0), stage("s2", 1), stage("s3")}, func(j *scheduler.JobSpec) { j.Bound = x.bound }))
			other := w.Submit("a", 1, schedtest.R(6, 1, 0))
			r := scheduler.Reservation{ID: 1, Kind: scheduler.ReserveDeadline, Job: other, OnDisk: -1, Demand: schedtest.R(6, 1, 0),
				Start: w.Now.Add(time.Minute), End: w.Now.Add(2 * time.Minute)}
			if x.own > 0 {
				r.Job, r.Stage, r.Demand = job.Spec.ID, x.own, schedtest.R(6, 1, 0)
			}
			reserveFor(t, w, r)
			c := newTestCycle(w, Config{})
			check := guaranteeCheck{v: &c.view}
			g := job.Stages[0]
			if got := check.honoursGuarantees(w.State.Node(0), g, g.Spec.Demand, 0, -1, nil); got != x.want {
				t.Errorf("may start: %v, want %v", got, x.want)
			}
			for pair, want := range map[[2]int32]bool{{1, 0}: true, {2, 0}: true, {2, 1}: true, {3, 0}: false, {3, 2}: false, {0, 0}: false, {0, 2}: false} {
				if got := check.dependsOn(job, pair[0], pair[1]); got != want {
					t.Errorf("stage %d depends on %d: %v, want %v", pair[0], pair[1], got, want)
				}
			}
		})
	}
}

// While free capacity only shrinks, the cache of closed nodes changes no answer.
func TestOpenNodesRememberNothingWrong(t *testing.T) {
	seed := seed.New(t)
	closed := 0
	for round := range 200 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.New(t).AddTenants("a")
		for id := range scheduler.NodeID(2 + r.IntN(8)) {
			spec := schedtest.NodeSpec(id, "/r1", schedtest.R(float64(2+r.IntN(7)), 16, 0))
			if r.IntN(2) == 0 {
				spec.Levels = 0
			}
			if err := w.State.Events().AddNode(spec); err != nil {
				t.Fatal(err)
			}
		}
		var stages []*scheduler.Stage
		for range 6 {
			stages = append(stages, w.State.Job(w.Submit("a", 8, schedtest.R(float64(1+r.IntN(3)), 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
				j.Bound = time.Duration(r.IntN(3)) * time.Minute
			})).Stages[0])
		}
		for id := range scheduler.ReservationID(1 + r.IntN(8)) {
			x := scheduler.Reservation{ID: id + 1, Kind: scheduler.ReservePreempt, Job: stages[r.IntN(len(stages))].Job.Spec.ID, Task: -1, OnDisk: -1,
				Node: scheduler.NodeID(r.IntN(len(w.State.Nodes()))), Demand: schedtest.R(float64(1+r.IntN(2)), 1, 0), Start: w.Now, End: scheduler.Never}
			if r.IntN(2) == 0 {
				x.Kind, x.Task, x.Start, x.End = scheduler.ReserveDeadline, int32(r.IntN(8)), w.Now.Add(time.Minute), w.Now.Add(2*time.Minute)
			}
			if w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: x}, w.Now) != nil {
				continue // another guarantee is there
			}
		}
		c := newTestCycle(w, Config{})
		jobs, nodes, reservations := jobCache{v: &c.view}, reservedNodes{c: c}, preemptReservations{c: c}
		nodes.begin(len(w.State.Nodes()))
		reservations.refresh()
		o := openNodes{v: &c.view, jobs: &jobs, nodes: &nodes, reservations: &reservations, guarantees: &guaranteeCheck{v: &c.view},
			closedBelow: map[closedClass]scheduler.NodeID{}, exemptJobs: map[scheduler.JobID]bool{}}
		o.guaranteeCount = len(w.State.Reservations().Guarantees())
		o.beginShrinkOnly()
		for range 60 {
			g := stages[r.IntN(len(stages))]
			from := scheduler.NodeID(r.IntN(len(w.State.Nodes())) * r.IntN(2))
			got, want := o.nextOpenNode(g, from), o.firstOpenNode(g, from)
			if got != want {
				t.Fatalf("seed %d, round %d: the next open node of stage %s from %d is %d, want %d", seed, round, g.ID(), from, got, want)
			}
			if want != w.State.Cluster().NextNode(g, from) {
				closed++
			}
			if got != scheduler.NoNode && g.Pending > 0 && r.IntN(3) == 0 {
				c.place(g, g.NextPending(0), got)
			}
		}
	}
	if closed < 100 {
		t.Errorf("a reservation mattered only %d times", closed)
	}
}

// The queues of tenants and priorities have groups of their own.
func TestQueueGroups(t *testing.T) {
	seen := map[int]bool{}
	for tenant := range scheduler.TenantID(5) {
		for class := classHigh; class <= classLow; class++ {
			group := queueGroup(tenant, class)
			if back, c := tenantOfGroup(group); back != tenant || c != class || seen[group] {
				t.Errorf("group %d of tenant %d, class %d, is that of tenant %d, class %d", group, tenant, class, back, c)
			}
			seen[group] = true
		}
	}
}

// Whether a job has a bound depends on the present jobs, not on ended ones: a new instance would
// reserve other nodes.
func TestBoundsOfEndedJobsAreForgotten(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 1, 1)).AddTenants("a")
	k := reservedNodes{c: &cycle{view: view{s: w.State}}}
	bounded := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = time.Minute }
	w.Submit("a", 1, schedtest.R(1, 1, 1))
	if k.findBoundedJob() != nil {
		t.Error("a job has a bound before there is one")
	}
	first, second := w.Submit("a", 1, schedtest.R(1, 1, 1), bounded), w.Submit("a", 1, schedtest.R(1, 1, 1), bounded)
	for _, id := range []scheduler.JobID{first, second} {
		if k.findBoundedJob() == nil {
			t.Errorf("no job has a bound, but %d has", id)
		}
		if err := w.State.Events().EndJob(id); err != nil {
			t.Fatal(err)
		}
	}
	if k.findBoundedJob() != nil {
		t.Error("a job has a bound after the last one that had one ended")
	}
}

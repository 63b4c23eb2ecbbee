package threedsf

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Of a stage with more tasks than are scanned one by one, the search for tasks with a free node at their input finds all that there are, each
// once: with one replica each, a node gets as many as it has slots for and tasks of. The first hundreds are on a full node.
func TestLocalTasksOfALargeStageAreFound(t *testing.T) {
	seed := seed.New(t)
	for round := range 12 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.New(t).AddNodes(1, schedtest.R(1, 64, 0)).AddTenants("a")
		slots, onNode := []int{0}, []int{0}
		for range 3 + r.IntN(20) {
			slots, onNode = append(slots, r.IntN(4)), append(onNode, 0)
			w.AddNodes(1, schedtest.R(float64(1+slots[len(slots)-1]), 64, 0))
		}
		for id := range slots { // a core of each node is taken
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, scheduler.NodeID(id))
		}
		var data [][]scheduler.NodeID
		for i := range 400 + r.IntN(1000) {
			id := scheduler.NodeID(0)
			if i > 300+r.IntN(400) {
				id = scheduler.NodeID(r.IntN(len(slots)))
			}
			onNode[id]++
			data = append(data, []scheduler.NodeID{id})
		}
		g := w.State.Stage(scheduler.StageID{Job: w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: int32(len(data)),
			Demand: schedtest.R(1, 1, 0), Inputs: schedtest.Inputs(128*schedtest.MiB, data...)}})})
		want := 0
		for id, n := range slots {
			want += min(n, onNode[id])
		}
		p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Locality: true, Preempt: deadline.None})
		p.begin(w.State, w.Now, 10_000)
		p.beginPass()
		near, found := localSearch{stage: g}, 0
		for {
			task, node := p.finder.findLocalTask(g, &near)
			if node == scheduler.NoNode {
				break
			}
			if !g.IsPending(task) || !slices.Contains(data[task], node) {
				t.Fatalf("seed %d, round %d: task %d (waits: %v) with its input on %v is found for node %d", seed, round, task, g.IsPending(task), data[task], node)
			}
			p.cycle.place(g, task, node)
			found++
		}
		if found != want || !near.exhausted {
			t.Errorf("seed %d, round %d: %d of %d tasks are found, want %d; nothing is left: %v", seed, round, found, len(data), want, near.exhausted)
		}
	}
}

// A job becomes overdue at the first step of Aging at which it had nothing for Aging times the number of ready stages: the same by a policy that
// looks each second, and by one that looks for the first time.
func TestWhenAJobIsOverdue(t *testing.T) {
	second := func(n int) scheduler.Time { return scheduler.Time(n) * scheduler.Time(time.Second) }
	for name, x := range map[string]struct {
		others   int // jobs that are ready besides
		submit   int // the second at which it is submitted; Aging is 10 s
		end      int // the second at which its only task so far ended, 0 for none
		deadline bool
		want     int // the second at which it is overdue, 0 for never
	}{
		"one stage is ready":      {0, 20, 0, false, 30},
		"between two steps":       {0, 21, 0, false, 40},
		"three stages are ready":  {2, 20, 0, false, 50},
		"it had a task":           {0, 20, 33, false, 50},
		"its task ended at once":  {0, 20, 20, false, 30},
		"a deadline has its lane": {0, 20, 0, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(2, 8, 0)).AddTenants("a")
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
			w.Start()
			for w.Now = second(2); w.Now < second(19); w.Advance(time.Second) { // the others wait since then, but need more than there is
				if int(w.Now/second(1)) < 2+x.others {
					w.Submit("a", 1, schedtest.R(2, 1, 0))
				}
			}
			w.Now = second(x.submit)
			id := w.Submit("a", 3, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if x.deadline {
					j.Deadline, j.Accepted, g.Estimate = w.Now.Add(time.Hour), true, time.Second
				}
			})
			if x.end > 0 {
				a := w.Place(scheduler.TaskID{Job: id}, 0)
				w.Start()
				w.Now = second(x.end)
				w.End(a, scheduler.OutcomeSucceeded)
			}
			w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
			w.Start()
			cfg := Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Aging: 10 * time.Second, Deadlines: true, Order: deadline.EMWTF, Preempt: deadline.None}
			warm, first := New(cfg), 0
			isOverdue := func(p *Policy) bool {
				p.Decide(w.State, w.Now, 100)
				return slices.ContainsFunc(p.overdue.jobs, func(o overdueJob) bool { return o.job.Spec.ID == id })
			}
			for ; w.Now < second(90) && first == 0; w.Advance(time.Second) {
				got := isOverdue(warm)
				if cold := isOverdue(New(cfg)); cold != got {
					t.Errorf("after %v: overdue %v, for a new policy %v", w.Now.Sub(0), got, cold)
				}
				if got {
					first = int(w.Now / second(1))
				}
			}
			if first != x.want {
				t.Errorf("it is overdue at %d s, want %d s", first, x.want)
			}
		})
	}
}

// A job that a decision serves as overdue still is overdue if the decision is withdrawn.
func TestWithdrawnDecisionLeavesJobOverdue(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 8, 0)).AddTenants("a", "b")
	w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
	ends := w.Place(scheduler.TaskID{Job: w.Submit("b", 1, schedtest.R(1, 1, 0))}, 0)
	overdue := w.Start().Submit("a", 1, schedtest.R(1, 1, 0))
	w.Advance(time.Minute)
	w.Submit("b", 1, schedtest.R(1, 1, 0)) // its tenant has the smaller share; a node is reserved for it once the other is placed
	w.End(ends, scheduler.OutcomeSucceeded)
	p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Aging: 10 * time.Second, ReserveNodes: true})
	for i := range 3 {
		if d := p.Decide(w.State, w.Now, 100); len(d.Actions) != 1 || d.Actions[0].Task.Job != overdue {
			t.Errorf("decision %d, while none is accepted: %s, want a task of job %d", i+1, d.String(), overdue)
		}
	}
}

// The queues of a tenant's priorities do not mix, a job is in the queue that its service says, and what the next cycle must know is recorded: a
// demotion once, and the deficits of backlogged queues while two or more jobs wait.
func TestQueuesAreRecorded(t *testing.T) {
	cfg := fullConfig()
	cfg.Aging, cfg.Deadlines, cfg.Guarantees.Enabled, cfg.ReserveNodes = 0, false, false, false
	cfg.LASMQ = &lasmq.Config{Queues: 4, First: 10, Step: 10, Decay: 0.5, Order: lasmq.OrderRemaining, Horizon: 10 * time.Second, Unit: schedtest.R(1, 2, 1000)}
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 16, 0)).AddTenants("a", "b")
	high := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Priority = scheduler.PriorityHigh }
	old, oldHigh := w.Submit("a", 4, schedtest.R(1, 1, 0)), w.Submit("a", 4, schedtest.R(1, 1, 0), high)
	w.Place(scheduler.TaskID{Job: old}, 0)
	w.Place(scheduler.TaskID{Job: oldHigh}, 0)
	w.Start()
	p := New(cfg)
	states := func() (queues, deficits, forgotten int) {
		d := w.Cycle(p)
		for i := range d.PolicyStates {
			switch n := &d.PolicyStates[i]; {
			case n.Kind == scheduler.QueueState:
				queues++
			case n.Kind == scheduler.DeficitState:
				deficits++
			case n.Kind == scheduler.TombstoneState && n.Value == int64(scheduler.DeficitState):
				forgotten++
			}
		}
		return queues, deficits, forgotten
	}
	for i, x := range []struct {
		what                        string
		change                      func()
		queues, deficits, forgotten int
	}{
		{"one job of each priority waits: the order is trivial", func() {}, 0, 0, 0},
		{"another tenant's job does not count", func() { w.Submit("b", 1, schedtest.R(1, 1, 0)) }, 0, 0, 0},
		{"two of low priority wait, both in the first queue", func() { w.Submit("a", 1, schedtest.R(1, 1, 0)) }, 0, 1, 0},
		{"the old one used 10 container-seconds, just not too many", func() { w.Now = scheduler.Time(11 * time.Second) }, 0, 0, 0},
		{"it used more, and is demoted", func() { w.Advance(time.Nanosecond) }, 1, 2, 0},
		{"that is recorded once", func() {}, 0, 0, 0},
		{"two of high priority wait, one of them demoted", func() { w.Submit("a", 1, schedtest.R(1, 1, 0), high) }, 1, 2, 0},
		{"one of low priority is gone: its queues are forgotten", func() {
			if err := w.State.Events().EndJob(4); err != nil {
				t.Fatal(err)
			}
		}, 0, 0, 2},
	} {
		x.change()
		if queues, deficits, forgotten := states(); queues != x.queues || deficits != x.deficits || forgotten != x.forgotten {
			t.Errorf("step %d, %s: %d demotions, %d deficits and %d forgotten ones are recorded, want %d, %d, %d", i+1, x.what, queues, deficits, forgotten, x.queues, x.deficits, x.forgotten)
		}
	}
	if a, b := w.State.Job(old).Queue(), w.State.Job(oldHigh).Queue(); a != 2 || b != 2 { // counted from 1
		t.Errorf("the old jobs are in queues %d and %d, want 2", a, b)
	}
	keys := map[scheduler.PolicyStateKey]bool{}
	for class := classHigh; class <= classLow; class++ {
		for queue := range 4 {
			keys[deficitKey(queueGroup(0, class), queue)], keys[deficitKey(queueGroup(1, class), queue)] = true, true
		}
	}
	if len(keys) != 16 {
		t.Errorf("the deficits of 16 queues have %d keys", len(keys))
	}
}

package policies

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// inOrder are the parameters of 3dsf without queues and reserved nodes.
var inOrder = map[string]string{"regular_order": "fcfs", "reserve": "false"}

// TestEveryPolicyConforms has the defaults, under which few jobs of its worlds are demoted.
func TestThreeDSFConforms(t *testing.T) {
	for name, params := range map[string]map[string]string{
		"short queues":              {"first": "5", "step": "2", "prior": "input_bytes"},
		"queues, no reserved nodes": {"first": "5", "step": "2", "reserve": "false"},
		"in order":                  inOrder,
		"in order, reserved nodes":  {"regular_order": "fcfs"},
	} {
		t.Run(name, func(t *testing.T) {
			newPolicy := func() scheduler.Policy { return mustNew(t, "3dsf", params) }
			policytest.Run(t, newPolicy)
			if params["regular_order"] == "fcfs" { // decides many times while nothing of it is applied
				policytest.RunOverTime(t, newPolicy)
			}
		})
	}
}

// What a scheduler without queues has left goes on with queues, and the other way round: a cluster
// whose coordinator is upgraded, or whose operator chooses the other order, has running and waiting
// jobs, of which the first has no policy states of queues and the second has some.
func TestOrderOfRegularJobsMayChange(t *testing.T) {
	demoted, kept := 0, 0
	first := seed.New(t)
	for world := range uint64(30) {
		d, k := changeOrder(t, first+world)
		demoted, kept = demoted+d, kept+k
	}
	if demoted == 0 || kept == 0 {
		t.Errorf("%d jobs were demoted with queues, and %d were known as such without: the worlds prove little", demoted, kept)
	}
}

// Worlds that failed.
func TestOrderOfRegularJobsMayChangeInWorldsThatFailed(t *testing.T) {
	for name, seed := range map[string]uint64{
		"nodes were reserved to the limit where nothing fits, as only a new State knew":     16903817560975787813,
		"a stage that gives way on some nodes was kept off another by a cap, for no reason": 32832325729812,
	} {
		t.Run(name, func(t *testing.T) { changeOrder(t, seed) })
	}
}

// changeOrder changes the order of regular jobs in a random world, forth and back. After each change the
// State is rebuilt from its facts, and decisions equal those of a new policy (policytest.Round). It returns
// how many jobs were demoted with queues, and for how many a policy without queues kept that state.
func changeOrder(t *testing.T, seed uint64) (demoted, kept int) {
	queues := map[string]string{"first": "5", "step": "2"}
	c := schedtest.NewChaos(t, seed)
	for phase := range 4 {
		params := inOrder
		if phase%2 == 1 {
			params = queues
		}
		newPolicy := func() scheduler.Policy { return mustNew(t, "3dsf", params) }
		c.State = c.State.Clone()
		if n := queueStates(c.State); phase == 1 && n > 0 {
			t.Fatalf("seed %d: %d jobs are in queues before there are any", seed, n)
		} else if phase == 2 {
			kept += n
		}
		warm := newPolicy()
		for range 8 {
			policytest.Round(t, c.State, warm, newPolicy, c.Now, 1000)
			for range 4 {
				c.Step()
			}
		}
		if phase == 1 {
			demoted += queueStates(c.State)
		}
	}
	return demoted, kept
}

// queueStates counts the jobs whose queue the State records.
func queueStates(s *scheduler.State) int {
	n := 0
	for j := range s.Jobs() {
		if j.HasState(scheduler.QueueState) {
			n++
		}
	}
	return n
}

// With one tenant, no deadline and one priority, 3dsf with queues is las_mq as long as
// two jobs wait: the same tasks in the same order, cycle by cycle.
func TestQueuesInsideOneTenantAreLASMQ(t *testing.T) {
	seed := seed.New(t)
	for round := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, round))
		a, b := schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a"), schedtest.New(t).AddNodes(3, schedtest.R(4, 8, 100)).AddTenants("a")
		queues := map[string]string{"first": "10", "step": "3", "horizon": "20s", "reserve": "false"}
		one := mustNew(t, "las_mq", queues)
		other := mustNew(t, "3dsf", queues)
		for range 2 { // which wait to the end
			a.Submit("a", 1000, schedtest.R(1, 1, 1))
			b.Submit("a", 1000, schedtest.R(1, 1, 1))
		}
		for cycle := range 60 {
			if r.IntN(2) == 0 {
				tasks, d := int32(1+r.IntN(9)), schedtest.R(float64(1+r.IntN(3)), float64(1+r.IntN(4)), 1)
				a.Submit("a", tasks, d)
				b.Submit("a", tasks, d)
			}
			x, y := a.Cycle(one), b.Cycle(other)
			if p, q := placements(&x), placements(&y); p != q {
				t.Fatalf("seed %d round %d cycle %d: las_mq places\n%s3dsf places\n%s", seed, round, cycle, p, q)
			}
			a.Start()
			b.Start()
			pass := time.Duration(1+r.IntN(5)) * time.Second
			a.Advance(pass)
			b.Advance(pass)
			for _, att := range a.Attempts() {
				if r.IntN(3) == 0 {
					a.End(att, scheduler.OutcomeSucceeded)
					b.End(b.State.Attempt(att.ID), scheduler.OutcomeSucceeded)
				}
			}
		}
	}
}

func placements(d *scheduler.Decision) string {
	out := ""
	for i := range d.Actions {
		if a := &d.Actions[i]; a.Kind == scheduler.ActPlace {
			out += fmt.Sprintf("%s on %d\n", a.Task, a.Node)
		}
	}
	return out
}

// Queues order regular jobs only: a deadline job goes first although it had much
// service, and a job of high priority precedes one of low priority in a better
// queue.
func TestQueuesOrderOnlyRegularJobs(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 2, 10)).AddTenants("a")
	p := mustNew(t, "3dsf", map[string]string{"first": "1", "preempt": "none", "aging": "0s"})
	old := w.Submit("a", 9, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate = j.Submitted.Add(time.Hour), true, time.Minute
	})
	isHigh := func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Priority = scheduler.PriorityHigh }
	high := w.Submit("a", 3, schedtest.R(1, 1, 1), isHigh)
	larger := w.Submit("a", 9, schedtest.R(1, 1, 1), isHigh) // without it nobody competes with high
	low := w.Submit("a", 1, schedtest.R(1, 1, 1))
	var got []scheduler.JobID
	for range 22 {
		d := w.Cycle(p)
		for i := range d.Actions {
			if d.Actions[i].Kind == scheduler.ActPlace {
				got = append(got, d.Actions[i].Task.Job)
			}
		}
		w.Start()
		w.Advance(20 * time.Second)
		for _, a := range w.Attempts() {
			w.End(a, scheduler.OutcomeSucceeded)
		}
	}
	for i, id := range got {
		inTurn := id == low
		switch {
		case i < 9:
			inTurn = id == old
		case i < 21:
			inTurn = id == high || id == larger
		}
		if !inTurn {
			t.Fatalf("order %v: want 9 of %d, 12 of %d and %d, then %d", got, old, high, larger, low)
		}
	}
	if len(got) != 22 {
		t.Fatalf("%d tasks were placed, want 22", len(got))
	}
	if _, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: old}); ok {
		t.Error("a deadline job is in a queue")
	}
	if n, ok := w.State.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: high}); !ok || n.Value < 2 {
		t.Errorf("a job that had 60 s of service is in queue %d", n.Value)
	}
}

// More jobs than the queues read in one decision wait for the next ones, which are
// requested, as not examined; none is left in the end.
func TestQueuesOfVeryManyJobsAreReadInParts(t *testing.T) {
	for _, name := range []string{"las_mq", "3dsf"} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(4, schedtest.R(10_000, 10_000, 10_000)).AddTenants("a")
			const jobs = 20_000
			for range jobs {
				w.Submit("a", 1, schedtest.R(1, 1, 1))
			}
			p, placed, decisions := mustNew(t, name, nil), 0, 0
			for ; placed < jobs && decisions < 20; decisions++ {
				d, err := scheduler.Cycle(w.State, p, w.Now, jobs, scheduler.AcceptAll)
				if err != nil {
					t.Fatal(err)
				}
				placed += len(d.Actions)
				for i := range d.Waiting {
					if d.Waiting[i].Reason != scheduler.ReasonNotExamined {
						t.Fatalf("%s", d.Waiting[i].String())
					}
				}
				if placed < jobs && d.Wake == 0 {
					t.Fatal("no further decision is requested")
				}
				w.Advance(time.Millisecond)
			}
			if placed != jobs || decisions < 2 {
				t.Errorf("%d of %d tasks are placed after %d decisions", placed, jobs, decisions)
			}
		})
	}
}

package threedsf

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// laneJobSpec is a job with a deadline, in seconds from its submission, whose tasks are predicted to take run.
type laneJobSpec struct{ tasks, deadline, run int }

func (x laneJobSpec) submit(w *schedtest.World, accepted bool) scheduler.JobID {
	return w.Submit("a", int32(x.tasks), schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate = j.Submitted.Add(time.Duration(x.deadline)*time.Second), accepted, time.Duration(x.run)*time.Second
	})
}

// 3DSF 7.1: a has 180 s and runs 100 s, so 80 s of slack; b has 600 s and runs 550 s, so 50 s. EMWTF serves b first,
// EDF a. Jobs of equal keys are served in order of submission, and a job that cannot end in time leaves the lane.
func TestOrderOfTheDeadlineLane(t *testing.T) {
	a, b := laneJobSpec{1, 180, 100}, laneJobSpec{1, 600, 550}
	for name, x := range map[string]struct {
		order deadline.Order
		jobs  []laneJobSpec
		want  []scheduler.JobID
	}{
		"EMWTF":                           {deadline.EMWTF, []laneJobSpec{a, b}, []scheduler.JobID{2, 1}},
		"EDF":                             {deadline.EDF, []laneJobSpec{a, b}, []scheduler.JobID{1, 2}},
		"equal slack":                     {deadline.EMWTF, []laneJobSpec{{1, 60, 10}, {1, 70, 20}, {1, 55, 5}}, []scheduler.JobID{1, 2, 3}},
		"equal deadlines":                 {deadline.EDF, []laneJobSpec{{1, 60, 10}, {1, 60, 50}}, []scheduler.JobID{1, 2}},
		"tasks side by side are one wave": {deadline.EMWTF, []laneJobSpec{{9, 60, 20}, {1, 60, 30}}, []scheduler.JobID{2, 1}},
		"no slack at all":                 {deadline.EMWTF, []laneJobSpec{{1, 60, 60}, {1, 60, 59}}, []scheduler.JobID{1, 2}},
		"one is infeasible":               {deadline.EMWTF, []laneJobSpec{{1, 60, 10}, {1, 60, 61}}, []scheduler.JobID{1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 10)).AddTenants("a")
			for _, j := range x.jobs {
				j.submit(w, false)
			}
			p := New(Config{Name: "pdsonqueue", Level: drf.Largest, Resources: 3, Deadlines: true, AllDeadlines: true, Order: x.order, Preempt: deadline.None})
			p.begin(w.State, w.Now, 100)
			p.beginPass()
			p.deadlines.build()
			var got []scheduler.JobID
			for _, l := range p.deadlines.jobs {
				got = append(got, l.job.Spec.ID)
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("the lane serves %v, want %v", got, x.want)
			}
			for i := range x.jobs {
				id := scheduler.JobID(i + 1)
				if infeasible := w.State.Job(id).HasState(scheduler.InfeasibleState); infeasible == slices.Contains(x.want, id) {
					t.Errorf("job %d is recorded as infeasible: %v", id, infeasible)
				}
			}
		})
	}
}

// In random worlds the lane has the accepted jobs with ready work that can end in time, by latest start or deadline, and
// requests a cycle when the first of them cannot any more.
func TestLaneEqualsSort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.New(t).AddNodes(2, schedtest.R(4, 4, 10)).AddTenants("a")
		order := rapid.SampledFrom([]deadline.Order{deadline.EMWTF, deadline.EDF}).Draw(t, "order")
		type entry struct{ key, submitted, id int64 }
		var want []entry
		for range rapid.IntRange(0, 12).Draw(t, "jobs") {
			x := laneJobSpec{rapid.IntRange(0, 3).Draw(t, "tasks"), rapid.IntRange(1, 9).Draw(t, "deadline"), rapid.IntRange(1, 9).Draw(t, "run")}
			accepted := rapid.Bool().Draw(t, "accepted")
			id := x.submit(w, accepted)
			spec := &w.State.Job(id).Spec
			if accepted && x.tasks > 0 {
				e := entry{int64(spec.Deadline), int64(spec.Submitted), int64(id)}
				if order == deadline.EMWTF {
					e.key -= int64(x.run) * int64(time.Second)
				}
				want = append(want, e)
			}
			if rapid.Bool().Draw(t, "later") {
				w.Advance(time.Second)
			}
		}
		wake := int64(0)
		want = slices.DeleteFunc(want, func(e entry) bool {
			j := w.State.Job(scheduler.JobID(e.id))
			latest := int64(j.Spec.Deadline) - int64(j.Stages[0].Spec.Estimate)
			if latest < int64(w.Now) {
				return true
			}
			if wake == 0 || latest+1 < wake {
				wake = latest + 1
			}
			return false
		})
		slices.SortFunc(want, func(a, b entry) int {
			return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.submitted, b.submitted), cmp.Compare(a.id, b.id))
		})
		p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Deadlines: true, Order: order, Preempt: deadline.None})
		p.begin(w.State, w.Now, 100)
		p.beginPass()
		p.deadlines.build()
		var got []entry
		for _, l := range p.deadlines.jobs {
			got = append(got, entry{int64(l.key), int64(l.job.Spec.Submitted), int64(l.job.Spec.ID)})
		}
		if !slices.Equal(got, want) || int64(p.cycle.wake) != wake {
			t.Fatalf("the lane has %v and wakes at %d, want %v and %d", got, p.cycle.wake, want, wake)
		}
	})
}

// pdsonqueue serves all jobs with a deadline first, and freezes others for them.
func pdsonqueue() *Policy {
	return New(Config{Name: "pdsonqueue", Level: drf.Largest, Resources: 3, Deadlines: true, AllDeadlines: true, Order: deadline.EMWTF, Preempt: deadline.Suspend, MaxSuspended: time.Hour})
}

// busySlots is a node of 12 slots with regular tasks of unknown length, and some more that are free.
func busySlots(t schedtest.TB, free int) *schedtest.World {
	w := schedtest.New(t).AddNodes(1, schedtest.R(float64(12+free), 64, 0)).AddTenants("a")
	for range 12 {
		w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
	}
	return w.Start()
}

// A deadline stage without running tasks preempts for the fewest slots on which it ends in time:
// each slot runs floor(time left / run time) tasks.
func TestFewestSlotsAreFreed(t *testing.T) {
	seen := map[int]int{}
	rapid.Check(t, func(t *rapid.T) {
		x := laneJobSpec{rapid.IntRange(1, 9).Draw(t, "tasks"), rapid.IntRange(1, 60).Draw(t, "deadline"), rapid.IntRange(1, 20).Draw(t, "run")}
		w := busySlots(t, 0)
		x.submit(w, false)
		d := w.Cycle(pdsonqueue())
		want, got := 0, 0
		for x.run <= x.deadline && want*(x.deadline/x.run) < x.tasks { // otherwise it is infeasible
			want++
		}
		for i := range d.Actions {
			if d.Actions[i].Kind == scheduler.ActReserve {
				got++
			}
		}
		if got != want {
			t.Fatalf("%+v: %d slots are freed, want %d\n%s", x, got, want, d.String())
		}
		seen[want]++
	})
	if !t.Failed() && len(seen) < 3 {
		t.Errorf("too few different numbers of slots: %v", seen)
	}
}

// A deadline job that could end in time does, as long as tasks take what is predicted and enough others can be frozen,
// however many slots are free at first: no slot in which a task of its own runs is counted for one that must start before
// that ends.
func TestFeasibleDeadlineIsMet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		run := rapid.IntRange(1, 20).Draw(t, "run")
		x := laneJobSpec{rapid.IntRange(1, 9).Draw(t, "tasks"), run + rapid.IntRange(0, 40).Draw(t, "slack"), run}
		w := busySlots(t, rapid.IntRange(0, 9).Draw(t, "free"))
		p, j := pdsonqueue(), w.State.Job(x.submit(w, false))
		for g := j.Stages[0]; int(g.Done) < x.tasks; {
			wake := scheduler.Never
			for range 3 { // what is frozen is so at once
				if d := w.Cycle(p); d.Wake > 0 {
					wake = d.Wake
				}
				for _, a := range w.Start().Attempts() {
					if a.Phase == scheduler.AttemptSuspending {
						if err := w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			next := wake
			for a := range w.State.Attempts().In(g) {
				next = min(next, a.Placed.Add(time.Duration(x.run)*time.Second))
			}
			if w.Now = next; w.Now > j.Spec.Deadline {
				t.Fatalf("%+v: %d tasks have ended at the deadline", x, g.Done)
			}
			for _, a := range w.Attempts() {
				if a.ID.Job == j.Spec.ID && a.Placed.Add(time.Duration(x.run)*time.Second) <= w.Now {
					w.End(a, scheduler.OutcomeSucceeded)
				}
			}
		}
	})
}

// waitCase is a stage whose two tasks have 100 MiB of input on a full node, and whether the first of them waits for it
// (3DSF Alg. 4): if it is released sooner than the input moves, within the bound on waiting and, in the lane, within the
// slack.
type waitCase struct {
	release   time.Duration // until what runs there ends, 0 for unknown
	bandwidth int64         // MiB/s
	most      time.Duration // MaxLocalityWait
	since     time.Duration // how long it waits already
	latest    time.Duration // in the lane: its latest start, 0 for another lane
	want      bool
	until     time.Duration
}

func TestWaitOrMove(t *testing.T) {
	const s = time.Second
	for name, x := range map[string]waitCase{
		"released sooner":                    {release: 3 * s, bandwidth: 25, most: 5 * s, want: true, until: 5 * s}, // 100 MiB take 4 s
		"released as soon: it moves":         {release: 4 * s, bandwidth: 25, most: 5 * s},
		"released later":                     {release: 5 * s, bandwidth: 25, most: 5 * s},
		"a slow network":                     {release: 99 * s, bandwidth: 1, most: 5 * s, want: true, until: 5 * s},
		"never waits":                        {release: 3 * s, bandwidth: 25},
		"waits for some time":                {release: 3 * s, bandwidth: 25, most: 5 * s, since: 4 * s, want: true, until: 1 * s},
		"waited long enough":                 {release: 3 * s, bandwidth: 25, most: 5 * s, since: 5 * s},
		"no prediction: it may end now":      {bandwidth: 25, most: 5 * s, want: true, until: 5 * s},
		"the lane, its slack is longer":      {release: 3 * s, bandwidth: 25, most: 5 * s, latest: 9 * s, want: true, until: 5 * s},
		"the lane, its slack is shorter":     {release: 3 * s, bandwidth: 25, most: 5 * s, latest: 4 * s, want: true, until: 4 * s},
		"the lane, its slack ends with it":   {release: 3 * s, bandwidth: 25, most: 5 * s, latest: 3 * s, want: true, until: 3 * s},
		"the lane, its slack ends before it": {release: 3 * s, bandwidth: 25, most: 5 * s, latest: 2 * s},
	} {
		t.Run(name, func(t *testing.T) { x.check(t) })
	}
}

func (x *waitCase) check(t *testing.T) {
	w := schedtest.New(t).AddNodes(2, schedtest.R(1, 4, 10)).AddTenants("a")
	w.Now = w.Now.Add(time.Minute)
	w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = x.release })}, 1)
	w.Start()
	on := []scheduler.NodeID{1}
	g := w.State.Stage(scheduler.StageID{Job: w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 2,
		Demand: schedtest.R(1, 1, 0), Estimate: 10 * time.Second, Inputs: schedtest.Inputs(100*schedtest.MiB, on, on)}}, func(j *scheduler.JobSpec) {
		if x.latest > 0 { // two tasks on as many slots are one wave of 10 s
			j.Deadline = w.Now.Add(x.latest + 10*time.Second)
		}
	})})
	if x.since > 0 {
		state := scheduler.PolicyState{PolicyStateKey: waitStateKey(g), At: w.Now.Add(-x.since)}
		if err := w.State.PolicyStates().Apply([]scheduler.PolicyState{state}); err != nil {
			t.Fatal(err)
		}
	}
	c := newTestCycle(w, Config{Locality: true, Network: locality.Network{Bandwidth: x.bandwidth * schedtest.MiB}, MaxLocalityWait: x.most})
	waits := inputWaits{c: c}
	waits.begin()
	if got := waits.tryWaitForData(g, 0, x.latest > 0); got != x.want {
		t.Fatalf("waits: %v, want %v", got, x.want)
	}
	why := waits.of(g)
	waiting := why.waits
	if waiting != x.want || (x.want && (why.node != 1 || why.until != w.Now.Add(x.until) || why.since != w.Now.Add(-x.since))) {
		t.Errorf("waits (%v) for node %d since %v until %v, want node 1, %v and %v", waiting, why.node, why.since.Sub(w.Now), why.until.Sub(w.Now), -x.since, x.until)
	}
	if !x.want {
		return
	}
	if c.wake != why.until {
		t.Errorf("the cycle wakes at %d, want %d", c.wake, why.until)
	}
	if waits.tryWaitForData(g, 1, x.latest > 0) { // the first one takes the only slot for 10 s
		t.Error("the second task waits for the slot that the first one waits for")
	}
}

// Regular jobs are overdue if they had nothing for Aging times the number of ready stages, longest
// wait first; time advances in steps of Aging.
func TestOverdueJobsEqualScan(t *testing.T) {
	seed := seed.New(t)
	overdue, notYet, live := 0, 0, 0
	for round := range 60 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.NewChaos(t, r.Uint64())
		aging := time.Duration(1+r.IntN(4)) * time.Second
		for range 60 {
			w.Step()
			applyPossible(w)
			c := newTestCycle(w.World, Config{Aging: aging, Deadlines: true, PriorityOrder: true})
			l := overdueLane{c: c}
			step := w.Now - w.Now%scheduler.Time(aging)
			limit := aging * time.Duration(w.State.Queue().Ready())
			l.find(step, limit)
			var want, got []string
			for j := range w.State.Jobs() {
				since, running := j.Spec.Submitted, 0
				for _, g := range j.Stages {
					since = max(since, g.CountedUntil())
					for range w.State.Attempts().In(g) {
						running++
					}
				}
				inLane := j.Spec.Deadline > 0 && j.IsAccepted()
				switch {
				case inLane || j.Ready == 0 || !l.isUnderCaps(j):
				case running > 0:
					live++
				case step.Sub(since) < limit:
					notYet++
				default:
					overdue++
					want = append(want, fmt.Sprintf("%020d %020d", since, j.Spec.ID))
				}
			}
			slices.Sort(want)
			for _, o := range l.jobs {
				got = append(got, fmt.Sprintf("%020d %020d", o.since, o.job.Spec.ID))
			}
			w.State.Journal().Rollback(c.mark)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, round %d: overdue are %v, want %v", seed, round, got, want)
			}
		}
	}
	if t.Logf("%d times overdue, %d times not yet, %d times something was live", overdue, notYet, live); min(overdue, notYet, live) < 50 {
		t.Error("too few cases of a kind for a meaningful test")
	}
}

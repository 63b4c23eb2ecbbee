package forecast

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// occupy lets a job of one task run on a node.
func occupy(w *schedtest.World, node scheduler.NodeID, d scheduler.Resources, run time.Duration) scheduler.JobID {
	id := w.Submit("a", 1, d, func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = run })
	w.Place(scheduler.TaskID{Job: id}, node)
	return id
}

// due is a query for a job with a deadline that may preempt.
func due(in time.Duration, tasks int32, d scheduler.Resources) Query {
	q := Query{Job: scheduler.JobSpec{Deadline: scheduler.Time(in)}, Stages: oneStage(tasks, 10*time.Second), Preempt: true}
	q.Stages[0].Demand = d
	return q
}

// PDSonQueue Alg. 5 by hand: a deadline job whose tasks take 10 s meets two nodes of two cores that are full. It takes as few
// slots as let it end in time, and each only if it cannot wait for one.
func TestDeadlineJobsPreemptByHand(t *testing.T) {
	all, frozen, none := scheduler.AllLevels, scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen), scheduler.Levels(scheduler.LevelRunning)
	core := schedtest.R(1, 1, 1)
	for what, c := range map[string]struct {
		levels scheduler.LevelSet
		first  time.Duration // run time of the first of the four tasks; the others take 60 s
		memory float64       // of each of the four, GiB; a node has 100
		q      Query
		want   time.Duration
	}{
		"it waits while it can":                               {all, 60 * time.Second, 1, due(time.Hour, 1, core), 70 * time.Second},
		"it preempts if nothing ends before its latest start": {all, 60 * time.Second, 1, due(20*time.Second, 1, core), 10 * time.Second},
		"it waits for the first end on a node":                {all, 5 * time.Second, 1, due(20*time.Second, 1, core), 15 * time.Second},
		"but not for one that frees too little":               {all, 5 * time.Second, 1, due(20*time.Second, 1, schedtest.R(2, 1, 1)), 10 * time.Second},
		"two slots, if one after the other is too late":       {all, 60 * time.Second, 1, due(15*time.Second, 2, core), 10 * time.Second},
		"one slot, if one after the other is in time":         {all, 60 * time.Second, 1, due(25*time.Second, 2, core), 20 * time.Second},
		"nothing on nodes that suspend nothing":               {none, 60 * time.Second, 1, due(20*time.Second, 1, core), 70 * time.Second},
		"frozen tasks make place for CPU":                     {frozen, 60 * time.Second, 1, due(20*time.Second, 1, core), 10 * time.Second},
		"and keep their memory":                               {frozen, 60 * time.Second, 50, due(20*time.Second, 1, schedtest.R(1, 50, 1)), 70 * time.Second},
		"which swapped ones do not":                           {all, 60 * time.Second, 50, due(20*time.Second, 1, schedtest.R(1, 50, 1)), 10 * time.Second},
	} {
		w := schedtest.New(t).AddTenants("a")
		for id := range scheduler.NodeID(2) {
			n := schedtest.NodeSpec(id, "/r1", schedtest.R(2, 100, 100))
			n.Levels = c.levels
			if err := w.State.Events().AddNode(n); err != nil {
				t.Fatal(err)
			}
		}
		run := c.first
		for i := range scheduler.NodeID(4) {
			occupy(w, i/2, schedtest.R(1, c.memory, 1), run)
			run = 60 * time.Second
		}
		if got := mustQuote(t, w, c.q).EndQuantile(1); got != w.Now.Add(c.want) {
			t.Errorf("%s: after %v, want %v", what, got.Sub(w.Now), c.want)
		}
	}
}

// The newest task is suspended, and resumes when the deadline job has ended.
func TestTheNewestTaskIsSuspended(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 100, 100)).AddTenants("a")
	older := occupy(w, 0, schedtest.R(1, 1, 1), 60*time.Second)
	newer := occupy(w, 0, schedtest.R(1, 1, 1), 60*time.Second)
	urgent := w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(20*time.Second), true, 10*time.Second
	})
	checkEnds(t, w, map[scheduler.JobID]time.Duration{older: 60 * time.Second, newer: 70 * time.Second, urgent: 10 * time.Second})
}

// checkEnds compares when jobs are expected to end, with preemption, after now.
func checkEnds(t *testing.T, w *schedtest.World, want map[scheduler.JobID]time.Duration) {
	t.Helper()
	var p Forecaster
	got, err := p.Expect(w.State, Query{Preempt: true}, w.Now, 0)
	if err != nil {
		t.Fatal(err)
	}
	for job, after := range want {
		if got.Ends[job] != w.Now.Add(after) {
			t.Errorf("job %d is expected to end after %v, want %v", job, got.Ends[job].Sub(w.Now), after)
		}
	}
}

// A job with an infeasible deadline is served last in its tenant, but its tasks are no victims before newer ones of low priority.
func TestInfeasibleTasksAreVictimsAsOthersAre(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(2, 100, 100)).AddTenants("a")
	older := submitDue(w, 1, time.Hour, 60*time.Second)
	w.Place(scheduler.TaskID{Job: older}, 0)
	markInfeasible(t, w, older)
	newer := occupy(w, 0, schedtest.R(1, 1, 1), 60*time.Second)
	urgent := submitDue(w, 1, 20*time.Second, 10*time.Second)
	checkEnds(t, w, map[scheduler.JobID]time.Duration{older: 60 * time.Second, newer: 70 * time.Second, urgent: 10 * time.Second})
}

// However many tasks run, no more follow them than wait: the sum over all of them is larger than an int32.
func TestServedByRunningIsAtMostWhatWaits(t *testing.T) {
	w := &jobState{spec: &scheduler.JobSpec{Deadline: scheduler.Time(time.Hour)}, stages: []stageState{{spec: &scheduler.StageSpec{Estimate: time.Millisecond}, waiting: 1 << 20}}}
	var p Forecaster
	for range 1 << 11 {
		p.queue = append(p.queue, &taskState{job: w})
	}
	if n := p.servedByRunning(w, &w.stages[0]); n != 1<<20 {
		t.Errorf("%d of %d waiting tasks can follow running ones", n, 1<<20)
	}
}

// An attempt that has run longer than any error allows ends later than now.
func TestOverrunTasksEndAfterNow(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(1, 100, 100)).AddTenants("a")
	occupy(w, 0, schedtest.R(1, 1, 1), 30*time.Second)
	w.Start().Advance(40 * time.Second)
	got := mustQuote(t, w, Query{Stages: oneStage(1, 10*time.Second)})
	if first, last := got.EndQuantile(0), got.EndQuantile(1); first <= w.Now.Add(10*time.Second) || last > w.Now.Add(50*time.Second) {
		t.Errorf("it ends %v to %v from now, want more than 10 s and at most 50 s", first.Sub(w.Now), last.Sub(w.Now))
	}
}

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
	"github.com/drover-run/drover/scheduler/schedtest"
)

// suspendedWorld is a node with suspended and running tasks.
type suspendedWorld struct {
	*schedtest.World
	jobs []*scheduler.Job // of one task each, in order of suspension
}

func newSuspendedWorld(t *testing.T, demands ...scheduler.Resources) *suspendedWorld {
	w := &suspendedWorld{World: schedtest.New(t).AddNodes(2, schedtest.R(4, 8, 100)).AddTenants("a")}
	for _, d := range demands {
		j := w.State.Job(w.Submit("a", 1, d))
		a := w.Place(scheduler.TaskID{Job: j.Spec.ID}, 0)
		w.Start().Advance(time.Second)
		act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: scheduler.LevelSwapped}
		if err := w.State.Apply(&act, w.Now); err != nil {
			t.Fatal(err)
		}
		if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelSwapped, scheduler.Footprint{Swap: d[scheduler.Memory]}, w.Now); err != nil {
			t.Fatal(err)
		}
		w.jobs = append(w.jobs, j)
	}
	return w
}

// resumed returns the jobs whose tasks a decision resumes, and those that it reserves capacity for.
func resumed(w *schedtest.World, d *scheduler.Decision) (resumes, reserves []scheduler.JobID) {
	for i := range d.Actions {
		switch a := &d.Actions[i]; a.Kind {
		case scheduler.ActResume:
			resumes = append(resumes, a.Task.Job)
		case scheduler.ActReserve:
			reserves = append(reserves, a.Reservation.Job)
		}
	}
	return resumes, reserves
}

// Suspended tasks resume in the order of their suspension where they fit. After half of MaxSuspended capacity is reserved on each node for the
// first that does not fit, ahead of deadline jobs and of those suspended later.
func TestSuspendedTasksResumeInOrder(t *testing.T) {
	one, two, four := schedtest.R(1, 1, 0), schedtest.R(2, 2, 0), schedtest.R(4, 4, 0)
	type jobs = []scheduler.JobID
	for name, x := range map[string]struct {
		suspended []scheduler.Resources
		busy      float64       // cores of the node that others use
		after     time.Duration // since the last suspension
		stop      scheduler.JobID
		resumes   jobs
		reserves  jobs
	}{
		"all fit":                           {[]scheduler.Resources{one, two}, 0, 0, 0, jobs{1, 2}, nil},
		"the first fits":                    {[]scheduler.Resources{two, two}, 1, 0, 0, jobs{1}, nil},
		"the second fits alone":             {[]scheduler.Resources{four, one}, 2, 0, 0, jobs{2}, nil},
		"none fits":                         {[]scheduler.Resources{four, four}, 1, 0, 0, nil, nil},
		"none fits yet, just not half":      {[]scheduler.Resources{four, four}, 1, 14*time.Second - 1, 0, nil, nil},
		"none fits for half of the time":    {[]scheduler.Resources{four, four}, 1, 14 * time.Second, 0, nil, jobs{1}},
		"the second waits for the first":    {[]scheduler.Resources{four, one}, 3, 20 * time.Second, 0, nil, jobs{1}},
		"one fits, one is reserved for":     {[]scheduler.Resources{one, four}, 3, 20 * time.Second, 0, jobs{1}, jobs{2}},
		"the job of the first is stopped":   {[]scheduler.Resources{four, four}, 1, 20 * time.Second, 1, nil, jobs{2}},
		"a stopped job does not resume":     {[]scheduler.Resources{one, one}, 0, 0, 1, jobs{2}, nil},
		"the first one fits, the next not":  {[]scheduler.Resources{four, one}, 0, 20 * time.Second, 0, jobs{1}, jobs{2}},
		"the first for which it is not yet": {[]scheduler.Resources{four}, 1, 14 * time.Second, 0, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			w := newSuspendedWorld(t, x.suspended...)
			if x.busy > 0 {
				w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(x.busy, 1, 0))}, 0)
				w.Start()
			}
			if x.stop != 0 {
				if err := w.State.Events().StopJob(x.stop); err != nil {
					t.Fatal(err)
				}
			}
			w.Advance(x.after)
			p := New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, Deadlines: true, Order: deadline.EMWTF, Preempt: deadline.Suspend, MaxSuspended: 30 * time.Second})
			d := w.Cycle(p)
			if resumes, reserves := resumed(w.World, &d); !slices.Equal(resumes, x.resumes) || !slices.Equal(reserves, x.reserves) {
				t.Errorf("it resumes %v and reserves for %v, want %v and %v\n%s", resumes, reserves, x.resumes, x.reserves, d.String())
			}
		})
	}
}

// A deadline job of three cores on nodes of four, and its victims (Alg. 5, 3DSF 7.3): low priority
// before high, the same dominant resource before others, the newest first, never a deadline job;
// and none if running tasks end before its slack is over, or if it fits.
func TestWhoIsPreempted(t *testing.T) {
	type task struct {
		cores, gib float64
		high, dead bool
		estimate   time.Duration
	}
	cpu := func(cores float64) task { return task{cores: cores, gib: 0.5} }
	for name, x := range map[string]struct {
		running []task // the oldest first, on one node of <4, 8>
		slack   time.Duration
		mode    deadline.Mode
		want    []scheduler.JobID // the jobs of running, from 1 on
	}{
		"the newest of two":                {[]task{cpu(3), cpu(1)}, time.Minute, deadline.Suspend, []scheduler.JobID{1}}, // one suffices
		"a larger one spares the newest":   {[]task{cpu(2), cpu(1), cpu(1)}, time.Minute, deadline.Suspend, []scheduler.JobID{2, 1}},
		"the newest first":                 {[]task{cpu(1), cpu(1), cpu(2)}, time.Minute, deadline.Suspend, []scheduler.JobID{3, 2}},
		"low before high":                  {[]task{cpu(2), {cores: 1, gib: 0.5, high: true}, cpu(1)}, time.Minute, deadline.Suspend, []scheduler.JobID{3, 1}},
		"high if low is not enough":        {[]task{{cores: 3, gib: 0.5, high: true}, cpu(1)}, time.Minute, deadline.Suspend, []scheduler.JobID{1}},
		"the same resource before others":  {[]task{cpu(3), {cores: 1, gib: 6}}, time.Minute, deadline.Suspend, []scheduler.JobID{1}},
		"others, too":                      {[]task{cpu(2), {cores: 2, gib: 6}}, time.Minute, deadline.Suspend, []scheduler.JobID{1, 2}},
		"never a deadline job":             {[]task{{cores: 3, gib: 0.5, dead: true}, cpu(1)}, time.Minute, deadline.Suspend, nil},
		"nobody with mode none":            {[]task{cpu(3), cpu(1)}, time.Minute, deadline.None, nil},
		"killed with mode kill":            {[]task{cpu(3), cpu(1)}, time.Minute, deadline.Kill, []scheduler.JobID{1}},
		"it fits":                          {[]task{cpu(1)}, time.Minute, deadline.Suspend, nil},
		"what ends in time":                {[]task{{cores: 3, gib: 0.5, estimate: 20 * time.Second}}, time.Minute, deadline.Suspend, nil},
		"what ends just in time":           {[]task{{cores: 3, gib: 0.5, estimate: time.Minute}}, time.Minute, deadline.Suspend, nil},
		"what ends after the slack":        {[]task{{cores: 3, gib: 0.5, estimate: time.Minute + 1}}, time.Minute, deadline.Suspend, []scheduler.JobID{1}},
		"the next to end frees too little": {[]task{{cores: 2, gib: 0.5, estimate: time.Hour}, {cores: 1, gib: 0.5, estimate: time.Second}}, time.Minute, deadline.Suspend, []scheduler.JobID{1}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
			began := w.Now
			for i, r := range x.running {
				w.Now = began.Add(time.Duration(i))
				id := w.Submit("a", 1, schedtest.R(r.cores, r.gib, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
					if g.Estimate = r.estimate; r.high {
						j.Priority = scheduler.PriorityHigh
					}
					if r.dead {
						j.Deadline, j.AcceptedByQuote = w.Now.Add(time.Hour), true
					}
				})
				w.Place(scheduler.TaskID{Job: id}, 0)
				w.Start()
			}
			w.Now = began
			w.Submit("a", 1, schedtest.R(3, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				j.Deadline, j.AcceptedByQuote, g.Estimate = began.Add(x.slack+10*time.Second), true, 10*time.Second
			})
			d := w.Cycle(New(Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Deadlines: true, Order: deadline.EMWTF, Preempt: x.mode, MaxSuspended: time.Hour}))
			var got []scheduler.JobID
			for i := range d.Actions {
				if k := d.Actions[i].Kind; k == scheduler.ActSuspend && x.mode == deadline.Suspend || k == scheduler.ActKill && x.mode == deadline.Kill {
					got = append(got, d.Actions[i].Task.Job)
				}
			}
			if !slices.Equal(got, x.want) {
				t.Errorf("%v are preempted, want %v\n%s", got, x.want, d.String())
			}
		})
	}
}

// What preemption frees is for whom it was freed: a node is open to others just if they fit beside it, which going through the reservations
// confirms; the best open node is the fullest of the first eight.
func TestOpenNodesEqualScan(t *testing.T) {
	seed := seed.New(t)
	closed, open := 0, 0
	for round := range 400 {
		w := newFinderWorld(t, rand.New(rand.NewPCG(seed, uint64(round))))
		o := &w.p.open
		for _, g := range w.stages {
			var candidates []scheduler.NodeID
			for _, id := range w.allNodes() {
				want := w.isOpen(g, id)
				if got := o.canPlaceOn(g, id); got != want {
					t.Fatalf("seed %d, round %d: node %d is open to %s: %v, want %v", seed, round, id, g.ID(), got, want)
				}
				if want {
					candidates = append(candidates, id)
					open++
				} else if w.State.Cluster().HasCapacity(g, id) {
					closed++
				}
			}
			got, _ := o.bestOpenNode(g)
			if (got == scheduler.NoNode) != (len(candidates) == 0) || (got != scheduler.NoNode && !slices.Contains(candidates, got)) {
				t.Fatalf("seed %d, round %d: node %d is the best for %s of %v", seed, round, got, g.ID(), candidates)
			}
			if first, _ := w.State.Cluster().BestNode(g, nil); got != scheduler.NoNode && !slices.Contains(candidates, first) {
				least := slices.MinFunc(candidates[:min(len(candidates), bestNodeCandidates)], func(a, b scheduler.NodeID) int {
					return compareFree(w.State.Node(a), w.State.Node(b))
				})
				if got != least {
					t.Fatalf("seed %d, round %d: node %d is the best for %s, want %d of %v", seed, round, got, g.ID(), least, candidates)
				}
			}
		}
		w.State.Journal().Rollback(w.p.cycle.mark)
	}
	if t.Logf("%d times open, %d times closed by a reservation", open, closed); min(open, closed) < 100 {
		t.Error("too few cases of a kind for a meaningful test")
	}
}

// compareFree compares two nodes by the sum of their free fractions, ties by id.
func compareFree(a, b *scheduler.Node) int {
	sum := func(n *scheduler.Node) (s float64) {
		for r, c := range n.Spec.Capacity {
			if c > 0 {
				s += float64(n.Free[r]) / float64(c)
			}
		}
		return s
	}
	switch x, y := sum(a), sum(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return int(a.Spec.ID - b.Spec.ID)
}

package policies

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

func TestReservingPoliciesConform(t *testing.T) {
	for _, info := range table {
		if !slices.ContainsFunc(info.Params, func(p Param) bool { return p.Name == reserveParam.Name }) {
			continue
		}
		t.Run(info.Name, func(t *testing.T) {
			reserving := func() scheduler.Policy { return mustNew(t, info.Name, map[string]string{"reserve": "true"}) }
			policytest.Run(t, reserving)
			if info.Name != "las_mq" && info.Name != "3dsf" { // their wake may be an estimate: when a job is demoted, as seen when it was last looked at
				policytest.RunOverTime(t, reserving)
			}
		})
	}
}

// Two nodes of two slots are full of small tasks, one of which ends every second
// while more wait. The first task in the queue needs both slots of a node: without a
// reserved node it is passed over for ever.
func TestReserveStartsLargeTask(t *testing.T) {
	for _, name := range []string{"fifo", "3dsf", "drf", "pdsonqueue"} {
		for reserve, starts := range map[string]bool{"false": false, "true": true} {
			w := schedtest.New(t).AddNodes(2, schedtest.R(2, 8, 10)).AddTenants("a", "b")
			p := mustNew(t, name, map[string]string{"reserve": reserve})
			w.Submit("a", 4, schedtest.R(1, 1, 0))
			w.Cycle(p)
			large := w.Submit("a", 1, schedtest.R(2, 1, 0))
			w.Submit("b", 100, schedtest.R(1, 1, 0))
			for range 20 {
				w.Start().Advance(time.Second)
				w.End(oldestAttempt(w), scheduler.OutcomeSucceeded)
				w.Cycle(p)
			}
			g := w.State.Job(large).Stages[0]
			if got := g.Running > 0 || g.Done > 0; got != starts {
				t.Errorf("%s, reserve %s: the large task starts: %v", name, reserve, got)
			}
		}
	}
}

// No node is reserved for tasks with a guarantee reservation: a smaller guaranteed
// task that ends before it starts on what an early end freed, and the large task
// starts in time.
func TestNoNodeIsReservedForPlannedTasks(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 10)).AddTenants("a")
	p := mustNew(t, "3dsf", map[string]string{"sf": "0"})
	submit := func(id scheduler.ProjectID, cores float64, bound time.Duration) *scheduler.Stage {
		if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: id, Name: "p", Tenant: w.Tenant("a").Spec.ID, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
			t.Fatal(err)
		}
		j := w.Submit("a", 1, schedtest.R(cores, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project, j.Bound = id, bound })
		w.Cycle(p)
		return w.State.Job(j).Stages[0]
	}
	submit(1, 3, time.Minute)
	submit(2, 1, time.Minute)
	large, small := submit(3, 4, time.Minute), submit(4, 1, 30*time.Second)
	if large.Running+small.Running > 0 {
		t.Fatal("the large task fitted")
	}
	w.Start().Advance(5 * time.Second)
	w.End(w.Attempts()[1], scheduler.OutcomeSucceeded)
	if w.Cycle(p); small.Running != 1 || large.Running != 0 {
		t.Errorf("%d small and %d large tasks run, want 1 and 0", small.Running, large.Running)
	}
	w.Start().Advance(58 * time.Second)
	for _, a := range w.Attempts() {
		w.End(a, scheduler.OutcomeSucceeded)
	}
	if w.Cycle(p); large.Running != 1 {
		t.Error("the large task does not start in time")
	}
}

// A node of four cores runs a task of three; the next task needs four and reserves
// the node. What may start on the remaining core?
func TestBackfillOnReservedNode(t *testing.T) {
	for name, c := range map[string]struct {
		running, large, small time.Duration // bounds, 0 for none
		needs                 float64       // cores of the large one
		starts                int32
	}{
		"ends before the node is free":            {time.Minute, 0, 50 * time.Second, 4, 1},
		"ends when the node is free":              {time.Minute, 0, time.Minute, 4, 1},
		"ends later: no":                          {time.Minute, 0, 61 * time.Second, 4, 0},
		"may run for ever: no":                    {time.Minute, time.Minute, 0, 4, 0},
		"leaves too little, may run for ever: no": {time.Minute, 0, 0, 3.5, 0},
		"fits beside the large task":              {time.Minute, 0, 0, 3, 1},
		"unknown when the node is free: no":       {0, time.Minute, time.Second, 4, 0},
		"unknown, large task needs all: no":       {0, time.Minute, 0, 4, 0},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 10)).AddTenants("a")
			newPolicy := func() scheduler.Policy {
				return mustNew(t, "3dsf", map[string]string{"regular_order": "fcfs"})
			}
			p := newPolicy()
			submit := func(cores float64, bound time.Duration) *scheduler.Stage {
				j := w.Submit("a", 1, schedtest.R(cores, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
				return w.State.Job(j).Stages[0]
			}
			submit(3, c.running)
			w.Cycle(p)
			w.Start()
			large := submit(c.needs, c.large)
			small := submit(1, c.small)
			policytest.Round(t, w.State, p, newPolicy, w.Now, 100)
			if large.Running != 0 || small.Running != c.starts {
				t.Errorf("%d large and %d small tasks run, want 0 and %d", large.Running, small.Running, c.starts)
			}
		})
	}
}

// EASY's guarantee under random jobs of one tenant that end within their bounds: the
// first in the queue starts no later than the bounds allowed when it became first,
// whatever starts behind it.
func TestReservingTaskIsNotDelayed(t *testing.T) {
	behind := 0
	first := seed.New(t)
	for i := range uint64(200) {
		seed := first + i
		r := rand.New(rand.NewPCG(seed, 1))
		w := schedtest.New(t).AddNodes(1+r.IntN(4), schedtest.R(4, 8, 100)).AddTenants("a")
		p := mustNew(t, "drf", map[string]string{"reserve": "true"})
		ends := map[scheduler.JobID]scheduler.Time{}
		latest := map[scheduler.JobID]scheduler.Time{}
		for range 120 {
			for range r.IntN(3) {
				bound := time.Duration(1+r.IntN(30)) * time.Second
				if r.IntN(8) == 0 {
					bound = 0
				}
				w.Submit("a", 1, schedtest.R(float64(1+r.IntN(4)), float64(1+r.IntN(8)), float64(r.IntN(80))), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = bound })
			}
			first, _ := w.State.Queue().Next(0)
			for _, a := range w.Attempts() {
				if ends[a.ID.Job] <= w.Now {
					w.End(a, scheduler.OutcomeSucceeded)
				}
			}
			w.Cycle(p)
			w.Start()
			for _, a := range w.Attempts() {
				id := a.ID.Job
				if _, known := ends[id]; known {
					continue
				}
				bound := w.State.Job(id).Spec.Bound
				if bound == 0 {
					bound = time.Minute
				}
				ends[id] = w.Now.Add(time.Duration(1+r.IntN(int(bound/time.Second))) * time.Second)
				if at, was := latest[id]; was && w.Now > at {
					t.Fatalf("seed %d: job %d, first in the queue, could have started at %d and started at %d", seed, id, at, w.Now)
				}
				if first != nil && id > first.Spec.ID && first.Ready > 0 {
					behind++
				}
			}
			if j, _ := w.State.Queue().Next(0); j != nil {
				if _, known := latest[j.Spec.ID]; !known {
					latest[j.Spec.ID] = earliestCapacity(w, j.Stages[0])
				}
			}
			w.Advance(time.Second)
		}
	}
	if behind == 0 {
		t.Error("no task was ever backfilled")
	}
	t.Logf("%d tasks backfilled", behind)
}

// earliestCapacity returns the first second at which, by the bounds, a task fits on
// some node.
func earliestCapacity(w *schedtest.World, g *scheduler.Stage) scheduler.Time {
	for at := w.Now; at < w.Now.Add(time.Minute); at = at.Add(time.Second) {
		for _, n := range w.State.Nodes() {
			free, io := n.Free, n.Disks[0].FreeIO
			for a := range w.State.Attempts().On(n.Spec.ID) {
				if bound := w.State.StageOf(a).Job.Spec.Bound; bound > 0 && a.Placed.Add(bound) <= at {
					free, io = free.Add(a.Occupied.Resources), io+a.Occupied.Resources[scheduler.IO]
				}
			}
			if d := g.Spec.Demand; d[scheduler.CPU] <= free[scheduler.CPU] && d[scheduler.Memory] <= free[scheduler.Memory] && d[scheduler.IO] <= io {
				return at
			}
		}
	}
	return scheduler.Never
}

// oldestAttempt returns the attempt with the lowest id.
func oldestAttempt(w *schedtest.World) *scheduler.Attempt {
	var first *scheduler.Attempt
	for _, a := range w.Attempts() {
		if first == nil || a.ID.Compare(first.ID) < 0 {
			first = a
		}
	}
	return first
}

// No node is reserved for tasks that none of its disks could hold or serve, while the only one that could drains.
func TestNoNodeIsReservedWithoutADiskForTheTask(t *testing.T) {
	for need, change := range map[string]func(*scheduler.StageSpec){
		"space":            func(g *scheduler.StageSpec) { g.Disk = 60 * schedtest.GiB },
		"I/O of one disk":  func(g *scheduler.StageSpec) { g.Demand[scheduler.IO] = 60 * schedtest.MiB },
		"both on one disk": func(g *scheduler.StageSpec) { g.Demand[scheduler.IO], g.Disk = 60*schedtest.MiB, 10*schedtest.GiB },
	} {
		for _, policy := range []string{"3dsf", "drf", "pdsonqueue", "fifo"} {
			t.Run(need+"/"+policy, func(t *testing.T) {
				w := schedtest.New(t).AddTenants("a", "b")
				for id := range scheduler.NodeID(3) {
					spec := schedtest.NodeSpec(id, "/r1", schedtest.R(4, 8, 100))
					small := scheduler.Disk{Name: "sda", IO: 50 * schedtest.MiB, Space: 50 * schedtest.GiB}
					if spec.Disks = []scheduler.Disk{small, small}; id == 2 {
						spec.Disks = []scheduler.Disk{{Name: "sda", IO: 100 * schedtest.MiB, Space: 100 * schedtest.GiB}}
					}
					if err := w.State.Events().AddNode(spec); err != nil {
						t.Fatal(err)
					}
				}
				if err := w.State.Events().SetDrain(2, true); err != nil {
					t.Fatal(err)
				}
				w.Submit("a", 4, schedtest.R(1, 1, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { change(g) })
				small := w.State.Job(w.Submit("b", 1, schedtest.R(3, 1, 0))).Stages[0] // its tenant is not the next one
				newPolicy := func() scheduler.Policy { return mustNew(t, policy, map[string]string{"reserve": "true"}) }
				policytest.Round(t, w.State, newPolicy(), newPolicy, w.Now, 100)
				if small.Running != 1 {
					t.Errorf("%d tasks run of the job that fits on each node, want 1", small.Running)
				}
			})
		}
	}
}

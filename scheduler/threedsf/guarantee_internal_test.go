package threedsf

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A task is let onto a node with guarantees just if Check, which shares no code with the policy, finds that they keep their
// capacity: the same cases in random worlds of nodes that can move tasks out of memory or cannot.
func TestGuaranteeCheckEqualsCheck(t *testing.T) {
	seed := seed.New(t)
	may, not, mayResume, notResume := 0, 0, 0, 0
	for round := range 600 {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		w := schedtest.New(t).AddTenants("a")
		spec := schedtest.NodeSpec(0, "/r1", schedtest.R(float64(4+r.IntN(6)), 12, 0))
		spec.Disks = nil
		for range 1 + r.IntN(2) {
			spec.Disks = append(spec.Disks, scheduler.Disk{Name: "d", IO: 40 * schedtest.MiB, Space: 6 * schedtest.GiB})
			spec.Capacity[scheduler.IO] += 40 * schedtest.MiB
		}
		if r.IntN(4) > 0 {
			spec.Levels = 0
		}
		if err := w.State.Events().AddNode(spec); err != nil {
			t.Fatal(err)
		}
		submit := func(accepted bool) *scheduler.Stage {
			return w.State.Job(w.Submit("a", 1, schedtest.R(float64(1+r.IntN(3)), float64(1+r.IntN(4)), float64(r.IntN(30))), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if g.Disk = int64(r.IntN(3)) * schedtest.GiB; r.IntN(3) > 0 {
					j.Bound = time.Duration(1+r.IntN(40)) * time.Second
				}
				if accepted {
					j.Deadline, j.AcceptedByQuote = w.Now.Add(time.Hour), true
				}
			})).Stages[0]
		}
		for range r.IntN(5) {
			g := submit(r.IntN(3) == 0)
			if disk, ok := w.State.Node(0).Fits(g.Spec.Demand, g.Spec.Disk); ok {
				a := w.State.Attempts().PlaceAction(g, 0, 0, disk)
				if err := w.State.Apply(&a, w.Now); err != nil {
					t.Fatal(err)
				}
			}
		}
		w.Start().Advance(time.Duration(1+r.IntN(20)) * time.Second)
		freezeSome(w, r)
		for id := range scheduler.ReservationID(1 + r.IntN(3)) {
			g := submit(false)
			x := scheduler.Reservation{ID: id + 1, Kind: scheduler.ReserveDeadline, Job: g.Job.Spec.ID, OnDisk: -1, Demand: g.Spec.Demand, Disk: g.Spec.Disk,
				Start: w.Now.Add(time.Duration(r.IntN(40)-10) * time.Second)}
			x.End = x.Start.Add(time.Duration(1+r.IntN(40)) * time.Second)
			_ = w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: x}, w.Now) // refused if it has ended
		}
		var stages []*scheduler.Stage
		for range 8 {
			stages = append(stages, submit(r.IntN(4) == 0))
		}
		c := newTestCycle(w, Config{})
		check := guaranteeCheck{v: &c.view}
		for _, g := range stages {
			disk, ok := w.State.Node(0).Fits(g.Spec.Demand, g.Spec.Disk)
			if !ok {
				continue
			}
			got := check.honoursGuarantees(w.State.Node(0), g, g.Spec.Demand, g.Spec.Disk, disk, nil)
			if want := isGuaranteeKept(w, w.State.Attempts().PlaceAction(g, 0, 0, disk)); got != want {
				t.Fatalf("seed %d, round %d: stage %s may start: %v, Check says %v", seed, round, g.ID(), got, want)
			}
			if got {
				may++
			} else {
				not++
			}
		}
		for a := range w.State.Attempts().Suspended() {
			n, more := w.State.Node(0), a.Demand.Sub(a.Occupied.Resources)
			if !more.Fits(n.Free) || n.CanPreempt(w.State.StageOf(a).Job) || !w.State.Attempts().CanResume(a) {
				continue
			}
			got := check.honoursGuarantees(n, w.State.StageOf(a), more, a.DiskSpace-a.Occupied.Disk, a.Disk, a)
			if want := isGuaranteeKept(w, a.Act(scheduler.ActResume)); got != want {
				t.Fatalf("seed %d, round %d: %s may resume: %v, Check says %v", seed, round, a.ID, got, want)
			}
			if got {
				mayResume++
			} else {
				notResume++
			}
		}
	}
	if t.Logf("%d may start, %d may not; %d may resume, %d may not", may, not, mayResume, notResume); min(may, not) < 100 || min(mayResume, notResume) < 10 {
		t.Error("too few cases of a kind for a meaningful test")
	}
}

// isGuaranteeKept reports whether Check finds that an action leaves guarantees their capacity.
func isGuaranteeKept(w *schedtest.World, a scheduler.Action) bool {
	d := scheduler.Decision{At: w.Now, Actions: []scheduler.Action{a}}
	return !slices.ContainsFunc(scheduler.Check(w.State, &d, w.Now), func(v scheduler.Violation) bool { return v.Rule == scheduler.RuleGuarantee })
}

// freezeSome freezes some of the running attempts, and resumes some of these later.
func freezeSome(w *schedtest.World, r *rand.Rand) {
	must := func(err error) {
		if err != nil {
			w.Fatalf("%v", err)
		}
	}
	for _, a := range w.Attempts() {
		if r.IntN(3) > 0 {
			continue
		}
		freeze := a.Act(scheduler.ActSuspend)
		freeze.Level = scheduler.LevelFrozen
		must(w.State.ApplyFact(&freeze, w.Now)) // whether or not the node can
		must(w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}, w.Now))
		w.Advance(time.Duration(1+r.IntN(20)) * time.Second)
		resume := a.Act(scheduler.ActResume)
		if r.IntN(2) == 0 && w.State.Apply(&resume, w.Now) == nil {
			must(w.State.Events().AttemptResumed(a.ID, a.Run, w.Now))
			w.Advance(time.Duration(1+r.IntN(5)) * time.Second)
		}
	}
}

// planWorld is a cluster without faults whose tasks end by their bounds, in which jobs and projects request guarantees.
type planWorld struct {
	*schedtest.World
	r        *rand.Rand
	ends     map[scheduler.AttemptID]scheduler.Time
	projects scheduler.ProjectID
}

func (w *planWorld) submit() {
	bound := time.Duration(2+w.r.IntN(15)) * time.Second
	demand := func() scheduler.Resources {
		return schedtest.R(float64(1+w.r.IntN(4)), float64(1+w.r.IntN(6)), float64(w.r.IntN(40)))
	}
	stages := []scheduler.StageSpec{{Name: "s0", Kind: scheduler.KindGroup, Tasks: int32(1 + w.r.IntN(5)), Demand: demand(), Estimate: bound / 2}}
	for i := range w.r.IntN(3) {
		stages = append(stages, scheduler.StageSpec{Name: "s", Kind: scheduler.KindGroup, Tasks: int32(1 + w.r.IntN(3)), Demand: demand(), Estimate: bound / 2,
			Disk: int64(w.r.IntN(3)) * schedtest.GiB, After: []int32{int32(w.r.IntN(i + 1))}})
	}
	tenant := []string{"a", "b"}[w.r.IntN(2)]
	switch w.r.IntN(3) {
	case 0:
		w.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) {
			j.Bound, j.Deadline = bound, w.Now.Add(time.Duration(1+w.r.IntN(8))*bound)
		})
	case 1:
		w.projects++
		jobs := 1 + w.r.IntN(3)
		if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: w.projects, Name: "p", Tenant: w.Tenant(tenant).Spec.ID, Priority: scheduler.PriorityLow,
			Submitted: w.Now, Jobs: int32(jobs)}); err != nil {
			w.Fatalf("%v", err)
		}
		for range jobs {
			w.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) { j.Project, j.Bound = w.projects, bound })
		}
	default: // regular work, without an end that anybody knows
		w.SubmitStages(tenant, stages)
	}
}

// step reports the events of the last half second, at most.
func (w *planWorld) step() {
	w.Advance(time.Duration(100+w.r.IntN(400)) * time.Millisecond)
	for _, a := range w.Attempts() {
		var err error
		switch a.Phase {
		case scheduler.AttemptStarting:
			run := w.State.StageOf(a).Spec.Estimate * 2 // the bound
			w.ends[a.ID] = a.Placed.Add(time.Duration(float64(run) * (0.3 + 0.65*w.r.Float64())))
			err = w.State.Events().AttemptStarted(a.ID, a.Run, w.Now)
		case scheduler.AttemptSuspending:
			has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}
			if a.Target == scheduler.LevelSwapped {
				has.Swap = has.Memory
			}
			err = w.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, has, w.Now)
		case scheduler.AttemptResuming:
			err = w.State.Events().AttemptResumed(a.ID, a.Run, w.Now)
		case scheduler.AttemptRunning:
			if w.Now >= w.ends[a.ID] {
				err = w.State.Events().AttemptEnded(a.ID, a.Run, scheduler.OutcomeSucceeded, w.Now)
			}
		}
		if err != nil {
			w.Fatalf("%s is %v: %v", a.ID, a.Phase, err)
		}
	}
	for j := range w.State.Jobs() {
		if j.Live == 0 && schedtest.Complete(j) {
			if err := w.State.Events().EndJob(j.Spec.ID); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
}

// requirePlan fails the test unless the plan in the State holds by the rules of guarantees: every waiting task of a job with a guarantee has a
// place for its bound and the margin, after those of the stages before, that ends in time and may be delayed no further
// than that; no node has more planned than it has capacity, and no tenant more than its share or one task.
func (w *planWorld) requirePlan(t *testing.T, g *Guarantees) (planned int) {
	for j := range w.State.Jobs() {
		status := (&view{cfg: &Config{Deadlines: true}, s: w.State, now: w.Now}).guaranteeStatus(j)
		if status != statusGuaranteed {
			continue
		}
		if w.State.Reservations().IsViolated(j) {
			t.Fatalf("at %v: the guarantee of job %d is violated although all tasks end by their bounds", w.Now.Sub(0), j.Spec.ID)
		}
		due := j.Spec.Deadline
		if j.Spec.Project != 0 {
			n, _ := w.State.PolicyState(backfill.StateKey(scheduler.LatestDepartureState, j.Spec.Project))
			due = n.At
		}
		places := map[scheduler.TaskID]*scheduler.Reservation{}
		ends := make([]scheduler.Time, len(j.Stages))
		for _, r := range j.Reservations() {
			if isPlanned(r) {
				places[scheduler.TaskID{Job: j.Spec.ID, Stage: r.Stage, Index: r.Task}] = r
				ends[r.Stage] = max(ends[r.Stage], r.End)
			}
		}
		for _, s := range j.Stages {
			for i := s.NextPending(0); i >= 0; i = s.NextPending(i + 1) {
				r := places[s.Task(i)]
				if r == nil {
					t.Fatalf("at %v: task %s waits and has a guarantee, but no place", w.Now.Sub(0), s.Task(i))
				}
				planned++
				length := r.End.Sub(r.Start)
				switch {
				case length < s.Bound() || r.End > due || r.Start > r.Latest || r.Latest.Add(length) > due || r.Demand != s.Spec.Demand || r.Disk != s.Spec.Disk:
					t.Fatalf("at %v: task %s with a bound of %v is planned as %+v, due %v", w.Now.Sub(0), s.Task(i), s.Bound(), *r, due.Sub(0))
				case int(r.Node) >= len(w.State.Nodes())-g.SpareNodes:
					t.Fatalf("at %v: task %s is planned on the spare node %d", w.Now.Sub(0), s.Task(i), r.Node)
				}
				for _, before := range s.Spec.After {
					if r.Start > w.Now && r.Start < ends[before] {
						t.Fatalf("at %v: task %s is planned for %v, before the end of its predecessors at %v", w.Now.Sub(0), s.Task(i), r.Start.Sub(0), ends[before].Sub(0))
					}
				}
			}
		}
	}
	w.requireCapacity(t, g)
	return planned
}

// requireCapacity fails the test if at the start of any reservation more is planned than there is on its node, or for its tenant.
func (w *planWorld) requireCapacity(t *testing.T, g *Guarantees) {
	for _, at := range w.State.Reservations().Guarantees() {
		var onNode, ofTenant, largest scheduler.Resources
		tenant := w.State.Job(at.Job).Spec.Tenant
		for _, r := range w.State.Reservations().Guarantees() {
			if r.Start > at.Start || r.End <= at.Start {
				continue
			}
			if r.Node == at.Node {
				onNode = onNode.Add(r.Demand)
			}
			if w.State.Job(r.Job).Spec.Tenant == tenant {
				ofTenant, largest = ofTenant.Add(r.Demand), largest.Max(r.Demand)
			}
		}
		total, capacity := w.State.Cluster().Total(), w.State.Node(at.Node).Spec.Capacity
		for r := range onNode {
			if onNode[r] > capacity[r] {
				t.Fatalf("at %v: %v are planned on node %d at %v, its capacity is %v", w.Now.Sub(0), onNode, at.Node, at.Start.Sub(0), capacity)
			}
			if limit := max(int64(g.Share*float64(total[r])), largest[r]); ofTenant[r] > limit {
				t.Fatalf("at %v: %v are planned for tenant %d at %v, it may have %d", w.Now.Sub(0), ofTenant, tenant, at.Start.Sub(0), limit)
			}
		}
	}
}

// As long as tasks end by their bounds, the plan holds after each decision, and each guarantee is kept.
func TestPlanHoldsAfterEachDecision(t *testing.T) {
	planned, requests := 0, 0
	for range 4 {
		seed := seed.New(t)
		r := rand.New(rand.NewPCG(seed, 1))
		w := &planWorld{schedtest.New(t).AddNodes(5, schedtest.R(8, 16, 100)).AddTenants("a", "b"), r, map[scheduler.AttemptID]scheduler.Time{}, 0}
		if err := w.State.Events().NodeLost(0, w.Now); err != nil { // it was replaced long ago, and is no spare one's loss
			t.Fatal(err)
		}
		cfg := fullConfig()
		cfg.Locality = false
		cfg.Guarantees.Share, cfg.Guarantees.SpareNodes = []float64{0.4, 1}[r.IntN(2)], r.IntN(2)
		p := New(cfg)
		for round := range 250 {
			if round < 200 && r.IntN(6) == 0 {
				w.submit()
				requests++
			}
			d := w.Cycle(p)
			for i := 0; d.Wake == w.Now+1 && i < 20; i++ { // planned in parts
				d = w.Cycle(p)
			}
			planned += w.requirePlan(t, &cfg.Guarantees)
			w.step()
		}
	}
	if t.Logf("%d requests, %d times a task was planned", requests, planned); planned < 100 {
		t.Error("too few tasks are planned for a meaningful test")
	}
}

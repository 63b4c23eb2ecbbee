package threedsf_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/lasmq"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/threedsf"
)

// busyWorld is a world in which everything that may affect a plan happens: projects
// of several jobs and stages arrive, tasks end early, on time or late, or fail,
// nodes leave and return.
type busyWorld struct {
	*schedtest.World
	r        *rand.Rand
	endTimes map[scheduler.AttemptID]scheduler.Time
	projects scheduler.ProjectID
	accepts  bool // accept every second deadline at submission
}

func newBusyWorld(t *testing.T, seed uint64) *busyWorld {
	w := schedtest.New(t).AddNodes(5, schedtest.R(8, 16, 100)).AddTenants("a=2", "b", "c")
	return &busyWorld{w, rand.New(rand.NewPCG(seed, 1)), map[scheduler.AttemptID]scheduler.Time{}, 0, false}
}

func (w *busyWorld) submit() {
	tenant := []string{"a", "b", "c"}[w.r.IntN(3)]
	bound := time.Duration(2+w.r.IntN(20)) * time.Second
	demand := func() scheduler.Resources {
		return schedtest.R(float64(1+w.r.IntN(5)), float64(1+w.r.IntN(8)), float64(w.r.IntN(40)))
	}
	stages := []scheduler.StageSpec{{Name: "first", Kind: scheduler.KindGroup, Tasks: int32(1 + w.r.IntN(4)), Demand: demand(), Estimate: bound / 2}}
	if w.r.IntN(3) == 0 {
		stages = append(stages, scheduler.StageSpec{Name: "then", Kind: scheduler.KindGroup, After: []int32{0}, Tasks: int32(1 + w.r.IntN(3)), Demand: demand(),
			Disk: schedtest.GiB * w.r.Int64N(300), Estimate: bound / 2})
	}
	switch w.r.IntN(4) {
	case 0, 1:
		w.projects++
		jobs := 1 + w.r.IntN(3)
		if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: w.projects, Name: "p", Tenant: w.Tenant(tenant).Spec.ID, Priority: scheduler.PriorityLow,
			Submitted: w.Now, Jobs: int32(jobs)}); err != nil {
			w.Fatalf("%v", err)
		}
		for range jobs {
			w.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) { j.Project, j.Bound = w.projects, bound })
		}
	case 2:
		w.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) {
			j.Deadline = j.Submitted.Add(bound*2 + time.Duration(w.r.IntN(60))*time.Second)
			j.AcceptedByQuote = w.accepts && w.r.IntN(2) == 0
			if w.r.IntN(2) == 0 {
				j.Bound = bound
			}
		})
	default:
		w.SubmitStages(tenant, stages)
	}
}

// advanceAttempt reports the next event of an attempt.
func (w *busyWorld) advanceAttempt(a *scheduler.Attempt) {
	var err error
	switch a.Phase {
	case scheduler.AttemptStarting:
		est := w.State.StageOf(a).Spec.Estimate
		w.endTimes[a.ID] = w.Now.Add(time.Duration(float64(est) * (0.2 + 2*w.r.Float64())))
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
		if w.Now < w.endTimes[a.ID] {
			return
		}
		outcome := scheduler.OutcomeSucceeded
		if w.r.IntN(15) == 0 {
			outcome = scheduler.OutcomeFailedInfra
		}
		err = w.State.Events().AttemptEnded(a.ID, a.Run, outcome, w.Now)
	}
	if err != nil {
		w.Fatalf("%s is %v: %v", a.ID, a.Phase, err)
	}
}

// changeNode loses a node, drains it, or brings it back.
func (w *busyWorld) changeNode() {
	id := scheduler.NodeID(w.r.IntN(5))
	spec := w.State.Node(id).Spec
	switch {
	case spec.Down || spec.Draining:
		spec.Down, spec.Draining = false, false
	case w.r.IntN(2) == 0:
		if err := w.State.Events().NodeLost(id, w.Now); err != nil {
			w.Fatalf("%v", err)
		}
		return
	default:
		spec.Draining = true
	}
	if err := w.State.Events().UpdateNode(spec); err != nil {
		w.Fatalf("%v", err)
	}
}

func (w *busyWorld) endFinished() {
	for j := range w.State.Jobs() {
		done := true
		for _, g := range j.Stages {
			done = done && g.Remaining() == 0
		}
		if done && j.Live == 0 {
			if err := w.State.Events().EndJob(j.Spec.ID); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
	for id := range w.projects {
		if p := w.State.Project(id + 1); p != nil && len(p.Jobs) == 0 {
			if err := w.State.Events().DropProject(id + 1); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
}

// regressionSeeds are worlds that once failed: a task on its way from memory to swap
// counted as suspended, so that capacity was reserved for it and dropped for ever; a
// cycle with six actions counted existing reservations and stopped short;
// reservations of an owner without a guarantee could not be delayed.
var regressionSeeds = []uint64{7745818995308573358, 8317966320563901981, 9136123212892391672}

// A policy decides the same as a new one (policytest.Round), also with compressions in
// small batches.
func TestWarmPolicyDecidesAsNewOne(t *testing.T) {
	worlds, seconds := 2, 60 // each without and with deadlines accepted at submission
	if testing.Short() {
		worlds, seconds = 1, 30
	}
	if os.Getenv("DROVER_SOAK") != "" {
		worlds, seconds = 100, 120
	}
	for range worlds {
		seed := seed.New(t)
		runBusyWorld(t, seed, seconds, false)
		runBusyWorld(t, seed, seconds, true)
	}
	if testing.Short() {
		return
	}
	for _, seed := range regressionSeeds {
		runBusyWorld(t, seed, 120, false)
		runBusyWorld(t, seed, 120, true)
	}
}

// runBusyWorld compares the decisions in one world for some seconds.
func runBusyWorld(t *testing.T, seed uint64, seconds int, accepts bool) {
	w := newBusyWorld(t, seed)
	w.accepts = accepts
	batch, spare, tries := 1+w.r.IntN(12), w.r.IntN(2), w.r.IntN(2)*20
	var queues *lasmq.Config
	if w.r.IntN(3) > 0 {
		queues = &lasmq.Config{Queues: 4, First: 5, Step: 2, Decay: 0.5, Order: lasmq.OrderRemaining, Horizon: 10 * time.Second, Unit: schedtest.R(1, 2, 1000)}
	}
	reserve := w.r.IntN(3) > 0
	t.Logf("seed %d, accepted deadlines %v, queues %v, reserved nodes %v", seed, accepts, queues != nil, reserve)
	maker := func() scheduler.Policy {
		p := threedsf.New(threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Deadlines: true, Order: deadline.EMWTF,
			Preempt: deadline.Suspend, MaxSuspended: 30 * time.Second, LASMQ: queues, ReserveNodes: reserve,
			Guarantees: threedsf.Guarantees{Enabled: true, SF: 0.5, MaxTries: tries, SpareNodes: spare, Margin: 2 * time.Second, CompressEvery: 3 * time.Second}})
		p.SetCompressBatch(batch)
		return p
	}
	warm := maker()
	for second := range seconds {
		if w.r.IntN(3) == 0 && second < seconds*3/4 {
			w.submit()
		}
		if w.r.IntN(25) == 0 {
			w.changeNode()
		}
		limit := 1000
		if w.r.IntN(5) == 0 {
			limit = 1 + w.r.IntN(6)
		}
		policytest.Round(t, w.State, warm, maker, w.Now, limit)
		w.Advance(time.Duration(w.r.IntN(1500)) * time.Millisecond)
		for _, a := range w.Attempts() {
			w.advanceAttempt(a)
		}
		w.endFinished()
	}
}

// A decision requests a wake for a new order of a tenant's queues only if something of the tenant may be
// served: whether its jobs were passed over or examined depends on the caches of the State and the policy.
func TestOrderOfUnservedQueuesDoesNotWake(t *testing.T) {
	for name, c := range map[string]struct {
		planned bool // the jobs in the queues have guarantees, so that no node is reserved for them
		wakes   bool
	}{
		"all tasks are planned":           {planned: true},
		"nodes are reserved for its jobs": {wakes: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a", "b")
			newPolicy := func() scheduler.Policy {
				return threedsf.New(threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, ReserveNodes: true,
					LASMQ:      &lasmq.Config{Queues: 2, First: 5, Step: 2, Decay: 0.5, Order: lasmq.OrderRemaining, Horizon: 100 * time.Second, Unit: schedtest.R(1, 2, 1000)},
					Guarantees: threedsf.Guarantees{Enabled: true, CompressEvery: 3 * time.Second}})
			}
			warm := newPolicy()
			round := func() scheduler.Decision { return policytest.Round(t, w.State, warm, newPolicy, w.Now, 1000) }
			for id := range scheduler.ProjectID(2) {
				w.Submit("a", 2-int32(id), schedtest.R(4, 1, 0), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) {
					if j.Bound = 1000 * time.Second; c.planned {
						j.Project = id + 1
						if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: id + 1, Name: "p", Tenant: j.Tenant, Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
							t.Fatal(err)
						}
					}
				})
				round()
			}
			w.Start().Advance(10 * time.Second)
			w.Submit("b", 1, schedtest.R(4, 1, 0)) // a node is reserved for it
			for range 3 {
				d := round()
				if wakes := d.Wake > 0 && d.Wake < w.Now.Add(500*time.Second); wakes != c.wakes {
					t.Errorf("at %d it asks to be woken at %d", w.Now, d.Wake)
				}
				w.Advance(time.Second)
			}
		})
	}
}

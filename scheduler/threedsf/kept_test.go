package threedsf_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/threedsf"
)

// busy is a world in which everything that can happen to a plan does: projects of
// several jobs and stages come, tasks end early, at their bound or after it or
// fail, nodes go and come back, time passes.
type busy struct {
	*schedtest.World
	r        *rand.Rand
	ends     map[scheduler.AttemptID]scheduler.Time
	projects scheduler.ProjectID
	accepts  bool // every second deadline is accepted at submission
}

func newBusy(t *testing.T, seed uint64) *busy {
	w := schedtest.New(t).AddNodes(5, schedtest.R(8, 16, 100)).AddTenants("a=2", "b", "c")
	return &busy{w, rand.New(rand.NewPCG(seed, 1)), map[scheduler.AttemptID]scheduler.Time{}, 0, false}
}

func (w *busy) submit() {
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
		if err := w.State.PutProject(scheduler.ProjectSpec{ID: w.projects, Name: "p", Tenant: w.Tenant(tenant).Spec.ID, Priority: scheduler.PriorityLow,
			Submitted: w.Now, Jobs: int32(jobs)}); err != nil {
			w.Fatalf("%v", err)
		}
		for range jobs {
			w.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) { j.Project, j.Bound = w.projects, bound })
		}
	case 2:
		w.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) {
			j.Deadline = j.Submitted.Add(bound*2 + time.Duration(w.r.IntN(60))*time.Second)
			j.Accepted = w.accepts && w.r.IntN(2) == 0
			if w.r.IntN(2) == 0 {
				j.Bound = bound
			}
		})
	default:
		w.SubmitStages(tenant, stages)
	}
}

// event lets something happen to each attempt.
func (w *busy) event(a *scheduler.Attempt) {
	var err error
	switch a.Phase {
	case scheduler.AttemptStarting:
		est := w.State.StageOf(a).Spec.Estimate
		w.ends[a.ID] = w.Now.Add(time.Duration(float64(est) * (0.2 + 2*w.r.Float64())))
		err = w.State.AttemptStarted(a.ID, a.Run, w.Now)
	case scheduler.AttemptSuspending:
		has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory]}
		if a.Target == scheduler.LevelSwapped {
			has.Swap = has.Memory
		}
		err = w.State.AttemptSuspended(a.ID, a.Run, a.Target, has, w.Now)
	case scheduler.AttemptResuming:
		err = w.State.AttemptResumed(a.ID, a.Run, w.Now)
	case scheduler.AttemptRunning:
		if w.Now < w.ends[a.ID] {
			return
		}
		outcome := scheduler.OutcomeSucceeded
		if w.r.IntN(15) == 0 {
			outcome = scheduler.OutcomeFailedInfra
		}
		err = w.State.AttemptEnded(a.ID, a.Run, outcome, w.Now)
	}
	if err != nil {
		w.Fatalf("%s is %v: %v", a.ID, a.Phase, err)
	}
}

// nodes takes a node away, drains it, or brings it back.
func (w *busy) nodes() {
	id := scheduler.NodeID(w.r.IntN(5))
	spec := w.State.Node(id).Spec
	switch {
	case spec.Down || spec.Draining:
		spec.Down, spec.Draining = false, false
	case w.r.IntN(2) == 0:
		if err := w.State.NodeLost(id, w.Now); err != nil {
			w.Fatalf("%v", err)
		}
		return
	default:
		spec.Draining = true
	}
	if err := w.State.UpdateNode(spec); err != nil {
		w.Fatalf("%v", err)
	}
}

func (w *busy) complete() {
	for j := range w.State.Jobs() {
		done := true
		for _, g := range j.Stages {
			done = done && g.Remaining() == 0
		}
		if done && j.Live == 0 {
			if err := w.State.EndJob(j.Spec.ID, scheduler.JobSucceeded, w.Now); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
	for id := range w.projects {
		if p := w.State.Project(id + 1); p != nil && len(p.Jobs) == 0 {
			if err := w.State.DropProject(id + 1); err != nil {
				w.Fatalf("%v", err)
			}
		}
	}
}

// differences lists the lines that only one of two texts has.
func differences(got, want string) string {
	var out strings.Builder
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	for _, l := range a {
		if !slices.Contains(b, l) {
			fmt.Fprintln(&out, "kept:", l)
		}
	}
	for _, l := range b {
		if !slices.Contains(a, l) {
			fmt.Fprintln(&out, "anew:", l)
		}
	}
	return out.String()
}

// faulty are worlds in which a fault was found: a task told to go from memory to
// swap counted as suspended, and room was kept for it and dropped again for ever; a
// cycle with room for six actions counted what was reserved already and stopped
// short; what was reserved for somebody who was promised nothing yet could not be
// put off.
var faulty = []uint64{7745818995308573358, 8317966320563901981, 9136123212892391672}

// The plan that is kept is the one that would be built from the State, to the
// last step of every profile, whatever happens; and so is what is decided with it
// (policytest.Round), also where holes are given forward to a few at a time.
func TestTheKeptPlanIsTheOneBuiltAnew(t *testing.T) {
	worlds, seconds := 2, 60 // each without and with deadlines that are accepted at submission
	if testing.Short() {
		worlds, seconds = 1, 30
	}
	if os.Getenv("DROVER_SOAK") != "" {
		worlds, seconds = 100, 120
	}
	if v := os.Getenv("DROVER_SEED"); v != "" {
		var seed uint64
		if _, err := fmt.Sscan(v, &seed); err != nil {
			t.Fatal(err)
		}
		faulty, worlds, seconds = []uint64{seed}, 0, 120
	}
	kept := 0
	for range worlds {
		seed := rand.Uint64()
		kept += keepPlan(t, seed, seconds, false) + keepPlan(t, seed, seconds, true)
	}
	if kept < 2*worlds*seconds/3 {
		t.Errorf("a plan was kept in %d of %d seconds", kept, 2*worlds*seconds)
	}
	if testing.Short() {
		return
	}
	for _, seed := range faulty {
		keepPlan(t, seed, 120, false)
		keepPlan(t, seed, 120, true)
	}
}

// keepPlan judges one world for so long, and tells in how many seconds of it a plan
// was kept.
func keepPlan(t *testing.T, seed uint64, seconds int, accepts bool) (kept int) {
	t.Logf("seed %d, accepted deadlines %v", seed, accepts)
	w := newBusy(t, seed)
	w.accepts = accepts
	walk, spare, tries := 1+w.r.IntN(12), w.r.IntN(2), w.r.IntN(2)*20
	maker := func() scheduler.Policy {
		p := threedsf.New(threedsf.Config{Name: "3dsf", Level: drf.Largest, Resources: 3, PriorityOrder: true, Deadlines: true, Order: deadline.EMWTF,
			Preempt: deadline.Suspend, MaxSuspended: 30 * time.Second,
			Promises: threedsf.Promises{On: true, SF: 0.5, PL: backfill.NoLimit, Tries: tries, Spare: spare, Margin: 2 * time.Second, Every: 3 * time.Second}})
		p.WalkAtOnce(walk)
		return p
	}
	warm := maker()
	for second := range seconds {
		if w.r.IntN(3) == 0 && second < seconds*3/4 {
			w.submit()
		}
		if w.r.IntN(25) == 0 {
			w.nodes()
		}
		if warm.(*threedsf.Policy).Kept() {
			kept++
		}
		got, want := warm.(*threedsf.Policy).PlanText(w.State, w.Now), maker().(*threedsf.Policy).PlanText(w.State, w.Now)
		if got != want {
			t.Fatalf("seed %d, second %d: the kept plan is not the one built anew:\n%s", seed, second, differences(got, want))
		}
		limit := 1000
		if w.r.IntN(5) == 0 {
			limit = 1 + w.r.IntN(6)
		}
		policytest.Round(t, w.State, warm, maker, w.Now, limit)
		w.Pass(time.Duration(w.r.IntN(1500)) * time.Millisecond)
		for _, a := range w.Attempts() {
			w.event(a)
		}
		w.complete()
	}
	return kept
}

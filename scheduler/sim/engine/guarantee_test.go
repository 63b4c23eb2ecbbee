package engine_test

import (
	"math/rand/v2"
	"os"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// guaranteeRecorder records the guarantees of a policy and their violations.
type guaranteeRecorder struct {
	scheduler.Policy
	latest   map[scheduler.ProjectID]scheduler.Time // the latest guaranteed departure
	violated map[scheduler.ProjectID]backfill.Cause
}

func (w *guaranteeRecorder) Decide(s *scheduler.State, now scheduler.Time, maxActions int) scheduler.Decision {
	d := w.Policy.Decide(s, now, maxActions)
	for _, n := range d.PolicyStates {
		switch n.Kind {
		case scheduler.LatestDepartureState:
			w.latest[n.Project] = n.At
		case scheduler.ViolatedState:
			w.violated[n.Project] = backfill.Cause(n.Slot)
		}
	}
	return d
}

// guaranteedWorkload returns a random workload of projects on a few nodes. Jobs end within their
// bounds, one in three exactly at its bound; the fraction overrun of them runs longer.
func guaranteedWorkload(seed uint64, overrun float64) engine.Config {
	r := rand.New(rand.NewPCG(seed, 1729))
	c := engine.Config{Nodes: nodes(1+r.IntN(4), 2, schedtest.R(8, 32, 400)), Seed: seed}
	at := time.Duration(0)
	for p := range 2 + r.IntN(1+r.IntN(10)) {
		at += time.Duration(r.Int64N(int64(40 * sec)))
		c.Projects = append(c.Projects, engine.Project{Name: "p", Submit: at, Jobs: int32(1 + r.IntN(5)), Priority: scheduler.Priority(1 + r.IntN(2))})
		for range c.Projects[p].Jobs {
			bound := time.Duration(1+r.IntN(120)) * sec
			work := 1 + time.Duration(r.Int64N(int64(bound)-1))
			if r.IntN(3) == 0 {
				work = bound
			}
			if r.Float64() < overrun {
				work = bound + time.Duration(1+r.IntN(100))*sec
			}
			j := stages(r, at, bound, work)
			j.Project, j.Bound = p+1, bound
			c.Jobs = append(c.Jobs, j)
		}
	}
	return c
}

// stages returns a job of two to four stages in one of five graphs: map and reduce, also with a slow
// start, a chain, several stages after one, one after several. Every task ends within the bound;
// the first one takes the given work.
func stages(r *rand.Rand, at, bound, work time.Duration) engine.Job {
	graph := [][][]int32{{nil, {0}}, {nil, {0}, {1}}, {nil, {0}, {0}}, {nil, nil, {0, 1}}, {nil, {0}, {0}, {1, 2}}}[r.IntN(5)]
	j := engine.Job{Name: "j", Submit: at}
	for i, after := range graph {
		g := engine.Stage{Name: "s" + strconv.Itoa(i), After: after, Tasks: int32(1 + r.IntN(5)),
			Demand: schedtest.R(float64(1+r.IntN(8)), float64(1+r.IntN(32)), float64(r.IntN(400)))}
		for range g.Tasks {
			g.WorkPerTask = append(g.WorkPerTask, 1+time.Duration(r.Int64N(int64(bound))))
		}
		if i == 0 {
			g.WorkPerTask[0] = work
		}
		if r.IntN(3) == 0 {
			g.MaxParallel = 1 + r.Int32N(2)
		}
		j.Stages = append(j.Stages, g)
	}
	if len(graph) == 2 {
		j.Stages[0].Kind, j.Stages[1].Kind = scheduler.KindMap, scheduler.KindReduce
		j.Stages[1].SlowStart = float64(r.IntN(3)) / 2
	}
	return j
}

// simulateGuarantees runs a workload and counts the guarantees, those that ended late, and those
// that the policy reported as violated.
func simulateGuarantees(t *testing.T, c engine.Config, name string, params ...string) (late, reported, guarantees int) {
	w := &guaranteeRecorder{policy(t, name, params...), map[scheduler.ProjectID]scheduler.Time{}, map[scheduler.ProjectID]backfill.Cause{}}
	c.Policy, c.MaxEvents = w, 100_000
	r, err := engine.Simulate(c)
	if err != nil {
		t.Fatalf("seed %d, %v: %v", c.Seed, params, err)
	}
	departs := map[scheduler.ProjectID]time.Duration{}
	for i := range r.Jobs {
		id := scheduler.ProjectID(c.Jobs[i].Project)
		departs[id] = max(departs[id], r.Jobs[i].Finish)
	}
	for id, latest := range w.latest {
		guarantees++
		cause, named := w.violated[id]
		if named {
			reported++
			if cause < backfill.CauseOverrun || cause > backfill.CauseLate { // no operator suspends a task here
				t.Errorf("seed %d, %s %v: the guarantee of project %d is violated because %v", c.Seed, name, params, id, cause)
			}
		}
		if engine.Epoch.Add(departs[id]) <= latest {
			continue
		}
		if late++; !named {
			t.Errorf("seed %d, %s %v: project %d departs at %v, %v after the guarantee, and no cause is named",
				c.Seed, name, params, id, departs[id], engine.Epoch.Add(departs[id]).Sub(latest))
		}
	}
	return late, reported, guarantees
}

// guaranteeWorkloads returns the number of workloads, DROVER_WORLDS if that is set; each runs under all variants.
func guaranteeWorkloads(t *testing.T) uint64 {
	worlds := os.Getenv("DROVER_WORLDS")
	switch {
	case worlds != "":
		n, err := strconv.ParseUint(worlds, 10, 32)
		if err != nil {
			t.Fatalf("DROVER_WORLDS: %v", err)
		}
		return n
	case os.Getenv("DROVER_SOAK") != "":
		return 250
	case testing.Short():
		return 2
	default:
		return 12
	}
}

// variants are the policies that guarantee departures, with their parameters.
var variants = [][]string{{"two_tier", "variant", "2tsb"}, {"two_tier", "variant", "2tfb"}, {"two_tier", "variant", "2tfb-sf"},
	{"two_tier", "variant", "2tpb"}, {"3dsf"}}

// No guarantee is violated by arrivals and by jobs that end early or at their bound.
func TestNoGuaranteeIsViolatedWithinBounds(t *testing.T) {
	guarantees := 0
	first := seed.New(t)
	for i := range guaranteeWorkloads(t) {
		seed := first + i
		for _, v := range variants {
			late, reported, n := simulateGuarantees(t, guaranteedWorkload(seed, 0), v[0], v[1:]...)
			if guarantees += n; late > 0 || reported > 0 {
				t.Errorf("seed %d, %s: %d guarantees violated, %d reported", seed, v, late, reported)
			}
		}
	}
	if guarantees == 0 {
		t.Fatal("no guarantee was made")
	}
	t.Logf("%d worlds from seed %d, each under %d policies: %d guarantees", guaranteeWorkloads(t), first, len(variants), guarantees)
}

// Overruns and lost nodes may violate guarantees, each with a cause.
func TestEachViolatedGuaranteeHasACause(t *testing.T) {
	violated := 0
	first := seed.New(t)
	for i := range (guaranteeWorkloads(t) + 1) / 2 {
		seed := first + i
		for i, v := range variants {
			c := guaranteedWorkload(seed, 0.15)
			if (int(seed)+i)%2 == 0 {
				c.Models.MTBF, c.Models.Repair = 400*sec, 60*sec
			}
			late, _, _ := simulateGuarantees(t, c, v[0], v[1:]...)
			violated += late
		}
	}
	if violated == 0 && !testing.Short() {
		t.Fatal("no guarantee was violated: the test cannot fail")
	}
	t.Logf("%d worlds from seed %d, each under %d policies: %d guarantees violated", (guaranteeWorkloads(t)+1)/2, first, len(variants), violated)
}

// An open project takes jobs as they come, as a coordinator's: it ends with its last active job, and each project of
// which all jobs so far are active gets a guarantee.
func TestOpenProjectsTakeJobsAsTheyCome(t *testing.T) {
	job := func(submit, work time.Duration) engine.Job {
		j := singleStageJob(submit, 1, schedtest.R(1, 1, 0), work)
		j.Project, j.Bound = 1, work
		return j
	}
	w := &guaranteeRecorder{policy(t, "3dsf"), map[scheduler.ProjectID]scheduler.Time{}, map[scheduler.ProjectID]backfill.Cause{}}
	seen := map[scheduler.ProjectID][]int{} // the jobs of each project as they grow
	c := engine.Config{Nodes: nodes(1, 1, schedtest.R(4, 16, 100)), Policy: w, Projects: []engine.Project{{Name: "p", Open: true}},
		Jobs: []engine.Job{job(0, 10*sec), job(20*sec, 10*sec), job(25*sec, 10*sec), job(60*sec, 5*sec)},
		BeforeSubmit: func(s *scheduler.State, _ scheduler.Time, j *scheduler.JobSpec, _ []scheduler.StageSpec) error {
			seen[j.Project] = append(seen[j.Project], int(s.Project(j.Project).Spec.Jobs))
			return nil
		}}
	mustSimulate(t, c)
	if want := map[scheduler.ProjectID][]int{2: {1}, 3: {1, 2}, 4: {1}}; !reflect.DeepEqual(seen, want) {
		t.Errorf("projects with their jobs %v, want %v", seen, want)
	}
	if len(w.latest) != 3 || len(w.violated) != 0 {
		t.Errorf("guarantees %v, violated %v; want one for each project", w.latest, w.violated)
	}
}

package engine_test

import (
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/schedtest"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// witness writes down what a policy promises and what it says of its promises.
type witness struct {
	scheduler.Policy
	latest map[scheduler.ProjectID]scheduler.Time // the latest departure that was guaranteed
	broken map[scheduler.ProjectID]backfill.Cause
}

func (w *witness) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	d := w.Policy.Decide(s, now, max)
	for _, n := range d.Notes {
		switch n.Kind {
		case scheduler.NoteLatestStart:
			w.latest[n.Project] = n.At
		case scheduler.NoteBroken:
			w.broken[n.Project] = backfill.Cause(n.Slot)
		}
	}
	return d
}

// guaranteed is a random workload of projects on a few nodes. Jobs end within
// their bounds, one in three at its bound; with overrun above 0 that part of
// them runs longer.
func guaranteed(seed uint64, overrun float64) engine.Config {
	r := rand.New(rand.NewPCG(seed, 1729))
	c := engine.Config{Nodes: nodes(1+r.IntN(4), 2, schedtest.R(8, 32, 400)), Seed: seed}
	at := time.Duration(0)
	for p := range 4 + r.IntN(8) {
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
			j := one(at, 1, schedtest.R(float64(1+r.IntN(8)), float64(1+r.IntN(32)), float64(r.IntN(400))), work)
			j.Project, j.Bound = p+1, bound
			c.Jobs = append(c.Jobs, j)
		}
	}
	return c
}

// kept runs a workload and gives what became of each promise.
func kept(t *testing.T, c engine.Config, params ...string) (late, told, promised int) {
	w := &witness{policy(t, "two_tier", params...), map[scheduler.ProjectID]scheduler.Time{}, map[scheduler.ProjectID]backfill.Cause{}}
	c.Policy, c.MaxEvents = w, 100_000
	r, err := engine.Run(c)
	if err != nil {
		t.Fatalf("seed %d, %v: %v", c.Seed, params, err)
	}
	departs := map[scheduler.ProjectID]time.Duration{}
	for i := range r.Jobs {
		id := scheduler.ProjectID(c.Jobs[i].Project)
		departs[id] = max(departs[id], r.Jobs[i].Finish)
	}
	for id, latest := range w.latest {
		promised++
		cause, said := w.broken[id]
		if said {
			told++
		}
		if engine.Epoch.Add(departs[id]) <= latest {
			continue
		}
		if late++; !said || cause < backfill.CauseOverrun || cause > backfill.CauseLate {
			t.Errorf("seed %d, %v: project %d departs at %v, %v after the guarantee, and no cause is named",
				c.Seed, params, id, departs[id], engine.Epoch.Add(departs[id]).Sub(latest))
		}
	}
	return late, told, promised
}

// guaranteeRuns is the number of workloads; each is run under four variants.
func guaranteeRuns() uint64 {
	if os.Getenv("DROVER_SOAK") != "" {
		return 250 // 1,000 runs
	}
	return 12
}

var variants = []string{"2tsb", "2tfb", "2tfb-sf", "2tpb"}

// Jobs that end early or at their bound, and arrivals, break no promise.
func TestNoGuaranteeBreaksWhileBoundsHold(t *testing.T) {
	promised := 0
	for seed := range guaranteeRuns() {
		for _, v := range variants {
			late, told, n := kept(t, guaranteed(seed, 0), "variant", v)
			if promised += n; late > 0 || told > 0 {
				t.Fatalf("seed %d, %s: %d promises broken, %d said to be", seed, v, late, told)
			}
		}
	}
	if promised == 0 {
		t.Fatal("nothing was promised")
	}
	t.Logf("%d promises", promised)
}

// With overruns and lost nodes promises may break, each with its cause.
func TestEachBrokenGuaranteeHasItsCause(t *testing.T) {
	broken := 0
	for seed := range guaranteeRuns() / 2 {
		for i, v := range variants {
			c := guaranteed(seed, 0.15)
			if (int(seed)+i)%2 == 0 {
				c.Models.MTBF, c.Models.Repair = 400*sec, 60*sec
			}
			late, _, _ := kept(t, c, "variant", v)
			broken += late
		}
	}
	if broken == 0 {
		t.Fatal("nothing broke: the test cannot fail")
	}
	t.Logf("%d promises broken", broken)
}

package threedsf

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// requireQuiet lets a policy decide until nothing is left, and fails the test if a new policy
// decides anything between then and the wake of the last decision, although nothing happens.
// Placements at the same time count as staying, so time advances a little before each decision.
func requireQuiet(t schedtest.TB, w *schedtest.World, p *Policy, r *rand.Rand) {
	t.Helper()
	d := w.Cycle(p)
	for range 20 {
		w.Advance(time.Nanosecond)
		if d = w.Cycle(p); d.Empty() {
			break
		}
	}
	wake := min(d.Wake, w.Now.Add(time.Minute))
	if wake == 0 {
		wake = w.Now.Add(time.Minute)
	}
	for _, at := range []scheduler.Time{w.Now + 1, w.Now + scheduler.Time(r.Int64N(int64(wake-w.Now))), wake - 1} {
		if at <= w.Now || at >= wake || !d.Empty() {
			continue
		}
		w.State.SetTime(at)
		if again := New(p.cfg).Decide(w.State, at, 1000); !again.Empty() {
			t.Fatalf("%v after the last decision, which wakes after %v, although nothing happened:\n%s", at.Sub(w.Now), wake.Sub(w.Now), again.String())
		}
	}
	w.State.SetTime(w.Now)
}

// requireQuietWorld calls requireQuiet in a random world, after each of its cycles.
func requireQuietWorld(t schedtest.TB, seed uint64, queues bool, cycles int) {
	t.Helper()
	w := &projectWorld{Chaos: schedtest.NewChaos(t, seed)}
	cfg := fullConfig()
	if cfg.LASMQ = nil; queues { // deficits grow with time, and with them the queue whose job has a node reserved
		cfg.LASMQ, cfg.ReserveNodes = fullConfig().LASMQ, false
	}
	p := New(cfg)
	for range cycles {
		for range 1 + w.R.IntN(4) {
			w.step()
		}
		requireQuiet(t, w.World, p, w.R)
	}
}

// Until the time at which a decision asks to be woken, and without an event, there is nothing to decide.
func TestNothingIsDecidedBeforeWake(t *testing.T) {
	t.Run("random worlds", rapid.MakeCheck(func(t *rapid.T) {
		requireQuietWorld(t, rapid.Uint64().Draw(t, "seed"), rapid.Bool().Draw(t, "queues"), rapid.IntRange(1, 30).Draw(t, "cycles"))
	}))
	for name, c := range map[string]struct {
		seed   uint64
		queues bool
		cycles int
	}{ // worlds that failed, with what was wrong then
		"a running task that ends too late for as many others as its neighbours":                     {0x8701500a17a4, false, 11},
		"running tasks that can be followed by fewer before those behind a reservation are too late": {0x888bda, true, 28},
		"a task past its bound beside a guarantee that is due":                                       {0x11582840e49, false, 13},
		"a stage delayed behind one that reserves the node meanwhile":                                {0xb1f6d31, false, 5},
		"a suspended task below a cap that resumes too late for a guarantee from some time on":       {0x24605ddd, false, 20},
	} {
		t.Run(name, func(t *testing.T) { requireQuietWorld(t, c.seed, c.queues, c.cycles) })
	}
	t.Run("guarantees", func(t *testing.T) {
		seed := seed.New(t)
		r := rand.New(rand.NewPCG(seed, 1))
		w := &planWorld{schedtest.New(t).AddNodes(3, schedtest.R(8, 16, 100)).AddTenants("a", "b"), r, map[scheduler.AttemptID]scheduler.Time{}, 0}
		cfg := fullConfig()
		p := New(cfg)
		for round := range 150 {
			if round < 120 && r.IntN(6) == 0 {
				w.submit()
			}
			requireQuiet(t, w.World, p, r)
			w.step()
		}
	})
}

package lasmq

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
)

// randomQueues returns queues of one job each, some with running containers, and accounts recorded
// at a time: with the present queues, or before they changed.
func randomQueues(r *rand.Rand, at scheduler.Time) *Queues {
	cfg := testConfig(func(c *Config) {
		c.Queues, c.Horizon = 2+r.IntN(4), time.Duration(1+r.IntN(60))*time.Second
	})
	weights, accounts := make([]float64, cfg.Queues), make([]account, cfg.Queues)
	for i := range weights {
		weights[i] = 1 / float64(1+r.IntN(10))
	}
	q := newQueues(&cfg, weights, 0, func(_, i int) (account, bool) { return accounts[i-1], accounts[i-1].at > 0 }, nil)
	q.contended = true
	changed := r.IntN(2) == 0
	for i := range weights {
		if r.IntN(4) > 0 {
			q.insert(i, listedJob{jobKey: jobKey{id: scheduler.JobID(i + 1)}, job: &scheduler.Job{Ready: 1}})
		}
		q.total[i] = micro(float64(r.IntN(20)) / 2)
		a := account{deficit: float64(r.IntN(2000)-1000) / 4, running: q.total[i].float(), at: at}
		if changed {
			a.running = float64(r.IntN(20)) / 2
		}
		if !q.lists[i].empty() || changed && r.IntN(2) == 0 {
			accounts[i] = a
		}
	}
	return q
}

// orderAt returns the order in which a pass at a time serves the queues, if it can place nothing.
func orderAt(q *Queues, now scheduler.Time) (order []int) {
	q.Begin(now)
	for _, ok := q.Next(false); ok; _, ok = q.Next(false) {
		order = append(order, q.current)
		q.Drop()
	}
	return order
}

// Until NextOrder queues are served in the same order, and each pass until then says the same NextOrder.
func TestNextOrder(t *testing.T) {
	seed := seed.New(t)
	changes, never := 0, 0
	for round := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, round))
		at := scheduler.Time(1e9 * (1 + r.Int64N(1e6)))
		now := at.Add(time.Duration(r.Int64N(int64(time.Minute))))
		q := randomQueues(r, at)
		order := orderAt(q, now)
		next := q.NextOrder()
		left := map[int]account{} // what the pass leaves
		unchanged := true
		q.eachAccount(now, func(i int, a account, keep bool) {
			if unchanged = false; keep {
				left[i] = a
			}
		})
		if !unchanged {
			q.account = func(_, i int) (account, bool) { a, ok := left[i]; return a, ok }
		}
		until := next
		if until == scheduler.Never {
			never++
			until = now.Add(time.Hour)
		}
		for range 5 {
			then := now + scheduler.Time(r.Int64N(max(1, int64(until-now)-2)))
			if got := orderAt(q, then); !slices.Equal(got, order) {
				t.Fatalf("seed %d, round %d: the order is %v and changes at %d, but it is %v at %d", seed, round, order, next, got, then)
			}
			if again := q.NextOrder(); again != next && then > now {
				t.Fatalf("seed %d, round %d: a pass at %d says that the order changes at %d, one before says %d", seed, round, then, again, next)
			}
		}
		if next != scheduler.Never && !slices.Equal(orderAt(q, next+2), order) {
			changes++
		}
	}
	if t.Logf("%d of 3000 orders change, %d never", changes, never); changes < 300 || never < 300 {
		t.Error("too few cases of a kind for a meaningful test")
	}
}

// Of late queues whose weights are too small for a number one is next, as of any others.
func TestTinyWeightsStarveNoQueue(t *testing.T) {
	cfg := testConfig(func(c *Config) { c.Queues, c.Decay = 64, 1e-9 })
	weights := make([]float64, cfg.Queues)
	for i := range weights {
		weights[i] = cfg.weight(i + 1)
	}
	q := newQueues(&cfg, weights, 0, func(int, int) (account, bool) { return account{}, false }, nil)
	q.contended = true
	for _, i := range []int{40, 50} {
		q.insert(i, listedJob{jobKey: jobKey{id: scheduler.JobID(i)}, job: &scheduler.Job{Ready: 1}})
	}
	if order := orderAt(q, 1); len(order) != 2 {
		t.Errorf("the queues that are served are %v, want both", order)
	}
}

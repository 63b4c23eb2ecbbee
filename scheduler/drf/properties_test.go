package drf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/scheduler"
)

// claimant is a tenant of a pool with more tasks of one shape than fit; one that
// others are below has none itself.
type claimant struct {
	demand vec
	below  int     // 0 for the root, i for the claimant i-1
	weight float64 // 0 for 1
	limit  vec     // what it may hold at most; 0 for no limit
}

// pool is a division: who got how many tasks of what.
type pool struct {
	total  vec
	level  Level
	all    []claimant
	leaf   []bool
	count  []int64
	used   vec
	shares []float64 // of the pool that each is entitled to by the weights
}

// divide fills a pool as the policies do: whose next task does not fit, or would
// be over its limit, is passed over.
func divide(t testing.TB, total vec, level Level, all []claimant) *pool {
	t.Helper()
	p := &pool{total: total, level: level, all: all, leaf: make([]bool, len(all)), count: make([]int64, len(all))}
	tree := mustTree(t, total, level)
	part := []float64{1}
	for i, c := range all {
		mustAdd(t, tree, scheduler.TenantID(c.below-1), c.heft())
		sum := 0.0
		for _, o := range all {
			if o.below == c.below {
				sum += o.heft()
			}
		}
		part = append(part, part[c.below]*c.heft()/sum)
		p.leaf[i] = true
		if c.below > 0 {
			p.leaf[c.below-1] = false
		}
	}
	p.shares = part[1:]
	for i, c := range all {
		if p.leaf[i] {
			tree.SetNext(scheduler.TenantID(i), c.demand)
		}
	}
	for id, d, ok := tree.Next(); ok; id, d, ok = tree.Next() {
		if p.count[id] >= p.allowed(int(id)) || !d.Fits(total.Sub(p.used)) {
			tree.ClearNext(id)
			continue
		}
		p.used = p.used.Add(d)
		tree.Charge(id, d)
		p.count[id]++
	}
	return p
}

func (c *claimant) heft() float64 {
	if c.weight == 0 {
		return 1
	}
	return c.weight
}

// allowed is how many tasks its limit lets a claimant have.
func (p *pool) allowed(i int) int64 {
	n := int64(math.MaxInt64)
	for k, most := range p.all[i].limit {
		if d := p.all[i].demand[k]; most > 0 && d > 0 {
			n = min(n, most/d)
		}
	}
	return n
}

// tasksIn is how many tasks of a demand a part of a vector holds.
func tasksIn(v vec, part float64, d vec) int64 {
	n := int64(math.MaxInt64)
	for k := range d {
		if d[k] > 0 {
			n = min(n, int64(float64(v[k])*part/float64(d[k])+1e-9))
		}
	}
	return n
}

// outcome is by how much each property fails, at worst, in tasks.
type outcome struct {
	missed int64 // sharing incentive: fewer than its part of the pool holds
	more   int64 // Pareto efficiency: more would fit
	envy   int64 // more than it has would run on what another has, by the weights of both, beyond one
}

func (p *pool) judge() (o outcome) {
	for i, c := range p.all {
		if !p.leaf[i] {
			continue
		}
		own := p.count[i]
		o.missed = max(o.missed, min(p.allowed(i), tasksIn(p.total, p.shares[i], c.demand))-own)
		o.more = max(o.more, min(p.allowed(i)-own, tasksIn(p.total.Sub(p.used), 1, c.demand)))
		for j, other := range p.all {
			if i != j && p.leaf[j] {
				there := tasksIn(other.demand.Times(p.count[j]), p.shares[i]/p.shares[j], c.demand)
				o.envy = max(o.envy, min(p.allowed(i), there)-own-1)
			}
		}
	}
	return o
}

// gain is the most tasks that any tenant gains by declaring up to two units more
// of each resource than its tasks need: a task placed so has what it needs.
func (p *pool) gain(t testing.TB) (most int64) {
	for i := range p.all {
		for lie := int64(1); lie < 27 && p.leaf[i]; lie++ {
			all := append([]claimant(nil), p.all...)
			all[i].demand = all[i].demand.Add(vec{lie % 3, lie / 3 % 3, lie / 9})
			most = max(most, divide(t, p.total, p.level, all).count[i]-p.count[i])
		}
	}
	return most
}

// randomPool draws a pool of two to six tenants in a setting of the table below.
func randomPool(r *rand.Rand, setting string) (vec, Level, []claimant) {
	total := vec{4 + r.Int64N(60), 4 + r.Int64N(60), 4 + r.Int64N(60)}
	all := make([]claimant, 2+r.IntN(5))
	for i := range all {
		c := &all[i]
		c.demand = vec{1 + r.Int64N(7), r.Int64N(8), r.Int64N(8)}
		k := r.IntN(3)
		c.demand[0], c.demand[k] = c.demand[k], c.demand[0]
		switch setting {
		case "weights":
			c.weight = float64(1 + r.IntN(4))
		case "tree":
			c.below = r.IntN(i + 1)
		case "caps":
			c.limit[r.IntN(3)] = r.Int64N(20)
		}
	}
	level := map[string]Level{"lev 2": Second, "lev 3": Third}[setting]
	return total, max(level, Largest), all
}

// What of DRF's four properties is left beyond its own setting, for tasks that
// are whole: true where no random pool may fail it.
var settings = []struct {
	name                      string
	incentive, pareto, envyOf bool
}{
	{"flat", true, true, true},
	{"weights", true, true, false},
	{"tree", true, true, false},
	{"caps", true, true, true},
	{"lev 2", false, true, false},
	{"lev 3", false, true, false},
}

// TestPropertiesBeyondFlatPools: the properties that hold do so in every random
// pool; of the others, and of the gain from lying, it reports how often and by how
// much they fail.
func TestPropertiesBeyondFlatPools(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	pools, liars := 3000, 150
	if testing.Short() {
		pools, liars = 1000, 60
	}
	for _, s := range settings {
		t.Run(s.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			var most outcome
			var missed, envied, gained int
			var gain int64
			for n := range pools {
				total, level, all := randomPool(r, s.name)
				p := divide(t, total, level, all)
				o := p.judge()
				if (s.incentive && o.missed > 0) || (s.pareto && o.more > 0) || (s.envyOf && o.envy > 0) {
					t.Fatalf("pool %v, %v, tenants %+v have %v tasks: %+v", total, level, all, p.count, o)
				}
				most = outcome{max(most.missed, o.missed), max(most.more, o.more), max(most.envy, o.envy)}
				missed, envied = missed+positive(o.missed), envied+positive(o.envy)
				if n < liars {
					g := p.gain(t)
					gain, gained = max(gain, g), gained+positive(g)
				}
			}
			t.Logf("of %d pools: fewer than its part in %d, by up to %d tasks; envy beyond one task in %d, up to %d; of %d pools somebody gains by lying in %d, up to %d tasks",
				pools, missed, most.missed, envied, most.envy+1, liars, gained, gain)
		})
	}
}

func positive(n int64) int {
	if n > 0 {
		return 1
	}
	return 0
}

// TestPropertiesThatFail has a small counterexample for each property that does
// not hold.
func TestPropertiesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		total vec
		level Level
		all   []claimant
		count string
		want  outcome
	}{
		"lev 2, sharing incentive: the first holds one task on half of the pool and has none": {
			vec{9, 8, 7}, Second, []claimant{{demand: vec{2, 4, 3}}, {demand: vec{2, 1, 5}}}, "[0 1]", outcome{missed: 1}},
		"lev 3, sharing incentive": {
			vec{5, 4, 15}, Third, []claimant{{demand: vec{0, 2, 5}}, {demand: vec{0, 0, 6}}}, "[2 0]", outcome{missed: 1}},
		"lev 2, envy: the second share of both is 0 for ever, and the first by name gets all": {
			vec{7, 11, 10}, Second, []claimant{{demand: vec{1, 0, 0}}, {demand: vec{1, 0, 0}}}, "[7 0]", outcome{missed: 3, envy: 6}},
		"lev 3, envy": {
			vec{5, 12, 10}, Third, []claimant{{demand: vec{5, 3, 0}}, {demand: vec{1, 0, 0}}}, "[1 0]", outcome{missed: 2, envy: 4}},
		"weights, envy: to whom half of what the other has is due has none": {
			vec{6, 6, 24}, Largest, []claimant{{demand: vec{6, 2, 5}, weight: 2}, {demand: vec{2, 2, 2}}}, "[0 3]", outcome{envy: 1}},
		"tree, envy: the group's part went to the one of its two that fits": {
			vec{9, 10, 7}, Largest, []claimant{{demand: vec{2, 0, 0}}, {}, {demand: vec{7, 1, 7}, below: 2}, {demand: vec{4, 0, 3}, below: 2}}, "[2 0 0 1]",
			outcome{envy: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := divide(t, c.total, c.level, c.all)
			if got := fmt.Sprint(p.count); got != c.count || p.judge() != c.want {
				t.Errorf("tasks %s, want %s; %+v, want %+v", got, c.count, p.judge(), c.want)
			}
		})
	}
}

// TestLyingPaysInEverySetting: strategy-proofness does not hold for whole tasks, as
// one tenant that declares more than its tasks need shows in each setting.
func TestLyingPaysInEverySetting(t *testing.T) {
	for name, c := range map[string]struct {
		total         vec
		level         Level
		all           []claimant
		liar          int
		declares      vec
		honest, lying string
	}{
		"flat": {vec{11, 7, 5}, Largest, []claimant{{demand: vec{3, 1, 1}}, {demand: vec{2, 5, 0}}, {demand: vec{3, 5, 3}}}, 0, vec{3, 2, 1}, "[2 1 0]", "[3 0 0]"},
		"weights": {vec{11, 8, 11}, Largest, []claimant{{demand: vec{6, 6, 7}, weight: 4}, {demand: vec{4, 1, 1}, weight: 3}}, 1, vec{5, 3, 3},
			"[1 1]", "[0 2]"},
		"tree": {vec{5, 11, 12}, Largest, []claimant{{}, {demand: vec{2, 3, 2}}, {demand: vec{1, 7, 5}, below: 1}}, 1, vec{2, 5, 4}, "[0 1 1]", "[0 2 0]"},
		"caps": {vec{12, 4, 11}, Largest, []claimant{{demand: vec{5, 3, 5}, limit: vec{0, 0, 5}}, {demand: vec{5, 1, 5}}}, 1, vec{6, 2, 5},
			"[1 1]", "[0 2]"},
		"lev 2": {vec{6, 6, 16}, Second, []claimant{{demand: vec{1, 1, 2}}, {demand: vec{5, 1, 4}}}, 0, vec{3, 1, 4}, "[1 1]", "[2 0]"},
		"lev 3": {vec{6, 6, 16}, Third, []claimant{{demand: vec{1, 1, 2}}, {demand: vec{5, 1, 4}}}, 0, vec{3, 1, 4}, "[1 1]", "[2 0]"},
	} {
		t.Run(name, func(t *testing.T) {
			honest := fmt.Sprint(divide(t, c.total, c.level, c.all).count)
			c.all[c.liar].demand = c.declares
			if lying := fmt.Sprint(divide(t, c.total, c.level, c.all).count); honest != c.honest || lying != c.lying {
				t.Errorf("honest %s, want %s; lying %s, want %s", honest, c.honest, lying, c.lying)
			}
		})
	}
}

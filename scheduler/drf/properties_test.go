package drf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
)

// poolTenant is a tenant of a pool with more tasks of one demand than fit. A tenant
// with children has no tasks itself.
type poolTenant struct {
	demand vec
	below  int     // 0 for the root, i for tenant i-1
	weight float64 // 0 for 1
	limit  vec     // the most it may use; 0 for no limit
}

// pool is a division: how many tasks each tenant got.
type pool struct {
	total      vec
	level      Level
	tenants    []poolTenant
	leaf       []bool
	taskCounts []int64
	used       vec
	shares     []float64 // part of the pool that each is entitled to by weight
}

// fillPool fills a pool as the policies do: a task that does not fit or would exceed
// its tenant's limit is passed over.
func fillPool(t testing.TB, total vec, level Level, all []poolTenant) *pool {
	t.Helper()
	p := &pool{total: total, level: level, tenants: all, leaf: make([]bool, len(all)), taskCounts: make([]int64, len(all))}
	tree := New(total, level)
	part := []float64{1}
	for i, c := range all {
		tree.Add(scheduler.TenantID(c.below-1), c.heft())
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
		if p.taskCounts[id] >= p.allowedTasks(int(id)) || !d.Fits(total.Sub(p.used)) {
			tree.ClearNext(id)
			continue
		}
		p.used = p.used.Add(d)
		tree.Charge(id, d)
		p.taskCounts[id]++
	}
	return p
}

func (c *poolTenant) heft() float64 {
	if c.weight == 0 {
		return 1
	}
	return c.weight
}

// allowedTasks returns how many tasks a tenant's limit allows.
func (p *pool) allowedTasks(i int) int64 {
	n := int64(math.MaxInt64)
	for k, most := range p.tenants[i].limit {
		if d := p.tenants[i].demand[k]; most > 0 && d > 0 {
			n = min(n, most/d)
		}
	}
	return n
}

// tasksInShare returns how many tasks of demand d fit into a part of v.
func tasksInShare(v vec, part float64, d vec) int64 {
	n := int64(math.MaxInt64)
	for k := range d {
		if d[k] > 0 {
			n = min(n, int64(float64(v[k])*part/float64(d[k])+1e-9))
		}
	}
	return n
}

// outcome is by how much each property fails at worst, in tasks.
type outcome struct {
	missed int64 // sharing incentive: fewer than fit into its part of the pool
	more   int64 // Pareto efficiency: more would fit
	envy   int64 // tasks beyond its own and one that another's weighted allocation would run
}

func (p *pool) checkProperties() (o outcome) {
	for i, c := range p.tenants {
		if !p.leaf[i] {
			continue
		}
		own := p.taskCounts[i]
		o.missed = max(o.missed, min(p.allowedTasks(i), tasksInShare(p.total, p.shares[i], c.demand))-own)
		o.more = max(o.more, min(p.allowedTasks(i)-own, tasksInShare(p.total.Sub(p.used), 1, c.demand)))
		for j, other := range p.tenants {
			if i != j && p.leaf[j] {
				there := tasksInShare(other.demand.Times(p.taskCounts[j]), p.shares[i]/p.shares[j], c.demand)
				o.envy = max(o.envy, min(p.allowedTasks(i), there)-own-1)
			}
		}
	}
	return o
}

// bestMisreportGain returns the most tasks that any tenant gains by overstating its
// demand by up to two units of each resource.
func (p *pool) bestMisreportGain(t testing.TB) (most int64) {
	for i := range p.tenants {
		for lie := int64(1); lie < 27 && p.leaf[i]; lie++ {
			all := append([]poolTenant(nil), p.tenants...)
			all[i].demand = all[i].demand.Add(vec{lie % 3, lie / 3 % 3, lie / 9})
			most = max(most, fillPool(t, p.total, p.level, all).taskCounts[i]-p.taskCounts[i])
		}
	}
	return most
}

// randomPool returns a random pool of two to six tenants in a setting of the table
// below.
func randomPool(r *rand.Rand, setting string) (vec, Level, []poolTenant) {
	total := vec{4 + r.Int64N(60), 4 + r.Int64N(60), 4 + r.Int64N(60)}
	all := make([]poolTenant, 2+r.IntN(5))
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

// Which of DRF's properties hold for whole tasks in other settings: true where no
// random pool may violate it.
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

// TestPropertiesBeyondFlatPools checks the properties that hold in random pools, and
// logs how often and by how much the others fail and what misreporting gains.
func TestPropertiesBeyondFlatPools(t *testing.T) {
	seed := seed.New(t)
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
				p := fillPool(t, total, level, all)
				o := p.checkProperties()
				if (s.incentive && o.missed > 0) || (s.pareto && o.more > 0) || (s.envyOf && o.envy > 0) {
					t.Fatalf("pool %v, %v, tenants %+v have %v tasks: %+v", total, level, all, p.taskCounts, o)
				}
				most = outcome{max(most.missed, o.missed), max(most.more, o.more), max(most.envy, o.envy)}
				missed, envied = missed+positive(o.missed), envied+positive(o.envy)
				if n < liars {
					g := p.bestMisreportGain(t)
					gain, gained = max(gain, g), gained+positive(g)
				}
			}
			t.Logf("of %d pools: sharing incentive violated in %d, by up to %d tasks; envy beyond one task in %d, up to %d; of %d pools misreporting gains in %d, up to %d tasks",
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

// TestPropertiesThatFail has a small counterexample for each property that does not
// hold.
func TestPropertiesThatFail(t *testing.T) {
	for name, c := range map[string]struct {
		total vec
		level Level
		all   []poolTenant
		count string
		want  outcome
	}{
		"lev 2, sharing incentive: the first gets no task, one fits into half of the pool": {
			vec{9, 8, 7}, Second, []poolTenant{{demand: vec{2, 4, 3}}, {demand: vec{2, 1, 5}}}, "[0 1]", outcome{missed: 1}},
		"lev 3, sharing incentive": {
			vec{5, 4, 15}, Third, []poolTenant{{demand: vec{0, 2, 5}}, {demand: vec{0, 0, 6}}}, "[2 0]", outcome{missed: 1}},
		"lev 2, envy: the second share of both is always 0, and the first by name gets all": {
			vec{7, 11, 10}, Second, []poolTenant{{demand: vec{1, 0, 0}}, {demand: vec{1, 0, 0}}}, "[7 0]", outcome{missed: 3, envy: 6}},
		"lev 3, envy": {
			vec{5, 12, 10}, Third, []poolTenant{{demand: vec{5, 3, 0}}, {demand: vec{1, 0, 0}}}, "[1 0]", outcome{missed: 2, envy: 4}},
		"weights, envy: a tenant due half of the other's tasks has none": {
			vec{6, 6, 24}, Largest, []poolTenant{{demand: vec{6, 2, 5}, weight: 2}, {demand: vec{2, 2, 2}}}, "[0 3]", outcome{envy: 1}},
		"tree, envy: the group's part goes to its child that fits": {
			vec{9, 10, 7}, Largest, []poolTenant{{demand: vec{2, 0, 0}}, {}, {demand: vec{7, 1, 7}, below: 2}, {demand: vec{4, 0, 3}, below: 2}}, "[2 0 0 1]",
			outcome{envy: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			p := fillPool(t, c.total, c.level, c.all)
			if got := fmt.Sprint(p.taskCounts); got != c.count || p.checkProperties() != c.want {
				t.Errorf("tasks %s, want %s; %+v, want %+v", got, c.count, p.checkProperties(), c.want)
			}
		})
	}
}

// TestOverstatedDemandPaysInEverySetting shows for each setting that
// strategy-proofness does not hold for whole tasks: one tenant gains by overstating
// its demand.
func TestOverstatedDemandPaysInEverySetting(t *testing.T) {
	for name, c := range map[string]struct {
		total         vec
		level         Level
		all           []poolTenant
		liar          int
		declares      vec
		honest, lying string
	}{
		"flat": {vec{11, 7, 5}, Largest, []poolTenant{{demand: vec{3, 1, 1}}, {demand: vec{2, 5, 0}}, {demand: vec{3, 5, 3}}}, 0, vec{3, 2, 1}, "[2 1 0]", "[3 0 0]"},
		"weights": {vec{11, 8, 11}, Largest, []poolTenant{{demand: vec{6, 6, 7}, weight: 4}, {demand: vec{4, 1, 1}, weight: 3}}, 1, vec{5, 3, 3},
			"[1 1]", "[0 2]"},
		"tree": {vec{5, 11, 12}, Largest, []poolTenant{{}, {demand: vec{2, 3, 2}}, {demand: vec{1, 7, 5}, below: 1}}, 1, vec{2, 5, 4}, "[0 1 1]", "[0 2 0]"},
		"caps": {vec{12, 4, 11}, Largest, []poolTenant{{demand: vec{5, 3, 5}, limit: vec{0, 0, 5}}, {demand: vec{5, 1, 5}}}, 1, vec{6, 2, 5},
			"[1 1]", "[0 2]"},
		"lev 2": {vec{6, 6, 16}, Second, []poolTenant{{demand: vec{1, 1, 2}}, {demand: vec{5, 1, 4}}}, 0, vec{3, 1, 4}, "[1 1]", "[2 0]"},
		"lev 3": {vec{6, 6, 16}, Third, []poolTenant{{demand: vec{1, 1, 2}}, {demand: vec{5, 1, 4}}}, 0, vec{3, 1, 4}, "[1 1]", "[2 0]"},
	} {
		t.Run(name, func(t *testing.T) {
			honest := fmt.Sprint(fillPool(t, c.total, c.level, c.all).taskCounts)
			c.all[c.liar].demand = c.declares
			if lying := fmt.Sprint(fillPool(t, c.total, c.level, c.all).taskCounts); honest != c.honest || lying != c.lying {
				t.Errorf("truthful %s, want %s; overstated %s, want %s", honest, c.honest, lying, c.lying)
			}
		})
	}
}

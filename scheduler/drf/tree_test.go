package drf

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
)

type vec = scheduler.Resources

// progressiveFill gives tasks to flat tenants of one demand each, from one pool,
// until none fits; with stop, until the first that does not fit.
func progressiveFill(t testing.TB, total vec, level Level, demands []vec, stop bool) (order string, count []int64, used vec) {
	tree := New(total, level)
	for _, d := range demands {
		tree.SetNext(tree.Add(scheduler.NoTenant, 1), d)
	}
	count = make([]int64, len(demands))
	for {
		id, d, ok := tree.Next()
		if !ok {
			return order, count, used
		}
		if !d.Fits(total.Sub(used)) {
			if stop {
				return order, count, used
			}
			tree.ClearNext(id)
			continue
		}
		used = used.Add(d)
		tree.Charge(id, d)
		count[id]++
		order += string(rune('a' + id))
	}
}

// TestTable1 is 3DSF Table 1 at all levels, and the naive DRF of its text.
func TestTable1(t *testing.T) {
	total := vec{24, 36, 54}
	three := []vec{{2, 4, 3}, {3, 2, 6}, {1, 3, 6}}
	for _, c := range []struct {
		name  string
		total vec
		level Level
		stop  bool
		order string
		count string
		used  vec
	}{
		{"3DSF Table 1, Lev 1", total, Largest, false, "acbacbacbac", "[4 3 4]", vec{21, 34, 54}},
		{"3DSF Table 1, Lev 2", total, Second, false, "acbacbacabc", "[4 3 4]", vec{21, 34, 54}},
		{"3DSF Table 1, Lev 3", total, Third, false, "cabcabcabca", "[4 3 4]", vec{21, 34, 54}},
	} {
		t.Run(c.name, func(t *testing.T) {
			order, count, used := progressiveFill(t, c.total, c.level, three, c.stop)
			if order != c.order || fmt.Sprint(count) != c.count || used != c.used {
				t.Errorf("got %s, %v, %v; want %s, %s, %v", order, count, used, c.order, c.count, c.used)
			}
		})
	}
	for _, stop := range []bool{true, false} { // CPU and memory only: disk I/O does not count in shares
		tree := New(vec{24, 36, 0}, Largest)
		var used vec
		order, count := "", make([]int, 3)
		for _, d := range three {
			tree.SetNext(tree.Add(scheduler.NoTenant, 1), vec{d[0], d[1], 0})
		}
		for id, _, ok := tree.Next(); ok; id, _, ok = tree.Next() {
			if d := three[id]; d.Fits(total.Sub(used)) {
				used = used.Add(d)
				tree.Charge(id, vec{d[0], d[1], 0})
				count[id]++
				order += string(rune('a' + id))
			} else if stop {
				break
			} else {
				tree.ClearNext(id)
			}
		}
		want := "cabcabcabca [4 3 4]"
		if stop {
			want = "cabcabcacb [3 3 4]"
		}
		if got := fmt.Sprint(order, " ", count); stop && (got != want || used != vec{19, 30, 51}) || !stop && fmt.Sprint(count) != "[4 3 4]" {
			t.Errorf("3DSF section 5, naive DRF, stop %v: %s, %v", stop, got, used)
		}
	}
}

// TestFairness checks, in random pools, sharing incentive and Pareto efficiency
// exactly and envy of at most one own task.
func TestFairness(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 5000 {
		total := vec{10 + r.Int64N(60), 10 + r.Int64N(60), 10 + r.Int64N(60)}
		demands := make([]vec, 1+r.IntN(5))
		for i := range demands {
			demands[i] = vec{1 + r.Int64N(8), 1 + r.Int64N(8), 1 + r.Int64N(8)}
		}
		_, count, used := progressiveFill(t, total, Largest, demands, false)
		for i, d := range demands {
			if d.Fits(total.Sub(used)) {
				t.Fatalf("pool %v, demands %v: one more task of %d fits", total, demands, i)
			}
			alone := int64(math.MaxInt64)
			for k := range d {
				alone = min(alone, total[k]/int64(len(demands))/d[k])
			}
			if count[i] < alone {
				t.Fatalf("pool %v, demands %v: tenant %d has %d tasks, its n-th part of the pool holds %d", total, demands, i, count[i], alone)
			}
			for j := range demands {
				envied := int64(math.MaxInt64) // tasks of i that fit into what j has
				for k := range d {
					envied = min(envied, count[j]*demands[j][k]/d[k])
				}
				if envied > count[i]+1 {
					t.Fatalf("pool %v, demands %v: tenant %d with %d tasks would have %d with the bundle of %d", total, demands, i, count[i], envied, j)
				}
			}
		}
	}
}

// TestOverstatedDemandPays is the counterexample to strategy-proofness for whole
// tasks.
func TestOverstatedDemandPays(t *testing.T) {
	total := vec{35, 20, 26}
	_, honest, _ := progressiveFill(t, total, Largest, []vec{{7, 6, 3}, {4, 1, 3}}, false)
	_, lying, _ := progressiveFill(t, total, Largest, []vec{{7, 6, 3}, {4, 2, 3}}, false)
	if lying[1]-honest[1] != 2 {
		t.Errorf("tasks of the second tenant: truthful %d, overstated %d", honest[1], lying[1])
	}
}

// TestEqualsScan applies random events to a random tree and compares each answer
// with a scan from the root.
func TestEqualsScan(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 2))
	for range 60 {
		total := vec{1000, 2000, 3000}
		tree := New(total, Largest+Level(r.IntN(3)))
		var children = map[scheduler.TenantID][]scheduler.TenantID{}
		n := 1 + r.IntN(25)
		for i := range n {
			parent := scheduler.TenantID(r.IntN(i+1) - 1)
			id := tree.Add(parent, float64(1+r.IntN(4)))
			children[parent] = append(children[parent], id)
		}
		next := map[scheduler.TenantID]vec{}
		own := make([]int64, n)
		var pastOf func(scheduler.TenantID) int64
		pastOf = func(id scheduler.TenantID) int64 {
			sum := own[id]
			for _, c := range children[id] {
				sum += pastOf(c)
			}
			return sum
		}
		var scan func(parent scheduler.TenantID) (scheduler.TenantID, vec)
		scan = func(parent scheduler.TenantID) (scheduler.TenantID, vec) {
			best, demand, least, leastPast := scheduler.NoTenant, vec{}, math.Inf(1), 0.0
			for _, c := range children[parent] {
				id, d := c, next[c]
				if _, own := next[c]; !own {
					if id, d = scan(c); id == scheduler.NoTenant {
						continue
					}
				}
				past := 0.0
				if tree.used(c) == (vec{}) {
					past = float64(pastOf(c)) / tree.tenants[c].weight
				}
				if s := tree.used(c).Add(d).Share(total, int(tree.level)) / tree.tenants[c].weight; s < least || (s == least && past < leastPast) {
					best, demand, least, leastPast = id, d, s, past
				}
			}
			return best, demand
		}
		for range 300 {
			id := scheduler.TenantID(r.IntN(n))
			switch r.IntN(5) {
			case 3:
				own[id] = r.Int64N(4)
				tree.SetPast(id, own[id])
			case 4: // all that it runs ends
				used := tree.used(id)
				for _, c := range children[id] {
					used = used.Sub(tree.used(c))
				}
				tree.Charge(id, vec{}.Sub(used))
			case 0:
				next[id] = vec{1 + r.Int64N(5), r.Int64N(5), r.Int64N(5)}
				tree.SetNext(id, next[id])
			case 1:
				delete(next, id)
				tree.ClearNext(id)
			case 2:
				tree.Charge(id, vec{r.Int64N(9), r.Int64N(9), r.Int64N(9)})
			}
			wantID, wantDemand := scan(scheduler.NoTenant)
			gotID, gotDemand, ok := tree.Next()
			if gotID != wantID || gotDemand != wantDemand || ok != (wantID != scheduler.NoTenant) {
				t.Fatalf("got %d %v, scan %d %v", gotID, gotDemand, wantID, wantDemand)
			}
			alone := ok
			for x := range next { // a child waits behind its parent's own tasks
				for x != scheduler.NoTenant && x != gotID {
					x = tree.tenants[x].parent
				}
				alone = alone && x == gotID
			}
			if ok && tree.IsAlone(gotID) != alone {
				t.Fatalf("alone is %v for %d, scan says %v: %v", !alone, gotID, alone, next)
			}
		}
	}
}

func BenchmarkCharge(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		b.Run(fmt.Sprint("tenants=", n), func(b *testing.B) {
			r := rand.New(rand.NewPCG(1, 1))
			tree := New(vec{1 << 40, 1 << 40, 1 << 40}, Largest)
			for i := range n { // ten groups
				parent := scheduler.NoTenant
				if i >= 10 {
					parent = scheduler.TenantID(i % 10)
				}
				id := tree.Add(parent, 1+r.Float64())
				if i >= 10 || n == 10 {
					tree.SetNext(id, vec{1 + r.Int64N(8), 1 + r.Int64N(8), 1})
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				id, d, _ := tree.Next()
				tree.Charge(id, d)
			}
		})
	}
}

// used returns what was charged to the subtree of a tenant.
func (t *Tree) used(id scheduler.TenantID) scheduler.Resources { return t.tenants[id].used }

package threedsf

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/drf"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// shareScan finds the next tenant by scanning all tenants of the State: the slow judge of shares.
type shareScan struct {
	s         *scheduler.State
	level     int
	resources int
	past      []int64 // of each tenant's own tasks
	next      map[scheduler.TenantID]scheduler.Resources
}

func (x *shareScan) counted(r scheduler.Resources) scheduler.Resources {
	if x.resources == 2 {
		r[scheduler.IO] = 0
	}
	return r
}

// best returns the tenant at or below t whose task is next, and the task's demand.
func (x *shareScan) best(t scheduler.TenantID) (scheduler.TenantID, scheduler.Resources, bool) {
	if d, ok := x.next[t]; ok {
		return t, d, true
	}
	return x.bestBelow(t)
}

// bestBelow returns the tenant below t whose task is next. Of siblings that is the one with the smallest share with its next task,
// for its weight, then the one that used less lately if it uses nothing now, then the first by name.
func (x *shareScan) bestBelow(parent scheduler.TenantID) (best scheduler.TenantID, demand scheduler.Resources, found bool) {
	type sibling struct {
		id          scheduler.TenantID
		demand      scheduler.Resources
		share, past float64
		name        string
	}
	var all []sibling
	for _, t := range x.s.Tenants() {
		if t.Spec.Parent != parent {
			continue
		}
		id, d, ok := x.best(t.Spec.ID)
		if !ok {
			continue
		}
		used := x.counted(t.Used)
		c := sibling{id: id, demand: d, name: t.Spec.Name, share: used.Add(x.counted(d)).Share(x.counted(x.s.Cluster().Total()), x.level) / t.Spec.Weight}
		if used.IsZero() {
			c.past = float64(x.pastBelow(t.Spec.ID)) / t.Spec.Weight
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return scheduler.NoTenant, demand, false
	}
	first := slices.MinFunc(all, func(a, b sibling) int {
		return cmp.Or(cmp.Compare(a.share, b.share), cmp.Compare(a.past, b.past), strings.Compare(a.name, b.name))
	})
	return first.id, first.demand, true
}

func (x *shareScan) pastBelow(t scheduler.TenantID) int64 {
	sum := x.past[t]
	for _, c := range x.s.Tenants() {
		if c.Spec.Parent == t {
			sum += x.pastBelow(c.Spec.ID)
		}
	}
	return sum
}

// However tenants, nodes and use change, the next tenant equals that of a scan of the State, for
// all levels and numbers of resources, and a streak is as long as placing one by one.
func TestNextTenantEqualsScan(t *testing.T) {
	streaks, changes := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		var f shares
		level, resources := drf.Level(rapid.IntRange(1, 3).Draw(t, "level")), rapid.IntRange(2, 3).Draw(t, "resources")
		for range rapid.IntRange(1, 250).Draw(t, "steps") {
			w.Step()
			applyPossible(w)
			if w.R.IntN(8) == 0 {
				changeTenant(w)
				changes++
			}
			f.sync(w.State, level, resources)
			scan := &shareScan{s: w.State, level: int(level), resources: resources, past: f.past, next: map[scheduler.TenantID]scheduler.Resources{}}
			for _, x := range w.State.Tenants() {
				f.setNext(x.Spec.ID, nil)
			}
			for j := range w.State.Jobs() {
				g := j.Stages[w.R.IntN(len(j.Stages))]
				f.setNext(j.Spec.Tenant, g)
				scan.next[j.Spec.Tenant] = f.countedResources(g.Spec.Demand)
			}
			want, demand, found := scan.bestBelow(scheduler.NoTenant)
			got, ok := f.nextTenant()
			if got != want || ok != found {
				t.Fatalf("tenant %d is next (%v), want %d (%v)", got, ok, want, found)
			}
			if !found {
				continue
			}
			others := len(scan.next) > 1
			if alone := f.isAlone(got); alone && others && !onlyBelow(scan, got) {
				t.Fatalf("tenant %d is alone, and %d have a task", got, len(scan.next))
			}
			if n := f.streak(got, demand, 20); n > 1 {
				streaks++
				if n < 20 {
					requireStreak(t, &f, got, demand, n)
				}
			}
		}
	})
	if t.Logf("%d streaks, %d changes of tenants", streaks, changes); !t.Failed() && min(streaks, changes) < 20 {
		t.Error("too few cases of a kind for a meaningful test")
	}
}

// onlyBelow reports whether all other tenants with a task are below a tenant, whose own tasks precede theirs.
func onlyBelow(x *shareScan, t scheduler.TenantID) bool {
	for other := range x.next {
		for up := other; up != t; up = x.s.Tenant(up).Spec.Parent {
			if up == scheduler.NoTenant {
				return false
			}
		}
	}
	return true
}

// requireStreak fails the test unless tenant id stays next while fewer than n of its tasks are charged, and no longer.
func requireStreak(t *rapid.T, f *shares, id scheduler.TenantID, demand scheduler.Resources, n int32) {
	for i := range n {
		if next, _ := f.nextTenant(); next != id {
			t.Fatalf("tenant %d is next after %d tasks of a streak of %d", next, i, n)
		}
		f.charge(id, demand)
	}
	if next, _ := f.nextTenant(); next == id {
		t.Fatalf("tenant %d is next after its streak of %d tasks", id, n)
	}
	f.charge(id, demand.Times(-int64(n)))
}

// changeTenant adds a tenant, or changes the weight or the parent of one.
func changeTenant(w *schedtest.Chaos) {
	spec := w.State.Tenants()[w.R.IntN(len(w.State.Tenants()))].Spec
	switch n := len(w.State.Tenants()); {
	case w.R.IntN(2) == 0 && n < 20:
		spec = scheduler.TenantSpec{ID: scheduler.TenantID(n), Name: fmt.Sprintf("%c%d", 'a'+w.R.IntN(26), n), Parent: scheduler.TenantID(w.R.IntN(n)), Weight: 1}
	case w.R.IntN(3) == 0:
		spec.Parent = scheduler.TenantID(w.R.IntN(n+1) - 1) // refused if that is a cycle
	default:
		spec.Weight = float64(1+w.R.IntN(8)) / 2
	}
	_ = w.State.Events().PutTenant(spec)
}

// 3DSF Table 1: capacity <24 CPU, 36 GB, 54 I/O>; tasks of a take <2,4,3>, of b <3,2,6>, of c <1,3,6>. The orders are those that
// result when tenants are compared by the share with their next task, ties by name, worked out by hand.
func TestTable1ByLevel(t *testing.T) {
	for _, x := range []struct {
		level     drf.Level
		resources int
		stop      bool
		want      string
	}{
		{drf.Largest, 3, false, "acbacbacbac"},
		{drf.Second, 3, false, "acbacbacabc"},
		{drf.Third, 3, false, "cabcabcabca"},
		{drf.Largest, 2, true, "cabcabcacb"}, // CPU and memory alone, and Alg. 1 as it is printed: 3, 3, 4
	} {
		t.Run(fmt.Sprintf("%v of %d", x.level, x.resources), func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(24, 36, 54)).AddTenants("a", "b", "c")
			w.Submit("a", 20, schedtest.R(2, 4, 3))
			w.Submit("b", 20, schedtest.R(3, 2, 6))
			w.Submit("c", 20, schedtest.R(1, 3, 6))
			d := w.Cycle(New(Config{Name: "drf", Level: x.level, Resources: x.resources, StopAtFirstMisfit: x.stop}))
			order := ""
			for i := range d.Actions {
				order += w.State.Tenant(w.State.Job(d.Actions[i].Task.Job).Spec.Tenant).Spec.Name
			}
			if order != x.want {
				t.Errorf("tasks of %s are placed, want %s", order, x.want)
			}
		})
	}
}

// The part that a tenant's guarantees may reserve is the product, over it and its ancestors, of its
// weight over that of the siblings with work.
func TestGuaranteeShares(t *testing.T) {
	tree := []string{"eng=3", "eng/a=1", "eng/b=1", "ops=1", "ops/c=2", "lab=4"}
	for name, x := range map[string]struct {
		share float64
		work  []string
		want  []float64 // of the tenants in their order
	}{
		"nobody has work":        {0, nil, []float64{1, 1, 1, 1, 1, 1}},
		"one leaf":               {0, []string{"a"}, []float64{1, 1, 1, 1. / 3, 1. / 3, 1}},
		"two leaves of a branch": {0, []string{"a", "b"}, []float64{1, 0.5, 0.5, 1. / 3, 1. / 3, 1}},
		"two branches":           {0, []string{"a", "c"}, []float64{0.75, 0.75, 0.75, 0.25, 0.25, 1}},
		"all":                    {0, []string{"a", "b", "c", "lab"}, []float64{0.375, 0.1875, 0.1875, 0.125, 0.125, 0.5}},
		"a branch itself":        {0, []string{"eng", "c"}, []float64{0.75, 0.75, 0.75, 0.25, 0.25, 1}},
		"configured":             {0.3, []string{"a", "c"}, []float64{0.3, 0.3, 0.3, 0.3, 0.3, 0.3}},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 4)).AddTenants(tree...)
			for _, tenant := range x.work {
				w.Submit(tenant, 1, schedtest.R(1, 1, 1))
			}
			c := newTestCycle(w, Config{Guarantees: Guarantees{Share: x.share}})
			got := (&planning{c: c}).guaranteeShares()
			for i, want := range x.want {
				if math.Abs(got[i]-want) > 1e-12 {
					t.Errorf("%s may reserve %g, want %g", tree[i], got[i], want)
				}
			}
		})
	}
}

// The shares of the tenants without children that have work add up to the whole cluster.
func TestGuaranteeSharesAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.NewChaos(t, rapid.Uint64().Draw(t, "seed"))
		for range rapid.IntRange(0, 12).Draw(t, "changes") {
			changeTenant(w)
		}
		var leaves []scheduler.TenantID
		for _, x := range w.State.Tenants() {
			if len(x.Children) == 0 && (w.R.IntN(2) == 0 || len(leaves) == 0) {
				w.Submit(x.Spec.Name, 1, schedtest.R(1, 1, 0))
				leaves = append(leaves, x.Spec.ID)
			}
		}
		shares := (&planning{c: newTestCycle(w.World, Config{})}).guaranteeShares()
		sum := 0.0
		for _, id := range leaves {
			sum += shares[id]
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Fatalf("tenants %v with work may reserve %g of the cluster, want all: %v", leaves, sum, shares)
		}
	})
}

// A tenant's recent use is the sum over the last tasks that ended, whenever it is read.
func TestPastIsTheUseOfTheLastTasks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a", "b=2", "c")
		c := newTestCycle(w, Config{})
		f := c.shares
		w.State.Journal().Rollback(c.mark)
		tenants := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c"}), 2*pastTasks, 3*pastTasks).Draw(t, "tenants")
		reads := rapid.SliceOfN(rapid.Bool(), len(tenants), len(tenants)).Draw(t, "reads")
		for i, tenant := range tenants {
			id := w.Submit(tenant, 1, schedtest.R(float64(1+i%4), 1, 0))
			a := w.Place(scheduler.TaskID{Job: id}, 0)
			w.Start().Advance(time.Duration(i)*time.Second).End(a, scheduler.OutcomeSucceeded)
			if !reads[i] {
				continue
			}
			f.sync(w.State, f.level, f.resources)
			want := make([]int64, len(w.State.Tenants()))
			w.State.History().RecentTasks(pastTasks, func(e *scheduler.FinishedTask) bool {
				want[e.Tenant] += 1 + int64(f.countedResources(e.Demand).DominantShare(f.total)*float64(e.RunTime))
				return true
			})
			if !slices.Equal(f.past, want) {
				t.Fatalf("after %d tasks the recent use of tenants is %v, want %v", i+1, f.past, want)
			}
		}
	})
}

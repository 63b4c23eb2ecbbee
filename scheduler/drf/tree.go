package drf

import (
	"sort"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/internal/heaps"
	"github.com/drover-run/drover/scheduler"
)

// Level selects which share of a vector counts as dominant: Lev of 3DSF Alg. 1.
type Level int

const (
	Largest Level = iota + 1 // Lev 1, the dominant share of DRF
	Second                   // Lev 2
	Third                    // Lev 3
)

// String returns the name of the level.
func (l Level) String() string {
	return enum.Name("lev", l, []string{Largest: "lev 1", Second: "lev 2", Third: "lev 3"})
}

// tenant is one node of the tree.
type tenant struct {
	parent scheduler.TenantID
	weight float64
	used   scheduler.Resources // by its subtree
	past   int64               // of its subtree, see SetPast
	own    int64               // past of the tenant alone

	next      scheduler.Resources // its own next task, valid if hasNext
	hasNext   bool
	best      scheduler.TenantID  // of its subtree, or NoTenant
	demand    scheduler.Resources // of best's next task
	share     float64             // with that task, over weight
	heapIndex int                 // in the heap of its parent, or -1
	heap      []scheduler.TenantID
}

// Tree holds the shares of the tenants of one pool. Use New to create it. It is not safe for concurrent use.
type Tree struct {
	total   scheduler.Resources
	level   Level
	tenants []tenant
	roots   tenant // its heap contains the tenants without a parent
	order   heaps.Order[scheduler.TenantID]
}

// New returns an empty tree over a pool of total (every resource 0 or more).
func New(total scheduler.Resources, level Level) *Tree {
	t := &Tree{total: total, level: level}
	t.roots.best = scheduler.NoTenant
	t.order = heaps.Order[scheduler.TenantID]{Less: t.less, Moved: func(id scheduler.TenantID, i int) { t.tenants[id].heapIndex = i }}
	return t
}

// Add adds the tenant with the next id, counted from 0, below parent (or NoTenant) with a weight over 0. Ties of shares
// go to the lower id (but see SetPast), so add siblings in order of name. O(1).
func (t *Tree) Add(parent scheduler.TenantID, weight float64) scheduler.TenantID {
	t.tenants = append(t.tenants, tenant{parent: parent, weight: weight, best: scheduler.NoTenant, heapIndex: -1})
	return scheduler.TenantID(len(t.tenants) - 1)
}

// SetNext sets the demand of a tenant's next task. O(depth x log siblings), O(1) if it is as before.
func (t *Tree) SetNext(id scheduler.TenantID, demand scheduler.Resources) {
	if x := &t.tenants[id]; !x.hasNext || x.next != demand {
		x.next, x.hasNext = demand, true
		t.refresh(id)
	}
}

// ClearNext records that a tenant has no task that could be placed. O(depth x log siblings), O(1) if it had none before.
func (t *Tree) ClearNext(id scheduler.TenantID) {
	if x := &t.tenants[id]; x.hasNext {
		x.hasNext = false
		t.refresh(id)
	}
}

// Charge adds a task's demand to a tenant and its ancestors; a negative demand releases it. O(depth x log siblings).
func (t *Tree) Charge(id scheduler.TenantID, demand scheduler.Resources) {
	for up := id; up != scheduler.NoTenant; up = t.tenants[up].parent {
		t.tenants[up].used = t.tenants[up].used.Add(demand)
	}
	t.refresh(id)
}

// SetPast sets what a tenant used in the recent past, in any unit. Of siblings with equal shares that
// use nothing now, the one whose subtree used less for its weight is next: where tasks run one at a
// time, all shares are equal whenever the next one is chosen. O(depth x log siblings).
func (t *Tree) SetPast(id scheduler.TenantID, past int64) {
	more := past - t.tenants[id].own
	t.tenants[id].own = past
	for up := id; up != scheduler.NoTenant; up = t.tenants[up].parent {
		t.tenants[up].past += more
	}
	t.refresh(id)
}

// pastUse returns what decides between equal shares: 0 for a tenant that uses something now.
func (x *tenant) pastUse() float64 {
	if x.past == 0 || x.used != (scheduler.Resources{}) {
		return 0
	}
	return float64(x.past) / x.weight
}

// Next returns the next tenant and the demand of its next task; ok is false if no tenant has one. O(1).
func (t *Tree) Next() (id scheduler.TenantID, demand scheduler.Resources, ok bool) {
	if len(t.roots.heap) == 0 {
		return scheduler.NoTenant, scheduler.Resources{}, false
	}
	top := &t.tenants[t.roots.heap[0]]
	return top.best, top.demand, true
}

// IsAlone reports whether a tenant is next and no other tenant has a task, so that
// it stays next whatever is charged. O(depth).
func (t *Tree) IsAlone(id scheduler.TenantID) bool {
	if next, _, ok := t.Next(); !ok || next != id {
		return false
	}
	for up := id; up != scheduler.NoTenant; up = t.tenants[up].parent {
		if len(t.heapOwner(up).heap) > 1 {
			return false
		}
	}
	return true
}

// Streak returns how many tasks in a row the next tenant id would place before another is next, at most limit, if each
// charges demand and its next task stays the same. O(depth x (log streak + at most three children of its ancestors)).
func (t *Tree) Streak(id scheduler.TenantID, demand scheduler.Resources, limit int) int {
	n := limit
	for up := id; up != scheduler.NoTenant && n > 1; up = t.tenants[up].parent {
		heap := t.heapOwner(up).heap
		second := scheduler.NoTenant
		for _, other := range heap[min(1, len(heap)):min(3, len(heap))] {
			if second == scheduler.NoTenant || t.less(other, second) {
				second = other
			}
		}
		if second == scheduler.NoTenant {
			continue
		}
		x := &t.tenants[up]
		with, most := x.used.Add(x.demand), n
		past, secondPast := 0.0, t.tenants[second].pastUse()
		if demand == (scheduler.Resources{}) {
			past = x.pastUse()
		}
		stays := func(tasks int) bool { // next, after so many tasks; the share only grows with them
			share := with.Add(demand.Times(int64(tasks))).Share(t.total, int(t.level)) / x.weight
			y := t.tenants[second].share
			return share < y || (share == y && (past < secondPast || (past == secondPast && up < second)))
		}
		for n = 1; n < most && stays(n); n *= 2 {
		}
		low := n/2 + 1 // after n/2 tasks it is next
		n = low + sort.Search(min(n, most)-low, func(i int) bool { return !stays(low + i) })
	}
	return n
}

// Share returns the share of a tenant's subtree with its next task, over its weight; ok is false if it has none.
func (t *Tree) Share(id scheduler.TenantID) (share float64, ok bool) {
	x := &t.tenants[id]
	return x.share, x.best != scheduler.NoTenant
}

func (t *Tree) heapOwner(id scheduler.TenantID) *tenant {
	if p := t.tenants[id].parent; p != scheduler.NoTenant {
		return &t.tenants[p]
	}
	return &t.roots
}

// refresh recomputes the best task of id and its ancestors. A tenant's own tasks
// precede those of its children: give jobs to leaves if they should compete.
func (t *Tree) refresh(id scheduler.TenantID) {
	for ; id != scheduler.NoTenant; id = t.tenants[id].parent {
		x := &t.tenants[id]
		switch {
		case x.hasNext:
			x.best, x.demand = id, x.next
		case len(x.heap) > 0:
			child := &t.tenants[x.heap[0]]
			x.best, x.demand = child.best, child.demand
		default:
			x.best = scheduler.NoTenant
		}
		if x.best != scheduler.NoTenant {
			x.share = x.used.Add(x.demand).Share(t.total, int(t.level)) / x.weight
		}
		switch h := &t.heapOwner(id).heap; {
		case x.best != scheduler.NoTenant && x.heapIndex < 0:
			t.order.Push(h, id)
		case x.best != scheduler.NoTenant:
			t.order.Fix(*h, x.heapIndex)
		case x.heapIndex >= 0:
			t.order.Remove(h, x.heapIndex)
		}
	}
}

func (t *Tree) less(a, b scheduler.TenantID) bool {
	x, y := &t.tenants[a], &t.tenants[b]
	if x.share != y.share {
		return x.share < y.share
	}
	if past, other := x.pastUse(), y.pastUse(); past != other {
		return past < other
	}
	return a < b
}

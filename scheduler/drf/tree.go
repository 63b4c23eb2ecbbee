package drf

import (
	"errors"
	"fmt"
	"math"

	"github.com/drover-run/drover/scheduler"
)

// ErrTree is the class of all errors of this package: a tenant that cannot be.
var ErrTree = errors.New("drf: bad tenant")

// MaxDepth bounds the depth of the tree.
const MaxDepth = 64

// Level says which share of a vector counts as dominant: Lev of 3DSF Alg. 1.
type Level int

const (
	Largest Level = iota + 1 // Lev 1, the dominant share of DRF
	Second                   // Lev 2
	Third                    // Lev 3
)

// String is the name of the level.
func (l Level) String() string {
	switch l {
	case Largest:
		return "lev 1"
	case Second:
		return "lev 2"
	case Third:
		return "lev 3"
	default:
		return fmt.Sprintf("lev(%d)", int(l))
	}
}

// tenant is one node of the tree.
type tenant struct {
	parent scheduler.TenantID
	depth  int
	weight float64
	used   scheduler.Resources // by its subtree

	next   scheduler.Resources // own next task, valid if own
	own    bool                // has a next task of its own
	best   scheduler.TenantID  // of its subtree, or NoTenant
	demand scheduler.Resources // next task of best
	share  float64             // with that task, over weight
	at     int                 // index in the heap of its parent, or -1
	heap   []scheduler.TenantID
}

// Tree is the state of fairness over one pool. Make it with New; it is not safe
// for concurrent use.
type Tree struct {
	total   scheduler.Resources
	level   Level
	tenants []tenant
	roots   tenant // its heap holds the tenants without a parent
}

// New makes an empty tree over a pool of total (every part 0 or more).
// Errors: ErrTree.
func New(total scheduler.Resources, level Level) (*Tree, error) {
	if level < Largest || level > Third {
		return nil, fmt.Errorf("%w: %v is not 1 to 3", ErrTree, level)
	}
	if err := total.Check(); err != nil {
		return nil, fmt.Errorf("%w: total: %w", ErrTree, err)
	}
	t := &Tree{total: total, level: level}
	t.roots.best = scheduler.NoTenant
	return t, nil
}

// Add adds the tenant with the next id, counted from 0, below parent (or
// NoTenant) with a weight over 0. Ties of shares go to the lower id, so add
// siblings in order of name. Errors: ErrTree for a parent that is not there, a
// tree too deep, or a weight that is no positive number. O(1).
func (t *Tree) Add(parent scheduler.TenantID, weight float64) (scheduler.TenantID, error) {
	depth := 0
	if parent != scheduler.NoTenant {
		if parent < 0 || int(parent) >= len(t.tenants) {
			return 0, fmt.Errorf("%w: parent %d of %d tenants", ErrTree, parent, len(t.tenants))
		}
		depth = t.tenants[parent].depth + 1
	}
	if depth >= MaxDepth {
		return 0, fmt.Errorf("%w: %d levels deep, at most %d", ErrTree, depth+1, MaxDepth)
	}
	if !(weight > 0) || math.IsInf(weight, 0) {
		return 0, fmt.Errorf("%w: weight %g is not over 0", ErrTree, weight)
	}
	t.tenants = append(t.tenants, tenant{parent: parent, depth: depth, weight: weight, best: scheduler.NoTenant, at: -1})
	return scheduler.TenantID(len(t.tenants) - 1), nil
}

// Used is what the subtree of a tenant has been charged.
func (t *Tree) Used(id scheduler.TenantID) scheduler.Resources { return t.tenants[id].used }

// SetNext says that the next task of a tenant demands so much.
// O(depth x log siblings).
func (t *Tree) SetNext(id scheduler.TenantID, demand scheduler.Resources) {
	t.tenants[id].next, t.tenants[id].own = demand, true
	t.refresh(id)
}

// ClearNext says that a tenant has no task that could be placed.
// O(depth x log siblings).
func (t *Tree) ClearNext(id scheduler.TenantID) {
	t.tenants[id].own = false
	t.refresh(id)
}

// Charge adds what a task of the tenant takes to the tenant and all above it; a
// negative demand gives back. O(depth x log siblings).
func (t *Tree) Charge(id scheduler.TenantID, demand scheduler.Resources) {
	for up := id; up != scheduler.NoTenant; up = t.tenants[up].parent {
		t.tenants[up].used = t.tenants[up].used.Add(demand)
	}
	t.refresh(id)
}

// Next is the tenant whose turn it is and the demand of its next task; ok is
// false when no tenant has one. O(1).
func (t *Tree) Next() (id scheduler.TenantID, demand scheduler.Resources, ok bool) {
	if len(t.roots.heap) == 0 {
		return scheduler.NoTenant, scheduler.Resources{}, false
	}
	top := &t.tenants[t.roots.heap[0]]
	return top.best, top.demand, true
}

// Alone tells whether a tenant is next and nobody else in the tree has a task, so
// that it stays next whatever is charged. O(depth).
func (t *Tree) Alone(id scheduler.TenantID) bool {
	if next, _, ok := t.Next(); !ok || next != id {
		return false
	}
	for up := id; up != scheduler.NoTenant; up = t.tenants[up].parent {
		if len(t.holder(up).heap) > 1 {
			return false
		}
	}
	return true
}

// Streak tells how many turns in a row a tenant has whose turn it is, limit at
// most: after each it is charged so much, and its next task stays as it is.
// Nothing is charged. O(depth x (streak + children of the tenants above it, at most
// three)).
func (t *Tree) Streak(id scheduler.TenantID, demand scheduler.Resources, limit int) int {
	n := limit
	for up := id; up != scheduler.NoTenant && n > 1; up = t.tenants[up].parent {
		heap := t.holder(up).heap
		second := scheduler.NoTenant
		for _, other := range heap[min(1, len(heap)):min(3, len(heap))] {
			if second == scheduler.NoTenant || t.before(other, second) {
				second = other
			}
		}
		if second == scheduler.NoTenant {
			continue
		}
		x := &t.tenants[up]
		with, most := x.used.Add(x.demand), n
		for n = 1; n < most; n++ {
			with = with.Add(demand)
			share := with.Share(t.total, int(t.level)) / x.weight
			if y := t.tenants[second].share; share > y || (share == y && up > second) {
				break
			}
		}
	}
	return n
}

// Share is the share that a tenant's subtree would have with its next task, over
// its weight; ok is false when it has none.
func (t *Tree) Share(id scheduler.TenantID) (share float64, ok bool) {
	x := &t.tenants[id]
	return x.share, x.best != scheduler.NoTenant
}

// holder is the tenant that has id in its heap.
func (t *Tree) holder(id scheduler.TenantID) *tenant {
	if p := t.tenants[id].parent; p != scheduler.NoTenant {
		return &t.tenants[p]
	}
	return &t.roots
}

// refresh computes the best task of id and of all above it again. A tenant's own
// tasks go before those of its children; give jobs to leaves where they should
// compete.
func (t *Tree) refresh(id scheduler.TenantID) {
	for ; id != scheduler.NoTenant; id = t.tenants[id].parent {
		x := &t.tenants[id]
		switch {
		case x.own:
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
		t.place(t.holder(id), id, x.best != scheduler.NoTenant)
	}
}

// place puts id where it belongs in the heap of its holder, or takes it out.
func (t *Tree) place(h *tenant, id scheduler.TenantID, in bool) {
	at := t.tenants[id].at
	switch {
	case in && at < 0:
		h.heap = append(h.heap, id)
		at = len(h.heap) - 1
		t.tenants[id].at = at
	case !in && at >= 0:
		last := len(h.heap) - 1
		moved := h.heap[last]
		h.heap = h.heap[:last]
		t.tenants[id].at = -1
		if at == last {
			return
		}
		h.heap[at] = moved
		t.tenants[moved].at = at
	case !in:
		return
	}
	t.sink(h, t.rise(h, at))
}

func (t *Tree) before(a, b scheduler.TenantID) bool {
	x, y := t.tenants[a].share, t.tenants[b].share
	if x != y {
		return x < y
	}
	return a < b
}

func (t *Tree) rise(h *tenant, i int) int {
	for i > 0 && t.before(h.heap[i], h.heap[(i-1)/2]) {
		t.swap(h, i, (i-1)/2)
		i = (i - 1) / 2
	}
	return i
}

func (t *Tree) sink(h *tenant, i int) {
	for {
		c := 2*i + 1
		if c >= len(h.heap) {
			return
		}
		if c+1 < len(h.heap) && t.before(h.heap[c+1], h.heap[c]) {
			c++
		}
		if !t.before(h.heap[c], h.heap[i]) {
			return
		}
		t.swap(h, i, c)
		i = c
	}
}

func (t *Tree) swap(h *tenant, i, j int) {
	h.heap[i], h.heap[j] = h.heap[j], h.heap[i]
	t.tenants[h.heap[i]].at, t.tenants[h.heap[j]].at = i, j
}

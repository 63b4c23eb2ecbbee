package threedsf

import (
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/drf"
)

// shares keeps a drf.Tree in line with the tenants of a State. The tree breaks
// ties by id, so its ids are given in order of name among siblings.
type shares struct {
	tree      *drf.Tree
	level     drf.Level
	resources int
	total     scheduler.Resources
	known     []scheduler.TenantSpec // as they are in the tree
	charged   []scheduler.Resources  // own part of each tenant, as the tree has it
	idOf      []scheduler.TenantID   // tree id of each tenant
	tenantOf  []scheduler.TenantID   // tenant of each tree id
	roots     []scheduler.TenantID
}

// sync brings the tree in line. O(tenants + changes x depth x log siblings).
func (f *shares) sync(s *scheduler.State, level drf.Level, resources int) {
	f.level, f.resources = level, resources
	if !f.fits(s) {
		f.build(s)
	}
	for _, t := range s.Tenants() {
		id := t.Spec.ID
		if t.Own != f.charged[id] {
			f.charge(id, t.Own.Sub(f.charged[id]))
		}
	}
}

// fits tells whether the tree has the State's tenants and total.
func (f *shares) fits(s *scheduler.State) bool {
	if f.tree == nil || f.total != f.counted(s.Total()) || len(f.known) != len(s.Tenants()) {
		return false
	}
	for i, t := range s.Tenants() {
		if k := &f.known[i]; t.Spec.Parent != k.Parent || t.Spec.Weight != k.Weight || t.Spec.Name != k.Name {
			return false
		}
	}
	return true
}

// counted leaves out the resources that are no part of shares.
func (f *shares) counted(r scheduler.Resources) scheduler.Resources {
	if f.resources == 2 {
		r[scheduler.IO] = 0
	}
	return r
}

func (f *shares) build(s *scheduler.State) {
	f.total = f.counted(s.Total())
	tree, err := drf.New(f.total.Min(scheduler.Resources{scheduler.MaxAmount, scheduler.MaxAmount, scheduler.MaxAmount}), f.level)
	if err != nil {
		panic("threedsf: " + err.Error())
	}
	f.tree = tree
	n := len(s.Tenants())
	f.known, f.tenantOf, f.roots = f.known[:0], f.tenantOf[:0], f.roots[:0]
	f.idOf = slices.Grow(f.idOf[:0], n)[:n]
	f.charged = slices.Grow(f.charged[:0], n)[:n]
	clear(f.charged)
	for _, t := range s.Tenants() {
		f.known = append(f.known, t.Spec)
		if t.Spec.Parent == scheduler.NoTenant {
			f.roots = append(f.roots, t.Spec.ID)
		}
	}
	slices.SortFunc(f.roots, func(a, b scheduler.TenantID) int {
		return strings.Compare(s.Tenant(a).Spec.Name, s.Tenant(b).Spec.Name)
	})
	for _, r := range f.roots {
		f.add(s, r, scheduler.NoTenant)
	}
}

// add adds a tenant and all below it. The depth is that of the State, bounded.
func (f *shares) add(s *scheduler.State, id, parent scheduler.TenantID) {
	t := s.Tenant(id)
	at, err := f.tree.Add(parent, t.Spec.Weight)
	if err != nil {
		panic("threedsf: " + err.Error())
	}
	f.idOf[id] = at
	f.tenantOf = append(f.tenantOf, id)
	for _, c := range t.Children {
		f.add(s, c, at)
	}
}

// charge adds to what a tenant has in the tree.
func (f *shares) charge(t scheduler.TenantID, d scheduler.Resources) {
	f.charged[t] = f.charged[t].Add(d)
	f.tree.Charge(f.idOf[t], f.counted(d))
}

// setNext says what the tenant's next task is, or with nil that it has none.
func (f *shares) setNext(t scheduler.TenantID, g *scheduler.Stage) {
	if g == nil {
		f.tree.ClearNext(f.idOf[t])
		return
	}
	f.tree.SetNext(f.idOf[t], f.counted(g.Spec.Demand))
}

// next gives the tenant whose turn it is.
func (f *shares) next() (scheduler.TenantID, bool) {
	id, _, ok := f.tree.Next()
	if !ok {
		return scheduler.NoTenant, false
	}
	return f.tenantOf[id], true
}

// streak counts the turns that a tenant whose turn it is has in a row, limit at
// most, if each takes so much.
func (f *shares) streak(t scheduler.TenantID, d scheduler.Resources, limit int32) int32 {
	return int32(f.tree.Streak(f.idOf[t], f.counted(d), int(limit)))
}

// alone tells whether it is a tenant's turn whatever it is charged.
func (f *shares) alone(t scheduler.TenantID) bool { return f.tree.Alone(f.idOf[t]) }

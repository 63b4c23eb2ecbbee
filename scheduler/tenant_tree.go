package scheduler

import (
	"slices"
	"strings"
)

// TenantTree is the tenants of a State, with what they use and may use.
type TenantTree struct {
	tenants     []*Tenant
	tenantName  map[string]TenantID
	readyTenant bitset
	capped      int    // number of tenants with a cap of their own
	changes     uint64 // of tenants, their parents and caps
}

// tenant returns a tenant, or nil.
func (t *TenantTree) tenant(id TenantID) *Tenant {
	if id < 0 || int(id) >= len(t.tenants) {
		return nil
	}
	return t.tenants[id]
}

func (t *TenantTree) countCaps(spec *TenantSpec, sign int) {
	if spec.Caps != (Caps{}) {
		t.capped += sign
	}
}

// height returns the number of levels of the tenant's subtree.
func (t *TenantTree) height(id TenantID) int {
	h := 0
	for _, c := range t.tenants[id].Children {
		h = max(h, t.height(c))
	}
	return h + 1
}

// addChild inserts a tenant into its parent's children, by name.
func (t *TenantTree) addChild(parent, child TenantID) {
	if parent == NoTenant {
		return
	}
	p := t.tenants[parent]
	i, _ := slices.BinarySearchFunc(p.Children, t.tenants[child].Spec.Name, func(c TenantID, name string) int {
		return strings.Compare(t.tenants[c].Spec.Name, name)
	})
	p.Children = slices.Insert(p.Children, i, child)
}

func (t *TenantTree) removeChild(parent, child TenantID) {
	if parent != NoTenant {
		p := t.tenants[parent]
		p.Children = slices.DeleteFunc(p.Children, func(c TenantID) bool { return c == child })
	}
}

// chargeUp adds to the use of a tenant and all its ancestors.
func (tree *TenantTree) chargeUp(id TenantID, d Resources, running int32) {
	for t := tree.tenant(id); t != nil; t = tree.tenant(t.Spec.Parent) {
		t.Used = t.Used.Add(d)
		t.Running += running
	}
}

// addReleasing adds to what a tenant and all its ancestors will free.
func (tree *TenantTree) addReleasing(id TenantID, d Resources) {
	for t := tree.tenant(id); t != nil; t = tree.tenant(t.Spec.Parent) {
		t.Releasing = t.Releasing.Add(d)
	}
}

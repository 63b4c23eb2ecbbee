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

func (t *TenantTree) tenant(id TenantID) *Tenant {
	if id < 0 || int(id) >= len(t.tenants) {
		return nil
	}
	return t.tenants[id]
}

func (t *TenantTree) height(id TenantID) int {
	h := 0
	for _, c := range t.tenants[id].Children {
		h = max(h, t.height(c))
	}
	return h + 1
}

// link adds a tenant to its parent's children, by name, to the use of its ancestors and to the
// number of capped tenants (sign 1), or removes it (sign -1).
func (tree *TenantTree) link(t *Tenant, sign int64) {
	if t.Spec.Caps != (Caps{}) {
		tree.capped += int(sign)
	}
	tree.chargeUp(t.Spec.Parent, t.Used.Times(sign), t.Running*int32(sign))
	tree.addReleasing(t.Spec.Parent, t.Releasing.Times(sign))
	p := tree.tenant(t.Spec.Parent)
	if p == nil {
		return
	}
	i, _ := slices.BinarySearchFunc(p.Children, t.Spec.Name, func(c TenantID, name string) int {
		return strings.Compare(tree.tenants[c].Spec.Name, name)
	})
	if sign > 0 {
		p.Children = slices.Insert(p.Children, i, t.Spec.ID)
	} else {
		p.Children = slices.Delete(p.Children, i, i+1)
	}
}

// chargeUp adds to the use of a tenant and all its ancestors.
func (tree *TenantTree) chargeUp(id TenantID, d Resources, running int32) {
	for t := tree.tenant(id); t != nil; t = tree.tenant(t.Spec.Parent) {
		t.Used = t.Used.Add(d)
		t.Running += running
	}
}

// addReleasing adds to Releasing of a tenant and all its ancestors.
func (tree *TenantTree) addReleasing(id TenantID, d Resources) {
	for t := tree.tenant(id); t != nil; t = tree.tenant(t.Spec.Parent) {
		t.Releasing = t.Releasing.Add(d)
	}
}

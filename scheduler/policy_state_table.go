package scheduler

import (
	"slices"
	"sort"
)

// policyStateTable stores policy states by key. Those of a tenant alone are stored together: a cycle of 3dsf replaces
// several for each tenant, and in a map with the states of tens of thousands of jobs each would be a cache miss or two.
type policyStateTable struct {
	ofTenant [][]PolicyState // states of no job and no project, by key
	others   map[PolicyStateKey]PolicyState
}

// tabledTenants bounds the tenants whose states are stored together: a policy state may name one that does not exist.
const tabledTenants = 1 << 16

// isOfTenant reports whether a key belongs to a tenant alone. A key without any owner belongs to tenant 0.
func (k *PolicyStateKey) isOfTenant() bool {
	return k.Job == 0 && k.Project == 0 && k.Tenant >= 0 && k.Tenant < tabledTenants
}

// find returns the policy states of the key's tenant, by key, the index of the state with that key
// or its insertion index, and whether it is there.
func (t *policyStateTable) find(k *PolicyStateKey) (list []PolicyState, at int, found bool) {
	if int(k.Tenant) < len(t.ofTenant) {
		list = t.ofTenant[k.Tenant]
	}
	at = sort.Search(len(list), func(i int) bool { return list[i].compare(k) >= 0 })
	return list, at, at < len(list) && list[at].PolicyStateKey == *k
}

func (t *policyStateTable) get(k PolicyStateKey) (p PolicyState, ok bool) {
	if !k.isOfTenant() {
		p, ok = t.others[k]
		return p, ok
	}
	if list, i, found := t.find(&k); found {
		return list[i], true
	}
	return PolicyState{}, false
}

// put adds a policy state or replaces the one with its key, and reports whether it is new.
func (t *policyStateTable) put(p *PolicyState) (isNew bool) {
	if !p.isOfTenant() {
		before := len(t.others)
		t.others[p.PolicyStateKey] = *p
		return len(t.others) > before
	}
	list, i, found := t.find(&p.PolicyStateKey)
	if found {
		list[i] = *p
		return false
	}
	for int(p.Tenant) >= len(t.ofTenant) {
		t.ofTenant = append(t.ofTenant, nil)
	}
	t.ofTenant[p.Tenant] = slices.Insert(list, i, *p)
	return true
}

func (t *policyStateTable) drop(k PolicyStateKey) {
	if !k.isOfTenant() {
		delete(t.others, k)
		return
	}
	if list, i, found := t.find(&k); found {
		t.ofTenant[k.Tenant] = slices.Delete(list, i, i+1)
	}
}

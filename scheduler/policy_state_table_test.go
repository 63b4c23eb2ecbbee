package scheduler

import (
	"slices"
	"testing"
)

// A policy state may name a tenant that does not exist: one whose number is in no list is kept as well as others.
func TestPolicyStatesOfAnyTenantAreKept(t *testing.T) {
	s := New()
	table := &s.policyStates
	tenants := []TenantID{-1 << 31, -1, 0, 5, tabledTenants - 1, tabledTenants, 1<<31 - 1}
	var want []PolicyState
	for i, tenant := range tenants {
		for slot := range int32(2) {
			p := PolicyState{PolicyStateKey: PolicyStateKey{Kind: DeficitState, Tenant: tenant, Slot: slot}, Value: int64(10*i) + int64(slot)}
			table.put(&p)
			want = append(want, p)
		}
	}
	same := func(what string) {
		t.Helper()
		got := s.PolicyStates().All()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
		for _, p := range want {
			if got, ok := table.get(p.PolicyStateKey); !ok || got != p {
				t.Errorf("%s: tenant %d, slot %d: %+v (%t), want %+v", what, p.Tenant, p.Slot, got, ok, p)
			}
		}
	}
	same("put")
	for i := range want {
		want[i].Value++
		table.put(&want[i])
	}
	same("replaced")
	for _, p := range want {
		if p.Slot == 0 {
			table.drop(p.PolicyStateKey)
		}
	}
	want = slices.DeleteFunc(want, func(p PolicyState) bool { return p.Slot == 0 })
	same("dropped")
}

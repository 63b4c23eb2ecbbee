package coordinator

import (
	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// fairShares sets each tenant's share of the cluster: its weight among the siblings that have live
// jobs below them, times the share of its parent. A tenant without live jobs gets the share it
// would have with one. O(tenants times depth).
func fairShares(list []*droverv1.TenantStatus) {
	byName := map[string]*droverv1.Tenant{}
	for _, t := range list {
		byName[t.GetTenant().GetName()] = t.GetTenant()
	}
	// up calls fn for a tenant and its parents; a chain is no longer than the list.
	up := func(t *droverv1.Tenant, fn func(*droverv1.Tenant)) {
		for range list {
			if t == nil {
				return
			}
			fn(t)
			t = byName[t.GetParent()]
		}
	}
	active, weights := map[string]bool{}, map[string]float64{} // of active children, by parent
	for _, t := range list {
		if t.GetJobs() == 0 {
			continue
		}
		up(t.GetTenant(), func(p *droverv1.Tenant) {
			if !active[p.GetName()] {
				active[p.GetName()] = true
				weights[p.GetParent()] += p.GetWeight()
			}
		})
	}
	for _, t := range list {
		share := 1.0
		up(t.GetTenant(), func(p *droverv1.Tenant) {
			sum := weights[p.GetParent()]
			if !active[p.GetName()] {
				sum += p.GetWeight()
			}
			if sum > 0 {
				share *= p.GetWeight() / sum
			}
		})
		t.FairShare = share
	}
}

package facts

import (
	"fmt"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// deletedWeight is the weight of a deleted tenant in the scheduler's tree, where its
// place stays: next to none.
const deletedWeight = 1e-9

// applyTenantDeleted deletes a tenant: its name, lists, caps and place in the tree.
// Its id stays taken, since ids are dense, and since jobs of the past and the
// scheduler's state name it.
func (en clusterEntries) applyTenantDeleted(e *droverv1.Entry, d *droverv1.TenantDeletedFact, r *Result) {
	if err := en.f.Checks().checkTenantDeletion(d.GetName()); err != nil {
		r.Err = err
		return
	}
	n := *en.f.Tenant(d.GetName())
	n.Deleted, n.Spec = true, &droverv1.Tenant{Name: n.Spec.GetName(), Weight: deletedWeight}
	en.f.tenants[n.ID], en.f.tenantName[n.Spec.GetName()] = &n, &n
	writerOf(en.f).recordChange(Change{Kind: ChangeTenant, Node: n.ID})
	r.Changed = 1
	en.f.EventLog().add(e, "tenant.deleted", &Event{Text: "tenant " + n.Spec.GetName()})
}

// checkTenantDeletion returns an error if a tenant cannot be deleted: it does not exist or
// must exist, or something would be left of it. O(tenants + jobs).
func (c Checks) checkTenantDeletion(name string) error {
	if c.f.Tenant(name) == nil {
		return UnknownTenant(name)
	}
	if name == DefaultTenant {
		return fault.New(fault.Invalid, "tenant %q is that of jobs which name none, and stays: to keep everybody out, empty its lists with `drover tenant apply`", name)
	}
	var below []string
	for _, t := range c.f.tenants {
		if !t.Deleted && t.Spec.GetParent() == name {
			below = append(below, t.Spec.GetName())
		}
	}
	if len(below) > 0 {
		return fault.New(fault.Conflict, "tenant %q has tenants below it (%s): delete them first, or give them another parent with `drover tenant apply`", name, someOf(below))
	}
	var live, ending []string
	for _, id := range c.f.JobIDs() {
		switch j := c.f.jobs[id]; {
		case j.Spec.Tenant != name:
		case !j.HasEnded():
			live = append(live, j.Name)
		case !j.IsSettled():
			ending = append(ending, fmt.Sprint(id))
		}
	}
	if len(live) > 0 {
		return fault.New(fault.Conflict, "tenant %q has %d live jobs (%s): wait for them, or stop each with `drover job stop %s/NAME`", name, len(live), someOf(live), name)
	}
	if len(ending) > 0 {
		return fault.New(fault.Conflict, "of tenant %q, jobs have ended whose tasks, output or logs are still being cleaned up (numbers %s): try again in a while", name, someOf(ending))
	}
	var secrets []string
	for _, s := range SecretsOf(c.f).Of(name) {
		secrets = append(secrets, s.Name)
	}
	if len(secrets) > 0 {
		return fault.New(fault.Conflict, "tenant %q has stored secrets (%s): delete each with `drover secret delete -all -tenant %s NAME`", name, someOf(secrets), name)
	}
	return nil
}

// someOf lists the first of some names, in order.
func someOf(names []string) string {
	const most = 5
	slices.Sort(names)
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

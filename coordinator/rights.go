package coordinator

import (
	"context"
	"path"
	"slices"
	"strconv"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// right is a permission that a call requires.
type right int

const (
	mayRead right = iota + 1
	maySubmit
	mayOperate
)

func (r right) String() string {
	switch r {
	case mayRead:
		return "read"
	case maySubmit:
		return "submit"
	case mayOperate:
		return "operate"
	default:
		return "unknown right"
	}
}

// authorizer decides what an identity may do. Rights in a tenant come from the facts.
type authorizer struct {
	operators []string // user/<name>
	view      func(func(*facts.Facts))
}

// operator reports whether id may do everything.
func (a *authorizer) operator(id identity) bool {
	return id.kind == kindLocal || (id.kind == kindUser && id.scope.coversCluster() && slices.Contains(a.operators, id.name))
}

// allowed reports whether id has a right in a tenant. Submitters may also read,
// operators may also submit and read.
func (a *authorizer) allowed(id identity, r right, t *droverv1.Tenant) bool {
	if a.operator(id) {
		return true
	}
	if id.kind != kindUser || !id.scope.covers(r, t.GetName()) {
		return false
	}
	if listed(t.GetOperate(), id.name) {
		return true
	}
	switch r {
	case mayOperate:
		return false
	case maySubmit:
		return listed(t.GetSubmit(), id.name)
	case mayRead:
		return listed(t.GetSubmit(), id.name) || listed(t.GetRead(), id.name)
	default:
		return false
	}
}

// listed reports whether names contains "*", or name with or without "user/".
func listed(names []string, name string) bool {
	short := strings.TrimPrefix(name, "user/")
	return slices.ContainsFunc(names, func(n string) bool { return n == "*" || n == name || n == short })
}

// need returns an error if the caller lacks a right in a tenant.
func (a *authorizer) need(ctx context.Context, r right, t *droverv1.Tenant) error {
	if id := caller(ctx); !a.allowed(id, r, t) {
		return fault.New(fault.Denied, "%s may not %s in tenant %q: an operator can add it to the tenant's list (drover tenant apply)", id.displayName(), r, t.GetName())
	}
	return nil
}

// needTenant returns an error if there is no tenant of that name, or the caller
// lacks a right in it.
func (a *authorizer) needTenant(ctx context.Context, r right, name string) (err error) {
	a.view(func(f *facts.Facts) {
		t := f.Tenant(name)
		if t == nil {
			err = facts.UnknownTenant(name)
			return
		}
		err = a.need(ctx, r, t.Spec)
	})
	return err
}

// needOperator returns an error if the caller is not an operator of the
// cluster.
func (a *authorizer) needOperator(ctx context.Context, what string) error {
	if id := caller(ctx); !a.operator(id) {
		return fault.New(fault.Denied, "%s may not %s: that is for operators of the coordinator", id.displayName(), what)
	}
	return nil
}

// needUser returns an error if the caller is a node or has an unknown
// certificate.
func (a *authorizer) needUser(ctx context.Context) error {
	if id := caller(ctx); id.kind != kindLocal && id.kind != kindUser {
		return fault.New(fault.Denied, "%s is no user's certificate: an operator makes one with `drover tls cert`", id.displayName())
	}
	return nil
}

// needJob returns an error if the caller lacks a right on a job. Its submitter
// may read and operate it.
func (a *authorizer) needJob(ctx context.Context, r right, f *facts.Facts, j *facts.Job) error {
	id := caller(ctx)
	if id.kind == kindUser && id.name == j.Actor && id.scope.coversOwn(r, j.Spec.Tenant) {
		return nil
	}
	spec := &droverv1.Tenant{Name: j.Spec.Tenant} // of a deleted one, which nobody but operators and submitters may read
	if t := f.Tenant(j.Spec.Tenant); t != nil {
		spec = t.Spec
	}
	if !a.allowed(id, r, spec) {
		return fault.New(fault.Denied, "%s may not %s job %q of tenant %q: an operator can add it to the tenant's list (drover tenant apply)", id.displayName(), r, j.Name, j.Spec.Tenant)
	}
	return nil
}

// checkAccess returns an error if the caller may not call a procedure, whatever the request
// contains.
func (a *authorizer) checkAccess(ctx context.Context, name string, proc procedure) error {
	id := caller(ctx)
	switch proc.access {
	case accessNode:
		if id.kind != kindLocal && id.kind != kindNode {
			return fault.New(fault.Denied, "%s is not a node", id.displayName())
		}
		return nil
	case accessPeer:
		if id.kind != kindPeer {
			return fault.New(fault.Denied, "%s may not call %s: that is for coordinators, on their own port", id.displayName(), path.Base(name))
		}
		return nil
	case accessUser:
		return a.needUser(ctx)
	case accessOperator:
		return a.needOperator(ctx, proc.what)
	case accessSubmitter:
		if err := a.needUser(ctx); err != nil {
			return err
		}
		may := false
		a.view(func(f *facts.Facts) {
			for _, t := range f.Tenants() {
				may = may || a.allowed(id, maySubmit, t.Spec)
			}
		})
		if !may {
			return fault.New(fault.Denied, "%s may submit in no tenant: an operator can add it to a tenant's list (drover tenant apply)", id.displayName())
		}
		return nil
	default:
		return fault.New(fault.Denied, "%s may not call %s", id.displayName(), path.Base(name))
	}
}

// readerRights returns a name that two callers share only if they may read the same. Operators may
// read everything, unless a token grants them less.
func (a *authorizer) readerRights(id identity) string {
	if id.scope == nil && a.operator(id) {
		return "operators"
	}
	return "of " + id.reader()
}

// visibleTenants returns the tenants and what they use. Members are listed only
// for callers who have a right in the tenant; others see its name, parent and
// shares.
func (a *authorizer) visibleTenants(ctx context.Context, f *facts.Facts) []*droverv1.TenantStatus {
	out := tenantStatus(f)
	for _, t := range out {
		if !a.allowed(caller(ctx), mayRead, t.Tenant) {
			s := t.Tenant
			t.Tenant = &droverv1.Tenant{Name: s.GetName(), Parent: s.GetParent(), Weight: s.GetWeight()}
		}
	}
	return out
}

// visibleReason returns the reason or event text of a node as the caller may read it: only
// operators see messages of tasks.
func (a *authorizer) visibleReason(ctx context.Context, text string) string {
	if a.operator(caller(ctx)) {
		return text
	}
	return facts.WithoutMessage(text)
}

// visiblePast returns a function that reports whether the caller may read a past job: jobs of
// tenants that it may read now, and jobs that it submitted.
func (a *authorizer) visiblePast(ctx context.Context) func(*droverv1.JobSummary) bool {
	may := a.visibleTenantUser(ctx)
	return func(j *droverv1.JobSummary) bool { return may(j.GetTenant(), j.GetSubmitter()) }
}

func (a *authorizer) visibleTenantUser(ctx context.Context) func(tenant, user string) bool {
	id := caller(ctx)
	if a.operator(id) {
		return func(string, string) bool { return true }
	}
	readable := map[string]bool{}
	a.view(func(f *facts.Facts) {
		for _, t := range f.Tenants() {
			readable[t.Spec.GetName()] = a.allowed(id, mayRead, t.Spec)
		}
	})
	return func(tenant, user string) bool {
		return readable[tenant] || id.kind == kindUser && id.name == user && id.scope.coversOwn(mayRead, tenant)
	}
}

// findJob finds a job that the caller may read, by number, NAME or TENANT/NAME: the live job of
// that name, otherwise the newest that is not forgotten. A number takes precedence: earlier
// versions accepted names that look like numbers, which TENANT/NAME still finds. A name that is
// live in several of the caller's tenants needs its tenant. A job that the caller may not read is
// reported as not found, so that nobody learns names and numbers by trying.
func (a *authorizer) findJob(ctx context.Context, f *facts.Facts, name string) (*facts.Job, error) {
	if name == "" {
		return nil, fault.New(fault.Invalid, "which job? give its name or number")
	}
	tenant, short, qualified := strings.Cut(name, "/")
	if !qualified {
		tenant, short = "", name
	}
	visible := func(j *facts.Job) bool {
		return j != nil && (!qualified || j.Spec.Tenant == tenant) && a.needJob(ctx, mayRead, f, j) == nil
	}
	if id, err := strconv.ParseUint(name, 10, 64); err == nil {
		if j := f.Job(id); visible(j) {
			return j, nil
		}
	}
	live := slices.DeleteFunc(f.LiveJobs(short), func(j *facts.Job) bool { return !visible(j) })
	if len(live) > 1 {
		return nil, fault.New(fault.Invalid, "%d tenants have a live job %q: give the tenant too, as %s/%s, or the number, %d", len(live), short, live[0].Spec.Tenant, short, live[0].ID)
	}
	if len(live) == 1 {
		return live[0], nil
	}
	ids := f.JobIDs()
	for i := len(ids) - 1; i >= 0; i-- {
		if j := f.Job(ids[i]); j.Name == short && visible(j) {
			return j, nil
		}
	}
	return nil, fault.New(fault.NotFound, "there is no job %q that you may read; ended jobs move to the history after a while (drover job list -all shows the remaining ones)", clipText(name, 128))
}

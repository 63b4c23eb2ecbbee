package run

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// Tenant is a tenant of a cluster file.
type Tenant struct {
	Name   string  `json:"name"`
	Parent string  `json:"parent"` // an earlier tenant of the file; "": none
	Weight float64 `json:"weight"` // share among its siblings; 0 counts as 1
	Caps   struct {
		Task  Cap `json:"task"`
		Job   Cap `json:"job"`
		Total Cap `json:"total"`
	} `json:"caps"`
}

// Cap limits what a task, a job or a subtree of tenants may occupy; "" is no limit.
type Cap struct {
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	IO     string `json:"io"`
}

func (c *Cap) limit() (l scheduler.Limit, err error) {
	for _, x := range []struct {
		to   scheduler.Resource
		name string
		text string
		f    func(string) (int64, error)
	}{{scheduler.CPU, "cpu", c.CPU, jobspec.ParseCPU}, {scheduler.Memory, "memory", c.Memory, jobspec.ParseSize}, {scheduler.IO, "io", c.IO, jobspec.ParseRate}} {
		if x.text == "" {
			continue
		}
		v, err := x.f(x.text)
		if err != nil {
			return l, fmt.Errorf("%s: %w", x.name, err)
		}
		if v <= 0 {
			return l, fmt.Errorf("%s is %q: expected more than 0; leave it out for no limit", x.name, x.text)
		}
		l[x.to] = v
	}
	return l, nil
}

// BuildTenants makes the tenants of the cluster, nil if the file names none.
func (c *Cluster) BuildTenants() ([]scheduler.TenantSpec, error) {
	ids := map[string]scheduler.TenantID{}
	var out []scheduler.TenantSpec
	for i := range c.Tenants {
		t := &c.Tenants[i]
		what := fmt.Sprintf("tenants[%d] (%s)", i, t.Name)
		spec := scheduler.TenantSpec{ID: scheduler.TenantID(i), Name: t.Name, Parent: scheduler.NoTenant, Weight: t.Weight}
		if t.Name == "" {
			return nil, fmt.Errorf("%s: name is missing", what)
		}
		if _, twice := ids[t.Name]; twice {
			return nil, fmt.Errorf("%s: the name is used twice", what)
		}
		if t.Parent != "" {
			id, ok := ids[t.Parent]
			if !ok {
				return nil, fmt.Errorf("%s: parent %q is unknown: put the parent before its children", what, t.Parent)
			}
			spec.Parent = id
		}
		if spec.Weight == 0 {
			spec.Weight = 1
		}
		if !(spec.Weight > 0 && spec.Weight <= 1e9) {
			return nil, fmt.Errorf("%s: weight is %v: expected a number above 0, at most 1000000000", what, t.Weight)
		}
		for _, x := range []struct {
			name string
			from *Cap
			to   *scheduler.Limit
		}{{"task", &t.Caps.Task, &spec.Caps.Task}, {"job", &t.Caps.Job, &spec.Caps.Job}, {"total", &t.Caps.Total, &spec.Caps.Total}} {
			l, err := x.from.limit()
			if err != nil {
				return nil, fmt.Errorf("%s: caps.%s: %w", what, x.name, err)
			}
			*x.to = l
		}
		ids[t.Name] = spec.ID
		out = append(out, spec)
	}
	return out, nil
}

// withTenants returns the workload with its jobs charged to the tenants of the same names. The error
// names the tenants of the workload that are missing.
func withTenants(w *trace.Workload, tenants []scheduler.TenantSpec) (*trace.Workload, error) {
	if tenants == nil {
		return w, nil
	}
	ids := map[string]scheduler.TenantID{}
	for _, t := range tenants {
		ids[t.Name] = t.ID
	}
	to, missing := make([]scheduler.TenantID, len(w.Tenants)), map[string]bool{}
	for i, t := range w.Tenants {
		id, ok := ids[t.Name]
		if to[i] = id; !ok {
			missing[t.Name] = true
		}
	}
	if len(missing) > 0 {
		names := slices.Sorted(maps.Keys(missing))
		more := ""
		if n := len(names); n > 5 {
			names, more = names[:5], fmt.Sprintf(" and %d more", n-5)
		}
		return nil, fmt.Errorf("the workload has tenants that the cluster file does not name: %s%s: add them to its \"tenants\"", strings.Join(names, ", "), more)
	}
	out := *w
	out.Tenants, out.Jobs, out.Projects = tenants, slices.Clone(w.Jobs), slices.Clone(w.Projects)
	for i := range out.Jobs {
		out.Jobs[i].Tenant = to[out.Jobs[i].Tenant]
	}
	for i := range out.Projects {
		out.Projects[i].Tenant = to[out.Projects[i].Tenant]
	}
	return &out, nil
}

package coordinator

import (
	"fmt"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// impossible says which cap a single task exceeds, so that it can never run.
type impossible struct {
	tenant   string
	word     string // cap or task_cap
	resource scheduler.Resource
	need     int64
	allowed  int64
}

// exceededCap returns the first cap that one task of this demand, the harness's
// share included, exceeds even with nothing else running: the tenant's task_cap,
// then the cap of the tenant and of each one above it. nil: it can run. O(depth
// of the tenant).
func exceededCap(f *facts.Facts, tenant string, demand facts.Amounts) *impossible {
	t := f.Tenant(tenant)
	if t == nil {
		return nil
	}
	if x := overLimit(t.Spec.GetTaskCap(), demand); x != nil {
		x.tenant, x.word = tenant, "task_cap"
		return x
	}
	for n := 0; t != nil && n <= scheduler.MaxTenantDepth; n++ {
		if x := overLimit(t.Spec.GetCap(), demand); x != nil {
			x.tenant, x.word = t.Spec.GetName(), "cap"
			return x
		}
		t = f.Tenant(t.Spec.GetParent())
	}
	return nil
}

// overLimit compares a demand with a limit, in which 0 means none.
func overLimit(limit *droverv1.Resources, demand facts.Amounts) *impossible {
	for _, c := range []impossible{
		{resource: scheduler.CPU, need: demand.CPU, allowed: limit.GetCpu()},
		{resource: scheduler.Memory, need: demand.Memory, allowed: limit.GetMemory()},
		{resource: scheduler.IO, need: demand.IO, allowed: limit.GetIo()},
	} {
		if c.allowed > 0 && c.need > c.allowed {
			return &c
		}
	}
	return nil
}

// checkTenantCaps refuses caps that State cannot count. It is called before the entry is proposed,
// not in Apply: older logs may contain such caps, which countableCap treats as none.
func checkTenantCaps(list []*droverv1.Tenant) error {
	for _, t := range list {
		for _, c := range []struct {
			word  string
			limit *droverv1.Resources
		}{{"cap", t.GetCap()}, {"task_cap", t.GetTaskCap()}} {
			if err := resources(facts.AmountsOf(c.limit)).Check(); err != nil {
				return fault.New(fault.Invalid, "%s of tenant %q: %w", c.word, t.GetName(), err)
			}
		}
	}
	return nil
}

func amountText(r scheduler.Resource, n int64) string {
	switch r {
	case scheduler.CPU:
		return jobspec.FormatCPU(n)
	case scheduler.Memory:
		return jobspec.FormatSize(n)
	default:
		return jobspec.FormatRate(n)
	}
}

// adviceText formats an amount for a message that advises what to request: parsed again, it is at
// most n.
func adviceText(r scheduler.Resource, n int64) string {
	switch r {
	case scheduler.CPU:
		return jobspec.FormatCPU(n)
	case scheduler.Memory:
		return jobspec.FormatSizeDown(n)
	default:
		return jobspec.FormatSizeDown(n) + "/s"
	}
}

// checkCaps refuses a job with a stage of which no task can ever run under the
// tenant's caps. The harness's share of memory counts, as it does for the
// scheduler.
func checkCaps(f *facts.Facts, spec *jobspec.Job) error {
	overhead := f.TaskOverheadMemory()
	for i := range spec.Stages {
		s := &spec.Stages[i]
		x := exceededCap(f, spec.Tenant, facts.Amounts{CPU: s.Resources.CPU, Memory: s.Resources.Memory + overhead, IO: s.Resources.IO})
		if x == nil {
			continue
		}
		need, most := amountText(x.resource, x.need), x.allowed
		if x.resource == scheduler.Memory && overhead > 0 {
			need += fmt.Sprintf(" (%s and the harness's %s)", jobspec.FormatSize(s.Resources.Memory), jobspec.FormatSize(overhead))
			most -= overhead
		}
		cure := "ask an operator to raise it"
		if most > 0 && (x.resource != scheduler.Memory || most >= jobspec.MinMemory) {
			cure = fmt.Sprintf("ask for at most %s = %q, or %s", x.resource, adviceText(x.resource, most), cure)
		}
		return fault.New(fault.Exhausted, "stage %q: no task of it can ever run: it needs %s %s, and tenant %q allows %s (%s; drover tenant list): %s",
			s.Name, x.resource, need, x.tenant, amountText(x.resource, x.allowed), x.word, cure)
	}
	return nil
}

// canStart reports whether a pending stage could start at present: some node is schedulable, and no
// cap forbids even one task. A cap may have been lowered since the job was accepted.
func canStart(f *facts.Facts, job uint64, stage int) bool {
	j := f.Job(job)
	if j == nil || exceededCap(f, j.Spec.Tenant, j.Demand(stage)) != nil {
		return false
	}
	for _, n := range f.Nodes() {
		if n.Schedulable() {
			return true
		}
	}
	return false
}

package trace

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// swfJob is a line of the Standard Workload Format with the fields that the simulator uses (their
// numbers in brackets). -1 is unknown.
type swfJob struct {
	job           int64   // (1)
	submit        float64 // (2) seconds
	runTime       float64 // (4) seconds
	processors    int64   // (5), else (8) requested
	requestedTime float64 // (9) seconds
	user          int64   // (12)
}

// SWF is a trace in the Standard Workload Format.
type SWF struct {
	jobs []swfJob
	// processors is the machine's number of processors from the header (MaxProcs), 0 if it is not
	// there or unknown (-1). Nodes is the number of nodes (MaxNodes), 0 in the same cases.
	processors, nodes int64
	Count
}

// ReadSWF reads a trace in the Standard Workload Format. Jobs without a run time or processors are
// skipped and counted.
func ReadSWF(r io.Reader, o Options) (*SWF, error) {
	t := &SWF{}
	var err error
	t.Count, err = scanLines(r, o, func(_ int, text []byte) error {
		line := strings.TrimSpace(string(text))
		if strings.HasPrefix(line, ";") {
			return t.header(line)
		}
		return t.job(line)
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

func (t *SWF) header(line string) error {
	name, value, ok := strings.Cut(strings.TrimLeft(line, "; \t"), ":")
	to := map[string]*int64{"MaxProcs": &t.processors, "MaxNodes": &t.nodes}[name]
	if !ok || to == nil {
		return nil
	}
	// Some headers have words after the number. In this format -1 means unknown.
	number, _, _ := strings.Cut(strings.TrimSpace(value), " ")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < -1 {
		return fmt.Errorf("%s is %q: expected a number, or -1 for unknown", name, truncate(strings.TrimSpace(value)))
	}
	*to = max(0, n)
	return nil
}

func (t *SWF) job(line string) error {
	f := strings.Fields(line)
	if len(f) != 18 {
		return fmt.Errorf("%d fields: expected the 18 of the Standard Workload Format", len(f))
	}
	var x [18]float64
	for i := range f {
		var err error
		if x[i], err = parseNumber(f[i], fmt.Sprintf("field %d", i+1), -maxSeconds, 1<<53); err != nil {
			return err
		}
	}
	if x[1] < 0 || x[1] > maxSeconds || x[3] > maxSeconds/2 || x[8] > maxSeconds/2 {
		return fmt.Errorf("submit time %s, run time %s, requested time %s: expected seconds from 0 to %g", f[1], f[3], f[8], maxSeconds/2)
	}
	j := swfJob{job: int64(x[0]), submit: x[1], runTime: x[3], processors: int64(x[4]), requestedTime: x[8], user: int64(x[11])}
	if j.processors <= 0 {
		j.processors = int64(x[7])
	}
	if j.runTime <= 0 || j.processors <= 0 || j.processors > 1<<30 {
		return errNothingToSimulate
	}
	t.jobs = append(t.jobs, j)
	return nil
}

// SWFRule configures how jobs of a trace become one-task jobs that use whole cores of a single
// node: a rigid parallel job starts on all its processors at once.
type SWFRule struct {
	// TenantPerUser makes one tenant per user; else all jobs have one tenant.
	TenantPerUser bool
	// MemoryPerCore is the memory demand per processor, in bytes.
	MemoryPerCore int64
}

// Workload is the part of engine.Config that a trace determines.
type Workload struct {
	Tenants  []scheduler.TenantSpec
	Projects []engine.Project
	Jobs     []engine.Job
	Count    Count
}

// Workload makes the jobs of the trace. The requested time is the bound, and longer run times are
// cut there.
func (t *SWF) Workload(rule SWFRule) *Workload {
	w := &Workload{Count: t.Count}
	tenant := tenantIDs(w)
	for i := range t.jobs {
		j := &t.jobs[i]
		run := secondsDuration(j.runTime)
		e := engine.Job{Name: "swf-" + strconv.FormatInt(j.job, 10), Submit: secondsDuration(j.submit)}
		if j.requestedTime > 0 {
			e.Bound = secondsDuration(j.requestedTime)
			run = min(run, e.Bound)
		}
		if rule.TenantPerUser {
			e.Tenant = tenant("user-" + strconv.FormatInt(j.user, 10))
		} else {
			e.Tenant = tenant("default")
		}
		e.Stages = []engine.Stage{{Name: "main", Tasks: 1, Work: run, Demand: scheduler.Resources{j.processors * 1000, j.processors * rule.MemoryPerCore, 0}}}
		w.Jobs = append(w.Jobs, e)
	}
	w.sort()
	return w
}

// PoolNode returns the machine of the trace: one node with all its processors.
func (t *SWF) PoolNode(rule SWFRule) ([]engine.Node, error) {
	n := t.processors
	if n == 0 {
		has := "no number of processors"
		if t.nodes > 0 {
			has = fmt.Sprintf("no number of processors (MaxProcs), only %d nodes (MaxNodes)", t.nodes)
		}
		return nil, fmt.Errorf("the trace's header has %s: give the machine with -nodes 1 -cpu PROCESSORS or -cluster FILE", has)
	}
	return []engine.Node{{NodeSpec: scheduler.NodeSpec{Name: "pool", Capacity: scheduler.Resources{n * 1000, max(1, n*rule.MemoryPerCore), 0}}}}, nil
}

// tenantIDs returns a function that assigns ids to tenant names in order of appearance.
func tenantIDs(w *Workload) func(name string) scheduler.TenantID {
	ids := map[string]scheduler.TenantID{}
	return func(name string) scheduler.TenantID {
		id, ok := ids[name]
		if !ok {
			id = scheduler.TenantID(len(w.Tenants))
			ids[name] = id
			w.Tenants = append(w.Tenants, scheduler.TenantSpec{ID: id, Name: name, Parent: scheduler.NoTenant, Weight: 1})
		}
		return id
	}
}

package trace

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// SWFJob is a line of the Standard Workload Format, with what the simulator
// uses of its 18 fields (in brackets). -1 is unknown.
type SWFJob struct {
	Job                int64   // (1)
	Submit             float64 // (2) seconds
	Run                float64 // (4) seconds
	Processors         int64   // (5), else (8) requested
	Requested          float64 // (9) seconds
	User, Group, Queue int64   // (12), (13), (15)
}

// SWF is a trace in the Standard Workload Format.
type SWF struct {
	Jobs []SWFJob
	// Processors of the machine by the header, 0 if it does not say.
	Processors int64
	Count
}

// ReadSWF reads a trace in the Standard Workload Format. Jobs without a run
// time or processors are left out and counted.
func ReadSWF(r io.Reader, o Options) (*SWF, error) {
	t := &SWF{}
	var err error
	t.Count, err = scan(r, o, func(_ int, text []byte) error {
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
	if !ok || name != "MaxProcs" {
		return nil
	}
	n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 32)
	if err != nil || n < 0 {
		return fmt.Errorf("MaxProcs is %q: expected a number of processors", clip(value))
	}
	t.Processors = n
	return nil
}

// maxSeconds bounds instants and spans in traces: 300 years.
const maxSeconds = 1e10 - 1

func (t *SWF) job(line string) error {
	f := strings.Fields(line)
	if len(f) != 18 {
		return fmt.Errorf("%d fields: expected the 18 of the Standard Workload Format", len(f))
	}
	var x [18]float64
	for i := range f {
		var err error
		if x[i], err = number(f[i], fmt.Sprintf("field %d", i+1), -maxSeconds, 1<<53); err != nil {
			return err
		}
	}
	if x[1] < 0 || x[1] > maxSeconds || x[3] > maxSeconds/2 || x[8] > maxSeconds/2 {
		return fmt.Errorf("submit time %s, run time %s, requested time %s: expected seconds from 0 to %g", f[1], f[3], f[8], maxSeconds/2)
	}
	j := SWFJob{Job: int64(x[0]), Submit: x[1], Run: x[3], Processors: int64(x[4]), Requested: x[8], User: int64(x[11]), Group: int64(x[12]), Queue: int64(x[14])}
	if j.Processors <= 0 {
		j.Processors = int64(x[7])
	}
	if j.Run <= 0 || j.Processors <= 0 || j.Processors > 1<<30 {
		return errLeftOut
	}
	t.Jobs = append(t.Jobs, j)
	return nil
}

// SWFRule says what becomes of a trace's jobs: one task each that takes its
// processors as whole cores of a pool (one node), since a rigid parallel job
// starts everywhere at once or not at all.
type SWFRule struct {
	// Tenants makes a tenant of each user; else all belong to one.
	Tenants bool
	// MemoryPerCore is charged with each processor, bytes.
	MemoryPerCore int64
}

// Workload is what a simulation runs: engine.Config without a cluster.
type Workload struct {
	Tenants  []scheduler.TenantSpec
	Projects []engine.Project
	Jobs     []engine.Job
	Count    Count
}

// Workload makes jobs of the trace. The requested time is the bound, and a run
// that is longer is cut there.
func (t *SWF) Workload(rule SWFRule) *Workload {
	w := &Workload{Count: t.Count}
	tenant := tenants(w)
	for i := range t.Jobs {
		j := &t.Jobs[i]
		run := seconds(j.Run)
		e := engine.Job{Name: "swf-" + strconv.FormatInt(j.Job, 10), Submit: seconds(j.Submit)}
		if j.Requested > 0 {
			e.Bound = seconds(j.Requested)
			run = min(run, e.Bound)
		}
		if rule.Tenants {
			e.Tenant = tenant("user-" + strconv.FormatInt(j.User, 10))
		} else {
			e.Tenant = tenant("default")
		}
		e.Stages = []engine.Stage{{Name: "main", Tasks: 1, Work: run, Demand: scheduler.Resources{j.Processors * 1000, j.Processors * rule.MemoryPerCore, 0}}}
		w.Jobs = append(w.Jobs, e)
	}
	w.sort()
	return w
}

// Pool is the machine of the trace: one node with all its processors.
func (t *SWF) Pool(rule SWFRule) ([]engine.Node, error) {
	n := t.Processors
	if n == 0 {
		return nil, fmt.Errorf("the trace's header has no MaxProcs: say the size of the machine with -cpu")
	}
	return []engine.Node{{NodeSpec: scheduler.NodeSpec{Name: "pool", Capacity: scheduler.Resources{n * 1000, max(1, n*rule.MemoryPerCore), 0}}}}, nil
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// tenants gives ids to names, in order of appearance.
func tenants(w *Workload) func(name string) scheduler.TenantID {
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

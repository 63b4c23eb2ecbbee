package report

import (
	"encoding/csv"
	"io"
	"strconv"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// TaskLog writes one CSV row per attempt, in the order in which attempts end. Times are in seconds
// from second 0.
type TaskLog struct {
	out *csv.Writer
	c   *engine.Config
	row []string
}

// taskColumns are the columns of a TaskLog.
var taskColumns = []string{"job", "name", "tenant", "stage", "task", "attempt", "node", "placed_s", "ended_s", "ran_s", "suspended_s", "suspensions",
	"outcome", "locality", "cpu", "memory_bytes", "io_bytes_per_s"}

// NewTaskLog returns a log that writes to w. It keeps c for the names of jobs, stages and nodes.
func NewTaskLog(w io.Writer, c *engine.Config) *TaskLog {
	l := &TaskLog{out: csv.NewWriter(w), c: c, row: make([]string, len(taskColumns))}
	_ = l.out.Write(taskColumns) // Flush returns the error
	return l
}

// Add writes an attempt. Errors are returned by Flush.
func (l *TaskLog) Add(a *engine.AttemptRecord) {
	j := &l.c.Jobs[a.ID.Job-1]
	g := &j.Stages[a.ID.Stage]
	stage := g.Name
	if stage == "" {
		stage = strconv.Itoa(int(a.ID.Stage))
	}
	r := l.row
	r[0], r[1], r[2], r[3] = strconv.FormatUint(uint64(a.ID.Job), 10), j.Name, TenantName(l.c, a.Tenant), stage
	r[4], r[5], r[6] = strconv.Itoa(int(a.ID.Index)), strconv.Itoa(int(a.ID.Attempt)), l.c.Nodes[a.Node].Name
	r[7], r[8], r[9] = formatSeconds(a.Placed), formatSeconds(a.Ended), formatSeconds(a.Ran)
	r[10], r[11] = formatSeconds(max(0, a.Ended-a.Placed-a.Ran)), strconv.Itoa(int(a.Suspensions))
	r[12], r[13] = a.Outcome.String(), a.Locality
	for k := range scheduler.NumResources {
		r[14+k] = strconv.FormatInt(g.Demand[k], 10)
	}
	_ = l.out.Write(r)
}

// Flush writes what is buffered and returns the first error.
func (l *TaskLog) Flush() error {
	l.out.Flush()
	return l.out.Error()
}

// TenantName returns a tenant's name, "default" in a workload without tenants.
func TenantName(c *engine.Config, id scheduler.TenantID) string {
	if int(id) < len(c.Tenants) {
		return c.Tenants[id].Name
	}
	return "default"
}

// AllTenants is the tenant's name in rows of WriteTimeSeries that are sums over all tenants.
const AllTenants = "(all)"

// WriteTimeSeries writes one CSV row per step and tenant, the sum over all tenants first. Values are
// means over the step, which begins at time_s.
func WriteTimeSeries(w io.Writer, c *engine.Config, r *engine.Result) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"time_s", "step_s", "tenant", "jobs_in_system", "tasks_waiting", "attempts_running", "cpu", "memory_bytes", "io_bytes_per_s"}); err != nil {
		return err
	}
	step := formatSeconds(r.Series.Step)
	for i, tenants := range r.Series.Tenants {
		at := formatSeconds(time.Duration(i) * r.Series.Step)
		for t := range tenants {
			name, x := AllTenants, &tenants[t]
			if t > 0 {
				name = TenantName(c, scheduler.TenantID(t-1))
			}
			row := []string{at, step, name, formatFloat(x.Jobs), formatFloat(x.Waiting), formatFloat(x.Running)}
			for _, u := range x.Used {
				row = append(row, formatFloat(u))
			}
			if err := out.Write(row); err != nil {
				return err
			}
		}
	}
	out.Flush()
	return out.Error()
}

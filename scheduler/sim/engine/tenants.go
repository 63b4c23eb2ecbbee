package engine

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// maxTenantSeries is the number of tenants up to which a Series has values by tenant.
const maxTenantSeries = 200

// TenantStep holds the means of one step of a Series for one tenant or for all.
type TenantStep struct {
	Used    [scheduler.NumResources]float64 // millicores, bytes, bytes per second
	Jobs    float64                         // in the system
	Running float64                         // attempts that run or are suspended
	Waiting float64                         // tasks that are neither done nor running
}

// numTenantValues is the number of values of a TenantStep: use, jobs, attempts, tasks not done.
const numTenantValues = scheduler.NumResources + 3

// tenantUse integrates the use and the waiting tasks of one tenant.
type tenantUse struct {
	updatedAt scheduler.Time
	now       [numTenantValues]int64
	integral  [numTenantValues]float64
}

func (u *tenantUse) advanceTo(t scheduler.Time) {
	d := t.Sub(u.updatedAt).Seconds()
	if d <= 0 {
		return
	}
	for i, x := range u.now {
		u.integral[i] += float64(x) * d
	}
	u.updatedAt = t
}

// tenantSeries records a Series by tenant. Entry 0 is the sum over all tenants, entry t+1 is tenant
// t. It is empty unless requested. A change costs O(1), the end of a step O(tenants).
type tenantSeries struct {
	tenants []tenantUse
	steps   [][][numTenantValues]float64
}

func (s *tenantSeries) start(tenants int, now scheduler.Time) {
	n := 1
	if tenants <= maxTenantSeries {
		n += tenants
	}
	s.tenants = make([]tenantUse, n)
	for i := range s.tenants {
		s.tenants[i].updatedAt = now
	}
}

// change adds to the values of a tenant at time now.
func (s *tenantSeries) change(t scheduler.TenantID, now scheduler.Time, d [numTenantValues]int64) {
	for _, i := range [...]int{0, int(t) + 1} {
		if i >= len(s.tenants) {
			return
		}
		u := &s.tenants[i]
		u.advanceTo(now)
		for k := range d {
			u.now[k] += d[k]
		}
	}
}

func (s *tenantSeries) endStep(at scheduler.Time) {
	if len(s.tenants) == 0 {
		return
	}
	step := make([][numTenantValues]float64, len(s.tenants))
	for i := range s.tenants {
		u := &s.tenants[i]
		u.advanceTo(at)
		step[i], u.integral = u.integral, [numTenantValues]float64{}
	}
	s.steps = append(s.steps, step)
}

// mergePairs merges pairs of steps into n steps.
func (s *tenantSeries) mergePairs(n int) {
	if len(s.steps) == 0 {
		return
	}
	for i := range n {
		a, b := s.steps[2*i], s.steps[2*i+1]
		for t := range a {
			for k := range a[t] {
				a[t][k] += b[t][k]
			}
		}
		s.steps[i] = a
	}
	s.steps = s.steps[:n]
}

// fill returns the means of each step, of length seconds.
func (s *tenantSeries) fill(seconds float64) [][]TenantStep {
	var out [][]TenantStep
	for _, step := range s.steps {
		row := make([]TenantStep, len(step))
		for t, x := range step {
			r := &row[t]
			for k := range r.Used {
				r.Used[k] = x[k] / seconds
			}
			r.Jobs, r.Running = x[scheduler.NumResources]/seconds, x[scheduler.NumResources+1]/seconds
			r.Waiting = max(0, x[scheduler.NumResources+2]/seconds-r.Running) // a second attempt has no waiting task
		}
		out = append(out, row)
	}
	return out
}

// changeUse records a change of what a job's attempts occupy according to the State. With
// contention, changeMeasured records what they really use instead.
func (u *usage) changeUse(j *job, d scheduler.Resources) {
	if !u.measuredOnly {
		u.changeMeasured(j, d)
	}
}

func (u *usage) changeMeasured(j *job, d scheduler.Resources) {
	u.used = u.used.Add(d)
	if len(u.tenants.tenants) > 0 {
		u.tenants.change(j.spec.Tenant, u.updatedAt, [numTenantValues]int64{d[scheduler.CPU], d[scheduler.Memory], d[scheduler.IO]})
	}
}

// countWork records a change of a tenant's jobs, live attempts and tasks that are not done.
func (u *usage) countWork(j *job, jobs, attempts, tasks int64) {
	u.inSystem += int(jobs)
	if len(u.tenants.tenants) > 0 {
		u.tenants.change(j.spec.Tenant, u.updatedAt, [numTenantValues]int64{scheduler.NumResources: jobs, scheduler.NumResources + 1: attempts, scheduler.NumResources + 2: tasks})
	}
}

// AttemptRecord is an attempt that has ended. Times are offsets from second 0.
type AttemptRecord struct {
	ID            scheduler.AttemptID
	Tenant        scheduler.TenantID
	Node          scheduler.NodeID // the last one, if it migrated
	Placed, Ended time.Duration
	Ran           time.Duration // starting, reading, waiting for maps, computing and writing, without suspensions
	Suspensions   int32
	Outcome       scheduler.Outcome
	// Locality is "node", "rack", "remote", or "" if its input has no location.
	Locality string
}

// recordAttempt passes an attempt that ends now to Config.OnAttempt.
func (w *world) recordAttempt(t *attempt, o scheduler.Outcome) {
	if w.OnAttempt == nil {
		return
	}
	local := map[locality]string{localNode: "node", localRack: "rack", localRemote: "remote"}[t.locality]
	w.OnAttempt(&AttemptRecord{ID: t.id(), Tenant: w.jobs[t.job].spec.Tenant, Node: t.node, Placed: sinceEpoch(t.placedAt), Ended: sinceEpoch(w.now),
		Ran: t.elapsed + t.waited, Suspensions: t.suspensions, Outcome: o, Locality: local})
}

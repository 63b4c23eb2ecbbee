package facts

import (
	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// PreemptionTotals sums up the preemptions of a job or tenant. CPUMS is CPU
// time that attempts had used when they were suspended or killed for others. It
// is preserved once they resume, and lost if they cannot.
type PreemptionTotals struct {
	Suspends       int64 `json:"suspends,omitempty"`
	Resumes        int64 `json:"resumes,omitempty"`
	Migrations     int64 `json:"migrations,omitempty"` // the Resumes on another node
	Kills          int64 `json:"kills,omitempty"`      // killed for others, or because they could not be resumed
	CPUMS          int64 `json:"cpu_ms,omitempty"`
	PreservedCPUMS int64 `json:"preserved_cpu_ms,omitempty"`
	LostCPUMS      int64 `json:"lost_cpu_ms,omitempty"`
	SuspendedMS    int64 `json:"suspended_ms,omitempty"` // wall time of ended suspensions
}

// Proto returns p as a message.
func (p *PreemptionTotals) Proto() *droverv1.PreemptionTotals {
	return &droverv1.PreemptionTotals{Suspends: p.Suspends, Resumes: p.Resumes, Migrations: p.Migrations, Kills: p.Kills, CpuMs: p.CPUMS,
		PreservedCpuMs: p.PreservedCPUMS, LostCpuMs: p.LostCPUMS, SuspendedMs: p.SuspendedMS}
}

func (p *PreemptionTotals) add(d *PreemptionTotals) {
	p.Suspends += d.Suspends
	p.Resumes += d.Resumes
	p.Migrations += d.Migrations
	p.Kills += d.Kills
	p.CPUMS = addClamped(p.CPUMS, d.CPUMS)
	p.PreservedCPUMS = addClamped(p.PreservedCPUMS, d.PreservedCPUMS)
	p.LostCPUMS = addClamped(p.LostCPUMS, d.LostCPUMS)
	p.SuspendedMS = addClamped(p.SuspendedMS, d.SuspendedMS)
}

// addPreemption adds d to the totals of a job and its tenant. The job came from
// writableJob.
func (en levelEntries) addPreemption(j *Job, d PreemptionTotals) {
	j.Preempted.add(&d)
	t := en.f.tenantName[j.Spec.Tenant]
	if t == nil {
		return
	}
	n := *t
	n.Preempted.add(&d)
	en.f.tenants[n.ID] = &n
	en.f.tenantName[j.Spec.Tenant] = &n
}

// recordTransition updates the attempt's own counts for a level that it has
// reached, and returns what to add to the totals of its job and tenant.
func (a *Attempt) recordTransition(was droverv1.Level, seen *droverv1.SeenAttempt, at int64) (d PreemptionTotals) {
	running := droverv1.Level_LEVEL_RUNNING
	if a.Level != was || a.Suspension.LevelSince == 0 {
		a.Suspension.LevelSince = at
	}
	switch {
	case was == running && a.Level != running:
		a.Suspension.Count++
		a.Suspension.SuspendedAt = at
		d.Suspends, d.CPUMS = 1, max(0, seen.GetUsage().GetCpuMs()-a.Suspension.PreemptedCPUMS)
		a.Suspension.PreemptedCPUMS += d.CPUMS
	case was != running && a.Level == running:
		d.Resumes, d.SuspendedMS = 1, max(0, (at-a.Suspension.SuspendedAt)/1e6)
		d.PreservedCPUMS = a.Suspension.PreemptedCPUMS - a.Suspension.PreservedCPUMS
		a.Suspension.PreservedCPUMS = a.Suspension.PreemptedCPUMS
		a.Suspension.SuspendedMS += d.SuspendedMS
	}
	return d
}

// preemptionAtEnd returns what the end of an attempt adds to the totals:
// preempted work that was not preserved is lost, unless the user stopped the
// attempt.
func (a *Attempt) preemptionAtEnd(state AttemptState, seen *droverv1.SeenAttempt) (d PreemptionTotals) {
	risk := a.Suspension.PreemptedCPUMS - a.Suspension.PreservedCPUMS
	suspended := a.Level != droverv1.Level_LEVEL_RUNNING
	switch {
	case a.Suspension.Killed && state != AttemptSucceeded:
		all := max(seen.GetUsage().GetCpuMs(), a.Seen().GetUsage().GetCpuMs())
		d.Kills, d.CPUMS, d.LostCPUMS = 1, max(0, all-a.Suspension.PreemptedCPUMS), all
	case suspended && (state == AttemptFailed || state == AttemptLost):
		d.Kills, d.LostCPUMS = 1, risk
	case suspended && state == AttemptSucceeded: // it finished before it was frozen
		d.PreservedCPUMS = risk
	}
	return d
}

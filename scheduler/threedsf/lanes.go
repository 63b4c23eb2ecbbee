package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// laneJob is a job of the deadline lane.
type laneJob struct {
	job    *scheduler.Job
	latest scheduler.Time // start
}

// inLane tells whether a job is in the deadline lane.
func (p *Policy) inLane(j *scheduler.Job) bool {
	return p.cfg.Deadlines && j.Spec.Accepted && j.Spec.Deadline > 0
}

// deadlineLane places tasks of accepted deadline jobs, the one that must start
// first before the others (EMWTF, 3DSF 7.1).
func (p *Policy) deadlineLane() {
	p.lane = p.lane[:0]
	for j, at := p.s.NextReady(0); j != nil; j, at = p.s.NextReady(at) {
		if p.inLane(j) {
			p.lane = append(p.lane, laneJob{j, j.Spec.Deadline.Add(-j.Spec.Estimate)})
		}
	}
	slices.SortFunc(p.lane, func(a, b laneJob) int {
		return cmp.Or(cmp.Compare(a.latest, b.latest), cmp.Compare(a.job.Spec.ID, b.job.Spec.ID))
	})
	for _, l := range p.lane {
		for _, g := range l.job.Stages {
			for g.Ready() && p.left > 0 && p.placeable(g) {
				node, _ := p.s.BestNode(g)
				p.place(g, g.NextPending(0), node)
				p.shares.charge(g.Job.Spec.Tenant, g.Spec.Demand)
			}
		}
	}
}

// suspendedLane resumes suspended tasks in the order of their suspension where
// their node has room again.
func (p *Policy) suspendedLane() {
	if p.s.SuspendedCount() == 0 {
		return
	}
	p.sleepers = p.sleepers[:0]
	for a := range p.s.Suspended() {
		p.sleepers = append(p.sleepers, a)
	}
	for _, a := range p.sleepers {
		if p.left <= 0 {
			return
		}
		p.resume(a)
	}
}

// resume brings an attempt back where it is, if there is room and its job is
// alive.
func (p *Policy) resume(a *scheduler.Attempt) {
	g := p.s.StageOf(a)
	n := p.s.Node(a.Node)
	if a.Phase != scheduler.AttemptSuspended || g.Job.Phase != scheduler.JobActive || !n.Takes() {
		return
	}
	more := a.Demand.Sub(a.Held.Resources)
	room := more.Max(scheduler.Resources{})
	space := max(a.DiskSpace-a.Held.Disk, 0)
	if room[scheduler.CPU] > n.Free[scheduler.CPU] || room[scheduler.Memory] > n.Free[scheduler.Memory] {
		return
	}
	if a.Disk >= 0 && (room[scheduler.IO] > n.Disks[a.Disk].FreeIO || space > n.Disks[a.Disk].FreeSpace) {
		return
	}
	if !underCaps(p.s, g.Job, a.Demand, more) {
		return
	}
	p.do(scheduler.Action{Kind: scheduler.ActResume, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run})
	p.shares.charge(g.Job.Spec.Tenant, more)
}

// underCaps tells whether a job may hold d more, one task of it holding task.
func underCaps(s *scheduler.State, j *scheduler.Job, task, d scheduler.Resources) bool {
	if _, ok := s.Tenant(j.Spec.Tenant).Spec.Caps.Task.Allows(task); !ok {
		return false
	}
	for id, n := j.Spec.Tenant, 0; id != scheduler.NoTenant && n <= scheduler.MaxTenantDepth; n++ {
		t := s.Tenant(id)
		if _, ok := t.Spec.Caps.Total.Allows(t.Used.Add(d)); !ok {
			return false
		}
		if _, ok := t.Spec.Caps.Job.Allows(j.Used.Add(d)); !ok {
			return false
		}
		id = t.Spec.Parent
	}
	return true
}

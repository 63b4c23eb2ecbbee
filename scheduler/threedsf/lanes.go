package threedsf

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
)

// laneJob is a job of the deadline lane.
type laneJob struct {
	job *scheduler.Job
	key scheduler.Time
}

// inLane tells whether a job is in the deadline lane (P2): its deadline was
// accepted, or all deadlines count, and it is not hopeless.
func (p *Policy) inLane(j *scheduler.Job) bool {
	return p.cfg.Deadlines && j.Spec.Deadline > 0 && (p.cfg.AllDeadlines || p.s.Accepted(j)) && !p.isHopeless(j)
}

// isHopeless tells whether a job has left the lane.
func (p *Policy) isHopeless(j *scheduler.Job) bool {
	return j.Noted(scheduler.NoteHopeless)
}

// stoppedByMiss tells whether a job is not to go on: it is hopeless and its
// on_miss says stop. Its owner ends it.
func (p *Policy) stoppedByMiss(j *scheduler.Job) bool {
	return j.Spec.OnMiss == scheduler.OnMissStop && j.Spec.Deadline > 0 && p.cfg.Deadlines && p.isHopeless(j)
}

// fillLane lists the deadline jobs with ready work in their order, and lets
// those go that can no longer make it.
func (p *Policy) fillLane() {
	p.lane = p.lane[:0]
	for j, at := p.s.NextReady(0); j != nil; j, at = p.s.NextReady(at) {
		if j.Spec.Deadline == 0 || !p.inLane(j) {
			continue
		}
		p.outlook.Of(j)
		hopeless, until := p.outlook.Hopeless(p.now)
		if hopeless && p.note(scheduler.Note{NoteKey: scheduler.NoteKey{Kind: scheduler.NoteHopeless, Job: j.Spec.ID}, At: p.now}) {
			continue
		}
		if !hopeless {
			p.wakeAt(until.Add(1))
		}
		p.lane = append(p.lane, laneJob{j, p.outlook.Key(p.cfg.Order)})
	}
	slices.SortFunc(p.lane, inLaneOrder)
}

// deadlineLane places tasks of deadline jobs (P2), the one that must start
// first before the others, and takes room back for those that cannot wait.
func (p *Policy) deadlineLane() {
	p.fillLane()
	if len(p.lane) == 0 {
		return
	}
	p.beginShrinking()
	for _, l := range p.lane {
		for _, g := range l.job.Stages {
			p.placeLane(g)
		}
	}
	p.shrinks = false
	if p.cfg.Preempt == deadline.None {
		return
	}
	p.barren = p.barren[:0]
	for _, l := range p.lane {
		p.outlook.Of(l.job)
		for _, g := range l.job.Stages {
			if g.Ready() && p.left > 0 {
				p.preemptFor(g)
			}
		}
	}
}

// placeLane places what fits of a stage of the lane: what reads much by
// matching, the rest of it where it does not wait for its data.
func (p *Policy) placeLane(g *scheduler.Stage) {
	near := search{stage: g}
	for p.left > 0 && g.Ready() && p.placeable(g) {
		if !p.matches(g) {
			p.placeAnywhere(g)
			continue
		}
		if !p.placeNear(g, &near, func() int32 { return p.laneRun(g) }) && !p.waitOrMove(g, &near, true) {
			return
		}
	}
}

// laneRun is how many tasks of a stage of the lane may be placed at once.
func (p *Policy) laneRun(g *scheduler.Stage) int32 {
	n := min(int32(min(p.left, maxRun)), g.Startable())
	if d := g.Spec.Demand; n > 1 && !p.s.MayHold(g.Job, d, d.Times(int64(n))) {
		return 1
	}
	return n
}

// preemptFor makes room for the waiting tasks of a deadline stage: as few as
// keep its predicted end before the deadline, each only if it cannot wait for
// room (PDSonQueue Alg. 5 lines 18 to 27).
func (p *Policy) preemptFor(g *scheduler.Stage) {
	if _, waits := p.waits[g]; waits {
		return
	}
	have, waiting := g.Running+p.holdsOf(g), g.Pending
	most, early := have+g.Pending-p.holdsOf(g), time.Duration(0)
	if p.promises > 0 {
		// Whose slot is free again cannot count on the next one who has a promise.
		have, early = p.holdsOf(g), p.cfg.Promises.Margin
		waiting -= p.servedByRunning(g)
		most = g.Pending
	}
	for p.left > 0 && have < most && g.Startable() > p.holdsOf(g) {
		if latest := p.outlook.LatestOf(g.Index, waiting, have).Add(-early); latest >= p.now {
			p.wakeAt(latest.Add(1)) // so many at once are enough until then
			return
		}
		latest := p.outlook.LatestOf(g.Index, waiting, have+1).Add(-early)
		if latest >= p.now {
			if ok, until := p.preempt.CanWait(p.s, g, latest, p.now); ok {
				p.wakeAt(until)
				return
			}
		}
		if !p.makeRoom(g, latest) {
			return
		}
		have++
	}
}

// servedByRunning counts the waiting tasks of a stage that can follow those that
// run, each in its slot, and end in time.
func (p *Policy) servedByRunning(g *scheduler.Stage) (n int32) {
	for a := range p.s.AttemptsIn(g) {
		if end, known := locality.EndOf(p.s, a); known && a.Phase <= scheduler.AttemptRunning {
			n += p.outlook.After(g.Index, max(end, p.now))
		}
	}
	return min(n, g.Pending)
}

// makeRoom has victims make room for one task of the stage, which is to start by
// latest, and keeps it for it. Memory is moved only where that is worth more than
// to wait.
func (p *Policy) makeRoom(g *scheduler.Stage, latest scheduler.Time) bool {
	if _, _, _, ok := p.s.UnderCaps(g); !ok {
		return false
	}
	for _, b := range p.barren {
		if b == (shape{g.Spec.Demand, g.Spec.Disk}) {
			return false
		}
	}
	plan, ok := p.preempt.Plan(p.s, g, p.now)
	if !ok {
		p.barren = append(p.barren, shape{g.Spec.Demand, g.Spec.Disk})
		return false
	}
	if ok, until := p.preempt.Worth(p.s, g, &plan, latest, p.now); !ok {
		p.wakeAt(until)
		return false
	}
	return p.carryOut(g, plan, g.Job.Spec.Deadline.Add(1))
}

// carryOut has the victims of a plan make room and keeps it until end for a
// task of the stage. Where the cycle is full the next one goes on from there.
func (p *Policy) carryOut(g *scheduler.Stage, plan deadline.Plan, end scheduler.Time) bool {
	if len(plan.Victims) == 0 && p.s.Node(plan.Node).Releasing.IsZero() {
		return false // there is room, and something else is in the way
	}
	for _, v := range plan.Victims {
		if p.left == 0 {
			return false
		}
		a := v.Attempt
		act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: v.Level}
		if v.Kill {
			act.Kind, act.Level = scheduler.ActKill, 0
		}
		p.do(act)
	}
	if p.left == 0 {
		return false
	}
	p.hold(g, -1, plan.Node, g.Spec.Demand, g.Spec.Disk, end)
	return true
}

// suspendedLane resumes suspended tasks (P3) in the order of their suspension
// where their node has room again.
func (p *Policy) suspendedLane() {
	for _, a := range p.sleepers {
		if p.left <= 0 {
			return
		}
		if a.Phase == scheduler.AttemptSuspended {
			p.resume(a)
		}
	}
}

// overdue resumes, before all others, tasks that have been suspended for half
// of MaxSuspended, and keeps room on each node for the first that does not fit
// yet: if two kept room there, each could stand in the other's way for ever. Where
// nothing runs and still the first does not fit, others hold what it waits for,
// and they come back past it.
func (p *Policy) overdue() {
	p.sleepers = p.sleepers[:0]
	clear(p.awaited)
	if p.s.SuspendedCount() == 0 {
		return
	}
	for a := range p.s.Suspended() {
		p.sleepers = append(p.sleepers, a)
	}
	for _, a := range p.sleepers {
		due := a.SuspendedAt.Add(p.cfg.MaxSuspended / 2)
		if p.now < due {
			p.wakeAt(due) // the rest was suspended later
			return
		}
		if p.left <= 0 {
			return
		}
		g := p.s.StageOf(a)
		if p.resume(a) || p.resumePast(a) || g.Job.Phase != scheduler.JobActive || p.stoppedByMiss(g.Job) || p.left <= 0 || !p.s.Node(a.Node).Takes() || p.awaited[a.Node] {
			continue
		}
		p.awaited[a.Node] = true
		if p.heldFor(a) {
			continue
		}
		more := a.Demand.Sub(a.Held.Resources).Max(scheduler.Resources{})
		p.hold(g, a.ID.Index, a.Node, more, max(a.DiskSpace-a.Held.Disk, 0), scheduler.Never)
	}
}

// resumePast resumes a task beside the room that is kept for one that was
// suspended earlier, where that one waits for what suspended tasks hold.
func (p *Policy) resumePast(a *scheduler.Attempt) bool {
	if !p.awaited[a.Node] || p.s.Node(a.Node).Used()[scheduler.CPU] > 0 {
		return false
	}
	p.past = true
	defer func() { p.past = false }()
	return p.resume(a)
}

// resume brings an attempt back where it is, or where it can be restored, if
// there is room and its job goes on.
func (p *Policy) resume(a *scheduler.Attempt) bool {
	n := p.s.Node(a.Node)
	more := a.Demand.Sub(a.Held.Resources)
	if more[scheduler.CPU] > n.Free[scheduler.CPU] && !p.cfg.Migrate {
		return false // most are so, and their jobs are not looked at
	}
	g := p.s.StageOf(a)
	if g.Job.Phase != scheduler.JobActive || p.stoppedByMiss(g.Job) {
		return false
	}
	if n.Takes() && p.resumes(n, a, g, more) && p.s.MayHold(g.Job, a.Demand, more) {
		p.do(scheduler.Action{Kind: scheduler.ActResume, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run})
		p.shares.charge(g.Job.Spec.Tenant, more)
		return true
	}
	if !p.cfg.Migrate || a.Level != scheduler.LevelCheckpointed || !p.s.MayHold(g.Job, a.Demand, more) {
		return false
	}
	for id, k := p.s.NextNodeFor(a.Demand, a.DiskSpace, 0), 0; id != scheduler.NoNode && k < idlest; id, k = p.s.NextNodeFor(a.Demand, a.DiskSpace, id+1), k+1 {
		m := p.s.Node(id)
		disk, ok := m.Fits(a.Demand, a.DiskSpace)
		if id == a.Node || !ok || !scheduler.CanRestore(&n.Spec, &m.Spec) || !p.open(m, g, a.Demand, a.DiskSpace, disk) {
			continue
		}
		p.do(scheduler.Action{Kind: scheduler.ActMigrate, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run + 1, Node: id, Disk: disk})
		p.shares.charge(g.Job.Spec.Tenant, more)
		return true
	}
	return false
}

// resumes tells whether a suspended attempt fits on its node again.
func (p *Policy) resumes(n *scheduler.Node, a *scheduler.Attempt, g *scheduler.Stage, more scheduler.Resources) bool {
	more = more.Max(scheduler.Resources{})
	space := max(a.DiskSpace-a.Held.Disk, 0)
	if more[scheduler.CPU] > n.Free[scheduler.CPU] || more[scheduler.Memory] > n.Free[scheduler.Memory] {
		return false
	}
	if a.Disk >= 0 && (more[scheduler.IO] > n.Disks[a.Disk].FreeIO || space > n.Disks[a.Disk].FreeSpace) {
		return false
	}
	return p.open(n, g, more, space, a.Disk)
}

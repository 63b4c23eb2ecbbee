package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// execute carries out an action that the State has already applied, and schedules the resulting
// events.
func (w *world) execute(a *scheduler.Action) error {
	switch a.Kind {
	case scheduler.ActPlace:
		return w.placeAttempt(a)
	case scheduler.ActSuspend:
		return w.suspensions.startSuspend(w, a)
	case scheduler.ActResume:
		return w.suspensions.startResume(w, a)
	case scheduler.ActMigrate:
		return w.suspensions.startMigration(w, a)
	case scheduler.ActKill:
		return w.suspensions.startKill(w, a)
	case scheduler.ActReserve, scheduler.ActUnreserve:
		return nil
	default:
		return fmt.Errorf("execute %v: unknown action", a)
	}
}

// suspensions carries out the suspensions, resumptions, migrations and kills of attempts.
type suspensions struct {
	migrating []int32 // slots of attempts that are migrating
}

// memoryInUse returns the memory that an attempt has filled.
func (w *world) memoryInUse(t *attempt) int64 {
	part := w.Models.MemoryUsedFraction
	if part == 0 {
		part = 1
	}
	g := &w.jobs[t.job].spec.Stages[t.stage]
	return int64(part * float64(g.Demand[scheduler.Memory]))
}

func (p *suspensions) startSuspend(w *world, a *scheduler.Action) error {
	slot, err := w.findSlot(a.AttemptID())
	if err != nil {
		return err
	}
	w.pauseAttempt(slot)
	t := &w.attempts[slot]
	t.state = attemptSuspended
	t.level = a.Level
	w.res.Suspensions++
	w.jobs[t.job].res.Suspends++
	w.ownExtra(t).suspensions++
	w.scheduleEvent(slot, w.now.Add(w.Nodes[t.node].Speeds.Suspend(a.Level, w.memoryInUse(t))), evSuspended)
	return nil
}

func (p *suspensions) finishSuspend(w *world, slot int32) error {
	t := &w.attempts[slot]
	before := w.occupiedResources(t)
	m := w.memoryInUse(t)
	footprint := scheduler.Footprint{Memory: m}
	switch t.level {
	case scheduler.LevelSwapped:
		footprint.Swap = m
	case scheduler.LevelCheckpointed:
		footprint.Image = m
	}
	if err := w.s.Events().AttemptSuspended(t.id(), t.run, t.level, footprint, w.now); err != nil {
		return err
	}
	w.use.changeUse(&w.jobs[t.job], w.occupiedResources(t).Sub(before))
	return nil
}

// startResume schedules the resumption of an attempt; the State already accounts its full demand.
func (p *suspensions) startResume(w *world, a *scheduler.Action) error {
	slot, err := w.findSlot(a.AttemptID())
	if err != nil {
		return err
	}
	t := &w.attempts[slot]
	w.use.changeUse(&w.jobs[t.job], w.occupiedResources(t).Sub(w.occupiedAtLevel(t, t.level)))
	d := w.Nodes[t.node].Speeds.Resume(t.level, w.memoryInUse(t))
	w.scheduleEvent(slot, w.now.Add(d), evResumed)
	return nil
}

// occupiedAtLevel returns what an attempt occupies at a level, computed from the reported footprint.
func (w *world) occupiedAtLevel(t *attempt, l scheduler.Level) scheduler.Resources {
	g := &w.jobs[t.job].spec.Stages[t.stage]
	m := w.memoryInUse(t)
	f := scheduler.Footprint{Memory: m}
	if l == scheduler.LevelSwapped {
		f.Swap = m
	}
	return l.Occupancy(g.Demand, g.Disk, f).Resources
}

// startMigration moves an attempt to another node: checkpoint, transfer, restore.
func (p *suspensions) startMigration(w *world, a *scheduler.Action) error {
	slot, err := w.findSlot(a.AttemptID())
	if err != nil {
		return err
	}
	t := &w.attempts[slot]
	from, m := &w.Nodes[t.node].Speeds, w.memoryInUse(t)
	before := w.occupiedAtLevel(t, t.level)
	d := time.Duration(0)
	if t.level != scheduler.LevelCheckpointed {
		w.pauseAttempt(slot)
		d = from.Suspend(scheduler.LevelCheckpointed, m)
	}
	d += transferTime(m, from.TransferPerS) + w.Nodes[a.Node].Speeds.Resume(scheduler.LevelCheckpointed, m)
	o := w.ownExtra(t)
	o.run, o.disk, t.node, t.level = a.Run, a.Disk, a.Node, scheduler.LevelRunning
	w.use.changeUse(&w.jobs[t.job], w.occupiedResources(t).Sub(before))
	w.res.Migrations++
	p.migrating = append(p.migrating, slot)
	w.scheduleEvent(slot, w.now.Add(d), evResumed)
	return nil
}

func transferTime(bytes, perS int64) time.Duration {
	if perS <= 0 {
		return 0
	}
	return time.Duration(float64(bytes) / float64(perS) * float64(time.Second))
}

// endMigration removes an attempt from migrating. O(migrating attempts).
func (p *suspensions) endMigration(slot int32) {
	if i := slices.Index(p.migrating, slot); i >= 0 {
		p.migrating = slices.Delete(p.migrating, i, i+1)
	}
}

// finishResume continues an attempt after a resume or a migration.
func (p *suspensions) finishResume(w *world, slot int32) error {
	t := &w.attempts[slot]
	before := w.occupiedResources(t)
	if err := w.s.Events().AttemptResumed(t.id(), t.run, w.now); err != nil {
		return err
	}
	w.use.changeUse(&w.jobs[t.job], w.occupiedResources(t).Sub(before))
	p.endMigration(slot)
	t.eventKey = 0
	t.level, t.state = scheduler.LevelRunning, attemptRunning
	return w.schedulePhaseEnd(slot)
}

func (p *suspensions) startKill(w *world, a *scheduler.Action) error {
	slot, err := w.findSlot(a.AttemptID())
	if err != nil {
		return err
	}
	w.pauseAttempt(slot)
	w.attempts[slot].state = attemptDying
	w.res.Kills++
	w.scheduleEvent(slot, w.now.Add(w.Models.KillDelay), evKilled)
	return nil
}

package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// carryOut does in the world what the scheduler decided and plans what comes
// of it. The State has taken the action in already.
func (w *world) carryOut(a *scheduler.Action) error {
	switch a.Kind {
	case scheduler.ActPlace:
		return w.place(a)
	case scheduler.ActSuspend:
		return w.suspend(a)
	case scheduler.ActResume:
		return w.resume(a)
	case scheduler.ActMigrate:
		return w.migrate(a)
	case scheduler.ActKill:
		return w.kill(a)
	case scheduler.ActReserve, scheduler.ActUnreserve:
		return nil
	default:
		return fmt.Errorf("carry out %v: no such action", a)
	}
}

func (w *world) memory(t *attempt) int64 {
	part := w.Models.MemoryUsed
	if part == 0 {
		part = 1
	}
	g := &w.jobs[t.job].spec.Stages[t.stage]
	return int64(part * float64(g.Demand[scheduler.Memory]))
}

func (w *world) speeds(n scheduler.NodeID) *scheduler.SuspendSpeed { return &w.Nodes[n].Speeds }

func (w *world) suspend(a *scheduler.Action) error {
	slot, err := w.find(a.AttemptID())
	if err != nil {
		return err
	}
	w.pause(slot)
	t := &w.attempts[slot]
	t.state = attemptHeld
	t.level = a.Level
	w.res.Suspensions++
	w.jobs[t.job].res.Suspends++
	w.due(slot, w.now.Add(w.speeds(t.node).Suspend(a.Level, w.memory(t))), evSuspended)
	return nil
}

func (w *world) suspended(slot int32) error {
	t := &w.attempts[slot]
	was := w.held(t)
	m := w.memory(t)
	has := scheduler.Footprint{Memory: m}
	switch t.level {
	case scheduler.LevelSwapped:
		has.Swap = m
	case scheduler.LevelCheckpointed:
		has.Image = m
	}
	if err := w.s.AttemptSuspended(t.id(), t.run, t.level, has, w.now); err != nil {
		return err
	}
	w.use.add(w.held(t).Sub(was))
	return nil
}

// resume brings an attempt back; the State holds its demand already.
func (w *world) resume(a *scheduler.Action) error {
	slot, err := w.find(a.AttemptID())
	if err != nil {
		return err
	}
	t := &w.attempts[slot]
	w.use.add(w.held(t).Sub(w.heldAt(t, t.level)))
	d := w.speeds(t.node).Resume(t.level, w.memory(t))
	w.due(slot, w.now.Add(d), evResumed)
	return nil
}

// heldAt is what an attempt holds at a level, as it was reported.
func (w *world) heldAt(t *attempt, l scheduler.Level) scheduler.Resources {
	g := &w.jobs[t.job].spec.Stages[t.stage]
	m := w.memory(t)
	f := scheduler.Footprint{Memory: m}
	if l == scheduler.LevelSwapped {
		f.Swap = m
	}
	return l.Holds(g.Demand, g.Disk, f).Resources
}

// migrate takes an attempt to another node: image, transfer, restore.
func (w *world) migrate(a *scheduler.Action) error {
	slot, err := w.find(a.AttemptID())
	if err != nil {
		return err
	}
	t := &w.attempts[slot]
	from, m := w.speeds(t.node), w.memory(t)
	was := w.heldAt(t, t.level)
	d := time.Duration(0)
	if t.level != scheduler.LevelCheckpointed {
		w.pause(slot)
		d = from.Suspend(scheduler.LevelCheckpointed, m)
	}
	d += perRate(m, from.TransferPerS) + w.speeds(a.Node).Resume(scheduler.LevelCheckpointed, m)
	o := w.own(t)
	o.run, o.disk, t.node, t.level = a.Run, a.Disk, a.Node, scheduler.LevelRunning
	w.use.add(w.held(t).Sub(was))
	w.res.Migrations++
	w.moving = append(w.moving, slot)
	w.due(slot, w.now.Add(d), evResumed)
	return nil
}

func perRate(bytes, perS int64) time.Duration {
	if perS <= 0 {
		return 0
	}
	return time.Duration(float64(bytes) / float64(perS) * float64(time.Second))
}

// resumed lets an attempt go on where it stopped.
func (w *world) resumed(slot int32) error {
	t := &w.attempts[slot]
	was := w.held(t)
	if err := w.s.AttemptResumed(t.id(), t.run, w.now); err != nil {
		return err
	}
	w.use.add(w.held(t).Sub(was))
	if i := slices.Index(w.moving, slot); i >= 0 {
		w.moving = slices.Delete(w.moving, i, i+1)
	}
	t.due = 0
	t.level, t.state = scheduler.LevelRunning, attemptRuns
	return w.goOn(slot)
}

func (w *world) kill(a *scheduler.Action) error {
	slot, err := w.find(a.AttemptID())
	if err != nil {
		return err
	}
	w.pause(slot)
	w.attempts[slot].state = attemptDying
	w.res.Kills++
	w.due(slot, w.now.Add(w.Models.KillDelay), evKilled)
	return nil
}

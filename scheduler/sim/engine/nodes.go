package engine

import (
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// planFailure plans when a node that is up fails next.
func (w *world) planFailure(n scheduler.NodeID) {
	h := hash(w.Seed, drawFailure, uint64(n), uint64(w.now))
	w.events.plan(w.now.Add(scale(w.Models.MTBF, exponential(h))), evFail, int32(n))
}

// fail takes a node down with all that runs there and all map outputs on it
// that somebody still needs.
func (w *world) fail(n scheduler.NodeID) error {
	var lost []int32
	for a := range w.s.AttemptsOn(n) {
		slot, err := w.find(a.ID)
		if err != nil {
			return err
		}
		lost = append(lost, slot)
	}
	for _, slot := range w.moving {
		if a := w.s.Attempt(w.attempts[slot].id()); a.From == n {
			lost = append(lost, slot)
		}
	}
	w.moving = slices.DeleteFunc(w.moving, func(slot int32) bool { return slices.Contains(lost, slot) })
	for _, slot := range lost {
		held := w.held(&w.attempts[slot])
		w.settle(slot, scheduler.OutcomeLost)
		w.use.add(scheduler.Resources{}.Sub(held))
	}
	if err := w.s.NodeLost(n, w.now); err != nil {
		return err
	}
	for _, slot := range lost {
		if j := &w.jobs[w.attempts[slot].job]; j.left == 0 && j.live == 0 && !j.ended {
			if err := w.endJob(j, scheduler.JobSucceeded); err != nil {
				return err
			}
		}
	}
	w.res.NodesLost++
	w.use.capacity(w.s.Total())
	h := hash(w.Seed, drawRepair, uint64(n), uint64(w.now))
	repair := max(scale(w.Models.Repair, exponential(h)), time.Millisecond)
	w.events.plan(w.now.Add(repair), evRepair, int32(n))
	return w.loseOutputs(n)
}

func (w *world) repair(n scheduler.NodeID) error {
	if err := w.s.NodeUp(n); err != nil {
		return err
	}
	w.use.capacity(w.s.Total())
	w.planFailure(n)
	return nil
}

// loseOutputs makes the tasks run again whose output lay on a node and is
// still needed: map tasks of jobs with a later stage that is not done.
func (w *world) loseOutputs(n scheduler.NodeID) error {
	for sj := range w.s.Jobs() {
		j := &w.jobs[sj.Spec.ID-1]
		for k := range j.stages {
			if !needed(sj, int32(k)) {
				continue
			}
			for i, on := range j.stages[k].ran {
				if on != n || !sj.Stages[k].IsDone(int32(i)) {
					continue
				}
				task := sj.Stages[k].Task(int32(i))
				if lives, _ := w.s.Slots(task); lives >= 0 {
					continue
				}
				if err := w.s.OutputLost(task); err != nil {
					return err
				}
				j.left++
				w.res.OutputsLost++
			}
		}
	}
	return nil
}

// needed tells whether the output of stage k is still to be read.
func needed(j *scheduler.Job, k int32) bool {
	for _, g := range j.Stages {
		if g.Remaining() > 0 && slices.Contains(g.Spec.After, k) {
			return true
		}
	}
	return false
}

package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// scheduleFailure schedules the next failure of a node that is up.
func (o *outages) scheduleFailure(w *world, n scheduler.NodeID) {
	h := hash(w.Seed, drawFailure, uint64(n), uint64(w.now))
	w.events.schedule(w.now.Add(scale(w.Models.MTBF, exponential(h))), evFail, int32(n))
}

// failNode takes a node down and schedules its repair.
func (o *outages) failNode(w *world, n scheduler.NodeID) error {
	if err := o.nodeDown(w, n, true); err != nil {
		return err
	}
	if o.progress.lost(w) > max(maxLostPerNode*uint64(len(w.Nodes)), minLost) {
		return losingError(w)
	}
	h := hash(w.Seed, drawRepair, uint64(n), uint64(w.now))
	repair := max(scale(w.Models.Repair, exponential(h)), time.Millisecond)
	w.events.schedule(w.now.Add(repair), evRepair, int32(n))
	return nil
}

// If nodes fail more often than tasks can end, a simulation never runs out of events. It is stuck after
// this many failures, per node or in total, without progress: one more task done than ever before.
const (
	maxLostPerNode = 1000
	minLost        = 10_000
)

// progress is how far the jobs in the system have come. Tasks done again because their output was lost do not count.
type progress struct {
	live, ended int    // jobs
	fewest      int64  // least number of tasks left of the live jobs since a job came or ended
	lostBefore  uint64 // nodes lost up to that minimum
}

// lost returns the number of nodes lost since the last progress. O(live jobs).
func (p *progress) lost(w *world) uint64 {
	now := progress{ended: w.admission.jobsDone, lostBefore: w.res.NodesLost}
	for sj := range w.s.Jobs() {
		now.live++
		now.fewest += int64(w.jobs[sj.Spec.ID-1].tasksLeft)
	}
	if now.live != p.live || now.ended != p.ended || now.fewest < p.fewest {
		*p = now
	}
	return now.lostBefore - p.lostBefore
}

// losingError explains that nodes fail too often for the tasks that are left.
func losingError(w *world) error {
	why := "nodes fail more often than their tasks can end"
	for sj := range w.s.Jobs() {
		why = fmt.Sprintf("nodes fail more often than their tasks can end, for example those of job %d (%s): raise mtbf", sj.Spec.ID, sj.Spec.Name)
		break
	}
	return &StuckError{len(w.jobs) - w.admission.jobsDone, why}
}

// loseNode takes a node down with its attempts and the map outputs on it that are still needed.
func (o *outages) loseNode(w *world, n scheduler.NodeID) error {
	var lost []int32
	for a := range w.s.Attempts().On(n) {
		slot, err := w.findSlot(a.ID)
		if err != nil {
			return err
		}
		lost = append(lost, slot)
	}
	for _, slot := range w.suspensions.migrating {
		if a := w.s.Attempt(w.attempts[slot].id()); a.From == n {
			lost = append(lost, slot)
		}
	}
	w.suspensions.migrating = slices.DeleteFunc(w.suspensions.migrating, func(slot int32) bool { return slices.Contains(lost, slot) })
	for _, slot := range lost {
		occupied := w.occupiedResources(&w.attempts[slot])
		w.recordAttemptEnd(slot, scheduler.OutcomeLost)
		w.use.changeUse(&w.jobs[w.attempts[slot].job], scheduler.Resources{}.Sub(occupied))
	}
	if err := w.s.Events().NodeLost(n, w.now); err != nil {
		return err
	}
	for _, slot := range lost {
		if j := &w.jobs[w.attempts[slot].job]; j.tasksLeft == 0 && j.liveAttempts == 0 && !j.ended {
			if err := w.admission.endJob(w, j, JobSucceeded); err != nil {
				return err
			}
		}
	}
	w.res.NodesLost++
	w.use.setCapacity(w.s.Cluster().Total())
	return o.loseOutputs(w, n)
}

func (o *outages) repairNode(w *world, n scheduler.NodeID) error {
	if err := o.nodeUp(w, n); err != nil {
		return err
	}
	o.scheduleFailure(w, n)
	return nil
}

// loseOutputs makes tasks pending again whose output was on node n and is still needed: tasks of a
// stage before a stage that is not done.
func (o *outages) loseOutputs(w *world, n scheduler.NodeID) error {
	for sj := range w.s.Jobs() {
		j := &w.jobs[sj.Spec.ID-1]
		for k := range j.stages {
			if !outputNeeded(sj, int32(k)) {
				continue
			}
			for i, node := range j.stages[k].ranOn {
				if node != n || !sj.Stages[k].IsDone(int32(i)) {
					continue
				}
				task := sj.Stages[k].Task(int32(i))
				if lives, _ := w.s.Attempts().Slots(task); lives >= 0 {
					continue
				}
				if err := w.s.Events().OutputLost(task); err != nil {
					return err
				}
				j.tasksLeft++
				w.use.countWork(j, 0, 0, +1)
				w.res.OutputsLost++
			}
		}
	}
	return nil
}

// outputNeeded reports whether a stage that reads the output of stage k still has tasks to run.
func outputNeeded(j *scheduler.Job, k int32) bool {
	for _, g := range j.Stages {
		if g.Remaining() > 0 && slices.Contains(g.Spec.After, k) {
			return true
		}
	}
	return false
}

package bench

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// submitProjects submits projects of 5 jobs whose tasks each use half a node for at most ten
// minutes.
func (w *world) submitProjects() error {
	for i := range w.projects {
		spec := scheduler.ProjectSpec{ID: scheduler.ProjectID(i + 1), Name: fmt.Sprintf("project%05d", i), Tenant: w.leafTenants[w.rng.IntN(len(w.leafTenants))],
			Priority: scheduler.PriorityLow, Submitted: w.now, Jobs: 5}
		if w.rng.IntN(5) == 0 {
			spec.Priority = scheduler.PriorityHigh
		}
		if err := w.s.Events().PutProject(spec); err != nil {
			return err
		}
		for range spec.Jobs {
			w.nextJob++
			job := scheduler.JobSpec{ID: w.nextJob, Name: spec.Name, Tenant: spec.Tenant, Priority: spec.Priority, Submitted: w.now,
				Bound: 10 * time.Minute, Estimate: 5 * time.Minute, Project: spec.ID}
			stage := scheduler.StageSpec{Name: "main", Kind: scheduler.KindGroup, Tasks: 2, Demand: scheduler.Resources{16_000, 64 << 30, 100_000_000},
				Disk: 1 << 30, Estimate: 5 * time.Minute}
			if err := w.s.Events().SubmitJob(job, []scheduler.StageSpec{stage}); err != nil {
				return err
			}
			w.tasksLeft[job.ID] = stage.Tasks
			w.pendingTasks += int(stage.Tasks)
			w.pendingDemand = w.pendingDemand.Add(stage.Demand.Times(int64(stage.Tasks)))
		}
	}
	return nil
}

// makeReservations makes one reservation per task of the projects, as if their departures had been
// guaranteed: half a node each, one after the other on each node, the first ones spread over ten
// minutes. It serves policies that make no plan.
func (w *world) makeReservations() error {
	const duration, gap = 10 * time.Minute, time.Minute
	next := make([]scheduler.Time, w.Nodes)
	for i := range next {
		next[i] = w.now.Add(time.Duration(w.rng.Int64N(int64(duration))))
	}
	id, at := scheduler.ReservationID(1), 0
	if all := w.s.Reservations().All(); len(all) > 0 {
		id = all[len(all)-1].ID + 1
	}
	for j := range w.s.Jobs() {
		if j.Spec.Project == 0 {
			continue
		}
		for i := range j.Stages[0].Spec.Tasks {
			r := scheduler.Reservation{ID: id, Kind: scheduler.ReserveProject, Job: j.Spec.ID, Task: i, Project: j.Spec.Project,
				Node: scheduler.NodeID(at % w.Nodes), Demand: j.Stages[0].Spec.Demand, Disk: j.Stages[0].Spec.Disk}
			r.Start = next[r.Node]
			r.End = r.Start.Add(duration)
			next[r.Node] = r.End.Add(gap)
			if err := w.s.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: r}, w.now); err != nil {
				return err
			}
			id++
			at++
		}
	}
	return nil
}

// reportActions reports the actions of a decision to the State as done: placed attempts have
// started, suspending ones are suspended, resuming ones run.
func (w *world) reportActions(d *scheduler.Decision) error {
	if w.Features != FeaturesAll {
		return nil
	}
	for i := range d.Actions {
		act := &d.Actions[i]
		id := act.AttemptID()
		var err error
		switch act.Kind {
		case scheduler.ActPlace:
			err = w.s.Events().AttemptStarted(id, act.Run, w.now)
		case scheduler.ActSuspend:
			w.suspensions++
			footprint := scheduler.Footprint{Memory: w.s.Attempt(id).Demand[scheduler.Memory]}
			if act.Level == scheduler.LevelSwapped {
				footprint.Swap = footprint.Memory
			}
			err = w.s.Events().AttemptSuspended(id, act.Run, act.Level, footprint, w.now)
		case scheduler.ActResume:
			w.resumes++
			err = w.s.Events().AttemptResumed(id, act.Run, w.now)
		case scheduler.ActMigrate, scheduler.ActKill:
			err = fmt.Errorf("action %v is not supported by the benchmark", act.Kind)
		case scheduler.ActReserve, scheduler.ActUnreserve:
		default:
			err = fmt.Errorf("unknown action %v", act.Kind)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// countPlacements counts the placements of a decision.
func countPlacements(d *scheduler.Decision) int {
	n := 0
	for i := range d.Actions {
		if d.Actions[i].Kind == scheduler.ActPlace {
			n++
		}
	}
	return n
}

package coordinator

import (
	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/obstacle"
)

// Limits of the search for what delays waiting tasks.
const (
	maxObstructed        = 200     // stages
	maxObstructedDemands = 16      // different demands among them
	maxObstacleAttempts  = 100_000 // attempts and reservations, for one demand
)

// findObstacles returns, for each ready stage with pending tasks, what would have to give way for
// one of its tasks to start now. Nobody else may change s meanwhile. The limits above bound its
// work.
func findObstacles(s *scheduler.State, now scheduler.Time) map[scheduler.StageID]obstacle.Set {
	type demandKey struct {
		demand  scheduler.Resources
		disk    int64
		job     scheduler.JobID // reservations of its own do not stop a job
		project scheduler.ProjectID
	}
	out, known := map[scheduler.StageID]obstacle.Set{}, map[demandKey]obstacle.Set{}
	reserving := map[scheduler.JobID]bool{}
	for _, r := range s.Reservations().All() {
		reserving[r.Job] = true
	}
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			if g.Pending == 0 || !g.Open {
				continue
			}
			if len(out) >= maxObstructed {
				return out
			}
			k := demandKey{demand: g.Spec.Demand, disk: g.Spec.Disk, project: j.Spec.Project}
			if reserving[j.Spec.ID] {
				k.job = j.Spec.ID
			}
			set, ok := known[k]
			if !ok {
				if len(known) >= maxObstructedDemands {
					continue
				}
				set, _ = obstacle.Nearest(s, g, now, maxObstacleAttempts)
				known[k] = set
			}
			out[g.ID()] = set
		}
	}
	return out
}

// lastObstacles returns the obstacles that were found together with the last expected starts.
func (q *quoter) lastObstacles() map[scheduler.StageID]obstacle.Set {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.obstacles
}

// addObstacles adds to a waiting stage what would have to give way. It adds nothing if a part of
// that no longer exists.
func (b *scheduleBuilder) addObstacles(f *facts.Facts, out *droverv1.ScheduleWaiting) {
	set := b.core.quoter.lastObstacles()[stageID(out.GetJob(), out.GetStage())]
	var list []*droverv1.ScheduleObstacle
	for _, id := range set.Attempts {
		k := attemptKey(id)
		a, j := f.Attempt(k), f.Job(k.Job)
		if a == nil || j == nil || !a.State.IsActive() || a.Node != int32(set.Node)+1 {
			return
		}
		o := &droverv1.ScheduleObstacle{Node: a.Node, Key: &droverv1.AttemptKey{Run: a.Run}}
		if b.readable(f, j) {
			o.Key, o.Job, b.jobs[j.ID] = k.Proto(a.Run), j.ID, true
		}
		list = append(list, o)
	}
	for _, id := range set.Reservations {
		r := f.Reservation(uint64(id))
		if r == nil {
			return
		}
		o := &droverv1.ScheduleObstacle{Node: int32(set.Node) + 1, Reservation: r.GetId()}
		if j := f.Job(r.GetJob()); j != nil && b.readable(f, j) {
			o.Job, b.jobs[j.ID] = j.ID, true
		}
		list = append(list, o)
	}
	out.Obstacles = list
}

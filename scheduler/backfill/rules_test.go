package backfill

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// small is a planner of small bins, each with one resource, whose projects have one task for each job.
type small struct {
	*testing.T
	*Planner
	bins *Profile
}

func newSmall(t *testing.T, cfg Config, totals ...int64) small {
	t.Helper()
	s := small{T: t, bins: &Profile{}}
	for _, n := range totals {
		s.bins.AddBin([]int64{n})
	}
	s.Planner = NewPlanner(cfg, s.bins)
	return s
}

// add submits a project at 0.
func (s small) add(id int, requests ...Request) {
	s.Helper()
	if _, err := s.Submit(0, Project{ID: scheduler.ProjectID(id), Submitted: 0, Requests: requests}); err != nil {
		s.Fatal(err)
	}
}

// job is a request of a job of one task.
func job(id int, need, bound int64) Request {
	return Request{Job: scheduler.JobID(id), Tasks: []int32{0}, Need: Need{Base: []int64{need}}, Bound: time.Duration(bound)}
}

// want checks where and when the task of a job is planned.
func (s small) want(id int, bin int32, at scheduler.Time) {
	s.Helper()
	x, ok := s.Find(Key{Job: scheduler.JobID(id)})
	if !ok || x.Spot.Bin != bin || x.Spot.At != at {
		s.Errorf("job %d is planned on bin %d at %d (%v), want bin %d at %d", id, x.Spot.Bin, x.Spot.At, ok, bin, at)
	}
}

// Flexible backfilling moves a job within its own project's departure, Strict moves none.
func TestFlexibleMovesJobsButNoDeparture(t *testing.T) {
	for _, c := range []struct {
		variant     Variant
		moved, late scheduler.Time // starts of the second job of the waiting project, and of the new one
	}{{Strict, 10, 20}, {Flexible, 14, 0}} {
		s := newSmall(t, Config{Variant: c.variant}, 4)
		s.add(1, job(1, 2, 10))
		s.Start(Key{Job: 1}, 0)
		s.add(2, job(21, 1, 30), job(22, 3, 10)) // departs at 30, so the second may start at 20
		s.add(3, job(3, 1, 14))
		s.want(21, 0, 0)
		s.want(22, 0, c.moved)
		s.want(3, 0, c.late)
	}
}

// Of the reservations that may be delayed equally long, the one with the smallest id is delayed, in whatever order they came.
func TestTiesBetweenReservationsGoToTheSmallestID(t *testing.T) {
	for _, order := range [][2]int{{20, 30}, {30, 20}} {
		s := newSmall(t, Config{Variant: FlexibleSF, SlackFactor: 1, PreemptionLimit: NoLimit}, 4)
		s.add(1, job(1, 3, 10))
		s.Start(Key{Job: 1}, 0)
		for _, id := range order {
			s.add(id, job(id, 2, 10)) // both from 10, departures at 20, at the latest at 40
		}
		s.add(40, job(40, 1, 14))
		s.want(40, 0, 0)
		s.want(20, 0, 14)
		s.want(30, 0, 10)
	}
}

// A task that starts later than planned is reserved from its start on. It starts once.
func TestStartMovesTheReservationToItsTime(t *testing.T) {
	s := newSmall(t, Config{Variant: Strict}, 4)
	s.add(1, job(1, 3, 10))
	for _, now := range []scheduler.Time{4, 7} {
		s.Start(Key{Job: 1}, now)
		s.want(1, 0, 4)
	}
	s.add(2, job(2, 3, 10))
	s.want(2, 0, 14)
}

// A task whose time has passed is planned again from now on, also without stages that wait for others.
func TestReplanMovesWhatIsLate(t *testing.T) {
	s := newSmall(t, Config{Variant: Strict}, 4)
	s.add(1, job(1, 3, 10))
	s.Replan(5, CauseLate)
	s.want(1, 0, 5)
}

// If a bin has less than is reserved on it, the last submitted goes elsewhere.
func TestRepairMovesTheLastSubmitted(t *testing.T) {
	for _, order := range [][2]int{{1, 2}, {2, 1}} {
		s := newSmall(t, Config{Variant: Strict}, 4, 2)
		for _, id := range order {
			s.add(id, job(id, 2, 10)) // at one instant: the one with the larger id is the last
		}
		s.bins.Change(0, -1, 0, scheduler.Never, &Need{Base: []int64{2}}, -1)
		s.Repair(0, CauseNodeLost)
		s.want(1, 0, 0)
		s.want(2, 1, 0)
	}
}

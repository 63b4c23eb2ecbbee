package threedsf_test

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policytest"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A request for which no reservations are left is accepted once there are as many as it has waiting tasks, and not refused before.
func TestRequestWaitsForReservations(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
	w.LeaveReservations(1)
	p := guaranteeing()
	id := w.Submit("a", 4, schedtest.R(4, 4, 1), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		j.Bound, j.Deadline, g.Estimate = testBound, w.Now.Add(time.Hour), 20*time.Second
	})
	job := w.State.Job(id)
	for left := 1; left <= 3; left++ { // one task runs, three wait
		var d scheduler.Decision
		for range 10 {
			if d = w.Cycle(p); d.Empty() {
				break
			}
		}
		if err := policytest.ProveAll(w.State, &d, w.Now, 10_000); err != nil || !d.Empty() {
			t.Errorf("with %d reservations left, the last decision is\n%s: %v", left, d.String(), err)
		}
		accepted, refused := job.HasState(scheduler.AcceptedState), job.HasState(scheduler.RefusedState)
		if len(job.Reservations()) != left || job.Live != 1 || accepted != (left == 3) || refused {
			t.Fatalf("%d reservations for the three that wait, want %d; %d tasks run, accepted %v, refused %v", len(job.Reservations()), left, job.Live, accepted, refused)
		}
		w.DropReservation()
	}
}

// No task is suspended to free capacity that cannot be reserved for whom it would be freed.
func TestNobodyIsPreemptedWithoutAReservation(t *testing.T) {
	for left, want := range []int32{0, 1} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
		w.LeaveReservations(left)
		low := w.Submit("a", 1, schedtest.R(4, 1, 0))
		w.Place(scheduler.TaskID{Job: low}, 0)
		w.Start()
		w.Submit("a", 1, schedtest.R(3, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
			j.Deadline, j.AcceptedByQuote, g.Estimate = w.Now.Add(20*time.Second), true, 10*time.Second
		})
		policytest.Round(t, w.State, guaranteeing(), func() scheduler.Policy { return guaranteeing() }, w.Now, 1000)
		suspending := int32(0)
		for _, a := range w.Attempts() {
			if a.Phase == scheduler.AttemptSuspending {
				suspending++
			}
		}
		if suspending != want {
			t.Errorf("%d tasks are suspended with %d reservations left, want %d", suspending, left, want)
		}
	}
}

// A task that has been suspended for long gets capacity reserved only while the State takes the reservation.
func TestSuspendedTaskWaitsForAReservation(t *testing.T) {
	for left, want := range []int{0, 1} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
		w.LeaveReservations(left)
		id := w.Submit("a", 1, schedtest.R(4, 1, 0))
		a := w.Place(scheduler.TaskID{Job: id}, 0)
		w.Start()
		act := a.Act(scheduler.ActSuspend)
		act.Level = scheduler.LevelFrozen
		if err := w.State.Apply(&act, w.Now); err != nil {
			t.Fatal(err)
		}
		if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: schedtest.GiB}, w.Now); err != nil {
			t.Fatal(err)
		}
		w.Place(scheduler.TaskID{Job: w.Submit("a", 1, schedtest.R(1, 1, 0))}, 0)
		w.Start().Advance(8 * time.Minute) // of ten that a task may be suspended
		policytest.Round(t, w.State, guaranteeing(), func() scheduler.Policy { return guaranteeing() }, w.Now, 1000)
		if got := len(w.State.Job(id).Reservations()); got != want {
			t.Errorf("%d reservations for the suspended task with %d left, want %d", got, left, want)
		}
	}
}

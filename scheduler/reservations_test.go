package scheduler_test

import (
	"errors"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// A full State refuses one more reservation, and Check refuses a decision that makes one. An existing
// reservation can still change, and a new one can replace one that is deleted first: the log accepts both too.
func TestReservationsAreBounded(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 100)).AddTenants("a")
	job := w.Submit("a", 1, schedtest.R(1, 1, 1))
	w.LeaveReservations(1)
	reserve := func(id scheduler.ReservationID) scheduler.Action {
		return scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: id, Kind: scheduler.ReserveHead, Job: job, Start: w.Now, End: w.Now + 1}}
	}
	next := w.State.Reservations().NextID()
	for name, x := range map[string]struct {
		actions []scheduler.Action
		at      int // of the action that is refused, -1 for none
	}{
		"the last":                        {[]scheduler.Action{reserve(next)}, -1},
		"one more":                        {[]scheduler.Action{reserve(next), reserve(next + 1)}, 1},
		"the last, changed":               {[]scheduler.Action{reserve(next), reserve(next), reserve(1)}, -1},
		"one for one that was deleted":    {[]scheduler.Action{reserve(next), scheduler.Unreserve(1), reserve(next + 1)}, -1},
		"two for one that was deleted":    {[]scheduler.Action{scheduler.Unreserve(1), reserve(1), reserve(next), reserve(next + 1)}, 3},
		"one for one that it has deleted": {[]scheduler.Action{reserve(next), scheduler.Unreserve(next), reserve(next + 1)}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			at := -1
			if v := scheduler.Check(w.State, &scheduler.Decision{Actions: x.actions}, w.Now); len(v) > 0 {
				if at = v[0].Index; v[0].Rule != scheduler.RuleInvalid {
					t.Errorf("it breaks rule %v, want %v", v[0].Rule, scheduler.RuleInvalid)
				}
			}
			if at != x.at {
				t.Errorf("Check refuses action %d, want %d", at, x.at)
			}
			m := w.State.Journal().Mark()
			defer w.State.Journal().Rollback(m)
			for i := range x.actions {
				err := w.State.Apply(&x.actions[i], w.Now)
				if refused := errors.Is(err, scheduler.ErrInvalid); refused != (i == x.at) || (err != nil && !refused) {
					t.Errorf("Apply says %v of action %d", err, i)
				}
			}
		})
	}
}

package threedsf

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// cycle is a decision in progress: the decision so far, and the State as changed by it. All changes
// of a decision go through its methods, so that State and decision agree.
type cycle struct {
	view
	shares      *shares // including what the decision has placed
	actionsLeft int
	mark        scheduler.Mark

	actions        []scheduler.Action
	states         []scheduler.PolicyState
	waitingReasons []scheduler.Waiting
	// As in scheduler.Decision.
	waitingContinues, waitingMore bool
	wake                          scheduler.Time
	planWake                      scheduler.Time // requested by planning, applies to every pass; 0 for none
	nonPlacement                  bool           // this pass did something other than a placement
	changeCount                   int            // actions and policy states added or withdrawn in this decision

	// nodeUsed is called with each node whose free capacity for others has shrunk.
	nodeUsed func(scheduler.NodeID)
}

// begin starts a decision of at most limit actions.
func (c *cycle) begin(s *scheduler.State, now scheduler.Time, limit int) {
	c.s, c.now, c.actionsLeft, c.wake, c.planWake = s, now, limit, 0, 0
	c.actions, c.states, c.waitingReasons = c.actions[:0], c.states[:0], c.waitingReasons[:0]
	c.shares.sync(s, c.cfg.Level, c.cfg.Resources)
	c.mark = s.Journal().Mark()
}

// beginPass starts a pass through all lanes.
func (c *cycle) beginPass() { c.wake, c.nonPlacement = c.planWake, false }

// applyToState applies an action to the State, not to the decision.
func (c *cycle) applyToState(a *scheduler.Action) {
	if err := c.s.Apply(a, c.now); err != nil {
		panic("threedsf: State refused an action that it offered: " + err.Error())
	}
}

// replacePlacement replaces a placement that was withdrawn with another.
func (c *cycle) replacePlacement(action int32, a scheduler.Action) {
	c.applyToState(&a)
	c.actions[action] = a
	c.nonPlacement = true
}

// withdrawReservation undoes a reservation of this decision, and returns the index of its action,
// or -1 if this decision did not make it. It takes the latest matching action, since an earlier one
// may have made and dropped a reservation of the same id.
func (c *cycle) withdrawReservation(id scheduler.ReservationID) int {
	for i := len(c.actions) - 1; i >= 0; i-- {
		if a := &c.actions[i]; a.Kind == scheduler.ActReserve && a.Reservation.ID == id {
			act := scheduler.Unreserve(id)
			c.applyToState(&act)
			c.actions = slices.Delete(c.actions, i, i+1)
			c.actionsLeft++
			c.changeCount++
			c.nonPlacement = true
			return i
		}
	}
	return -1
}

// withdrawPlacement undoes a placement of this decision in the State.
func (c *cycle) withdrawPlacement(action int32) {
	if err := c.s.Journal().Withdraw(&c.actions[action]); err != nil {
		panic("threedsf: State refused to withdraw a placement: " + err.Error())
	}
}

// decision returns what is decided so far. It shares memory with the cycle.
func (c *cycle) decision(now scheduler.Time) scheduler.Decision {
	return scheduler.Decision{Base: c.s.Index(), At: now, Actions: c.actions, PolicyStates: c.states, Waiting: c.waitingReasons,
		WaitingContinues: c.waitingContinues, WaitingMore: c.waitingMore, Wake: c.wake}
}

// apply applies an action to the State and appends it to the decision.
func (c *cycle) apply(a scheduler.Action) {
	c.applyToState(&a)
	c.actions = append(c.actions, a)
	c.nonPlacement = c.nonPlacement || a.Kind != scheduler.ActPlace
	c.actionsLeft--
	c.changeCount++
}

// recordState applies a policy state and appends it to the decision. It returns false if the State refuses it.
func (c *cycle) recordState(n scheduler.PolicyState) bool {
	c.states = append(c.states, n)
	if c.s.PolicyStates().Apply(c.states[len(c.states)-1:]) != nil {
		c.states = c.states[:len(c.states)-1]
		return false
	}
	c.nonPlacement = true
	c.changeCount++
	return true
}

// place places a task, which must fit, and charges it to the tenant's share.
func (c *cycle) place(g *scheduler.Stage, task int32, node scheduler.NodeID) {
	disk, ok := c.s.Node(node).Fits(g.Spec.Demand, g.Spec.Disk)
	if !ok {
		panic("threedsf: placing a task on a node that it does not fit")
	}
	c.apply(c.s.Attempts().PlaceAction(g, task, node, disk))
	c.shares.charge(g.Job.Spec.Tenant, g.Spec.Demand)
	c.nodeUsed(node)
}

// wakeAt requests a cycle at a time, unless an earlier one is requested; Never requests none.
func (c *cycle) wakeAt(at scheduler.Time) {
	if at < scheduler.Never && (c.wake == 0 || at < c.wake) {
		c.wake = at
	}
}

package scheduler

import "slices"

// A task whose attempt failed on a node prefers another node for its next attempts: the node may be the cause, and a second
// failure there would teach nothing. If no other node can take the task now, it goes to the same node again. Policies check
// this when they choose a node (FailedOn, NextFailedOn); Cycle exchanges tasks when a policy found no other node.

const maxFailedOn = 4 // how many failed nodes a task avoids: the latest ones

const maxExchangeTasks = 64 // how many waiting tasks are examined to take a retry's place

// FailedOn returns the nodes on which task i failed last, the oldest first. The slice belongs to State. O(1).
func (g *Stage) FailedOn(i int32) []NodeID { return g.pastAttempts[i].FailedOn }

// NextFailedOn is FailedOn for the lowest pending task, nil if none is pending. O(1).
func (g *Stage) NextFailedOn() []NodeID {
	if len(g.pastAttempts) == 0 {
		return nil
	}
	return g.FailedOn(g.NextPending(0))
}

func (t *pastAttempts) failedOn(n NodeID) {
	if slices.Contains(t.FailedOn, n) {
		return
	}
	t.FailedOn = append(slices.Clone(t.FailedOn[max(0, len(t.FailedOn)-maxFailedOn+1):]), n)
}

// moveRetriesElsewhere amends placements that put a task back on a node where it failed. A task of the same
// stage takes that place: one that this decision starts elsewhere, or else a waiting one. The nodes used and
// the stages served stay. Tasks with input are left to the policy, which knows where the input is, and tasks of
// jobs with reservations to their plan. O(actions), and O(actions + nodes) for each placement concerned.
func moveRetriesElsewhere(s *State, d *Decision) {
	copied := false
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != ActPlace || a.Attempt <= 1 || a.Speculative {
			continue
		}
		g := s.Stage(a.Task.StageID())
		if g == nil || g.Spec.Inputs != nil || len(g.Job.reservations) > 0 || !slices.Contains(g.FailedOn(a.Task.Index), a.Node) || reservesFor(d.Actions, g.Job) {
			continue
		}
		if !copied {
			d.Actions, copied = slices.Clone(d.Actions), true // they belong to the policy
		}
		if !exchangePlaced(g, d.Actions, i) {
			s.exchangeWaiting(g, d.Actions, i)
		}
	}
}

// reservesFor reports whether actions add a reservation for a job or its project. O(actions).
func reservesFor(actions []Action, j *Job) bool {
	return slices.ContainsFunc(actions, func(a Action) bool {
		r := &a.Reservation
		return a.Kind == ActReserve && (r.Job == j.Spec.ID || (j.Spec.Project != 0 && r.Project == j.Spec.Project))
	})
}

// exchangePlaced exchanges the task of placement i with that of another placement of its stage, if
// then neither task starts where it failed, and reports whether it did.
func exchangePlaced(g *Stage, actions []Action, i int) bool {
	a := &actions[i]
	for k := range actions {
		b := &actions[k]
		if b.Kind == ActPlace && !b.Speculative && b.Task.StageID() == a.Task.StageID() && b.Node != a.Node &&
			!slices.Contains(g.FailedOn(a.Task.Index), b.Node) && !slices.Contains(g.FailedOn(b.Task.Index), a.Node) {
			a.Task, b.Task, a.Attempt, b.Attempt = b.Task, a.Task, b.Attempt, a.Attempt
			return true
		}
	}
	return false
}

// exchangeWaiting replaces the task of placement i with a waiting task of its stage that has not failed on
// the node. Nothing changes if there is no such task, or if no other node is large enough for the former.
func (s *State) exchangeWaiting(g *Stage, actions []Action, i int) {
	a := &actions[i]
	other := func(n NodeID) bool { return !slices.Contains(g.FailedOn(a.Task.Index), n) && !s.cluster.Avoids(g, n) }
	if need := g.need(); !s.cluster.couldRunOn(&need, other) {
		return
	}
	placed := map[int32]bool{}
	for k := range actions {
		if b := &actions[k]; b.Kind == ActPlace && b.Task.StageID() == a.Task.StageID() {
			placed[b.Task.Index] = true
		}
	}
	looked := 0
	for k := g.NextPending(0); k >= 0 && looked < maxExchangeTasks; k = g.NextPending(k + 1) {
		if placed[k] {
			continue
		}
		if looked++; !slices.Contains(g.FailedOn(k), a.Node) {
			a.Task, a.Attempt = g.Task(k), s.Attempts().NextAttempt(g, k)
			return
		}
	}
}

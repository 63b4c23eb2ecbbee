package scheduler

import (
	"cmp"
	"slices"
)

// A reduce stage stalls if outputs of its maps are lost while its tasks run: the tasks wait for maps that are pending
// again. A deadlock results if the reduces occupy all capacity, of nodes or of a cap, that the maps could use, or if the
// policy leaves the free capacity to work that waits for the reduces. Cycle therefore suspends reduces for maps that fit
// nowhere, and places maps that fit but that a policy leaves waiting. The reduces resume when the stage is open.

// stalledStages are the closed stages with live attempts, by id. A stage whose last attempt has
// ended may stay in it until it opens or its job ends.
type stalledStages []*Stage

// update adds or removes a stage according to its fields. O(log of the stalled stages); O(stalled stages) for a change.
func (l *stalledStages) update(g *Stage) {
	i, found := slices.BinarySearchFunc(*l, g, func(a, b *Stage) int { return a.ID().Compare(b.ID()) })
	switch stalled := g.WaitsForInput() && g.Running+g.Suspended > 0; {
	case stalled && !found:
		*l = slices.Insert(*l, i, g)
	case !stalled && found:
		*l = slices.Delete(*l, i, i+1)
	}
}

// WaitsForInput reports whether no task of a reduce stage can end because outputs of its maps are
// missing: a suspended task need not resume yet. O(1).
func (g *Stage) WaitsForInput() bool { return !g.Open && g.Spec.Kind == KindReduce }

// waitsForPlaces reports whether tasks of the stages that a stage depends on wait for placement.
func (g *Stage) waitsForPlaces() bool {
	return slices.ContainsFunc(g.Spec.After, func(i int32) bool { return g.Job.Stages[i].Startable() > 0 })
}

// unblockStalledReduces adds actions to a decision for running reduces whose map outputs were lost and
// whose maps still wait after the decision. For each such map stage it places one map, or suspends the
// reduces whose capacity the map needs. O(stalled stages) if none of their maps waits, for example
// because they run again; else O(actions + attempts of the stalled stages + nodes that fit the maps).
func unblockStalledReduces(s *State, p Policy, d *Decision, now Time, limit int) {
	if !slices.ContainsFunc(s.stalled, (*Stage).waitsForPlaces) {
		return
	}
	mark := s.Journal().Mark()
	defer s.Journal().Rollback(mark)
	for i := range d.Actions {
		if s.Apply(&d.Actions[i], now) != nil {
			return // Check reports the reason
		}
	}
	d.Actions = slices.Clone(d.Actions) // they belong to the policy
	for _, g := range s.stalled {
		for _, before := range g.Spec.After {
			more := actionsForMap(s, p, d, g, g.Job.Stages[before], now)
			if len(d.Actions)+len(more) > limit {
				continue
			}
			for i := range more { // so that the next stage does not stop the same attempts
				if s.Apply(&more[i], now) != nil {
					return
				}
				d.Actions = append(d.Actions, more[i])
			}
		}
	}
}

// actionsForMap returns the placement of a task of stage m that reduce stage g waits for, or the
// suspensions of attempts of g that it needs; nil if m does not wait, or if the needed capacity is being
// freed already. It moves d.Wake forward to when a future guarantee no longer needs the rest of a cap.
func actionsForMap(s *State, p Policy, d *Decision, g, m *Stage, now Time) []Action {
	if m.Startable() == 0 {
		return nil
	}
	if s.cluster.NextNode(m, 0) == NoNode {
		return findStops(s, g, m)
	}
	if !s.tree.Allows(m) {
		return stopsForCaps(s, g, m, Resources{})
	}
	task := m.NextPending(0)
	id, due := s.nodeForMap(m, task, now)
	switch {
	case id != NoNode:
		r, refused := RefusedByCap(p, s, m, id, false, now)
		if refused && !r.Awaited.IsZero() {
			return stopsForCaps(s, g, m, r.Awaited)
		}
		if refused {
			d.WakeAt(r.Until)
			return nil
		}
		disk, _ := s.cluster.nodes[id].Fits(m.Spec.Demand, m.Spec.Disk)
		return []Action{s.Attempts().PlaceAction(m, task, id, disk)}
	case due: // the reservation's task may wait for what the reduces occupy
		return findStops(s, g, m)
	default: // a future guarantee, whose capacity is free when it starts and which ends
		return nil
	}
}

// nodeForMap returns the node on which to place a map that running reduces wait for: one with its input, else
// of the first few nodes that fit, one without reservations where the task has not failed, else the first. If
// reservations close all nodes that fit it returns NoNode, and whether one of these reservations is due.
func (s *State) nodeForMap(m *Stage, task int32, now Time) (first NodeID, due bool) {
	_, local, _ := m.Input(task)
	failed := m.FailedOn(task)
	for _, id := range local {
		if s.cluster.HasCapacity(m, id) && s.reservationAgainst(m, id, now) == nil && !slices.Contains(failed, id) {
			return id, false
		}
	}
	first = NoNode
	for id, k := s.cluster.NextNode(m, 0), 0; id != NoNode && k < bestNodeCandidates; id = s.cluster.NextNode(m, id+1) {
		if r := s.reservationAgainst(m, id, now); r != nil {
			due = due || r.Start <= now
			continue
		}
		if k++; len(s.cluster.nodes[id].reserved) == 0 && !slices.Contains(failed, id) {
			return id, false
		}
		if first == NoNode {
			first = id
		}
	}
	return first, due
}

// reservationAgainst returns the first reservation by start on a node that a task of m may not start beside: for a
// preemption in progress, or a guarantee in force or beginning before the task ends, unless the task gives way
// then; else nil. Stricter than Check. Others are plans, which the policy makes again. O(reservations on the node).
func (s *State) reservationAgainst(m *Stage, id NodeID, now Time) *Reservation {
	n, end := s.cluster.nodes[id], boundedEnd(m, 0, now)
	for _, r := range n.reserved {
		guarantee := r.Kind.IsGuarantee() && (r.Start <= now || (r.Start < end && !n.CanPreempt(m.Job)))
		if r.Job != m.Job.Spec.ID && r.End > now && (guarantee || r.Kind == ReservePreempt) {
			return r
		}
	}
	return nil
}

// stalledAttempts returns the attempts of a stalled stage that may be stopped, newest first; nil while one is stopping.
func stalledAttempts(s *State, g *Stage) (attempts []*Attempt) {
	for a := range s.Attempts().In(g) {
		switch a.Phase {
		case AttemptSuspending, AttemptKilling:
			return nil
		case AttemptStarting, AttemptRunning, AttemptSuspended:
			attempts = append(attempts, a)
		}
	}
	slices.SortFunc(attempts, func(a, b *Attempt) int { return cmp.Compare(b.Seq, a.Seq) })
	return attempts
}

// findStops returns the fewest suspensions of attempts of reduce stage g on one node that free capacity for a task of
// stage m there. O(attempts log attempts).
func findStops(s *State, g, m *Stage) []Action {
	of := map[NodeID][]*Attempt{}
	var nodes []NodeID // in the order of their newest attempts
	for _, a := range stalledAttempts(s, g) {
		if of[a.Node] == nil {
			nodes = append(nodes, a.Node)
		}
		of[a.Node] = append(of[a.Node], a)
	}
	var best []Action
	for _, id := range nodes {
		n := s.cluster.nodes[id]
		if !n.Schedulable() || !m.Spec.Demand.Fits(n.Spec.Capacity) || s.cluster.Avoids(m, id) {
			continue
		}
		if stops := stopsOn(n, of[id], m); stops != nil && (best == nil || len(stops) < len(best)) {
			best = stops
		}
	}
	return best
}

// stopsForCaps returns the suspensions of the newest attempts of reduce stage g after which a task
// of stage m, plus awaited for others, is within all caps; nil if none suffice.
func stopsForCaps(s *State, g, m *Stage, awaited Resources) (stops []Action) {
	need := m.Spec.Demand
	more := need.Add(awaited) // additional charge after the stops
	swap := map[NodeID]int64{}
	for _, a := range stalledAttempts(s, g) {
		_, _, lacks, ok := s.tree.underCaps(m.Job, need, Resources{Memory: more[Memory]}, nil)
		memory := !ok && lacks == Memory
		if !a.stopFrees(memory) {
			continue
		}
		after := *s.cluster.nodes[a.Node] // as it will be after the stop
		after.SwapFree -= swap[a.Node]
		act, frees := after.stop(a, memory)
		if act.Level == LevelSwapped {
			swap[a.Node] += a.Occupied.Resources[Memory]
		}
		stops, more = append(stops, act), more.Sub(frees)
		if s.tree.WithinCaps(m.Job, need, more) {
			return stops
		}
	}
	return nil
}

// stopsOn returns the suspensions, in order, of attempts on one node after which a task of m fits; nil if none suffice.
func stopsOn(n *Node, attempts []*Attempt, m *Stage) []Action {
	after := *n // as it will be after the stops
	after.Disks = slices.Clone(n.Disks)
	var stops []Action
	for _, a := range attempts {
		memory := m.Spec.Demand[Memory] > after.Free[Memory]
		if !a.stopFrees(memory) {
			continue
		}
		act, frees := after.stop(a, memory)
		if act.Level == LevelSwapped {
			after.SwapFree -= frees[Memory]
		}
		after.occupy(a.Disk, &Occupancy{Resources: frees}, -1)
		stops = append(stops, act)
		if _, ok := after.Fits(m.Spec.Demand, m.Spec.Disk); ok {
			return stops
		}
	}
	return nil
}

// stopFrees reports whether stopping an attempt frees capacity: of a suspended one, only memory, if that is needed.
func (a *Attempt) stopFrees(memory bool) bool {
	return a.Phase != AttemptSuspended || (memory && a.Occupied.Resources[Memory] > 0)
}

// stop returns the action that frees an attempt's capacity on n, with its memory if needed, and what it frees.
func (n *Node) stop(a *Attempt, memory bool) (act Action, frees Resources) {
	can := func(l Level) bool { return l > a.Level && n.CanReach(a, l) }
	act, frees = a.Act(ActSuspend), a.Occupied.Resources
	switch {
	case !memory && can(LevelFrozen):
		act.Level, frees[Memory] = LevelFrozen, 0
	case can(LevelSwapped) && a.Occupied.Resources[Memory] <= n.SwapFree:
		act.Level = LevelSwapped
	case can(LevelCheckpointed):
		act.Level = LevelCheckpointed
	default: // no level helps: kill it; its input is fetched again
		act.Kind = ActKill
	}
	return act, frees
}

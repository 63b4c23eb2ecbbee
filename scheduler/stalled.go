package scheduler

import (
	"cmp"
	"slices"
)

// A reduce stage stalls if outputs of its maps are lost while its tasks run: these wait for maps that are pending
// again. If they occupy all that the maps could have, neither could ever go on. Cycle therefore suspends reduces for
// maps that fit nowhere, whatever the policy; they resume when the stage is open again.

// stalledStages are the stages that are closed and have live attempts, by id. A stage whose last
// attempt ended may be in it until it opens or its job ends.
type stalledStages []*Stage

// update adds or removes a stage as its fields say. O(log of the stalled stages), and O(stalled
// stages) if there is a change.
func (l *stalledStages) update(g *Stage) {
	i, found := slices.BinarySearchFunc(*l, g, func(a, b *Stage) int { return a.ID().Compare(b.ID()) })
	switch stalled := g.WaitsForInput() && g.Running+g.Suspended > 0; {
	case stalled && !found:
		*l = slices.Insert(*l, i, g)
	case !stalled && found:
		*l = slices.Delete(*l, i, i+1)
	}
}

// removeJob removes the stages of a job.
func (l *stalledStages) removeJob(j *Job) {
	*l = slices.DeleteFunc(*l, func(g *Stage) bool { return g.Job == j })
}

// WaitsForInput reports whether no task of a reduce stage can end, because outputs of its maps
// are missing: a suspended one need not resume yet. O(1).
func (g *Stage) WaitsForInput() bool { return !g.Open && g.Spec.Kind == KindReduce }

// waitsForPlaces reports whether tasks that a stage comes after wait to be placed.
func (g *Stage) waitsForPlaces() bool {
	return slices.ContainsFunc(g.Spec.After, func(i int32) bool { return g.Job.Stages[i].Startable() > 0 })
}

// freeForMaps adds to a decision the suspension of reduces that wait for maps which fit nowhere after it: for each such
// stage of maps the fewest attempts on one node whose capacity suffices, the newest first. O(stalled stages) if none of
// their maps waits, as while these run again; O(actions + attempts of the stalled stages) otherwise.
func freeForMaps(s *State, d *Decision, now Time, limit int) {
	if !slices.ContainsFunc(s.stalled, (*Stage).waitsForPlaces) {
		return
	}
	mark := s.Journal().Mark()
	defer s.Journal().Rollback(mark)
	for i := range d.Actions {
		if s.Apply(&d.Actions[i], now) != nil {
			return // Check says why
		}
	}
	d.Actions = slices.Clone(d.Actions) // they belong to the policy
	for _, g := range s.stalled {
		for _, before := range g.Spec.After {
			more := findStops(s, g, g.Job.Stages[before])
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

// findStops returns the suspensions of attempts of reduce stage g that free capacity for a task of
// stage m. It returns nil if m does not lack capacity, or if capacity is on its way already.
func findStops(s *State, g, m *Stage) []Action {
	if m.Startable() == 0 || s.cluster.NextNode(m, 0) != NoNode {
		return nil
	}
	var attempts []*Attempt
	for a := range s.Attempts().In(g) {
		switch a.Phase {
		case AttemptSuspending, AttemptKilling:
			return nil
		case AttemptStarting, AttemptRunning, AttemptSuspended:
			attempts = append(attempts, a)
		}
	}
	slices.SortFunc(attempts, func(a, b *Attempt) int { return cmp.Compare(b.Seq, a.Seq) })
	var best []Action
	for i, a := range attempts {
		n := s.cluster.nodes[a.Node]
		if !n.Schedulable() || !m.Spec.Demand.Fits(n.Spec.Capacity) || s.cluster.Avoids(m, a.Node) ||
			slices.ContainsFunc(attempts[:i], func(b *Attempt) bool { return b.Node == a.Node }) {
			continue
		}
		if stops := stopsOn(n, attempts[i:], m); stops != nil && (best == nil || len(stops) < len(best)) {
			best = stops
		}
	}
	return best
}

// stopsOn returns the suspensions of attempts on a node, in their order, after which a task of
// stage m fits there; nil if none suffice.
func stopsOn(n *Node, attempts []*Attempt, m *Stage) []Action {
	after := *n // as it will be
	after.Disks = slices.Clone(n.Disks)
	var stops []Action
	for _, a := range attempts {
		memory := m.Spec.Demand[Memory] > after.Free[Memory]
		if a.Node != n.Spec.ID || (a.Phase == AttemptSuspended && !memory) {
			continue
		}
		act := Action{Kind: ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: after.levelToFree(a, memory)}
		frees := a.Occupied.Resources
		switch act.Level {
		case LevelRunning: // no level helps: its input is fetched again
			act.Kind, act.Level = ActKill, 0
		case LevelFrozen:
			frees[Memory] = 0
		case LevelSwapped:
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

// levelToFree returns the level that an attempt on n is brought to so that its capacity is free,
// with its memory if that is needed; LevelRunning if there is none.
func (n *Node) levelToFree(a *Attempt, memory bool) Level {
	can := func(l Level) bool { return l > a.Level && n.CanReach(a, l) }
	switch {
	case !memory && can(LevelFrozen):
		return LevelFrozen
	case can(LevelSwapped) && a.Occupied.Resources[Memory] <= n.SwapFree:
		return LevelSwapped
	case can(LevelCheckpointed):
		return LevelCheckpointed
	default:
		return LevelRunning
	}
}

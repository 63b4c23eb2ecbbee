package bench

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// matchingInterval is the number of cycles between two evaluated ones.
const matchingInterval = 10

// matchingEvaluator compares the node-local placements of decisions with an upper bound for any
// matching. The bound is a maximum flow. Each stage sends as many tasks as the decision placed of
// it, chosen from those pending before, to the nodes of their data. Each node has as many slots for
// the candidate tasks of each demand and all larger ones as fit together. The bound includes
// competition for slots but not all gaps that tasks of different demands leave, so the true gap is
// smaller. The number of tasks placed per stage is not judged here but by shareEvaluator. Nor are
// resumed suspended attempts and reserved tasks without data, which can start only on their node:
// they take capacity ahead of the matching.
type matchingEvaluator struct {
	active bool
	// Before the decision: the free capacity of each node, what suspended attempts occupied, and the
	// nodes of reserved tasks.
	free     []scheduler.Resources
	occupied map[scheduler.AttemptID]scheduler.Resources
	reserved map[scheduler.TaskID]scheduler.NodeID

	placed map[*scheduler.Stage]*stagePlacements
	stages []*stagePlacements // in order of their first placement
	local  int
	bound  int
	found  int // placements that exchangeSearch could make node-local
}

// stagePlacements are the placements of one stage in a decision.
type stagePlacements struct {
	stage *scheduler.Stage
	tasks []int32 // placed tasks
	local int     // how many of them are node-local
}

// beforeDecision records what the bound depends on before a decision. O(nodes + reservations).
func (m *matchingEvaluator) beforeDecision(s *scheduler.State) {
	m.active = true
	m.free = m.free[:0]
	for _, n := range s.Nodes() {
		free := n.Free
		if !n.Schedulable() {
			free = scheduler.Resources{-1, -1, -1}
		}
		m.free = append(m.free, free)
	}
	m.occupied, m.reserved = map[scheduler.AttemptID]scheduler.Resources{}, map[scheduler.TaskID]scheduler.NodeID{}
	for a := range s.Attempts().Suspended() {
		m.occupied[a.ID] = a.Occupied.Resources
	}
	for _, r := range s.Reservations().All() {
		if r.IsOfTask() {
			m.reserved[scheduler.TaskID{Job: r.Job, Stage: r.Stage, Index: r.Task}] = r.Node
		}
	}
}

// afterDecision evaluates a decision that has been applied to the State.
func (m *matchingEvaluator) afterDecision(s *scheduler.State, d *scheduler.Decision) {
	if !m.active {
		return
	}
	m.active = false
	m.placed, m.stages = map[*scheduler.Stage]*stagePlacements{}, m.stages[:0]
	for i := range d.Actions {
		a := &d.Actions[i]
		if was, suspended := m.occupied[a.AttemptID()]; suspended && a.Kind == scheduler.ActResume {
			at := s.Attempt(a.AttemptID())
			m.free[at.Node] = m.free[at.Node].Sub(at.Demand.Sub(was).Max(scheduler.Resources{}))
		}
		if a.Kind != scheduler.ActPlace {
			continue
		}
		g := s.Stage(a.Task.StageID())
		_, nodes, _ := g.Input(a.Task.Index)
		if len(nodes) == 0 {
			if node, is := m.reserved[a.Task]; is && node == a.Node {
				m.free[node] = m.free[node].Sub(g.Spec.Demand)
			}
			continue
		}
		k := m.placed[g]
		if k == nil {
			k = &stagePlacements{stage: g}
			m.placed[g] = k
			m.stages = append(m.stages, k)
		}
		k.tasks = append(k.tasks, a.Task.Index)
		if slices.Contains(nodes, a.Node) {
			k.local++
		}
	}
	local := 0
	for _, k := range m.stages {
		local += k.local
	}
	f := newFlow(m.free)
	for _, k := range m.stages {
		f.addStage(k)
	}
	bound := f.value()
	m.local, m.bound = m.local+local, m.bound+bound
	if local < bound {
		m.found += m.searchExchanges(s, d)
	}
}

// searchExchanges returns how many placements of a decision exchangeSearch could make node-local.
func (m *matchingEvaluator) searchExchanges(s *scheduler.State, d *scheduler.Decision) int {
	x := newExchangeSearch(s)
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		g := s.Stage(a.Task.StageID())
		if _, nodes, _ := g.Input(a.Task.Index); len(nodes) > 0 {
			x.addTask(g, a.Task.Index, a.Node, slices.Contains(nodes, a.Node))
		}
	}
	return x.value()
}

// gap returns the fraction of the bound that was missed.
func (m *matchingEvaluator) gap() float64 {
	if m.bound == 0 {
		return 0
	}
	return 1 - float64(m.local)/float64(m.bound)
}

// gapFound returns the fraction of the node-local placements that exchangeSearch found to be missed.
func (m *matchingEvaluator) gapFound() float64 {
	if m.found == 0 {
		return 0
	}
	return float64(m.found) / float64(m.local+m.found)
}

// countUnexplained counts the waiting stages for which a decision has no reason.
func countUnexplained(s *scheduler.State, d *scheduler.Decision) int {
	if d.WaitingContinues || d.WaitingMore {
		return 0 // other decisions explain the rest
	}
	explained := map[scheduler.StageID]bool{}
	for i := range d.Waiting {
		if w := &d.Waiting[i]; w.Reason != 0 {
			explained[w.Stage] = true
		}
	}
	n := 0
	for j, at := s.Queue().Next(0); j != nil; j, at = s.Queue().Next(at) {
		for _, g := range j.Stages {
			if g.Ready() && !explained[g.ID()] {
				n++
			}
		}
	}
	return n
}

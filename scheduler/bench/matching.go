package bench

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// matchEvery is how many cycles pass from one that is judged to the next.
const matchEvery = 10

// matchJudge holds what a decision placed at its data against a bound on what
// any matching could have: of each stage, as many tasks as the decision placed,
// or as many as had room at their data before it, whichever is less. The bound
// leaves out that tasks compete for room, so the true gap is smaller. A decision
// is free in how many tasks of a stage it places; that is judged by shares.
type matchJudge struct {
	judging bool
	free    []scheduler.Resources // of each node before the decision
	placed  map[*scheduler.Stage]*nearby
	local   int
	bound   int
}

// nearby is what a decision did with a stage.
type nearby struct {
	tasks []int32 // placed
	local int     // of these, at their data
}

// begin looks at the State before a decision. O(nodes).
func (m *matchJudge) begin(s *scheduler.State) {
	m.judging = true
	m.free = m.free[:0]
	for _, n := range s.Nodes() {
		free := n.Free
		if !n.Takes() {
			free = scheduler.Resources{-1, -1, -1}
		}
		m.free = append(m.free, free)
	}
}

// end looks at the decision, which is applied to the State.
func (m *matchJudge) end(s *scheduler.State, d *scheduler.Decision) {
	if !m.judging {
		return
	}
	m.judging = false
	m.placed = map[*scheduler.Stage]*nearby{}
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		g := s.Stage(a.Task.StageID())
		_, nodes, _ := g.Input(a.Task.Index)
		if len(nodes) == 0 {
			continue
		}
		k := m.placed[g]
		if k == nil {
			k = &nearby{}
			m.placed[g] = k
		}
		k.tasks = append(k.tasks, a.Task.Index)
		if slices.Contains(nodes, a.Node) {
			k.local++
		}
	}
	for g, k := range m.placed {
		m.local += k.local
		m.bound += min(len(k.tasks), m.possible(g, k))
	}
}

// possible counts the tasks of a stage that waited before the decision and had
// room at their data, as far as it matters.
func (m *matchJudge) possible(g *scheduler.Stage, k *nearby) int {
	n := 0
	count := func(i int32) {
		_, nodes, _ := g.Input(i)
		for _, id := range nodes {
			if g.Spec.Demand.Fits(m.free[id]) {
				n++
				return
			}
		}
	}
	for _, i := range k.tasks {
		count(i)
	}
	for i := g.NextPending(0); i >= 0 && n < len(k.tasks); i = g.NextPending(i + 1) {
		count(i)
	}
	return n
}

// gap is the part of the bound that was missed.
func (m *matchJudge) gap() float64 {
	if m.bound == 0 {
		return 0
	}
	return 1 - float64(m.local)/float64(m.bound)
}

// unexplained counts the stages that a decision leaves waiting without a reason.
func unexplained(s *scheduler.State, d *scheduler.Decision) int {
	told := map[scheduler.StageID]bool{}
	for i := range d.Waiting {
		if w := &d.Waiting[i]; w.Reason != 0 {
			told[w.Stage] = true
		}
	}
	n := 0
	for j, at := s.NextReady(0); j != nil; j, at = s.NextReady(at) {
		for _, g := range j.Stages {
			if g.Ready() && !told[g.ID()] {
				n++
			}
		}
	}
	return n
}

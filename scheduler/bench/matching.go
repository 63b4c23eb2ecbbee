package bench

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// matchEvery is how many cycles pass from one that is judged to the next.
const matchEvery = 10

// matchJudge holds what a decision placed at its data against a bound on what
// any matching could have: a maximum flow from stages, each with as many tasks as
// the decision placed of it, over their tasks that waited before it, to the nodes
// of their data, each with as many slots as the smallest of the tasks that could
// go there fit by their scarcest resource. Competition for slots is so part of the
// bound, and that tasks of different shape leave gaps is not: the true gap is
// smaller. A decision is free in how many tasks of a stage it places; that is
// judged by shares.
type matchJudge struct {
	judging bool
	free    []scheduler.Resources // of each node before the decision
	placed  map[*scheduler.Stage]*nearby
	stages  []*nearby // in order of their first placement
	local   int
	bound   int
}

// nearby is what a decision did with a stage.
type nearby struct {
	stage *scheduler.Stage
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
	m.placed, m.stages = map[*scheduler.Stage]*nearby{}, m.stages[:0]
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
			k = &nearby{stage: g}
			m.placed[g] = k
			m.stages = append(m.stages, k)
		}
		k.tasks = append(k.tasks, a.Task.Index)
		if slices.Contains(nodes, a.Node) {
			k.local++
		}
	}
	for _, k := range m.stages {
		m.local += k.local
	}
	f := newFlow(m.free)
	for _, k := range m.stages {
		f.add(k)
	}
	m.bound += f.most()
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

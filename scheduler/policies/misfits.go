package policies

import (
	"cmp"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// misfits stores the demands that fit on no node, and bounds how many are tested in one cycle,
// since each test examines every node. At least minMisfits are tested.
const (
	maxMisfitNodes = 1 << 21 // approximate number of nodes examined in a cycle
	minMisfits     = 256
	// Reasons are counted for fewer demands, at least minExplained: counting reads every node,
	// while searches end early.
	maxExplainedNodes = 1 << 19
	minExplained      = 64
	// maxVisits bounds the stages visited in a cycle, including those whose demand is known not to fit.
	maxVisits = 1 << 16
	// misfitTurn is how long the turn of one part of the further stages lasts.
	misfitTurn = scheduler.Time(100 * time.Millisecond)
)

// misfits is of one cycle. Half of its budget goes to demands in the policy's order, the other half
// to the demands behind them, which take turns by time. If too many stages wait to visit them all,
// those behind are visited in the order of the queue, and take turns too. So no stage is passed
// over for ever, and the same State at the same time gives the same answers.
type misfits struct {
	known       map[scheduler.DemandClass]struct{}
	found, most int  // different demands, in all passes, and their maximum in the policy's order
	behind      int  // stages behind the first half
	from        int  // index of the first of these whose turn it is
	visits      int  // stages visited, in all passes
	maxVisits   int  // maxVisits unless a test sets it
	beyond      bool // in placeBeyond
	passed      bool
	turn        int
}

func (m *misfits) begin(s *scheduler.State, now scheduler.Time) {
	m.most, m.maxVisits = max(minMisfits, maxMisfitNodes/max(1, len(s.Nodes()))), cmp.Or(m.maxVisits, maxVisits)
	m.turn = int(now / misfitTurn)
	m.from = m.partBegin(min(s.Queue().Ready(), m.maxVisits/2), m.most/2)
	m.found, m.visits, m.beyond, m.passed = 0, 0, false, false
	m.nextPass()
}

// partBegin returns the start of the part whose turn it is, for stages divided into parts of size.
func (m *misfits) partBegin(stages, size int) int {
	return m.turn % max(1, (stages+size-1)/size) * size
}

func (m *misfits) nextPass() {
	clear(m.known)
	m.behind = 0
}

func (m *misfits) isSpent() bool {
	if m.beyond {
		return m.found >= m.most+m.most/2 || m.visits >= m.maxVisits
	}
	return m.found >= m.most || m.visits >= m.maxVisits/2
}

// admit decides whether to examine nodes for a stage's demand, and counts the demands that are not
// examined. known says that no node fits.
func (m *misfits) admit(k scheduler.DemandClass) (examine, known bool) {
	if m.isKnown(k) {
		return true, true
	}
	if m.beyond || m.found < m.most/2 {
		return true, false
	}
	i := m.behind
	m.behind++
	examine = i >= m.from
	m.passed = m.passed || !examine
	return examine, false
}

// isKnown reports whether no node fitted a demand in this pass. As capacity only shrinks in a pass, none fits.
func (m *misfits) isKnown(k scheduler.DemandClass) bool {
	_, known := m.known[k]
	return known
}

func (m *misfits) remember(k scheduler.DemandClass) {
	if m.known == nil {
		m.known = map[scheduler.DemandClass]struct{}{}
	}
	m.known[k] = struct{}{}
}

// placeBeyond ends the passes: it places tasks of the stages whose turn it is.
func (p *placer) placeBeyond() { p.visitBeyond(p.placeAll) }

// visitBeyond visits the stages whose turn it is if not all could be visited in the policy's order.
// Two parts of the queue have a turn: one that the budget covers even if all its demands differ,
// and a larger one that it covers if they do not. O(jobs with ready work) and the budget.
func (p *placer) visitBeyond(visit func(*scheduler.Stage)) {
	m := &p.misfits
	if !m.isSpent() {
		return
	}
	m.passed = true
	ready := p.s.Queue().Ready()
	if ready <= m.maxVisits/2 || p.isFull() {
		return
	}
	m.beyond = true
	large := m.maxVisits / 4
	if small := m.most / 2; small < large {
		p.visitPart(m.partBegin(ready, small), small, visit)
	}
	p.visitPart(m.partBegin(ready, large), large, visit)
}

// visitPart visits ready stages in the order of the queue, after skipping before.
func (p *placer) visitPart(before, stages int, visit func(*scheduler.Stage)) {
	for j, at := p.s.Queue().Next(0); j != nil && stages > 0 && !p.isDone(); j, at = p.s.Queue().Next(at) {
		if ready := int(j.Ready); before >= ready {
			before -= ready
			continue
		}
		for _, g := range j.Stages {
			if !g.Ready() || stages <= 0 || p.misfits.isSpent() {
				continue
			}
			if before--; before < 0 {
				stages--
				visit(g)
			}
		}
	}
}

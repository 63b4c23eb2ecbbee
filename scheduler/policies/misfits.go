package policies

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// misfits has the demands that fit on no node, and bounds how many are found out in one cycle: each
// costs a look at every node. At least minMisfits are.
const (
	maxMisfitNodes = 1 << 21 // nodes that are looked at in a cycle, about
	minMisfits     = 256
	// Why no node fits is counted for fewer of them: that looks at every node, where most searches
	// end early. At least minExplained are.
	maxExplainedNodes = 1 << 19
	minExplained      = 64
	// misfitTurn is how long one part of the demands beyond has its turn.
	misfitTurn = scheduler.Time(100 * time.Millisecond)
)

// misfits is of one cycle. Half of its budget goes to demands in the policy's order, the other half to
// those beyond, which take turns by the time: none of them is passed over for ever, and the same State
// at the same time gives the same answers.
type misfits struct {
	known  map[demandKey]struct{}
	found  int // in all passes
	most   int
	beyond int // stages beyond the first half
	from   int // of these the first that has its turn
	passed bool
	until  scheduler.Time // when the next part has its turn
}

func (m *misfits) begin(s *scheduler.State, now scheduler.Time) {
	m.most = max(minMisfits, maxMisfitNodes/max(1, len(s.Nodes())))
	parts := max(1, (s.Queue().Ready()+m.most/2-1)/(m.most/2))
	turn := now / misfitTurn
	m.from, m.until = int(turn%scheduler.Time(parts))*(m.most/2), (turn+1)*misfitTurn
	m.found, m.passed = 0, false
	m.nextPass()
}

func (m *misfits) nextPass() {
	clear(m.known)
	m.beyond = 0
}

// mayExamine reports whether nodes may be looked at for a stage, and whether it is known that none fits.
func (m *misfits) mayExamine(s *scheduler.State, g *scheduler.Stage) (examine, known bool) {
	if len(m.known) > 0 && m.isKnown(demandOf(s, g)) {
		return true, true
	}
	if m.found < m.most/2 {
		return true, false
	}
	i := m.beyond
	m.beyond++
	examine = i >= m.from && m.found < m.most
	m.passed = m.passed || !examine
	return examine, false
}

// isKnown reports whether no node was found for a demand in this pass. As capacity only shrinks in it, none fits.
func (m *misfits) isKnown(k demandKey) bool {
	_, known := m.known[k]
	return known
}

// add adds the demand of a stage that no node fits.
func (m *misfits) add(s *scheduler.State, g *scheduler.Stage) {
	k := demandOf(s, g)
	if m.isKnown(k) {
		return
	}
	if m.known == nil {
		m.known = map[demandKey]struct{}{}
	}
	m.known[k] = struct{}{}
	m.found++
}

// nextTurn returns when to examine what this cycle passed over, 0 if it passed over nothing.
func (m *misfits) nextTurn() scheduler.Time {
	if !m.passed {
		return 0
	}
	return m.until
}

package backfill

import (
	"math"

	"github.com/drover-run/drover/scheduler"
)

// Planner plans projects in a Profile, which may also hold reservations of others. It
// is not safe for concurrent use.
type Planner struct {
	cfg       Config
	now       scheduler.Time // time of the last planning call
	changed   bool           // see HasChanged
	numKept   int            // items restored with a reservation
	stepsLeft int            // see SetBudget

	space     space
	registry  registry
	bins      bins
	journal   journal
	classes   classes
	search    search
	placement placement
	repairs   repairs
	rounds    rounds
}

// NewPlanner returns a planner without projects that reserves in prof, which may be nil until Reset.
func NewPlanner(cfg Config, prof *Profile) *Planner {
	if cfg.Variant == Strict || cfg.Variant == Flexible {
		cfg.SlackFactor, cfg.PreemptionLimit = 0, 0
	}
	if cfg.MaxTries == 0 {
		cfg.MaxTries = math.MaxInt32
	}
	p := &Planner{cfg: cfg, stepsLeft: math.MaxInt, registry: registry{projects: map[scheduler.ProjectID]*project{}},
		classes: classes{byKey: map[equivalenceKey]*equivalenceClass{}, finderThreshold: finderMinItems}}
	p.Reset(prof, nil, nil)
	return p
}

// SpareLast excludes the last schedulable nodes from every plan (parameter spare_nodes), until
// others are lost (LoseBins).
func (p *Planner) SpareLast(nodes []*scheduler.Node, spare int) {
	for i := len(nodes) - 1; i >= 0 && spare > 0; i-- {
		if nodes[i].Schedulable() {
			p.bins.setSpare(p.space.profile, int32(i), true)
			spare--
		}
	}
}

// SetNonPreemptible marks a bin whose tasks with a soft bound cannot be made to leave.
func (p *Planner) SetNonPreemptible(b int32, nonPreemptible bool) {
	if s := p.bins.bin(b); s.nonPreemptible != nonPreemptible {
		s.nonPreemptible = nonPreemptible
		p.space.profile.MarkChanged(b)
	}
}

// MarkFreed records that capacity of a bin was released by another owner, or that the
// bin was opened or grew, so that Compress considers it.
func (p *Planner) MarkFreed(b int32) { p.bins.markFreed(b) }

// FreedClock returns the number of times a bin was marked as freed in this round, for FreedSince. O(1).
func (p *Planner) FreedClock() uint64 { return p.bins.freeClock }

// FreedSince yields the bins whose capacity was released since FreedClock returned a value,
// including releases of tasks that planning placed there only for a moment. O(bins).
func (p *Planner) FreedSince(clock uint64, yield func(b int32)) {
	for b := range p.bins.states {
		if p.bins.states[b].freedClock > clock {
			yield(int32(b))
		}
	}
}

// setSpot moves an item to a spot and records the change; a spot with Bin -1 takes the
// item out of the plan.
func (p *Planner) setSpot(it *item, s Spot) {
	p.rounds.syncSearched(it)
	if p.journal.recording {
		p.journal.log = append(p.journal.log, undo{it, it.place})
	}
	end := s.At
	if s.Bin >= 0 {
		end = p.bins.endOn(&it.group.req, s.Bin, s.At)
	}
	p.rounds.touch(it)
	p.moveItem(it, s, end, s.Bin >= 0)
	it.moved = true
	p.changed = true
}

func (p *Planner) moveItem(it *item, s Spot, end scheduler.Time, placed bool) {
	p.repairs.markUnchecked(it.group.project)
	if it.placed {
		p.space.occupy(it, &it.spot, it.end, &it.group.req.Need, 1)
		p.space.occupyBeyond(it, 1)
		p.bins.unlink(it)
	}
	it.spot, it.end, it.placed = s, end, placed
	if placed {
		p.space.occupy(it, &it.spot, it.end, &it.group.req.Need, -1)
		p.space.occupyBeyond(it, -1)
		p.bins.link(it)
	}
}

// journal records the moves of a call, so that they can be undone.
type journal struct {
	log       []undo
	recording bool
}

type undo struct {
	item *item
	was  place
}

// rollback undoes the changes recorded since the undo log had n entries.
func (l *journal) rollback(p *Planner, n int) {
	for i := len(l.log) - 1; i >= n; i-- {
		u := &l.log[i]
		p.moveItem(u.item, u.was.spot, u.was.end, u.was.placed)
		u.item.searched = u.was.searched
	}
	l.log = l.log[:n]
}

func (l *journal) begin(p *Planner, now scheduler.Time) {
	l.log, l.recording, p.now = l.log[:0], true, now
}

func (l *journal) end() { l.log, l.recording = l.log[:0], false }

package backfill

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Variant is one of the four two-tier backfilling algorithms (Table 2).
type Variant uint8

// The variants.
const (
	Strict     Variant = iota + 1 // 2TSB: nothing planned is displaced (Alg. 1)
	Flexible                      // 2TFB: jobs move, departures do not (Alg. 2 with SF = 0)
	FlexibleSF                    // 2TFB-SF: departures move within their slack (Alg. 2)
	Priority                      // 2TPB: high-priority projects displace low ones (Alg. 3)
)

// String gives the name used by the policy's parameter.
func (v Variant) String() string {
	switch v {
	case Strict:
		return "2tsb"
	case Flexible:
		return "2tfb"
	case FlexibleSF:
		return "2tfb-sf"
	case Priority:
		return "2tpb"
	default:
		return fmt.Sprintf("variant(%d)", uint8(v))
	}
}

// NoLimit as Config.PL bounds nothing.
const NoLimit = -1

// Config is how a Planner plans.
type Config struct {
	Variant Variant
	// SF is the slack factor, at least 0: a project may depart later than its
	// first plan by SF times its first turn-around (eq. 7). Strict and
	// Flexible take it as 0.
	SF float64
	// PL is the preemption limit: how many projects the placement of one job
	// may make depart later, or NoLimit. Flexible takes it as 0.
	PL int
	// MaxTries bounds the backfill times tried for one job, 0 for no bound;
	// past it the job gets the earliest hole that displaces nobody.
	MaxTries int
}

// Check tells what is wrong with the parameters.
func (c *Config) Check() error {
	switch {
	case c.Variant < Strict || c.Variant > Priority:
		return fmt.Errorf("variant is %v: want 2tsb, 2tfb, 2tfb-sf or 2tpb", c.Variant)
	case math.IsNaN(c.SF) || math.IsInf(c.SF, 0) || c.SF < 0:
		return fmt.Errorf("slack factor is %v: want a number of at least 0", c.SF)
	case c.PL < NoLimit:
		return fmt.Errorf("preemption limit is %d: want at least 0, or %d for no limit", c.PL, NoLimit)
	case c.MaxTries < 0:
		return fmt.Errorf("max tries is %d: want at least 0", c.MaxTries)
	}
	return nil
}

// Key names one planned piece of work.
type Key struct {
	Job   scheduler.JobID
	Stage int32
	Task  int32
}

// Compare orders keys by job, stage, task.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Job, o.Job), cmp.Compare(k.Stage, o.Stage), cmp.Compare(k.Task, o.Task))
}

// Request is pieces of work of one shape: a stage of a job. A job of the paper
// is a request with one task.
type Request struct {
	Job   scheduler.JobID
	Stage int32
	Tasks []int32
	Need  Need
	// Bound is te: for how long each task is given room. Above 0.
	Bound time.Duration
	// Soft tells that Bound is a guess: on a bin that was marked by Keeps the
	// work is taken to stay for ever.
	Soft bool
	// After lists earlier stages of the same job that must have ended.
	After []int32
	// NotBefore is an instant before which none of its tasks can start: when
	// what it comes after and runs already should have ended. 0 for none.
	NotBefore scheduler.Time
	// Held is what the tasks hold already, being suspended, besides Need: it is
	// taken for ever by whoever restores the plan, and comes back when they
	// end. Such work is nobody's victim. nil for nothing.
	Held *Need
	// Parallel bounds how many of its tasks run at once, 0 for no bound.
	Parallel int32
}

// Project is jobs with one departure time. Requests are planned in their order;
// a stage comes behind those it is After.
type Project struct {
	ID        scheduler.ProjectID
	Submitted scheduler.Time
	High      bool // priority 1; only Priority asks
	// Deadline is the latest departure that is any use, 0 for none: what
	// cannot depart by it is refused, and up to it later projects may put the
	// departure off.
	Deadline scheduler.Time
	// Account, from 1, is who is charged in the profile of Planner.Charge; 0
	// for nobody.
	Account  int32
	Requests []Request
}

// Quote is the departure time of a project (td) and the latest one that later
// projects may bring about: td + SF x turn-around.
type Quote struct {
	Departure, Latest scheduler.Time
}

// ErrNeverFits is the class of a project of which a part fits on no bin, not
// even an empty one.
var ErrNeverFits = errors.New("fits nowhere")

// ErrTooLate is the class of a project that cannot depart by its deadline.
var ErrTooLate = errors.New("cannot depart by its deadline")

// Cause is why a promise was broken.
type Cause uint8

// The causes. They are also the Slot of a scheduler.NoteBroken.
const (
	CauseOverrun  Cause = iota + 1 // a job ran past its bound
	CauseNodeLost                  // a node was lost, is being drained, or shrank
	CauseFailed                    // a task failed and is run again
	CauseLate                      // a job could not start when it was planned to
)

// String says it in words.
func (c Cause) String() string {
	switch c {
	case CauseOverrun:
		return "a job ran past its bound"
	case CauseNodeLost:
		return "a node was lost"
	case CauseFailed:
		return "a task failed"
	case CauseLate:
		return "a job could not start in time"
	default:
		return fmt.Sprintf("cause(%d)", uint8(c))
	}
}

// Broken is a promise that no longer holds: the project now departs at
// Departure, after its Latest.
type Broken struct {
	Project   scheduler.ProjectID
	Cause     Cause
	Departure scheduler.Time
	Latest    scheduler.Time
}

// Planned is where a piece of work stands in the plan.
type Planned struct {
	Key     Key
	Project scheduler.ProjectID
	Spot    Spot
	End     scheduler.Time
	// LatestStart is lts (eq. 7): the latest start that keeps the promise.
	LatestStart scheduler.Time
	Started     bool
}

// Planner keeps projects planned in a Profile. It is not safe for concurrent
// use. Everything it reserves is in the Profile, next to what others reserve.
type Planner struct {
	cfg      Config
	prof     *Profile
	accounts *Profile
	items    map[Key]*item
	projects map[scheduler.ProjectID]*project
	order    []*project // by (Submitted, ID)
	bins     []binState
	recent   []int32 // bins by latest free, the latest last; stale entries are skipped
	clock    uint64  // counts what was freed
	log      []undo
	trying   bool
	changed  []Key
	placed   int    // items in the profile
	times    []Spot // scratch
	delayed  []delay
	classes  map[classKey]*class
	many     int            // manyOfAClass, or what a test sets
	now      scheduler.Time // of the last call that plans
	tied     int            // groups that come after others, or may not start before an instant
	soonest  scheduler.Time // no work that waits starts before it
	doubtful []*project     // promises to be looked at by breaks, see doubt
	repaired uint64         // the place in the profile's log up to which Repair looked
	unsound  []int32        // bins on which what runs is too much by itself
	suspects []int32        // scratch
	zeros    []int64        // all are 0
	lifts    bool           // a test's: a walk takes each item out of the profile and searches
}

type binState struct {
	items []*item
	freed uint64 // clock when something on it was last given back
	sound uint64 // version of the profile's bin, and 1, at which nothing to come was over its capacity
	spare bool
	keeps bool
}

type project struct {
	Project
	groups   []*group
	promised bool
	quote    Quote
	broken   bool
	doubtful bool // listed in Planner.doubtful
}

// group is a request with its items that have not ended, started ones first,
// then by task.
type group struct {
	proj  *project
	req   Request
	total Need // req.Need as an account sees it
	class *class
	after []*group
	next  []*group
	items []*item
}

type item struct {
	key     Key
	group   *group
	spot    Spot
	end     scheduler.Time
	placed  bool
	started bool
	pinned  bool           // only on spot.Bin and Disk
	moved   bool           // was set since the last Scan
	pos     int            // in binState.items
	seen    uint64         // clock when its spot was the earliest
	from    scheduler.Time // what it was the earliest from
}

type undo struct {
	it     *item
	spot   Spot
	end    scheduler.Time
	placed bool
	seen   uint64
	from   scheduler.Time
}

type delay struct {
	proj *project
	was  scheduler.Time
}

// NewPlanner makes a planner on a profile.
func NewPlanner(cfg Config, prof *Profile) (*Planner, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	switch cfg.Variant {
	case Strict:
		cfg.SF, cfg.PL = 0, 0
	case Flexible:
		cfg.SF, cfg.PL = 0, 0
	case FlexibleSF, Priority:
	default:
		return nil, fmt.Errorf("variant is %v", cfg.Variant)
	}
	return &Planner{cfg: cfg, prof: prof, items: map[Key]*item{}, projects: map[scheduler.ProjectID]*project{}, many: manyOfAClass, soonest: scheduler.Never}, nil
}

// Charge has projects with an Account charged in a profile of totals, with bins
// of CPU, memory and I/O: nothing of theirs is planned beyond what the bin
// Account-1 has at any instant.
func (p *Planner) Charge(accounts *Profile) { p.accounts = accounts }

// allowed is the first instant from at on at which the project's account has
// room for an item during span.
func (p *Planner) allowed(it *item, at scheduler.Time, span time.Duration) scheduler.Time {
	a := it.group.proj.Account
	if p.accounts == nil || a == 0 {
		return at
	}
	s, _ := p.accounts.EarliestAt(a-1, -1, at, span, scheduler.Never, &it.group.total)
	return s.At
}

// charge takes (or, with sign 1, gives back) an item's planned time on its
// project's account.
func (p *Planner) charge(it *item, sign int64) {
	if a := it.group.proj.Account; p.accounts != nil && a > 0 {
		p.accounts.change(a-1, -1, it.spot.At, it.end, &it.group.total, sign)
	}
}

// Profile gives the profile it plans in.
func (p *Planner) Profile() *Profile { return p.prof }

func (p *Planner) bin(b int32) *binState {
	for int(b) >= len(p.bins) {
		p.bins = append(p.bins, binState{})
	}
	return &p.bins[b]
}

// Spare keeps a bin out of every plan until a bin is lost (spare_nodes).
func (p *Planner) Spare(b int32, spare bool) {
	if s := p.bin(b); s.spare != spare {
		s.spare = spare
		p.prof.touched(b)
		if !spare {
			p.Freed(b)
		}
	}
}

// Keeps marks a bin on which work without a firm bound cannot be made to leave.
func (p *Planner) Keeps(b int32, keeps bool) {
	p.bin(b).keeps = keeps
	p.prof.touched(b)
}

// Freed tells that somebody else gave room back on a bin, or that it was
// opened or grew, so that Walk looks at it.
func (p *Planner) Freed(b int32) {
	p.clock++
	p.bin(b).freed = p.clock
	p.recent = append(p.recent, b)
	if len(p.recent) > 2*len(p.bins)+8 {
		p.compact()
	}
}

// compact drops entries of recent that a later one of the same bin replaced.
func (p *Planner) compact() {
	slices.Sort(p.recent)
	p.recent = slices.Compact(p.recent)
	slices.SortFunc(p.recent, func(a, b int32) int { return cmp.Compare(p.bins[a].freed, p.bins[b].freed) })
}

// Len is the number of pieces of work that have not ended.
func (p *Planner) Len() int { return len(p.items) }

// Find gives where a piece of work stands.
func (p *Planner) Find(k Key) (Planned, bool) {
	it := p.items[k]
	if it == nil {
		return Planned{}, false
	}
	return p.planned(it), true
}

// Departure gives when a project departs as things stand, and what it was
// promised.
func (p *Planner) Departure(id scheduler.ProjectID) (now scheduler.Time, promised Quote, ok bool) {
	pr := p.projects[id]
	if pr == nil {
		return 0, Quote{}, false
	}
	return pr.departure(), pr.quote, true
}

// Promised gives what a project was promised, false for nothing.
func (p *Planner) Promised(id scheduler.ProjectID) (promised Quote, ok bool) {
	pr := p.projects[id]
	if pr == nil || !pr.promised {
		return Quote{}, false
	}
	return pr.quote, true
}

// Recheck has promises that were reported as broken reported again.
func (p *Planner) Recheck() {
	for _, pr := range p.order {
		if pr.broken {
			pr.broken = false
			p.doubt(pr)
		}
	}
}

// doubt has the next breaks look whether the promise of a project holds.
func (p *Planner) doubt(pr *project) {
	if !pr.doubtful {
		pr.doubtful = true
		p.doubtful = append(p.doubtful, pr)
	}
}

// Each walks all work by (project's submission, project, request, task).
func (p *Planner) Each(yield func(Planned) bool) {
	for _, pr := range p.order {
		for _, g := range pr.groups {
			for _, it := range g.items {
				if !yield(p.planned(it)) {
					return
				}
			}
		}
	}
}

// Scan is Each without latest starts, and tells which work was brought to a spot,
// the same or another, or is new, since the last Scan.
func (p *Planner) Scan(yield func(x Planned, moved bool)) {
	for _, pr := range p.order {
		for _, g := range pr.groups {
			for _, it := range g.items {
				x := Planned{Key: it.key, Project: pr.ID, Spot: it.spot, End: it.end, Started: it.started, LatestStart: scheduler.Never}
				if !it.placed {
					x.Spot.Bin, x.Spot.At, x.End = -1, scheduler.Never, scheduler.Never
				}
				moved := it.moved
				it.moved = false
				yield(x, moved)
			}
		}
	}
}

// Busy tells whether work is planned or runs on a bin. O(1).
func (p *Planner) Busy(b int32) bool { return len(p.bin(b).items) > 0 }

// Unplaced is the number of pieces of work without a spot. O(1).
func (p *Planner) Unplaced() int { return len(p.items) - p.placed }

// Missing is how much work of a project has no spot. O(its work).
func (p *Planner) Missing(id scheduler.ProjectID) int {
	n := 0
	if pr := p.projects[id]; pr != nil {
		for _, g := range pr.groups {
			for _, it := range g.items {
				if !it.placed {
					n++
				}
			}
		}
	}
	return n
}

// Placed is how much work of a project has a spot. O(its work).
func (p *Planner) Placed(id scheduler.ProjectID) int {
	n := 0
	if pr := p.projects[id]; pr != nil {
		for _, g := range pr.groups {
			for _, it := range g.items {
				if it.placed {
					n++
				}
			}
		}
	}
	return n
}

// At gives the spot and end of a piece of work, false where it has none. O(1).
func (p *Planner) At(k Key) (spot Spot, end scheduler.Time, ok bool) {
	it := p.items[k]
	if it == nil || !it.placed {
		return Spot{}, 0, false
	}
	return it.spot, it.end, true
}

func (p *Planner) planned(it *item) Planned {
	out := Planned{Key: it.key, Project: it.group.proj.ID, Spot: it.spot, End: it.end, Started: it.started, LatestStart: scheduler.Never}
	if !it.placed {
		out.Spot.At, out.End = scheduler.Never, scheduler.Never
	}
	if it.group.proj.promised && it.placed {
		out.LatestStart = p.latest(it)
	}
	return out
}

// Changed gives the work whose spot may have changed since the last call, in
// order of change, some of it perhaps twice, and forgets it.
func (p *Planner) Changed() []Key {
	out := p.changed
	p.changed = nil
	return out
}

func (p *project) departure() scheduler.Time {
	end := scheduler.Time(math.MinInt64)
	for _, g := range p.groups {
		for _, it := range g.items {
			if !it.placed {
				return scheduler.Never
			}
			end = max(end, it.end)
		}
	}
	return end
}

// span is for how long an item is given room on a bin.
func (p *Planner) span(it *item, b int32) time.Duration {
	if it.group.req.Soft && p.bin(b).keeps {
		return math.MaxInt64
	}
	return it.group.req.Bound
}

// ready is the earliest start that what comes before the item allows.
func (p *Planner) ready(it *item, now scheduler.Time) scheduler.Time {
	return it.inParallel(it.group.opens(now))
}

// opens is the earliest start that what comes before a group allows its items.
// O(items before it).
func (g *group) opens(now scheduler.Time) scheduler.Time {
	at := max(now, g.req.NotBefore)
	for _, before := range g.after {
		for _, o := range before.items {
			if !o.placed {
				return scheduler.Never
			}
			at = max(at, o.end)
		}
	}
	return at
}

// inParallel is the earliest start of an item, of those from which on its group is
// open, that the bound on how many run at once allows.
func (it *item) inParallel(open scheduler.Time) scheduler.Time {
	if par := int(it.group.req.Parallel); par > 0 && open != scheduler.Never {
		if i := slices.Index(it.group.items, it); i >= par {
			return max(open, it.group.items[i-par].end)
		}
	}
	return open
}

// latest is the latest start that keeps the promise and what comes after the
// item: eq. 7, and for a stage with successors their starts.
func (p *Planner) latest(it *item) scheduler.Time {
	span := p.span(it, it.spot.Bin)
	at := it.group.proj.quote.Latest.Add(-span)
	for _, g := range it.group.next {
		for _, o := range g.items {
			if o.placed {
				at = min(at, o.spot.At.Add(-span))
			}
		}
	}
	if par := int(it.group.req.Parallel); par > 0 {
		if i := slices.Index(it.group.items, it); i+par < len(it.group.items) && it.group.items[i+par].placed {
			at = min(at, it.group.items[i+par].spot.At.Add(-span))
		}
	}
	return at
}

// set brings an item to a spot; the Spot of Bin -1 takes it out of the plan.
func (p *Planner) set(it *item, s Spot) {
	if p.trying {
		p.log = append(p.log, undo{it, it.spot, it.end, it.placed, it.seen, it.from})
	}
	end := s.At
	if s.Bin >= 0 {
		end = s.At.Add(p.span(it, s.Bin))
	}
	p.move(it, s, end, s.Bin >= 0)
	it.moved = true
	p.changed = append(p.changed, it.key)
}

func (p *Planner) move(it *item, s Spot, end scheduler.Time, placed bool) {
	need := &it.group.req.Need
	p.doubt(it.group.proj)
	if it.placed {
		p.charge(it, 1)
		p.prof.Give(it.spot.Bin, it.spot.Disk, it.spot.At, it.end, need)
		if held := it.group.req.Held; held != nil {
			p.prof.Take(it.spot.Bin, it.spot.Disk, it.end, scheduler.Never, held)
		}
		list := p.bin(it.spot.Bin).items
		last := len(list) - 1
		list[it.pos] = list[last]
		list[it.pos].pos = it.pos
		list[last] = nil
		p.bins[it.spot.Bin].items = list[:last]
		p.placed--
	}
	it.spot, it.end, it.placed = s, end, placed
	if placed {
		p.soonest = min(p.soonest, s.At)
		p.charge(it, -1)
		p.prof.Take(s.Bin, s.Disk, s.At, end, need)
		if held := it.group.req.Held; held != nil {
			p.prof.Give(s.Bin, s.Disk, end, scheduler.Never, held)
		}
		b := p.bin(s.Bin)
		it.pos = len(b.items)
		b.items = append(b.items, it)
		p.placed++
	}
}

// rollback undoes what was set since the log had n entries.
func (p *Planner) rollback(n int) {
	for i := len(p.log) - 1; i >= n; i-- {
		u := &p.log[i]
		p.move(u.it, u.spot, u.end, u.placed)
		u.it.seen, u.it.from = u.seen, u.from
	}
	p.log = p.log[:n]
}

// search finds the earliest spot for an item in [from, before) that displaces
// nobody: earliestStartingTime of Table 5. Where its project's account has no
// room then, it goes on from when it has; each time that passes a step of the
// account.
func (p *Planner) search(it *item, from, before scheduler.Time) (Spot, bool) {
	if !it.group.req.Soft {
		from = p.allowed(it, from, it.group.req.Bound)
	}
	for {
		s, ok := p.searchBins(it, from, before)
		if !ok {
			return s, false
		}
		at := p.allowed(it, s.At, p.span(it, s.Bin))
		if at <= s.At {
			return s, true
		}
		if from = at; from >= before {
			return Spot{Bin: -1}, false
		}
	}
}

func (p *Planner) searchBins(it *item, from, before scheduler.Time) (Spot, bool) {
	best, found := Spot{Bin: -1}, false
	need := &it.group.req.Need
	if from >= before {
		return best, false
	}
	if it.pinned {
		return p.prof.EarliestAt(it.spot.Bin, it.spot.Disk, from, p.span(it, it.spot.Bin), before, need)
	}
	if from == p.now {
		if f := p.finderOf(it); f != nil {
			return f.earliest(p, from, before)
		}
	}
	for b := range p.prof.Bins() {
		if p.prof.bins[b].closed || p.bin(b).spare {
			continue
		}
		if s, ok := p.prof.EarliestOn(b, from, p.span(it, b), before, need); ok {
			if best, found = s, true; s.At <= from {
				break
			}
			before = s.At
		}
	}
	return best, found
}

// settle puts an item at its earliest spot at or after from and before a time.
func (p *Planner) settle(it *item, from, before scheduler.Time) bool {
	s, ok := p.search(it, from, before)
	if ok {
		p.set(it, s)
		it.seen, it.from = p.clock, from
	}
	return ok
}

package backfill

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/timeline"
)

// The planner's terms for what is free when.
type (
	Need    = timeline.Need
	Profile = timeline.Profile
	Spot    = timeline.Spot
)

// Variant is one of the four two-tier backfilling algorithms (Table 2).
type Variant uint8

// The variants.
const (
	Strict     Variant = iota + 1 // 2TSB: nothing planned is displaced (Alg. 1)
	Flexible                      // 2TFB: jobs move, departures do not (Alg. 2 with a slack factor of 0)
	FlexibleSF                    // 2TFB-SF: departures move within their slack (Alg. 2)
	Priority                      // 2TPB: high-priority projects displace low ones (Alg. 3)
)

// String returns the variant's name in the policy's parameter.
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

// NoLimit as Config.PreemptionLimit sets no limit.
const NoLimit = -1

// Config holds the parameters of a Planner.
type Config struct {
	Variant Variant
	// SlackFactor (the paper's SF) is at least 0: a project may depart later than first
	// planned by SlackFactor times its first turn-around time (eq. 7). Strict and
	// Flexible use 0.
	SlackFactor float64
	// PreemptionLimit (the paper's PL) is the number of projects whose departure the
	// placement of one job may delay, or NoLimit. Strict and Flexible use 0.
	PreemptionLimit int
	// MaxTries limits the backfill times tried for one job, 0 for no limit. A job that
	// exceeds it gets the earliest hole that displaces no other job.
	MaxTries int
}

// Check returns an error that names the first parameter out of range.
func (c *Config) Check() error {
	switch {
	case c.Variant < Strict || c.Variant > Priority:
		return fmt.Errorf("variant is %v: want 2tsb, 2tfb, 2tfb-sf or 2tpb", c.Variant)
	case math.IsNaN(c.SlackFactor) || math.IsInf(c.SlackFactor, 0) || c.SlackFactor < 0:
		return fmt.Errorf("slack factor is %v: want a number of at least 0", c.SlackFactor)
	case c.PreemptionLimit < NoLimit:
		return fmt.Errorf("preemption limit is %d: want at least 0, or %d for no limit", c.PreemptionLimit, NoLimit)
	case c.MaxTries < 0:
		return fmt.Errorf("max tries is %d: want at least 0", c.MaxTries)
	}
	return nil
}

// Key identifies one planned task.
type Key struct {
	Job   scheduler.JobID
	Stage int32
	Task  int32
}

// Compare orders keys by job, stage, task.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Job, o.Job), cmp.Compare(k.Stage, o.Stage), cmp.Compare(k.Task, o.Task))
}

// Request is the tasks of one stage of a job, which have equal needs. A job of the
// paper is a request with one task.
type Request struct {
	Job   scheduler.JobID
	Stage int32
	Tasks []int32
	Need  Need
	// Bound is the paper's te: the duration reserved for each task, above 0.
	Bound time.Duration
	// SoftBound reports that Bound is an estimate: on a bin marked by SetNonPreemptible
	// the task is reserved for ever.
	SoftBound bool
	// After lists earlier stages of the same job that must have ended.
	After []int32
	// NotBefore is the earliest start of every task, 0 for none: the expected end of
	// running tasks of earlier stages.
	NotBefore scheduler.Time
	// Occupied is what a suspended task occupies already, on top of Need; nil for none.
	// The caller that restores the plan reserves it for ever; the planner releases it
	// from the task's planned end on. Such tasks are never displaced.
	Occupied *Need
	// MaxParallel limits how many of the tasks run at the same time, 0 for no limit.
	MaxParallel int32
}

// Project is a set of jobs with one departure time. Requests are planned in their
// order; a stage must follow the stages in its After.
type Project struct {
	ID           scheduler.ProjectID
	Submitted    scheduler.Time
	HighPriority bool // priority 1 of the paper; used by variant Priority alone
	// Deadline is the latest useful departure, 0 for none. A project that cannot depart
	// by it is refused; later projects may delay the departure up to it.
	Deadline scheduler.Time
	// Account, from 1, is the bin charged in the profile of accounts; 0
	// for none.
	Account  int32
	Requests []Request
}

// Guarantee is the planned departure time of a project (the paper's td) and the latest
// departure that later projects may cause: td + SF x turn-around time.
type Guarantee struct {
	Departure, Latest scheduler.Time
}

// ErrNeverFits is the class of error for a project with a task that fits on no bin, not
// even an empty one.
var ErrNeverFits = errors.New("fits on no bin, not even an empty one")

// ErrTooLate is the class of error for a project that cannot depart by its deadline.
var ErrTooLate = errors.New("cannot depart by its deadline")

// Cause is the reason why a guarantee was violated.
type Cause uint8

// The causes. Their values are stored in the Slot of a scheduler.ViolatedState, so they
// must not change.
const (
	CauseOverrun  Cause = iota + 1 // a job ran past its bound
	CauseNodeLost                  // a node was lost, is being drained, or shrank
	CauseFailed                    // a task failed and is rerun
	CauseLate                      // a job could not start at its planned time
)

// String returns the cause in words.
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

// Violation is a guarantee that no longer holds: the project now departs at Departure,
// which is after Latest.
type Violation struct {
	Project   scheduler.ProjectID
	Cause     Cause
	Departure scheduler.Time
	Latest    scheduler.Time
}

// PlannedTask is the reservation of a task. Spot.At and End are Never for a task
// without one.
type PlannedTask struct {
	Key     Key
	Project scheduler.ProjectID
	Spot    Spot
	End     scheduler.Time
	// LatestStart is the paper's lts (eq. 7): the latest start that preserves the
	// guarantee, Never without a guarantee.
	LatestStart scheduler.Time
	Started     bool
	// Kept, KeptAt and Ref are what Restore was given of the task's reservation. Moved
	// reports whether the task is new or may not be where it was then.
	Kept, Moved bool
	KeptAt      Spot
	Ref         uint64
}

// Planner plans projects in a Profile, which may also hold reservations of others. It
// is not safe for concurrent use.
type Planner struct {
	cfg             Config
	profile         *Profile
	accounts        *Profile
	items           map[Key]*item // nil for a planner of tries until item is called
	numItems        int
	projects        map[scheduler.ProjectID]*project
	submitOrder     []*project // by (Submitted, ID)
	binStates       []binState
	recentlyFreed   []int32 // bins by freedClock, the latest last; may hold outdated duplicates
	freeClock       uint64  // number of releases so far
	undoLog         []undo
	recording       bool
	changed         []Key
	numPlaced       int    // items with a spot
	numKept         int    // items restored with a reservation
	candidateTimes  []Spot // scratch
	delayed         []delayedProject
	eqClasses       map[equivalenceKey]*equivalenceClass
	classified      bool // each group has its class, see classOf
	memory          memory
	finderThreshold int            // finderMinItems, or a test's value
	now             scheduler.Time // time of the last planning call
	numConstrained  int            // groups that isConstrained holds for
	earliestWaiting scheduler.Time // no waiting item starts before it
	unchecked       []*project     // projects whose guarantee violations must check, see markUnchecked
	repairedPos     uint64         // position in the profile's change log up to which Repair has looked
	overloadedBins  []int32        // bins over capacity by their started items alone
	suspectBins     []int32        // scratch
	zeros           []int64        // all 0, see zeroBase
	tries           bool           // the profile and the accounts are another's, see Reset
	touched         []*item        // those that may not be where their owner has them
	displaced       []*item        // touched, until Close
	altered         []alteredProject
	forgotten       []scheduler.ProjectID // scratch
	round           uint32                // of NextRound
	searched        bool                  // see NextRound
	stepsLeft       int                   // see SetBudget
	alwaysLift      bool                  // for tests: Compress takes each item out of the profile and searches
}

type binState struct {
	items          []*item
	freedClock     uint64 // freeClock at the last release on the bin
	spare          bool
	nonPreemptible bool
}

type project struct {
	Project
	groups     []*group
	guaranteed bool
	guarantee  Guarantee
	violated   bool
	unchecked  bool // listed in Planner.unchecked
}

// group is a request with its items that have not ended: started items first, then by
// task.
type group struct {
	project      *project
	req          Request
	accountNeed  Need // req.Need in the resources of an account
	eqClass      *equivalenceClass
	predecessors []*group
	successors   []*group
	items        []*item
	base         []int64 // of req.Need
}

type item struct {
	key           Key
	group         *group
	spot          Spot
	end           scheduler.Time
	placed        bool
	started       bool
	pinned        bool           // must stay on spot.Bin and spot.Disk
	moved         bool           // see PlannedTask
	binIndex      int            // index in binState.items
	searchedClock uint64         // freeClock when the spot was last found to be the earliest
	searchedFrom  scheduler.Time // start of the range in which the spot was found to be the earliest
	searchedRound uint32         // round of the two
	wasSearched   bool           // see Existing.Searched
	touched       bool           // listed in Planner.touched
	home          Reserved       // where the owner of the profile has it
}

// alteredProject is a project whose guarantee changed in this round, and what it was before.
type alteredProject struct {
	project    *project
	guaranteed bool
	guarantee  Guarantee
}

// Reserved is what the owner of a profile has reserved for a task.
type Reserved struct {
	Spot Spot
	End  scheduler.Time
	Need Need
	Kept bool   // false for a task without a reservation
	Ref  uint64 // the owner's name for it, see PlannedTask
}

type undo struct {
	item          *item
	spot          Spot
	end           scheduler.Time
	placed        bool
	searchedClock uint64
	searchedFrom  scheduler.Time
	searchedRound uint32
}

type delayedProject struct {
	project *project
	before  scheduler.Time
}

// NewPlanner returns a planner without projects that reserves in prof.
func NewPlanner(cfg Config, prof *Profile) (*Planner, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	switch cfg.Variant {
	case Strict:
		cfg.SlackFactor, cfg.PreemptionLimit = 0, 0
	case Flexible:
		cfg.SlackFactor, cfg.PreemptionLimit = 0, 0
	case FlexibleSF, Priority:
	default:
		return nil, fmt.Errorf("variant is %v: want 2tsb, 2tfb, 2tfb-sf or 2tpb", cfg.Variant)
	}
	return &Planner{cfg: cfg, profile: prof, items: map[Key]*item{}, projects: map[scheduler.ProjectID]*project{}, finderThreshold: finderMinItems,
		earliestWaiting: scheduler.Never, classified: true, stepsLeft: math.MaxInt}, nil
}

// Reset makes a planner without projects of p that tries reservations in profiles that
// belong to another, who has reserved there what Restore names. Close takes all tries
// back. accounts may be nil.
func (p *Planner) Reset(prof, accounts *Profile) {
	clear(p.projects)
	clear(p.eqClasses)
	for i := range p.binStates {
		b := &p.binStates[i]
		*b = binState{items: b.items[:0]}
	}
	p.memory.reset()
	clear(p.submitOrder)
	*p = Planner{cfg: p.cfg, profile: prof, accounts: accounts, projects: p.projects, submitOrder: p.submitOrder[:0], binStates: p.binStates, recentlyFreed: p.recentlyFreed[:0],
		undoLog: p.undoLog[:0], changed: p.changed[:0], candidateTimes: p.candidateTimes, delayed: p.delayed[:0], eqClasses: p.eqClasses, finderThreshold: p.finderThreshold,
		earliestWaiting: scheduler.Never, unchecked: p.unchecked[:0], repairedPos: math.MaxUint64, overloadedBins: p.overloadedBins[:0], suspectBins: p.suspectBins, zeros: p.zeros,
		tries: true, round: 1, stepsLeft: p.stepsLeft, touched: p.touched[:0], displaced: p.displaced[:0], altered: p.altered[:0], forgotten: p.forgotten[:0], memory: p.memory}
}

// NextRound prepares the planner for other tries after Close, on the same profiles, as Reset
// and Restore of the same projects would: what is reserved for them must not have changed. It
// forgets the projects of which a task was tried elsewhere, and yields them; the caller
// restores them, and those that did change, after Forget. searched says the same of each task
// for which Existing.Searched was true. O(bins + what the last round changed).
func (p *Planner) NextRound(searched bool, forgotten func(scheduler.ProjectID)) {
	for _, a := range slices.Backward(p.altered) {
		if p.projects[a.project.ID] == a.project {
			a.project.guaranteed, a.project.guarantee = a.guaranteed, a.guarantee
			if a.project.violated {
				a.project.violated = false
				p.markUnchecked(a.project)
			}
		}
	}
	p.forgotten = p.forgotten[:0]
	for _, it := range p.displaced {
		if pr := it.group.project; p.projects[pr.ID] == pr {
			p.forgotten = append(p.forgotten, pr.ID)
		}
	}
	p.altered, p.displaced = p.altered[:0], p.displaced[:0]
	for _, id := range p.forgotten {
		if p.projects[id] != nil {
			p.Forget(id)
			forgotten(id)
		}
	}
	for i := range p.binStates {
		p.binStates[i].freedClock = 0
	}
	p.recentlyFreed, p.freeClock, p.changed, p.overloadedBins, p.repairedPos = p.recentlyFreed[:0], 0, p.changed[:0], p.overloadedBins[:0], math.MaxUint64
	p.searched = searched
	p.round++
}

// Forget removes a project from a planner of tries that has changed nothing since NextRound.
// Unknown projects are ignored. O(its tasks).
func (p *Planner) Forget(id scheduler.ProjectID) {
	pr := p.projects[id]
	if pr == nil {
		return
	}
	for _, g := range pr.groups {
		for _, it := range g.items {
			if it.placed {
				p.unlink(it)
			}
			if it.home.Kept {
				p.numKept--
			}
		}
	}
	p.unregister(pr)
	if pr.unchecked {
		p.unchecked = slices.DeleteFunc(p.unchecked, func(o *project) bool { return o == pr })
	}
	p.memory.recycle(pr)
}

// alter records the guarantee of a project before it changes in a round of tries.
func (p *Planner) alter(pr *project) {
	if p.tries {
		p.altered = append(p.altered, alteredProject{pr, pr.guaranteed, pr.guarantee})
	}
}

// syncSearched makes an item's searched fields those of this round: no search for it was done
// yet in this one.
func (p *Planner) syncSearched(it *item) {
	if it.searchedRound == p.round {
		return
	}
	it.searchedRound, it.searchedClock, it.searchedFrom = p.round, 0, it.spot.At
	if p.searched && it.wasSearched {
		it.searchedFrom = 0
	}
}

// item returns a task, nil for an unknown one. The first call for a planner of tries
// costs O(tasks).
func (p *Planner) item(k Key) *item {
	if p.items == nil {
		p.items = make(map[Key]*item, p.numItems)
		for _, pr := range p.submitOrder {
			for _, g := range pr.groups {
				for _, it := range g.items {
					p.items[it.key] = it
				}
			}
		}
	}
	return p.items[k]
}

// Close makes the profiles what they were before the first call of Restore. What was
// planned can still be read; nothing more can be planned.
func (p *Planner) Close() {
	for _, it := range p.touched {
		if it.isAtHome() {
			continue
		}
		if it.placed {
			p.occupy(it, &it.spot, it.end, &it.group.req.Need, 1)
			p.occupyBeyond(it, 1)
		}
		if it.home.Kept {
			p.occupy(it, &it.home.Spot, it.home.End, &it.home.Need, -1)
		}
	}
	p.displaced, p.touched = p.touched, p.displaced[:0]
}

// isAtHome reports whether an item is where the owner of the profile has it.
func (it *item) isAtHome() bool {
	if !it.placed || !it.home.Kept {
		return it.placed == it.home.Kept
	}
	r := &it.group.req
	return it.spot == it.home.Spot && it.end == it.home.End && r.Occupied == nil && equalNeeds(&r.Need, &it.home.Need)
}

func equalNeeds(a, b *Need) bool {
	return a.IO == b.IO && a.Space == b.Space && slices.Equal(a.Base, b.Base)
}

func (p *Planner) touch(it *item) {
	if p.tries && !it.touched {
		it.touched = true
		p.touched = append(p.touched, it)
	}
}

// occupy takes a need of an item's task from the profile and its project's account (sign
// -1), or returns it (sign 1).
func (p *Planner) occupy(it *item, s *Spot, end scheduler.Time, need *Need, sign int64) {
	p.profile.Change(s.Bin, s.Disk, s.At, end, need, sign)
	if a := it.group.project.Account; p.accounts != nil && a > 0 {
		total := &it.group.accountNeed
		if need != &it.group.req.Need {
			total = &Need{Base: append(slices.Clone(need.Base), need.IO)}
		}
		p.accounts.Change(a-1, -1, s.At, end, total, sign)
	}
}

// occupyBeyond returns what a suspended task occupies already from its planned end on
// (sign -1), or takes it again (sign 1).
func (p *Planner) occupyBeyond(it *item, sign int64) {
	if occupied := it.group.req.Occupied; occupied != nil {
		p.profile.Change(it.spot.Bin, it.spot.Disk, it.end, scheduler.Never, occupied, -sign)
	}
}

// earliestByAccount returns the first time at or after at from which the account of the
// item's project has enough for the item during the given duration.
func (p *Planner) earliestByAccount(it *item, at scheduler.Time, duration time.Duration) scheduler.Time {
	a := it.group.project.Account
	if p.accounts == nil || a == 0 {
		return at
	}
	s, _ := p.accounts.EarliestAt(a-1, -1, at, duration, scheduler.Never, &it.group.accountNeed)
	return s.At
}

// chargeAccount charges an item's reservation to its project's account, or refunds it
// with sign 1.
func (p *Planner) chargeAccount(it *item, sign int64) {
	if a := it.group.project.Account; p.accounts != nil && a > 0 {
		p.accounts.Change(a-1, -1, it.spot.At, it.end, &it.group.accountNeed, sign)
	}
}

func (p *Planner) bin(b int32) *binState {
	for int(b) >= len(p.binStates) {
		p.binStates = append(p.binStates, binState{})
	}
	return &p.binStates[b]
}

// SetSpare excludes a bin from every plan until another bin is lost (parameter
// spare_nodes).
func (p *Planner) SetSpare(b int32, spare bool) {
	if s := p.bin(b); s.spare != spare {
		s.spare = spare
		p.profile.MarkChanged(b)
		if !spare {
			p.MarkFreed(b)
		}
	}
}

// SetNonPreemptible marks a bin on which a task with a soft bound cannot be made to
// leave.
func (p *Planner) SetNonPreemptible(b int32, nonPreemptible bool) {
	if s := p.bin(b); s.nonPreemptible != nonPreemptible {
		s.nonPreemptible = nonPreemptible
		p.profile.MarkChanged(b)
	}
}

// MarkFreed records that capacity of a bin was released by another owner, or that the
// bin was opened or grew, so that Compress considers it.
func (p *Planner) MarkFreed(b int32) {
	p.freeClock++
	p.bin(b).freedClock = p.freeClock
	p.recentlyFreed = append(p.recentlyFreed, b)
	if len(p.recentlyFreed) > 2*len(p.binStates)+8 {
		p.compactFreed()
	}
}

// compactFreed drops the outdated duplicates in recentlyFreed.
func (p *Planner) compactFreed() {
	slices.Sort(p.recentlyFreed)
	p.recentlyFreed = slices.Compact(p.recentlyFreed)
	slices.SortFunc(p.recentlyFreed, func(a, b int32) int { return cmp.Compare(p.binStates[a].freedClock, p.binStates[b].freedClock) })
}

// Len returns the number of tasks that have not ended.
func (p *Planner) Len() int { return p.numItems }

// Find returns the reservation of a task, false for an unknown task.
func (p *Planner) Find(k Key) (PlannedTask, bool) {
	it := p.item(k)
	if it == nil {
		return PlannedTask{}, false
	}
	return p.planned(it), true
}

// Departure returns the currently planned departure of a project and its guarantee,
// false for an unknown project.
func (p *Planner) Departure(id scheduler.ProjectID) (now scheduler.Time, guarantee Guarantee, ok bool) {
	pr := p.projects[id]
	if pr == nil {
		return 0, Guarantee{}, false
	}
	return pr.departure(), pr.guarantee, true
}

// markUnchecked makes the next call of violations check the guarantee of a project.
func (p *Planner) markUnchecked(pr *project) {
	if !pr.unchecked {
		pr.unchecked = true
		p.unchecked = append(p.unchecked, pr)
	}
}

// Each yields all tasks by (submission of the project, project, request, task).
func (p *Planner) Each(yield func(PlannedTask) bool) {
	for _, pr := range p.submitOrder {
		for _, g := range pr.groups {
			for _, it := range g.items {
				if !yield(p.planned(it)) {
					return
				}
			}
		}
	}
}

// Scan yields all tasks like Each, but without latest starts; x is valid until yield returns.
func (p *Planner) Scan(yield func(x *PlannedTask)) {
	var x PlannedTask
	for _, pr := range p.submitOrder {
		pr.scan(&x, yield)
	}
}

// ScanOf is Scan for the tasks of one project.
func (p *Planner) ScanOf(id scheduler.ProjectID, yield func(x *PlannedTask)) {
	if pr := p.projects[id]; pr != nil {
		pr.scan(&PlannedTask{}, yield)
	}
}

func (p *project) scan(x *PlannedTask, yield func(x *PlannedTask)) {
	for _, g := range p.groups {
		for _, it := range g.items {
			*x = PlannedTask{Key: it.key, Project: p.ID, Spot: it.spot, End: it.end, Started: it.started, LatestStart: scheduler.Never,
				Kept: it.home.Kept, Moved: it.moved, KeptAt: it.home.Spot, Ref: it.home.Ref}
			if !it.placed {
				x.Spot.Bin, x.Spot.At, x.End = -1, scheduler.Never, scheduler.Never
			}
			yield(x)
		}
	}
}

// NumKept returns the number of tasks that were restored with a reservation. O(1).
func (p *Planner) NumKept() int { return p.numKept }

// HasWork reports whether tasks are planned or running on a bin. O(1).
func (p *Planner) HasWork(b int32) bool { return len(p.bin(b).items) > 0 }

// NumUnplaced returns the number of tasks without a spot. O(1).
func (p *Planner) NumUnplaced() int { return p.numItems - p.numPlaced }

// NumUnplacedOf returns the number of tasks of a project without a spot. O(its tasks).
func (p *Planner) NumUnplacedOf(id scheduler.ProjectID) int {
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

func (p *Planner) planned(it *item) PlannedTask {
	out := PlannedTask{Key: it.key, Project: it.group.project.ID, Spot: it.spot, End: it.end, Started: it.started, LatestStart: scheduler.Never}
	if !it.placed {
		out.Spot.At, out.End = scheduler.Never, scheduler.Never
	}
	if it.group.project.guaranteed && it.placed {
		out.LatestStart = p.latestStart(it)
	}
	return out
}

// DrainChanged returns, and forgets, the tasks whose spot may have changed since the
// last call, in the order of change and possibly more than once.
func (p *Planner) DrainChanged() []Key {
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

// durationOn returns the duration reserved for an item on a bin: its bound, or for ever
// for a soft bound on a non-preemptible bin.
func (p *Planner) durationOn(it *item, b int32) time.Duration {
	if it.group.req.SoftBound && p.bin(b).nonPreemptible {
		return math.MaxInt64
	}
	return it.group.req.Bound
}

// readyTime returns the earliest start of an item that its predecessors and the
// parallelism limit allow.
func (p *Planner) readyTime(it *item, now scheduler.Time) scheduler.Time {
	return it.earliestByParallelism(it.group.openTime(now))
}

// openTime returns the earliest start of the group's items that their predecessors
// allow, Never if a predecessor has no spot. O(items of the predecessors).
func (g *group) openTime(now scheduler.Time) scheduler.Time {
	at := max(now, g.req.NotBefore)
	for _, before := range g.predecessors {
		for _, o := range before.items {
			if !o.placed {
				return scheduler.Never
			}
			at = max(at, o.end)
		}
	}
	return at
}

// earliestByParallelism returns the earliest start of an item that MaxParallel allows,
// given the openTime of its group.
func (it *item) earliestByParallelism(open scheduler.Time) scheduler.Time {
	if par := int(it.group.req.MaxParallel); par > 0 && open != scheduler.Never {
		if i := slices.Index(it.group.items, it); i >= par {
			return max(open, it.group.items[i-par].end)
		}
	}
	return open
}

// latestStart returns the latest start of a placed item that preserves the guarantee
// (eq. 7) and the planned starts of its successors.
func (p *Planner) latestStart(it *item) scheduler.Time {
	duration := p.durationOn(it, it.spot.Bin)
	at := it.group.project.guarantee.Latest.Add(-duration)
	for _, g := range it.group.successors {
		for _, o := range g.items {
			if o.placed {
				at = min(at, o.spot.At.Add(-duration))
			}
		}
	}
	if par := int(it.group.req.MaxParallel); par > 0 {
		if i := slices.Index(it.group.items, it); i+par < len(it.group.items) && it.group.items[i+par].placed {
			at = min(at, it.group.items[i+par].spot.At.Add(-duration))
		}
	}
	return at
}

// setSpot moves an item to a spot and records the change; a spot with Bin -1 takes the
// item out of the plan.
func (p *Planner) setSpot(it *item, s Spot) {
	p.syncSearched(it)
	if p.recording {
		p.undoLog = append(p.undoLog, undo{it, it.spot, it.end, it.placed, it.searchedClock, it.searchedFrom, it.searchedRound})
	}
	end := s.At
	if s.Bin >= 0 {
		end = s.At.Add(p.durationOn(it, s.Bin))
	}
	p.touch(it)
	p.moveItem(it, s, end, s.Bin >= 0)
	it.moved = true
	p.changed = append(p.changed, it.key)
}

func (p *Planner) moveItem(it *item, s Spot, end scheduler.Time, placed bool) {
	p.markUnchecked(it.group.project)
	if it.placed {
		p.occupy(it, &it.spot, it.end, &it.group.req.Need, 1)
		p.occupyBeyond(it, 1)
		p.unlink(it)
	}
	it.spot, it.end, it.placed = s, end, placed
	if placed {
		p.occupy(it, &it.spot, it.end, &it.group.req.Need, -1)
		p.occupyBeyond(it, -1)
		p.link(it)
	}
}

// link lists a placed item on its bin.
func (p *Planner) link(it *item) {
	p.earliestWaiting = min(p.earliestWaiting, it.spot.At)
	b := p.bin(it.spot.Bin)
	it.binIndex = len(b.items)
	b.items = append(b.items, it)
	p.numPlaced++
}

func (p *Planner) unlink(it *item) {
	list := p.bin(it.spot.Bin).items
	last := len(list) - 1
	list[it.binIndex] = list[last]
	list[it.binIndex].binIndex = it.binIndex
	list[last] = nil
	p.binStates[it.spot.Bin].items = list[:last]
	p.numPlaced--
}

// rollback undoes the changes recorded since the undo log had n entries.
func (p *Planner) rollback(n int) {
	for i := len(p.undoLog) - 1; i >= n; i-- {
		u := &p.undoLog[i]
		p.moveItem(u.item, u.spot, u.end, u.placed)
		u.item.searchedClock, u.item.searchedFrom, u.item.searchedRound = u.searchedClock, u.searchedFrom, u.searchedRound
	}
	p.undoLog = p.undoLog[:n]
}

// earliestSpot returns the earliest spot for an item in [from, before) that displaces
// no reservation: earliestStartingTime of Table 5. While the account of the item's
// project has too little, the search continues from the time at which it has enough;
// each retry passes a step of the account.
func (p *Planner) earliestSpot(it *item, from, before scheduler.Time) (Spot, bool) {
	if !it.group.req.SoftBound {
		from = p.earliestByAccount(it, from, it.group.req.Bound)
	}
	for {
		s, ok := p.earliestSpotOnBins(it, from, before)
		if !ok {
			return s, false
		}
		at := p.earliestByAccount(it, s.At, p.durationOn(it, s.Bin))
		if at <= s.At {
			return s, true
		}
		if from = at; from >= before {
			return Spot{Bin: -1}, false
		}
	}
}

func (p *Planner) earliestSpotOnBins(it *item, from, before scheduler.Time) (Spot, bool) {
	best, found := Spot{Bin: -1}, false
	need := &it.group.req.Need
	if from >= before {
		return best, false
	}
	p.stepsLeft -= p.costOfSearch(it)
	if it.pinned {
		return p.profile.EarliestAt(it.spot.Bin, it.spot.Disk, from, p.durationOn(it, it.spot.Bin), before, need)
	}
	if from == p.now {
		if f := p.finderOf(it); f != nil {
			return f.earliest(p, from, before)
		}
	}
	for b := range p.profile.Bins() {
		if p.profile.Closed(b) || p.bin(b).spare {
			continue
		}
		if s, ok := p.profile.EarliestOn(b, from, p.durationOn(it, b), before, need); ok {
			if best, found = s, true; s.At <= from {
				break
			}
			before = s.At
		}
	}
	return best, found
}

// placeEarliest puts an item at its earliest spot in [from, before) and reports whether
// there is one.
func (p *Planner) placeEarliest(it *item, from, before scheduler.Time) bool {
	s, ok := p.earliestSpot(it, from, before)
	if ok {
		p.setSpot(it, s)
		it.setSearched(p, p.freeClock, from)
	}
	return ok
}

// setSearched records that the item's spot is the earliest from a time on, with the bins as
// they were at a free clock.
func (it *item) setSearched(p *Planner, clock uint64, from scheduler.Time) {
	it.searchedClock, it.searchedFrom, it.searchedRound = clock, from, p.round
}

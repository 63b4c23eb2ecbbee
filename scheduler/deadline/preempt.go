package deadline

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// Mode is how room is taken back.
type Mode uint8

// The modes.
const (
	// Suspend brings victims down to the cheapest level that frees enough.
	Suspend Mode = iota + 1
	// Kill ends them, as the papers' experiments did; their tasks start again.
	Kill
	// None takes nothing back.
	None
	// Cheapest is Suspend, but that a victim whose memory has to go is ended
	// where the work it would lose is less than what moving its memory takes.
	Cheapest
)

// String gives the mode's name.
func (m Mode) String() string {
	switch m {
	case Suspend:
		return "suspend"
	case Kill:
		return "kill"
	case None:
		return "none"
	case Cheapest:
		return "cheapest"
	default:
		return "mode(?)"
	}
}

// Group is the place of a victim in the papers' order (3DSF 7.3): regular tasks
// of low priority with the same dominant resource as the task that needs room,
// then those of other dominant resources, then high priority likewise. Hopeless
// deadline jobs count as low. Before them come tasks that are frozen already and
// give their memory too; behind them, for a reservation that is due, those that
// were suspended for MaxSuspended before.
type Group uint8

// The groups, the first victims first.
const (
	Frozen Group = iota + 1
	LowSame
	LowOther
	HighSame
	HighOther
	Spent
)

// String gives the group's name.
func (g Group) String() string {
	switch g {
	case Frozen:
		return "frozen"
	case LowSame:
		return "low, same resource"
	case LowOther:
		return "low, other resource"
	case HighSame:
		return "high, same resource"
	case HighOther:
		return "high, other resource"
	case Spent:
		return "suspended long enough before"
	default:
		return "group(?)"
	}
}

// Victim is an attempt that makes room, and the level it is brought to, or that
// it is ended.
type Victim struct {
	Attempt *scheduler.Attempt
	Group   Group
	Level   scheduler.Level
	Kill    bool
	// Takes is the time until the room is there. Cost is what it takes off the
	// victim's progress beside waiting: moving its memory there and back, or
	// the work that is lost. To freeze costs nothing.
	Takes, Cost time.Duration
}

// frees is what a node gets back of a victim: resources, and space on its disk.
func (v *Victim) frees() (scheduler.Resources, int64) {
	r := v.Attempt.Held.Resources
	switch {
	case v.Kill:
		return r, v.Attempt.Held.Disk
	case v.Level == scheduler.LevelFrozen:
		r[scheduler.Memory] = 0
	}
	return r, 0
}

// Plan is where room is made for one task, and by whom.
type Plan struct {
	Node    scheduler.NodeID
	Victims []Victim // in the order of their suspension; empty if room is on its way already
	// Takes is the time until the last of them has made room, Cost what it
	// costs all of them.
	Takes, Cost time.Duration
}

// Preemptor is the workspace for judging and planning.
type Preemptor struct {
	Mode Mode
	// MaxSuspended: a task that was suspended for so long is a victim no more; with
	// Due it is, behind all others.
	MaxSuspended time.Duration
	// Due says that room is made for a reservation that is due. It was promised on
	// the strength of all that can be made to leave its node.
	Due bool
	// Deep has victims give their memory also where it does not lack, for
	// those who will need it next.
	Deep bool
	// Spared tells which jobs are never victims beside those of the caller's
	// own lane: promised projects and jobs in the deadline lane.
	Spared func(j *scheduler.Job) bool
	// Open tells whether a task of a stage may start on a node once there is room; nil
	// means on all.
	Open func(n *scheduler.Node, g *scheduler.Stage) bool
	// Held is what is kept on a node for others than the job.
	Held func(n *scheduler.Node, j *scheduler.Job) (scheduler.Resources, int64)

	now     scheduler.Time
	victims []Victim
	best    []Victim
	trial   []Victim
	ends    []ending
}

// CanWait is the judgment of PDSonQueue Alg. 5 lines 18 to 27 over all nodes:
// whether on some node the next attempt to end frees enough for a task of the
// stage, no later than latest. until is when that is predicted; past it the
// question is to be asked again. Attempts without a prediction, or past it, are
// not counted on. O(attempts) at worst; it ends at the first such node.
func (p *Preemptor) CanWait(s *scheduler.State, g *scheduler.Stage, latest, now scheduler.Time) (ok bool, until scheduler.Time) {
	for _, n := range s.Nodes() {
		if !p.usable(n, g) {
			continue
		}
		next, frees := scheduler.Never, (*scheduler.Attempt)(nil)
		for a := range s.AttemptsOn(n.Spec.ID) {
			if at, known := locality.EndOf(s, a); known && a.Phase <= scheduler.AttemptRunning && at > now && at < next {
				next, frees = at, a
			}
		}
		if frees == nil || next > latest {
			continue
		}
		held, space := p.held(n, g.Job)
		if fitsAfter(n, &g.Spec, held, space, frees) {
			return true, next
		}
	}
	return false, 0
}

// usable tells whether a task of the stage may run on a node.
func (p *Preemptor) usable(n *scheduler.Node, g *scheduler.Stage) bool {
	return n.Takes() && g.Spec.Demand.Fits(n.Spec.Capacity) && (p.Open == nil || p.Open(n, g))
}

// fitsAfter tells whether a task fits once one attempt has ended.
func fitsAfter(n *scheduler.Node, g *scheduler.StageSpec, held scheduler.Resources, space int64, a *scheduler.Attempt) bool {
	if !g.Demand.Add(held).Fits(n.Free.Add(a.Held.Resources)) {
		return false
	}
	if g.Demand[scheduler.IO] == 0 && g.Disk == 0 {
		return true
	}
	for i, d := range n.Disks {
		io, free := d.FreeIO, d.FreeSpace
		if int16(i) == a.Disk {
			io, free = io+a.Held.Resources[scheduler.IO], free+a.Held.Disk
		}
		if g.Demand[scheduler.IO] <= io && g.Disk+space <= free {
			return true
		}
	}
	return false
}

func (p *Preemptor) held(n *scheduler.Node, j *scheduler.Job) (scheduler.Resources, int64) {
	if p.Held == nil {
		return scheduler.Resources{}, 0
	}
	return p.Held(n, j)
}

// Plan finds the node where the victims of least harm make room for a task of
// the stage: no victims of high priority before some, then the least cost, the
// last group touched first, then their number, then the newest, then the lowest
// id. So memory is moved only where no node has enough for those that freezing
// would let in. ok is false where no set of victims on any node is
// enough. Where many nodes would do it ends at fewFirst of them where freezing
// the first group is enough, or fewAny in all, beginning with one that depends on
// the job, so that its cost does not grow with the cluster. The plan is good until
// the next one. O(attempts x log of those on a node), on the nodes looked at.
func (p *Preemptor) Plan(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) (plan Plan, ok bool) {
	p.now = now
	plan.Node = scheduler.NoNode
	p.best = p.best[:0]
	nodes := s.Nodes()
	at, first, any := 0, 0, 0
	if len(nodes) > fewFirst {
		at = int(uint64(g.Job.Spec.ID) * 0x9e3779b97f4a7c15 >> 33 % uint64(len(nodes)))
	}
	for range nodes {
		n := nodes[at]
		if at++; at == len(nodes) {
			at = 0
		}
		if !p.usable(n, g) || !p.plan(s, g, n) {
			continue
		}
		if plan.Node == scheduler.NoNode || better(p.trial, p.best) {
			plan.Node = n.Spec.ID
			p.best = append(p.best[:0], p.trial...)
		}
		if any++; worstGroup(p.trial) <= LowSame && costOf(p.trial) == 0 {
			first++
		}
		if first >= fewFirst || any >= fewAny {
			break
		}
	}
	p.fill(&plan)
	return plan, plan.Node != scheduler.NoNode
}

// fill makes a plan of the best set of victims.
func (p *Preemptor) fill(plan *Plan) {
	plan.Victims, plan.Cost = p.best, costOf(p.best)
	for i := range p.best {
		plan.Takes = max(plan.Takes, p.best[i].Takes)
	}
}

// How many nodes Plan compares.
const (
	fewFirst = 64
	fewAny   = 256
)

// PlanOn is Plan for one node.
func (p *Preemptor) PlanOn(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID, now scheduler.Time) (plan Plan, ok bool) {
	p.now = now
	n := s.Node(id)
	if !n.Takes() || !g.Spec.Demand.Fits(n.Spec.Capacity) || !p.plan(s, g, n) {
		return Plan{Node: scheduler.NoNode}, false
	}
	p.best = append(p.best[:0], p.trial...)
	plan.Node = id
	p.fill(&plan)
	return plan, true
}

func costOf(v []Victim) (sum time.Duration) {
	for i := range v {
		sum = plus(sum, v[i].Cost)
	}
	return sum
}

// worstGroup is the last group that victims are of, 0 without any.
func worstGroup(v []Victim) (g Group) {
	for i := range v {
		g = max(g, v[i].Group)
	}
	return g
}

// better compares two sets of victims.
func better(a, b []Victim) bool {
	newest := func(v []Victim) scheduler.Time {
		if len(v) == 0 {
			return scheduler.Never
		}
		return v[0].Attempt.Placed
	}
	high := func(v []Victim) int {
		if worstGroup(v) >= HighSame {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(high(a), high(b)), cmp.Compare(costOf(a), costOf(b)), cmp.Compare(worstGroup(a), worstGroup(b)),
		cmp.Compare(len(a), len(b)), cmp.Compare(newest(b), newest(a))) < 0
}

// plan leaves in trial the victims on one node that make room for a task.
func (p *Preemptor) plan(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node) bool {
	p.trial = p.trial[:0]
	held, space := p.held(n, g.Job)
	var r room
	r.on(s, n, held, space)
	if r.fits(&g.Spec) {
		return true
	}
	p.candidates(s, g, n)
	for _, v := range p.victims {
		if !p.way(n, g, &r, &v) {
			continue
		}
		r.take(&v, 1)
		p.trial = append(p.trial, v)
		if r.fits(&g.Spec) {
			p.prune(g, &r)
			return true
		}
	}
	return false
}

// prune drops victims that turned out not to be needed, from the first one on,
// which were chosen before a larger one.
func (p *Preemptor) prune(g *scheduler.Stage, r *room) {
	kept := p.trial[:0]
	for i, v := range p.trial {
		r.take(&v, -1)
		if i < len(p.trial)-1 && r.fits(&g.Spec) {
			continue
		}
		r.take(&v, 1)
		kept = append(kept, v)
	}
	p.trial = kept
}

// room is what would be free on a node.
type room struct {
	free  scheduler.Resources
	space int64 // less what is kept for others
	swap  int64
	io    []scheduler.DiskUse
	few   [4]scheduler.DiskUse
}

// on is what is free on a node, with what is on its way, but for what is kept
// for others.
func (r *room) on(s *scheduler.State, n *scheduler.Node, held scheduler.Resources, space int64) {
	r.free, r.space, r.swap = n.Free.Add(n.Releasing).Sub(held), -space, n.SwapFree
	r.io = append(r.few[:0], n.Disks...)
	for a := range s.AttemptsOn(n.Spec.ID) {
		if a.Phase == scheduler.AttemptKilling || a.Phase == scheduler.AttemptSuspending {
			r.give(a.Disk, a.Held.Resources[scheduler.IO], 0)
		}
	}
}

// take gives the room that a victim makes; with sign -1 it takes it back.
func (r *room) take(v *Victim, sign int64) {
	frees, disk := v.frees()
	r.free = r.free.Add(frees.Times(sign))
	r.give(v.Attempt.Disk, sign*frees[scheduler.IO], sign*disk)
	if v.Level == scheduler.LevelSwapped {
		r.swap -= sign * v.Attempt.Held.Resources[scheduler.Memory]
	}
}

func (r *room) give(disk int16, io, space int64) {
	if disk >= 0 && int(disk) < len(r.io) {
		r.io[disk].FreeIO += io
		r.io[disk].FreeSpace += space
	}
}

func (r *room) fits(g *scheduler.StageSpec) bool {
	if !g.Demand.Fits(r.free) {
		return false
	}
	if len(r.io) == 0 {
		return g.Demand[scheduler.IO] == 0 && g.Disk == 0
	}
	for _, d := range r.io {
		if g.Demand[scheduler.IO] <= d.FreeIO && g.Disk-r.space <= d.FreeSpace {
			return true
		}
	}
	return false
}

// candidates lists who may be a victim on a node in the papers' order: by
// group; newest first among those that have started; of equals the tenant with the greatest share for its
// weight, then who is suspended soonest, then the last placed.
func (p *Preemptor) candidates(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node) {
	p.victims = p.victims[:0]
	total := s.Total()
	dominant := g.Spec.Demand.Dominant(total)
	for a := range s.AttemptsOn(n.Spec.ID) {
		if a.Phase != scheduler.AttemptRunning && (a.Phase != scheduler.AttemptSuspended || a.Level != scheduler.LevelFrozen) {
			continue
		}
		j := s.StageOf(a).Job
		if a.Phase == scheduler.AttemptSuspended {
			p.victims = append(p.victims, Victim{Attempt: a, Group: Frozen})
			continue
		}
		spent := p.spent(a)
		if j.Phase != scheduler.JobActive || j == g.Job || (p.Spared != nil && p.Spared(j)) || (spent && !p.Due) {
			continue
		}
		v := Victim{Attempt: a, Group: LowSame}
		if j.Spec.Priority == scheduler.PriorityHigh && !s.Accepted(j) {
			v.Group = HighSame
		}
		if a.Demand.Dominant(total) != dominant {
			v.Group++
		}
		if spent {
			v.Group = Spent
		}
		p.victims = append(p.victims, v)
	}
	slices.SortFunc(p.victims, func(x, y Victim) int {
		a, b := x.Attempt, y.Attempt
		if c := cmp.Or(cmp.Compare(x.Group, y.Group), cmp.Compare(b.Placed, a.Placed)); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(share(s, b.Tenant), share(s, a.Tenant)),
			cmp.Compare(a.Demand[scheduler.Memory], b.Demand[scheduler.Memory]), cmp.Compare(b.Seq, a.Seq))
	})
}

func share(s *scheduler.State, t scheduler.TenantID) float64 {
	tn := s.Tenant(t)
	return tn.Used.DominantShare(s.Total()) / tn.Spec.Weight
}

// spent tells whether the last suspension of an attempt took MaxSuspended or
// longer, as Placed is when it was resumed.
func (p *Preemptor) spent(a *scheduler.Attempt) bool {
	return a.Suspends > 0 && p.MaxSuspended > 0 && a.Placed.Sub(a.SuspendedAt) >= p.MaxSuspended
}

// reaches tells whether a node can bring an attempt to a level, as far as is known.
func reaches(n *scheduler.Node, a *scheduler.Attempt, l scheduler.Level) bool {
	return n.Spec.Levels.Has(l) && !a.Barred.Has(l)
}

// way settles how a victim makes room: the cheapest way to free what still lacks
// on the node. It is frozen where memory is enough by now, else swapped where
// there is swap for it, else checkpointed; with Cheapest it is ended where that
// costs less. false: it has nothing to give, or the node can do none of these or has
// failed to with it.
func (p *Preemptor) way(n *scheduler.Node, g *scheduler.Stage, r *room, v *Victim) bool {
	a := v.Attempt
	if p.Mode == Kill {
		v.Kill = true
		return !a.Level.Suspended()
	}
	memory := p.Deep || g.Spec.Demand[scheduler.Memory] > r.free[scheduler.Memory]
	switch {
	case a.Level.Suspended() && !memory:
		return false
	case !memory && reaches(n, a, scheduler.LevelFrozen):
		v.Level, v.Takes = scheduler.LevelFrozen, n.Spec.Speeds.Suspend(scheduler.LevelFrozen, 0)
		return true
	}
	v.Cost = math.MaxInt64
	moves := a.Held.Resources[scheduler.Memory]
	for _, l := range [...]scheduler.Level{scheduler.LevelSwapped, scheduler.LevelCheckpointed} {
		if l <= a.Level || !reaches(n, a, l) || (l == scheduler.LevelSwapped && moves > r.swap) {
			continue
		}
		down := n.Spec.Speeds.Suspend(l, moves)
		if cost := plus(down, n.Spec.Speeds.Resume(l, moves)); cost < v.Cost {
			v.Level, v.Takes, v.Cost = l, down, cost
		}
	}
	if lost := a.RanFor(p.now); p.Mode == Cheapest && !a.Level.Suspended() && lost < v.Cost {
		v.Kill, v.Level, v.Takes, v.Cost = true, 0, 0, lost
	}
	return v.Kill || v.Level != 0
}

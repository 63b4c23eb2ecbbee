package deadline

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/locality"
)

// Mode is how capacity is preempted.
type Mode uint8

const (
	// Suspend brings victims to the cheapest level that frees enough.
	Suspend Mode = iota + 1
	// Kill kills victims, as the papers' experiments did; their tasks start again.
	Kill
	// None preempts nothing.
	None
	// Cheapest is Suspend, except that it kills a victim whose memory is needed if that loses less
	// work than moving its memory costs.
	Cheapest
)

// victimGroup is the rank of a victim in the papers' order (3DSF 7.3). Infeasible deadline jobs count as low.
type victimGroup uint8

// The groups, in the order in which victims are taken.
const (
	groupFrozen        victimGroup = iota + 1 // tasks that are frozen already: they give up their memory
	groupLowSame                              // low priority, same dominant resource as the task that needs capacity
	groupLowOther                             // low priority, other dominant resources
	groupHighSame                             // high priority, same dominant resource
	groupHighOther                            // high priority, other dominant resources
	groupAccepted                             // for a due reservation: deadlines accepted without a guarantee
	groupLongSuspended                        // for a due reservation: were suspended for MaxSuspended before
	groupStarting                             // for a due reservation: tasks that start or resume; they give way once they run
)

// Victim is an attempt to preempt, with the level to bring it to, or to kill.
type Victim struct {
	Attempt *scheduler.Attempt
	group   victimGroup
	Level   scheduler.Level
	Kill    bool
	// timeToFree is the time until the capacity is free. cost is the progress that the victim loses besides
	// waiting: the time to move its memory there and back, or the work that a kill loses. Freezing costs nothing.
	timeToFree, cost time.Duration
}

// freedResources returns what preempting the victim frees on its node: resources, and space on its disk.
func (v *Victim) freedResources() (scheduler.Resources, int64) {
	r := v.Attempt.Occupied.Resources
	switch {
	case v.Kill:
		return r, v.Attempt.Occupied.Disk
	case v.Level == scheduler.LevelFrozen:
		r[scheduler.Memory] = 0
	}
	return r, 0
}

// PreemptionPlan is the node and the victims that free capacity for one task.
type PreemptionPlan struct {
	Node    scheduler.NodeID
	Victims []Victim // in the order of their preemption; empty if enough is being released already
	// AwaitsStart: Victims suffice only with attempts that start or resume now, which are preempted once they run.
	AwaitsStart      bool
	timeToFree, cost time.Duration // until all victims have freed their capacity; the sum of their costs
	worst            victimGroup   // the last group that a victim is from
}

// Preemptor finds victims. It is a workspace; the fields are its parameters.
type Preemptor struct {
	Mode Mode
	// MaxSuspended protects tasks that were suspended that long before: they are not victims or,
	// with ForDueReservation, the last ones.
	MaxSuspended time.Duration
	// ForDueReservation: the capacity is for a reservation that is due. Its plan assumed that
	// everything preemptible leaves its node.
	ForDueReservation bool
	// Escalate makes victims give up memory even if enough is free, for tasks that will need it next.
	Escalate bool
	// IsProtected reports whether a job is never a victim, besides the preempting job itself:
	// guaranteed projects and jobs in the deadline lane.
	IsProtected func(j *scheduler.Job) bool
	// MayStart reports whether a task of a stage may start on a node that has capacity.
	MayStart func(n *scheduler.Node, g *scheduler.Stage) bool
	// Reserved returns the capacity of a node that is reserved, and the disk space.
	Reserved func(n *scheduler.Node) (scheduler.Resources, int64)

	now      scheduler.Time
	victims  []Victim
	best     []Victim
	current  []Victim
	lacks    []capLack // scratch of FindCapVictims
	ends     locality.Ends
	capacity freeCapacity
}

// CanWait is PDSonQueue Alg. 5 lines 18 to 27 over all nodes. It reports whether on some node the next
// attempt to end frees enough for a task of the stage no later than latest. until is that attempt's
// predicted end, after which the caller must ask again. Attempts without a prediction, or past it, are
// ignored. O(nodes + attempts on changed nodes) at worst; it stops at the first such node.
func (p *Preemptor) CanWait(s *scheduler.State, g *scheduler.Stage, latest, now scheduler.Time) (ok bool, until scheduler.Time) {
	for id, n := range s.Nodes() {
		next := p.nextEnd(s, scheduler.NodeID(id), now)
		if next.Attempt == nil || next.At > latest || !p.isUsable(s, n, g) {
			continue
		}
		reserved, space := p.Reserved(n)
		if p.capacity.fitsAfter(n, &g.Spec, reserved, space, next.Attempt) {
			return true, next.At
		}
	}
	return false, 0
}

// nextEnd returns the next end on a node after now, at Never if there is none.
func (p *Preemptor) nextEnd(s *scheduler.State, id scheduler.NodeID, now scheduler.Time) locality.End {
	for _, e := range p.ends.On(s, id) {
		if e.At > now && e.Attempt.Phase <= scheduler.AttemptRunning {
			return e
		}
	}
	return locality.End{At: scheduler.Never}
}

// isUsable reports whether a task of the stage may ever run on a node.
func (p *Preemptor) isUsable(s *scheduler.State, n *scheduler.Node, g *scheduler.Stage) bool {
	return n.Schedulable() && g.Spec.Demand.Fits(n.Spec.Capacity) && !s.Cluster().Avoids(g, n.Spec.ID) && p.MayStart(n, g)
}

// fitsAfter reports whether a task fits, beside the reserved capacity, once an attempt has ended. r is scratch.
func (r *freeCapacity) fitsAfter(n *scheduler.Node, g *scheduler.StageSpec, reserved scheduler.Resources, space int64, a *scheduler.Attempt) bool {
	if !g.Demand.Add(reserved).Fits(n.Free.Add(a.Occupied.Resources)) {
		return false
	}
	if g.Demand[scheduler.IO] == 0 && g.Disk == 0 {
		return true
	}
	r.Load(n)
	r.Release(a.Occupied.Resources, a.Occupied.Disk, a.Disk)
	return r.HasRoom(g.Demand, g.Disk+space)
}

// FindVictims finds the node on which preempting for a task of the stage does the least harm. Sets of
// victims are compared by: no victim of high priority, the least cost, the last group touched, their
// number, the newest victim, the lowest node id. So memory of low-priority victims is moved only if
// freezing such victims suffices on no node. ok is false if no set of victims on any node suffices.
//
// To keep the cost independent of the size of the cluster, the search begins at a node that depends on the job, and
// stops after enoughFirstGroup nodes on which freezing the first groups suffices, or after enoughNodes nodes with any
// sufficient set. The plan is valid until the next call. O(attempts x log of those on a node) on the nodes considered.
func (p *Preemptor) FindVictims(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) (plan PreemptionPlan, ok bool) {
	p.now, plan.Node = now, scheduler.NoNode
	nodes := s.Nodes()
	at, firstGroup, sufficient := 0, 0, 0
	if len(nodes) > enoughFirstGroup {
		at = int(uint64(g.Job.Spec.ID) * 0x9e3779b97f4a7c15 >> 33 % uint64(len(nodes))) // Fibonacci hashing
	}
	for range nodes {
		n := nodes[at]
		if at++; at == len(nodes) {
			at = 0
		}
		if !p.isUsable(s, n, g) || !p.collectVictims(s, g, n) {
			continue
		}
		found := planOn(n.Spec.ID, p.current)
		if !ok || found.doesLessHarm(&plan) {
			p.best = append(p.best[:0], p.current...)
			plan, ok = found, true
			plan.Victims = p.best
		}
		if sufficient++; found.worst <= groupLowSame && found.cost == 0 {
			firstGroup++
		}
		if firstGroup >= enoughFirstGroup || sufficient >= enoughNodes {
			break
		}
	}
	return plan, ok
}

// planOn returns the plan to preempt victims on a node.
func planOn(id scheduler.NodeID, victims []Victim) PreemptionPlan {
	plan := PreemptionPlan{Node: id, Victims: victims}
	for i := range victims {
		v := &victims[i]
		plan.timeToFree, plan.cost, plan.worst = max(plan.timeToFree, v.timeToFree), addDurations(plan.cost, v.cost), max(plan.worst, v.group)
	}
	return plan
}

// Numbers of nodes after which FindVictims stops, see there.
const (
	enoughFirstGroup = 64
	enoughNodes      = 256
)

// FindVictimsOn is FindVictims for one node.
func (p *Preemptor) FindVictimsOn(s *scheduler.State, g *scheduler.Stage, id scheduler.NodeID, now scheduler.Time) (plan PreemptionPlan, ok bool) {
	p.now = now
	n := s.Node(id)
	if !n.Schedulable() || !g.Spec.Demand.Fits(n.Spec.Capacity) || !p.collectVictims(s, g, n) {
		return PreemptionPlan{Node: scheduler.NoNode}, false
	}
	awaits := p.dropStarting()
	p.best = append(p.best[:0], p.current...)
	plan = planOn(id, p.best)
	plan.AwaitsStart = awaits
	return plan, true
}

// dropStarting drops from current the attempts that cannot be preempted before they run, and
// reports whether there were any.
func (p *Preemptor) dropStarting() bool {
	before := len(p.current)
	p.current = slices.DeleteFunc(p.current, func(v Victim) bool { return v.group == groupStarting })
	return len(p.current) < before
}

// doesLessHarm reports whether a plan does less harm than another one.
func (x *PreemptionPlan) doesLessHarm(y *PreemptionPlan) bool {
	a, b := x.Victims, y.Victims
	if len(a) == 0 || len(b) == 0 {
		return len(a) < len(b)
	}
	if high := x.worst >= groupHighSame; high != (y.worst >= groupHighSame) {
		return !high
	}
	return cmp.Or(cmp.Compare(x.cost, y.cost), cmp.Compare(x.worst, y.worst),
		cmp.Compare(len(a), len(b)), cmp.Compare(b[0].Attempt.Placed, a[0].Attempt.Placed)) < 0
}

// collectVictims stores in current the victims on one node to preempt for a task, and reports whether they suffice.
func (p *Preemptor) collectVictims(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node) bool {
	p.current = p.current[:0]
	reserved, space := p.Reserved(n)
	r := &p.capacity
	r.load(s, n, reserved, space)
	if r.fits(&g.Spec) {
		return true
	}
	p.listCandidates(s, g, n)
	for _, v := range p.victims {
		if !p.chooseAction(n, g, r, &v) {
			continue
		}
		r.addVictim(&v, 1)
		p.current = append(p.current, v)
		if r.fits(&g.Spec) {
			p.prune(r.addVictim, func() bool { return r.fits(&g.Spec) })
			return true
		}
	}
	return false
}

// prune drops victims, from the first on, that later, larger victims made unnecessary. count adds what
// a victim frees, or subtracts it with sign -1; suffices reports whether the counted victims suffice.
func (p *Preemptor) prune(count func(v *Victim, sign int64), suffices func() bool) {
	needed := p.current[:0]
	for i := range p.current {
		v := &p.current[i]
		count(v, -1)
		if !suffices() {
			count(v, 1)
			needed = append(needed, *v)
		}
	}
	p.current = needed
}

// freeCapacity is what would be free on a node after preemption.
type freeCapacity struct {
	scheduler.FreeCapacity
	swap int64
}

// load sets r to what is free or being released on a node, less what is reserved. Free swap also
// excludes what tasks being swapped out will take.
func (r *freeCapacity) load(s *scheduler.State, n *scheduler.Node, reserved scheduler.Resources, space int64) {
	r.Load(n)
	r.swap = n.SwapFree
	for i := range r.Disks {
		r.Disks[i].FreeSpace -= space
	}
	for a := range s.Attempts().On(n.Spec.ID) {
		if a.Phase == scheduler.AttemptKilling || a.Phase == scheduler.AttemptSuspending {
			r.Release(scheduler.Resources{scheduler.IO: a.Occupied.Resources[scheduler.IO]}, 0, a.Disk)
		}
		if a.Phase == scheduler.AttemptSuspending && a.Target == scheduler.LevelSwapped {
			r.swap -= a.Occupied.Resources[scheduler.Memory]
		}
	}
	r.Free = n.Free.Add(n.Releasing).Sub(reserved)
}

// addVictim adds what preempting v frees, or with sign -1 subtracts it.
func (r *freeCapacity) addVictim(v *Victim, sign int64) {
	frees, disk := v.freedResources()
	r.Release(frees.Times(sign), sign*disk, v.Attempt.Disk)
	if v.Level == scheduler.LevelSwapped {
		r.swap -= sign * v.Attempt.Occupied.Resources[scheduler.Memory]
	}
}

func (r *freeCapacity) fits(g *scheduler.StageSpec) bool {
	return g.Demand[scheduler.IO] <= r.Free[scheduler.IO] && r.HasRoom(g.Demand, g.Disk)
}

// listCandidates stores in victims the possible victims on a node in the papers' order.
func (p *Preemptor) listCandidates(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node) {
	p.victims = p.victims[:0]
	dominant := g.Spec.Demand.Dominant(s.Cluster().Total())
	for a := range s.Attempts().On(n.Spec.ID) {
		p.addCandidate(s, g, a, dominant)
	}
	p.sortCandidates(s, n.Spec.ID)
}

// addCandidate adds an attempt to victims if it may be one for a task of the stage with the given
// dominant resource. Attempts that start or resume are candidates only with ForDueReservation.
func (p *Preemptor) addCandidate(s *scheduler.State, g *scheduler.Stage, a *scheduler.Attempt, dominant scheduler.Resource) {
	starting := a.Phase == scheduler.AttemptStarting || a.Phase == scheduler.AttemptResuming
	if a.Phase != scheduler.AttemptRunning && (a.Phase != scheduler.AttemptSuspended || a.Level != scheduler.LevelFrozen) && (!starting || !p.ForDueReservation) {
		return
	}
	j := s.StageOf(a).Job
	protected := p.IsProtected(j)
	if a.Phase == scheduler.AttemptSuspended {
		if !protected {
			p.victims = append(p.victims, Victim{Attempt: a, group: groupFrozen})
		}
		return
	}
	spent := p.suspendedLongEnough(a)
	if j.Phase != scheduler.JobActive || j == g.Job || protected || (spent && !p.ForDueReservation) {
		return
	}
	v := Victim{Attempt: a, group: groupLowSame}
	if j.Spec.Priority == scheduler.PriorityHigh && !j.IsAccepted() && !j.IsInfeasible() {
		v.group = groupHighSame
	}
	if a.Demand.Dominant(s.Cluster().Total()) != dominant {
		v.group++
	}
	if j.IsAccepted() && !j.IsInfeasible() {
		v.group = groupAccepted
	}
	if spent {
		v.group = groupLongSuspended
	}
	if starting {
		v.group = groupStarting
	}
	p.victims = append(p.victims, v)
}

// sortCandidates sorts victims: by group; those on the given node first; then the newest; then by the tenant's share
// over its weight, greatest first; then the quickest to suspend; then the last placed.
func (p *Preemptor) sortCandidates(s *scheduler.State, first scheduler.NodeID) {
	elsewhere := func(a *scheduler.Attempt) int {
		if a.Node == first {
			return 0
		}
		return 1
	}
	slices.SortFunc(p.victims, func(x, y Victim) int {
		a, b := x.Attempt, y.Attempt
		if c := cmp.Or(cmp.Compare(x.group, y.group), elsewhere(a)-elsewhere(b), cmp.Compare(b.Placed, a.Placed)); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(weightedShare(s, b.Tenant), weightedShare(s, a.Tenant)),
			cmp.Compare(a.Demand[scheduler.Memory], b.Demand[scheduler.Memory]), cmp.Compare(b.Seq, a.Seq))
	})
}

func weightedShare(s *scheduler.State, t scheduler.TenantID) float64 {
	tn := s.Tenant(t)
	return tn.Used.DominantShare(s.Cluster().Total()) / tn.Spec.Weight
}

// suspendedLongEnough reports whether the last suspension of an attempt took at least MaxSuspended.
// Placed is when it was resumed.
func (p *Preemptor) suspendedLongEnough(a *scheduler.Attempt) bool {
	return a.Suspends > 0 && p.MaxSuspended > 0 && a.Placed.Sub(a.SuspendedAt) >= p.MaxSuspended
}

// chooseAction sets the cheapest way to preempt a victim that frees what the node lacks. The victim is
// frozen if memory is not lacking, else swapped or checkpointed, whichever takes less time there and back;
// with Cheapest it is killed if that costs less. If its memory is wanted only for later tasks (Escalate)
// and fits nowhere else, it is frozen: its CPU suffices for the due task. chooseAction returns false if the
// victim frees nothing, or if the node cannot do any of these or has failed to with this victim.
func (p *Preemptor) chooseAction(n *scheduler.Node, g *scheduler.Stage, r *freeCapacity, v *Victim) bool {
	a := v.Attempt
	if p.Mode == Kill {
		v.Kill = true
		return !a.Level.Suspended()
	}
	lacks := g.Spec.Demand[scheduler.Memory] > r.Free[scheduler.Memory]
	memory := p.Escalate || lacks
	switch {
	case a.Level.Suspended() && !memory:
		return false
	case !memory && n.CanReach(a, scheduler.LevelFrozen):
		v.Level, v.timeToFree = scheduler.LevelFrozen, n.Spec.Speeds.Suspend(scheduler.LevelFrozen, 0)
		return true
	}
	v.cost = math.MaxInt64
	moves := a.Occupied.Resources[scheduler.Memory]
	for _, l := range [...]scheduler.Level{scheduler.LevelSwapped, scheduler.LevelCheckpointed} {
		if l <= a.Level || !n.CanReach(a, l) || (l == scheduler.LevelSwapped && moves > r.swap) {
			continue
		}
		down := n.Spec.Speeds.Suspend(l, moves)
		if cost := addDurations(down, n.Spec.Speeds.Resume(l, moves)); cost < v.cost {
			v.Level, v.timeToFree, v.cost = l, down, cost
		}
	}
	if lost := a.RanFor(p.now); p.Mode == Cheapest && !a.Level.Suspended() && lost < v.cost {
		v.Kill, v.Level, v.timeToFree, v.cost = true, 0, 0, lost
	}
	if !v.Kill && v.Level == 0 && !lacks && !a.Level.Suspended() && n.CanReach(a, scheduler.LevelFrozen) {
		v.Level, v.timeToFree, v.cost = scheduler.LevelFrozen, n.Spec.Speeds.Suspend(scheduler.LevelFrozen, 0), 0
	}
	return v.Kill || v.Level != 0
}

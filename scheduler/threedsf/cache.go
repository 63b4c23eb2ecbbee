package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// The plan is cached between cycles. syncPlan compares, for each owner whose jobs
// changed or whose claims expired, what its attempts and due reservations occupy
// with the profile and its waiting tasks with the planner, and changes only what
// differs. O(nodes + changes). A cached plan equals one rebuilt from the State;
// TestCachedPlanEqualsRebuiltPlan compares them.

// claimKey identifies a claim: an attempt, on its node or on the source node of its
// migration, or a reservation. Attempts with a guarantee belong to their owner's
// claimant, others to their node's.
type claimKey struct {
	attempt          scheduler.AttemptID
	isSource, byNode bool
	reservation      scheduler.ReservationID
}

// claim is capacity taken from the profile over an interval. account is charged for
// it; -1 for none.
type claim struct {
	bin        int32
	disk       int16
	start, end scheduler.Time
	occupied   scheduler.Occupancy
	account    int32
	generation uint64
}

// claimant is an owner, or a node on which nothing can be preempted, with its
// claims.
type claimant struct {
	keys        []claimKey
	plannedKeys []backfill.Key // the planned reservations of its jobs
	validUntil  scheduler.Time // its claims stay as they are until then unless something happens
	version     uint64         // of the node when it was last synchronised
}

// equalFrom reports whether two claims are the same from now on.
func (t *claim) equalFrom(o *claim, now scheduler.Time) bool {
	return t.bin == o.bin && t.disk == o.disk && t.end == o.end && t.occupied == o.occupied && t.account == o.account &&
		(t.start == o.start || max(t.start, o.start) <= now)
}

// syncPlan returns the plan, synchronised with the State: the cached one, or a new
// one if the nodes changed.
func (p *Policy) syncPlan() *plan {
	b := p.cachedPlan
	if b == nil || b.invalid || b.state != p.s || p.now < b.now || !b.hasSameNodes() {
		b = p.newPlan()
	}
	p.cachedPlan = b
	b.begin()
	ids := b.dirtyOwners()
	for _, id := range ids {
		b.syncOwner(id)
	}
	b.sortOwners()
	b.syncAccounts()
	b.claimNonPreemptible()
	for _, id := range b.sortIDs(ids) {
		b.syncClaims(id)
	}
	b.planner.DrainChanged()
	return b
}

// newPlan returns an empty plan for the State's nodes.
func (p *Policy) newPlan() *plan {
	c := &p.cfg.Guarantees
	b := &plan{
		p:            p,
		state:        p.s,
		nodeChanges:  p.s.NodeChangeCount(),
		profile:      &backfill.Profile{},
		accounts:     &backfill.Profile{},
		reservations: map[backfill.Key]*scheduler.Reservation{},
		claims:       map[claimKey]*claim{},
		ownerByID:    map[scheduler.ProjectID]*owner{},
		claimants:    map[scheduler.ProjectID]*claimant{},
		unsynced:     true,
	}
	config := backfill.Config{Variant: backfill.FlexibleSF, SlackFactor: c.SF, PreemptionLimit: c.PL, MaxTries: c.MaxTries}
	planner, err := backfill.NewPlanner(config, b.profile)
	if err != nil {
		panic("threedsf: " + err.Error()) // the parameters were checked by the caller of New
	}
	b.planner, b.nodeClaimants = planner, map[scheduler.NodeID]*claimant{}
	planner.SetAccounts(b.accounts)
	nodes := p.s.Nodes()
	spare := c.SpareNodes
	for _, n := range nodes {
		b.profile.AddNode(&n.Spec)
		b.nodes = append(b.nodes, plannedNode{n.Spec.Capacity, slices.Clone(n.Spec.Disks), n.Schedulable(), n.Spec.Levels})
		if !canPreemptOn(n) {
			b.nonPreemptible = append(b.nonPreemptible, n.Spec.ID)
		}
		if !n.Schedulable() {
			spare--
		}
	}
	for i := len(nodes) - 1; i >= 0 && spare > 0; i-- {
		if nodes[i].Schedulable() {
			planner.SetSpare(int32(i), true)
			spare--
		}
	}
	return b
}

// plannedNode is what the plan knows of a node.
type plannedNode struct {
	capacity    scheduler.Resources
	disks       []scheduler.Disk
	schedulable bool
	levels      scheduler.LevelSet
}

// hasSameNodes reports whether the plan was made for the State's nodes.
func (b *plan) hasSameNodes() bool {
	if len(b.p.s.Tenants()) < int(b.accounts.Bins()) {
		return false
	}
	if b.nodeChanges == b.p.s.NodeChangeCount() {
		return true
	}
	b.nodeChanges = b.p.s.NodeChangeCount()
	nodes := b.p.s.Nodes()
	if len(nodes) != len(b.nodes) {
		return false
	}
	for i, n := range nodes {
		o := &b.nodes[i]
		if o.capacity != n.Spec.Capacity || o.schedulable != n.Schedulable() || o.levels != n.Spec.Levels || !slices.Equal(o.disks, n.Spec.Disks) {
			return false
		}
	}
	return true
}

// begin drops what belongs to the last cycle.
func (b *plan) begin() {
	b.now = b.p.now
	b.late, b.missing = b.late[:0], b.missing[:0]
	b.profile.Forget(b.p.now)
	b.accounts.Forget(b.p.now)
	b.planner.ReportViolationsAgain()
}

// dirtyOwners returns the owners whose plan may be stale, sorted: their jobs
// changed, a claim expired, they request a guarantee, or plan and State differ. It
// returns every owner if the State's log of changes has wrapped.
func (b *plan) dirtyOwners() []scheduler.ProjectID {
	s := b.p.s
	ids := b.ids[:0]
	last := scheduler.ChangedOwner{}
	all := b.unsynced || !s.ChangedSince(b.workSeen, func(w scheduler.ChangedOwner) {
		if w == last {
			return
		}
		if last = w; w.Project != 0 {
			ids = append(ids, w.Project)
		} else if j := s.Job(w.Job); j == nil || j.Spec.Deadline != 0 || j.Spec.Accepted || j.Guarantees != 0 || b.claimants[ownerOfJob(w.Job)] != nil {
			ids = append(ids, ownerOfJob(w.Job))
		}
	})
	b.unsynced, b.workSeen = false, s.ChangePosition()
	if all {
		for j := range s.Jobs() {
			ids = append(ids, ownerOf(j))
		}
	}
	for id, t := range b.claimants { // sorted below
		if all || t.validUntil <= b.p.now {
			ids = append(ids, id)
		}
	}
	for id, o := range b.ownerByID {
		if all || o.requested || o.unsynced {
			ids = append(ids, id)
		}
	}
	if s.ProjectReservationCount() > 0 {
		ids = append(ids, 0)
	}
	slices.Sort(ids)
	b.ids = slices.Compact(ids)
	return b.ids
}

// syncOwner synchronises an owner's jobs and planned reservations, and adds it to
// the owners or removes it.
func (b *plan) syncOwner(id scheduler.ProjectID) {
	t := b.claimants[id]
	if t == nil {
		t = &claimant{}
		b.claimants[id] = t
	}
	for _, k := range t.plannedKeys {
		delete(b.reservations, k)
	}
	t.plannedKeys = t.plannedKeys[:0]
	o := b.ownerByID[id]
	if o != nil {
		o.jobs = o.jobs[:0]
	}
	for _, j := range b.jobsOf(id) {
		for _, r := range j.Reservations() {
			if isPlanned(r) {
				k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: r.Task}
				b.reservations[k] = r
				t.plannedKeys = append(t.plannedKeys, k)
			}
		}
		if j.Phase != scheduler.JobActive || (j.Spec.Project == 0 && j.Spec.Deadline == 0) {
			continue
		}
		status := b.p.guaranteeStatus(j)
		if status == statusNone {
			continue
		}
		if o == nil {
			o = &owner{id: id}
			b.ownerByID[id] = o
			b.owners, b.unsorted = append(b.owners, o), true
		}
		if len(o.jobs) == 0 {
			o.requested = status == statusRequested
		}
		o.jobs = append(o.jobs, j)
	}
	if o == nil {
		return
	}
	if len(o.jobs) == 0 {
		b.planner.Remove(id)
		delete(b.ownerByID, id)
		b.unsorted = true
		return
	}
	if at := b.submissionTime(o); at != o.submitted {
		o.submitted, b.unsorted = at, true
	}
	o.guarantee, o.dirty = backfill.Guarantee{}, true
}

// sortIDs sorts ids in the order of compareOwners, after those that are no owners
// any more. late and missing are filled in this order.
func (b *plan) sortIDs(ids []scheduler.ProjectID) []scheduler.ProjectID {
	slices.SortFunc(ids, func(x, y scheduler.ProjectID) int {
		switch o, q := b.ownerByID[x], b.ownerByID[y]; {
		case o != nil && q != nil:
			return compareOwners(o, q)
		case o == nil && q == nil:
			return cmp.Compare(x, y)
		case o == nil:
			return -1
		default:
			return 1
		}
	})
	return ids
}

// jobsOf returns the jobs of an owner ordered by id, none for owner 0. The result is
// valid until the next call.
func (b *plan) jobsOf(id scheduler.ProjectID) []*scheduler.Job {
	s := b.p.s
	b.jobs = b.jobs[:0]
	if id>>63 == 1 {
		if j := s.Job(scheduler.JobID(id &^ (1 << 63))); j != nil {
			b.jobs = append(b.jobs, j)
		}
	} else if pr := s.Project(id); pr != nil {
		for _, k := range pr.Jobs {
			b.jobs = append(b.jobs, s.Job(k))
		}
	}
	return b.jobs
}

// sortOwners sorts the owners and drops those that are none any more.
func (b *plan) sortOwners() {
	if !b.unsorted {
		return
	}
	b.unsorted = false
	b.owners = slices.DeleteFunc(b.owners, func(o *owner) bool { return b.ownerByID[o.id] != o })
	slices.SortFunc(b.owners, compareOwners)
}

func compareOwners(x, y *owner) int {
	return cmp.Or(cmp.Compare(x.submitted, y.submitted), cmp.Compare(x.id, y.id))
}

// syncClaims synchronises an owner's claims with the profile and its waiting tasks
// with the planner.
func (b *plan) syncClaims(id scheduler.ProjectID) {
	t := b.claimants[id]
	b.beginClaimant()
	b.claimOwner(id)
	o := b.ownerByID[id]
	if o != nil {
		b.buildProject(o)
	}
	b.endClaimant(t)
	if o == nil && len(t.keys) == 0 && len(t.plannedKeys) == 0 {
		delete(b.claimants, id)
	}
}

// beginClaimant starts collecting the claims of one claimant.
func (b *plan) beginClaimant() {
	b.generation++
	b.claimKeys, b.validUntil = b.claimKeys[:0], scheduler.Never
}

// endClaimant releases the claims that were not made again since beginClaimant.
func (b *plan) endClaimant(t *claimant) {
	for _, key := range t.keys {
		if x := b.claims[key]; x != nil && x.generation != b.generation {
			b.applyClaim(x, 1)
			delete(b.claims, key)
		}
	}
	t.keys = append(t.keys[:0], b.claimKeys...)
	t.validUntil = b.validUntil
}

// claimNonPreemptible claims what runs without a guarantee on nodes that cannot
// preempt.
func (b *plan) claimNonPreemptible() {
	s := b.p.s
	for _, id := range b.nonPreemptible {
		t := b.nodeClaimants[id]
		if t == nil {
			t = &claimant{}
			b.nodeClaimants[id] = t
		}
		v := s.NodeVersion(id)
		if t.version == v && b.p.now < t.validUntil {
			continue
		}
		b.beginClaimant()
		for a := range s.AttemptsOn(id) {
			if j := s.StageOf(a).Job; !s.NonPreemptible(j) {
				b.claimAttempt(a, j, true)
			}
		}
		b.endClaimant(t)
		t.version = v
	}
}

// setClaim makes the profile contain a claim.
func (b *plan) setClaim(key claimKey, t claim) {
	now := b.p.now
	if t.end <= now {
		return
	}
	t.generation = b.generation
	b.claimKeys = append(b.claimKeys, key)
	old := b.claims[key]
	if old != nil && old.equalFrom(&t, now) {
		old.generation = b.generation
		return
	}
	if old != nil {
		b.applyClaim(old, 1)
		*old = t
	} else {
		old = &claim{}
		*old = t
		b.claims[key] = old
	}
	b.applyClaim(&t, -1)
}

// applyClaim takes a claim from the profile from now on, or releases it if sign is
// 1.
func (b *plan) applyClaim(t *claim, sign int64) {
	from := max(t.start, b.p.now)
	if from >= t.end {
		return
	}
	need := backfill.NodeNeed(t.occupied.Resources, t.occupied.Disk)
	if t.disk < 0 {
		need.IO, need.Space = 0, 0
	}
	total := backfill.Need{Base: t.occupied.Resources[:]}
	if sign < 0 {
		b.profile.Reserve(t.bin, t.disk, from, t.end, &need)
		if t.account >= 0 {
			b.accounts.Reserve(t.account, -1, from, t.end, &total)
		}
		return
	}
	b.profile.Release(t.bin, t.disk, from, t.end, &need)
	if t.account >= 0 {
		b.accounts.Release(t.account, -1, from, t.end, &total)
	}
	b.planner.MarkFreed(t.bin)
}

// restoreOwner restores an owner's waiting tasks unless the planner has them
// already.
func (b *plan) restoreOwner(o *owner, next *backfill.Project) {
	if o.restored && !o.requested && o.project.Submitted == next.Submitted && o.project.HighPriority == next.HighPriority && o.project.Deadline == next.Deadline &&
		o.project.Account == next.Account && slices.EqualFunc(o.project.Requests, next.Requests, equalRequests) && b.matchesPlanner(o) {
		return
	}
	if o.project.ID != 0 {
		b.planner.Remove(o.id)
	}
	o.project = *next
	o.project.Requests = slices.Clone(next.Requests)
	for i := range o.project.Requests {
		r := &o.project.Requests[i]
		r.Tasks = slices.Clone(r.Tasks)
	}
	spot := func(k backfill.Key) (at backfill.Spot, started, pinned, here bool) {
		at, here = b.reservedSpot(k)
		return at, false, false, here
	}
	if err := b.planner.Restore(o.project, o.guarantee, !o.requested, spot); err != nil {
		panic("threedsf: the planner refused an accepted job: " + err.Error())
	}
	o.restored = !o.requested
}

// reservedSpot returns where the State has a task reserved, false if nowhere valid.
func (b *plan) reservedSpot(k backfill.Key) (at backfill.Spot, here bool) {
	r := b.reservations[k]
	if r == nil || b.isDiskGone(r) || b.p.isExpired(r) {
		return at, false
	}
	return backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}, true
}

// matchesPlanner reports whether the planner has an owner's tasks where the State
// has them, and the same guarantee.
func (b *plan) matchesPlanner(o *owner) bool {
	if q, ok := b.planner.GuaranteeOf(o.id); !ok || q != o.guarantee {
		return false
	}
	for i := range o.project.Requests {
		r := &o.project.Requests[i]
		for _, task := range r.Tasks {
			k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}
			at, here := b.reservedSpot(k)
			spot, _, ok := b.planner.SpotOf(k)
			if ok != here || (ok && spot != at) {
				return false
			}
		}
	}
	return true
}

func equalRequests(a, b backfill.Request) bool {
	return a.Job == b.Job && a.Stage == b.Stage && a.Bound == b.Bound && a.NotBefore == b.NotBefore && a.Need.IO == b.Need.IO &&
		a.Need.Space == b.Need.Space && slices.Equal(a.Need.Base, b.Need.Base) && slices.Equal(a.Tasks, b.Tasks) && slices.Equal(a.After, b.After)
}

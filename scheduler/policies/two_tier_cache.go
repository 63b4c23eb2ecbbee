package policies

import (
	"cmp"
	"maps"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// planCache caches what the current plan was built from: nodes, attempts and waiting
// work. sync compares it with the State where the State's log names a change or a
// cached time has passed, and changes the plan only where they differ.
type planCache struct {
	isValid         bool // the plan contains exactly what is cached here
	state           *scheduler.State
	workSeen        uint64 // State.ChangePosition of the last comparison
	nodeChangesSeen uint64 // State.NodeChangeCount of the last comparison of nodes
	versionSeen     uint64 // State.LatestNodeVersion of the last comparison of attempts
	nodes           []cachedNode
	dueNodes        []scheduler.NodeID // to be checked again in the next cycle
	expiries        []nodeExpiry       // a min-heap
	nodesToCheck    []scheduler.NodeID // scratch
	owners          map[scheduler.ProjectID]*cachedOwner
	generation      uint64

	ownerExpiry      map[scheduler.ProjectID]scheduler.Time // owners whose description expires
	withoutGuarantee map[scheduler.ProjectID]*cachedOwner
	validUntil       scheduler.Time        // of the description at hand
	dirtyOwners      []scheduler.ProjectID // scratch

	project   backfill.Project // scratch, including the slices of its requests
	tasks     []int32
	amounts   []int64
	kinds     []scheduler.ReservationKind
	occupants []occupancy
}

type cachedNode struct {
	capacity    scheduler.Resources
	disks       []scheduler.Disk
	levels      scheduler.LevelSet
	schedulable bool
	occupants   []occupancy // in order of placement

	version    uint64         // of the node at the last comparison
	validUntil scheduler.Time // occupants are valid until then, or until version changes
}

// nodeExpiry is when a node's occupants expire. It is stale once the node was
// checked again.
type nodeExpiry struct {
	until scheduler.Time
	node  scheduler.NodeID
}

// occupancy is an attempt, what it is assumed to occupy and until when.
type occupancy struct {
	id                     scheduler.AttemptID
	seq                    uint64
	run                    int32
	disk, fromDisk         int16
	node, from             scheduler.NodeID
	end                    scheduler.Time
	occupied, fromOccupied scheduler.Occupancy
}

// cachedOwner is a project, or a single job, with waiting work.
type cachedOwner struct {
	project    backfill.Project
	kinds      []scheduler.ReservationKind // of its jobs
	generation uint64
	inPlanner  bool // the planner has it
	guaranteed bool
}

func (k *planCache) reset() {
	k.isValid, k.nodes, k.dueNodes, k.expiries, k.owners = false, k.nodes[:0], k.dueNodes[:0], k.expiries[:0], map[scheduler.ProjectID]*cachedOwner{}
	k.ownerExpiry, k.withoutGuarantee = map[scheduler.ProjectID]scheduler.Time{}, map[scheduler.ProjectID]*cachedOwner{}
}

func (k *planCache) addNode(n *scheduler.Node) {
	k.nodes = append(k.nodes, cachedNode{capacity: n.Spec.Capacity, disks: slices.Clone(n.Spec.Disks), levels: n.Spec.Levels, schedulable: n.Schedulable()})
}

// hasSameNodes reports whether the plan was made for the State's nodes. O(1) if no
// node changed.
func (k *planCache) hasSameNodes(s *scheduler.State) bool {
	nodes := s.Nodes()
	if len(nodes) != len(k.nodes) {
		return false
	}
	if k.nodeChangesSeen == s.NodeChangeCount() {
		return true
	}
	k.nodeChangesSeen = s.NodeChangeCount()
	for i, n := range nodes {
		o := &k.nodes[i]
		if o.capacity != n.Spec.Capacity || o.levels != n.Spec.Levels || o.schedulable != n.Schedulable() || !slices.Equal(o.disks, n.Spec.Disks) {
			return false
		}
	}
	return true
}

// sync synchronises the cached plan with the State. It returns false if there is
// none or they differ by more than work that arrived, started or ended: then the
// plan must be rebuilt. O(changes); O(nodes + attempts + waiting tasks) if tenants
// have caps or the log of changes has wrapped.
func (f *reservingPolicy) sync(s *scheduler.State, now scheduler.Time) bool {
	k := &f.cache
	if !k.isValid || k.state != s || !k.hasSameNodes(s) || f.hasBounds != hasBoundedJob(s) {
		return false
	}
	f.beginRound()
	k.isValid = false
	since := k.workSeen
	k.workSeen = s.ChangePosition()
	f.planner.Profile().Forget(now)
	f.syncOccupancy(s, now)
	if s.HasCaps() || !f.syncChangedOwners(s, since, now) {
		f.waitingOwners = f.waitingOwners[:0]
		f.newOwners = f.newOwners[:0]
		f.syncOwners(s, now)
		if f.cannotCache || !f.matchesPlan(s) {
			return false
		}
	} else if f.cannotCache || !f.dirtyOwnersMatchPlan(s) {
		return false
	}
	f.planner.DrainChanged()
	return true
}

// syncOccupancy synchronises the profile with the attempts on nodes that changed or
// whose occupants expired.
func (f *reservingPolicy) syncOccupancy(s *scheduler.State, now scheduler.Time) {
	k := &f.cache
	k.nodesToCheck, k.dueNodes = append(k.nodesToCheck[:0], k.dueNodes...), k.dueNodes[:0]
	if !s.NodesChangedSince(k.versionSeen, func(id scheduler.NodeID) { k.nodesToCheck = append(k.nodesToCheck, id) }) {
		k.nodesToCheck = k.nodesToCheck[:0]
		for id := range k.nodes {
			k.nodesToCheck = append(k.nodesToCheck, scheduler.NodeID(id))
		}
	}
	k.versionSeen = s.LatestNodeVersion()
	for len(k.expiries) > 0 && (now >= k.expiries[0].until || k.isStale(k.expiries[0])) {
		k.nodesToCheck = append(k.nodesToCheck, k.popExpiry().node)
	}
	slices.Sort(k.nodesToCheck)
	for _, id := range slices.Compact(k.nodesToCheck) {
		o := &k.nodes[id]
		v := s.NodeVersion(id)
		if o.version == v && now < o.validUntil {
			continue
		}
		was := o.validUntil
		f.syncNodeOccupancy(s, id, o, now)
		o.version = v
		if o.validUntil <= now {
			k.dueNodes = append(k.dueNodes, id)
		} else if o.validUntil < scheduler.Never && o.validUntil != was {
			k.pushExpiry(o.validUntil, id)
		}
	}
	for len(k.expiries) > 0 && k.isStale(k.expiries[0]) {
		k.popExpiry()
	}
	if len(k.expiries) > 0 {
		f.wakeAt(k.expiries[0].until, now)
	}
}

// isStale reports whether a node was checked again since an expiry was pushed.
func (k *planCache) isStale(p nodeExpiry) bool { return k.nodes[p.node].validUntil != p.until }

// pushExpiry adds when a node's occupants expire. O(log nodes).
func (k *planCache) pushExpiry(until scheduler.Time, id scheduler.NodeID) {
	if len(k.expiries) > 4*len(k.nodes)+64 { // most are stale
		k.expiries = slices.DeleteFunc(k.expiries, k.isStale)
		slices.SortFunc(k.expiries, func(a, b nodeExpiry) int { return cmp.Or(cmp.Compare(a.until, b.until), cmp.Compare(a.node, b.node)) })
		k.expiries = slices.Compact(k.expiries)
	}
	k.expiries = append(k.expiries, nodeExpiry{until, id})
	for i := len(k.expiries) - 1; i > 0 && k.expiries[(i-1)/2].until > k.expiries[i].until; i = (i - 1) / 2 {
		k.expiries[(i-1)/2], k.expiries[i] = k.expiries[i], k.expiries[(i-1)/2]
	}
}

// popExpiry removes and returns the earliest expiry. O(log nodes).
func (k *planCache) popExpiry() nodeExpiry {
	first, last := k.expiries[0], len(k.expiries)-1
	k.expiries[0] = k.expiries[last]
	k.expiries = k.expiries[:last]
	for i := 0; ; {
		least := i
		for c := 2*i + 1; c <= 2*i+2 && c < last; c++ {
			if k.expiries[c].until < k.expiries[least].until {
				least = c
			}
		}
		if least == i {
			return first
		}
		k.expiries[i], k.expiries[least] = k.expiries[least], k.expiries[i]
		i = least
	}
}

// syncNodeOccupancy is syncOccupancy for one node. Its occupants are then valid
// until the first should have ended.
func (f *reservingPolicy) syncNodeOccupancy(s *scheduler.State, id scheduler.NodeID, o *cachedNode, now scheduler.Time) {
	k := &f.cache
	k.occupants = k.occupants[:0]
	same := true
	o.validUntil = scheduler.Never
	for a := range s.AttemptsOn(id) {
		late := f.boundEnd(s, a) < now
		f.hasOverrun = f.hasOverrun || late
		x := occupancy{a.ID, a.Seq, a.Run, a.Disk, a.FromDisk, a.Node, a.From, f.expectedEnd(s, a, now), a.Occupied, a.FromOccupied}
		f.wakeAt(x.end, now)
		if o.validUntil = min(o.validUntil, x.end); late {
			o.validUntil = now
		}
		same = same && len(k.occupants) < len(o.occupants) && o.occupants[len(k.occupants)] == x
		k.occupants = append(k.occupants, x)
	}
	if !same || len(o.occupants) != len(k.occupants) {
		f.replaceOccupants(o.occupants, k.occupants, now)
		o.occupants = append(o.occupants[:0], k.occupants...)
	}
}

// replaceOccupants replaces the attempts was by here in the profile. Both are in
// order of placement.
func (f *reservingPolicy) replaceOccupants(was, here []occupancy, now scheduler.Time) {
	for i, j := 0, 0; i < len(was) || j < len(here); {
		order := 0
		switch {
		case i == len(was):
			order = 1
		case j == len(here):
			order = -1
		default:
			order = cmp.Compare(was[i].seq, here[j].seq)
		}
		if order == 0 && was[i] == here[j] {
			i, j = i+1, j+1
			continue
		}
		if order <= 0 {
			f.applyOccupancy(&was[i], now, false)
			i++
		}
		if order >= 0 {
			f.applyOccupancy(&here[j], now, true)
			j++
		}
	}
}

// applyOccupancy takes what an attempt occupies from the profile from now on, or
// releases it. An attempt that migrates occupies both nodes.
func (f *reservingPolicy) applyOccupancy(o *occupancy, now scheduler.Time, take bool) {
	if o.end <= now {
		return
	}
	prof := f.planner.Profile()
	change := func(node scheduler.NodeID, disk int16, h *scheduler.Occupancy) {
		need := backfill.NodeNeed(h.Resources, h.Disk)
		if take {
			prof.Reserve(int32(node), disk, now, o.end, &need)
			return
		}
		prof.Release(int32(node), disk, now, o.end, &need)
		f.planner.MarkFreed(int32(node))
	}
	change(o.node, o.disk, &o.occupied)
	if o.from != scheduler.NoNode {
		change(o.from, o.fromDisk, &o.fromOccupied)
	}
}

// syncOwners synchronises the planner with all projects with waiting work.
func (f *reservingPolicy) syncOwners(s *scheduler.State, now scheduler.Time) {
	k := &f.cache
	k.generation++
	clear(k.ownerExpiry)
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		id := f.ownerOf(j)
		if o := k.owners[id]; o != nil && o.generation == k.generation {
			continue
		}
		if f.syncOwner(s, id, j, now) {
			f.waitingOwners = append(f.waitingOwners, id)
		}
	}
	if len(k.owners) == len(f.waitingOwners) {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(k.owners)) {
		if o := k.owners[id]; o.generation != k.generation {
			f.dropOwner(s, id)
		}
	}
}

// syncOwner synchronises the planner with the waiting work of one project, of which
// j is an active job. It reports whether there is any.
func (f *reservingPolicy) syncOwner(s *scheduler.State, id scheduler.ProjectID, j *scheduler.Job, now scheduler.Time) bool {
	k := &f.cache
	k.validUntil = scheduler.Never
	f.buildProject(s, id, j, now, &k.project)
	if k.validUntil < scheduler.Never { // also if none of it may be planned now
		k.ownerExpiry[id] = k.validUntil
	} else {
		delete(k.ownerExpiry, id)
	}
	if len(k.project.Requests) == 0 {
		return false
	}
	o := k.owners[id]
	if o == nil {
		o = &cachedOwner{}
		k.owners[id] = o
	}
	o.generation = k.generation
	switch {
	case !o.inPlanner || !slices.Equal(o.kinds, k.kinds) || !f.shrinkTo(s, &o.project, now):
		f.restoreOwner(s, id, o)
	case !o.guaranteed:
		f.planner.WithdrawGuarantee(id) // the planner guaranteed it, but the decision did not
	default:
		return true
	}
	if !o.guaranteed {
		k.withoutGuarantee[id] = o
	}
	f.newOwners = append(f.newOwners, id)
	return true
}

// shrinkTo reports whether a project's waiting work equals the planned work was, or
// is a part of it without dependencies. It then removes the rest from the plan and
// updates was.
func (f *reservingPolicy) shrinkTo(s *scheduler.State, was *backfill.Project, now scheduler.Time) bool {
	waiting := &f.cache.project
	if equalProjects(was, waiting) {
		return true
	}
	if !isPartOfProject(waiting, was) {
		return false
	}
	next := 0
	for i := range was.Requests {
		r := &was.Requests[i]
		var left []int32 // of its tasks
		if next < len(waiting.Requests) && waiting.Requests[next].Job == r.Job && waiting.Requests[next].Stage == r.Stage {
			left = waiting.Requests[next].Tasks
			next++
		}
		for _, task := range r.Tasks {
			if len(left) > 0 && left[0] == task {
				left = left[1:]
				continue
			}
			k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}
			f.planner.End(k, now)
			f.forgetIfMissing(s, k)
		}
	}
	*was = cloneProject(waiting)
	return true
}

// isPartOfProject reports whether a project's work is a part of another's in which
// no stage depends on another.
func isPartOfProject(part, whole *backfill.Project) bool {
	if part.Submitted != whole.Submitted || part.HighPriority != whole.HighPriority {
		return false
	}
	next := 0
	for i := range whole.Requests {
		w := &whole.Requests[i]
		if len(w.After) > 0 || w.NotBefore != 0 || w.MaxParallel != 0 {
			return false
		}
		if next == len(part.Requests) || part.Requests[next].Job != w.Job || part.Requests[next].Stage != w.Stage {
			continue
		}
		p := &part.Requests[next]
		if !equalExceptTasks(p, w) || !isSubset(p.Tasks, w.Tasks) {
			return false
		}
		next++
	}
	return next == len(part.Requests)
}

// isSubset reports whether all of some are in others. Both are sorted.
func isSubset(some, others []int32) bool {
	for _, task := range others {
		if len(some) > 0 && some[0] == task {
			some = some[1:]
		}
	}
	return len(some) == 0
}

// dropOwner removes a project without waiting work.
func (f *reservingPolicy) dropOwner(s *scheduler.State, id scheduler.ProjectID) {
	k := &f.cache
	f.forgetMissing(s, k.owners[id])
	f.planner.Remove(id)
	delete(k.owners, id)
	delete(k.withoutGuarantee, id)
}

// syncChangedOwners is syncOwners for the projects that changed since a position in
// the State's log, have no guarantee, or have expired. It returns false if the log
// has wrapped.
func (f *reservingPolicy) syncChangedOwners(s *scheduler.State, since uint64, now scheduler.Time) bool {
	k := &f.cache
	k.dirtyOwners = k.dirtyOwners[:0]
	all := s.ChangedSince(since, func(w scheduler.ChangedOwner) {
		switch {
		case f.projects && w.Project != 0:
			k.dirtyOwners = append(k.dirtyOwners, w.Project)
		case w.Job != 0:
			k.dirtyOwners = append(k.dirtyOwners, scheduler.ProjectID(w.Job)|1<<63)
		}
	})
	if !all {
		return false
	}
	for id := range k.withoutGuarantee { // sorted below
		k.dirtyOwners = append(k.dirtyOwners, id)
	}
	for id, until := range k.ownerExpiry {
		if now >= until {
			k.dirtyOwners = append(k.dirtyOwners, id)
		}
	}
	slices.Sort(k.dirtyOwners)
	k.dirtyOwners = slices.Compact(k.dirtyOwners)
	slices.SortFunc(k.dirtyOwners, func(a, b scheduler.ProjectID) int {
		x, y := f.firstActiveJob(s, a), f.firstActiveJob(s, b)
		switch {
		case x == nil || y == nil:
			return cmp.Or(cmp.Compare(boolToInt(x == nil), boolToInt(y == nil)), cmp.Compare(a, b))
		default:
			return cmp.Or(cmp.Compare(x.Spec.Submitted, y.Spec.Submitted), cmp.Compare(x.Spec.ID, y.Spec.ID))
		}
	})
	k.generation++
	for _, id := range k.dirtyOwners {
		j := f.firstActiveJob(s, id)
		if j == nil {
			delete(k.ownerExpiry, id)
		}
		if (j == nil || !f.syncOwner(s, id, j, now)) && k.owners[id] != nil {
			f.dropOwner(s, id)
		}
	}
	return true
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// firstActiveJob returns the first active job of a project in order of submission,
// or nil.
func (f *reservingPolicy) firstActiveJob(s *scheduler.State, id scheduler.ProjectID) *scheduler.Job {
	var first *scheduler.Job
	look := func(j *scheduler.Job) {
		if j != nil && j.Phase == scheduler.JobActive && (first == nil || j.Spec.Submitted < first.Spec.Submitted) {
			first = j
		}
	}
	if id>>63 == 1 {
		look(s.Job(scheduler.JobID(id &^ (1 << 63))))
		return first
	}
	if p := s.Project(id); p != nil {
		for _, j := range p.Jobs { // ordered by id
			look(s.Job(j))
		}
	}
	return first
}

// listWaitingOwners returns the projects with waiting work, ordered by their first
// active jobs.
func (f *reservingPolicy) listWaitingOwners(s *scheduler.State) []scheduler.ProjectID {
	k := &f.cache
	f.waitingOwners = f.waitingOwners[:0]
	k.generation++
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		id := f.ownerOf(j)
		if o := k.owners[id]; o != nil && o.generation != k.generation {
			o.generation = k.generation
			f.waitingOwners = append(f.waitingOwners, id)
		}
	}
	return f.waitingOwners
}

// forgetMissing forgets the reservations of a project's tasks that the State no
// longer has.
func (f *reservingPolicy) forgetMissing(s *scheduler.State, o *cachedOwner) {
	for i := range o.project.Requests {
		r := &o.project.Requests[i]
		for _, task := range r.Tasks {
			f.forgetIfMissing(s, backfill.Key{Job: r.Job, Stage: r.Stage, Task: task})
		}
	}
}

func (f *reservingPolicy) forgetIfMissing(s *scheduler.State, k backfill.Key) {
	if id, ok := f.reservationIDs[k]; ok && s.Reservation(id) == nil {
		delete(f.reservationIDs, k)
	}
}

// restoreOwner restores one project in the planner as it was just described.
func (f *reservingPolicy) restoreOwner(s *scheduler.State, id scheduler.ProjectID, o *cachedOwner) {
	if o.inPlanner {
		f.forgetMissing(s, o)
		f.planner.Remove(id)
	}
	o.inPlanner, o.kinds, o.project = true, append(o.kinds[:0], f.cache.kinds...), cloneProject(&f.cache.project)
	guarantee, guaranteed := s.PolicyState(stateKey(scheduler.GuaranteeState, id))
	latest, _ := s.PolicyState(stateKey(scheduler.LatestDepartureState, id))
	if o.guaranteed = guaranteed; guaranteed {
		delete(f.cache.withoutGuarantee, id)
	}
	err := f.planner.Restore(o.project, backfill.Guarantee{Departure: guarantee.At, Latest: latest.At}, guaranteed,
		func(k backfill.Key) (spot backfill.Spot, started, pinned, plannedBefore bool) {
			g := s.Stage(scheduler.StageID{Job: k.Job, Stage: k.Stage})
			if a := suspendedAttempt(s, g, k.Task); a != nil {
				pinned = true
				spot = backfill.Spot{Bin: int32(a.Node), Disk: a.Disk}
			}
			if r := f.reservation(s, k); r != nil && (!pinned || (int32(r.Node) == spot.Bin && r.OnDisk == spot.Disk)) {
				return backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}, false, pinned, true
			}
			return spot, false, pinned, false
		})
	if err != nil {
		panic("policies: the planner refused an accepted job: " + err.Error())
	}
}

// dirtyOwnersMatchPlan is matchesPlan for the projects of syncChangedOwners.
func (f *reservingPolicy) dirtyOwnersMatchPlan(s *scheduler.State) bool {
	f.nextID = lastID(s)
	for _, id := range f.cache.dirtyOwners {
		if !f.ownerMatchesPlan(s, id) {
			return false
		}
	}
	return true
}

// ownerMatchesPlan reports whether the State's reservations for a project are the
// plan's.
func (f *reservingPolicy) ownerMatchesPlan(s *scheduler.State, id scheduler.ProjectID) bool {
	n, all := 0, true
	look := func(id scheduler.JobID) {
		if j := s.Job(id); j != nil {
			n += len(j.Reservations())
			for _, r := range j.Reservations() {
				all = all && f.matchesReservation(r)
			}
		}
	}
	if id>>63 == 1 {
		look(scheduler.JobID(id &^ (1 << 63)))
	} else if p := s.Project(id); p != nil {
		for _, j := range p.Jobs {
			look(j)
		}
	}
	return all && n == f.planner.NumPlacedOf(id)
}

// matchesReservation reports whether a reservation is the plan's.
func (f *reservingPolicy) matchesReservation(r *scheduler.Reservation) bool {
	k := keyOf(r)
	spot, end, ok := f.planner.SpotOf(k)
	return isPlanned(r) && ok && f.reservationIDs[k] == r.ID && spot == (backfill.Spot{Bin: int32(r.Node), Disk: r.OnDisk, At: r.Start}) && end == r.End
}

// matchesPlan reports whether the State's reservations are the plan's.
func (f *reservingPolicy) matchesPlan(s *scheduler.State) bool {
	n := 0
	f.nextID = lastID(s)
	for _, r := range s.Reservations() {
		if !isPlanned(r) {
			continue
		}
		if n++; !f.matchesReservation(r) {
			return false
		}
	}
	if len(f.reservationIDs) != n { // some are of jobs that ended
		maps.DeleteFunc(f.reservationIDs, func(_ backfill.Key, id scheduler.ReservationID) bool { return s.Reservation(id) == nil })
	}
	return f.planner.Len()-f.planner.NumUnplaced() == n
}

func equalProjects(a, b *backfill.Project) bool {
	return a.Submitted == b.Submitted && a.HighPriority == b.HighPriority && slices.EqualFunc(a.Requests, b.Requests, equalRequests)
}

func equalRequests(a, b backfill.Request) bool {
	return equalExceptTasks(&a, &b) && slices.Equal(a.Tasks, b.Tasks)
}

func equalExceptTasks(a, b *backfill.Request) bool {
	return a.Job == b.Job && a.Stage == b.Stage && a.Bound == b.Bound && a.SoftBound == b.SoftBound && a.NotBefore == b.NotBefore && a.MaxParallel == b.MaxParallel &&
		a.Occupied == nil && b.Occupied == nil && equalNeeds(&a.Need, &b.Need) && slices.Equal(a.After, b.After)
}

func equalNeeds(a, b *backfill.Need) bool {
	return a.IO == b.IO && a.Space == b.Space && slices.Equal(a.Base, b.Base)
}

// cloneProject returns a deep copy of a project whose slices are scratch space.
func cloneProject(p *backfill.Project) backfill.Project {
	out := *p
	out.Requests = slices.Clone(p.Requests)
	for i := range out.Requests {
		r := &out.Requests[i]
		r.Tasks, r.Need.Base, r.After = slices.Clone(r.Tasks), slices.Clone(r.Need.Base), slices.Clone(r.After)
	}
	return out
}

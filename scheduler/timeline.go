package scheduler

import (
	"math"
	"slices"

	"github.com/drover-run/drover/scheduler/timeline"
)

// Assumptions are what a policy assumes about the future of attempts. They must be comparable: the
// State has one Timeline, for the assumptions of the last call.
type Assumptions interface {
	// ClaimOf returns what an attempt is assumed to occupy from now on. The result may depend only
	// on its node, the attempts there, their jobs, and the time.
	ClaimOf(s *State, a *Attempt, now Time) Claim
	// ChargeTenants reports whether Timeline.Accounts is needed.
	ChargeTenants() bool
}

// Claim is what an attempt is assumed to occupy on its node from now until End.
type Claim struct {
	Occupied Occupancy
	// End is at or before now for an attempt that is assumed to occupy nothing. SourceEnd is until
	// when a migrating attempt also occupies its source node.
	End, SourceEnd Time
	// ValidUntil is when ClaimOf must be called again if nothing happens to the attempt.
	ValidUntil Time
	Charged    bool // counts against the account of its tenant
	Overran    bool // is past its bound
}

// Timeline is the index of future free capacity: on each node, and of each tenant's account. It
// contains what attempts are assumed to occupy, and the reservations for a node that are guarantees
// or plan the head of the queue. A node is fully taken during its Windows. The same events update
// it as update the index of present free capacity, and Rollback restores it.
//
// A policy may try reservations in Nodes and Accounts while it plans, and must take them back
// before it applies anything to the State.
type Timeline struct {
	// Nodes has a bin for each node. Bins of nodes that are not Plannable are closed.
	Nodes *timeline.Profile
	// Accounts has a bin for each tenant with CPU, memory and I/O: what the reservations of tasks, and the
	// Charged attempts, take of its capacity. The policy sets the capacities. nil unless ChargeTenants.
	Accounts *timeline.Profile
	// Caps has a bin for each tenant with a cap on its total, with the cap as capacity: what the reservations of
	// tasks, and all claims, below the tenant take of it. nil unless ChargeTenants and some tenant has a cap.
	Caps *timeline.Profile

	assumptions  Assumptions
	now          Time
	nodeChanges  uint64     // Cluster.ChangeCount when it was made
	treeChanges  uint64     // TenantTree.changes then
	capBins      [][]int32  // see CapsOf
	capTenants   []TenantID // see CapTenants
	claims       []nodeClaims
	reserved     map[ReservationID]interval
	overran      int  // claims that are past their bound
	undoing      bool // a try is being rolled back
	freeClock    uint64
	freedAt      []uint64       // by node: freeClock at the last release
	collected    [2][3]interval // to take and to return; of nodes, accounts and caps: see collect
	scratch      []attemptClaim
	stale        []NodeID // scratch of sync
	slots        []int32  // scratch of prefetch
	prefetchSink int32
	base         [NumResources]int64 // scratch
}

// nodeClaims are the claims of the attempts on a node, in order of placement.
type nodeClaims struct {
	version    uint64 // of the node at the last comparison
	validUntil Time
	list       []attemptClaim
}

// attemptClaim is the claim of one attempt, on its node or on the source of its migration.
type attemptClaim struct {
	seq     uint64 // twice the attempt's Seq, plus one on the source of its migration
	overran bool
	interval
}

// interval is an occupied part of a node, of a tenant's account and of the caps above a tenant; NoTenant: of none.
type interval struct {
	node       NodeID
	disk       int16
	account    TenantID
	capped     TenantID
	start, end Time
	occupied   Occupancy
}

// Timeline returns the index of future free capacity under some assumptions. O(nodes), plus O(log n) for each change on
// a node; O(attempts + reservations) if assumptions, nodes or caps changed since the last call, or time went back.
func (s *State) Timeline(a Assumptions, now Time) *Timeline {
	t := s.timeline
	if t == nil || t.assumptions != a || now < t.now || t.nodeChanges != s.cluster.changeCount || t.hasOtherCaps(s) {
		t = newTimeline(s, a, now)
		s.timeline = t
	}
	t.sync(s, now)
	return t
}

func newTimeline(s *State, a Assumptions, now Time) *Timeline {
	t := &Timeline{Nodes: &timeline.Profile{}, assumptions: a, now: now, nodeChanges: s.cluster.changeCount, reserved: map[ReservationID]interval{}, freeClock: 1}
	if a.ChargeTenants() {
		t.Accounts = &timeline.Profile{}
	}
	all := len(s.cluster.nodes)
	t.Nodes.Grow(all)
	t.freedAt, t.claims = make([]uint64, 0, all), make([]nodeClaims, all)
	for _, n := range s.cluster.nodes {
		disks := make([]timeline.Disk, len(n.Spec.Disks))
		for i, d := range n.Spec.Disks {
			disks[i] = timeline.Disk{IO: d.IO, Space: d.Space}
		}
		b := t.Nodes.AddBin([]int64{n.Spec.Capacity[CPU], n.Spec.Capacity[Memory]}, disks...)
		t.Nodes.SetClosed(b, !s.cluster.Plannable(n))
		t.takeWindows(n, b, s.cluster.windows.awayIn(n))
		t.freedAt = append(t.freedAt, t.freeClock)
	}
	t.addAccounts(s)
	t.addCaps(s)
	for _, r := range s.reservations {
		t.addReservation(s, r)
	}
	return t
}

// hasOtherCaps reports whether Caps was built for other tenants or caps than the State has.
func (t *Timeline) hasOtherCaps(s *State) bool {
	return t.Accounts != nil && (t.Caps != nil || s.tree.capped > 0) && t.treeChanges != s.tree.changes
}

func (t *Timeline) addCaps(s *State) {
	t.treeChanges = s.tree.changes
	if t.Accounts == nil || s.tree.capped == 0 {
		return
	}
	t.Caps, t.capBins = &timeline.Profile{}, make([][]int32, len(s.tree.tenants))
	bins := make([]int32, len(s.tree.tenants)) // from 1
	for id, x := range s.tree.tenants {
		if x.Spec.Caps.Total == (Limit{}) {
			continue
		}
		capacity := x.Spec.Caps.Total
		for r, limit := range capacity {
			if limit == 0 {
				capacity[r] = math.MaxInt64 / 2 // unlimited
			}
		}
		bins[id] = t.Caps.AddBin(capacity[:]) + 1
		t.capTenants = append(t.capTenants, x.Spec.ID)
	}
	for id, x := range s.tree.tenants {
		for ; x != nil; x = s.tree.tenant(x.Spec.Parent) {
			if b := bins[x.Spec.ID]; b > 0 {
				t.capBins[id] = append(t.capBins[id], b-1)
			}
		}
	}
}

// CapsOf returns the bins of Caps that a tenant's tasks use, from its own cap upwards. Callers must not change it. O(1).
func (t *Timeline) CapsOf(id TenantID) []int32 {
	if id < 0 || int(id) >= len(t.capBins) {
		return nil
	}
	return t.capBins[id]
}

// CapTenants returns the tenants with a cap on their total, by bin of Caps. Callers must not change it. O(1).
func (t *Timeline) CapTenants() []TenantID { return t.capTenants }

// cappedTenant returns a tenant, or NoTenant if no cap is above it.
func (t *Timeline) cappedTenant(id TenantID) TenantID {
	if len(t.CapsOf(id)) == 0 {
		return NoTenant
	}
	return id
}

// takeWindows takes a whole node from its bin during its windows; from now on if it is away already
// for a window, even one that has yet to begin.
func (t *Timeline) takeWindows(n *Node, b int32, awayIn int) {
	for i, w := range n.Spec.Windows {
		from := max(w.From, t.now)
		if i == awayIn {
			from = t.now
		}
		if from >= w.To {
			continue
		}
		t.Nodes.Change(b, -1, from, w.To, &timeline.Need{Base: []int64{n.Spec.Capacity[CPU], n.Spec.Capacity[Memory]}}, -1)
		for i, d := range n.Spec.Disks {
			t.Nodes.Change(b, int16(i), from, w.To, &timeline.Need{Base: []int64{0, 0}, IO: d.IO, Space: d.Space}, -1)
		}
	}
}

func (t *Timeline) addAccounts(s *State) {
	for t.Accounts != nil && int(t.Accounts.Bins()) < len(s.tree.tenants) {
		t.Accounts.AddBin(make([]int64, NumResources))
	}
}

// sync drops the past and updates the claims on each node that changed or has an expired claim.
func (t *Timeline) sync(s *State, now Time) {
	if now > t.now {
		t.now = now
		for _, p := range [...]*timeline.Profile{t.Nodes, t.Accounts, t.Caps} {
			if p != nil {
				p.Forget(now)
			}
		}
	}
	t.addAccounts(s)
	t.stale = t.stale[:0]
	for id := range t.claims {
		if c := &t.claims[id]; c.version != s.cluster.NodeVersion(NodeID(id)) || c.validUntil <= now {
			t.stale = append(t.stale, NodeID(id))
		}
	}
	for ids := range slices.Chunk(t.stale, nodesAtOnce) {
		t.prefetchSink += t.prefetch(s, ids)
		for _, id := range ids {
			t.syncNode(s, id, &t.claims[id])
		}
	}
	t.flushClaims()
}

const nodesAtOnce = 16 // nodes prefetched at once: the data of about 400 attempts stays in the cache

// prefetch loads what claims depend on: attempts, their details, stages and jobs. ClaimOf would wait for these one
// after the other; here the cache misses overlap. The result only keeps the compiler from dropping the loads.
func (t *Timeline) prefetch(s *State, ids []NodeID) (sum int32) {
	t.slots = t.slots[:0]
	for _, id := range ids {
		t.slots = append(t.slots, s.cluster.nodes[id].attempts...)
	}
	for _, slot := range t.slots {
		sum += s.Attempts().at(slot).stage
	}
	for _, slot := range t.slots {
		sum += s.StageOf(s.Attempts().at(slot)).Job.Ready
	}
	return sum
}

// syncNode updates the timeline to the claims of the attempts on a node.
func (t *Timeline) syncNode(s *State, id NodeID, c *nodeClaims) {
	if v := s.cluster.NodeVersion(id); c.version != v {
		c.version = v
		t.markFreed(id) // an attempt may have come and gone
	}
	c.validUntil = Never
	t.scratch = t.scratch[:0]
	for _, slot := range s.cluster.nodes[id].attempts {
		a := s.Attempts().at(slot)
		x := t.assumptions.ClaimOf(s, a, t.now)
		c.validUntil = min(c.validUntil, x.ValidUntil)
		if x.End <= t.now && !x.Overran {
			continue
		}
		y := attemptClaim{2 * a.Seq, x.Overran, t.newInterval(a.Node, a.Disk, t.now, x.End, x.Occupied)}
		if y.capped = t.cappedTenant(a.Tenant); x.Charged {
			y.account = a.Tenant
		}
		t.scratch = append(t.scratch, y)
		if a.From != NoNode {
			t.scratch = append(t.scratch, attemptClaim{2*a.Seq + 1, false, t.newInterval(a.From, a.FromDisk, t.now, x.SourceEnd, a.FromOccupied)})
		}
	}
	t.changeOthers(c.list, t.scratch, 1)
	t.changeOthers(t.scratch, c.list, -1)
	c.list = append(c.list[:0], t.scratch...)
}

// changeOthers takes from the timeline the claims of a list that another list lacks (sign -1), or returns
// them (sign 1), at the latest when flushClaims is called. Both lists are in order of placement.
func (t *Timeline) changeOthers(list, other []attemptClaim, sign int64) {
	for i := range list {
		c := &list[i]
		for len(other) > 0 && other[0].seq < c.seq {
			other = other[1:]
		}
		if len(other) == 0 || !c.equals(&other[0]) {
			if c.overran {
				t.overran -= int(sign)
			}
			t.collect(&c.interval, sign)
		}
	}
}

// equals reports whether two claims are the same from now on.
func (c *attemptClaim) equals(o *attemptClaim) bool {
	return c.seq == o.seq && c.overran == o.overran && c.end == o.end && c.node == o.node && c.disk == o.disk && c.account == o.account && c.capped == o.capped && c.occupied == o.occupied
}

// collect merges an interval of a claim with others that differ only in the amount, to change the timeline once:
// thousands of claims may expire at once, and each would split and merge the same steps of an account. All start now.
func (t *Timeline) collect(v *interval, sign int64) {
	if t.now >= v.end {
		return
	}
	sums := &t.collected[(sign+1)/2]
	t.collectIn(&sums[0], &interval{v.node, v.disk, NoTenant, NoTenant, t.now, v.end, v.occupied}, sign)
	if v.account != NoTenant {
		t.collectIn(&sums[1], &interval{NoNode, -1, v.account, NoTenant, t.now, v.end, v.occupied}, sign)
	}
	if v.capped != NoTenant {
		t.collectIn(&sums[2], &interval{NoNode, -1, NoTenant, v.capped, t.now, v.end, v.occupied}, sign)
	}
}

func (t *Timeline) collectIn(sum, v *interval, sign int64) {
	if sum.node == v.node && sum.disk == v.disk && sum.account == v.account && sum.capped == v.capped && sum.end == v.end {
		sum.occupied.Resources, sum.occupied.Disk = sum.occupied.Resources.Add(v.occupied.Resources), sum.occupied.Disk+v.occupied.Disk
		return
	}
	t.change(sum, sign)
	*sum = *v
}

// flushClaims applies the collected intervals to the timeline.
func (t *Timeline) flushClaims() {
	for i := range t.collected {
		for k := range t.collected[i] {
			t.change(&t.collected[i][k], int64(2*i-1))
		}
		t.collected[i] = [3]interval{}
	}
}

// change takes an interval from the timeline from now on (sign -1), or returns it (sign 1).
func (t *Timeline) change(v *interval, sign int64) {
	from := max(v.start, t.now)
	if from >= v.end {
		return
	}
	t.base = v.occupied.Resources
	if v.account != NoTenant {
		t.Accounts.Change(int32(v.account), -1, from, v.end, &timeline.Need{Base: t.base[:]}, sign)
	}
	for _, b := range t.CapsOf(v.capped) {
		t.Caps.Change(b, -1, from, v.end, &timeline.Need{Base: t.base[:]}, sign)
	}
	if v.node == NoNode {
		return
	}
	t.Nodes.Change(int32(v.node), v.disk, from, v.end, &timeline.Need{Base: t.base[:IO], IO: t.base[IO], Space: v.occupied.Disk}, sign)
	if sign > 0 && !t.undoing {
		t.markFreed(v.node)
	}
}

// newInterval returns an interval without an account. The disk may have been removed from the node.
func (t *Timeline) newInterval(n NodeID, disk int16, start, end Time, o Occupancy) interval {
	if disk = min(disk, int16(t.Nodes.Disks(int32(n)))-1); disk < 0 {
		o.Resources[IO], o.Disk = 0, 0
	}
	return interval{n, disk, NoTenant, NoTenant, start, end, o}
}

// setUndoing sets whether releases are those of a try being rolled back.
func (t *Timeline) setUndoing(undoing bool) {
	if t != nil {
		t.undoing = undoing
	}
}

func (t *Timeline) markFreed(id NodeID) {
	t.freeClock++
	t.freedAt[id] = t.freeClock
}

// addReservation adds a reservation if the timeline contains its kind.
func (t *Timeline) addReservation(s *State, r *Reservation) {
	if !t.contains(r) {
		return
	}
	v := t.newInterval(r.Node, r.OnDisk, r.Start, r.End, Occupancy{Resources: r.Demand, Disk: r.Disk})
	if t.Accounts != nil && r.Kind.IsGuarantee() && r.IsOfTask() {
		t.addAccounts(s)
		if j := s.jobs[r.Job]; j != nil {
			v.account, v.capped = s.Reservations().GuaranteeTenant(j), t.cappedTenant(j.Spec.Tenant)
		}
	}
	t.reserved[r.ID] = v
	t.change(&v, -1)
}

// contains reports whether the timeline contains a reservation of its State.
func (t *Timeline) contains(r *Reservation) bool {
	return int(r.Node) < len(t.claims) && (r.Kind.IsGuarantee() || r.Kind == ReserveHead)
}

// ReservedAt returns where the timeline has a reservation of its State, and its need there; ok is
// false if it has none. own is returned instead of an equal need, to save memory. O(1).
func (t *Timeline) ReservedAt(r *Reservation, own timeline.Need) (spot timeline.Spot, need timeline.Need, ok bool) {
	if !t.contains(r) {
		return spot, need, false
	}
	spot = timeline.Spot{Bin: int32(r.Node), Disk: min(r.OnDisk, int16(t.Nodes.Disks(int32(r.Node)))-1), At: r.Start}
	d, space := r.Demand, r.Disk
	if spot.Disk < 0 {
		d[IO], space = 0, 0
	}
	if own.Base[CPU] == d[CPU] && own.Base[Memory] == d[Memory] && own.IO == d[IO] && own.Space == space {
		return spot, own, true
	}
	return spot, NodeNeed(d, space), true
}

func (t *Timeline) dropReservation(id ReservationID) {
	if v, ok := t.reserved[id]; ok {
		t.change(&v, 1)
		delete(t.reserved, id)
	}
}

// NextChange returns when the first claim expires, Never if none does. O(nodes).
func (t *Timeline) NextChange() Time {
	at := Never
	for i := range t.claims {
		at = min(at, t.claims[i].validUntil)
	}
	return at
}

// HasOverrun reports whether an attempt is past its bound. O(1).
func (t *Timeline) HasOverrun() bool { return t.overran > 0 }

// FreeClock returns the number of releases so far, for FreedSince. O(1).
func (t *Timeline) FreeClock() uint64 { return t.freeClock }

// FreedSince yields the nodes where capacity may have been released since the clock had this value. O(nodes).
func (t *Timeline) FreedSince(clock uint64, yield func(NodeID)) {
	for id, at := range t.freedAt {
		if at > clock {
			yield(NodeID(id))
		}
	}
}

// NodeNeed returns the need of a task with this demand and disk space, in bytes, on a node's bin of a timeline.
func NodeNeed(d Resources, space int64) timeline.Need {
	return timeline.Need{Base: []int64{d[CPU], d[Memory]}, IO: d[IO], Space: space}
}

// StageID returns the stage that a reservation is for; for any stage or a project, one that no State has.
func (r *Reservation) StageID() StageID { return StageID{Job: r.Job, Stage: r.Stage} }

// IsOfTask reports whether a reservation is for one task.
func (r *Reservation) IsOfTask() bool { return r.Job != 0 && r.Stage >= 0 && r.Task >= 0 }

// IsPlanOfTask reports whether a reservation plans one task: as a guarantee of its project, or as the queue's head.
func (r *Reservation) IsPlanOfTask() bool {
	return r.IsOfTask() && (r.Kind == ReserveProject || r.Kind == ReserveHead)
}

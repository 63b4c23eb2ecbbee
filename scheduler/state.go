package scheduler

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"strings"
)

// Stamp identifies a version of one State: equal stamps mean that nothing changed in between.
// Compare stamps with ==.
type Stamp struct {
	of      *identity
	changes uint64
	steps   uint64
}

// identity must not have size 0: the addresses of two identities must differ.
type identity struct{ _ byte }

// State is the cluster as the scheduler sees it: facts, and indexes over them. It is updated
// event by event and is not safe for concurrent use. The zero value is not usable: use New.
type State struct {
	index       uint64
	changeCount uint64
	identity    *identity

	nodes       []*Node
	nodeName    map[string]NodeID
	racks       map[string]int32
	total       Resources // capacity of the nodes that are up
	schedulable int32     // number of schedulable nodes

	tenants     []*Tenant
	tenantName  map[string]TenantID
	readyTenant bitset
	capped      int // number of tenants with a cap of their own

	jobs             map[JobID]*Job
	lastJob          *Job   // cache of stageFor
	order            []*Job // by (Submitted, ID); nil for a job that ended
	ready            bitset // ranks in order with ready work
	projects         map[ProjectID]*Project
	stages           []*Stage
	freeStageIndexes []int32

	chunks    [][]Attempt
	freeSlots []int32
	slots     int32
	live      int32
	seq       uint64
	suspended []int32 // slots in suspension order

	reservations  []*Reservation // by id
	pool          []*Reservation // on NoNode, by (Start, ID)
	guarantees    []*Reservation // by (Start, ID)
	unguaranteed  []*Reservation // by (Start, ID)
	policyStates  map[PolicyStateKey]PolicyState
	joblessStates int
	stateBatch    policyStateBatch

	history History

	unplannedReleases   uint64
	changeLog           changeLog
	nodeChangeCount     uint64
	projectReservations int // number of reservations without a job
	undo                journal
	fit                 fitIndex
	timeline            *Timeline // nil until a policy asks for one
	floor               demandFloor
	checker             checker
}

// Project is a project that has not been dropped. Callers outside this package may only read
// it.
type Project struct {
	Spec ProjectSpec
	// Jobs are its submitted jobs that have not ended, by id.
	Jobs []JobID

	stateKinds stateKindSet
}

// HasState reports whether the project as a whole has a policy state of kind k; for
// ViolatedState, with any cause. O(1).
func (p *Project) HasState(k PolicyStateKind) bool { return p.stateKinds.has(k) }

// New returns an empty State.
func New() *State {
	return &State{
		identity: &identity{}, nodeName: map[string]NodeID{}, racks: map[string]int32{}, tenantName: map[string]TenantID{},
		jobs: map[JobID]*Job{}, projects: map[ProjectID]*Project{}, policyStates: map[PolicyStateKey]PolicyState{},
	}
}

// Stamp returns the current stamp. Inside a try that has changed something the stamp is
// unique; Rollback restores the stamp from before. O(1).
func (s *State) Stamp() Stamp {
	if len(s.undo.records) == 0 {
		return Stamp{of: s.identity, changes: s.changeCount}
	}
	return Stamp{s.identity, s.changeCount, s.undo.steps}
}

// ChangeCount returns the number of changes since New. It never decreases, and it grows with
// every change. Tries that are rolled back do not count.
func (s *State) ChangeCount() uint64 { return s.changeCount }

// UnplannedReleases counts the releases of capacity at another time than planned: attempts
// that ended at any time but their bound, or had none, and reservations that were deleted with
// their job or project. Policies compress their schedule when it has grown.
func (s *State) UnplannedReleases() uint64 { return s.unplannedReleases }

// Index returns the log index of the last fact in this State.
func (s *State) Index() uint64 { return s.index }

// SetIndex sets Index. The owner calls it after it has applied facts. It does not count as a
// change.
func (s *State) SetIndex(i uint64) { s.index = i }

// Total returns the capacity of all nodes that are up, draining ones included.
func (s *State) Total() Resources { return s.total }

// SchedulableNodes returns the number of schedulable nodes.
func (s *State) SchedulableNodes() int { return int(s.schedulable) }

// Live returns the number of live attempts.
func (s *State) Live() int { return int(s.live) }

// Nodes returns all nodes by id. The slice belongs to State.
func (s *State) Nodes() []*Node { return s.nodes }

// Node returns a node, or nil.
func (s *State) Node(id NodeID) *Node {
	if id < 0 || int(id) >= len(s.nodes) {
		return nil
	}
	return s.nodes[id]
}

// NodeChangeCount returns the number of changes to the nodes themselves: added, lost, drained,
// updated. It never decreases. O(1).
func (s *State) NodeChangeCount() uint64 { return s.nodeChangeCount }

// NodeByName returns a node, or nil.
func (s *State) NodeByName(name string) *Node {
	if id, ok := s.nodeName[name]; ok {
		return s.nodes[id]
	}
	return nil
}

// Dist returns the number of switches between two nodes (3DSF 6.1): 0 on one node, 1 in one
// rack, 3 with one more level between them, and so on.
func (s *State) Dist(a, b NodeID) int {
	if a == b {
		return 0
	}
	m, n := s.nodes[a], s.nodes[b]
	if m.Rack == n.Rack {
		return 1
	}
	common := 0
	for common < len(m.path) && common < len(n.path) && m.path[common] == n.path[common] {
		common++
	}
	return len(m.path) - common + len(n.path) - common + 1
}

// Tenants returns all tenants by id. The slice belongs to State.
func (s *State) Tenants() []*Tenant { return s.tenants }

// Tenant returns a tenant, or nil.
func (s *State) Tenant(id TenantID) *Tenant {
	if id < 0 || int(id) >= len(s.tenants) {
		return nil
	}
	return s.tenants[id]
}

// TenantByName returns a tenant, or nil.
func (s *State) TenantByName(name string) *Tenant {
	if id, ok := s.tenantName[name]; ok {
		return s.tenants[id]
	}
	return nil
}

// Job returns a job that has not ended, or nil.
func (s *State) Job(id JobID) *Job { return s.jobs[id] }

// Accepted reports whether the deadline of a job is guaranteed: since its submission, or later
// by the policy (AcceptedState). O(1).
func (s *State) Accepted(j *Job) bool {
	return j.Spec.Accepted || (j.Spec.Deadline > 0 && j.stateKinds.has(AcceptedState))
}

// NonPreemptible reports whether tasks of a job are never preempted for a guarantee: the job
// belongs to a project, or its deadline is accepted and not infeasible. O(1).
func (s *State) NonPreemptible(j *Job) bool {
	return j.Spec.Project != 0 || (s.Accepted(j) && !j.stateKinds.has(InfeasibleState))
}

// ReliesOnPrediction reports whether reservation r assumes that the tasks of job j end when
// predicted: j has no runtime bound, its deadline was accepted at submission, and the owner of
// r was submitted no earlier. O(1).
func (s *State) ReliesOnPrediction(r *Reservation, j *Job) bool {
	if !j.Spec.Accepted || j.Spec.Bound > 0 {
		return false
	}
	if r.Project != 0 {
		p := s.projects[r.Project]
		return p != nil && p.Spec.Submitted >= j.Spec.Submitted
	}
	o := s.jobs[r.Job]
	return o != nil && o.Spec.Submitted >= j.Spec.Submitted
}

// Stage returns a stage of a job that has not ended, or nil.
func (s *State) Stage(id StageID) *Stage {
	if j := s.jobs[id.Job]; j != nil && id.Stage >= 0 && int(id.Stage) < len(j.Stages) {
		return j.Stages[id.Stage]
	}
	return nil
}

// stageFor is Stage with a cache of the last job, for Apply and Check, which look up the same
// job several times in a row.
func (s *State) stageFor(id StageID) *Stage {
	j := s.lastJob
	if j == nil || j.Spec.ID != id.Job {
		if j = s.jobs[id.Job]; j == nil {
			return nil
		}
		s.lastJob = j
	}
	if id.Stage >= 0 && int(id.Stage) < len(j.Stages) {
		return j.Stages[id.Stage]
	}
	return nil
}

// StageOf returns the stage of an attempt. O(1).
func (s *State) StageOf(a *Attempt) *Stage { return s.stages[a.stage] }

// JobCount returns the number of jobs that have not ended.
func (s *State) JobCount() int { return len(s.jobs) }

// Jobs yields the jobs that have not ended by (Submitted, ID).
func (s *State) Jobs() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for _, j := range s.order {
			if j != nil && !yield(j) {
				return
			}
		}
	}
}

// NextReady returns the next job with ready work, in order of (Submitted, ID), at or after
// position at, and the position to continue from; nil at the end. The iteration stays correct
// while the caller places tasks. O(1) a step.
func (s *State) NextReady(at int32) (*Job, int32) {
	r := s.ready.next(at)
	if r < 0 {
		return nil, at
	}
	return s.order[r], r + 1
}

// NextReadyOf is NextReady among the jobs of one tenant, without those of the tenants below
// it.
func (s *State) NextReadyOf(t TenantID, at int32) (*Job, int32) {
	tn := s.Tenant(t)
	if tn == nil {
		return nil, at
	}
	r := tn.ready.next(at)
	if r < 0 {
		return nil, at
	}
	return tn.order[r], r + 1
}

// NextReadyTenant returns the next tenant with ready work of its own and id >= at, or
// NoTenant. O(1).
func (s *State) NextReadyTenant(at TenantID) TenantID {
	return TenantID(s.readyTenant.next(int32(at)))
}

// Project returns a project, or nil.
func (s *State) Project(id ProjectID) *Project { return s.projects[id] }

// Projects returns the projects by id. It allocates.
func (s *State) Projects() []*Project {
	out := make([]*Project, 0, len(s.projects))
	for _, p := range s.projects {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Project) int { return cmp.Compare(a.Spec.ID, b.Spec.ID) })
	return out
}

// Attempt returns a live attempt, or nil.
func (s *State) Attempt(id AttemptID) *Attempt {
	g := s.Stage(id.StageID())
	if g == nil || id.Index < 0 || id.Index >= g.Spec.Tasks {
		return nil
	}
	for slot := g.active[id.Index] - 1; slot >= 0; {
		a := s.attemptAt(slot)
		if a.ID.Attempt == id.Attempt {
			return a
		}
		slot = a.sibling - 1
	}
	return nil
}

// AttemptsOf yields the live attempts at a task: usually one, two with a speculative attempt.
func (s *State) AttemptsOf(g *Stage, i int32) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for slot := g.active[i] - 1; slot >= 0; {
			a := s.attemptAt(slot)
			slot = a.sibling - 1
			if !yield(a) {
				return
			}
		}
	}
}

// AttemptsOn yields the live attempts on a node in order of placement. A migrating attempt is
// on its target.
func (s *State) AttemptsOn(n NodeID) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for _, slot := range s.nodes[n].attempts {
			if !yield(s.attemptAt(slot)) {
				return
			}
		}
	}
}

// AttemptsIn yields the live attempts of a stage by task.
func (s *State) AttemptsIn(g *Stage) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for i := g.busy.next(0); i >= 0; i = g.busy.next(i + 1) {
			for a := range s.AttemptsOf(g, i) {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// Suspended yields the attempts in phase AttemptSuspended that are not parked, in the order of
// their suspension.
func (s *State) Suspended() iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for _, slot := range s.suspended {
			if a := s.attemptAt(slot); !a.Parked && a.Phase == AttemptSuspended && !yield(a) {
				return
			}
		}
	}
}

// SuspendedCount returns the number of attempts at a suspended level: parked ones and those
// that are changing level or being killed included.
func (s *State) SuspendedCount() int { return len(s.suspended) }

// Reservations returns all reservations by id. The slice belongs to State.
func (s *State) Reservations() []*Reservation { return s.reservations }

// Guarantees returns the reservations that are guarantees (ReservationKind.IsGuarantee) by
// (Start, ID). The slice belongs to State.
func (s *State) Guarantees() []*Reservation { return s.guarantees }

// UnguaranteedReservations returns the reservations that are not guarantees by (Start, ID).
// The slice belongs to State.
func (s *State) UnguaranteedReservations() []*Reservation { return s.unguaranteed }

// ProjectReservationCount returns the number of reservations for a project as a whole, without
// a job. O(1).
func (s *State) ProjectReservationCount() int { return s.projectReservations }

// ReservationsOn returns the reservations on a node, or on the pool for NoNode, by (Start,
// ID). The slice belongs to State.
func (s *State) ReservationsOn(n NodeID) []*Reservation { return *s.reservedOn(n) }

func (s *State) reservedOn(n NodeID) *[]*Reservation {
	if n == NoNode {
		return &s.pool
	}
	return &s.nodes[n].reserved
}

// Reservation returns a reservation, or nil.
func (s *State) Reservation(id ReservationID) *Reservation {
	if i, ok := s.findReservation(id); ok {
		return s.reservations[i]
	}
	return nil
}

// findReservation returns the index of a reservation, or where it would be inserted.
func (s *State) findReservation(id ReservationID) (int, bool) {
	n := len(s.reservations)
	if n > 0 && s.reservations[n-1].ID < id {
		return n, false
	}
	i := sort.Search(n, func(i int) bool { return s.reservations[i].ID >= id })
	return i, i < n && s.reservations[i].ID == id
}

// PolicyState returns the policy state with key k, and whether there is one.
func (s *State) PolicyState(k PolicyStateKey) (PolicyState, bool) {
	n, ok := s.policyStates[k]
	return n, ok
}

// PolicyStates returns all policy states in order of their keys. It allocates.
func (s *State) PolicyStates() []PolicyState {
	out := make([]PolicyState, 0, len(s.policyStates))
	for _, n := range s.policyStates {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b PolicyState) int { return a.PolicyStateKey.Compare(b.PolicyStateKey) })
	return out
}

// History returns the record of the tasks and jobs that ended.
func (s *State) History() *History { return &s.history }

// AttemptSlots returns the slot numbers of the live attempts at a task, -1 for none. A slot
// belongs to one attempt while it lives and is reused afterwards, so that slots can index an
// owner's own table of attempts. O(1).
func (s *State) AttemptSlots(id TaskID) (first, second int32) {
	g := s.stageFor(id.StageID())
	if g == nil || id.Index < 0 || id.Index >= g.Spec.Tasks || g.active[id.Index] == 0 {
		return -1, -1
	}
	first = g.active[id.Index] - 1
	return first, s.attemptAt(first).sibling - 1
}

// PrefetchAttempts loads the memory that ending the attempts in these slots (AttemptSlots)
// will read; it changes nothing. Ending an attempt waits for several dependent cache misses;
// here the misses of many attempts overlap. The result has no meaning: it keeps the compiler
// from dropping the loads. O(slots x attempts on a node / 16).
func (s *State) PrefetchAttempts(slots []int32) int64 {
	sum := int64(0)
	for _, slot := range slots {
		sum += int64(s.attemptAt(slot).Node)
	}
	for _, slot := range slots {
		a := s.attemptAt(slot)
		n := s.nodes[a.Node]
		sum += n.Free[CPU] + int64(len(n.attempts)) + s.fit.free[a.Node][0] + int64(s.stages[a.stage].active[a.ID.Index])
	}
	for _, slot := range slots {
		n := s.nodes[s.attemptAt(slot).Node]
		for i := 0; i < len(n.attempts); i += 16 { // 16 slots a cache line
			sum += int64(n.attempts[i])
		}
		for i := range n.Disks {
			sum += n.Disks[i].FreeIO
		}
	}
	return sum
}

const chunkBits = 12

// attemptAt returns the attempt in a slot. Slots are in chunks, so that pointers to attempts
// stay valid.
func (s *State) attemptAt(slot int32) *Attempt {
	return &s.chunks[slot>>chunkBits][slot&(1<<chunkBits-1)]
}

func (s *State) newSlot() int32 {
	if n := len(s.freeSlots); n > 0 {
		slot := s.freeSlots[n-1]
		s.freeSlots = s.freeSlots[:n-1]
		return slot
	}
	if int(s.slots) == len(s.chunks)<<chunkBits {
		s.chunks = append(s.chunks, make([]Attempt, 1<<chunkBits))
	}
	s.slots++
	return s.slots - 1
}

func (s *State) countChange() { s.changeCount++ }

func splitPath(p string) []string {
	if p == "" {
		return nil
	}
	return strings.Split(strings.TrimPrefix(p, "/"), "/")
}

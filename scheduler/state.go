package scheduler

import (
	"cmp"
	"iter"
	"slices"
	"sort"
	"strings"
)

// Stamp identifies a moment in the life of one State: equal stamps mean that
// nothing changed in between. Comparable with ==.
type Stamp struct {
	of    *identity
	n     uint64
	tried uint64
}

// identity has a size so that two of them have two addresses.
type identity struct{ _ byte }

// State is the cluster as the scheduler sees it: facts and nothing else. It is
// kept up to date event by event; it is not safe for concurrent use. The zero
// value is not usable: use New.
type State struct {
	index    uint64
	changes  uint64
	identity *identity

	nodes    []*Node
	nodeName map[string]NodeID
	racks    map[string]int32
	total    Resources // capacity of the nodes that are up
	taking   int32     // nodes that take work

	tenants     []*Tenant
	tenantName  map[string]TenantID
	readyTenant bitset
	capped      int // tenants with a cap of their own

	jobs     map[JobID]*Job
	recent   *Job   // the one that an action or event asked for last
	order    []*Job // by (Submitted, ID); nil where a job left
	ready    bitset // ranks in order with ready work
	projects map[ProjectID]*Project
	stages   []*Stage
	freeRefs []int32

	chunks    [][]Attempt
	freeSlots []int32
	slots     int32
	live      int32
	seq       uint64
	suspended []int32 // slots in suspension order

	reservations []*Reservation // by id
	pool         []*Reservation // those on NoNode, by (Start, ID)
	promises     []*Reservation // those that are promises, by (Start, ID)
	held         []*Reservation // those that are not, by (Start, ID)
	notes        map[NoteKey]Note
	looseNotes   int
	batch        noteBatch

	history History

	holes       uint64 // see Holes
	work        workLog
	nodeChanges uint64
	jobless     int // reservations that are for no job
	undo        journal
	fit         fitIndex
	floor       floor
	checker     checker
}

// Project is a project that was not dropped. Read only outside.
type Project struct {
	Spec ProjectSpec
	// Jobs are those submitted and not ended, in order of id.
	Jobs []JobID

	marks marks
}

// Noted tells whether there is a note of that kind on the project as a whole, or
// of kind NoteBroken with any cause. O(1).
func (p *Project) Noted(k NoteKind) bool { return p.marks.has(k) }

// New makes an empty State.
func New() *State {
	return &State{
		identity: &identity{}, nodeName: map[string]NodeID{}, racks: map[string]int32{}, tenantName: map[string]TenantID{},
		jobs: map[JobID]*Job{}, projects: map[ProjectID]*Project{}, notes: map[NoteKey]Note{},
	}
}

// Stamp gives the present moment. Inside a try in which something was done it is
// one of its own, like no other; rolled back, the one before is back. O(1).
func (s *State) Stamp() Stamp {
	if len(s.undo.recs) == 0 {
		return Stamp{of: s.identity, n: s.changes}
	}
	return Stamp{s.identity, s.changes, s.undo.tried}
}

// Changes counts the changes since New: it only grows, and it stays where it
// is exactly when nothing changed. Tries that are rolled back do not count.
func (s *State) Changes() uint64 { return s.changes }

// Holes counts what left room at another time than planned: attempts that ended
// at any instant but their bound, or had none, and reservations that went with
// their job or project. A plan that gives holes forward does so when it grew.
func (s *State) Holes() uint64 { return s.holes }

// Index is the index in the owner's log of the last fact in this State.
func (s *State) Index() uint64 { return s.index }

// SetIndex is called by the owner after it brought facts in. It is no change.
func (s *State) SetIndex(i uint64) { s.index = i }

// Total is the capacity of all nodes that are up, draining ones included.
func (s *State) Total() Resources { return s.total }

// TakingNodes is the number of nodes that take new work.
func (s *State) TakingNodes() int { return int(s.taking) }

// Live is the number of live attempts.
func (s *State) Live() int { return int(s.live) }

// Nodes lists all nodes by id. The slice belongs to State.
func (s *State) Nodes() []*Node { return s.nodes }

// Node finds a node, or nil.
func (s *State) Node(id NodeID) *Node {
	if id < 0 || int(id) >= len(s.nodes) {
		return nil
	}
	return s.nodes[id]
}

// NodeChanges counts what happened to nodes themselves: they came, went, were
// drained, or are otherwise than before. It only grows. O(1).
func (s *State) NodeChanges() uint64 { return s.nodeChanges }

// NodeByName finds a node, or nil.
func (s *State) NodeByName(name string) *Node {
	if id, ok := s.nodeName[name]; ok {
		return s.nodes[id]
	}
	return nil
}

// Dist counts the switches between two nodes (3DSF 6.1): 0 on one node, 1 in
// one rack, 3 with one more level between, and so on.
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

// Tenants lists all tenants by id. The slice belongs to State.
func (s *State) Tenants() []*Tenant { return s.tenants }

// Tenant finds a tenant, or nil.
func (s *State) Tenant(id TenantID) *Tenant {
	if id < 0 || int(id) >= len(s.tenants) {
		return nil
	}
	return s.tenants[id]
}

// TenantByName finds a tenant, or nil.
func (s *State) TenantByName(name string) *Tenant {
	if id, ok := s.tenantName[name]; ok {
		return s.tenants[id]
	}
	return nil
}

// Job finds a job that has not ended, or nil.
func (s *State) Job(id JobID) *Job { return s.jobs[id] }

// Accepted tells whether the deadline of a job was promised: at its submission,
// or by the policy later (NoteAccepted). O(1).
func (s *State) Accepted(j *Job) bool {
	return j.Spec.Accepted || (j.Spec.Deadline > 0 && j.marks.has(NoteAccepted))
}

// Firm tells whether tasks of a job make no room for a promise: the job belongs to
// a project, or its deadline is accepted and the job is not hopeless. O(1).
func (s *State) Firm(j *Job) bool {
	return j.Spec.Project != 0 || (s.Accepted(j) && !j.marks.has(NoteHopeless))
}

// Foreseen tells whether a promise was made counting on the predicted end of a
// job's tasks: the job has no bound, its deadline was accepted at its submission,
// and the promise was made to somebody who was submitted no earlier. O(1).
func (s *State) Foreseen(r *Reservation, j *Job) bool {
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

// Stage finds a stage of a job that has not ended, or nil.
func (s *State) Stage(id StageID) *Stage {
	if j := s.jobs[id.Job]; j != nil && id.Stage >= 0 && int(id.Stage) < len(j.Stages) {
		return j.Stages[id.Stage]
	}
	return nil
}

// stageFor is Stage for those who change the State or judge a change: they ask
// for one job several times in a row.
func (s *State) stageFor(id StageID) *Stage {
	j := s.recent
	if j == nil || j.Spec.ID != id.Job {
		if j = s.jobs[id.Job]; j == nil {
			return nil
		}
		s.recent = j
	}
	if id.Stage >= 0 && int(id.Stage) < len(j.Stages) {
		return j.Stages[id.Stage]
	}
	return nil
}

// StageOf gives the stage an attempt belongs to. O(1).
func (s *State) StageOf(a *Attempt) *Stage { return s.stages[a.stage] }

// JobCount is the number of jobs that have not ended.
func (s *State) JobCount() int { return len(s.jobs) }

// Jobs lists the jobs that have not ended by (Submitted, ID).
func (s *State) Jobs() iter.Seq[*Job] {
	return func(yield func(*Job) bool) {
		for _, j := range s.order {
			if j != nil && !yield(j) {
				return
			}
		}
	}
}

// NextReady gives, in order of (Submitted, ID), the next job with ready work
// whose position is >= at, and the position to go on from; nil at the end.
// The walk stays right while the caller places tasks. O(1) a step.
func (s *State) NextReady(at int32) (*Job, int32) {
	r := s.ready.next(at)
	if r < 0 {
		return nil, at
	}
	return s.order[r], r + 1
}

// NextReadyOf is NextReady among the jobs of one tenant (its own jobs, not
// those of tenants below it).
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

// NextReadyTenant gives the next tenant with ready work of its own, id >= at,
// or NoTenant. O(1).
func (s *State) NextReadyTenant(at TenantID) TenantID {
	return TenantID(s.readyTenant.next(int32(at)))
}

// Project finds a project, or nil.
func (s *State) Project(id ProjectID) *Project { return s.projects[id] }

// Projects lists the projects by id. It allocates.
func (s *State) Projects() []*Project {
	out := make([]*Project, 0, len(s.projects))
	for _, p := range s.projects {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *Project) int { return cmp.Compare(a.Spec.ID, b.Spec.ID) })
	return out
}

// Attempt finds a live attempt, or nil.
func (s *State) Attempt(id AttemptID) *Attempt {
	g := s.Stage(id.StageID())
	if g == nil || id.Index < 0 || id.Index >= g.Spec.Tasks {
		return nil
	}
	for slot := g.active[id.Index] - 1; slot >= 0; {
		a := s.at(slot)
		if a.ID.Attempt == id.Attempt {
			return a
		}
		slot = a.sibling - 1
	}
	return nil
}

// AttemptsOf lists the live attempts at a task: usually one, two while a
// speculative one runs.
func (s *State) AttemptsOf(g *Stage, i int32) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for slot := g.active[i] - 1; slot >= 0; {
			a := s.at(slot)
			slot = a.sibling - 1
			if !yield(a) {
				return
			}
		}
	}
}

// AttemptsOn lists the live attempts on a node in order of placement; those
// that move away from it are listed at their target.
func (s *State) AttemptsOn(n NodeID) iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for _, slot := range s.nodes[n].attempts {
			if !yield(s.at(slot)) {
				return
			}
		}
	}
}

// AttemptsIn lists the live attempts of a stage by task.
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

// Suspended lists the suspended attempts (phase AttemptSuspended) in the order
// of their suspension.
func (s *State) Suspended() iter.Seq[*Attempt] {
	return func(yield func(*Attempt) bool) {
		for _, slot := range s.suspended {
			if a := s.at(slot); !a.Parked && a.Phase == AttemptSuspended && !yield(a) {
				return
			}
		}
	}
}

// SuspendedCount is the number of attempts that are suspended, with those that
// are parked, or on their way to another level or to their end.
func (s *State) SuspendedCount() int { return len(s.suspended) }

// Reservations lists the reservations and holds by id. The slice belongs to
// State.
func (s *State) Reservations() []*Reservation { return s.reservations }

// Promises lists the reservations that are promises (ReservationKind.Promise)
// by (Start, ID), Holds the others. The slices belong to State.
func (s *State) Promises() []*Reservation { return s.promises }

// Holds lists the reservations that are no promises by (Start, ID).
func (s *State) Holds() []*Reservation { return s.held }

// Jobless is the number of reservations that are for a project and none of its
// jobs. O(1).
func (s *State) Jobless() int { return s.jobless }

// ReservationsOn lists what is reserved on a node, or with NoNode on the pool,
// by (Start, ID). The slice belongs to State.
func (s *State) ReservationsOn(n NodeID) []*Reservation { return *s.reservedOn(n) }

func (s *State) reservedOn(n NodeID) *[]*Reservation {
	if n == NoNode {
		return &s.pool
	}
	return &s.nodes[n].reserved
}

// Reservation finds a reservation, or nil.
func (s *State) Reservation(id ReservationID) *Reservation {
	if i, ok := s.findReservation(id); ok {
		return s.reservations[i]
	}
	return nil
}

func (s *State) findReservation(id ReservationID) (int, bool) {
	n := len(s.reservations)
	if n > 0 && s.reservations[n-1].ID < id {
		return n, false
	}
	i := sort.Search(n, func(i int) bool { return s.reservations[i].ID >= id })
	return i, i < n && s.reservations[i].ID == id
}

// Note gives what was noted under a key.
func (s *State) Note(k NoteKey) (Note, bool) {
	n, ok := s.notes[k]
	return n, ok
}

// Notes lists all notes in order of their keys. It allocates.
func (s *State) Notes() []Note {
	out := make([]Note, 0, len(s.notes))
	for _, n := range s.notes {
		out = append(out, n)
	}
	slices.SortFunc(out, func(a, b Note) int { return a.NoteKey.Compare(b.NoteKey) })
	return out
}

// History gives what is known of tasks and jobs that ended.
func (s *State) History() *History { return &s.history }

// Slots gives the numbers of the live attempts at a task, the later one second, -1
// for none. A number belongs to one attempt as long as it lives; numbers given back
// are used again first, so that they are an index into what an owner keeps of
// attempts. O(1).
func (s *State) Slots(id TaskID) (first, second int32) {
	g := s.stageFor(id.StageID())
	if g == nil || id.Index < 0 || id.Index >= g.Spec.Tasks || g.active[id.Index] == 0 {
		return -1, -1
	}
	first = g.active[id.Index] - 1
	return first, s.at(first).sibling - 1
}

// Fetch reads what the ends of the attempts in these slots (Slots) will read, and
// changes nothing. An end waits for memory several times, for each line after the one
// that leads to it; here the processor asks for the lines of all of them together.
// What is returned means nothing: with it the compiler leaves no read out. O(slots x
// attempts on a node / 16).
func (s *State) Fetch(slots []int32) int64 {
	sum := int64(0)
	for _, slot := range slots {
		sum += int64(s.at(slot).Node)
	}
	for _, slot := range slots {
		a := s.at(slot)
		n := s.nodes[a.Node]
		sum += n.Free[CPU] + int64(len(n.attempts)) + s.fit.room[a.Node][0] + int64(s.stages[a.stage].active[a.ID.Index])
	}
	for _, slot := range slots {
		n := s.nodes[s.at(slot).Node]
		for i := 0; i < len(n.attempts); i += 16 { // a line holds 16
			sum += int64(n.attempts[i])
		}
		for i := range n.Disks {
			sum += n.Disks[i].FreeIO
		}
	}
	return sum
}

const chunkBits = 12

func (s *State) at(slot int32) *Attempt {
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

func (s *State) changed() { s.changes++ }

func splitPath(p string) []string {
	if p == "" {
		return nil
	}
	return strings.Split(strings.TrimPrefix(p, "/"), "/")
}

package scheduler

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"sort"
	"strings"
	"time"
)

// Node is a machine and what is free on it. Read only outside this package.
type Node struct {
	Spec NodeSpec
	// Free is capacity minus what attempts hold. It is negative after a node
	// shrank below what runs on it; then nothing is placed there.
	Free     Resources
	Disks    []DiskUse // as Spec.Disks
	SwapFree int64
	// Releasing is what suspensions and kills in flight will give back.
	Releasing Resources
	Rack      int32 // number of Spec.Path among the paths seen, from 0

	attempts []int32        // slots, in placement order
	moving   []int32        // slots of attempts that move away, by placement
	reserved []*Reservation // by (Start, ID)
	path     []string
}

// DiskUse is what is free on one disk.
type DiskUse struct {
	FreeIO    int64 // bytes per second
	FreeSpace int64 // bytes
}

// Takes tells whether the node is up and takes new work.
func (n *Node) Takes() bool { return !n.Spec.Down && !n.Spec.Draining }

// Used is what attempts hold on the node.
func (n *Node) Used() Resources { return n.Spec.Capacity.Sub(n.Free) }

// Tenant is who is charged, with what its subtree holds.
// Read only outside this package.
type Tenant struct {
	Spec TenantSpec
	// Used is held by the tenant and everything below it; Own by its own jobs.
	Used, Own Resources
	// Running counts attempts at level running in the subtree.
	Running int32
	// Depth is 0 at the root. Children are in order of name.
	Depth    int32
	Children []TenantID

	order []*Job // by (Submitted, ID); nil where a job left
	ready bitset // ranks in order with ready work
}

// JobPhase is where a job stands.
type JobPhase uint8

// The phases of a job.
const (
	JobActive   JobPhase = iota + 1
	JobFailing           // a task failed for good; nothing of it is ready
	JobStopping          // somebody stopped it; nothing of it is ready
)

// String gives the phase's name.
func (p JobPhase) String() string {
	switch p {
	case JobActive:
		return "active"
	case JobFailing:
		return "failing"
	case JobStopping:
		return "stopping"
	default:
		return fmt.Sprintf("phase(%d)", uint8(p))
	}
}

// Job is a job that has not ended. Read only outside this package.
type Job struct {
	Spec   JobSpec
	Phase  JobPhase
	Stages []*Stage
	// Used is what its attempts hold.
	Used Resources
	// Live counts attempts, suspended ones included; Ready counts stages
	// with tasks that may start.
	Live, Ready int32
	// FirstPlaced is when its first attempt was placed, 0 for not yet.
	FirstPlaced Time

	rank, tenantRank int32
	notes            int32
}

// Complete tells whether every task of every stage is done and no stage may
// be added.
func (j *Job) Complete() bool {
	if j.Spec.Open {
		return false
	}
	for _, g := range j.Stages {
		if g.Done < g.Spec.Tasks {
			return false
		}
	}
	return true
}

// Stage is tasks of one shape as counts, plus what differs.
// Read only outside this package.
type Stage struct {
	Job   *Job
	Index int32
	Spec  StageSpec
	// Pending tasks wait for a place, Running counts attempts at level
	// running, Suspended those below, Done and Failed count tasks.
	Pending, Running, Suspended, Done, Failed int32
	// Open tells that what comes before it is done (or slow-started).
	Open     bool
	parts    int64 // sum of the attempts' parts done, in partUnit
	ready    bool
	next     []int32 // stages that come after this one
	pending  bitset
	busy     bitset // tasks with a live attempt
	done     bitset
	active   []int32 // slot + 1 of the task's first live attempt
	tries    map[int32]tries
	moved    map[int32]movedInput
	taskTime float64 // attempt-nanoseconds of running until lastTick
	lastTick Time
	shape    int32
	shapeGen uint32
	inverse  *inverse
	self     int32 // index in State.stages
}

// tries is what is remembered about a task that was tried before.
type tries struct {
	Last     int32 // highest attempt number used
	Failures int32 // by the user's fault
}

type movedInput struct {
	nodes []NodeID
	local []int64
}

// ID gives the stage's id.
func (g *Stage) ID() StageID { return StageID{g.Job.Spec.ID, g.Index} }

// Task gives the id of its i-th task.
func (g *Stage) Task(i int32) TaskID { return TaskID{g.Job.Spec.ID, g.Index, i} }

// Ready tells whether it has pending tasks that may start now.
func (g *Stage) Ready() bool { return g.ready }

// Startable is the number of pending tasks that MaxParallel leaves room for.
// Suspended attempts count as parallel.
func (g *Stage) Startable() int32 {
	if !g.ready {
		return 0
	}
	if g.Spec.MaxParallel == 0 {
		return g.Pending
	}
	return max(0, min(g.Pending, g.Spec.MaxParallel-g.Running-g.Suspended))
}

// Remaining is the number of tasks not done and not failed.
func (g *Stage) Remaining() int32 { return g.Spec.Tasks - g.Done - g.Failed }

// partUnit makes parts done into integers, so that sums do not depend on
// their order.
const partUnit = 1e9

// Progress is the sum over its live attempts of the part done, and of 1 for
// each task done, in tasks.
func (g *Stage) Progress() float64 { return float64(g.Done) + float64(g.parts)/partUnit }

// NextPending gives the lowest pending task >= from, or -1. O(1).
func (g *Stage) NextPending(from int32) int32 { return g.pending.next(from) }

// IsPending tells whether task i waits for a place.
func (g *Stage) IsPending(i int32) bool {
	return i >= 0 && i < g.Spec.Tasks && g.pending.has(i)
}

// IsDone tells whether task i succeeded.
func (g *Stage) IsDone(i int32) bool { return i >= 0 && i < g.Spec.Tasks && g.done.has(i) }

// Input gives what task i reads: its bytes, the nodes that hold them and how
// much lies on each (nil: all), as last asked (State.SetInput).
func (g *Stage) Input(i int32) (bytes int64, nodes []NodeID, local []int64) {
	bytes, nodes, local = g.Spec.Inputs.Task(i)
	if m, ok := g.moved[i]; ok {
		nodes, local = m.nodes, m.local
	}
	return bytes, nodes, local
}

// TaskTime is the time its attempts have run until now, summed over attempts
// (suspended time not counted): the attained service of LAS_MQ, per task.
func (g *Stage) TaskTime(now Time) time.Duration {
	t := g.taskTime
	if now > g.lastTick {
		t += float64(g.Running) * float64(now-g.lastTick)
	}
	if t >= 1<<62 {
		return 1 << 62
	}
	return time.Duration(t)
}

// NextAttempt is the number of the next attempt at task i.
func (s *State) NextAttempt(g *Stage, i int32) int32 {
	n := int32(0)
	if len(g.tries) > 0 {
		n = g.tries[i].Last
	}
	for slot := g.active[i] - 1; slot >= 0; slot = s.at(slot).sibling - 1 {
		n = max(n, s.at(slot).ID.Attempt)
	}
	return n + 1
}

// Failures is how often task i failed by the user's fault.
func (g *Stage) Failures(i int32) int32 { return g.tries[i].Failures }

func (g *Stage) maxAttempts() int32 {
	if g.Spec.MaxAttempts == 0 {
		return DefaultAttempts
	}
	return g.Spec.MaxAttempts
}

// AttemptPhase is where an attempt stands.
type AttemptPhase uint8

// The phases of an attempt. Starting, Running, Suspending and Killing hold
// what a running attempt holds; Resuming as well.
const (
	AttemptStarting AttemptPhase = iota + 1
	AttemptRunning
	AttemptSuspending
	AttemptSuspended
	AttemptResuming
	AttemptKilling
)

// String gives the phase's name.
func (p AttemptPhase) String() string {
	switch p {
	case AttemptStarting:
		return "starting"
	case AttemptRunning:
		return "running"
	case AttemptSuspending:
		return "suspending"
	case AttemptSuspended:
		return "suspended"
	case AttemptResuming:
		return "resuming"
	case AttemptKilling:
		return "killing"
	default:
		return fmt.Sprintf("phase(%d)", uint8(p))
	}
}

// Attempt is one live try at a task. Read only outside this package, and good
// until the attempt ends.
type Attempt struct {
	ID          AttemptID
	Run         int32
	Node        NodeID
	From        NodeID // where it moves from, NoNode if it does not move
	Disk        int16  // on Node, -1 without
	FromDisk    int16
	Level       Level // LevelRunning until a suspension is confirmed
	Target      Level // the level it is being brought to, 0 for none
	Phase       AttemptPhase
	Speculative bool
	Tenant      TenantID
	Demand      Resources
	DiskSpace   int64
	Held        Held // on Node
	FromHeld    Held // on From
	Footprint   Footprint
	// Seq orders placements: later ones are higher.
	Seq uint64
	// Placed is when it was placed or last resumed; Ran is for how long it
	// had run before that. SuspendedAt is when it was last suspended.
	Placed      Time
	Ran         time.Duration
	SuspendedAt Time
	Suspends    int32
	// Progress is the part done, 0..1. Estimate is its predicted whole run
	// time, 0 if unknown.
	Progress float64
	Estimate time.Duration

	sibling int32 // slot + 1 of a second attempt at the same task
	stage   int32 // index in State.stages
}

// RanFor is how long the attempt has run until now, suspensions left out.
func (a *Attempt) RanFor(now Time) time.Duration {
	if a.Level.Suspended() || now <= a.Placed {
		return a.Ran
	}
	return a.Ran + now.Sub(a.Placed)
}

// Remaining is the predicted remaining run time (3DSF eq. 8: estimate minus
// time already run, never below 0), and whether there is an estimate.
func (a *Attempt) Remaining(now Time) (time.Duration, bool) {
	if a.Estimate <= 0 {
		return 0, false
	}
	return max(0, a.Estimate-a.RanFor(now)), true
}

// Stamp identifies a moment in the life of one State: equal stamps mean that
// nothing changed in between. Comparable with ==.
type Stamp struct {
	of *identity
	n  uint64
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

	jobs     map[JobID]*Job
	order    []*Job // by (Submitted, ID); nil where a job left
	gone     int    // nils in order
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
	notes        map[NoteKey]Note
	looseNotes   int

	history History

	undo    journal
	fit     fitIndex
	checker checker
}

// Project is a project that was not dropped. Read only outside.
type Project struct {
	Spec ProjectSpec
	// Jobs are those submitted and not ended, in order of id.
	Jobs []JobID
}

// New makes an empty State.
func New() *State {
	return &State{
		identity: &identity{}, nodeName: map[string]NodeID{}, racks: map[string]int32{}, tenantName: map[string]TenantID{},
		jobs: map[JobID]*Job{}, projects: map[ProjectID]*Project{}, notes: map[NoteKey]Note{},
	}
}

// Stamp gives the present moment. O(1).
func (s *State) Stamp() Stamp { return Stamp{s.identity, s.changes} }

// Changes counts the changes since New: it only grows, and it stays where it
// is exactly when nothing changed. Tries that are rolled back do not count.
func (s *State) Changes() uint64 { return s.changes }

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

// Stage finds a stage of a job that has not ended, or nil.
func (s *State) Stage(id StageID) *Stage {
	if j := s.jobs[id.Job]; j != nil && id.Stage >= 0 && int(id.Stage) < len(j.Stages) {
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
			if !yield(s.at(slot)) {
				return
			}
		}
	}
}

// SuspendedCount is the number of suspended attempts.
func (s *State) SuspendedCount() int { return len(s.suspended) }

// Reservations lists the reservations and holds by id. The slice belongs to
// State.
func (s *State) Reservations() []*Reservation { return s.reservations }

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

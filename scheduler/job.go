package scheduler

import (
	"slices"
	"time"

	"github.com/drover-run/drover/internal/enum"
)

// JobPhase is the phase of a job's life cycle.
type JobPhase uint8

// The phases of a job.
const (
	JobActive   JobPhase = iota + 1
	JobFailing           // a task failed for good; nothing of it is ready
	JobStopping          // a user stopped it; nothing of it is ready
)

// String returns the phase's name.
func (p JobPhase) String() string {
	return enum.Name("phase", p, []string{JobActive: "active", JobFailing: "failing", JobStopping: "stopping"})
}

// Job is a job that has not ended. Callers outside this package may only read it.
type Job struct {
	// Fields that every cycle reads of every job with ready work come first, in one cache line; Spec fills the next two.
	Stages     []*Stage
	Phase      JobPhase
	begun      uint16 // see Begun; MaxStages at most
	stateKinds stateKindSet
	// Live counts attempts, suspended ones included; Ready counts stages with tasks that may start.
	Ready, Live int32
	// Guarantees counts its reservations that are guarantees (ReservationKind.IsGuarantee).
	Guarantees   int32
	misfit       MisfitClass // see Queue.MisfitClassOf; none for unknown
	plannedUntil Time        // see PlannedUntil; 0 for unknown
	leastNeed    capacityVec // of its ready stages, see findClass; zero for unknown
	Pending      int64       // Stage.Pending of all stages
	Spec         JobSpec
	tenant       *Tenant
	// Used is the sum of what its attempts occupy.
	Used Resources
	// FirstPlaced is when its first attempt was placed; 0: not yet.
	FirstPlaced Time

	reservations     []*Reservation // of the job, by id
	rank, tenantRank int32
	doubleReserved   int32            // number of its reservations that are not the only plan of their task
	queue            int64            // see Queue
	stateKeys        []PolicyStateKey // of its policy states, in no order
	loggedAt         uint64           // the position after its last entry in the log of changes, 0 for none
	avoided          []NodeID         // see Avoided; in order, replaced, never written to
	inlineStages     [4]*Stage        // storage of Stages while there are no more
}

// HasState reports whether the job as a whole has a policy state of kind k; for ViolatedState, with any cause. O(1).
func (j *Job) HasState(k PolicyStateKind) bool { return j.stateKinds.has(k) }

// Begun returns its stages up to the last one of which an attempt was ever placed; the later stages
// need not be read. The slice belongs to State. O(1).
func (j *Job) Begun() []*Stage { return j.Stages[:j.begun] }

// Queue returns the queue in the job's QueueState, 0 without one. O(1).
func (j *Job) Queue() int64 { return j.queue }

// Reservations returns the job's reservations, by id. The slice belongs to State.
func (j *Job) Reservations() []*Reservation { return j.reservations }

// Unguaranteed returns the number of its reservations that are not guarantees. O(1).
func (j *Job) Unguaranteed() int32 { return int32(len(j.reservations)) - j.Guarantees }

// Stage is a set of tasks with equal demands, as counts and bit sets. Callers outside this package may only read it.
type Stage struct {
	// The fields that every cycle reads for every stage come first, in one cache line: with
	// ten thousand stages the next one is rarely in the cache.
	Job   *Job
	Index int32
	// Pending counts tasks that wait for placement, Running attempts at level running,
	// Suspended attempts at deeper levels, Done and Failed tasks.
	Pending, Running, Suspended, Done, Failed int32
	// Open reports whether the stages it comes after are done, or done far enough for its slow start.
	Open              bool
	ready             bool
	opensEarly        bool // a later stage has a slow start
	startable         bool // it is ready and not at its max_parallel
	inFloor           bool // it is counted in State.floor
	waits             bool // has waited for its data since waitsSince, see WaitingSince
	eqClass           int32
	eqClassGeneration uint32
	eqClassBegins     int32
	self              int32                // index in State.stages
	moved             map[int32]movedInput // 64 bytes to here
	waitsSince        Time
	details           *attemptDetails // shared by its attempts, nil until one is placed
	Spec              StageSpec
	pending           bitset
	busy              bitset // tasks with a live attempt
	done              bitset
	active            taskTable[int32] // slot + 1 of the task's first live attempt
	next              []int32          // stages that come after this one
	pastAttempts      map[int32]pastAttempts
	taskTime          float64 // attempt-nanoseconds of running until lastTick
	lastTick          Time
	progressSum       int64 // progress of the live attempts, summed in progressUnit
	tasksByNode       *tasksByNode
	planned           taskTable[*Reservation] // see PlannedAt; without pages before the first reservation
}

// pastAttempts records the earlier attempts at a task.
type pastAttempts struct {
	Last     int32 // highest attempt number used
	Failures int32 // by the user's fault
	// FailedOn are the nodes on which the task failed, see Stage.FailedOn. It is replaced, never written to.
	FailedOn []NodeID `json:",omitempty"`
}

// movedInput is an input location that SetInput replaced.
type movedInput struct {
	nodes []NodeID
	local []int64
}

// ID returns the stage's id.
func (g *Stage) ID() StageID { return StageID{g.Job.Spec.ID, g.Index} }

// Slot returns a small number that is unique among the stages of the State, so that facts about
// stages can be stored in a slice. After the job has ended another stage may get it.
func (g *Stage) Slot() int32 { return g.self }

// Task returns the id of its i-th task.
func (g *Stage) Task(i int32) TaskID { return TaskID{g.Job.Spec.ID, g.Index, i} }

// Bound returns the assumed maximum run time of a task of the stage: its job's runtime_bound, else
// Spec.Bound, 0 if neither is known. O(1).
func (g *Stage) Bound() time.Duration {
	if b := g.Job.Spec.Bound; b > 0 {
		return b
	}
	return g.Spec.Bound
}

// BoundLeft returns the assumed maximum further run time of an attempt that has run for ran: the rest of the Bound.
// An attempt that has used up its Bound counts as a new request (two-tier 4.6). 0 if no bound is known. O(1).
func (g *Stage) BoundLeft(ran time.Duration) time.Duration {
	b := g.Bound()
	if ran < b {
		return b - ran
	}
	return b
}

// AssumedEnd returns when an attempt of the stage is assumed to end: BoundLeft after it was placed
// or last resumed. It returns Never for a suspended attempt and if no bound is known. O(1).
func (g *Stage) AssumedEnd(a *Attempt) Time {
	if a.Level.Suspended() {
		return Never
	}
	return boundedEnd(g, a.Ran, a.Placed)
}

// HasBounds reports whether each stage has a Bound. O(stages).
func (j *Job) HasBounds() bool {
	return j.Spec.Bound > 0 || !slices.ContainsFunc(j.Stages, func(g *Stage) bool { return g.Spec.Bound <= 0 })
}

// Ready reports whether it has pending tasks that may start now.
func (g *Stage) Ready() bool { return g.ready }

// Startable returns the number of pending tasks that MaxParallel allows to start; suspended attempts count as running.
func (g *Stage) Startable() int32 {
	if !g.ready {
		return 0
	}
	if g.Spec.MaxParallel == 0 {
		return g.Pending
	}
	return max(0, min(g.Pending, g.Spec.MaxParallel-g.Running-g.Suspended))
}

// ExceedsParallel reports whether the stage has more unfinished tasks than may run at once. O(1).
func (g *Stage) ExceedsParallel() bool {
	return g.Spec.MaxParallel > 0 && g.Pending+g.Running+g.Suspended > g.Spec.MaxParallel
}

// WaitingSince returns since when the stage has waited for nodes with its data (WaitSinceState), and whether it does. O(1).
func (g *Stage) WaitingSince() (Time, bool) { return g.waitsSince, g.waits }

// Remaining returns the number of tasks that are neither done nor failed.
func (g *Stage) Remaining() int32 { return g.Spec.Tasks - g.Done - g.Failed }

const progressUnit = 1e9 // scales progress to integers, so that sums do not depend on their order

// Progress returns the number of tasks done plus the completed fractions of the live attempts.
func (g *Stage) Progress() float64 { return float64(g.Done) + float64(g.progressSum)/progressUnit }

// NextPending returns the lowest pending task >= from, or -1. O(1).
func (g *Stage) NextPending(from int32) int32 { return g.pending.next(from) }

// SkipPending returns the pending task that follows n others, counted from from, or -1. O(tasks passed / 64).
func (g *Stage) SkipPending(from, n int32) int32 { return g.pending.nth(from, n) }

// PendingIn returns the number of pending tasks in [from, to), both within the stage. O((to-from)/64).
func (g *Stage) PendingIn(from, to int32) int32 { return g.pending.countIn(from, to) }

// hasTask reports whether there is a stage, with a task i.
func (g *Stage) hasTask(i int32) bool { return g != nil && i >= 0 && i < g.Spec.Tasks }

// IsPending reports whether task i waits for placement.
func (g *Stage) IsPending(i int32) bool { return g.hasTask(i) && g.pending.has(i) }

// IsDone reports whether task i succeeded.
func (g *Stage) IsDone(i int32) bool { return g.hasTask(i) && g.done.has(i) }

// Input returns the bytes that task i reads, the nodes that hold them and the bytes on each
// (nil: all), as last set by Events.SetInput.
func (g *Stage) Input(i int32) (bytes int64, nodes []NodeID, local []int64) {
	bytes, nodes, local = g.Spec.Inputs.Task(i)
	if m, ok := g.moved[i]; ok {
		nodes, local = m.nodes, m.local
	}
	return bytes, nodes, local
}

// TaskTime returns how long its attempts have run until now, without suspensions: the attained service of LAS_MQ.
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

// CountedUntil returns the last time at which the number of running attempts changed. From then on
// TaskTime grows by Running per unit of time until the number changes again. O(1).
func (g *Stage) CountedUntil() Time { return g.lastTick }

// Failures returns how often task i failed through the user's fault.
func (g *Stage) Failures(i int32) int32 { return g.pastAttempts[i].Failures }

// IsAccepted reports whether the deadline of the job is accepted, with a guarantee or without (Spec.AcceptedByQuote). O(1).
func (j *Job) IsAccepted() bool {
	return j.Spec.AcceptedByQuote || (j.Spec.Deadline > 0 && j.stateKinds.has(AcceptedState))
}

// IsDeadlineGuaranteed reports whether the job has a deadline that a policy guarantees and that is not infeasible. O(1).
func (j *Job) IsDeadlineGuaranteed() bool {
	return j.Spec.Deadline > 0 && j.stateKinds.has(AcceptedState) && !j.IsInfeasible()
}

// IsInfeasible reports whether a policy recorded that the deadline of the job can no longer be met (InfeasibleState). O(1).
func (j *Job) IsInfeasible() bool { return j.stateKinds.has(InfeasibleState) }

// IsNonPreemptible reports whether tasks of the job are never preempted for a guarantee: the job
// belongs to a project, or its deadline is guaranteed. O(1).
func (j *Job) IsNonPreemptible() bool { return j.Spec.Project != 0 || j.IsDeadlineGuaranteed() }

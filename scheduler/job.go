package scheduler

import (
	"fmt"
	"time"
)

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
	// What each cycle asks of every job with ready work comes first and is one line
	// of the cache, its Spec the next two.
	Stages       []*Stage
	reservations []*Reservation // and holds for it, by id
	Phase        JobPhase
	marks        marks
	// Live counts attempts, suspended ones included; Ready counts stages
	// with tasks that may start.
	Ready, Live int32
	Spec        JobSpec
	// Used is what its attempts hold.
	Used Resources
	// FirstPlaced is when its first attempt was placed, 0 for not yet.
	FirstPlaced Time

	// Promises counts the promises reserved for it (ReservationKind.Promise).
	Promises int32

	rank, tenantRank int32
	notes            int32
	few              [4]*Stage // Stages, where there are no more
}

// Noted tells whether there is a note of that kind on the job as a whole, or of
// kind NoteBroken with any cause. O(1).
func (j *Job) Noted(k NoteKind) bool { return j.marks.has(k) }

// Reservations lists the reservations and holds for it by id. The slice belongs
// to State.
func (j *Job) Reservations() []*Reservation { return j.reservations }

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
	// What is asked of every stage in every cycle comes first, in one cache line:
	// of ten thousand stages the next one is never at hand.
	Job   *Job
	Index int32
	// Pending tasks wait for a place, Running counts attempts at level
	// running, Suspended those below, Done and Failed count tasks.
	Pending, Running, Suspended, Done, Failed int32
	// Open tells that what comes before it is done (or slow-started).
	Open     bool
	ready    bool
	shape    int32
	shapeGen uint32
	self     int32                // index in State.stages
	moved    map[int32]movedInput // 64 bytes to here
	details  *details             // of its attempts that simply run, nil until one is placed
	Spec     StageSpec
	pending  bitset
	busy     bitset // tasks with a live attempt
	done     bitset
	active   []int32 // slot + 1 of the task's first live attempt
	next     []int32 // stages that come after this one
	tries    map[int32]tries
	taskTime float64 // attempt-nanoseconds of running until lastTick
	lastTick Time
	parts    int64          // sum of the attempts' parts done, in partUnit
	finished *finishedStage // in the history, nil until a task finished
	inverse  *inverse
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

// SkipPending gives the pending task >= from that n pending ones from there on
// come before, or -1. O(tasks passed / 64).
func (g *Stage) SkipPending(from, n int32) int32 { return g.pending.skip(from, n) }

// PendingIn counts the pending tasks in [from, to), both within its tasks.
// O((to-from)/64).
func (g *Stage) PendingIn(from, to int32) int32 { return g.pending.countIn(from, to) }

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

package scheduler

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
)

// Stamp identifies a version of one State: equal stamps mean that nothing changed in between. Compare stamps with ==.
type Stamp struct {
	of      *identity
	changes uint64
	steps   uint64
}

// identity must not have size 0: the addresses of two identities must differ.
type identity struct{ _ byte }

// State is the cluster as the scheduler sees it: facts, and indexes over them. It is updated event
// by event and is not safe for concurrent use. The zero value is not usable: use New.
type State struct {
	index       uint64
	changeCount uint64
	identity    *identity

	cluster Cluster
	tree    TenantTree

	jobs             map[JobID]*Job
	lastJob          *Job // cache of Stage
	order            jobOrder
	readyStages      int
	boundedJobs      int // see Queue.Bounded
	projects         map[ProjectID]*Project
	stages           []*Stage
	freeStageIndexes []int32

	chunks    [][]Attempt
	freeSlots []int32
	slots     int32
	live      int32
	seq       uint64
	suspended suspendedList

	reservations  []*Reservation // by id
	guarantees    []*Reservation // by (Start, ID)
	unguaranteed  []*Reservation // by (Start, ID)
	policyStates  policyStateTable
	joblessStates int
	stateBatch    policyStateBatch

	history History

	unplannedReleases uint64
	changeLog         ChangeLog
	undo              journal
	timeline          *Timeline // nil until a policy first calls Timeline
	stalled           stalledStages
	floor             demandFloor
	checker           checker
}

// Project is a project that has not been dropped. Callers outside this package may only read it.
type Project struct {
	Spec ProjectSpec
	// Jobs are its submitted jobs that have not ended, by id.
	Jobs []JobID

	stateKinds stateKindSet
}

// HasState reports whether the project as a whole has a policy state of kind k; for ViolatedState, with any cause. O(1).
func (p *Project) HasState(k PolicyStateKind) bool { return p.stateKinds.has(k) }

// New returns an empty State.
func New() *State {
	return &State{
		identity: &identity{}, cluster: Cluster{nodeName: map[string]NodeID{}, racks: map[string]int32{}}, tree: TenantTree{tenantName: map[string]TenantID{}},
		jobs: map[JobID]*Job{}, projects: map[ProjectID]*Project{}, policyStates: policyStateTable{others: map[PolicyStateKey]PolicyState{}},
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

// Index returns the log index of the last fact in this State.
func (s *State) Index() uint64 { return s.index }

// SetIndex sets Index. The owner calls it after it has applied facts. It does not count as a change.
func (s *State) SetIndex(i uint64) { s.index = i }

// Job returns a job that has not ended, or nil.
func (s *State) Job(id JobID) *Job { return s.jobs[id] }

// Stage returns a stage of a job that has not ended, or nil. Most calls are for the same job as the call before.
func (s *State) Stage(id StageID) *Stage {
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
		for _, j := range s.order.jobs {
			if j != nil && !yield(j) {
				return
			}
		}
	}
}

// Project returns a project, or nil.
func (s *State) Project(id ProjectID) *Project { return s.projects[id] }

// Projects returns the projects by id. It allocates.
func (s *State) Projects() []*Project {
	return slices.SortedFunc(maps.Values(s.projects), func(a, b *Project) int { return cmp.Compare(a.Spec.ID, b.Spec.ID) })
}

// Attempt returns a live attempt, or nil.
func (s *State) Attempt(id AttemptID) *Attempt {
	g := s.Stage(id.StageID())
	if !g.hasTask(id.Index) {
		return nil
	}
	for a := range s.Attempts().Of(g, id.Index) {
		if a.ID.Attempt == id.Attempt {
			return a
		}
	}
	return nil
}

// PolicyState returns the policy state with key k, and whether there is one.
func (s *State) PolicyState(k PolicyStateKey) (PolicyState, bool) { return s.policyStates.get(k) }

// History returns the record of the tasks and jobs that ended.
func (s *State) History() *History { return &s.history }

// chunkBits is the binary logarithm of the attempts allocated at once: few, since a small cluster pays for all of them.
const chunkBits = 9

func (s *State) countChange() { s.changeCount++ }

func splitPath(p string) []string {
	if p == "" {
		return nil
	}
	return strings.Split(strings.TrimPrefix(p, "/"), "/")
}

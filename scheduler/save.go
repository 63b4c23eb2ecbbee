package scheduler

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// saveVersion is the version of the format that Save writes.
const saveVersion = 1

// saved is the file format of a State. It holds facts only; Load recomputes counts, sets and
// free capacity.
type saved struct {
	Version           int            `json:"version"`
	Index             uint64         `json:"index"`
	Seq               uint64         `json:"seq"`
	Nodes             []NodeSpec     `json:"nodes"`
	Tenants           []TenantSpec   `json:"tenants"`
	Projects          []ProjectSpec  `json:"projects,omitempty"`
	Jobs              []savedJob     `json:"jobs,omitempty"`
	Attempts          []savedAttempt `json:"attempts,omitempty"`
	Reservations      []Reservation  `json:"reservations,omitempty"`
	PolicyStates      []PolicyState  `json:"policy_states,omitempty"`
	UnplannedReleases uint64         `json:"unplanned_releases,omitempty"`
	TasksEver         uint64         `json:"tasks_ever,omitempty"`
	Tasks             []FinishedTask `json:"finished_tasks,omitempty"`
}

type savedJob struct {
	Spec        JobSpec      `json:"spec"`
	Phase       JobPhase     `json:"phase"`
	FirstPlaced Time         `json:"first_placed,omitempty"`
	Avoided     []NodeID     `json:"avoided,omitempty"`
	Stages      []savedStage `json:"stages"`
}

type savedStage struct {
	Spec         StageSpec           `json:"spec"`
	Done         [][2]int32          `json:"done,omitempty"` // [from, to)
	PastAttempts []savedPastAttempts `json:"past_attempts,omitempty"`
	Moved        []savedInput        `json:"moved,omitempty"`
	TaskTime     float64             `json:"task_time,omitempty"`
	LastTick     Time                `json:"last_tick,omitempty"`
}

type savedPastAttempts struct {
	Index int32 `json:"index"`
	pastAttempts
}

type savedInput struct {
	Index int32    `json:"index"`
	Nodes []NodeID `json:"nodes"`
	Local []int64  `json:"local,omitempty"`
}

type savedAttempt struct {
	ID            AttemptID     `json:"id"`
	Run           int32         `json:"run"`
	Node          NodeID        `json:"node"`
	From          NodeID        `json:"from"`
	Disk          int16         `json:"disk"`
	FromDisk      int16         `json:"from_disk"`
	Level         Level         `json:"level"`
	Target        Level         `json:"target,omitempty"`
	Phase         AttemptPhase  `json:"phase"`
	Speculative   bool          `json:"speculative,omitempty"`
	FromOccupied  Occupancy     `json:"from_occupied,omitzero"`
	Footprint     Footprint     `json:"footprint,omitzero"`
	Seq           uint64        `json:"seq"`
	Placed        Time          `json:"placed"`
	Ran           time.Duration `json:"ran_ns,omitempty"`
	SuspendedAt   Time          `json:"suspended_at,omitempty"`
	Suspends      int32         `json:"suspends,omitempty"`
	Parked        bool          `json:"parked,omitempty"`
	RefusedLevels LevelSet      `json:"refused_levels,omitzero"`
	Progress      float64       `json:"progress,omitempty"`
	Estimate      time.Duration `json:"estimate_ns,omitempty"`
}

// Save writes the State as JSON. Equal States produce equal bytes.
func (s *State) Save(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(s.snapshots().saved()); err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	return nil
}

func (sn snapshots) saved() *saved {
	v := &saved{Version: saveVersion, Index: sn.s.index, Seq: sn.s.seq, PolicyStates: sn.s.PolicyStates().All(), Nodes: []NodeSpec{}, Tenants: []TenantSpec{},
		UnplannedReleases: sn.s.unplannedReleases, TasksEver: sn.s.history.total, Tasks: sn.s.history.allTasks()}
	for _, n := range sn.s.cluster.nodes {
		v.Nodes = append(v.Nodes, n.Spec)
	}
	for _, t := range sn.s.tree.tenants {
		v.Tenants = append(v.Tenants, t.Spec)
	}
	for _, p := range sn.s.Projects() {
		v.Projects = append(v.Projects, p.Spec)
	}
	for _, r := range sn.s.reservations {
		v.Reservations = append(v.Reservations, *r)
	}
	for j := range sn.s.Jobs() {
		sj := savedJob{Spec: j.Spec, Phase: j.Phase, FirstPlaced: j.FirstPlaced, Avoided: j.avoided, Stages: []savedStage{}}
		for _, g := range j.Stages {
			sj.Stages = append(sj.Stages, g.saved())
			for a := range sn.s.Attempts().In(g) {
				v.Attempts = append(v.Attempts, a.saved())
			}
		}
		v.Jobs = append(v.Jobs, sj)
	}
	return v
}

func (g *Stage) saved() savedStage {
	out := savedStage{Spec: g.Spec, Done: g.done.ranges(), TaskTime: g.taskTime, LastTick: g.lastTick}
	for i, t := range g.pastAttempts {
		out.PastAttempts = append(out.PastAttempts, savedPastAttempts{i, t})
	}
	slices.SortFunc(out.PastAttempts, func(a, b savedPastAttempts) int { return cmp.Compare(a.Index, b.Index) })
	for i, m := range g.moved {
		out.Moved = append(out.Moved, savedInput{i, m.nodes, m.local})
	}
	slices.SortFunc(out.Moved, func(a, b savedInput) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

func (a *Attempt) saved() savedAttempt {
	return savedAttempt{ID: a.ID, Run: a.Run, Node: a.Node, From: a.From, Disk: a.Disk, FromDisk: a.FromDisk, Level: a.Level,
		Target: a.Target, Phase: a.Phase, Speculative: a.Speculative, FromOccupied: a.FromOccupied, Footprint: a.Footprint, Seq: a.Seq,
		Placed: a.Placed, Ran: a.Ran, SuspendedAt: a.SuspendedAt, Suspends: a.Suspends, Parked: a.Parked, RefusedLevels: a.RefusedLevels, Progress: a.Progress, Estimate: a.Estimate}
}

// Load reads the format of Save. It validates everything, so that scheduling on the result
// cannot panic; an error names the invalid part.
func Load(r io.Reader) (*State, error) {
	var v saved
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("load a state: %w", err)
	}
	if v.Version != saveVersion {
		return nil, refuse(ErrInvalid, "saved state", "version is %d, this program reads %d", v.Version, saveVersion)
	}
	return restore(&v)
}

// restore builds the State from saved facts.
func restore(v *saved) (*State, error) {
	s := New()
	for _, step := range []func(*saved) error{s.snapshots().loadCluster, s.snapshots().loadJobs, s.snapshots().loadAttempts, s.snapshots().loadReservationsAndStates} {
		if err := step(v); err != nil {
			return nil, fmt.Errorf("load a state: %w", err)
		}
	}
	s.index, s.seq, s.changeCount = v.Index, v.Seq, 0
	return s, nil
}

func (sn snapshots) loadCluster(v *saved) error {
	for _, n := range v.Nodes {
		if err := sn.s.Events().AddNode(n); err != nil {
			return err
		}
	}
	// A tenant's parent may come later in the list: add all first, then set the parents.
	for _, t := range v.Tenants {
		t.Parent = NoTenant
		if err := sn.s.Events().PutTenant(t); err != nil {
			return err
		}
	}
	for _, t := range v.Tenants {
		if err := sn.s.Events().PutTenant(t); err != nil {
			return err
		}
	}
	for _, p := range v.Projects {
		if err := sn.s.Events().PutProject(p); err != nil {
			return err
		}
	}
	return nil
}

func (sn snapshots) loadJobs(v *saved) error {
	for i := range v.Jobs {
		sj := &v.Jobs[i]
		stages := make([]StageSpec, len(sj.Stages))
		for k := range sj.Stages {
			stages[k] = sj.Stages[k].Spec
		}
		if err := sn.s.Events().SubmitJob(sj.Spec, stages); err != nil {
			return err
		}
		j := sn.s.jobs[sj.Spec.ID]
		if sj.Phase < JobActive || sj.Phase > JobStopping {
			return refuse(ErrInvalid, fmt.Sprintf("job %d", sj.Spec.ID), "phase is %v", sj.Phase)
		}
		j.FirstPlaced = sj.FirstPlaced
		if err := sn.s.Events().SetAvoided(sj.Spec.ID, sj.Avoided); err != nil {
			return err
		}
		for k, g := range j.Stages {
			if err := sn.loadStage(g, &sj.Stages[k]); err != nil {
				return err
			}
		}
		sn.s.Queue().setPhase(j, sj.Phase)
		for _, g := range j.Stages {
			sn.s.Queue().updateOpen(g)
		}
	}
	return nil
}

func (sn snapshots) loadStage(g *Stage, v *savedStage) error {
	what := "stage " + g.ID().String()
	if !(v.TaskTime >= 0) || math.IsInf(v.TaskTime, 0) {
		return refuse(ErrInvalid, what, "task_time is %v", v.TaskTime)
	}
	if g.taskTime, g.lastTick = v.TaskTime, v.LastTick; v.LastTick > 0 {
		g.begin()
	}
	for _, r := range v.Done {
		if r[0] < 0 || r[1] > g.Spec.Tasks {
			return refuse(ErrInvalid, what, "tasks %d to %d are done of %d", r[0], r[1], g.Spec.Tasks)
		}
		for i := r[0]; i < r[1]; i++ {
			if !g.done.has(i) {
				g.done.set(i)
				g.Done++
				g.pending.clear(i)
				g.addPending(-1)
			}
		}
	}
	for _, t := range v.PastAttempts {
		if t.Index < 0 || t.Index >= g.Spec.Tasks || t.Last < 0 || t.Last > math.MaxInt32/2 || t.Failures < 0 || !sn.areNodes(t.FailedOn) {
			return refuse(ErrInvalid, what, "past attempts of task %d: %+v", t.Index, t.pastAttempts)
		}
		if g.pastAttempts == nil {
			g.pastAttempts = map[int32]pastAttempts{}
		}
		g.pastAttempts[t.Index] = t.pastAttempts
		if t.Failures >= g.maxAttempts() && g.pending.has(t.Index) {
			g.pending.clear(t.Index) // loadAttempts reverts this for a task with a live attempt
			g.addPending(-1)
			g.Failed++
		}
	}
	for _, m := range v.Moved {
		if err := sn.s.Events().SetInput(g.Task(m.Index), m.Nodes, m.Local); err != nil {
			return err
		}
	}
	return nil
}

// areNodes reports whether all ids are of nodes, and not more than a task may have failed on.
func (sn snapshots) areNodes(ids []NodeID) bool {
	return len(ids) <= maxFailedOn && !slices.ContainsFunc(ids, func(id NodeID) bool { return sn.s.Node(id) == nil })
}

func (sn snapshots) loadAttempts(v *saved) error {
	seen := make(map[uint64]bool, len(v.Attempts))
	sn.s.suspended.beginLoad()
	defer sn.s.suspended.endLoad()
	for i := range v.Attempts {
		sa := &v.Attempts[i]
		g := sn.s.Stage(sa.ID.StageID())
		if err := sn.checkSaved(g, sa); err != nil {
			return err
		}
		what := "attempt " + sa.ID.String()
		if seen[sa.Seq] || sa.Seq > v.Seq {
			return refuse(ErrInvalid, what, "its seq %d is another attempt's or above the State's", sa.Seq)
		}
		seen[sa.Seq] = true
		task := sa.ID.Index
		slot := sn.s.Attempts().newSlot()
		switch first := g.active.get(task); {
		case first == 0:
			g.active.set(task, slot+1)
			g.busy.set(task)
			if g.pending.has(task) {
				g.pending.clear(task)
				g.addPending(-1)
			} else if !g.done.has(task) {
				g.Failed--
			}
		case sn.s.Attempts().at(first-1).sibling != 0 || sn.s.Attempts().at(first-1).ID.Attempt >= sa.ID.Attempt:
			return refuse(ErrInvalid, what, "its task already has other attempts")
		default:
			sn.s.Attempts().at(first - 1).sibling = slot + 1
		}
		*sn.s.Attempts().at(slot) = sn.restoreAttempt(g, sa)
		g.progressSum += int64(sa.Progress * progressUnit)
		g.Job.Live++
		sn.s.live++
		sn.s.links().attach(sn.s.Attempts().at(slot), slot)
		sn.s.Queue().updateReady(g)
		sn.s.stalled.update(g)
	}
	return nil
}

// restoreAttempt builds an attempt from its saved form. What it occupies follows from its
// level.
func (sn snapshots) restoreAttempt(g *Stage, v *savedAttempt) Attempt {
	a := Attempt{ID: v.ID, Node: v.Node, Disk: v.Disk, Level: v.Level, Target: v.Target, Phase: v.Phase,
		Speculative: v.Speculative, Parked: v.Parked, RefusedLevels: v.RefusedLevels, Placed: v.Placed, Seq: v.Seq, attemptDetails: g.sharedDetails()}
	d := a.ownDetails()
	d.Run, d.From, d.FromDisk, d.FromOccupied, d.Footprint = v.Run, v.From, v.FromDisk, v.FromOccupied, v.Footprint
	d.Ran, d.SuspendedAt, d.Suspends, d.Progress, d.Estimate = v.Ran, v.SuspendedAt, v.Suspends, v.Progress, v.Estimate
	d.Occupied = a.Level.Occupancy(a.Demand, a.DiskSpace, a.Footprint)
	return a
}

// checkSaved validates a saved attempt of stage g, which is nil if there is none.
func (sn snapshots) checkSaved(g *Stage, v *savedAttempt) error {
	what := "attempt " + v.ID.String()
	if g == nil || v.ID.Index < 0 || v.ID.Index >= g.Spec.Tasks {
		return refuse(ErrUnknown, what, "there is no such task")
	}
	if why := v.findProblem(); why != "" {
		return refuse(ErrInvalid, what, "%s", why)
	}
	_, err := sn.s.applier().findTarget(v.Node, v.Disk, g.Spec.Demand, g.Spec.Disk, false)
	if err == nil && v.From != NoNode {
		_, err = sn.s.applier().findTarget(v.From, v.FromDisk, v.FromOccupied.Resources, v.FromOccupied.Disk, false)
	}
	return err
}

// findProblem returns what of a saved attempt contradicts itself, "" if nothing does.
func (v *savedAttempt) findProblem() string {
	suspended, migrating := v.Level.Suspended(), v.From != NoNode
	switch {
	case v.ID.Attempt < 1 || v.ID.Attempt > math.MaxInt32/2 || v.Run < 1 || v.Run > math.MaxInt32/2:
		return fmt.Sprintf("run is %d", v.Run)
	case v.Phase < AttemptStarting || v.Phase > AttemptKilling || v.Level < LevelRunning || v.Level > LevelCheckpointed || v.Target > LevelCheckpointed:
		return fmt.Sprintf("phase %v, level %v, target %v", v.Phase, v.Level, v.Target)
	case suspended && v.Phase != AttemptSuspended && v.Phase != AttemptSuspending && v.Phase != AttemptKilling, !suspended && v.Phase == AttemptSuspended:
		return fmt.Sprintf("phase %v at level %v", v.Phase, v.Level)
	case !(v.Progress >= 0 && v.Progress <= 1) || v.Ran < 0 || v.Estimate < 0 || v.Suspends < 0:
		return fmt.Sprintf("progress %v, ran %v, estimate %v", v.Progress, v.Ran, v.Estimate)
	case v.RefusedLevels&^AllLevels != 0 || v.RefusedLevels.Has(LevelRunning):
		return fmt.Sprintf("refused levels %b are not all suspended levels", v.RefusedLevels)
	case !v.FromOccupied.valid() || !v.Footprint.valid():
		return fmt.Sprintf("occupancy %+v, footprint %+v", v.FromOccupied, v.Footprint)
	case !migrating && v.FromOccupied != (Occupancy{}):
		return "it is not migrating but occupies something on a source"
	case migrating && (v.From == v.Node || suspended || (v.Phase != AttemptResuming && v.Phase != AttemptKilling)):
		return fmt.Sprintf("it is %v and migrates from %d to %d", v.Phase, v.From, v.Node)
	}
	return ""
}

func (h Occupancy) valid() bool {
	return h.Resources.Check() == nil && h.Swap >= 0 && h.Swap <= MaxAmount && h.Disk >= 0 && h.Disk <= MaxAmount
}

func (f Footprint) valid() bool {
	return min(f.Memory, f.Swap, f.Image, f.Files) >= 0 && max(f.Memory, f.Swap, f.Image, f.Files) <= MaxAmount/4
}

func (sn snapshots) loadReservationsAndStates(v *saved) error {
	for i := range v.Reservations {
		if sn.s.Reservations().Get(v.Reservations[i].ID) != nil {
			return refuse(ErrExists, fmt.Sprintf("reservation %d", v.Reservations[i].ID), "it exists twice")
		}
		if err := sn.s.applier().reserve(&v.Reservations[i]); err != nil {
			return err
		}
	}
	for _, p := range v.PolicyStates {
		if p.Kind == TombstoneState {
			return refuse(ErrInvalid, "policy state", "a saved policy state cannot be a %v", p.Kind)
		}
	}
	if err := sn.s.PolicyStates().Apply(v.PolicyStates); err != nil {
		return err
	}
	if len(v.Tasks) > historyTasks {
		return refuse(ErrInvalid, "history", "%d tasks, want at most %d", len(v.Tasks), historyTasks)
	}
	for _, t := range v.Tasks {
		sn.s.history.put(t)
	}
	sn.s.unplannedReleases, sn.s.history.total = v.UnplannedReleases, v.TasksEver
	return nil
}

// Bytes returns the output of Save.
func (s *State) Bytes() []byte {
	var b bytes.Buffer
	if err := s.Save(&b); err != nil {
		panic("scheduler: cannot save a state: " + err.Error()) // cannot happen: events validate every field
	}
	return b.Bytes()
}

// Clone returns an independent copy of the State, rebuilt from its facts without serialising
// them. Immutable parts are shared: the inputs of stages and the lists in specs. O(jobs +
// attempts + tasks/64 + history).
func (s *State) Clone() *State {
	c, err := restore(s.snapshots().saved())
	if err != nil {
		panic("scheduler: cannot copy a state: " + err.Error())
	}
	return c
}

// snapshots saves and loads a State.
type snapshots struct{ s *State }

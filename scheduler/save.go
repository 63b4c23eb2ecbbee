package scheduler

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// SaveVersion is the version of the format that Save writes.
const SaveVersion = 1

// saved is a State as a file: facts only. Counts, sets and what is free are
// worked out again by Load.
type saved struct {
	Version      int            `json:"version"`
	Index        uint64         `json:"index"`
	Seq          uint64         `json:"seq"`
	Nodes        []NodeSpec     `json:"nodes"`
	Tenants      []TenantSpec   `json:"tenants"`
	Projects     []ProjectSpec  `json:"projects,omitempty"`
	Jobs         []savedJob     `json:"jobs,omitempty"`
	Attempts     []savedAttempt `json:"attempts,omitempty"`
	Reservations []Reservation  `json:"reservations,omitempty"`
	Notes        []Note         `json:"notes,omitempty"`
	Holes        uint64         `json:"holes,omitempty"`
	TasksEver    uint64         `json:"tasks_ever,omitempty"`
	JobsEver     uint64         `json:"jobs_ever,omitempty"`
	Tasks        []FinishedTask `json:"finished_tasks,omitempty"`
	Finished     []FinishedJob  `json:"finished_jobs,omitempty"`
}

type savedJob struct {
	Spec        JobSpec      `json:"spec"`
	Phase       JobPhase     `json:"phase"`
	FirstPlaced Time         `json:"first_placed,omitempty"`
	Stages      []savedStage `json:"stages"`
}

type savedStage struct {
	Spec     StageSpec    `json:"spec"`
	Done     [][2]int32   `json:"done,omitempty"` // [from, to)
	Tries    []savedTries `json:"tries,omitempty"`
	Moved    []savedInput `json:"moved,omitempty"`
	TaskTime float64      `json:"task_time,omitempty"`
	LastTick Time         `json:"last_tick,omitempty"`
}

type savedTries struct {
	Index int32 `json:"index"`
	tries
}

type savedInput struct {
	Index int32    `json:"index"`
	Nodes []NodeID `json:"nodes"`
	Local []int64  `json:"local,omitempty"`
}

type savedAttempt struct {
	ID          AttemptID     `json:"id"`
	Run         int32         `json:"run"`
	Node        NodeID        `json:"node"`
	From        NodeID        `json:"from"`
	Disk        int16         `json:"disk"`
	FromDisk    int16         `json:"from_disk"`
	Level       Level         `json:"level"`
	Target      Level         `json:"target,omitempty"`
	Phase       AttemptPhase  `json:"phase"`
	Speculative bool          `json:"speculative,omitempty"`
	FromHeld    Held          `json:"from_held,omitzero"`
	Footprint   Footprint     `json:"footprint,omitzero"`
	Seq         uint64        `json:"seq"`
	Placed      Time          `json:"placed"`
	Ran         time.Duration `json:"ran_ns,omitempty"`
	SuspendedAt Time          `json:"suspended_at,omitempty"`
	Suspends    int32         `json:"suspends,omitempty"`
	Parked      bool          `json:"parked,omitempty"`
	Barred      LevelSet      `json:"barred,omitzero"`
	Progress    float64       `json:"progress,omitempty"`
	Estimate    time.Duration `json:"estimate_ns,omitempty"`
}

// Save writes the State as JSON. Equal States give equal bytes.
func (s *State) Save(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(s.saved()); err != nil {
		return fmt.Errorf("save the state: %w", err)
	}
	return nil
}

func (s *State) saved() *saved {
	v := &saved{Version: SaveVersion, Index: s.index, Seq: s.seq, Notes: s.Notes(), Nodes: []NodeSpec{}, Tenants: []TenantSpec{},
		Holes: s.holes, TasksEver: s.history.tasks.n, JobsEver: s.history.jobs.n, Tasks: s.history.allTasks(), Finished: s.history.jobs.all()}
	for _, n := range s.nodes {
		v.Nodes = append(v.Nodes, n.Spec)
	}
	for _, t := range s.tenants {
		v.Tenants = append(v.Tenants, t.Spec)
	}
	for _, p := range s.Projects() {
		v.Projects = append(v.Projects, p.Spec)
	}
	for _, r := range s.reservations {
		v.Reservations = append(v.Reservations, *r)
	}
	for j := range s.Jobs() {
		sj := savedJob{Spec: j.Spec, Phase: j.Phase, FirstPlaced: j.FirstPlaced, Stages: []savedStage{}}
		for _, g := range j.Stages {
			sj.Stages = append(sj.Stages, g.saved())
			for a := range s.AttemptsIn(g) {
				v.Attempts = append(v.Attempts, a.saved())
			}
		}
		v.Jobs = append(v.Jobs, sj)
	}
	return v
}

func (g *Stage) saved() savedStage {
	out := savedStage{Spec: g.Spec, Done: g.done.ranges(), TaskTime: g.taskTime, LastTick: g.lastTick}
	for i, t := range g.tries {
		out.Tries = append(out.Tries, savedTries{i, t})
	}
	slices.SortFunc(out.Tries, func(a, b savedTries) int { return cmp.Compare(a.Index, b.Index) })
	for i, m := range g.moved {
		out.Moved = append(out.Moved, savedInput{i, m.nodes, m.local})
	}
	slices.SortFunc(out.Moved, func(a, b savedInput) int { return cmp.Compare(a.Index, b.Index) })
	return out
}

func (a *Attempt) saved() savedAttempt {
	return savedAttempt{ID: a.ID, Run: a.Run, Node: a.Node, From: a.From, Disk: a.Disk, FromDisk: a.FromDisk, Level: a.Level,
		Target: a.Target, Phase: a.Phase, Speculative: a.Speculative, FromHeld: a.FromHeld, Footprint: a.Footprint, Seq: a.Seq,
		Placed: a.Placed, Ran: a.Ran, SuspendedAt: a.SuspendedAt, Suspends: a.Suspends, Parked: a.Parked, Barred: a.Barred, Progress: a.Progress, Estimate: a.Estimate}
}

// Load reads what Save wrote. Whatever it accepts can be scheduled without a
// panic; what it refuses it names.
func Load(r io.Reader) (*State, error) {
	var v saved
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("load a state: %w", err)
	}
	if v.Version != SaveVersion {
		return nil, refuse(ErrInvalid, "saved state", "version is %d, this program reads %d", v.Version, SaveVersion)
	}
	return restore(&v)
}

// restore makes the State that saved facts describe.
func restore(v *saved) (*State, error) {
	s := New()
	for _, step := range []func(*saved) error{s.loadCluster, s.loadJobs, s.loadAttempts, s.loadMemory} {
		if err := step(v); err != nil {
			return nil, fmt.Errorf("load a state: %w", err)
		}
	}
	s.index, s.seq, s.changes = v.Index, v.Seq, 0
	return s, nil
}

func (s *State) loadCluster(v *saved) error {
	for _, n := range v.Nodes {
		if err := s.AddNode(n); err != nil {
			return err
		}
	}
	// A tenant may hang on a later one, so all are put first and tied then.
	for _, t := range v.Tenants {
		t.Parent = NoTenant
		if err := s.PutTenant(t); err != nil {
			return err
		}
	}
	for _, t := range v.Tenants {
		if err := s.PutTenant(t); err != nil {
			return err
		}
	}
	for _, p := range v.Projects {
		if err := s.PutProject(p); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) loadJobs(v *saved) error {
	for i := range v.Jobs {
		sj := &v.Jobs[i]
		stages := make([]StageSpec, len(sj.Stages))
		for k := range sj.Stages {
			stages[k] = sj.Stages[k].Spec
		}
		if err := s.SubmitJob(sj.Spec, stages); err != nil {
			return err
		}
		j := s.jobs[sj.Spec.ID]
		if sj.Phase < JobActive || sj.Phase > JobStopping {
			return refuse(ErrInvalid, fmt.Sprintf("job %d", sj.Spec.ID), "phase is %v", sj.Phase)
		}
		j.FirstPlaced = sj.FirstPlaced
		for k, g := range j.Stages {
			if err := s.loadStage(g, &sj.Stages[k]); err != nil {
				return err
			}
		}
		s.setPhase(j, sj.Phase)
		for _, g := range j.Stages {
			s.reopen(g)
		}
	}
	return nil
}

func (s *State) loadStage(g *Stage, v *savedStage) error {
	what := "stage " + g.ID().String()
	if !(v.TaskTime >= 0) || math.IsInf(v.TaskTime, 0) {
		return refuse(ErrInvalid, what, "task_time is %v", v.TaskTime)
	}
	g.taskTime, g.lastTick = v.TaskTime, v.LastTick
	for _, r := range v.Done {
		if r[0] < 0 || r[1] > g.Spec.Tasks {
			return refuse(ErrInvalid, what, "tasks %d to %d are done of %d", r[0], r[1], g.Spec.Tasks)
		}
		for i := r[0]; i < r[1]; i++ {
			if !g.done.has(i) {
				g.done.set(i)
				g.Done++
				g.pending.clear(i)
				g.Pending--
			}
		}
	}
	for _, t := range v.Tries {
		if t.Index < 0 || t.Index >= g.Spec.Tasks || t.Last < 0 || t.Last > math.MaxInt32/2 || t.Failures < 0 {
			return refuse(ErrInvalid, what, "tries of task %d: %+v", t.Index, t.tries)
		}
		if g.tries == nil {
			g.tries = map[int32]tries{}
		}
		g.tries[t.Index] = t.tries
		if t.Failures >= g.maxAttempts() && g.pending.has(t.Index) {
			g.pending.clear(t.Index) // loadAttempts takes it back if one lives
			g.Pending--
			g.Failed++
		}
	}
	for _, m := range v.Moved {
		if err := s.SetInput(g.Task(m.Index), m.Nodes, m.Local); err != nil {
			return err
		}
	}
	return nil
}

func (s *State) loadAttempts(v *saved) error {
	seen := make(map[uint64]bool, len(v.Attempts))
	for i := range v.Attempts {
		sa := &v.Attempts[i]
		g := s.Stage(sa.ID.StageID())
		if err := s.checkSaved(g, sa); err != nil {
			return err
		}
		what := "attempt " + sa.ID.String()
		if seen[sa.Seq] || sa.Seq > v.Seq {
			return refuse(ErrInvalid, what, "its seq %d belongs to another or is to come", sa.Seq)
		}
		seen[sa.Seq] = true
		task := sa.ID.Index
		slot := s.newSlot()
		switch first := g.active[task]; {
		case first == 0:
			g.active[task] = slot + 1
			g.busy.set(task)
			if g.pending.has(task) {
				g.pending.clear(task)
				g.Pending--
			} else if !g.done.has(task) {
				g.Failed--
			}
		case s.at(first-1).sibling != 0 || s.at(first-1).ID.Attempt >= sa.ID.Attempt:
			return refuse(ErrInvalid, what, "its task has other attempts already")
		default:
			s.at(first - 1).sibling = slot + 1
		}
		*s.at(slot) = s.restored(g, sa)
		g.parts += int64(sa.Progress * partUnit)
		g.Job.Live++
		s.live++
		s.attach(s.at(slot), slot)
		s.refresh(g)
	}
	return nil
}

func (s *State) restored(g *Stage, v *savedAttempt) Attempt {
	a := Attempt{ID: v.ID, Node: v.Node, Disk: v.Disk, Level: v.Level, Target: v.Target, Phase: v.Phase,
		Speculative: v.Speculative, Parked: v.Parked, Barred: v.Barred, Placed: v.Placed, Seq: v.Seq, details: g.alike()}
	d := a.own()
	d.Run, d.From, d.FromDisk, d.FromHeld, d.Footprint = v.Run, v.From, v.FromDisk, v.FromHeld, v.Footprint
	d.Ran, d.SuspendedAt, d.Suspends, d.Progress, d.Estimate = v.Ran, v.SuspendedAt, v.Suspends, v.Progress, v.Estimate
	d.Held = a.Level.Holds(a.Demand, a.DiskSpace, a.Footprint)
	return a
}

func (s *State) checkSaved(g *Stage, v *savedAttempt) error {
	what := "attempt " + v.ID.String()
	if g == nil || v.ID.Index < 0 || v.ID.Index >= g.Spec.Tasks {
		return refuse(ErrUnknown, what, "there is no such task")
	}
	suspended := v.Level.Suspended()
	switch {
	case v.ID.Attempt < 1 || v.ID.Attempt > math.MaxInt32/2 || v.Run < 1 || v.Run > math.MaxInt32/2:
		return refuse(ErrInvalid, what, "run is %d", v.Run)
	case v.Phase < AttemptStarting || v.Phase > AttemptKilling || v.Level < LevelRunning || v.Level > LevelCheckpointed ||
		v.Target > LevelCheckpointed:
		return refuse(ErrInvalid, what, "phase %v, level %v, target %v", v.Phase, v.Level, v.Target)
	case suspended && v.Phase != AttemptSuspended && v.Phase != AttemptSuspending && v.Phase != AttemptKilling,
		!suspended && v.Phase == AttemptSuspended:
		return refuse(ErrInvalid, what, "phase %v at level %v", v.Phase, v.Level)
	case !(v.Progress >= 0 && v.Progress <= 1) || v.Ran < 0 || v.Estimate < 0 || v.Suspends < 0:
		return refuse(ErrInvalid, what, "progress %v, ran %v, estimate %v", v.Progress, v.Ran, v.Estimate)
	case v.Barred&^AllLevels != 0 || v.Barred.Has(LevelRunning):
		return refuse(ErrInvalid, what, "levels %b cannot be barred", v.Barred)
	case !v.FromHeld.valid() || !v.Footprint.valid():
		return refuse(ErrInvalid, what, "it holds %+v and %+v", v.FromHeld, v.Footprint)
	}
	if _, err := s.target(v.Node, v.Disk, g.Spec.Demand, g.Spec.Disk, false); err != nil {
		return err
	}
	if v.From == NoNode {
		if v.FromHeld != (Held{}) {
			return refuse(ErrInvalid, what, "it moves from nowhere and holds something there")
		}
		return nil
	}
	if v.From == v.Node || (v.Phase != AttemptResuming && v.Phase != AttemptKilling) || suspended {
		return refuse(ErrInvalid, what, "it is %v and moves from %d to %d", v.Phase, v.From, v.Node)
	}
	_, err := s.target(v.From, v.FromDisk, v.FromHeld.Resources, v.FromHeld.Disk, false)
	return err
}

func (h Held) valid() bool {
	return h.Resources.Check() == nil && h.Swap >= 0 && h.Swap <= MaxAmount && h.Disk >= 0 && h.Disk <= MaxAmount
}

func (f Footprint) valid() bool {
	return min(f.Memory, f.Swap, f.Image, f.Files) >= 0 && max(f.Memory, f.Swap, f.Image, f.Files) <= MaxAmount/4
}

func (s *State) loadMemory(v *saved) error {
	for i := range v.Reservations {
		if s.Reservation(v.Reservations[i].ID) != nil {
			return refuse(ErrExists, fmt.Sprintf("reservation %d", v.Reservations[i].ID), "it is there twice")
		}
		if err := s.applyReserve(&v.Reservations[i]); err != nil {
			return err
		}
	}
	for _, n := range v.Notes {
		if n.Kind == NoteForget {
			return refuse(ErrInvalid, "note", "a saved note cannot be %v", n.Kind)
		}
	}
	if err := s.ApplyNotes(v.Notes); err != nil {
		return err
	}
	if len(v.Tasks) > HistoryTasks || len(v.Finished) > HistoryJobs {
		return refuse(ErrInvalid, "history", "%d tasks and %d jobs: more than is kept", len(v.Tasks), len(v.Finished))
	}
	s.history.putTasks(v.Tasks)
	for _, j := range v.Finished {
		s.history.jobs.put(j, HistoryJobs)
	}
	s.holes, s.history.tasks.n, s.history.jobs.n = v.Holes, v.TasksEver, v.JobsEver
	return nil
}

// Bytes is what Save writes.
func (s *State) Bytes() []byte {
	var b bytes.Buffer
	if err := s.Save(&b); err != nil {
		panic("scheduler: a state cannot be saved: " + err.Error()) // every field is checked at the door
	}
	return b.Bytes()
}

// Clone makes an independent copy: the State is made again from its facts, without
// writing them down. What nobody changes is shared: the inputs of stages and the
// lists in specs. O(jobs + attempts + tasks/64 + history).
func (s *State) Clone() *State {
	c, err := restore(s.saved())
	if err != nil {
		panic("scheduler: a state cannot be made again: " + err.Error())
	}
	return c
}

// Equal tells whether two States hold the same facts.
func Equal(a, b *State) bool { return bytes.Equal(a.Bytes(), b.Bytes()) }

// Diff lists where two States differ, at most 20 lines of their saved form, a
// line of a with "-" and of b with "+"; "" if they are equal.
func Diff(a, b *State) string {
	x, y := a.Bytes(), b.Bytes()
	if bytes.Equal(x, y) {
		return ""
	}
	lines := func(raw []byte) []string {
		var out bytes.Buffer
		if err := json.Indent(&out, raw, "", " "); err != nil {
			return []string{err.Error()}
		}
		return strings.Split(out.String(), "\n")
	}
	p, q := lines(x), lines(y)
	for len(p) > 0 && len(q) > 0 && p[0] == q[0] {
		p, q = p[1:], q[1:]
	}
	for len(p) > 0 && len(q) > 0 && p[len(p)-1] == q[len(q)-1] {
		p, q = p[:len(p)-1], q[:len(q)-1]
	}
	var out strings.Builder
	for i := range min(10, len(p)) {
		fmt.Fprintf(&out, "-%s\n", p[i])
	}
	for i := range min(10, len(q)) {
		fmt.Fprintf(&out, "+%s\n", q[i])
	}
	return out.String()
}

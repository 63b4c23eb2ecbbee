package facts

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// ActionKind mirrors scheduler.ActionKind: the numbers stand in the log.
type ActionKind int32

// The kinds of actions in the log.
const (
	ActPlace ActionKind = iota + 1
	ActSuspend
	ActResume
	ActMigrate
	ActKill
	ActReserve
	ActUnreserve
)

// noteForget mirrors scheduler.NoteForget: drops the note of the kind in Value.
const noteForget = 13

// Kinds of notes that mean something to the facts; they mirror those of the
// scheduler.
const (
	notePromise  = 7
	noteAccepted = 14
	noteRefused  = 15
)

// applyDecision carries out what of a decision still holds, action by action.
func (f *Facts) applyDecision(e *droverv1.Entry, d *droverv1.DecisionFact, r *Result) {
	for i, a := range d.GetActions() {
		if why := f.act(e, a); why != "" {
			r.Dropped = append(r.Dropped, Drop{i, why})
		} else {
			r.Changed++
		}
	}
	for _, n := range d.GetNotes() {
		f.applyNote(e, n)
	}
	if len(d.GetNotes()) > 0 {
		f.record(Change{Kind: ChangeNotes})
	}
}

// act carries out one action and gives "" or why it does not hold.
func (f *Facts) act(e *droverv1.Entry, a *droverv1.ActionFact) string {
	switch ActionKind(a.GetKind()) {
	case ActPlace:
		return f.place(e, a)
	case ActSuspend:
		return f.setLevel(e, a, a.GetLevel())
	case ActResume:
		return f.setLevel(e, a, droverv1.Level_LEVEL_RUNNING)
	case ActKill:
		return f.kill(e, a)
	case ActReserve:
		return f.reserve(a.GetReservation())
	case ActUnreserve:
		delete(f.reservations, a.GetReservation().GetId())
		f.record(Change{Kind: ChangeNotes})
		return ""
	case ActMigrate:
		return f.migrate(e, a)
	default:
		return fmt.Sprintf("unknown action %d", a.GetKind())
	}
}

// place makes a new attempt, if the task still waits, the number is the next
// one, and the node is up, takes work and has room.
func (f *Facts) place(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k := KeyOf(act.GetKey())
	t, n := f.task(k), f.Node(act.GetNode())
	if t == nil {
		return "no such task"
	}
	j := f.jobs[k.Job]
	if why := f.mayPlace(j, k, t, act, n); why != "" {
		return why
	}
	j = f.write(j)
	a := &Attempt{
		Attempt: k.Attempt, Run: 1, Node: n.ID, Epoch: n.Epoch, Disk: act.GetDisk(), State: AttemptLive, Level: droverv1.Level_LEVEL_RUNNING,
		Speculative: act.GetSpeculative(), Locality: clip(act.GetLocality(), 16), Placed: f.at, Seq: f.next(), Held: j.Demand(int(k.Stage)),
		EstimateNS: j.Stages[k.Stage].EstimateNS,
	}
	c := t.with(a)
	s := &j.Stages[k.Stage]
	if c.State == TaskPending {
		c.State = TaskActive
		s.Pending--
	}
	s.Live++
	j.Live++
	if j.Started == 0 {
		j.Started, j.State = f.at, droverv1.JobState_JOB_STATE_RUNNING
		f.event(e, "job.started", &Event{Job: j.Name, JobID: j.ID})
		f.record(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	}
	f.setTask(j, k.Stage, k.Task, c)
	f.hold(n.ID, a.Held, +1)
	if f.onNode[n.ID] == nil {
		f.onNode[n.ID] = map[Key]struct{}{}
	}
	f.onNode[n.ID][k] = struct{}{}
	f.event(e, "task.placed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, 1), Node: n.Info.GetName(), Text: a.Locality})
	f.record(Change{Kind: ChangePlaced, Key: k, Node: n.ID})
	return ""
}

func (f *Facts) mayPlace(j *Job, k Key, t *Task, act *droverv1.ActionFact, n *Node) string {
	last, holding := int32(0), 0
	for _, a := range t.Attempts {
		last = max(last, a.Attempt)
		if a.State.Holds() {
			holding++
		}
	}
	switch {
	case j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING:
		return "the job has ended"
	case act.GetSpeculative() && (t.State != TaskActive || holding != 1):
		return "there is not exactly one attempt that a second one could overtake"
	case act.GetSpeculative() && j.Spec.Stages[k.Stage].Exclusive:
		return "its stage is exclusive: no second attempt runs beside the first"
	case !act.GetSpeculative() && t.State != TaskPending:
		return "the task does not wait any more"
	case k.Attempt <= last || act.GetKey().GetRun() != 1:
		return fmt.Sprintf("attempt %d run %d, the next is at least %d run 1", k.Attempt, act.GetKey().GetRun(), last+1)
	case n == nil || !n.Up:
		return "the node is not up"
	case n.Draining:
		return "the node takes no new work"
	case n.Trial && n.Attempts > 0:
		return OnTrial
	case act.GetDisk() < -1 || int(act.GetDisk()) >= len(n.Info.GetDisks()):
		return "the node has no such disk"
	case !j.Demand(int(k.Stage)).fits(AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1)):
		return "the node has no room any more"
	case !j.stageOpen(int(k.Stage)):
		return "a stage before it is not done"
	}
	return ""
}

// stageOpen tells whether the tasks of stage i may start: what it comes after
// is done. Maps whose outputs are fetched by a reduce stage do not count: one
// may be made again at any time, and a reduce task waits for it.
func (j *Job) stageOpen(i int) bool {
	for _, a := range j.StageAfter(i) {
		if int(a) == j.MapStage() && j.ReduceStage() >= 0 {
			continue
		}
		if j.Stages[a].Done < j.Stages[a].Tasks {
			return false
		}
	}
	return true
}

// StageAfter lists the stages that must be done before stage i, in order.
func (j *Job) StageAfter(i int) []int32 {
	var out []int32
	for _, name := range j.Spec.Stages[i].After {
		for k := range j.Spec.Stages {
			if j.Spec.Stages[k].Name == name && k != i {
				out = append(out, int32(k))
			}
		}
	}
	if m := j.MapStage(); j.Spec.Stages[i].Kind == jobspec.KindReduce && m >= 0 {
		out = append(out, int32(m))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// live finds the live attempt that an action is about, or says why not.
func (f *Facts) liveAttempt(act *droverv1.ActionFact) (Key, *Attempt, string) {
	k := KeyOf(act.GetKey())
	a := f.Attempt(k)
	switch {
	case a == nil:
		return k, nil, "no such attempt"
	case a.Run != act.GetKey().GetRun():
		return k, nil, fmt.Sprintf("run %d, the present one is %d", act.GetKey().GetRun(), a.Run)
	case a.State != AttemptLive:
		return k, nil, "the attempt is " + a.State.String()
	}
	return k, a, ""
}

func (f *Facts) kill(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k, a, why := f.liveAttempt(act)
	if why != "" {
		return why
	}
	j := f.write(f.jobs[k.Job])
	c := *a
	c.Sus.Killed, c.Sus.Why, c.Sus.By, c.Sus.For = true, clip(act.GetWhy(), 256), clip(e.GetActor(), 128), act.GetForJob()
	f.stopAttempt(j, k, &c)
	f.event(e, "task.killed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: f.nodeNameOf(a.Node), Text: strings.TrimPrefix(f.forWhom(&c), ", ")})
	return ""
}

// maxReservations bounds the reservations.
const maxReservations = 1 << 17

func (f *Facts) reserve(r *droverv1.ReservationFact) string {
	switch j := f.jobs[r.GetJob()]; {
	case r.GetId() == 0:
		return "a reservation needs an id"
	case r.GetJob() != 0 && (j == nil || j.HasEnded()):
		return "the job has ended"
	case f.reservations[r.GetId()] == nil && len(f.reservations) >= maxReservations:
		return "too many reservations"
	}
	f.reservations[r.GetId()] = r
	f.record(Change{Kind: ChangeNotes})
	return ""
}

// applyNote remembers a note of a live job or of none, within MaxNotes.
func (f *Facts) applyNote(e *droverv1.Entry, n *droverv1.NoteFact) {
	key := NoteKey{n.GetKind(), n.GetJob(), n.GetStage(), n.GetTask(), n.GetTenant(), n.GetSlot(), n.GetProject()}
	if n.GetKind() == noteForget {
		key.Kind = int32(n.GetValue())
		delete(f.notes, key)
		return
	}
	if j := f.jobs[key.Job]; key.Job != 0 && (j == nil || j.HasEnded()) {
		return
	}
	if f.notes[key] == nil && len(f.notes) >= MaxNotes {
		return
	}
	f.notePromised(e, n)
	f.notes[key] = &Note{key, n.GetValue(), n.GetReal(), n.GetUntil()}
}

func compareNotes(a, b *NoteKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Project, b.Project), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Stage, b.Stage),
		cmp.Compare(a.Task, b.Task), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Slot, b.Slot))
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

package facts

import (
	"cmp"
	"fmt"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// ActionKind mirrors scheduler.ActionKind: the numbers are persisted in the
// log.
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

// tombstoneState mirrors scheduler.TombstoneState: it deletes the state of the
// kind in Value.
const tombstoneState = 13

// Kinds of policy state that the facts interpret; they mirror those of the
// scheduler.
const (
	guaranteeState       = 7
	latestDepartureState = 8
	violatedState        = 9
	acceptedState        = 14
	refusedState         = 15
)

// applyDecision applies the actions of a decision that are not stale, one by
// one.
func (en decisionEntries) applyDecision(e *droverv1.Entry, d *droverv1.DecisionFact, r *Result) {
	for i, a := range d.GetActions() {
		if why := en.applyAction(e, a); why != "" {
			r.Dropped = append(r.Dropped, Drop{i, why})
		} else {
			r.Changed++
		}
	}
	for _, n := range d.GetPolicyStates() {
		en.applyPolicyState(e, n, r)
	}
	if len(d.GetPolicyStates()) > 0 {
		writerOf(en.f).recordChange(Change{Kind: ChangePolicyState})
	}
}

// applyAction applies one action and returns "" or why it is stale.
func (en decisionEntries) applyAction(e *droverv1.Entry, a *droverv1.ActionFact) string {
	switch ActionKind(a.GetKind()) {
	case ActPlace:
		return en.place(e, a)
	case ActSuspend:
		return en.setLevel(e, a, a.GetLevel())
	case ActResume:
		return en.setLevel(e, a, droverv1.Level_LEVEL_RUNNING)
	case ActKill:
		return en.kill(e, a)
	case ActReserve:
		return en.reserve(a.GetReservation())
	case ActUnreserve:
		en.f.reservations.remove(a.GetReservation().GetId())
		writerOf(en.f).recordChange(Change{Kind: ChangePolicyState})
		return ""
	case ActMigrate:
		return en.migrate(e, a)
	default:
		return fmt.Sprintf("unknown action %d", a.GetKind())
	}
}

// place creates a new attempt if the task is pending, the number is new, and
// the node is schedulable and has the capacity.
func (en decisionEntries) place(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k := KeyOf(act.GetKey())
	t, n := en.f.task(k), en.f.Node(act.GetNode())
	if t == nil {
		return "no such task"
	}
	j := en.f.jobs[k.Job]
	if why := en.f.Checks().whyNotPlaced(j, k, t, act, n); why != "" {
		return why
	}
	j = writerOf(en.f).writableJob(j)
	a := &Attempt{
		Attempt: k.Attempt, Run: act.GetKey().GetRun(), Node: n.ID, Epoch: n.Epoch, Disk: act.GetDisk(), State: AttemptLive, Level: droverv1.Level_LEVEL_RUNNING,
		Speculative: act.GetSpeculative(), Locality: clip(act.GetLocality(), 16), Placed: en.f.now, Seq: writerOf(en.f).nextSeq(), Occupied: j.Demand(int(k.Stage)),
		EstimateNS: j.Stages[k.Stage].EstimateNS,
	}
	en.addAttempt(e, j, k, a)
	RestoresOf(en.f).end()
	en.f.EventLog().add(e, "task.placed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: n.Info.GetName(), Text: a.Locality})
	writerOf(en.f).recordChange(Change{Kind: ChangePlaced, Key: k, Node: n.ID})
	return ""
}

// addAttempt adds a live attempt to its task and its node. The job came from writableJob.
func (en decisionEntries) addAttempt(e *droverv1.Entry, j *Job, k Key, a *Attempt) {
	s := &j.Stages[k.Stage]
	c := s.Task(k.Task).withAttempt(a)
	if c.State == TaskPending {
		c.State = TaskActive
		s.Pending--
	}
	s.Live++
	j.Live++
	if j.Started == 0 {
		j.Started, j.State = en.f.now, droverv1.JobState_JOB_STATE_RUNNING
		en.f.EventLog().add(e, "job.started", &Event{Job: j.Name, JobID: j.ID})
		writerOf(en.f).recordChange(Change{Kind: ChangeJob, Key: Key{Job: j.ID}})
	}
	writerOf(en.f).setTask(j, k.Stage, k.Task, c)
	nodesOf(en.f).charge(a.Node, a.Occupied, +1)
	if en.f.onNode[a.Node] == nil {
		en.f.onNode[a.Node] = map[Key]struct{}{}
	}
	en.f.onNode[a.Node][k] = struct{}{}
}

// whyNotPlaced returns why a placement is stale or may not be, or "".
func (c Checks) whyNotPlaced(j *Job, k Key, t *Task, act *droverv1.ActionFact, n *Node) string {
	last, active, live := int32(0), 0, 0
	for _, a := range t.Attempts {
		last = max(last, a.Attempt)
		if a.State.IsActive() {
			active++
		}
		if a.State == AttemptLive {
			live++
		}
	}
	switch {
	case j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING:
		return "the job has ended"
	case act.GetSpeculative() && (t.State != TaskActive || active != 1 || live != 1): // beside one that stops, the task may have lost its output: State still counts it as done
		return "a speculative attempt needs exactly one other attempt, which runs"
	case act.GetSpeculative() && j.Spec.Stages[k.Stage].Exclusive:
		return "its stage is exclusive: it has no speculative attempts"
	case !act.GetSpeculative() && t.State != TaskPending:
		return "the task is not pending"
	case k.Attempt <= last || act.GetKey().GetRun() != RestoresOf(c.f).FirstRun():
		return fmt.Sprintf("attempt %d run %d, the next is at least %d run %d", k.Attempt, act.GetKey().GetRun(), last+1, RestoresOf(c.f).FirstRun())
	case n == nil || !n.Up:
		return "the node is not up"
	case n.Draining:
		return "the node is draining"
	case n.Probation && n.Attempts > 0:
		return DropProbation
	case act.GetDisk() < -1 || int(act.GetDisk()) >= len(n.Info.GetDisks()):
		return "the node has no such disk"
	case !j.Demand(int(k.Stage)).fits(AmountsOf(n.Info.GetAllocatable()).add(n.Used, -1)):
		return "the node has no free capacity"
	case !j.stageOpen(int(k.Stage)):
		return "an earlier stage is not done"
	}
	return ""
}

// stageOpen reports whether the tasks of stage i may start: the stages before
// it are done. Maps whose outputs a reduce stage fetches do not count: one may
// be recomputed at any time, and a reduce task waits for it.
func (j *Job) stageOpen(i int) bool {
	for _, a := range j.Spec.StagesBefore(i) {
		if int(a) == j.MapStage() && j.ReduceStage() >= 0 {
			continue
		}
		if j.Stages[a].Done < j.Stages[a].Tasks {
			return false
		}
	}
	return true
}

// liveAttempt returns the live attempt that an action is about, or why there is
// none.
func (en decisionEntries) liveAttempt(act *droverv1.ActionFact) (Key, *Attempt, string) {
	k := KeyOf(act.GetKey())
	a := en.f.Attempt(k)
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

func (en decisionEntries) kill(e *droverv1.Entry, act *droverv1.ActionFact) string {
	k, a, why := en.liveAttempt(act)
	if why != "" {
		return why
	}
	j := writerOf(en.f).writableJob(en.f.jobs[k.Job])
	c := *a
	c.Suspension.Killed, c.Suspension.Reason, c.Suspension.Actor, c.Suspension.Preemptor = true, clip(act.GetReason(), 256), clip(e.GetActor(), 128), act.GetPreemptorJob()
	attemptsOf(en.f).stopAttempt(j, k, &c)
	en.f.EventLog().add(e, "task.killed", &Event{Job: j.Name, JobID: j.ID, Task: j.taskName(k, a.Run), Node: en.f.EventLog().nodeNameOf(a.Node), Text: strings.TrimPrefix(en.f.EventLog().preemptionText(j, &c), ", ")})
	return ""
}

// maxReservations bounds the reservations. It mirrors that of the scheduler's State: policies ask
// the State before they decide more, since one that is dropped here is decided again.
const maxReservations = 1 << 17

func (en decisionEntries) reserve(r *droverv1.ReservationFact) string {
	switch j := en.f.jobs[r.GetJob()]; {
	case r.GetId() == 0:
		return "a reservation needs an id"
	case r.GetJob() != 0 && (j == nil || j.HasEnded()):
		return "the job has ended"
	case en.f.reservations.all[r.GetId()] == nil && len(en.f.reservations.all) >= maxReservations:
		return "too many reservations"
	}
	en.f.reservations.put(r)
	writerOf(en.f).recordChange(Change{Kind: ChangePolicyState})
	return ""
}

// applyPolicyState stores or deletes the state of a live job or of none, within
// maxPolicyStates.
func (en decisionEntries) applyPolicyState(e *droverv1.Entry, n *droverv1.PolicyStateFact, r *Result) {
	key := PolicyStateKey{n.GetKind(), n.GetJob(), n.GetStage(), n.GetTask(), n.GetTenant(), n.GetSlot(), n.GetProject()}
	if n.GetKind() == tombstoneState {
		key.Kind = int32(n.GetValue())
		en.f.policyStates.remove(key)
		return
	}
	if j := en.f.jobs[key.Job]; key.Job != 0 && (j == nil || j.HasEnded()) {
		return
	}
	if en.f.policyStates.all[key] == nil && len(en.f.policyStates.all) >= maxPolicyStates {
		return
	}
	en.f.Deadlines().recordGuarantee(e, n)
	en.f.Deadlines().addProjectEvent(e, n)
	if en.f.Deadlines().recordViolation(e, n) {
		r.Violated++
	}
	en.f.policyStates.put(&PolicyState{key, n.GetValue(), n.GetReal(), n.GetAt()})
}

func comparePolicyStateKeys(a, b *PolicyStateKey) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Project, b.Project), cmp.Compare(a.Job, b.Job), cmp.Compare(a.Stage, b.Stage),
		cmp.Compare(a.Task, b.Task), cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Slot, b.Slot))
}

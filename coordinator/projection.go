package coordinator

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// projection keeps the scheduler's State in line with the facts. The loop owns
// it. Facts number nodes from 1, State from 0; tenants are numbered alike.
//
// It follows the journal change by change. A change whose effect State has
// already (an action of our own cycle) is refused by State as stale, and that
// is fine; any other refusal means that the two drifted apart, and the State
// is built anew.
type projection struct {
	state *scheduler.State
	hosts hostSource
	// late holds outputs that were lost while a sibling of the winner was
	// still being stopped: State takes the loss when the sibling has ended.
	late map[scheduler.TaskID]bool
	// guarantees tells whether the scheduler in force promises deadlines.
	guarantees func(f *facts.Facts) bool
	// replaying is set while rebuild goes through the past.
	replaying bool
}

// hostSource tells where the input of a job's splits lies: for each split the
// nodes that hold some of it, best first. nil where it is not known.
type hostSource func(f *facts.Facts, job uint64) [][]scheduler.NodeID

// errDrift means that State refused a change for another reason than age.
var errDrift = errors.New("the scheduler's state drifted from the facts")

func newProjection(hosts hostSource) *projection {
	return &projection{state: scheduler.New(), hosts: hosts, late: map[scheduler.TaskID]bool{}, guarantees: func(*facts.Facts) bool { return false }}
}

// follow brings changes in; on errDrift the caller builds anew.
func (p *projection) follow(f *facts.Facts, changes []facts.Change) error {
	for i := range changes {
		if err := p.change(f, &changes[i]); err != nil {
			return err
		}
	}
	p.state.SetIndex(f.Index())
	return nil
}

func (p *projection) change(f *facts.Facts, c *facts.Change) error {
	switch c.Kind {
	case facts.ChangeReset, facts.ChangeScheduler:
		return p.rebuild(f)
	case facts.ChangeTenant:
		return p.putTenant(f, f.Tenants()[c.Node])
	case facts.ChangeNode:
		return p.putNode(f.Node(c.Node))
	case facts.ChangeNodeLost:
		if err := settle(p.state.NodeLost(nodeID(c.Node), scheduler.Time(c.At))); err != nil {
			return err
		}
		return p.putNode(f.Node(c.Node)) // whether it takes work may have changed with it
	case facts.ChangeJob:
		return p.job(f, f.Job(c.Key.Job), c.At)
	case facts.ChangePlaced:
		return p.placed(f, c.Key)
	case facts.ChangeLevel:
		return p.level(f, c.Key, c.At)
	case facts.ChangeStopping:
		return p.stopping(f, c.Key, c.At)
	case facts.ChangeEnded:
		return p.ended(f, c.Key, c.At)
	case facts.ChangeOutput:
		return p.outputLost(c.Key)
	case facts.ChangeEstimate:
		return p.estimate(f, c.Key)
	case facts.ChangeForgotten, facts.ChangeBlobGone, facts.ChangeNotes:
		return nil
	default:
		return fmt.Errorf("%w: change of kind %v", errDrift, c.Kind)
	}
}

// leastPart is the progress of an attempt that is worth telling State.
const leastPart = 0.01

// hear brings in what nodes said of attempts and what is no fact: that they
// run, and how far they are. Each says it of itself alone, so the order does not
// matter. What is past is passed over, and what is no news changes nothing.
func (p *projection) hear(all []heard, now scheduler.Time) error {
	for i := range all {
		h := &all[i]
		a := p.state.Attempt(attemptID(h.key))
		if a == nil || a.Run != h.run {
			continue
		}
		if h.started && a.Phase == scheduler.AttemptStarting {
			if err := settle(p.state.AttemptStarted(a.ID, h.run, now)); err != nil {
				return err
			}
		}
		if h.part-a.Progress >= leastPart || (h.part == 1 && a.Progress < 1) {
			if err := settle(p.state.AttemptProgress(a.ID, h.run, h.part, 0)); err != nil {
				return err
			}
		}
	}
	return nil
}

// settle sorts State's refusals: what is past or gone is no news.
func settle(err error) error {
	if err == nil || errors.Is(err, scheduler.ErrStale) || errors.Is(err, scheduler.ErrUnknown) {
		return nil
	}
	return fmt.Errorf("%w: %w", errDrift, err)
}

func nodeID(id int32) scheduler.NodeID { return scheduler.NodeID(id - 1) }

func attemptID(k facts.Key) scheduler.AttemptID {
	return scheduler.AttemptID{TaskID: taskID(k), Attempt: k.Attempt}
}

func taskID(k facts.Key) scheduler.TaskID {
	return scheduler.TaskID{Job: scheduler.JobID(k.Job), Stage: k.Stage, Index: k.Task}
}

func resources(a facts.Amounts) scheduler.Resources {
	return scheduler.Resources{a.CPU, a.Memory, a.IO}
}

func (p *projection) putTenant(f *facts.Facts, t *facts.Tenant) error {
	s := scheduler.TenantSpec{ID: scheduler.TenantID(t.ID), Name: t.Spec.GetName(), Parent: scheduler.NoTenant, Weight: t.Spec.GetWeight()}
	if up := f.Tenant(t.Spec.GetParent()); up != nil {
		s.Parent = scheduler.TenantID(up.ID)
	}
	s.Caps.Total = scheduler.Limit(resources(facts.AmountsOf(t.Spec.GetCap())))
	s.Caps.Task = scheduler.Limit(resources(facts.AmountsOf(t.Spec.GetTaskCap())))
	return settle(p.state.PutTenant(s))
}

func (p *projection) putNode(n *facts.Node) error {
	s := nodeSpec(n)
	if p.state.Node(s.ID) == nil {
		return settle(p.state.AddNode(s))
	}
	return settle(p.state.UpdateNode(s))
}

// nodeSpec is a node as State sees it. Its I/O is the sum over its disks.
func nodeSpec(n *facts.Node) scheduler.NodeSpec {
	i := n.Info
	s := scheduler.NodeSpec{
		ID: nodeID(n.ID), Name: i.GetName(), Path: i.GetRack(), Capacity: resources(facts.AmountsOf(i.GetAllocatable())),
		Swap: i.GetSwap(), Down: !n.Up, Draining: n.Closed(), Levels: scheduler.Levels(scheduler.LevelRunning),
		CPUClass: restoreClass(i), Speeds: speeds(i.GetSpeeds()),
	}
	s.Capacity[scheduler.IO] = 0
	for _, d := range i.GetDisks() {
		s.Disks = append(s.Disks, scheduler.Disk{Name: d.GetName(), IO: d.GetIo(), Space: d.GetSpace()})
		s.Capacity[scheduler.IO] += d.GetIo()
	}
	for _, l := range i.GetLevels() {
		if l >= droverv1.Level_LEVEL_RUNNING && l <= droverv1.Level_LEVEL_CHECKPOINTED {
			s.Levels |= scheduler.Levels(scheduler.Level(l))
		}
	}
	return s
}

// restoreClass names what a dump depends on. Two nodes of one class restore each
// other's dumps; facts.CanRestore, which also allows a CPU of more flags, has the
// last word.
func restoreClass(i *droverv1.NodeInfo) string {
	flags := slices.Clone(i.GetCpuFlags())
	slices.Sort(flags)
	sum := sha256.Sum256([]byte(strings.Join(flags, " ")))
	v := i.GetVersions()
	return fmt.Sprintf("%s cpu %x kernel %s criu %s runc %s", i.GetDriver(), sum[:6], v["kernel"], v["criu"], v["runc"])
}

// speeds is what a node measured about suspending.
func speeds(p *droverv1.SuspendSpeed) scheduler.SuspendSpeed {
	us := func(n int64) time.Duration { return time.Duration(max(0, n)) * time.Microsecond }
	return scheduler.SuspendSpeed{
		Freeze: us(p.GetFreezeUs()), ThawAfterFreeze: us(p.GetThawUs()), Swap: us(p.GetSwapUs()), SwapPerS: p.GetSwapBps(), SwapBackPerS: p.GetSwapBackBps(),
		Checkpoint: us(p.GetCheckpointUs()), CheckpointPerS: p.GetCheckpointBps(), Restore: us(p.GetRestoreUs()), RestorePerS: p.GetRestoreBps(),
		TransferPerS: p.GetTransferBps(),
	}
}

// checkNode tells what is wrong with a node's registration, so that nothing
// that State refuses becomes a fact.
func checkNode(i *droverv1.NodeInfo) error {
	s := scheduler.New()
	return s.AddNode(nodeSpec(&facts.Node{ID: 1, Up: true, Info: i}))
}

// job brings in that a job was accepted, stops, or ended.
func (p *projection) job(f *facts.Facts, j *facts.Job, at int64) error {
	if j == nil {
		return nil
	}
	id := scheduler.JobID(j.ID)
	have := p.state.Job(id)
	over := j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING
	if have == nil {
		if j.HasEnded() && j.Live == 0 {
			return nil
		}
		if err := p.submit(f, j); err != nil {
			return err
		}
		have = p.state.Job(id)
	}
	if have.Spec.Deadline != 0 && (j.Lowered() || (j.Refused && !have.Spec.Accepted)) {
		spec := have.Spec
		spec.Deadline, spec.Accepted, spec.OnMiss = 0, false, 0
		promiseOf(j, &spec, p.guarantees(f))
		if err := settle(p.state.UpdateJob(spec)); err != nil {
			return err
		}
	}
	if over && have.Phase != scheduler.JobStopping {
		if err := settle(p.state.StopJob(id)); err != nil {
			return err
		}
	}
	return p.endJob(f, j, at)
}

// endJob takes an ended job out once nothing of it lives.
func (p *projection) endJob(f *facts.Facts, j *facts.Job, at int64) error {
	have := p.state.Job(scheduler.JobID(j.ID))
	if !j.HasEnded() || have == nil || have.Live > 0 {
		return nil
	}
	if err := settle(p.state.EndJob(scheduler.JobID(j.ID), jobOutcome(j), scheduler.Time(cmp.Or(j.Ended, at)))); err != nil {
		return err
	}
	id := have.Spec.Project
	if pr := p.state.Project(id); pr == nil || len(pr.Jobs) > 0 || f.Project(uint64(id)) != nil {
		return nil
	}
	return settle(p.state.DropProject(id))
}

// estimate brings in a prediction.
func (p *projection) estimate(f *facts.Facts, k facts.Key) error {
	j := f.Job(k.Job)
	if j == nil {
		return nil
	}
	id := stageID(k.Job, k.Stage)
	run := time.Duration(j.Stages[k.Stage].EstimateNS)
	if g := p.state.Stage(id); g == nil || g.Spec.Estimate == run {
		return nil
	}
	return settle(p.state.SetEstimate(id, run))
}

// putProject brings in a job's project as the facts have it.
func (p *projection) putProject(f *facts.Facts, j *facts.Job) error {
	pr, t := f.ProjectOf(j), f.Tenant(j.Spec.Tenant)
	if pr == nil {
		return nil
	}
	s := scheduler.ProjectSpec{ID: scheduler.ProjectID(pr.ID), Name: pr.Name, Tenant: scheduler.TenantID(t.ID), Priority: scheduler.PriorityLow,
		Submitted: scheduler.Time(pr.Submitted), Jobs: pr.Jobs}
	if pr.High {
		s.Priority = scheduler.PriorityHigh
	}
	return settle(p.state.PutProject(s))
}

func jobOutcome(j *facts.Job) scheduler.JobOutcome {
	switch j.State {
	case droverv1.JobState_JOB_STATE_SUCCEEDED:
		return scheduler.JobSucceeded
	case droverv1.JobState_JOB_STATE_STOPPED:
		if j.Miss != nil && j.Spec.OnMiss == jobspec.OnMissStop {
			return scheduler.JobMissed
		}
		return scheduler.JobStopped
	default:
		return scheduler.JobFailed
	}
}

func (p *projection) submit(f *facts.Facts, j *facts.Job) error {
	spec, stages, err := p.jobSpec(f, j)
	if err != nil {
		return err
	}
	return settle(p.state.SubmitJob(spec, stages))
}

// jobSpec is a job as State sees it; its project is brought in.
func (p *projection) jobSpec(f *facts.Facts, j *facts.Job) (scheduler.JobSpec, []scheduler.StageSpec, error) {
	t := f.Tenant(j.Spec.Tenant)
	if t == nil {
		return scheduler.JobSpec{}, nil, fmt.Errorf("%w: job %d has no tenant", errDrift, j.ID)
	}
	prio := scheduler.PriorityLow
	if j.Spec.Priority == jobspec.PriorityHigh {
		prio = scheduler.PriorityHigh
	}
	if err := p.putProject(f, j); err != nil {
		return scheduler.JobSpec{}, nil, err
	}
	spec := scheduler.JobSpec{ID: scheduler.JobID(j.ID), Name: j.Name, Tenant: scheduler.TenantID(t.ID), Priority: prio, Submitted: scheduler.Time(j.Submitted)}
	promiseOf(j, &spec, p.guarantees(f))
	if p.state.Project(spec.Project) == nil {
		spec.Project = 0 // the job has ended, and its project went with it
	}
	var stages []scheduler.StageSpec
	for i := range j.Stages {
		stages = append(stages, p.stage(f, j, i))
	}
	return spec, stages, nil
}

func (p *projection) stage(f *facts.Facts, j *facts.Job, i int) scheduler.StageSpec {
	s := &j.Spec.Stages[i]
	out := scheduler.StageSpec{
		Name: s.Name, Tasks: j.Stages[i].Tasks, Demand: resources(j.Demand(i)), Disk: s.Disk, Exclusive: s.Exclusive,
		MaxParallel: int32(min(s.MaxParallel, jobspec.MaxTasks)), MaxAttempts: int32(s.Attempts), After: j.StageAfter(i),
		Estimate: time.Duration(j.Stages[i].EstimateNS),
	}
	switch s.Kind {
	case jobspec.KindMap:
		out.Kind = scheduler.KindMap
		out.Inputs = inputs(j.Stages[i].Splits, p.hosts(f, j.ID))
	case jobspec.KindReduce:
		out.Kind = scheduler.KindReduce
	default:
		out.Kind = scheduler.KindGroup
	}
	return out
}

func inputs(splits []*droverv1.FactSplit, hosts [][]scheduler.NodeID) *scheduler.Inputs {
	in := &scheduler.Inputs{Bytes: make([]int64, len(splits)), Start: make([]int32, len(splits)+1)}
	for i, s := range splits {
		for _, piece := range s.GetPieces() {
			in.Bytes[i] += piece.GetLength()
		}
		if i < len(hosts) {
			in.Nodes = append(in.Nodes, hosts[i]...)
		}
		in.Start[i+1] = int32(len(in.Nodes))
	}
	return in
}

// setHosts brings in where a job's input lies, after it was asked again.
func (p *projection) setHosts(f *facts.Facts, job uint64) error {
	j := f.Job(job)
	if j == nil || p.state.Job(scheduler.JobID(job)) == nil || j.MapStage() < 0 {
		return nil
	}
	m := int32(j.MapStage())
	for i, nodes := range p.hosts(f, job) {
		if _, have, _ := p.state.Stage(scheduler.StageID{Job: scheduler.JobID(job), Stage: m}).Input(int32(i)); slices.Equal(have, nodes) {
			continue
		}
		if err := settle(p.state.SetInput(scheduler.TaskID{Job: scheduler.JobID(job), Stage: m, Index: int32(i)}, nodes, nil)); err != nil {
			return err
		}
	}
	return nil
}

func (p *projection) placed(f *facts.Facts, k facts.Key) error {
	a := f.Attempt(k)
	if a == nil {
		return nil
	}
	if p.state.Attempt(attemptID(k)) == nil {
		return settle(p.place(k, a))
	}
	return p.expect(k, a)
}

// expect brings in the run time that was predicted for an attempt when it was
// placed.
func (p *projection) expect(k facts.Key, a *facts.Attempt) error {
	have := p.state.Attempt(attemptID(k))
	if have == nil || a.EstimateNS == 0 || have.Run != a.Run || have.Estimate == time.Duration(a.EstimateNS) {
		return nil
	}
	return settle(p.state.AttemptProgress(have.ID, have.Run, have.Progress, time.Duration(a.EstimateNS)))
}

// place makes the attempt in State where it is; one that is moving where it comes
// from, so that its move can follow.
func (p *projection) place(k facts.Key, a *facts.Attempt) error {
	act := &scheduler.Action{Kind: scheduler.ActPlace, Task: taskID(k), Attempt: k.Attempt, Run: a.Run, Node: nodeID(a.Node),
		Disk: int16(a.Disk), Speculative: a.Speculative}
	if a.Sus.Holder != 0 {
		act.Run, act.Node, act.Disk = a.Run-1, nodeID(a.Sus.Holder), int16(a.Sus.HolderDisk)
	}
	if err := p.state.ApplyFact(act, scheduler.Time(a.Placed)); err != nil {
		return err
	}
	return p.expect(k, a)
}

// level brings an attempt to the level that the facts have of it, and on its
// way to the one that is asked for. Changes in between are passed over.
func (p *projection) level(f *facts.Facts, k facts.Key, at int64) error {
	a, have := f.Attempt(k), p.state.Attempt(attemptID(k))
	if a == nil || have == nil || !a.State.Holds() || have.Phase == scheduler.AttemptKilling {
		return nil
	}
	now := scheduler.Time(at)
	if have.Run != a.Run {
		if err := p.moving(k, a, have, now); err != nil {
			return err
		}
	}
	if a.Sus.Holder != 0 {
		return nil
	}
	if err := p.reach(k, a, have, now); err != nil {
		return err
	}
	err := errors.Join(settle(p.state.SetParked(attemptID(k), a.Run, a.Sus.Parked)), settle(p.state.SetBarred(attemptID(k), a.Run, scheduler.LevelSet(a.Sus.Bars()))))
	if err != nil || a.Target == 0 {
		return err
	}
	if have.Target == scheduler.Level(a.Target) { // it is on its way
		return nil
	}
	return settle(p.ask(k, a.Run, scheduler.Level(a.Target), now))
}

// moving brings in that an attempt goes on on another node: State takes it from
// checkpointed on the node before, which it may not have heard of.
func (p *projection) moving(k facts.Key, a *facts.Attempt, have *scheduler.Attempt, now scheduler.Time) error {
	if have.Run != a.Run-1 {
		return fmt.Errorf("%w: attempt %v is at run %d, the facts at %d", errDrift, have.ID, have.Run, a.Run)
	}
	id, run := attemptID(k), a.Run-1
	if have.Phase == scheduler.AttemptResuming {
		if err := settle(p.state.AttemptResumed(id, run, now)); err != nil {
			return err
		}
	}
	if have.Level != scheduler.LevelCheckpointed {
		if err := settle(p.ask(k, run, scheduler.LevelCheckpointed, now)); err != nil {
			return err
		}
	}
	if have.Phase == scheduler.AttemptSuspending {
		if err := settle(p.state.AttemptSuspended(id, run, scheduler.LevelCheckpointed, footprint(a), now)); err != nil {
			return err
		}
	}
	act := &scheduler.Action{Kind: scheduler.ActMigrate, Task: taskID(k), Attempt: k.Attempt, Run: a.Run, Node: nodeID(a.Node), Disk: int16(a.Disk)}
	if err := p.state.ApplyFact(act, now); err != nil {
		return fmt.Errorf("%w: %w", errDrift, err)
	}
	return errors.Join(settle(p.state.SetParked(id, a.Run, false)), settle(p.state.SetBarred(id, a.Run, 0)), p.expect(k, a))
}

// footprint is what the node measured of a suspended attempt.
func footprint(a *facts.Attempt) scheduler.Footprint {
	image := a.Seen.GetImageHeld()
	has := scheduler.Footprint{Memory: a.Held.Memory, Swap: a.Seen.GetSwapHeld(), Image: image, Files: max(0, a.Seen.GetDiskHeld()-image)}
	if a.Target == droverv1.Level_LEVEL_RUNNING { // Held is what it will hold
		has.Memory = a.Seen.GetHeld().GetMemory()
	}
	if a.Level == droverv1.Level_LEVEL_SWAPPED {
		has.Memory += has.Swap // State counts the whole and takes off what went
	}
	return has
}

// ask has an attempt brought to a level.
func (p *projection) ask(k facts.Key, run int32, l scheduler.Level, now scheduler.Time) error {
	act := &scheduler.Action{Kind: scheduler.ActSuspend, Task: taskID(k), Attempt: k.Attempt, Run: run, Level: l}
	if l == scheduler.LevelRunning {
		act.Kind, act.Level = scheduler.ActResume, 0
	}
	return p.state.ApplyFact(act, now)
}

// reach brings in the level that a node confirmed, by way of what State must
// have been asked for first.
func (p *projection) reach(k facts.Key, a *facts.Attempt, have *scheduler.Attempt, now scheduler.Time) error {
	to := scheduler.Level(a.Level)
	if to == scheduler.LevelRunning {
		if have.Phase == scheduler.AttemptSuspended {
			if err := settle(p.ask(k, a.Run, to, now)); err != nil {
				return err
			}
		}
		if have.Phase == scheduler.AttemptResuming || (have.Phase == scheduler.AttemptSuspending && a.Target == 0) {
			return settle(p.state.AttemptResumed(attemptID(k), a.Run, now))
		}
		return nil
	}
	if have.Level == to && (have.Phase == scheduler.AttemptSuspended || a.Target != 0) {
		return nil
	}
	if have.Phase == scheduler.AttemptResuming {
		if err := settle(p.state.AttemptResumed(attemptID(k), a.Run, now)); err != nil {
			return err
		}
	}
	if have.Phase != scheduler.AttemptSuspending {
		if err := settle(p.ask(k, a.Run, to, now)); err != nil {
			return err
		}
	}
	return settle(p.state.AttemptSuspended(attemptID(k), a.Run, to, footprint(a), now))
}

func (p *projection) stopping(f *facts.Facts, k facts.Key, at int64) error {
	a := f.Attempt(k)
	if a == nil {
		return nil
	}
	return settle(p.state.ApplyFact(&scheduler.Action{Kind: scheduler.ActKill, Task: taskID(k), Attempt: k.Attempt, Run: p.runOf(k, a)}, scheduler.Time(at)))
}

func (p *projection) ended(f *facts.Facts, k facts.Key, at int64) error {
	a := f.Attempt(k)
	if a == nil {
		return nil // its job was forgotten, so it left the State before
	}
	if err := settle(p.state.AttemptEnded(attemptID(k), p.runOf(k, a), outcome(a), scheduler.Time(at))); err != nil {
		return err
	}
	if p.late[taskID(k)] {
		delete(p.late, taskID(k))
		if outcome(a) != scheduler.OutcomeSucceeded { // else the sibling's output takes its place
			if err := p.outputLost(k); err != nil {
				return err
			}
		}
	}
	if p.replaying {
		return nil // more of its attempts may follow
	}
	return p.endJob(f, f.Job(k.Job), at)
}

// runOf is the run under which State knows an attempt: one that moved and ended
// since State last looked need not move there first.
func (p *projection) runOf(k facts.Key, a *facts.Attempt) int32 {
	if have := p.state.Attempt(attemptID(k)); have != nil {
		return have.Run
	}
	return a.Run
}

// outcome of an ended attempt. An output that was lost later does not change
// that its attempt had succeeded.
func outcome(a *facts.Attempt) scheduler.Outcome {
	switch {
	case a.State == facts.AttemptSucceeded || a.LostSeq > 0:
		return scheduler.OutcomeSucceeded
	case a.UserFault():
		return scheduler.OutcomeFailedUser
	case a.State == facts.AttemptFailed:
		return scheduler.OutcomeFailedInfra
	case a.State == facts.AttemptStopped:
		return scheduler.OutcomeKilled
	default:
		return scheduler.OutcomeLost
	}
}

func (p *projection) outputLost(k facts.Key) error {
	err := p.state.OutputLost(taskID(k))
	if errors.Is(err, scheduler.ErrStale) {
		p.late[taskID(k)] = true
		return nil
	}
	return settle(err)
}

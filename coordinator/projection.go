package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// projection synchronises the scheduler's State with the facts. The loop owns
// it. Facts number nodes from 1, State from 0; tenants have the same numbers in
// both.
//
// It follows the journal change by change. State refuses a change that it
// already contains (an action of the loop's own cycle) as stale, which is
// expected; any other refusal means that the two have drifted apart, and State
// is rebuilt.
type projection struct {
	state          *scheduler.State
	restoreClasses *restoreClasses
	hosts          hostSource
	// lateOutputLosses holds outputs that were lost while a sibling of the
	// winner was still stopping: State accepts the loss when the sibling has
	// ended.
	lateOutputLosses map[scheduler.TaskID]bool
	// guaranteesDeadlines reports whether the current scheduler guarantees
	// deadlines.
	guaranteesDeadlines func(f *facts.Facts) bool
	// replaying is set while rebuild replays past attempts.
	replaying bool
}

// hostSource returns where a job's input is located, for each split; nil if
// unknown.
type hostSource func(f *facts.Facts, job uint64) []splitNodes

// errDrift means that State refused a change for another reason than that it is stale.
var errDrift = errors.New("the scheduler's state drifted from the facts")

func newProjection(hosts hostSource) *projection {
	return &projection{state: scheduler.New(), restoreClasses: newRestoreClasses(nil), hosts: hosts, lateOutputLosses: map[scheduler.TaskID]bool{}, guaranteesDeadlines: func(*facts.Facts) bool { return false }}
}

// follow applies changes; on errDrift the caller must rebuild.
func (p *projection) follow(f *facts.Facts, changes []facts.Change) error {
	for i := range changes {
		if err := p.applyChange(f, &changes[i]); err != nil {
			return err
		}
	}
	p.state.SetIndex(f.Index())
	return nil
}

func (p *projection) applyChange(f *facts.Facts, c *facts.Change) error {
	switch c.Kind {
	case facts.ChangeReset, facts.ChangeScheduler:
		return p.rebuild(f)
	case facts.ChangeTenant:
		return p.putTenant(f, f.Tenants()[c.Node])
	case facts.ChangeNode:
		return p.syncNode(f, f.Node(c.Node))
	case facts.ChangeNodeLost:
		return p.loseNode(f, f.Node(c.Node), scheduler.Time(c.At))
	case facts.ChangeJob:
		return p.syncJob(f, f.Job(c.Key.Job))
	case facts.ChangePlaced:
		return p.syncPlaced(f, c.Key)
	case facts.ChangeLevel:
		return p.syncLevel(f, c.Key, c.At)
	case facts.ChangeStopping:
		return p.stopAttempt(f, c.Key, c.At)
	case facts.ChangeEnded:
		return p.endAttempt(f, c.Key, c.At)
	case facts.ChangeOutput:
		return p.outputLost(c.Key)
	case facts.ChangeEstimate:
		return p.setEstimate(f, c.Key)
	case facts.ChangeForgotten, facts.ChangeBlobGone, facts.ChangePolicyState:
		return nil
	default:
		return fmt.Errorf("%w: change of kind %v", errDrift, c.Kind)
	}
}

// ignoreStale returns nil if State refused a change as stale or because an object is unknown to it.
// It wraps other errors in errDrift.
func ignoreStale(err error) error {
	if err == nil || errors.Is(err, scheduler.ErrStale) || errors.Is(err, scheduler.ErrUnknown) {
		return nil
	}
	return fmt.Errorf("%w: %w", errDrift, err)
}

func nodeID(id int32) scheduler.NodeID { return scheduler.NodeID(id - 1) }

func attemptID(k facts.Key) scheduler.AttemptID {
	return scheduler.AttemptID{TaskID: taskID(k), Attempt: k.Attempt}
}

// attemptKey is the inverse of attemptID.
func attemptKey(id scheduler.AttemptID) facts.Key {
	return facts.Key{Job: uint64(id.Job), Stage: id.Stage, Task: id.Index, Attempt: id.Attempt}
}

func taskID(k facts.Key) scheduler.TaskID {
	return scheduler.TaskID{Job: scheduler.JobID(k.Job), Stage: k.Stage, Index: k.Task}
}

func resources(a facts.Amounts) scheduler.Resources {
	return scheduler.Resources{a.CPU, a.Memory, a.IO}
}

// putTenant adds or replaces a tenant. If its parent does not fit into State's tree, the tenant is
// put at the root. Either State gets the parent, or the parent's change, later, and this tenant is
// then put again; or facts of earlier versions have a tree that is too deep for State. Those may
// also have caps that State refuses: see countableCap.
func (p *projection) putTenant(f *facts.Facts, t *facts.Tenant) error {
	s := scheduler.TenantSpec{ID: scheduler.TenantID(t.ID), Name: t.Spec.GetName(), Parent: scheduler.NoTenant, Weight: t.Spec.GetWeight()}
	if up := f.Tenant(t.Spec.GetParent()); up != nil {
		s.Parent = scheduler.TenantID(up.ID)
	}
	s.Caps.Total, s.Caps.Task = countableCap(t.Spec.GetCap()), countableCap(t.Spec.GetTaskCap())
	err := p.state.Events().PutTenant(s)
	if err != nil && s.Parent != scheduler.NoTenant {
		s.Parent = scheduler.NoTenant
		err = p.state.Events().PutTenant(s)
	}
	return ignoreStale(err)
}

// countableCap returns a cap for State. An amount that State cannot count becomes no cap: no sum of
// demands reaches it.
func countableCap(r *droverv1.Resources) scheduler.Limit {
	l := scheduler.Limit(resources(facts.AmountsOf(r)))
	for i, n := range l {
		if n < 0 || n > scheduler.MaxAmount {
			l[i] = 0
		}
	}
	return l
}

// putNode adds or updates a node. disks is how many of its disks attempts have used: a node may
// have come back with fewer, and a rebuild replays the attempts on the missing ones. State gets
// those as disks without space, on which nothing is placed.
func (p *projection) putNode(n *facts.Node, disks int) error {
	changed := p.restoreClasses.put(n)
	s := nodeSpec(n)
	s.Restores = p.restoreClasses.restoredBy(s.CPUClass)
	have := p.state.Node(s.ID)
	if have != nil {
		disks = max(disks, len(have.Disks))
	}
	for i := len(s.Disks); i < disks; i++ {
		s.Disks = append(s.Disks, scheduler.Disk{Name: fmt.Sprintf("gone-%d", i)})
	}
	put := p.state.Events().UpdateNode
	if have == nil {
		put = p.state.Events().AddNode
	}
	if err := ignoreStale(put(s)); err != nil || len(changed) == 0 {
		return err
	}
	return p.updateRestores(changed)
}

// syncNode updates a node, and which of its attempts are parked for its drain. O(attempts on the node).
func (p *projection) syncNode(f *facts.Facts, n *facts.Node) error {
	if err := p.putNode(n, 0); err != nil {
		return err
	}
	for have := range p.state.Attempts().On(nodeID(n.ID)) {
		a := f.Attempt(attemptKey(have.ID))
		if a == nil || a.Node != n.ID || !a.Suspension.Drained {
			continue
		}
		if err := ignoreStale(p.state.Events().SetParked(have.ID, a.Run, a.Suspension.IsParkedOn(n))); err != nil {
			return err
		}
	}
	return nil
}

// updateRestores updates the nodes whose class can now restore other classes than before. O(nodes).
func (p *projection) updateRestores(changed map[string]bool) error {
	for _, n := range p.state.Nodes() {
		restores := p.restoreClasses.restoredBy(n.Spec.CPUClass)
		if !changed[n.Spec.CPUClass] || slices.Equal(n.Spec.Restores, restores) {
			continue
		}
		s := n.Spec
		s.Restores = restores
		if err := ignoreStale(p.state.Events().UpdateNode(s)); err != nil {
			return err
		}
	}
	return nil
}

// usedDisks returns, for each node, how many of its disks (counted from the first) were used by
// attempts of jobs that are not over. O(attempts).
func usedDisks(f *facts.Facts) map[int32]int {
	used := map[int32]int{}
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if j.HasEnded() && j.Live == 0 {
			continue
		}
		f.EachAttempt(j, func(_ facts.Key, _ *facts.Task, a *facts.Attempt) {
			used[a.Node] = max(used[a.Node], int(a.Disk)+1)
			if image := a.Suspension.ImageNode; image != 0 {
				used[image] = max(used[image], int(a.Suspension.ImageDisk)+1)
			}
		})
	}
	return used
}

// loseNode ends the attempts that the facts lost with a node, then updates the node, which may be
// up again. State's own event of a lost node would also end attempts that are moving away from it.
// In the facts those continue: their new node has the image already, or will report that it does
// not. An attempt that moved and ended since the last change is still on its old node in State.
func (p *projection) loseNode(f *facts.Facts, n *facts.Node, now scheduler.Time) error {
	id := nodeID(n.ID)
	for _, a := range slices.Collect(p.state.Attempts().On(id)) {
		has := f.Attempt(attemptKey(a.ID))
		if has != nil && has.Node != n.ID {
			continue
		}
		if err := p.end(a.ID, a.Run, has, scheduler.OutcomeLost, now); err != nil {
			return err
		}
	}
	return p.putNode(n, 0)
}

// nodeSpec returns a node for State. Its I/O is the sum over its disks.
func nodeSpec(n *facts.Node) scheduler.NodeSpec {
	i := n.Info
	s := scheduler.NodeSpec{
		ID: nodeID(n.ID), Name: i.GetName(), Path: i.GetRack(), Capacity: resources(facts.AmountsOf(i.GetAllocatable())),
		Swap: i.GetSwap(), Down: !n.Up, Draining: n.Cordoned(), Levels: scheduler.Levels(scheduler.LevelRunning),
		CPUClass: restoreClassOf(i), Speeds: speeds(i.GetSpeeds()),
	}
	s.Windows = nodeWindows(n)
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

// speeds returns the suspension speeds that a node measured.
func speeds(p *droverv1.SuspendSpeed) scheduler.SuspendSpeed {
	us := func(n int64) time.Duration { return time.Duration(max(0, n)) * time.Microsecond }
	return scheduler.SuspendSpeed{
		Freeze: us(p.GetFreezeUs()), ThawAfterFreeze: us(p.GetThawUs()), Swap: us(p.GetSwapOutUs()), SwapPerS: p.GetSwapOutBps(), SwapBackPerS: p.GetSwapInBps(),
		Checkpoint: us(p.GetCheckpointUs()), CheckpointPerS: p.GetCheckpointBps(), Restore: us(p.GetRestoreUs()), RestorePerS: p.GetRestoreBps(),
		TransferPerS: p.GetTransferBps(),
	}
}

// checkNode returns the error with which State would refuse a node's registration, or later jobs
// because of it. Such a registration must not become a fact.
func checkNode(i *droverv1.NodeInfo) error {
	if err := checkRegistration(i); err != nil {
		return err
	}
	s := scheduler.New()
	return s.Events().AddNode(nodeSpec(&facts.Node{ID: 1, Up: true, Info: i}))
}

// syncJob submits, updates, stops or ends a job in State.
func (p *projection) syncJob(f *facts.Facts, j *facts.Job) error {
	if j == nil {
		return nil
	}
	id := scheduler.JobID(j.ID)
	have := p.state.Job(id)
	stopping := j.HasEnded() || j.State == droverv1.JobState_JOB_STATE_COMMITTING
	if have == nil {
		if j.HasEnded() && j.Live == 0 {
			return nil
		}
		if err := p.submitJob(f, j); err != nil {
			return err
		}
		have = p.state.Job(id)
	}
	if have.Spec.Deadline != 0 && (j.Lowered() || (j.GuaranteeRefused && !have.Spec.AcceptedByQuote)) {
		spec := have.Spec
		spec.Deadline, spec.AcceptedByQuote, spec.OnMiss = 0, false, 0
		setDeadlineSpec(j, &spec, p.guaranteesDeadlines(f))
		if err := ignoreStale(p.state.Events().UpdateJob(spec)); err != nil {
			return err
		}
	}
	var avoided []scheduler.NodeID
	for _, n := range j.AvoidedNodes() {
		avoided = append(avoided, nodeID(n))
	}
	if err := ignoreStale(p.state.Events().SetAvoided(id, avoided)); err != nil {
		return err
	}
	if stopping && have.Phase != scheduler.JobStopping {
		if err := ignoreStale(p.state.Events().StopJob(id)); err != nil {
			return err
		}
	}
	return p.endJob(f, j)
}

// endJob removes an ended job without active attempts.
func (p *projection) endJob(f *facts.Facts, j *facts.Job) error {
	have := p.state.Job(scheduler.JobID(j.ID))
	if !j.HasEnded() || have == nil || have.Live > 0 {
		return nil
	}
	if err := ignoreStale(p.state.Events().EndJob(scheduler.JobID(j.ID))); err != nil {
		return err
	}
	id := have.Spec.Project
	if pr := p.state.Project(id); pr == nil || len(pr.Jobs) > 0 || f.Deadlines().Project(uint64(id)) != nil {
		return nil
	}
	return ignoreStale(p.state.Events().DropProject(id))
}

// setEstimate updates the predicted run time of a stage.
func (p *projection) setEstimate(f *facts.Facts, k facts.Key) error {
	j := f.Job(k.Job)
	if j == nil {
		return nil
	}
	id := stageID(k.Job, k.Stage)
	run := runTime(j.Stages[k.Stage].EstimateNS)
	if g := p.state.Stage(id); g == nil || g.Spec.Estimate == run {
		return nil
	}
	return ignoreStale(p.state.Events().SetEstimate(id, run))
}

// putProject updates a job's project.
func (p *projection) putProject(f *facts.Facts, j *facts.Job) error {
	pr, t := f.Deadlines().ProjectOf(j), f.Tenant(j.Spec.Tenant)
	if pr == nil {
		return nil
	}
	s := scheduler.ProjectSpec{ID: scheduler.ProjectID(pr.ID), Name: pr.Name, Tenant: scheduler.TenantID(t.ID), Priority: scheduler.PriorityLow,
		Submitted: scheduler.Time(pr.Submitted), Jobs: pr.Jobs}
	if pr.High {
		s.Priority = scheduler.PriorityHigh
	}
	return ignoreStale(p.state.Events().PutProject(s))
}

func (p *projection) submitJob(f *facts.Facts, j *facts.Job) error {
	spec, stages, err := p.jobSpec(f, j)
	if err != nil {
		return err
	}
	return ignoreStale(p.state.Events().SubmitJob(spec, stages))
}

// jobSpec returns a job for State, and updates its project.
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
	setDeadlineSpec(j, &spec, p.guaranteesDeadlines(f))
	if p.state.Project(spec.Project) == nil {
		spec.Project = 0 // the job has ended and its project is gone
	}
	var stages []scheduler.StageSpec
	for i := range j.Stages {
		stages = append(stages, p.stageSpec(f, j, i))
	}
	return spec, stages, nil
}

func (p *projection) stageSpec(f *facts.Facts, j *facts.Job, i int) scheduler.StageSpec {
	s := &j.Spec.Stages[i]
	out := scheduler.StageSpec{
		Name: s.Name, Tasks: j.Stages[i].Tasks, Demand: resources(j.Demand(i)), Disk: s.Disk, Exclusive: s.Exclusive,
		MaxParallel: int32(min(s.MaxParallel, jobspec.MaxTasks)), MaxAttempts: int32(s.Attempts), After: j.Spec.StagesBefore(i),
		Estimate: runTime(j.Stages[i].EstimateNS), Bound: runTime(j.Stages[i].UpperNS),
	}
	switch s.Kind {
	case jobspec.KindMap:
		out.Kind = scheduler.KindMap
		out.Inputs = newInputs(j.Stages[i].Splits, p.hosts(f, j.ID))
	case jobspec.KindReduce:
		out.Kind, out.SlowStart = scheduler.KindReduce, s.SlowStart
	default:
		out.Kind = scheduler.KindGroup
	}
	return out
}

func newInputs(splits []*droverv1.FactSplit, at []splitNodes) *scheduler.Inputs {
	in := &scheduler.Inputs{Bytes: make([]int64, len(splits)), Start: make([]int32, len(splits)+1)}
	scattered := slices.ContainsFunc(at, func(s splitNodes) bool { return s.local != nil })
	for i, s := range splits {
		in.Bytes[i] = splitBytes(s)
		if i < len(at) {
			in.Nodes = append(in.Nodes, at[i].nodes...)
			switch {
			case at[i].local != nil:
				in.Local = append(in.Local, at[i].local...)
			case scattered:
				in.Local = append(in.Local, slices.Repeat(in.Bytes[i:i+1], len(at[i].nodes))...)
			}
		}
		in.Start[i+1] = int32(len(in.Nodes))
	}
	return in
}

// sameBytes reports whether two lists of bytes per node are equal. nil stands for all bytes of the
// input on each node.
func sameBytes(all int64, a, b []int64) bool {
	if a == nil {
		a, b = b, a
	}
	if b == nil {
		return !slices.ContainsFunc(a, func(n int64) bool { return n != all })
	}
	return slices.Equal(a, b)
}

// setInputNodes updates where a job's input is located.
func (p *projection) setInputNodes(f *facts.Facts, job uint64) error {
	j := f.Job(job)
	if j == nil || p.state.Job(scheduler.JobID(job)) == nil || j.MapStage() < 0 {
		return nil
	}
	m := int32(j.MapStage())
	for i, at := range p.hosts(f, job) {
		bytes, nodes, local := p.state.Stage(scheduler.StageID{Job: scheduler.JobID(job), Stage: m}).Input(int32(i))
		if slices.Equal(nodes, at.nodes) && sameBytes(bytes, local, at.local) {
			continue
		}
		if err := ignoreStale(p.state.Events().SetInput(scheduler.TaskID{Job: scheduler.JobID(job), Stage: m, Index: int32(i)}, at.nodes, at.local)); err != nil {
			return err
		}
	}
	return nil
}

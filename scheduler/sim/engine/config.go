package engine

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Epoch is the scheduler's time at second 0 of a simulation. It is above 0, because a
// scheduler.Time of 0 means "not yet". Times in Job and Result are offsets from second 0.
const Epoch = scheduler.Time(time.Hour)

// Limits of a simulation.
const (
	defaultMaxActions = 100_000 // actions of one cycle
	maxCyclesAtOnce   = 100_000 // cycles at one time
	// A policy that wakes for waiting jobs, for example to sort them by age each minute, would wake for ever for jobs
	// that nothing can help. Both limits are far above any wait of a policy, such as for a node with a task's data.
	maxWakesAlone = 10_000         // since there was another event
	maxTimeAlone  = 24 * time.Hour // since there was another event
	maxJobs       = 50_000_000
)

// Config is the complete input of a simulation. Simulate does not change it. The State retains the
// explicit Inputs.
type Config struct {
	Nodes    []Node
	Tenants  []scheduler.TenantSpec // ids 0, 1, …; empty: one tenant named "default"
	Projects []Project
	Jobs     []Job // ordered by Submit
	Policy   scheduler.Policy
	Models   Models
	Absences []Absence
	Seed     uint64
	// MaxAdmittedJobs limits the jobs that the scheduler sees at once, like an admission service in
	// front of it. Further jobs wait in submission order. 0 is no limit.
	MaxAdmittedJobs int
	// maxActions limits the actions of one cycle; 0 is defaultMaxActions.
	maxActions int
	// MaxEvents ends a simulation that does not terminate with an error; 0 is no limit.
	MaxEvents uint64
	// MaxTaskExecutions limits the task executions recorded for a Gantt chart.
	MaxTaskExecutions int
	// CycleEachEvent runs a cycle after each event instead of after all events of one time, as
	// simulators of the Parallel Workloads Archive do: if two jobs end at once, the scheduler
	// reuses the first one's capacity before it learns of the second.
	CycleEachEvent bool
	// CycleInterval is the minimum time between two cycles (the coordinator's is 10 ms). 0 runs a
	// cycle at every time that has an event.
	CycleInterval time.Duration
	// TenantSeries records the Series by tenant too.
	TenantSeries bool
	// WaitedTimes records why tasks waited. Each cycle then lists its reasons, which takes longer.
	WaitedTimes bool
	// OnAttempt, if not nil, is called for each attempt that has ended, and owns the record.
	OnAttempt func(*AttemptRecord)
	// Stop, if not nil, is called before each time step; its error ends the simulation.
	Stop func() error
	// Progress, if not nil, is called every 16,384 events.
	Progress func(Progress)

	// BeforeSubmit, if not nil, is called for each job just before the scheduler sees it. It may
	// change the job's estimates, deadline and acceptance, and may give the State better estimates
	// of other jobs. An error ends the simulation.
	BeforeSubmit func(s *scheduler.State, now scheduler.Time, j *scheduler.JobSpec, stages []scheduler.StageSpec) error
}

// Progress reports the progress of a simulation.
type Progress struct {
	now        time.Duration // simulated time
	Events     uint64
	Jobs, Done int
}

// Node is a machine: the scheduler's view of it, and its speed.
type Node struct {
	scheduler.NodeSpec
	Speed float64 // compute speed; 0 counts as 1
}

// Project is a group of jobs with one guaranteed departure. Jobs refer to it by its position in
// Config.Projects, counted from 1.
type Project struct {
	Name     string
	Tenant   scheduler.TenantID
	Priority scheduler.Priority
	Submit   time.Duration
	Jobs     int32
	// Open: the number of its jobs is unknown before they are submitted, as in a coordinator. It
	// has the priority of its first job and ends with its last active job; a later job of that name
	// begins a new project. Priority, Submit and Jobs are not used.
	Open bool
}

// Job is one job of a workload. Times are offsets from second 0.
type Job struct {
	Name     string
	Tag      string // class or bin by which reports group jobs
	Tenant   scheduler.TenantID
	Priority scheduler.Priority // 0 counts as low
	Submit   time.Duration
	Deadline time.Duration // 0: none
	Bound    time.Duration // 0: none; a task that exceeds it keeps running
	OnMiss   scheduler.OnMiss
	Project  int // position in Config.Projects from 1; 0: none
	Stages   []Stage
	// Size is the job's work in task-seconds, which only simulation policies may read; 0: it is
	// computed from the stages.
	Size float64
}

// Stage is a set of tasks with equal demands. Each task starts, reads BlockBytes of input or
// ShuffleBytes of earlier stages, computes, and writes OutputBytes.
type Stage struct {
	Name   string
	Kind   scheduler.StageKind // 0 counts as group
	After  []int32
	Tasks  int32
	Demand scheduler.Resources
	// ActualDemand is what a task really uses if Demand is not the truth, e.g. for a scheduler that
	// considers memory only; zero: Demand.
	ActualDemand scheduler.Resources
	Disk         int64 // disk space per task
	MaxParallel  int32
	SlowStart    float64
	// InputBytes is the input of all tasks together, in blocks of BlockBytes; the last block may be
	// shorter. 0: no input. FileID names the content: stages with equal FileIDs read the same
	// blocks; 0: a file of its own.
	InputBytes, BlockBytes int64
	FileID                 uint64
	// Inputs, if not nil, has explicit block locations and replaces InputBytes.
	Inputs *scheduler.Inputs
	// ShuffleBytes and OutputBytes are per task.
	ShuffleBytes, OutputBytes int64
	// Work is the compute time of one task on a node of speed 1. WorkPerTask, if not nil, replaces
	// it for each task.
	Work        time.Duration
	WorkPerTask []time.Duration
	// StartDelays, if not nil, is how long each task occupies its resources before it begins, in
	// addition to Models.Launch: creating the container, fetching files. It does not depend on the
	// node's speed.
	StartDelays []time.Duration
}

// Transfer selects the model of data transfers.
type Transfer uint8

// The transfer models.
const (
	// TransferFree transfers take no time.
	TransferFree Transfer = iota + 1
	// TransferFixed transfers each run at their own fixed rate.
	TransferFixed
	// TransferShared transfers share the links of nodes and racks.
	TransferShared
)

// String returns the model's name.
func (t Transfer) String() string {
	switch t {
	case TransferFree:
		return "free"
	case TransferFixed:
		return "fixed"
	case TransferShared:
		return "shared"
	default:
		return fmt.Sprintf("transfer(%d)", uint8(t))
	}
}

// ParseTransfer parses the output of String.
func ParseTransfer(s string) (Transfer, error) {
	for t := TransferFree; t <= TransferShared; t++ {
		if t.String() == s {
			return t, nil
		}
	}
	return 0, fmt.Errorf("transfer %q: use free, fixed or shared", s)
}

// Models configures the parts of the simulated world besides nodes and jobs. The zero value of each
// model is off. Rates are bytes per second.
type Models struct {
	// Launch is the time from a placement until the task begins.
	Launch time.Duration
	// Transfer is the transfer model; 0 counts as TransferFree. LocalRate is the rate of a local
	// disk with one reader, RackRate and RemoteRate that of one transfer within a rack and between
	// racks. NodeLink and RackLink are link capacities (TransferShared only).
	Transfer                        Transfer
	LocalRate, RackRate, RemoteRate int64
	NodeLink, RackLink              int64
	// EnforceIO limits each task to exactly its I/O demand on a local disk, as cgroup limits do. If
	// false, the tasks that use a disk share it regardless of their demands.
	EnforceIO bool
	// Replicas is the number of copies of each block, placed as HDFS does. 0: input has no
	// location.
	Replicas int
	// Spread is the standard deviation of the logarithm of a task's work; the mean factor is 1.
	Spread float64
	// StragglerFraction of the attempts take StragglerFactor times as long.
	StragglerFraction, StragglerFactor float64
	// MTBF is a node's mean time between failures and Repair its mean downtime, both exponential.
	// MTBF 0: nodes do not fail.
	MTBF, Repair time.Duration
	// EstimateError is the standard deviation of the logarithm of estimate over truth, drawn once
	// per job. NoEstimates hides estimates from the scheduler.
	EstimateError float64
	NoEstimates   bool
	// MemoryUsedFraction is the fraction of its memory demand that a task uses when it is
	// suspended; 0 counts as 1.
	MemoryUsedFraction float64
	// KillDelay is how long a killed task still occupies its resources.
	KillDelay time.Duration
	// Heartbeat is the interval of progress reports; 0: none.
	Heartbeat time.Duration
	// AcceptDeadlines accepts every deadline without a guarantee. Otherwise a policy that makes
	// guarantees decides first, by runtime_bound or by the known errors of estimates.
	AcceptDeadlines bool
	// Contention slows tasks down on a node whose tasks use more CPU or disk I/O than it has, which
	// happens if Stage.ActualDemand exceeds Demand.
	Contention bool
}

func (m *Models) transferModel() Transfer {
	if m.Transfer == 0 {
		return TransferFree
	}
	return m.Transfer
}

// check returns an error for input that cannot be simulated. The error names the place and the
// cure.
func (c *Config) check() error {
	if len(c.Nodes) == 0 {
		return fmt.Errorf("no nodes: a run needs at least one")
	}
	if c.Policy == nil {
		return fmt.Errorf("no policy: Config.Policy must be set")
	}
	if len(c.Jobs) > maxJobs {
		return fmt.Errorf("%d jobs: at most %d", len(c.Jobs), maxJobs)
	}
	if err := c.Models.Check(); err != nil {
		return err
	}
	if c.CycleInterval < 0 {
		return fmt.Errorf("cycle interval %v: must not be negative", c.CycleInterval)
	}
	for i := range c.Nodes {
		if s := c.Nodes[i].Speed; s < 0 || math.IsNaN(s) || math.IsInf(s, 0) {
			return fmt.Errorf("node %q: speed %v: must be a finite number of at least 0", c.Nodes[i].Name, s)
		}
	}
	if err := c.checkAbsences(); err != nil {
		return err
	}
	for i := range c.Jobs {
		if err := c.checkJob(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) checkJob(i int) error {
	j := &c.Jobs[i]
	what := fmt.Sprintf("job %d (%s)", i+1, j.Name)
	switch {
	case j.Submit < 0:
		return fmt.Errorf("%s: submitted at %v: must not be negative", what, j.Submit)
	case i > 0 && j.Submit < c.Jobs[i-1].Submit:
		return fmt.Errorf("%s: submitted at %v, before the previous job: sort the jobs by submission", what, j.Submit)
	case j.Project < 0 || j.Project > len(c.Projects):
		return fmt.Errorf("%s: project %d of %d", what, j.Project, len(c.Projects))
	case j.Deadline != 0 && j.Deadline <= j.Submit:
		return fmt.Errorf("%s: submitted at %v with the deadline %v, which is not later", what, j.Submit, j.Deadline)
	case len(j.Stages) == 0 || len(j.Stages) > scheduler.MaxStages:
		return fmt.Errorf("%s: %d stages: expected 1 to %d", what, len(j.Stages), scheduler.MaxStages)
	}
	if err := scheduler.CheckName(j.Name); err != nil {
		return fmt.Errorf("job %d: %w", i+1, err)
	}
	for k := range j.Stages {
		g := &j.Stages[k]
		if err := scheduler.CheckName(g.Name); err != nil {
			return fmt.Errorf("%s stage %d: %w", what, k, err)
		}
		if g.Work < 0 || g.ShuffleBytes < 0 || g.OutputBytes < 0 || g.InputBytes < 0 || g.BlockBytes < 0 {
			return fmt.Errorf("%s stage %d: a time or size is negative", what, k)
		}
		if g.WorkPerTask != nil && len(g.WorkPerTask) != int(g.Tasks) {
			return fmt.Errorf("%s stage %d: %d tasks and %d work times", what, k, g.Tasks, len(g.WorkPerTask))
		}
		if g.StartDelays != nil && len(g.StartDelays) != int(g.Tasks) {
			return fmt.Errorf("%s stage %d: %d tasks and %d start delays", what, k, g.Tasks, len(g.StartDelays))
		}
		if g.Inputs != nil {
			out := func(n scheduler.NodeID) bool { return n < 0 || int(n) >= len(c.Nodes) }
			if i := slices.IndexFunc(g.Inputs.Nodes, out); i >= 0 {
				return fmt.Errorf("%s stage %d: its input is on node %d of %d", what, k, g.Inputs.Nodes[i], len(c.Nodes))
			}
		}
		below := func(d time.Duration) bool { return d < 0 }
		if slices.ContainsFunc(g.WorkPerTask, below) || slices.ContainsFunc(g.StartDelays, below) {
			return fmt.Errorf("%s stage %d: a work time or start delay is negative", what, k)
		}
	}
	return nil
}

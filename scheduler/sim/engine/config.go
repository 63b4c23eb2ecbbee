package engine

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Epoch is the instant of second 0 of a run as the scheduler sees it: instants
// at which nothing may start, such as 0 for "not yet", stay free. Instants in
// Job and in Result are counted from second 0.
const Epoch = scheduler.Time(time.Hour)

// Limits of a run, each with its default.
const (
	DefaultMaxActions = 100_000 // actions of one cycle
	maxCyclesAtOnce   = 100_000 // cycles at one instant
	maxJobs           = 50_000_000
)

// Config is everything a run depends on. Run does not change it; State keeps
// the explicit Inputs that it holds.
type Config struct {
	Nodes    []Node
	Tenants  []scheduler.TenantSpec // ids 0, 1, …; empty: one named "default"
	Projects []Project
	Jobs     []Job // by Submit
	Policy   scheduler.Policy
	Models   Models
	Seed     uint64
	// Admission bounds the jobs that the scheduler sees at once, as a service
	// in front of it would; 0 for no bound. The others wait in order.
	Admission int
	// MaxActions bounds a cycle's actions, 0 for DefaultMaxActions.
	MaxActions int
	// MaxEvents ends a run that goes on for ever with an error, 0 for none.
	MaxEvents uint64
	// KeepTasks bounds the runs of tasks kept for a Gantt chart.
	KeepTasks int
	// CycleEachEvent runs a cycle after each event instead of after all
	// events of one instant, as simulators of the Parallel Workloads Archive
	// do: of two jobs that end at once the room of the first is given away
	// before that of the second is known.
	CycleEachEvent bool
	// CycleInterval is the least time between two cycles, as the coordinator
	// has one (10 ms); 0: a cycle at every instant at which something happens.
	CycleInterval time.Duration
	// Stop, if not nil, is asked before each instant; its error ends the run.
	Stop func() error
	// Progress, if not nil, is told now and then how far the run is.
	Progress func(Progress)

	// Admit, if not nil, sees each job just before the scheduler does and may
	// change what that is told of it: estimates, deadline and acceptance. It may
	// tell the State of better estimates for others; an error ends the run.
	Admit func(s *scheduler.State, now scheduler.Time, j *scheduler.JobSpec, stages []scheduler.StageSpec) error
}

// Progress is how far a run is.
type Progress struct {
	Now        time.Duration // simulated
	Events     uint64
	Jobs, Done int
}

// Node is a machine: what the scheduler sees, and how fast it is.
type Node struct {
	scheduler.NodeSpec
	Speed float64 // of computing; 0 counts as 1
}

// Project is jobs with one guaranteed departure; its jobs name it by its
// position from 1.
type Project struct {
	Name     string
	Tenant   scheduler.TenantID
	Priority scheduler.Priority
	Submit   time.Duration
	Jobs     int32
}

// Job is one job of a workload. Instants are counted from second 0.
type Job struct {
	Name     string
	Tag      string // a class or bin that reports group by
	Tenant   scheduler.TenantID
	Priority scheduler.Priority // 0 counts as low
	Submit   time.Duration
	Deadline time.Duration // 0: none
	Bound    time.Duration // 0: none; a task that runs longer is ended by nobody
	OnMiss   scheduler.OnMiss
	Project  int // position in Config.Projects from 1, 0 for none
	Stages   []Stage
	// Size is the work in task-seconds that policies for simulation may know;
	// 0: it is computed.
	Size float64
}

// Stage is tasks of one shape, and what each of them does: it starts, reads
// Read bytes of a file or Shuffle bytes of earlier stages, works, writes.
type Stage struct {
	Name   string
	Kind   scheduler.StageKind // 0 counts as group
	After  []int32
	Tasks  int32
	Demand scheduler.Resources
	// Needs is what a task really uses, where the scheduler is told something
	// else in Demand (a scheduler that looks at memory alone); zero: Demand.
	Needs       scheduler.Resources
	Disk        int64 // bytes of disk space of each task
	MaxParallel int32
	SlowStart   float64
	// Input is what the tasks read together, in blocks of Read bytes, the
	// last one less. 0: nothing. File names the content: stages of one File
	// read the same blocks (0: nobody else's).
	Input, Read int64
	File        uint64
	// Inputs says where the input lies instead, if not nil.
	Inputs *scheduler.Inputs
	// Shuffle and Write are bytes of each task.
	Shuffle, Write int64
	// Work is how long one task computes on a node of speed 1; Each, if not
	// nil, says it for every task.
	Work time.Duration
	Each []time.Duration
	// Starts, if not nil, is how long every task holds its room before it
	// begins, besides Models.Launch: a container that is made, files that are
	// fetched. No node's speed changes it.
	Starts []time.Duration
}

// Transfer selects how bytes move.
type Transfer uint8

// The models of moving bytes.
const (
	// TransferFree: in no time.
	TransferFree Transfer = iota + 1
	// TransferFixed: each transfer at its own rate, whatever others do.
	TransferFixed
	// TransferShared: the links of nodes and racks are shared by those who
	// use them at the same time.
	TransferShared
)

// String gives the model's name.
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

// ParseTransfer reads what String prints.
func ParseTransfer(s string) (Transfer, error) {
	for t := TransferFree; t <= TransferShared; t++ {
		if t.String() == s {
			return t, nil
		}
	}
	return 0, fmt.Errorf("transfer %q: use free, fixed or shared", s)
}

// Models are the parts of the world beside machines and jobs; the zero value
// of each is off. Rates are bytes per second.
type Models struct {
	// Launch is the time from a placement until its task begins.
	Launch time.Duration
	// Transfer says how bytes move, 0 counts as free. LocalRate is a local
	// disk for one reader, RackRate and RemoteRate one transfer within a rack
	// and between racks. NodeLink and RackLink are what a node's and a rack's
	// link carries (shared only).
	Transfer                        Transfer
	LocalRate, RackRate, RemoteRate int64
	NodeLink, RackLink              int64
	// Enforced: a task reads and writes a local disk at its I/O demand, no
	// more and no less, as the cgroup limits make it. Otherwise those who use
	// a disk share it, whatever they declared.
	Enforced bool
	// Replicas of each block, placed as HDFS does. 0: input has no place.
	Replicas int
	// Spread is the deviation of the logarithm of a task's work, mean 1.
	Spread float64
	// StragglerPart of the attempts works StragglerFactor times as long.
	StragglerPart, StragglerFactor float64
	// MTBF is a node's mean time between failures, exponential; Repair its
	// mean time of absence. 0: nothing fails.
	MTBF, Repair time.Duration
	// EstimateError is the deviation of the logarithm of estimate over truth,
	// one draw a job; NoEstimates keeps estimates from the scheduler.
	EstimateError float64
	NoEstimates   bool
	// MemoryUsed is the part of its memory demand that a task has in use when
	// it is suspended, 0 counts as 1.
	MemoryUsed float64
	// KillDelay is how long a killed task holds what it has.
	KillDelay time.Duration
	// Heartbeat is the time between reports of progress, 0 for none.
	Heartbeat time.Duration
	// Accept takes every deadline as promised.
	Accept bool
	// Contention slows computing down on a node that is asked for more CPU or
	// disk I/O than it has, which happens where Stage.Needs is above Demand.
	Contention bool
}

func (m *Models) transfer() Transfer {
	if m.Transfer == 0 {
		return TransferFree
	}
	return m.Transfer
}

// check refuses what cannot be simulated, naming the place and the cure.
func (c *Config) check() error {
	if len(c.Nodes) == 0 {
		return fmt.Errorf("no nodes: a run needs at least one")
	}
	if c.Policy == nil {
		return fmt.Errorf("no policy")
	}
	if len(c.Jobs) > maxJobs {
		return fmt.Errorf("%d jobs: at most %d", len(c.Jobs), maxJobs)
	}
	if err := c.Models.check(); err != nil {
		return err
	}
	for i := range c.Nodes {
		if s := c.Nodes[i].Speed; s < 0 || math.IsNaN(s) || math.IsInf(s, 0) {
			return fmt.Errorf("node %q: speed %v: it must be a number above 0", c.Nodes[i].Name, s)
		}
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
		return fmt.Errorf("%s: submitted at %v: not before 0", what, j.Submit)
	case i > 0 && j.Submit < c.Jobs[i-1].Submit:
		return fmt.Errorf("%s: submitted at %v, before the job in front of it: sort the jobs", what, j.Submit)
	case j.Project < 0 || j.Project > len(c.Projects):
		return fmt.Errorf("%s: project %d of %d", what, j.Project, len(c.Projects))
	case len(j.Stages) == 0:
		return fmt.Errorf("%s: no stages", what)
	}
	for k := range j.Stages {
		g := &j.Stages[k]
		if g.Work < 0 || g.Shuffle < 0 || g.Write < 0 || g.Input < 0 || g.Read < 0 {
			return fmt.Errorf("%s stage %d: a time or size below 0", what, k)
		}
		if g.Each != nil && len(g.Each) != int(g.Tasks) {
			return fmt.Errorf("%s stage %d: %d tasks and %d work times", what, k, g.Tasks, len(g.Each))
		}
		if g.Starts != nil && len(g.Starts) != int(g.Tasks) {
			return fmt.Errorf("%s stage %d: %d tasks and %d start delays", what, k, g.Tasks, len(g.Starts))
		}
		below := func(d time.Duration) bool { return d < 0 }
		if slices.ContainsFunc(g.Each, below) || slices.ContainsFunc(g.Starts, below) {
			return fmt.Errorf("%s stage %d: a work time or start delay below 0", what, k)
		}
	}
	return nil
}

func (m *Models) check() error {
	bad := func(x float64) bool { return !(x >= 0) || math.IsInf(x, 0) }
	switch {
	case m.Transfer > TransferShared:
		return fmt.Errorf("%v: use free, fixed or shared", m.Transfer)
	case m.transfer() != TransferFree && (m.LocalRate <= 0 || m.RackRate <= 0 || m.RemoteRate <= 0):
		return fmt.Errorf("transfer %v: local, rack and remote rates must be above 0", m.Transfer)
	case m.transfer() == TransferShared && (m.NodeLink <= 0 || m.RackLink <= 0):
		return fmt.Errorf("transfer shared: node and rack links must be above 0")
	case m.Launch < 0 || m.MTBF < 0 || m.Repair < 0 || m.KillDelay < 0 || m.Heartbeat < 0:
		return fmt.Errorf("a time of the models is below 0")
	case m.Replicas < 0 || m.Replicas > scheduler.MaxReplicas:
		return fmt.Errorf("%d replicas: 0 to %d", m.Replicas, scheduler.MaxReplicas)
	case bad(m.Spread) || bad(m.StragglerPart) || bad(m.StragglerFactor) || bad(m.EstimateError) || bad(m.MemoryUsed):
		return fmt.Errorf("a number of the models is below 0 or not a number")
	case m.StragglerPart > 1 || m.MemoryUsed > 1:
		return fmt.Errorf("straggler part %v and memory used %v: at most 1", m.StragglerPart, m.MemoryUsed)
	}
	return nil
}

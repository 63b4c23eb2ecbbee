package scheduler

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

const maxName = 4096 // limits the length of names, in bytes

// CheckName returns an error for a name that could not be written and read unchanged, which the State refuses.
func CheckName(name string) error {
	if len(name) > maxName {
		return fmt.Errorf("a name of %d bytes: at most %d", len(name), maxName)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("the name %q is not valid UTF-8", name)
	}
	return nil
}

func checkNames(what string, of ...string) error {
	for _, n := range of {
		if err := CheckName(n); err != nil {
			return refuse(ErrInvalid, what, "%v", err)
		}
	}
	return nil
}

func (n *NodeSpec) validate() error {
	what := fmt.Sprintf("node %q", n.Name)
	if n.Name == "" {
		return refuse(ErrInvalid, fmt.Sprintf("node %d", n.ID), "it has no name")
	}
	if err := checkNames(what, append([]string{n.Name, n.Path, n.CPUClass}, n.Restores...)...); err != nil {
		return err
	}
	if n.Path != "" && (!strings.HasPrefix(n.Path, "/") || strings.HasSuffix(n.Path, "/")) {
		return refuse(ErrInvalid, what, "path %q must look like \"/dc1/rack7\"", n.Path)
	}
	if err := n.Capacity.Check(); err != nil {
		return refuse(ErrInvalid, what, "capacity: %v", err)
	}
	if len(n.Disks) > MaxDisks {
		return refuse(ErrInvalid, what, "%d disks: at most %d", len(n.Disks), MaxDisks)
	}
	if n.Swap < 0 || n.Swap > MaxAmount {
		return refuse(ErrInvalid, what, "swap is %d bytes", n.Swap)
	}
	var io int64
	for _, d := range n.Disks {
		if err := checkNames(what, d.Name); err != nil {
			return err
		}
		if d.IO < 0 || d.IO > MaxAmount/MaxDisks || d.Space < 0 || d.Space > MaxAmount {
			return refuse(ErrInvalid, what, "disk %q: io %d B/s, space %d bytes", d.Name, d.IO, d.Space)
		}
		io += d.IO
	}
	if io != n.Capacity[IO] {
		return refuse(ErrInvalid, what, "capacity has io %d, its disks have %d together", n.Capacity[IO], io)
	}
	if err := checkWindows(what, n.Windows); err != nil {
		return err
	}
	return n.Speeds.validate(what)
}

func (p SuspendSpeed) validate(what string) error {
	for _, v := range []int64{int64(p.Freeze), int64(p.Swap), p.SwapPerS, int64(p.Checkpoint), p.CheckpointPerS,
		int64(p.Restore), p.RestorePerS, p.TransferPerS, p.SwapBackPerS, int64(p.ThawAfterFreeze)} {
		if v < 0 || v > MaxAmount {
			return refuse(ErrInvalid, what, "a suspend speed is %d", v)
		}
	}
	return nil
}

func (t *TenantSpec) validate() error {
	what := fmt.Sprintf("tenant %q", t.Name)
	if t.Name == "" {
		return refuse(ErrInvalid, fmt.Sprintf("tenant %d", t.ID), "it has no name")
	}
	if err := checkNames(what, t.Name); err != nil {
		return err
	}
	if !(t.Weight > 0) || math.IsInf(t.Weight, 0) {
		return refuse(ErrInvalid, what, "weight is %v: it must be above 0", t.Weight)
	}
	for _, c := range []struct {
		name string
		l    Limit
	}{{"task", t.Caps.Task}, {"job", t.Caps.Job}, {"total", t.Caps.Total}} {
		if err := Resources(c.l).Check(); err != nil {
			return refuse(ErrInvalid, what, "cap for each %s: %v", c.name, err)
		}
	}
	return nil
}

func (j *JobSpec) validate() error {
	what := fmt.Sprintf("job %d", j.ID)
	switch {
	case j.ID == 0:
		return refuse(ErrInvalid, what, "0 is not a valid job id")
	case j.Priority != PriorityLow && j.Priority != PriorityHigh:
		return refuse(ErrInvalid, what, "priority is %v: use low or high", j.Priority)
	case j.Deadline != 0 && j.Deadline <= j.Submitted:
		return refuse(ErrInvalid, what, "its deadline is %v before its submission: set a later one", j.Submitted.Sub(j.Deadline))
	case j.Bound < 0 || j.Bound > MaxRunTime:
		return refuse(ErrInvalid, what, "runtime_bound is %v: 0 to %v", j.Bound, MaxRunTime)
	case j.Estimate < 0 || j.Estimate > MaxRunTime:
		return refuse(ErrInvalid, what, "estimate is %v: 0 to %v", j.Estimate, MaxRunTime)
	case j.OnMiss > OnMissStop:
		return refuse(ErrInvalid, what, "on_miss is %v: use continue or stop", j.OnMiss)
	case j.AcceptedByQuote && j.Deadline == 0:
		return refuse(ErrInvalid, what, "it is accepted but has no deadline")
	case !(j.Size >= 0) || math.IsInf(j.Size, 0):
		return refuse(ErrInvalid, what, "size is %v task-seconds", j.Size)
	case !(j.Weight >= 0) || math.IsInf(j.Weight, 0):
		return refuse(ErrInvalid, what, "weight is %v: above 0, or 0 for 1", j.Weight)
	}
	return checkNames(what, j.Name)
}

func (p *ProjectSpec) validate() error {
	what := fmt.Sprintf("project %d", p.ID)
	switch {
	case p.ID == 0:
		return refuse(ErrInvalid, what, "0 is not a valid project id")
	case p.Priority != PriorityLow && p.Priority != PriorityHigh:
		return refuse(ErrInvalid, what, "priority is %v: use low or high", p.Priority)
	case p.Jobs < 0:
		return refuse(ErrInvalid, what, "it has %d jobs", p.Jobs)
	}
	return checkNames(what, p.Name)
}

// validate checks a stage that is to become stage number index of its job.
func (g *StageSpec) validate(what string, index int) error {
	what = fmt.Sprintf("%s stage %d", what, index)
	switch {
	case g.Kind < KindMap || g.Kind > KindGroup:
		return refuse(ErrInvalid, what, "kind is %v: use map, reduce or group", g.Kind)
	case g.Tasks < 0 || g.Tasks > MaxTasks:
		return refuse(ErrInvalid, what, "%d tasks: 0 to %d", g.Tasks, MaxTasks)
	case g.Disk < 0 || g.Disk > MaxAmount:
		return refuse(ErrInvalid, what, "disk space is %d bytes", g.Disk)
	case g.Estimate < 0 || g.Estimate > MaxRunTime:
		return refuse(ErrInvalid, what, "estimate is %v: 0 to %v", g.Estimate, MaxRunTime)
	case g.Bound < 0 || g.Bound > MaxRunTime:
		return refuse(ErrInvalid, what, "bound is %v: 0 to %v", g.Bound, MaxRunTime)
	case g.MaxParallel < 0:
		return refuse(ErrInvalid, what, "max_parallel is %d", g.MaxParallel)
	case g.MaxAttempts < 0 || g.MaxAttempts > maxAttemptsLimit:
		return refuse(ErrInvalid, what, "attempts is %d: 1 to %d", g.MaxAttempts, maxAttemptsLimit)
	case !(g.SlowStart >= 0 && g.SlowStart <= 1):
		return refuse(ErrInvalid, what, "slow_start is %v: 0 to 1", g.SlowStart)
	}
	if err := checkNames(what, g.Name); err != nil {
		return err
	}
	if err := g.Demand.Check(); err != nil {
		return refuse(ErrInvalid, what, "demand: %v", err)
	}
	for _, a := range g.After {
		if a < 0 || int(a) >= index {
			return refuse(ErrInvalid, what, "it comes after stage %d, which is not an earlier one", a)
		}
	}
	return g.Inputs.validate(what, g.Tasks)
}

func (in *Inputs) validate(what string, tasks int32) error {
	if in == nil {
		return nil
	}
	if len(in.Bytes) != int(tasks) || len(in.Start) != int(tasks)+1 || (in.Local != nil && len(in.Local) != len(in.Nodes)) {
		return refuse(ErrInvalid, what, "inputs for %d tasks of %d, %d offsets, %d nodes, %d local sizes",
			len(in.Bytes), tasks, len(in.Start), len(in.Nodes), len(in.Local))
	}
	for i, b := range in.Bytes {
		from, to := in.Start[i], in.Start[i+1]
		if b < 0 || b > MaxAmount || from < 0 || to < from || int(to) > len(in.Nodes) || to-from > MaxReplicas {
			return refuse(ErrInvalid, what, "input of task %d: %d bytes, replicas %d to %d of %d", i, b, from, to, len(in.Nodes))
		}
	}
	if in.Start[0] != 0 || int(in.Start[tasks]) != len(in.Nodes) {
		return refuse(ErrInvalid, what, "input offsets cover %d to %d of %d nodes", in.Start[0], in.Start[tasks], len(in.Nodes))
	}
	for i, b := range in.Local {
		if b < 0 || b > MaxAmount {
			return refuse(ErrInvalid, what, "local size %d is %d bytes", i, b)
		}
	}
	for _, n := range in.Nodes {
		if n < 0 || n >= MaxNodes {
			return refuse(ErrInvalid, what, "an input is on the invalid node %d", n)
		}
	}
	return nil
}

func (r *Reservation) validate() error {
	switch {
	case r.ID == 0:
		return r.refuse(ErrInvalid, "0 is not a valid reservation id")
	case r.Kind < ReserveProject || r.Kind > ReservePreempt:
		return r.refuse(ErrInvalid, "kind is %v", r.Kind)
	case r.End < r.Start:
		return r.refuse(ErrInvalid, "it ends %v before it starts", r.Start.Sub(r.End))
	case r.Stage < -1 || r.Task < -1 || (r.Task >= 0 && r.Stage < 0):
		return r.refuse(ErrInvalid, "it is for task %d of stage %d", r.Task, r.Stage)
	case r.Disk < 0 || r.Disk > MaxAmount:
		return r.refuse(ErrInvalid, "disk space is %d bytes", r.Disk)
	case r.OnDisk < -1:
		return r.refuse(ErrInvalid, "its disk is %d: use -1 or an index", r.OnDisk)
	}
	if err := r.Demand.Check(); err != nil {
		return r.refuse(ErrInvalid, "demand: %v", err)
	}
	return nil
}

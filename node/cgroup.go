package node

import (
	"context"
	"errors"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// attemptCgroup owns an attempt's cgroup: the limits in force, and what was last measured in it.
// Without an Enforcer there is no cgroup: exists then only says that the step was done, and usage
// comes from elsewhere. No program of the task starts unless ensure has written its limits and read
// them back: a cgroup that an earlier daemon made may lack them, or the helpers leaf.
type attemptCgroup struct {
	exists    bool
	written   bool             // by ensure, since the daemon started
	limits    *droverv1.Limits // as the kernel holds them
	usage     *droverv1.Usage  // replaced, never modified, because a report may share it
	occupied  *droverv1.Resources
	oomKills  OOMKills
	swapBytes int64 // bytes of its memory in swap

	id  string
	cfg *Config
	io  *unallocatedIO
	rec *attemptRecord // for the CPU time used on other nodes
}

// ensure makes the cgroup with the limits of a running task.
func (g *attemptCgroup) ensure(ctx context.Context, spec *droverv1.TaskSpec) error {
	if g.cfg.Enforcer != nil {
		if err := checkDemand(spec); err != nil {
			return err
		}
		g.io.refresh()
		if err := g.write(ctx, spec, g.cfg.limitsOf(spec)); err != nil {
			return err
		}
	}
	g.exists, g.written = true, true
	return nil
}

// write writes limits and records them as those in force. There must be an Enforcer.
func (g *attemptCgroup) write(ctx context.Context, spec *droverv1.TaskSpec, l Limits) error {
	limits, err := g.cfg.Enforcer.Ensure(ctx, g.id, l)
	if err != nil {
		return err
	}
	limits.DiskQuota = spec.GetDisk()
	g.limits = limits
	return nil
}

// writeFrozen writes the limits of a frozen task, with this much swap, after lift. It does so even
// if ctx has ended.
func (g *attemptCgroup) writeFrozen(ctx context.Context, spec *droverv1.TaskSpec, swap int64) error {
	if g.cfg.Enforcer == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimitsTimeout)
	defer cancel()
	l := g.cfg.limitsOf(spec)
	l.swap = swap
	return g.write(ctx, spec, l)
}

// lift lifts the limits on CPU and I/O, and allows this much swap; it makes the cgroup if needed.
// criu cannot stop a process that waits for its throttled disk, or for pages from swap, until the
// wait ends.
func (g *attemptCgroup) lift(ctx context.Context, spec *droverv1.TaskSpec, swap int64) error {
	e := g.cfg.Enforcer
	if e == nil {
		return nil
	}
	l := g.cfg.limitsOf(spec)
	_, err := e.Ensure(ctx, g.id, Limits{Memory: l.Memory, Pids: l.Pids, swap: swap})
	return err
}

// prepareStart lets the engine do its part of a start. That part runs inside the
// task's cgroup (runc's init is several processes) and would exceed stepLimit
// under the CPU quota of a small task on a busy node. Memory, processes and I/O
// stay limited. The task's limits are restored in any case before its program
// runs.
func (g *attemptCgroup) prepareStart(ctx context.Context, spec *droverv1.TaskSpec) (err error) {
	p, ok := g.cfg.Driver.(runtime.Preparer)
	l := g.cfg.limitsOf(spec)
	if !ok || g.cfg.Enforcer == nil || spec == nil || l.CPU <= 0 || l.CPU >= startCPU {
		return nil
	}
	l.CPU = startCPU
	defer func() {
		back, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreLimitsTimeout)
		defer cancel()
		err = errors.Join(err, g.ensure(back, spec))
	}()
	if _, err := g.cfg.Enforcer.Ensure(ctx, g.id, l); err != nil {
		return err
	}
	return g.cfg.explainNoImage(spec, p.Prepare(ctx, g.id))
}

// readUsage reads past and current usage.
func (g *attemptCgroup) readUsage() {
	e := g.cfg.Enforcer
	if e == nil || !g.exists {
		return
	}
	u, occupied, kills, err := e.Usage(g.id)
	if err != nil {
		return
	}
	if u != nil {
		addPrior(u, &g.rec.PriorUsage)
	}
	g.usage, g.occupied, g.oomKills = u, occupied, kills
}

// addPrior adds the usage of earlier cgroups of the attempt to the counters of the present one.
func addPrior(u *droverv1.Usage, p *store.PriorUsage) {
	u.CpuMs += p.CPUMS
	u.MemoryPeak = max(u.GetMemoryPeak(), p.MemoryPeak)
	u.ReadBytes += p.ReadBytes
	u.WriteBytes += p.WriteBytes
	u.CpuThrottledMs += p.ThrottledMS
}

// usageToStore returns the part of an attempt's usage that its record stores, nil for nothing.
func usageToStore(u *droverv1.Usage) *store.Usage {
	if u == nil {
		return nil
	}
	return &store.Usage{CPUMS: u.GetCpuMs(), MemoryPeak: u.GetMemoryPeak(), ReadBytes: u.GetReadBytes(), WriteBytes: u.GetWriteBytes(), ThrottledMS: u.GetCpuThrottledMs()}
}

// recoverUsage takes over the usage in the record of a checkpointed attempt, unless the usage was
// read already.
func (g *attemptCgroup) recoverUsage() {
	if r := g.rec.Usage; g.usage == nil && r != nil {
		g.usage = &droverv1.Usage{CpuMs: r.CPUMS, MemoryPeak: r.MemoryPeak, ReadBytes: r.ReadBytes, WriteBytes: r.WriteBytes, CpuThrottledMs: r.ThrottledMS}
	}
}

// read reads usage and swap.
func (g *attemptCgroup) read() {
	g.readUsage()
	if s, ok := g.cfg.Enforcer.(Swapper); ok && g.exists {
		if n, err := s.SwapBytes(g.id); err == nil {
			g.swapBytes = n
		}
	}
}

// takeStatus takes over the engine's measurement of a stopped container, if there is no other. The
// harness's result is more exact, and comes later.
func (g *attemptCgroup) takeStatus(st runtime.Status) {
	if g.cfg.Enforcer == nil && (st.CPU > 0 || st.PeakMemory > 0) {
		g.usage = &droverv1.Usage{CpuMs: st.CPU.Milliseconds(), MemoryPeak: st.PeakMemory}
	}
}

// remove removes the cgroup with every process that is left in it.
func (g *attemptCgroup) remove(ctx context.Context) error {
	if e := g.cfg.Enforcer; e != nil {
		if err := e.Remove(ctx, g.id); err != nil {
			return err
		}
	}
	g.exists, g.written = false, false
	return nil
}

// vanished marks the cgroup as missing, so that it is made again. It returns the error of the step
// that needs it.
func (g *attemptCgroup) vanished() error {
	g.exists, g.written = false, false
	return fault.New(fault.Unavailable, "its cgroup has vanished, and is made again")
}

// checkDemand refuses a demand of zero, which as a limit would mean no limit.
func checkDemand(spec *droverv1.TaskSpec) error {
	r := spec.GetDemand()
	if r.GetCpu() <= 0 || r.GetMemory() <= 0 || r.GetIo() <= 0 {
		return fault.New(fault.Invalid, "stage %q demands cpu %d, memory %d, io %d: each must be above zero, since it is the task's limit", spec.GetStageName(), r.GetCpu(), r.GetMemory(), r.GetIo())
	}
	return nil
}

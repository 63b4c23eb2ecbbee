package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// minSystemMemory is the least memory of tasks/system, even on a small machine, in bytes.
const minSystemMemory = 512 << 20

// helperKillLimit is how long killed helpers may take to disappear.
const helperKillLimit = 5 * time.Second

var (
	_ Enforcer        = CgroupEnforcer{}
	_ Swapper         = CgroupEnforcer{}
	_ systemLimiter   = CgroupEnforcer{}
	_ runtime.Freezer = CgroupEnforcer{}
)

// CgroupEnforcer implements Enforcer with the kernel's cgroup v2.
type CgroupEnforcer struct {
	root       *cgroups.Root
	disks      []cgroups.Device // of the node's folders, whose bandwidth was measured; each attempt gets its full I/O limit on each
	imageDisks []cgroups.Device // other disks that attempts access, on which no other work is limited

	// systemMemory bounds tasks/system in bytes, so that loggers, shims, unpacking and serving take
	// at most half of the memory from the tasks; 0: none. Its CPU needs no bound: cpu.weight gives
	// it as much as one task while tasks compete, and otherwise it may use what is idle, so that
	// starts and dumps do not wait for it.
	systemMemory int64
}

// NewCgroupEnforcer prepares the tree below base ("" = /drover). disks are
// folders on the disks that attempts and the node write to. Work charged to no attempt
// runs in tasks/system with reservedIO bytes per second on each disk; with enter
// the daemon itself moves there, since it serves shuffles and unpacks images.
func NewCgroupEnforcer(base string, disks []string, reservedIO int64, enter bool) (CgroupEnforcer, error) {
	root, err := cgroups.New(cgroups.Config{Base: base})
	if err != nil {
		return CgroupEnforcer{}, err
	}
	e := CgroupEnforcer{root: root}
	var machine unix.Sysinfo_t
	if err := unix.Sysinfo(&machine); err != nil {
		return CgroupEnforcer{}, fmt.Errorf("memory of this machine: %w", err)
	}
	e.systemMemory = max(minSystemMemory, int64(machine.Totalram)*int64(machine.Unit)/2)
	for _, dir := range disks {
		d, err := cgroups.DiskOf(dir)
		if err != nil {
			return CgroupEnforcer{}, err
		}
		e.disks = addDisk(e.disks, d)
	}
	if err := root.Prepare(); err != nil {
		return CgroupEnforcer{}, err
	}
	if err := e.LimitSystem(reservedIO); err != nil {
		return CgroupEnforcer{}, err
	}
	if enter {
		err = root.System().AddProcess(cgroups.Whole, os.Getpid())
	}
	return e, err
}

func addDisk(all []cgroups.Device, d cgroups.Device) []cgroups.Device {
	if slices.Contains(all, d) {
		return all
	}
	return append(all, d)
}

// LimitImages also limits what attempts read and write on the disk of dir, where the engine has
// their images. It must be called before the enforcer is used. A folder on no block device is
// fault.Unsupported.
func (e *CgroupEnforcer) LimitImages(dir string) error {
	d, err := cgroups.DiskOf(dir)
	if err == nil {
		e.imageDisks = addDisk(e.imageDisks, d)
	}
	return err
}

// disksOf returns the disks on which an attempt with these limits is limited.
func (e CgroupEnforcer) disksOf(l Limits) []cgroups.Device {
	all := slices.Clone(e.disks)
	for _, d := range e.imageDisks {
		all = addDisk(all, d)
	}
	if l.rootfs != "" {
		if d, err := cgroups.DiskOf(l.rootfs); err == nil { // otherwise it is in memory or on another machine, or the start fails
			all = addDisk(all, d)
		}
	}
	return all
}

// LimitSystem implements systemLimiter.
func (e CgroupEnforcer) LimitSystem(io int64) error {
	return e.root.System().Update(cgroupLimits(Limits{Memory: e.systemMemory, io: io}, e.disks))
}

// Ensure implements Enforcer.
func (e CgroupEnforcer) Ensure(_ context.Context, id string, l Limits) (*droverv1.Limits, error) {
	g, err := e.root.Create(id, cgroupLimits(l, e.disksOf(l)))
	if err != nil {
		return nil, err
	}
	return readCgroupLimits(g)
}

func cgroupLimits(l Limits, disks []cgroups.Device) cgroups.Limits {
	c := cgroups.Limits{CPUMillis: limitOrMax(l.CPU), MemoryBytes: limitOrMax(l.Memory), PIDs: limitOrMax(l.Pids), SwapBytes: l.swap}
	for _, d := range disks {
		c.Disks = append(c.Disks, cgroups.DiskLimit{Device: d, ReadBPS: limitOrMax(l.io), WriteBPS: limitOrMax(l.io)})
	}
	return c
}

func limitOrMax(v int64) int64 {
	if v <= 0 {
		return cgroups.Max
	}
	return v
}

// readCgroupLimits reads the limits as the kernel's files show them.
func readCgroupLimits(g *cgroups.Group) (*droverv1.Limits, error) {
	l, err := g.Limits()
	if err != nil {
		return nil, err
	}
	shown := &droverv1.Limits{}
	for _, p := range l.Pairs(nil) {
		switch p.File {
		case "cpu.max":
			shown.CpuMax = p.Value
		case "memory.max":
			shown.MemoryMax = p.Value
		case "memory.swap.max":
			shown.MemorySwapMax = p.Value
		case "io.max":
			shown.IoMax = append(shown.IoMax, p.Value)
		case "pids.max":
			shown.PidsMax = p.Value
		}
	}
	return shown, nil
}

// Limits returns the limits in force for an attempt that has a cgroup.
func (e CgroupEnforcer) Limits(id string) (*droverv1.Limits, error) {
	g, err := e.root.Open(id)
	if err != nil {
		return nil, err
	}
	return readCgroupLimits(g)
}

// ContainerCgroup implements Enforcer.
func (e CgroupEnforcer) ContainerCgroup(id string) string {
	g, err := e.root.Open(id)
	if err != nil {
		return ""
	}
	return g.LeafPath(cgroups.Container)
}

// OpenHelperLeaf implements Enforcer.
func (e CgroupEnforcer) OpenHelperLeaf(id string) (*os.File, error) {
	g, err := e.root.Open(id)
	if err != nil {
		return nil, err
	}
	return g.OpenLeaf(cgroups.Helpers)
}

// Usage implements Enforcer.
func (e CgroupEnforcer) Usage(id string) (*droverv1.Usage, *droverv1.Resources, OOMKills, error) {
	g, err := e.root.Open(id)
	if err != nil {
		return nil, nil, OOMKills{}, err
	}
	s, err := g.Stats()
	if err != nil {
		return nil, nil, OOMKills{}, err
	}
	u := &droverv1.Usage{CpuMs: s.CPU.Milliseconds(), MemoryPeak: s.PeakBytes, CpuThrottledMs: s.Throttled.Milliseconds()}
	for _, d := range s.Disks {
		u.ReadBytes += int64(d.ReadBytes)
		u.WriteBytes += int64(d.WriteBytes)
	}
	return u, &droverv1.Resources{Memory: s.MemoryBytes}, oomKillsOf(s), nil
}

// oomKillsOf returns which processes the kernel has killed for want of memory. The kernel counts
// the kills of all causes together.
func oomKillsOf(s cgroups.Stats) OOMKills {
	if s.OOMs == 0 {
		return OOMKills{outside: int64(s.OOMKills)}
	}
	return OOMKills{atLimit: int64(s.OOMKills)}
}

// FreezeFile returns the file that freezes the attempt's container when 1 is
// written to it.
func (e CgroupEnforcer) FreezeFile(id string) string {
	g, err := e.root.Open(id)
	if err != nil {
		return ""
	}
	return filepath.Join(g.Dir(), path.Base(g.LeafPath(cgroups.Container)), "cgroup.freeze")
}

// Freeze implements runtime.Freezer for the attempt's container; its helpers
// keep running.
func (e CgroupEnforcer) Freeze(ctx context.Context, id string) error {
	g, err := e.root.OpenUnchecked(id)
	if err != nil {
		return err
	}
	took, err := g.Freeze(ctx)
	recordFreeze(ctx, took)
	return err
}

// FreezeLasting implements runtime.LastingFreezer.
func (e CgroupEnforcer) FreezeLasting(ctx context.Context, id string) error {
	g, err := e.root.OpenUnchecked(id)
	if err != nil {
		return err
	}
	took, err := g.FreezeLasting(ctx)
	recordFreeze(ctx, took)
	return err
}

// recordFreeze records what the parts of a freeze took.
func recordFreeze(ctx context.Context, took cgroups.FreezeTimings) {
	for _, p := range []struct {
		part string
		took time.Duration
	}{{"write", took.Write}, {"wait", took.WaitLimited}, {"lift", took.LiftLimits}, {"wait lifted", took.WaitLifted}, {"restore limits", took.RestoreLimits}} {
		if p.took > 0 {
			runtime.RecordPart(ctx, "kernel/"+p.part, p.took)
		}
	}
}

// Thaw implements runtime.Freezer.
func (e CgroupEnforcer) Thaw(ctx context.Context, id string) error {
	g, err := e.root.OpenUnchecked(id)
	if err != nil {
		return err
	}
	return g.Thaw(ctx)
}

// Frozen implements runtime.Freezer.
func (e CgroupEnforcer) Frozen(_ context.Context, id string) (bool, error) {
	g, err := e.root.Open(id)
	if err != nil {
		return false, err
	}
	frozen, requested, err := g.Frozen()
	return frozen || requested, err // a process that waits for a disk freezes when the wait ends
}

// SwapOut implements Swapper.
func (e CgroupEnforcer) SwapOut(ctx context.Context, id string) (int64, error) {
	g, err := e.root.Open(id)
	if err != nil {
		return 0, err
	}
	done, err := g.Reclaim(ctx)
	moved := done.BeforeBytes - done.AfterBytes
	if err == nil && done.AfterBytes > done.BeforeBytes/2 && done.AfterBytes > swapNegligible {
		err = fault.New(fault.Exhausted, "%d of %d bytes of memory could not be swapped out: there is too little free swap", done.AfterBytes, done.BeforeBytes)
	}
	return moved, err
}

// swapNegligible is the amount of unswapped memory, in bytes, that is no error.
const swapNegligible = 8 << 20

// SwapBytes implements Swapper.
func (e CgroupEnforcer) SwapBytes(id string) (int64, error) {
	g, err := e.root.OpenUnchecked(id)
	if err != nil {
		return 0, err
	}
	return g.Swap()
}

// KillHelpers implements Enforcer.
func (e CgroupEnforcer) KillHelpers(ctx context.Context, id string) error {
	g, err := e.root.Open(id)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return killHelpers(ctx, g)
}

// Remove implements Enforcer.
func (e CgroupEnforcer) Remove(ctx context.Context, id string) error {
	g, err := e.root.Open(id)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := g.Kill(cgroups.Whole); err != nil {
		return fmt.Errorf("cgroup of %s: %w", id, err)
	}
	return g.Remove(ctx)
}

// List implements Enforcer.
func (e CgroupEnforcer) List() ([]string, error) { return e.root.List() }

// killHelpers kills the helpers until the helpers leaf is empty.
func killHelpers(ctx context.Context, g *cgroups.Group) error {
	ctx, cancel := context.WithTimeout(ctx, helperKillLimit)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		pids, err := g.Processes(cgroups.Helpers)
		if errors.Is(err, fault.NotFound) || err == nil && len(pids) == 0 {
			return nil
		}
		if err == nil {
			err = g.Kill(cgroups.Helpers)
		}
		if err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "helpers %v of %s were killed but do not exit", pids, g.Name())
		}
	}
}

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// helperEnd is how long killed helpers have to be gone.
const helperEnd = 5 * time.Second

var (
	_ Enforcer        = CgroupEnforcer{}
	_ Swapper         = CgroupEnforcer{}
	_ SystemLimiter   = CgroupEnforcer{}
	_ runtime.Freezer = CgroupEnforcer{}
)

// CgroupEnforcer is the Enforcer on the kernel's cgroup v2.
type CgroupEnforcer struct {
	Root  *cgroups.Root
	Disks []cgroups.Device // that an attempt can touch: each gets the whole limit
}

// NewCgroupEnforcer prepares the tree below base ("" = /drover). disks are
// folders on all the disks that an attempt can touch. What is charged to no
// attempt runs in tasks/system with reservedIO bytes per second on each disk;
// with enter the daemon itself goes there, since it serves shuffles and unpacks.
func NewCgroupEnforcer(base string, disks []string, reservedIO int64, enter bool) (CgroupEnforcer, error) {
	root, err := cgroups.New(cgroups.Config{Base: base})
	if err != nil {
		return CgroupEnforcer{}, err
	}
	e := CgroupEnforcer{Root: root}
	for _, dir := range disks {
		d, err := cgroups.DiskOf(dir)
		if err != nil {
			return CgroupEnforcer{}, err
		}
		if !slices.Contains(e.Disks, d) {
			e.Disks = append(e.Disks, d)
		}
	}
	if err := root.Prepare(); err != nil {
		return CgroupEnforcer{}, err
	}
	if err := e.LimitSystem(reservedIO); err != nil {
		return CgroupEnforcer{}, err
	}
	if enter {
		err = root.System().Enter(cgroups.Whole, os.Getpid())
	}
	return e, err
}

// LimitSystem implements SystemLimiter.
func (e CgroupEnforcer) LimitSystem(io int64) error {
	return e.Root.System().Update(e.limits(Limits{IO: io}))
}

// Make implements Enforcer.
func (e CgroupEnforcer) Make(_ context.Context, id string, l Limits) (*droverv1.Limits, error) {
	g, err := e.Root.Create(id, e.limits(l))
	if err != nil {
		return nil, err
	}
	return heldBy(g)
}

func (e CgroupEnforcer) limits(l Limits) cgroups.Limits {
	c := cgroups.Limits{CPUMillis: orMax(l.CPU), MemoryBytes: orMax(l.Memory), PIDs: orMax(l.Pids), SwapBytes: l.Swap}
	for _, d := range e.Disks {
		c.Disks = append(c.Disks, cgroups.DiskLimit{Device: d, ReadBPS: orMax(l.IO), WriteBPS: orMax(l.IO)})
	}
	return c
}

func orMax(v int64) int64 {
	if v <= 0 {
		return cgroups.Max
	}
	return v
}

// heldBy reads the limits as the kernel's files show them.
func heldBy(g *cgroups.Group) (*droverv1.Limits, error) {
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

// Limits reads the limits of an attempt that has a cgroup.
func (e CgroupEnforcer) Limits(id string) (*droverv1.Limits, error) {
	g, err := e.Root.Open(id)
	if err != nil {
		return nil, err
	}
	return heldBy(g)
}

// Leaf implements Enforcer.
func (e CgroupEnforcer) Leaf(id string) string {
	g, err := e.Root.Open(id)
	if err != nil {
		return ""
	}
	return g.LeafPath(cgroups.Container)
}

// HelperLeaf implements Enforcer.
func (e CgroupEnforcer) HelperLeaf(id string) (*os.File, error) {
	g, err := e.Root.Open(id)
	if err != nil {
		return nil, err
	}
	return g.OpenLeaf(cgroups.Helpers)
}

// Usage implements Enforcer.
func (e CgroupEnforcer) Usage(id string) (*droverv1.Usage, *droverv1.Resources, int64, error) {
	g, err := e.Root.Open(id)
	if err != nil {
		return nil, nil, 0, err
	}
	s, err := g.Stats()
	if err != nil {
		return nil, nil, 0, err
	}
	u := &droverv1.Usage{CpuMs: s.CPU.Milliseconds(), MemoryPeak: s.PeakBytes, CpuThrottledMs: s.Throttled.Milliseconds()}
	for _, d := range s.Disks {
		u.ReadBytes += int64(d.ReadBytes)
		u.WriteBytes += int64(d.WriteBytes)
	}
	return u, &droverv1.Resources{Memory: s.MemoryBytes}, int64(s.OOMKills), nil
}

// FreezeFile gives the file to which 1 is written to freeze the attempt's
// container.
func (e CgroupEnforcer) FreezeFile(id string) string {
	g, err := e.Root.Open(id)
	if err != nil {
		return ""
	}
	return filepath.Join(g.Dir(), path.Base(g.LeafPath(cgroups.Container)), "cgroup.freeze")
}

// Freeze implements runtime.Freezer for the attempt's container; its helpers are
// not touched.
func (e CgroupEnforcer) Freeze(ctx context.Context, id string) error {
	g, err := e.Root.Named(id)
	if err != nil {
		return err
	}
	took, err := g.Freeze(ctx)
	for _, p := range []struct {
		part string
		took time.Duration
	}{{"write", took.Write}, {"wait", took.AtOnce}, {"lift", took.Lift}, {"wait, lifted", took.Lifted}, {"put back", took.Back}} {
		if p.took > 0 {
			runtime.Took(ctx, "kernel/"+p.part, p.took)
		}
	}
	return err
}

// Thaw implements runtime.Freezer.
func (e CgroupEnforcer) Thaw(ctx context.Context, id string) error {
	g, err := e.Root.Named(id)
	if err != nil {
		return err
	}
	return g.Thaw(ctx)
}

// Frozen implements runtime.Freezer.
func (e CgroupEnforcer) Frozen(_ context.Context, id string) (bool, error) {
	g, err := e.Root.Open(id)
	if err != nil {
		return false, err
	}
	frozen, _, err := g.Frozen()
	return frozen, err
}

// SwapOut implements Swapper.
func (e CgroupEnforcer) SwapOut(ctx context.Context, id string) (int64, error) {
	g, err := e.Root.Open(id)
	if err != nil {
		return 0, err
	}
	done, err := g.Reclaim(ctx)
	moved := done.BeforeBytes - done.AfterBytes
	if err == nil && done.AfterBytes > done.BeforeBytes/2 && done.AfterBytes > swapSmall {
		err = fault.New(fault.Exhausted, "%d of %d bytes of memory are left after pushing it out: there is too little free swap", done.AfterBytes, done.BeforeBytes)
	}
	return moved, err
}

// swapSmall is memory not worth a word about what is left of it, in bytes.
const swapSmall = 8 << 20

// Swap implements Swapper.
func (e CgroupEnforcer) Swap(id string) (int64, error) {
	g, err := e.Root.Named(id)
	if err != nil {
		return 0, err
	}
	return g.Swap()
}

// KillHelpers implements Enforcer.
func (e CgroupEnforcer) KillHelpers(ctx context.Context, id string) error {
	g, err := e.Root.Open(id)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	return endLeaf(ctx, g)
}

// Remove implements Enforcer.
func (e CgroupEnforcer) Remove(ctx context.Context, id string) error {
	g, err := e.Root.Open(id)
	if errors.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := g.Kill(); err != nil {
		return fmt.Errorf("cgroup of %s: %w", id, err)
	}
	return g.Remove(ctx)
}

// List implements Enforcer.
func (e CgroupEnforcer) List() ([]string, error) { return e.Root.List() }

// endLeaf kills the helpers one by one, since cgroup.kill of the leaf would be
// the same and of the group too much, and waits until the leaf is empty.
func endLeaf(ctx context.Context, g *cgroups.Group) error {
	ctx, cancel := context.WithTimeout(ctx, helperEnd)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		pids, err := g.Processes(cgroups.Helpers)
		if errors.Is(err, fault.NotFound) || err == nil && len(pids) == 0 {
			return nil
		}
		if err != nil {
			return err
		}
		for _, p := range pids {
			if err := syscall.Kill(p, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "helpers %v of %s do not end", pids, g.Name())
		}
	}
}

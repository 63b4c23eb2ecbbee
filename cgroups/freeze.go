package cgroups

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

// Limits of the three steps of a freeze, counted from its start. A process in
// fsync under io.max does not freeze until its data is on disk, which the limit
// itself delays; a process throttled by cpu.max does not freeze before its next
// period, up to 100 ms later. The later steps therefore wait with the limit
// lifted.
const (
	freezeWaitLimited   = time.Millisecond
	freezeWaitCPULifted = 200 * time.Millisecond
	freezeWaitIOLifted  = 5 * time.Second
	thawLimit           = 5 * time.Second

	unthrottledCPUs = 1000 // CPUs that cpu.max allows while it is lifted
)

// FreezeTimings is the duration of each part of a freeze; 0 if a part was not
// needed. The processor is free after all parts but RestoreLimits.
type FreezeTimings struct {
	Write         time.Duration // writing 1 to cgroup.freeze
	WaitLimited   time.Duration // waiting under the limits
	LiftLimits    time.Duration // lifting limits
	WaitLifted    time.Duration // waiting with limits lifted
	RestoreLimits time.Duration // writing the limits back
}

// freezeFile is the file, below the group, to which 1 and 0 are written.
var freezeFile = path.Join(Container.dir(), "cgroup.freeze")

// Freeze stops the container's processes and returns when the kernel reports all
// of them frozen. Helpers keep running. Steps:
//
//  1. write 1 to cgroup.freeze and wait 1 ms for "frozen 1";
//  2. lift the attempt's cpu.max, wait until 200 ms, restore cpu.max;
//  3. lift io.max, wait until 5 s, restore io.max;
//  4. otherwise write 0: the container runs on, and the error is
//     fault.Unavailable.
//
// Freeze is safe to repeat. A context that ends goes straight to step 4. A
// caller that dies in step 2 or 3 leaves a freezing container with lifted
// limits: write the limits before Thaw.
func (g *Group) Freeze(ctx context.Context) (took FreezeTimings, err error) {
	took, err = g.FreezeLasting(ctx)
	if err == nil || errors.Is(err, fault.NotFound) {
		return took, err
	}
	if undo := g.r.fs.write(g.filePath(freezeFile), "0"); undo != nil {
		return took, fmt.Errorf("%w; undoing the freeze failed: %w", err, g.notFound(undo))
	}
	return took, fmt.Errorf("%w; the container is running", err)
}

// FreezeLasting is Freeze without step 4, for programs that must not run on: after
// fault.Unavailable the container is still freezing. None of its processes returns to user mode;
// all are frozen once each has left its system call, or has got a processor, and reached the point
// of return.
func (g *Group) FreezeLasting(ctx context.Context) (took FreezeTimings, err error) {
	start := time.Now()
	if err := g.r.fs.write(g.filePath(freezeFile), "1"); err != nil {
		return took, fmt.Errorf("freeze %s: %w", g.name, g.notFound(err))
	}
	addLap(&start, &took.Write)
	err = g.awaitFrozen(ctx, "1", freezeWaitLimited)
	addLap(&start, &took.WaitLimited)
	if errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
		err = g.freezeWithoutCPULimit(ctx, &took)
	}
	if errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
		err = g.freezeWithoutIOLimit(ctx, &took)
	}
	if err != nil {
		err = fmt.Errorf("freeze %s: %w", g.name, err)
	}
	return took, err
}

// addLap adds the time since start to *to and sets start to now.
func addLap(start *time.Time, to *time.Duration) {
	now := time.Now()
	*to += now.Sub(*start)
	*start = now
}

// freezeWithoutCPULimit is step 2 of Freeze.
func (g *Group) freezeWithoutCPULimit(ctx context.Context, took *FreezeTimings) (err error) {
	start := time.Now()
	old, limited, err := g.liftCPULimit()
	if err != nil {
		return g.notFound(err)
	}
	if limited {
		defer func() {
			err = errors.Join(err, g.notFound(g.r.fs.write(g.filePath("cpu.max"), old)))
			addLap(&start, &took.RestoreLimits)
		}()
	}
	addLap(&start, &took.LiftLimits)
	err = g.awaitFrozen(ctx, "1", freezeWaitCPULifted-freezeWaitLimited)
	addLap(&start, &took.WaitLifted)
	return err
}

// unthrottledCPUMax returns a cpu.max with old's period that never throttles;
// false if old has no limit. It does not return "max": removing a machine's last
// limit or adding its first makes the kernel patch its own code, which takes
// longer than a freeze.
func unthrottledCPUMax(old string) (string, bool) {
	_, text, _ := strings.Cut(old, " ")
	period, err := strconv.ParseInt(text, 10, 64)
	if strings.HasPrefix(old, "max") || err != nil {
		return "", false
	}
	return fmt.Sprintf("%d %d", unthrottledCPUs*period, period), true
}

// freezeWithoutIOLimit is step 3 of Freeze.
func (g *Group) freezeWithoutIOLimit(ctx context.Context, took *FreezeTimings) (err error) {
	start := time.Now()
	disks, err := g.diskLimits()
	if err != nil {
		return err
	}
	defer func() {
		for _, d := range disks {
			err = errors.Join(err, g.notFound(g.r.fs.write(g.filePath("io.max"), d.ioMaxLine())))
		}
		if len(disks) > 0 {
			err = errors.Join(err, g.verifyDiskLimits(disks))
		}
		addLap(&start, &took.RestoreLimits)
	}()
	for _, d := range disks {
		lifted := DiskLimit{Device: d.Device, ReadBPS: Max, WriteBPS: Max}
		if err := g.r.fs.write(g.filePath("io.max"), lifted.ioMaxLine()); err != nil {
			return g.notFound(err)
		}
	}
	addLap(&start, &took.LiftLimits)
	err = g.awaitFrozen(ctx, "1", freezeWaitIOLifted-freezeWaitCPULifted)
	addLap(&start, &took.WaitLifted)
	return err
}

func (g *Group) verifyDiskLimits(want []DiskLimit) error {
	got, err := g.diskLimits()
	if err != nil {
		return err
	}
	if !(Limits{Disks: got}).Equal(Limits{Disks: want}) {
		return fault.New(fault.Conflict, "io.max reads back as %v, want %v", got, want)
	}
	return nil
}

// Thaw resumes the container's processes. It is safe to repeat.
func (g *Group) Thaw(ctx context.Context) error {
	if err := g.r.fs.write(g.filePath(Container.dir(), "cgroup.freeze"), "0"); err != nil {
		return fmt.Errorf("thaw %s: %w", g.name, g.notFound(err))
	}
	if err := g.awaitFrozen(ctx, "0", thawLimit); err != nil {
		return fmt.Errorf("thaw %s: %w", g.name, err)
	}
	return nil
}

// Frozen reports whether all of the container's processes are frozen, and
// whether cgroup.freeze requests it.
func (g *Group) Frozen() (frozen, wanted bool, err error) {
	if frozen, err = g.hasFrozenEvent("1"); err != nil {
		return false, false, err
	}
	text, err := g.r.fs.read(g.filePath(Container.dir(), "cgroup.freeze"))
	if err != nil {
		return false, false, g.notFound(err)
	}
	return frozen, len(text) > 0 && text[0] == '1', nil
}

func (g *Group) hasFrozenEvent(value string) (bool, error) {
	text, err := g.r.fs.read(g.filePath(Container.dir(), "cgroup.events"))
	if err != nil {
		return false, g.notFound(err)
	}
	return eventEquals(text, "frozen", value)
}

// awaitFrozen checks cgroup.events immediately and then on every change.
func (g *Group) awaitFrozen(ctx context.Context, value string, limit time.Duration) error {
	ok, err := g.r.fs.await(ctx, g.filePath(Container.dir(), "cgroup.events"), limit, func(text string) (bool, error) {
		return eventEquals(text, "frozen", value)
	})
	switch {
	case err != nil:
		return g.notFound(err)
	case ok:
		return nil
	case ctx.Err() != nil:
		return fault.New(fault.Unavailable, "cgroup.events does not say \"frozen %s\": %w", value, ctx.Err())
	default:
		return fault.New(fault.Unavailable, "cgroup.events does not say \"frozen %s\" after %s", value, limit)
	}
}

// Limits of Reclaim.
const (
	reclaimStepBytes = 32 << 20   // of one write, which bounds how long a write can block
	reclaimFloor     = 1500 << 10 // memory that the kernel never reclaims from a process
	reclaimIdle      = 3          // steps without progress after which Reclaim ends
)

// Reclaimed is the effect of Reclaim on the container's memory.
type Reclaimed struct {
	BeforeBytes, AfterBytes int64 // memory.current
	swapBytes               int64 // memory.swap.current afterwards
}

// Reclaim pushes the container's memory out: page cache to disk, the rest to swap as far as the
// attempt's SwapBytes allows (see Update). The container should be frozen, otherwise it takes its
// pages back. Reclaim ends when about 1.5 MB are left or after three steps of at most 32 MiB
// without progress. After an error, too, it returns what it has reclaimed.
func (g *Group) Reclaim(ctx context.Context) (Reclaimed, error) {
	var done Reclaimed
	now, err := g.readLimit(Container, "memory.current")
	if err != nil {
		return done, fmt.Errorf("reclaim %s: %w", g.name, err)
	}
	done.BeforeBytes, done.AfterBytes = now, now
	for idle := 0; idle < reclaimIdle && now > reclaimFloor; {
		if ctx.Err() != nil {
			return done, fmt.Errorf("reclaim %s: %w", g.name, ctx.Err())
		}
		step := min(now, reclaimStepBytes)
		err := g.r.fs.write(g.filePath(Container.dir(), "memory.reclaim"), formatLimit(step))
		if err != nil && !errors.Is(err, unix.EAGAIN) { // EAGAIN: less than requested was reclaimed
			return done, fmt.Errorf("reclaim %s: %w", g.name, g.notFound(err))
		}
		before := now
		if now, err = g.readLimit(Container, "memory.current"); err != nil {
			return done, fmt.Errorf("reclaim %s: %w", g.name, err)
		}
		done.AfterBytes = now
		if before-now < step/100 {
			idle++
		} else {
			idle = 0
		}
	}
	if done.swapBytes, err = g.readLimit(Container, "memory.swap.current"); err != nil {
		return done, fmt.Errorf("reclaim %s: %w", g.name, err)
	}
	return done, nil
}

func (g *Group) readLimit(l Leaf, file string) (int64, error) {
	text, err := g.r.fs.read(g.filePath(l.dir(), file))
	if err != nil {
		return 0, g.notFound(err)
	}
	return parseLimit(text)
}

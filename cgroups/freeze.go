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

// Limits of freezing. A process in fsync under io.max does not freeze until its
// data is on disk, which the limit itself delays; one that is throttled by
// cpu.max does not before its next period, up to 100 ms: so later waits come with
// the limit lifted.
const (
	freezeAtOnce      = time.Millisecond
	freezeLimit       = 200 * time.Millisecond
	freezeLiftedLimit = 5 * time.Second
	thawLimit         = 5 * time.Second

	liftedCPUs = 1000 // that cpu.max allows while it is lifted
)

// Froze says how long the parts of a freeze took, each 0 where it was not needed.
// The processor is free after all but Back.
type Froze struct {
	Write  time.Duration // 1 to cgroup.freeze
	AtOnce time.Duration // waiting while the limits hold
	Lift   time.Duration // taking limits away
	Lifted time.Duration // waiting without them
	Back   time.Duration // putting them back
}

// Freeze stops the container's processes and returns when the kernel says that
// all of them stand still. The helpers are not touched. Steps:
//
//  1. write 1 to cgroup.freeze, wait 1 ms for "frozen 1";
//  2. lift cpu.max of the attempt, wait until 200 ms, put cpu.max back;
//  3. lift io.max, wait until 5 s, put io.max back;
//  4. else write 0: the container runs on, and the error is fault.Unavailable.
//
// Safe to repeat. A context that ends takes step 4 at once. Who dies in step 2 or
// 3 leaves a container that freezes: its limits are to be written before Thaw.
func (g *Group) Freeze(ctx context.Context) (took Froze, err error) {
	file := path.Join(Container.dir(), "cgroup.freeze")
	begun := time.Now()
	if err := g.r.k.write(g.file(file), "1"); err != nil {
		return took, fmt.Errorf("freeze %s: %w", g.name, g.missing(err))
	}
	lap(&begun, &took.Write)
	err = g.awaitFrozen(ctx, "1", freezeAtOnce)
	lap(&begun, &took.AtOnce)
	if errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
		err = g.freezeUnthrottled(ctx, &took)
	}
	if errors.Is(err, fault.Unavailable) && ctx.Err() == nil {
		err = g.freezeLifted(ctx, &took)
	}
	if err == nil {
		return took, nil
	}
	if undo := g.r.k.write(g.file(file), "0"); undo != nil {
		return took, fmt.Errorf("freeze %s: %w; and it could not be undone: %w", g.name, err, g.missing(undo))
	}
	return took, fmt.Errorf("freeze %s: %w; it runs on", g.name, err)
}

// lap adds the time since begun, which is now from here on.
func lap(begun *time.Time, to *time.Duration) {
	now := time.Now()
	*to += now.Sub(*begun)
	*begun = now
}

// freezeUnthrottled is step 2.
func (g *Group) freezeUnthrottled(ctx context.Context, took *Froze) (err error) {
	begun := time.Now()
	old, err := g.r.k.read(g.file("cpu.max"))
	if err != nil {
		return g.missing(err)
	}
	old = strings.TrimSpace(old)
	if lifted, ok := liftedCPU(old); ok {
		if err := g.r.k.write(g.file("cpu.max"), lifted); err != nil {
			return g.missing(err)
		}
		defer func() {
			err = errors.Join(err, g.missing(g.r.k.write(g.file("cpu.max"), old)))
			lap(&begun, &took.Back)
		}()
	}
	lap(&begun, &took.Lift)
	err = g.awaitFrozen(ctx, "1", freezeLimit-freezeAtOnce)
	lap(&begun, &took.Lifted)
	return err
}

// liftedCPU gives a cpu.max that never throttles, and whether old does. It is not
// "max": the first and the last limit of a machine have the kernel rewrite its
// own code, which takes longer than to freeze.
func liftedCPU(old string) (string, bool) {
	_, text, _ := strings.Cut(old, " ")
	period, err := strconv.ParseInt(text, 10, 64)
	if strings.HasPrefix(old, "max") || err != nil {
		return "", false
	}
	return fmt.Sprintf("%d %d", liftedCPUs*period, period), true
}

// freezeLifted is step 3.
func (g *Group) freezeLifted(ctx context.Context, took *Froze) (err error) {
	begun := time.Now()
	disks, err := g.diskLimits()
	if err != nil {
		return err
	}
	defer func() {
		for _, d := range disks {
			err = errors.Join(err, g.missing(g.r.k.write(g.file("io.max"), d.line())))
		}
		if len(disks) > 0 {
			err = errors.Join(err, g.sameDisks(disks))
		}
		lap(&begun, &took.Back)
	}()
	for _, d := range disks {
		lifted := DiskLimit{Device: d.Device, ReadBPS: Max, WriteBPS: Max}
		if err := g.r.k.write(g.file("io.max"), lifted.line()); err != nil {
			return g.missing(err)
		}
	}
	lap(&begun, &took.Lift)
	err = g.awaitFrozen(ctx, "1", freezeLiftedLimit-freezeLimit)
	lap(&begun, &took.Lifted)
	return err
}

func (g *Group) sameDisks(want []DiskLimit) error {
	got, err := g.diskLimits()
	if err != nil {
		return err
	}
	if !(Limits{Disks: got}).Equal(Limits{Disks: want}) {
		return fault.New(fault.Conflict, "io.max came back as %v, not as %v", got, want)
	}
	return nil
}

// Thaw lets the container's processes go on. Safe to repeat.
func (g *Group) Thaw(ctx context.Context) error {
	if err := g.r.k.write(g.file(Container.dir(), "cgroup.freeze"), "0"); err != nil {
		return fmt.Errorf("thaw %s: %w", g.name, g.missing(err))
	}
	if err := g.awaitFrozen(ctx, "0", thawLimit); err != nil {
		return fmt.Errorf("thaw %s: %w", g.name, err)
	}
	return nil
}

// Frozen tells whether the container's processes all stand still, and whether
// they are meant to.
func (g *Group) Frozen() (frozen, wanted bool, err error) {
	if frozen, err = g.frozenIs("1"); err != nil {
		return false, false, err
	}
	text, err := g.r.k.read(g.file(Container.dir(), "cgroup.freeze"))
	if err != nil {
		return false, false, g.missing(err)
	}
	return frozen, len(text) > 0 && text[0] == '1', nil
}

func (g *Group) frozenIs(value string) (bool, error) {
	text, err := g.r.k.read(g.file(Container.dir(), "cgroup.events"))
	if err != nil {
		return false, g.missing(err)
	}
	return eventIs(text, "frozen", value)
}

// awaitFrozen looks at once and then when the kernel says that the events
// changed.
func (g *Group) awaitFrozen(ctx context.Context, value string, limit time.Duration) error {
	ok, err := g.r.k.await(ctx, g.file(Container.dir(), "cgroup.events"), limit, func(text string) (bool, error) {
		return eventIs(text, "frozen", value)
	})
	switch {
	case err != nil:
		return g.missing(err)
	case ok:
		return nil
	case ctx.Err() != nil:
		return fault.New(fault.Unavailable, "cgroup.events does not say \"frozen %s\": %w", value, ctx.Err())
	default:
		return fault.New(fault.Unavailable, "cgroup.events does not say \"frozen %s\" after %s", value, limit)
	}
}

// Limits of reclaim.
const (
	reclaimStepBytes = 32 << 20   // per write: bounds how long one write can hold us
	reclaimFloor     = 1500 << 10 // what the kernel never gives back of a process
	reclaimIdle      = 3          // steps without progress until it ends
)

// Reclaimed says what Reclaim did, in bytes of the container's memory.
type Reclaimed struct {
	BeforeBytes, AfterBytes int64 // memory.current
	SwapBytes               int64 // memory.swap.current after
}

// Reclaim pushes the container's memory out: page cache to the disk, the rest
// to swap as far as the attempt's SwapBytes allows (see Update). The container
// should be frozen, or it takes its pages back. It ends when about 1.5 MB are
// left or three steps of at most 32 MiB brought nothing, and gives what it
// reached also with an error.
func (g *Group) Reclaim(ctx context.Context) (Reclaimed, error) {
	var done Reclaimed
	now, err := g.number(Container, "memory.current")
	if err != nil {
		return done, fmt.Errorf("reclaim %s: %w", g.name, err)
	}
	done.BeforeBytes, done.AfterBytes = now, now
	for idle := 0; idle < reclaimIdle && now > reclaimFloor; {
		if ctx.Err() != nil {
			return done, fmt.Errorf("reclaim %s: %w", g.name, ctx.Err())
		}
		step := min(now, reclaimStepBytes)
		err := g.r.k.write(g.file(Container.dir(), "memory.reclaim"), word(step))
		if err != nil && !errors.Is(err, unix.EAGAIN) { // EAGAIN: less than asked
			return done, fmt.Errorf("reclaim %s: %w", g.name, g.missing(err))
		}
		before := now
		if now, err = g.number(Container, "memory.current"); err != nil {
			return done, fmt.Errorf("reclaim %s: %w", g.name, err)
		}
		done.AfterBytes = now
		if before-now < step/100 {
			idle++
		} else {
			idle = 0
		}
	}
	if done.SwapBytes, err = g.number(Container, "memory.swap.current"); err != nil {
		return done, fmt.Errorf("reclaim %s: %w", g.name, err)
	}
	return done, nil
}

func (g *Group) number(l Leaf, file string) (int64, error) {
	text, err := g.r.k.read(g.file(l.dir(), file))
	if err != nil {
		return 0, g.missing(err)
	}
	return parseWord(text)
}

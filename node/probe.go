package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// The probe runs a container of the harness twice, with little and with more
// memory, and brings it through every level: what fails is not advertised, and
// the two times give a fixed part and a rate.
const (
	probeID      = "suspend-probe"
	probeFile    = "probe.json" // in the data folder: the last result
	probeVersion = 1
	probeLimit   = 5 * time.Minute  // for all of it
	probeWait    = 30 * time.Second // for one count
	probeSmall   = 4 << 20          // bytes
	probeLarge   = 36 << 20
	probeMemory  = 160 << 20 // limit of the container: restores need some more than it holds
	probeSpare   = 64 << 20  // bytes of swap below which swapping is not tried
)

// probeResult is what a probe found, as it is kept.
type probeResult struct {
	Version int                    `json:"version"`
	Of      string                 `json:"of"` // kernel, engine and our own version
	Levels  []droverv1.Level       `json:"levels"`
	Speeds  *droverv1.SuspendSpeed `json:"speeds"`
	Notes   []string               `json:"notes,omitempty"`
}

// info is who the node is, with the levels as far as they are known.
func (d *daemon) info() *droverv1.NodeInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.levels == nil {
		return d.cfg.Info
	}
	i := proto.CloneOf(d.cfg.Info)
	i.Levels, i.Speeds, i.LevelNotes = d.levels.Levels, d.levels.Speeds, d.levels.Notes
	return i
}

// probeOf names what a result holds for: with another kernel or engine it is
// probed again.
func (d *daemon) probeOf() string {
	v := d.cfg.Info.GetVersions()
	return strings.Join([]string{d.cfg.Driver.Name(), v["kernel"], v["containerd"], v["runc"], v["criu"], v["drover"], strconv.FormatBool(d.cfg.Info.GetSwap() > probeSpare)}, " ")
}

// knownLevels takes the result of an earlier probe that holds still.
func (d *daemon) knownLevels() bool {
	b, err := os.ReadFile(filepath.Join(d.cfg.Data, probeFile))
	if err != nil {
		return false
	}
	r := &probeResult{}
	if json.Unmarshal(b, r) != nil || r.Version != probeVersion || r.Of != d.probeOf() {
		return false
	}
	d.takeLevels(r)
	return true
}

func (d *daemon) takeLevels(r *probeResult) {
	d.mu.Lock()
	d.levels = r
	d.mu.Unlock()
}

// probe finds out which levels work, keeps that, and has the node register with
// it. It leaves nothing behind.
func (d *daemon) probe(ctx context.Context) {
	begun := d.clock.Mono()
	ctx2, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	r := d.runProbes(ctx2)
	if ctx.Err() != nil {
		return // the next daemon probes
	}
	d.log.Info("probed", "levels", r.Levels, "notes", r.Notes, "took", d.clock.Mono()-begun)
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(d.cfg.Data, probeFile), b, 0o600)
	}
	if err != nil {
		d.log.Warn("the probe's result is not kept", "err", err)
	}
	d.takeLevels(r)
	d.probed <- struct{}{}
}

// runProbes gives levels, speeds and why a level is missing.
func (d *daemon) runProbes(ctx context.Context) *probeResult {
	r := &probeResult{Version: probeVersion, Of: d.probeOf(), Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Speeds: &droverv1.SuspendSpeed{}}
	small, err := d.probeOnce(ctx, probeSmall)
	large := small
	if err == nil || small.reached > droverv1.Level_LEVEL_RUNNING {
		large, _ = d.probeOnce(ctx, probeLarge) // what it could not do, the small one says
	}
	r.Notes = append(r.Notes, small.notes...)
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
	}
	for _, l := range []droverv1.Level{droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED} {
		if small.can[l] && large.can[l] {
			r.Levels = append(r.Levels, l)
		} else if small.can[l] {
			r.Notes = append(r.Notes, large.notes...)
		}
	}
	s := r.Speeds
	s.FreezeUs, s.ThawUs = large.freeze.Microseconds(), large.thaw.Microseconds()
	s.SwapUs, s.SwapBps = line(small.swap, large.swap)
	_, s.SwapBackBps = line(small.swapBack, large.swapBack)
	s.CheckpointUs, s.CheckpointBps = line(small.dump, large.dump)
	s.RestoreUs, s.RestoreBps = line(small.restore, large.restore)
	return r
}

// line puts a line through two measurements: the time without any memory, and
// bytes per second; 0 where more memory took no longer.
func line(small, large time.Duration) (fixedUS, bps int64) {
	const more = probeLarge - probeSmall
	if large <= small {
		return large.Microseconds(), 0
	}
	per := large - small
	bps = int64(float64(more) / per.Seconds())
	return max(0, small-time.Duration(float64(probeSmall)/float64(more)*float64(per))).Microseconds(), bps
}

// probing is one container on its way through the levels.
type probing struct {
	d       *daemon
	spec    runtime.Spec
	file    string
	reached droverv1.Level
	can     map[droverv1.Level]bool
	notes   []string

	freeze, thaw, swap, swapBack, dump, restore time.Duration
}

// probeOnce brings a container with so much memory through the levels. The error
// says that not even running worked; what else did not is in notes.
func (d *daemon) probeOnce(ctx context.Context, memory int64) (*probing, error) {
	p := &probing{d: d, can: map[droverv1.Level]bool{}}
	dir := filepath.Join(d.cfg.Data, "probe")
	clean := func(ctx context.Context) error {
		err := d.cfg.Driver.Delete(ctx, probeID)
		if e := d.cfg.Enforcer; e != nil {
			err = errors.Join(err, e.Remove(ctx, probeID))
		}
		return errors.Join(err, os.RemoveAll(dir))
	}
	if err := clean(ctx); err != nil {
		return p, fmt.Errorf("before the probe: %w", err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := clean(ctx); err != nil {
			d.log.Warn("after the probe", "err", err)
		}
	}()
	if err := os.Mkdir(dir, 0o700); err != nil {
		return p, err
	}
	if err := p.start(ctx, dir, memory); err != nil {
		return p, fmt.Errorf("the probe's container does not run: %w", err)
	}
	p.reached = droverv1.Level_LEVEL_RUNNING
	for _, l := range []struct {
		level droverv1.Level
		try   func(context.Context) error
	}{{droverv1.Level_LEVEL_FROZEN, p.tryFreeze}, {droverv1.Level_LEVEL_SWAPPED, p.trySwap}, {droverv1.Level_LEVEL_CHECKPOINTED, p.tryDump}} {
		err := l.try(ctx)
		if err != nil {
			p.notes = append(p.notes, oneLine(strings.ToLower(strings.TrimPrefix(l.level.String(), "LEVEL_"))+": "+err.Error()))
			if l.level == droverv1.Level_LEVEL_FROZEN || p.counts(ctx) != nil {
				break // nothing deeper works without, or it is gone
			}
			continue
		}
		p.reached, p.can[l.level] = l.level, true
	}
	return p, nil
}

func (p *probing) start(ctx context.Context, dir string, memory int64) error {
	d := p.d
	p.file = filepath.Join(dir, "count")
	harness, file := d.harness, p.file
	p.spec = runtime.Spec{ID: probeID, Env: []string{"GODEBUG=multipathtcp=0"}, Hostname: "probe", Labels: map[string]string{"drover.probe": "1"},
		Log: runtime.Log{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1}}
	if !d.cfg.hostPaths() {
		harness, file = filepath.Join(harnessMount, filepath.Base(d.harness)), "/task/count"
		p.spec.Rootfs = d.emptyRoot
		p.spec.Mounts = []runtime.Mount{{Source: dir, Target: "/task"}, {Source: filepath.Dir(d.harness), Target: harnessMount, ReadOnly: true}}
	}
	p.spec.Args = append(append([]string{harness}, d.cfg.HarnessArgs...), "probe", file, strconv.FormatInt(memory, 10))
	if e := d.cfg.Enforcer; e != nil {
		if err := p.limit(ctx, 0); err != nil {
			return err
		}
		p.spec.Cgroup = e.Leaf(probeID)
	}
	if err := d.cfg.Driver.Create(ctx, p.spec); err != nil {
		return err
	}
	if err := d.cfg.Driver.Start(ctx, probeID); err != nil {
		return err
	}
	return p.counts(ctx)
}

func (p *probing) limit(ctx context.Context, swap int64) error {
	if p.d.cfg.Enforcer == nil {
		return nil
	}
	_, err := p.d.cfg.Enforcer.Make(ctx, probeID, Limits{Memory: probeMemory, Pids: 64, Swap: swap})
	return err
}

// count reads how far the program is; -1 before its first count.
func (p *probing) count() int64 {
	b, err := os.ReadFile(p.file)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// counts waits until the program counts on.
func (p *probing) counts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	from := p.count()
	for p.count() <= from {
		select {
		case <-tick.C:
		case <-ctx.Done():
			said, err := os.ReadFile(filepath.Join(filepath.Dir(p.file), "stderr.log"))
			if err != nil {
				said = nil
			}
			return fault.New(fault.Unavailable, "the probe's program does not count on from %d: %s", from, oneLine(string(said)))
		}
	}
	return nil
}

// timed runs f and gives how long it took.
func (p *probing) timed(d *time.Duration, f func() error) error {
	begun := p.d.clock.Mono()
	err := f()
	*d = p.d.clock.Mono() - begun
	return err
}

func (p *probing) tryFreeze(ctx context.Context) error {
	f := p.d.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "neither cgroups nor driver %s can freeze", p.d.cfg.Driver.Name())
	}
	if err := p.timed(&p.freeze, func() error { return f.Freeze(ctx, probeID) }); err != nil {
		return err
	}
	at := p.count()
	pause, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	<-pause.Done()
	cancel()
	if now := p.count(); now != at {
		return fault.New(fault.Unsupported, "it was frozen at %d and counted on to %d", at, now)
	}
	if err := p.timed(&p.thaw, func() error { return f.Thaw(ctx, probeID) }); err != nil {
		return err
	}
	return p.counts(ctx)
}

func (p *probing) trySwap(ctx context.Context) error {
	s, ok := p.d.cfg.Enforcer.(Swapper)
	if swap := p.d.cfg.Info.GetSwap(); !ok || swap < probeSpare {
		return fault.New(fault.Unsupported, "the node has %d bytes of free swap, it needs %d", swap, probeSpare)
	}
	f := p.d.freezer()
	if err := errors.Join(f.Freeze(ctx, probeID), p.limit(ctx, probeMemory)); err != nil {
		return errors.Join(err, f.Thaw(ctx, probeID))
	}
	err := p.timed(&p.swap, func() error { _, err := s.SwapOut(ctx, probeID); return err })
	err = errors.Join(err, p.limit(ctx, 0))
	begun := p.d.clock.Mono()
	err = errors.Join(err, f.Thaw(ctx, probeID))
	if err == nil {
		err = p.counts(ctx)
	}
	p.swapBack = p.d.clock.Mono() - begun
	return err
}

func (p *probing) tryDump(ctx context.Context) error {
	c, ok := p.d.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot dump", p.d.cfg.Driver.Name())
	}
	f := p.d.freezer()
	if err := f.Freeze(ctx, probeID); err != nil {
		return err
	}
	image := filepath.Join(filepath.Dir(p.file), "image")
	if err := p.timed(&p.dump, func() error { return p.d.spare.during(func() error { return c.Checkpoint(ctx, probeID, image) }) }); err != nil {
		return errors.Join(err, f.Thaw(ctx, probeID))
	}
	if err := p.limit(ctx, 0); err != nil {
		return err
	}
	if err := p.timed(&p.restore, func() error { return p.d.spare.during(func() error { return c.Restore(ctx, p.spec, image) }) }); err != nil {
		return err
	}
	if err := p.counts(ctx); err != nil {
		return err
	}
	return p.d.cfg.Driver.Kill(ctx, probeID, syscall.SIGKILL)
}

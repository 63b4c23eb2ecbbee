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

// The probe takes a container of the harness through every level, and if a level
// that moves memory works a second time with more of it. Levels that fail are not advertised; the two
// durations give a fixed cost and a rate.
const (
	probeID         = "suspend-probe"
	probeFile       = "probe.json" // in the data folder: the last result
	probeVersion    = 1
	probeLimit      = 5 * time.Minute  // for the whole probe
	probeCountLimit = 30 * time.Second // for one count
	probeSmall      = 4 << 20          // bytes
	probeLarge      = 36 << 20
	probeMemory     = 160 << 20 // limit of the container: a restore needs more than the program uses
	probeMinSwap    = 64 << 20  // bytes of free swap below which swapping is not tried
)

// probeResult is the stored result of a probe.
type probeResult struct {
	Version     int                    `json:"version"`
	Environment string                 `json:"environment"` // kernel, engine and Drover versions
	Levels      []droverv1.Level       `json:"levels"`
	Speeds      *droverv1.SuspendSpeed `json:"speeds"`
	Notes       []string               `json:"notes,omitempty"`
}

// info returns the node's identity with the levels known so far.
func (d *daemon) info() *droverv1.NodeInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.probedLevels == nil {
		return d.cfg.Info
	}
	i := proto.CloneOf(d.cfg.Info)
	i.Levels, i.Speeds, i.LevelNotes = d.probedLevels.Levels, d.probedLevels.Speeds, d.probedLevels.Notes
	return i
}

// probeEnvironment identifies what a result is valid for: another kernel or
// engine requires a new probe.
func (d *daemon) probeEnvironment() string {
	v := d.cfg.Info.GetVersions()
	return strings.Join([]string{d.cfg.Driver.Name(), v["kernel"], v["containerd"], v["runc"], v["criu"], v["drover"], strconv.FormatBool(d.cfg.Info.GetSwap() > probeMinSwap)}, " ")
}

// loadProbeResult loads the result of an earlier probe and reports whether it is
// still valid.
func (d *daemon) loadProbeResult() bool {
	b, err := os.ReadFile(filepath.Join(d.cfg.Data, probeFile))
	if err != nil {
		return false
	}
	r := &probeResult{}
	if json.Unmarshal(b, r) != nil || r.Version != probeVersion || r.Environment != d.probeEnvironment() {
		return false
	}
	d.setProbedLevels(r)
	return true
}

func (d *daemon) setProbedLevels(r *probeResult) {
	d.mu.Lock()
	d.probedLevels = r
	d.mu.Unlock()
}

// probe finds out which levels work and stores the result. It leaves nothing
// behind.
func (d *daemon) probe(ctx context.Context) {
	start := d.clock.Monotonic()
	ctx2, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	r := d.runProbes(ctx2)
	if ctx.Err() != nil {
		return // the next daemon probes
	}
	d.log.Info("probed", "levels", r.Levels, "notes", r.Notes, "took", d.clock.Monotonic()-start)
	b, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Join(d.cfg.Data, probeFile), b, 0o600)
	}
	if err != nil {
		d.log.Warn("cannot store the probe's result", "err", err)
	}
	d.setProbedLevels(r)
}

// hasAttempts reports whether the daemon has adopted attempts.
func (d *daemon) hasAttempts() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.attempts) > 0
}

// runProbes returns levels, speeds and notes on missing levels.
func (d *daemon) runProbes(ctx context.Context) *probeResult {
	r := &probeResult{Version: probeVersion, Environment: d.probeEnvironment(), Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Speeds: &droverv1.SuspendSpeed{}}
	small, err := d.probeOnce(ctx, probeSmall)
	large := small
	if small.reached > droverv1.Level_LEVEL_FROZEN { // the time to freeze does not depend on the memory
		large, _ = d.probeOnce(ctx, probeLarge) // its failures are in large.notes
	}
	r.Notes = append(r.Notes, small.notes...)
	if err != nil {
		r.Notes = append(r.Notes, err.Error())
	}
	for _, l := range []droverv1.Level{droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED, droverv1.Level_LEVEL_CHECKPOINTED} {
		if small.works[l] && large.works[l] {
			r.Levels = append(r.Levels, l)
		} else if small.works[l] {
			r.Notes = append(r.Notes, large.notes...)
		}
	}
	s := r.Speeds
	s.FreezeUs, s.ThawUs = large.freeze.Microseconds(), large.thaw.Microseconds()
	s.SwapOutUs, s.SwapOutBps = fitLine(small.swap, large.swap)
	_, s.SwapInBps = fitLine(small.swapBack, large.swapBack)
	s.CheckpointUs, s.CheckpointBps = fitLine(small.dump, large.dump)
	s.RestoreUs, s.RestoreBps = fitLine(small.restore, large.restore)
	return r
}

// fitLine fits a line through two measurements: the time without any memory, and
// bytes per second; 0 if more memory took no longer.
func fitLine(small, large time.Duration) (fixedUS, bps int64) {
	const more = probeLarge - probeSmall
	if large <= small {
		return large.Microseconds(), 0
	}
	per := large - small
	bps = int64(float64(more) / per.Seconds())
	return max(0, small-time.Duration(float64(probeSmall)/float64(more)*float64(per))).Microseconds(), bps
}

// levelProbe is one container going through the levels.
type levelProbe struct {
	d         *daemon
	spec      runtime.Spec
	countFile string
	reached   droverv1.Level
	works     map[droverv1.Level]bool
	notes     []string

	freeze, thaw, swap, swapBack, dump, restore time.Duration
}

// probeOnce takes a container with that much memory through the levels. An error
// means that the container did not even run; other failures are in notes.
func (d *daemon) probeOnce(ctx context.Context, memory int64) (*levelProbe, error) {
	p := &levelProbe{d: d, works: map[droverv1.Level]bool{}}
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
		return p, fmt.Errorf("the probe's container did not start: %w", err)
	}
	p.reached = droverv1.Level_LEVEL_RUNNING
	for _, l := range []struct {
		level droverv1.Level
		try   func(context.Context) error
	}{{droverv1.Level_LEVEL_FROZEN, p.tryFreeze}, {droverv1.Level_LEVEL_SWAPPED, p.trySwap}, {droverv1.Level_LEVEL_CHECKPOINTED, p.tryDump}} {
		err := l.try(ctx)
		if err != nil {
			p.notes = append(p.notes, oneLine(strings.ToLower(strings.TrimPrefix(l.level.String(), "LEVEL_"))+": "+err.Error()))
			if l.level == droverv1.Level_LEVEL_FROZEN || p.awaitCount(ctx) != nil {
				break // no later level works without freezing, or the container is gone
			}
			continue
		}
		p.reached, p.works[l.level] = l.level, true
	}
	return p, nil
}

func (p *levelProbe) start(ctx context.Context, dir string, memory int64) error {
	d := p.d
	p.countFile = filepath.Join(dir, "count")
	harness, file := d.harnessPath, p.countFile
	p.spec = runtime.Spec{ID: probeID, Env: []string{"GODEBUG=multipathtcp=0"}, Hostname: "probe", Labels: map[string]string{"drover.probe": "1"},
		Log: runtime.Log{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1}}
	if !d.cfg.usesHostPaths() {
		harness, file = filepath.Join(harnessMount, filepath.Base(d.harnessPath)), "/task/count"
		p.spec.Rootfs = d.emptyRoot
		p.spec.Mounts = []runtime.Mount{{Source: dir, Target: "/task"}, {Source: filepath.Dir(d.harnessPath), Target: harnessMount, ReadOnly: true}}
	}
	p.spec.Args = append(append([]string{harness}, d.cfg.HarnessArgs...), "probe", file, strconv.FormatInt(memory, 10))
	if e := d.cfg.Enforcer; e != nil {
		if err := p.setLimits(ctx, 0); err != nil {
			return err
		}
		p.spec.Cgroup = e.ContainerCgroup(probeID)
	}
	if err := d.cfg.Driver.Create(ctx, p.spec); err != nil {
		return err
	}
	if err := d.cfg.Driver.Start(ctx, probeID); err != nil {
		return err
	}
	return p.awaitCount(ctx)
}

func (p *levelProbe) setLimits(ctx context.Context, swap int64) error {
	if p.d.cfg.Enforcer == nil {
		return nil
	}
	_, err := p.d.cfg.Enforcer.Ensure(ctx, probeID, Limits{Memory: probeMemory, Pids: 64, Swap: swap})
	return err
}

// readCount returns the program's counter; -1 before its first count.
func (p *levelProbe) readCount() int64 {
	b, err := os.ReadFile(p.countFile)
	if err != nil {
		return -1
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// awaitCount waits until the program continues counting.
func (p *levelProbe) awaitCount(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeCountLimit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	from := p.readCount()
	for p.readCount() <= from {
		select {
		case <-tick.C:
		case <-ctx.Done():
			said, err := os.ReadFile(filepath.Join(filepath.Dir(p.countFile), "stderr.log"))
			if err != nil {
				said = nil
			}
			return fault.New(fault.Unavailable, "the probe's program does not count beyond %d: %s", from, oneLine(string(said)))
		}
	}
	return nil
}

// measureTime runs f and stores its duration in *d.
func (p *levelProbe) measureTime(d *time.Duration, f func() error) error {
	start := p.d.clock.Monotonic()
	err := f()
	*d = p.d.clock.Monotonic() - start
	return err
}

func (p *levelProbe) tryFreeze(ctx context.Context) error {
	f := p.d.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "neither cgroups nor driver %s can freeze", p.d.cfg.Driver.Name())
	}
	if err := p.measureTime(&p.freeze, func() error { return f.Freeze(ctx, probeID) }); err != nil {
		return err
	}
	at := p.readCount()
	pause, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	<-pause.Done()
	cancel()
	if now := p.readCount(); now != at {
		return fault.New(fault.Unsupported, "the program was frozen at %d but counted to %d", at, now)
	}
	if err := p.measureTime(&p.thaw, func() error { return f.Thaw(ctx, probeID) }); err != nil {
		return err
	}
	return p.awaitCount(ctx)
}

func (p *levelProbe) trySwap(ctx context.Context) error {
	s, ok := p.d.cfg.Enforcer.(Swapper)
	if swap := p.d.cfg.Info.GetSwap(); !ok || swap < probeMinSwap {
		return fault.New(fault.Unsupported, "the node has %d bytes of free swap, at least %d are needed", swap, probeMinSwap)
	}
	f := p.d.freezer()
	if err := errors.Join(f.Freeze(ctx, probeID), p.setLimits(ctx, probeMemory)); err != nil {
		return errors.Join(err, f.Thaw(ctx, probeID))
	}
	err := p.measureTime(&p.swap, func() error { _, err := s.SwapOut(ctx, probeID); return err })
	err = errors.Join(err, p.setLimits(ctx, 0))
	start := p.d.clock.Monotonic()
	err = errors.Join(err, f.Thaw(ctx, probeID))
	if err == nil {
		err = p.awaitCount(ctx)
	}
	p.swapBack = p.d.clock.Monotonic() - start
	return err
}

func (p *levelProbe) tryDump(ctx context.Context) error {
	c, ok := p.d.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot checkpoint", p.d.cfg.Driver.Name())
	}
	f := p.d.freezer()
	if err := f.Freeze(ctx, probeID); err != nil {
		return err
	}
	image := filepath.Join(filepath.Dir(p.countFile), "image")
	if err := p.measureTime(&p.dump, func() error {
		return p.d.unallocatedIO.lendDuring(func() error { return c.Checkpoint(ctx, probeID, image) })
	}); err != nil {
		return errors.Join(err, f.Thaw(ctx, probeID))
	}
	if err := p.setLimits(ctx, 0); err != nil {
		return err
	}
	if err := p.measureTime(&p.restore, func() error {
		return p.d.unallocatedIO.lendDuring(func() error { return c.Restore(ctx, p.spec, image) })
	}); err != nil {
		return err
	}
	if err := p.awaitCount(ctx); err != nil {
		return err
	}
	return p.d.cfg.Driver.Kill(ctx, probeID, syscall.SIGKILL)
}

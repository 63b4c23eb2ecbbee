package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/runtime"
)

// The probe takes a container of the harness through every level. If a level that moves memory
// works, it repeats that with more memory, and computes a fixed cost and a rate from the two
// durations. Levels that fail are not advertised.
const (
	probeID         = "suspend-probe"
	probeFile       = "probe.json" // in the data folder: the last result
	probeVersion    = 1
	probeLimit      = 5 * time.Minute  // for the whole probe
	probeTries      = 3                // of a probe with a transient failure
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

	transient bool // a level failed for a transient reason, such as a machine busy with other work
}

// prober owns which levels work on this node: the result of the last probe.
type prober struct {
	cfg       *Config
	harness   string // the program that the probe runs
	emptyRoot string
	clock     clock
	io        *unallocatedIO
	changed   chan struct{} // the result must be registered; capacity 1

	mu     sync.Mutex
	result *probeResult // replaced, never modified; nil until a probe has ended: Config.Info applies
}

func newProber(cfg *Config, harness, emptyRoot string, c clock, io *unallocatedIO) *prober {
	return &prober{cfg: cfg, harness: harness, emptyRoot: emptyRoot, clock: c, io: io, changed: make(chan struct{}, 1)}
}

// info returns the node's identity with the levels known so far.
func (b *prober) info() *droverv1.NodeInfo {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := proto.CloneOf(b.cfg.Info)
	i.Features = []string{mapreduce.FeatureKeys, mapreduce.FeatureKeyOrder}
	if b.result != nil {
		i.Levels, i.Speeds, i.LevelNotes = b.result.Levels, b.result.Speeds, b.result.Notes
	}
	return i
}

// addDumpFormat adds to the versions of the node the one of its driver's dumps, if it makes any: a
// node with an earlier one cannot restore them.
func (c *Config) addDumpFormat() {
	if d, ok := c.Driver.(runtime.Checkpointer); ok {
		versions := maps.Clone(c.Info.GetVersions())
		if versions == nil {
			versions = map[string]string{}
		}
		versions["dump"] = strconv.Itoa(d.DumpFormat())
		c.Info.Versions = versions
	}
}

// environment identifies what a result is valid for: with another kernel or engine the node must be
// probed again.
func (b *prober) environment() string {
	v := b.cfg.Info.GetVersions()
	return strings.Join([]string{b.cfg.Driver.Name(), v["kernel"], v["containerd"], v["runc"], v["criu"], v["drover"], strconv.FormatBool(b.cfg.Info.GetSwap() > probeMinSwap)}, " ")
}

// load loads the result of an earlier probe and reports whether it is
// still valid.
func (b *prober) load() bool {
	text, err := os.ReadFile(filepath.Join(b.cfg.Data, probeFile))
	if err != nil {
		return false
	}
	r := &probeResult{}
	if err := linesum.Unmarshal(text, r); err != nil {
		b.cfg.Log.Warn("the stored result of the probe is damaged: probing again", "file", filepath.Join(b.cfg.Data, probeFile), "err", err)
		return false
	}
	if r.Version != probeVersion || r.Environment != b.environment() {
		return false
	}
	b.set(r)
	return true
}

func (b *prober) set(r *probeResult) {
	b.mu.Lock()
	b.result = r
	b.mu.Unlock()
}

// probe finds out which levels work and stores the result, unless a level failed for a transient
// reason: then the next daemon probes again. It leaves nothing behind.
func (b *prober) probe(ctx context.Context) {
	start := b.clock.Monotonic()
	ctx2, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	r := b.runProbes(ctx2)
	for n := 1; n < probeTries && r.transient && ctx2.Err() == nil; n++ {
		b.cfg.Log.Warn("the probe failed for a reason that passes: probing again", "levels", r.Levels, "notes", r.Notes)
		r = b.runProbes(ctx2)
	}
	if ctx.Err() != nil {
		return // the next daemon probes
	}
	b.cfg.Log.Info("probed", "levels", r.Levels, "notes", r.Notes, "took", b.clock.Monotonic()-start)
	b.set(r)
	if r.transient {
		b.cfg.Log.Warn("the probe's result is not stored: restart the daemon to probe again", "levels", r.Levels, "notes", r.Notes)
		return
	}
	text, err := linesum.Marshal(r)
	if err == nil {
		err = os.WriteFile(filepath.Join(b.cfg.Data, probeFile), text, 0o600)
	}
	if err != nil {
		b.cfg.Log.Warn("cannot store the probe's result", "err", err)
	}
}

// runProbes returns levels, speeds and notes on missing levels.
func (b *prober) runProbes(ctx context.Context) *probeResult {
	r := &probeResult{Version: probeVersion, Environment: b.environment(), Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Speeds: &droverv1.SuspendSpeed{}}
	small, err := b.probeOnce(ctx, probeSmall)
	large := small
	if small.reached > droverv1.Level_LEVEL_FROZEN { // the time to freeze does not depend on the memory
		large, err = b.probeOnce(ctx, probeLarge) // small ran without an error
	}
	r.Notes, r.transient = append(r.Notes, small.notes...), small.transient || large.transient || isTransient(err)
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

// isTransient reports whether an error may not occur again: the machine was busy, a process could
// not be stopped at that moment, the disk was full.
func isTransient(err error) bool {
	return errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Conflict) || errors.Is(err, fault.Exhausted) || errors.Is(err, context.DeadlineExceeded)
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
	b         *prober
	spec      runtime.Spec
	countFile string
	reached   droverv1.Level
	works     map[droverv1.Level]bool
	notes     []string
	transient bool // a level failed for a reason that passes

	freeze, thaw, swap, swapBack, dump, restore time.Duration
}

// probeOnce takes a container with that much memory through the levels. An error
// means that the container did not even run; other failures are in notes.
func (b *prober) probeOnce(ctx context.Context, memory int64) (*levelProbe, error) {
	p := &levelProbe{b: b, works: map[droverv1.Level]bool{}}
	dir := filepath.Join(b.cfg.Data, "probe")
	clean := func(ctx context.Context) error {
		err := b.cfg.Driver.Delete(ctx, probeID)
		if e := b.cfg.Enforcer; e != nil {
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
			b.cfg.Log.Warn("after the probe", "err", err)
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
			p.transient = p.transient || isTransient(err)
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
	b := p.b
	p.countFile = filepath.Join(dir, "count")
	harness, file := b.harness, p.countFile
	p.spec = runtime.Spec{ID: probeID, Env: []string{"GODEBUG=multipathtcp=0"}, Hostname: "probe", Labels: map[string]string{"drover.probe": "1"},
		Log: runtime.Log{Dir: dir, MaxBytes: 1 << 20, MaxFiles: 1}}
	if !b.cfg.usesHostPaths() {
		harness, file = filepath.Join(harnessMount, filepath.Base(b.harness)), "/task/count"
		p.spec.Rootfs = b.emptyRoot
		p.spec.Mounts = []runtime.Mount{{Source: dir, Target: "/task"}, {Source: filepath.Dir(b.harness), Target: harnessMount, ReadOnly: true}}
	}
	p.spec.Args = append(append([]string{harness}, b.cfg.HarnessArgs...), "probe", file, strconv.FormatInt(memory, 10))
	if e := b.cfg.Enforcer; e != nil {
		if err := p.setLimits(ctx, 0); err != nil {
			return err
		}
		p.spec.Cgroup = e.ContainerCgroup(probeID)
	}
	if err := b.cfg.Driver.Create(ctx, p.spec); err != nil {
		return err
	}
	if err := b.cfg.Driver.Start(ctx, probeID); err != nil {
		return err
	}
	return p.awaitCount(ctx)
}

func (p *levelProbe) setLimits(ctx context.Context, swap int64) error {
	if p.b.cfg.Enforcer == nil {
		return nil
	}
	_, err := p.b.cfg.Enforcer.Ensure(ctx, probeID, Limits{Memory: probeMemory, Pids: 64, swap: swap})
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
	start := p.b.clock.Monotonic()
	err := f()
	*d = p.b.clock.Monotonic() - start
	return err
}

func (p *levelProbe) tryFreeze(ctx context.Context) error {
	f := p.b.cfg.freezer()
	if f == nil {
		return fault.New(fault.Unsupported, "neither cgroups nor driver %s can freeze", p.b.cfg.Driver.Name())
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
	s, ok := p.b.cfg.Enforcer.(Swapper)
	if swap := p.b.cfg.Info.GetSwap(); !ok || swap < probeMinSwap {
		return fault.New(fault.Unsupported, "the node has %d bytes of free swap, at least %d are needed", swap, probeMinSwap)
	}
	f := p.b.cfg.freezer()
	if err := errors.Join(f.Freeze(ctx, probeID), p.setLimits(ctx, probeMemory)); err != nil {
		return errors.Join(err, f.Thaw(ctx, probeID))
	}
	err := p.measureTime(&p.swap, func() error { _, err := s.SwapOut(ctx, probeID); return err })
	err = errors.Join(err, p.setLimits(ctx, 0))
	start := p.b.clock.Monotonic()
	err = errors.Join(err, f.Thaw(ctx, probeID))
	if err == nil {
		err = p.awaitCount(ctx)
	}
	p.swapBack = p.b.clock.Monotonic() - start
	return err
}

func (p *levelProbe) tryDump(ctx context.Context) error {
	c, ok := p.b.cfg.Driver.(runtime.Checkpointer)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s cannot checkpoint", p.b.cfg.Driver.Name())
	}
	f := p.b.cfg.freezer()
	if err := f.Freeze(ctx, probeID); err != nil {
		return err
	}
	image := filepath.Join(filepath.Dir(p.countFile), "image")
	if err := p.measureTime(&p.dump, func() error {
		return p.b.io.lendDuring(func() error { return c.Checkpoint(ctx, probeID, image) })
	}); err != nil {
		return errors.Join(err, f.Thaw(ctx, probeID))
	}
	if err := p.setLimits(ctx, 0); err != nil {
		return err
	}
	if err := p.measureTime(&p.restore, func() error {
		return p.b.io.lendDuring(func() error { return c.Restore(ctx, p.spec, image) })
	}); err != nil {
		return err
	}
	if err := p.awaitCount(ctx); err != nil {
		return err
	}
	return p.b.cfg.Driver.Kill(ctx, probeID, syscall.SIGKILL)
}

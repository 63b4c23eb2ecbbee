package simcluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

// machine is a node: its engine and its kernel live as long as the simulation, its
// daemon may crash and start again, and its power may be cut, which ends its programs.
type machine struct {
	c       *cluster
	name    string
	data    string
	harness string
	engine  *fake.Engine
	kernel  *kernel
	member  *pki.Member
	off     chan struct{}
	disk    *unsyncedWrites // of the daemon's store
	boots   int
	booted  time.Time     // when the present boot began, or the simulation
	up      time.Duration // its time since boot then: no two machines have the same
	clock   atomic.Int64  // how far its wall clock is ahead, ns
	full    atomic.Int64  // 1: writes of the daemon's store fail; 2: they are made, and fail

	turn   chan struct{} // has a value while the daemon is ended or started: the plan and a fault that waits for a write both do
	h      *host         // of the present daemon; nil while none runs
	cancel context.CancelFunc
	done   chan struct{}

	mu       sync.Mutex
	leaseEnd time.Time // as the watchdog knows it
	heard    hearing
	dead     bool // the daemon
}

func (c *cluster) addMachine(name string) *machine {
	m := &machine{c: c, name: name, data: filepath.Join(c.dir, name), harness: filepath.Join(c.dir, "harness"), member: c.member(pki.KindNode, name), off: make(chan struct{}), turn: make(chan struct{}, 1)}
	m.boot(time.Duration(1+len(c.machines)) * 10 * time.Hour)
	if err := os.WriteFile(m.harness, []byte("#!/bin/true\n"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	m.engine = fake.New(nil, map[string]fake.Program{"work": c.world.work, harnessPath: c.world.runHarness})
	if len(c.machines) > 0 {
		m.engine.ShareDumps(c.machines[0].engine)
	}
	m.kernel = &kernel{groups: map[string]node.Limits{}, frozen: map[string]chan struct{}{}, swapped: map[string]bool{}, acting: map[string]*sync.WaitGroup{}}
	c.machines = append(c.machines, m)
	go m.watchdog()
	m.start()
	synctest.Wait()
	return m
}

// start starts a daemon.
func (m *machine) start() {
	c := m.c
	m.setDead(false)
	m.disk = m.disk.reopened()
	h := c.net.host(m.name)
	client, base, retry := c.clientOf(h, pki.KindNode, m.name)
	info := coordtest.Info(m.name)
	info.Schemes, info.Levels, info.Swap = []string{"file"}, levels, 1<<30
	cfg := node.Config{Data: m.data, Coordinator: &leaseObserver{droverv1connect.NewNodeServiceClient(client, base, retry), m}, Driver: &driver{m.engine.Driver(), m.kernel}, Info: info, Enforcer: m.kernel,
		Harness: m.harness, AllowRoot: true, Listener: h.listen("7777"), Certificate: m.member, Grace: grace, Dial: h.dialNode, KernelCounts: filepath.Join(c.dir, "no-counts"), FilesConfig: fsys.Config{Local: true}, SweepEvery: 2 * lease / 3, SampleEvery: 2 * lease / 5,
		StoreDisk: store.Disk{Writing: m.writing(), Fault: diskFault(&m.full)}, SinceBoot: m.sinceBoot(), Now: func() time.Time { return time.Now().Add(time.Duration(m.clock.Load())) }, BootID: fmt.Sprintf("boot %d of %s", m.boots, m.name), Log: c.logger(m.name, nil)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	m.h, m.cancel, m.done = h, cancel, done
	c.log("%s starts", m.name)
	go func() {
		defer close(done)
		err := node.Run(ctx, cfg)
		c.log("the daemon of %s ended: %v", m.name, err)
		if ctx.Err() == nil {
			c.violated("the daemon of %s ended by itself with: %v", m.name, err)
		}
	}()
}

// writing returns what is told of each write of the store of the present daemon.
func (m *machine) writing() func(path string, synced bool) {
	disk := m.disk
	return func(path string, synced bool) {
		m.c.writes.writing(m)
		disk.writing(path, synced)
	}
}

// boot begins a new boot of the machine, which has been up for so long.
func (m *machine) boot(up time.Duration) {
	m.boots++
	m.booted, m.up = time.Now(), up
}

// sinceBoot returns the clock of the present boot.
func (m *machine) sinceBoot() func() time.Duration {
	booted, up := m.booted, m.up
	return func() time.Duration { return time.Since(booted) + up }
}

// takeTurn waits until nobody else ends or starts the daemon, and returns what lets the next one.
func (m *machine) takeTurn() (done func()) {
	m.turn <- struct{}{}
	return func() { <-m.turn }
}

// crash ends the daemon: nothing that it says after this instant arrives, and its
// records are as they were. Its containers run on.
func (m *machine) crash(silent bool) {
	defer m.takeTurn()()
	if m.h == nil {
		return
	}
	m.c.awaitQuiet()
	state := filepath.Join(m.data, node.StoreFile)
	image := m.imageOf(state, copyFile)
	m.c.log("crash of the daemon of %s", m.name)
	m.end(silent)
	if err := os.Rename(image, state); err != nil {
		m.c.t.Fatal(err)
	}
}

// losePower ends the machine: its programs end with the daemon, and what the daemon's store has not synced is lost. The other
// files are as they were.
func (m *machine) losePower() {
	defer m.takeTurn()()
	if m.h == nil {
		return
	}
	m.c.awaitQuiet()
	image := m.imageOf(m.data, copyFolder)
	if err := m.disk.losePower(image); err != nil {
		m.c.t.Fatal(err)
	}
	m.c.log("loss of power of %s", m.name)
	m.fence()
	m.engine.Reboot()
	m.kernel.reboot()
	m.end(true)
	if err := errors.Join(os.RemoveAll(m.data), os.Rename(image, m.data)); err != nil {
		m.c.t.Fatal(err)
	}
	m.boot(time.Minute)
}

// imageOf returns a copy of a file or folder, as it is at this instant. A daemon that is ended writes on.
func (m *machine) imageOf(path string, copyAll func(from, to string) error) string {
	m.disk = m.disk.reopened()
	if err := copyAll(path, path+".image"); err != nil {
		m.c.t.Fatal(err)
	}
	return path + ".image"
}

// end ends the daemon's run.
func (m *machine) end(silent bool) {
	m.c.net.kill(m.h, silent)
	m.setDead(true)
	m.cancel()
	<-m.done
	m.h = nil
}

func (m *machine) stop() {
	if m.h != nil {
		m.cancel()
		<-m.done
		m.h = nil
	}
}

func (m *machine) setDead(dead bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dead = dead
}

// leaseObserver tells the model of the watchdog which leases the daemon was given.
type leaseObserver struct {
	droverv1connect.NodeServiceClient
	m *machine
}

// Register implements droverv1connect.NodeServiceClient.
func (o *leaseObserver) Register(ctx context.Context, r *connect.Request[droverv1.RegisterRequest]) (*connect.Response[droverv1.RegisterResponse], error) {
	sent := time.Now()
	res, err := o.NodeServiceClient.Register(ctx, r)
	if err == nil {
		o.m.renew(sent, res.Msg.GetLeaseMs())
		o.m.registered(res.Msg)
	}
	return res, err
}

// Report implements droverv1connect.NodeServiceClient.
func (o *leaseObserver) Report(ctx context.Context, r *connect.Request[droverv1.ReportRequest]) (*connect.Response[droverv1.ReportResponse], error) {
	for _, s := range r.Msg.GetAttempts() {
		for _, l := range s.GetLostOutputs() {
			o.m.c.lost.note(s.GetKey().GetJob(), l)
		}
		if s.GetUnknown() != nil && s.GetPhase() <= droverv1.Phase_PHASE_RUNNING && s.GetLevel() >= droverv1.Level_LEVEL_FROZEN {
			o.m.c.world.freezes(string(store.IDOf(s.GetKey())))
		}
	}
	sent := time.Now()
	res, err := o.NodeServiceClient.Report(ctx, r)
	if err == nil && !res.Msg.GetRegisterAgain() {
		o.m.renew(sent, res.Msg.GetLeaseMs())
		o.m.reported()
	}
	return res, err
}

// watchdogShare is the part of a lease, in percent, after which the watchdog
// freezes what the daemon has not frozen.
const watchdogShare = 76

func (m *machine) renew(sent time.Time, ms int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if end := sent.Add(time.Duration(ms) * time.Millisecond / 100 * watchdogShare); end.After(m.leaseEnd) {
		m.leaseEnd = end
	}
}

// lost checks that a coordinator may give up the node: what its daemon was granted has ended, with the time that its
// watchdog takes.
func (m *machine) lost(server string) {
	m.mu.Lock()
	left := time.Until(m.leaseEnd)
	m.mu.Unlock()
	if left > 0 {
		m.c.violated("%s gives up %s, whose tasks may run for another %s", server, m.name, left)
	}
}

// watchdog is a model of the processes of package watchdog, which need sockets and
// processes of their own: while the daemon is dead it freezes exclusive tasks when
// the lease has ended. It leaves a live daemon alone, whose own freezing is to be
// seen.
func (m *machine) watchdog() {
	t := time.NewTicker(250 * time.Millisecond)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-m.off:
			return
		}
		m.mu.Lock()
		over := m.dead && time.Now().After(m.leaseEnd)
		m.mu.Unlock()
		if over {
			for _, id := range m.c.world.exclusiveOn(m) {
				_ = m.kernel.Freeze(context.Background(), id) // it may have ended
			}
		}
	}
}

// leftovers returns what tasks left on the machine.
func (m *machine) leftovers() (left []string) {
	all, err := m.engine.Driver().List(context.Background())
	if err != nil {
		return []string{err.Error()}
	}
	for _, s := range all {
		left = append(left, "container "+s.ID)
	}
	groups, _ := m.kernel.List() // never fails
	for _, g := range groups {
		left = append(left, "cgroup "+g)
	}
	for _, dir := range []string{"attempts", "images"} {
		folders, err := os.ReadDir(filepath.Join(m.data, dir))
		if err != nil {
			return append(left, err.Error())
		}
		for _, f := range folders {
			left = append(left, dir+"/"+f.Name())
		}
	}
	return left
}

// kernel is a node.Enforcer in memory. It freezes programs whether the engine
// answers or not, as the kernel does.
type kernel struct {
	mu      sync.Mutex
	groups  map[string]node.Limits
	frozen  map[string]chan struct{} // closed when the attempt is thawed
	swapped map[string]bool
	acting  map[string]*sync.WaitGroup // programs that do something in this instant
}

var (
	_ node.Enforcer   = (*kernel)(nil)
	_ runtime.Freezer = (*kernel)(nil)
)

func (k *kernel) Ensure(_ context.Context, id string, l node.Limits) (*droverv1.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.groups[id] = l
	return asRead(l), nil
}

func asRead(l node.Limits) *droverv1.Limits {
	return &droverv1.Limits{CpuMax: fmt.Sprintf("%d 100000", l.CPU*100), MemoryMax: fmt.Sprint(l.Memory), PidsMax: fmt.Sprint(l.Pids)}
}

func (k *kernel) Limits(id string) (*droverv1.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return asRead(k.groups[id]), nil
}

func (k *kernel) ContainerCgroup(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.groups[id]; !ok {
		return ""
	}
	return "/drover/tasks/" + id + "/container"
}

func (k *kernel) OpenHelperLeaf(string) (*os.File, error) {
	return nil, errors.New("no leaf in memory")
}

func (k *kernel) Usage(id string) (*droverv1.Usage, *droverv1.Resources, node.OOMKills, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.groups[id]; !ok {
		return nil, nil, node.OOMKills{}, fault.New(fault.NotFound, "no group %s", id)
	}
	return &droverv1.Usage{CpuMs: 7}, &droverv1.Resources{Memory: 5}, node.OOMKills{}, nil
}

func (k *kernel) KillHelpers(context.Context, string) error { return nil }

func (k *kernel) Remove(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.thawLocked(id)
	delete(k.groups, id)
	return nil
}

func (k *kernel) List() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.groups)), nil
}

func (k *kernel) Freeze(_ context.Context, id string) error {
	k.awaitInstant(id)
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.groups[id]; !ok {
		return fault.New(fault.NotFound, "no group %s", id)
	}
	if k.frozen[id] == nil {
		k.frozen[id] = make(chan struct{})
	}
	return nil
}

func (k *kernel) Thaw(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.groups[id]; !ok {
		return fault.New(fault.NotFound, "no group %s", id)
	}
	k.thawLocked(id)
	return nil
}

func (k *kernel) thawLocked(id string) {
	if ch := k.frozen[id]; ch != nil {
		close(ch)
		delete(k.frozen, id)
		delete(k.swapped, id)
	}
}

// reboot forgets everything.
func (k *kernel) reboot() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.frozen {
		k.thawLocked(id)
	}
	clear(k.groups)
}

func (k *kernel) Frozen(_ context.Context, id string) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.frozen[id] != nil, nil
}

// gate is where a program waits while it is frozen; an error means that it is
// killed.
func (k *kernel) gate(ctx context.Context, id string) error {
	for {
		k.mu.Lock()
		thawed := k.frozen[id]
		k.mu.Unlock()
		if thawed == nil {
			return ctx.Err()
		}
		select {
		case <-thawed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

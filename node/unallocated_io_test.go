package node

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
)

// systemKernel records the limits of system work.
type systemKernel struct {
	*levelKernel
	mu   sync.Mutex
	got  []int64
	fail bool
}

func (k *systemKernel) LimitSystem(io int64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.got = append(k.got, io)
	if k.fail {
		return errors.New("broken by the test")
	}
	return nil
}

func (k *systemKernel) takeLimits() []int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	got := k.got
	k.got = nil
	return got
}

func setMeasuredIO(i *droverv1.NodeInfo) {
	i.Measured, i.Allocatable = &droverv1.Resources{Io: 100 << 20}, &droverv1.Resources{Io: 90 << 20}
}

// While a task is dumped or restored, system work may use the unallocated disk
// bandwidth; before and after it has only its reserve.
func TestDumpsUseUnallocatedIO(t *testing.T) {
	b, k := newLevelTestNode(t)
	sys := &systemKernel{levelKernel: k}
	b.config.Enforcer = sys
	setMeasuredIO(b.config.Info)
	b.start()
	w, other := groupTask(0, "count"), groupTask(1, "count") // demand 1 MiB/s each
	b.put(w)
	b.put(other)
	b.await(t, w, running)
	b.await(t, other, running)
	if got := sys.takeLimits(); len(got) > 0 {
		t.Errorf("without a dump: %v", got)
	}
	b.requestLevel(w, levelCheckpointed)
	b.awaitLevel(w, levelCheckpointed)
	if got, want := sys.takeLimits(), []int64{99 << 20, 10 << 20, 99 << 20, 10 << 20}; !slices.Equal(got, want) {
		t.Errorf("around a dump and the checksums of its folder, beside one task: %v, want %v", got, want)
	}
	sys.mu.Lock()
	sys.fail = true // makes it slower, but does not fail it
	sys.mu.Unlock()
	b.requestLevel(w, levelRunning)
	b.awaitLevel(w, levelRunning)
	b.awaitCounting(w)
	got := sys.takeLimits()
	if len(got) < 4 || got[0] != 98<<20 || !slices.Equal(got[1:3], []int64{10 << 20, 98 << 20}) || got[len(got)-1] != 10<<20 {
		t.Errorf("around a check of the folder and a restore, beside one task: %v, want 98 MiB/s to 10 MiB/s twice", got)
	}
}

// A new task takes back its bandwidth before it starts. The sum never exceeds what
// was measured, nor is the reserve touched.
func TestUnallocatedIOShrinksForNewTask(t *testing.T) {
	k := &systemKernel{}
	cfg := Config{Enforcer: k, Info: &droverv1.NodeInfo{}, Log: slog.New(slog.DiscardHandler)}
	setMeasuredIO(cfg.Info)
	table := newAttemptTable(store.Identity{}, 0)
	system := newUnallocatedIO(&cfg, table.allocatedIO)
	add := func(n int32, io int64, change func(*droverv1.WantedAttempt)) {
		w := with(groupTask(n, "count"), func(w *droverv1.WantedAttempt) { w.Spec.Demand.Io = io })
		if change != nil {
			change(w)
		}
		a := newAttempt(&daemon{cfg: cfg}, store.IDOf(w.GetKey()))
		a.setWanted(w)
		table.add(a)
	}
	system.refresh() // nothing is lent
	_ = system.lendDuring(func() error {
		add(0, 30<<20, nil)
		system.refresh()
		add(1, 20<<20, func(w *droverv1.WantedAttempt) { w.Level = levelFrozen }) // not running
		add(2, 20<<20, func(w *droverv1.WantedAttempt) { w.Goal = droverv1.Goal_GOAL_KEEP })
		system.refresh()
		return system.lendDuring(func() error {
			add(3, 60<<20, nil)
			system.refresh() // everything is allocated
			return nil
		})
	})
	want := []int64{100 << 20, 70 << 20, 70 << 20, 70 << 20, 10 << 20, 10 << 20, 10 << 20}
	if got := k.takeLimits(); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	cfg.Enforcer = nil // without cgroups there is nothing to limit
	system = newUnallocatedIO(&cfg, table.allocatedIO)
	_ = system.lendDuring(func() error { return nil })
	if got := k.takeLimits(); got != nil {
		t.Errorf("got %v", got)
	}
}

// A folder that cannot be read in time holds up no resume, but for one that is damaged, or a daemon that ends.
func TestCheckOfAFolderThatTakesTooLong(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx       context.Context
		err, want error
	}{
		"it takes too long": {t.Context(), context.DeadlineExceeded, nil},
		"the daemon ends":   {ended, context.DeadlineExceeded, context.DeadlineExceeded},
		"it is damaged":     {t.Context(), fault.New(fault.Corrupt, "by the test"), fault.Corrupt},
		"no slot is free":   {t.Context(), errNoSlot, errNoSlot},
	} {
		s := &suspension{rec: &attemptRecord{}, log: slog.New(slog.DiscardHandler), inSlot: func(context.Context, func() error) error { return c.err }}
		if err := s.checkFolder(c.ctx); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

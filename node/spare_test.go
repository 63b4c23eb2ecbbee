package node

import (
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
)

// systemKernel keeps the limits that what is charged to nobody was given.
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

func (k *systemKernel) take() []int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	got := k.got
	k.got = nil
	return got
}

func measured(i *droverv1.NodeInfo) {
	i.Measured, i.Allocatable = &droverv1.Resources{Io: 100 << 20}, &droverv1.Resources{Io: 90 << 20}
}

// While a task is dumped or restored, what works for it may use what of the disk
// is handed out to nobody, and its reserve alone before and after.
func TestDumpsMayUseWhatTheDiskHasToSpare(t *testing.T) {
	b, k := levelBench(t)
	sys := &systemKernel{levelKernel: k}
	b.config.Enforcer = sys
	measured(b.config.Info)
	b.start()
	w, other := group(0, "count"), group(1, "count") // of 1 MiB/s each
	b.put(w)
	b.put(other)
	b.await(t, w, running)
	b.await(t, other, running)
	if got := sys.take(); len(got) > 0 {
		t.Errorf("without a dump: %v", got)
	}
	b.at(w, lcheckpointed)
	b.awaitLevel(w, lcheckpointed)
	if got, want := sys.take(), []int64{99 << 20, 10 << 20}; !slices.Equal(got, want) {
		t.Errorf("around a dump beside one task: %v, want %v", got, want)
	}
	sys.mu.Lock()
	sys.fail = true // then it is slower, and nothing else
	sys.mu.Unlock()
	b.at(w, lrunning)
	b.awaitLevel(w, lrunning)
	b.counts(w)
	got := sys.take()
	if len(got) < 2 || got[0] != 98<<20 || got[len(got)-1] != 10<<20 {
		t.Errorf("around a restore beside one task: %v, want 98 MiB/s to 10 MiB/s", got)
	}
}

// What a task is given while dumps are under way was lent: it is taken back
// first. The sum never exceeds what was measured, nor is the reserve touched.
func TestWhatIsLentComesBackForATask(t *testing.T) {
	k := &systemKernel{}
	d := &daemon{cfg: Config{Enforcer: k, Info: &droverv1.NodeInfo{}}, log: slog.New(slog.DiscardHandler), attempts: map[store.ID]*attempt{}}
	d.spare.d = d
	measured(d.cfg.Info)
	add := func(n int32, io int64, change func(*droverv1.WantedAttempt)) {
		w := with(group(n, "count"), func(w *droverv1.WantedAttempt) { w.Spec.Demand.Io = io })
		if change != nil {
			change(w)
		}
		a := newAttempt(d, store.IDOf(w.GetKey()))
		a.want(w)
		d.attempts[a.id] = a
	}
	d.spare.resize() // nothing is lent
	_ = d.spare.during(func() error {
		add(0, 30<<20, nil)
		d.spare.resize()
		add(1, 20<<20, func(w *droverv1.WantedAttempt) { w.Level = lfrozen }) // does nothing
		add(2, 20<<20, func(w *droverv1.WantedAttempt) { w.Goal = droverv1.Goal_GOAL_KEEP })
		d.spare.resize()
		return d.spare.during(func() error {
			add(3, 60<<20, nil)
			d.spare.resize() // all is handed out
			return nil
		})
	})
	want := []int64{100 << 20, 70 << 20, 70 << 20, 70 << 20, 10 << 20, 10 << 20, 10 << 20}
	if got := k.take(); !slices.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	d.cfg.Enforcer = nil // without cgroups there is nothing to limit
	_ = d.spare.during(func() error { return nil })
	if got := k.take(); got != nil {
		t.Errorf("got %v", got)
	}
}

package node

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

func newTestRecord(t *testing.T, now *time.Duration) *attemptRecord {
	t.Helper()
	db, err := store.Open(filepath.Join(t.TempDir(), StoreFile))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return &attemptRecord{id: "1.0.0.1.1", db: db, clock: testClock{time.Now, func() time.Duration { return *now }}, bootID: "boot"}
}

// stored returns the record as a later daemon finds it.
func (r *attemptRecord) stored(t *testing.T) (rec store.Record, exists bool) {
	t.Helper()
	all, err := r.db.Records()
	if err != nil {
		t.Fatal(err)
	}
	rec, exists = all[r.id]
	return rec, exists
}

// The time that a task has run does not go on while it is suspended, and survives a restart of the daemon,
// but not one of the machine.
func TestRunningTimeOfRecord(t *testing.T) {
	now := 100 * time.Second
	r := newTestRecord(t, &now)
	step := func(at time.Duration, l droverv1.Level) {
		t.Helper()
		now = at
		if err := r.setLevel(l, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.change(func(rec *store.Record) { rec.Started, rec.StartMono, rec.BootID = true, int64(now), "boot" }); err != nil {
		t.Fatal(err)
	}
	r.setLevelNote("a\nnote")
	step(110*time.Second, levelFrozen)
	if ran := r.ran(150*time.Second, 0); ran != 10*time.Second {
		t.Errorf("frozen after 10 s: ran %v", ran)
	}
	step(120*time.Second, levelSwapped)
	step(200*time.Second, levelRunning)
	if r.LevelNote != "" {
		t.Errorf("a task that runs has the note %q", r.LevelNote)
	}
	if ran := r.ran(205*time.Second, 0); ran != 15*time.Second {
		t.Errorf("5 s after it goes on: ran %v", ran)
	}
	if ran := r.ran(300*time.Second, 207*time.Second); ran != 17*time.Second {
		t.Errorf("after its end: ran %v", ran)
	}
	rec, exists := r.stored(t)
	if !exists || !r.exists || rec.Level != int32(levelRunning) {
		t.Errorf("stored: %+v, %v", rec, exists)
	}
	later := &attemptRecord{Record: rec, bootID: "boot"}
	if ran := later.ran(205*time.Second, 0); ran != 15*time.Second {
		t.Errorf("for a later daemon: ran %v", ran)
	}
	later.bootID = "another"
	if ran := later.ran(5*time.Second, 0); ran != 10*time.Second {
		t.Errorf("after a reboot: ran %v", ran)
	}
}

// The time that a reduce task waits for maps after its start is no running time of it.
func TestWaitForMapsIsNoRunningTime(t *testing.T) {
	now := 100 * time.Second
	r := newTestRecord(t, &now)
	if err := r.change(func(rec *store.Record) {
		rec.Started, rec.StartMono, rec.BootID, rec.Waiting = true, int64(now), "boot", true
	}); err != nil {
		t.Fatal(err)
	}
	if ran := r.running(130*time.Second, 0); ran != 0 {
		t.Errorf("while it waits: %v", ran)
	}
	now = 140 * time.Second
	if err := r.endWait(); err != nil {
		t.Fatal(err)
	}
	rec, _ := r.stored(t)
	for name, r := range map[string]*attemptRecord{"for this daemon": r, "for a later one": {Record: rec, bootID: "boot"}} {
		if ran := r.running(147*time.Second, 0); ran != 7*time.Second {
			t.Errorf("7 s after the maps, %s: %v", name, ran)
		}
	}
}

// What cannot be stored has not happened.
func TestRecordIsAsStored(t *testing.T) {
	now := time.Second
	r := newTestRecord(t, &now)
	if err := r.change(func(rec *store.Record) { rec.Epoch = 1 }); err != nil {
		t.Fatal(err)
	}
	if err := r.remove(); err != nil {
		t.Fatal(err)
	}
	if _, exists := r.stored(t); exists || r.exists || r.Epoch != 0 {
		t.Errorf("after remove: stored %v, %+v", exists, r.Record)
	}
	if err := r.change(func(rec *store.Record) { rec.Epoch = 2 }); err != nil {
		t.Fatal(err)
	}
	r.db.Close()
	if err := r.change(func(rec *store.Record) { rec.Dumped = true }); err == nil || r.Dumped || r.Epoch != 2 {
		t.Errorf("a change that was not stored: %v, %+v", err, r.Record)
	}
	if err := r.remove(); err == nil || !r.exists {
		t.Errorf("a removal that was not stored: %v, exists %v", err, r.exists)
	}
}

// slowStart is a driver whose first Start takes an hour and fails.
type slowStart struct {
	*fake.Driver
	now   *atomic.Int64
	tries atomic.Int32
}

func (d *slowStart) Start(ctx context.Context, id string) error {
	if d.tries.Add(1) == 1 {
		d.now.Add(int64(time.Hour))
		return fault.New(fault.Unavailable, "the engine is restarting")
	}
	return d.Driver.Start(ctx, id)
}

// The time from a start that failed to the one that succeeded is no running time of the task, and does not count
// towards its limit.
func TestTimeBeforeTheStartDoesNotCount(t *testing.T) {
	b := newTestNode(t, programs())
	now := &atomic.Int64{}
	now.Store(int64(time.Minute))
	b.config.SinceBoot = func() time.Duration { return time.Duration(now.Load()) }
	b.config.Driver = &slowStart{Driver: b.engine.Driver(), now: now}
	b.start()
	w := groupTask(0, "true")
	w.Spec.TimeLimitMs = time.Minute.Milliseconds()
	b.put(w)
	if s := b.await(t, w, succeeded); s.GetRunningMs() > time.Minute.Milliseconds() {
		t.Errorf("it ran %d ms", s.GetRunningMs())
	}
}

// The end of a task that ended before the clock was set is in the past, and known: its time does not go on.
func TestEndBeforeAStepOfTheClock(t *testing.T) {
	now := 100 * time.Second
	clock := testClock{time.Now, func() time.Duration { return now }}
	c := attemptContainer{clock: clock, cgroup: &attemptCgroup{cfg: &Config{}}}
	c.set(runtime.Status{Phase: runtime.PhaseStopped, Exited: clock.Now().Add(-1000 * time.Hour)})
	r := newTestRecord(t, &now)
	r.Started, r.StartMono, r.BootID = true, int64(40*time.Second), "boot"
	before := r.running(now, c.stoppedAt)
	now += time.Hour
	if after := r.running(now, c.stoppedAt); after != before {
		t.Errorf("it ran %v, and an hour after its end %v", before, after)
	}
}

// TestLostContainerIsNotOverItsTimeLimit: a container that vanishes while no daemon runs has not run since.
func TestLostContainerIsNotOverItsTimeLimit(t *testing.T) {
	b := newTestNode(t, programs())
	var now atomic.Int64
	now.Store(int64(time.Hour))
	b.config.SinceBoot = func() time.Duration { return time.Duration(now.Load()) }
	b.start()
	w := with(groupTask(0, "hang"), func(w *droverv1.WantedAttempt) { w.Spec.TimeLimitMs = time.Minute.Milliseconds() })
	b.put(w)
	b.await(t, w, running)
	b.stopDaemon()
	driver := b.engine.Driver()
	if err := driver.Kill(t.Context(), idOf(w), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := driver.Wait(t.Context(), idOf(w)); err != nil {
		t.Fatal(err)
	}
	if err := driver.Delete(t.Context(), idOf(w)); err != nil {
		t.Fatal(err)
	}
	now.Add(int64(time.Hour))
	b.config.Driver = driver
	b.start()
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "its container is gone") {
		t.Errorf("%s %q", s.GetCause(), s.GetMessage())
	}
}

// An ended attempt took as much of the disk as it did, whichever daemon reports its end.
func TestDiskSpaceOfAnEndedAttemptIsKept(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w := groupTask(0, "env")
	b.put(w)
	before := b.await(t, w, succeeded).GetDiskOccupied()
	b.stopDaemon()
	b.config.Driver = b.engine.Driver()
	b.mu.Lock()
	clear(b.seen)
	b.mu.Unlock()
	b.start()
	if after := b.await(t, w, succeeded).GetDiskOccupied(); after != before || before == 0 {
		t.Errorf("%d bytes, and after a restart %d", before, after)
	}
}

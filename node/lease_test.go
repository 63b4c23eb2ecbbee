package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/leash"
	"github.com/drover-run/drover/runtime/fake"
)

func TestLease(t *testing.T) {
	now := time.Duration(0)
	l := lease{now: func() time.Duration { return now }}
	for _, c := range []struct {
		does     string
		now      time.Duration
		sent     time.Duration // of the report that is answered; negative: none is
		ms       int64
		wantBack bool
		want     time.Duration // left
	}{
		{"a daemon begins without", 100, -1, 0, false, -100},
		{"the first answer gives one", 100, 90, 1000, true, 90 + 660*time.Millisecond - 100},
		{"it runs out", time.Second, -1, 0, false, 90 + 660*time.Millisecond - time.Second},
		{"an answer to a report of long ago does not bring it back", time.Second, 300 * time.Millisecond, 1000, false, -40 * time.Millisecond},
		{"a new one does", time.Second, 900 * time.Millisecond, 1000, true, 560 * time.Millisecond},
		{"an older answer that comes late takes nothing away", time.Second, 100 * time.Millisecond, 1000, false, 560 * time.Millisecond},
		{"an answer without a lease neither", time.Second, time.Second, 0, false, 560 * time.Millisecond},
	} {
		now = c.now
		if c.sent >= 0 && l.renew(c.sent, c.ms) != c.wantBack {
			t.Errorf("%s: renew says %v", c.does, !c.wantBack)
		}
		if got := l.left(); got != c.want {
			t.Errorf("%s: %s left, want %s", c.does, got, c.want)
		}
	}
}

func exclusive(w *droverv1.WantedAttempt) { w.Spec.Exclusive = true }

// leave has the coordinator answer nothing any more, and cuts its streams.
func (b *bench) leave() { b.setAway(true); b.cut() }

func TestAnExclusiveTaskStandsStillWithoutItsCoordinator(t *testing.T) {
	b, k := levelBench(t)
	b.leaseMS = 600
	b.start()
	alone, other := with(group(0, "count"), exclusive), group(1, "count")
	b.put(alone, other)
	b.await(t, alone, running)
	b.await(t, other, running)
	b.counts(alone)
	for range 2 {
		froze := b.engine.Calls(fake.Freeze)
		b.leave()
		poll(t, "a freeze", func() bool { return b.engine.Calls(fake.Freeze) > froze })
		b.still(alone)
		b.counts(other)
		b.setAway(false)
		b.counts(alone)
		if s := b.get(alone); s.GetLevel() != lrunning || s.GetPhase() != running {
			t.Errorf("the coordinator was told that it is %s, %s", s.GetPhase(), s.GetLevel())
		}
	}
	k.mu.Lock()
	for _, x := range k.thawed {
		if x.CPU != 100 || x.Swap != 0 || x.IO != 1<<20 {
			t.Errorf("it was let go under %+v", x)
		}
	}
	k.mu.Unlock()
	if n := b.engine.Calls(fake.Start); n != 2 {
		t.Errorf("%d starts", n)
	}
	b.remove(other)
	b.await(t, other, gone)
	b.endsClean(t, alone)
}

// A daemon that was started again knows of no lease until the coordinator has
// answered, and an exclusive task that it finds waits for that.
func TestAnExclusiveTaskWaitsForTheNextDaemonsLease(t *testing.T) {
	b, _ := levelBench(t)
	b.leaseMS = 60_000
	b.start()
	w := with(group(0, "count"), exclusive)
	b.put(w)
	b.await(t, w, running)
	b.halt()
	b.config.Driver = b.engine.Driver()
	froze := b.engine.Calls(fake.Freeze)
	b.mu.Lock()
	b.leaseMS = 0
	b.mu.Unlock()
	b.start()
	poll(t, "a freeze", func() bool { return b.engine.Calls(fake.Freeze) > froze })
	b.still(w)
	poll(t, "the reason", func() bool { return strings.Contains(b.get(w).GetLevelNote(), "lost the coordinator") })
	if l := b.get(w).GetLevel(); l != lrunning {
		t.Errorf("the coordinator was told that it is %s", l)
	}
	b.mu.Lock()
	b.leaseMS = 60_000
	b.mu.Unlock()
	b.counts(w)
	b.at(w, lfrozen) // and to the coordinator's wish it comes as any other
	b.awaitLevel(w, lfrozen)
	b.at(w, lrunning)
	b.awaitLevel(w, lrunning)
	b.counts(w)
}

func TestAnExclusiveTaskBeginsNothingWithoutALease(t *testing.T) {
	b, _ := levelBench(t)
	b.start() // the coordinator gives no lease
	w := with(group(0, "count"), exclusive)
	b.put(w)
	poll(t, "a container", func() bool {
		all, err := b.engine.Driver().List(t.Context())
		return err == nil && len(all) == 1
	})
	fulls := b.fullReports()
	b.cut()
	poll(t, "another session", func() bool { return b.fullReports() > fulls })
	if n := b.engine.Calls(fake.Start); n != 0 {
		t.Fatalf("%d starts", n)
	}
	b.mu.Lock()
	b.leaseMS = 60_000
	b.mu.Unlock()
	b.await(t, w, running)
	b.counts(w)
}

func (b *boss) fullReports() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fulls
}

func TestAnExclusiveTaskThatCannotBeFrozenEnds(t *testing.T) {
	b, _ := levelBench(t)
	b.leaseMS = 600
	b.engine.Inject(fake.Fault{Verb: fake.Freeze, Err: fault.New(fault.Unsupported, "the kernel does not")})
	b.start()
	w := with(group(0, "count"), exclusive)
	b.put(w)
	b.await(t, w, running)
	b.leave()
	poll(t, "no container", func() bool {
		all, err := b.engine.Driver().List(t.Context())
		return err == nil && len(all) == 0
	})
	b.setAway(false)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "exclusive") {
		t.Errorf("%s %q", s.GetCause(), s.GetMessage())
	}
}

// leashKernel is one whose freezing another process can do, by a file.
type leashKernel struct {
	*levelKernel
	dir string
}

func (k *leashKernel) FreezeFile(id string) string { return filepath.Join(k.dir, id) }

// A daemon that is gone for longer than its lease leaves its exclusive tasks to
// the watch, which has them stand still; the next one goes on with them.
func TestTheWatchFreezesForADaemonThatIsGone(t *testing.T) {
	b, k := levelBench(t)
	lk := &leashKernel{k, t.TempDir()}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b.config.Enforcer, b.config.Helper = lk, []string{self, "helper"}
	b.leaseMS = 1000
	b.start()
	alone, other := with(group(0, "count"), exclusive), group(1, "count")
	for _, w := range []*droverv1.WantedAttempt{alone, other} {
		if err := os.WriteFile(lk.FreezeFile(idOf(w)), []byte("0"), 0o600); err != nil {
			t.Fatal(err)
		}
		b.put(w)
		b.await(t, w, running)
	}
	reads := func(w *droverv1.WantedAttempt) string {
		text, err := os.ReadFile(lk.FreezeFile(idOf(w)))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	path := filepath.Join(b.config.Data, "leash")
	watched := func() bool {
		there, err := leash.Watched(path)
		return err == nil && there
	}
	if !watched() || reads(alone) != "0" {
		t.Errorf("watched %v, the file reads %q", watched(), reads(alone))
	}
	b.halt()
	poll(t, "1 in the exclusive task's file", func() bool { return reads(alone) == "1" })
	if got := reads(other); got != "0" {
		t.Errorf("the other task's file reads %q", got)
	}
	b.config.Driver = b.engine.Driver()
	b.start()
	b.counts(alone)
	poll(t, "a watch for the next daemon", watched)
	b.at(alone, lfrozen) // by the daemon: there is nothing to watch then
	b.awaitLevel(alone, lfrozen)
	poll(t, "no watch", func() bool { return !watched() })
	b.at(alone, lrunning)
	b.awaitLevel(alone, lrunning)
	poll(t, "a watch again", watched)
	b.remove(other)
	b.await(t, other, gone)
	b.endsClean(t, alone)
	poll(t, "no watch over nothing", func() bool { return !watched() })
}

package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime/fake"
)

// twoNodes are two nodes whose engines restore each other's dumps.
func twoNodes(t *testing.T) (a, b *bench) {
	a, _ = levelBench(t)
	b, _ = levelBench(t)
	b.engine.ShareDumps(a.engine)
	a.start()
	b.start()
	return a, b
}

// counting starts a task on a node and dumps it.
func counting(t *testing.T, n *bench) *droverv1.WantedAttempt {
	w := with(group(0, "count"), func(w *droverv1.WantedAttempt) { w.Spec.ShuffleToken = "secret" })
	n.put(w)
	n.await(t, w, running)
	n.counts(w)
	if err := os.WriteFile(filepath.Join(n.folder(w), "task", "kept"), []byte(strings.Repeat("work", 100_000)), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("kept", filepath.Join(n.folder(w), "task", "link")); err != nil {
		t.Fatal(err)
	}
	n.at(w, lcheckpointed)
	n.awaitLevel(w, lcheckpointed)
	return w
}

// next is the attempt as the next node is to have it.
func next(w *droverv1.WantedAttempt, from *bench) *droverv1.WantedAttempt {
	return with(group(0, "count"), func(n *droverv1.WantedAttempt) {
		n.Key.Run, n.Spec.ShuffleToken = w.GetKey().GetRun()+1, w.GetSpec().GetShuffleToken()
		n.ResumeFrom, n.ResumeRun = from.address, w.GetKey().GetRun()
	})
}

func TestAMoveKeepsWorkFilesAndLogs(t *testing.T) {
	a, b := twoNodes(t)
	w := counting(t, a)
	ran := a.get(w).GetRunningMs()
	m := next(w, a)
	b.put(m)
	s := b.awaitLevel(m, lrunning)
	a.remove(w)
	a.await(t, w, gone)
	b.counts(m) // from 0 on, so the log came along
	kept, err := os.ReadFile(filepath.Join(b.folder(m), "task", "link"))
	if err != nil || string(kept) != strings.Repeat("work", 100_000) {
		t.Errorf("a file of the task: %d bytes, %v", len(kept), err)
	}
	if st, err := os.Stat(filepath.Join(b.folder(m), "task", "kept")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("its mode: %v, %v", st, err)
	}
	if s.GetRunningMs() < ran {
		t.Errorf("ran %d ms, on the node before %d", s.GetRunningMs(), ran)
	}
	if n := b.engine.Calls(fake.Start); n != 0 {
		t.Errorf("%d starts on the second node", n)
	}
	// And back again: a chain.
	b.at(m, lcheckpointed)
	b.awaitLevel(m, lcheckpointed)
	back := next(m, b)
	a.put(back)
	a.awaitLevel(back, lrunning)
	a.counts(back)
	b.remove(m)
	b.await(t, m, gone)
	b.nothingLeft()
}

func TestAMoveThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		harm func(t *testing.T, a *bench, w, m *droverv1.WantedAttempt)
		note string
	}{
		"the holder does not have it": {func(t *testing.T, a *bench, w, _ *droverv1.WantedAttempt) {
			a.remove(w)
			a.await(t, w, gone)
		}, "does not have the dump"},
		"the asker has another token": {func(_ *testing.T, _ *bench, _, m *droverv1.WantedAttempt) { m.Spec.ShuffleToken = "guess" }, "token"},
		"the dump is damaged": {func(t *testing.T, a *bench, w, _ *droverv1.WantedAttempt) {
			if err := os.WriteFile(filepath.Join(a.config.Data, "images", idOf(w), "1", "dump.json"), []byte("{}"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := twoNodes(t)
			w := counting(t, a)
			m := next(w, a)
			c.harm(t, a, w, m)
			b.put(m)
			s := b.awaitRefusal(m, lrunning)
			if s.GetLevel() != lcheckpointed || !strings.Contains(s.GetLevelNote(), c.note) || s.GetPhase() != running {
				t.Errorf("%s at %s: %q", s.GetPhase(), s.GetLevel(), s.GetLevelNote())
			}
			if n := b.engine.Calls(fake.Start) + b.engine.Calls(fake.Create); n != 0 {
				t.Errorf("it was started anew")
			}
			b.remove(m)
			b.await(t, m, gone)
			b.nothingLeft()
		})
	}
}

// A daemon that dies in the middle of a move goes on with it.
func TestAMoveAcrossARestart(t *testing.T) {
	a, b := twoNodes(t)
	w := counting(t, a)
	b.engine.Inject(fake.Fault{Verb: fake.Restore, Nth: 1, Err: fault.New(fault.Unavailable, "not now")})
	m := next(w, a)
	b.put(m)
	poll(t, "the dump on the second node", func() bool { return b.engine.Calls(fake.Restore) > 0 })
	b.halt()
	b.config.Driver = b.engine.Driver()
	b.start()
	b.awaitLevel(m, lrunning)
	b.counts(m)
}

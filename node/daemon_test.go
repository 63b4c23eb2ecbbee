package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/fake"
)

func TestGroupTaskRunsAndLeavesNothing(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w := groupTask(0, "true")
	b.put(w)
	b.await(t, w, succeeded)
	poll(t, "a trimmed folder", func() bool { return !pathExists(filepath.Join(b.attemptFolder(w), "tmp")) })
	if !pathExists(filepath.Join(b.attemptFolder(w), "logs")) {
		t.Error("the logs of a finished task were removed without a request")
	}
	b.remove(w)
	b.await(t, w, gone)
	b.checkNothingLeft()
}

func TestManyTasks(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	var all []*droverv1.WantedAttempt
	for i := range int32(60) {
		all = append(all, groupTask(i, "true"))
	}
	b.put(all...)
	for _, w := range all {
		b.await(t, w, succeeded)
	}
	b.remove(all...)
	for _, w := range all {
		b.await(t, w, gone)
	}
	b.checkNothingLeft()
}

func TestFailures(t *testing.T) {
	type W = droverv1.WantedAttempt
	for name, c := range map[string]struct {
		w       *W
		cause   droverv1.Cause
		message string
		exit    int32
	}{
		"an exit code is the user's":                {groupTask(0, "fail"), droverv1.Cause_CAUSE_EXIT, "exit code 3", 3},
		"a command that is not there cannot be run": {groupTask(0, "nosuch"), droverv1.Cause_CAUSE_SPEC, "the job has no image, so its containers have no programs: container", 0},
		"a file that the coordinator lost": {with(groupTask(0, "true"), func(w *W) {
			w.Spec.Files = []*droverv1.FileRef{{Name: "a", Digest: "sha256:" + strings.Repeat("0", 64)}}
		}), droverv1.Cause_CAUSE_SPEC, `file "a"`, 0},
		"an image that is not there": {with(groupTask(0, "true"), func(w *W) {
			w.Spec.Image = &droverv1.ImageRef{Kind: "oci-archive", Digest: "sha256:" + strings.Repeat("0", 64)}
		}), droverv1.Cause_CAUSE_SPEC, "no blob", 0},
		"a secret that the node does not have": {with(groupTask(0, "true"), func(w *W) {
			w.Spec.Secrets = []*droverv1.SecretRef{{Env: "A", Ref: "file:nosuch"}}
		}), droverv1.Cause_CAUSE_SPEC, "secrets", 0},
		"files that are larger than the disk quota": {with(groupTask(0, "true"), func(w *W) {
			w.Spec.Disk, w.Spec.Files = 1<<20, []*droverv1.FileRef{{Name: "a", Size: 2 << 20}}
		}), droverv1.Cause_CAUSE_SPEC, `have 2MiB together, more than its disk quota: raise disk, which is "1MiB"`, 0},
		"a hang ends at its limit":           {with(groupTask(0, "hang"), func(w *W) { w.Spec.TimeLimitMs = 30 }), droverv1.Cause_CAUSE_TIME, `time_limit = "30ms"`, 128 + 15},
		"a task that ignores TERM is killed": {with(groupTask(0, "deaf"), func(w *W) { w.Spec.TimeLimitMs = 5000 }), droverv1.Cause_CAUSE_TIME, "time_limit", 128 + 9},
		"over its disk quota":                {with(groupTask(0, "hang"), func(w *W) { w.Spec.Disk = 1 }), droverv1.Cause_CAUSE_DISK, `disk = "1B"`, 128 + 15},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, programs())
			b.start()
			b.put(c.w)
			s := b.await(t, c.w, failed)
			if s.GetCause() != c.cause || !strings.Contains(s.GetMessage(), c.message) || s.GetExitCode() != c.exit {
				t.Errorf("%s, exit %d, %q; want %s, exit %d, %q", s.GetCause(), s.GetExitCode(), s.GetMessage(), c.cause, c.exit, c.message)
			}
			if c.cause == droverv1.Cause_CAUSE_EXIT && !strings.Contains(s.GetStderrTail(), "it went wrong") {
				t.Errorf("standard error's tail is %q", s.GetStderrTail())
			}
			poll(t, "no container", func() bool {
				all, err := b.engine.Driver().List(t.Context())
				return err == nil && len(all) == 0
			})
			b.remove(c.w)
			b.await(t, c.w, gone)
			b.checkNothingLeft()
		})
	}
}

func TestStop(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	b.await(t, w, running)
	b.put(with(groupTask(0, "hang"), func(w *droverv1.WantedAttempt) { w.Goal, w.Spec = droverv1.Goal_GOAL_STOP, nil }))
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_STOPPED {
		t.Errorf("stopped with %s %q", s.GetCause(), s.GetMessage())
	}
	poll(t, "only the logs left", func() bool {
		return !pathExists(filepath.Join(b.attemptFolder(w), "task")) && !pathExists(filepath.Join(b.attemptFolder(w), "tmp")) && pathExists(filepath.Join(b.attemptFolder(w), "logs"))
	})
}

func TestRestartAdopts(t *testing.T) {
	release := make(chan struct{})
	p := programs()
	p["wait"] = func(ctx context.Context, _ *fake.Process) int {
		select {
		case <-release:
			return 0
		case <-ctx.Done():
			return 1
		}
	}
	b := newTestNode(t, p)
	b.start()
	w, done := groupTask(0, "wait"), groupTask(1, "fail")
	b.put(w, done)
	b.await(t, w, running)
	b.await(t, done, failed)
	started := b.get(w).GetStartedMs()
	b.stopDaemon()
	close(release) // it exits while no daemon is running
	poll(t, "the end of the container", func() bool {
		all, _ := b.engine.Driver().List(t.Context())
		return len(all) > 0 && all[0].Phase == runtime.PhaseStopped
	})
	b.config.Driver = b.engine.Driver()
	b.start()
	s := b.await(t, w, succeeded)
	if s.GetStartedMs() != started {
		t.Errorf("started at %d, before the restart it was %d", s.GetStartedMs(), started)
	}
	if n := b.engine.Calls(fake.Start); n != 2 {
		t.Errorf("%d starts, want 2: nothing is started twice", n)
	}
	if s := b.get(done); s.GetPhase() != failed || s.GetExitCode() != 3 {
		t.Errorf("the end before the restart is now %v", s)
	}
}

func TestUnknownAttemptsAreRemovedAtStart(t *testing.T) {
	b := newTestNode(t, programs())
	d := b.engine.Driver()
	if err := d.Create(t.Context(), runtime.Spec{ID: "9.0.0.1.1", Args: []string{"hang"}}); err != nil {
		t.Fatal(err)
	}
	if err := d.Start(t.Context(), "9.0.0.1.1"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(b.config.Data, "attempts", "9.0.1.1.1", "task"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.start()
	b.checkNothingLeft()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.seen) != 0 {
		t.Errorf("unknown attempts were reported: %v", b.seen)
	}
}

func TestEngineDownIsNotAnExit(t *testing.T) {
	release := make(chan struct{})
	p := programs()
	p["wait"] = func(context.Context, *fake.Process) int { <-release; return 0 }
	b := newTestNode(t, p)
	b.start()
	w := groupTask(0, "wait")
	b.put(w)
	b.await(t, w, running)
	b.engine.Down(true)
	lists := b.engine.Calls(fake.List)
	poll(t, "the daemon asking a dead engine", func() bool { return b.engine.Calls(fake.List) > lists+1 })
	if s := b.get(w); s.GetPhase() != running {
		t.Fatalf("while the engine is down: %v", s)
	}
	b.engine.Down(false)
	close(release)
	b.await(t, w, succeeded)
	if n := b.engine.Calls(fake.Start); n != 1 {
		t.Errorf("started %d times", n)
	}
}

func TestLostAnswersOfTheEngine(t *testing.T) {
	for _, verb := range []fake.Verb{fake.Create, fake.Start, fake.Wait, fake.Delete} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, acted %v", verb, after), func(t *testing.T) {
				b := newTestNode(t, programs())
				b.engine.Inject(fake.Fault{Verb: verb, Nth: 1, Err: fault.New(fault.Unavailable, "the answer is lost"), ActFirst: after})
				b.start()
				w := groupTask(0, "true")
				b.put(w)
				b.await(t, w, succeeded)
				b.remove(w)
				b.await(t, w, gone)
				b.checkNothingLeft()
			})
		}
	}
}

func TestLowerTermIsRefused(t *testing.T) {
	b := newTestNode(t, programs())
	b.term = 5
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	b.await(t, w, running)
	b.mu.Lock()
	fulls := b.fullReportCount
	b.mu.Unlock()
	b.send(&droverv1.Wanted{Term: 4, Remove: []*droverv1.AttemptKey{w.GetKey()}})
	b.mu.Lock()
	b.wanted[store.IDOf(w.GetKey())] = w // the real coordinator still wants it
	b.mu.Unlock()
	poll(t, "another session", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return b.fullReportCount > fulls })
	next := groupTask(1, "true")
	b.put(next)
	b.await(t, next, succeeded)
	if s := b.get(w); s.GetPhase() != running {
		t.Errorf("a lower term removed the attempt: %v", s)
	}
	if n := b.engine.Calls(fake.Start); n != 2 {
		t.Errorf("%d starts, want 2", n)
	}
}

func TestRevisionGapRequestsFullSet(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	a, c := groupTask(0, "hang"), groupTask(1, "hang")
	b.put(a)
	b.await(t, a, running)
	b.mu.Lock() // without a stream: a is removed, c is added
	delete(b.wanted, store.IDOf(a.GetKey()))
	b.wanted[store.IDOf(c.GetKey())] = c
	b.revision += 10
	b.mu.Unlock()
	b.cutStreams()
	b.await(t, c, running)
	b.await(t, a, gone)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fullReportCount < 2 {
		t.Errorf("%d full reports, want one for each session", b.fullReportCount)
	}
}

func TestNewEpochRemovesWithoutReporting(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w, ended := b.putHangingAndEnded(t)
	b.mu.Lock()
	b.epoch, b.registerAgain, b.log = 2, true, nil
	clear(b.wanted)
	clear(b.seen)
	b.mu.Unlock()
	b.cutStreams()
	poll(t, "the old ones gone", func() bool { return b.areRemoved(t, w, ended) })
	b.mu.Lock()
	clear(b.seen) // reports that were under way when the epoch changed
	b.mu.Unlock()
	next := groupTask(2, "true")
	b.put(next)
	b.await(t, next, succeeded)
	for _, w := range []*droverv1.WantedAttempt{w, ended} {
		if s := b.get(w); s != nil {
			t.Errorf("an attempt of the old epoch was reported: %v", s)
		}
	}
}

// A daemon removes its attempts if another daemon has its name in a later epoch: they were lost, and can never count. After a
// restart it starts none of them again, and it continues when it gets the name back. An owner in the same epoch, of another
// cluster, or of a restored coordinator does not mean that the attempts were lost, so nothing is removed then.
func TestADaemonThatLostItsNameRemovesItsAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		owner   wire.NodeOwner
		removed bool
	}{
		"a later epoch":                   {wire.NodeOwner{Cluster: "c", Node: 1, Epoch: 2}, true},
		"its own epoch":                   {wire.NodeOwner{Cluster: "c", Node: 1, Epoch: 1}, false},
		"a later epoch of another node":   {wire.NodeOwner{Cluster: "c", Node: 2, Epoch: 2}, false},
		"of another cluster":              {wire.NodeOwner{Cluster: "d", Node: 1, Epoch: 2}, false},
		"of a coordinator that was reset": {wire.NodeOwner{Cluster: "c", ClusterEpoch: 1, Node: 1, Epoch: 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, programs())
			b.start()
			w, ended := b.putHangingAndEnded(t)
			refuse := func(by *wire.NodeOwner) {
				b.mu.Lock()
				b.owner, b.refusals, b.registerAgain = by, 0, by != nil
				b.mu.Unlock()
			}
			refusals := func() int {
				b.mu.Lock()
				defer b.mu.Unlock()
				return b.refusals
			}
			removed := func() bool { return b.areRemoved(t, w, ended) }
			refuse(&c.owner)
			b.cutStreams()
			poll(t, "two refusals", func() bool { return refusals() >= 2 })
			if c.removed {
				poll(t, "what ran is gone", removed)
			}
			starts := b.engine.Calls(fake.Start)
			b.stopDaemon()
			refuse(&c.owner)
			b.startOnly()
			poll(t, "two refusals after a restart", func() bool { return refusals() >= 2 })
			if got := removed(); got != c.removed {
				t.Errorf("all is removed: %t", got)
			}
			if n := b.engine.Calls(fake.Start); n != starts {
				t.Errorf("it started %d times more", n-starts)
			}
			b.mu.Lock()
			b.epoch = 3
			b.log = nil
			clear(b.wanted)
			b.mu.Unlock()
			refuse(nil)
			next := groupTask(2, "true")
			b.put(next)
			b.await(t, next, succeeded)
			poll(t, "what ran is gone", removed)
		})
	}
}

func TestUnknownAttemptIsGone(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	poll(t, "the watch", func() bool { b.mu.Lock(); defer b.mu.Unlock(); return len(b.watches) > 0 })
	w := groupTask(0, "true")
	b.remove(w)
	b.await(t, w, gone)
}

func TestFilesSecretsAndEnvironment(t *testing.T) {
	p := programs()
	p[harnessMount+"/drover"] = func(_ context.Context, p *fake.Process) int { // with-secrets
		i := slices.IndexFunc(p.Spec.Mounts, func(m runtime.Mount) bool { return m.Target == secretMount })
		env, err := os.ReadFile(filepath.Join(p.Spec.Mounts[i].Source, filepath.Base(p.Spec.Args[3])))
		fmt.Fprintln(p.Stdout, strings.Join(p.Spec.Env, "\n"), err)
		fmt.Fprintln(p.Stdout, strings.ReplaceAll(string(env), "\x00", "\n"))
		return 0
	}
	b, _ := newSecretNode(t, p, nil)
	secrets := filepath.Join(t.TempDir(), "secrets")
	writeSecret(t, secrets, "t", "token", "s3cret\n")
	b.config.Secrets = secrets
	const digest = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"
	b.blobs[digest] = []byte("hello")
	b.start()
	hold := with(groupTask(4, "env"), func(w *droverv1.WantedAttempt) {
		w.Spec.Env = map[string]string{"MINE": "yes"}
		w.Spec.Secrets = []*droverv1.SecretRef{{Env: "TOKEN", Ref: "file:token"}}
		w.Spec.Files = []*droverv1.FileRef{{Name: "sub/hello.txt", Digest: digest, Mode: 0o755}}
	})
	b.put(hold)
	b.await(t, hold, succeeded)
	out, err := os.ReadFile(filepath.Join(b.attemptFolder(hold), "logs", "stdout.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MINE=yes\n", "TOKEN=s3cret\n", "DROVER_TASK=4\n", "DROVER_JOB=j\n", "HOME=/task\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the environment lacks %q:\n%s", want, out)
		}
	}
	db, err := os.ReadFile(filepath.Join(b.config.Data, "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(db), "s3cret") {
		t.Error("the secret's value is in the node's store")
	}
}

func TestTasksContinueWithoutCoordinator(t *testing.T) {
	release := make(chan struct{})
	p := programs()
	p["wait"] = func(context.Context, *fake.Process) int { <-release; return 0 }
	b := newTestNode(t, p)
	b.start()
	w := groupTask(0, "wait")
	b.put(w)
	b.await(t, w, running)
	b.setUnreachable(true)
	b.cutStreams()
	close(release)
	poll(t, "the end of the task, unreported", func() bool {
		return !pathExists(filepath.Join(b.attemptFolder(w), "tmp")) && b.get(w).GetPhase() == running
	})
	b.setUnreachable(false)
	b.await(t, w, succeeded)
	if n := b.engine.Calls(fake.Start); n != 1 {
		t.Errorf("started %d times", n)
	}
}

func TestEpochChangedWhileDaemonWasDown(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w, ended := groupTask(0, "hang"), groupTask(1, "true")
	b.put(w, ended)
	b.await(t, w, running)
	b.await(t, ended, succeeded)
	b.stopDaemon()
	b.mu.Lock()
	b.epoch, b.log = 2, nil
	clear(b.wanted)
	clear(b.seen)
	b.mu.Unlock()
	b.config.Driver = b.engine.Driver()
	b.start()
	b.checkNothingLeft()
	next := groupTask(2, "true")
	b.put(next)
	b.await(t, next, succeeded)
	if b.get(w) != nil || b.get(ended) != nil {
		t.Errorf("attempts of the old epoch were reported: %v %v", b.get(w), b.get(ended))
	}
}

// A start that fails repeatedly fails the attempt with cause INFRA, whatever the
// class of the error, so that the coordinator gives the task to another node.
func TestAStartThatFailsAgainAndAgainEndsTheAttempt(t *testing.T) {
	for name, c := range map[string]struct {
		fault fake.Fault
		tries int
	}{
		"the same error of an engine that answers": {fake.Fault{Verb: fake.Start, Err: fault.New(fault.Unavailable, "mkdir bundle: file exists")}, maxSameErrorTries},
		"the same error without a class":           {fake.Fault{Verb: fake.Start, Err: errors.New("no reason given")}, maxSameErrorTries},
		"a container that cannot be made":          {fake.Fault{Verb: fake.Create, Err: fault.New(fault.Unavailable, "no")}, maxSameErrorTries},
		"a start cut short that leaves its bundle": {fake.Fault{Verb: fake.Start, Err: context.DeadlineExceeded, Leaves: true}, maxSameErrorTries},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, programs())
			b.engine.Inject(c.fault)
			b.start()
			w := groupTask(0, "true")
			b.put(w)
			s := b.await(t, w, failed)
			if s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "did not start on node n1") || !strings.Contains(s.GetMessage(), c.fault.Err.Error()) {
				t.Errorf("%s %q, want the infrastructure's failure with its cause", s.GetCause(), s.GetMessage())
			}
			if n := b.engine.Calls(c.fault.Verb); n != c.tries {
				t.Errorf("%d tries, want %d", n, c.tries)
			}
			b.remove(w)
			b.await(t, w, gone)
			b.checkNothingLeft()
		})
	}
}

func TestDifferentStartErrorsAreBoundedToo(t *testing.T) {
	b := newTestNode(t, programs())
	for i := range 4 {
		b.engine.Inject(fake.Fault{Verb: fake.Start, Nth: i + 1, Err: fault.New(fault.Unavailable, "reason %d", i)})
	}
	b.start()
	w := groupTask(0, "true")
	b.put(w)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA {
		t.Errorf("%s %q", s.GetCause(), s.GetMessage())
	}
	if n := b.engine.Calls(fake.Start); n != maxStartTries {
		t.Errorf("%d tries, want %d", n, maxStartTries)
	}
}

// Leftovers that the engine has forgotten are found at the start and later.
func TestLeftoversAreRemoved(t *testing.T) {
	b := newTestNode(t, programs())
	b.engine.Leave("9.0.0.1.1")
	b.engine.Leave("not-an-attempt")
	b.config.SweepEvery = 20 * time.Millisecond
	b.start()
	left := func() (ids []string) {
		all, err := b.engine.Driver().Leftovers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range all {
			ids = append(ids, l.ID)
		}
		return ids
	}
	poll(t, "the first sweep", func() bool { return slices.Equal(left(), []string{"not-an-attempt"}) })
	w, ended := groupTask(0, "hang"), groupTask(1, "true")
	b.put(w, ended)
	b.await(t, w, running)
	b.await(t, ended, succeeded)
	b.engine.Leave("9.0.1.1.1")
	b.engine.Leave(string(store.IDOf(w.GetKey())))
	b.engine.Leave(string(store.IDOf(ended.GetKey())))
	want := []string{string(store.IDOf(w.GetKey())), "not-an-attempt"}
	poll(t, "a later sweep", func() bool { return slices.Equal(left(), want) })
	if s := b.get(w); s.GetPhase() != running {
		t.Errorf("a task that runs was swept away: %v", s)
	}
	b.engine.Inject(fake.Fault{Verb: fake.ReleaseImports, Nth: 1, Err: errors.New("no answer")})
	before := b.engine.Calls(fake.ReleaseImports)
	poll(t, "the imports being released again after an error", func() bool { return b.engine.Calls(fake.ReleaseImports) > before+1 })
}

// A container that appears without an attempt is removed while the daemon runs.
func TestAStrayContainerIsRemovedLater(t *testing.T) {
	b := newTestNode(t, programs())
	b.config.SweepEvery = 20 * time.Millisecond
	b.start()
	d := b.engine.Driver()
	if err := d.Create(t.Context(), runtime.Spec{ID: "9.0.0.1.1", Args: []string{"hang"}}); err != nil {
		t.Fatal(err)
	}
	b.checkNothingLeft()
}

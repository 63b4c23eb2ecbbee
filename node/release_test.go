package node

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/pastlogs"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime/fake"
)

// attemptsLeft returns how many attempts, folders of attempts and records the node has; the records with -1 while
// the daemon runs, which has them open.
func (b *testNode) attemptsLeft() (folders, records int) {
	b.t.Helper()
	list, err := os.ReadDir(filepath.Join(b.config.Data, "attempts"))
	if err != nil {
		b.t.Fatal(err)
	}
	if b.stop != nil {
		return len(list), -1
	}
	s, err := store.Open(filepath.Join(b.config.Data, StoreFile))
	if err != nil {
		b.t.Fatal(err)
	}
	defer s.Close()
	all, err := s.Records()
	if err != nil {
		b.t.Fatal(err)
	}
	return len(list), len(all)
}

// Of a live job of which many attempts have ended, the node has folders and records of those that the coordinator
// names, and the logs of all, over a restart and whatever their limits: those that wrote nothing are
// empty, not missing.
func TestEndedAttemptsOfALiveJobLeaveTheirLogs(t *testing.T) {
	b := newTestNode(t, map[string]fake.Program{
		"say":  func(_ context.Context, p *fake.Process) int { fmt.Fprintln(p.Stdout, p.Spec.Args[1]); return 0 },
		"true": func(context.Context, *fake.Process) int { return 0 },
	})
	b.config.KeepLogBytes, b.config.KeepLogAge, b.config.CollectEvery = -1, time.Nanosecond, time.Millisecond
	b.start()
	const tasks, kept = 60, 3
	var all []*droverv1.WantedAttempt
	for i := range int32(tasks) {
		w := groupTask(i, "true")
		if i%2 == 0 {
			w = groupTask(i, "say", fmt.Sprint("task ", i))
		}
		all = append(all, w)
		b.put(w)
		b.await(t, w, succeeded)
		b.put(with(w, func(w *droverv1.WantedAttempt) { w.Goal = droverv1.Goal_GOAL_STOP }))
		if i >= kept {
			b.remove(all[i-kept])
		}
	}
	check := func(when string) {
		t.Helper()
		poll(t, "folders of the newest attempts alone "+when, func() bool { n, _ := b.attemptsLeft(); return n == kept })
		for i, w := range all {
			want := ""
			if i%2 == 0 {
				want = fmt.Sprintf("task %d\n", i)
			}
			if text, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey()}); text != want || err != nil {
				t.Errorf("logs of task %d %s: %q %v, want %q", i, when, text, err, want)
			}
		}
	}
	check("in the first process")
	b.stopDaemon()
	if _, n := b.attemptsLeft(); n != kept {
		t.Errorf("%d records, want %d", n, kept)
	}
	b.start()
	check("after a restart")
	// The job has ended, and its logs have expired: from now on the limits count.
	for _, w := range all[tasks-kept:] {
		b.remove(w)
	}
	poll(t, "the logs are removed", func() bool {
		for _, w := range all {
			if _, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey()}); connect.CodeOf(err) != connect.CodeNotFound {
				return false
			}
		}
		return true
	})
}

// An attempt that is kept for itself does not hold the logs of its job.
func TestRetainedAttemptsDoNotHoldLogs(t *testing.T) {
	table := newTestTable(store.Identity{Epoch: 1})
	for id, goal := range map[store.ID]droverv1.Goal{"1.0.0.1.1": droverv1.Goal_GOAL_KEEP, "2.0.0.1.1": droverv1.Goal_GOAL_STOP, "3.0.0.1.1": droverv1.Goal_GOAL_RUN} {
		table.addTest(id, &droverv1.WantedAttempt{Key: id.Key(), Goal: goal})
	}
	if got := table.jobsInUse(); len(got) != 2 || !got[2] || !got[3] {
		t.Errorf("jobs in use: %v, want 2 and 3", got)
	}
}

// Who follows an attempt gets all of it, also if it leaves the node while it is read; and a position in its
// folder is one in the copy.
func TestFollowedLogsContinueInTheCopy(t *testing.T) {
	release := make(chan struct{})
	b := newTestNode(t, map[string]fake.Program{"say": func(_ context.Context, p *fake.Process) int {
		fmt.Fprintln(p.Stdout, "first")
		<-release
		fmt.Fprintln(p.Stdout, "last")
		return 0
	}})
	b.start()
	w := groupTask(0, "say")
	b.put(w)
	b.await(t, w, running)
	type result struct {
		text string
		err  error
	}
	followed := make(chan result, 1)
	go func() {
		text, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey(), Follow: true})
		followed <- result{text, err}
	}()
	close(release)
	b.await(t, w, succeeded)
	b.remove(w)
	b.checkNothingLeft()
	if got := <-followed; got.text != "first\nlast\n" || got.err != nil {
		t.Errorf("followed: %q %v", got.text, got.err)
	}
	if text, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey(), After: "6"}); text != "last\n" || err != nil {
		t.Errorf("after a position: %q %v", text, err)
	}
}

// A reader that was too slow before the folder went reads on in the copy.
func TestSlowReaderContinuesInTheCopy(t *testing.T) {
	own, copied := folder(t.TempDir()), folder(t.TempDir())
	for dir, text := range map[folder]string{own: "first\n", copied: "first\nlast\n"} {
		if err := os.Mkdir(dir.logs(), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir.join(nameLogs, "stdout.log"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := openLogs(own, "stdout")
	if err != nil {
		t.Fatal(err)
	}
	got := ""
	read := func() {
		if err := files.copy(func(b []byte, _ int64) error { got += string(b); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if files, err = files.continueIn(copied); err != nil {
		t.Fatal(err)
	}
	defer files.close()
	if read(); got != "first\nlast\n" {
		t.Errorf("read %q", got)
	}
}

// Logs that are gathered while their attempt leaves the node are those of the copy.
func TestGatheredLogsOfAnAttemptThatLeaves(t *testing.T) {
	const id = store.ID("1.0.0.1.1")
	past, err := pastlogs.Open(filepath.Join(t.TempDir(), "past"), pastlogs.Options{MaxBytes: 1 << 20, MaxAge: time.Hour, MaxFile: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	logs := jobLogs{newTestTable(store.Identity{Epoch: 1}), past}
	a := logs.attempts.addTest(id, &droverv1.WantedAttempt{Key: id.Key(), Goal: droverv1.Goal_GOAL_STOP})
	a.dir = folder(t.TempDir())
	if err := os.Mkdir(a.dir.logs(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(a.dir.join(nameLogs, "stdout.log"), []byte("said\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	all := logs.LogsOf(1)
	if err := past.Keep(id.String(), string(a.dir), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(string(a.dir)); err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for _, l := range append(all, logs.LogsOf(1)...) {
		if err := l.Copy(&got); err != nil {
			t.Error(err)
		}
	}
	if got.String() != "said\nsaid\n" {
		t.Errorf("gathered %q", got.String())
	}
}

package node

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/task"
)

// The end of a helper that was stopped is not taken for that of the next one, however late it is told of: a third
// helper would write to the same files.
func TestStoppedHelperDoesNotEndTheNext(t *testing.T) {
	dir := folder(t.TempDir())
	if err := os.MkdirAll(dir.metaPath(nameIn), 0o700); err != nil {
		t.Fatal(err)
	}
	spec := &droverv1.TaskSpec{Kind: kindReduce, MapTasks: 1}
	for range 20 { // whether the end is posted or dropped is for the runtime to choose
		mail := &mailbox{inbox: make(chan func(), 10)}
		x := &attemptHelpers{
			fetch: helperState{work: task.WorkIdle}, upload: helperState{work: task.WorkIdle}, ctx: t.Context(), id: "1.0.0.1.1", dir: dir,
			cfg: &Config{AllowRoot: true}, runner: &helperRunner{}, mail: mail, clock: newClock(nil, nil), log: slog.New(slog.DiscardHandler),
		}
		start := func() {
			if err := x.startFetch(spec, nil, func(*failure) {}); err != nil {
				t.Fatal(err)
			}
		}
		start()
		if err := x.stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.wg.Wait()
		start()
		for len(mail.inbox) > 0 {
			(<-mail.inbox)()
		}
		if x.fetch.work != task.WorkBusy {
			t.Fatalf("the second helper is at work, and counts as %s", x.fetch.work)
		}
		if err := x.stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		x.wg.Wait()
	}
}

// Warnings of helpers reach the daemon's log once, and replace no progress.
func TestWarningsOfHelpersAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	d := &daemon{cfg: Config{Log: slog.New(slog.NewTextHandler(&log, nil))}}
	r := &helperRunner{warn: d.warnOnce()}
	var got []helper.Event
	for range 3 { // three tasks
		out := strings.NewReader(`{"bytes":5}` + "\n" + `{"warning":"no socket"}` + "\n" + `{"done":true}` + "\n")
		err := exchangeWithHelper(t.Context(), discardCloser{io.Discard}, out, &helper.Request{}, nil, r.splitWarnings(func(e helper.Event) { got = append(got, e) }))
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(got) != 3 || got[2].Bytes != 5 || strings.Count(log.String(), "no socket") != 1 {
		t.Errorf("events %+v, log %s", got, &log)
	}
}

type discardCloser struct{ io.Writer }

func (discardCloser) Close() error { return nil }

// What no attempt elsewhere could read is told from what this machine alone may lack.
func TestInputIsLostToAll(t *testing.T) {
	gone, shrank := fault.New(fault.NotFound, "gone"), fault.New(fault.Invalid, "shrank")
	for _, c := range []struct {
		err  error
		path string
		want bool
	}{
		{gone, "hdfs:///in", true},
		{gone, "file:///in", false},
		{shrank, "hdfs:///in", true},
		{shrank, "file:///in", true},
		{fault.New(fault.Unavailable, "no DataNode answers"), "hdfs:///in", false},
	} {
		if got := isLostToAll(c.err, []mapreduce.Piece{{Path: c.path}}); got != c.want {
			t.Errorf("%v of %s: %v", c.err, c.path, got)
		}
	}
}

// An input that fills the task's disk is told as what else fills it: the user is to raise disk.
func TestInputFillsTheDisk(t *testing.T) {
	dir := folder(t.TempDir())
	if err := os.WriteFile(dir.join("split"), make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]droverv1.Cause{32 << 10: droverv1.Cause_CAUSE_DISK, 1 << 20: droverv1.Cause_CAUSE_INPUT} {
		use := diskUse{dir: dir, cfg: &Config{Data: string(dir)}, method: quota.Counting}
		if got := use.failureOfInput(t.Context(), &droverv1.TaskSpec{Disk: limit}, &failure{cause: droverv1.Cause_CAUSE_INPUT}).cause; got != want {
			t.Errorf("a disk of %d bytes: %s, want %s", limit, got, want)
		}
	}
}

// A refusal by the file system is the job's, whatever its class: a tenant could have nodes quarantined by the others.
func TestUploadFailure(t *testing.T) {
	causes := map[error]droverv1.Cause{nil: droverv1.Cause_CAUSE_INFRA}
	for _, class := range fault.Classes() {
		causes[class] = droverv1.Cause_CAUSE_OUTPUT
	}
	causes[fault.Unavailable] = droverv1.Cause_CAUSE_INFRA
	for class, want := range causes {
		err := errors.New("the helper was killed")
		if class != nil {
			err = fault.New(class, "create /out: it is a directory")
		}
		if got := uploadFailure(err).cause; got != want {
			t.Errorf("%v: %s, want %s", class, got, want)
		}
	}
}

// A reduce task whose node does not reach the others is no fault of its input.
func TestCauseOfAFailedShuffle(t *testing.T) {
	causes := map[error]droverv1.Cause{
		fault.Exhausted: droverv1.Cause_CAUSE_INFRA, fault.Invalid: droverv1.Cause_CAUSE_INPUT, fault.Unavailable: droverv1.Cause_CAUSE_INPUT,
	}
	for class, want := range causes {
		if got := fetchFailure(&helper.Request{Shuffle: &helper.Shuffle{}}, fault.New(class, "no answer")).cause; got != want {
			t.Errorf("%v: %s, want %s", class, got, want)
		}
	}
	if got := fetchFailure(&helper.Request{Fetch: &helper.Fetch{}}, fault.New(fault.Exhausted, "over the quota")).cause; got != droverv1.Cause_CAUSE_INPUT {
		t.Errorf("a split: %s", got)
	}
}

// What this node lacks to start a helper is no fault of the input, nor of the job's files.
func TestHelperWithoutItsCgroup(t *testing.T) {
	dir := folder(t.TempDir())
	if err := os.MkdirAll(dir.metaPath(nameIn), 0o700); err != nil {
		t.Fatal(err)
	}
	mail := &mailbox{inbox: make(chan func(), 10)}
	runner := &helperRunner{enforcer: leaflessKernel{newFakeKernel()}, argv: []string{"helper"}, program: "/bin/true"}
	x := &attemptHelpers{
		fetch: helperState{work: task.WorkIdle}, ctx: t.Context(), id: "1.0.0.1.1", dir: dir,
		cfg: &Config{AllowRoot: true}, runner: runner, mail: mail, clock: newClock(nil, nil), log: slog.New(slog.DiscardHandler),
	}
	spec := &droverv1.TaskSpec{Kind: kindMap, Split: []*droverv1.SplitPiece{{Uri: "hdfs:///in", Length: 1}}}
	var end *failure
	tries := 0
	for ; end == nil && tries <= maxHelperTries; tries++ {
		if err := x.startFetch(spec, nil, func(f *failure) { end = f }); err != nil {
			t.Fatal(err)
		}
		(<-mail.inbox)()
		x.wg.Wait()
	}
	if tries != maxHelperTries || end.cause == droverv1.Cause_CAUSE_DATA {
		t.Errorf("after %d tries: %+v", tries, end)
	}
	if err := runner.copyCharged(t.Context(), "1.0.0.1.1", uint32(os.Geteuid()), nil, nil, ""); causeOf(task.GetFiles, err) != droverv1.Cause_CAUSE_INFRA {
		t.Errorf("a copy: %v", err)
	}
}

// leaflessKernel is a kernel that has no leaf for helpers.
type leaflessKernel struct{ *fakeKernel }

func (leaflessKernel) OpenHelperLeaf(id string) (*os.File, error) {
	return nil, fault.New(fault.NotFound, "cgroup of %s: no such file or directory", id)
}

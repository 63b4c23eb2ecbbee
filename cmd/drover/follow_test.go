package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// watchedJob is what is seen of a job: its state, and tasks of its stage that are done, run, are suspended and have failed.
func watchedJob(state droverv1.JobState, done, running, suspended, failed int32, waiting string) *droverv1.GetJobResponse {
	j := &droverv1.JobSummary{Job: 7, Name: "wc", State: state, SubmittedMs: viewMs(0)}
	if state >= droverv1.JobState_JOB_STATE_SUCCEEDED {
		j.EndedMs = viewMs(9)
	}
	return &droverv1.GetJobResponse{Job: j, Stages: []*droverv1.StageSummary{{Name: "map", Kind: "map", Tasks: 3, Done: done, Running: running, Suspended: suspended, FailedAttempts: failed, Waiting: waiting}}}
}

// Who follows a job sees each change once, and its end as an exit code.
func TestFollowingAJob(t *testing.T) {
	const (
		pending   = droverv1.JobState_JOB_STATE_PENDING
		runs      = droverv1.JobState_JOB_STATE_RUNNING
		succeeded = droverv1.JobState_JOB_STATE_SUCCEEDED
		failed    = droverv1.JobState_JOB_STATE_FAILED
		stopped   = droverv1.JobState_JOB_STATE_STOPPED
	)
	for name, c := range map[string]struct {
		seen  []*droverv1.GetJobResponse
		end   error
		code  int
		lines []string // on standard error
		err   string
		out   string
	}{
		"it succeeds": {[]*droverv1.GetJobResponse{watchedJob(pending, 0, 0, 0, 0, "no free\ncpu"), watchedJob(runs, 0, 2, 0, 0, "no free cpu"), watchedJob(runs, 0, 2, 0, 0, "another reason"),
			watchedJob(runs, 1, 1, 1, 1, ""), watchedJob(runs, 2, 1, 0, 3, ""), watchedJob(succeeded, 3, 0, 0, 3, "")}, nil, exitOK,
			[]string{`wc pending  map 0/3 (waiting: no free\u000acpu)`, "wc running  map 0/3 (2 running)", "wc running  map 1/3 (1 running, 1 suspended, 1 failed attempt)",
				"wc running  map 2/3 (1 running, 3 failed attempts)", "wc succeeded  map 3/3 (3 failed attempts)"}, "", "job 7 (wc) succeeded after 9s\n"},
		"it fails":                           {[]*droverv1.GetJobResponse{watchedJob(failed, 1, 0, 0, 1, "")}, nil, exitFailed, []string{"wc failed  map 1/3 (1 failed attempt)"}, "", "job 7 (wc) failed after 9s\n"},
		"it is stopped":                      {[]*droverv1.GetJobResponse{watchedJob(stopped, 1, 0, 0, 0, "")}, nil, exitStopped, []string{"wc stopped  map 1/3"}, "", "job 7 (wc) stopped after 9s\n"},
		"there is none":                      {nil, connect.NewError(connect.CodeNotFound, errors.New(`there is no job "wc"`)), exitRefused, nil, `there is no job "wc"`, ""},
		"it may not be read":                 {nil, connect.NewError(connect.CodePermissionDenied, errors.New("you may not read it")), exitRefused, nil, "you may not read it", ""},
		"the stream ends without an answer":  {nil, nil, exitFailed, nil, "the coordinator closed the stream without an answer; try `drover job status`", ""},
		"the coordinator fails in the midst": {[]*droverv1.GetJobResponse{watchedJob(runs, 0, 1, 0, 0, "")}, connect.NewError(connect.CodeInternal, errors.New("a fault")), exitFailed, []string{"wc running  map 0/3 (1 running)"}, "a fault", ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fakeCoordinator{watched: c.seen, watchErr: c.end}
			out, said, err := f.runBoth(t, t.Context(), "job", "wait", "wc")
			if exitCode(err) != c.code || !strings.Contains(errorText(err), c.err) || (c.err == "") != (errorText(err) == "") {
				t.Errorf("exit code %d, %v; want %d, %q", exitCode(err), err, c.code, c.err)
			}
			wantText(t, "changes", said, strings.Join(append(c.lines, ""), "\n"))
			if !strings.HasPrefix(out, c.out) || c.out == "" && out != "" {
				t.Errorf("summary:\n%s", out)
			}
		})
		if c.out == "" {
			continue
		}
		f := &fakeCoordinator{watched: c.seen}
		out, said, err := f.runBoth(t, t.Context(), "job", "wait", "-json", "wc")
		var last struct{ Job struct{ Name string } }
		if e := json.Unmarshal([]byte(out), &last); e != nil || last.Job.Name != "wc" || exitCode(err) != c.code || said != "" {
			t.Errorf("%s: as JSON exit code %d, %v, %q, %q, %v", name, exitCode(err), err, said, out, e)
		}
	}
}

// A change of the leader is nothing to who follows a job.
func TestFollowingAJobAtTheNextLeader(t *testing.T) {
	f := &fakeCoordinator{several: true, watched: []*droverv1.GetJobResponse{watchedJob(droverv1.JobState_JOB_STATE_RUNNING, 0, 1, 0, 0, "")}}
	f.watchHook = func(context.Context) error {
		if len(f.watches) > 1 {
			return nil
		}
		f.watched = append(f.watched, watchedJob(droverv1.JobState_JOB_STATE_SUCCEEDED, 3, 0, 0, 0, ""))
		panic(http.ErrAbortHandler) // its connection ends
	}
	_, said, err := f.runBoth(t, t.Context(), "job", "wait", "wc")
	if err != nil || !slices.Equal(f.watches, []string{"wc", "7"}) {
		t.Errorf("exit code %d, %v; it asked for %q", exitCode(err), err, f.watches)
	}
	wantText(t, "changes", said, "wc running  map 0/3 (1 running)\nwc succeeded  map 3/3\n")
}

// With a single coordinator a job that is followed has not failed because that one ended and stays away, by itself or in the
// midst of an answer: the exit code is another one, and the message says how to go on.
func TestFollowingAJobOfACoordinatorThatEnds(t *testing.T) {
	for name, end := range map[string]func(context.Context, *fakeCoordinator) error{
		"it is stopped": func(context.Context, *fakeCoordinator) error {
			return connect.NewError(connect.CodeUnavailable, errors.New("the coordinator is stopping"))
		},
		"it is killed": func(_ context.Context, f *fakeCoordinator) error { return f.killWhenShown(t, "(1 running)") },
	} {
		f := &fakeCoordinator{watched: []*droverv1.GetJobResponse{watchedJob(droverv1.JobState_JOB_STATE_RUNNING, 0, 1, 0, 0, "")}, said: &lockedBuffer{}}
		f.watchHook = func(ctx context.Context) error { return end(ctx, f) }
		f.commands = []*cli.Command{{Name: "wait-briefly", Action: func(c *cli.Context) error {
			cl, err := dial(c)
			if err != nil {
				return err
			}
			cl.patience = time.Millisecond
			return followJob(c, cl, c.Args().First(), nil, "")
		}}}
		_, err := f.run(t, t.Context(), "wait-briefly", "wc")
		if want := "; the job is not stopped by that: `drover job wait 7` follows it again"; exitCode(err) != exitUnavailable || !strings.HasSuffix(errorText(err), want) {
			t.Errorf("%s: exit code %d, %v; want %d and …%s", name, exitCode(err), err, exitUnavailable, want)
		}
	}
}

// A single coordinator that is away for a while is told of once, and what is followed goes on: each event is shown
// once.
func TestFollowingGoesOnWithTheSingleCoordinator(t *testing.T) {
	f := &fakeCoordinator{events: []*droverv1.Event{{Kind: "job.accepted", Position: "1"}, {Kind: "job.started", Position: "2"}}, printed: &lockedBuffer{}, said: &lockedBuffer{}}
	calls := 0
	f.eventsHook = func(context.Context) error {
		if calls++; calls > 1 {
			return nil
		}
		go f.restartWhenTold(t)
		return f.killWhenShown(t, "job.started")
	}
	out, said, err := f.runBoth(t, t.Context(), "events", "-follow", "-limit", "0")
	if err != nil || f.eventsAsked.GetAfter() != "2" || strings.Count(out, "job.accepted") != 1 || strings.Count(out, "job.started") != 1 {
		t.Errorf("exit code %d, %v; it asked for what is after %q and printed\n%s", exitCode(err), err, f.eventsAsked.GetAfter(), out)
	}
	if !regexp.MustCompile(`^no coordinator answers at unix://\S+: trying until \d\d:\d\d:\d\d\nthe coordinator answers again\n$`).MatchString(said) {
		t.Errorf("it said\n%s", said)
	}
}

// killWhenShown ends a coordinator in the midst of an answer, of which the command has shown a text: one whose answer has not
// begun was not found.
func (f *fakeCoordinator) killWhenShown(t *testing.T, text string) error {
	f.await(t, text)
	err := f.kill()
	<-t.Context().Done() // it ends the stream in no other way
	return err
}

// shown returns what the command has printed and told.
func (f *fakeCoordinator) shown() string {
	all := f.said.(*lockedBuffer).String()
	if p, ok := f.printed.(*lockedBuffer); ok {
		all += p.String()
	}
	return all
}

// await waits until the command has shown a text, and reports whether it has.
func (f *fakeCoordinator) await(t *testing.T, text string) bool {
	for end := time.Now().Add(stepLimit); time.Now().Before(end) && t.Context().Err() == nil; time.Sleep(20 * time.Millisecond) {
		if strings.Contains(f.shown(), text) {
			return true
		}
	}
	if t.Context().Err() == nil {
		t.Errorf("not within %s: it shows %q", stepLimit, text)
	}
	return false
}

// restartWhenTold has a coordinator serve again that was killed, once the command has told that it is away.
func (f *fakeCoordinator) restartWhenTold(t *testing.T) {
	if f.awaitTold(t) {
		if err := f.restart(); err != nil {
			t.Error(err)
		}
	}
}

// awaitTold waits until the command has told that the coordinator is away, and reports whether it did.
func (f *fakeCoordinator) awaitTold(t *testing.T) bool {
	return f.await(t, "trying until")
}

// Ctrl-C ends the wait for a coordinator that is away, as it ends following.
func TestCtrlCEndsTheWaitForACoordinator(t *testing.T) {
	for line, want := range map[string]struct {
		shown string // before the coordinator is away
		code  int
	}{"job wait wc": {"(1 running)", exitDetached}, "events -follow": {"job.accepted", exitOK}} {
		ctx, interrupt := context.WithTimeout(t.Context(), stepLimit)
		defer interrupt()
		f := &fakeCoordinator{watched: []*droverv1.GetJobResponse{watchedJob(droverv1.JobState_JOB_STATE_RUNNING, 0, 1, 0, 0, "")}, printed: &lockedBuffer{}, said: &lockedBuffer{}}
		f.events = []*droverv1.Event{{Kind: "job.accepted", Position: "1"}}
		f.watchHook = func(context.Context) error {
			go func() {
				if f.awaitTold(t) {
					interrupt()
				}
			}()
			return f.killWhenShown(t, want.shown)
		}
		f.eventsHook = f.watchHook
		if _, err := f.run(t, ctx, strings.Fields(line)...); exitCode(err) != want.code {
			t.Errorf("%s: exit code %d, %v; want %d", line, exitCode(err), err, want.code)
		}
	}
}

// A coordinator that is killed, stopped and started again is followed on by all commands that follow: no event and no output is
// lost, and none is shown twice.
func TestFollowersGoOnAfterARestart(t *testing.T) {
	t.Parallel()                           // it waits for most of its time
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, gate, steps := filepath.Join(dir, "s"), filepath.Join(dir, "gate"), 0
	start := func() (*exec.Cmd, *lockedBuffer) {
		return startDaemon(t, "coordinator", "-data", filepath.Join(dir, "coordinator"), "-socket", socket)
	}
	coord, log := start()
	startProcessNode(t, filepath.Join(dir, "dev"), socket)
	job := filepath.Join(dir, "job.hcl")
	script := "for i in 0 1 2 3; do until [ -e " + gate + "$i ]; do sleep 0.05; done; echo step $i; done"
	if err := os.WriteFile(job, []byte("job \"steps\" {\n  stage \"main\" { command = [\"sh\", \"-c\", \""+script+"\"] }\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	step := func() {
		t.Helper()
		if err := os.WriteFile(fmt.Sprint(gate, steps), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		steps++
	}
	at := []string{"-address", "unix://" + socket}
	type follower struct {
		out, said *lockedBuffer
		process   *os.Process
		ended     chan error
	}
	var all []*follower
	follow := func(args ...string) *follower {
		f := &follower{out: &lockedBuffer{}, said: &lockedBuffer{}, ended: make(chan error, 1)}
		cmd := launchTo(t, f.out, f.said, "drover", slices.Concat(at, args)...)
		f.process = cmd.Process
		go func() { f.ended <- cmd.Wait() }()
		all = append(all, f)
		return f
	}
	shows := func(what string, of func(*follower) *lockedBuffer, text string, n int, who ...*follower) {
		t.Helper()
		for _, f := range who {
			waitFor(t, what, func() bool { return strings.Count(of(f).String(), text) == n }, func() string { return f.out.String() + f.said.String() + log.String() })
		}
	}
	printed, told := func(f *follower) *lockedBuffer { return f.out }, func(f *follower) *lockedBuffer { return f.said }
	events := follow("events", "-follow", "-limit", "0")
	run := follow("job", "run", job)
	shows("the job runs", told, "1 running", 1, run)
	wait := follow("job", "wait", "steps")
	jobLogs, taskLogs, drain := follow("job", "logs", "-follow", "steps"), follow("task", "logs", "-follow", "steps", "main/0"), follow("node", "drain", "-wait", hostName(t))
	step()
	shows("a line of output", printed, "step 0", 1, jobLogs, taskLogs)
	shows("the job runs", told, "1 running", 1, wait)
	shows("a task is left", told, "1 task left", 1, drain)

	for round, end := range []func() error{coord.Process.Kill, func() error { return coord.Process.Signal(syscall.SIGTERM) }} {
		if err := end(); err != nil {
			t.Fatal(err)
		}
		_ = coord.Wait() // it was killed, or ends by itself
		shows("it is told that the coordinator is away", told, "trying until", round+1, all...)
		step() // while nobody can be asked
		coord, log = start()
		shows("it is told that the coordinator is back", told, "the coordinator answers again", round+1, all...)
		shows("a line of output", printed, fmt.Sprint("step ", steps-1), 1, jobLogs, taskLogs)
	}
	step()
	for _, f := range []*follower{run, wait, jobLogs, taskLogs, drain} {
		select {
		case err := <-f.ended:
			if err != nil {
				t.Errorf("%v\n%s%s", err, f.out, f.said)
			}
		case <-time.After(stepLimit):
			t.Fatalf("it does not end:\n%s%s\n%s", f.out, f.said, log)
		}
	}
	for _, f := range []*follower{jobLogs, taskLogs} {
		if got := strings.ReplaceAll(f.out.String(), "main/0.1 | ", ""); got != "step 0\nstep 1\nstep 2\nstep 3\n" {
			t.Errorf("output\n%s", got)
		}
	}
	shows("the end of the job", printed, "job.succeeded", 1, events)
	want, err := processOutput(t, slices.Concat(at, []string{"events", "-limit", "0"})...)
	if err != nil || events.out.String() != want {
		t.Errorf("%v; followed events\n%s\nof all\n%s", err, events.out, want)
	}
	if err := events.process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := <-events.ended; err != nil {
		t.Error(err)
	}
}

// hostName returns the name of the node of startProcessNode.
func hostName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// Ctrl-C while a job is followed leaves the job running, and says how to go on.
func TestCtrlCLeavesTheJob(t *testing.T) {
	ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
	defer interrupt()
	f := &fakeCoordinator{watched: []*droverv1.GetJobResponse{watchedJob(droverv1.JobState_JOB_STATE_RUNNING, 0, 1, 0, 0, "")}}
	f.watchHook = func(ctx context.Context) error {
		interrupt()
		<-ctx.Done()
		return ctx.Err()
	}
	_, said, err := f.runBoth(t, ctx, "job", "wait", "wc")
	const want = "detached; the job is still running: `drover job wait wc` follows it again, `drover job stop wc` stops it\n"
	if exitCode(err) != exitDetached || !strings.HasSuffix(said, want) {
		t.Errorf("exit code %d, %v, %q", exitCode(err), err, said)
	}
}

// Ctrl-C ends `task logs -follow`, which is no error; without -follow it breaks off the output.
func TestCtrlCEndsFollowingALog(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{"task", "logs", "-follow", "j", "s/0"}, exitOK},
		{[]string{"task", "logs", "j", "s/0"}, exitFailed},
	} {
		ctx, interrupt := context.WithTimeout(t.Context(), time.Minute)
		defer interrupt()
		f := &fakeCoordinator{tasks: 1}
		f.logsHook = func(ctx context.Context) error {
			interrupt()
			<-ctx.Done()
			return ctx.Err()
		}
		if _, err := f.run(t, ctx, c.args...); exitCode(err) != c.code {
			t.Errorf("%v: exit code %d, %v; want %d", c.args, exitCode(err), err, c.code)
		}
	}
}

// The job that is stopped is the one that was looked up, whatever job bears its name by then.
func TestStoppingNamesTheJobByItsNumber(t *testing.T) {
	f := &fakeCoordinator{present: watchedJob(droverv1.JobState_JOB_STATE_RUNNING, 0, 1, 0, 0, "")}
	out, err := f.run(t, t.Context(), "job", "stop", "-reason", "a mistake", "wc")
	if err != nil || out != "job wc is being stopped\n" || len(f.stops) != 1 || f.stops[0].Job != "7" || f.stops[0].Reason != "a mistake" {
		t.Errorf("%v, %q, requests %v", err, out, f.stops)
	}
}

// Ctrl-C ends the command that runs in a task, as a shell's does, and says so; the coordinator has answered long before.
func TestInterruptedExec(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	f := &fakeCoordinator{tasks: 1, execHook: interrupt}
	_, err := f.run(t, ctx, "task", "exec", "7", "s/0", "sleep", "600")
	if exitCode(err) != 130 || errorText(err) != "interrupted; the command in task s/0 of job 7 is ended" {
		t.Errorf("exit code %d, %v", exitCode(err), err)
	}
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

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

// With a single coordinator a job that is followed has not failed because that one ended, by itself or in the midst of
// an answer: the exit code is another one, and the message says how to go on.
func TestFollowingAJobOfACoordinatorThatEnds(t *testing.T) {
	for name, end := range map[string]func(context.Context, *fakeCoordinator) error{
		"it is stopped": func(context.Context, *fakeCoordinator) error {
			return connect.NewError(connect.CodeUnavailable, errors.New("the coordinator is stopping"))
		},
		"it is killed": func(_ context.Context, f *fakeCoordinator) error {
			err := f.kill()
			<-t.Context().Done() // it ends the stream in no other way
			return err
		},
	} {
		f := &fakeCoordinator{watched: []*droverv1.GetJobResponse{watchedJob(droverv1.JobState_JOB_STATE_RUNNING, 0, 1, 0, 0, "")}}
		f.watchHook = func(ctx context.Context) error { return end(ctx, f) }
		_, err := f.run(t, t.Context(), "job", "wait", "wc")
		if want := "; the job is not stopped by that: `drover job wait 7` follows it again"; exitCode(err) != exitUnavailable || !strings.HasSuffix(errorText(err), want) {
			t.Errorf("%s: exit code %d, %v; want %d and …%s", name, exitCode(err), err, exitUnavailable, want)
		}
	}
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

package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/jobspec"
)

func taskCommand() *cli.Command {
	return &cli.Command{
		Name:        "task",
		Usage:       "inspect, suspend, resume and migrate tasks",
		Subcommands: []*cli.Command{taskStatusCommand(), taskLogsCommand(), taskExecCommand(), taskSuspendCommand(), taskResumeCommand(), taskMigrateCommand()},
	}
}

// taskArg is STAGE/INDEX or STAGE/INDEX.ATTEMPT. A run number after the attempt, as events
// show it, is ignored: an attempt has one run at a time.
type taskArg struct {
	stage   string
	index   int32
	attempt int32 // 0: the latest
}

func parseTask(s string) (taskArg, error) {
	stage, rest, ok := strings.Cut(s, "/")
	num, att, dotted := strings.Cut(rest, ".")
	att, _, _ = strings.Cut(att, ".")
	i, err := strconv.ParseInt(num, 10, 32)
	t := taskArg{stage: stage, index: int32(i)}
	if !ok || stage == "" || err != nil || i < 0 {
		return t, usageErrorf("task %q: want STAGE/INDEX such as map/3, or map/3.2 for its second attempt", s)
	}
	if dotted {
		n, err := strconv.ParseInt(att, 10, 32)
		if err != nil || n < 1 {
			return t, usageErrorf("task %q: attempts count from 1", s)
		}
		t.attempt = int32(n)
	}
	return t, nil
}

// listTasks returns all tasks of a job, or of one stage. A response has at most 20,000 of them.
func listTasks(c *cli.Context, cl *client, job, stage string) (tasks []*droverv1.TaskStatus, err error) {
	for {
		res, err := cl.ListTasks(c.Context, connect.NewRequest(&droverv1.ListTasksRequest{Job: job, Stage: stage, From: int32(len(tasks))}))
		if err != nil {
			return nil, cl.classifyError(err)
		}
		tasks = append(tasks, res.Msg.Tasks...)
		if len(res.Msg.Tasks) == 0 || len(tasks) >= int(res.Msg.Total) {
			return tasks, nil
		}
	}
}

// findAttempt returns an attempt by name.
func findAttempt(c *cli.Context, cl *client, job string, t taskArg) (*droverv1.TaskAttempt, error) {
	res, err := cl.ListTasks(c.Context, connect.NewRequest(&droverv1.ListTasksRequest{Job: job, Stage: t.stage, From: t.index, Limit: 1}))
	if err != nil {
		return nil, cl.classifyError(err)
	}
	for _, s := range res.Msg.Tasks {
		if s.Task != t.index {
			continue
		}
		for i := len(s.Attempts) - 1; i >= 0; i-- {
			if a := s.Attempts[i]; t.attempt == 0 || a.Key.Attempt == t.attempt {
				return a, nil
			}
		}
		if len(s.Attempts) == 0 {
			return nil, fault.New(fault.NotFound, "task %s/%d of job %s has not started: `drover job why %s` says what it waits for", t.stage, t.index, job, job)
		}
		return nil, fault.New(fault.NotFound, "task %s/%d of job %s has no such attempt (it has %d)", t.stage, t.index, job, len(s.Attempts))
	}
	return nil, fault.New(fault.NotFound, "job %s has no task %s/%d; `drover task status %s` lists them", job, t.stage, t.index, job)
}

func taskStatusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "tasks of a job, or one task with its limits and usage",
		ArgsUsage: "JOB [STAGE/INDEX]",
		Flags:     []cli.Flag{&cli.StringFlag{Name: "stage", Usage: "only this stage"}, jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 2, "JOB [STAGE/INDEX]")
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			if len(a) == 2 {
				t, err := parseTask(a[1])
				if err != nil {
					return err
				}
				at, err := findAttempt(c, cl, a[0], t)
				if err != nil {
					return err
				}
				if c.Bool("json") {
					return printProto(c.App.Writer, at)
				}
				printAttempt(c.App.Writer, a[1], at)
				return nil
			}
			tasks, err := listTasks(c, cl, a[0], c.String("stage"))
			if err != nil {
				return err
			}
			if c.Bool("json") {
				return printProto(c.App.Writer, &droverv1.ListTasksResponse{Tasks: tasks})
			}
			printTasks(c.App.Writer, tasks)
			return nil
		},
	}
}

func printTasks(w io.Writer, tasks []*droverv1.TaskStatus) {
	var rows [][]string
	for _, t := range tasks {
		row := []string{fmt.Sprintf("%s/%d", t.Stage, t.Task), t.State, "", "", "", "", "", ""}
		if a := latestAttempt(t); a != nil {
			s := a.Seen
			row[2], row[3] = fmt.Sprint(a.Key.Attempt), a.Node
			if a.Locality != "none" {
				row[4] = a.Locality
			}
			row[5] = fmt.Sprintf("%.0f%%", 100*s.GetProgress())
			row[6] = runningTimeText(s)
			row[7] = failureText(a)
			if row[7] == "" && s.GetPhase() == droverv1.Phase_PHASE_RUNNING {
				row[7] = s.GetStatus() // what the program reported last
			}
			row[7] = shortened(row[7], messageWidth)
			if l := a.Level; l.GetLevel() > droverv1.Level_LEVEL_RUNNING || l.GetTarget() != 0 {
				row[1], row[7] = levelState(l), levelDetail(l)
			} else if until := backoffEndMS(a); until > 0 {
				row[1], row[7] = "back-off", "until "+unixMSText(until)+failureBefore(t)
			}
		}
		rows = append(rows, row)
	}
	printList(w, []string{"task", "state", "attempt", "node", "locality", "progress", "time", "message"}, rows, true, "locality", "progress", "time")
}

// backoffEndMS returns when a repeated attempt that pauses on its node will start, 0 for any other
// attempt.
func backoffEndMS(a *droverv1.TaskAttempt) int64 {
	s := a.Seen
	if s.GetPhase() != droverv1.Phase_PHASE_PREPARING || s.GetStartPauseMs() == 0 || s.GetStep() != "wait" {
		return 0
	}
	return a.PlacedMs + s.GetStartPauseMs()
}

// failureBefore says why a task has to be tried again: how its newest failed attempt ended.
func failureBefore(t *droverv1.TaskStatus) string {
	for _, a := range slices.Backward(t.Attempts) {
		if isFailure(a) {
			return fmt.Sprintf(", after attempt %d: %s", a.Key.Attempt, shortened(failureText(a), messageWidth))
		}
	}
	return ""
}

// isFailure reports whether an attempt has failed, and was not stopped.
func isFailure(a *droverv1.TaskAttempt) bool {
	return a.Seen.GetPhase() == droverv1.Phase_PHASE_FAILED && a.Seen.GetCause() != droverv1.Cause_CAUSE_STOPPED
}

// failureText returns the cause of an attempt's end and its node's message about it.
func failureText(a *droverv1.TaskAttempt) string {
	parts := slices.DeleteFunc([]string{causeText(a.Seen.GetCause()), a.Seen.GetMessage()}, func(part string) bool { return part == "" })
	return strings.Join(parts, ": ")
}

// levelState returns the state of a task that is suspended, or in transition to or from a
// level.
func levelState(l *droverv1.LevelStatus) string {
	if l.Target != 0 {
		return "to " + levelText(l.Target)
	}
	return levelText(l.Level)
}

// schedulerActor is the name under which the coordinator records what its scheduler decides.
const schedulerActor = "coordinator"

// levelDetail formats since when, for which job, by which user and why a task is suspended.
func levelDetail(l *droverv1.LevelStatus) string {
	text := "since " + unixMSText(l.SinceMs)
	if l.SinceMs == 0 {
		text = "in progress"
	}
	if l.MigratingFrom != "" {
		text += ", from " + l.MigratingFrom
	}
	if l.PreemptorJob != "" {
		text += ", for job " + l.PreemptorJob
	}
	if l.Actor != "" && l.Actor != schedulerActor {
		text += ", by " + l.Actor
	}
	if l.Reason != "" {
		text += ": " + shortened(l.Reason, messageWidth)
	}
	return text
}

func runningTimeText(s *droverv1.SeenAttempt) string {
	if s.GetRunningMs() == 0 {
		return ""
	}
	return durationText(time.Duration(s.RunningMs) * time.Millisecond)
}

func printAttempt(w io.Writer, name string, a *droverv1.TaskAttempt) {
	s, u, l := a.Seen, a.Seen.GetUsage(), a.Seen.GetLimits()
	if s == nil {
		s, u, l = &droverv1.SeenAttempt{}, &droverv1.Usage{}, &droverv1.Limits{}
	}
	level, locality := levelText(s.Level), a.Locality
	if s.EndedMs > 0 {
		level = "" // it no longer occupies anything
	}
	if locality == "none" {
		locality = "" // it has no input
	}
	printPairs(w,
		"task", name, "attempt", fmt.Sprintf("%d (run %d)", a.Key.Attempt, a.Key.Run), "node", a.Node, "locality", locality,
		"phase", phaseText(s.Phase), "level", level, "step", s.Step, "cause", causeText(s.Cause), "message", s.Message,
		"placed", unixMSText(a.PlacedMs), "back-off until", unixMSText(backoffEndMS(a)), "started", unixMSText(s.StartedMs), "ended", unixMSText(s.EndedMs), "running time", runningTimeText(s),
		"progress", fmt.Sprintf("%.0f%%", 100*s.Progress), "status", s.Status,
	)
	printLevelHistory(w, a)
	if u != nil {
		printPairs(w, "cpu time", durationText(time.Duration(u.CpuMs)*time.Millisecond), "throttled", durationText(time.Duration(u.CpuThrottledMs)*time.Millisecond),
			"memory peak", jobspec.FormatSize(u.MemoryPeak), "disk read", jobspec.FormatSize(u.ReadBytes), "disk written", jobspec.FormatSize(u.WriteBytes))
	}
	if l != nil && l.CpuMax != "" {
		printPairs(w, "cpu.max", l.CpuMax, "memory.max", l.MemoryMax, "memory.swap.max", l.MemorySwapMax, "io.max", joinOrDefault(l.IoMax, ""), "pids.max", l.PidsMax)
	}
	printCounters(w, s.Counters)
	if s.StderrTail != "" {
		fmt.Fprintln(w, "\nend of standard error")
		for _, line := range splitLines(s.StderrTail) {
			fmt.Fprintln(w, "  | "+plain.Text(line))
		}
	}
}

// dialTask parses the arguments of a command on one task and returns a client.
func dialTask(c *cli.Context, what string) (a []string, t taskArg, cl *client, err error) {
	if a, err = positionalArgs(c, 2, 2, what); err != nil {
		return nil, t, nil, err
	}
	if t, err = parseTask(a[1]); err != nil {
		return nil, t, nil, err
	}
	cl, err = dial(c)
	return a, t, cl, err
}

func taskLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "the output of a task",
		ArgsUsage: "JOB STAGE/INDEX[.ATTEMPT]",
		Flags:     logFlags,
		Action: func(c *cli.Context) error {
			if err := checkTail(c); err != nil {
				return err
			}
			a, t, cl, err := dialTask(c, "JOB STAGE/INDEX[.ATTEMPT]")
			if err != nil {
				return err
			}
			at, err := findAttempt(c, cl, a[0], t)
			if err != nil {
				return err
			}
			n, err := streamLogs(c, cl, at.Key, "")
			if err == nil && n == 0 && c.Context.Err() == nil {
				fmt.Fprintln(c.App.ErrWriter, nothingWritten(c, cl, a[0], "the task", "task logs", a[0]+" "+a[1]))
			}
			return err
		},
	}
}

// nothingWritten says that a stream of who in a job is empty, and which command shows the other
// one. Standard output of mappers and reducers is never a log.
func nothingWritten(c *cli.Context, cl *client, job, who, command, args string) string {
	if c.Bool("stderr") {
		return fmt.Sprintf("%s wrote nothing to standard error; for standard output: drover %s %s", who, command, args)
	}
	stderr := fmt.Sprintf("for standard error: drover %s -stderr %s", command, args)
	if r, err := getJob(c, cl, job); err == nil && slices.ContainsFunc(r.Stages, func(s *droverv1.StageSummary) bool { return s.Kind != string(jobspec.KindGroup) }) {
		where := "in " + plain.Line(r.Output)
		if r.Output == "" {
			where = "which has none"
		}
		return fmt.Sprintf("%s wrote nothing to the log; what mappers and reducers have written to standard output is the output of the job, %s; %s", who, where, stderr)
	}
	return fmt.Sprintf("%s wrote nothing to standard output; %s", who, stderr)
}

func taskExecCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Usage:     "run a command inside a running task",
		ArgsUsage: "JOB STAGE/INDEX COMMAND [ARGUMENT ...]",
		Description: "With -i standard input is passed to the command. The exit code is that of the command, or 130\n" +
			"after Ctrl-C, which ends it.",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "pass standard input on"}, rawFlag},
		Action: func(c *cli.Context) error {
			a := c.Args().Slice()
			if len(a) > 2 && a[2] == "--" { // as kubectl wants it
				a = slices.Delete(a, 2, 3)
			}
			if len(a) < 3 {
				return usageErrorf("want `drover task exec [flags] JOB STAGE/INDEX COMMAND [ARGUMENT ...]`")
			}
			t, err := parseTask(a[1])
			if err != nil {
				return err
			}
			cl, err := dial(c)
			if err != nil {
				return err
			}
			at, err := findAttempt(c, cl, a[0], t)
			if err != nil {
				return err
			}
			if at.Seen.GetEndedMs() > 0 {
				return fault.New(fault.Conflict, "task %s of job %s has ended: a command needs a running one", a[1], a[0])
			}
			return execInTask(c, cl, at.Key, fmt.Sprintf("%s of job %s", a[1], a[0]), a[2:])
		},
	}
}

// exitInterrupted is the exit code of a command in a task that Ctrl-C ended, as shells have it.
const exitInterrupted = 128 + int(syscall.SIGINT)

// execInTask runs the command and copies its streams. task names the task in messages. A goroutine
// reads the input and ends with the process, because the read of a terminal cannot be interrupted.
func execInTask(c *cli.Context, cl *client, key *droverv1.AttemptKey, task string, argv []string) error {
	st := cl.Exec(c.Context)
	brokenOff := func(err error) error {
		if c.Context.Err() != nil { // the node ends the command
			return exitError{exitInterrupted, fmt.Errorf("interrupted; the command in task %s is ended", task)}
		}
		return cl.classifyError(err)
	}
	if err := st.Send(&droverv1.ExecRequest{Key: key, Command: argv}); err != nil && !errors.Is(err, io.EOF) {
		return brokenOff(err)
	}
	if c.Bool("interactive") {
		go sendInput(c.App.Reader, st)
	} else if err := st.Send(&droverv1.ExecRequest{StdinEnd: true}); err != nil && !errors.Is(err, io.EOF) {
		return brokenOff(err)
	}
	stdout, stderr := taskWriter(c.App.Writer, c.Bool("raw")), taskWriter(c.App.ErrWriter, c.Bool("raw"))
	for {
		m, err := st.Receive()
		if errors.Is(err, io.EOF) {
			return errors.New("the connection ended before the command did")
		}
		if err != nil {
			return brokenOff(err)
		}
		if _, err := stdout.Write(m.Stdout); err != nil {
			return err
		}
		if _, err := stderr.Write(m.Stderr); err != nil {
			return err
		}
		if m.Ended {
			if m.ExitCode != 0 {
				return exitError{int(m.ExitCode), nil}
			}
			return nil
		}
	}
}

func sendInput(in io.Reader, st *connect.BidiStreamForClient[droverv1.ExecRequest, droverv1.ExecResponse]) {
	buf := make([]byte, 32<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 && st.Send(&droverv1.ExecRequest{Stdin: buf[:n]}) != nil {
			return
		}
		if err != nil {
			_ = st.Send(&droverv1.ExecRequest{StdinEnd: true}) // fails only if the command has ended
			return
		}
	}
}

package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func taskCommand() *cli.Command {
	return &cli.Command{
		Name:        "task",
		Usage:       "look at single tasks, suspend and resume them",
		Subcommands: []*cli.Command{taskStatusCommand(), taskLogsCommand(), taskExecCommand(), taskSuspendCommand(), taskResumeCommand(), taskMoveCommand()},
	}
}

// taskArg is STAGE/INDEX, or STAGE/INDEX.ATTEMPT. A run behind the attempt, as
// events show it, is read over: a task has one run at a time.
type taskArg struct {
	stage   string
	index   int32
	attempt int32 // 0: the last
}

func parseTask(s string) (taskArg, error) {
	stage, rest, ok := strings.Cut(s, "/")
	num, att, dotted := strings.Cut(rest, ".")
	att, _, _ = strings.Cut(att, ".")
	i, err := strconv.ParseInt(num, 10, 32)
	t := taskArg{stage: stage, index: int32(i)}
	if !ok || stage == "" || err != nil || i < 0 {
		return t, usage("task %q: want STAGE/INDEX such as map/3, or map/3.2 for its second attempt", s)
	}
	if dotted {
		n, err := strconv.ParseInt(att, 10, 32)
		if err != nil || n < 1 {
			return t, usage("task %q: attempts count from 1", s)
		}
		t.attempt = int32(n)
	}
	return t, nil
}

func listTasks(c *cli.Context, cl *client, job, stage string) ([]*droverv1.TaskStatus, error) {
	res, err := cl.ListTasks(c.Context, connect.NewRequest(&droverv1.ListTasksRequest{Job: job, Stage: stage}))
	if err != nil {
		return nil, cl.explain(err)
	}
	return res.Msg.Tasks, nil
}

// findAttempt looks an attempt up by its name.
func findAttempt(c *cli.Context, cl *client, job string, t taskArg) (*droverv1.TaskAttempt, error) {
	tasks, err := listTasks(c, cl, job, t.stage)
	if err != nil {
		return nil, err
	}
	for _, s := range tasks {
		if s.Task != t.index {
			continue
		}
		for i := len(s.Attempts) - 1; i >= 0; i-- {
			if a := s.Attempts[i]; t.attempt == 0 || a.Key.Attempt == t.attempt {
				return a, nil
			}
		}
		return nil, fault.New(fault.NotFound, "task %s/%d of job %s has no such attempt (it has %d)", t.stage, t.index, job, len(s.Attempts))
	}
	return nil, fault.New(fault.NotFound, "job %s has no task %s/%d; `drover task status %s` lists them", job, t.stage, t.index, job)
}

func taskStatusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "tasks of a job, or one task with its attempts, limits and use",
		ArgsUsage: "JOB [STAGE/INDEX]",
		Flags:     []cli.Flag{&cli.StringFlag{Name: "stage", Usage: "only this stage"}, jsonFlag},
		Action: func(c *cli.Context) error {
			a, err := args(c, 1, 2, "JOB [STAGE/INDEX]")
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
		if a := lastAttempt(t); a != nil {
			s := a.Seen
			row[2], row[3] = fmt.Sprint(a.Key.Attempt), a.Node
			if a.Locality != "none" {
				row[4] = a.Locality
			}
			row[5] = fmt.Sprintf("%.0f%%", 100*s.GetProgress())
			row[6] = runTime(s)
			row[7] = strings.TrimSpace(causeText(s.GetCause()) + " " + s.GetMessage())
			if l := a.Level; l.GetLevel() > droverv1.Level_LEVEL_RUNNING || l.GetTarget() != 0 {
				row[1], row[7] = levelState(l), levelWhy(l)
			}
		}
		rows = append(rows, row)
	}
	columns(w, []string{"task", "state", "attempt", "node", "locality", "progress", "time", "message"}, rows)
}

// levelState is the state of a task that is suspended, or on its way there or
// back.
func levelState(l *droverv1.LevelStatus) string {
	if l.Target != 0 {
		return "to " + levelText(l.Target)
	}
	return levelText(l.Level)
}

// levelWhy says since when, for whom and why.
func levelWhy(l *droverv1.LevelStatus) string {
	text := "since " + msText(l.SinceMs)
	if l.SinceMs == 0 {
		text = "under way"
	}
	if l.MovingFrom != "" {
		text += ", from " + l.MovingFrom
	}
	if l.ForJob != "" {
		text += ", for job " + l.ForJob
	}
	if l.Why != "" {
		text += ": " + l.Why
	}
	return text
}

func runTime(s *droverv1.SeenAttempt) string {
	if s.GetRunningMs() == 0 {
		return ""
	}
	return spanText(time.Duration(s.RunningMs) * time.Millisecond)
}

func printAttempt(w io.Writer, name string, a *droverv1.TaskAttempt) {
	s, u, l := a.Seen, a.Seen.GetUsage(), a.Seen.GetLimits()
	if s == nil {
		s, u, l = &droverv1.SeenAttempt{}, &droverv1.Usage{}, &droverv1.Limits{}
	}
	level, locality := levelText(s.Level), a.Locality
	if s.EndedMs > 0 {
		level = "" // it holds nothing any more
	}
	if locality == "none" {
		locality = "" // it reads nothing
	}
	pairs(w,
		"task", name, "attempt", fmt.Sprintf("%d (run %d)", a.Key.Attempt, a.Key.Run), "node", a.Node, "locality", locality,
		"phase", phaseText(s.Phase), "level", level, "step", s.Step, "cause", causeText(s.Cause), "message", s.Message,
		"placed", msText(a.PlacedMs), "started", msText(s.StartedMs), "ended", msText(s.EndedMs), "running time", runTime(s),
		"progress", fmt.Sprintf("%.0f%%", 100*s.Progress), "status", s.Status,
	)
	printLevel(w, a)
	if u != nil {
		pairs(w, "cpu time", spanText(time.Duration(u.CpuMs)*time.Millisecond), "throttled", spanText(time.Duration(u.CpuThrottledMs)*time.Millisecond),
			"memory peak", jobspec.FormatSize(u.MemoryPeak), "disk read", jobspec.FormatSize(u.ReadBytes), "disk written", jobspec.FormatSize(u.WriteBytes))
	}
	if l != nil && l.CpuMax != "" {
		pairs(w, "cpu.max", l.CpuMax, "memory.max", l.MemoryMax, "memory.swap.max", l.MemorySwapMax, "io.max", joinOr(l.IoMax, ""), "pids.max", l.PidsMax)
	}
	printCounters(w, s.Counters)
	if s.StderrTail != "" {
		fmt.Fprintln(w, "\nend of standard error")
		for _, line := range splitLines(s.StderrTail) {
			fmt.Fprintln(w, "  | "+line)
		}
	}
}

// dialTask reads the two arguments of a command on one task and makes its client.
func dialTask(c *cli.Context, what string) (a []string, t taskArg, cl *client, err error) {
	if a, err = args(c, 2, 2, what); err != nil {
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
		Usage:     "what a task wrote",
		ArgsUsage: "JOB STAGE/INDEX[.ATTEMPT]",
		Flags:     logFlags,
		Action: func(c *cli.Context) error {
			a, t, cl, err := dialTask(c, "JOB STAGE/INDEX[.ATTEMPT]")
			if err != nil {
				return err
			}
			at, err := findAttempt(c, cl, a[0], t)
			if err != nil {
				return err
			}
			_, err = copyLogs(c, cl, at.Key)
			return err
		},
	}
}

func taskExecCommand() *cli.Command {
	return &cli.Command{
		Name:        "exec",
		Usage:       "run a command inside a running task",
		ArgsUsage:   "JOB STAGE/INDEX COMMAND [ARGUMENT ...]",
		Description: "Standard input goes to the command with -i; the exit code is the command's.",
		Flags:       []cli.Flag{&cli.BoolFlag{Name: "interactive", Aliases: []string{"i"}, Usage: "pass standard input on"}},
		Action: func(c *cli.Context) error {
			a := c.Args().Slice()
			if len(a) < 3 {
				return usage("want `drover task exec [flags] JOB STAGE/INDEX COMMAND [ARGUMENT ...]`")
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
			return execIn(c, cl, at.Key, a[2:])
		},
	}
}

// execIn runs the command and copies the streams; input is read by a goroutine
// that ends with the process, since a terminal's read cannot be interrupted.
func execIn(c *cli.Context, cl *client, key *droverv1.AttemptKey, argv []string) error {
	st := cl.Exec(c.Context)
	if err := st.Send(&droverv1.ExecRequest{Key: key, Command: argv}); err != nil && !errors.Is(err, io.EOF) {
		return cl.explain(err)
	}
	if c.Bool("interactive") {
		go sendInput(c.App.Reader, st)
	} else if err := st.Send(&droverv1.ExecRequest{StdinEnd: true}); err != nil && !errors.Is(err, io.EOF) {
		return cl.explain(err)
	}
	for {
		m, err := st.Receive()
		if errors.Is(err, io.EOF) {
			return errors.New("the connection ended before the command did")
		}
		if err != nil {
			return cl.explain(err)
		}
		if _, err := c.App.Writer.Write(m.Stdout); err != nil {
			return err
		}
		if _, err := c.App.ErrWriter.Write(m.Stderr); err != nil {
			return err
		}
		if m.Ended {
			if m.ExitCode != 0 {
				return coded{int(m.ExitCode), nil}
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
			_ = st.Send(&droverv1.ExecRequest{StdinEnd: true}) // the command has ended already if this fails
			return
		}
	}
}

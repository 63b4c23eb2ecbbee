package main

import (
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// levelPollInterval is the polling interval of a command that waits for a level.
const levelPollInterval = 20 * time.Millisecond

var levelFlags = []cli.Flag{
	&cli.StringFlag{Name: "reason", Usage: "reason, shown to other users"},
	&cli.BoolFlag{Name: "no-wait", Usage: "do not wait for the level"},
	&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "maximum wait"},
	jsonFlag,
}

func taskSuspendCommand() *cli.Command {
	return &cli.Command{
		Name:      "suspend",
		Usage:     "suspend a running task to a level; its work is preserved",
		ArgsUsage: "JOB STAGE/INDEX[.ATTEMPT]",
		Description: "frozen frees CPU and disk bandwidth, swapped also the memory, checkpointed everything except an image on disk.\n" +
			"The scheduler does not resume the task before `drover task resume` or `drover task migrate`.",
		Flags: append([]cli.Flag{&cli.StringFlag{Name: "level", Value: "frozen", Usage: "frozen, swapped or checkpointed"}}, levelFlags...),
		Action: func(c *cli.Context) error {
			levels := map[string]droverv1.Level{"frozen": droverv1.Level_LEVEL_FROZEN, "swapped": droverv1.Level_LEVEL_SWAPPED, "checkpointed": droverv1.Level_LEVEL_CHECKPOINTED}
			l, ok := levels[c.String("level")]
			if !ok {
				return usageErrorf("-level %q: use frozen, swapped or checkpointed", c.String("level"))
			}
			return requestLevel(c, &droverv1.SetLevelRequest{Level: l})
		},
	}
}

func taskResumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "resume a suspended task on its node",
		ArgsUsage: "JOB STAGE/INDEX[.ATTEMPT]",
		Flags:     levelFlags,
		Action: func(c *cli.Context) error {
			return requestLevel(c, &droverv1.SetLevelRequest{Level: droverv1.Level_LEVEL_RUNNING})
		},
	}
}

func taskMigrateCommand() *cli.Command {
	return &cli.Command{
		Name:        "migrate",
		Usage:       "migrate a checkpointed task to another node",
		ArgsUsage:   "JOB STAGE/INDEX[.ATTEMPT]",
		Description: "Image, files and logs are copied to the other node, which needs the same kernel, criu and runc, and at least\nthe same CPU flags.",
		Flags:       append([]cli.Flag{&cli.StringFlag{Name: "node", Usage: "target node"}}, levelFlags...),
		Action: func(c *cli.Context) error {
			if err := requireFlags(c, "node"); err != nil {
				return err
			}
			return requestLevel(c, &droverv1.SetLevelRequest{Level: droverv1.Level_LEVEL_RUNNING, Node: c.String("node")})
		},
	}
}

// requestLevel requests a level and waits until the task has reached it or its node reports
// that it cannot.
func requestLevel(c *cli.Context, q *droverv1.SetLevelRequest) error {
	if d := c.Duration("timeout"); d < 0 {
		return usageErrorf("-timeout %s: want how long to wait, such as 5m, or -no-wait", d)
	}
	a, t, cl, err := dialTask(c, "JOB STAGE/INDEX[.ATTEMPT]")
	if err != nil {
		return err
	}
	q.Job, q.Stage, q.Task, q.Attempt, q.Reason = a[0], t.stage, t.index, t.attempt, c.String("reason")
	begun := time.Now()
	res, err := cl.SetLevel(c.Context, connect.NewRequest(q))
	if err != nil {
		return cl.classifyError(err)
	}
	job := fmt.Sprint(res.Msg.Key.Job) // the name may be another job's soon
	t.attempt = res.Msg.Key.Attempt
	if c.Bool("no-wait") && c.Bool("json") {
		at, err := findAttempt(c, cl, job, t)
		if err != nil {
			return err
		}
		return printProto(c.App.Writer, at)
	}
	if c.Bool("no-wait") {
		target := levelText(q.Level)
		if q.Node != "" {
			target += " on " + q.Node
		}
		fmt.Fprintf(c.App.Writer, "%s is to be %s; `drover task status %s %s` shows where it is\n", a[1], target, a[0], a[1])
		return nil
	}
	for time.Since(begun) < c.Duration("timeout") {
		at, err := findAttempt(c, cl, job, t)
		if c.Context.Err() != nil {
			return requestStands(a)
		}
		if err != nil {
			return err
		}
		now := at.Level.GetLevel()
		switch {
		case at.Seen.GetPhase() == droverv1.Phase_PHASE_SUCCEEDED && q.Level == droverv1.Level_LEVEL_RUNNING && q.Node == "":
			if c.Bool("json") {
				return printProto(c.App.Writer, at)
			}
			fmt.Fprintf(c.App.Writer, "%s was resumed on %s and has succeeded\n", a[1], at.Node)
			return nil
		case at.Seen.GetEndedMs() > 0:
			return fault.New(fault.Conflict, "%s ended meanwhile: %s %s", a[1], phaseText(at.Seen.GetPhase()), at.Seen.GetMessage())
		case at.Level.GetTarget() != 0:
		case now == q.Level && (q.Node == "" || at.Node == q.Node):
			if c.Bool("json") {
				return printProto(c.App.Writer, at)
			}
			fmt.Fprintf(c.App.Writer, "%s is %s on %s after %s%s\n", a[1], levelText(now), at.Node, time.Since(begun).Round(time.Millisecond), occupiedText(at.Seen))
			return nil
		default:
			return fault.New(fault.Conflict, "%s stays %s on %s: %s", a[1], levelText(now), at.Node, at.Seen.GetLevelNote())
		}
		timer := time.NewTimer(levelPollInterval)
		select {
		case <-timer.C:
		case <-c.Context.Done():
			timer.Stop()
			return requestStands(a)
		}
	}
	return fault.New(fault.Unavailable, "%s is not %s after %s; `drover task status %s %s` shows where it is", a[1], levelText(q.Level), c.Duration("timeout"), a[0], a[1])
}

// requestStands is what Ctrl-C of a command that waits for a level returns.
func requestStands(jobTask []string) error {
	return exitError{exitDetached, fmt.Errorf("interrupted; the request stands: `drover task status %s %s` shows where it is", jobTask[0], jobTask[1])}
}

// occupiedText formats what a suspended task still occupies.
func occupiedText(s *droverv1.SeenAttempt) string {
	if l := s.GetLevel(); l <= droverv1.Level_LEVEL_RUNNING {
		return ""
	}
	text := "; it occupies memory " + jobspec.FormatSize(s.GetOccupied().GetMemory())
	if s.GetSwapOccupied() > 0 {
		text += ", swap " + jobspec.FormatSize(s.GetSwapOccupied())
	}
	if s.GetImageOccupied() > 0 {
		text += ", image " + jobspec.FormatSize(s.GetImageOccupied())
	}
	return text
}

// printLevelHistory prints how an attempt reached its level, with the duration of each
// step.
func printLevelHistory(w io.Writer, a *droverv1.TaskAttempt) {
	l, s := a.Level, a.Seen
	if l == nil || s.GetEndedMs() > 0 {
		return
	}
	ms := func(n int64) string {
		if n == 0 {
			return ""
		}
		return durationText(time.Duration(n) * time.Millisecond)
	}
	target, count := levelText(l.Target), ""
	if l.Suspends > 0 {
		count = fmt.Sprint(l.Suspends)
	}
	occupied := ""
	if h := occupiedText(s); h != "" {
		occupied = h[len("; it occupies "):]
	}
	pairs := []string{"level since", unixMSText(l.SinceMs), "target level", target, "migrates from", l.MigratingFrom, "reason", l.Reason, "requested by", l.Actor, "for job", l.PreemptorJob,
		"still occupies", occupied, "suspensions", count, "suspended before", ms(l.SuspendedMs), "cpu time preserved", ms(l.PreservedCpuMs), "note", s.GetLevelNote()}
	for _, x := range s.GetLevelSteps() {
		text := (time.Duration(x.DurationUs) * time.Microsecond).Round(10 * time.Microsecond).String()
		if x.Bytes > 0 {
			text += ", " + jobspec.FormatSize(x.Bytes)
		}
		if x.Error != "" {
			text += ", failed: " + x.Error
		}
		pairs = append(pairs, x.Step, text)
	}
	printPairs(w, pairs...)
}

// preemptedText formats the preemption totals, "" if there was none.
func preemptedText(p *droverv1.PreemptionTotals) string {
	if p.GetSuspends() == 0 && p.GetKills() == 0 {
		return ""
	}
	cpu := func(ms int64) string { return durationText(time.Duration(ms) * time.Millisecond) }
	text := fmt.Sprintf("%s, %d resumed", countText(int(p.Suspends), "suspension"), p.Resumes)
	if p.Migrations > 0 {
		text += fmt.Sprintf(" (%d on another node)", p.Migrations)
	}
	if p.Kills > 0 {
		text += fmt.Sprintf(", %d restarted", p.Kills)
	}
	return text + fmt.Sprintf("; CPU time preempted %s, preserved %s, lost %s", cpu(p.CpuMs), cpu(p.PreservedCpuMs), cpu(p.LostCpuMs))
}

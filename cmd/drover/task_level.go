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

// levelPoll is how often a command that waits for a level looks.
const levelPoll = 20 * time.Millisecond

var levelFlags = []cli.Flag{
	&cli.StringFlag{Name: "reason", Usage: "why, for others to read"},
	&cli.BoolFlag{Name: "no-wait", Usage: "do not wait until the task is there"},
	&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "how long to wait"},
}

func taskSuspendCommand() *cli.Command {
	return &cli.Command{
		Name:      "suspend",
		Usage:     "bring a running task down to a level; it keeps its work",
		ArgsUsage: "JOB STAGE/INDEX[.ATTEMPT]",
		Description: "frozen frees processor and disk bandwidth, swapped its memory too, checkpointed all but an image on the disk.\n" +
			"The scheduler leaves the task there until `drover task resume` or `drover task move`.",
		Flags: append([]cli.Flag{&cli.StringFlag{Name: "level", Value: "frozen", Usage: "frozen, swapped or checkpointed"}}, levelFlags...),
		Action: func(c *cli.Context) error {
			levels := map[string]droverv1.Level{"frozen": droverv1.Level_LEVEL_FROZEN, "swapped": droverv1.Level_LEVEL_SWAPPED, "checkpointed": droverv1.Level_LEVEL_CHECKPOINTED}
			l, ok := levels[c.String("level")]
			if !ok {
				return usage("-level %q: use frozen, swapped or checkpointed", c.String("level"))
			}
			return setLevel(c, "JOB STAGE/INDEX[.ATTEMPT]", &droverv1.SetLevelRequest{Level: l})
		},
	}
}

func taskResumeCommand() *cli.Command {
	return &cli.Command{
		Name:      "resume",
		Usage:     "have a suspended task go on where it is",
		ArgsUsage: "JOB STAGE/INDEX[.ATTEMPT]",
		Flags:     levelFlags,
		Action: func(c *cli.Context) error {
			return setLevel(c, "JOB STAGE/INDEX[.ATTEMPT]", &droverv1.SetLevelRequest{Level: droverv1.Level_LEVEL_RUNNING})
		},
	}
}

func taskMoveCommand() *cli.Command {
	return &cli.Command{
		Name:        "move",
		Usage:       "have a checkpointed task go on on another node",
		ArgsUsage:   "JOB STAGE/INDEX[.ATTEMPT]",
		Description: "Image, files and logs travel from node to node; the other node needs the same kernel, criu and runc, and at least\nthe same CPU flags.",
		Flags:       append([]cli.Flag{&cli.StringFlag{Name: "node", Usage: "where to"}}, levelFlags...),
		Action: func(c *cli.Context) error {
			if err := need(c, "node"); err != nil {
				return err
			}
			return setLevel(c, "JOB STAGE/INDEX[.ATTEMPT]", &droverv1.SetLevelRequest{Level: droverv1.Level_LEVEL_RUNNING, Node: c.String("node")})
		},
	}
}

// setLevel asks for a level and waits until the task is there or its node says
// that it cannot be.
func setLevel(c *cli.Context, what string, q *droverv1.SetLevelRequest) error {
	a, t, cl, err := dialTask(c, what)
	if err != nil {
		return err
	}
	q.Job, q.Stage, q.Task, q.Attempt, q.Reason = a[0], t.stage, t.index, t.attempt, c.String("reason")
	begun := time.Now()
	res, err := cl.SetLevel(c.Context, connect.NewRequest(q))
	if err != nil {
		return cl.explain(err)
	}
	t.attempt = res.Msg.Key.Attempt
	if c.Bool("no-wait") {
		return nil
	}
	for time.Since(begun) < c.Duration("timeout") {
		at, err := findAttempt(c, cl, a[0], t)
		if err != nil {
			return err
		}
		now := at.Level.GetLevel()
		switch {
		case at.Seen.GetEndedMs() > 0:
			return fault.New(fault.Conflict, "%s ended meanwhile: %s %s", a[1], phaseText(at.Seen.GetPhase()), at.Seen.GetMessage())
		case at.Level.GetTarget() != 0:
		case now == q.Level && (q.Node == "" || at.Node == q.Node):
			fmt.Fprintf(c.App.Writer, "%s is %s on %s after %s%s\n", a[1], levelText(now), at.Node, time.Since(begun).Round(time.Millisecond), holdsText(at.Seen))
			return nil
		default:
			return fault.New(fault.Conflict, "%s stays %s on %s: %s", a[1], levelText(now), at.Node, at.Seen.GetLevelNote())
		}
		timer := time.NewTimer(levelPoll)
		select {
		case <-timer.C:
		case <-c.Context.Done():
			timer.Stop()
			return c.Context.Err()
		}
	}
	return fault.New(fault.Unavailable, "%s is not %s after %s; `drover task status %s %s` shows where it is", a[1], levelText(q.Level), c.Duration("timeout"), a[0], a[1])
}

// holdsText says what a suspended task still holds.
func holdsText(s *droverv1.SeenAttempt) string {
	if l := s.GetLevel(); l <= droverv1.Level_LEVEL_RUNNING {
		return ""
	}
	text := "; it holds memory " + jobspec.FormatSize(s.GetHeld().GetMemory())
	if s.GetSwapHeld() > 0 {
		text += ", swap " + jobspec.FormatSize(s.GetSwapHeld())
	}
	if s.GetImageHeld() > 0 {
		text += ", image " + jobspec.FormatSize(s.GetImageHeld())
	}
	return text
}

// printLevel shows how an attempt came to its level, and what each step took.
func printLevel(w io.Writer, a *droverv1.TaskAttempt) {
	l, s := a.Level, a.Seen
	if l == nil || s.GetEndedMs() > 0 {
		return
	}
	ms := func(n int64) string {
		if n == 0 {
			return ""
		}
		return spanText(time.Duration(n) * time.Millisecond)
	}
	target, count := levelText(l.Target), ""
	if l.Suspends > 0 {
		count = fmt.Sprint(l.Suspends)
	}
	held := ""
	if h := holdsText(s); h != "" {
		held = h[len("; it holds "):]
	}
	pairs(w, "level since", msText(l.SinceMs), "on its way to", target, "moves from", l.MovingFrom, "because", l.Why, "asked by", l.Actor, "for job", l.ForJob,
		"still holds", held, "suspensions", count, "suspended before", ms(l.SuspendedMs), "cpu time kept", ms(l.KeptCpuMs), "note", s.GetLevelNote())
	for _, x := range s.GetLevelSteps() {
		text := (time.Duration(x.Us) * time.Microsecond).Round(10 * time.Microsecond).String()
		if x.Bytes > 0 {
			text += ", " + jobspec.FormatSize(x.Bytes)
		}
		if x.Error != "" {
			text += ", failed: " + x.Error
		}
		pairs(w, x.Step, text)
	}
}

// preemptedText sums up what was taken back, "" for nothing.
func preemptedText(p *droverv1.Preempted) string {
	if p.GetSuspends() == 0 && p.GetKills() == 0 {
		return ""
	}
	cpu := func(ms int64) string { return spanText(time.Duration(ms) * time.Millisecond) }
	text := fmt.Sprintf("%d suspensions, %d resumed", p.Suspends, p.Resumes)
	if p.Moves > 0 {
		text += fmt.Sprintf(" (%d on another node)", p.Moves)
	}
	if p.Kills > 0 {
		text += fmt.Sprintf(", %d started again", p.Kills)
	}
	return text + fmt.Sprintf("; CPU time preempted %s, kept %s, lost %s", cpu(p.CpuMs), cpu(p.KeptCpuMs), cpu(p.LostCpuMs))
}

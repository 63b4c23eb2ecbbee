package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

func benchSuspendCommand() *cli.Command {
	return &cli.Command{
		Name:      "suspend",
		Usage:     "how fast a running task gives way and comes back, level by level",
		ArgsUsage: "JOB STAGE/INDEX",
		Description: "It suspends and resumes a task that runs, such as that of examples/suspend/hold.hcl. A decision's time is the\n" +
			"coordinator's, from its decision until it has the node's word that the task is at the level; that word comes after the\n" +
			"processor is free, so the figure is an upper bound. The node's part is what the step itself took there.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "rounds", Value: 50, Usage: "of freezing"},
			&cli.IntFlag{Name: "deep-rounds", Value: 3, Usage: "of each deeper level"},
			&cli.StringFlag{Name: "levels", Value: "frozen,swapped,checkpointed", Usage: "what to measure"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "of one step"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a level, each on a line"},
		},
		Action: func(c *cli.Context) error {
			a, t, cl, err := dialTask(c, "JOB STAGE/INDEX")
			if err != nil {
				return err
			}
			b := &suspendBench{c: c, cl: cl, job: a[0], task: t}
			for _, name := range strings.Split(c.String("levels"), ",") {
				if err := b.level(name); err != nil {
					return err
				}
			}
			return b.print(c.App.Writer)
		},
	}
}

type suspendBench struct {
	c    *cli.Context
	cl   *client
	job  string
	task taskArg
	rows []*suspendRow
}

// suspendRow is what was measured of one level. Times are microseconds.
type suspendRow struct {
	Level     string             `json:"level"`
	Rounds    int                `json:"rounds"`
	Down      []int64            `json:"decision_us"` // coordinator: decision until confirmed
	Up        []int64            `json:"resume_us"`   // likewise
	Steps     map[string][]int64 `json:"steps_us"`    // on the node
	Memory    int64              `json:"memory_bytes"`
	Swap      int64              `json:"swap_bytes"`
	Image     int64              `json:"image_bytes"`
	Unreached string             `json:"unreached,omitempty"` // why not
}

func (b *suspendBench) level(name string) error {
	l, ok := map[string]droverv1.Level{"frozen": droverv1.Level_LEVEL_FROZEN, "swapped": droverv1.Level_LEVEL_SWAPPED, "checkpointed": droverv1.Level_LEVEL_CHECKPOINTED}[name]
	if !ok {
		return usage("-levels %q: use frozen, swapped and checkpointed", name)
	}
	rounds := b.c.Int("deep-rounds")
	if l == droverv1.Level_LEVEL_FROZEN {
		rounds = b.c.Int("rounds")
	}
	row := &suspendRow{Level: name, Steps: map[string][]int64{}}
	b.rows = append(b.rows, row)
	for range rounds {
		took, seen, err := b.bring(l)
		if err != nil {
			row.Unreached = err.Error()
			return nil
		}
		row.Rounds++
		row.Down = append(row.Down, took)
		row.Memory, row.Swap, row.Image = seen.GetHeld().GetMemory(), seen.GetSwapHeld(), seen.GetImageHeld()
		row.add(seen)
		if took, seen, err = b.bring(droverv1.Level_LEVEL_RUNNING); err != nil {
			return err
		}
		row.Up = append(row.Up, took)
		row.add(seen)
	}
	return nil
}

func (r *suspendRow) add(seen *droverv1.SeenAttempt) {
	for _, s := range seen.GetLevelSteps() {
		r.Steps[s.Step] = append(r.Steps[s.Step], s.Us)
	}
}

// bring asks for a level and waits; it gives the coordinator's time for it.
func (b *suspendBench) bring(l droverv1.Level) (int64, *droverv1.SeenAttempt, error) {
	q := &droverv1.SetLevelRequest{Job: b.job, Stage: b.task.stage, Task: b.task.index, Attempt: b.task.attempt, Level: l, Reason: "drover bench suspend"}
	if _, err := b.cl.SetLevel(b.c.Context, connect.NewRequest(q)); err != nil {
		return 0, nil, b.cl.explain(err)
	}
	begun := time.Now()
	for time.Since(begun) < b.c.Duration("timeout") {
		at, err := findAttempt(b.c, b.cl, b.job, b.task)
		if err != nil {
			return 0, nil, err
		}
		if x := at.Level; x.GetTarget() == 0 {
			if x.GetLevel() != l {
				return 0, nil, fault.New(fault.Conflict, "it stays %s: %s", levelText(x.GetLevel()), at.Seen.GetLevelNote())
			}
			return (x.SinceMs - x.AskedMs) * 1000, at.Seen, nil
		}
		timer := time.NewTimer(levelPoll)
		select {
		case <-timer.C:
		case <-b.c.Context.Done():
			timer.Stop()
			return 0, nil, b.c.Context.Err()
		}
	}
	return 0, nil, fault.New(fault.Unavailable, "the task is not %s after %s", levelText(l), b.c.Duration("timeout"))
}

// quantile of unsorted microseconds, as text.
func quantile(us []int64, q float64) string {
	if len(us) == 0 {
		return ""
	}
	s := slices.Sorted(slices.Values(us))
	return (time.Duration(s[min(len(s)-1, int(q*float64(len(s))))]) * time.Microsecond).Round(10 * time.Microsecond).String()
}

func (b *suspendBench) print(w io.Writer) error {
	if b.c.Bool("json") {
		enc := json.NewEncoder(w)
		for _, r := range b.rows {
			if err := enc.Encode(r); err != nil {
				return err
			}
		}
		return nil
	}
	var rows, steps [][]string
	for _, r := range b.rows {
		rows = append(rows, []string{r.Level, fmt.Sprint(r.Rounds), quantile(r.Down, 0.5), quantile(r.Down, 0.9), quantile(r.Down, 1), quantile(r.Up, 0.5), quantile(r.Up, 1),
			jobspec.FormatSize(r.Memory), jobspec.FormatSize(r.Swap), jobspec.FormatSize(r.Image), r.Unreached})
		for _, k := range sortedKeys(r.Steps) {
			steps = append(steps, []string{r.Level, k, fmt.Sprint(len(r.Steps[k])), quantile(r.Steps[k], 0.5), quantile(r.Steps[k], 0.9), quantile(r.Steps[k], 1)})
		}
	}
	columns(w, []string{"level", "rounds", "down: median", "p90", "max", "up: median", "max", "memory left", "swap", "image", "not reached"}, rows)
	fmt.Fprintln(w, "\non the node")
	columns(w, []string{"level", "step", "times", "median", "p90", "max"}, steps)
	return nil
}

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
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
			"processor is free, so the figure is an upper bound; \"freed\" leaves out what the node did after the kernel had\n" +
			"frozen the task (it measures, and records the level on its disk). The steps are what each took on the node.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "rounds", Value: 50, Usage: "of freezing"},
			&cli.IntFlag{Name: "deep-rounds", Value: 3, Usage: "of each deeper level"},
			&cli.StringFlag{Name: "levels", Value: "frozen,swapped,checkpointed", Usage: "what to measure"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "of one step"},
			&cli.StringFlag{Name: "criu", Usage: "file with the output of drover bench criu -json on the task's machine, to be held against"},
			&cli.StringFlag{Name: "save", Usage: "file that the results go to as well, as -json prints them"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object a level, each on a line"},
		},
		Action: func(c *cli.Context) error {
			a, t, cl, err := dialTask(c, "JOB STAGE/INDEX")
			if err != nil {
				return err
			}
			b := &suspendBench{c: c, cl: cl, job: a[0], task: t}
			if err := b.bare(c.String("criu")); err != nil {
				return err
			}
			if err := b.where(); err != nil {
				return err
			}
			for _, name := range strings.Split(c.String("levels"), ",") {
				if err := b.level(name); err != nil {
					return err
				}
			}
			return errors.Join(b.save(c.String("save")), b.print(c.App.Writer))
		},
	}
}

type suspendBench struct {
	c    *cli.Context
	cl   *client
	job  string
	task taskArg
	rows []*suspendRow
	criu *bareRow // nil without

	node     string
	emulated bool
}

// suspendRow is what was measured of one level. Times are microseconds.
type suspendRow struct {
	Node      string             `json:"node"`
	Emulated  bool               `json:"emulated"` // the machine: compare with others of its kind alone
	Level     string             `json:"level"`
	Rounds    int                `json:"rounds"`
	Down      []int64            `json:"decision_us"`         // coordinator: decision until confirmed
	Up        []int64            `json:"resume_us"`           // likewise
	Freed     []int64            `json:"freed_us,omitempty"`  // of frozen: decision_us without what the node did once the kernel was done
	Steps     map[string][]int64 `json:"steps_us"`            // on the node; a/b is a part of step a
	DumpX     float64            `json:"dump_x,omitempty"`    // median of the checkpoint step over that of criu alone, by MB
	RestoreX  float64            `json:"restore_x,omitempty"` // likewise
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
	row := &suspendRow{Node: b.node, Emulated: b.emulated, Level: name, Steps: map[string][]int64{}}
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
		if l == droverv1.Level_LEVEL_FROZEN {
			row.Freed = append(row.Freed, took-afterFreeze(seen))
		}
		if took, seen, err = b.bring(droverv1.Level_LEVEL_RUNNING); err != nil {
			return err
		}
		row.Up = append(row.Up, took)
		row.add(seen)
	}
	row.against(b.criu)
	return nil
}

// bare reads what criu alone takes.
func (b *suspendBench) bare(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b.criu = &bareRow{}
	if err := json.Unmarshal(text, b.criu); err != nil || len(b.criu.Dump) == 0 || len(b.criu.Restore) == 0 {
		return usage("-criu %s: it is not what drover bench criu -json prints (%v)", file, err)
	}
	return nil
}

// where finds out on what machine the task is.
func (b *suspendBench) where() error {
	at, err := findAttempt(b.c, b.cl, b.job, b.task)
	if err != nil {
		return err
	}
	b.node = at.GetNode()
	list, err := b.cl.ListNodes(b.c.Context, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return b.cl.explain(err)
	}
	for _, n := range list.Msg.GetNodes() {
		if n.GetInfo().GetName() == b.node {
			b.emulated = n.GetInfo().GetEmulated()
		}
	}
	return nil
}

// afterFreeze is what a node did in its step after the kernel had frozen the task.
func afterFreeze(seen *droverv1.SeenAttempt) int64 {
	whole, kernel := int64(0), int64(0)
	for _, s := range seen.GetLevelSteps() {
		switch s.GetStep() {
		case "freeze":
			whole = s.GetUs()
		case "freeze/kernel":
			kernel = s.GetUs()
		}
	}
	return max(0, whole-kernel)
}

// against compares with criu alone: time for each byte of image, since what is
// dumped differs a little.
func (r *suspendRow) against(c *bareRow) {
	if c == nil || r.Image == 0 || c.Image == 0 {
		return
	}
	per := func(us []int64, image int64) float64 { return float64(medianOf(us)) / float64(image) }
	r.DumpX = per(r.Steps["checkpoint"], r.Image) / per(c.Dump, c.Image)
	r.RestoreX = per(r.Steps["restore"], r.Image) / per(c.Restore, c.Image)
}

func (r *suspendRow) add(seen *droverv1.SeenAttempt) {
	for _, s := range seen.GetLevelSteps() {
		r.Steps[s.Step] = append(r.Steps[s.Step], s.Us)
	}
}

// benchPoll is how often the bench looks. The times are the coordinator's and the
// node's, so it need not look soon; and it must not, or on a small machine it takes
// the processor from what it measures.
const benchPoll = 250 * time.Millisecond

// bring asks for a level and waits; it gives the coordinator's time for it.
func (b *suspendBench) bring(l droverv1.Level) (int64, *droverv1.SeenAttempt, error) {
	q := &droverv1.SetLevelRequest{Job: b.job, Stage: b.task.stage, Task: b.task.index, Attempt: b.task.attempt, Level: l, Reason: "drover bench suspend"}
	if _, err := b.cl.SetLevel(b.c.Context, connect.NewRequest(q)); err != nil {
		return 0, nil, b.cl.explain(err)
	}
	begun := time.Now()
	for time.Since(begun) < b.c.Duration("timeout") {
		timer := time.NewTimer(benchPoll)
		select {
		case <-timer.C:
		case <-b.c.Context.Done():
			timer.Stop()
			return 0, nil, b.c.Context.Err()
		}
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
	}
	return 0, nil, fault.New(fault.Unavailable, "the task is not %s after %s", levelText(l), b.c.Duration("timeout"))
}

// quantile of unsorted microseconds, as text.
func quantile(us []int64, q float64) string {
	if len(us) == 0 {
		return ""
	}
	return (time.Duration(quantileOf(us, q)) * time.Microsecond).Round(10 * time.Microsecond).String()
}

// quantileOf is the smallest value that the share q of all does not exceed; 0
// of none.
func quantileOf(us []int64, q float64) int64 {
	if len(us) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(us))
	return s[max(0, min(len(s), int(math.Ceil(q*float64(len(s)))))-1)]
}

func medianOf(us []int64) int64 { return quantileOf(us, 0.5) }

// save keeps the results in the file that was asked for.
func (b *suspendBench) save(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(b.encode(f), f.Close())
}

func (b *suspendBench) encode(w io.Writer) error {
	enc := json.NewEncoder(w)
	for _, r := range b.rows {
		if err := enc.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

func (b *suspendBench) print(w io.Writer) error {
	if b.c.Bool("json") {
		return b.encode(w)
	}
	var rows, steps [][]string
	for _, r := range b.rows {
		rows = append(rows, []string{r.Level, fmt.Sprint(r.Rounds), quantile(r.Down, 0.5), quantile(r.Down, 0.9), quantile(r.Down, 1), quantile(r.Up, 0.5), quantile(r.Up, 1),
			jobspec.FormatSize(r.Memory), jobspec.FormatSize(r.Swap), jobspec.FormatSize(r.Image), r.Unreached})
		for _, k := range sortedKeys(r.Steps) {
			steps = append(steps, []string{r.Level, k, fmt.Sprint(len(r.Steps[k])), quantile(r.Steps[k], 0.5), quantile(r.Steps[k], 0.9), quantile(r.Steps[k], 1)})
		}
	}
	if b.emulated {
		fmt.Fprintf(w, "%s is an emulated machine: hold these times against others of its kind alone\n", b.node)
	}
	for _, r := range b.rows {
		if len(r.Freed) > 0 {
			fmt.Fprintf(w, "%s: from the decision to the processor freed: median %s, p10 %s, p90 %s; the kernel's part: median %s, p90 %s\n", r.Level,
				quantile(r.Freed, 0.5), quantile(r.Freed, 0.1), quantile(r.Freed, 0.9), quantile(r.Steps["freeze/kernel"], 0.5), quantile(r.Steps["freeze/kernel"], 0.9))
		}
		if r.DumpX > 0 {
			fmt.Fprintf(w, "%s: dump %s MB/s, %.2f times as long as criu alone; restore %s MB/s, %.2f times\n", r.Level,
				rate(r.Image, r.Steps["checkpoint"]), r.DumpX, rate(r.Image, r.Steps["restore"]), r.RestoreX)
		}
	}
	columns(w, []string{"level", "rounds", "down: median", "p90", "max", "up: median", "max", "memory left", "swap", "image", "not reached"}, rows)
	fmt.Fprintln(w, "\non the node")
	columns(w, []string{"level", "step", "times", "median", "p90", "max"}, steps)
	return nil
}

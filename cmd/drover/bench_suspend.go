package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/median"
	"github.com/drover-run/drover/jobspec"
)

func benchSuspendCommand() *cli.Command {
	return &cli.Command{
		Name:      "suspend",
		Usage:     "how fast a running task is suspended and resumed, level by level",
		ArgsUsage: "JOB STAGE/INDEX",
		Description: "Suspends and resumes a running task, such as that of examples/suspend/memory.hcl. The suspend time is measured by\n" +
			"the coordinator, from its decision until the node has reported the level. The report comes after the processor is\n" +
			"free, so the figure is an upper bound; \"freed\" excludes what the node did after the kernel had frozen the task\n" +
			"(measuring, and storing the level). The steps are durations on the node.",
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "rounds", Value: 50, Usage: "rounds of freezing"},
			&cli.IntFlag{Name: "deep-rounds", Value: 3, Usage: "rounds of each deeper level"},
			&cli.StringFlag{Name: "levels", Value: "frozen,swapped,checkpointed", Usage: "levels to measure"},
			&cli.DurationFlag{Name: "timeout", Value: 5 * time.Minute, Usage: "limit for one step"},
			&cli.StringFlag{Name: "criu", Usage: "file with the output of drover bench criu -json on the task's machine, to compare with"},
			&cli.StringFlag{Name: "save", Usage: "file for the results, in the format of -json"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per level, one per line"},
		},
		Action: func(c *cli.Context) error {
			a, t, cl, err := dialTask(c, "JOB STAGE/INDEX")
			if err != nil {
				return err
			}
			b := &suspendBench{c: c, cl: cl, job: a[0], task: t}
			if err := b.readBaseline(c.String("criu")); err != nil {
				return err
			}
			if err := b.findNode(); err != nil {
				return err
			}
			for _, name := range strings.Split(c.String("levels"), ",") {
				if err := b.measureLevel(name); err != nil {
					return err
				}
			}
			return errors.Join(append([]error{b.save(c.String("save")), b.print(c.App.Writer)}, b.failures...)...)
		},
	}
}

type suspendBench struct {
	c        *cli.Context
	cl       *client
	job      string
	task     taskArg
	results  []*levelResult
	failures []error       // of levels that were not reached; the others are measured
	baseline *criuBaseline // nil: none

	node     string
	emulated bool
}

// levelResult holds the measurements of one level. Times are in microseconds.
type levelResult struct {
	Node         string             `json:"node"`
	Emulated     bool               `json:"emulated"` // of the machine: compare only with other emulated machines
	Level        string             `json:"level"`
	Rounds       int                `json:"rounds"`
	SuspendUS    []int64            `json:"suspend_us"`              // coordinator: decision until confirmed
	ResumeUS     []int64            `json:"resume_us"`               // coordinator: decision until confirmed
	FreedUS      []int64            `json:"freed_us,omitempty"`      // frozen only: suspend_us without the node's work after the kernel was done
	StepsUS      map[string][]int64 `json:"steps_us"`                // on the node; a/b is a part of step a
	DumpRatio    float64            `json:"dump_ratio,omitempty"`    // median of the checkpoint step over that of criu alone, per byte of image
	RestoreRatio float64            `json:"restore_ratio,omitempty"` // the same for the restore step
	MemoryBytes  int64              `json:"memory_bytes"`
	SwapBytes    int64              `json:"swap_bytes"`
	ImageBytes   int64              `json:"image_bytes"`
	Failure      string             `json:"failure,omitempty"` // why the level was not reached
}

func (b *suspendBench) measureLevel(name string) error {
	l, ok := map[string]droverv1.Level{"frozen": droverv1.Level_LEVEL_FROZEN, "swapped": droverv1.Level_LEVEL_SWAPPED, "checkpointed": droverv1.Level_LEVEL_CHECKPOINTED}[name]
	if !ok {
		return usageErrorf("-levels %q: use frozen, swapped and checkpointed", name)
	}
	rounds := b.c.Int("deep-rounds")
	if l == droverv1.Level_LEVEL_FROZEN {
		rounds = b.c.Int("rounds")
	}
	row := &levelResult{Node: b.node, Emulated: b.emulated, Level: name, StepsUS: map[string][]int64{}}
	b.results = append(b.results, row)
	for range rounds {
		took, seen, err := b.reachLevel(l)
		if err != nil {
			row.Failure = err.Error()
			b.failures = append(b.failures, fmt.Errorf("%s: %w", name, err))
			return nil
		}
		row.Rounds++
		row.SuspendUS = append(row.SuspendUS, took)
		row.MemoryBytes, row.SwapBytes, row.ImageBytes = seen.GetOccupied().GetMemory(), seen.GetSwapOccupied(), seen.GetImageOccupied()
		row.addSteps(seen)
		if l == droverv1.Level_LEVEL_FROZEN {
			row.FreedUS = append(row.FreedUS, took-timeAfterKernelFreeze(seen))
		}
		if took, seen, err = b.reachLevel(droverv1.Level_LEVEL_RUNNING); err != nil {
			return err
		}
		row.ResumeUS = append(row.ResumeUS, took)
		row.addSteps(seen)
	}
	row.compareToBaseline(b.baseline)
	return nil
}

// readBaseline reads the times of criu alone.
func (b *suspendBench) readBaseline(file string) error {
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b.baseline = &criuBaseline{}
	if err := json.Unmarshal(text, b.baseline); err != nil || len(b.baseline.DumpUS) == 0 || len(b.baseline.RestoreUS) == 0 {
		return usageErrorf("-criu %s: not the output of drover bench criu -json (%v)", file, err)
	}
	return nil
}

// findNode looks up the node of the task and whether it is emulated.
func (b *suspendBench) findNode() error {
	at, err := findAttempt(b.c, b.cl, b.job, b.task)
	if err != nil {
		return err
	}
	b.node = at.GetNode()
	list, err := b.cl.ListNodes(b.c.Context, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		return b.cl.classifyError(err)
	}
	for _, n := range list.Msg.GetNodes() {
		if n.GetInfo().GetName() == b.node {
			b.emulated = n.GetInfo().GetEmulated()
		}
	}
	return nil
}

// timeAfterKernelFreeze returns how long the node's freeze step continued after the
// kernel had frozen the task, in microseconds.
func timeAfterKernelFreeze(seen *droverv1.SeenAttempt) int64 {
	whole, kernel := int64(0), int64(0)
	for _, s := range seen.GetLevelSteps() {
		switch s.GetStep() {
		case "freeze":
			whole = s.GetDurationUs()
		case "freeze/kernel":
			kernel = s.GetDurationUs()
		}
	}
	return max(0, whole-kernel)
}

// compareToBaseline compares with criu alone, by time per byte of image, because the
// dumps differ a little in size.
func (r *levelResult) compareToBaseline(c *criuBaseline) {
	if c == nil || r.ImageBytes == 0 || c.ImageBytes == 0 {
		return
	}
	per := func(us []int64, image int64) float64 { return float64(medianOf(us)) / float64(image) }
	r.DumpRatio = per(r.StepsUS["checkpoint"], r.ImageBytes) / per(c.DumpUS, c.ImageBytes)
	r.RestoreRatio = per(r.StepsUS["restore"], r.ImageBytes) / per(c.RestoreUS, c.ImageBytes)
}

func (r *levelResult) addSteps(seen *droverv1.SeenAttempt) {
	for _, s := range seen.GetLevelSteps() {
		r.StepsUS[s.Step] = append(r.StepsUS[s.Step], s.DurationUs)
	}
}

// levelBenchPoll is the polling interval. The durations are measured by coordinator and
// node, so polling need not be fast; and it must not be, because on a small machine it
// would take CPU time from the measured operation.
const levelBenchPoll = 250 * time.Millisecond

// reachLevel requests a level, waits for it, and returns the coordinator's duration.
func (b *suspendBench) reachLevel(l droverv1.Level) (int64, *droverv1.SeenAttempt, error) {
	q := &droverv1.SetLevelRequest{Job: b.job, Stage: b.task.stage, Task: b.task.index, Attempt: b.task.attempt, Level: l, Reason: "drover bench suspend"}
	if _, err := b.cl.SetLevel(b.c.Context, connect.NewRequest(q)); err != nil {
		return 0, nil, b.cl.classifyError(err)
	}
	begun := time.Now()
	for time.Since(begun) < b.c.Duration("timeout") {
		timer := time.NewTimer(levelBenchPoll)
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
				return 0, nil, fault.New(fault.Conflict, "the task stays %s: %s", levelText(x.GetLevel()), at.Seen.GetLevelNote())
			}
			return (x.SinceMs - x.RequestedMs) * 1000, at.Seen, nil
		}
	}
	return 0, nil, fault.New(fault.Unavailable, "the task is not %s after %s", levelText(l), b.c.Duration("timeout"))
}

// quantileText formats a quantile of unsorted microseconds.
func quantileText(us []int64, q float64) string {
	if len(us) == 0 {
		return ""
	}
	return microText(quantileOf(us, q))
}

// medianText formats the median of unsorted microseconds.
func medianText(us []int64) string {
	if len(us) == 0 {
		return ""
	}
	return microText(medianOf(us))
}

// microText formats microseconds.
func microText(us int64) string {
	return (time.Duration(us) * time.Microsecond).Round(10 * time.Microsecond).String()
}

// quantileOf returns the smallest value that is at least as large as the share q of all
// values; 0 if there are none.
func quantileOf(us []int64, q float64) int64 {
	if len(us) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(us))
	return s[max(0, min(len(s), int(math.Ceil(q*float64(len(s)))))-1)]
}

// medianOf returns the median; 0 if there are no values.
func medianOf(us []int64) int64 {
	if len(us) == 0 {
		return 0
	}
	return median.Of(us)
}

// save writes the results to a file.
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
	for _, r := range b.results {
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
	for _, r := range b.results {
		rows = append(rows, []string{r.Level, fmt.Sprint(r.Rounds), medianText(r.SuspendUS), quantileText(r.SuspendUS, 0.9), quantileText(r.SuspendUS, 1), medianText(r.ResumeUS), quantileText(r.ResumeUS, 1),
			jobspec.FormatSize(r.MemoryBytes), jobspec.FormatSize(r.SwapBytes), jobspec.FormatSize(r.ImageBytes), r.Failure})
		for _, k := range slices.Sorted(maps.Keys(r.StepsUS)) {
			steps = append(steps, []string{r.Level, k, fmt.Sprint(len(r.StepsUS[k])), medianText(r.StepsUS[k]), quantileText(r.StepsUS[k], 0.9), quantileText(r.StepsUS[k], 1)})
		}
	}
	if b.emulated {
		fmt.Fprintf(w, "%s is an emulated machine: compare these times only with other emulated machines\n", b.node)
	}
	for _, r := range b.results {
		if len(r.FreedUS) > 0 {
			fmt.Fprintf(w, "%s: from the decision to the processor freed: median %s, p10 %s, p90 %s; the kernel's part: median %s, p90 %s\n", r.Level,
				medianText(r.FreedUS), quantileText(r.FreedUS, 0.1), quantileText(r.FreedUS, 0.9), medianText(r.StepsUS["freeze/kernel"]), quantileText(r.StepsUS["freeze/kernel"], 0.9))
		}
		if r.DumpRatio > 0 {
			fmt.Fprintf(w, "%s: dump %s MB/s, %.2f times as long as criu alone; restore %s MB/s, %.2f times\n", r.Level,
				throughputText(r.ImageBytes, r.StepsUS["checkpoint"]), r.DumpRatio, throughputText(r.ImageBytes, r.StepsUS["restore"]), r.RestoreRatio)
		}
	}
	if b.baseline != nil {
		if text := b.baseline.text(b.baseline); text != "" {
			fmt.Fprintln(w, text)
		}
	}
	printTable(w, []string{"level", "rounds", "suspend: median", "p90", "max", "resume: median", "max", "memory left", "swap", "image", "failure"}, rows)
	fmt.Fprintln(w, "\non the node")
	printTable(w, []string{"level", "step", "times", "median", "p90", "max"}, steps)
	return nil
}

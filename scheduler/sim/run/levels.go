package run

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// PreemptMode is how a scheduler frees capacity that a running task occupies.
type PreemptMode string

// The preemption modes. With ModeAnyLevel the scheduler chooses among all suspend levels, with
// ModeCheapest among these levels and kill.
const (
	ModeKill       PreemptMode = "kill"
	ModeFreeze     PreemptMode = "frozen"
	ModeSwap       PreemptMode = "swapped"
	ModeCheckpoint PreemptMode = "checkpointed"
	ModeAnyLevel   PreemptMode = "any level"
	ModeCheapest   PreemptMode = "any level or kill"
)

// preemptModes lists the modes.
var preemptModes = []PreemptMode{ModeKill, ModeFreeze, ModeSwap, ModeCheckpoint, ModeAnyLevel, ModeCheapest}

func (w PreemptMode) allowedLevels() scheduler.LevelSet {
	switch w {
	case ModeFreeze:
		return scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)
	case ModeSwap:
		return scheduler.Levels(scheduler.LevelRunning, scheduler.LevelSwapped)
	case ModeCheckpoint:
		return scheduler.Levels(scheduler.LevelRunning, scheduler.LevelCheckpointed)
	default:
		return scheduler.AllLevels
	}
}

// levelMetrics are the numbers by which modes are compared.
var levelMetrics = []levelMetric{
	{"work_lost_cpu_s", "work lost (CPU-s)", false},
	{"deadline_rate", "deadlines met (fraction)", true},
	{"mean_response_s", "mean response (s)", false},
}

// levelMetric is a number of report.Numbers with its label and direction.
type levelMetric struct {
	name, label    string
	higherIsBetter bool
}

// LevelCell is one mode at one cost: the interval over the seeds of each of levelMetrics.
type LevelCell struct {
	Cost    float64                    `json:"cost"`
	Mode    PreemptMode                `json:"mode"`
	Numbers map[string]report.Interval `json:"numbers"`
}

// LevelWin is the best mode at one cost by one metric. Significant is whether the 95% interval of
// its difference to the next best, paired by seed, excludes zero. Tied lists the modes with
// identical values.
type LevelWin struct {
	Cost        float64       `json:"cost"`
	Metric      string        `json:"metric"`
	Mode        PreemptMode   `json:"mode"`
	Significant bool          `json:"significant"`
	Tied        []PreemptMode `json:"tied,omitempty"`
}

// LevelStudy compares suspension with kill on one workload over a range of costs.
type LevelStudy struct {
	Scheduler  string            `json:"scheduler"`
	Seeds      []uint64          `json:"seeds"`
	Parameters map[string]string `json:"parameters"`
	// CheckpointS is the time to checkpoint and restore one task of 1 GiB at cost 1 on the first
	// node, in seconds.
	CheckpointS float64     `json:"checkpoint_s"`
	Cells       []LevelCell `json:"cells"`
	Wins        []LevelWin  `json:"wins"`
}

// withMode returns the setup of one mode at one cost: every suspend and resume time is multiplied
// by cost.
func (s *Setup) withMode(mode PreemptMode, cost float64) *Setup {
	out := *s
	out.Nodes = slices.Clone(s.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.Levels, n.Speeds = mode.allowedLevels(), scaleSuspendCost(n.Speeds, cost)
	}
	out.Params = maps.Clone(s.Params)
	if out.Params == nil {
		out.Params = map[string]string{}
	}
	switch mode {
	case ModeKill:
		out.Params["preempt"] = "kill"
	case ModeCheapest:
		out.Params["preempt"] = "cheapest"
	default:
		out.Params["preempt"] = "suspend"
	}
	out.MaxTaskExecutions = 0
	return &out
}

func scaleSuspendCost(p scheduler.SuspendSpeed, cost float64) scheduler.SuspendSpeed {
	for _, d := range []*time.Duration{&p.Freeze, &p.Swap, &p.Checkpoint, &p.Restore, &p.ThawAfterFreeze} {
		*d = time.Duration(float64(*d) * cost)
	}
	for _, r := range []*int64{&p.SwapPerS, &p.SwapBackPerS, &p.CheckpointPerS, &p.RestorePerS, &p.TransferPerS} {
		if *r > 0 {
			*r = max(1, int64(float64(*r)/cost))
		}
	}
	return p
}

// StudyLevels simulates the workload under every mode and cost with the same seeds. The scheduler
// must have the parameter preempt.
func (s *Setup) StudyLevels(ctx context.Context, costs []float64, seeds []uint64, parallel int, progress func(done, of int, p engine.Progress)) (*LevelStudy, error) {
	study := &LevelStudy{Scheduler: s.Scheduler, Seeds: seeds}
	if len(s.Nodes) > 0 {
		p := s.Nodes[0].Speeds
		study.CheckpointS = (p.Suspend(scheduler.LevelCheckpointed, 1<<30) + p.Resume(scheduler.LevelCheckpointed, 1<<30)).Seconds()
	}
	for _, cost := range costs {
		if !(cost > 0 && cost <= 1e6) {
			return nil, fmt.Errorf("cost %v: must be above 0 and at most 1000000 times the measured cost", cost)
		}
	}
	var killed []*Outcome // the same for every cost
	for _, cost := range costs {
		runs := map[PreemptMode][]*Outcome{}
		for _, mode := range preemptModes {
			outs := killed
			if mode != ModeKill || killed == nil {
				var err error
				if outs, err = s.withMode(mode, cost).SimulateSeeds(ctx, seeds, parallel, progress); err != nil {
					return nil, fmt.Errorf("%s at cost %v: %w", mode, cost, err)
				}
			}
			if runs[mode] = outs; mode == ModeKill {
				killed = outs
			}
			cell := LevelCell{Cost: cost, Mode: mode, Numbers: map[string]report.Interval{}}
			for _, m := range levelMetrics {
				cell.Numbers[m.name] = report.Estimate(metricValues(outs, m.name))
			}
			study.Cells = append(study.Cells, cell)
		}
		for _, m := range levelMetrics {
			study.Wins = append(study.Wins, bestMode(cost, m, runs))
		}
	}
	return study, nil
}

func metricValues(outs []*Outcome, name string) []float64 {
	var x []float64
	for _, o := range outs {
		v, _ := o.Numbers.Get(name)
		x = append(x, v)
	}
	return x
}

// bestMode returns the mode with the best mean and whether the difference is significant.
func bestMode(cost float64, m levelMetric, runs map[PreemptMode][]*Outcome) LevelWin {
	sign := 1.0
	if m.higherIsBetter {
		sign = -1
	}
	score := func(w PreemptMode) float64 { return sign * report.Estimate(metricValues(runs[w], m.name)).Mean }
	ranking := slices.Clone(preemptModes)
	slices.SortStableFunc(ranking, func(a, b PreemptMode) int {
		switch x, y := score(a), score(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		default:
			return 0
		}
	})
	win := LevelWin{Cost: cost, Metric: m.name, Mode: ranking[0]}
	best := metricValues(runs[ranking[0]], m.name)
	for _, w := range ranking[1:] {
		other := metricValues(runs[w], m.name)
		if slices.Equal(best, other) {
			win.Tied = append(win.Tied, w)
			continue
		}
		diff := make([]float64, len(best))
		for i := range diff {
			diff[i] = sign * (other[i] - best[i])
		}
		e := report.Estimate(diff)
		win.Significant = e.Low() > 0
		break
	}
	return win
}

// WriteLevels writes levels.json, levels.md and one plot per metric into dir.
func WriteLevels(dir string, s *LevelStudy) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "levels.json"), func(w io.Writer) error { return report.WriteJSON(w, s) }); err != nil {
		return err
	}
	if err := WriteFile(filepath.Join(dir, "levels.md"), func(w io.Writer) error { _, err := io.WriteString(w, s.Markdown()); return err }); err != nil {
		return err
	}
	for _, m := range levelMetrics {
		if err := savePlot(dir, m.name, func() (*plot.Plot, error) {
			var lines []report.Line
			for _, mode := range preemptModes {
				l := report.Line{Name: string(mode)}
				for _, c := range s.Cells {
					if e := c.Numbers[m.name]; c.Mode == mode {
						l.X, l.Y = append(l.X, c.Cost), append(l.Y, e.Mean)
						if e.N > 1 {
							l.Err = append(l.Err, e.HalfWidth)
						}
					}
				}
				lines = append(lines, l)
			}
			return report.PlotLines("Suspend against kill: "+s.Scheduler, "cost of suspending and resuming (1: as measured)", m.label, true, lines...)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Markdown returns the study as one table per metric. The best mode at each cost is bold, with a
// star if the difference is significant.
func (s *LevelStudy) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d seeds; at cost 1 a checkpoint of 1 GiB and back takes %.3g s. Bold: best; *: the 95%% interval of its\ndifference to the next best, paired by seed, excludes zero.\n", s.Scheduler, len(s.Seeds), s.CheckpointS)
	for _, m := range levelMetrics {
		fmt.Fprintf(&b, "\n| %s at cost |", m.label)
		for _, w := range preemptModes {
			fmt.Fprintf(&b, " %s |", w)
		}
		b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(preemptModes)) + "\n")
		for _, win := range s.Wins {
			if win.Metric != m.name {
				continue
			}
			fmt.Fprintf(&b, "| %g |", win.Cost)
			for _, c := range s.Cells {
				if c.Cost != win.Cost {
					continue
				}
				e := c.Numbers[m.name]
				text := fmt.Sprintf("%.4g", e.Mean)
				if e.N > 1 {
					text += fmt.Sprintf(" ± %.2g", e.HalfWidth)
				}
				switch {
				case c.Mode == win.Mode && win.Significant:
					text = "**" + text + "** *"
				case c.Mode == win.Mode || slices.Contains(win.Tied, c.Mode):
					text = "**" + text + "**"
				}
				fmt.Fprintf(&b, " %s |", text)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

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

// Way is how a scheduler takes room back from a task that runs.
type Way string

// The ways. WayAny leaves the choice among all levels to the scheduler, WayCheapest
// that among them and to kill.
const (
	WayKill       Way = "kill"
	WayFreeze     Way = "frozen"
	WaySwap       Way = "swapped"
	WayCheckpoint Way = "checkpointed"
	WayAny        Way = "any level"
	WayCheapest   Way = "any level or kill"
)

// Ways lists the ways.
var Ways = []Way{WayKill, WayFreeze, WaySwap, WayCheckpoint, WayAny, WayCheapest}

func (w Way) levels() scheduler.LevelSet {
	switch w {
	case WayFreeze:
		return scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)
	case WaySwap:
		return scheduler.Levels(scheduler.LevelRunning, scheduler.LevelSwapped)
	case WayCheckpoint:
		return scheduler.Levels(scheduler.LevelRunning, scheduler.LevelCheckpointed)
	default:
		return scheduler.AllLevels
	}
}

// LevelMetrics are the numbers by which ways are held against each other.
var LevelMetrics = []LevelMetric{
	{"work_lost_cpu_s", "work lost (CPU-s)", false},
	{"deadline_rate", "deadlines met (part)", true},
	{"mean_response_s", "mean response (s)", false},
}

// LevelMetric is a number of a run and whether more of it is better.
type LevelMetric struct {
	Name, Label string
	More        bool
}

// LevelCell is one way at one cost: mean and half width of the 95% interval of
// each of LevelMetrics, over the seeds.
type LevelCell struct {
	Cost    float64                    `json:"cost"`
	Way     Way                        `json:"way"`
	Numbers map[string]report.Interval `json:"numbers"`
}

// LevelWin says which way is best at one cost by one number. Sure tells that the
// interval of its difference to the next best, paired by seed, excludes zero;
// Tied lists the ways that gave the very same.
type LevelWin struct {
	Cost   float64 `json:"cost"`
	Metric string  `json:"metric"`
	Way    Way     `json:"way"`
	Sure   bool    `json:"sure"`
	Tied   []Way   `json:"tied,omitempty"`
}

// LevelStudy is suspension against kill on one workload over a range of costs.
type LevelStudy struct {
	Scheduler  string            `json:"scheduler"`
	Seeds      []uint64          `json:"seeds"`
	Parameters map[string]string `json:"parameters"`
	// CheckpointS is what bringing one task of 1 GiB to an image and back costs
	// in seconds at cost 1, on the first node.
	CheckpointS float64     `json:"checkpoint_s"`
	Cells       []LevelCell `json:"cells"`
	Wins        []LevelWin  `json:"wins"`
}

// with makes the experiment of one way at one cost: every time of suspending
// and resuming is multiplied by cost, whatever the level.
func (s *Setup) with(way Way, cost float64) *Setup {
	out := *s
	out.Nodes = slices.Clone(s.Nodes)
	for i := range out.Nodes {
		n := &out.Nodes[i]
		n.Levels, n.Speeds = way.levels(), dearer(n.Speeds, cost)
	}
	out.Params = maps.Clone(s.Params)
	if out.Params == nil {
		out.Params = map[string]string{}
	}
	switch way {
	case WayKill:
		out.Params["preempt"] = "kill"
	case WayCheapest:
		out.Params["preempt"] = "cheapest"
	default:
		out.Params["preempt"] = "suspend"
	}
	out.KeepTasks = 0
	return &out
}

func dearer(p scheduler.SuspendSpeed, cost float64) scheduler.SuspendSpeed {
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

// Levels runs the workload under every way and cost with the same seeds. The
// scheduler must have the parameter preempt.
func (s *Setup) Levels(ctx context.Context, costs []float64, seeds []uint64, parallel int, progress func(done, of int, p engine.Progress)) (*LevelStudy, error) {
	study := &LevelStudy{Scheduler: s.Scheduler, Seeds: seeds}
	if len(s.Nodes) > 0 {
		p := s.Nodes[0].Speeds
		study.CheckpointS = (p.Suspend(scheduler.LevelCheckpointed, 1<<30) + p.Resume(scheduler.LevelCheckpointed, 1<<30)).Seconds()
	}
	var killed []*Outcome // costs the same throughout
	for _, cost := range costs {
		if !(cost > 0 && cost <= 1e6) {
			return nil, fmt.Errorf("cost %v: above 0, at most 1000000 times what was measured", cost)
		}
		runs := map[Way][]*Outcome{}
		for _, way := range Ways {
			outs := killed
			if way != WayKill || killed == nil {
				var err error
				if outs, err = s.with(way, cost).Many(ctx, seeds, parallel, progress); err != nil {
					return nil, fmt.Errorf("%s at cost %v: %w", way, cost, err)
				}
			}
			if runs[way] = outs; way == WayKill {
				killed = outs
			}
			cell := LevelCell{Cost: cost, Way: way, Numbers: map[string]report.Interval{}}
			for _, m := range LevelMetrics {
				cell.Numbers[m.Name] = report.Estimate(values(outs, m.Name))
			}
			study.Cells = append(study.Cells, cell)
		}
		for _, m := range LevelMetrics {
			study.Wins = append(study.Wins, winner(cost, m, runs))
		}
	}
	return study, nil
}

func values(outs []*Outcome, name string) []float64 {
	var x []float64
	for _, o := range outs {
		v, _ := o.Numbers.Get(name)
		x = append(x, v)
	}
	return x
}

// winner is the way with the best mean, and how sure that is.
func winner(cost float64, m LevelMetric, runs map[Way][]*Outcome) LevelWin {
	sign := 1.0
	if m.More {
		sign = -1
	}
	score := func(w Way) float64 { return sign * report.Estimate(values(runs[w], m.Name)).Mean }
	order := slices.Clone(Ways)
	slices.SortStableFunc(order, func(a, b Way) int {
		switch x, y := score(a), score(b); {
		case x < y:
			return -1
		case x > y:
			return 1
		default:
			return 0
		}
	})
	win := LevelWin{Cost: cost, Metric: m.Name, Way: order[0]}
	best := values(runs[order[0]], m.Name)
	for _, w := range order[1:] {
		other := values(runs[w], m.Name)
		if slices.Equal(best, other) {
			win.Tied = append(win.Tied, w)
			continue
		}
		diff := make([]float64, len(best))
		for i := range diff {
			diff[i] = sign * (other[i] - best[i])
		}
		e := report.Estimate(diff)
		win.Sure = e.Low() > 0
		break
	}
	return win
}

// WriteLevels writes levels.json, levels.md and a plot for each number into dir.
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
	for _, m := range LevelMetrics {
		if err := save(dir, m.Name, func() (*plot.Plot, error) {
			var lines []report.Line
			for _, way := range Ways {
				l := report.Line{Name: string(way)}
				for _, c := range s.Cells {
					if e := c.Numbers[m.Name]; c.Way == way {
						l.X, l.Y = append(l.X, c.Cost), append(l.Y, e.Mean)
						if e.N > 1 {
							l.Err = append(l.Err, e.Half)
						}
					}
				}
				lines = append(lines, l)
			}
			return report.Lines("Suspension against kill: "+s.Scheduler, "cost of suspending and resuming, 1 is measured", m.Label, true, lines...)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Markdown writes the study as one table for each number; the best way at each
// cost is bold, with a star where that is sure.
func (s *LevelStudy) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d seeds; at cost 1 a checkpoint of 1 GiB and back takes %.3g s. Bold: best; *: the 95%% interval of its\ndifference to the next best, paired by seed, excludes zero.\n", s.Scheduler, len(s.Seeds), s.CheckpointS)
	for _, m := range LevelMetrics {
		fmt.Fprintf(&b, "\n| %s at cost |", m.Label)
		for _, w := range Ways {
			fmt.Fprintf(&b, " %s |", w)
		}
		b.WriteString("\n| --- |" + strings.Repeat(" --- |", len(Ways)) + "\n")
		for _, win := range s.Wins {
			if win.Metric != m.Name {
				continue
			}
			fmt.Fprintf(&b, "| %g |", win.Cost)
			for _, c := range s.Cells {
				if c.Cost != win.Cost {
					continue
				}
				e := c.Numbers[m.Name]
				text := fmt.Sprintf("%.4g", e.Mean)
				if e.N > 1 {
					text += fmt.Sprintf(" ± %.2g", e.Half)
				}
				switch {
				case c.Way == win.Way && win.Sure:
					text = "**" + text + "** *"
				case c.Way == win.Way || slices.Contains(win.Tied, c.Way):
					text = "**" + text + "**"
				}
				fmt.Fprintf(&b, " %s |", text)
			}
			b.WriteString("\n")
		}
	}
	return b.String()
}

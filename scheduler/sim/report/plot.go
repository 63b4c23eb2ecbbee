package report

import (
	"cmp"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
)

// Line is a named line of a plot.
type Line struct {
	Name string
	X, Y []float64
	// Err, if not nil, holds the half widths of the error bars at each point.
	Err []float64
}

// maxPoints limits the drawn points of a line.
const maxPoints = 2000

// PlotLines plots lines; logX makes the horizontal axis logarithmic.
func PlotLines(title, x, y string, logX bool, lines ...Line) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Add(plotter.NewGrid())
	drawn := 0
	for i, l := range lines {
		pts := linePoints(&l, logX)
		if len(pts) == 0 {
			continue
		}
		drawn++
		line, err := plotter.NewLine(pts)
		if err != nil {
			return nil, err
		}
		line.Color, line.Dashes, line.Width = plotutil.Color(i), plotutil.Dashes(i), vg.Points(1.2)
		p.Add(line)
		p.Legend.Add(l.Name, line)
		if l.Err != nil {
			if err := addErrors(p, &l, pts, plotutil.Color(i)); err != nil {
				return nil, err
			}
		}
	}
	if logX && drawn > 0 {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		if p.X.Min == p.X.Max { // gonum would widen the range by 1 on each side, below 0
			p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
		}
	}
	return p, nil
}

func addErrors(p *plot.Plot, l *Line, pts plotter.XYs, c color.Color) error {
	errs := make(plotter.YErrors, len(pts))
	for i := range errs {
		errs[i].Low, errs[i].High = -l.Err[i], l.Err[i]
	}
	bars, err := plotter.NewYErrorBars(struct {
		plotter.XYs
		plotter.YErrors
	}{pts, errs})
	if err != nil {
		return err
	}
	bars.Color = c
	p.Add(bars)
	return nil
}

func linePoints(l *Line, logX bool) plotter.XYs {
	step := max(1, len(l.X)/maxPoints)
	if l.Err != nil {
		step = 1
	}
	var pts plotter.XYs
	for i := 0; i < len(l.X); i += step {
		if math.IsNaN(l.Y[i]) || math.IsInf(l.Y[i], 0) || (logX && l.X[i] <= 0) {
			continue
		}
		pts = append(pts, plotter.XY{X: l.X[i], Y: l.Y[i]})
	}
	return pts
}

// PlotUtilisation plots the utilisation over time.
func PlotUtilisation(r *engine.Result) (*plot.Plot, error) {
	names := []string{"CPU", "memory", "disk I/O"}
	lines := make([]Line, scheduler.NumResources)
	for k := range lines {
		lines[k].Name = names[k]
		for i := range r.Series.Used {
			lines[k].X = append(lines[k].X, (float64(i)+0.5)*r.Series.Step.Seconds())
			lines[k].Y = append(lines[k].Y, r.Series.Used[i][k])
		}
	}
	return PlotLines("Utilisation of the cluster", "time [s]", "fraction of the capacity", false, lines...)
}

// PlotResponses plots the distribution of response times, one line per run.
func PlotResponses(names []string, runs []*engine.Result) (*plot.Plot, error) {
	var lines []Line
	for i, r := range runs {
		var x []float64
		for k := range r.Jobs {
			if r.Jobs[k].Outcome == engine.JobSucceeded {
				x = append(x, r.Jobs[k].Response().Seconds())
			}
		}
		slices.Sort(x)
		l := Line{Name: names[i], X: x}
		for k := range x {
			l.Y = append(l.Y, float64(k+1)/float64(len(x)))
		}
		lines = append(lines, l)
	}
	return PlotLines("Response times", "response [s]", "fraction of the jobs", true, lines...)
}

// ganttColours is the number of colours that jobs take in turn.
const ganttColours = 7

// jobsText names the jobs of one colour in the legend.
func jobsText(ids []scheduler.JobID) string {
	slices.Sort(ids)
	switch len(ids) {
	case 1:
		return fmt.Sprintf("job %d", ids[0])
	case 2:
		return fmt.Sprintf("jobs %d, %d", ids[0], ids[1])
	default:
		return fmt.Sprintf("jobs %d, %d, …", ids[0], ids[1])
	}
}

// nodeTicks labels at most about twelve nodes, counted from 1.
func nodeTicks(nodes int) plot.ConstantTicks {
	var out plot.ConstantTicks
	for i := 0; i < nodes; i += 1 + nodes/12 {
		out = append(out, plot.Tick{Value: float64(i) + 0.45, Label: fmt.Sprint(i + 1)})
	}
	return out
}

// PlotGantt plots the executions of tasks on nodes, for small simulations. Jobs take
// the colours in turn.
func PlotGantt(r *engine.Result, nodes int) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = "Tasks on nodes", "time [s]", "node"
	order := slices.Clone(r.TaskExecutions)
	slices.SortFunc(order, func(a, b engine.TaskExecution) int { return cmp.Or(cmp.Compare(a.Start, b.Start), a.ID.Compare(b.ID)) })
	lanes, widest := make([][]float64, nodes), 1 // end of the last box in each lane of a node
	at := make([]int, len(order))
	for i, t := range order {
		l := &lanes[t.Node]
		at[i] = slices.IndexFunc(*l, func(end float64) bool { return end <= t.Start.Seconds() })
		if at[i] < 0 {
			at[i] = len(*l)
			*l = append(*l, 0)
		}
		(*l)[at[i]] = t.End.Seconds()
		widest = max(widest, len(*l))
	}
	var jobs [ganttColours][]scheduler.JobID // by colour
	var shown [ganttColours]*plotter.Polygon
	for i, t := range order {
		low := float64(t.Node) + float64(at[i])/float64(widest)
		high := low + 0.85/float64(widest)
		box, err := plotter.NewPolygon(plotter.XYs{{X: t.Start.Seconds(), Y: low}, {X: t.End.Seconds(), Y: low}, {X: t.End.Seconds(), Y: high}, {X: t.Start.Seconds(), Y: high}})
		if err != nil {
			return nil, err
		}
		box.Color, box.LineStyle.Width = plotutil.Color(int(t.ID.Job%ganttColours)), vg.Points(0.2)
		p.Add(box)
		colour := int(t.ID.Job % ganttColours)
		shown[colour] = box
		if !slices.Contains(jobs[colour], t.ID.Job) {
			jobs[colour] = append(jobs[colour], t.ID.Job)
		}
	}
	for i := range ganttColours {
		if colour := (i + 1) % ganttColours; len(jobs[colour]) > 0 {
			p.Legend.Add(jobsText(jobs[colour]), shown[colour])
		}
	}
	p.Y.Min, p.Y.Max = 0, float64(nodes)
	p.Y.Tick.Marker = nodeTicks(nodes)
	return p, nil
}

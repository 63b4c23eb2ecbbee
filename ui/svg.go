package ui

import (
	"fmt"
	"html/template"
	"math"
	"slices"
	"strings"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// The pictures here are drawn once, in Go, and their tables stand beside them.

// shareTag draws a share as a bar with a mark at the fair share.
func shareTag(share, fair float64) template.HTML {
	return template.HTML(fmt.Sprintf(`<svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true"><rect class="rest" width="1000" height="10"/><rect class="running" width="%.0f" height="10"/><rect class="mark" x="%.0f" width="6" height="10"/></svg>`,
		min(share, 1)*1000, min(max(fair*1000-3, 0), 994)))
}

// linePicture draws values over time, and beside them a dashed line of others
// unless these are nil. top is the value at the top.
func linePicture(at []int64, v []float64, top float64, beside []float64) template.HTML {
	const w, h = 300.0, 60.0
	if top <= 0 {
		top = 1
	}
	points := func(v []float64) string {
		var b strings.Builder
		first, last := at[0], at[len(at)-1]
		for i := range v {
			x := w
			if last > first {
				x = float64(at[i]-first) / float64(last-first) * w
			}
			fmt.Fprintf(&b, "%.1f,%.1f ", x, h-2-min(v[i]/top, 1)*(h-4))
		}
		return strings.TrimSpace(b.String())
	}
	line := points(v)
	out := fmt.Sprintf(`<svg class="series" viewBox="0 0 %g %g" preserveAspectRatio="none" aria-hidden="true"><polygon class="area" points="0,%g %s %g,%g"/><polyline class="line" points="%s"/>`, w, h, h, line, w, h, line)
	if beside != nil {
		out += fmt.Sprintf(`<polyline class="fair" points="%s"/>`, points(beside))
	}
	return template.HTML(out + `</svg>`)
}

// calibrationPicture draws quoted probabilities against outcomes.
func calibrationPicture(c *droverv1.CalibrationResponse) template.HTML {
	const size = 220.0
	at := func(p float64) float64 { return 10 + p*(size-20) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="calibration" viewBox="0 0 %g %g" role="img" aria-label="Quoted probability against the part of jobs in time; the table below has the same"><rect class="rest" x="10" y="10" width="%g" height="%g"/><line class="fair" x1="%g" y1="%g" x2="%g" y2="%g"/>`,
		size, size, size-20, size-20, at(0), size-at(0), at(1), size-at(1))
	for _, bin := range c.GetBins() {
		if bin.GetJobs() == 0 {
			continue
		}
		x := at(bin.GetQuoted())
		fmt.Fprintf(&b, `<line class="interval" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/><circle class="dot" cx="%.1f" cy="%.1f" r="%.1f"/>`,
			x, x, size-at(bin.GetLow()), size-at(bin.GetHigh()), x, size-at(bin.GetOnTime()), 3+min(math.Log10(float64(bin.GetJobs()))*2, 5))
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// Sizes of the graph of stages, in pixels.
const (
	boxWidth  = 150
	boxHeight = 46
	boxGapX   = 50
	boxGapY   = 14
)

// stageGraph draws the stages from left to right, each right of those that it
// waits for.
func stageGraph(stages []*droverv1.StageSummary, before [][]int) template.HTML {
	if len(stages) < 2 || len(before) != len(stages) {
		return ""
	}
	depth, place, rows, most := layers(before)
	box := func(i int) (x, y int) { return depth[i]*(boxWidth+boxGapX) + 1, place[i]*(boxHeight+boxGapY) + 1 }
	w, h := most*(boxWidth+boxGapX)-boxGapX+2, rows*(boxHeight+boxGapY)-boxGapY+2
	var b strings.Builder
	fmt.Fprintf(&b, `<div class="scroll"><svg class="graph" width="%d" height="%d" viewBox="0 0 %d %d" role="img" aria-label="Graph of the stages; the table below has the same">`, w, h, w, h)
	for i := range stages {
		x, y := box(i)
		for _, k := range before[i] {
			fx, fy := box(k)
			fx, fy = fx+boxWidth, fy+boxHeight/2
			mid := (fx + x) / 2
			fmt.Fprintf(&b, `<path class="edge" d="M%d %dC%d %d %d %d %d %d"/>`, fx, fy, mid, fy, mid, y+boxHeight/2, x, y+boxHeight/2)
		}
	}
	for i, s := range stages {
		x, y := box(i)
		name := s.GetName()
		if r := []rune(name); len(r) > 18 {
			name = string(r[:17]) + "…"
		}
		fmt.Fprintf(&b, `<g class="%s"><rect class="box" x="%d" y="%d" width="%d" height="%d" rx="4"/><rect class="fill" x="%d" y="%d" width="%.0f" height="3"/><text x="%d" y="%d">%s</text><text class="sub" x="%d" y="%d">%s</text></g>`,
			stageClass(s), x, y, boxWidth, boxHeight, x, y+boxHeight-3, min(max(s.GetProgress(), 0), 1)*boxWidth, x+8, y+18, template.HTMLEscapeString(name), x+8, y+35,
			fmt.Sprintf("%s of %s done", countText(s.GetDone()), countText(s.GetTasks())))
	}
	b.WriteString(`</svg></div>`)
	return template.HTML(b.String())
}

func stageClass(s *droverv1.StageSummary) string {
	switch {
	case s.GetDone() == s.GetTasks():
		return "g-done"
	case s.GetRunning() > 0:
		return "g-running"
	case s.GetSuspended() > 0:
		return "g-suspended"
	default:
		return "g-waiting"
	}
}

// layers returns for each stage its column and its row, and how many rows and
// columns there are. Stages that wait for each other, which no job has, end in
// the last column.
func layers(before [][]int) (depth, place []int, rows, columns int) {
	depth, place = make([]int, len(before)), make([]int, len(before))
	for range before {
		for i, list := range before {
			for _, k := range list {
				depth[i] = min(max(depth[i], depth[k]+1), len(before)-1)
			}
		}
	}
	used := make([]int, len(before))
	for i := range before {
		place[i] = used[depth[i]]
		used[depth[i]]++
	}
	return depth, place, slices.Max(used), slices.Max(depth) + 1
}

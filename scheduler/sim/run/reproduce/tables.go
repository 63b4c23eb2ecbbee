package reproduce

import (
	"fmt"
	"slices"
	"strings"
)

// grid is a table of texts.
type grid struct {
	Columns []string
	Rows    [][]string
	seeds   int
}

// verdictMarks are the marks of the sensitivity table.
var verdictMarks = map[string]string{"reproduced": "✓", "sign only": "~", "missed": "✗", "none": ""}

// Shifts returns the sensitivity table: each claim's mean with each parameter low and high.
func (o *Outcome) Shifts() grid {
	g := grid{seeds: o.shiftSeeds}
	cells := map[string]map[string]string{}
	for _, s := range o.Sensitivity {
		c := fmt.Sprintf("%s %g", s.Parameter, s.Value)
		if !slices.Contains(g.Columns, c) {
			g.Columns = append(g.Columns, c)
		}
		if cells[s.Claim] == nil {
			cells[s.Claim] = map[string]string{}
		}
		cells[s.Claim][c] = fmt.Sprintf("%.3g %s", s.Mean, verdictMarks[s.Verdict])
	}
	for i := range o.Verdicts {
		v := &o.Verdicts[i]
		row := []string{strings.TrimPrefix(v.ID, o.Name+"/"), fmt.Sprintf("%.3g %s", v.Ours.Mean, verdictMarks[classifyByMean(v)])}
		for _, c := range g.Columns {
			row = append(row, cells[v.ID][c])
		}
		g.Rows = append(g.Rows, row)
	}
	return g
}

// AllRows returns the rows of the table of all workloads and schedulers.
func (r *Report) AllRows() []TableRow {
	var out []TableRow
	for _, o := range r.Outcomes {
		out = append(out, o.Rows...)
	}
	return out
}

// Table returns the table of all workloads and schedulers.
func (r *Report) Table() grid {
	rows := r.AllRows()
	names := schedulersOf(rows)
	g := grid{Columns: append([]string{"workload", "metric"}, append(slices.Clone(names), "best specialist", "3dsf worse by")...)}
	for i := range rows {
		x := &rows[i]
		line := []string{x.Workload, x.Name}
		for _, n := range names {
			v, ok := x.Values[n]
			switch {
			case !ok:
				line = append(line, "")
			default:
				line = append(line, fmt.Sprintf("%.4g", v.Mean))
			}
		}
		worse := "not run"
		if x.Worse.N > 0 {
			worse = fmt.Sprintf("%+.1f%%", 100*x.Worse.Mean)
			if x.Worse.N > 1 {
				worse += fmt.Sprintf(" ± %.1f", 100*x.Worse.HalfWidth)
			}
		}
		if x.Flag {
			worse += " ⚠"
		}
		g.Rows = append(g.Rows, append(line, x.Best, worse))
	}
	return g
}

func (r *Report) table(b *strings.Builder) {
	g := r.Table()
	if len(g.Rows) == 0 {
		return
	}
	b.WriteString("\n## All workloads, all schedulers\n\nEach paper's own metric. The best specialist is the best of the schedulers a user may run; `sjf` and `ideal` know true sizes. ⚠: 3dsf is more than 5% worse.\n\n")
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(g.Columns, " | "), strings.Repeat(" --- |", len(g.Columns)))
	for _, row := range g.Rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	for _, x := range r.AllRows() {
		if x.Flag {
			fmt.Fprintf(b, "\n**%s, %s.** %s\n", x.Workload, x.Name, x.Why)
		}
	}
}

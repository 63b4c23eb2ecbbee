package reproduce

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// Metric is the criterion by which a paper compares schedulers on its workload.
type Metric struct {
	Name           string // with its unit
	HigherIsBetter bool
	// Why explains why 3dsf is more than 5% worse than the best specialist, and what would close
	// the gap.
	Why string
}

// Grade is the value that one scheduler reached on one seed.
type Grade struct {
	Metric, Scheduler string
	Value             float64
}

func (s *Sample) addGrade(metric, scheduler string, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		s.Grades = append(s.Grades, Grade{metric, scheduler, v})
	}
}

// composedPolicy is the scheduler that is compared with the specialists.
const composedPolicy = "3dsf"

// tolerance is how much worse than the best specialist it may be without an explanation.
const tolerance = 0.05

// TableRow is one workload and metric under all schedulers.
type TableRow struct {
	Workload string
	Metric
	Values map[string]report.Interval // by scheduler
	// Best is the best specialist: the best scheduler that users may run and that does not know
	// true sizes.
	Best string
	// Worse is by which fraction 3dsf is worse than Best, over paired seeds; negative if it is
	// better.
	Worse report.Interval
	Flag  bool
}

// tableRows makes an experiment's rows of the table.
func tableRows(e *Experiment, samples []*Sample) []TableRow {
	var out []TableRow
	for _, m := range e.Metrics {
		values := map[string][]float64{}
		for _, s := range samples {
			for _, g := range s.Grades {
				if g.Metric == m.Name {
					values[g.Scheduler] = append(values[g.Scheduler], g.Value)
				}
			}
		}
		if len(values) > 0 {
			out = append(out, tableRow(e.Name, m, values))
		}
	}
	return out
}

func tableRow(workload string, m Metric, values map[string][]float64) TableRow {
	row := TableRow{Workload: workload, Metric: m, Values: map[string]report.Interval{}}
	sign := 1.0 // lower is better
	if m.HigherIsBetter {
		sign = -1
	}
	for name, v := range values {
		row.Values[name] = report.Estimate(v)
		if strings.HasPrefix(name, composedPolicy) || knowsTrueSizes(name) {
			continue
		}
		if b := row.Values[row.Best]; row.Best == "" || sign*row.Values[name].Mean < sign*b.Mean || (row.Values[name].Mean == b.Mean && name < row.Best) {
			row.Best = name
		}
	}
	us, them := values[composedPolicy], values[row.Best]
	var worse []float64
	for i := range min(len(us), len(them)) {
		if them[i] > 0 {
			worse = append(worse, sign*(us[i]/them[i]-1))
		}
	}
	row.Worse = report.Estimate(worse)
	row.Flag = row.Worse.Mean > tolerance
	return row
}

// knowsTrueSizes reports whether a scheduler uses knowledge that only a simulation has.
func knowsTrueSizes(name string) bool {
	i, err := policies.Get(name)
	return err == nil && i.SimOnly
}

// schedulersOf lists the columns of the table: the policies in their order, then the others.
func schedulersOf(rows []TableRow) []string {
	order := policies.Names()
	var out []string
	for i := range rows {
		for name := range rows[i].Values {
			if !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	rank := func(n string) string {
		if i := slices.Index(order, n); i >= 0 {
			return fmt.Sprintf("%03d", i)
		}
		return "9" + n
	}
	slices.SortFunc(out, func(a, b string) int {
		if rank(a) < rank(b) {
			return -1
		}
		return 1
	})
	return out
}

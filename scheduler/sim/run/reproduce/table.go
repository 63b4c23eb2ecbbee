package reproduce

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/report"
)

// Metric is what a paper judges schedulers by on its workload.
type Metric struct {
	Name   string // with its unit
	Higher bool   // the higher the better
	// Why explains where 3dsf is more than 5% worse than the best specialist,
	// and what would close it.
	Why string
}

// Grade is what one scheduler reached on one seed.
type Grade struct {
	Metric, Scheduler string
	Value             float64
}

func (s *Sample) grade(metric, scheduler string, v float64) {
	if !math.IsNaN(v) && !math.IsInf(v, 0) {
		s.Grades = append(s.Grades, Grade{metric, scheduler, v})
	}
}

// composition is the scheduler that is held against the specialists.
const composition = "3dsf"

// tolerance is how much worse than the best specialist may pass unexplained.
const tolerance = 0.05

// TableRow is one workload and metric under all schedulers.
type TableRow struct {
	Workload string
	Metric
	Values map[string]report.Interval // by scheduler
	// Best is the best specialist: of the schedulers that any user may run,
	// without those that know true sizes.
	Best string
	// Worse is by how much 3dsf is worse than it, as a part, over paired
	// seeds; below 0 it is better.
	Worse report.Interval
	Flag  bool
}

// tableRows makes an experiment's lines of the table.
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
	sign := 1.0 // the lower the better
	if m.Higher {
		sign = -1
	}
	for name, v := range values {
		row.Values[name] = report.Estimate(v)
		if strings.HasPrefix(name, composition) || oracle(name) {
			continue
		}
		if b := row.Values[row.Best]; row.Best == "" || sign*row.Values[name].Mean < sign*b.Mean || (row.Values[name].Mean == b.Mean && name < row.Best) {
			row.Best = name
		}
	}
	us, them := values[composition], values[row.Best]
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

// oracle tells whether a scheduler knows what only a simulation can.
func oracle(name string) bool {
	i, err := policies.Get(name)
	return err == nil && i.SimOnly
}

// schedulersOf lists the columns of the table: in the order of the policies,
// what is none of them behind.
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

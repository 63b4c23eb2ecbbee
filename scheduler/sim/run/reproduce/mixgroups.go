package reproduce

import "github.com/drover-run/drover/scheduler/sim/report"

// mixCell is one workload of a group: a number of jobs and a fraction of them with a deadline.
type mixCell struct {
	jobs             int
	deadlineFraction float64
}

// mixPair is the results of both contenders of a figure on one workload.
type mixPair struct{ us, base *mixResult }

// mixGroup holds the runs of a figure whose published values are means over several workloads. The
// papers print means of each scheduler over the group, so a claim is the ratio of two means and not
// the mean of ratios.
type mixGroup struct {
	cells []mixCell
	pairs map[mixCell]mixPair
}

// cells returns all combinations of sizes and fractions of deadline jobs.
func cells(sizes []int, fractions ...float64) []mixCell {
	var out []mixCell
	for _, n := range sizes {
		for _, f := range fractions {
			out = append(out, mixCell{n, f})
		}
	}
	return out
}

// runGroup runs both contenders of a figure on all workloads of its group.
func (m benchmarkMix) runGroup(e *Env, s *Sample, us, base contender, seed uint64, cells []mixCell) (*mixGroup, error) {
	g := &mixGroup{cells: cells, pairs: map[mixCell]mixPair{}}
	for _, c := range cells {
		a, b, err := m.withJobs(c.jobs, c.deadlineFraction).runPair(e, s, us, base, seed)
		if err != nil {
			return nil, err
		}
		g.pairs[c] = mixPair{a, b}
	}
	return g, nil
}

// at returns the runs of one workload of the group.
func (g *mixGroup) at(jobs int, fraction float64) (us, base *mixResult) {
	p := g.pairs[mixCell{jobs, fraction}]
	return p.us, p.base
}

// ratio returns the mean of a number over the group's workloads for us over that for the baseline.
func (g *mixGroup) ratio(number func(*mixResult) float64) float64 {
	us, base := 0.0, 0.0
	for _, c := range g.cells {
		us += number(g.pairs[c].us)
		base += number(g.pairs[c].base)
	}
	return us / base
}

// completionRatio returns the mean over the group's workloads of our completion time over the
// baseline's. The workloads differ in size, so a ratio of mean times would be that of the largest.
func (g *mixGroup) completionRatio() float64 {
	var x []float64
	for _, c := range g.cells {
		p := g.pairs[c]
		x = append(x, p.us.Makespan/p.base.Makespan)
	}
	return report.Estimate(x).Mean
}

// setClaims sets the seven ratios that 3DSF's figures report as means over a group.
func (g *mixGroup) setClaims(s *Sample) {
	s.setClaim("qos", g.ratio(func(m *mixResult) float64 { return m.DeadlineRate }))
	s.setClaim("throughput", g.ratio(func(m *mixResult) float64 { return m.Throughput }))
	s.setClaim("locality", g.ratio(func(m *mixResult) float64 { return m.LocalityNode }))
	s.setClaim("completion", g.completionRatio())
	s.setClaim("cpu", g.ratio(func(m *mixResult) float64 { return m.UtilisationCPU }))
	s.setClaim("memory", g.ratio(func(m *mixResult) float64 { return m.UtilisationMemory }))
	s.setClaim("io", g.ratio(func(m *mixResult) float64 { return m.UtilisationIO }))
}

// completionRate returns the mean over the group's workloads of the fraction of the jobs that we
// completed when the baseline had completed the published fraction, over that fraction.
func (g *mixGroup) completionRate(published float64) float64 {
	var x []float64
	for _, c := range g.cells {
		p := g.pairs[c]
		at := p.base.finishes[int(published*float64(len(p.base.finishes)))]
		x = append(x, p.us.completedBy(at)/published)
	}
	return report.Estimate(x).Mean
}

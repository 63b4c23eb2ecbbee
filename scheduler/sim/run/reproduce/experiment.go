package reproduce

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler/sim/report"
)

// Point is a value of a curve for one seed.
type Point struct {
	Plot, Line string
	X, Y       float64
}

// Sample is what one seed of an experiment gives.
type Sample struct {
	Claims map[string]float64 // by the end of the claim's id
	Points []Point
	Grades []Grade // of an experiment with Metrics
}

func (s *Sample) set(claim string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return // a ratio to nothing: the claim is reported as not measured
	}
	if s.Claims == nil {
		s.Claims = map[string]float64{}
	}
	s.Claims[claim] = v
}

func (s *Sample) point(plot, line string, x, y float64) {
	if !math.IsNaN(y) && !math.IsInf(y, 0) {
		s.Points = append(s.Points, Point{plot, line, x, y})
	}
}

// errAbsent is the class of what this build or this machine lacks.
var errAbsent = errors.New("absent")

// Experiment is one workload of a paper under the schedulers it compares.
type Experiment struct {
	Name  string // as in the claims
	Paper string
	Seeds int
	Exact bool // it draws nothing: one seed is enough
	// Cost is about how many seconds a seed takes on one core of 2020s make;
	// only the time left goes by it.
	Cost float64
	// Assumes are the names of calibrated parameters it uses.
	Assumes []string
	// Why explains misses of this experiment, by the end of the claim's id;
	// "" for all others.
	Why map[string]string
	Run func(e *Env, seed uint64) (*Sample, error)
	// Metrics are what a workload of the table of all schedulers is graded by.
	Metrics []Metric
}

// Env is what experiments run in.
type Env struct {
	Cal *Calibration
	// Quick makes everything small: it shows that all runs, not what is true.
	Quick bool
	// FB2010 opens the trace, or says that it is not there.
	FB2010 func() (io.ReadCloser, error)

	plans *plans
	stop  func() error // asked by every run
}

// small is a number of jobs or projects, a tenth of it in a quick run.
func (e *Env) small(n int) int {
	if e.Quick {
		return max(1, n/10)
	}
	return n
}

// Experiments lists all of them in the order of the report.
func Experiments() []Experiment {
	return slices.Concat(lasExperiments(), twoTierExperiments(), pdsExperiments(), dsfExperiments(), everyoneExperiments())
}

// Outcome is an experiment that was run.
type Outcome struct {
	Experiment
	Verdicts []Verdict
	Curves   map[string][]report.Line // by plot
	Err      error
	// Sensitivity has the mean of each claim with a parameter shifted.
	Sensitivity []Shift
	// Rows are lines of the table of all workloads and schedulers.
	Rows []TableRow

	shifts     []Shifted
	shiftSeeds int
}

// Shift is a claim's mean with one parameter shifted, and what the mean alone
// would make of the claim.
type Shift struct {
	Shifted
	Claim   string
	Mean    float64
	Verdict string
}

// Select gives the experiments that a user named: a paper, a figure, an
// experiment, "claims" for all but the table of all schedulers, or all for "".
func Select(what string, claims []Claim) ([]Experiment, error) {
	all := Experiments()
	if what == "" {
		return all, nil
	}
	w := strings.ToLower(what)
	var out []Experiment
	var names []string
	for _, e := range all {
		names = append(names, e.Name)
		hit := (w == "claims" && len(e.Metrics) == 0) || strings.EqualFold(e.Paper, w) || strings.HasPrefix(e.Name, w)
		for _, c := range claims {
			hit = hit || (c.Experiment == e.Name && (strings.EqualFold(c.Figure, w) || strings.EqualFold(c.Paper+" "+c.Figure, w) || c.ID == w))
		}
		if hit {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing is called %q: use a paper (3DSF, PDSonQueue, LAS_MQ, Two-tier), a figure such as \"Fig. 8a\", claims (all but the table of all schedulers), or one of %v", what, names)
	}
	return out, nil
}

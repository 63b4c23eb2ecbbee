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

// Point is one value of a curve for one seed.
type Point struct {
	Plot, Line string
	X, Y       float64
}

// Sample is the result of an experiment for one seed.
type Sample struct {
	Claims map[string]float64 // keyed by the last part of the claim's id
	Points []Point
	Grades []Grade // of experiments with Metrics

	made string // version of the program and day of the run, "" without a store
}

func (s *Sample) setClaim(claim string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return // the divisor is 0: the claim counts as not measured
	}
	if s.Claims == nil {
		s.Claims = map[string]float64{}
	}
	s.Claims[claim] = v
}

func (s *Sample) addPoint(plot, line string, x, y float64) {
	if !math.IsNaN(y) && !math.IsInf(y, 0) {
		s.Points = append(s.Points, Point{plot, line, x, y})
	}
}

// errNotStored means that a Runner with StoredOnly found no sample.
var errNotStored = errors.New("no result is stored")

// errUnavailable means that this build or machine lacks something the experiment needs.
var errUnavailable = errors.New("absent")

// Experiment is one workload of a paper under the schedulers that it compares.
type Experiment struct {
	Name  string // as in the claims
	Paper string
	Seeds int
	Exact bool // deterministic: one seed suffices
	// Cost is the approximate CPU time of a seed in seconds. It only determines the estimate of the
	// time left.
	Cost float64
	// Assumes names the calibrated parameters that the experiment uses.
	Assumes []string
	// Why explains claims that are not reproduced, keyed by the last part of the claim's id; "" is
	// for all others.
	Why map[string]string
	Run func(e *Env, seed uint64) (*Sample, error)
	// Metrics are the metrics of a workload in the table of all schedulers.
	Metrics []Metric
}

// Env is the environment of experiments.
type Env struct {
	Cal *Calibration
	// Quick makes all workloads small: it checks that everything runs, the values mean nothing.
	Quick bool
	// FB2010 opens the trace or returns fs.ErrNotExist.
	FB2010 func() (io.ReadCloser, error)

	twoTierRuns *twoTierCache
	stop        func() error // called by every simulation
}

// scaleDown returns a number of jobs or projects, a tenth of n in a quick run.
func (e *Env) scaleDown(n int) int {
	if e.Quick {
		return max(1, n/10)
	}
	return n
}

// experiments lists all experiments in the order of the report.
func experiments() []Experiment {
	return slices.Concat(lasExperiments(), twoTierExperiments(), pdsExperiments(), dsfExperiments(), allSchedulersExperiments())
}

// Outcome is an experiment with its evaluated results.
type Outcome struct {
	Experiment
	Verdicts []Verdict
	Curves   map[string][]report.Line // by plot
	Err      error
	// Sensitivity has the mean of each claim with one parameter shifted.
	Sensitivity []Shift
	// Rows are the experiment's rows of the table of all schedulers.
	Rows []TableRow
	// Made says which versions of the program made the samples, and when.
	Made string

	shifts     []ParameterShift
	shiftSeeds int
}

// Shift is a claim's mean with one parameter shifted, and the result by that mean alone.
type Shift struct {
	ParameterShift
	Claim   string
	Mean    float64
	Verdict string
}

// SelectExperiments returns the experiments that a user named: by paper, figure or experiment,
// "claims" for all but the table of all schedulers, "" for all.
func SelectExperiments(what string, claims []Claim) ([]Experiment, error) {
	all := experiments()
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
		return nil, fmt.Errorf("unknown experiment %q: use a paper (3DSF, PDSonQueue, LAS_MQ, Two-tier), a figure such as \"Fig. 8a\", claims (all but the table of all schedulers), or one of %s", what, strings.Join(names, ", "))
	}
	return out, nil
}

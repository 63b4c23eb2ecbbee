package reproduce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
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
}

func (s *Sample) set(claim string, v float64) {
	if s.Claims == nil {
		s.Claims = map[string]float64{}
	}
	s.Claims[claim] = v
}

func (s *Sample) point(plot, line string, x, y float64) {
	s.Points = append(s.Points, Point{plot, line, x, y})
}

// errAbsent is the class of what this build or this machine lacks.
var errAbsent = errors.New("absent")

// Experiment is one workload of a paper under the schedulers it compares.
type Experiment struct {
	Name  string // as in the claims
	Paper string
	Seeds int
	Exact bool // it draws nothing: one seed is enough
	// Assumes are the names of calibrated parameters it uses.
	Assumes []string
	// Why explains misses of this experiment, by the end of the claim's id;
	// "" for all others.
	Why map[string]string
	Run func(e *Env, seed uint64) (*Sample, error)
}

// Env is what experiments run in.
type Env struct {
	Cal *Calibration
	// FB2010 opens the trace, or says that it is not there.
	FB2010 func() (io.ReadCloser, error)
}

// Experiments lists all of them in the order of the report.
func Experiments() []Experiment {
	return slices.Concat(lasExperiments(), twoTierExperiments(), pdsExperiments(), dsfExperiments())
}

// Outcome is an experiment that was run.
type Outcome struct {
	Experiment
	Verdicts []Verdict
	Curves   map[string][]report.Line // by plot
	Err      error
	// Sensitivity has the mean of each claim with a parameter multiplied.
	Sensitivity []Shift
}

// Shift is a claim's mean with one parameter multiplied.
type Shift struct {
	Parameter string
	Factor    float64
	Claim     string
	Mean      float64
}

// Select gives the experiments that a user named: a paper, a figure, an
// experiment, or all for "".
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
		hit := strings.EqualFold(e.Paper, w) || strings.HasPrefix(e.Name, w)
		for _, c := range claims {
			hit = hit || (c.Experiment == e.Name && (strings.EqualFold(c.Figure, w) || strings.EqualFold(c.Paper+" "+c.Figure, w) || c.ID == w))
		}
		if hit {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("nothing is called %q: use a paper (3DSF, PDSonQueue, LAS_MQ, Two-tier), a figure such as \"Fig. 8a\", or one of %v", what, names)
	}
	return out, nil
}

// Run runs an experiment for its seeds and judges its claims. seeds above 0
// replaces their number.
func Run(ctx context.Context, env *Env, e Experiment, claims []Claim, seeds, parallel int) *Outcome {
	o := &Outcome{Experiment: e}
	n := e.Seeds
	if seeds > 0 {
		n = seeds
	}
	if e.Exact {
		n = 1
	}
	samples, err := sample(ctx, env, e, n, parallel)
	o.Err = err
	for _, c := range claims {
		if c.Experiment == e.Name {
			o.Verdicts = append(o.Verdicts, verdict(c, e, samples, err))
		}
	}
	o.Curves = curves(samples)
	return o
}

func sample(ctx context.Context, env *Env, e Experiment, n, parallel int) ([]*Sample, error) {
	out, errs := make([]*Sample, n), make([]error, n)
	run.Parallel(n, parallel, func(i int) {
		if errs[i] = ctx.Err(); errs[i] == nil {
			out[i], errs[i] = e.Run(env, uint64(i+1))
		}
	})
	return out, errors.Join(errs...)
}

func verdict(c Claim, e Experiment, samples []*Sample, err error) Verdict {
	key := strings.TrimPrefix(c.ID, e.Name+"/")
	var values []float64
	for _, s := range samples {
		if s != nil {
			if v, ok := s.Claims[key]; ok {
				values = append(values, v)
			}
		}
	}
	v := Judge(c, values, e.Exact)
	switch {
	case len(values) > 0:
	case err != nil:
		v.Missing = strings.SplitN(err.Error(), "\n", 2)[0]
	default:
		v.Missing = "this experiment does not measure it"
	}
	if !v.Reproduced {
		if v.Why = e.Why[key]; v.Why == "" {
			v.Why = e.Why[""]
		}
	}
	return v
}

// curves averages the points of all seeds.
func curves(samples []*Sample) map[string][]report.Line {
	type at struct {
		plot, line string
		x          float64
	}
	values := map[at][]float64{}
	var order []at
	for _, s := range samples {
		if s == nil {
			continue
		}
		for _, p := range s.Points {
			k := at{p.Plot, p.Line, p.X}
			if values[k] == nil {
				order = append(order, k)
			}
			values[k] = append(values[k], p.Y)
		}
	}
	out := map[string][]report.Line{}
	for _, k := range order {
		lines := out[k.plot]
		i := slices.IndexFunc(lines, func(l report.Line) bool { return l.Name == k.line })
		if i < 0 {
			i = len(lines)
			lines = append(lines, report.Line{Name: k.line})
		}
		e := report.Estimate(values[k])
		if e.N < 2 {
			e.Half = 0
		}
		l := &lines[i]
		l.X, l.Y, l.Err = append(l.X, k.x), append(l.Y, e.Mean), append(l.Err, e.Half)
		out[k.plot] = lines
	}
	return out
}

// Sensitivity runs an experiment again with each of its assumptions at 0.8
// and 1.25 times its value.
func Sensitivity(ctx context.Context, env *Env, o *Outcome, seeds, parallel int) error {
	for _, name := range o.Assumes {
		for _, f := range []float64{0.8, 1.25} {
			shifted := *env
			shifted.Cal = env.Cal.With(name, f)
			samples, err := sample(ctx, &shifted, o.Experiment, seeds, parallel)
			if err != nil {
				return fmt.Errorf("%s with %s x %g: %w", o.Name, name, f, err)
			}
			for i := range o.Verdicts {
				v := verdict(o.Verdicts[i].Claim, o.Experiment, samples, nil)
				o.Sensitivity = append(o.Sensitivity, Shift{name, f, v.ID, v.Ours.Mean})
			}
		}
	}
	return nil
}

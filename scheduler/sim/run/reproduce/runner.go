package reproduce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// Runner runs experiments. Its work is a list of units, one for each seed of
// each experiment and of each shift of a parameter; units know nothing of each
// other, so what comes out does not depend on Parallel or on what a Store kept.
type Runner struct {
	Env         *Env
	Claims      []Claim
	Experiments []Experiment
	// Seeds above 0 replaces the experiments' own numbers.
	Seeds int
	// Sensitivity is for how many seeds each experiment is run with each of
	// its assumptions low and high; 0: not at all.
	Sensitivity int
	Parallel    int
	// Store, if not nil, keeps samples between runs.
	Store *Store
	// Tell, if not nil, is called after each unit, one call at a time.
	Tell func(Progress)
}

// Progress is how far a Runner is.
type Progress struct {
	Done, Of  int
	Kept      int // of those done, from the store
	Left      time.Duration
	Finished  string // the experiment whose last unit this was, "" for none
	LastError error  // of this unit
}

// Shifted is one parameter away from its calibrated value.
type Shifted struct {
	Parameter string
	Value     float64
	High      bool
}

// unit is one seed of an experiment, maybe with a parameter shifted.
type unit struct {
	exp, shift int // shift -1: none
	seed       uint64
	cost       float64

	sample *Sample
	err    error
}

// Run runs everything and judges the claims. An error of a unit is its
// experiment's; Run itself fails only when ctx ends.
func (r *Runner) Run(ctx context.Context) ([]*Outcome, error) {
	r.Env.plans, r.Env.stop = &plans{}, run.Stop(ctx)
	outs := make([]*Outcome, len(r.Experiments))
	var units []*unit
	left := make([]int, len(outs))
	for i, e := range r.Experiments {
		outs[i] = &Outcome{Experiment: e, shifts: r.shifts(&e)}
		us := r.units(i, &e, len(outs[i].shifts))
		left[i] = len(us)
		units = append(units, us...)
	}
	r.work(ctx, outs, units, left)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for i, o := range outs {
		r.judge(o, slices.Collect(func(yield func(*unit) bool) {
			for _, u := range units {
				if u.exp == i && !yield(u) {
					return
				}
			}
		}))
	}
	return outs, nil
}

// shifts lists the shifts of an experiment's assumptions.
func (r *Runner) shifts(e *Experiment) []Shifted {
	var out []Shifted
	if r.Sensitivity <= 0 {
		return nil
	}
	for _, name := range e.Assumes {
		p := r.Env.Cal.Parameters[name]
		out = append(out, Shifted{name, p.Low, false}, Shifted{name, p.High, true})
	}
	return out
}

func (r *Runner) units(exp int, e *Experiment, shifts int) []*unit {
	n, s := e.Seeds, r.Sensitivity
	if r.Seeds > 0 {
		n, s = r.Seeds, min(s, r.Seeds)
	}
	if e.Exact {
		n, s = 1, 1
	}
	var out []*unit
	for seed := range n {
		out = append(out, &unit{exp: exp, shift: -1, seed: uint64(seed + 1), cost: max(e.Cost, 0.01)})
	}
	for k := range shifts {
		for seed := range min(s, n) {
			out = append(out, &unit{exp: exp, shift: k, seed: uint64(seed + 1), cost: max(e.Cost, 0.01)})
		}
	}
	return out
}

// work runs the units, those of one experiment after the other's, and tells.
func (r *Runner) work(ctx context.Context, outs []*Outcome, units []*unit, left []int) {
	total, done, ran := 0.0, 0.0, 0.0
	for _, u := range units {
		total += u.cost
	}
	var mu sync.Mutex
	p := Progress{Of: len(units)}
	start := time.Now()
	run.Parallel(len(units), r.Parallel, func(i int) {
		u := units[i]
		kept := false
		if u.err = ctx.Err(); u.err == nil {
			kept = r.one(outs[u.exp], u)
		}
		mu.Lock()
		defer mu.Unlock()
		done += u.cost
		p.Done++
		if kept {
			p.Kept++
		} else {
			ran += u.cost
		}
		if left[u.exp]--; ran > 0 {
			p.Left = time.Duration(float64(time.Since(start)) * (total - done) / ran)
		}
		p.Finished, p.LastError = "", u.err
		if left[u.exp] == 0 {
			p.Finished = outs[u.exp].Name
		}
		if r.Tell != nil && ctx.Err() == nil {
			r.Tell(p)
		}
	})
}

// one runs a unit, or takes its sample from the store.
func (r *Runner) one(o *Outcome, u *unit) (kept bool) {
	env := *r.Env
	name := fmt.Sprintf("%s seed %d", o.Name, u.seed)
	if u.shift >= 0 {
		s := o.shifts[u.shift]
		env.Cal = env.Cal.With(s.Parameter, s.Value)
		name += fmt.Sprintf(" %s %g", s.Parameter, s.Value)
	}
	key := fmt.Sprintf("%s quick %v %v", name, env.Quick, env.Cal.values(o.Assumes))
	if s := r.Store.get(name, key); s != nil {
		u.sample = s
		return true
	}
	if u.sample, u.err = o.Experiment.Run(&env, u.seed); u.err != nil {
		u.err = fmt.Errorf("%s: %w", name, u.err)
		return false
	}
	u.err = r.Store.put(name, key, u.sample)
	return false
}

// judge brings an outcome's units together.
func (r *Runner) judge(o *Outcome, units []*unit) {
	samples := make([][]*Sample, len(o.shifts)+1) // the first: nothing shifted
	var errs []error
	for _, u := range units {
		errs = append(errs, u.err)
		if u.sample != nil {
			samples[u.shift+1] = append(samples[u.shift+1], u.sample)
		}
	}
	o.Err = errors.Join(errs...)
	for _, c := range r.Claims {
		if c.Experiment != o.Name {
			continue
		}
		v := verdict(c, &o.Experiment, samples[0], o.Err)
		o.Verdicts = append(o.Verdicts, v)
		for k, s := range o.shifts {
			w := verdict(c, &o.Experiment, samples[k+1], nil)
			o.Sensitivity = append(o.Sensitivity, Shift{Shifted: s, Claim: c.ID, Mean: w.Ours.Mean, Verdict: byMean(&w)})
		}
	}
	if len(o.shifts) > 0 {
		o.shiftSeeds = len(samples[1])
	}
	o.Curves = curves(samples[0])
	o.Rows = tableRows(&o.Experiment, samples[0])
}

// byMean judges a shifted claim by its mean alone: with few seeds the question
// is where the value goes, not how sure it is.
func byMean(v *Verdict) string {
	m := Judge(v.Claim, []float64{v.Ours.Mean}, true)
	switch {
	case math.IsNaN(v.Ours.Mean):
		return "none"
	case m.Reproduced:
		return "reproduced"
	case m.SignOK:
		return "sign only"
	default:
		return "missed"
	}
}

func verdict(c Claim, e *Experiment, samples []*Sample, err error) Verdict {
	key := strings.TrimPrefix(c.ID, e.Name+"/")
	var values []float64
	for _, s := range samples {
		if v, ok := s.Claims[key]; ok {
			values = append(values, v)
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

// curves averages the points of all samples.
func curves(samples []*Sample) map[string][]report.Line {
	type at struct {
		plot, line string
		x          float64
	}
	values := map[at][]float64{}
	var order []at
	for _, s := range samples {
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

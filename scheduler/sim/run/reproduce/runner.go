package reproduce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/drover-run/drover/scheduler/sim/report"
	"github.com/drover-run/drover/scheduler/sim/run"
)

// Runner runs experiments. It divides them into independent units, one per seed of each experiment
// and of each parameter shift, so the results depend neither on Parallel nor on the contents of
// Store.
type Runner struct {
	Env         *Env
	Claims      []Claim
	Experiments []Experiment
	// Seeds above 0 replaces the experiments' own numbers of seeds.
	Seeds int
	// Sensitivity is the number of seeds for which each experiment is run with each of its
	// assumptions low and high; 0: none.
	Sensitivity int
	Parallel    int
	// Store, if not nil, stores samples between runs.
	Store *Store
	// StoredOnly evaluates only the samples in Store and simulates nothing.
	StoredOnly bool
	// OnProgress, if not nil, is called after each unit. Calls do not overlap.
	OnProgress func(Progress)
}

// Progress reports the progress of a Runner.
type Progress struct {
	Done, Total int
	FromStore   int // of the done units, loaded from the store
	TimeLeft    time.Duration
	Finished    string // the experiment whose last unit this was, "" if none
}

// ParameterShift is one parameter at the low or high end of its range.
type ParameterShift struct {
	Parameter string
	Value     float64
	High      bool
}

// unit is one seed of an experiment, possibly with a shifted parameter.
type unit struct {
	exp, shift int // shift is -1 for none
	seed       uint64
	cost       float64

	sample *Sample
	err    error
}

// Run runs all experiments and evaluates their claims. An error of a unit belongs to its
// experiment; Run itself fails only if ctx ends.
func (r *Runner) Run(ctx context.Context) ([]*Outcome, error) {
	r.Env.twoTierRuns, r.Env.stop = &twoTierCache{}, run.StopFunc(ctx)
	outs := make([]*Outcome, len(r.Experiments))
	var units []*unit
	left := make([]int, len(outs))
	for i, e := range r.Experiments {
		outs[i] = &Outcome{Experiment: e, shifts: r.listShifts(&e)}
		us := r.makeUnits(i, &e, len(outs[i].shifts))
		left[i] = len(us)
		units = append(units, us...)
	}
	r.runUnits(ctx, outs, units, left)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	for i, o := range outs {
		r.evaluate(o, slices.Collect(func(yield func(*unit) bool) {
			for _, u := range units {
				if u.exp == i && !yield(u) {
					return
				}
			}
		}))
	}
	return outs, nil
}

// listShifts lists the parameter shifts of an experiment's assumptions.
func (r *Runner) listShifts(e *Experiment) []ParameterShift {
	var out []ParameterShift
	if r.Sensitivity <= 0 {
		return nil
	}
	for _, name := range e.Assumes {
		p := r.Env.Cal.Parameters[name]
		out = append(out, ParameterShift{name, p.Low, false}, ParameterShift{name, p.High, true})
	}
	return out
}

func (r *Runner) makeUnits(exp int, e *Experiment, shifts int) []*unit {
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

// runUnits runs the units and reports progress.
func (r *Runner) runUnits(ctx context.Context, outs []*Outcome, units []*unit, unitsLeft []int) {
	total, done, ran := 0.0, 0.0, 0.0
	for _, u := range units {
		total += u.cost
	}
	var mu sync.Mutex
	p := Progress{Total: len(units)}
	start := time.Now()
	run.ForEachParallel(len(units), r.Parallel, func(i int) {
		u := units[i]
		fromStore := false
		if u.err = ctx.Err(); u.err == nil {
			fromStore = r.runUnit(outs[u.exp], u)
		}
		mu.Lock()
		defer mu.Unlock()
		done += u.cost
		p.Done++
		if fromStore {
			p.FromStore++
		} else {
			ran += u.cost
		}
		if unitsLeft[u.exp]--; ran > 0 {
			p.TimeLeft = time.Duration(float64(time.Since(start)) * (total - done) / ran)
		}
		p.Finished = ""
		if unitsLeft[u.exp] == 0 {
			p.Finished = outs[u.exp].Name
		}
		if r.OnProgress != nil && ctx.Err() == nil {
			r.OnProgress(p)
		}
	})
}

// runUnit runs a unit or loads its sample from the store, and reports whether it was loaded.
func (r *Runner) runUnit(o *Outcome, u *unit) (fromStore bool) {
	env := *r.Env
	name := fmt.Sprintf("%s seed %d", o.Name, u.seed)
	if u.shift >= 0 {
		s := o.shifts[u.shift]
		env.Cal = env.Cal.withValue(s.Parameter, s.Value)
		name += fmt.Sprintf(" %s %g", s.Parameter, s.Value)
	}
	key := fmt.Sprintf("%s quick %v values %s", name, env.Quick, env.Cal.valuesHash())
	if s := r.Store.get(name, key); s != nil {
		u.sample = s
		return true
	}
	if r.StoredOnly {
		u.err = errNotStored
		return false
	}
	if u.sample, u.err = o.Experiment.Run(&env, u.seed); u.err != nil {
		u.err = fmt.Errorf("%s: %w", name, u.err)
		return false
	}
	u.err = r.Store.put(name, key, u.sample)
	return false
}

// evaluate computes the verdicts, curves and rows of an outcome from its units.
func (r *Runner) evaluate(o *Outcome, units []*unit) {
	samples := make([][]*Sample, len(o.shifts)+1) // samples[0]: no parameter is shifted
	var errs []error
	for _, u := range units {
		if !errors.Is(u.err, errNotStored) {
			errs = append(errs, u.err)
		}
		if u.sample != nil {
			samples[u.shift+1] = append(samples[u.shift+1], u.sample)
		}
	}
	if o.Err = errors.Join(errs...); o.Err == nil && len(samples[0]) == 0 {
		o.Err = errNotStored
	}
	o.Made = describeOrigins(samples[0])
	for _, c := range r.Claims {
		if c.Experiment != o.Name {
			continue
		}
		v := evaluateSamples(c, &o.Experiment, samples[0], o.Err)
		o.Verdicts = append(o.Verdicts, v)
		for k, s := range o.shifts {
			if len(samples[k+1]) == 0 {
				continue
			}
			w := evaluateSamples(c, &o.Experiment, samples[k+1], nil)
			o.Sensitivity = append(o.Sensitivity, Shift{ParameterShift: s, Claim: c.ID, Mean: w.Ours.Mean, Verdict: classifyByMean(&w)})
		}
	}
	for k := range o.shifts {
		o.shiftSeeds = max(o.shiftSeeds, len(samples[k+1]))
	}
	o.Curves = averageCurves(samples[0])
	o.Rows = tableRows(&o.Experiment, samples[0])
}

// describeOrigins says how many samples each version of the program made, and when.
func describeOrigins(samples []*Sample) string {
	seeds := map[string]int{}
	for _, s := range samples {
		if s.made != "" {
			seeds[s.made]++
		}
	}
	var parts []string
	for _, made := range slices.Sorted(maps.Keys(seeds)) {
		parts = append(parts, fmt.Sprintf("%s by %s", seedsText(seeds[made]), made))
	}
	return strings.Join(parts, ", ")
}

// classifyByMean classifies a claim by its mean alone: with few seeds a shift shows where the value
// moves, not how certain it is.
func classifyByMean(v *Verdict) string {
	m := evaluateClaim(v.Claim, []float64{v.Ours.Mean}, true)
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

func evaluateSamples(c Claim, e *Experiment, samples []*Sample, err error) Verdict {
	key := strings.TrimPrefix(c.ID, e.Name+"/")
	var values []float64
	for _, s := range samples {
		if v, ok := s.Claims[key]; ok {
			values = append(values, v)
		}
	}
	v := evaluateClaim(c, values, e.Exact)
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

// averageCurves averages the points of all samples.
func averageCurves(samples []*Sample) map[string][]report.Line {
	type pointKey struct {
		plot, line string
		x          float64
	}
	values := map[pointKey][]float64{}
	var order []pointKey
	for _, s := range samples {
		for _, p := range s.Points {
			k := pointKey{p.Plot, p.Line, p.X}
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
			e.HalfWidth = 0
		}
		l := &lines[i]
		l.X, l.Y, l.Err = append(l.X, k.x), append(l.Y, e.Mean), append(l.Err, e.HalfWidth)
		out[k.plot] = lines
	}
	return out
}

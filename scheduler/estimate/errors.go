package estimate

import (
	"math"
	"slices"
)

// Sizes of the records of errors.
const (
	keptStages = 512
	keptTasks  = 2048
	enough     = 16 // fewer are not trusted
)

// errors keeps the latest errors of first predictions in two parts. Both are
// taken when a stage is complete: while it runs, those of its tasks that ended
// are the short ones.
type errors struct {
	stages [Sources + 1][]lateStage // by source of the first prediction; a ring once it is full
	nextAt [Sources + 1]int
	tasks  []float64 // log(run time / mean of its stage), as wide as among all tasks; likewise
	taskAt int
}

// lateStage is how the tasks of a complete stage compare with its first
// prediction.
type lateStage struct {
	n        int
	mean     float64 // of log(run time / prediction)
	variance float64 // of the same, 0 with one task
}

// maxLogs bounds the run times kept of one stage: beyond it every second one is
// left out, then every fourth and so on.
const maxLogs = 256

// add takes a finished task into what is known of its stage.
func (o *own) add(run float64) {
	log := math.Log(run)
	if o.n%o.stride() == 0 {
		if len(o.logs) == maxLogs {
			for i := range maxLogs / 2 {
				o.logs[i] = o.logs[2*i]
			}
			o.logs = o.logs[:maxLogs/2]
			o.doubled++
		}
		if o.n%o.stride() == 0 {
			o.logs = append(o.logs, log)
		}
	}
	o.n++
	o.sum += run
}

func (o *own) stride() int { return 1 << o.doubled }

// complete takes the errors of a stage that ended.
func (e *errors) complete(o *own) {
	n := float64(len(o.logs))
	mean, squares := 0.0, 0.0
	for _, v := range o.logs {
		mean += v / n
	}
	for _, v := range o.logs {
		squares += (v - mean) * (v - mean)
		if n > 1 {
			e.tasks = put(e.tasks, &e.taskAt, keptTasks, (v-mean)*math.Sqrt(n/(n-1)))
		}
	}
	if o.first.Source != None {
		l := lateStage{n: len(o.logs), mean: mean - math.Log(o.first.Run.Seconds())}
		if n > 1 {
			l.variance = squares / (n - 1)
		}
		e.stages[o.first.Source] = put(e.stages[o.first.Source], &e.nextAt[o.first.Source], keptStages, l)
	}
	o.logs = nil
}

// put adds to a ring of limited size.
func put[T any](ring []T, next *int, limit int, v T) []T {
	if len(ring) < limit {
		return append(ring, v)
	}
	ring[*next] = v
	*next = (*next + 1) % limit
	return ring
}

// Spread is how wrong predictions of one source have been, as distributions of
// the logarithm of truth over prediction.
type Spread struct {
	Assumed bool // too few errors are known
	Stage   Quantiles
	Task    Quantiles
}

// Quantiles is a distribution by values at equal steps of its parts, ascending.
// All values that are known are kept: what the longest of many tasks takes
// depends on the tail. The empty one is 0 always.
type Quantiles []float64

// At gives the factor at part u of the distribution, 0 to 1.
func (q Quantiles) At(u float64) float64 {
	switch len(q) {
	case 0:
		return 1
	case 1:
		return math.Exp(q[0])
	}
	at := min(max(u, 0), 1) * float64(len(q)-1)
	i := min(int(at), len(q)-2)
	return math.Exp(q[i] + (at-float64(i))*(q[i+1]-q[i]))
}

// assumedStage and assumedTask are deviations before there are errors: guesses,
// on the wide side.
func assumedStage(s Source) float64 {
	switch s {
	case None:
		return 1.5
	case Tenant:
		return 1
	case Model, History:
		return 0.3
	default: // Own: the mean of the stage itself
		return 0
	}
}

const assumedTask = 0.3

func normal(sigma float64) Quantiles {
	q := make(Quantiles, 257)
	for i := range q {
		p := min(max(float64(i)/float64(len(q)-1), 0.002), 0.998)
		q[i] = sigma * math.Sqrt2 * math.Erfinv(2*p-1)
	}
	return q
}

// Spread gives the errors of predictions from a source. O(errors kept x log).
func (b *Book) Spread(s Source) Spread {
	e := &b.errors
	out := Spread{}
	if len(e.tasks) >= enough {
		out.Task = quantiles(slices.Clone(e.tasks))
	} else {
		out.Task, out.Assumed = normal(assumedTask), true
	}
	switch s {
	case Own: // a mean of run times, while errors of tasks are about the mean of logarithms
		out.Stage = constant(-math.Log(meanFactor(out.Task)))
		return out
	case Bound: // anything below it
		const steps = 64
		for i := range steps + 1 {
			out.Stage = append(out.Stage, math.Log(0.1+0.9*float64(i)/steps))
		}
		out.Task, out.Assumed = nil, true
		return out
	}
	var means []float64
	within, weight := 0.0, 0.0
	for _, l := range e.stages[s] {
		means = append(means, l.mean)
		within += l.variance * float64(l.n-1)
		weight += float64(l.n - 1)
	}
	if len(means) < enough {
		out.Stage, out.Assumed = normal(assumedStage(s)), true
		return out
	}
	shrink(means, e.stages[s], within, weight)
	out.Stage = quantiles(means)
	if weight == 0 && len(e.tasks) < enough {
		out.Task = nil // it is in the other part
	}
	return out
}

// shrink takes out of the stages' means what only comes of their being means of
// few tasks: that part is drawn again for each task.
func shrink(means []float64, of []lateStage, within, weight float64) {
	if weight == 0 {
		return // every stage has one task: it is the same which part is whose
	}
	centre, noise := 0.0, 0.0
	for i, m := range means {
		centre += m / float64(len(means))
		noise += within / weight / float64(of[i].n) / float64(len(means))
	}
	between := 0.0
	for _, m := range means {
		between += (m - centre) * (m - centre) / float64(len(means))
	}
	f := 0.0
	if between > noise {
		f = math.Sqrt((between - noise) / between)
	}
	for i, m := range means {
		means[i] = centre + f*(m-centre)
	}
}

func constant(v float64) Quantiles { return Quantiles{v} }

// meanFactor is the mean of the factors of a distribution.
func meanFactor(q Quantiles) float64 {
	sum := 0.0
	for _, v := range q {
		sum += math.Exp(v) / float64(len(q))
	}
	return sum
}

func quantiles(v []float64) Quantiles {
	slices.Sort(v)
	return v
}

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

// errors keeps the latest errors of first predictions in two parts.
type errors struct {
	stages [Sources + 1][]*lateStage // by source of the first prediction
	nextAt [Sources + 1]int
	tasks  []float64 // log(run time / mean of the stage's earlier tasks), shrunk to what a whole stage would show
	taskAt int
}

// lateStage is how a stage's tasks compare with its first prediction.
type lateStage struct {
	n       int
	sum     float64 // of log(run/prediction)
	squares float64
}

// observe takes a task into the errors of its stage, and into those of tasks.
func (e *errors) observe(o *own, run float64) {
	log := math.Log(run)
	if o.n > 0 {
		// The mean of n earlier ones is off by 1/n of the variance itself.
		mean := o.logs / float64(o.n)
		e.addTask((log - mean) * math.Sqrt(float64(o.n)/float64(o.n+1)))
	}
	if o.first.Source != None {
		e.addStage(o, log-math.Log(o.first.Run.Seconds()))
	}
	o.n++
	o.sum += run
	o.logs += log
}

func (e *errors) addTask(v float64) {
	if len(e.tasks) < keptTasks {
		e.tasks = append(e.tasks, v)
		return
	}
	e.tasks[e.taskAt] = v
	e.taskAt = (e.taskAt + 1) % keptTasks
}

func (e *errors) addStage(o *own, v float64) {
	list := &e.stages[o.first.Source]
	if o.late < 0 {
		l := &lateStage{}
		if len(*list) < keptStages {
			o.late = len(*list)
			*list = append(*list, l)
		} else {
			o.late = e.nextAt[o.first.Source]
			(*list)[o.late] = l
			e.nextAt[o.first.Source] = (o.late + 1) % keptStages
		}
		o.entry = l
	}
	o.entry.n++
	o.entry.sum += v
	o.entry.squares += v * v
}

// Spread is how wrong predictions of one source have been: quantiles of the
// logarithm of truth over prediction, at 0, 1/32, … 1.
type Spread struct {
	Assumed bool // too few errors are known
	Stage   Quantiles
	Task    Quantiles
}

// Quantiles of a distribution at 0, 1/32, … 1, ascending.
type Quantiles [33]float64

// At gives the factor at part u of the distribution, 0 to 1.
func (q *Quantiles) At(u float64) float64 {
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

func normal(sigma float64) (q Quantiles) {
	for i := range q {
		p := min(max(float64(i)/float64(len(q)-1), 0.01), 0.99)
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
		out.Stage = constant(-math.Log(meanFactor(&out.Task)))
		return out
	case Bound: // anything below it
		for i := range out.Stage {
			out.Stage[i] = math.Log(0.1 + 0.9*float64(i)/float64(len(out.Stage)-1))
		}
		out.Task, out.Assumed = Quantiles{}, true
		return out
	}
	var means []float64
	within, weight := 0.0, 0.0
	for _, l := range e.stages[s] {
		mean := l.sum / float64(l.n)
		means = append(means, mean)
		if l.n > 1 {
			within += l.squares - float64(l.n)*mean*mean
			weight += float64(l.n - 1)
		}
	}
	if len(means) < enough {
		out.Stage, out.Assumed = normal(assumedStage(s)), true
		return out
	}
	shrink(means, e.stages[s], within, weight)
	out.Stage = quantiles(means)
	if weight == 0 && len(e.tasks) < enough {
		out.Task = Quantiles{} // it is in the other part
	}
	return out
}

// shrink takes out of the stages' means what only comes of their being means of
// few tasks: that part is drawn again for each task.
func shrink(means []float64, of []*lateStage, within, weight float64) {
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

func constant(v float64) (q Quantiles) {
	for i := range q {
		q[i] = v
	}
	return q
}

// meanFactor is the mean of the factors of a distribution.
func meanFactor(q *Quantiles) float64 {
	sum := 0.0
	for i := range len(q) - 1 {
		sum += math.Exp((q[i] + q[i+1]) / 2)
	}
	return sum / float64(len(q)-1)
}

func quantiles(v []float64) (q Quantiles) {
	slices.Sort(v)
	for i := range q {
		at := float64(i) / float64(len(q)-1) * float64(len(v)-1)
		k := min(int(at), len(v)-1)
		q[i] = v[k]
		if k+1 < len(v) {
			q[i] += (at - float64(k)) * (v[k+1] - v[k])
		}
		if i > 0 {
			q[i] = max(q[i], q[i-1]) // against rounding
		}
	}
	return q
}

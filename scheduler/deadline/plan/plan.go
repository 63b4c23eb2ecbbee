package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// ErrQuote is the class of all errors of this package.
var ErrQuote = errors.New("plan: no quote")

// Bounds on a question.
const (
	MaxSamples = 10_000
	// MaxTasks bounds the tasks that are played forward in a sample.
	MaxTasks = 1 << 20
)

// Residual gives the factor by which a run time differs from its prediction, at
// a part u in (0, 1) of its distribution: its quantile function. Package
// predict measures it.
type Residual func(u float64) float64

// Exact says that every task runs as long as predicted.
func Exact(float64) float64 { return 1 }

// Errors gives how wrong the predictions for a stage are: by a factor that all
// its tasks share, and by one that each has for itself. Package estimate
// measures both. The new job's stages have the id in Question.Job.
type Errors func(id scheduler.StageID) (stage, task Residual)

// Question is a job that might be submitted.
type Question struct {
	Job    scheduler.JobSpec // Deadline > 0: it would be in the deadline lane
	Stages []scheduler.StageSpec
	// Samples of run times are drawn with this seed; 0 samples count as 100.
	Samples int
	Seed    uint64
	// Errors of predictions; nil: Residual for each task. Residual nil counts as
	// Exact. Unknown is the run time of a task without a prediction.
	Errors   Errors
	Residual Residual
	Unknown  time.Duration
	// NoLane says that the scheduler knows no deadlines: all jobs are regular.
	NoLane bool
	// Preempt says that deadline jobs take room back from regular tasks, as far
	// as nodes can suspend them.
	Preempt bool
}

// Quote is when the job would end.
type Quote struct {
	ends   []scheduler.Time   // of each sample, ascending; Never if it never ends
	starts []scheduler.Time   // of its first task, likewise
	stages [][]scheduler.Time // likewise, of each of its stages
}

// Samples is their number.
func (q *Quote) Samples() int { return len(q.ends) }

// By is the share of samples in which the job ends by t: the p of (t, p).
func (q *Quote) By(t scheduler.Time) float64 {
	n, _ := slices.BinarySearchFunc(q.ends, t, func(a, b scheduler.Time) int {
		if a <= b {
			return -1
		}
		return 1
	})
	return float64(n) / float64(len(q.ends))
}

// At is the earliest instant by which the job ends in the share p of the
// samples: the t of (t, p). p is bounded to 0..1.
func (q *Quote) At(p float64) scheduler.Time { return at(q.ends, p) }

// Start is the earliest instant by which a task of the job has started in the
// share p of the samples.
func (q *Quote) Start(p float64) scheduler.Time { return at(q.starts, p) }

// StageStart is the median of when stage i of the job starts.
func (q *Quote) StageStart(i int) scheduler.Time { return at(q.stages[i], 0.5) }

func at(list []scheduler.Time, p float64) scheduler.Time {
	i := int(p*float64(len(list))+0.999999) - 1
	return list[min(max(i, 0), len(list)-1)]
}

// Quote plays the cluster forward with the job in it, once for each sample.
// Errors: ErrQuote for a tenant that is not there, more than MaxSamples, more
// than MaxTasks waiting, or a job without tasks. The State stays as it is.
// O(samples x tasks x (jobs + tenants + nodes)).
func (p *Planner) Quote(s *scheduler.State, q Question, now scheduler.Time) (*Quote, error) {
	samples := q.Samples
	if samples == 0 {
		samples = 100
	}
	switch {
	case samples < 0 || samples > MaxSamples:
		return nil, fmt.Errorf("%w: %d samples, 1 to %d", ErrQuote, samples, MaxSamples)
	case s.Tenant(q.Job.Tenant) == nil:
		return nil, fmt.Errorf("%w: tenant %d is not there", ErrQuote, q.Job.Tenant)
	case len(q.Stages) == 0:
		return nil, fmt.Errorf("%w: the job has no stage", ErrQuote)
	}
	if tasks := Tasks(s, q.Stages); tasks > MaxTasks {
		return nil, fmt.Errorf("%w: %d tasks wait, at most %d can be planned", ErrQuote, tasks, MaxTasks)
	}
	q.defaults()
	out := &Quote{ends: make([]scheduler.Time, 0, samples), starts: make([]scheduler.Time, 0, samples),
		stages: make([][]scheduler.Time, len(q.Stages))}
	for i := range samples {
		mine := p.play(s, &q, now, rand.New(rand.NewPCG(q.Seed, uint64(i))))
		out.ends = append(out.ends, mine.ended)
		out.starts = append(out.starts, mine.started)
		for k := range mine.stages {
			out.stages[k] = append(out.stages[k], mine.stages[k].started)
		}
	}
	for k := range out.stages {
		slices.Sort(out.stages[k])
	}
	slices.Sort(out.ends)
	slices.Sort(out.starts)
	return out, nil
}

// Tasks is how many tasks a sample plays forward: those that wait and those of
// the stages of a new job.
func Tasks(s *scheduler.State, stages []scheduler.StageSpec) int {
	tasks := 0
	for i := range stages {
		tasks += int(stages[i].Tasks)
	}
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			tasks += int(g.Pending)
		}
	}
	return tasks
}

func (q *Question) defaults() {
	if q.Residual == nil {
		q.Residual = Exact
	}
	if q.Errors == nil {
		each := q.Residual
		q.Errors = func(scheduler.StageID) (Residual, Residual) { return Exact, each }
	}
}

// Starts plays the cluster forward once, with run times as predicted, and tells
// for each stage with tasks that wait when the next of them is expected to
// start; stages that never start are left out. Of q only Unknown, NoLane and
// Preempt count. Errors: ErrQuote for more than MaxTasks waiting. It plays at
// most limit ends of tasks: what would start later is left out.
func (p *Planner) Starts(s *scheduler.State, q Question, now scheduler.Time, limit int) (map[scheduler.StageID]scheduler.Time, error) {
	if tasks := Tasks(s, nil); tasks > MaxTasks {
		return nil, fmt.Errorf("%w: %d tasks wait, at most %d can be planned", ErrQuote, tasks, MaxTasks)
	}
	q.Stages, q.Residual, q.Errors = nil, nil, nil
	q.defaults()
	p.limit = limit
	defer func() { p.limit = 0 }()
	p.play(s, &q, now, rand.New(rand.NewPCG(0, 0)))
	out := map[scheduler.StageID]scheduler.Time{}
	for _, w := range p.jobs {
		for i := range w.stages {
			if at := w.stages[i].started; at < scheduler.Never {
				out[scheduler.StageID{Job: w.spec.ID, Stage: int32(i)}] = at
			}
		}
	}
	return out, nil
}

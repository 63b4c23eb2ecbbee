package forecast

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// errQuote is the class of all errors of this package.
var errQuote = errors.New("forecast: no quote")

// errStopped is the error of a query that was stopped.
var errStopped = fmt.Errorf("%w: nobody waits for it any more", errQuote)

// maxTasks is the largest number of tasks to simulate in a sample.
const maxTasks = 1 << 20

// Residual is the quantile function of the factor by which a run time differs from its prediction, for u in (0, 1).
// Package estimate measures it.
type Residual func(u float64) float64

// ErrorModel returns the errors of the predictions for a stage: a factor that all its tasks share, and a factor of each
// task. Package estimate measures both. The stages of the queried job have the id in Query.Job.
type ErrorModel func(id scheduler.StageID) (stage, task Residual)

// Query is a job that might be submitted.
type Query struct {
	Job    scheduler.JobSpec // in the deadline lane if Deadline > 0
	Stages []scheduler.StageSpec
	// Samples is the number of samples, at least 1, drawn with Seed.
	Samples int
	Seed    uint64
	// Errors models the errors of predictions; nil means none. UnknownRunTime is the run time of a task without a
	// prediction.
	Errors         ErrorModel
	UnknownRunTime time.Duration
	// Guessed reports whether the prediction for a stage is a guess, on which Expect bases no time; nil means that none is.
	Guessed func(scheduler.StageID) bool
	// NoDeadlineLane makes all jobs regular, for schedulers that ignore deadlines.
	NoDeadlineLane bool
	// Preempt lets deadline jobs preempt regular tasks on nodes that can suspend them.
	Preempt bool
	// Stop reports whether the answer is no longer needed; nil means never. It is called for each
	// sample, and every stopEvery ends within a sample.
	Stop func() bool

	maxEnds   int  // ends of tasks after which a sample stops; 0 for no limit
	exact     bool // nothing is drawn: run times are as predicted, and a task that has run longer runs as long again
	knownOnly bool // a task whose prediction is a guess ends with its bound; without one, at an unknown time
}

// Quote is the distribution of the times at which the job starts and ends.
type Quote struct {
	ends   []scheduler.Time   // end of the job in each sample, ascending; Never if it does not end
	starts []scheduler.Time   // start of its first task, ascending
	stages [][]scheduler.Time // by stage, start of its first task, ascending

	lengths []scheduler.Time // from the start of the first task to the end, ascending; Never if it does not end
}

// Samples returns the number of samples.
func (q *Quote) Samples() int { return len(q.ends) }

// ProbabilityBy returns the share of samples in which the job ends by t: the p of (t, p).
func (q *Quote) ProbabilityBy(t scheduler.Time) float64 {
	after := slices.IndexFunc(q.ends, func(end scheduler.Time) bool { return end > t })
	if after < 0 {
		return 1
	}
	return float64(after) / float64(len(q.ends))
}

// EndQuantile returns the earliest time by which the job ends in the share p of the samples: the t of (t, p). p is
// clamped to 0..1.
func (q *Quote) EndQuantile(p float64) scheduler.Time { return quantileOf(q.ends, p) }

// StartQuantile returns the earliest time by which a task of the job has started in the share p of the samples.
func (q *Quote) StartQuantile(p float64) scheduler.Time { return quantileOf(q.starts, p) }

// MedianStageStart returns the median start of stage i of the job.
func (q *Quote) MedianStageStart(i int) scheduler.Time { return quantileOf(q.stages[i], 0.5) }

// lengthQuantile returns the maximum duration of the job from its first start on in the share p of
// the samples, in which it must end.
func (q *Quote) lengthQuantile(p float64) time.Duration {
	return time.Duration(quantileOf(q.lengths, p))
}

func quantileOf(list []scheduler.Time, p float64) scheduler.Time {
	i := int(p*float64(len(list))+0.999999) - 1
	return list[min(max(i, 0), len(list)-1)]
}

// Quote simulates the cluster together with the job, once for each sample. The job must have a stage
// and a tenant of the State. It returns errQuote for more than maxTasks waiting tasks, and if
// Query.Stop returns true. The State does not change. O(samples x tasks x (jobs + tenants + nodes)).
func (p *Forecaster) Quote(s *scheduler.State, q Query, now scheduler.Time) (*Quote, error) {
	if err := checkSize(s, q.Stages); err != nil {
		return nil, err
	}
	if q.Errors == nil {
		q.Errors = withoutErrors
	}
	out := &Quote{stages: make([][]scheduler.Time, len(q.Stages))}
	for i := range q.Samples {
		mine, err := p.simulate(s, &q, now, rand.New(rand.NewPCG(q.Seed, uint64(i))))
		if err != nil {
			return nil, err
		}
		out.ends = append(out.ends, mine.ended)
		out.starts = append(out.starts, mine.started)
		length := scheduler.Never
		if mine.ended < scheduler.Never {
			length = max(0, mine.ended-mine.started)
		}
		out.lengths = append(out.lengths, length)
		for k := range mine.stages {
			out.stages[k] = append(out.stages[k], mine.stages[k].started)
		}
	}
	for _, list := range append(out.stages, out.ends, out.starts, out.lengths) {
		slices.Sort(list)
	}
	return out, nil
}

// CountTasks returns the number of tasks that a sample simulates: the waiting tasks and those of a new job.
func CountTasks(s *scheduler.State, stages []scheduler.StageSpec) int {
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

func checkSize(s *scheduler.State, stages []scheduler.StageSpec) error {
	if tasks := CountTasks(s, stages); tasks > maxTasks {
		return fmt.Errorf("%w: %d tasks wait, at most %d can be simulated", errQuote, tasks, maxTasks)
	}
	return nil
}

// withoutErrors is the ErrorModel of exact predictions.
func withoutErrors(scheduler.StageID) (stage, task Residual) {
	exact := func(float64) float64 { return 1 }
	return exact, exact
}

// Expected is the expected starts of waiting tasks and ends of jobs. Unknown times are left out, and with them all that
// depends on the end of a task whose run time is only guessed.
type Expected struct {
	Starts map[scheduler.StageID]scheduler.Time // of the next waiting task
	Ends   map[scheduler.JobID]scheduler.Time
	// GuessedEnds is Ends as the guesses have it, for warnings.
	GuessedEnds map[scheduler.JobID]scheduler.Time
}

// Expect simulates the cluster with run times as predicted; a task that has run longer than predicted is expected to
// run as long again. It simulates once, and if a prediction is a guess once more, with unknown ends in its place: so a
// start that does not wait for such a task is known nevertheless. Of q it uses only UnknownRunTime, Guessed,
// NoDeadlineLane, Preempt and Stop. A simulation ends after at most limit ends of tasks (0 for no limit); later times
// are left out. It returns errQuote for more than maxTasks waiting tasks, and if Query.Stop returns true.
func (p *Forecaster) Expect(s *scheduler.State, q Query, now scheduler.Time, limit int) (Expected, error) {
	if err := checkSize(s, nil); err != nil {
		return Expected{}, err
	}
	q.Stages, q.Errors, q.maxEnds, q.exact = nil, withoutErrors, limit, true
	nothingDrawn := rand.New(rand.NewPCG(0, 0))
	if _, err := p.simulate(s, &q, now, nothingDrawn); err != nil {
		return Expected{}, err
	}
	out := Expected{Starts: expectedStarts(p.jobs), Ends: expectedEnds(p.jobs)}
	out.GuessedEnds = out.Ends
	if q.Guessed == nil || !hasGuesses(p.jobs, q.Guessed) {
		return out, nil
	}
	q.knownOnly = true
	if _, err := p.simulate(s, &q, now, nothingDrawn); err != nil {
		return Expected{}, err
	}
	out.Starts, out.Ends = expectedStarts(p.jobs), expectedEnds(p.jobs)
	return out, nil
}

// hasGuesses reports whether the run time of a stage of a sample was a guess.
func hasGuesses(jobs []*jobState, guessed func(scheduler.StageID) bool) bool {
	return slices.ContainsFunc(jobs, func(w *jobState) bool {
		return slices.ContainsFunc(w.stages, func(g stageState) bool {
			return guessed(scheduler.StageID{Job: w.spec.ID, Stage: g.index})
		})
	})
}

// expectedStarts returns when the next waiting task of each stage started in a sample.
func expectedStarts(jobs []*jobState) map[scheduler.StageID]scheduler.Time {
	out := map[scheduler.StageID]scheduler.Time{}
	for _, w := range jobs {
		for i := range w.stages {
			if at := w.stages[i].started; at < scheduler.Never {
				out[scheduler.StageID{Job: w.spec.ID, Stage: int32(i)}] = at
			}
		}
	}
	return out
}

// expectedEnds returns when each job ended in a sample.
func expectedEnds(jobs []*jobState) map[scheduler.JobID]scheduler.Time {
	out := map[scheduler.JobID]scheduler.Time{}
	for _, w := range jobs {
		if w.ended < scheduler.Never {
			out[w.spec.ID] = w.ended
		}
	}
	return out
}

// Limits of the search for a deadline. It makes about ten quotes, most of few samples.
const (
	offerSamples = 50                        // samples of a quote of the search; the result is verified with all samples
	offerSteps   = 4                         // of each part of the search
	offerMargin  = 5 * time.Second           // the submission with the deadline comes later than the query
	farDeadline  = 10 * 365 * 24 * time.Hour // met by every job that ends
)

// EarliestDeadline returns an early deadline, after that of the query, which the job meets with probability p
// in samples with that deadline, and would meet if it were submitted offerMargin later; Never if none is found.
// The deadline of a job changes when it ends: an infeasible job leaves the lane, and with a late deadline it
// waits for others. The result is a multiple of step. Errors are those of Quote; it costs several quotes.
func (f *Forecaster) EarliestDeadline(s *scheduler.State, q Query, now scheduler.Time, p float64, step time.Duration) (scheduler.Time, error) {
	x := offerSearch{f, s, q, now, p, min(q.Samples, offerSamples), nil}
	refused := q.Job.Deadline
	far := x.quote(now.Add(farDeadline), x.few)
	if x.err != nil || far.EndQuantile(p) == scheduler.Never {
		return scheduler.Never, x.err
	}
	low, high := refused, roundUp(max(far.EndQuantile(p), refused+1).Add(offerMargin), step)
	for n := 0; n < offerSteps && !x.holds(high); n++ {
		high = x.later(high)
	}
	if soon := roundUp(now.Add(far.lengthQuantile(p)+offerMargin), step); soon > low && soon < high { // as if it starts at once
		if x.holds(soon) {
			high = soon
		} else {
			low = soon
		}
	}
	for range offerSteps {
		left, right := float64(max(1, low.Sub(now))), float64(high.Sub(now))
		mid := roundUp(now.Add(time.Duration(math.Sqrt(left*right))), step)
		if mid <= low || mid >= high {
			break
		}
		if x.holds(mid) {
			high = mid
		} else {
			low = mid
		}
	}
	for range offerSteps {
		if high < scheduler.Never && x.quote(high, q.Samples).ProbabilityBy(high) >= p && x.err == nil {
			return high, nil
		}
		high = roundUp(x.later(high), step)
	}
	return scheduler.Never, x.err
}

// offerSearch is a search for a deadline.
type offerSearch struct {
	f   *Forecaster
	s   *scheduler.State
	q   Query
	now scheduler.Time
	p   float64
	few int // number of samples
	err error
}

// quote returns the quote of the job with a deadline. After the first error, x.err, it returns empty quotes.
func (x *offerSearch) quote(deadline scheduler.Time, samples int) *Quote {
	if x.err != nil {
		return &Quote{}
	}
	x.q.Job.Deadline, x.q.Samples = deadline, samples
	var out *Quote
	if out, x.err = x.f.Quote(x.s, x.q, x.now); x.err != nil {
		return &Quote{}
	}
	return out
}

// holds reports whether the job meets a deadline, and would with offerMargin less.
func (x *offerSearch) holds(deadline scheduler.Time) bool {
	sooner := deadline.Add(-offerMargin)
	return x.quote(sooner, x.few).ProbabilityBy(sooner) >= x.p
}

// later returns a deadline that leaves half as much time again.
func (x *offerSearch) later(deadline scheduler.Time) scheduler.Time {
	return deadline.Add(deadline.Sub(x.now) / 2)
}

func roundUp(t scheduler.Time, step time.Duration) scheduler.Time {
	return (t + scheduler.Time(step) - 1) / scheduler.Time(step) * scheduler.Time(step)
}

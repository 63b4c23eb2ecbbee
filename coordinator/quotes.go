package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline/forecast"
	"github.com/drover-run/drover/scheduler/estimate"
	"github.com/drover-run/drover/scheduler/obstacle"
)

// Limits of quotes.
const (
	quoteWait               = 5 * time.Second  // waiting for other quotes
	maxQuotes               = 3                // made at once
	maxQuotesWaiting        = 32               // of one identity
	maxForecastTasks        = 300_000          // tasks simulated in all samples together
	maxSamples              = 200              // of one quote
	minSamples              = 20               // fewer are not significant
	defaultTaskTime         = 60 * time.Second // run time of a task without any estimate, before tasks have ended
	counterOfferProbability = 0.95             // of the deadline in a counter-offer
	weakProbability         = 0.5              // a lower one causes a warning
	expectedLimit           = 20_000           // task ends simulated for expected starts and ends
	expectedPause           = time.Second      // between two simulations for them
	expectedFactor          = 50               // or so many times as long as the last one took
	maxPlanSteps            = 2000             // in one response
	offerRounding           = time.Second
)

// quoter makes quotes on a copy of State, so that the loop does not wait for them:
// one of each identity at a time, and few of all.
type quoter struct {
	turns    *turns
	planners chan *forecast.Forecaster // one for each turn

	mu          sync.Mutex
	computing   bool                               // somebody computes expected
	expected    forecast.Expected                  // its maps are replaced, never written to
	obstacles   map[scheduler.StageID]obstacle.Set // found with expected, replaced and never written to
	expectedDue time.Time
}

func newQuoter() *quoter {
	q := &quoter{turns: newTurns("quotes", maxQuotes, 1, maxQuotesWaiting).withBudget(answerBudget), planners: make(chan *forecast.Forecaster, maxQuotes)}
	for range maxQuotes {
		q.planners <- &forecast.Forecaster{}
	}
	return q
}

// acquire waits for the identity's turn, and returns a planner for it.
func (q *quoter) acquire(ctx context.Context, id identity) (p *forecast.Forecaster, done func(), err error) {
	short, cancel := context.WithTimeout(ctx, quoteWait)
	defer cancel()
	end, err := q.turns.wait(short, id)
	switch {
	case err == nil:
		p = <-q.planners // there is one for each turn
		return p, func() { q.planners <- p; end() }, nil
	case ctx.Err() == nil && short.Err() != nil:
		return nil, nil, q.waitedTooLong(id)
	default:
		return nil, nil, err
	}
}

// waitedTooLong returns the error of an identity that has waited for its turn for quoteWait,
// because it used up its budget or because others are served.
func (q *quoter) waitedTooLong(id identity) error {
	if until, rests := q.turns.restsUntil(id); rests {
		return fault.Overload("%s has used up its share of time for quotes: try again at %s", id.displayName(), formatMillis(until.Add(time.Second-1).UnixMilli()))
	}
	return fault.Overload("other quotes are being made: try again in a second")
}

// jobForecast is the forecast for a job at its submission.
type jobForecast struct {
	estimates  []*droverv1.StageEstimate
	quote      *droverv1.Quote // of a job with a deadline; nil if none can be made
	acceptedBy string          // what satisfied the required probability: guarantee or quote
}

// makeQuote is step 4 of a submission.
func (s *clientService) makeQuote(ctx context.Context, spec *jobspec.Job, in *located, require float64) (result jobForecast, warnings []string, err error) {
	if spec.Deadline == nil {
		if require > 0 {
			return result, nil, fault.New(fault.Invalid, "job %q has no deadline to be quoted: add deadline = \"…\" to the job, or leave -require-quote out", spec.Name)
		}
		return jobForecast{estimates: s.core.predictor.estimateSpec(spec, in.splits)}, nil, nil
	}
	dry, err := s.dryRun(ctx, spec, in, offer{cmp.Or(require, counterOfferProbability), max(weakProbability, require)})
	switch {
	case err == nil:
	case require > 0 || ctx.Err() != nil:
		return result, nil, err
	default:
		return jobForecast{estimates: s.core.predictor.estimateSpec(spec, in.splits)}, []string{"no quote: " + err.Error()}, nil
	}
	result = jobForecast{estimates: dry.estimates, quote: dry.quote}
	switch {
	case require > 0 && dry.isGuaranteed():
		result.acceptedBy = "guarantee"
	case require > 0:
		result.acceptedBy = "quote"
	}
	return result, dry.allWarnings(require), dry.checkProbability(spec, require)
}

// checkProbability returns an error with a counter-offer if the quote is too
// weak.
func (t *dryRunResult) checkProbability(spec *jobspec.Job, require float64) error {
	p := t.quote.GetProbability()
	if p >= require || t.isGuaranteed() {
		return nil
	}
	text := fmt.Sprintf("job %q would end by %s with probability %.2f, not %.2f", spec.Name, formatMillis(t.quote.GetDeadlineMs()), p, require)
	why := cmp.Or(t.quote.GetNoGuarantee(), "the deadline is before the guaranteed end")
	if at := t.offerMs; at > 0 {
		return fault.New(fault.Exhausted, "%s: the earliest deadline that holds is %s; no guarantee: %s", text, formatMillis(at), why)
	}
	return fault.New(fault.Exhausted, "%s: no deadline is feasible in the cluster's present state; no guarantee: %s", text, why)
}

// isGuaranteed reports whether the scheduler guarantees a departure by the
// deadline.
func (t *dryRunResult) isGuaranteed() bool {
	g := t.quote.GetGuaranteedMs()
	return g > 0 && g <= t.quote.GetDeadlineMs()
}

// allWarnings returns the warnings for the user, with one if the quote is weak.
func (t *dryRunResult) allWarnings(require float64) []string {
	p := t.quote.GetProbability()
	if p >= max(weakProbability, require) || t.isGuaranteed() || t.quote.GetDeadlineMs() == 0 {
		return t.warnings
	}
	text := fmt.Sprintf("the deadline is met with probability %.2f only (%s)", p, t.quote.GetBasis())
	if t.offerMs > 0 && t.offer.probability > p {
		text += fmt.Sprintf("; deadline %s is met with %.2f", formatMillis(t.offerMs), t.offer.probability)
	}
	return append(t.warnings, text)
}

// offer describes when a dry run looks for a better deadline, and which: if the job meets its own
// with a probability lower than below, it offers one that is met with probability. A job with a
// weak quote that still exceeds probability is offered a deadline with counterOfferProbability.
type offer struct{ probability, below float64 }

// findOffer sets the earliest deadline that is met with the probability of the offer. A job with a
// strong quote keeps its own deadline. Without a deadline, or under a scheduler that ignores
// deadlines, the offer is when the job would end anyway.
func (t *dryRunResult) findOffer(planner *forecast.Forecaster, d *draft, q forecast.Query, now scheduler.Time) error {
	var at scheduler.Time
	p := t.quote.GetProbability()
	if p >= t.offer.probability && p < t.offer.below {
		t.offer.probability = counterOfferProbability
	}
	switch {
	case q.Job.Deadline == 0 || q.NoDeadlineLane:
		if at = t.times.EndQuantile(t.offer.probability); at < scheduler.Never {
			at = (at + scheduler.Time(offerRounding) - 1) / scheduler.Time(offerRounding) * scheduler.Time(offerRounding)
		}
	case p >= t.offer.probability:
		at = q.Job.Deadline
	case p < t.offer.below:
		var err error
		if at, err = planner.EarliestDeadline(d.state, q, now, t.offer.probability, offerRounding); err != nil {
			return err
		}
	}
	t.offerMs = unixMillis(at)
	return nil
}

func formatMillis(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// quoteBasis returns the weakest source of a job's estimates, for users.
func quoteBasis(list []*droverv1.StageEstimate) string {
	weakest := estimate.OwnTasks
	for _, e := range list {
		weakest = min(weakest, estimate.ParseSource(e.GetSource()))
	}
	switch weakest {
	case estimate.None:
		return "no history: run times are guessed"
	case estimate.RuntimeBound:
		return "no history: run times are taken from runtime_bound"
	case estimate.Tenant:
		return "a guess: nothing like this job has run, only other tasks of the tenant"
	default:
		return "run times from " + weakest.String()
	}
}

var quotedP = []float64{0.5, 0.8, 0.9, 0.95, 0.99}

func quoteMessage(times *forecast.Quote, j *facts.Job, now time.Time, basis string) *droverv1.Quote {
	q := &droverv1.Quote{Samples: int32(times.Samples()), Basis: basis, MadeMs: now.UnixMilli(), StartMs: unixMillis(times.StartQuantile(0.5))}
	for _, p := range quotedP {
		q.P = append(q.P, p)
		q.AtMs = append(q.AtMs, unixMillis(times.EndQuantile(p)))
	}
	if d := j.DeadlineNS(); d > 0 {
		q.DeadlineMs, q.Probability = d/1e6, times.ProbabilityBy(scheduler.Time(d))
	}
	return q
}

// unixMillis returns t in Unix ms, 0 for never.
func unixMillis(t scheduler.Time) int64 {
	if t == scheduler.Never {
		return 0
	}
	return int64(t) / 1e6
}

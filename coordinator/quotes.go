package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
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
	"github.com/drover-run/drover/scheduler/policies"
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

// waitedTooLong returns the error of an identity that has waited for its turn for quoteWait: it rests, or waits for others.
func (q *quoter) waitedTooLong(id identity) error {
	if until, rests := q.turns.restsUntil(id); rests {
		return fault.Overload("%s has used up its share of time for quotes: try again at %s", id.displayName(), formatMillis(until.Add(time.Second-1).UnixMilli()))
	}
	return fault.Overload("other quotes are being made: try again in a second")
}

// jobForecast is the prediction for a job at its submission.
type jobForecast struct {
	estimates  []*droverv1.StageEstimate
	quote      *droverv1.Quote // of a job with a deadline; nil if none can be made
	acceptedBy string          // what fulfilled the required probability: guarantee or quote
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

// offer says when a dry run looks for a deadline that holds: if that of the job is met with a probability below so much. A job
// that has more than the probability of the offer, and is weak nevertheless, is offered a deadline with counterOfferProbability.
type offer struct{ probability, below float64 }

// findOffer sets the earliest deadline found that is met with the probability of the offer. That of a job with a strong
// quote is its own; a job without a deadline, or under a scheduler for which deadlines change nothing, ends when it does.
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

// dryRunResult is the result of submitting a job to a copy of State.
type dryRunResult struct {
	estimates []*droverv1.StageEstimate
	quote     *droverv1.Quote
	times     *forecast.Quote
	state     *scheduler.State // contains the job
	job       scheduler.JobID
	decision  scheduler.Decision
	scheduler string
	warnings  []string // for the user
	offer     offer
	offerMs   int64 // a deadline that is met with the probability of the offer; 0 for none
}

// dryRun adds a job to a copy of State, lets the policy decide, and simulates
// the cluster's future for the quote and the offer.
func (s *clientService) dryRun(ctx context.Context, spec *jobspec.Job, in *located, o offer) (*dryRunResult, error) {
	planner, done, err := s.core.quoter.acquire(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	now := s.core.now()
	t := &dryRunResult{estimates: s.core.predictor.estimateSpec(spec, in.splits), offer: o}
	var d *draft
	var params map[string]string
	sources := map[scheduler.StageID]estimate.Source{}
	s.core.view(func(f *facts.Facts) {
		if err = f.Checks().CheckJob(spec, "", f.Clock().EntryTime(now.UnixNano())); err == nil {
			d, err = s.newDraft(f, spec, in, t.estimates, now)
		}
		t.scheduler, params = s.core.schedulerOf(f)
		addEstimateSources(f, sources)
	})
	if err != nil {
		return nil, err
	}
	for _, e := range t.estimates {
		sources[stageID(d.job.ID, e.GetStage())] = estimate.ParseSource(e.GetSource())
	}
	q := s.forecastQuestion(d, t.scheduler, params, sources)
	q.Stop = func() bool { return ctx.Err() != nil }
	at := scheduler.Time(now.UnixNano())
	if t.times, err = planner.Quote(d.state, q, at); err == nil {
		t.quote = quoteMessage(t.times, d.job, now, quoteBasis(t.estimates))
		err = t.findOffer(planner, d, q, at)
	}
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fault.New(fault.Exhausted, "%w", err)
	}
	if err := t.runPolicy(d, params, at); err != nil {
		return nil, err
	}
	return t, nil
}

// draft is a job that is not accepted, and a State without it.
type draft struct {
	state  *scheduler.State
	job    *facts.Job
	spec   scheduler.JobSpec
	stages []scheduler.StageSpec
}

// draftProject is the number of a project that does not exist yet.
const draftProject = scheduler.ProjectID(1) << 62

// newDraft builds a State from the facts, and the job to be tried.
func (s *clientService) newDraft(f *facts.Facts, spec *jobspec.Job, in *located, estimates []*droverv1.StageEstimate, now time.Time) (*draft, error) {
	j, err := f.Deadlines().Draft(spec, in.splits, now.UnixNano())
	if err != nil {
		return nil, err
	}
	for _, e := range estimates {
		j.Stages[e.GetStage()].EstimateNS, j.Stages[e.GetStage()].UpperNS = e.GetNs(), e.GetUpperNs()
	}
	nodes := in.hosts.nodes(f)
	p := s.core.newProjection(func(f *facts.Facts, job uint64) []splitNodes {
		if job == j.ID {
			return nodes
		}
		return s.core.locations.resolve(f, job)
	})
	if err := p.rebuild(f); err != nil {
		return nil, err
	}
	if err := p.applyProgress(s.core.sessions.runningAttempts(), scheduler.Time(now.UnixNano())); err != nil {
		return nil, err
	}
	d := &draft{state: p.state, job: j}
	if d.spec, d.stages, err = p.jobSpec(f, j); err != nil || spec.Project == "" || d.spec.Project != 0 {
		return d, err
	}
	d.spec.Project = draftProject
	return d, d.state.Events().PutProject(scheduler.ProjectSpec{ID: draftProject, Name: spec.Project, Tenant: d.spec.Tenant, Priority: d.spec.Priority, Submitted: d.spec.Submitted, Jobs: 1})
}

// addEstimateSources adds the sources of the estimates of live stages to out.
func addEstimateSources(f *facts.Facts, out map[scheduler.StageID]estimate.Source) {
	for _, id := range f.JobIDs() {
		if j := f.Job(id); !j.HasEnded() {
			for i := range j.Stages {
				out[stageID(id, int32(i))] = estimate.ParseSource(j.Stages[i].EstimateSource)
			}
		}
	}
}

// forecastQuestion returns the job as the forecaster's question.
func (s *clientService) forecastQuestion(d *draft, name string, params map[string]string, sources map[scheduler.StageID]estimate.Source) forecast.Query {
	q := forecast.Query{Job: d.spec, Stages: d.stages, Seed: d.job.ID, UnknownRunTime: s.core.predictor.unknownRunTime(), Errors: s.core.predictionErrors(sources)}
	q.NoDeadlineLane, q.Preempt = laneOptions(name, params)
	tasks := max(1, forecast.CountTasks(d.state, q.Stages)+d.state.Attempts().Live())
	q.Samples = min(maxSamples, max(minSamples, maxForecastTasks/tasks))
	return q
}

// laneOptions returns how a scheduler treats deadlines.
func laneOptions(name string, params map[string]string) (noLane, preempt bool) {
	p, err := policies.New(name, params)
	if err != nil {
		return true, false
	}
	d := scheduler.DeadlineServiceOf(p)
	return !d.First, d.Preempts
}

// predictionErrors returns the error model of predictions; each source is read
// once.
func (s *core) predictionErrors(sources map[scheduler.StageID]estimate.Source) forecast.ErrorModel {
	var spreads [estimate.Sources + 1]*estimate.ErrorQuantiles
	return func(id scheduler.StageID) (forecast.Residual, forecast.Residual) {
		src := sources[id]
		if src == 0 {
			src = estimate.None
		}
		if spreads[src] == nil {
			sp := s.predictor.spread(src)
			spreads[src] = &sp
		}
		return spreads[src].Stage.Factor, spreads[src].Task.Factor
	}
}

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

// runPolicy submits the job to the copy of State and lets the policy decide. It
// stores the decision and any guaranteed departure in t.
func (t *dryRunResult) runPolicy(d *draft, params map[string]string, at scheduler.Time) error {
	policy, err := policies.New(t.scheduler, params)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	if err := d.state.Events().SubmitJob(d.spec, d.stages); err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	t.state, t.job = d.state, d.spec.ID
	d.state.SetTime(at)
	t.decision = policy.Decide(d.state, at, 2*maxActions) // half of them are for requests
	reason := "the scheduler cannot tell when it would end at the latest"
	switch {
	case !scheduler.DeadlineServiceOf(policy).Guarantees:
		reason = "scheduler " + t.scheduler + " guarantees no deadlines"
	case !hasBounds(d.job):
		reason = "too few tasks have ended to tell how long these take at most: set runtime_bound"
	case slices.ContainsFunc(t.decision.Waiting, func(w scheduler.Waiting) bool {
		return w.Stage.Job == t.job && w.Reason == scheduler.ReasonPlanning
	}):
		reason = "planning so many tasks takes several cycles after the submission"
		t.warnings = append(t.warnings, "planning a guarantee for so many tasks takes several cycles after the submission; there is none until then")
	}
	for i := range t.decision.PolicyStates {
		n := &t.decision.PolicyStates[i]
		switch mine := n.Job == t.job; {
		case mine && n.Kind == scheduler.AcceptedState:
			t.quote.GuaranteedMs = t.quote.DeadlineMs
		case mine && n.Kind == scheduler.RefusedState && n.At > 0:
			reason = "the earliest end that the scheduler would guarantee is " + formatMillis(unixMillis(n.At))
		case mine && n.Kind == scheduler.RefusedState:
			reason = lateReason(d)
		case mine && n.Kind == scheduler.GuaranteeState && d.spec.Project != 0: // it joins a project, whose guarantee includes it
			latest, _ := d.state.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.LatestDepartureState, Project: d.spec.Project})
			t.quote.GuaranteedMs = unixMillis(latest.At)
		}
		if n.Kind == scheduler.LatestDepartureState && (n.Job == t.job || (n.Project != 0 && n.Project == d.spec.Project)) {
			t.quote.GuaranteedMs = unixMillis(n.At)
		}
	}
	if t.quote.DeadlineMs > 0 && t.quote.GuaranteedMs == 0 {
		t.quote.NoGuarantee = reason
	}
	return nil
}

// lateReason says why a deadline is refused without a departure that would be guaranteed instead: planning ends
// at the first task that is too late.
func lateReason(d *draft) string {
	for i, g := range d.stages {
		if g.MaxParallel > 0 && g.Tasks > g.MaxParallel {
			return fmt.Sprintf("stage %q may not run all of its tasks at the same time: leave max_parallel out", d.job.Spec.Stages[i].Name)
		}
	}
	return "no plan in which each task runs for as long as its bound ends by the deadline: set a later one, or a shorter runtime_bound"
}

// expected returns when pending stages are expected to start and live jobs to end,
// simulated with predicted run times. The result is cached for expectedPause, or
// fifty times what it cost if that is longer. If it cannot be computed (somebody does
// already, too much is pending) it returns the last result.
func (s *clientService) expected(ctx context.Context) forecast.Expected {
	q := s.core.quoter
	q.mu.Lock()
	last := q.expected
	if s.core.now().Before(q.expectedDue) || q.computing {
		q.mu.Unlock()
		return last
	}
	q.computing = true
	q.mu.Unlock()
	defer func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.computing = false
	}()
	planner, done, err := q.acquire(ctx, identity{name: "expected starts"}) // for all
	if err != nil {
		return last
	}
	defer done()
	began := s.core.now()
	var state *scheduler.State
	question := forecast.Query{UnknownRunTime: s.core.predictor.unknownRunTime()}
	s.core.view(func(f *facts.Facts) {
		p := s.core.newProjection(s.core.locations.resolve)
		if err = p.rebuild(f); err == nil {
			state = p.state
		}
		question.NoDeadlineLane, question.Preempt = laneOptions(s.core.schedulerOf(f))
	})
	var obstacles map[scheduler.StageID]obstacle.Set
	var found *forecast.Expected
	if err == nil {
		obstacles = findObstacles(state, scheduler.Time(began.UnixNano()))
		var x forecast.Expected
		if x, err = planner.Expect(state, question, scheduler.Time(began.UnixNano()), expectedLimit); err == nil {
			found = &x
		}
	}
	if err != nil {
		s.core.log.Debug("no expected starts and ends", "err", err)
	}
	now := s.core.now()
	return q.setExpected(found, obstacles, now.Add(max(expectedPause, expectedFactor*now.Sub(began))))
}

// setExpected stores what was computed, and when that is due again, and returns what is expected. What is nil could not be
// computed, and stays as it was.
func (q *quoter) setExpected(found *forecast.Expected, obstacles map[scheduler.StageID]obstacle.Set, due time.Time) forecast.Expected {
	q.mu.Lock()
	defer q.mu.Unlock()
	if found != nil {
		q.expected = *found
	}
	if obstacles != nil {
		q.obstacles = obstacles
	}
	q.expectedDue = due
	return q.expected
}

// addExpected sets when a job's pending stages are expected to start, from the
// scheduler's own plan if it has one, otherwise from the simulation, and when the
// job is expected to end.
func (s *clientService) addExpected(ctx context.Context, r *droverv1.GetJobResponse) {
	if ended(r.Job.State) {
		return
	}
	expected, now := s.expected(ctx), s.core.now()
	s.core.view(func(f *facts.Facts) {
		s.core.jobs.expectedOfJob(f, expected, r.Job, now)
		for i, g := range r.Stages {
			if g.Pending > 0 {
				g.ExpectedStartMs = s.core.jobs.expectedStart(f, expected, r.Job.Job, i, now)
			}
		}
	})
}

// expectedOfJob sets when a job is expected to start, if it has not, and to end.
func (v *jobView) expectedOfJob(f *facts.Facts, expected forecast.Expected, out *droverv1.JobSummary, now time.Time) {
	j := f.Job(out.Job)
	if j == nil || j.HasEnded() {
		return
	}
	if !waitsForUser(f, j) {
		out.ExpectedEndMs = expectedJobEnd(expected, out.Job, now)
		if d := f.Deadlines(); out.DeadlineState == deadlineOnTrack && unixMillis(expected.Ends[scheduler.JobID(out.Job)]) > out.DeadlineMs &&
			(d.LatestDeparture(j) == 0 || d.GuaranteeViolated(j) != "") { // a guarantee holds, whatever is expected without it
			out.DeadlineState = deadlineAtRisk
		}
	}
	if out.StartedMs > 0 {
		return
	}
	for i := range j.Stages {
		if at := v.expectedStart(f, expected, out.Job, i, now); at > 0 && j.Stages[i].Pending > 0 && (out.ExpectedStartMs == 0 || at < out.ExpectedStartMs) {
			out.ExpectedStartMs = at
		}
	}
}

// waitsForUser reports whether a job cannot end before somebody resumes a task of it,
// which no scheduler does.
func waitsForUser(f *facts.Facts, j *facts.Job) (waits bool) {
	if !slices.ContainsFunc(j.Stages, func(s facts.Stage) bool { return s.Suspended > 0 }) {
		return false
	}
	f.EachActive(j, func(_ facts.Key, _ *facts.Task, a *facts.Attempt) {
		waits = waits || a.Suspension.Parked && !a.Suspension.Drained
	})
	return waits
}

// expectedStart returns when the next pending task of a stage is expected to start,
// Unix ms, 0 if that is not known.
func (v *jobView) expectedStart(f *facts.Facts, expected forecast.Expected, job uint64, stage int, now time.Time) (ms int64) {
	id := stageID(job, int32(stage))
	if at, ok := expected.Starts[id]; ok {
		ms = unixMillis(at)
	}
	if w, ok := v.waits.of(id); ok && w.Reason == scheduler.ReasonLater && w.Until < scheduler.Never {
		ms = unixMillis(w.Until)
	}
	if ms <= now.UnixMilli() || !canStart(f, job, stage) {
		return 0 // what is past was not true, and what cannot start will not
	}
	return ms
}

// expectedJobEnd returns when a live job is expected to end, Unix ms, 0 if that is
// not known. It is rounded up, the coarser the farther it is: a prediction that moves
// by little is no news for who watches the job.
func expectedJobEnd(expected forecast.Expected, job uint64, now time.Time) int64 {
	at, ok := expected.Ends[scheduler.JobID(job)]
	left := unixMillis(at) - now.UnixMilli()
	if !ok || left <= 0 {
		return 0
	}
	step := time.Second
	switch {
	case left > time.Hour.Milliseconds():
		step = time.Minute
	case left > 5*time.Minute.Milliseconds():
		step = 10 * time.Second
	}
	ms := step.Milliseconds()
	return (unixMillis(at) + ms - 1) / ms * ms
}

package coordinator

import (
	"context"
	"fmt"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline/forecast"
	"github.com/drover-run/drover/scheduler/estimate"
	"github.com/drover-run/drover/scheduler/policies"
)

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

// lateReason returns why a deadline is refused when no later departure can be offered: planning
// stops at the first task that would be late.
func lateReason(d *draft) string {
	for i, g := range d.stages {
		if g.MaxParallel > 0 && g.Tasks > g.MaxParallel {
			return fmt.Sprintf("stage %q may not run all of its tasks at the same time: leave max_parallel out", d.job.Spec.Stages[i].Name)
		}
	}
	return "no plan in which each task runs for as long as its bound ends by the deadline: set a later one, or a shorter runtime_bound"
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

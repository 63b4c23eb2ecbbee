package coordinator

import (
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
	forward "github.com/drover-run/drover/scheduler/deadline/plan"
	"github.com/drover-run/drover/scheduler/estimate"
	"github.com/drover-run/drover/scheduler/policies"
)

// Limits of quotes.
const (
	quoteWait     = 5 * time.Second  // for the quotes before this one
	quoteWork     = 4_000_000        // tasks played forward in all samples together
	maxSamples    = 200              // of one quote
	minSamples    = 20               // fewer say nothing
	quoteUnknown  = 60 * time.Second // run time of a task of which nothing is known
	counterOffer  = 0.95             // p of the deadline that is offered instead
	weakQuote     = 0.5              // below it a warning goes with the accept
	startsLimit   = 20_000           // ends of tasks played forward for expected starts
	startsPause   = time.Second      // between two plans for expected starts
	maxPlanSteps  = 2000             // of an answer
	offerRounding = time.Second
)

// quotes makes quotes, one at a time, on a copy of the State: the loop does
// not wait for them.
type quotes struct {
	turn    chan struct{}   // a token: nobody makes a quote
	planner forward.Planner // of whoever has the turn

	mu        sync.Mutex
	starts    map[scheduler.StageID]scheduler.Time // replaced, never written
	startsDue time.Time
}

func newQuotes() *quotes {
	q := &quotes{turn: make(chan struct{}, 1)}
	q.turn <- struct{}{}
	return q
}

// take waits for the turn.
func (q *quotes) take(ctx context.Context) (done func(), err error) {
	t := time.NewTimer(quoteWait)
	defer t.Stop()
	select {
	case <-q.turn:
		return func() { q.turn <- struct{}{} }, nil
	case <-t.C:
		return nil, fault.New(fault.Unavailable, "other quotes are being made: try again")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// forecast is what is said of a job at its submission.
type forecast struct {
	estimates []*droverv1.StageEstimate
	quote     *droverv1.Quote // of a job with a deadline; nil where none can be made
}

// quoteFor is step 4 of a submission.
func (s *clientService) quoteFor(ctx context.Context, spec *jobspec.Job, in *located, require float64) (says forecast, warnings []string, err error) {
	if spec.Deadline == nil {
		if require > 0 {
			return says, nil, fault.New(fault.Invalid, "job %q has no deadline to be quoted: add deadline = \"…\" to the job, or leave -require-quote out", spec.Name)
		}
		return forecast{estimates: s.forecasts.ofSpec(spec, in.splits)}, nil, nil
	}
	try, err := s.tryJob(ctx, spec, in)
	switch {
	case err == nil:
	case require > 0 || ctx.Err() != nil:
		return says, nil, err
	default:
		return forecast{estimates: s.forecasts.ofSpec(spec, in.splits)}, []string{"no quote: " + err.Error()}, nil
	}
	says = forecast{try.estimates, try.quote}
	return says, try.warn(require), try.refuse(spec, require)
}

// refuse is the refusal of a quote that is too weak, with a counter-offer.
func (t *trial) refuse(spec *jobspec.Job, require float64) error {
	p := t.quote.GetProbability()
	if p >= require || t.guaranteed() {
		return nil
	}
	text := fmt.Sprintf("job %q would end by %s with probability %.2f, not %.2f", spec.Name, instant(t.quote.GetDeadlineMs()), p, require)
	if at := t.offer(require); at > 0 {
		return fault.New(fault.Exhausted, "%s: the earliest deadline that holds is %s", text, instant(at))
	}
	return fault.New(fault.Exhausted, "%s: no deadline holds as the cluster is now", text)
}

// guaranteed tells whether the scheduler promises a departure by the deadline.
func (t *trial) guaranteed() bool {
	g := t.quote.GetGuaranteedMs()
	return g > 0 && g <= t.quote.GetDeadlineMs()
}

// warn says what the user should know of a quote that is weak.
func (t *trial) warn(require float64) []string {
	p := t.quote.GetProbability()
	if p >= max(weakQuote, require) || t.guaranteed() || t.quote.GetDeadlineMs() == 0 {
		return t.notes
	}
	text := fmt.Sprintf("the deadline is met with probability %.2f only (%s)", p, t.quote.GetBasis())
	if at := t.offer(counterOffer); at > 0 {
		text += fmt.Sprintf("; %s holds with %.2f", instant(at), counterOffer)
	}
	return append(t.notes, text)
}

// offer is the earliest deadline that holds with probability p, as Unix ms,
// rounded up; 0 for none.
func (t *trial) offer(p float64) int64 {
	at := t.times.At(p)
	if at == scheduler.Never {
		return 0
	}
	const step = int64(offerRounding)
	return (int64(at) + step - 1) / step * step / 1e6
}

func instant(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// trial is a job that was tried on a copy of the State.
type trial struct {
	estimates []*droverv1.StageEstimate
	quote     *droverv1.Quote
	times     *forward.Quote
	state     *scheduler.State // with the job in it
	job       scheduler.JobID
	decision  scheduler.Decision
	scheduler string
	notes     []string // for the user
}

// tryJob brings a job into a copy of the State, asks the policy what it would
// do, and plays the cluster forward for the quote.
func (s *clientService) tryJob(ctx context.Context, spec *jobspec.Job, in *located) (*trial, error) {
	done, err := s.quotes.take(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	now := s.now()
	t := &trial{estimates: s.forecasts.ofSpec(spec, in.splits)}
	var d *draft
	var params map[string]string
	sources := map[scheduler.StageID]estimate.Source{}
	s.view(func(f *facts.Facts) {
		if err = f.CheckAccept(spec, "", max(now.UnixNano(), f.At())); err == nil {
			d, err = s.draftOf(f, spec, in, t.estimates, now)
		}
		t.scheduler, params = s.schedulerOf(f)
		sourcesOf(f, sources)
	})
	if err != nil {
		return nil, err
	}
	for _, e := range t.estimates {
		sources[stageID(d.job.ID, e.GetStage())] = estimate.ParseSource(e.GetSource())
	}
	q := s.question(d, t.scheduler, params, sources)
	at := scheduler.Time(now.UnixNano())
	if t.times, err = s.quotes.planner.Quote(d.state, q, at); err != nil {
		return nil, fault.New(fault.Exhausted, "%w", err)
	}
	t.quote = quoteMessage(t.times, d.job, now, basis(t.estimates))
	if err := t.tryPolicy(d, params, at); err != nil {
		return nil, err
	}
	return t, nil
}

// draft is a job that is no fact, beside a State of the facts that it is not
// in yet.
type draft struct {
	state  *scheduler.State
	job    *facts.Job
	spec   scheduler.JobSpec
	stages []scheduler.StageSpec
}

// draftProject is the number of a project that is no fact yet.
const draftProject = scheduler.ProjectID(1) << 62

// draftOf builds a State from the facts, and the job that is tried.
func (s *clientService) draftOf(f *facts.Facts, spec *jobspec.Job, in *located, estimates []*droverv1.StageEstimate, now time.Time) (*draft, error) {
	j, err := f.Draft(spec, in.splits, now.UnixNano())
	if err != nil {
		return nil, err
	}
	for _, e := range estimates {
		j.Stages[e.GetStage()].EstimateNS = e.GetNs()
	}
	nodes := in.hosts.nodes(f)
	p := s.newProjection(func(f *facts.Facts, job uint64) [][]scheduler.NodeID {
		if job == j.ID {
			return nodes
		}
		return s.hosts.of(f, job)
	})
	if err := p.rebuild(f); err != nil {
		return nil, err
	}
	if err := p.hear(s.sessions.running(), scheduler.Time(now.UnixNano())); err != nil {
		return nil, err
	}
	d := &draft{state: p.state, job: j}
	if d.spec, d.stages, err = p.jobSpec(f, j); err != nil || spec.Project == "" || d.spec.Project != 0 {
		return d, err
	}
	d.spec.Project = draftProject
	return d, d.state.PutProject(scheduler.ProjectSpec{ID: draftProject, Name: spec.Project, Tenant: d.spec.Tenant, Priority: d.spec.Priority, Submitted: d.spec.Submitted, Jobs: 1})
}

// sourcesOf tells where the predictions of live stages come from.
func sourcesOf(f *facts.Facts, out map[scheduler.StageID]estimate.Source) {
	for _, id := range f.JobIDs() {
		if j := f.Job(id); !j.HasEnded() {
			for i := range j.Stages {
				out[stageID(id, int32(i))] = estimate.ParseSource(j.Stages[i].EstimateSource)
			}
		}
	}
}

// question is the job as the planner sees it.
func (s *clientService) question(d *draft, name string, params map[string]string, sources map[scheduler.StageID]estimate.Source) forward.Question {
	q := forward.Question{Job: d.spec, Stages: d.stages, Seed: d.job.ID, Unknown: quoteUnknown, Errors: s.errorsOf(sources)}
	q.NoLane, q.Preempt = lanesOf(name, params)
	tasks := max(1, forward.Tasks(d.state, q.Stages)+d.state.Live())
	q.Samples = min(maxSamples, max(minSamples, quoteWork/tasks))
	return q
}

// lanesOf tells how a scheduler treats deadlines.
func lanesOf(name string, params map[string]string) (noLane, preempt bool) {
	switch name {
	case "3dsf", "pdsonqueue":
		return false, slices.Contains([]string{"", "suspend", "cheapest"}, params["preempt"])
	case "edf":
		return false, false
	default:
		return true, false
	}
}

// errorsOf gives how wrong predictions are, each source asked once.
func (s *core) errorsOf(sources map[scheduler.StageID]estimate.Source) forward.Errors {
	var spreads [estimate.Sources + 1]*estimate.Spread
	return func(id scheduler.StageID) (forward.Residual, forward.Residual) {
		src := sources[id]
		if src == 0 {
			src = estimate.None
		}
		if spreads[src] == nil {
			sp := s.forecasts.spread(src)
			spreads[src] = &sp
		}
		return spreads[src].Stage.At, spreads[src].Task.At
	}
}

// basis names the weakest source among a job's predictions.
func basis(list []*droverv1.StageEstimate) string {
	weakest := estimate.Own
	for _, e := range list {
		weakest = min(weakest, estimate.ParseSource(e.GetSource()))
	}
	switch weakest {
	case estimate.None:
		return "no history: run times are guessed"
	case estimate.Bound:
		return "no history: run times are taken from runtime_bound"
	default:
		return "run times from " + weakest.String()
	}
}

var quotedP = []float64{0.5, 0.8, 0.9, 0.95, 0.99}

func quoteMessage(times *forward.Quote, j *facts.Job, now time.Time, basis string) *droverv1.Quote {
	q := &droverv1.Quote{Samples: int32(times.Samples()), Basis: basis, MadeMs: now.UnixMilli(), StartMs: millis(times.Start(0.5))}
	for _, p := range quotedP {
		q.P = append(q.P, p)
		q.AtMs = append(q.AtMs, millis(times.At(p)))
	}
	if d := j.DeadlineNS(); d > 0 {
		q.DeadlineMs, q.Probability = d/1e6, times.By(scheduler.Time(d))
	}
	return q
}

// millis is an instant in Unix ms; 0 for never.
func millis(t scheduler.Time) int64 {
	if t == scheduler.Never {
		return 0
	}
	return int64(t) / 1e6
}

// tryPolicy submits the job to the copy and has the policy decide there. What
// it would do stays in the trial, with the departure that it promises.
func (t *trial) tryPolicy(d *draft, params map[string]string, at scheduler.Time) error {
	policy, err := policies.New(t.scheduler, params)
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	if err := d.state.SubmitJob(d.spec, d.stages); err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	t.state, t.job = d.state, d.spec.ID
	t.decision = policy.Decide(d.state, at, maxActions)
	for i := range t.decision.Notes {
		n := &t.decision.Notes[i]
		switch mine := n.Job == t.job; {
		case mine && n.Kind == scheduler.NoteAccepted:
			t.quote.GuaranteedMs = t.quote.DeadlineMs
		case mine && n.Kind == scheduler.NoteRefused && n.At > 0:
			t.notes = append(t.notes, "the scheduler does not guarantee the deadline; the earliest end that it would guarantee is "+instant(millis(n.At)))
		}
		if n.Kind == scheduler.NotePromise && (n.Job == t.job || (n.Project != 0 && n.Project == d.spec.Project)) {
			t.quote.GuaranteedMs = millis(n.At)
		}
	}
	return nil
}

// expectedStarts tells when the stages that wait are expected to start, played
// forward with run times as predicted. It is made anew after startsPause at
// the earliest, and after twenty times what it cost. Without an answer (another
// quote is being made, too much waits) it gives what it had.
func (s *clientService) expectedStarts(ctx context.Context) map[scheduler.StageID]scheduler.Time {
	q := s.quotes
	q.mu.Lock()
	starts, due := q.starts, q.startsDue
	q.mu.Unlock()
	if s.now().Before(due) {
		return starts
	}
	done, err := q.take(ctx)
	if err != nil {
		return starts
	}
	defer done()
	began := s.now()
	var state *scheduler.State
	question := forward.Question{Unknown: quoteUnknown}
	s.view(func(f *facts.Facts) {
		p := s.newProjection(s.hosts.of)
		if err = p.rebuild(f); err == nil {
			state = p.state
		}
		question.NoLane, question.Preempt = lanesOf(s.schedulerOf(f))
	})
	if err == nil {
		starts, err = q.planner.Starts(state, question, scheduler.Time(began.UnixNano()), startsLimit)
	}
	if err != nil {
		s.log.Debug("no expected starts", "err", err)
		starts = nil
	}
	now := s.now()
	q.mu.Lock()
	defer q.mu.Unlock()
	q.starts, q.startsDue = starts, now.Add(max(startsPause, 20*now.Sub(began)))
	return starts
}

// addStarts says when what waits of a job is expected to start: when the
// scheduler's own plan says, else when the forward plan does.
func (s *clientService) addStarts(ctx context.Context, r *droverv1.GetJobResponse) {
	if ended(r.Job.State) {
		return
	}
	var starts map[scheduler.StageID]scheduler.Time
	for i, g := range r.Stages {
		if g.Pending == 0 {
			continue
		}
		if starts == nil {
			starts = s.expectedStarts(ctx)
		}
		id := stageID(r.Job.Job, int32(i))
		if at, ok := starts[id]; ok {
			g.ExpectedStartMs = millis(at)
		}
		if w, ok := s.waitingFor(id); ok && w.Reason == scheduler.ReasonLater && w.Until < scheduler.Never {
			g.ExpectedStartMs = millis(w.Until)
		}
		if at := g.ExpectedStartMs; at > 0 && r.Job.StartedMs == 0 && (r.Job.ExpectedStartMs == 0 || at < r.Job.ExpectedStartMs) {
			r.Job.ExpectedStartMs = at
		}
	}
}

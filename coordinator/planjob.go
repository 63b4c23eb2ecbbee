package coordinator

import (
	"context"
	"fmt"
	"math"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler"
)

// PlanJob predicts the effects of a job: what would be placed at once, which
// tasks would be suspended to which level, and when the job would end. It
// performs the steps of SubmitJob up to the quote and stores nothing.
func (s *clientService) PlanJob(ctx context.Context, req *connect.Request[droverv1.PlanJobRequest]) (*connect.Response[droverv1.PlanJobResponse], error) {
	id := caller(ctx)
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if !s.rates.allow(id.name) {
		return nil, fault.Overload("%s asks for more than %g jobs a second: try again in a second", id.displayName(), s.core.cfg.SubmitRate)
	}
	require := req.Msg.GetRequireQuote()
	if !(require >= 0 && require <= 1) {
		return nil, fault.New(fault.Invalid, "the required quote is %g: it is a probability, 0 to 1", require)
	}
	spec, err := decodeSpec(req.Msg.GetSpec())
	if err != nil {
		return nil, err
	}
	warnings, err := s.submissions.admit(ctx, spec)
	if err != nil {
		return nil, err
	}
	in, err := s.submissions.checkFiles(ctx, spec)
	if err != nil {
		return nil, err
	}
	if require == 0 {
		require = counterOfferProbability
	}
	t, err := s.dryRun(ctx, spec, in, offer{require, require})
	if err != nil {
		return nil, err
	}
	res := &droverv1.PlanJobResponse{Quote: t.quote, Warnings: append(append(warnings, smallFilesWarning(spec, in)...), t.allWarnings(0)...), CounterOfferMs: t.offerMs, Scheduler: t.scheduler}
	s.core.view(func(f *facts.Facts) { t.fillPlan(ctx, s.core, f, res) })
	return connect.NewResponse(res), nil
}

// fillPlan adds the stages and the steps of the decision.
func (t *dryRunResult) fillPlan(ctx context.Context, c *core, f *facts.Facts, res *droverv1.PlanJobResponse) {
	for i, g := range t.state.Job(t.job).Stages {
		p := &droverv1.PlannedStage{Name: g.Spec.Name, Tasks: g.Spec.Tasks, EstimateMs: t.estimates[i].GetNs() / 1e6, Source: t.estimates[i].GetSource(),
			StartMs: unixMillis(t.times.MedianStageStart(i)), BoundMs: g.Bound().Milliseconds()}
		for k := range t.decision.Waiting {
			if w := &t.decision.Waiting[k]; w.Stage == g.ID() {
				p.Waiting = c.waits.reason(f, w)
			}
		}
		res.Stages = append(res.Stages, p)
	}
	others := 0
	for i := range t.decision.Actions {
		a := &t.decision.Actions[i]
		if a.Kind == scheduler.ActReserve || a.Kind == scheduler.ActUnreserve {
			continue
		}
		if a.Kind == scheduler.ActPlace && a.Task.Job != t.job { // it would be placed without the job, too
			others++
			continue
		}
		if len(res.Steps) < maxPlanSteps {
			res.Steps = append(res.Steps, t.plannedStep(ctx, c, f, a))
		}
	}
	if others > 0 {
		res.Warnings = append(res.Warnings, fmt.Sprintf("%d tasks of other jobs are placed in the same cycle", others))
	}
}

// plannedStep describes an action. It names a job that the caller may not read only by its number.
func (t *dryRunResult) plannedStep(ctx context.Context, c *core, f *facts.Facts, a *scheduler.Action) *droverv1.PlannedStep {
	out := &droverv1.PlannedStep{Action: a.Kind.String(), Task: fmt.Sprintf("%d/%d", a.Task.Stage, a.Task.Index)}
	if g := t.state.Stage(a.Task.StageID()); g != nil {
		out.Job, out.Task = g.Job.Spec.Name, fmt.Sprintf("%s/%d", g.Spec.Name, a.Task.Index)
		if j := f.Job(uint64(a.Task.Job)); j != nil && c.rights.needJob(ctx, mayRead, f, j) != nil {
			out.Job, out.Task = fmt.Sprint(a.Task.Job), fmt.Sprintf("%d/%d", a.Task.Stage, a.Task.Index)
		}
	}
	node := a.Node
	if at := t.state.Attempt(scheduler.AttemptID{TaskID: a.Task, Attempt: a.Attempt}); at != nil && a.Kind != scheduler.ActPlace && a.Kind != scheduler.ActMigrate {
		node = at.Node
	}
	if n := f.Node(int32(node) + 1); n != nil {
		out.Node = n.Info.GetName()
	}
	if a.Kind == scheduler.ActSuspend {
		out.Level = a.Level.String()
	}
	return out
}

// calibrationEdges are the bin bounds of quoted probabilities.
var calibrationEdges = []float64{0, 0.5, 0.6, 0.7, 0.8, 0.9, 1}

// Calibration compares the quotes of ended jobs with their outcomes.
func (s *clientService) Calibration(ctx context.Context, _ *connect.Request[droverv1.CalibrationRequest]) (*connect.Response[droverv1.CalibrationResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	var list []facts.Outcome
	open := int32(0)
	s.core.view(func(f *facts.Facts) {
		list = f.Deadlines().Outcomes()
		for _, id := range f.JobIDs() {
			if j := f.Job(id); !j.HasEnded() && j.Quote != nil {
				open++
			}
		}
	})
	res := calibrate(list)
	res.Open = open
	return connect.NewResponse(res), nil
}

// calibrate sorts outcomes into bins and computes the Brier score of the
// quotes, and that of always predicting the base rate.
func calibrate(list []facts.Outcome) *droverv1.CalibrationResponse {
	res := &droverv1.CalibrationResponse{}
	for i := range len(calibrationEdges) - 1 {
		res.Bins = append(res.Bins, &droverv1.CalibrationBin{From: calibrationEdges[i], To: calibrationEdges[i+1]})
	}
	met := 0.0
	for _, o := range list {
		if o.Excluded {
			res.Excluded++
			continue
		}
		y := 0.0
		if o.OnTime {
			y = 1
		}
		b := res.Bins[0]
		for _, x := range res.Bins {
			if o.Probability > x.From {
				b = x
			}
		}
		b.Jobs++
		b.Quoted += o.Probability
		b.OnTime += y
		res.Jobs++
		met += y
		res.Brier += (o.Probability - y) * (o.Probability - y)
	}
	for _, b := range res.Bins {
		if n := float64(b.Jobs); n > 0 {
			b.Quoted, b.OnTime = b.Quoted/n, b.OnTime/n
			b.Low, b.High = wilsonInterval(b.OnTime, n)
		}
	}
	if n := float64(res.Jobs); n > 0 {
		res.Brier, res.BaseRate = res.Brier/n, met/n
		res.BaseBrier = res.BaseRate * (1 - res.BaseRate)
	}
	return res
}

// wilsonInterval returns the 95% Wilson score interval of a proportion p of n.
func wilsonInterval(p, n float64) (low, high float64) {
	const z = 1.959964
	mid := (p + z*z/(2*n)) / (1 + z*z/n)
	half := z / (1 + z*z/n) * math.Sqrt(p*(1-p)/n+z*z/(4*n*n))
	return max(0, mid-half), min(1, mid+half)
}

package coordinator

import (
	"context"
	"math"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/estimate"
)

// Limits of predictions.
const (
	estimateSeed    = 1
	estimatePause   = time.Second // between two predictions for running stages
	maxEstimates    = 2000        // in one entry
	estimateChange  = 0.05        // relative; smaller changes of a prediction are not proposed
	bandwidthChange = 0.2         // relative; smaller changes of the measured bandwidth are ignored
	trainBudget     = 2000        // task visits under one lock, about 4 ms
	trainShare      = 10          // training takes at most one part in this many of a core
)

// predictor predicts run times from the completions in the facts. Its
// predictions become facts, so that a State built from the log has those that
// the decisions were based on; so do the completions, so that a new leader
// predicts from the same tasks.
type predictor struct {
	mu      sync.Mutex
	book    *estimate.Estimator
	lastSeq uint64 // of the last completion observed

	observed chan struct{} // has a token when completions were observed since training last looked
}

func newPredictor() *predictor {
	return &predictor{book: estimate.New(estimateSeed), observed: make(chan struct{}, 1)}
}

// observeCompletions reads the new completions and reports whether there were
// any. It is called under the facts' lock.
func (p *predictor) observeCompletions(f *facts.Facts) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	completions, seen := f.Deadlines().CompletionsSince(p.lastSeq)
	p.lastSeq = seen
	for _, r := range completions {
		t := &estimate.Task{Stage: estimate.Stage{ID: stageID(r.Job, r.Stage), Tenant: r.Tenant, Job: r.JobName, Name: r.Name, Kind: stageKind(jobspec.StageKind(r.Kind)),
			Demand: resources(r.Demand), InputBytes: r.Input, Tasks: r.Tasks}, Node: nodeID(r.Node), RunTime: time.Duration(r.RunNS)}
		switch r.Locality {
		case "rack":
			t.DataDistance = 1
		case "remote":
			t.DataDistance = 3
		}
		if j := f.Job(r.Job); j != nil {
			if s := &j.Stages[r.Stage]; s.EstimateSource != "" && s.EstimateSource != estimate.OwnTasks.String() {
				p.book.RecordFirstPrediction(t.ID, estimate.Prediction{RunTime: time.Duration(s.EstimateNS), Source: estimate.ParseSource(s.EstimateSource)})
			}
		}
		p.book.Observe(t)
	}
	if len(completions) == 0 {
		return false
	}
	select {
	case p.observed <- struct{}{}:
	default:
	}
	return true
}

// spread returns the error quantiles of predictions from a source.
func (p *predictor) spread(s estimate.Source) estimate.ErrorQuantiles {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.book.ErrorsBySource(s)
}

// unknownRunTime returns the run time to assume for a task without any estimate.
func (p *predictor) unknownRunTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if mean, ok := p.book.MeanRunTime(); ok {
		return mean
	}
	return defaultTaskTime
}

// bandwidth returns the measured bandwidth of one remote reader, in bytes/s,
// and whether it is known.
func (p *predictor) bandwidth() (int64, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.book.Bandwidth()
}

// estimateSpec predicts the run times of the stages of a job being submitted. For a job with a
// deadline and no runtime_bound, it also predicts the upper values that a guarantee uses as bounds.
func (c *predictor) estimateSpec(spec *jobspec.Job, splits []*droverv1.FactSplit) []*droverv1.StageEstimate {
	c.mu.Lock()
	defer c.mu.Unlock()
	bound := time.Duration(spec.RuntimeBound)
	uppers := spec.Deadline != nil && spec.RuntimeBound == 0 && spec.Project == ""
	out := make([]*droverv1.StageEstimate, len(spec.Stages))
	for i := range spec.Stages {
		input := int64(0)
		if spec.Stages[i].Kind == jobspec.KindMap {
			input = facts.MeanSplit(splits)
		}
		p := c.book.Predict(stageToEstimate(0, spec, i, input, bound))
		out[i] = &droverv1.StageEstimate{Stage: int32(i), Ns: int64(p.RunTime), Source: p.Source.String()}
		if n := spec.Stages[i].Tasks; uppers {
			if spec.Stages[i].Kind == jobspec.KindMap {
				n = len(splits)
			}
			out[i].UpperNs = int64(c.book.ErrorsBySource(p.Source).UpperRunTime(p.RunTime, max(1, n)))
		}
	}
	return out
}

// estimateStage predicts the run time of a stage of an accepted job. It does not look at the
// splits, because it is called for all unfinished stages at once, under the facts' lock.
func (p *predictor) estimateStage(j *facts.Job, i int) estimate.Prediction {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := stageToEstimate(j.ID, j.Spec, i, j.Stages[i].MeanSplit, time.Duration(j.Spec.RuntimeBound))
	d.Tasks, d.Running = j.Stages[i].Tasks, j.Stages[i].Live-j.Stages[i].Suspended
	return p.book.Predict(d)
}

// stageToEstimate returns the inputs of a stage's prediction.
func stageToEstimate(job uint64, spec *jobspec.Job, i int, input int64, bound time.Duration) *estimate.Stage {
	s := &spec.Stages[i]
	return &estimate.Stage{ID: stageID(job, int32(i)), Tenant: spec.Tenant, Job: spec.Name, Name: s.Name, Kind: stageKind(s.Kind),
		Demand: scheduler.Resources{s.Resources.CPU, s.Resources.Memory, s.Resources.IO}, InputBytes: input, RuntimeBound: bound}
}

func stageID(job uint64, stage int32) scheduler.StageID {
	return scheduler.StageID{Job: scheduler.JobID(job), Stage: stage}
}

func stageKind(k jobspec.StageKind) scheduler.StageKind {
	switch k {
	case jobspec.KindMap:
		return scheduler.KindMap
	case jobspec.KindReduce:
		return scheduler.KindReduce
	default:
		return scheduler.KindGroup
	}
}

// trainPredictor trains the prediction model until ctx ends. Training takes a small share of one
// core: a model that improves some seconds later matters less than the processor time of decisions
// and reports. Only completions trigger it, so an idle coordinator does not wake up.
func (c *core) trainPredictor(ctx context.Context) error {
	p := c.predictor
	for {
		select {
		case <-p.observed:
		case <-ctx.Done():
			return nil
		}
		for more := true; more; {
			p.mu.Lock()
			start := time.Now()
			more = p.book.Train(trainBudget)
			took := time.Since(start)
			p.mu.Unlock()
			if more && !sleep.For(ctx, (trainShare-1)*took) {
				return nil
			}
		}
	}
}

// estimateUpdates is what has changed since the leader last predicted the run times of unfinished
// stages.
type estimateUpdates struct {
	completions bool      // tasks ended
	jobs        []uint64  // accepted
	newest      uint64    // job that was accepted, ever
	last        time.Time // of the last prediction
}

// accepted records a job that may be new.
func (u *estimateUpdates) accepted(id uint64) {
	if id > u.newest {
		u.newest, u.jobs = id, append(u.jobs, id)
	}
}

// due returns when to predict again, zero for not before another change.
func (u *estimateUpdates) due() time.Time {
	if !u.completions && len(u.jobs) == 0 {
		return time.Time{}
	}
	return u.last.Add(estimatePause)
}

// take returns the predictions that changed. If tasks have ended since the last call, these are of
// all unfinished stages; otherwise of the jobs accepted since then, whose own predictions may be
// older than the last completions.
func (u *estimateUpdates) take(f *facts.Facts, p *predictor, now time.Time) []*droverv1.StageEstimate {
	jobs := u.jobs
	if u.completions {
		jobs = f.JobIDs()
	}
	list, more := newEstimates(f, p, jobs)
	u.completions, u.jobs, u.last = more, nil, now
	return list
}

// updateEstimates is part of step 4. It proposes the predictions that changed. It returns when it
// is due again, zero for not before another change.
func (l *leader) updateEstimates(ctx context.Context) (time.Time, error) {
	now := l.c.now()
	if due := l.estimates.due(); due.IsZero() || now.Before(due) {
		return due, nil
	}
	var list []*droverv1.StageEstimate
	var err error
	l.c.view(func(f *facts.Facts) {
		list = l.estimates.take(f, l.c.predictor, now)
		err = l.updateBandwidth(f)
	})
	if err != nil || len(list) == 0 {
		return time.Time{}, err
	}
	e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Estimates{Estimates: &droverv1.EstimatesFact{Stages: list}}}
	_, err = l.c.replica.Propose(ctx, e)
	return time.Time{}, err
}

// updateBandwidth passes the measured bandwidth of remote reads to the policy
// when it is first known and when it has changed by more than bandwidthChange.
func (l *leader) updateBandwidth(f *facts.Facts) error {
	bps, ok := l.c.predictor.bandwidth()
	if was := float64(l.bandwidth); !ok || math.Abs(float64(bps)-was) <= bandwidthChange*was {
		return nil
	}
	l.bandwidth = max(1, bps)
	name := l.policyName
	l.policyName = "" // makes setPolicy create the same policy with the new parameter
	if err := l.setPolicy(f); err != nil {
		return err
	}
	l.c.log.Info("remote reads measured", "bytes_per_s", l.bandwidth, "scheduler", name)
	return nil
}

// newEstimates returns the predictions that changed, for at most maxEstimates stages of the jobs,
// and whether there may be more.
func newEstimates(f *facts.Facts, p *predictor, jobs []uint64) (out []*droverv1.StageEstimate, more bool) {
	for _, id := range jobs {
		j := f.Job(id)
		if j == nil || j.HasEnded() {
			continue
		}
		for i := range j.Stages {
			s := &j.Stages[i]
			if s.Done >= s.Tasks {
				continue
			}
			if len(out) == maxEstimates {
				return out, true
			}
			prediction := p.estimateStage(j, i)
			was := float64(s.EstimateNS)
			if prediction.Source.String() == s.EstimateSource && math.Abs(float64(prediction.RunTime)-was) <= estimateChange*was {
				continue
			}
			out = append(out, &droverv1.StageEstimate{Job: id, Stage: int32(i), Ns: int64(prediction.RunTime), Source: prediction.Source.String()})
		}
	}
	return out, false
}

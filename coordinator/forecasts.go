package coordinator

import (
	"context"
	"math"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/estimate"
)

// Limits of predictions.
const (
	forecastSeed    = 1
	forecastPause   = time.Second            // between two looks at the stages that run
	forecastAtOnce  = 2000                   // stages in one entry
	forecastChange  = 0.05                   // a smaller change of a prediction is not worth an entry
	bandwidthChange = 0.2                    // likewise, of the measured bandwidth
	trainBudget     = 2000                   // task visits under one lock, about 4 ms
	trainPause      = 200 * time.Millisecond // between two looks whether there is something to train on
)

// forecasts predicts run times from what the facts remember of tasks that
// ended. Its predictions become facts, so that whoever builds a State from the
// log has those that decided; what it learns from is in the facts as well, so
// that a new leader predicts from the same tasks.
type forecasts struct {
	mu   sync.Mutex
	book *estimate.Book
	seen uint64 // number of the last task learnt
}

func newForecasts() *forecasts { return &forecasts{book: estimate.New(forecastSeed)} }

// learn takes what the facts have that is new and tells whether there was any.
// It is called under the facts' lock.
func (c *forecasts) learn(f *facts.Facts) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh, seen := f.RanSince(c.seen)
	c.seen = seen
	for _, r := range fresh {
		t := &estimate.Task{Stage: estimate.Stage{ID: stageID(r.Job, r.Stage), Tenant: r.Tenant, Job: r.JobName, Name: r.Name, Kind: stageKind(jobspec.StageKind(r.Kind)),
			Demand: resources(r.Demand), Input: r.Input, Tasks: r.Tasks}, Node: nodeID(r.Node), Run: time.Duration(r.RunNS)}
		switch r.Locality {
		case "rack":
			t.Remote = 1
		case "remote":
			t.Remote = 3
		}
		if j := f.Job(r.Job); j != nil {
			if s := &j.Stages[r.Stage]; s.EstimateSource != "" && s.EstimateSource != estimate.Own.String() {
				c.book.Begin(t.ID, estimate.Prediction{Run: time.Duration(s.EstimateNS), Source: estimate.ParseSource(s.EstimateSource)})
			}
		}
		c.book.Observe(t)
	}
	return len(fresh) > 0
}

// spread gives how wrong predictions of a source are.
func (c *forecasts) spread(s estimate.Source) estimate.Spread {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.book.Spread(s)
}

// bandwidth is what one reader of remote data gets, as far as tasks show it.
func (c *forecasts) bandwidth() (int64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.book.Bandwidth()
}

// ofSpec predicts the stages of a job that is being submitted.
func (c *forecasts) ofSpec(spec *jobspec.Job, splits []*droverv1.FactSplit) []*droverv1.StageEstimate {
	c.mu.Lock()
	defer c.mu.Unlock()
	bound := taskBound(spec)
	out := make([]*droverv1.StageEstimate, len(spec.Stages))
	for i := range spec.Stages {
		p := c.book.Stage(describe(0, spec, i, meanInput(spec, i, splits), bound))
		out[i] = &droverv1.StageEstimate{Stage: int32(i), Ns: int64(p.Run), Source: p.Source.String()}
	}
	return out
}

// ofJob predicts a stage of an accepted job.
func (c *forecasts) ofJob(j *facts.Job, i int) estimate.Prediction {
	c.mu.Lock()
	defer c.mu.Unlock()
	d := describe(j.ID, j.Spec, i, meanInput(j.Spec, i, j.Stages[i].Splits), taskBound(j.Spec))
	d.Tasks, d.Running = j.Stages[i].Tasks, j.Stages[i].Live-j.Stages[i].Suspended
	return c.book.Stage(d)
}

// describe is a stage as predictions see it.
func describe(job uint64, spec *jobspec.Job, i int, input int64, bound time.Duration) *estimate.Stage {
	s := &spec.Stages[i]
	return &estimate.Stage{ID: stageID(job, int32(i)), Tenant: spec.Tenant, Job: spec.Name, Name: s.Name, Kind: stageKind(s.Kind),
		Demand: scheduler.Resources{s.Resources.CPU, s.Resources.Memory, s.Resources.IO}, Input: input, Bound: bound}
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

// meanInput is what a task of a map stage reads in the mean.
func meanInput(spec *jobspec.Job, i int, splits []*droverv1.FactSplit) int64 {
	if spec.Stages[i].Kind != jobspec.KindMap || len(splits) == 0 {
		return 0
	}
	sum := 0.0
	for _, s := range splits {
		sum += float64(splitBytes(s))
	}
	return int64(min(sum/float64(len(splits)), math.MaxInt64/2))
}

// taskBound is the time that one task may take by the job's runtime_bound, if
// its stages follow one another.
func taskBound(spec *jobspec.Job) time.Duration {
	depth := make([]int, len(spec.Stages))
	longest := 1
	for i, s := range spec.Stages { // in an order in which each follows those before it
		depth[i] = 1
		for k := range i {
			o := &spec.Stages[k]
			before := s.Kind == jobspec.KindReduce && o.Kind == jobspec.KindMap
			for _, a := range s.After {
				before = before || a == o.Name
			}
			if before {
				depth[i] = max(depth[i], depth[k]+1)
			}
		}
		longest = max(longest, depth[i])
	}
	return time.Duration(spec.RuntimeBound) / time.Duration(longest)
}

// train trains the model beside the loop until ctx ends.
func (c *core) train(ctx context.Context) error {
	for {
		c.forecasts.mu.Lock()
		more := c.forecasts.book.Step(trainBudget)
		c.forecasts.mu.Unlock()
		pause := trainPause
		if more {
			pause = time.Millisecond
		}
		if !sleep(ctx, pause) {
			return nil
		}
	}
}

// forecast is a step of the loop: where tasks ended since the last look, it
// predicts anew for the stages that still run and makes what changed a fact.
// It gives when it is due again, zero for not before something happens.
func (l *leader) forecast(ctx context.Context) (time.Time, error) {
	if !l.learnt {
		return time.Time{}, nil
	}
	now := l.c.now()
	if due := l.lastForecast.Add(forecastPause); now.Before(due) {
		return due, nil
	}
	l.lastForecast, l.learnt = now, false
	var list []*droverv1.StageEstimate
	var err error
	l.c.view(func(f *facts.Facts) {
		list = l.newEstimates(f)
		err = l.measure(f)
	})
	if err != nil {
		return time.Time{}, err
	}
	if len(list) == 0 {
		return time.Time{}, nil
	}
	e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Estimates{Estimates: &droverv1.EstimatesFact{Stages: list}}}
	_, err = l.c.replica.Propose(ctx, e)
	return time.Time{}, err
}

// measure tells the policy of the bandwidth of remote reads, when it was first
// measured and when it has changed by more than bandwidthChange.
func (l *leader) measure(f *facts.Facts) error {
	bps, ok := l.c.forecasts.bandwidth()
	if was := float64(l.bandwidth); !ok || math.Abs(float64(bps)-was) <= bandwidthChange*was {
		return nil
	}
	l.bandwidth = max(1, bps)
	name := l.name
	l.name = "" // the same policy again, with another parameter
	if err := l.setPolicy(f); err != nil {
		return err
	}
	l.c.log.Info("remote reads measured", "bytes_per_s", l.bandwidth, "scheduler", name)
	return nil
}

// newEstimates lists the predictions that changed, of at most forecastAtOnce
// stages; the rest comes next time.
func (l *leader) newEstimates(f *facts.Facts) []*droverv1.StageEstimate {
	var out []*droverv1.StageEstimate
	for _, id := range f.JobIDs() {
		j := f.Job(id)
		if j.HasEnded() {
			continue
		}
		for i := range j.Stages {
			s := &j.Stages[i]
			if s.Done >= s.Tasks {
				continue
			}
			if len(out) == forecastAtOnce {
				l.learnt = true
				return out
			}
			p := l.c.forecasts.ofJob(j, i)
			was := float64(s.EstimateNS)
			if p.Source.String() == s.EstimateSource && math.Abs(float64(p.Run)-was) <= forecastChange*was {
				continue
			}
			out = append(out, &droverv1.StageEstimate{Job: id, Stage: int32(i), Ns: int64(p.Run), Source: p.Source.String()})
		}
	}
	return out
}

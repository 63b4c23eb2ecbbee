package estimate

import (
	"cmp"
	"time"

	"github.com/drover-run/drover/internal/enum"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/predict"
)

// Source is the origin of a prediction, weakest first.
type Source uint8

const (
	None         Source = iota + 1 // no prediction
	RuntimeBound                   // the job's runtime_bound, an upper bound
	Tenant                         // the tenant's other tasks
	History                        // stages of the same name in jobs of the same name
	Model                          // network or ridge regression, where it beats the sources above on held-out tasks
	OwnTasks                       // finished tasks of the stage itself
)

// Sources is the number of sources.
const Sources = int(OwnTasks)

// String returns the word used in listings and in the replicated log.
func (s Source) String() string {
	return enum.Name("source", s, []string{None: "none", RuntimeBound: "bound", Tenant: "tenant", Model: "model", History: "history", OwnTasks: "own tasks"})
}

// ParseSource is the inverse of String; it returns None for unknown text.
func ParseSource(text string) Source {
	for s := None; s <= OwnTasks; s++ {
		if s.String() == text {
			return s
		}
	}
	return None
}

// Stage is the input of a prediction.
type Stage struct {
	ID           scheduler.StageID
	Tenant       string
	Job          string // the job's name
	Name         string
	Kind         scheduler.StageKind
	Demand       scheduler.Resources
	Tasks        int32         // number of tasks of the stage
	Running      int32         // number of running tasks
	InputBytes   int64         // mean number of bytes that a task reads
	RuntimeBound time.Duration // bound of one task, from the job's runtime_bound; 0 for none
	DataDistance int           // switches between a finished task's data and its node, 0 to 3 (feature Distance)
	slowdown     float64       // of the node, 0 if unknown (feature Slowdown)
}

// Task is a task that succeeded.
type Task struct {
	Stage
	Node    scheduler.NodeID
	RunTime time.Duration // time during which it occupied its node
}

// Prediction is the predicted run time of one task of a stage.
type Prediction struct {
	RunTime time.Duration // 0 for source None
	Source  Source
}

const (
	maxStages = 1 << 14 // stages with a record
	maxNodes  = 1 << 16
	maxRecent = 512 // ended tasks whose run times are kept
	ownPrior  = 3   // weight, in finished tasks, of the prediction without the stage's own tasks
	// minRun is the smallest run time; anything shorter is rounding.
	minRun = time.Millisecond
)

// Estimator learns run times and predicts them.
type Estimator struct {
	predictor   *predict.Predictor
	stages      predict.BoundedMap[scheduler.StageID, stageRecord]
	slowdowns   map[scheduler.NodeID]*predict.SlowdownTracker
	errors      errorHistory
	remoteReads remoteReadCost
	recent      predict.Ring[float64] // run times of the latest ended tasks, in seconds
}

// stageRecord is what the stage's own tasks show.
type stageRecord struct {
	first   Prediction // prediction before any of its tasks finished
	count   int
	seconds float64   // sum of the run times
	logs    []float64 // log(run time) of finished tasks, until the stage is complete
	thinned int       // number of times every second element of logs was dropped
}

// New returns an empty Estimator; seed is the model's seed.
func New(seed uint64) *Estimator {
	return &Estimator{predictor: predict.New(predict.DefaultConfig(seed)), stages: predict.NewBoundedMap[scheduler.StageID, stageRecord](maxStages), slowdowns: map[scheduler.NodeID]*predict.SlowdownTracker{},
		remoteReads: remoteReadCost{stages: predict.NewBoundedMap[scheduler.StageID, localSiblings](maxReadStages)}}
}

// Train trains the model with at most budget task visits and reports whether the training round is
// still unfinished.
func (b *Estimator) Train(budget int) bool { return b.predictor.Train(budget) }

func predictorTask(s *Stage) predict.Task {
	return predict.Task{Stage: s.Tenant + "/" + s.Job + "/" + s.Name, Tenant: s.Tenant, Features: predict.Features{
		predict.InputBytes: float64(max(0, s.InputBytes)),
		predict.CPU:        float64(max(0, s.Demand[scheduler.CPU])),
		predict.Memory:     float64(max(0, s.Demand[scheduler.Memory])),
		predict.DiskIO:     float64(max(0, s.Demand[scheduler.IO])),
		predict.StageKind:  float64(max(s.Kind, scheduler.KindMap) - scheduler.KindMap),
		predict.Distance:   float64(max(0, s.DataDistance)),
		predict.Slowdown:   cmp.Or(s.slowdown, 1),
	}}
}

// Predict predicts the run time of one task of a stage. O(1).
func (b *Estimator) Predict(s *Stage) Prediction {
	first := b.predictWithoutOwn(s)
	o := b.stages.Get(s.ID)
	if o == nil || o.count == 0 {
		return first
	}
	first = o.first
	weight, sum := float64(o.count), o.seconds
	if first.Source > RuntimeBound {
		// Running tasks tend to be longer than finished ones: count them as predicted. A bound
		// limits the run time of a task and predicts nothing.
		prior := float64(ownPrior + s.Running)
		weight, sum = weight+prior, sum+prior*first.RunTime.Seconds()
	}
	return Prediction{toDuration(sum / weight), OwnTasks}
}

// predictWithoutOwn predicts without the stage's own tasks. The distances of a map
// stage's tasks from their data are not known yet, so it assumes the recent shares.
func (b *Estimator) predictWithoutOwn(s *Stage) Prediction {
	share := [distances]float64{1}
	if s.Kind == scheduler.KindMap {
		share = b.remoteReads.distanceShares()
	}
	t, run := predictorTask(s), 0.0
	var source predict.Source
	for d, part := range share {
		t.Features[predict.Distance] = float64(d)
		x := b.predictor.Predict(&t)
		run, source = run+part*x.Seconds, x.Source
	}
	p := Prediction{toDuration(run), sourceOf[source]}
	if p.Source == 0 {
		p = Prediction{Source: None}
	}
	if s.RuntimeBound > 0 && p.Source == None {
		return Prediction{s.RuntimeBound, RuntimeBound}
	} else if s.RuntimeBound > 0 {
		p.RunTime = min(p.RunTime, s.RuntimeBound)
	}
	return p
}

// sourceOf is the Source of each source of package predict except its default.
var sourceOf = [...]Source{predict.TenantMean: Tenant, predict.StageMean: History, predict.StageRegression: History, predict.Ridge: Model, predict.MLP: Model}

func toDuration(s float64) time.Duration {
	return max(minRun, time.Duration(min(s, float64(1<<62)/1e9)*1e9))
}

// RecordFirstPrediction records the prediction for a stage before any of its tasks finished, against which
// errors are measured, unless there is one. Otherwise the prediction when the first task finishes is used.
func (b *Estimator) RecordFirstPrediction(id scheduler.StageID, first Prediction) {
	if b.stages.Get(id) == nil {
		b.stages.GetOrAdd(id).first = first
	}
}

// Observe learns from a task that succeeded. It ignores a task without a positive run time. O(1).
func (b *Estimator) Observe(t *Task) {
	if t.RunTime <= 0 {
		return
	}
	run := max(t.RunTime, minRun).Seconds()
	if b.stages.Get(t.ID) == nil {
		b.RecordFirstPrediction(t.ID, b.predictWithoutOwn(&t.Stage))
	}
	o := b.stages.GetOrAdd(t.ID)
	task := b.predictorTaskOf(t, run, o.first.RunTime)
	if o.add(run); o.count == int(t.Tasks) {
		b.errors.recordCompleted(o)
	}
	b.remoteReads.observe(t, run)
	b.recent.Add(run, maxRecent)
	b.predictor.Observe(task, run)
}

// predictorTaskOf returns a task as the model learns it, with the slowdown of its node before this run (run in seconds).
func (b *Estimator) predictorTaskOf(t *Task, run float64, first time.Duration) predict.Task {
	slow := b.slowdowns[t.Node]
	if slow == nil && len(b.slowdowns) < maxNodes {
		slow = &predict.SlowdownTracker{}
		b.slowdowns[t.Node] = slow
	}
	x := t.Stage
	if slow != nil {
		x.slowdown = slow.Value()
		slow.Observe(run, first.Seconds()) // which ignores a prediction of 0
	}
	return predictorTask(&x)
}

// recentMean returns the mean run time of the latest ended tasks of all tenants in seconds, 1/mu of the M/M/n
// model (3DSF 7.1), for tasks without any history, and whether enough have ended to trust it. O(maxRecent).
func (b *Estimator) recentMean() (float64, bool) {
	if len(b.recent.Values) < minErrors {
		return 0, false
	}
	sum := 0.0
	for _, s := range b.recent.Values {
		sum += s
	}
	return sum / float64(len(b.recent.Values)), true
}

// MeanRunTime returns the mean run time of the latest 512 ended tasks of all tenants, and whether
// enough have ended to trust it. It is the run time to assume for a task with a prediction from
// source None; ErrorsBySource(None) has the errors of that assumption. O(maxRecent).
func (b *Estimator) MeanRunTime() (time.Duration, bool) {
	mean, ok := b.recentMean()
	return toDuration(mean), ok
}

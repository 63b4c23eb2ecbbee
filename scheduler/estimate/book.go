package estimate

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/predict"
)

// Source says where a prediction comes from, weakest first.
type Source uint8

// The sources.
const (
	None    Source = iota + 1 // nothing is known
	Bound                     // the job's runtime_bound, which is an upper bound
	Tenant                    // the tenant's other tasks
	Model                     // network or ridge regression
	History                   // stages of that name in jobs of that name
	Own                       // tasks of the stage itself
)

// Sources is their number.
const Sources = int(Own)

// String gives the word that listings and the log use.
func (s Source) String() string {
	names := [...]string{None: "none", Bound: "bound", Tenant: "tenant", Model: "model", History: "history", Own: "own tasks"}
	if s >= None && int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("source(%d)", uint8(s))
}

// ParseSource is the inverse of String; None for anything else.
func ParseSource(text string) Source {
	for s := None; s <= Own; s++ {
		if s.String() == text {
			return s
		}
	}
	return None
}

// Stage is what a prediction is made of: a stage as it is submitted.
type Stage struct {
	ID      scheduler.StageID
	Tenant  string
	Job     string // its job's name
	Name    string
	Kind    scheduler.StageKind
	Demand  scheduler.Resources
	Tasks   int32         // of the stage
	Running int32         // of them, now
	Input   int64         // bytes that a task reads, in the mean
	Bound   time.Duration // of one task, by the job's runtime_bound; 0 for none
	Remote  int           // of a task that ran: switches between its data and its node, 0 to 3 (feature Distance)
	Slow    float64       // of the node, where known (feature Slowdown)
}

// Task is one that succeeded.
type Task struct {
	Stage
	Node scheduler.NodeID
	Run  time.Duration // that it held its node
}

// Prediction is the run time of one task of a stage.
type Prediction struct {
	Run    time.Duration // 0 with None
	Source Source
}

// Bounds of what a Book keeps.
const (
	maxStages = 1 << 14 // live stages
	maxNodes  = 1 << 16
	ownPrior  = 3 // finished tasks that the estimate from elsewhere counts as
	// minRun bounds run times from below: what is shorter is rounding.
	minRun = time.Millisecond
)

// Book learns run times and predicts them.
type Book struct {
	predictor *predict.Predictor
	own       map[scheduler.StageID]*own
	ring      []scheduler.StageID // of own, in order of arrival
	next      int
	slow      map[scheduler.NodeID]*predict.SlowdownTracker
	errors    errors
	learnt    uint64 // tasks of a State's history that Learn took
	seen      uint64 // tasks observed
	travel    travel

	task [distances]predict.Task // the first, but for elsewhere
	out  [distances]predict.Estimate
}

// own is what finished of one stage.
type own struct {
	first   Prediction // before any task of it finished
	n       int
	sum     float64   // seconds
	logs    []float64 // of seconds, until the stage is complete
	doubled int       // how often every second one was left out
}

// New makes an empty Book; seed is the model's.
func New(seed uint64) *Book {
	cfg := predict.DefaultConfig(seed)
	cfg.MaxStages, cfg.MaxTenants = maxStages, 1<<12
	p, err := predict.New(cfg)
	if err != nil {
		panic("estimate: " + err.Error()) // the configuration is ours
	}
	return &Book{predictor: p, own: map[scheduler.StageID]*own{}, slow: map[scheduler.NodeID]*predict.SlowdownTracker{}}
}

// Seen counts the tasks observed.
func (b *Book) Seen() uint64 { return b.seen }

// Step trains the model, at most budget task visits, and tells whether there
// is more to do.
func (b *Book) Step(budget int) bool { return b.predictor.Step(budget) == predict.Fitting }

func (b *Book) describe(s *Stage) *predict.Task {
	t := &b.task[0]
	*t = predict.Task{Stage: s.Tenant + "/" + s.Job + "/" + s.Name, Tenant: s.Tenant}
	f := &t.Features
	f.Set(predict.InputBytes, float64(max(0, s.Input)))
	f.Set(predict.CPU, float64(max(0, s.Demand[scheduler.CPU])))
	f.Set(predict.Memory, float64(max(0, s.Demand[scheduler.Memory])))
	f.Set(predict.DiskIO, float64(max(0, s.Demand[scheduler.IO])))
	f.Set(predict.StageKind, float64(max(s.Kind, scheduler.KindMap)-scheduler.KindMap))
	f.Set(predict.Distance, float64(s.Remote))
	f.Set(predict.Slowdown, 1)
	if s.Slow > 0 {
		f.Set(predict.Slowdown, s.Slow)
	}
	return t
}

// Stage predicts the run time of one task of a stage. O(1).
func (b *Book) Stage(s *Stage) Prediction {
	first := b.elsewhere(s)
	o := b.own[s.ID]
	if o == nil || o.n == 0 {
		return first
	}
	first = o.first
	weight, sum := float64(o.n), o.sum
	if first.Source != None {
		// Those that run are longer than those that ended: they count as predicted.
		prior := float64(ownPrior + max(0, s.Running))
		weight, sum = weight+prior, sum+prior*first.Run.Seconds()
	}
	return Prediction{seconds(sum / weight), Own}
}

// elsewhere predicts without the stage's own tasks. How far those of a map stage
// will be from their data is not known yet: as many at each distance as lately.
func (b *Book) elsewhere(s *Stage) Prediction {
	share := [distances]float64{1}
	if s.Kind == scheduler.KindMap {
		share = b.travel.shares()
	}
	b.describe(s)
	for d := range b.task {
		b.task[d] = b.task[0]
		b.task[d].Features.Set(predict.Distance, float64(d))
	}
	if err := b.predictor.Predict(b.task[:], b.out[:]); err != nil {
		return unknown(s) // a feature out of range says nothing
	}
	run := 0.0
	for d, x := range b.out {
		run += share[d] * x.Seconds
	}
	p := Prediction{Run: seconds(run)}
	switch b.out[0].Source {
	case predict.StageMean, predict.StageRegression:
		p.Source = History
	case predict.Ridge, predict.MLP:
		p.Source = Model
	case predict.TenantMean:
		p.Source = Tenant
	default:
		return unknown(s)
	}
	if s.Bound > 0 && p.Run > s.Bound {
		p.Run = s.Bound
	}
	return p
}

// unknown is the prediction for a stage of which there is no history.
func unknown(s *Stage) Prediction {
	if s.Bound > 0 {
		return Prediction{s.Bound, Bound}
	}
	return Prediction{Source: None}
}

func seconds(s float64) time.Duration {
	return max(minRun, time.Duration(min(s, float64(1<<62)/1e9)*1e9))
}

// Begin tells what was predicted for a stage before any of its tasks ran, so
// that its errors are judged by that; without it the first task that finishes
// stands for it. A second call changes nothing.
func (b *Book) Begin(id scheduler.StageID, first Prediction) {
	if b.own[id] == nil {
		b.entry(id).first = first
	}
}

func (b *Book) entry(id scheduler.StageID) *own {
	if o := b.own[id]; o != nil {
		return o
	}
	o := &own{}
	if len(b.ring) < maxStages {
		b.ring = append(b.ring, id)
	} else {
		delete(b.own, b.ring[b.next])
		b.ring[b.next] = id
		b.next = (b.next + 1) % maxStages
	}
	b.own[id] = o
	return o
}

// Observe learns from a task that succeeded. What cannot be (a run time below
// zero) is passed over. O(1).
func (b *Book) Observe(t *Task) {
	if t.Run <= 0 {
		return
	}
	run := max(t.Run, minRun).Seconds()
	if b.own[t.ID] == nil {
		b.Begin(t.ID, b.elsewhere(&t.Stage))
	}
	o := b.own[t.ID]
	slow := b.slow[t.Node]
	if slow == nil && len(b.slow) < maxNodes {
		slow = &predict.SlowdownTracker{}
		b.slow[t.Node] = slow
	}
	x := t.Stage
	if slow != nil {
		x.Slow = slow.Value()
		if o.first.Source != None {
			slow.Observe(run, o.first.Run.Seconds())
		}
	}
	if o.add(run); o.n == int(t.Tasks) {
		b.errors.complete(o)
	}
	b.travel.observe(t, run)
	if err := b.predictor.Observe(*b.describe(&x), run); err == nil {
		b.seen++
	}
}

// Learn observes what a State's history holds and was not learnt before, and
// gives how many tasks that were.
func (b *Book) Learn(s *scheduler.State) int {
	h := s.History()
	fresh := h.TaskCount() - b.learnt
	if fresh == 0 {
		return 0
	}
	kept := uint64(0)
	h.Tasks(func(*scheduler.FinishedTask) bool { kept++; return true })
	skip, n := kept-min(kept, fresh), uint64(0)
	h.Tasks(func(t *scheduler.FinishedTask) bool {
		if n++; n > skip {
			b.Observe(fromHistory(s, t))
		}
		return true
	})
	b.learnt = h.TaskCount()
	return int(kept - skip)
}

func fromHistory(s *scheduler.State, t *scheduler.FinishedTask) *Task {
	out := &Task{Stage: Stage{ID: t.Task.StageID(), Job: t.JobName, Name: t.Stage, Kind: t.Kind, Demand: t.Demand, Input: t.InputBytes, Tasks: t.Tasks}, Node: t.Node, Run: t.RunTime}
	if tn := s.Tenant(t.Tenant); tn != nil {
		out.Tenant = tn.Spec.Name
	}
	if t.Kind == scheduler.KindMap && !t.Local {
		out.Remote = 1
	}
	return out
}

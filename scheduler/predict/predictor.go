package predict

import (
	"fmt"
	"math"
)

// Config of a Predictor. DefaultConfig is a start.
type Config struct {
	Seed         uint64  // of splits, first weights and the order of training
	Slope        float64 // alpha of 3DSF eq. 4: 0 plain rectifier, 1 linear, 0 to 1
	Epochs       int     // passes over the tasks of a round, 1 to 1000
	History      int     // latest tasks that a round is trained on, up to 1,000,000
	MinHistory   int     // tasks before the first round, 50 to History
	RetrainEvery int     // new tasks between two rounds, over 0
	RidgePenalty float64 // of the squared standardised weights, over 0

	ClassSeconds   map[string]float64 // run time of a class before any history
	DefaultSeconds float64            // of every other class

	MaxStages, MaxTenants int // entries kept, the oldest leaves first
}

// DefaultConfig trains 20 epochs on the latest 10,000 tasks after each 1,000.
func DefaultConfig(seed uint64) Config {
	return Config{
		Seed: seed, Slope: 0.01, Epochs: 20, History: 10_000, MinHistory: 500, RetrainEvery: 1000,
		RidgePenalty: 1e-4, DefaultSeconds: 60, MaxStages: 1 << 16, MaxTenants: 1 << 14,
	}
}

func (c *Config) check() error {
	bad := func(what string, v any) error { return fmt.Errorf("%w: %s is %v", ErrConfig, what, v) }
	switch {
	case !(c.Slope >= 0 && c.Slope <= 1):
		return bad("slope (0 to 1)", c.Slope)
	case c.Epochs < 1 || c.Epochs > 1000:
		return bad("epochs (1 to 1000)", c.Epochs)
	case c.History < 50 || c.History > 1_000_000:
		return bad("history (50 to 1,000,000)", c.History)
	case c.MinHistory < 50 || c.MinHistory > c.History:
		return bad("minimal history (50 to history)", c.MinHistory)
	case c.RetrainEvery < 1:
		return bad("tasks between rounds (over 0)", c.RetrainEvery)
	case !(c.RidgePenalty > 0 && c.RidgePenalty < 1e6):
		return bad("ridge penalty (over 0)", c.RidgePenalty)
	case c.MaxStages < 1 || c.MaxTenants < 1:
		return bad("number of stages and tenants kept (over 0)", min(c.MaxStages, c.MaxTenants))
	}
	if err := checkSeconds("default", c.DefaultSeconds); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	for _, s := range c.ClassSeconds {
		if err := checkSeconds("default of a class", s); err != nil {
			return fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	return nil
}

// Task is what a prediction is made of.
type Task struct {
	Stage, Tenant, Class string
	// Features without StageSeconds, which Predict fills in. Give them back to
	// Observe as they were then; a StageSeconds of 0 is filled in there too.
	Features Features
}

// Predictor learns run times and predicts them. See the package comment.
type Predictor struct {
	config  Config
	stages  table[stageStats]
	tenants table[tenantStats]
	errors  [sourceEnd]errorLog

	history []record // a ring once it is full
	oldest  int
	fresh   int // tasks since the last round began
	rounds  uint64
	round   *round
	model   *Model
	ws      *Workspace

	xs    []Features // of a chunk of tasks
	preds []float64
}

// New makes a Predictor without history. Errors: ErrConfig.
func New(c Config) (*Predictor, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Predictor{
		config: c, ws: NewWorkspace(),
		stages: newTable[stageStats](c.MaxStages), tenants: newTable[tenantStats](c.MaxTenants),
	}
	for s := ClassDefault; s < sourceEnd; s++ {
		p.errors[s].dist = assumed(assumedSpread(s))
	}
	return p, nil
}

// Model is the one of the last round that ended, or that SetModel gave; nil
// before.
func (p *Predictor) Model() *Model { return p.model }

// SetModel puts a loaded model in use, as its Report says.
func (p *Predictor) SetModel(m *Model) {
	p.model = m
	p.errors[Ridge] = errorLog{dist: m.errors[0]}
	p.errors[MLP] = errorLog{dist: m.errors[1]}
}

// use is the model's source in use, or 0.
func (p *Predictor) use() Source {
	if p.model == nil {
		return 0
	}
	return p.model.Report.Use
}

// fallback is the estimate of a task without a model.
func (p *Predictor) fallback(t *Task) (float64, Source) {
	if s, source, ok := p.stages.of[t.Stage].estimate(t.Features.Of(InputBytes)); ok {
		return s, source
	}
	if s := p.tenants.of[t.Tenant]; s != nil && s.n >= tenantMin {
		return math.Exp(s.logMean), TenantMean
	}
	if s, ok := p.config.ClassSeconds[t.Class]; ok {
		return s, ClassDefault
	}
	return p.config.DefaultSeconds, ClassDefault
}

// Predict estimates each task into out, which must be as long, and fills in the
// StageSeconds of its features. Errors: ErrFeature, naming the task and the
// feature; nothing of out is valid then. Cost: two map look-ups and, with the
// network, about 1,400 multiplications a task. No allocation once its buffers
// have grown.
func (p *Predictor) Predict(tasks []Task, out []Estimate) error {
	if len(out) < len(tasks) {
		return fmt.Errorf("%w: room for %d estimates of %d tasks", ErrConfig, len(out), len(tasks))
	}
	for i := range tasks {
		t := &tasks[i]
		if err := t.Features.check(); err != nil {
			return fmt.Errorf("task %d of stage %q: %w", i, t.Stage, err)
		}
		seconds, source := p.fallback(t)
		t.Features.Set(StageSeconds, seconds)
		out[i] = Estimate{seconds, source, p.errors[source].dist}
	}
	switch p.use() {
	case MLP:
		p.network(tasks, out)
	case Ridge:
		for i := range tasks {
			out[i] = Estimate{p.model.Line(p.ws, &tasks[i].Features), Ridge, p.errors[Ridge].dist}
		}
	}
	return nil
}

// chunk is how many tasks the network predicts at a time.
const chunk = 16 * batch

// room makes the buffers of a chunk.
func (p *Predictor) room() {
	if p.xs == nil {
		p.xs, p.preds = make([]Features, chunk), make([]float64, chunk)
	}
}

// network replaces estimates by the network's.
func (p *Predictor) network(tasks []Task, out []Estimate) {
	p.room()
	for from := 0; from < len(tasks); from += chunk {
		part := tasks[from:min(from+chunk, len(tasks))]
		for i := range part {
			p.xs[i] = part[i].Features
		}
		p.model.Network(p.ws, p.xs[:len(part)], p.preds)
		for i := range part {
			out[from+i] = Estimate{p.preds[i], MLP, p.errors[MLP].dist}
		}
	}
}

// Observe learns from a finished task: its run time in seconds, without waiting
// and suspended time. Errors: ErrFeature, ErrRunTime; nothing is learnt then.
// Cost: O(1), and every 16th time a sort of 512 numbers.
func (p *Predictor) Observe(t Task, seconds float64) error {
	if err := t.Features.check(); err != nil {
		return fmt.Errorf("task of stage %q: %w", t.Stage, err)
	}
	if err := checkSeconds("run time", seconds); err != nil {
		return fmt.Errorf("task of stage %q: %w", t.Stage, err)
	}
	said, source := p.fallback(&t)
	p.errors[source].add(math.Log(seconds / said))
	if t.Features.Of(StageSeconds) == 0 {
		t.Features.Set(StageSeconds, said)
	}
	switch use := p.use(); use {
	case MLP:
		p.room()
		p.xs[0] = t.Features
		p.model.Network(p.ws, p.xs[:1], p.preds)
		p.errors[use].add(math.Log(seconds / p.preds[0]))
	case Ridge:
		p.errors[use].add(math.Log(seconds / p.model.Line(p.ws, &t.Features)))
	}
	p.stages.entry(t.Stage).add(t.Features.Of(InputBytes), seconds)
	p.tenants.entry(t.Tenant).add(seconds)
	p.remember(record{t.Features, seconds, t.Features.Of(StageSeconds)})
	return nil
}

func (p *Predictor) remember(r record) {
	p.fresh++
	if len(p.history) < p.config.History {
		p.history = append(p.history, r)
		return
	}
	p.history[p.oldest] = r
	p.oldest = (p.oldest + 1) % len(p.history)
}

// Step trains in the background: at most budget task visits (rounded up to a
// batch of 64) in one call, plus one pass over the history in the call that
// begins a round and over the tasks held out in the one that ends it. A round
// begins when there are MinHistory tasks and RetrainEvery new ones.
func (p *Predictor) Step(budget int) Phase {
	if p.round == nil {
		if len(p.history) < p.config.MinHistory || p.rounds > 0 && p.fresh < p.config.RetrainEvery {
			return Idle
		}
		p.rounds++
		p.fresh = 0
		p.round = newRound(p.history, &p.config, p.rounds)
	}
	if _, done := p.round.fit(budget); !done {
		return Fitting
	}
	p.SetModel(p.round.judge())
	p.round = nil
	return Judged
}

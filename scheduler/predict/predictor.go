package predict

import (
	"fmt"
	"math"
)

// Config holds the parameters of a Predictor; see DefaultConfig.
type Config struct {
	seed         uint64  // of splits, initial weights and the order of training
	slope        float64 // alpha of 3DSF eq. 4, 0 to 1: 0 is the plain rectifier, 1 linear
	epochs       int     // passes over the tasks of a round, 1 to 1000
	history      int     // latest tasks that a round is trained on, up to 1,000,000
	minHistory   int     // tasks before the first round, 50 to History
	retrainEvery int     // new tasks between two rounds, above 0
	ridgePenalty float64 // on the squared standardised weights, above 0

	classSeconds   map[string]float64 // run time of a class without history
	defaultSeconds float64            // run time of every other class without history

	MaxStages, MaxTenants int // largest number of entries; the oldest is evicted
}

// DefaultConfig trains 20 epochs on the latest 10,000 tasks after every 1,000 tasks.
func DefaultConfig(seed uint64) Config {
	return Config{
		seed: seed, slope: 0.01, epochs: 20, history: 10_000, minHistory: 500, retrainEvery: 1000,
		ridgePenalty: 1e-4, defaultSeconds: 60, MaxStages: 1 << 16, MaxTenants: 1 << 14,
	}
}

func (c *Config) check() error {
	bad := func(what string, v any) error { return fmt.Errorf("%w: %s is %v", errConfig, what, v) }
	switch {
	case !(c.slope >= 0 && c.slope <= 1):
		return bad("slope (0 to 1)", c.slope)
	case c.epochs < 1 || c.epochs > 1000:
		return bad("epochs (1 to 1000)", c.epochs)
	case c.history < 50 || c.history > 1_000_000:
		return bad("history (50 to 1,000,000)", c.history)
	case c.minHistory < 50 || c.minHistory > c.history:
		return bad("minimal history (50 to history)", c.minHistory)
	case c.retrainEvery < 1:
		return bad("tasks between rounds (above 0)", c.retrainEvery)
	case !(c.ridgePenalty > 0 && c.ridgePenalty < 1e6):
		return bad("ridge penalty (above 0)", c.ridgePenalty)
	case c.MaxStages < 1 || c.MaxTenants < 1:
		return bad("largest number of stages or tenants (above 0)", min(c.MaxStages, c.MaxTenants))
	}
	if err := checkSeconds("default", c.defaultSeconds); err != nil {
		return fmt.Errorf("%w: %w", errConfig, err)
	}
	for _, s := range c.classSeconds {
		if err := checkSeconds("default of a class", s); err != nil {
			return fmt.Errorf("%w: %w", errConfig, err)
		}
	}
	return nil
}

// Task is the input of a prediction.
type Task struct {
	Stage, Tenant, Class string
	// Features holds all features but StageSeconds, which Predict fills in. Pass the
	// features that Predict returned to Observe; Observe fills in a StageSeconds of 0
	// as well.
	Features Features
}

// Predictor learns run times and predicts them. See the package comment.
type Predictor struct {
	config  Config
	stages  boundedMap[stageStats]
	tenants boundedMap[tenantStats]
	errors  [sourceEnd]errorLog

	history  []record // a ring once it is full
	oldest   int
	newTasks int // tasks since the last round began
	rounds   uint64
	round    *round
	model    *trainedModel
	ws       *workspace

	chunkFeatures []Features // features of a chunk of tasks
	chunkSeconds  []float64
}

// New returns a Predictor without history. Errors: errConfig.
func New(c Config) (*Predictor, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	p := &Predictor{
		config: c, ws: newWorkspace(),
		stages: newBoundedMap[stageStats](c.MaxStages), tenants: newBoundedMap[tenantStats](c.MaxTenants),
	}
	for s := ClassDefault; s < sourceEnd; s++ {
		p.errors[s].dist = assumedDistribution(assumedSpread(s))
	}
	return p, nil
}

// setModel puts a model to the use that its report names.
func (p *Predictor) setModel(m *trainedModel) {
	p.model = m
	p.errors[Ridge] = errorLog{dist: m.errors[0]}
	p.errors[MLP] = errorLog{dist: m.errors[1]}
}

// modelSource returns which part of the model is in use, 0 for none.
func (p *Predictor) modelSource() Source {
	if p.model == nil {
		return 0
	}
	return p.model.report.use
}

// fallbackEstimate returns the estimate for a task without a model.
func (p *Predictor) fallbackEstimate(t *Task) (float64, Source) {
	if s, source, ok := p.stages.entries[t.Stage].estimate(t.Features.of(InputBytes)); ok {
		return s, source
	}
	if s := p.tenants.entries[t.Tenant]; s != nil && s.n >= tenantMin {
		return math.Exp(s.logMean), TenantMean
	}
	if s, ok := p.config.classSeconds[t.Class]; ok {
		return s, ClassDefault
	}
	return p.config.defaultSeconds, ClassDefault
}

// Predict stores in out, which must be at least as long as tasks, the estimate for each
// task, and fills in the StageSeconds of its features. Errors: errFeature, naming the
// task and the feature; then nothing in out is valid. Cost: two map look-ups and, with
// the network, about 1,400 multiplications per task. It does not allocate once its
// buffers have grown.
func (p *Predictor) Predict(tasks []Task, out []Estimate) error {
	if len(out) < len(tasks) {
		return fmt.Errorf("%w: output has %d estimates for %d tasks", errConfig, len(out), len(tasks))
	}
	for i := range tasks {
		t := &tasks[i]
		if err := t.Features.check(); err != nil {
			return fmt.Errorf("task %d of stage %q: %w", i, t.Stage, err)
		}
		seconds, source := p.fallbackEstimate(t)
		t.Features.Set(StageSeconds, seconds)
		out[i] = Estimate{seconds, source, p.errors[source].dist}
	}
	switch p.modelSource() {
	case MLP:
		p.predictByNetwork(tasks, out)
	case Ridge:
		for i := range tasks {
			out[i] = Estimate{p.model.predictRidge(p.ws, &tasks[i].Features), Ridge, p.errors[Ridge].dist}
		}
	}
	return nil
}

// chunk is the number of tasks that the network predicts at a time.
const chunk = 16 * batch

// growBuffers allocates the buffers of a chunk.
func (p *Predictor) growBuffers() {
	if p.chunkFeatures == nil {
		p.chunkFeatures, p.chunkSeconds = make([]Features, chunk), make([]float64, chunk)
	}
}

// predictByNetwork replaces the estimates by those of the network.
func (p *Predictor) predictByNetwork(tasks []Task, out []Estimate) {
	p.growBuffers()
	for from := 0; from < len(tasks); from += chunk {
		part := tasks[from:min(from+chunk, len(tasks))]
		for i := range part {
			p.chunkFeatures[i] = part[i].Features
		}
		p.model.predictNetwork(p.ws, p.chunkFeatures[:len(part)], p.chunkSeconds)
		for i := range part {
			out[from+i] = Estimate{p.chunkSeconds[i], MLP, p.errors[MLP].dist}
		}
	}
}

// Observe learns from a finished task, given its run time in seconds without waiting
// and suspended time. Errors: errFeature, errRunTime; then nothing is learnt. Cost:
// O(1), and a sort of 512 numbers every 16th time.
func (p *Predictor) Observe(t Task, seconds float64) error {
	if err := t.Features.check(); err != nil {
		return fmt.Errorf("task of stage %q: %w", t.Stage, err)
	}
	if err := checkSeconds("run time", seconds); err != nil {
		return fmt.Errorf("task of stage %q: %w", t.Stage, err)
	}
	fallback, source := p.fallbackEstimate(&t)
	p.errors[source].add(math.Log(seconds / fallback))
	if t.Features.of(StageSeconds) == 0 {
		t.Features.Set(StageSeconds, fallback)
	}
	switch use := p.modelSource(); use {
	case MLP:
		p.growBuffers()
		p.chunkFeatures[0] = t.Features
		p.model.predictNetwork(p.ws, p.chunkFeatures[:1], p.chunkSeconds)
		p.errors[use].add(math.Log(seconds / p.chunkSeconds[0]))
	case Ridge:
		p.errors[use].add(math.Log(seconds / p.model.predictRidge(p.ws, &t.Features)))
	}
	p.stages.getOrAdd(t.Stage).add(t.Features.of(InputBytes), seconds)
	p.tenants.getOrAdd(t.Tenant).add(seconds)
	p.addToHistory(record{t.Features, seconds, t.Features.of(StageSeconds)})
	return nil
}

func (p *Predictor) addToHistory(r record) {
	p.newTasks++
	if len(p.history) < p.config.history {
		p.history = append(p.history, r)
		return
	}
	p.history[p.oldest] = r
	p.oldest = (p.oldest + 1) % len(p.history)
}

// Train trains in the background: at most budget task visits (rounded up to a batch of
// 64) in one call, plus one pass over the history in the call that begins a round and
// over the held-out tasks in the one that ends it. A round begins when there are
// minHistory tasks and retrainEvery new ones.
func (p *Predictor) Train(budget int) Phase {
	if p.round == nil {
		if len(p.history) < p.config.minHistory || p.rounds > 0 && p.newTasks < p.config.retrainEvery {
			return Idle
		}
		p.rounds++
		p.newTasks = 0
		p.round = newRound(p.history, &p.config, p.rounds)
	}
	if _, done := p.round.train(budget); !done {
		return Fitting
	}
	p.setModel(p.round.evaluate())
	p.round = nil
	return Evaluated
}

package predict

import "math"

// Config holds the parameters of a Predictor; see DefaultConfig. They are not checked.
type Config struct {
	seed         uint64  // of splits, initial weights and the order of training
	slope        float64 // alpha of 3DSF eq. 4, 0 to 1: 0 is the plain rectifier, 1 linear
	epochs       int     // passes over the tasks of a round, 1 to 1000
	history      int     // latest tasks that a round is trained on, up to 1,000,000
	minHistory   int     // tasks before the first round, 50 to History
	retrainEvery int     // new tasks between two rounds, above 0
	ridgePenalty float64 // on the squared standardised weights, above 0

	maxStages, maxTenants int // largest number of entries; the least recently used one is evicted
}

// DefaultConfig trains 20 epochs on the latest 10,000 tasks after every 1,000 tasks.
func DefaultConfig(seed uint64) Config {
	return Config{
		seed: seed, slope: 0.01, epochs: 20, history: 10_000, minHistory: 500, retrainEvery: 1000,
		ridgePenalty: 1e-4, maxStages: 1 << 14, maxTenants: 1 << 12,
	}
}

const defaultSeconds = 60 // run time of a task without history

// Task is the input of a prediction.
type Task struct {
	Stage, Tenant string
	Features      Features // all but stageSeconds, which the Predictor fills in
}

// Estimate is a predicted run time.
type Estimate struct {
	Seconds float64 // above 0
	Source  Source
}

// Predictor learns run times and predicts them. See the package comment.
type Predictor struct {
	config  Config
	stages  BoundedMap[string, stageStats]
	tenants BoundedMap[string, tenantStats]

	history  Ring[record]
	newTasks int // tasks since the last round began
	rounds   uint64
	round    *round
	model    *trainedModel
	buffers  *buffers // of predictions
}

// New returns a Predictor without history.
func New(c Config) *Predictor {
	return &Predictor{
		config: c, buffers: newBuffers(),
		stages: NewBoundedMap[string, stageStats](c.maxStages), tenants: NewBoundedMap[string, tenantStats](c.maxTenants),
	}
}

func (p *Predictor) fallbackEstimate(t *Task) (float64, Source) {
	if s, source, ok := p.stages.Get(t.Stage).estimate(t.Features[InputBytes]); ok {
		return s, source
	}
	if s := p.tenants.Get(t.Tenant); s != nil && s.n >= tenantMin {
		return math.Exp(s.logMean), TenantMean
	}
	return defaultSeconds, Default
}

// Predict returns the estimate for a task and fills in the stageSeconds of its features. It uses
// the model if one is in use and the stage or tenant has run before. Cost: two map look-ups and,
// with the network, about 1,400 multiplications. It does not allocate.
func (p *Predictor) Predict(t *Task) (e Estimate) {
	e.Seconds, e.Source = p.fallbackEstimate(t)
	t.Features[stageSeconds] = e.Seconds
	switch m := p.model; {
	case m == nil, e.Source == Default: // without history the model has nothing to go by either
	case m.use == MLP:
		e = Estimate{m.predictNetwork(p.buffers, &t.Features), MLP}
	case m.use == Ridge:
		e = Estimate{m.predictRidge(p.buffers, &t.Features), Ridge}
	}
	return e
}

// Observe learns from a finished task, given its run time in seconds, above 0, without waiting and
// suspended time. O(1).
func (p *Predictor) Observe(t Task, seconds float64) {
	seconds = min(seconds, maxSeconds)
	t.Features[stageSeconds], _ = p.fallbackEstimate(&t)
	p.stages.GetOrAdd(t.Stage).add(t.Features[InputBytes], seconds)
	p.tenants.GetOrAdd(t.Tenant).add(seconds)
	p.newTasks++
	p.history.Add(record{t.Features, seconds}, p.config.history)
}

// Train trains in the background: at most budget task visits (rounded up to a batch of 64) in one
// call, plus one pass over the history in the call that begins a round and over the held-out tasks
// in the one that ends it. A round begins when there are minHistory tasks and retrainEvery new
// ones. It reports whether a round is unfinished.
func (p *Predictor) Train(budget int) (unfinished bool) {
	if p.round == nil {
		if len(p.history.Values) < p.config.minHistory || p.rounds > 0 && p.newTasks < p.config.retrainEvery {
			return false
		}
		p.rounds++
		p.newTasks = 0
		p.round = newRound(p.history.Values, &p.config, p.rounds)
	}
	if !p.round.train(budget) {
		return true
	}
	p.model, p.round = p.round.evaluate(), nil
	return false
}

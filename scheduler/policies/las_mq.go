package policies

import (
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

var lasMQInfo = Info{
	Name: "las_mq",
	Help: "multilevel queue by attained service: small jobs finish in the first queues, large ones are demoted (LAS_MQ)",
	Params: append(slices.Concat(paperQueueParams, queueParams, containerParams, []Param{reserveParam}),
		Param{Name: "order", Kind: Choice, Default: "remaining", Choices: []string{"remaining", "fifo"},
			Help: "order in a queue: fewest containers of all remaining tasks, or by submission"},
		Param{Name: "admission", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "jobs admitted at once, 0 for no limit"}),
	new: newLasMQ,
}

// queueParams are the parameters of the queues that 3dsf shares.
var queueParams = []Param{
	{Name: "first", Kind: Float, Default: "100", Min: 1e-9, Max: 1e15, Help: "threshold of the first queue, alpha_1, container-seconds"},
	{Name: "step", Kind: Float, Default: "10", Min: 1.000001, Max: 1e9, Help: "factor between successive thresholds, p"},
	{Name: "prior", Kind: Choice, Default: "none", Choices: []string{"none", "input_bytes"},
		Help: "start a job in the queue that its input size predicts"},
	{Name: "horizon", Kind: Duration, Default: "1m", Min: 1e-3, Max: 1e6, Help: "time over which queues are compared, at least that of the longest task"},
}

// paperQueueParams are queue parameters that the paper varies or leaves open; 3dsf uses their defaults.
var paperQueueParams = []Param{
	{Name: "queues", Kind: Int, Default: "10", Min: 1, Max: lasmq.MaxQueues, Help: "number of queues, k"},
	{Name: "decay", Kind: Float, Default: "0.1", Min: 1e-9, Max: 1, Help: "factor between the weights of successive queues"},
	{Name: "stage_aware", Kind: Bool, Default: "true", Help: "count a stage's predicted service from 10% of it on"},
}

func queueConfig(v paramValues) lasmq.Config {
	cfg := lasmq.Default()
	cfg.First, cfg.Step, cfg.Horizon = v.float("first"), v.float("step"), v.duration("horizon")
	return cfg
}

func newLasMQ(v paramValues) scheduler.Policy {
	cfg := queueConfig(v)
	cfg.Queues, cfg.Decay, cfg.StageAware, cfg.Unit = v.int("queues"), v.float("decay"), v.bool("stage_aware"), containerUnit(v)
	if v.choice("order") == "fifo" {
		cfg.Order = lasmq.OrderFIFO
	}
	f := &lasMQ{maxAdmitted: v.int("admission"), placer: newPlacer(v)}
	f.index = lasmq.NewIndex(cfg, v.choice("prior") == "input_bytes", f.groupOf, func(_, queue int) scheduler.PolicyStateKey {
		return scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Slot: int32(queue)}
	})
	return f
}

// lasMQ is LAS_MQ over all jobs. Policy states hold each demoted job's queue, the deficits of
// backlogged queues and, with a limit, the admitted jobs.
type lasMQ struct {
	index       *lasmq.Index
	maxAdmitted int

	placer
}

func (f *lasMQ) Name() string { return "las_mq" }

// groupOf returns the only group, for admitted jobs.
func (f *lasMQ) groupOf(j *scheduler.Job) int {
	if f.maxAdmitted > 0 && !j.HasState(scheduler.AdmittedState) {
		return -1
	}
	return 0
}

// Decide costs O(1) if nothing changed, else O(changes x (stages + log jobs) + placements x queues
// + jobs that are next and do not fit). A limit of admitted jobs adds O(jobs).
func (f *lasMQ) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	var queues *lasmq.Queues
	for p.nextPass() {
		f.admit(s, now)
		f.index.Sync(s, now, 1)
		queues = f.index.Queues(0)
		queues.Begin(now)
		for t, ok := queues.Next(false); ok && !p.isDone(); t, ok = queues.Next(false) {
			if g := p.placeNextStage(t.Job, t.Stage); g != nil {
				queues.RecordPlaced(g.Spec.Demand, 1)
			} else {
				queues.Drop()
			}
		}
	}
	if p.withholdsCapacity() { // the order decides for whose tasks
		p.wakeAt(queues.NextOrder())
	}
	p.placeBeyond()
	f.index.Sync(s, now, 1)
	f.index.Record(now, f.record)
	p.wakeAt(f.index.Demotion()) // including jobs whose first tasks this decision places
	if f.index.HasUnread() {
		p.wake = now + 1
	}
	return p.finish(f.reason)
}

// admit admits jobs in order of submission, up to the limit.
func (f *lasMQ) admit(s *scheduler.State, now scheduler.Time) {
	if f.maxAdmitted == 0 {
		return
	}
	slots := f.maxAdmitted
	for j := range s.Jobs() {
		if j.HasState(scheduler.AdmittedState) {
			slots--
		}
	}
	for j := range s.Jobs() {
		key := scheduler.PolicyStateKey{Kind: scheduler.AdmittedState, Job: j.Spec.ID}
		if slots > 0 && j.Ready > 0 && !j.HasState(scheduler.AdmittedState) && f.record(scheduler.PolicyState{PolicyStateKey: key, At: now}) {
			slots--
		}
	}
}

func (f *lasMQ) reason(g *scheduler.Stage) scheduler.Waiting {
	if f.groupOf(g.Job) < 0 {
		return scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonNotAdmitted, Tasks: g.Pending}
	}
	return f.placer.reason(g)
}

package policies

import (
	"math"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

var lasMQInfo = Info{
	Name: "las_mq",
	Help: "multilevel queue by attained service: small jobs finish in the first queues, large ones are demoted (LAS_MQ)",
	Params: append(queueParams("order"),
		Param{Name: "admission", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "jobs admitted at once, 0 for no limit"}),
	New: newLasMQ,
}

// queueParams returns the parameters of the queues. order is the name of the one
// that orders jobs within a queue.
func queueParams(order string) []Param {
	return append([]Param{
		{Name: "queues", Kind: Int, Default: "10", Min: 1, Max: lasmq.MaxQueues, Help: "number of queues, k"},
		{Name: "first", Kind: Float, Default: "100", Min: 1e-9, Max: 1e15, Help: "threshold of the first queue, alpha_1, container-seconds"},
		{Name: "step", Kind: Float, Default: "10", Min: 1.000001, Max: 1e9, Help: "factor between successive thresholds, p"},
		{Name: "decay", Kind: Float, Default: "0.1", Min: 1e-9, Max: 1, Help: "factor between the weights of successive queues"},
		{Name: order, Kind: Choice, Default: "remaining", Choices: []string{"remaining", "fifo", "stage", "service"},
			Help: "order in a queue: fewest containers of all remaining tasks, submission, fewest containers of the stages that may run, least service"},
		{Name: "stage_aware", Kind: Bool, Default: "true", Help: "count a stage's predicted service from 10% of it on"},
		{Name: "prior", Kind: Choice, Default: "none", Choices: []string{"none", "input_bytes"},
			Help: "start a job in the queue that its input size predicts"},
		reserveParam,
		{Name: "horizon", Kind: Duration, Default: "1m", Min: 1e-3, Max: 1e6, Help: "time over which queues are compared, at least that of the longest task"},
	}, containerParams...)
}

// queueConfig reads the parameters of queueParams(order).
func queueConfig(v Values, order string) (lasmq.Config, error) {
	cfg := lasmq.Default()
	cfg.Queues, cfg.First, cfg.Step, cfg.Decay = v.Int("queues"), v.Float("first"), v.Float("step"), v.Float("decay")
	cfg.StageAware, cfg.Horizon, cfg.Unit = v.Bool("stage_aware"), v.Duration("horizon"), containerUnit(v)
	for _, o := range []lasmq.Order{lasmq.OrderRemaining, lasmq.OrderFIFO, lasmq.OrderStage, lasmq.OrderService} {
		if o.String() == v.Text(order) {
			cfg.Order = o
		}
	}
	err := cfg.Check()
	return cfg.WithThresholds(), err
}

func newLasMQ(v Values) (scheduler.Policy, error) {
	cfg, err := queueConfig(v, "order")
	if err != nil {
		return nil, err
	}
	return &lasMQ{queues: lasmq.New(cfg), cfg: cfg, maxAdmitted: v.Int("admission"), initialQueueByInput: v.Text("prior") == "input_bytes",
		placer: placer{reserveForMisfits: v.Bool("reserve")}}, nil
}

// lasMQ is LAS_MQ over all jobs. Policy states hold each demoted job's queue, the
// deficits of backlogged queues and, with a limit, which jobs are admitted.
type lasMQ struct {
	cfg                 lasmq.Config
	queues              *lasmq.Queues
	maxAdmitted         int
	initialQueueByInput bool

	placer       placer
	states       []scheduler.PolicyState
	queueOfJob   []int // by position in State.Jobs, 0 for not admitted
	readyInQueue []int // number of jobs with ready work, by queue
}

// milliContainers is the precision in which policy states hold containers.
const milliContainers = 1000

func (f *lasMQ) Name() string { return "las_mq" }

// SetReasonsWanted sets whether decisions list why stages wait.
func (f *lasMQ) SetReasonsWanted(wanted bool) { f.placer.setReasons(wanted) }

// Decide costs O(1) if nothing changed, else O(jobs x stages + placements x (queues
// + log of ready jobs)).
func (f *lasMQ) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, limit) {
		return p.idleDecision(now)
	}
	for p.nextPass() {
		f.states = f.states[:0]
		f.queues.Begin(now, func(i int) (lasmq.Account, bool) {
			n, ok := s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Slot: int32(i)})
			return lasmq.Account{Deficit: n.Real, Running: float64(n.Value) / milliContainers, At: n.At}, ok
		})
		f.enqueue(s, now)
		for t := f.queues.Next(); t != nil; t = f.queues.Next() {
			e := jobEntry{job: t.Job, stage: t.Stage}
			g := p.placeNextStage(&e)
			t.Stage = e.stage
			if g != nil {
				f.queues.RecordPlaced(f.cfg.Containers(g.Spec.Demand))
			} else {
				f.queues.Drop()
			}
		}
		f.recordDeficits(s)
	}
	d := p.finish()
	d.PolicyStates = f.states
	p.idleAtStamp = p.idleAtStamp && len(f.states) == 0
	return d
}

// enqueue admits jobs, demotes them and adds them to their queues.
func (f *lasMQ) enqueue(s *scheduler.State, now scheduler.Time) {
	f.queueOfJob = f.queueOfJob[:0]
	slots := f.maxAdmitted - f.countAdmitted(s)
	seq := int32(-1)
	for j := range s.Jobs() {
		seq++
		if f.maxAdmitted > 0 {
			k := scheduler.PolicyStateKey{Kind: scheduler.AdmittedState, Job: j.Spec.ID}
			if _, ok := s.PolicyState(k); !ok && (slots <= 0 || j.Ready == 0) {
				f.queueOfJob = append(f.queueOfJob, 0)
				f.recordNotAdmitted(j)
				continue
			} else if !ok {
				slots--
				f.states = append(f.states, scheduler.PolicyState{PolicyStateKey: k, At: now})
			}
		}
		q := f.syncQueueOf(s, j, now)
		f.queueOfJob = append(f.queueOfJob, q)
		f.queues.Add(j, q, seq)
	}
}

func (f *lasMQ) countAdmitted(s *scheduler.State) int {
	n := 0
	if f.maxAdmitted > 0 {
		for j := range s.Jobs() {
			if _, ok := s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.AdmittedState, Job: j.Spec.ID}); ok {
				n++
			}
		}
	}
	return n
}

func (f *lasMQ) recordNotAdmitted(j *scheduler.Job) {
	for _, g := range j.Stages {
		if g.Ready() {
			f.placer.recordWaiting(scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonNotAdmitted, Tasks: g.Pending})
		}
	}
}

// syncQueueOf returns a job's queue and records it if it changed.
func (f *lasMQ) syncQueueOf(s *scheduler.State, j *scheduler.Job, now scheduler.Time) int {
	k := scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID}
	var n scheduler.PolicyState
	known := j.HasState(k.Kind)
	if known {
		n, _ = s.PolicyState(k)
	}
	from := min(max(int(n.Value), 1), f.cfg.Queues)
	if f.initialQueueByInput && !known {
		from = f.cfg.QueueFor(1, f.cfg.PredictService(s.History(), j.Spec.Name, lasmq.InputBytes(j)))
	}
	service, rate := f.cfg.Service(j, now)
	q := f.cfg.QueueFor(from, service)
	if at := f.cfg.DemotionTime(q, service, rate, now); at < scheduler.Never && (f.placer.wake == 0 || at < f.placer.wake) {
		f.placer.wake = at
	}
	if known && q > from || !known && (q > 1 || f.initialQueueByInput) {
		f.states = append(f.states, scheduler.PolicyState{PolicyStateKey: k, Value: int64(q), At: now})
	}
	return q
}

// recordDeficits records the deficits of the queues with ready work left.
func (f *lasMQ) recordDeficits(s *scheduler.State) {
	f.readyInQueue = append(f.readyInQueue[:0], make([]int, f.cfg.Queues+1)...)
	seq := 0
	for j := range s.Jobs() {
		if q := f.queueOfJob[seq]; q > 0 && j.Ready > 0 {
			f.readyInQueue[q]++
		}
		seq++
	}
	f.queues.Accounts(func(i int) bool { return f.readyInQueue[i] > 0 }, func(i int, a lasmq.Account, keep bool) {
		k := scheduler.PolicyStateKey{Kind: scheduler.DeficitState, Slot: int32(i)}
		if !keep {
			k.Kind = scheduler.TombstoneState
			f.states = append(f.states, scheduler.PolicyState{PolicyStateKey: k, Value: int64(scheduler.DeficitState)})
			return
		}
		f.states = append(f.states, scheduler.PolicyState{PolicyStateKey: k, Value: int64(math.Round(a.Running * milliContainers)), Real: a.Deficit, At: a.At})
	})
}

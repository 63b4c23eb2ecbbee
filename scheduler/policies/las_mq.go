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

// queueParams say how the queues look; order names the parameter that orders jobs
// within a queue.
func queueParams(order string) []Param {
	return append([]Param{
		{Name: "queues", Kind: Int, Default: "10", Min: 1, Max: lasmq.MaxQueues, Help: "number of queues, k"},
		{Name: "first", Kind: Float, Default: "100", Min: 1e-9, Max: 1e15, Help: "threshold of the first queue, alpha_1, container-seconds"},
		{Name: "step", Kind: Float, Default: "10", Min: 1.000001, Max: 1e9, Help: "each threshold over the one before, p"},
		{Name: "decay", Kind: Float, Default: "0.1", Min: 1e-9, Max: 1, Help: "each queue's weight over that of the one before"},
		{Name: order, Kind: Choice, Default: "remaining", Choices: []string{"remaining", "fifo", "stage", "service"},
			Help: "order in a queue: fewest containers of all remaining tasks, submission, fewest of the stages that may run, least service"},
		{Name: "stage_aware", Kind: Bool, Default: "true", Help: "count a stage's predicted service from 10% of it on"},
		{Name: "prior", Kind: Choice, Default: "none", Choices: []string{"none", "input_bytes"},
			Help: "start a job in the queue that its input size predicts"},
		reserveParam,
		{Name: "horizon", Kind: Duration, Default: "1m", Min: 1e-3, Max: 1e6, Help: "at least the longest task: deficits of queues stay within it"},
	}, containerParams...)
}

// queueConfig reads the parameters of the queues; order is the name of the one
// that orders jobs within a queue.
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
	return cfg.Counted(), err
}

func newLasMQ(v Values) (scheduler.Policy, error) {
	cfg, err := queueConfig(v, "order")
	if err != nil {
		return nil, err
	}
	return &lasMQ{queues: lasmq.New(cfg), cfg: cfg, admission: v.Int("admission"), prior: v.Text("prior") == "input_bytes",
		placer: placer{reserve: v.Bool("reserve")}}, nil
}

// lasMQ is LAS_MQ over all jobs. Notes hold each demoted job's queue, the
// deficits of backlogged queues and, with a limit, who is admitted.
type lasMQ struct {
	cfg       lasmq.Config
	queues    *lasmq.Queues
	admission int
	prior     bool

	placer placer
	notes  []scheduler.Note
	levels []int // by place of the job in State.Jobs, 0 for not admitted
	ready  []int // queues' jobs with ready work left
}

// milli is the precision at which containers are noted.
const milli = 1000

func (f *lasMQ) Name() string { return "las_mq" }

// Reasons says whether Decision.Waiting is wanted.
func (f *lasMQ) Reasons(wanted bool) { f.placer.reasons(wanted) }

// Decide costs O(1) when nothing changed, else O(jobs x stages + placements x
// (queues + log of ready jobs)).
func (f *lasMQ) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	p := &f.placer
	if p.begin(s, now, max) {
		return p.idle(now)
	}
	for p.pass() {
		f.notes = f.notes[:0]
		f.queues.Begin(now, func(i int) (lasmq.Account, bool) {
			n, ok := s.Note(scheduler.NoteKey{Kind: scheduler.NoteDeficit, Slot: int32(i)})
			return lasmq.Account{Deficit: n.Real, Running: float64(n.Value) / milli, At: n.At}, ok
		})
		f.enqueue(s, now)
		for t := f.queues.Next(); t != nil; t = f.queues.Next() {
			e := entry{job: t.Job, stage: t.Stage}
			g := p.placeNextStage(&e)
			t.Stage = e.stage
			if g != nil {
				f.queues.Placed(f.cfg.Containers(g.Spec.Demand))
			} else {
				f.queues.Drop()
			}
		}
		f.remember(s)
	}
	d := p.end()
	d.Notes = f.notes
	p.known = p.known && len(f.notes) == 0
	return d
}

// enqueue admits jobs, demotes them and brings them into their queues.
func (f *lasMQ) enqueue(s *scheduler.State, now scheduler.Time) {
	f.levels = f.levels[:0]
	room := f.admission - f.admitted(s)
	seq := int32(-1)
	for j := range s.Jobs() {
		seq++
		if f.admission > 0 {
			k := scheduler.NoteKey{Kind: scheduler.NoteAdmitted, Job: j.Spec.ID}
			if _, ok := s.Note(k); !ok && (room <= 0 || j.Ready == 0) {
				f.levels = append(f.levels, 0)
				f.notAdmitted(j)
				continue
			} else if !ok {
				room--
				f.notes = append(f.notes, scheduler.Note{NoteKey: k, At: now})
			}
		}
		q := f.queueOf(s, j, now)
		f.levels = append(f.levels, q)
		f.queues.Add(j, q, seq)
	}
}

func (f *lasMQ) admitted(s *scheduler.State) int {
	n := 0
	if f.admission > 0 {
		for j := range s.Jobs() {
			if _, ok := s.Note(scheduler.NoteKey{Kind: scheduler.NoteAdmitted, Job: j.Spec.ID}); ok {
				n++
			}
		}
	}
	return n
}

func (f *lasMQ) notAdmitted(j *scheduler.Job) {
	for _, g := range j.Stages {
		if g.Ready() {
			f.placer.wait(scheduler.Waiting{Stage: g.ID(), Reason: scheduler.ReasonNotAdmitted, Tasks: g.Pending})
		}
	}
}

// queueOf gives a job's queue and notes it where it changed.
func (f *lasMQ) queueOf(s *scheduler.State, j *scheduler.Job, now scheduler.Time) int {
	k := scheduler.NoteKey{Kind: scheduler.NoteQueue, Job: j.Spec.ID}
	var n scheduler.Note
	known := j.Noted(k.Kind)
	if known {
		n, _ = s.Note(k)
	}
	from := min(max(int(n.Value), 1), f.cfg.Queues)
	if f.prior && !known {
		from = f.cfg.Level(1, f.cfg.Predict(s.History(), j.Spec.Name, lasmq.InputBytes(j)))
	}
	service, rate := f.cfg.Service(j, now)
	q := f.cfg.Level(from, service)
	if at := f.cfg.Until(q, service, rate, now); at < scheduler.Never && (f.placer.wake == 0 || at < f.placer.wake) {
		f.placer.wake = at
	}
	if known && q > from || !known && (q > 1 || f.prior) {
		f.notes = append(f.notes, scheduler.Note{NoteKey: k, Value: int64(q), At: now})
	}
	return q
}

// remember notes the deficits of the queues that have ready work left.
func (f *lasMQ) remember(s *scheduler.State) {
	f.ready = append(f.ready[:0], make([]int, f.cfg.Queues+1)...)
	seq := 0
	for j := range s.Jobs() {
		if q := f.levels[seq]; q > 0 && j.Ready > 0 {
			f.ready[q]++
		}
		seq++
	}
	f.queues.Accounts(func(i int) bool { return f.ready[i] > 0 }, func(i int, a lasmq.Account, keep bool) {
		k := scheduler.NoteKey{Kind: scheduler.NoteDeficit, Slot: int32(i)}
		if !keep {
			k.Kind = scheduler.NoteForget
			f.notes = append(f.notes, scheduler.Note{NoteKey: k, Value: int64(scheduler.NoteDeficit)})
			return
		}
		f.notes = append(f.notes, scheduler.Note{NoteKey: k, Value: int64(math.Round(a.Running * milli)), Real: a.Deficit, At: a.At})
	})
}

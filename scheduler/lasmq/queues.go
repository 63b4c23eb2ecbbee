package lasmq

import (
	"cmp"
	"math"

	"github.com/drover-run/drover/scheduler"
)

// Account is what is remembered of one queue while it is backlogged: the
// container-seconds it is behind its share (negative: ahead), as of At, and the
// containers it ran on from then on.
type Account struct {
	Deficit float64
	Running float64
	At      scheduler.Time
}

// Queues tells which job is next, cycle after cycle: by the deficits of the
// queues, and in a queue by its order. It is a cache: everything it knows comes
// in through Begin and Add.
//
// A backlogged queue (one with ready work left) is due weight/(sum of the
// backlogged queues' weights) of the containers that backlogged queues run on.
// Its deficit grows by what it is due and falls by what it runs on, so the
// deficits of a set of backlogged queues add up to the same at all times. The
// next task goes to the queue that would be furthest behind after Horizon, were
// it not given the task: the largest deficit + Horizon x (share - running).
// So a queue with a ten-millionth of the weight is served in its turn, and a
// hundred containers that become free at once are not all given to one queue.
type Queues struct {
	cfg     Config
	now     scheduler.Time
	old     []Account
	deficit []float64
	running []float64
	levels  [][]entry
	backlog []bool // at the start of the cycle
	weights []float64
	settled bool
	turn    int // the queue that Next gave
}

// Turn is a job whose turn it is. Stage is the caller's: a place to go on from
// when its turn comes again.
type Turn struct {
	Job   *scheduler.Job
	Stage int32
}

type entry struct {
	Turn
	key float64
	seq int32
}

// New makes queues. The config must have passed Check.
func New(cfg Config) *Queues {
	cfg = cfg.Counted()
	q := &Queues{cfg: cfg, deficit: make([]float64, cfg.Queues), running: make([]float64, cfg.Queues),
		levels: make([][]entry, cfg.Queues), old: make([]Account, cfg.Queues), backlog: make([]bool, cfg.Queues)}
	for i := range cfg.Queues {
		q.weights = append(q.weights, cfg.Weight(i+1))
	}
	return q
}

// Config gives the config.
func (q *Queues) Config() *Config { return &q.cfg }

// Begin starts a cycle. account gives what was remembered of queue i (from 1).
func (q *Queues) Begin(now scheduler.Time, account func(i int) (Account, bool)) {
	q.now, q.settled = now, false
	for i := range q.levels {
		q.levels[i] = q.levels[i][:0]
		q.running[i], q.deficit[i] = 0, 0
		a, ok := account(i + 1)
		if !ok {
			a = Account{At: -1}
		}
		q.old[i] = a
	}
}

// Add brings in a job that is in queue level; seq is its place by submission.
// Jobs without ready work count for what their queue runs on. O(stages).
func (q *Queues) Add(j *scheduler.Job, level int, seq int32) {
	i := level - 1
	q.running[i] += q.cfg.Running(j)
	if j.Ready > 0 {
		q.levels[i] = append(q.levels[i], entry{Turn: Turn{Job: j}, key: q.cfg.key(j, q.now), seq: seq})
	}
}

// settle brings the deficits up to now and orders the queues, once a cycle.
func (q *Queues) settle() {
	if q.settled {
		return
	}
	q.settled = true
	for i := range q.levels {
		h := q.levels[i]
		for k := len(h)/2 - 1; k >= 0; k-- {
			down(h, k)
		}
		q.backlog[i] = len(h) > 0
	}
	weights, ran := 0.0, 0.0
	for i, a := range q.old {
		if a.At >= 0 {
			weights, ran = weights+q.weights[i], ran+a.Running
		}
	}
	for i, a := range q.old {
		if a.At < 0 || !q.backlog[i] {
			continue
		}
		dt := max(0, q.now.Sub(a.At)).Seconds()
		q.deficit[i] = a.Deficit + dt*(ran*q.weights[i]/weights-a.Running)
		// What cannot be placed at all must not earn for ever.
		most := q.cfg.Horizon.Seconds() * max(1, ran)
		q.deficit[i] = min(max(q.deficit[i], -most), most)
	}
}

// Next gives the job that is due, nil when no queue has any left; the Turn is
// good until Placed or Drop. O(queues).
func (q *Queues) Next() *Turn {
	if q.turn = q.due(); q.turn >= 0 {
		return &q.levels[q.turn][0].Turn
	}
	return nil
}

func (q *Queues) due() int {
	q.settle()
	weights, ran := 0.0, 0.0
	for i := range q.levels {
		if len(q.levels[i]) > 0 {
			weights, ran = weights+q.weights[i], ran+q.running[i]
		}
	}
	best, most := -1, math.Inf(-1)
	for i := range q.levels {
		if len(q.levels[i]) == 0 {
			continue
		}
		score := q.deficit[i] + q.cfg.Horizon.Seconds()*((ran+1)*q.weights[i]/weights-q.running[i])
		if score > most {
			best, most = i, score
		}
	}
	return best
}

// Placed tells that a task of that many containers was placed for the job that
// Next gave. O(log jobs).
func (q *Queues) Placed(containers float64) {
	i := q.turn
	q.running[i] += containers
	h := q.levels[i]
	h[0].key = q.cfg.key(h[0].Job, q.now)
	if h[0].Job.Ready == 0 {
		q.Drop()
		return
	}
	down(h, 0)
}

// Drop takes the job that Next gave out for this cycle: nothing more of it can
// be placed. O(log jobs).
func (q *Queues) Drop() {
	i := q.turn
	h := q.levels[i]
	last := len(h) - 1
	h[0] = h[last]
	q.levels[i] = h[:last]
	down(q.levels[i], 0)
}

// Accounts gives what has to be remembered, for each queue (from 1): backlogged
// says whether the queue still has ready work, which the caller knows; the
// account of one that has not is to be forgotten (keep false). As long as the
// same queues are backlogged and run on as much as before, what was remembered
// still says everything and nothing is given.
func (q *Queues) Accounts(backlogged func(i int) bool, yield func(i int, a Account, keep bool)) {
	q.settle()
	changed := false
	for i, a := range q.old {
		keep := backlogged(i + 1)
		changed = changed || keep != (a.At >= 0) || keep && thousandths(q.running[i]) != a.Running
	}
	if !changed {
		return
	}
	for i, a := range q.old {
		switch {
		case backlogged(i + 1):
			yield(i+1, Account{Deficit: q.deficit[i], Running: thousandths(q.running[i]), At: q.now}, true)
		case a.At >= 0:
			yield(i+1, Account{}, false)
		}
	}
}

// thousandths rounds as callers keep it, so that it compares equal.
func thousandths(x float64) float64 { return math.Round(x*1000) / 1000 }

// Predict is the service that reading so many bytes will take, by what finished
// tasks took for theirs; 0 where none read anything. It walks the history.
func (c *Config) Predict(h *scheduler.History, name string, bytes int64) float64 {
	const few = 5 // tasks of jobs of that name that are enough to go by
	var all, own, allBytes, ownBytes float64
	n := 0
	h.Tasks(func(t *scheduler.FinishedTask) bool {
		if t.InputBytes > 0 && t.RunTime > 0 {
			took := c.Containers(t.Demand) * t.RunTime.Seconds()
			all, allBytes = all+took, allBytes+float64(t.InputBytes)
			if t.JobName == name {
				own, ownBytes = own+took, ownBytes+float64(t.InputBytes)
				n++
			}
		}
		return true
	})
	switch {
	case n >= few:
		return own / ownBytes * float64(bytes)
	case allBytes > 0:
		return all / allBytes * float64(bytes)
	default:
		return 0
	}
}

// InputBytes is what the tasks of a job read. O(tasks).
func InputBytes(j *scheduler.Job) int64 {
	sum := int64(0)
	for _, g := range j.Stages {
		if g.Spec.Inputs != nil {
			for _, b := range g.Spec.Inputs.Bytes {
				sum += b
			}
		}
	}
	return sum
}

func less(a, b *entry) bool {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.seq, b.seq)) < 0
}

func down(h []entry, i int) {
	for {
		least, l := i, 2*i+1
		if l < len(h) && less(&h[l], &h[least]) {
			least = l
		}
		if r := l + 1; r < len(h) && less(&h[r], &h[least]) {
			least = r
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

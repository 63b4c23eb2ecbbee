package lasmq

import (
	"cmp"
	"math"

	"github.com/drover-run/drover/scheduler"
)

// Account is what must be remembered of a backlogged queue: the container-seconds it
// is behind its share (negative: ahead) at time At, and the containers it has run on
// since.
type Account struct {
	Deficit float64
	Running float64
	At      scheduler.Time
}

// Queues determines the next job, cycle after cycle: the queue by deficit, its job
// by the queue's order. It is a cache: everything it knows is passed to Begin and
// Add.
//
// A backlogged queue (with ready work left) is entitled to weight/(sum of the
// backlogged queues' weights) of the containers that backlogged queues run on. Its
// deficit grows by what it is entitled to and shrinks by what it runs on, so the
// deficits of a fixed set of backlogged queues have a constant sum. The next task
// goes to the queue that would be furthest behind after Horizon without it: the
// largest deficit + Horizon x (share - running). A queue with a ten-millionth of the
// weight is thus still served in time, and a hundred containers that become free at
// once do not all go to one queue.
type Queues struct {
	cfg        Config
	now        scheduler.Time
	previous   []Account
	deficit    []float64
	running    []float64
	heaps      [][]entry
	backlogged []bool // at the start of the cycle
	weights    []float64
	prepared   bool
	current    int // the queue of the last Next
}

// QueuedJob is the next job. Stage belongs to the caller: where to continue when the
// job is next again.
type QueuedJob struct {
	Job   *scheduler.Job
	Stage int32
}

type entry struct {
	QueuedJob
	key float64
	seq int32
}

// New returns empty queues. cfg must have passed Check.
func New(cfg Config) *Queues {
	cfg = cfg.WithThresholds()
	q := &Queues{cfg: cfg, deficit: make([]float64, cfg.Queues), running: make([]float64, cfg.Queues),
		heaps: make([][]entry, cfg.Queues), previous: make([]Account, cfg.Queues), backlogged: make([]bool, cfg.Queues)}
	for i := range cfg.Queues {
		q.weights = append(q.weights, cfg.Weight(i+1))
	}
	return q
}

// Config returns the configuration, which must not be changed.
func (q *Queues) Config() *Config { return &q.cfg }

// Begin starts a cycle. account returns what was remembered of queue i (from 1).
func (q *Queues) Begin(now scheduler.Time, account func(i int) (Account, bool)) {
	q.now, q.prepared = now, false
	for i := range q.heaps {
		q.heaps[i] = q.heaps[i][:0]
		q.running[i], q.deficit[i] = 0, 0
		a, ok := account(i + 1)
		if !ok {
			a = Account{At: -1}
		}
		q.previous[i] = a
	}
}

// Add adds a job to queue level (from 1); seq is its position by submission. Jobs
// without ready work count as running only. O(stages).
func (q *Queues) Add(j *scheduler.Job, level int, seq int32) {
	i := level - 1
	q.running[i] += q.cfg.RunningContainers(j)
	if j.Ready > 0 {
		q.heaps[i] = append(q.heaps[i], entry{QueuedJob: QueuedJob{Job: j}, key: q.cfg.orderKey(j, q.now), seq: seq})
	}
}

// prepare brings the deficits up to date and orders the queues, once a cycle.
func (q *Queues) prepare() {
	if q.prepared {
		return
	}
	q.prepared = true
	for i := range q.heaps {
		h := q.heaps[i]
		for k := len(h)/2 - 1; k >= 0; k-- {
			siftDown(h, k)
		}
		q.backlogged[i] = len(h) > 0
	}
	weights, running := 0.0, 0.0
	for i, a := range q.previous {
		if a.At >= 0 {
			weights, running = weights+q.weights[i], running+a.Running
		}
	}
	for i, a := range q.previous {
		if a.At < 0 || !q.backlogged[i] {
			continue
		}
		dt := max(0, q.now.Sub(a.At)).Seconds()
		q.deficit[i] = a.Deficit + dt*(running*q.weights[i]/weights-a.Running)
		// Tasks that cannot be placed at all must not earn for ever.
		limit := q.cfg.Horizon.Seconds() * max(1, running)
		q.deficit[i] = min(max(q.deficit[i], -limit), limit)
	}
}

// Next returns the next job, or nil if no queue has one. The result is valid until
// RecordPlaced or Drop. O(queues).
func (q *Queues) Next() *QueuedJob {
	if q.current = q.selectQueue(); q.current >= 0 {
		return &q.heaps[q.current][0].QueuedJob
	}
	return nil
}

func (q *Queues) selectQueue() int {
	q.prepare()
	weights, running := 0.0, 0.0
	for i := range q.heaps {
		if len(q.heaps[i]) > 0 {
			weights, running = weights+q.weights[i], running+q.running[i]
		}
	}
	best, most := -1, math.Inf(-1)
	for i := range q.heaps {
		if len(q.heaps[i]) == 0 {
			continue
		}
		score := q.deficit[i] + q.cfg.Horizon.Seconds()*((running+1)*q.weights[i]/weights-q.running[i])
		if score > most {
			best, most = i, score
		}
	}
	return best
}

// RecordPlaced records that a task of so many containers was placed for the job of
// the last Next. O(log jobs).
func (q *Queues) RecordPlaced(containers float64) {
	i := q.current
	q.running[i] += containers
	h := q.heaps[i]
	h[0].key = q.cfg.orderKey(h[0].Job, q.now)
	if h[0].Job.Ready == 0 {
		q.Drop()
		return
	}
	siftDown(h, 0)
}

// Drop removes the job of the last Next for this cycle, since nothing more of it can
// be placed. O(log jobs).
func (q *Queues) Drop() {
	i := q.current
	h := q.heaps[i]
	last := len(h) - 1
	h[0] = h[last]
	q.heaps[i] = h[:last]
	siftDown(q.heaps[i], 0)
}

// Accounts yields what must be remembered of each queue (from 1). backlogged reports
// whether a queue still has ready work, which the caller knows; the account of one
// that has none is to be forgotten (keep is false). It yields nothing while the same
// queues are backlogged and run on as much as before: the remembered accounts are
// then still valid.
func (q *Queues) Accounts(backlogged func(i int) bool, yield func(i int, a Account, keep bool)) {
	q.prepare()
	changed := false
	for i, a := range q.previous {
		keep := backlogged(i + 1)
		changed = changed || keep != (a.At >= 0) || keep && roundToThousandths(q.running[i]) != a.Running
	}
	if !changed {
		return
	}
	for i, a := range q.previous {
		switch {
		case backlogged(i + 1):
			yield(i+1, Account{Deficit: q.deficit[i], Running: roundToThousandths(q.running[i]), At: q.now}, true)
		case a.At >= 0:
			yield(i+1, Account{}, false)
		}
	}
}

// roundToThousandths rounds to the precision that callers store, so that values
// compare equal.
func roundToThousandths(x float64) float64 { return math.Round(x*1000) / 1000 }

// PredictService returns the service in container-seconds that reading so many bytes
// will take, by the finished tasks of the same job name or, if these are few, of
// all; 0 if none read anything. O(history).
func (c *Config) PredictService(h *scheduler.History, name string, bytes int64) float64 {
	const enough = 5 // tasks of the same job name that suffice
	var all, own, allBytes, ownBytes float64
	n := 0
	h.Tasks(func(t *scheduler.FinishedTask) bool {
		if t.InputBytes > 0 && t.RunTime > 0 {
			service := c.Containers(t.Demand) * t.RunTime.Seconds()
			all, allBytes = all+service, allBytes+float64(t.InputBytes)
			if t.JobName == name {
				own, ownBytes = own+service, ownBytes+float64(t.InputBytes)
				n++
			}
		}
		return true
	})
	switch {
	case n >= enough:
		return own / ownBytes * float64(bytes)
	case allBytes > 0:
		return all / allBytes * float64(bytes)
	default:
		return 0
	}
}

// InputBytes returns the input size of a job's tasks. O(tasks).
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

func lessEntry(a, b *entry) bool {
	return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.seq, b.seq)) < 0
}

func siftDown(h []entry, i int) {
	for {
		least, l := i, 2*i+1
		if l < len(h) && lessEntry(&h[l], &h[least]) {
			least = l
		}
		if r := l + 1; r < len(h) && lessEntry(&h[r], &h[least]) {
			least = r
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

package lasmq

import (
	"math"
	"math/bits"
	"slices"
	"sort"

	"github.com/drover-run/drover/scheduler"
)

// account is the remembered facts about a backlogged queue: the container-seconds it is behind its
// share (negative: ahead) at time at, and the containers it has run on since.
type account struct {
	deficit float64
	running float64
	at      scheduler.Time
}

// Queues are the queues of the jobs of one group. An Index fills them. Pass after pass they
// determine the next job: the queue by deficit, its job by the queue's order.
//
// A backlogged queue (with ready work left) is entitled to weight/(sum of the backlogged queues'
// weights) of the containers that backlogged queues run on. Its deficit grows by its entitlement and
// shrinks by the containers it runs on, so the deficits of a fixed set of backlogged queues have a
// constant sum. The next task goes to the queue that would be furthest behind after Horizon without it:
// the largest deficit + Horizon x (share - running). So a queue with a ten-millionth of the weight is
// still served in time, and a hundred containers that become free at once do not all go to one queue.
type Queues struct {
	cfg     *Config
	weights []float64
	group   int
	account accountOf
	version func(group int) uint64 // see Index.AccountsVersion; may be nil
	// The Index maintains these: the jobs with ready work, and the containers of all jobs of the queue.
	lists      []jobList
	total      []microContainers
	backlogged uint64 // bits of the queues whose list is not empty
	contended  bool   // else there are no accounts: see Index.OnlyContended

	state    *scheduler.State // of the Index
	now      scheduler.Time
	prepared bool // previous and deficit are up to date in this pass
	previous []account
	read     bool   // previous was read at readAt
	readAt   uint64 // Index.AccountsVersion at that time
	deficit  []float64
	running  []microContainers // including the tasks placed in this pass
	cursors  []cursor
	current  int  // the queue of the last Next, -1 for none
	chosen   bool // Next would return the same queue again
	// Predictions of this pass: how fast the deficits grow from base at time since, and when another
	// queue becomes the first. They depend on the remembered accounts, not on the time of the pass.
	growth, base, leads []float64 // leads: a queue's score minus its deficit
	since               scheduler.Time
	nextOrder           scheduler.Time

	// The resting jobs that this pass skipped: their classes, without repetition in a row, and until when all of them rest.
	restedClasses []scheduler.MisfitClass
	restUntil     scheduler.Time

	// remembered are the bits of the queues that may have an account. All others have none, as
	// accounts come only from account.
	remembered uint64
	settled    settledQueues
}

// settledQueues are the queues at a time when their accounts equalled the remembered ones. They
// still do while the same queues are backlogged on as many containers.
type settledQueues struct {
	valid      bool
	contended  bool
	backlogged uint64
	total      []microContainers
}

// accountOf returns the remembered account of queue i (from 1) of a group, false for none.
type accountOf func(group, i int) (account, bool)

// cursor is the progress of a pass in a queue: all jobs before it were dropped.
type cursor struct {
	position
	first   *listedJob // the result of head, nil if it must be found again
	version uint64     // of the list that the position belongs to
	begun   bool
	done    bool // no job is left
	key     jobKey
	dropped bool  // the job with this key was dropped: the next one is the head
	stage   int32 // where to continue in the job with this key
}

// NextJob is the next job. Stage belongs to the caller: where to continue when the job is next again.
type NextJob struct {
	Job   *scheduler.Job
	Stage *int32
}

func newQueues(cfg *Config, weights []float64, group int, recorded accountOf, version func(int) uint64) *Queues {
	k := cfg.Queues
	floats, counts := make([]float64, 4*k), make([]microContainers, 2*k)
	return &Queues{cfg: cfg, weights: weights, group: group, account: recorded, version: version, lists: make([]jobList, k), total: counts[:k], running: counts[k:],
		deficit: floats[:k:k], growth: floats[k : 2*k : 2*k], base: floats[2*k : 3*k : 3*k], leads: floats[3*k:], nextOrder: scheduler.Never, previous: make([]account, k), cursors: make([]cursor, k), remembered: math.MaxUint64}
}

func (q *Queues) reset() {
	clear(q.lists)
	clear(q.total)
	q.backlogged, q.remembered, q.contended, q.settled.valid, q.read = 0, math.MaxUint64, false, false, false
}

// insert and remove change the list of queue i (from 0).
func (q *Queues) insert(i int, e listedJob) {
	q.lists[i].insert(e)
	q.forgetHead(i)
	q.backlogged |= 1 << i
}

// forgetHead records that the head of a queue, and so the next job, may have changed.
func (q *Queues) forgetHead(i int) { q.cursors[i].first, q.chosen = nil, false }

func (q *Queues) remove(i int, k jobKey) {
	q.forgetHead(i)
	if q.lists[i].remove(k); q.lists[i].empty() {
		q.backlogged &^= 1 << i
	}
}

// Begin starts a pass, after Index.Sync. O(queues).
func (q *Queues) Begin(now scheduler.Time) {
	q.now, q.current, q.chosen, q.prepared = now, -1, false, false
	copy(q.running, q.total)
	clear(q.cursors)
	q.restedClasses, q.restUntil, q.nextOrder = q.restedClasses[:0], scheduler.Never, scheduler.Never
}

// NextOrder returns when this pass, if it placed nothing, would serve the queues in another order although nothing
// happens, since deficits grow; Never if it would not. The order of jobs served only if they fit does not count.
func (q *Queues) NextOrder() scheduler.Time { return q.nextOrder }

// Rested returns the classes of the resting jobs that this pass skipped, and until when all rest; valid until Next.
func (q *Queues) Rested() (classes []scheduler.MisfitClass, until scheduler.Time) {
	return q.restedClasses, q.restUntil
}

// prepare updates the deficits, once a pass.
func (q *Queues) prepare() {
	if q.prepared {
		return
	}
	q.prepared = true
	clear(q.deficit)
	q.readAccounts()
	weights, running := 0.0, 0.0
	for i, a := range q.previous {
		if a.at >= 0 {
			weights, running = weights+q.weights[i], running+a.running
		}
	}
	for i, a := range q.previous {
		if a.at < 0 || q.lists[i].empty() {
			continue
		}
		dt := max(0, q.now.Sub(a.at)).Seconds()
		grown := a.deficit + dt*(running*q.weights[i]/weights-a.running)
		// Tasks that cannot be placed at all must not earn for ever. A deficit beyond the limit is kept, since it
		// would otherwise change at its recording time whenever fewer containers run than before.
		limit := q.cfg.Horizon.Seconds() * max(1, running)
		q.deficit[i] = min(max(grown, min(a.deficit, -limit)), max(a.deficit, limit))
	}
	q.predictGrowth()
}

// predictGrowth sets how deficits grow after a pass that places nothing: from now on if accounts
// change, else as before.
func (q *Queues) predictGrowth() {
	clear(q.growth)
	copy(q.base, q.deficit)
	if !q.contended {
		return
	}
	weights, running, changed := 0.0, 0.0, false
	q.since = q.now
	for i, a := range q.previous {
		runs := roundToThousandths(q.total[i].float())
		if keep := !q.lists[i].empty(); keep {
			weights, running = weights+q.weights[i], running+runs
			changed, q.since = changed || a.at < 0 || a.running != runs, a.at
		} else {
			changed = changed || a.at >= 0
		}
	}
	if changed {
		q.since = q.now
	}
	limit := q.cfg.Horizon.Seconds() * max(1, running)
	for i, a := range q.previous {
		if q.lists[i].empty() {
			continue
		}
		rate := running*q.weights[i]/weights - roundToThousandths(q.total[i].float())
		if bound := math.Copysign(limit, rate); rate*(bound-q.deficit[i]) > 0 {
			q.growth[i] = rate
			if !changed {
				q.base[i] = a.deficit
			}
			q.noteAt((bound - q.base[i]) / rate) // it grows no further
		}
	}
}

// noteAt records that the order may change this many seconds after since.
func (q *Queues) noteAt(seconds float64) {
	if seconds < math.MaxInt32 {
		q.nextOrder = min(q.nextOrder, max(q.now+1, q.since+scheduler.Time(seconds*1e9)))
	}
}

// readAccounts reads the remembered accounts, unless they were read and did not change.
func (q *Queues) readAccounts() {
	if q.version != nil {
		at := q.version(q.group)
		if q.read && at == q.readAt {
			return
		}
		q.read, q.readAt = true, at
	}
	for i := range q.previous {
		q.previous[i] = account{at: -1}
		if q.remembered&(1<<i) == 0 {
			continue
		}
		if known, ok := q.account(q.group, i+1); ok {
			q.previous[i] = known
		} else {
			q.remembered &^= 1 << i
		}
	}
}

// Next returns the next job, false if no queue has one. With fitOnly, jobs that fit on no node are not served
// from now to the end of the pass: jobs that rest for their class continue to rest, and a pass that places
// nothing does nothing more, in whatever order. The result is valid until RecordPlaced or Drop. O(queues).
func (q *Queues) Next(fitOnly bool) (NextJob, bool) {
	for {
		if !q.chosen || q.head(q.current) == nil {
			order := q.nextOrder
			if q.current = q.selectQueue(0, 0); fitOnly {
				q.nextOrder = order
			}
			if q.current < 0 {
				return NextJob{}, false
			}
			q.chosen = true
		}
		if !q.dropResting(fitOnly) {
			break
		}
	}
	return NextJob{q.head(q.current).job, &q.cursors[q.current].stage}, true
}

// head returns the first entry of a queue with ready work that was not dropped, or nil. The list
// may have changed since the last call.
func (q *Queues) head(i int) *listedJob {
	l, c := &q.lists[i], &q.cursors[i]
	if c.done || c.first != nil {
		return c.first
	}
	if c.begun && c.version != l.version {
		c.position = l.seek(c.key)
		if e := l.get(c.position); e != nil && c.dropped && e.jobKey == c.key {
			c.position = l.after(c.position)
		}
	}
	c.version = l.version
	e := l.get(c.position)
	for e != nil && e.job.Ready == 0 {
		c.position = l.after(c.position)
		e = l.get(c.position)
	}
	if c.done = e == nil; c.done {
		return nil
	}
	if !c.begun || e.jobKey != c.key {
		c.begun, c.key, c.dropped, c.stage = true, e.jobKey, false, 0
	}
	c.first = e
	return e
}

// selectQueue returns the queue that would be next if more containers were placed for queue of, -1 for none.
func (q *Queues) selectQueue(of int, more float64) int {
	weights, running, left, only := 0.0, more, 0, -1
	for m := q.backlogged; m != 0; m &= m - 1 {
		if i := bits.TrailingZeros64(m); q.head(i) != nil {
			weights, running, left, only = weights+q.weights[i], running+q.running[i].float(), left+1, i
		}
	}
	if left <= 1 {
		return only
	}
	q.prepare()
	best, most := -1, math.Inf(-1)
	for i := range q.leads {
		q.leads[i] = most
	}
	for m := q.backlogged; m != 0; m &= m - 1 {
		i := bits.TrailingZeros64(m)
		if q.cursors[i].done {
			continue
		}
		has := q.running[i].float()
		if i == of {
			has += more
		}
		lead := q.cfg.Horizon.Seconds() * ((running+1)*q.weights[i]/weights - has)
		q.leads[i] = lead
		if score := q.deficit[i] + lead; score > most {
			best, most = i, score
		}
	}
	for i, lead := range q.leads { // when another queue passes the best one
		if rate := q.growth[i] - q.growth[best]; more == 0 && i != best && !math.IsInf(lead, -1) && rate > 0 {
			q.noteAt((q.leads[best] - lead + q.base[best] - q.base[i]) / rate)
		}
	}
	return best
}

// Streak returns how many tasks of a demand in a row the job of the last Next would place before another queue
// is next, 1 to limit: each placement lowers the queue's score and raises the others'. O(queues x log limit).
func (q *Queues) Streak(d scheduler.Resources, limit int32) int32 {
	containers := micro(q.cfg.Containers(d)).float()
	stays := func(n int) bool { return q.selectQueue(q.current, float64(n+1)*containers) == q.current }
	return int32(sort.Search(int(max(limit, 1)-1), func(n int) bool { return !stays(n) })) + 1
}

// RecordPlaced records that n tasks of a demand were placed for the job of the last Next. O(1).
func (q *Queues) RecordPlaced(d scheduler.Resources, n int32) {
	q.running[q.current] += micro(q.cfg.Containers(d)) * microContainers(n)
	q.forgetHead(q.current)
}

// Drop removes the job of the last Next for this pass, since no more of its tasks can be placed. O(1).
func (q *Queues) Drop() {
	chosen, c := q.chosen, &q.cursors[q.current]
	q.forgetHead(q.current)
	if q.head(q.current) != nil {
		c.first = nil
		c.position, c.dropped = q.lists[q.current].after(c.position), true
		q.chosen = chosen && q.head(q.current) != nil // the choice between queues depends on nothing that changed
	}
}

// Rest is Drop, also for later passes until the job changes or a node fits the class: passes before
// until, and those in which Next has fitOnly.
func (q *Queues) Rest(class scheduler.MisfitClass, until scheduler.Time) {
	if e := q.head(q.current); e != nil {
		e.rest = rest{class, until}
	}
	q.Drop()
}

// dropResting drops the resting jobs at the head of the current queue, and reports whether there
// were any. It does not read the jobs themselves, since there may be thousands.
func (q *Queues) dropResting(fitOnly bool) bool {
	l, c := &q.lists[q.current], &q.cursors[q.current]
	e, nowhere := c.first, rest{}
	for n := 0; ; n++ {
		if e == nil || e.rest.class.IsZero() || (!fitOnly && q.now >= e.rest.until) ||
			e.rest.class != nowhere.class && !q.state.Queue().ClassFitsNowhere(e.rest.class) {
			if n > 0 {
				c.first = nil
			}
			return n > 0
		}
		if q.restUntil = min(q.restUntil, e.rest.until); e.rest.class != nowhere.class {
			q.restedClasses = append(q.restedClasses, e.rest.class)
		}
		nowhere = e.rest
		c.key, c.dropped, c.position = e.jobKey, true, l.after(c.position)
		e = l.get(c.position)
	}
}

// wake ends the rest of a changed job of queue i (from 0).
func (q *Queues) wake(i int, k jobKey) {
	if e := q.lists[i].get(q.lists[i].seek(k)); e != nil && e.jobKey == k {
		e.rest = rest{}
	}
}

// eachAccount yields the account to remember for each queue (from 1); keep is false if it must be deleted: the queue
// has no ready work, or the group is uncontended. It yields nothing while the same queues are backlogged and run on the
// same containers, since the remembered accounts are then valid. They also are, whatever it runs on, while only one
// queue is backlogged: its deficit does not change. It must be called after Index.Sync; it starts a pass. O(queues).
func (q *Queues) eachAccount(now scheduler.Time, yield func(i int, a account, keep bool)) {
	if s := &q.settled; s.valid && s.contended == q.contended && s.backlogged == q.backlogged && slices.Equal(s.total, q.total) {
		return
	}
	q.Begin(now)
	q.prepare()
	changed, alone := false, bits.OnesCount64(q.backlogged) == 1
	for i, a := range q.previous {
		keep := q.contended && !q.lists[i].empty()
		changed = changed || keep != (a.at >= 0) || keep && !alone && roundToThousandths(q.running[i].float()) != a.running
	}
	if q.settled.valid = false; !changed {
		q.settled = settledQueues{true, q.contended, q.backlogged, append(q.settled.total[:0], q.total...)}
		return
	}
	for i, a := range q.previous {
		switch {
		case q.contended && !q.lists[i].empty():
			q.remembered |= 1 << i
			yield(i+1, account{deficit: q.deficit[i], running: roundToThousandths(q.running[i].float()), at: q.now}, true)
		case a.at >= 0:
			yield(i+1, account{}, false)
		}
	}
}

// roundToThousandths rounds to the precision of policy states, so that values compare equal.
func roundToThousandths(x float64) float64 { return math.Round(x*milliContainers) / milliContainers }

// predictService returns the predicted service in container-seconds for reading bytes, by the finished
// tasks of the same job name or, if these are few, of all; 0 if none read anything. O(history).
func (c *Config) predictService(h *scheduler.History, name string, bytes int64) float64 {
	const enough = 5 // sufficient tasks of the same job name
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

// inputBytes returns the input size of a job's tasks. O(tasks).
func inputBytes(j *scheduler.Job) int64 {
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

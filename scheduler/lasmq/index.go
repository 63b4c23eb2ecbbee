package lasmq

import (
	"cmp"
	"container/heap"
	"slices"

	"github.com/drover-run/drover/scheduler"
)

// Index keeps the jobs of a State in queues: those that a policy serves together form
// a group with queues of its own. It is a cache that follows the State's log of
// changes: a job is inspected again when the log names it or when its service exceeds
// the threshold of its queue, an instant that is known in advance.
type Index struct {
	cfg Config
	// groupOf returns the group of a job, -1 if it is in no queue. It may depend on
	// the job and its policy states only.
	groupOf func(*scheduler.Job) int
	// predict starts a job in the queue that its input size predicts.
	predict bool
	account AccountOf
	weights []float64 // of the queues

	state    *scheduler.State
	seen     uint64 // ChangeLog.Position at the last Sync
	syncedAt scheduler.Time
	jobs     map[scheduler.JobID]*queuedJob
	groups   []*Queues // nil for groups without a job so far
	demotion demotionHeap

	unrecorded []*queuedJob // jobs whose queue is not as recorded
	unsettled  []int        // groups whose accounts may not be as recorded
	isOpen     []bool       // groups in unsettled, by group
	changed    []scheduler.JobID
	free       []*queuedJob // of jobs that ended
}

// queuedJob is a job in a queue.
type queuedJob struct {
	job      *scheduler.Job
	group    int
	level    int // its queue, from 1
	running  microContainers
	key      jobKey
	listed   bool // in its queue's list: it has ready work
	demoteAt scheduler.Time
	heapAt   int // index in Index.demotion, -1 for none
	recordAt int // index in Index.unrecorded, -1 for none
}

// NewIndex returns an empty index. cfg must have passed Check. account may be called
// in a pass and must read the State of the last Sync.
func NewIndex(cfg Config, predict bool, groupOf func(*scheduler.Job) int, account AccountOf) *Index {
	x := &Index{cfg: cfg.WithThresholds(), predict: predict, groupOf: groupOf, account: account, jobs: map[scheduler.JobID]*queuedJob{}}
	for i := range cfg.Queues {
		x.weights = append(x.weights, cfg.Weight(i+1))
	}
	return x
}

// Sync synchronises the index with the State. O(changes x log jobs), and O(jobs) if
// the log of changes has wrapped or the State is another one. groups is the number of
// groups.
func (x *Index) Sync(s *scheduler.State, now scheduler.Time, groups int) {
	for len(x.groups) < groups {
		x.groups, x.isOpen = append(x.groups, nil), append(x.isOpen, false)
	}
	x.changed = x.changed[:0]
	changed := func(c scheduler.ChangedOwner) {
		if c.Job != 0 && (len(x.changed) == 0 || x.changed[len(x.changed)-1] != c.Job) {
			x.changed = append(x.changed, c.Job)
		}
	}
	if x.state != s || now < x.syncedAt || !s.ChangeLog().Since(x.seen, changed) {
		x.rebuild(s, now)
	}
	x.seen, x.syncedAt = s.ChangeLog().Position(), now
	for _, id := range x.changed {
		x.refresh(id, now)
	}
	for len(x.demotion) > 0 && x.demotion[0].demoteAt <= now {
		x.refresh(x.demotion[0].job.Spec.ID, now)
	}
	if x.predict { // predictions change with the history
		for i := len(x.unrecorded) - 1; i >= 0; i-- {
			x.refresh(x.unrecorded[i].job.Spec.ID, now)
		}
	}
}

// rebuild forgets everything and inspects all jobs.
func (x *Index) rebuild(s *scheduler.State, now scheduler.Time) {
	x.state = s
	for _, e := range x.jobs {
		x.free = append(x.free, e)
	}
	clear(x.jobs)
	for _, q := range x.groups {
		if q != nil {
			q.reset()
		}
	}
	x.demotion, x.unrecorded, x.unsettled, x.changed = x.demotion[:0], x.unrecorded[:0], x.unsettled[:0], x.changed[:0]
	for g := range x.groups {
		x.unsettled, x.isOpen[g] = append(x.unsettled, g), true
	}
	for j := range s.Jobs() {
		x.refresh(j.Spec.ID, now)
	}
}

// Demotion returns the next instant at which a job is demoted if nothing changes,
// Never if none will be. O(1).
func (x *Index) Demotion() scheduler.Time {
	if len(x.demotion) == 0 {
		return scheduler.Never
	}
	return x.demotion[0].demoteAt
}

// HasReady reports whether a job of a group has ready work. O(1).
func (x *Index) HasReady(group int) bool {
	return x.groups[group] != nil && x.groups[group].backlogged != 0
}

// Queues returns the queues of a group, for one pass.
func (x *Index) Queues(group int) *Queues {
	if x.groups[group] == nil {
		x.groups[group] = newQueues(&x.cfg, x.weights, group, x.account)
	}
	return x.groups[group]
}

// Unrecorded yields, in order of submission, the jobs of a group whose queue is not
// as recorded in their policy state, and the queue.
func (x *Index) Unrecorded(group int, yield func(j *scheduler.Job, level int)) {
	if len(x.unrecorded) == 0 {
		return
	}
	var of []*queuedJob
	for _, e := range x.unrecorded {
		if e.group == group {
			of = append(of, e)
		}
	}
	slices.SortFunc(of, func(a, b *queuedJob) int {
		return cmp.Or(cmp.Compare(a.key.submitted, b.key.submitted), cmp.Compare(a.key.id, b.key.id))
	})
	for _, e := range of {
		yield(e.job, e.level)
	}
}

// Unsettled yields, in ascending order, the groups for which a job or an account may
// be to record. settled reports that there is nothing to record for a group: it is
// yielded again only after a change.
func (x *Index) Unsettled(yield func(group int) (settled bool)) {
	slices.Sort(x.unsettled)
	x.unsettled = slices.DeleteFunc(x.unsettled, func(group int) bool {
		settled := yield(group)
		x.isOpen[group] = !settled
		return settled
	})
}

// refresh inspects one job again, or drops it.
func (x *Index) refresh(id scheduler.JobID, now scheduler.Time) {
	e, j := x.jobs[id], x.state.Job(id)
	group := -1
	if j != nil {
		group = x.groupOf(j)
	}
	if group < 0 {
		if e != nil {
			x.drop(e)
		}
		return
	}
	if e == nil {
		e = x.newJob()
		*e = queuedJob{job: j, group: group, key: jobKey{submitted: j.Spec.Submitted, id: id}, demoteAt: scheduler.Never, heapAt: -1, recordAt: -1}
		x.jobs[id] = e
	}
	from, recorded := x.recordedQueue(j)
	m := x.cfg.measure(j)
	level, at := x.cfg.queueAt(&m.service, from, now)
	x.moveTo(e, group, level, &m)
	x.setDemotion(e, at)
	x.setUnrecorded(e, recorded && level > from || !recorded && (level > 1 || x.predict))
}

// recordedQueue returns the queue that a job was in, and whether that is recorded.
func (x *Index) recordedQueue(j *scheduler.Job) (queue int, recorded bool) {
	if j.HasState(scheduler.QueueState) {
		n, _ := x.state.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.QueueState, Job: j.Spec.ID})
		return min(max(int(n.Value), 1), x.cfg.Queues), true
	}
	if x.predict {
		return x.cfg.QueueFor(1, x.cfg.PredictService(x.state.History(), j.Spec.Name, InputBytes(j))), false
	}
	return 1, false
}

// moveTo puts a job into a queue and brings its entry there up to date.
func (x *Index) moveTo(e *queuedJob, group, level int, m *measured) {
	order, running, ready := x.cfg.orderKey(m), m.running, e.job.Ready > 0
	x.open(group)
	if e.level == level && e.group == group && e.listed == ready && e.key.order == order && e.running == running {
		return
	}
	x.takeOut(e)
	e.group, e.level, e.key.order, e.running, e.listed = group, level, order, running, ready
	q := x.Queues(group)
	q.total[level-1] += running
	if ready {
		q.insert(level-1, listedJob{e.key, e.job})
	}
}

// takeOut removes a job from its queue.
func (x *Index) takeOut(e *queuedJob) {
	if e.level == 0 {
		return
	}
	x.open(e.group)
	q := x.Queues(e.group)
	q.total[e.level-1] -= e.running
	if e.listed {
		q.remove(e.level-1, e.key)
	}
	e.level, e.running, e.listed = 0, 0, false
}

func (x *Index) drop(e *queuedJob) {
	x.takeOut(e)
	x.setDemotion(e, scheduler.Never)
	x.setUnrecorded(e, false)
	delete(x.jobs, e.key.id)
	e.job = nil
	x.free = append(x.free, e)
}

// newJob returns an unused entry.
func (x *Index) newJob() *queuedJob {
	if n := len(x.free); n > 0 {
		e := x.free[n-1]
		x.free = x.free[:n-1]
		return e
	}
	return new(queuedJob)
}

// open notes that the accounts of a group may not be as recorded.
func (x *Index) open(group int) {
	if !x.isOpen[group] {
		x.isOpen[group] = true
		x.unsettled = append(x.unsettled, group)
	}
}

func (x *Index) setUnrecorded(e *queuedJob, record bool) {
	switch {
	case record && e.recordAt < 0:
		e.recordAt = len(x.unrecorded)
		x.unrecorded = append(x.unrecorded, e)
	case !record && e.recordAt >= 0:
		last := x.unrecorded[len(x.unrecorded)-1]
		x.unrecorded[e.recordAt], last.recordAt = last, e.recordAt
		x.unrecorded, e.recordAt = x.unrecorded[:len(x.unrecorded)-1], -1
	}
}

func (x *Index) setDemotion(e *queuedJob, at scheduler.Time) {
	e.demoteAt = at
	switch {
	case at == scheduler.Never && e.heapAt >= 0:
		heap.Remove(&x.demotion, e.heapAt)
	case at == scheduler.Never:
	case e.heapAt >= 0:
		heap.Fix(&x.demotion, e.heapAt)
	default:
		heap.Push(&x.demotion, e)
	}
}

// demotionHeap holds the jobs that will be demoted, the next one first.
type demotionHeap []*queuedJob

// Len implements heap.Interface.
func (h demotionHeap) Len() int { return len(h) }

// Less implements heap.Interface.
func (h demotionHeap) Less(i, j int) bool { return h[i].demoteAt < h[j].demoteAt }

// Swap implements heap.Interface.
func (h demotionHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapAt, h[j].heapAt = i, j
}

// Push implements heap.Interface.
func (h *demotionHeap) Push(x any) {
	e := x.(*queuedJob)
	e.heapAt = len(*h)
	*h = append(*h, e)
}

// Pop implements heap.Interface.
func (h *demotionHeap) Pop() any {
	e := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	e.heapAt = -1
	return e
}

package lasmq

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/internal/heaps"
	"github.com/drover-run/drover/scheduler"
)

// Index keeps the jobs of a State in queues. Jobs that a policy serves together form a group with its own
// queues. It is a cache that follows the State's log of changes: a job is inspected again when the log
// names it or when its service exceeds the threshold of its queue, at a time that is known in advance.
type Index struct {
	// OnlyContended limits the queues to groups in which two or more jobs have ready work. For other groups no
	// queue and no deficit is recorded, a change of a job costs O(1), and the caller itself serves the job, if any.
	OnlyContended bool
	// AccountsVersion returns a number that changes whenever an account of a group changes. If it
	// is nil, accounts are read in each pass.
	AccountsVersion func(group int) uint64

	cfg Config
	// groupOf returns the group of a job, -1 for no queue. It may depend only on the job and its policy states.
	groupOf func(*scheduler.Job) int
	// predict starts a job in the queue that its input size predicts.
	predict    bool
	deficitKey func(group, i int) scheduler.PolicyStateKey
	account    accountOf
	weights    []float64 // of the queues

	state    *scheduler.State
	seen     uint64 // ChangeLog.Position at the last Sync
	syncedAt scheduler.Time
	jobs     map[scheduler.JobID]*queuedJob
	groups   []jobGroup

	contended []int // the contended groups
	crossed   []int // groups that may have become contended or uncontended, in this Sync
	unsettled []int // groups whose accounts may differ from the recorded ones
	changed   []scheduler.JobID
	unread    []scheduler.JobID // jobs not inspected yet, in order of submission
	readPart  int               // work of reading unknown jobs in one decision
	free      []*queuedJob      // entries of ended jobs, for reuse
	scratch   []*queuedJob      // scratch of takeDue and eachUnrecorded
}

// defaultReadPart is how much of the unknown jobs a decision reads, in units of some 0.1
// microseconds: a job costs readJob, plus one for each of its stages.
const (
	defaultReadPart = 1 << 17
	readJob         = 32
)

// jobGroup is what the index knows of a group.
type jobGroup struct {
	queues    *Queues // nil for a group that never had a job
	members   []*queuedJob
	ready     int  // members with ready work
	contended bool // its jobs are served by its queues
	at        int  // index in Index.contended
	crossed   bool // in Index.crossed
	unsettled bool // in Index.unsettled
	// tracked: the queues hold the members. An uncontended group stays tracked for as many changes as it has
	// members, so that inspecting all of them when it is contended again costs no more than these changes did.
	tracked    bool
	unused     int          // changes while tracked and uncontended
	demotion   []*queuedJob // jobs that will be demoted, a heap: see byDemotion
	unrecorded []*queuedJob // jobs whose queue differs from the recorded one
}

// queuedJob is a job in a group.
type queuedJob struct {
	job      *scheduler.Job
	group    int
	memberAt int  // index in jobGroup.members
	ready    bool // it has ready work
	// The rest is valid while the group is tracked.
	level    int // its queue, from 1; 0 for none
	service  serviceAt
	running  microContainers
	key      jobKey
	listed   bool // in its queue's list
	demoteAt scheduler.Time
	heapAt   int // index in jobGroup.demotion, -1 for none
	recordAt int // index in jobGroup.unrecorded, -1 for none
}

// NewIndex returns an empty index. deficitKey returns the key of the policy state that holds the
// account of queue i (from 1) of a group.
func NewIndex(cfg Config, predict bool, groupOf func(*scheduler.Job) int, deficitKey func(group, i int) scheduler.PolicyStateKey) *Index {
	x := &Index{cfg: cfg, predict: predict, groupOf: groupOf, deficitKey: deficitKey, readPart: defaultReadPart,
		jobs: map[scheduler.JobID]*queuedJob{}}
	x.account = x.recordedAccount
	for i := range cfg.Queues {
		x.weights = append(x.weights, cfg.weight(i+1))
		x.cfg.thresholds = append(x.cfg.thresholds, cfg.threshold(i+1))
	}
	return x
}

// Sync synchronises the index with the State, for a number of groups. O(changes x log jobs + contended groups). If the
// log of changes has wrapped or the State is another one, it inspects all jobs, a part at each time: see IsUnread.
func (x *Index) Sync(s *scheduler.State, now scheduler.Time, groups int) {
	for len(x.groups) < groups {
		x.groups = append(x.groups, jobGroup{})
		x.cross(len(x.groups) - 1)
	}
	x.changed = x.changed[:0]
	changed := func(c scheduler.ChangedOwner) {
		if c.Job != 0 && (len(x.changed) == 0 || x.changed[len(x.changed)-1] != c.Job) {
			x.changed = append(x.changed, c.Job)
		}
	}
	more := now != x.syncedAt
	if x.state != s || now < x.syncedAt || !s.ChangeLog().Since(x.seen, changed) {
		x.rebuild(s)
		more = true
	}
	x.seen, x.syncedAt = s.ChangeLog().Position(), now
	for _, id := range x.changed {
		x.refresh(id, now)
	}
	if more {
		x.readMore(now)
	}
	x.updateContended(now)
	for _, group := range x.contended {
		g := &x.groups[group]
		for _, e := range takeDue(&g.demotion, now, &x.scratch) {
			x.demote(e, now)
		}
		if x.predict { // predictions change with the history
			for i := len(g.unrecorded) - 1; i >= 0; i-- {
				x.enqueue(g.unrecorded[i], now)
			}
		}
	}
}

// rebuild forgets everything; Sync then inspects all jobs.
func (x *Index) rebuild(s *scheduler.State) {
	x.state = s
	for _, e := range x.jobs {
		x.free = append(x.free, e)
	}
	clear(x.jobs)
	x.contended, x.crossed, x.unsettled, x.changed = x.contended[:0], x.crossed[:0], x.unsettled[:0], x.changed[:0]
	for i := range x.groups {
		g := &x.groups[i]
		if g.queues != nil {
			g.queues.reset()
		}
		*g = jobGroup{queues: g.queues, members: g.members[:0], demotion: g.demotion[:0], unrecorded: g.unrecorded[:0]}
		x.open(i)
		x.cross(i)
	}
	x.unread = slices.Grow(x.unread[:0], s.JobCount())
	for j := range s.Jobs() {
		x.unread = append(x.unread, j.Spec.ID)
	}
}

// readMore inspects the next part of the unknown jobs.
func (x *Index) readMore(now scheduler.Time) {
	work := 0
	for len(x.unread) > 0 && work < x.readPart {
		id := x.unread[0]
		x.unread = x.unread[1:]
		if j := x.state.Job(id); j != nil {
			work += readJob + len(j.Stages)
			x.refresh(id, now)
		}
	}
}

// HasUnread reports whether there are jobs that Sync has not inspected yet. They are in no queue,
// and the caller must request a decision at another time.
func (x *Index) HasUnread() bool { return len(x.unread) > 0 }

// IsUnread reports whether a job may be one that Sync has not inspected yet. O(1).
func (x *Index) IsUnread(j *scheduler.Job) bool { return len(x.unread) > 0 && x.jobs[j.Spec.ID] == nil }

// Demotion returns the next time at which a job of a contended group is demoted if nothing changes,
// Never if none will be. O(contended groups).
func (x *Index) Demotion() scheduler.Time {
	at := scheduler.Never
	for _, group := range x.contended {
		if d := x.groups[group].demotion; len(d) > 0 {
			at = min(at, d[0].demoteAt)
		}
	}
	return at
}

// NextOrder returns the earliest NextOrder of the queues of a contended group. O(contended groups).
func (x *Index) NextOrder() scheduler.Time {
	at := scheduler.Never
	for _, group := range x.contended {
		at = min(at, x.groups[group].queues.NextOrder())
	}
	return at
}

// Contended reports whether the jobs of a group are served by its queues. O(1).
func (x *Index) Contended(group int) bool { return group < len(x.groups) && x.groups[group].contended }

// Queues returns the queues of a group, for one pass.
func (x *Index) Queues(group int) *Queues {
	g := &x.groups[group]
	if g.queues == nil {
		g.queues = newQueues(&x.cfg, x.weights, group, x.account, x.AccountsVersion)
	}
	g.queues.state = x.state
	return g.queues
}

const maxUnrecorded = 1024 // how many jobs eachUnrecorded yields in one call

// eachUnrecorded yields, by submission, at most maxUnrecorded jobs of a group whose queue differs
// from the recorded one, with the queue; the next decisions yield the others, with the same queues.
// O(jobs) for them, since only the first are sorted.
func (x *Index) eachUnrecorded(group int, yield func(j *scheduler.Job, level int)) {
	g := &x.groups[group]
	if !g.contended || len(g.unrecorded) == 0 {
		return
	}
	bySubmission := func(a, b *queuedJob) int {
		return cmp.Or(cmp.Compare(a.key.submitted, b.key.submitted), cmp.Compare(a.key.id, b.key.id))
	}
	first := x.scratch[:0]
	cut := func() {
		slices.SortFunc(first, bySubmission)
		first = first[:min(len(first), maxUnrecorded)]
	}
	var last *queuedJob // the last of the first jobs
	for _, e := range g.unrecorded {
		if last != nil && bySubmission(e, last) > 0 {
			continue
		}
		if first = append(first, e); len(first) == 2*maxUnrecorded {
			cut()
			last = first[maxUnrecorded-1]
		}
	}
	cut()
	x.scratch = first
	for _, e := range first {
		yield(e.job, e.level)
	}
}

// refresh inspects one job again, or drops it.
func (x *Index) refresh(id scheduler.JobID, now scheduler.Time) {
	e, j := x.jobs[id], x.state.Job(id)
	group := -1
	if j != nil {
		group = x.groupOf(j)
	}
	if e != nil && e.group != group {
		x.leave(e)
		e = nil
	}
	if group < 0 {
		return
	}
	g := &x.groups[group]
	if e == nil {
		e = x.join(j, group)
	}
	if ready := j.Ready > 0; ready != e.ready {
		e.ready = ready
		if ready {
			g.ready++
		} else {
			g.ready--
		}
		x.cross(group)
	}
	if !g.tracked {
		return
	}
	if !g.contended {
		g.unused++
		x.cross(group)
	}
	x.enqueue(e, now)
}

func (x *Index) join(j *scheduler.Job, group int) *queuedJob {
	g, e := &x.groups[group], (*queuedJob)(nil)
	if n := len(x.free); n > 0 {
		e, x.free = x.free[n-1], x.free[:n-1]
	} else {
		e = new(queuedJob)
	}
	*e = queuedJob{job: j, group: group, memberAt: len(g.members), key: jobKey{submitted: j.Spec.Submitted, id: j.Spec.ID},
		demoteAt: scheduler.Never, heapAt: -1, recordAt: -1}
	x.jobs[j.Spec.ID] = e
	g.members = append(g.members, e)
	return e
}

func (x *Index) leave(e *queuedJob) {
	g := &x.groups[e.group]
	x.dequeue(e)
	if e.ready {
		g.ready--
		x.cross(e.group)
	}
	last := g.members[len(g.members)-1]
	g.members[e.memberAt], last.memberAt = last, e.memberAt
	g.members[len(g.members)-1] = nil
	g.members = g.members[:len(g.members)-1]
	delete(x.jobs, e.key.id)
	e.job = nil
	x.free = append(x.free, e)
}

// cross records that a group may have become contended or uncontended.
func (x *Index) cross(group int) {
	if g := &x.groups[group]; !g.crossed {
		g.crossed = true
		x.crossed = append(x.crossed, group)
	}
}

// updateContended updates the groups that were crossed to their numbers of ready jobs.
func (x *Index) updateContended(now scheduler.Time) {
	for _, group := range x.crossed {
		g := &x.groups[group]
		g.crossed = false
		contended := !x.OnlyContended || g.ready > 1
		if contended != g.contended {
			x.open(group)
			g.contended, x.Queues(group).contended = contended, contended
			if last := len(x.contended) - 1; contended {
				g.at = len(x.contended)
				x.contended = append(x.contended, group)
			} else {
				x.contended[g.at], x.groups[x.contended[last]].at = x.contended[last], g.at
				x.contended = x.contended[:last]
			}
		}
		switch {
		case contended:
			g.unused = 0
			if !g.tracked {
				g.tracked = true
				for _, e := range g.members {
					x.enqueue(e, now)
				}
			}
		case g.tracked && g.unused > len(g.members):
			g.tracked, g.unused = false, 0
			for _, e := range g.members {
				x.dequeue(e)
			}
		}
	}
	x.crossed = x.crossed[:0]
}

func (x *Index) enqueue(e *queuedJob, now scheduler.Time) {
	from, recorded := x.recordedQueue(e.job)
	m := x.cfg.measure(e.job)
	level, at := x.cfg.queueAt(&m.service, from, now)
	e.service = m.service
	if x.cfg.Order == OrderFIFO {
		m.remaining = 0
	}
	x.moveTo(e, level, m.remaining, m.running, e.job.Ready > 0)
	x.setDemotion(e, at)
	x.setUnrecorded(e, recorded && level > from || !recorded && (level > 1 || x.predict))
}

// demote is enqueue for an unchanged job that is due. It does not read the job: of thousands none
// is in the CPU cache.
func (x *Index) demote(e *queuedJob, now scheduler.Time) {
	level, at := x.cfg.queueAt(&e.service, e.level, now)
	x.moveTo(e, level, e.key.order, e.running, e.listed)
	x.setDemotion(e, at)
	x.setUnrecorded(e, true)
}

func (x *Index) dequeue(e *queuedJob) {
	x.takeOut(e)
	x.setDemotion(e, scheduler.Never)
	x.setUnrecorded(e, false)
}

// recordedQueue returns the queue of a job before this decision, and whether it is recorded.
func (x *Index) recordedQueue(j *scheduler.Job) (queue int, recorded bool) {
	if j.HasState(scheduler.QueueState) {
		return int(min(max(j.Queue(), 1), int64(x.cfg.Queues))), true
	}
	if x.predict {
		return x.cfg.queueFor(1, x.cfg.predictService(x.state.History(), j.Spec.Name, inputBytes(j))), false
	}
	return 1, false
}

// moveTo puts a job into a queue and updates its entry there.
func (x *Index) moveTo(e *queuedJob, level int, order float64, running microContainers, ready bool) {
	x.openContended(e.group)
	if e.level == level && e.listed == ready && e.key.order == order && e.running == running {
		if ready {
			x.Queues(e.group).wake(level-1, e.key)
		}
		return
	}
	x.takeOut(e)
	e.level, e.key.order, e.running, e.listed = level, order, running, ready
	q := x.Queues(e.group)
	q.total[level-1] += running
	if ready {
		q.insert(level-1, listedJob{jobKey: e.key, job: e.job})
	}
}

func (x *Index) takeOut(e *queuedJob) {
	if e.level == 0 {
		return
	}
	x.openContended(e.group)
	q := x.Queues(e.group)
	q.total[e.level-1] -= e.running
	if e.listed {
		q.remove(e.level-1, e.key)
	}
	e.level, e.running, e.listed = 0, 0, false
}

// open records that the accounts of a group may differ from the recorded ones.
func (x *Index) open(group int) {
	if g := &x.groups[group]; !g.unsettled {
		g.unsettled = true
		x.unsettled = append(x.unsettled, group)
	}
}

// openContended is open for a contended group; others have no accounts.
func (x *Index) openContended(group int) {
	if x.groups[group].contended {
		x.open(group)
	}
}

func (x *Index) setUnrecorded(e *queuedJob, record bool) {
	g := &x.groups[e.group]
	switch {
	case record && e.recordAt < 0:
		e.recordAt = len(g.unrecorded)
		g.unrecorded = append(g.unrecorded, e)
	case !record && e.recordAt >= 0:
		last := g.unrecorded[len(g.unrecorded)-1]
		g.unrecorded[e.recordAt], last.recordAt = last, e.recordAt
		g.unrecorded, e.recordAt = g.unrecorded[:len(g.unrecorded)-1], -1
	}
}

func (x *Index) setDemotion(e *queuedJob, at scheduler.Time) {
	d := &x.groups[e.group].demotion
	if e.demoteAt == at && (e.heapAt >= 0) == (at < scheduler.Never) {
		return
	}
	e.demoteAt = at
	switch {
	case at == scheduler.Never && e.heapAt >= 0:
		byDemotion.Remove(d, e.heapAt)
	case at == scheduler.Never:
	case e.heapAt >= 0:
		byDemotion.Fix(*d, e.heapAt)
	default:
		byDemotion.Push(d, e)
	}
}

// byDemotion is the order of jobGroup.demotion.
var byDemotion = heaps.Order[*queuedJob]{Less: func(a, b *queuedJob) bool { return a.demoteAt < b.demoteAt }, Moved: func(e *queuedJob, i int) { e.heapAt = i }}

const fewDue = 64 // number of jobs up to which takeDue pops them one by one

// takeDue removes the jobs that must be demoted by now and returns them, in reused memory. O(log
// jobs) for each of a few; if very many are due at once, O(jobs) for all together.
func takeDue(h *[]*queuedJob, now scheduler.Time, scratch *[]*queuedJob) []*queuedJob {
	due := (*scratch)[:0]
	for len(*h) > 0 && (*h)[0].demoteAt <= now && len(due) < fewDue {
		due = append(due, byDemotion.Pop(h))
	}
	if len(*h) > 0 && (*h)[0].demoteAt <= now {
		left := (*h)[:0]
		for _, e := range *h {
			if e.demoteAt <= now {
				e.heapAt = -1
				due = append(due, e)
			} else {
				e.heapAt = len(left)
				left = append(left, e)
			}
		}
		clear((*h)[len(left):])
		*h = left
		byDemotion.Init(*h)
	}
	for _, e := range due {
		e.demoteAt = scheduler.Never
	}
	*scratch = due
	return due
}

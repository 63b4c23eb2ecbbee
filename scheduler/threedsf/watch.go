package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// watch is what each cycle asks of the jobs with a project, a deadline or a
// promise: who asks for a promise, who holds one, what is done of it, and when
// something about it changes by time alone. It is a cache: a job is looked at
// again when the State says that something happened to it, or when an instant has
// come at which what is known of it changes.
type watch struct {
	state   *scheduler.State
	work    uint64 // State.Work when it was brought in line
	nodes   uint64 // State.NodeChanges then
	now     scheduler.Time
	index   map[scheduler.JobID]int32
	jobs    []watched
	touched []scheduler.JobID     // scratch
	lately  [2048]scheduler.JobID // scratch: of the jobs touched the last one by the end of its id
}

// watched is what is known of one job.
type watched struct {
	id     scheduler.JobID
	stands standing // free also where promises are not made
	print  uint64   // of what is done of it, where it holds a promise
	// bound is the first instant at which one of its tasks runs past its bound,
	// last the first at which one is too late for its reservation; Never for none.
	// late is the first at which a task of it that failed, and has no place in the
	// plan, can no longer end by its bound as was promised.
	bound, last, late scheduler.Time
	starts            scheduler.Time // of the first of its reservations, 0 where a task waits without one
	startsBy          scheduler.Time // where it is foreseen

	wrong    bool // something of it cannot be kept where it is
	stale    bool // more may be reserved for it than waits
	foreseen bool // its waiting tasks are: see foresee
	loose    bool // something is promised to it that lets some task of its own pass: no plan for one task, or for a later stage
}

// watchJobs brings what is known of jobs in line with the State. O(changes), O(jobs)
// where nodes changed or too much has happened.
func (p *Policy) watchJobs() {
	w := &p.watch
	w.touched = w.touched[:0]
	clear(w.lately[:])
	touch := func(x scheduler.Worked) {
		if x.Job != 0 {
			// Most jobs are listed several times, not far from each other.
			if last := &w.lately[x.Job%scheduler.JobID(len(w.lately))]; *last != x.Job {
				*last = x.Job
				w.touched = append(w.touched, x.Job)
			}
		} else if pr := p.s.Project(x.Project); pr != nil {
			w.touched = append(w.touched, pr.Jobs...)
		}
	}
	if w.state != p.s || p.now < w.now || w.nodes != p.s.NodeChanges() || !p.s.WorkSince(w.work, touch) {
		w.state, w.nodes = p.s, p.s.NodeChanges()
		w.index, w.jobs, w.touched = map[scheduler.JobID]int32{}, w.jobs[:0], w.touched[:0]
		for j := range p.s.Jobs() {
			p.watchJob(j.Spec.ID)
		}
	}
	w.work, w.now = p.s.Work(), p.now
	for _, id := range w.touched {
		p.watchJob(id)
	}
	for i := range w.jobs {
		if w.jobs[i].last <= p.now {
			p.watchJob(w.jobs[i].id)
		}
	}
}

// watchJob looks at one job, and forgets it where there is nothing to watch.
func (p *Policy) watchJob(id scheduler.JobID) {
	w := &p.watch
	j := p.s.Job(id)
	i, known := w.index[id]
	if j == nil || (j.Spec.Project == 0 && j.Spec.Deadline == 0 && j.Promises == 0) {
		if known {
			last := len(w.jobs) - 1
			w.jobs[i] = w.jobs[last]
			w.index[w.jobs[i].id] = i
			w.jobs = w.jobs[:last]
			delete(w.index, id)
		}
		return
	}
	if !known {
		i = int32(len(w.jobs))
		w.index[id] = i
		w.jobs = append(w.jobs, watched{})
	}
	w.jobs[i] = p.lookAt(j)
}

// lookAt tells what is to be known of a job.
func (p *Policy) lookAt(j *scheduler.Job) watched {
	x := watched{id: j.Spec.ID, stands: free, bound: scheduler.Never, last: scheduler.Never, late: scheduler.Never}
	waits := int32(0)
	for _, g := range j.Stages {
		waits += g.Pending
	}
	active := j.Phase == scheduler.JobActive
	x.loose = slices.ContainsFunc(j.Reservations(), func(r *scheduler.Reservation) bool { return r.Kind.Promise() && (!planned(r) || r.Stage > 0) })
	x.stale = j.Promises > 0 && (j.Promises > waits || !active || (j.Spec.Project == 0 && p.isHopeless(j)))
	if !p.cfg.Promises.On {
		return x
	}
	if x.foreseen = waits > 0 && p.isForeseen(j); x.foreseen {
		x.startsBy = p.startsBy(j)
	}
	if active && (j.Spec.Project != 0 || j.Spec.Deadline != 0) {
		x.stands = p.standing(j)
	}
	if x.stands == holds {
		x.print = printOf(j, waits)
		x.bound = p.firstBound(j)
	}
	lost, starts := waits, scheduler.Never // lost have no place
	for _, r := range j.Reservations() {
		if !planned(r) {
			continue
		}
		if g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}); g != nil && g.IsPending(r.Task) {
			lost--
			starts = min(starts, r.Start)
		}
		if late := p.expired(r); late || !p.s.Node(r.Node).Takes() {
			g := p.s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage})
			x.wrong = x.wrong || (g != nil && g.IsPending(r.Task) && (p.s.TakingNodes() > 0 || late))
		} else {
			x.last = min(x.last, p.lastStart(r).Add(1))
		}
	}
	if lost <= 0 {
		x.starts = starts
	}
	if x.stands == holds && lost > 0 && j.Spec.Bound > 0 && !p.isBroken(j) {
		x.late = p.latestEnd(j).Add(1 - j.Spec.Bound)
	}
	return x
}

// printOf is a hash of what is done of a job, and of what waits of it without a
// place in the plan.
func printOf(j *scheduler.Job, waits int32) uint64 {
	print := hash(1)
	print.word(uint64(j.Spec.ID))
	for _, g := range j.Stages {
		print.word(uint64(g.Done)<<32 | uint64(uint32(g.Failed)))
	}
	print.word(uint64(uint32(waits - j.Promises)))
	return uint64(print)
}

// firstBound is when the first task of a promised job runs past its bound: then
// the promise of its own project or job is void (two-tier 4.6). Never where it was
// broken already.
func (p *Policy) firstBound(j *scheduler.Job) scheduler.Time {
	first := scheduler.Never
	if j.Spec.Bound <= 0 || j.Live == 0 || p.isBroken(j) {
		return first
	}
	for _, g := range j.Stages {
		if g.Running == 0 {
			continue
		}
		for a := range p.s.AttemptsIn(g) {
			if a.Level == scheduler.LevelRunning {
				first = min(first, p.boundOf(a, j).Add(p.cfg.Promises.Margin))
			}
		}
	}
	return first
}

// latestEnd is when a job that holds a promise has to have ended by it.
func (p *Policy) latestEnd(j *scheduler.Job) scheduler.Time {
	if j.Spec.Project == 0 {
		return j.Spec.Deadline
	}
	n, _ := p.s.Note(noteKey(scheduler.NoteLatestStart, j.Spec.Project))
	return n.At
}

// surveyJobs takes what is known of jobs into the promiser, and says of tasks that
// ran past their bounds, or failed and start again too late, that their promises
// are void.
func (p *Policy) surveyJobs() {
	q := &p.promise
	var over, failed []*scheduler.Job
	for i := range p.watch.jobs {
		x := &p.watch.jobs[i]
		switch x.stands {
		case asks:
			q.asked++
		case holds:
			q.kept = true
			if x.bound <= p.now {
				over = append(over, p.s.Job(x.id))
			} else if x.bound < scheduler.Never {
				q.wakeAt(x.bound)
			}
			if x.late <= p.now {
				failed = append(failed, p.s.Job(x.id))
			} else if x.late < scheduler.Never {
				q.wakeAt(x.late)
			}
		}
		q.wrong = q.wrong || x.wrong
		if x.last < scheduler.Never {
			q.wakeAt(x.last)
		}
	}
	slices.SortFunc(over, bySubmission)
	for _, j := range over {
		p.breakPromise(j, backfill.CauseOverrun)
	}
	slices.SortFunc(failed, bySubmission)
	for _, j := range failed {
		p.breakPromise(j, backfill.CauseFailed)
	}
}

func bySubmission(a, b *scheduler.Job) int {
	return cmp.Or(cmp.Compare(a.Spec.Submitted, b.Spec.Submitted), cmp.Compare(a.Spec.ID, b.Spec.ID))
}

// fingerprint is a hash of what is done of promised work, and of the nodes: as
// long as it stays, no hole can have come about.
func (p *Policy) fingerprint() int64 {
	p.watchJobs()
	sum := uint64(0)
	for i := range p.watch.jobs {
		sum += p.watch.jobs[i].print
	}
	print := hash(1)
	print.word(sum)
	print.word(uint64(p.s.TakingNodes()))
	for _, v := range p.s.Total() {
		print.word(uint64(v))
	}
	return int64(print)
}

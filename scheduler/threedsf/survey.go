package threedsf

import (
	"math"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// promiser is what a decision finds out about promises before it plans. It is
// filled in anew each time.
type promiser struct {
	asked int            // jobs whose deadline or project is to be promised or refused
	wake  scheduler.Time // when something about promises changes by time alone
	wrong bool           // a promise cannot be kept where it is
	walk  bool           // something ended: holes are to be given forward
	kept  bool           // somebody holds a promise
	swept bool           // a reservation went that had nothing to wait for
	known bool           // the last walk knew all that was done
	from  backfill.Place // behind whom the walk goes on
	under bool           // it goes on: it began in an earlier cycle
	next  backfill.Place // behind whom the next cycle goes on
	done  bool           // the walk came to its end

	broke []scheduler.Note // promises that do not hold any more
	plan  *plan            // of this decision, nil where nothing was to be planned
}

// walkSlot is the slot of the note that says what the last walk knew, placeSlot
// that of the note that says how far it has come, as long as it is under way.
const (
	walkSlot  = 3
	placeSlot = 4
)

// survey says whether anything is to be planned, by what is known of each job
// with a deadline or a project, and of every promise (watchJobs).
func (p *Policy) survey() {
	q := &p.promise
	q.asked, q.broke = 0, q.broke[:0]
	q.wake, q.wrong, q.walk, q.known, q.plan, q.kept, q.done, q.swept = 0, false, false, false, nil, false, false, false
	q.from, q.under = backfill.Place{Submitted: math.MinInt64}, false
	if n, ok := p.s.Note(scheduler.NoteKey{Kind: scheduler.NoteCursor, Slot: placeSlot}); ok {
		q.from, q.under = backfill.Place{Submitted: n.At, ID: scheduler.ProjectID(n.Value)}, true
	}
	if !p.cfg.Promises.On {
		return
	}
	p.watchJobs()
	p.surveyJobs()
	if !q.kept {
		return
	}
	note, _ := p.s.Note(scheduler.NoteKey{Kind: scheduler.NoteCursor, Slot: walkSlot})
	if note.Value == p.fingerprint() && !q.under {
		q.known = true
		return
	}
	if due := note.At.Add(p.cfg.Promises.Every); p.now < due {
		q.wakeAt(due)
	} else {
		q.walk = true
	}
}

// rememberPlan notes what was known when holes were last given forward, and what
// this cycle did itself since; and where that goes on, after Promises.Every, if it
// is not done.
func (p *Policy) rememberPlan() {
	q := &p.promise
	key := scheduler.NoteKey{Kind: scheduler.NoteCursor, Slot: walkSlot}
	n, ok := p.s.Note(key)
	switch {
	case q.walk:
		value, print := n.Value, p.fingerprint()
		if !q.under { // what comes about on the way is for the next walk
			value = print
		}
		if !ok || n.Value != value || (n.At != p.now && (!q.done || value != print)) {
			p.note(scheduler.Note{NoteKey: key, Value: value, At: p.now})
		}
		p.rememberPlace()
	case (q.plan != nil && (!ok || !q.kept)) || (q.known && (len(p.notes) > 0 || q.swept || q.plan != nil)):
		if print := p.fingerprint(); !ok || n.Value != print {
			p.note(scheduler.Note{NoteKey: key, Value: print, At: p.now})
		}
	}
}

// rememberPlace notes behind whom the walk goes on, or forgets it.
func (p *Policy) rememberPlace() {
	q := &p.promise
	key := scheduler.NoteKey{Kind: scheduler.NoteCursor, Slot: placeSlot}
	at, ok := p.s.Note(key)
	switch {
	case !q.done && (!ok || at.At != q.next.Submitted || at.Value != int64(q.next.ID)):
		p.note(scheduler.Note{NoteKey: key, Value: int64(q.next.ID), At: q.next.Submitted})
	case q.done && ok:
		key.Kind = scheduler.NoteForget
		p.note(scheduler.Note{NoteKey: key, Value: int64(scheduler.NoteCursor)})
	}
}

func (q *promiser) wakeAt(at scheduler.Time) {
	if q.wake == 0 || at < q.wake {
		q.wake = at
	}
}

// standing is what a job's promise is.
type standing uint8

const (
	free  standing = iota + 1 // none: never asked for, refused, hopeless, or not ours
	asks                      // to be promised or refused
	holds                     // promised, perhaps broken
)

// standing tells what became of the wish of a job or its project.
func (p *Policy) standing(j *scheduler.Job) standing {
	if j.Spec.Project != 0 {
		pr := p.s.Project(j.Spec.Project)
		switch {
		case pr.Noted(scheduler.NotePromise):
			return holds
		case pr.Noted(scheduler.NoteRefused) || !p.whole(pr):
			return free
		default:
			return asks
		}
	}
	switch {
	case j.Noted(scheduler.NoteAccepted):
		if p.isHopeless(j) {
			return free
		}
		return holds
	case j.Spec.Accepted || j.Spec.Open || p.isHopeless(j) || !p.cfg.Deadlines || p.refused(j):
		return free
	default:
		return asks
	}
}

// refused tells whether the deadline that a job has now was refused.
func (p *Policy) refused(j *scheduler.Job) bool {
	if !j.Noted(scheduler.NoteRefused) {
		return false
	}
	n, _ := p.s.Note(scheduler.NoteKey{Kind: scheduler.NoteRefused, Job: j.Spec.ID})
	return scheduler.Time(n.Value) == j.Spec.Deadline
}

// whole tells whether a project was submitted in full.
func (p *Policy) whole(pr *scheduler.Project) bool {
	if len(pr.Jobs) < int(pr.Spec.Jobs) {
		return false
	}
	for _, id := range pr.Jobs {
		if p.s.Job(id).Spec.Open {
			return false
		}
	}
	return true
}

// boundOf is when an attempt at a task of a job with a bound should be gone. The
// margin of its reservation is for a start that came late; one that started before
// its reservation leaves half of it before the next one (keepsPromises).
func (p *Policy) boundOf(a *scheduler.Attempt, j *scheduler.Job) scheduler.Time {
	return a.Placed.Add(j.Spec.Bound - a.Ran)
}

// isBroken tells whether the promise to a job or its project was broken.
func (p *Policy) isBroken(j *scheduler.Job) bool {
	if pr := p.s.Project(j.Spec.Project); pr != nil {
		return pr.Noted(scheduler.NoteBroken)
	}
	return j.Noted(scheduler.NoteBroken)
}

// breakPromise says once that the promise to a job or its project does not hold
// any more, and why.
func (p *Policy) breakPromise(j *scheduler.Job, cause backfill.Cause) {
	p.tell(ownerOf(j), cause)
}

// tell is breakPromise by owner.
func (p *Policy) tell(id scheduler.ProjectID, cause backfill.Cause) {
	key := noteKey(scheduler.NoteBroken, id)
	for _, n := range p.promise.broke {
		if n.Job == key.Job && n.Project == key.Project {
			return
		}
	}
	key.Slot = int32(cause)
	p.promise.broke = append(p.promise.broke, scheduler.Note{NoteKey: key, At: p.now})
}

// planned tells whether a reservation is one of the plan: for one task, on a
// node.
func planned(r *scheduler.Reservation) bool {
	return r.Kind.Promise() && r.Job != 0 && r.Stage >= 0 && r.Task >= 0 && r.Node != scheduler.NoNode
}

// expired tells whether a planned task that has not begun is too late: its margin
// is used up, so that it would stay on in somebody else's room.
func (p *Policy) expired(r *scheduler.Reservation) bool { return p.now > p.lastStart(r) }

// lastStart is the last instant at which a planned task may begin where it is: the
// margin later, which is for those to leave that make room, but so that its bound
// ends with the reservation. Latest is of the reservation, margin included, and
// says nothing more: what ends with it departs in time.
func (p *Policy) lastStart(r *scheduler.Reservation) scheduler.Time {
	at := min(r.Start.Add(p.cfg.Promises.Margin), r.End-1)
	if j := p.s.Job(r.Job); j != nil && j.Spec.Bound > 0 {
		at = min(at, max(r.Start, r.End.Add(-j.Spec.Bound)))
	}
	return at
}

// ownerOf gives the project that a job is planned in: its own, or one made of the
// job alone, which has the high bit set.
func ownerOf(j *scheduler.Job) scheduler.ProjectID {
	if j.Spec.Project != 0 {
		return j.Spec.Project
	}
	return ownAlone(j.Spec.ID)
}

// ownAlone is the owner made of a job alone.
func ownAlone(id scheduler.JobID) scheduler.ProjectID { return scheduler.ProjectID(id) | 1<<63 }

// noteKey is the key of a note on an owner.
func noteKey(kind scheduler.NoteKind, id scheduler.ProjectID) scheduler.NoteKey {
	if id>>63 == 1 {
		return scheduler.NoteKey{Kind: kind, Job: scheduler.JobID(id &^ (1 << 63))}
	}
	return scheduler.NoteKey{Kind: kind, Project: id}
}

type hash uint64

func (f *hash) word(v uint64) {
	h := (uint64(*f) ^ v) * 0x9e3779b97f4a7c15
	*f = hash(h ^ h>>29)
}

// spanOf is for how long a task of a stage is given room: the job's bound, else
// its predicted run time; 0 where nothing is known.
func (p *Policy) spanOf(g *scheduler.Stage) time.Duration {
	if g.Job.Spec.Bound > 0 {
		return g.Job.Spec.Bound + p.cfg.Promises.Margin
	}
	p.outlook.Of(g.Job)
	if d := p.outlook.Task(g.Index); d > 0 {
		return d + p.cfg.Promises.Margin
	}
	return 0
}

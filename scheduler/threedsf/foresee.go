package threedsf

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// A deadline that was accepted at submission has no reservation. So that a promise
// that is made later leaves it its room, the waiting tasks of such jobs are in the
// profile while promises are made and holes given forward: each as late as the
// deadline and what comes after it allow, all tasks of a job or none; those of a job
// that cannot be sure of its deadline as early as there is room. Nothing of it
// is remembered: it is worked out anew from the State each time, in the order of
// the lane, and given back before anything is carried out. What runs of such jobs
// is in the profile anyway, until its predicted end.

// foreseenBins bounds the bins that are looked at for a waiting task. Mostly the
// first one has room.
const foreseenBins = 256

// foreseenLooks bounds the searches of one decision, on a bin each: some 10 ms. The
// job in hand then, and those behind it, are not foreseen.
const foreseenLooks = 1 << 15

// foreseenSteps bounds the instants tried for one task where its tenant's account
// has no room.
const foreseenSteps = 16

// foresight is the work of foresee.
type foresight struct {
	jobs   []laneJob
	placed []foreseen
	next   int32            // the bin to begin with
	looks  int              // searches that are left
	starts []scheduler.Time // of the tasks of the stage at hand, the last first
	first  []scheduler.Time // by stage of the job at hand, of its first task
}

// foreseen is room that a waiting task will need.
type foreseen struct {
	spot    backfill.Spot
	end     scheduler.Time
	need    backfill.Need
	total   backfill.Need // as an account sees it
	account int32
}

// isForeseen tells whether a job's waiting tasks are to be foreseen: its deadline
// was accepted at submission, it can still make it and holds no promise otherwise.
func (p *Policy) isForeseen(j *scheduler.Job) bool {
	return j.Spec.Accepted && j.Spec.Project == 0 && !j.Noted(scheduler.NoteAccepted) && j.Phase == scheduler.JobActive && p.inLane(j)
}

// startsBy is by when a job has to start to keep its deadline if it had all there
// is, less the margin of a promise. O(stages).
func (p *Policy) startsBy(j *scheduler.Job) scheduler.Time {
	p.outlook.Of(j)
	latest := p.outlook.LatestStart()
	for _, g := range j.Stages {
		slots := int64(g.Pending)
		for r, d := range g.Spec.Demand {
			if d > 0 {
				slots = min(slots, p.s.Total()[r]/d)
			}
		}
		latest = min(latest, p.outlook.LatestFor(g.Index, int32(max(slots, 1))))
	}
	return latest.Add(-p.cfg.Promises.Margin)
}

// startsTooSoon tells whether tasks of a job that has its reservations to come would
// still run, and be no victims, when an accepted deadline job has to start. Such a
// job waits for its reservations: holes are given forward to it, and that leaves
// accepted deadlines their room. It is as of beginShrinking. O(1).
func (p *Policy) startsTooSoon(j *scheduler.Job) bool {
	if p.latest == scheduler.Never || j.Promises == 0 || (j.Spec.Bound > 0 && p.now.Add(j.Spec.Bound) <= p.latest) || !p.s.Firm(j) {
		return false
	}
	i, ok := p.watch.index[j.Spec.ID]
	return ok && p.watch.jobs[i].starts > p.now
}

// foresee takes the room that waiting tasks of accepted deadline jobs will need.
// O(jobs) where there are none, and for each waiting task a search on at most
// foreseenBins bins, foreseenLooks in all.
func (b *plan) foresee() {
	f, p := &b.foresight, b.p
	f.jobs, f.placed, f.next, f.looks = f.jobs[:0], f.placed[:0], 0, foreseenLooks
	for i := range p.watch.jobs {
		if x := &p.watch.jobs[i]; x.foreseen {
			j := p.s.Job(x.id)
			p.outlook.Of(j)
			f.jobs = append(f.jobs, laneJob{j, p.outlook.Key(p.cfg.Order)})
		}
	}
	slices.SortFunc(f.jobs, inLaneOrder)
	for _, l := range f.jobs {
		if !b.foreseeJob(l.job, p.cfg.Promises.Margin) && !b.foreseeJob(l.job, 0) {
			b.foreseeSoon(l.job)
		}
	}
}

// forgetForeseen gives back what foresee took, but the first n.
func (b *plan) forgetForeseen(n int) {
	f := &b.foresight
	for i := range f.placed[n:] {
		x := &f.placed[n+i]
		b.prof.Give(x.spot.Bin, x.spot.Disk, x.spot.At, x.end, &x.need)
		b.accounts.Give(x.account, -1, x.spot.At, x.end, &x.total)
	}
	f.placed = f.placed[:n]
}

// foreseeJob takes room for the waiting tasks of one job, stage by stage from the
// last to the first; false, and nothing is taken, where some have none in time.
func (b *plan) foreseeJob(j *scheduler.Job, margin time.Duration) bool {
	f := &b.foresight
	mark := len(f.placed)
	f.first = slices.Grow(f.first[:0], len(j.Stages))[:len(j.Stages)]
	for i := range f.first {
		f.first[i] = j.Spec.Deadline
	}
	for i := len(j.Stages) - 1; i >= 0; i-- {
		g := j.Stages[i]
		by := j.Spec.Deadline
		for k := i + 1; k < len(j.Stages); k++ {
			if slices.Contains(j.Stages[k].Spec.After, int32(i)) {
				by = min(by, f.first[k])
			}
		}
		f.first[i] = by // a stage without tasks takes no time
		if g.Pending > 0 && !b.foreseeStage(g, by, margin) {
			b.forgetForeseen(mark)
			return false
		}
	}
	return true
}

// foreseeStage takes room for the waiting tasks of one stage, which are to end by
// an instant.
func (b *plan) foreseeStage(g *scheduler.Stage, by scheduler.Time, margin time.Duration) bool {
	f, span := &b.foresight, b.foreseenSpan(g, margin)
	if span <= 0 {
		return false
	}
	from := max(b.p.now, b.startsAfter(g))
	x := b.foreseenTask(g)
	f.starts = f.starts[:0]
	for range g.Pending {
		latest := by
		if n, most := len(f.starts), int(g.Spec.MaxParallel); most > 0 && n >= most {
			latest = f.starts[n-most]
		}
		latest = latest.Add(-span)
		if !b.foreseeTask(g, &x, from, span, latest) {
			return false
		}
		f.starts = append(f.starts, x.spot.At)
		f.first[g.Index] = min(f.first[g.Index], x.spot.At)
	}
	return true
}

// foreseenSpan is for how long a task of a stage will need its room, 0 where nothing
// is known of it.
func (b *plan) foreseenSpan(g *scheduler.Stage, margin time.Duration) time.Duration {
	span := g.Job.Spec.Bound
	if span <= 0 {
		b.p.outlook.Of(g.Job)
		span = b.p.outlook.Task(g.Index)
	}
	if span <= 0 {
		return 0
	}
	return span + margin
}

// foreseenTask is what a task of a stage will need.
func (b *plan) foreseenTask(g *scheduler.Stage) foreseen {
	return foreseen{need: backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk), total: backfill.Need{Base: g.Spec.Demand[:]}, account: int32(g.Job.Spec.Tenant)}
}

// startsAfter is when what runs of the stages before one is predicted to have
// ended.
func (b *plan) startsAfter(g *scheduler.Stage) (at scheduler.Time) {
	for _, before := range g.Spec.After {
		for a := range b.p.s.AttemptsIn(g.Job.Stages[before]) {
			end, _ := b.endOf(a, g.Job)
			at = max(at, end)
		}
	}
	return at
}

// foreseeTask takes room for one task as late as may be.
func (b *plan) foreseeTask(g *scheduler.Stage, x *foreseen, from scheduler.Time, span time.Duration, latest scheduler.Time) bool {
	for range foreseenSteps {
		if b.foresight.looks <= 0 {
			return false
		}
		at, ok := b.accounts.LatestOn(x.account, from, span, latest, &x.total)
		if !ok {
			return false
		}
		spot, ok := b.latestSpot(g, x, from, span, at.At)
		if !ok {
			return false
		}
		if b.takeForeseen(x, spot, span) {
			return true
		}
		latest = spot.At // the account has none there: earlier
	}
	return false
}

// takeForeseen takes room at a spot, if the account has it.
func (b *plan) takeForeseen(x *foreseen, spot backfill.Spot, span time.Duration) bool {
	f, end := &b.foresight, spot.At.Add(span)
	if !b.accounts.Fits(x.account, -1, spot.At, end, &x.total) {
		return false
	}
	x.spot, x.end = spot, end
	b.prof.Take(spot.Bin, spot.Disk, spot.At, end, &x.need)
	b.accounts.Take(x.account, -1, spot.At, end, &x.total)
	f.placed, f.next = append(f.placed, *x), spot.Bin
	return true
}

// foreseeSoon takes room as early as there is any for the waiting tasks of a job
// that cannot be sure of its deadline beside what is promised: tasks end before
// their bounds, and then it may make it yet.
func (b *plan) foreseeSoon(j *scheduler.Job) bool {
	f := &b.foresight
	mark := len(f.placed)
	f.first = slices.Grow(f.first[:0], len(j.Stages))[:len(j.Stages)]
	for i, g := range j.Stages { // first is when a stage ends here
		from := max(b.p.now, b.startsAfter(g))
		for _, before := range g.Spec.After {
			from = max(from, f.first[before])
		}
		f.first[i] = from
		span := b.foreseenSpan(g, 0)
		if g.Pending == 0 {
			continue
		}
		x := b.foreseenTask(g)
		f.starts = f.starts[:0]
		for range g.Pending {
			if n, most := len(f.starts), int(g.Spec.MaxParallel); most > 0 && n >= most {
				from = max(from, f.starts[n-most].Add(span))
			}
			if span <= 0 || !b.soonestTask(g, &x, from, span) {
				b.forgetForeseen(mark)
				return false
			}
			f.starts = append(f.starts, x.spot.At)
			f.first[i] = max(f.first[i], x.end)
		}
	}
	return true
}

// soonestTask takes room for one task as early as may be.
func (b *plan) soonestTask(g *scheduler.Stage, x *foreseen, from scheduler.Time, span time.Duration) bool {
	bins := b.prof.Bins()
	for range foreseenSteps {
		if b.foresight.looks <= 0 {
			return false
		}
		at, ok := b.accounts.EarliestAt(x.account, -1, from, span, scheduler.Never, &x.total)
		if !ok {
			return false
		}
		best, before, bin := backfill.Spot{Bin: -1}, scheduler.Never, b.foresight.next
		for range min(bins, foreseenBins) {
			if !b.prof.Closed(bin) {
				if s, ok := b.soonestOn(g, x, bin, at.At, span, before); ok {
					if best, before = s, s.At; s.At == at.At {
						break
					}
				}
			}
			if bin++; bin == bins {
				bin = 0
			}
		}
		if best.Bin < 0 {
			return false
		}
		if b.takeForeseen(x, best, span) {
			return true
		}
		from = best.At.Add(1)
	}
	return false
}

// soonestOn is latestOn the other way round, before an instant.
func (b *plan) soonestOn(g *scheduler.Stage, x *foreseen, bin int32, from scheduler.Time, span time.Duration, before scheduler.Time) (backfill.Spot, bool) {
	b.foresight.looks--
	s, ok := b.prof.EarliestOn(bin, from, span, before, &x.need)
	if end := b.closedUntil(g, bin); ok && end > s.At.Add(span) && !b.prof.Fits(bin, s.Disk, s.At, end, &x.need) {
		return b.prof.EarliestOn(bin, max(from, end), span, before, &x.need)
	}
	return s, ok
}

// latestSpot finds the latest spot for a task by an instant on the bins from where
// the one before went; ties to the first of them.
func (b *plan) latestSpot(g *scheduler.Stage, x *foreseen, from scheduler.Time, span time.Duration, by scheduler.Time) (best backfill.Spot, found bool) {
	bins := b.prof.Bins()
	bin := b.foresight.next
	for range min(bins, foreseenBins) {
		if !b.prof.Closed(bin) {
			if s, ok := b.latestOn(g, x, bin, from, span, by); ok && (!found || s.At > best.At) {
				if best, found = s, true; s.At == by {
					break
				}
			}
		}
		if bin++; bin == bins {
			bin = 0
		}
	}
	return best, found
}

// latestOn finds the latest spot on one bin. A task without a bound may not start
// before an earlier promise there beside which it has no room, however long it is
// predicted to run.
func (b *plan) latestOn(g *scheduler.Stage, x *foreseen, bin int32, from scheduler.Time, span time.Duration, by scheduler.Time) (backfill.Spot, bool) {
	b.foresight.looks--
	s, ok := b.prof.LatestOn(bin, from, span, by, &x.need)
	if !ok {
		return s, false
	}
	end := b.closedUntil(g, bin)
	return s, end <= s.At.Add(span) || b.prof.Fits(bin, s.Disk, s.At, end, &x.need)
}

// closedUntil is when the last promise on a bin ends that was made without counting
// on the predicted end of a stage's tasks.
func (b *plan) closedUntil(g *scheduler.Stage, bin int32) (end scheduler.Time) {
	if g.Job.Spec.Bound > 0 {
		return 0
	}
	for _, r := range b.p.s.ReservationsOn(scheduler.NodeID(bin)) {
		if r.Kind.Promise() && !b.p.s.Foreseen(r, g.Job) {
			end = max(end, r.End)
		}
	}
	return end
}

func inLaneOrder(a, b laneJob) int {
	return cmp.Or(cmp.Compare(a.key, b.key), bySubmission(a.job, b.job))
}

package threedsf

import (
	"cmp"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// A deadline accepted at submission has no reservation. So that guarantees made
// later leave it its capacity, shadow reservations for the waiting tasks of such
// jobs are in the profile while requests are decided and the schedule is compressed.
// Each is as late as the deadline and the following stages allow, for all tasks of a
// job or none; a job that cannot be certain of its deadline gets the earliest ones.
// Nothing of it is remembered: shadow reservations are computed from the State each
// time, in lane order, and released before anything is committed. Running tasks of
// such jobs are in the profile anyway, until their predicted end.

// maxShadowBins bounds the bins searched for one waiting task. Usually the first one
// has capacity.
const maxShadowBins = 256

// maxShadowSearches bounds the searches of one decision, each on one bin: about 10
// ms. Jobs beyond the limit get no shadow reservations.
const maxShadowSearches = 1 << 15

// maxShadowTries bounds the start times tried for one task whose tenant's account is
// full.
const maxShadowTries = 16

// shadowState holds the shadow reservations and the progress of reserveShadows.
type shadowState struct {
	jobs         []laneJob
	reservations []shadowReservation
	nextBin      int32            // where the next search begins
	searchesLeft int              // searches that are left
	taskStarts   []scheduler.Time // of the stage at hand, in the order of placement
	stageTimes   []scheduler.Time // by stage of the job at hand: when it starts, in shadowJobEarliest when it ends
}

// shadowReservation is capacity that a waiting task will need.
type shadowReservation struct {
	spot    backfill.Spot
	end     scheduler.Time
	need    backfill.Need
	total   backfill.Need // as charged to the account
	account int32
}

// needsShadow reports whether a job's waiting tasks get shadow reservations: its
// deadline was accepted at submission, is still feasible, and has no guarantee.
func (p *Policy) needsShadow(j *scheduler.Job) bool {
	return j.Spec.Accepted && j.Spec.Project == 0 && !j.HasState(scheduler.AcceptedState) && j.Phase == scheduler.JobActive && p.inLane(j)
}

// shadowStartBy returns when a job must start to meet its deadline if it had the
// whole cluster, less the margin of a guarantee. O(stages).
func (p *Policy) shadowStartBy(j *scheduler.Job) scheduler.Time {
	p.slack.Compute(j)
	latest := p.slack.LatestStart()
	for _, g := range j.Stages {
		slots := int64(g.Pending)
		for r, d := range g.Spec.Demand {
			if d > 0 {
				slots = min(slots, p.s.Cluster().Total()[r]/d)
			}
		}
		latest = min(latest, p.slack.LatestStageStart(g.Index, int32(max(slots, 1))))
	}
	return latest.Add(-p.cfg.Guarantees.Margin)
}

// mustAwaitReservation reports whether a job with future reservations must wait for
// them: if it started now, it might still run, non-preemptible, when the first job
// with shadow reservations has to start. Compression may still move its reservations
// forward, since that respects shadow reservations. Valid after beginShrinkOnly.
// O(1).
func (p *Policy) mustAwaitReservation(j *scheduler.Job) bool {
	if p.earliestShadowStart == scheduler.Never || j.Guarantees == 0 ||
		(j.Spec.Bound > 0 && p.now.Add(j.Spec.Bound) <= p.earliestShadowStart) || !j.IsNonPreemptible() {
		return false
	}
	i, ok := p.jobCache.index[j.Spec.ID]
	return ok && p.jobCache.jobs[i].firstStart > p.now
}

// reserveShadows adds the shadow reservations of accepted deadline jobs to the
// profile. O(jobs) if there are none; else each waiting task is searched on at most
// maxShadowBins bins, maxShadowSearches in total.
func (b *plan) reserveShadows() {
	f, p := &b.shadow, b.p
	f.jobs, f.reservations, f.nextBin, f.searchesLeft = f.jobs[:0], f.reservations[:0], 0, maxShadowSearches
	for i := range p.jobCache.jobs {
		if x := &p.jobCache.jobs[i]; x.needsShadow {
			j := p.s.Job(x.id)
			p.slack.Compute(j)
			f.jobs = append(f.jobs, laneJob{j, p.slack.SortKey(p.cfg.Order)})
		}
	}
	slices.SortFunc(f.jobs, compareInLane)
	for _, l := range f.jobs {
		if !b.shadowJobLatest(l.job, p.cfg.Guarantees.Margin) && !b.shadowJobLatest(l.job, 0) {
			b.shadowJobEarliest(l.job)
		}
	}
}

// releaseShadows removes the shadow reservations from the n-th on.
func (b *plan) releaseShadows(n int) {
	f := &b.shadow
	for i := range f.reservations[n:] {
		x := &f.reservations[n+i]
		b.profile.Release(x.spot.Bin, x.spot.Disk, x.spot.At, x.end, &x.need)
		b.accounts.Release(x.account, -1, x.spot.At, x.end, &x.total)
	}
	f.reservations = f.reservations[:n]
}

// shadowJobLatest adds the latest shadow reservations for a job's waiting tasks,
// from the last stage to the first. If some task has no place in time, it adds none
// and returns false.
func (b *plan) shadowJobLatest(j *scheduler.Job, margin time.Duration) bool {
	f := &b.shadow
	mark := len(f.reservations)
	f.stageTimes = slices.Grow(f.stageTimes[:0], len(j.Stages))[:len(j.Stages)]
	for i := range f.stageTimes {
		f.stageTimes[i] = j.Spec.Deadline
	}
	for i := len(j.Stages) - 1; i >= 0; i-- {
		g := j.Stages[i]
		by := j.Spec.Deadline
		for k := i + 1; k < len(j.Stages); k++ {
			if slices.Contains(j.Stages[k].Spec.After, int32(i)) {
				by = min(by, f.stageTimes[k])
			}
		}
		f.stageTimes[i] = by // a stage without tasks takes no time
		if g.Pending > 0 && !b.shadowStageLatest(g, by, margin) {
			b.releaseShadows(mark)
			return false
		}
	}
	return true
}

// shadowStageLatest adds the latest shadow reservations for a stage's waiting tasks
// that end by a given time.
func (b *plan) shadowStageLatest(g *scheduler.Stage, by scheduler.Time, margin time.Duration) bool {
	f, duration := &b.shadow, b.shadowDuration(g, margin)
	if duration <= 0 {
		return false
	}
	from := max(b.p.now, b.predecessorsEnd(g))
	x := b.newShadow(g)
	f.taskStarts = f.taskStarts[:0]
	for range g.Pending {
		latest := by
		if n, limit := len(f.taskStarts), int(g.Spec.MaxParallel); limit > 0 && n >= limit {
			latest = f.taskStarts[n-limit]
		}
		latest = latest.Add(-duration)
		if !b.shadowTaskLatest(g, &x, from, duration, latest) {
			return false
		}
		f.taskStarts = append(f.taskStarts, x.spot.At)
		f.stageTimes[g.Index] = min(f.stageTimes[g.Index], x.spot.At)
	}
	return true
}

// shadowDuration returns for how long a task of a stage will need its capacity, 0 if
// unknown.
func (b *plan) shadowDuration(g *scheduler.Stage, margin time.Duration) time.Duration {
	duration := g.Job.Spec.Bound
	if duration <= 0 {
		b.p.slack.Compute(g.Job)
		duration = b.p.slack.TaskRunTime(g.Index)
	}
	if duration <= 0 {
		return 0
	}
	return duration + margin
}

// newShadow returns the shadow reservation of a task of a stage, without a place.
func (b *plan) newShadow(g *scheduler.Stage) shadowReservation {
	return shadowReservation{need: scheduler.NodeNeed(g.Spec.Demand, g.Spec.Disk), total: backfill.Need{Base: g.Spec.Demand[:]}, account: int32(g.Job.Spec.Tenant)}
}

// predecessorsEnd returns when the running tasks of a stage's predecessors are
// expected to have ended.
func (b *plan) predecessorsEnd(g *scheduler.Stage) (at scheduler.Time) {
	for _, before := range g.Spec.After {
		for a := range b.p.s.Attempts().In(g.Job.Stages[before]) {
			end, _ := b.expectedEnd(a, g.Job)
			at = max(at, end)
		}
	}
	return at
}

// shadowTaskLatest adds the latest shadow reservation for one task.
func (b *plan) shadowTaskLatest(g *scheduler.Stage, x *shadowReservation, from scheduler.Time, duration time.Duration, latest scheduler.Time) bool {
	for range maxShadowTries {
		if b.shadow.searchesLeft <= 0 {
			return false
		}
		at, ok := b.accounts.LatestOn(x.account, from, duration, latest, &x.total)
		if !ok {
			return false
		}
		spot, ok := b.latestSpot(g, x, from, duration, at.At)
		if !ok {
			return false
		}
		if b.takeShadow(x, spot, duration) {
			return true
		}
		latest = spot.At // the account is full there: try earlier
	}
	return false
}

// takeShadow adds a shadow reservation at a spot if the account has the capacity.
func (b *plan) takeShadow(x *shadowReservation, spot backfill.Spot, duration time.Duration) bool {
	f, end := &b.shadow, spot.At.Add(duration)
	if !b.accounts.Fits(x.account, -1, spot.At, end, &x.total) {
		return false
	}
	x.spot, x.end = spot, end
	b.profile.Reserve(spot.Bin, spot.Disk, spot.At, end, &x.need)
	b.accounts.Reserve(x.account, -1, spot.At, end, &x.total)
	f.reservations, f.nextBin = append(f.reservations, *x), spot.Bin
	return true
}

// shadowJobEarliest adds the earliest shadow reservations for a job that cannot be
// certain of its deadline beside the guarantees. Tasks usually end before their
// bounds, so it may still meet it.
func (b *plan) shadowJobEarliest(j *scheduler.Job) bool {
	f := &b.shadow
	mark := len(f.reservations)
	f.stageTimes = slices.Grow(f.stageTimes[:0], len(j.Stages))[:len(j.Stages)]
	for i, g := range j.Stages { // stageTimes is when a stage ends here
		from := max(b.p.now, b.predecessorsEnd(g))
		for _, before := range g.Spec.After {
			from = max(from, f.stageTimes[before])
		}
		f.stageTimes[i] = from
		duration := b.shadowDuration(g, 0)
		if g.Pending == 0 {
			continue
		}
		x := b.newShadow(g)
		f.taskStarts = f.taskStarts[:0]
		for range g.Pending {
			if n, limit := len(f.taskStarts), int(g.Spec.MaxParallel); limit > 0 && n >= limit {
				from = max(from, f.taskStarts[n-limit].Add(duration))
			}
			if duration <= 0 || !b.shadowTaskEarliest(g, &x, from, duration) {
				b.releaseShadows(mark)
				return false
			}
			f.taskStarts = append(f.taskStarts, x.spot.At)
			f.stageTimes[i] = max(f.stageTimes[i], x.end)
		}
	}
	return true
}

// shadowTaskEarliest adds the earliest shadow reservation for one task.
func (b *plan) shadowTaskEarliest(g *scheduler.Stage, x *shadowReservation, from scheduler.Time, duration time.Duration) bool {
	bins := b.profile.Bins()
	for range maxShadowTries {
		if b.shadow.searchesLeft <= 0 {
			return false
		}
		at, ok := b.accounts.EarliestAt(x.account, -1, from, duration, scheduler.Never, &x.total)
		if !ok {
			return false
		}
		best, before, bin := backfill.Spot{Bin: -1}, scheduler.Never, b.shadow.nextBin
		for range min(bins, maxShadowBins) {
			if !b.profile.Closed(bin) {
				if s, ok := b.earliestOn(g, x, bin, at.At, duration, before); ok {
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
		if b.takeShadow(x, best, duration) {
			return true
		}
		from = best.At.Add(1)
	}
	return false
}

// earliestOn returns the earliest spot on a bin that starts before a given time,
// under the rule of latestSpotOn.
func (b *plan) earliestOn(g *scheduler.Stage, x *shadowReservation, bin int32, from scheduler.Time, duration time.Duration, before scheduler.Time) (backfill.Spot, bool) {
	b.shadow.searchesLeft--
	s, ok := b.profile.EarliestOn(bin, from, duration, before, &x.need)
	if end := b.lastGuaranteeEnd(g, bin); ok && end > s.At.Add(duration) && !b.profile.Fits(bin, s.Disk, s.At, end, &x.need) {
		return b.profile.EarliestOn(bin, max(from, end), duration, before, &x.need)
	}
	return s, ok
}

// latestSpot returns the latest spot for a task that starts by a given time,
// searching the bins from nextBin on; ties go to the first.
func (b *plan) latestSpot(g *scheduler.Stage, x *shadowReservation, from scheduler.Time, duration time.Duration, by scheduler.Time) (best backfill.Spot, found bool) {
	bins := b.profile.Bins()
	bin := b.shadow.nextBin
	for range min(bins, maxShadowBins) {
		if !b.profile.Closed(bin) {
			if s, ok := b.latestSpotOn(g, x, bin, from, duration, by); ok && (!found || s.At > best.At) {
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

// latestSpotOn returns the latest spot on one bin. A task without a bound may not
// start before a guarantee there that does not rely on its prediction unless it fits
// beside it, however short it is predicted to be.
func (b *plan) latestSpotOn(g *scheduler.Stage, x *shadowReservation, bin int32, from scheduler.Time, duration time.Duration, by scheduler.Time) (backfill.Spot, bool) {
	b.shadow.searchesLeft--
	s, ok := b.profile.LatestOn(bin, from, duration, by, &x.need)
	if !ok {
		return s, false
	}
	end := b.lastGuaranteeEnd(g, bin)
	return s, end <= s.At.Add(duration) || b.profile.Fits(bin, s.Disk, s.At, end, &x.need)
}

// lastGuaranteeEnd returns when the last guarantee on a bin ends that does not rely
// on the predicted end of a stage's tasks.
func (b *plan) lastGuaranteeEnd(g *scheduler.Stage, bin int32) (end scheduler.Time) {
	if g.Job.Spec.Bound > 0 {
		return 0
	}
	for _, r := range b.p.s.Reservations().On(scheduler.NodeID(bin)) {
		if r.Kind.IsGuarantee() && !b.p.s.Reservations().ReliesOnPrediction(r, g.Job) {
			end = max(end, r.End)
		}
	}
	return end
}

func compareInLane(a, b laneJob) int {
	return cmp.Or(cmp.Compare(a.key, b.key), compareSubmission(a.job, b.job))
}

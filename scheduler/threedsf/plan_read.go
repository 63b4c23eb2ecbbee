package threedsf

import (
	"cmp"
	"slices"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

// readPlan reads the plan from the State. Its reservations and the claims of attempts are in the
// State's timeline already. The planner learns which tasks may move, and other reservations are
// taken out while it plans. O(nodes + jobs + reservations).
func (p *planning) readPlan() *plan {
	t := p.c.s.Timeline(p.c.assumptions, p.c.now)
	if p.planner == nil {
		c := &p.c.cfg.Guarantees
		p.planner = backfill.NewPlanner(backfill.Config{Variant: backfill.FlexibleSF, SlackFactor: c.SF, PreemptionLimit: backfill.NoLimit, MaxTries: c.MaxTries}, nil)
	}
	p.planner.Reset(t.Nodes, t.Accounts, t.Caps)
	b := &plan{planning: p, timeline: t}
	b.tasks = b.tasks[:0]
	b.needs.Reset()
	b.collectLost()
	p.planner.SpareLast(p.c.s.Nodes(), p.c.cfg.Guarantees.SpareNodes-len(b.lost)) // the plans of the lost nodes need as many nodes
	b.collectOwners()
	b.syncAccounts()
	for _, o := range b.owners {
		if !o.requested || o.waiting <= b.tasksLeft {
			b.restoreOwner(o)
		}
	}
	p.read = len(b.tasks)
	return b
}

// collectOwners collects the jobs and projects that have or request a guarantee, in order of
// submission. It takes out the reservations of all others.
func (b *plan) collectOwners() {
	projects := map[scheduler.ProjectID]*owner{}
	owners, jobs := make([]owner, 0, len(b.jobs.jobs)), make([]*scheduler.Job, 0, len(b.jobs.jobs)) // allocated at once
	for i := range b.jobs.jobs {
		x := &b.jobs.jobs[i]
		j := x.job
		if x.status == statusNone {
			for _, r := range j.Reservations() {
				b.withdraw(j, r)
			}
			continue
		}
		id, joins := backfill.OwnerOf(j), b.c.joins(j)
		if o := projects[j.Spec.Project]; o != nil && !joins {
			o.jobs = append(o.jobs, j)
			continue
		}
		if joins { // a request of its own
			id = backfill.SingleJob(j.Spec.ID)
		}
		jobs = append(jobs, j)
		owners = append(owners, owner{id: id, joins: joins, jobs: jobs[len(jobs)-1 : len(jobs) : len(jobs)], accepted: x.accepted, requested: x.status == statusRequested})
		o := &owners[len(owners)-1]
		if b.owners = append(b.owners, o); j.Spec.Project != 0 && !joins {
			projects[j.Spec.Project] = o
		}
	}
	for _, o := range b.owners {
		slices.SortFunc(o.jobs, func(x, y *scheduler.Job) int { return cmp.Compare(x.Spec.ID, y.Spec.ID) })
		o.submitted = backfill.ProjectFor(b.c.s, o.id, o.jobs[0]).Submitted
	}
	slices.SortFunc(b.owners, func(x, y *owner) int { return cmp.Or(cmp.Compare(x.submitted, y.submitted), cmp.Compare(x.id, y.id)) })
	b.deferRequests()
}

// deferRequests counts the waiting tasks of the owners, and leaves requests beyond requestBatch to
// later cycles. Their reservations stay in the timeline.
func (b *plan) deferRequests() {
	b.tasksLeft = maxPlannedTasks
	for _, o := range b.owners {
		for g := range o.stages {
			o.waiting += int(g.Pending)
		}
		if !o.requested {
			b.tasksLeft -= o.waiting
		}
	}
	requested := 0
	b.owners = slices.DeleteFunc(b.owners, func(o *owner) bool {
		if !o.requested || o.waiting > b.tasksLeft { // those beyond tasksLeft are refused unread
			return false
		}
		if requested > 0 && requested+o.waiting > requestBatch {
			b.survey.deferred = true
			return true
		}
		requested += o.waiting
		return false
	})
}

// account returns the timeline account of the tenant that a job's guarantees are charged to.
func (b *plan) account(j *scheduler.Job) int32 {
	return int32(b.c.s.Reservations().GuaranteeTenant(j)) + 1
}

// withdraw takes a planned reservation out of the timeline until the planner is closed.
func (b *plan) withdraw(j *scheduler.Job, r *scheduler.Reservation) {
	if isPlanned(r) {
		b.planner.Withdraw(b.timeline, r, b.account(j), b.timeline.CapsOf(j.Spec.Tenant))
	}
}

// restoreOwner restores an owner's waiting tasks in the planner.
func (b *plan) restoreOwner(o *owner) {
	first := o.jobs[0]
	in := backfill.ProjectFor(b.c.s, o.id, first)
	in.Account, in.Requests = b.account(first), b.requests[:0]
	switch {
	case o.joins:
		in.Deadline = backfill.GuaranteeOf(b.c.s, first.Spec.Project).Latest
	case first.Spec.Project == 0:
		in.Deadline = first.Spec.Deadline
	default:
		in.Limit = earliestDeadline(o.jobs)
	}
	o.deadline = in.Deadline
	switch {
	case o.requested:
	case o.deadline > 0:
		o.guarantee = backfill.Guarantee{Departure: o.accepted, Latest: o.deadline}
	default:
		o.guarantee = backfill.GuaranteeOf(b.c.s, o.id)
	}
	b.existing, b.tasks = slices.Grow(b.existing[:0], o.waiting), slices.Grow(b.tasks, o.waiting) // at once: to grow very long lists step by step copies them several times
	for g := range o.stages {
		b.restoreStage(o, g, &in)
	}
	b.requests = in.Requests
	next := 0
	b.planner.Restore(in, o.guarantee, !o.requested, func(backfill.Key, *backfill.Need) backfill.Existing {
		next++
		return b.existing[next-1]
	})
}

// earliestDeadline returns the earliest deadline of some jobs that can still be met, 0 for none.
func earliestDeadline(jobs []*scheduler.Job) (at scheduler.Time) {
	for _, j := range jobs {
		if d := j.Spec.Deadline; d > 0 && !j.IsInfeasible() && (at == 0 || d < at) {
			at = d
		}
	}
	return at
}

// restoreStage adds the waiting tasks of a stage to a project, and lists their places in
// b.existing. Due tasks keep their place: they are not planned again.
func (b *plan) restoreStage(o *owner, g *scheduler.Stage, in *backfill.Project) {
	reserved := b.indexReservations(g)
	if g.Pending == 0 {
		return
	}
	duration := b.taskDuration(g)
	if duration <= 0 {
		duration = overrunExtension // unknown: the owner will be refused, or its guarantee was made elsewhere
	}
	r := backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Need: b.needs.NeedOf(g.Spec.Demand, g.Spec.Disk), Bound: duration, NotBefore: b.earliestStart(g),
		Caps: b.timeline.CapsOf(g.Job.Spec.Tenant)}
	if !g.Open {
		r.After = g.Spec.After
	}
	from := len(b.tasks)
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		k := backfill.Key{Job: r.Job, Stage: r.Stage, Task: i}
		x, v := backfill.Existing{}, reserved[i]
		lost := v == nil || b.isDiskGone(v)
		late := !lost && b.c.isExpired(v)
		x.Lost = lost || late
		switch {
		case x.Lost && o.requested: // planRequests plans it
		case x.Lost && len(b.late)+len(b.missing) >= mostReplanned(len(b.c.s.Nodes())):
			b.survey.deferred, b.survey.replanLeft = true, true
			continue
		case lost:
			b.missing = append(b.missing, k)
		case late:
			b.late = append(b.late, k)
		case b.canBeServedNow(v):
			continue
		}
		if v != nil {
			x.Spot, x.Need, x.Kept = b.timeline.ReservedAt(v, r.Need)
			x.End, x.Ref = v.End, uint64(v.ID)
		}
		b.tasks, b.existing = append(b.tasks, i), append(b.existing, x)
	}
	if r.Tasks = b.tasks[from:len(b.tasks):len(b.tasks)]; len(r.Tasks) > 0 {
		in.Requests = append(in.Requests, r)
	}
}

// indexReservations returns the planned reservations of a stage by task, and withdraws those of
// tasks that do not wait. The result is valid until the next call.
func (b *plan) indexReservations(g *scheduler.Stage) []*scheduler.Reservation {
	b.byTask = slices.Grow(b.byTask[:0], int(g.Spec.Tasks))[:g.Spec.Tasks]
	clear(b.byTask)
	for _, r := range g.Job.Reservations() {
		switch {
		case r.Stage != g.Index || !isPlanned(r):
		case r.Task < g.Spec.Tasks && g.IsPending(r.Task) && b.byTask[r.Task] == nil:
			b.byTask[r.Task] = r
		default:
			b.withdraw(g.Job, r)
		}
	}
	return b.byTask
}

// isDiskGone reports whether the disk of a reservation does not exist any more.
func (b *plan) isDiskGone(r *scheduler.Reservation) bool {
	if disk := r.OnDisk; disk >= 0 {
		return int(disk) >= b.timeline.Nodes.Disks(int32(r.Node))
	}
	g := b.c.s.Stage(r.StageID())
	return g.Spec.Demand[scheduler.IO] > 0 || g.Spec.Disk > 0
}

// earliestStart returns when the running and due tasks of a stage's predecessors are expected to have ended.
func (b *plan) earliestStart(g *scheduler.Stage) scheduler.Time {
	at := scheduler.Time(0)
	if g.Open {
		return at
	}
	for _, before := range g.Spec.After {
		f := g.Job.Stages[before]
		for a := range b.c.s.Attempts().In(f) {
			at = max(at, b.expectedEnd(a))
		}
		for _, r := range g.Job.Reservations() {
			if r.Stage == before && isPlanned(r) && r.Start <= b.c.now && f.IsPending(r.Task) {
				at = max(at, r.End)
			}
		}
	}
	if at == scheduler.Never {
		at = b.c.now.Add(overrunExtension)
	}
	return at
}

// syncAccounts sets how much the guarantees of each tenant may take: its share of the cluster, but
// at least one task of each size that it requests. Caps are in the timeline.
func (b *plan) syncAccounts() {
	s := b.c.s
	shares := b.guaranteeShares()
	least := make([]scheduler.Resources, len(shares))
	for _, o := range b.owners {
		if !o.requested {
			continue
		}
		t := s.Reservations().GuaranteeTenant(o.jobs[0])
		for g := range o.stages {
			least[t] = least[t].Max(g.Spec.Demand)
		}
	}
	for t, share := range shares {
		var limits scheduler.Resources
		for r, v := range s.Cluster().Total() {
			limits[r] = max(int64(share*float64(v)), least[t][r])
		}
		b.timeline.Accounts.Resize(int32(t), limits[:])
	}
}

// mostReplanned returns how many late or lost tasks a decision plans again in a cluster of this many nodes.
func mostReplanned(nodes int) int {
	return min(replanBatch, max(minReplanBatch, replanNodes/max(1, nodes)))
}

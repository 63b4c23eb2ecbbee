package policies

import (
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

var reservingParams = []Param{boundParam,
	{Name: "spare_nodes", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "nodes never used for guarantees, so that none of a waiting project is violated when as many are lost"},
	{Name: "margin", Kind: Duration, Default: "0s", Min: 0, Max: 3600, Help: "added to each bound for starting and stopping; about 1s on a live cluster, 0 in simulations"},
	{Name: "grace", Kind: Duration, Default: "10s", Min: 1e-3, Max: 1e6, Help: "how long a task past its bound is assumed to run on; doubled each time that passes"},
}

var twoTierInfo = Info{
	Name:     "two_tier",
	Reserves: true,
	Help:     "two-tier backfilling: each project of jobs gets a guaranteed departure time at submission",
	Params: append([]Param{
		{Name: "variant", Kind: Choice, Default: "2tfb-sf", Choices: []string{"2tsb", "2tfb", "2tfb-sf", "2tpb"},
			Help: "what new work may displace: nothing; jobs but no departures; departures within their slack; low-priority projects by high-priority ones"},
		{Name: "sf", Kind: Float, Default: "0.5", Min: 0, Max: 1e6, Help: "slack factor: how far a departure may be delayed, as a part of its turn-around"},
		{Name: "pl", Kind: Int, Default: "-1", Min: -1, Max: 1e6, Help: "preemption limit: projects that one job may delay, -1 for no limit"},
		{Name: "max_tries", Kind: Int, Default: "1000", Min: 0, Max: 1e9, Help: "backfill times tried for one job, 0 for all"},
	}, reservingParams...),
	new: func(v paramValues) scheduler.Policy {
		variant := map[string]backfill.Variant{"2tsb": backfill.Strict, "2tfb": backfill.Flexible, "2tfb-sf": backfill.FlexibleSF, "2tpb": backfill.Priority}[v.choice("variant")]
		cfg := backfill.Config{Variant: variant, SlackFactor: v.float("sf"), PreemptionLimit: v.int("pl"), MaxTries: v.int("max_tries")}
		return newReservingPolicy("two_tier", cfg, true, v)
	},
}

var conservativeInfo = Info{
	Name:     "conservative",
	Reserves: true,
	Help:     "conservative backfilling: each job gets the earliest start that delays no other, and is only moved earlier",
	Params:   reservingParams,
	new: func(v paramValues) scheduler.Policy {
		return newReservingPolicy("conservative", backfill.Config{Variant: backfill.Strict}, false, v)
	},
}

func newReservingPolicy(name string, cfg backfill.Config, projects bool, v paramValues) scheduler.Policy {
	p := &reservingPolicy{name: name, spare: v.int("spare_nodes")}
	p.plan.planner, p.plan.projects = backfill.NewPlanner(cfg, nil), projects
	p.plan.boundAssumptions = boundAssumptions{defaultBound: v.duration("default_bound"), margin: v.duration("margin"), grace: v.duration("grace")}
	return p
}

// reservingPolicy is backfilling with a reservation for every waiting task: two_tier and
// conservative. The plan is in the State's reservations, guarantees are policy states; running
// tasks are planned until their bound and have no reservation. A task is the paper's job: its need
// is the stage's demand, its service time te the job's bound.
//
// A job without a bound of its own is planned by an estimate and its reservations are no guarantee.
// Past the estimate a task is suspended only where its capacity is guaranteed to others.
type reservingPolicy struct {
	name  string
	spare int

	placer           placer
	actionsExhausted bool // the cycle's actions were used up
	mayExhaust       bool // they may not suffice for commit
	keptForStarts    int  // actions reserved for the starts of dueTasks
	outdated         bool // a guarantee did not follow the changed plan: no action was left
	continues        bool // the next decision continues to plan
	plan             roundPlan
	compressed       compression // the last one
	dueTasks         []dueTask   // scratch
}

func (f *reservingPolicy) Name() string { return f.name }

// SetReasonsWanted implements scheduler.Reasoner.
func (f *reservingPolicy) SetReasonsWanted(wanted bool) { f.placer.SetReasonsWanted(wanted) }

// Decide costs O(1) if nothing changed. Otherwise it plans on the State's timeline: O(tasks of the
// changed projects) to read their plans, O(log) for each change, and a step for each node and each
// waiting task.
func (f *reservingPolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	p := &f.placer
	if p.beginWithoutResume(s, now, limit) {
		return p.idleDecision(now)
	}
	f.actionsExhausted, f.outdated, f.keptForStarts = false, false, 0
	f.plan.planner.SetBudget(planSteps)
	begin := s.ChangeLog().Position()
	// If something was blocked or replanned, the decision may leave capacity for more: repeat until
	// nothing changes. Later changes are left to the next decision.
	const rounds = 5
	settled := false
	for i := 0; i < rounds && !settled; i++ {
		actions, notes := len(p.actions), len(p.states)
		f.runRound(s, now)
		f.plan.restored.readTo = begin // the tries of this decision are undone at its end
		err := s.PolicyStates().Apply(p.states[notes:])
		changed := len(p.actions) > actions || len(p.states) > notes
		settled = err != nil || f.actionsExhausted || f.plan.unfinished || !f.plan.needsAnotherRound || !changed
	}
	if f.continues = (f.plan.unfinished || !settled || (f.actionsExhausted && p.actionsLeft > 0)) && (len(p.actions) > 0 || len(p.states) > 0); f.continues {
		f.wakeAt(now+1, now)
	}
	if f.actionsExhausted {
		f.compressed.timeline = nil // some tasks differ from their plan
	} else if f.compressed.fresh {
		f.compressed.record(s, p.actions)
	}
	return p.finish(f.reason)
}

// Limits of one decision's planning, so that none takes long: planning continues in the next
// decision, which is due at once. A step takes about a tenth of a microsecond.
const (
	planSteps    = 100_000
	stepsPerTask = 100 // at least, to plan one task
	// maxPlannedTasks is how many waiting tasks of a project without a guarantee are planned at the
	// same time. The others follow as these start.
	maxPlannedTasks = 10_000
)

// runRound plans on the State as this cycle has changed it so far.
func (f *reservingPolicy) runRound(s *scheduler.State, now scheduler.Time) {
	//   1. Resume tasks that cannot be planned.
	f.resumeOverCapacity(s)
	//   2. Read the plan, without the reservations of finished work.
	f.readPlan(s, now)
	//   3. Stop attempts that overran their bound.
	f.stopOverruns(s, now)
	//   4. Replan reservations that no longer hold.
	f.repair(s, now)
	f.plan.displaced = f.plan.planner.HasChanged()
	f.plan.needsAnotherRound = f.plan.needsAnotherRound || f.plan.displaced
	// 5. Compress the schedule, once after each unplanned release.
	mark, compressed := f.compress(s, now)
	// 6. Plan and guarantee new work.
	f.planNew(s, now)
	f.compressed.recordFreed(f.plan.planner)
	f.plan.planner.Close()
	//   7. Start due tasks and update reservations.
	f.commit(s, now)
	if f.plan.timeline.HasOverrun() { // newly guaranteed work may be blocked by a task past its estimate
		f.plan.needsAnotherRound = true
	}
	if compressed && !f.actionsExhausted {
		f.placer.states = append(f.placer.states, mark)
	}
}

// ownerOf returns the project that a job is planned in: its own if projects are planned, or one for
// the job alone.
func ownerOf(j *scheduler.Job, projects bool) scheduler.ProjectID {
	if projects {
		return backfill.OwnerOf(j)
	}
	return backfill.SingleJob(j.Spec.ID)
}

func (f *reservingPolicy) wakeAt(at, now scheduler.Time) {
	if at > now {
		f.placer.wakeAt(at)
	}
}

// tryApply applies an action if the cycle has one left beyond those reserved for the starts of tasks.
func (f *reservingPolicy) tryApply(a scheduler.Action) bool {
	if f.placer.actionsLeft <= f.keptForStarts {
		f.actionsExhausted = true
		r := f.placer.s.Reservations().Get(a.Reservation.ID)
		f.outdated = f.outdated || (r != nil && r.Kind.IsGuarantee())
		return false
	}
	f.placer.apply(a)
	return true
}

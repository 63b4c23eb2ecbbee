package policies

import (
	"math"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
)

var plannedParams = []Param{boundParam,
	{Name: "spare_nodes", Kind: Int, Default: "0", Min: 0, Max: 1e6, Help: "nodes that are never promised, so that no waiting promise breaks when as many are lost"},
	{Name: "margin", Kind: Duration, Default: "0s", Min: 0, Max: 3600, Help: "added to each bound for starting and stopping; live about 1s, in simulations 0"},
	{Name: "grace", Kind: Duration, Default: "10s", Min: 1e-3, Max: 1e6, Help: "for how long a task that should be gone is first taken to stay; doubled each time it passes"},
}

var twoTierInfo = Info{
	Name: "two_tier",
	Help: "two-tier backfilling: each project of jobs gets a guaranteed departure time at submission",
	Params: append([]Param{
		{Name: "variant", Kind: Choice, Default: "2tfb-sf", Choices: []string{"2tsb", "2tfb", "2tfb-sf", "2tpb"},
			Help: "nothing planned is displaced; jobs but no departures are; departures are within their slack; high-priority projects displace low ones"},
		{Name: "sf", Kind: Float, Default: "0.5", Min: 0, Max: 1e6, Help: "slack factor: how much of its turn-around a departure may be put off"},
		{Name: "pl", Kind: Int, Default: "-1", Min: -1, Max: 1e6, Help: "preemption limit: projects that one job may put off, -1 for no limit"},
		{Name: "max_tries", Kind: Int, Default: "1000", Min: 0, Max: 1e9, Help: "backfill times tried for one job, 0 for all"},
	}, plannedParams...),
	New: func(v Values) (scheduler.Policy, error) {
		cfg := backfill.Config{SF: v.Float("sf"), PL: v.Int("pl"), MaxTries: v.Int("max_tries")}
		for _, x := range []backfill.Variant{backfill.Strict, backfill.Flexible, backfill.FlexibleSF, backfill.Priority} {
			if x.String() == v.Text("variant") {
				cfg.Variant = x
			}
		}
		return newPlanned("two_tier", cfg, true, v)
	},
}

var conservativeInfo = Info{
	Name:   "conservative",
	Help:   "conservative backfilling: each job gets the earliest start that delays nobody, and is only ever moved earlier",
	Params: plannedParams,
	New: func(v Values) (scheduler.Policy, error) {
		return newPlanned("conservative", backfill.Config{Variant: backfill.Strict}, false, v)
	},
}

func newPlanned(name string, cfg backfill.Config, projects bool, v Values) (scheduler.Policy, error) {
	if err := cfg.Check(); err != nil {
		return nil, err
	}
	return &planned{name: name, cfg: cfg, projects: projects, bound: v.Duration("default_bound"),
		spare: v.Int("spare_nodes"), margin: v.Duration("margin"), grace: v.Duration("grace")}, nil
}

// planned is backfilling with a reservation for every task that waits: two_tier
// and conservative. The plan is in the State's reservations, promises are in
// notes; what runs is reserved by its bound and has no reservation. A task is
// the paper's job: its need is the stage's demand, its service time te the
// job's bound. A job without a bound of its own is planned with a guess, its
// reservation is no promise, and past it the task is suspended like any other
// that overruns.
type planned struct {
	name     string
	cfg      backfill.Config
	projects bool
	bound    time.Duration
	margin   time.Duration
	grace    time.Duration
	spare    int

	placer placer
	plan   *backfill.Planner
	byKey  map[backfill.Key]*scheduler.Reservation
	nextID scheduler.ReservationID
	notes  []scheduler.Note
	cut    bool                             // the cycle's actions did not suffice
	odd    bool                             // something is held up, suspended, unplanned or planned again
	held   map[scheduler.ReservationID]bool // due and held up by something other than room
	heldTo map[scheduler.StageID]scheduler.Time
	ids    []scheduler.ProjectID // of the projects with work that waits
}

func (f *planned) Name() string { return f.name }

// Decide costs O(1) when nothing changed, else it builds the plan again from
// the State: O((attempts + reservations) log), plus what is planned anew.
func (f *planned) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	p := &f.placer
	if p.open(s, now, max) {
		return p.idle(now)
	}
	f.notes, f.cut = f.notes[:0], false
	// Where something is held up or had to be planned again, what was decided
	// may leave room for more: then it goes round until nothing changes.
	const rounds = 5
	for range rounds {
		actions, notes := len(p.actions), len(f.notes)
		f.round(s, now)
		if err := s.ApplyNotes(f.notes[notes:]); err != nil || f.cut || !f.odd {
			break
		}
		if len(p.actions) == actions && len(f.notes) == notes {
			break
		}
	}
	f.explain(s, now)
	d := p.end()
	d.Notes = f.notes
	p.known = p.known && len(f.notes) == 0
	return d
}

// round plans once, on the State as this cycle has brought it so far.
func (f *planned) round(s *scheduler.State, now scheduler.Time) {
	f.held, f.ids, f.odd = map[scheduler.ReservationID]bool{}, f.ids[:0], false
	f.heldTo = map[scheduler.StageID]scheduler.Time{}
	// 1. The plan as it stands, without what is not due to anybody any more.
	f.restore(s, now)
	// 2. What should have ended is stopped.
	f.stopOverruns(s, now)
	// 3. What does not hold any more is planned again.
	f.repair(s, now)
	f.odd = f.odd || len(f.plan.Changed()) > 0
	// 4. Holes are given forward, once for each time something ended.
	mark, walked := f.walk(s, now)
	// 5. New work is planned and promised.
	f.planNew(s, now)
	// 6. What is due starts; what moved is reserved anew.
	f.carryOut(s, now)
	if walked && !f.cut {
		f.notes = append(f.notes, mark)
	}
}

// owner gives the project that a job is planned in: its own, or one made of the
// job alone, which has the high bit set.
func (f *planned) owner(j *scheduler.Job) scheduler.ProjectID {
	if f.projects && j.Spec.Project != 0 {
		return j.Spec.Project
	}
	return scheduler.ProjectID(j.Spec.ID) | 1<<63
}

// noteKey is the key of a note on a project, or on the job that is one alone.
func noteKey(kind scheduler.NoteKind, id scheduler.ProjectID) scheduler.NoteKey {
	if id>>63 == 1 {
		return scheduler.NoteKey{Kind: kind, Job: scheduler.JobID(id &^ (1 << 63))}
	}
	return scheduler.NoteKey{Kind: kind, Project: id}
}

// The disk of a reservation is in the low bits of its id: State's reservations
// name no disk, and a plan that is built again needs it.
const diskBits = 7

func diskOf(id scheduler.ReservationID) int16 { return int16(id&(1<<diskBits-1)) - 1 }

func (f *planned) newID(disk int16) scheduler.ReservationID {
	f.nextID++
	return f.nextID<<diskBits | scheduler.ReservationID(disk+1)
}

// ours tells whether a reservation is of the plan.
func ours(r *scheduler.Reservation) bool {
	return (r.Kind == scheduler.ReserveProject || r.Kind == scheduler.ReserveHead) && r.Job != 0 && r.Task >= 0 && r.Node != scheduler.NoNode
}

// restore builds the planner from the State.
func (f *planned) restore(s *scheduler.State, now scheduler.Time) {
	prof := &backfill.Profile{}
	plan, err := backfill.NewPlanner(f.cfg, prof)
	if err != nil {
		panic("policies: " + err.Error()) // checked by newPlanned
	}
	f.plan, f.byKey, f.nextID = plan, map[backfill.Key]*scheduler.Reservation{}, 0
	for _, n := range s.Nodes() {
		b := prof.AddNode(&n.Spec)
		plan.Keeps(b, !n.Spec.Levels.Has(scheduler.LevelSwapped) && !n.Spec.Levels.Has(scheduler.LevelCheckpointed))
	}
	var stale []scheduler.ReservationID
	for _, r := range s.Reservations() {
		if !ours(r) {
			continue
		}
		f.nextID = max(f.nextID, r.ID>>diskBits)
		if g := s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}); g != nil && f.waits(s, g, r.Task) && int(diskOf(r.ID)) < len(s.Node(r.Node).Disks) {
			f.byKey[backfill.Key{Job: r.Job, Stage: r.Stage, Task: r.Task}] = r
		} else {
			stale = append(stale, r.ID)
		}
	}
	for _, id := range stale {
		f.act(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: id}})
	}
	f.occupy(s, prof, now)
	for _, pr := range f.gather(s, now) {
		if err := f.bringIn(s, pr); err != nil {
			panic("policies: a job that State took cannot be planned: " + err.Error())
		}
		f.ids = append(f.ids, pr.ID)
	}
	plan.Changed()
}

// waits tells whether a task is planned for: it waits for a place, or is
// suspended on its node.
func (f *planned) waits(s *scheduler.State, g *scheduler.Stage, task int32) bool {
	if g.Job.Phase != scheduler.JobActive || task >= g.Spec.Tasks {
		return false
	}
	return g.IsPending(task) || suspendedAt(s, g, task) != nil
}

func suspendedAt(s *scheduler.State, g *scheduler.Stage, task int32) *scheduler.Attempt {
	var only *scheduler.Attempt
	for a := range s.AttemptsOf(g, task) {
		if only != nil || a.Phase != scheduler.AttemptSuspended {
			return nil
		}
		only = a
	}
	return only
}

// occupy takes what attempts hold. What should be gone is taken to stay for
// grace, twice, four times … that long after its bound, so that the plan
// changes at instants that Wake names.
func (f *planned) occupy(s *scheduler.State, prof *backfill.Profile, now scheduler.Time) {
	for _, n := range s.Nodes() {
		for a := range s.AttemptsOn(n.Spec.ID) {
			end := f.endOf(s, a, now)
			f.wakeAt(end, now)
			take := func(node scheduler.NodeID, disk int16, h *scheduler.Held) {
				need := backfill.NodeNeed(h.Resources, h.Disk)
				prof.Take(int32(node), disk, math.MinInt64+1, end, &need)
			}
			take(a.Node, a.Disk, &a.Held)
			if a.From != scheduler.NoNode {
				take(a.From, a.FromDisk, &a.FromHeld)
			}
		}
	}
}

func (f *planned) wakeAt(at, now scheduler.Time) {
	if p := &f.placer; at > now && at < scheduler.Never && (p.wake == 0 || at < p.wake) {
		p.wake = at
	}
}

// endOf is until when an attempt is taken to hold what it holds.
func (f *planned) endOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Time {
	if a.Level.Suspended() {
		return scheduler.Never
	}
	end := f.boundOf(s, a)
	if end == now { // it may end at this very instant; if it does not, it is past its bound in the next
		f.wakeAt(now+1, now)
	}
	for grace := f.grace; end < now; grace *= 2 {
		if end = end.Add(grace); grace > 1<<61 {
			return scheduler.Never
		}
	}
	return end
}

// boundOf is when an attempt should be gone.
func (f *planned) boundOf(s *scheduler.State, a *scheduler.Attempt) scheduler.Time {
	g := s.StageOf(a)
	if g.Job.Spec.Bound <= 0 && !canLeave(s, g.Job, a.Node) {
		return scheduler.Never
	}
	return a.Placed.Add(taskBound(g, f.bound) + f.margin)
}

// canLeave tells whether a task of a job can be made to leave a node with its
// memory: the same that Check asks of work without a bound.
func canLeave(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	l := s.Node(n).Spec.Levels
	return !s.Accepted(j) && j.Spec.Project == 0 && (l.Has(scheduler.LevelSwapped) || l.Has(scheduler.LevelCheckpointed))
}

// gather lists the projects with work that waits.
func (f *planned) gather(s *scheduler.State, now scheduler.Time) []*backfill.Project {
	var out []*backfill.Project
	byID := map[scheduler.ProjectID]*backfill.Project{}
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive {
			continue
		}
		id := f.owner(j)
		pr := byID[id]
		if pr == nil {
			pr = &backfill.Project{ID: id, Submitted: j.Spec.Submitted, High: j.Spec.Priority == scheduler.PriorityHigh}
			if id>>63 == 0 {
				if k := s.Project(id); k != nil {
					pr.Submitted, pr.High = k.Spec.Submitted, k.Spec.Priority == scheduler.PriorityHigh
				}
			}
			byID[id] = pr
			out = append(out, pr)
		}
		for _, g := range j.Stages {
			f.request(s, pr, g, now)
		}
	}
	return slices.DeleteFunc(out, func(p *backfill.Project) bool { return len(p.Requests) == 0 })
}

// request adds a stage's tasks that wait to a project. Those that are suspended
// need only what they do not hold, and only on their own node.
func (f *planned) request(s *scheduler.State, pr *backfill.Project, g *scheduler.Stage, now scheduler.Time) {
	r := backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Need: backfill.NodeNeed(g.Spec.Demand, g.Spec.Disk),
		Bound: taskBound(g, f.bound) + f.margin, Soft: g.Job.Spec.Bound <= 0, After: g.Spec.After}
	if r.Soft && (g.Job.Spec.Accepted || g.Job.Spec.Project != 0) {
		r.Bound = math.MaxInt64 // nobody may make it leave
	}
	if g.Open { // what comes before it is done, or was once
		r.After = nil
	}
	r.NotBefore = f.notBefore(s, g, now)
	for _, i := range f.tasks(s, g) {
		if k := f.byKey[backfill.Key{Job: r.Job, Stage: r.Stage, Task: i}]; k != nil && k.Start <= now && f.blocked(s, g) {
			f.plan.Profile().Take(int32(k.Node), diskOf(k.ID), k.Start, k.End, &r.Need)
			f.held[k.ID], f.odd = true, true
			f.heldTo[g.ID()] = max(f.heldTo[g.ID()], k.End)
			continue
		}
		if a := suspendedAt(s, g, i); a != nil {
			f.odd = true
			own := r
			own.Tasks = []int32{i}
			own.Need = backfill.NodeNeed(a.Demand.Sub(a.Held.Resources).Max(scheduler.Resources{}), max(0, a.DiskSpace-a.Held.Disk))
			held := backfill.NodeNeed(a.Held.Resources, a.Held.Disk)
			own.Held = &held
			pr.Requests = append(pr.Requests, own)
			continue
		}
		r.Tasks = append(r.Tasks, i)
	}
	if len(r.Tasks) > 0 {
		pr.Requests = append(pr.Requests, r)
	}
}

// tasks lists the tasks of a stage to plan: those that wait, of a stage with a
// bound on parallelism as many as may start now, planned ones first; of a stage
// that cannot start yet none as long as one before it is planned in part.
func (f *planned) tasks(s *scheduler.State, g *scheduler.Stage) []int32 {
	if !g.Open && slices.ContainsFunc(g.Job.Stages, partly) {
		return nil
	}
	var out, later []int32
	room := g.Spec.Tasks
	if partly(g) {
		f.odd = true
		room = max(0, g.Spec.MaxParallel-g.Running-g.Suspended)
	}
	for i := range g.Spec.Tasks {
		switch {
		case !f.waits(s, g, i):
		case !g.IsPending(i):
			out = append(out, i)
		case f.byKey[backfill.Key{Job: g.Job.Spec.ID, Stage: g.Index, Task: i}] != nil && room > 0:
			room--
			out = append(out, i)
		default:
			later = append(later, i)
		}
	}
	out = append(out, later[:min(int(room), len(later))]...)
	slices.Sort(out)
	return out
}

// partly tells whether a stage has more tasks left than may run at once.
func partly(g *scheduler.Stage) bool {
	return g.Spec.MaxParallel > 0 && g.Pending+g.Running+g.Suspended > g.Spec.MaxParallel
}

// blocked tells whether something other than room keeps a due task from
// starting: what comes before it, a bound on parallelism, or a cap. Its
// reservation then stays as it is until that has changed.
func (f *planned) blocked(s *scheduler.State, g *scheduler.Stage) bool {
	if !g.Open || g.Startable() == 0 {
		return true
	}
	_, _, _, ok := s.UnderCaps(g)
	return !ok
}

// notBefore is when what runs of the stages before should have ended.
func (f *planned) notBefore(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) scheduler.Time {
	at := scheduler.Time(0)
	if !g.Open {
		for _, before := range g.Spec.After {
			at = max(at, f.heldTo[g.Job.Stages[before].ID()])
			for a := range s.AttemptsIn(g.Job.Stages[before]) {
				if !a.Level.Suspended() {
					at = max(at, f.endOf(s, a, now))
				}
			}
		}
	}
	return at
}

// bringIn restores one project.
func (f *planned) bringIn(s *scheduler.State, pr *backfill.Project) error {
	promise, promised := s.Note(noteKey(scheduler.NotePromise, pr.ID))
	latest, _ := s.Note(noteKey(scheduler.NoteLatestStart, pr.ID))
	return f.plan.Restore(*pr, backfill.Quote{Departure: promise.At, Latest: latest.At}, promised,
		func(k backfill.Key) (spot backfill.Spot, started, pinned, plannedBefore bool) {
			g := s.Stage(scheduler.StageID{Job: k.Job, Stage: k.Stage})
			if a := suspendedAt(s, g, k.Task); a != nil {
				pinned = true
				spot = backfill.Spot{Bin: int32(a.Node), Disk: a.Disk}
			}
			if r := f.byKey[k]; r != nil && (!pinned || (int32(r.Node) == spot.Bin && diskOf(r.ID) == spot.Disk)) {
				return backfill.Spot{Bin: int32(r.Node), Disk: diskOf(r.ID), At: r.Start}, false, pinned, true
			}
			return spot, false, pinned, false
		})
}

// act carries out one step in the try, if the cycle has one left.
func (f *planned) act(a scheduler.Action) bool {
	if f.placer.left <= 0 {
		f.cut = true
		return false
	}
	f.placer.act(a)
	return true
}

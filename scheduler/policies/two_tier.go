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
// job's bound. A job without a bound of its own is planned with a guess and its
// reservation is no promise; past the guess the task is suspended only where its
// room is promised to others.
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
	kept   kept
	byKey  map[backfill.Key]scheduler.ReservationID
	nextID scheduler.ReservationID
	notes  []scheduler.Note
	cut    bool                             // the cycle's actions did not suffice
	odd    bool                             // something is held up, suspended, unplanned or planned again
	mixed  bool                             // the profile holds more than attempts and planned work: it is not kept
	late   bool                             // something runs past its bound
	bounds bool                             // some job has a bound of its own
	held   map[scheduler.ReservationID]bool // due and held up by something other than room
	heldTo map[scheduler.StageID]scheduler.Time
	ids    []scheduler.ProjectID // of the projects with work that waits
	fresh  []scheduler.ProjectID // of them those that were brought in, or were promised nothing
	synced bool                  // the plan is the one that was kept
	due    []backfill.Planned    // scratch
	starts []stageStart          // scratch
}

// stageStart is when the next task of a stage is planned to start.
type stageStart struct {
	stage scheduler.StageID
	at    scheduler.Time
}

func (f *planned) Name() string { return f.name }

// Reasons says whether Decision.Waiting is wanted.
func (f *planned) Reasons(wanted bool) { f.placer.reasons(wanted) }

// Decide costs O(1) when nothing changed. Else it brings the plan it has kept in
// line with the State, O(attempts + reservations + waiting stages) of comparing
// and O(log) for each difference, and plans what that asks for. Where it has no
// plan, or the nodes changed, or something is held up or suspended, it builds
// the plan again from the State, with the same result.
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
	if !p.silent {
		f.explain(s, now)
	}
	d := p.end()
	d.Notes = f.notes
	p.known = p.known && len(f.notes) == 0
	return d
}

// round plans once, on the State as this cycle has brought it so far.
func (f *planned) round(s *scheduler.State, now scheduler.Time) {
	// 1. The plan as it stands, without what is not due to anybody any more.
	if f.synced = f.sync(s, now); !f.synced {
		f.restore(s, now)
	}
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
	f.kept.valid = !f.mixed && !f.cut
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

func (f *planned) newID() scheduler.ReservationID {
	f.nextID++
	return f.nextID
}

// lastID is the highest id of a reservation or hold, 0 without any.
func lastID(s *scheduler.State) scheduler.ReservationID {
	all := s.Reservations()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].ID
}

// ours tells whether a reservation is of the plan.
func ours(r *scheduler.Reservation) bool {
	return (r.Kind == scheduler.ReserveProject || r.Kind == scheduler.ReserveHead) && r.Job != 0 && r.Task >= 0 && r.Node != scheduler.NoNode
}

// restore builds the planner from the State.
func (f *planned) restore(s *scheduler.State, now scheduler.Time) {
	f.begin()
	f.bounds = anyBound(s)
	prof := &backfill.Profile{}
	plan, err := backfill.NewPlanner(f.cfg, prof)
	if err != nil {
		panic("policies: " + err.Error()) // checked by newPlanned
	}
	f.plan, f.byKey, f.nextID = plan, map[backfill.Key]scheduler.ReservationID{}, lastID(s)
	f.kept.reset()
	f.kept.state, f.kept.work, f.kept.facts, f.kept.stirs = s, s.Work(), s.NodeChanges(), math.MaxUint64
	for _, n := range s.Nodes() {
		b := prof.AddNode(&n.Spec)
		plan.Keeps(b, f.bounds && !n.Spec.Levels.Has(scheduler.LevelSwapped) && !n.Spec.Levels.Has(scheduler.LevelCheckpointed))
		f.kept.addNode(n)
	}
	var stale []scheduler.ReservationID
	for _, r := range s.Reservations() {
		if !ours(r) {
			continue
		}
		if g := s.Stage(scheduler.StageID{Job: r.Job, Stage: r.Stage}); g != nil && f.waits(s, g, r.Task) && int(r.OnDisk) < len(s.Node(r.Node).Disks) {
			f.byKey[keyOf(r)] = r.ID
		} else {
			stale = append(stale, r.ID)
		}
	}
	for _, id := range stale {
		f.act(scheduler.Action{Kind: scheduler.ActUnreserve, Reservation: scheduler.Reservation{ID: id}})
	}
	f.occupy(s, now)
	f.gather(s, now)
	f.plan.Changed()
}

// begin forgets what the last round found.
func (f *planned) begin() {
	f.held, f.heldTo = nil, nil
	f.odd, f.mixed, f.late = false, false, false
	f.ids, f.fresh = f.ids[:0], f.fresh[:0]
}

func keyOf(r *scheduler.Reservation) backfill.Key {
	return backfill.Key{Job: r.Job, Stage: r.Stage, Task: r.Task}
}

// reservation finds the reservation of a planned task, or nil.
func (f *planned) reservation(s *scheduler.State, k backfill.Key) *scheduler.Reservation {
	if id, ok := f.byKey[k]; ok {
		return s.Reservation(id)
	}
	return nil
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

func (f *planned) wakeAt(at, now scheduler.Time) {
	if p := &f.placer; at > now && at < scheduler.Never && (p.wake == 0 || at < p.wake) {
		p.wake = at
	}
}

// endOf is until when an attempt is taken to hold what it holds. What should be
// gone is taken to stay for grace, twice, four times … that long after its
// bound, so that the plan changes at instants that Wake names.
func (f *planned) endOf(s *scheduler.State, a *scheduler.Attempt, now scheduler.Time) scheduler.Time {
	if a.Level.Suspended() {
		return scheduler.Never
	}
	end := f.boundOf(s, a)
	for grace := f.grace; end < now; grace *= 2 {
		if end = end.Add(grace); grace > 1<<61 {
			return scheduler.Never
		}
	}
	if end == now { // it may end at this very instant; if it does not, it is taken to stay in the next
		f.wakeAt(now+1, now)
	}
	return end
}

// boundOf is when an attempt should be gone.
func (f *planned) boundOf(s *scheduler.State, a *scheduler.Attempt) scheduler.Time {
	g := s.StageOf(a)
	if g.Job.Spec.Bound <= 0 && f.stays(s, g.Job, a.Node) {
		return scheduler.Never
	}
	return a.Placed.Add(taskBound(g, f.bound) + f.margin)
}

// anyBound tells whether a job has a bound of its own, without which nothing is
// promised. O(1) where the first has one, O(jobs) where none has.
func anyBound(s *scheduler.State) bool {
	for j := range s.Jobs() {
		if j.Spec.Bound > 0 {
			return true
		}
	}
	return false
}

// stays tells whether a task of a job without a bound is taken to stay on a node
// for ever: nobody can make it leave, and others may be promised what it holds.
// Where nobody has a bound nobody is promised anything, and the guess will do.
func (f *planned) stays(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	return f.bounds && !canLeave(s, j, n)
}

// canLeave tells whether a task of a job can be made to leave a node with its
// memory: the same that Check asks of work without a bound.
func canLeave(s *scheduler.State, j *scheduler.Job, n scheduler.NodeID) bool {
	l := s.Node(n).Spec.Levels
	return !s.Accepted(j) && j.Spec.Project == 0 && (l.Has(scheduler.LevelSwapped) || l.Has(scheduler.LevelCheckpointed))
}

// describe writes down what waits of a project, or of a job that is one alone,
// into out, whose slices it uses again.
func (f *planned) describe(s *scheduler.State, id scheduler.ProjectID, j *scheduler.Job, now scheduler.Time, out *backfill.Project) {
	k := &f.kept
	k.tasks, k.amounts, k.kinds = k.tasks[:0], k.amounts[:0], k.kinds[:0]
	*out = backfill.Project{ID: id, Submitted: j.Spec.Submitted, High: j.Spec.Priority == scheduler.PriorityHigh, Requests: out.Requests[:0]}
	if id>>63 == 1 {
		f.requests(s, out, j, now)
		return
	}
	if p := s.Project(id); p != nil {
		out.Submitted, out.High = p.Spec.Submitted, p.Spec.Priority == scheduler.PriorityHigh
		if len(p.Jobs) == 1 { // it is j
			f.requests(s, out, j, now)
			return
		}
		for _, id := range p.Jobs {
			f.requests(s, out, s.Job(id), now)
		}
	}
}

func (f *planned) requests(s *scheduler.State, pr *backfill.Project, j *scheduler.Job, now scheduler.Time) {
	if j.Phase != scheduler.JobActive {
		return
	}
	f.kept.kinds = append(f.kept.kinds, f.reserveKind(j))
	for _, g := range j.Stages {
		if g.Pending > 0 || g.Suspended > 0 {
			f.request(s, pr, g, now)
		}
	}
}

// need is backfill.NodeNeed with its amounts among the kept ones.
func (f *planned) need(d scheduler.Resources, space int64) backfill.Need {
	k := &f.kept
	n := len(k.amounts)
	k.amounts = append(k.amounts, d[scheduler.CPU], d[scheduler.Memory])
	return backfill.Need{Base: k.amounts[n : n+2 : n+2], IO: d[scheduler.IO], Space: space}
}

// request adds a stage's tasks that wait to a project. Those that are suspended
// need only what they do not hold, and only on their own node.
func (f *planned) request(s *scheduler.State, pr *backfill.Project, g *scheduler.Stage, now scheduler.Time) {
	r := backfill.Request{Job: g.Job.Spec.ID, Stage: g.Index, Need: f.need(g.Spec.Demand, g.Spec.Disk),
		Bound: taskBound(g, f.bound) + f.margin, Soft: g.Job.Spec.Bound <= 0, After: g.Spec.After}
	if r.Soft && f.bounds && (g.Job.Spec.Accepted || g.Job.Spec.Project != 0) {
		r.Bound = math.MaxInt64 // nobody may make it leave
	}
	if g.Open { // what comes before it is done, or was once
		r.After = nil
	}
	r.NotBefore = f.notBefore(s, g, now)
	blocked := f.blocked(s, g)
	f.holdsUntil(s, g, blocked, now)
	from := len(f.kept.tasks)
	f.tasks(s, g)
	to := len(f.kept.tasks)
	if !blocked && g.Suspended == 0 {
		r.Tasks = f.kept.tasks[from:to:to]
	} else {
		for _, i := range f.kept.tasks[from:to] {
			if !f.special(s, pr, g, &r, i, blocked, now) {
				r.Tasks = append(r.Tasks, i)
			}
		}
	}
	if len(r.Tasks) > 0 {
		pr.Requests = append(pr.Requests, r)
	}
}

// holdsUntil says until when what is written down of a stage holds, if nothing
// happens to its job: always, but where attempts at what comes before it may run
// over, where something is suspended or only a part may run, and until a
// reservation of a stage that is held up is due.
func (f *planned) holdsUntil(s *scheduler.State, g *scheduler.Stage, blocked bool, now scheduler.Time) {
	k := &f.kept
	if !g.Open {
		for _, before := range g.Spec.After {
			if p := g.Job.Stages[before]; p.Running+p.Suspended > 0 {
				k.until = now
			}
		}
	}
	if g.Suspended > 0 || partly(g) || (blocked && g.Open) {
		k.until = now
	}
	if !blocked || k.until <= now {
		return
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		if r := f.reservation(s, backfill.Key{Job: g.Job.Spec.ID, Stage: g.Index, Task: i}); r != nil {
			k.until = min(k.until, max(r.Start, now))
		}
	}
}

// special sees to a task that is due and held up, or suspended; false for any
// other.
func (f *planned) special(s *scheduler.State, pr *backfill.Project, g *scheduler.Stage, r *backfill.Request, task int32, blocked bool, now scheduler.Time) bool {
	a := suspendedAt(s, g, task)
	if a != nil { // only caps can keep it from going on
		blocked = !s.MayHold(g.Job, a.Demand, a.Demand.Sub(a.Held.Resources))
	}
	if k := f.reservation(s, backfill.Key{Job: r.Job, Stage: r.Stage, Task: task}); blocked && k != nil && k.Start <= now {
		f.odd, f.mixed = true, true
		if f.held == nil {
			f.held, f.heldTo = map[scheduler.ReservationID]bool{}, map[scheduler.StageID]scheduler.Time{}
		}
		f.plan.Profile().Take(int32(k.Node), k.OnDisk, k.Start, k.End, &r.Need)
		f.held[k.ID] = true
		f.heldTo[g.ID()] = max(f.heldTo[g.ID()], k.End)
		return true
	}
	if a == nil {
		return false
	}
	f.odd, f.mixed = true, true
	own := *r
	own.Tasks = []int32{task}
	own.Need = backfill.NodeNeed(a.Demand.Sub(a.Held.Resources).Max(scheduler.Resources{}), max(0, a.DiskSpace-a.Held.Disk))
	held := backfill.NodeNeed(a.Held.Resources, a.Held.Disk)
	own.Held = &held
	pr.Requests = append(pr.Requests, own)
	return true
}

// tasks lists the tasks of a stage to plan among the kept ones: those that
// wait, of a stage with a bound on parallelism as many as may start now,
// planned ones first; of a stage that cannot start yet none as long as one
// before it is planned in part.
func (f *planned) tasks(s *scheduler.State, g *scheduler.Stage) {
	if !g.Open && slices.ContainsFunc(g.Job.Stages, partly) {
		return
	}
	k := &f.kept
	if !partly(g) && g.Suspended == 0 {
		for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
			k.tasks = append(k.tasks, i)
		}
		return
	}
	from := len(k.tasks)
	var later []int32
	room := g.Spec.Tasks
	if partly(g) {
		f.odd = true
		room = max(0, g.Spec.MaxParallel-g.Running-g.Suspended)
	}
	for i := range g.Spec.Tasks {
		switch {
		case !f.waits(s, g, i):
		case !g.IsPending(i):
			k.tasks = append(k.tasks, i)
		case room > 0 && f.reservation(s, backfill.Key{Job: g.Job.Spec.ID, Stage: g.Index, Task: i}) != nil:
			room--
			k.tasks = append(k.tasks, i)
		default:
			later = append(later, i)
		}
	}
	k.tasks = append(k.tasks, later[:min(int(room), len(later))]...)
	slices.Sort(k.tasks[from:])
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

// act carries out one step in the try, if the cycle has one left.
func (f *planned) act(a scheduler.Action) bool {
	if f.placer.left <= 0 {
		f.cut = true
		return false
	}
	f.placer.act(a)
	return true
}

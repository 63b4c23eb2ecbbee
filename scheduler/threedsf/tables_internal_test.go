package threedsf

import (
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/backfill"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/locality"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// record applies policy states of a job, each by its kind.
func record(t *testing.T, w *schedtest.World, states ...scheduler.PolicyState) {
	t.Helper()
	if err := w.State.PolicyStates().Apply(states); err != nil {
		t.Fatal(err)
	}
}

// The effect of a job's spec and policy states: its class among the tenant's jobs (0 for another lane),
// whether it is in the deadline lane, the status of its guarantee, and whether it must not continue.
func TestClassAndGuaranteeStatusFollowSpecAndPolicyStates(t *testing.T) {
	type spec = func(*scheduler.JobSpec)
	second := func(n int) scheduler.Time { return scheduler.Time(n) * scheduler.Time(time.Second) }
	withDeadline := func(j *scheduler.JobSpec) { j.Deadline = second(100) }
	accepted := func(j *scheduler.JobSpec) { j.Deadline, j.AcceptedByQuote = second(100), true }
	stopped := func(j *scheduler.JobSpec) {
		j.Deadline, j.AcceptedByQuote, j.OnMiss = second(100), true, scheduler.OnMissStop
	}
	high := func(j *scheduler.JobSpec) { j.Priority = scheduler.PriorityHigh }
	for name, x := range map[string]struct {
		spec    spec
		states  []scheduler.PolicyStateKind
		class   uint8
		status  guaranteeStatus
		lane    bool
		refused bool
		stopped bool
	}{
		"regular, low":                    {func(*scheduler.JobSpec) {}, nil, classLow, statusRequested, false, false, false},
		"regular, high":                   {high, nil, classHigh, statusRequested, false, false, false},
		"a deadline that nobody accepted": {withDeadline, nil, classLow, statusRequested, false, false, false},
		"accepted at submission":          {accepted, nil, 0, statusNone, true, false, false},
		"guaranteed":                      {withDeadline, []scheduler.PolicyStateKind{scheduler.AcceptedState}, 0, statusGuaranteed, true, false, false},
		"refused":                         {withDeadline, []scheduler.PolicyStateKind{scheduler.RefusedState}, classLow, statusNone, false, true, false},
		"refused, accepted at submission": {accepted, []scheduler.PolicyStateKind{scheduler.RefusedState}, 0, statusNone, true, false, false},
		"guaranteed, then infeasible":     {withDeadline, []scheduler.PolicyStateKind{scheduler.AcceptedState, scheduler.InfeasibleState}, classInfeasible, statusNone, false, false, false},
		"accepted, then infeasible":       {accepted, []scheduler.PolicyStateKind{scheduler.InfeasibleState}, classInfeasible, statusNone, false, false, false},
		"infeasible, to be stopped":       {stopped, []scheduler.PolicyStateKind{scheduler.InfeasibleState}, 0, statusNone, false, false, true},
		"feasible, to be stopped":         {stopped, nil, 0, statusNone, true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 4)).AddTenants("a")
			j := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { x.spec(j) }))
			for _, kind := range x.states {
				record(t, w, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: kind, Job: j.Spec.ID}, Value: int64(j.Spec.Deadline), At: w.Now})
			}
			cfg := fullConfig()
			v := view{cfg: &cfg, assumptions: assumptions{deadlines: true}, s: w.State, now: w.Now}
			if got := v.classOf(j); got != x.class {
				t.Errorf("class %d, want %d", got, x.class)
			}
			if got := v.guaranteeStatus(j); got != x.status {
				t.Errorf("status %d, want %d", got, x.status)
			}
			if v.inLane(j) != x.lane || v.wasRefused(j) != x.refused || v.isStoppedByMiss(j) != x.stopped {
				t.Errorf("in the lane %v, refused %v, stopped %v, want %v, %v, %v", v.inLane(j), v.wasRefused(j), v.isStoppedByMiss(j), x.lane, x.refused, x.stopped)
			}
			if cfg.PriorityOrder = false; j.Spec.Priority == scheduler.PriorityHigh && v.classOf(j) != classLow {
				t.Error("a high priority counts although priorities do not")
			}
			if all := (assumptions{deadlines: true, allDeadlines: true}); all.inLane(w.State, j) != (j.Spec.Deadline > 0 && !j.IsInfeasible()) {
				t.Errorf("in the lane of all deadlines: %v", all.inLane(w.State, j))
			}
			if (assumptions{}).inLane(w.State, j) {
				t.Error("in a lane that there is not")
			}
		})
	}
}

// A deadline that was refused may be requested again with another one.
func TestAnotherDeadlineIsAnotherRequest(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 4)).AddTenants("a")
	j := w.State.Job(w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Deadline = w.Now.Add(time.Minute) }))
	record(t, w, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.RefusedState, Job: j.Spec.ID}, Value: int64(j.Spec.Deadline)})
	cfg := fullConfig()
	v := view{cfg: &cfg, s: w.State, now: w.Now}
	if v.guaranteeStatus(j) != statusNone {
		t.Error("a refused deadline is requested")
	}
	spec := j.Spec
	spec.Deadline = spec.Deadline.Add(time.Minute)
	if err := w.State.Events().UpdateJob(spec); err != nil {
		t.Fatal(err)
	}
	if v.guaranteeStatus(w.State.Job(j.Spec.ID)) != statusRequested {
		t.Error("another deadline is not requested")
	}
}

// A project has or requests a guarantee as a whole, once all its jobs are there and closed; its jobs are not preempted while the guarantee
// holds.
func TestProjectGuaranteeNeedsAllItsJobs(t *testing.T) {
	for name, x := range map[string]struct {
		jobs, want    int
		states        []scheduler.PolicyStateKind
		elsewhere     bool // its departure was guaranteed elsewhere
		status        guaranteeStatus
		guaranteed    bool
		refused, over bool
	}{
		"not all jobs":            {jobs: 1, want: 2, status: statusNone},
		"all jobs":                {jobs: 2, want: 2, status: statusRequested},
		"guaranteed":              {jobs: 2, want: 2, states: []scheduler.PolicyStateKind{scheduler.GuaranteeState}, status: statusGuaranteed, guaranteed: true},
		"guaranteed, a job ended": {jobs: 1, want: 2, states: []scheduler.PolicyStateKind{scheduler.GuaranteeState}, status: statusGuaranteed, guaranteed: true},
		"violated": {jobs: 2, want: 2, states: []scheduler.PolicyStateKind{scheduler.GuaranteeState, scheduler.ViolatedState}, status: statusGuaranteed,
			over: true},
		"refused":                           {jobs: 2, want: 2, states: []scheduler.PolicyStateKind{scheduler.RefusedState}, status: statusNone, refused: true},
		"guaranteed elsewhere":              {jobs: 2, want: 2, elsewhere: true, status: statusRequested, guaranteed: true},
		"refused, but guaranteed elsewhere": {jobs: 2, want: 2, elsewhere: true, states: []scheduler.PolicyStateKind{scheduler.RefusedState}, status: statusNone, guaranteed: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 4)).AddTenants("a")
			pr := scheduler.ProjectSpec{ID: 3, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: int32(x.want)}
			if x.elsewhere {
				pr.GuaranteedDeparture = w.Now.Add(time.Hour)
			}
			if err := w.State.Events().PutProject(pr); err != nil {
				t.Fatal(err)
			}
			var id scheduler.JobID
			for range x.jobs {
				id = w.Submit("a", 1, schedtest.R(1, 1, 1), func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project = 3 })
			}
			for _, kind := range x.states {
				record(t, w, scheduler.PolicyState{PolicyStateKey: backfill.StateKey(kind, 3), At: w.Now})
			}
			cfg := fullConfig()
			v := view{cfg: &cfg, s: w.State, now: w.Now}
			j := w.State.Job(id)
			if got := v.guaranteeStatus(j); got != x.status {
				t.Errorf("status %d, want %d", got, x.status)
			}
			if v.hasProjectGuarantee(j) != x.guaranteed || v.wasRefused(j) != x.refused || w.State.Reservations().IsViolated(j) != x.over {
				t.Errorf("guaranteed %v, refused %v, violated %v, want %v, %v, %v", v.hasProjectGuarantee(j), v.wasRefused(j), w.State.Reservations().IsViolated(j), x.guaranteed, x.refused, x.over)
			}
		})
	}
}

// Owners are projects and single jobs; each has policy states of its own.
func TestAProjectAndAJobOfTheSameNumberAreTwoOwners(t *testing.T) {
	inProject, alone := &scheduler.Job{Spec: scheduler.JobSpec{ID: 5, Project: 7}}, &scheduler.Job{Spec: scheduler.JobSpec{ID: 7}}
	for name, x := range map[string]struct {
		job  *scheduler.Job
		want scheduler.PolicyStateKey
	}{
		"in a project": {inProject, scheduler.PolicyStateKey{Kind: scheduler.ViolatedState, Project: 7}},
		"alone":        {alone, scheduler.PolicyStateKey{Kind: scheduler.ViolatedState, Job: 7}},
	} {
		if got := backfill.StateKey(scheduler.ViolatedState, backfill.OwnerOf(x.job)); got != x.want {
			t.Errorf("%s: state %+v, want %+v", name, got, x.want)
		}
	}
	if backfill.OwnerOf(inProject) == backfill.OwnerOf(alone) {
		t.Error("a project and a job of the same number are one owner")
	}
}

// attemptCase is an attempt of a task that is predicted to take 20 s, and until when guarantees count on it, in seconds from its start; now
// is 10 s.
type attemptCase struct {
	bound            time.Duration
	deadline         bool // its job has a guaranteed one
	accepted         bool // its job has one that was accepted without a guarantee
	violated         bool // its job's guarantee is
	fixed            bool // the node can only freeze
	suspended        bool
	age              time.Duration // how long it runs, 10 s unless set
	end              scheduler.Time
	moves, preempted bool // end moves with time; nothing is occupied, since it is preempted
}

// A non-preemptible task counts until its bound, or its predicted end; past that for ten more
// seconds. A preemptible task does not count at all.
func TestWhatGuaranteesAssume(t *testing.T) {
	const s, never = time.Second, scheduler.Never
	at := func(n int) scheduler.Time { return scheduler.Time(n) * scheduler.Time(s) }
	for name, x := range map[string]attemptCase{
		"regular":                                 {preempted: true},
		"regular, with a bound":                   {bound: 30 * s, preempted: true},
		"regular, the node only freezes":          {fixed: true, end: never},
		"deadline without a guarantee":            {accepted: true, preempted: true},
		"such a deadline, the node only freezes":  {accepted: true, fixed: true, end: never},
		"bound, the node only freezes":            {fixed: true, bound: 30 * s, end: at(30)},
		"past its bound, the node only freezes":   {fixed: true, bound: 9 * s, end: at(20), moves: true},
		"deadline":                                {deadline: true, end: at(20)},
		"deadline, past its prediction":           {deadline: true, age: 25 * s, end: at(35), moves: true},
		"deadline, with a bound":                  {deadline: true, bound: 30 * s, end: at(30)},
		"deadline, past its bound":                {deadline: true, bound: 9 * s, end: at(20), moves: true},
		"deadline, exactly at its bound":          {deadline: true, bound: 10 * s, end: at(20), moves: true},
		"suspended, with a bound":                 {fixed: true, suspended: true, bound: 30 * s, end: at(30), moves: true},
		"suspended, nearly at its bound":          {fixed: true, suspended: true, bound: 12 * s, end: at(20), moves: true},
		"suspended, without a bound":              {fixed: true, suspended: true, end: never},
		"deadline, suspended, without a bound":    {deadline: true, suspended: true, end: never},
		"its guarantee is violated":               {violated: true, bound: 30 * s, preempted: true},
		"violated deadline, past its bound":       {deadline: true, violated: true, bound: 9 * s, end: at(10), moves: true}, // it gives way
		"violated deadline, before its bound":     {deadline: true, violated: true, bound: 30 * s, end: at(30)},
		"such a deadline, the node only freezes ": {deadline: true, violated: true, fixed: true, bound: 9 * s, end: at(20), moves: true},
		"violated, the node only freezes, bound":  {fixed: true, violated: true, bound: 9 * s, end: at(20), moves: true},
	} {
		t.Run(name, func(t *testing.T) { x.check(t) })
	}
}

func (x *attemptCase) check(t *testing.T) {
	w := schedtest.New(t).AddTenants("a")
	spec := schedtest.NodeSpec(0, "/r1", schedtest.R(4, 4, 10))
	if x.fixed {
		spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)
	}
	if err := w.State.Events().AddNode(spec); err != nil {
		t.Fatal(err)
	}
	w.Now = 0
	j := w.State.Job(w.Submit("a", 1, schedtest.R(1, 2, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
		if j.Bound, g.Estimate = x.bound, 20*time.Second; x.deadline || x.accepted {
			j.Deadline, j.AcceptedByQuote = w.Now.Add(time.Hour), x.accepted
		}
	}))
	if x.deadline {
		record(t, w, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.AcceptedState, Job: j.Spec.ID}, Value: int64(j.Spec.Deadline), At: j.Spec.Deadline})
	}
	a := w.Place(scheduler.TaskID{Job: j.Spec.ID}, 0)
	w.Start()
	if w.Advance(10 * time.Second); x.age > 0 {
		w.Now = scheduler.Time(x.age)
	}
	if x.violated {
		record(t, w, scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.ViolatedState, Job: j.Spec.ID, Slot: 1}, At: w.Now})
	}
	if x.suspended {
		act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: scheduler.LevelFrozen}
		if err := w.State.Apply(&act, w.Now); err != nil {
			t.Fatal(err)
		}
		if err := w.State.Events().AttemptSuspended(a.ID, a.Run, scheduler.LevelFrozen, scheduler.Footprint{Memory: schedtest.GiB}, w.Now); err != nil {
			t.Fatal(err)
		}
		a = w.State.Attempt(a.ID)
	}
	claim := assumptions{deadlines: true}.ClaimOf(w.State, a, w.Now)
	if x.preempted {
		if claim != (scheduler.Claim{ValidUntil: scheduler.Never}) {
			t.Errorf("it counts as %+v although it is preempted", claim)
		}
		return
	}
	valid := x.end
	if x.moves {
		valid = w.Now
	}
	if claim.End != x.end || claim.ValidUntil != valid || claim.Charged != x.deadline {
		t.Errorf("it counts until %v, which is valid until %v, charged %v; want %v, %v, %v", claim.End.Sub(0), claim.ValidUntil.Sub(0), claim.Charged, x.end.Sub(0), valid.Sub(0), x.deadline)
	}
	if want := schedtest.R(1, 2, 0); claim.Occupied.Resources != want { // a suspended one resumes
		t.Errorf("it occupies %v, want %v", claim.Occupied.Resources, want)
	}
}

// A job whose tasks would exceed a cap of its tenant or of one above, by itself or with what runs, has no end that anybody knows.
func TestExceedsCaps(t *testing.T) {
	for name, x := range map[string]struct {
		caps, above scheduler.Caps
		running     bool
		want        bool
	}{
		"no cap":                           {},
		"a task is too large":              {caps: scheduler.Caps{Task: scheduler.Limit(schedtest.R(1, 0, 0))}, want: true},
		"a task is as large as it may be":  {caps: scheduler.Caps{Task: scheduler.Limit(schedtest.R(2, 0, 0))}},
		"all together are too large":       {caps: scheduler.Caps{Job: scheduler.Limit(schedtest.R(5, 0, 0))}, want: true},
		"all together just fit":            {caps: scheduler.Caps{Job: scheduler.Limit(schedtest.R(6, 0, 0))}},
		"with what runs they just fit":     {caps: scheduler.Caps{Job: scheduler.Limit(schedtest.R(6, 0, 0))}, running: true},
		"with what runs they do not":       {caps: scheduler.Caps{Job: scheduler.Limit(schedtest.R(5, 0, 0))}, running: true, want: true},
		"the tenant may not have one task": {caps: scheduler.Caps{Total: scheduler.Limit(schedtest.R(1, 0, 0))}, want: true},
		"the tenant may have one task":     {caps: scheduler.Caps{Total: scheduler.Limit(schedtest.R(2, 0, 0))}},
		"the tenant above may not":         {above: scheduler.Caps{Total: scheduler.Limit(schedtest.R(0, 1, 0))}, want: true},
		"a job of the tenant above":        {above: scheduler.Caps{Job: scheduler.Limit(schedtest.R(0, 5, 0))}, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 8)).AddTenants("up", "up/a")
			for tenant, caps := range map[string]scheduler.Caps{"up": x.above, "a": x.caps} {
				spec := w.Tenant(tenant).Spec
				spec.Caps = caps
				if err := w.State.Events().PutTenant(spec); err != nil {
					t.Fatal(err)
				}
			}
			j := w.State.Job(w.Submit("a", 3, schedtest.R(2, 2, 0)))
			if x.running {
				w.Place(scheduler.TaskID{Job: j.Spec.ID}, 0)
			}
			c := newTestCycle(w, Config{})
			if got := (&plan{planning: &planning{c: c}}).exceedsCaps(j); got != x.want {
				t.Errorf("exceeds a cap: %v, want %v", got, x.want)
			}
		})
	}
}

// A guarantee needs an end that can be computed.
func TestAGuaranteeNeedsAComputableEnd(t *testing.T) {
	for name, x := range map[string]struct {
		bound, estimate time.Duration
		project         bool
		parallel        int32
		want            bool
		length          time.Duration // what a task is planned for, with a margin of 2 s
	}{
		"a bound":                        {bound: 30 * time.Second, length: 32 * time.Second},
		"a prediction":                   {estimate: 20 * time.Second, length: 22 * time.Second},
		"both: the bound":                {bound: 30 * time.Second, estimate: 20 * time.Second, length: 32 * time.Second},
		"neither":                        {want: true},
		"a project with a bound":         {project: true, bound: 30 * time.Second, length: 32 * time.Second},
		"a project with a prediction":    {project: true, estimate: 20 * time.Second, want: true, length: 22 * time.Second},
		"not all tasks may run at once":  {bound: 30 * time.Second, parallel: 2, want: true, length: 32 * time.Second},
		"just all tasks may run at once": {bound: 30 * time.Second, parallel: 3, length: 32 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(8, 8, 8)).AddTenants("a")
			if err := w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "p", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}); err != nil {
				t.Fatal(err)
			}
			j := w.State.Job(w.Submit("a", 3, schedtest.R(1, 1, 0), func(j *scheduler.JobSpec, g *scheduler.StageSpec) {
				if j.Bound, g.Estimate, g.MaxParallel = x.bound, x.estimate, x.parallel; x.project {
					j.Project = 1
				}
			}))
			c := newTestCycle(w, Config{Guarantees: Guarantees{Margin: 2 * time.Second}})
			b := &plan{planning: &planning{c: c}}
			if got := b.hasUnknownEnd(&owner{jobs: []*scheduler.Job{j}}); got != x.want {
				t.Errorf("its end is unknown: %v, want %v", got, x.want)
			}
			if got := b.taskDuration(j.Stages[0]); got != x.length {
				t.Errorf("a task is planned for %v, want %v", got, x.length)
			}
		})
	}
}

// The limits of a plan, by the formulas of its documentation.
func TestLargeRequestsArePlannedLaterAndLargeClustersReplanFewerTasks(t *testing.T) {
	for tasks, want := range map[int]time.Duration{0: 0, 399: 0, 400: 50 * time.Millisecond, 799: 50 * time.Millisecond, 4000: 500 * time.Millisecond} {
		if got := leadOf(tasks); got != want {
			t.Errorf("a request of %d tasks is planned %v later, want %v", tasks, got, want)
		}
	}
	for nodes, want := range map[int]int{0: 1024, 1: 1024, 1024: 1024, 2048: 512, 16384: 64, 1 << 20: 64} {
		if got := mostReplanned(nodes); got != want {
			t.Errorf("on %d nodes %d tasks are planned again, want %d", nodes, got, want)
		}
	}
}

// A task takes part in matching if it reads at least SmallTaskBytes from known nodes.
func TestUsesMatching(t *testing.T) {
	for name, x := range map[string]struct {
		bytes int64
		nodes []scheduler.NodeID
		off   bool
		want  bool
	}{
		"a block":           {bytes: 128 * schedtest.MiB, nodes: []scheduler.NodeID{0}, want: true},
		"just enough":       {bytes: schedtest.MiB, nodes: []scheduler.NodeID{0}, want: true},
		"too little":        {bytes: schedtest.MiB - 1, nodes: []scheduler.NodeID{0}},
		"nobody knows from": {bytes: 128 * schedtest.MiB},
		"switched off":      {bytes: 128 * schedtest.MiB, nodes: []scheduler.NodeID{0}, off: true},
	} {
		w := schedtest.New(t).AddNodes(1, schedtest.R(4, 4, 4)).AddTenants("a")
		g := w.State.Stage(scheduler.StageID{Job: w.SubmitStages("a", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1,
			Demand: schedtest.R(1, 1, 0), Inputs: schedtest.Inputs(x.bytes, x.nodes)}})})
		v := view{cfg: &Config{Locality: !x.off, SmallTaskBytes: schedtest.MiB}, s: w.State}
		if got := v.usesMatching(g); got != x.want {
			t.Errorf("%s: takes part %v, want %v", name, got, x.want)
		}
	}
}

// The numbers that a decision would be based on, for the example of 3DSF 7.1 and Table 1, and a stage that waits for its input.
func TestScoresShowTheNumbersOfADecisionAndChangeNothing(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(24, 36, 54)).AddTenants("a", "b=2")
	w.Submit("a", 1, schedtest.R(2, 4, 3)) // shares 2/24, 4/36 and 3/54
	laneJobSpec{1, 600, 550}.submit(w, true)
	w.Place(scheduler.TaskID{Job: w.Submit("b", 1, schedtest.R(12, 9, 0), func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Estimate = 3 * time.Second })}, 0)
	w.SubmitStages("b", []scheduler.StageSpec{{Name: "map", Kind: scheduler.KindMap, Tasks: 1, Demand: schedtest.R(24, 1, 0),
		Inputs: schedtest.Inputs(100*schedtest.MiB, []scheduler.NodeID{0})}})
	cfg := fullConfig()
	cfg.LASMQ, cfg.ReserveNodes, cfg.Network = nil, true, locality.Network{Bandwidth: 25 * schedtest.MiB}
	before := w.State.Stamp()
	got := New(cfg).Scores(w.State, w.Now)
	want := []string{
		"tenant a: share 0.0000, with its next task 0.1111", // 4/36
		"tenant b: share 0.2500, with its next task 0.7500", // 12/24 and 36/24, by a weight of 2
		"deadline job 2: latest start in 50s",
		"stage 4.0: node 0 of its input free in 3s, transfer 4s",
	}
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("scores\n%q, want\n%q", got, want)
		}
	}
	if w.State.Stamp() != before {
		t.Error("scores change the State")
	}
	if off := New(Config{Level: 1, Resources: 3, Preempt: deadline.None}).Scores(w.State, w.Now); len(off) != 1 { // the stage of b fits nowhere
		t.Errorf("without deadlines and locality: %q", off)
	}
}

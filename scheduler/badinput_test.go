package scheduler_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Bad input returns an error of a class, with words that name the object, and leaves the State
// unchanged.
func TestBadInputIsRefusedWithAReason(t *testing.T) {
	job := func(change func(*scheduler.JobSpec, *scheduler.StageSpec)) func(*schedtest.World) error {
		return func(w *schedtest.World) error {
			j := scheduler.JobSpec{ID: 7, Priority: scheduler.PriorityLow, Submitted: w.Now}
			g := scheduler.StageSpec{Kind: scheduler.KindGroup, Tasks: 2, Demand: schedtest.R(1, 1, 1)}
			change(&j, &g)
			return w.State.Events().SubmitJob(j, []scheduler.StageSpec{g})
		}
	}
	tenant := func(change func(*scheduler.TenantSpec)) func(*schedtest.World) error {
		return func(w *schedtest.World) error {
			spec := scheduler.TenantSpec{ID: 3, Name: "new", Parent: scheduler.NoTenant, Weight: 1}
			change(&spec)
			return w.State.Events().PutTenant(spec)
		}
	}
	node := func(change func(*scheduler.NodeSpec)) func(*schedtest.World) error {
		return func(w *schedtest.World) error {
			spec := schedtest.NodeSpec(1, "/r1", schedtest.R(1, 1, 1))
			change(&spec)
			return w.State.Events().AddNode(spec)
		}
	}
	for name, c := range map[string]struct {
		do    func(*schedtest.World) error
		class error
		words string
	}{
		"a negative demand":      {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Demand[scheduler.CPU] = -1 }), scheduler.ErrInvalid, "cpu is -1"},
		"an overflowing demand":  {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Demand[scheduler.IO] = math.MaxInt64 }), scheduler.ErrInvalid, "io is 9223372036854775807"},
		"negative disk space":    {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Disk = -1 }), scheduler.ErrInvalid, "disk space is -1"},
		"too many tasks":         {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Tasks = math.MaxInt32 }), scheduler.ErrInvalid, "tasks"},
		"no kind":                {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Kind = 0 }), scheduler.ErrInvalid, "use map, reduce or group"},
		"after a later stage":    {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.After = []int32{0} }), scheduler.ErrInvalid, "not an earlier one"},
		"slow start above 1":     {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.SlowStart = 2 }), scheduler.ErrInvalid, "slow_start is 2"},
		"slow start is NaN":      {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.SlowStart = math.NaN() }), scheduler.ErrInvalid, "slow_start"},
		"inputs for fewer tasks": {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) { g.Inputs = schedtest.Inputs(1, nil) }), scheduler.ErrInvalid, "inputs for 1 tasks of 2"},
		"an input on no node": {job(func(_ *scheduler.JobSpec, g *scheduler.StageSpec) {
			g.Inputs = schedtest.Inputs(1, nil, []scheduler.NodeID{-4})
		}), scheduler.ErrInvalid, "node -4"},
		"a deadline in the past":      {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Deadline = j.Submitted - 5 }), scheduler.ErrInvalid, "deadline is 5ns before"},
		"an unknown tenant":           {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Tenant = 9 }), scheduler.ErrUnknown, "tenant 9 is unknown"},
		"an unknown project":          {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Project = 9 }), scheduler.ErrUnknown, "project 9 is unknown"},
		"an id twice":                 {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.ID = 1 }), scheduler.ErrInvalid, "job 1"},
		"no id":                       {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.ID = 0 }), scheduler.ErrInvalid, "not a valid job id"},
		"no priority":                 {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Priority = 0 }), scheduler.ErrInvalid, "use low or high"},
		"a negative bound":            {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Bound = -1 }), scheduler.ErrInvalid, "runtime_bound"},
		"accepted without a deadline": {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.AcceptedByQuote = true }), scheduler.ErrInvalid, "accepted"},
		"a name that is not UTF-8":    {job(func(j *scheduler.JobSpec, _ *scheduler.StageSpec) { j.Name = "\xff" }), scheduler.ErrInvalid, "UTF-8"},
		"weight 0":                    {tenant(func(s *scheduler.TenantSpec) { s.Weight = 0 }), scheduler.ErrInvalid, "weight is 0"},
		"a weight that is NaN":        {tenant(func(s *scheduler.TenantSpec) { s.Weight = math.NaN() }), scheduler.ErrInvalid, "weight is NaN"},
		"a negative cap":              {tenant(func(s *scheduler.TenantSpec) { s.Caps.Job[scheduler.IO] = -1 }), scheduler.ErrInvalid, "cap for each job"},
		"an unknown parent":           {tenant(func(s *scheduler.TenantSpec) { s.Parent = 5 }), scheduler.ErrUnknown, "parent 5"},
		"a cycle of tenants":          {tenant(func(s *scheduler.TenantSpec) { s.ID, s.Name, s.Parent = 0, "a", 2 }), scheduler.ErrInvalid, "would be a cycle"},
		"a tenant below itself":       {tenant(func(s *scheduler.TenantSpec) { s.ID, s.Name, s.Parent = 0, "a", 0 }), scheduler.ErrInvalid, "would be a cycle"},
		"a tenant's name twice":       {tenant(func(s *scheduler.TenantSpec) { s.Name = "b" }), scheduler.ErrInvalid, "belongs to tenant 1"},
		"a gap in tenant ids":         {tenant(func(s *scheduler.TenantSpec) { s.ID = 8 }), scheduler.ErrInvalid, "the next one is 3"},
		"a gap in node ids":           {node(func(s *scheduler.NodeSpec) { s.ID = 5 }), scheduler.ErrInvalid, "the next one is 1"},
		"a node's name twice":         {node(func(s *scheduler.NodeSpec) { s.Name = "n1" }), scheduler.ErrInvalid, "n1"},
		"I/O without a disk":          {node(func(s *scheduler.NodeSpec) { s.Disks = nil }), scheduler.ErrInvalid, "disks have 0 together"},
		"a path without a slash":      {node(func(s *scheduler.NodeSpec) { s.Path = "r1" }), scheduler.ErrInvalid, "must look like"},
		"a negative capacity":         {node(func(s *scheduler.NodeSpec) { s.Capacity[scheduler.Memory] = -1 }), scheduler.ErrInvalid, "memory is -1"},
		"an unknown node":             {func(w *schedtest.World) error { return w.State.Events().NodeLost(4, w.Now) }, scheduler.ErrUnknown, "node 4"},
		"an unknown job":              {func(w *schedtest.World) error { return w.State.Events().StopJob(4) }, scheduler.ErrUnknown, "job 4"},
		"end of a running job":        {func(w *schedtest.World) error { return w.State.Events().EndJob(1) }, scheduler.ErrInvalid, "1 live attempts"},
		"a project with negative jobs": {func(w *schedtest.World) error {
			return w.State.Events().PutProject(scheduler.ProjectSpec{ID: 1, Priority: scheduler.PriorityLow, Jobs: -1})
		}, scheduler.ErrInvalid, "-1 jobs"},
		"an attempt that does not exist": {func(w *schedtest.World) error {
			return w.State.Events().AttemptEnded(scheduler.AttemptID{TaskID: task(1, 0), Attempt: 2}, 1, scheduler.OutcomeLost, w.Now)
		}, scheduler.ErrStale, "not live"},
		"a run that is not current": {func(w *schedtest.World) error {
			return w.State.Events().AttemptEnded(scheduler.AttemptID{TaskID: task(1, 0), Attempt: 1}, 2, scheduler.OutcomeLost, w.Now)
		}, scheduler.ErrStale, "not the current run 1"},
		"progress above 1": {func(w *schedtest.World) error {
			return w.State.Events().AttemptProgress(scheduler.AttemptID{TaskID: task(1, 0), Attempt: 1}, 1, 1.5, 0)
		}, scheduler.ErrInvalid, "1.5"},
		"a reservation on disk -2": {func(w *schedtest.World) error {
			return w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: 1, Kind: scheduler.ReservePreempt, Job: 1,
				Stage: -1, Task: -1, Demand: schedtest.R(1, 1, 1), OnDisk: -2, Start: w.Now, End: w.Now}}, w.Now)
		}, scheduler.ErrInvalid, "its disk is -2"},
		"an infinite policy state": {func(w *schedtest.World) error {
			return w.State.PolicyStates().Apply([]scheduler.PolicyState{{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.DeficitState}, Real: math.Inf(1)}})
		}, scheduler.ErrInvalid, "+Inf"},
	} {
		t.Run(name, func(t *testing.T) {
			w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a", "a/b", "b/c")
			w.Submit("b", 1, schedtest.R(1, 1, 1))
			w.Place(task(1, 0), 0)
			before := schedtest.Bytes(w.State)
			err := c.do(w)
			if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.words) {
				t.Errorf("got %v, want %v with %q", err, c.class, c.words)
			}
			if string(before) != string(schedtest.Bytes(w.State)) {
				t.Error("the State changed")
			}
		})
	}
}

func TestANodeMayShrinkBelowWhatRunsOnIt(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	w.Submit("a", 3, schedtest.R(2, 1, 1))
	w.Place(task(1, 0), 0)
	w.Place(task(1, 1), 0)
	spec := w.State.Node(0).Spec
	spec.Capacity[scheduler.CPU] = 1000
	if err := w.State.Events().UpdateNode(spec); err != nil {
		t.Fatal(err)
	}
	g := w.State.Stage(scheduler.StageID{Job: 1})
	if free := w.State.Node(0).Free[scheduler.CPU]; free != -3000 || g.Running != 2 {
		t.Errorf("free %d with %d running", free, g.Running)
	}
	if n, _ := w.State.Cluster().BestNode(g, nil); n != scheduler.NoNode {
		t.Error("a task is placed on an overcommitted node")
	}
	a := w.State.Attempts().PlaceAction(g, 2, 0, 0)
	if err := w.State.Apply(&a, w.Now); !errors.Is(err, scheduler.ErrNoCapacity) {
		t.Errorf("placed: %v", err)
	}
	if err := w.State.ApplyFact(&a, w.Now); err != nil || w.State.Node(0).Free[scheduler.CPU] != -5000 {
		t.Errorf("ApplyFact of a committed action: %v", err)
	}
}

func TestACapBelowOneTaskKeepsItPendingForEver(t *testing.T) {
	w := schedtest.New(t).AddNodes(1, schedtest.R(4, 8, 100)).AddTenants("a")
	spec := w.Tenant("a").Spec
	spec.Caps.Total[scheduler.CPU] = 500
	if err := w.State.Events().PutTenant(spec); err != nil {
		t.Fatal(err)
	}
	w.Submit("a", 1, schedtest.R(1, 1, 1))
	why := w.State.TenantTree().Waiting(w.State.Stage(scheduler.StageID{Job: 1}))
	if why.Reason != scheduler.ReasonCap || why.Tenant != 0 || why.Cap != scheduler.CapTotal || why.Resource != scheduler.CPU {
		t.Errorf("got %+v", why)
	}
}

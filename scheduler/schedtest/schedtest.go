// Package schedtest builds States for tests in a few lines. A builder fails the test at once
// if State refuses its input.
package schedtest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Units for demands and capacities.
const (
	MiB = int64(1) << 20
	GiB = int64(1) << 30
)

// TB is the part of a test that the builders use (testing.T, testing.B, rapid.T).
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// World is a State and a clock, with helpers for tests.
type World struct {
	TB
	State   *scheduler.State
	Now     scheduler.Time
	nextJob scheduler.JobID
}

// New returns an empty world at second 1.
func New(t TB) *World {
	return &World{TB: t, State: scheduler.New(), Now: scheduler.Time(time.Second)}
}

func (w *World) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("schedtest: %v", err)
	}
}

// R returns the Resources for cores, GiB of memory and MiB/s of disk I/O.
func R(cores, gib, mibs float64) scheduler.Resources {
	return scheduler.Resources{int64(cores * 1000), int64(gib * float64(GiB)), int64(mibs * float64(MiB))}
}

// AddNodes adds n nodes "n1", "n2", … of this capacity in one rack. Each supports all levels
// and has one disk of 1 TiB with all the I/O.
func (w *World) AddNodes(n int, capacity scheduler.Resources) *World {
	w.Helper()
	return w.AddRack("/r1", n, capacity)
}

// AddRack is AddNodes below a topology path.
func (w *World) AddRack(path string, n int, capacity scheduler.Resources) *World {
	w.Helper()
	for range n {
		id := scheduler.NodeID(len(w.State.Nodes()))
		w.must(w.State.Events().AddNode(NodeSpec(id, path, capacity)))
	}
	return w
}

// NodeSpec returns the spec of the node that AddRack adds.
func NodeSpec(id scheduler.NodeID, path string, capacity scheduler.Resources) scheduler.NodeSpec {
	return scheduler.NodeSpec{ID: id, Name: fmt.Sprintf("n%d", id+1), Path: path, Capacity: capacity, Swap: 64 * GiB,
		Disks: []scheduler.Disk{{Name: "sda", IO: capacity[scheduler.IO], Space: 1024 * GiB}}, Levels: scheduler.AllLevels}
}

// AddTenants adds tenants with weight 1, each given as "name" or "name=weight", or as
// "parent/name=weight" below another tenant.
func (w *World) AddTenants(names ...string) *World {
	w.Helper()
	for _, n := range names {
		spec := scheduler.TenantSpec{ID: scheduler.TenantID(len(w.State.Tenants())), Parent: scheduler.NoTenant, Weight: 1}
		path, weight, weighted := strings.Cut(n, "=")
		if weighted {
			if _, err := fmt.Sscanf(weight, "%g", &spec.Weight); err != nil {
				w.Fatalf("schedtest: tenant %q: %v", n, err)
			}
		}
		if i := strings.LastIndex(path, "/"); i >= 0 {
			spec.Parent = w.Tenant(path[:i]).Spec.ID
			path = path[i+1:]
		}
		spec.Name = path
		w.must(w.State.Events().PutTenant(spec))
	}
	return w
}

// Tenant returns a tenant by name. It fails the test if there is none.
func (w *World) Tenant(name string) *scheduler.Tenant {
	w.Helper()
	name = name[strings.LastIndex(name, "/")+1:]
	i := slices.IndexFunc(w.State.Tenants(), func(t *scheduler.Tenant) bool { return t.Spec.Name == name })
	if i < 0 {
		w.Fatalf("schedtest: no tenant %q", name)
	}
	return w.State.Tenants()[i]
}

// Submit submits a job of one group stage, now, with low priority; change may alter the specs
// first.
func (w *World) Submit(tenant string, tasks int32, demand scheduler.Resources, change ...func(*scheduler.JobSpec, *scheduler.StageSpec)) scheduler.JobID {
	w.Helper()
	w.nextJob++
	job := scheduler.JobSpec{ID: w.nextJob, Name: fmt.Sprintf("job%d", w.nextJob), Tenant: w.Tenant(tenant).Spec.ID,
		Priority: scheduler.PriorityLow, Submitted: w.Now}
	stage := scheduler.StageSpec{Name: "main", Kind: scheduler.KindGroup, Tasks: tasks, Demand: demand}
	for _, c := range change {
		c(&job, &stage)
	}
	w.must(w.State.Events().SubmitJob(job, []scheduler.StageSpec{stage}))
	return job.ID
}

// SubmitStages submits a job of several stages, now, with low priority.
func (w *World) SubmitStages(tenant string, stages []scheduler.StageSpec, change ...func(*scheduler.JobSpec)) scheduler.JobID {
	w.Helper()
	w.nextJob++
	job := scheduler.JobSpec{ID: w.nextJob, Name: fmt.Sprintf("job%d", w.nextJob), Tenant: w.Tenant(tenant).Spec.ID,
		Priority: scheduler.PriorityLow, Submitted: w.Now}
	for _, c := range change {
		c(&job)
	}
	w.must(w.State.Events().SubmitJob(job, stages))
	return job.ID
}

// Inputs returns the inputs of tasks that each read this number of bytes; nodes lists the
// replicas of each task.
func Inputs(bytes int64, nodes ...[]scheduler.NodeID) *scheduler.Inputs {
	in := &scheduler.Inputs{Start: []int32{0}}
	for _, n := range nodes {
		in.Bytes = append(in.Bytes, bytes)
		in.Nodes = append(in.Nodes, n...)
		in.Start = append(in.Start, int32(len(in.Nodes)))
	}
	return in
}

// Cycle runs one cycle of at most 10,000 actions in which every decision is accepted.
func (w *World) Cycle(p scheduler.Policy) scheduler.Decision {
	w.Helper()
	d, err := scheduler.Cycle(w.State, p, w.Now, 10_000, scheduler.AcceptAll)
	w.must(err)
	return d
}

// Place places a task on a node's first disk and returns the attempt.
func (w *World) Place(task scheduler.TaskID, node scheduler.NodeID) *scheduler.Attempt {
	w.Helper()
	g := w.State.Stage(task.StageID())
	if g == nil {
		w.Fatalf("schedtest: no stage %s", task.StageID())
	}
	a := w.State.Attempts().PlaceAction(g, task.Index, node, 0)
	w.must(w.State.Apply(&a, w.Now))
	return w.State.Attempt(a.AttemptID())
}

// Start reports all placed attempts as running.
func (w *World) Start() *World {
	w.Helper()
	for _, a := range w.Attempts() {
		if a.Phase == scheduler.AttemptStarting {
			w.must(w.State.Events().AttemptStarted(a.ID, a.Run, w.Now))
		}
	}
	return w
}

// Attempts returns all live attempts by job, stage and task.
func (w *World) Attempts() []*scheduler.Attempt {
	var out []*scheduler.Attempt
	for j := range w.State.Jobs() {
		for _, g := range j.Stages {
			for a := range w.State.Attempts().In(g) {
				out = append(out, a)
			}
		}
	}
	return out
}

// End reports an attempt as ended.
func (w *World) End(a *scheduler.Attempt, o scheduler.Outcome) *World {
	w.Helper()
	w.must(w.State.Events().AttemptEnded(a.ID, a.Run, o, w.Now))
	return w
}

// Advance moves the clock by d.
func (w *World) Advance(d time.Duration) *World {
	w.Now = w.Now.Add(d)
	return w
}

// LeaveReservations adds empty reservations, for a project without jobs on a separate node that
// takes no tasks, until the State accepts only left more.
func (w *World) LeaveReservations(left int) *World {
	w.Helper()
	node := scheduler.NodeID(len(w.State.Nodes()))
	spec := NodeSpec(node, "/reserved", R(1, 1, 1))
	spec.Draining = true
	w.must(w.State.Events().AddNode(spec))
	const project = 1 << 40
	w.must(w.State.Events().PutProject(scheduler.ProjectSpec{ID: project, Name: "reserved", Priority: scheduler.PriorityLow, Submitted: w.Now, Jobs: 1}))
	for w.State.Reservations().Left() > left {
		w.must(w.State.Apply(&scheduler.Action{Kind: scheduler.ActReserve, Reservation: scheduler.Reservation{ID: w.State.Reservations().NextID(),
			Kind: scheduler.ReserveData, Project: project, Stage: -1, Task: -1, Node: node, Start: w.Now, End: scheduler.Never}}, w.Now))
	}
	return w
}

// DropReservation deletes one of the reservations of LeaveReservations.
func (w *World) DropReservation() *World {
	w.Helper()
	all := w.State.Reservations().On(scheduler.NodeID(len(w.State.Nodes()) - 1))
	act := scheduler.Unreserve(all[len(all)-1].ID)
	w.must(w.State.Apply(&act, w.Now))
	return w
}

// Complete reports whether every task of every stage of a job is done.
func Complete(j *scheduler.Job) bool {
	return !slices.ContainsFunc(j.Stages, func(g *scheduler.Stage) bool { return g.Done < g.Spec.Tasks })
}

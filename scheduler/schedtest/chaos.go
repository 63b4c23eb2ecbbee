package schedtest

import (
	"math/rand/v2"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Chaos applies random events to a world, reproducibly for a seed: clusters of a few nodes
// with up to three disks, a tree of tenants with caps, jobs of all kinds, ends, failures,
// suspensions, lost nodes.
type Chaos struct {
	*World
	R     *rand.Rand
	parks *rand.Rand // separate from R, so that parking does not change the other events of a seed
}

// NewChaos returns a random cluster.
func NewChaos(t TB, seed uint64) *Chaos {
	c := &Chaos{World: New(t), R: rand.New(rand.NewPCG(seed, 0x5eed)), parks: rand.New(rand.NewPCG(seed, 0x9a2c))}
	for range 1 + c.R.IntN(7) {
		c.addNode()
	}
	for range 1 + c.R.IntN(6) {
		c.addTenant()
	}
	return c
}

// oneIn returns true with probability 1/n.
func (c *Chaos) oneIn(n int) bool { return c.R.IntN(n) == 0 }

func (c *Chaos) addNode() {
	id := scheduler.NodeID(len(c.State.Nodes()))
	spec := NodeSpec(id, []string{"/a/r1", "/a/r2", "/b/r3", ""}[c.R.IntN(4)], R(float64(1+c.R.IntN(8)), float64(1+c.R.IntN(16)), 0))
	spec.Disks = nil
	for range c.R.IntN(4) {
		d := scheduler.Disk{Name: "d", IO: int64(c.R.IntN(200)) * MiB, Space: int64(c.R.IntN(50)) * GiB}
		spec.Disks = append(spec.Disks, d)
		spec.Capacity[scheduler.IO] += d.IO
	}
	spec.CPUClass = []string{"x", "y"}[c.R.IntN(2)]
	switch c.R.IntN(4) {
	case 0:
		spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen)
	case 1:
		spec.Levels = scheduler.Levels(scheduler.LevelRunning, scheduler.LevelFrozen, scheduler.LevelSwapped)
		spec.Swap = int64(c.R.IntN(16)) * GiB
	}
	c.must(c.State.Events().AddNode(spec))
}

func (c *Chaos) addTenant() {
	id := scheduler.TenantID(len(c.State.Tenants()))
	spec := scheduler.TenantSpec{ID: id, Name: string(rune('a' + int(id)%26)), Parent: scheduler.NoTenant, Weight: float64(1 + c.R.IntN(4))}
	if id >= 26 {
		return
	}
	if id > 0 && c.oneIn(2) {
		spec.Parent = scheduler.TenantID(c.R.IntN(int(id)))
	}
	if c.oneIn(4) {
		spec.Caps.Total = scheduler.Limit(R(float64(1+c.R.IntN(6)), 0, 0))
	}
	if c.oneIn(5) {
		spec.Caps.Job = scheduler.Limit(R(0, float64(1+c.R.IntN(6)), 0))
	}
	if c.oneIn(6) {
		spec.Caps.Task = scheduler.Limit(R(0, 0, float64(50+c.R.IntN(100))))
	}
	c.must(c.State.Events().PutTenant(spec))
}

// demand returns a random demand; one in eight has a part set to zero.
func (c *Chaos) demand() scheduler.Resources {
	d := R(float64(1+c.R.IntN(8))/2, float64(1+c.R.IntN(8))/2, float64(c.R.IntN(60)))
	if c.oneIn(8) {
		d[c.R.IntN(3)] = 0
	}
	return d
}

func (c *Chaos) stage(kind scheduler.StageKind, tasks int32) scheduler.StageSpec {
	g := scheduler.StageSpec{Name: kind.String(), Kind: kind, Tasks: tasks, Demand: c.demand(),
		Estimate: time.Duration(c.R.IntN(100)) * time.Second}
	if c.oneIn(3) {
		g.Disk = int64(c.R.IntN(8)) * GiB
	}
	if c.oneIn(5) {
		g.MaxParallel = int32(1 + c.R.IntN(3))
	}
	if c.oneIn(4) {
		g.MaxAttempts = int32(1 + c.R.IntN(2))
	}
	return g
}

// submit submits a random job.
func (c *Chaos) submit() scheduler.JobID {
	var stages []scheduler.StageSpec
	if c.oneIn(2) {
		maps := c.stage(scheduler.KindMap, int32(1+c.R.IntN(12)))
		if c.oneIn(2) {
			var on [][]scheduler.NodeID
			for range maps.Tasks {
				on = append(on, c.replicas())
			}
			maps.Inputs = Inputs(int64(1+c.R.IntN(256))*MiB, on...)
		}
		reduces := c.stage(scheduler.KindReduce, int32(c.R.IntN(4)))
		reduces.After = []int32{0}
		reduces.SlowStart = float64(c.R.IntN(3)) / 2
		stages = append(stages, maps, reduces)
	} else {
		stages = append(stages, c.stage(scheduler.KindGroup, int32(c.R.IntN(10))))
		if c.oneIn(3) {
			next := c.stage(scheduler.KindGroup, int32(c.R.IntN(3)))
			next.After = []int32{0}
			stages = append(stages, next)
		}
	}
	tenant := c.State.Tenants()[c.R.IntN(len(c.State.Tenants()))].Spec.Name
	return c.SubmitStages(tenant, stages, func(j *scheduler.JobSpec) {
		j.Priority = scheduler.Priority(1 + c.R.IntN(2))
		j.Size = float64(c.R.IntN(1000))
		if c.oneIn(4) {
			j.Deadline = j.Submitted.Add(time.Duration(1+c.R.IntN(500)) * time.Second)
			j.Estimate = time.Duration(1+c.R.IntN(100)) * time.Second
			j.AcceptedByQuote = c.oneIn(2)
		}
		if c.oneIn(4) {
			j.Bound = time.Duration(1+c.R.IntN(200)) * time.Second
		}
		if c.oneIn(6) {
			j.Submitted -= scheduler.Time(c.R.IntN(int(time.Second)))
		}
	})
}

func (c *Chaos) replicas() []scheduler.NodeID {
	var on []scheduler.NodeID
	for _, n := range c.R.Perm(len(c.State.Nodes()))[:min(3, len(c.State.Nodes()))] {
		on = append(on, scheduler.NodeID(n))
	}
	return on
}

// Step advances the clock by up to 5 s and applies one random event.
func (c *Chaos) Step() {
	c.Helper()
	c.Now = c.Now.Add(time.Duration(c.R.IntN(5000)) * time.Millisecond)
	switch k := c.R.IntN(20); {
	case k < 5:
		c.submit()
	case k < 16:
		c.attemptEvent()
	case k < 18:
		c.nodeEvent()
	default:
		c.jobEvent()
	}
}

func (c *Chaos) attemptEvent() {
	all := c.Attempts()
	if len(all) == 0 {
		return
	}
	c.park(all)
	a := all[c.R.IntN(len(all))]
	switch a.Phase {
	case scheduler.AttemptStarting:
		c.must(c.State.Events().AttemptStarted(a.ID, a.Run, c.Now))
	case scheduler.AttemptSuspending:
		has := scheduler.Footprint{Memory: a.Demand[scheduler.Memory] / 2, Files: a.DiskSpace / 2}
		if a.Target == scheduler.LevelSwapped {
			has.Swap = has.Memory / 2
		}
		if c.oneIn(5) {
			refused := a.RefusedLevels | scheduler.Levels(a.Target)
			c.must(c.State.Events().AttemptResumed(a.ID, a.Run, c.Now))
			c.must(c.State.Events().SetRefusedLevels(a.ID, a.Run, refused))
		} else {
			c.must(c.State.Events().AttemptSuspended(a.ID, a.Run, a.Target, has, c.Now))
		}
	case scheduler.AttemptResuming:
		c.must(c.State.Events().AttemptResumed(a.ID, a.Run, c.Now))
	case scheduler.AttemptKilling:
		c.must(c.State.Events().AttemptEnded(a.ID, a.Run, scheduler.OutcomeKilled, c.Now))
	default:
		if c.oneIn(3) {
			c.must(c.State.Events().AttemptProgress(a.ID, a.Run, c.R.Float64(), time.Duration(c.R.IntN(100))*time.Second))
			return
		}
		o := scheduler.OutcomeSucceeded
		if c.oneIn(3) {
			o = scheduler.Outcome(1 + c.R.IntN(5))
		}
		if a.Phase == scheduler.AttemptSuspended {
			o = scheduler.OutcomeLost
		}
		c.must(c.State.Events().AttemptEnded(a.ID, a.Run, o, c.Now))
	}
}

// park sometimes parks one of these suspended attempts, or ends its parking; or it corrects the attempt's times.
func (c *Chaos) park(attempts []*scheduler.Attempt) {
	a := attempts[c.parks.IntN(len(attempts))]
	switch {
	case a.Suspends > 0 && c.parks.IntN(3) == 0:
		earlier := time.Duration(c.parks.IntN(3000)) * time.Millisecond
		c.must(c.State.Events().SetTimes(a.ID, a.Run, scheduler.AttemptTimes{Placed: max(0, a.Placed.Add(-earlier)), Ran: a.Ran + earlier/2,
			SuspendedAt: max(0, a.SuspendedAt.Add(-earlier)), Suspends: a.Suspends}))
	case a.Phase == scheduler.AttemptSuspended:
		c.must(c.State.Events().SetParked(a.ID, a.Run, !a.Parked))
	}
}

func (c *Chaos) nodeEvent() {
	n := c.State.Nodes()[c.R.IntN(len(c.State.Nodes()))]
	switch c.R.IntN(6) {
	case 0:
		c.must(c.State.Events().NodeLost(n.Spec.ID, c.Now))
	case 1:
		c.must(c.State.Events().SetDrain(n.Spec.ID, !n.Spec.Draining))
	case 2:
		spec := n.Spec
		spec.Capacity[scheduler.CPU] = int64(1+c.R.IntN(8)) * 1000
		c.must(c.State.Events().UpdateNode(spec))
	default:
		c.must(c.State.Events().NodeUp(n.Spec.ID))
		c.must(c.State.Events().SetDrain(n.Spec.ID, false))
	}
}

// OrderWindows orders maintenance of random nodes, or cancels it. Some nodes that should be away
// are drained.
func (c *Chaos) OrderWindows() {
	for _, n := range c.State.Nodes() {
		if c.R.IntN(3) > 0 {
			continue
		}
		var list []scheduler.Window
		at := c.Now.Add(time.Duration(c.R.IntN(40)-10) * time.Second)
		for range c.R.IntN(3) {
			w := scheduler.Window{From: at, To: at.Add(time.Duration(1+c.R.IntN(60)) * time.Second)}
			if c.R.IntN(8) == 0 {
				w.To = scheduler.Never
			}
			if list = append(list, w); w.To == scheduler.Never {
				break
			}
			at = w.To.Add(time.Duration(c.R.IntN(20)) * time.Second)
		}
		c.must(c.State.Events().SetWindows(n.Spec.ID, list))
		if n.AwayWithin(c.Now, c.Now+1) && c.R.IntN(2) == 0 {
			c.must(c.State.Events().SetDrain(n.Spec.ID, true))
		}
	}
}

func (c *Chaos) jobEvent() {
	var jobs []*scheduler.Job
	for j := range c.State.Jobs() {
		jobs = append(jobs, j)
	}
	if len(jobs) == 0 {
		return
	}
	j := jobs[c.R.IntN(len(jobs))]
	if j.Live == 0 && (Complete(j) || j.Phase != scheduler.JobActive) {
		c.must(c.State.Events().EndJob(j.Spec.ID))
		return
	}
	g := j.Stages[0]
	switch {
	case c.oneIn(4):
		c.must(c.State.Events().StopJob(j.Spec.ID))
	case g.Spec.Inputs != nil && c.oneIn(2):
		c.must(c.State.Events().SetInput(g.Task(0), c.replicas(), nil))
	case g.IsDone(0):
		_ = c.State.Events().OutputLost(g.Task(0)) // stale while a killed second attempt is live
	}
}

// Actions returns up to n random actions; most of them are applicable.
func (c *Chaos) Actions(n int) []scheduler.Action {
	var out []scheduler.Action
	for range n {
		if a, ok := c.action(); ok {
			out = append(out, a)
		}
	}
	return out
}

// placement returns the start of a random task that waits, on a random node that fits it.
func (c *Chaos) placement() (scheduler.Action, bool) {
	var ready []*scheduler.Stage
	for j := range c.State.Jobs() {
		for _, g := range j.Stages {
			if g.Ready() {
				ready = append(ready, g)
			}
		}
	}
	nodes := c.State.Nodes()
	for _, i := range c.R.Perm(len(ready)) {
		g := ready[i]
		id := c.State.Cluster().NextNode(g, scheduler.NodeID(c.R.IntN(len(nodes))))
		if id == scheduler.NoNode {
			id = c.State.Cluster().NextNode(g, 0)
		}
		if id == scheduler.NoNode {
			continue
		}
		task := g.NextPending(int32(c.R.IntN(int(g.Pending) + 1)))
		if task < 0 {
			task = g.NextPending(0)
		}
		disk, _ := nodes[id].Fits(g.Spec.Demand, g.Spec.Disk)
		return c.State.Attempts().PlaceAction(g, task, id, disk), true
	}
	return scheduler.Action{}, false
}

func (c *Chaos) action() (scheduler.Action, bool) {
	all := c.Attempts()
	if len(all) > 0 && c.oneIn(2) {
		a := all[c.R.IntN(len(all))]
		act := scheduler.Action{Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run}
		switch c.R.IntN(5) {
		case 0:
			act.Kind, act.Level = scheduler.ActSuspend, scheduler.Level(2+c.R.IntN(3))
		case 1:
			act.Kind = scheduler.ActResume
		case 2:
			act.Kind, act.Run = scheduler.ActMigrate, a.Run+1
			act.Node = scheduler.NodeID(c.R.IntN(len(c.State.Nodes())))
			act.Disk = int16(c.R.IntN(3) - 1)
		case 3:
			act.Kind = scheduler.ActKill
		default:
			act = c.State.Attempts().PlaceAction(c.State.StageOf(a), a.ID.Index, scheduler.NodeID(c.R.IntN(len(c.State.Nodes()))), int16(c.R.IntN(3)-1))
			act.Attempt = c.State.Attempts().NextAttempt(c.State.StageOf(a), a.ID.Index)
			act.Speculative = true
		}
		return act, true
	}
	if !c.oneIn(6) {
		if act, ok := c.placement(); ok {
			return act, true
		}
	}
	for j := range c.State.Jobs() {
		if c.oneIn(2) {
			kind := scheduler.ActReserve
			if c.oneIn(3) {
				kind = scheduler.ActUnreserve
			}
			start := c.Now.Add(time.Duration(c.R.IntN(4)) * time.Second)
			return scheduler.Action{Kind: kind, Reservation: scheduler.Reservation{ID: scheduler.ReservationID(1 + c.R.IntN(9)),
				Kind: scheduler.ReserveData, Job: j.Spec.ID, Stage: -1, Task: -1, Node: scheduler.NodeID(c.R.IntN(len(c.State.Nodes()))),
				Start: start, End: start.Add(time.Minute)}}, true
		}
	}
	return scheduler.Action{}, false
}

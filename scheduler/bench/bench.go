// Package bench is the engine of `drover bench scheduler`: it generates a cluster and its work from
// a seed, keeps the cluster at a load, and measures what a policy does there. It reads no clock and
// no memory counters: the caller provides them (Meter), so that equal seeds run the same work.
//
// Nodes have 32 cores, 128 GiB and one disk of 1 GB/s, in racks of 40; tasks have one of 20
// demands. In the steady state each cycle ends and submits as many tasks as the previous one
// placed. Measured are Decide, Check, apply and the ends of attempts together (scheduler.Cycle and
// Events.AttemptEnded); submissions and reports of starts, suspensions and resumes are not.
//
// FeaturesAll has a tree of weighted tenants; map tasks with three replicas each, two of them in
// one rack; 5% of the jobs with an accepted deadline, some of them with large tasks that leave no
// time to wait, so that other tasks are suspended for them; and projects of five jobs that wait
// with one reservation per task, whose capacity is preempted when the reservation is due.
// Evaluators that are independent of the policy check its decisions: shares, matching, reasons.
package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Features selects what the work requires of the policy.
type Features string

// The feature sets; the package comment describes FeaturesAll.
const (
	FeaturesPlain Features = "plain"
	FeaturesAll   Features = "all"
)

// Config is one benchmark case.
type Config struct {
	Nodes        int
	WaitingTasks int // waiting tasks in addition to those that start
	Tenants      int
	Features     Features
	Policy       string
	Params       map[string]string
	// Placements is the number of placements to measure after the cluster is at its load.
	Placements int
	// maxActions limits the actions of a cycle and is the number of tasks that end in each.
	maxActions int
	targetLoad float64 // utilisation of the most used resource
	Seed       uint64
	// projects is the number of projects that wait with reservations (FeaturesAll), with 5 jobs
	// each.
	projects int
	// Planning lets the policy make and repair the guarantees of projects itself, if it can.
	// Otherwise World reserves for the projects before the measurement: the virtual time between
	// cycles is so long (see cycleInterval) that a plan repaired every few seconds would be
	// repaired every few cycles.
	Planning bool
}

// defaults returns c with defaults for zero fields: 1,000 nodes, 1 tenant (1,000 for all), policy
// fifo (3dsf for all), 200,000 placements, 1,000 actions, load 0.95.
func (c Config) defaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Features == "" {
		c.Features = FeaturesPlain
	}
	def(&c.Nodes, 1000)
	def(&c.Placements, 200_000)
	def(&c.maxActions, 1000)
	if c.Features == FeaturesAll {
		def(&c.Tenants, 1000)
		def(&c.WaitingTasks, 20_000)
		def(&c.projects, 1000)
	}
	def(&c.Tenants, 1)
	if c.Policy == "" {
		c.Policy = map[Features]string{FeaturesPlain: "fifo", FeaturesAll: "3dsf"}[c.Features]
	}
	if c.targetLoad == 0 {
		c.targetLoad = 0.95
	}
	if c.Seed == 0 {
		c.Seed = 1
	}
	return c
}

func (c *Config) check() error {
	switch {
	case c.Features != FeaturesPlain && c.Features != FeaturesAll:
		return fmt.Errorf("features %q: use plain or all", c.Features)
	case c.Nodes < 1 || c.Nodes > 100_000:
		return fmt.Errorf("%d nodes: 1 to 100000", c.Nodes)
	case c.WaitingTasks < 0 || c.WaitingTasks > 10_000_000:
		return fmt.Errorf("%d tasks: 0 to 10000000", c.WaitingTasks)
	case c.Tenants < 1 || c.Tenants > 100_000:
		return fmt.Errorf("%d tenants: 1 to 100000", c.Tenants)
	case c.Placements < 1 || c.maxActions < 1:
		return fmt.Errorf("%d placements, %d actions a cycle: at least 1", c.Placements, c.maxActions)
	case !(c.targetLoad > 0 && c.targetLoad <= 1):
		return fmt.Errorf("load %v: must be above 0 and at most 1", c.targetLoad)
	}
	return nil
}

// Meter reads the clock and the counters of this process: elapsed time, CPU time (which is less
// affected by other processes), heap allocations made so far, and resident bytes.
type Meter struct {
	Clock  func() time.Duration
	CPU    func() time.Duration
	Allocs func() uint64
	RSS    func() uint64
}

// Result is the measurement of one case and the JSON of `drover bench scheduler -json`.
type Result struct {
	Nodes               int      `json:"nodes"`
	Features            Features `json:"features"`
	Policy              string   `json:"policy"`
	Tenants             int      `json:"tenants"`
	Seed                uint64   `json:"seed"`
	Runs                int      `json:"runs"` // the result is the median of this many runs, by placements/s
	SlowestPerS         float64  `json:"placements_per_s_min"`
	FastestPerS         float64  `json:"placements_per_s_max"`
	Tasks               int      `json:"tasks"` // Config.WaitingTasks
	Placements          int      `json:"placements"`
	PlacementsPerS      float64  `json:"placements_per_s"`
	Cycles              int      `json:"cycles"`
	CycleP50MS          float64  `json:"cycle_p50_ms"`
	CycleP99MS          float64  `json:"cycle_p99_ms"`
	PlacementsPerCPUS   float64  `json:"placements_per_cpu_s"` // by the CPU time of all threads, including the garbage collector's
	CycleCPUP50MS       float64  `json:"cycle_cpu_p50_ms"`
	CycleCPUP99MS       float64  `json:"cycle_cpu_p99_ms"`
	AllocsPerPlacement  float64  `json:"allocs_per_placement"`
	RSSBytes            uint64   `json:"rss_bytes"`
	NodeLocal           float64  `json:"node_local"`        // fraction of placements with input that are on a node with it
	ShareErrorTasks     float64  `json:"share_error_tasks"` // most tasks that a waiting tenant is behind an equal share
	Packing             float64  `json:"packing"`           // utilisation over that of best fit
	Load                float64  `json:"load"`              // utilisation of the most used resource at the end
	WaitingTasks        int      `json:"waiting_tasks"`
	IdleCycleUS         float64  `json:"idle_cycle_us"` // time of a cycle in which nothing changed
	IdleAllocs          float64  `json:"idle_allocs"`
	ReservationsWaiting int      `json:"reservations"`
	DeadlinePlacements  int      `json:"deadline_placements"` // placements of jobs with an accepted deadline
	ReservedPlacements  int      `json:"reserved_placements"` // placements of projects with reservations
	Suspensions         int      `json:"suspensions"`
	Resumes             int      `json:"resumes"`
	MatchingGap         float64  `json:"matching_gap"`       // fraction of the possible node-local placements that was missed
	MatchingGapFound    float64  `json:"matching_gap_found"` // fraction missed by what a search by exchanges finds, at most MatchingGap
	UnexplainedStages   int      `json:"unexplained_stages"` // waiting stages without a reason, summed over all cycles
}

// world is the generated cluster and its work.
type world struct {
	Config
	s                    *scheduler.State
	now                  scheduler.Time
	rng                  *rand.Rand
	taskDemands          []scheduler.Resources
	leafTenants          []scheduler.TenantID // tenants without children
	running              []scheduler.AttemptID
	nextJob              scheduler.JobID
	pendingTasks         int
	pendingDemand        scheduler.Resources // demand of the pending tasks
	nodeLocal            int
	withInput            int
	deadlinePlacements   int // placements of jobs with a deadline
	reservedPlacements   int // placements of projects with reservations
	suspensions, resumes int
	tasksLeft            map[scheduler.JobID]int32 // tasks not done
}

const tasksPerJob = 100

// newWorld makes the cluster of a case, without jobs.
func newWorld(c Config) (*world, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	w := &world{Config: c, s: scheduler.New(), now: scheduler.Time(time.Hour), rng: rand.New(rand.NewPCG(c.Seed, 2)),
		tasksLeft: map[scheduler.JobID]int32{}}
	for i := range c.Nodes {
		spec := scheduler.NodeSpec{ID: scheduler.NodeID(i), Name: fmt.Sprintf("node%05d", i), Path: fmt.Sprintf("/dc/rack%04d", i/nodesPerRack),
			Capacity: scheduler.Resources{32_000, 128 << 30, 1_000_000_000}, Levels: scheduler.AllLevels, Swap: 128 << 30,
			Disks: []scheduler.Disk{{Name: "nvme0n1", IO: 1_000_000_000, Space: 2 << 40}}}
		if err := w.s.Events().AddNode(spec); err != nil {
			return nil, err
		}
	}
	for i := range c.Tenants {
		spec := scheduler.TenantSpec{ID: scheduler.TenantID(i), Name: fmt.Sprintf("tenant%05d", i), Parent: scheduler.NoTenant, Weight: 1}
		if c.Features == FeaturesAll {
			spec.Weight = float64(1 + w.rng.IntN(4))
			if i >= 10 { // a tree: ten tenants at the root, ten below each, …
				spec.Parent = scheduler.TenantID(i/10 - 1)
			}
		}
		if err := w.s.Events().PutTenant(spec); err != nil {
			return nil, err
		}
	}
	for _, t := range w.s.Tenants() {
		if len(t.Children) == 0 {
			w.leafTenants = append(w.leafTenants, t.Spec.ID)
		}
	}
	for range 20 {
		w.taskDemands = append(w.taskDemands, scheduler.Resources{int64(1+w.rng.IntN(8)) * 500, int64(1+w.rng.IntN(16)) << 30, int64(1+w.rng.IntN(10)) * 10_000_000})
	}
	return w, nil
}

// submit submits jobs until n tasks wait and the demands of running and waiting tasks reach the
// load.
func (w *world) submit(n int) error {
	used := scheduler.Resources{}
	for _, node := range w.s.Nodes() {
		used = used.Add(node.Used())
	}
	for w.pendingTasks < n || used.Add(w.pendingDemand).DominantShare(w.s.Cluster().Total()) < w.targetLoad {
		w.nextJob++
		job := scheduler.JobSpec{ID: w.nextJob, Name: "bench", Tenant: w.leafTenants[w.rng.IntN(len(w.leafTenants))],
			Priority: scheduler.PriorityLow, Submitted: w.now}
		stage := scheduler.StageSpec{Name: "main", Kind: scheduler.KindGroup, Tasks: tasksPerJob, Demand: w.taskDemands[w.rng.IntN(len(w.taskDemands))],
			Disk: 1 << 30, Estimate: time.Minute}
		if w.Features == FeaturesAll {
			stage.Kind = scheduler.KindMap
			stage.Inputs = w.drawInputs(tasksPerJob)
			if w.rng.IntN(20) == 0 {
				w.addDeadline(&job, &stage)
			}
		}
		if err := w.s.Events().SubmitJob(job, []scheduler.StageSpec{stage}); err != nil {
			return err
		}
		w.tasksLeft[job.ID] = stage.Tasks
		w.pendingTasks += int(stage.Tasks)
		w.pendingDemand = w.pendingDemand.Add(stage.Demand.Times(int64(stage.Tasks)))
	}
	return nil
}

// addDeadline gives a job an accepted deadline: usually within half an hour; in one case of four
// the job has a few large tasks that must begin within seconds, for which a full cluster has no
// free capacity.
func (w *world) addDeadline(job *scheduler.JobSpec, stage *scheduler.StageSpec) {
	job.Estimate, job.AcceptedByQuote = time.Minute, true
	job.Deadline = w.now.Add(time.Minute + time.Minute/2 + time.Duration(w.rng.IntN(30*60))*time.Second)
	if w.rng.IntN(4) == 0 {
		job.Deadline = w.now.Add(time.Minute + 10*time.Second)
		stage.Tasks, stage.Demand = tasksPerJob/10, scheduler.Resources{8_000, 32 << 30, 200_000_000}
		stage.Inputs = w.drawInputs(int(stage.Tasks))
	}
}

const nodesPerRack = 40

// drawInputs draws three replicas for each task as HDFS places them: one on any node, two in
// another rack if there is one.
func (w *world) drawInputs(n int) *scheduler.Inputs {
	in := &scheduler.Inputs{Bytes: make([]int64, n), Start: make([]int32, n+1), Nodes: make([]scheduler.NodeID, 0, 3*n)}
	racks := (w.Nodes + nodesPerRack - 1) / nodesPerRack
	for i := range n {
		in.Bytes[i] = 128 << 20
		first := w.rng.IntN(w.Nodes)
		rack := first / nodesPerRack
		if racks > 1 {
			rack = (rack + 1 + w.rng.IntN(racks-1)) % racks
		}
		in.Nodes = append(in.Nodes, scheduler.NodeID(first))
		from, size := rack*nodesPerRack, min(nodesPerRack, w.Nodes-rack*nodesPerRack)
		k := w.rng.IntN(size)
		for range 3 { // neighbouring nodes, without duplicates
			if id := scheduler.NodeID(from + k%size); len(in.Nodes) < 3*(i+1) && !slices.Contains(in.Nodes[in.Start[i]:], id) {
				in.Nodes = append(in.Nodes, id)
			}
			k += 1 + w.rng.IntN(max(1, size/3))
		}
		in.Start[i+1] = int32(len(in.Nodes))
	}
	return in
}

// recordPlacements accounts for the placements of a decision.
func (w *world) recordPlacements(d *scheduler.Decision) {
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		w.running = append(w.running, a.AttemptID())
		w.pendingTasks--
		g := w.s.Stage(a.Task.StageID())
		w.pendingDemand = w.pendingDemand.Sub(g.Spec.Demand)
		if g.Job.Spec.Deadline > 0 {
			w.deadlinePlacements++
		}
		if g.Job.Spec.Project != 0 {
			w.reservedPlacements++
		}
		if _, nodes, _ := g.Input(a.Task.Index); len(nodes) > 0 {
			w.withInput++
			if slices.Contains(nodes, a.Node) {
				w.nodeLocal++
			}
		}
	}
}

// pickEnds picks n running attempts that end now. Attempts that are suspended or suspending do not
// end.
func (w *world) pickEnds(n int, out []scheduler.AttemptID) []scheduler.AttemptID {
	for tries := 4 * n; tries > 0 && n > 0 && len(w.running) > 0; tries-- {
		i := w.rng.IntN(len(w.running))
		id := w.running[i]
		if w.Features == FeaturesAll && w.s.Attempt(id).Phase != scheduler.AttemptRunning {
			continue
		}
		out = append(out, id)
		n--
		w.running[i] = w.running[len(w.running)-1]
		w.running = w.running[:len(w.running)-1]
	}
	return out
}

// endAttempts ends attempts and the jobs that they complete.
func (w *world) endAttempts(ids []scheduler.AttemptID) error {
	for _, id := range ids {
		a := w.s.Attempt(id)
		if a == nil {
			return fmt.Errorf("attempt %s is not live", id)
		}
		if err := w.s.Events().AttemptEnded(id, a.Run, scheduler.OutcomeSucceeded, w.now); err != nil {
			return err
		}
		if w.tasksLeft[id.Job]--; w.tasksLeft[id.Job] == 0 {
			delete(w.tasksLeft, id.Job)
			if err := w.s.Events().EndJob(id.Job); err != nil {
				return err
			}
		}
	}
	return nil
}

// currentLoad returns the utilisation of the most used resource, 0..1.
func (w *world) currentLoad() float64 {
	var used scheduler.Resources
	for _, n := range w.s.Nodes() {
		used = used.Add(n.Used())
	}
	return used.DominantShare(w.s.Cluster().Total())
}

// fillToLoad places tasks until the cluster is at its load, or until nothing more fits.
func (w *world) fillToLoad(p scheduler.Policy) error {
	for range 10_000 {
		if w.currentLoad() >= w.targetLoad {
			return nil
		}
		if err := w.submit(w.WaitingTasks); err != nil {
			return err
		}
		d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll)
		if err != nil {
			return err
		}
		w.recordPlacements(&d)
		if err := w.reportActions(&d); err != nil {
			return err
		}
		w.now = w.now.Add(w.cycleInterval()) // spreads the ends as in the steady state
		if len(d.Actions) == 0 {
			return nil // nothing more fits
		}
	}
	return fmt.Errorf("the cluster does not reach load %v", w.targetLoad)
}

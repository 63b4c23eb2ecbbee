// Package bench is the engine of `drover bench scheduler`: it makes a cluster
// and its work from a seed, keeps it at a load, and counts what a policy does
// there. It reads no clock and no memory counters itself: the caller gives
// them (Meter), so that the run itself is the same for the same seed.
//
// Machines have 32 cores, 128 GiB and one disk of 1 GB/s, in racks of 40;
// tasks come in 20 shapes. In the steady state as many tasks end in a cycle as
// were placed before, and as many are submitted. Timed are Decide, Check,
// apply and the ends together (scheduler.Cycle and State.AttemptEnded);
// submissions and reports of starts, suspensions and resumes are not.
//
// With all features there are a tree of weighted tenants; map tasks with three
// replicas each, two of them in one rack; 5% of the jobs with an accepted
// deadline, some of large tasks that leave no time to wait, so that others are
// suspended for them; and projects of five jobs that wait with a reservation for
// each task, whose room is taken back when it is due. What the policy decides is
// held against judges that know nothing of how it was made: shares, matching,
// reasons.
package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Features says what the work asks of the policy.
type Features string

// The feature sets; the package comment says what FeaturesAll has.
const (
	FeaturesPlain Features = "plain"
	FeaturesAll   Features = "all"
)

// Config is one case.
type Config struct {
	Nodes    int
	Tasks    int // tasks that wait beside those that start
	Tenants  int
	Features Features
	Policy   string
	Params   map[string]string
	// Placements to time, after the cluster is at its load.
	Placements int
	// MaxActions in a cycle, and tasks that end in each.
	MaxActions int
	Load       float64 // of the most used resource
	Seed       uint64
	// Projects that wait with reservations (FeaturesAll), of 5 jobs each.
	Projects int
	// Planning has the policy make and mend the promises to projects itself, where
	// it can. Without it they are made by the world before the clock starts: the
	// virtual time of a cycle is so long here (see pause) that a plan which is
	// mended every few seconds would be mended in every few cycles.
	Planning bool
}

// Defaults fills in what was left zero: 1,000 nodes, 1 tenant (1,000 for all),
// policy fifo (3dsf for all), 200,000 placements, 1,000 actions, load 0.95.
func (c Config) Defaults() Config {
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
	def(&c.MaxActions, 1000)
	if c.Features == FeaturesAll {
		def(&c.Tenants, 1000)
		def(&c.Tasks, 20_000)
		def(&c.Projects, 1000)
	}
	def(&c.Tenants, 1)
	if c.Policy == "" {
		c.Policy = map[Features]string{FeaturesPlain: "fifo", FeaturesAll: "3dsf"}[c.Features]
	}
	if c.Load == 0 {
		c.Load = 0.95
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
	case c.Tasks < 0 || c.Tasks > 5_000_000:
		return fmt.Errorf("%d tasks: 0 to 5000000", c.Tasks)
	case c.Tenants < 1 || c.Tenants > 100_000:
		return fmt.Errorf("%d tenants: 1 to 100000", c.Tenants)
	case c.Placements < 1 || c.MaxActions < 1:
		return fmt.Errorf("%d placements, %d actions a cycle: at least 1", c.Placements, c.MaxActions)
	case !(c.Load > 0 && c.Load <= 1):
		return fmt.Errorf("load %v: above 0, at most 1", c.Load)
	}
	return nil
}

// Meter measures the outside: time passed since some start, CPU time spent by
// this process (which others on the machine disturb less), heap allocations ever
// made, and bytes resident now.
type Meter struct {
	Clock  func() time.Duration
	CPU    func() time.Duration
	Allocs func() uint64
	RSS    func() uint64
}

// Result is one case measured; the JSON of `drover bench scheduler -json`.
type Result struct {
	Nodes               int      `json:"nodes"`
	Features            Features `json:"features"`
	Policy              string   `json:"policy"`
	Tenants             int      `json:"tenants"`
	Seed                uint64   `json:"seed"`
	Runs                int      `json:"runs"` // of which this is the median by placements/s
	SlowestPerS         float64  `json:"placements_per_s_min"`
	FastestPerS         float64  `json:"placements_per_s_max"`
	Tasks               int      `json:"tasks"` // that wait beside those that start, as asked for
	Placements          int      `json:"placements"`
	PlacementsPerS      float64  `json:"placements_per_s"`
	Cycles              int      `json:"cycles"`
	CycleP50MS          float64  `json:"cycle_p50_ms"`
	CycleP99MS          float64  `json:"cycle_p99_ms"`
	PlacementsPerCPUS   float64  `json:"placements_per_cpu_s"` // by the CPU time of all threads, the garbage collector's too
	CycleCPUP50MS       float64  `json:"cycle_cpu_p50_ms"`
	CycleCPUP99MS       float64  `json:"cycle_cpu_p99_ms"`
	AllocsPerPlacement  float64  `json:"allocs_per_placement"`
	RSSBytes            uint64   `json:"rss_bytes"`
	NodeLocal           float64  `json:"node_local"`        // part of placements with input that are on a node of it
	ShareErrorTasks     float64  `json:"share_error_tasks"` // most tasks a tenant that waits is behind an equal share
	Packing             float64  `json:"packing"`           // use reached beside the best-fit judge's
	Load                float64  `json:"load"`              // use of the most used resource at the end
	WaitingTasks        int      `json:"waiting_tasks"`
	IdleCycleUS         float64  `json:"idle_cycle_us"` // a cycle in which nothing changed
	IdleAllocs          float64  `json:"idle_allocs"`
	ReservationsWaiting int      `json:"reservations"`
	DeadlinePlacements  int      `json:"deadline_placements"` // of the placements, of jobs with an accepted deadline
	ReservedPlacements  int      `json:"reserved_placements"` // of the placements, of projects with reservations
	Suspensions         int      `json:"suspensions"`
	Resumes             int      `json:"resumes"`
	MatchingGap         float64  `json:"matching_gap"`       // part of the node-local placements possible that was missed
	UnexplainedStages   int      `json:"unexplained_stages"` // stages left waiting without a reason, over all cycles
}

// World is the generated cluster and its work.
type World struct {
	Config
	S                    *scheduler.State
	Now                  scheduler.Time
	rng                  *rand.Rand
	shapes               []scheduler.Resources
	leaves               []scheduler.TenantID // tenants without others below them
	running              []scheduler.AttemptID
	nextJob              scheduler.JobID
	waiting              int                 // tasks pending
	want                 scheduler.Resources // demand of tasks pending
	local                int
	withIn               int
	due                  int // placements of jobs with a deadline
	planned              int // placements of projects
	suspensions, resumes int
	byJob                map[scheduler.JobID]int32 // tasks not done
}

const jobTasks = 100

// NewWorld makes the cluster of a case, empty of work.
func NewWorld(c Config) (*World, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	w := &World{Config: c, S: scheduler.New(), Now: scheduler.Time(time.Hour), rng: rand.New(rand.NewPCG(c.Seed, 2)),
		byJob: map[scheduler.JobID]int32{}}
	for i := range c.Nodes {
		spec := scheduler.NodeSpec{ID: scheduler.NodeID(i), Name: fmt.Sprintf("node%05d", i), Path: fmt.Sprintf("/dc/rack%04d", i/rackNodes),
			Capacity: scheduler.Resources{32_000, 128 << 30, 1_000_000_000}, Levels: scheduler.AllLevels, Swap: 128 << 30,
			Disks: []scheduler.Disk{{Name: "nvme0n1", IO: 1_000_000_000, Space: 2 << 40}}}
		if err := w.S.AddNode(spec); err != nil {
			return nil, err
		}
	}
	for i := range c.Tenants {
		spec := scheduler.TenantSpec{ID: scheduler.TenantID(i), Name: fmt.Sprintf("tenant%05d", i), Parent: scheduler.NoTenant, Weight: 1}
		if c.Features == FeaturesAll {
			spec.Weight = float64(1 + w.rng.IntN(4))
			if i >= 10 { // a tree: ten at the root, ten below each, …
				spec.Parent = scheduler.TenantID(i/10 - 1)
			}
		}
		if err := w.S.PutTenant(spec); err != nil {
			return nil, err
		}
	}
	for _, t := range w.S.Tenants() {
		if len(t.Children) == 0 {
			w.leaves = append(w.leaves, t.Spec.ID)
		}
	}
	for range 20 {
		w.shapes = append(w.shapes, scheduler.Resources{int64(1+w.rng.IntN(8)) * 500, int64(1+w.rng.IntN(16)) << 30, int64(1+w.rng.IntN(10)) * 10_000_000})
	}
	return w, nil
}

// Submit submits jobs until n tasks wait and what runs and waits together
// comes to the load.
func (w *World) Submit(n int) error {
	used := scheduler.Resources{}
	for _, node := range w.S.Nodes() {
		used = used.Add(node.Used())
	}
	for w.waiting < n || used.Add(w.want).DominantShare(w.S.Total()) < w.Load {
		w.nextJob++
		job := scheduler.JobSpec{ID: w.nextJob, Name: "bench", Tenant: w.leaves[w.rng.IntN(len(w.leaves))],
			Priority: scheduler.PriorityLow, Submitted: w.Now}
		stage := scheduler.StageSpec{Name: "main", Kind: scheduler.KindGroup, Tasks: jobTasks, Demand: w.shapes[w.rng.IntN(len(w.shapes))],
			Disk: 1 << 30, Estimate: time.Minute}
		if w.Features == FeaturesAll {
			stage.Kind = scheduler.KindMap
			stage.Inputs = w.inputs(jobTasks)
			if w.rng.IntN(20) == 0 {
				w.deadline(&job, &stage)
			}
		}
		if err := w.S.SubmitJob(job, []scheduler.StageSpec{stage}); err != nil {
			return err
		}
		w.byJob[job.ID] = stage.Tasks
		w.waiting += int(stage.Tasks)
		w.want = w.want.Add(stage.Demand.Times(int64(stage.Tasks)))
	}
	return nil
}

// deadline makes a job one with an accepted deadline: within half an hour, and
// every fourth time of a few large tasks that have seconds to begin, which no
// full machine has room for.
func (w *World) deadline(job *scheduler.JobSpec, stage *scheduler.StageSpec) {
	job.Estimate, job.Accepted = time.Minute, true
	job.Deadline = w.Now.Add(time.Minute + time.Minute/2 + time.Duration(w.rng.IntN(30*60))*time.Second)
	if w.rng.IntN(4) == 0 {
		job.Deadline = w.Now.Add(time.Minute + 10*time.Second)
		stage.Tasks, stage.Demand = jobTasks/10, scheduler.Resources{8_000, 32 << 30, 200_000_000}
		stage.Inputs = w.inputs(int(stage.Tasks))
	}
}

// rackNodes is how many nodes a rack has.
const rackNodes = 40

// inputs draws three replicas for each task as HDFS places them: one anywhere,
// two in another rack where there is one.
func (w *World) inputs(n int) *scheduler.Inputs {
	in := &scheduler.Inputs{Bytes: make([]int64, n), Start: make([]int32, n+1), Nodes: make([]scheduler.NodeID, 0, 3*n)}
	racks := (w.Nodes + rackNodes - 1) / rackNodes
	for i := range n {
		in.Bytes[i] = 128 << 20
		first := w.rng.IntN(w.Nodes)
		rack := first / rackNodes
		if racks > 1 {
			rack = (rack + 1 + w.rng.IntN(racks-1)) % racks
		}
		in.Nodes = append(in.Nodes, scheduler.NodeID(first))
		from, size := rack*rackNodes, min(rackNodes, w.Nodes-rack*rackNodes)
		k := w.rng.IntN(size)
		for range 3 { // neighbours, without doubles
			if id := scheduler.NodeID(from + k%size); len(in.Nodes) < 3*(i+1) && !slices.Contains(in.Nodes[in.Start[i]:], id) {
				in.Nodes = append(in.Nodes, id)
			}
			k += 1 + w.rng.IntN(max(1, size/3))
		}
		in.Start[i+1] = int32(len(in.Nodes))
	}
	return in
}

// Placed takes in what a decision placed.
func (w *World) Placed(d *scheduler.Decision) {
	for i := range d.Actions {
		a := &d.Actions[i]
		if a.Kind != scheduler.ActPlace {
			continue
		}
		w.running = append(w.running, a.AttemptID())
		w.waiting--
		g := w.S.Stage(a.Task.StageID())
		w.want = w.want.Sub(g.Spec.Demand)
		if g.Job.Spec.Deadline > 0 {
			w.due++
		}
		if g.Job.Spec.Project != 0 {
			w.planned++
		}
		if _, nodes, _ := g.Input(a.Task.Index); len(nodes) > 0 {
			w.withIn++
			if slices.Contains(nodes, a.Node) {
				w.local++
			}
		}
	}
}

// pickEnds chooses n running attempts that end now. What is being suspended or
// is suspended does not end.
func (w *World) pickEnds(n int, out []scheduler.AttemptID) []scheduler.AttemptID {
	for tries := 4 * n; tries > 0 && n > 0 && len(w.running) > 0; tries-- {
		i := w.rng.IntN(len(w.running))
		id := w.running[i]
		if w.Features == FeaturesAll && w.S.Attempt(id).Phase != scheduler.AttemptRunning {
			continue
		}
		out = append(out, id)
		n--
		w.running[i] = w.running[len(w.running)-1]
		w.running = w.running[:len(w.running)-1]
	}
	return out
}

// end ends attempts, and jobs that are complete with them.
func (w *World) end(ids []scheduler.AttemptID) error {
	for _, id := range ids {
		a := w.S.Attempt(id)
		if a == nil {
			return fmt.Errorf("attempt %s is not live", id)
		}
		if err := w.S.AttemptEnded(id, a.Run, scheduler.OutcomeSucceeded, w.Now); err != nil {
			return err
		}
		if w.byJob[id.Job]--; w.byJob[id.Job] == 0 {
			delete(w.byJob, id.Job)
			if err := w.S.EndJob(id.Job, scheduler.JobSucceeded, w.Now); err != nil {
				return err
			}
		}
	}
	return nil
}

// load is the use of the most used resource, 0..1.
func (w *World) load() float64 {
	var used scheduler.Resources
	for _, n := range w.S.Nodes() {
		used = used.Add(n.Used())
	}
	return used.DominantShare(w.S.Total())
}

// fill brings the cluster to its load.
func (w *World) fill(p scheduler.Policy) error {
	for range 10_000 {
		if w.load() >= w.Load {
			return nil
		}
		if err := w.Submit(w.Tasks); err != nil {
			return err
		}
		d, err := scheduler.Cycle(w.S, p, w.Now, w.MaxActions, scheduler.Identity)
		if err != nil {
			return err
		}
		w.Placed(&d)
		if err := w.report(&d); err != nil {
			return err
		}
		w.Now = w.Now.Add(w.pause()) // so that ends are spread as in the steady state
		if len(d.Actions) == 0 {
			return nil // it is as full as it gets
		}
	}
	return fmt.Errorf("the cluster does not reach load %v", w.Load)
}

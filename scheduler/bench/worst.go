package bench

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// WorstCase is an input that validation accepts and that is meant to make single cycles long.
type WorstCase struct {
	Name string // as in the table
	Help string
	// submit submits the work to a World of Defaults, with n as the case's number.
	submit func(w *world, n int) error
	n      int
	// between is called after each cycle, nil for nothing.
	between func(w *world, cycle int) error
}

// WorstCases returns the inputs of `drover bench scheduler -worst`.
func WorstCases() []WorstCase {
	return []WorstCase{
		{"largest", "a job of 32,000 tasks with a bound and a deadline: about as many as a plan may have", (*world).submitBounded, 32_000, nil},
		{"deadline", "a job of 100,000 tasks with a bound and a deadline", (*world).submitBounded, 100_000, nil},
		{"project", "a project of one job of 100,000 tasks with a bound", (*world).submitProject, 100_000, nil},
		{"two stages", "a project of 50,000 maps and as many reduces with a bound", (*world).submitStages, 50_000, nil},
		{"deadlines", "10,000 jobs of ten tasks with a bound and a deadline", (*world).submitDeadlines, 10_000, nil},
		{"tasks", "a job of 1,000,000 tasks", (*world).submitTasks, 1_000_000, nil},
		{"maps", "a job of 1,000,000 maps with three replicas each", (*world).submitMaps, 1_000_000, nil},
		{"accepted", "a job of 100,000 tasks whose deadline a quote accepted", (*world).submitAccepted, 100_000, nil},
		{"jobs", "10,000 jobs of one tenant", (*world).submitJobs, 10_000, nil},
		{"late", "10,000 jobs of ten tasks with a bound, past which all that run are at once", (*world).submitLate, 10_000, nil},
		{"map jobs", "10,000 map jobs of one tenant with three replicas a task", (*world).submitMapJobs, 10_000, nil},
		{"shapes", "100,000 jobs with different demands", (*world).submitShapes, 100_000, nil},
		{"stages", "40,000 jobs of 25 stages: a million different demands", (*world).submitStageShapes, 40_000, nil},
		{"blocked", "the same beside a small task that its max_parallel holds back: a node fits it, and none any other", (*world).submitBlocked, 40_000, nil},
		{"misfits", "40,000 jobs with different demands of which none fits on a node, though each resource is free on half of them", (*world).submitMisfits, 40_000, nil},
		{"restores", "7,000 jobs of ten tasks with a bound and a deadline, half of whose nodes are lost at once", (*world).submitDeadlines, 7_000, (*world).loseHalf},
	}
}

// WorstConfig is how a worst case is measured.
type WorstConfig struct {
	Nodes  int
	Cycles int // first with everything free, then with few ends per cycle
	Policy string
	Params map[string]string
	Scale  int // divides the case's number; 1 or more
	// Limit is the CPU time of a run after which no further cycle begins, 0 for none.
	Limit time.Duration
}

// WorstResult is the measurement of one worst case.
type WorstResult struct {
	Case      string  `json:"case"`
	Policy    string  `json:"policy"`
	Nodes     int     `json:"nodes"`
	Cycles    int     `json:"cycles"`                       // fewer than wanted if the limit was reached
	LongestMS float64 `json:"longest_cycle_cpu_ms"`         // by CPU time, with Check and the changes of the State; the minimum of each cycle over all runs
	AnyRunMS  float64 `json:"longest_cycle_any_run_cpu_ms"` // the longest cycle of any run
	At        int     `json:"longest_cycle"`                // index of the longest cycle, from 0
	MeanMS    float64 `json:"mean_cycle_cpu_ms"`
	Placed    int     `json:"placed"`
}

// worstEnds is the number of tasks that end between two cycles, worstActions the limit of a
// decision, which is the coordinator's.
const (
	worstEnds    = 50
	worstActions = 2000
)

// WorstRuns are the runs of one worst case under one policy. All of them decide the same, so each
// cycle is the same work in every run. Its shortest time counts: the others include the machine's
// other work or the garbage collector.
type WorstRuns struct {
	Case   WorstCase
	Config WorstConfig

	shortest []time.Duration // of each cycle
	longest  time.Duration   // of all cycles of all runs
	placed   []int           // by each cycle
}

// Run submits the worst case, together with two small jobs of another tenant, to an empty cluster
// and measures its cycles, 10 ms of virtual time apart and with the coordinator's limit of actions.
// The first cycle, which builds the policy's caches, counts too. It fails if the cycles place other
// tasks than those of the previous run.
func (r *WorstRuns) Run(m Meter) error {
	took, placed, err := runWorst(r.Case, r.Config, m)
	if err != nil {
		return err
	}
	for _, d := range took {
		r.longest = max(r.longest, d)
	}
	if r.shortest == nil {
		r.shortest, r.placed = took, placed
		return nil
	}
	n := min(len(took), len(r.shortest))
	r.shortest, r.placed = r.shortest[:n], r.placed[:n]
	if !slices.Equal(r.placed, placed[:n]) {
		return fmt.Errorf("%s: two runs of %s differ in what they placed: their cycles cannot be compared", r.Case.Name, r.Config.Policy)
	}
	for i := range n {
		r.shortest[i] = min(r.shortest[i], took[i])
	}
	return nil
}

// Result returns the longest cycle of the runs so far.
func (r *WorstRuns) Result() WorstResult {
	out := WorstResult{Case: r.Case.Name, Policy: r.Config.Policy, Nodes: r.Config.Nodes, Cycles: len(r.shortest), AnyRunMS: float64(r.longest.Microseconds()) / 1000}
	total := time.Duration(0)
	for i, took := range r.shortest {
		total += took
		out.Placed += r.placed[i]
		if ms := float64(took.Microseconds()) / 1000; ms > out.LongestMS {
			out.LongestMS, out.At = ms, i
		}
	}
	out.MeanMS = float64(total.Microseconds()) / 1000 / float64(max(1, out.Cycles))
	return out
}

// runWorst runs a worst case once. It returns the CPU time of each cycle and the number of tasks that it placed.
func runWorst(k WorstCase, c WorstConfig, m Meter) (took []time.Duration, placed []int, err error) {
	w, err := newWorld(Config{Nodes: c.Nodes, Tenants: 2, Policy: c.Policy, Params: c.Params}.defaults())
	if err != nil {
		return nil, nil, err
	}
	w.Planning, w.maxActions = true, worstActions
	p, err := newPolicy(w.Config)
	if err != nil {
		return nil, nil, err
	}
	if err := k.submit(w, max(1, k.n/max(1, c.Scale))); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", k.Name, err)
	}
	for range 2 {
		if err := w.submitOne(1, 0, w.stage(4), 0); err != nil {
			return nil, nil, err
		}
	}
	total := time.Duration(0)
	for i := 0; i < c.Cycles && (c.Limit <= 0 || total < c.Limit); i++ {
		before := m.CPU()
		d, err := scheduler.Cycle(w.s, p, w.now, w.maxActions, scheduler.AcceptAll)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", k.Name, err)
		}
		took, placed = append(took, m.CPU()-before), append(placed, countPlacements(&d))
		total += took[i]
		w.recordPlacements(&d)
		if err := w.reportActions(&d); err != nil {
			return nil, nil, err
		}
		w.now = w.now.Add(10 * time.Millisecond)
		if 3*i > 2*c.Cycles { // compress the schedule each time, and let tasks run past their bounds
			w.now = w.now.Add(11 * time.Second)
		}
		if err := w.endAttempts(w.pickEnds(worstEnds, nil)); err != nil {
			return nil, nil, err
		}
		if k.between != nil {
			if err := k.between(w, i); err != nil {
				return nil, nil, err
			}
		}
	}
	return took, placed, nil
}

// stage returns a stage of tasks that use a quarter of a node each.
func (w *world) stage(tasks int) scheduler.StageSpec {
	return scheduler.StageSpec{Name: "main", Kind: scheduler.KindGroup, Tasks: int32(tasks), Demand: scheduler.Resources{8_000, 16 << 30, 50_000_000},
		Disk: 1 << 30, Estimate: time.Minute}
}

// submitOne submits a job of one stage or more to a tenant; change may be nil.
func (w *world) submitOne(t scheduler.TenantID, project scheduler.ProjectID, stage scheduler.StageSpec, bound time.Duration, change ...func(*scheduler.JobSpec)) error {
	return w.submitJob(t, project, []scheduler.StageSpec{stage}, bound, change...)
}

func (w *world) submitJob(t scheduler.TenantID, project scheduler.ProjectID, stages []scheduler.StageSpec, bound time.Duration, change ...func(*scheduler.JobSpec)) error {
	w.nextJob++
	job := scheduler.JobSpec{ID: w.nextJob, Name: "worst", Tenant: t, Priority: scheduler.PriorityLow, Submitted: w.now, Bound: bound, Project: project}
	for _, c := range change {
		c(&job)
	}
	for _, g := range stages {
		w.tasksLeft[job.ID] += g.Tasks
	}
	return w.s.Events().SubmitJob(job, stages)
}

const worstBound = 2 * time.Minute

// setFarDeadline sets a deadline that is never near.
func (w *world) setFarDeadline(j *scheduler.JobSpec) { j.Deadline = w.now.Add(1000 * time.Hour) }

func (w *world) submitBounded(n int) error {
	return w.submitOne(0, 0, w.stage(n), worstBound, w.setFarDeadline)
}

func (w *world) submitDeadlines(n int) error {
	for range n {
		if err := w.submitOne(0, 0, w.stage(10), worstBound, w.setFarDeadline); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) submitAccepted(n int) error {
	return w.submitOne(0, 0, w.stage(n), 0, w.setFarDeadline, func(j *scheduler.JobSpec) { j.AcceptedByQuote = true })
}

func (w *world) putProject() error {
	return w.s.Events().PutProject(scheduler.ProjectSpec{ID: 1, Name: "worst", Priority: scheduler.PriorityLow, Submitted: w.now, Jobs: 1})
}

func (w *world) submitProject(n int) error {
	if err := w.putProject(); err != nil {
		return err
	}
	return w.submitOne(0, 1, w.stage(n), worstBound)
}

func (w *world) submitStages(n int) error {
	if err := w.putProject(); err != nil {
		return err
	}
	maps, reduces := w.stage(n), w.stage(n)
	maps.Kind, reduces.Kind, reduces.After, reduces.Name = scheduler.KindMap, scheduler.KindReduce, []int32{0}, "reduce"
	return w.submitJob(0, 1, []scheduler.StageSpec{maps, reduces}, worstBound)
}

func (w *world) submitTasks(n int) error { return w.submitOne(0, 0, w.stage(n), 0) }

func (w *world) mapStage(n int) scheduler.StageSpec {
	g := w.stage(n)
	g.Kind, g.Inputs = scheduler.KindMap, w.drawInputs(n)
	return g
}

func (w *world) submitMaps(n int) error { return w.submitOne(0, 0, w.mapStage(n), 0) }

func (w *world) submitJobs(n int) error {
	for range n {
		if err := w.submitOne(0, 0, w.stage(10), 0); err != nil {
			return err
		}
	}
	return nil
}

// submitLate submits jobs whose tasks run past their bound when the clock first leaps.
func (w *world) submitLate(n int) error {
	for range n {
		if err := w.submitOne(0, 0, w.stage(10), 10*time.Second); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) submitMapJobs(n int) error {
	for range n {
		if err := w.submitOne(0, 0, w.mapStage(10), 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) submitShapes(n int) error {
	for i := range n {
		g := w.stage(1)
		g.Demand = g.Demand.Add(scheduler.Resources{int64(i % 317), int64(i/317) << 10, 0})
		if err := w.submitOne(0, 0, g, 0); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) submitStageShapes(n int) error {
	const stages = 25
	for i := range n {
		of := make([]scheduler.StageSpec, stages)
		for k := range of {
			of[k] = w.stage(1)
			of[k].Name = fmt.Sprint("s", k)
			of[k].Demand = of[k].Demand.Add(scheduler.Resources{int64((i*stages + k) % 997), int64((i*stages+k)/997) << 10, 0})
		}
		if err := w.submitJob(0, 0, of, 0); err != nil {
			return err
		}
	}
	return nil
}

// submitBlocked adds a stage of which one task runs and the others may not, though they fit on a node.
func (w *world) submitBlocked(n int) error {
	g := w.stage(1000)
	g.Demand, g.MaxParallel = scheduler.Resources{1, 1, 1}, 1
	if err := w.submitOne(0, 0, g, 0); err != nil {
		return err
	}
	return w.submitStageShapes(n)
}

// submitMisfits fills the CPU of half of the nodes and the memory of the other half, before tasks
// that need some of both: by the free totals any could fit, but none fits on any node.
func (w *world) submitMisfits(n int) error {
	full := w.s.Nodes()[0].Spec.Capacity
	for _, r := range []scheduler.Resource{scheduler.CPU, scheduler.Memory} {
		g := w.stage(len(w.s.Nodes()) / 2)
		g.Demand = scheduler.Resources{100, 1 << 20, 0}
		g.Demand[r] = full[r]
		if err := w.submitOne(0, 0, g, 0); err != nil {
			return err
		}
	}
	for i := range n {
		g := w.stage(1)
		g.Demand = g.Demand.Add(scheduler.Resources{int64(i % 317), int64(i/317) << 10, 0})
		if err := w.submitOne(0, 0, g, 0); err != nil {
			return err
		}
	}
	return nil
}

// nodesLostAt is the cycle after which loseHalf loses every second node.
const nodesLostAt = 35

func (w *world) loseHalf(cycle int) error {
	if cycle != nodesLostAt {
		return nil
	}
	for id := 0; id < len(w.s.Nodes()); id += 2 {
		if err := w.s.Events().NodeLost(scheduler.NodeID(id), w.now); err != nil {
			return err
		}
	}
	w.running = slices.DeleteFunc(w.running, func(id scheduler.AttemptID) bool { return w.s.Attempt(id) == nil })
	return nil
}

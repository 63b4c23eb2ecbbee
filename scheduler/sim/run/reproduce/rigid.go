package reproduce

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

// rigid is LAS_MQ's baselines as its section 5.2.4 describes them: each running
// job gets a share of the containers without regard to what it can use, and
// what it does not use stays idle. The prototype gave each application a queue
// of YARN's Capacity Scheduler and set the queues' capacities (section 4). A job
// starts tasks while it holds less than its share, so that a share below one
// task still lets it go on.
type rigid struct {
	name  string
	share func(r *rigid, s *scheduler.State, now scheduler.Time)
	cfg   lasmq.Config

	jobs    []*scheduler.Job
	shares  []float64 // containers, by place in jobs
	actions []scheduler.Action
	kept    []scheduler.NodeID
}

// The baselines without work conservation.
const (
	rigidFIFO = "rigid fifo"
	rigidFair = "rigid fair"
	rigidEqu  = "rigid equ"
	rigidLAS  = "rigid las"
)

func newRigid(name string) (scheduler.Policy, error) {
	share := map[string]func(*rigid, *scheduler.State, scheduler.Time){
		rigidFIFO: (*rigid).firstTakesAll,
		rigidFair: func(r *rigid, s *scheduler.State, _ scheduler.Time) { r.byWeight(s, true) },
		rigidEqu:  func(r *rigid, s *scheduler.State, _ scheduler.Time) { r.byWeight(s, false) },
		rigidLAS:  (*rigid).leastServed,
	}[name]
	if share == nil {
		return nil, fmt.Errorf("no baseline is called %q", name)
	}
	cfg := lasmq.Default()
	cfg.StageAware = false
	return &rigid{name: name, share: share, cfg: cfg}, nil
}

// Name is the baseline's name.
func (r *rigid) Name() string { return r.name }

// Decide fills each job up to its share. O(jobs x stages + placements).
func (r *rigid) Decide(s *scheduler.State, now scheduler.Time, most int) scheduler.Decision {
	r.jobs, r.actions, r.kept = r.jobs[:0], r.actions[:0], r.kept[:0]
	for j := range s.Jobs() {
		r.jobs = append(r.jobs, j)
	}
	r.shares = append(r.shares[:0], make([]float64, len(r.jobs))...)
	if len(r.jobs) > 0 {
		r.share(r, s, now)
	}
	mark := s.Mark()
	for i, j := range r.jobs {
		r.fill(s, j, r.shares[i], now, most)
	}
	s.Rollback(mark)
	return scheduler.Decision{Base: s.Index(), At: now, Actions: r.actions}
}

// fill starts tasks of a job while it holds less than its share.
func (r *rigid) fill(s *scheduler.State, j *scheduler.Job, share float64, now scheduler.Time, most int) {
	held := r.cfg.Running(j)
	for _, g := range j.Stages {
		for held < share && g.Ready() && g.Startable() > 0 && len(r.actions) < most {
			node, disk := s.BestNodeBut(g, r.kept)
			if node == scheduler.NoNode {
				r.keep(s, g)
				break
			}
			r.actions = append(r.actions, s.Place(g, g.NextPending(0), node, disk))
			if err := s.Apply(&r.actions[len(r.actions)-1], now); err != nil {
				panic("reproduce: a placement that fits is refused: " + err.Error())
			}
			held += r.cfg.Containers(g.Spec.Demand)
		}
	}
}

// keep keeps nodes for a stage's tasks that fit nowhere, as YARN does.
func (r *rigid) keep(s *scheduler.State, g *scheduler.Stage) {
	for range g.Startable() {
		n := s.NearestNode(g, r.kept)
		if n == scheduler.NoNode {
			return
		}
		r.kept = append(r.kept, n)
	}
}

// containers is how many the cluster has.
func (r *rigid) containers(s *scheduler.State) float64 {
	total := s.Total()
	return float64(total[scheduler.Memory]) / float64(r.cfg.Unit[scheduler.Memory])
}

// firstTakesAll: "FIFO will assign all the resources to the job that arrives
// the first" (5.2.4), and a job waits for those before it to complete (5.2.1).
func (r *rigid) firstTakesAll(s *scheduler.State, _ scheduler.Time) { r.shares[0] = r.containers(s) }

// byWeight: Fair "directly shares all the resources to jobs according to
// priorities only" (5.2.4); EQU shares equally (5.3).
func (r *rigid) byWeight(s *scheduler.State, weighted bool) {
	sum := 0.0
	for i, j := range r.jobs {
		r.shares[i] = 1
		if weighted {
			r.shares[i] = s.Tenant(j.Spec.Tenant).Spec.Weight
		}
		sum += r.shares[i]
	}
	for i := range r.shares {
		r.shares[i] *= r.containers(s) / sum
	}
}

// leastServed: LAS gives the job with the least attained service what it can
// use; "the free resources are shared among all the other jobs" (5.2.4).
func (r *rigid) leastServed(s *scheduler.State, now scheduler.Time) {
	first, least := 0, 0.0
	for i, j := range r.jobs {
		if had, _ := r.cfg.Service(j, now); i == 0 || had < least {
			first, least = i, had
		}
	}
	all := r.containers(s)
	r.shares[first] = min(all, r.cfg.Remaining(r.jobs[first], true))
	for i := range r.shares {
		if i != first {
			r.shares[i] = (all - r.shares[first]) / float64(len(r.jobs)-1)
		}
	}
}

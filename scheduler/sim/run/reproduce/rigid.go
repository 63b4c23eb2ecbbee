package reproduce

import (
	"fmt"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/lasmq"
)

// rigidPolicy implements LAS_MQ's baselines as section 5.2.4 describes them: each running job gets
// a share of the containers regardless of what it can use, and the rest of its share stays idle.
// (The prototype gave each application a queue of YARN's Capacity Scheduler and set the queues'
// capacities, section 4.) A job may start a task while it has less than its share, so that a share
// below one task does not block it.
type rigidPolicy struct {
	name      string
	setShares func(r *rigidPolicy, s *scheduler.State, now scheduler.Time)
	cfg       lasmq.Config

	jobs          []*scheduler.Job
	shares        []float64 // containers, indexed like jobs
	actions       []scheduler.Action
	reservedNodes []scheduler.NodeID
}

// The baselines without work conservation.
const (
	rigidFIFO = "rigid fifo"
	rigidFair = "rigid fair"
	rigidEqu  = "rigid equ"
	rigidLAS  = "rigid las"
)

func newRigid(name string) (scheduler.Policy, error) {
	share := map[string]func(*rigidPolicy, *scheduler.State, scheduler.Time){
		rigidFIFO: (*rigidPolicy).shareFirst,
		rigidFair: func(r *rigidPolicy, s *scheduler.State, _ scheduler.Time) { r.shareByWeight(s, true) },
		rigidEqu:  func(r *rigidPolicy, s *scheduler.State, _ scheduler.Time) { r.shareByWeight(s, false) },
		rigidLAS:  (*rigidPolicy).shareLeastServed,
	}[name]
	if share == nil {
		return nil, fmt.Errorf("unknown baseline %q", name)
	}
	cfg := lasmq.Default()
	cfg.StageAware = false
	return &rigidPolicy{name: name, setShares: share, cfg: cfg}, nil
}

// Name returns the baseline's name.
func (r *rigidPolicy) Name() string { return r.name }

// Decide fills each job up to its share. O(jobs x stages + placements).
func (r *rigidPolicy) Decide(s *scheduler.State, now scheduler.Time, maxActions int) scheduler.Decision {
	r.jobs, r.actions, r.reservedNodes = r.jobs[:0], r.actions[:0], r.reservedNodes[:0]
	for j := range s.Jobs() {
		r.jobs = append(r.jobs, j)
	}
	r.shares = append(r.shares[:0], make([]float64, len(r.jobs))...)
	if len(r.jobs) > 0 {
		r.setShares(r, s, now)
	}
	mark := s.Journal().Mark()
	for i, j := range r.jobs {
		r.fillShare(s, j, r.shares[i], now, maxActions)
	}
	s.Journal().Rollback(mark)
	return scheduler.Decision{Base: s.Index(), At: now, Actions: r.actions}
}

// fillShare starts tasks of a job while it has less than its share.
func (r *rigidPolicy) fillShare(s *scheduler.State, j *scheduler.Job, share float64, now scheduler.Time, maxActions int) {
	running := r.cfg.RunningContainers(j)
	for _, g := range j.Stages {
		for running < share && g.Ready() && g.Startable() > 0 && len(r.actions) < maxActions {
			node, disk := s.Cluster().BestNode(g, r.reservedNodes)
			if node == scheduler.NoNode {
				r.reserveNodes(s, g)
				break
			}
			r.actions = append(r.actions, s.Attempts().PlaceAction(g, g.NextPending(0), node, disk))
			if err := s.Apply(&r.actions[len(r.actions)-1], now); err != nil {
				panic("reproduce: a fitting placement was refused: " + err.Error())
			}
			running += r.cfg.Containers(g.Spec.Demand)
		}
	}
}

// reserveNodes reserves nodes for a stage's tasks that fit nowhere, as YARN does.
func (r *rigidPolicy) reserveNodes(s *scheduler.State, g *scheduler.Stage) {
	for range g.Startable() {
		n := s.Cluster().NodeLackingLeast(g, r.reservedNodes)
		if n == scheduler.NoNode {
			return
		}
		r.reservedNodes = append(r.reservedNodes, n)
	}
}

// clusterContainers returns the cluster's number of containers.
func (r *rigidPolicy) clusterContainers(s *scheduler.State) float64 {
	total := s.Cluster().Total()
	return float64(total[scheduler.Memory]) / float64(r.cfg.Unit[scheduler.Memory])
}

// shareFirst is FIFO: it "will assign all the resources to the job that arrives the first" (5.2.4),
// and a job waits for those before it to complete (5.2.1).
func (r *rigidPolicy) shareFirst(s *scheduler.State, _ scheduler.Time) {
	r.shares[0] = r.clusterContainers(s)
}

// shareByWeight is Fair, which "directly shares all the resources to jobs according to priorities
// only" (5.2.4), or EQU, which shares equally (5.3).
func (r *rigidPolicy) shareByWeight(s *scheduler.State, weighted bool) {
	sum := 0.0
	for i, j := range r.jobs {
		r.shares[i] = 1
		if weighted {
			r.shares[i] = s.Tenant(j.Spec.Tenant).Spec.Weight
		}
		sum += r.shares[i]
	}
	for i := range r.shares {
		r.shares[i] *= r.clusterContainers(s) / sum
	}
}

// shareLeastServed is LAS: the job with the least attained service gets what it can use; "the free
// resources are shared among all the other jobs" (5.2.4).
func (r *rigidPolicy) shareLeastServed(s *scheduler.State, now scheduler.Time) {
	first, least := 0, 0.0
	for i, j := range r.jobs {
		if attained := r.cfg.Service(j, now); i == 0 || attained < least {
			first, least = i, attained
		}
	}
	all, use := r.clusterContainers(s), 0.0
	for _, g := range r.jobs[first].Stages {
		if g.Open {
			use += r.cfg.Containers(g.Spec.Demand) * float64(g.Remaining())
		}
	}
	r.shares[first] = min(all, use)
	for i := range r.shares {
		if i != first {
			r.shares[i] = (all - r.shares[first]) / float64(len(r.jobs)-1)
		}
	}
}

package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/enum"
)

// Rule is a rule that a decision can break.
type Rule uint8

// The rules that Check enforces. The first four are those of Apply, as classes of its errors.
const (
	RuleUnknown     Rule = iota + 1 // an id that does not exist
	RuleStale                       // an old attempt or run, a second action on one, or one that its phase does not allow
	RuleCapacity                    // over capacity on a node or disk, or a node that is not schedulable
	RuleInvalid                     // a value out of range, or a level or node that an attempt cannot be brought to
	RuleCap                         // over a cap of a task, job, tenant or group
	RuleParallel                    // over a stage's MaxParallel
	RuleGuarantee                   // a guarantee would be violated
	RuleVictim                      // a task with an accepted deadline, or whose project or job has a guarantee, is suspended or killed, unless it waits for lost outputs
	RulePolicyState                 // a policy state that State would refuse
)

// String returns the rule's name.
func (r Rule) String() string {
	return enum.Name("rule", r, []string{RuleUnknown: "unknown", RuleStale: "stale", RuleCapacity: "capacity", RuleInvalid: "invalid", RuleCap: "cap",
		RuleParallel: "parallel", RuleGuarantee: "guarantee", RuleVictim: "victim", RulePolicyState: "policy_state"})
}

// Violation is one broken rule, what is wrong, and the index of the action, or of the policy state for RulePolicyState.
type Violation struct {
	Rule  Rule
	Index int
	Text  string
}

// Error returns the violation as one line.
func (v Violation) Error() string {
	what := "action"
	if v.Rule == RulePolicyState {
		what = "policy state"
	}
	return fmt.Sprintf("%s %d breaks rule %v: %s", what, v.Index, v.Rule, v.Text)
}

// checker accumulates the changes of the decision so far by its own sums, separate from those of State.Apply,
// so that each finds the other's mistakes. Both use applier.find for what makes a single action impossible.
type checker struct {
	s      *State
	states []PolicyState // those of the decision
	now    Time
	index  int // of the action or policy state that is being checked

	nodeIndex     []int32            // by node: its position in nodes; valid if that entry has its id
	nodes         []nodeAccount      // of the nodes that the decision changes
	charged       capCharges         // what the decision adds to the use of tenants and jobs
	started       map[*Stage]int32   // placements of stages with a MaxParallel
	seen          map[AttemptID]bool // attempts acted on; a placement's entry has attempt number 0
	placed        []placedTask
	added         int                            // reservations added minus reservations deleted
	latest        map[ReservationID]*Reservation // reservations added, changed or (nil) deleted
	broughtTo     map[NodeID][]ReservationID     // reservations of latest that some action moved to the node; a later action may have moved them away
	dropped       []droppedGuarantee
	reservedAgain map[guaranteeKey]Time // earliest Latest of the guarantee's reservations in latest, Never for none
	infeasible    []JobID               // jobs that the decision's policy states declare infeasible
	violations    []Violation

	scratch             FreeCapacity
	scratchReservations []*Reservation
}

// nodeAccount is what the decision so far leaves free on a node.
type nodeAccount struct {
	id    NodeID
	free  Resources
	disks []DiskUse
}

// Check validates a decision against a State without changing it: every rule after every action, in order. It returns
// nil for a valid decision, and allocates nothing then once it has reached its size. O(actions x (depth of the tenant
// tree + reservations on the node)). The result is valid until the next Check of the same State.
func Check(s *State, d *Decision, now Time) []Violation {
	c := &s.checker
	c.begin(s, d, now)
	for i := range d.Actions {
		c.index = i
		c.checkAction(&d.Actions[i])
	}
	c.checkDropped()
	s.stateBatch.begin()
	for i := range d.PolicyStates {
		if err := s.stateBatch.add(s, &d.PolicyStates[i]); err != nil {
			c.index = i
			c.violate(RulePolicyState, "%v", err)
		}
	}
	if len(c.violations) == 0 {
		return nil
	}
	return c.violations
}

func (c *checker) begin(s *State, d *Decision, now Time) {
	c.s, c.states, c.now, c.added = s, d.PolicyStates, now, 0
	for len(c.nodeIndex) < len(s.cluster.nodes) {
		c.nodeIndex = append(c.nodeIndex, 0)
	}
	if c.seen == nil {
		c.charged = capCharges{tenants: map[TenantID]Resources{}, jobs: map[JobID]Resources{}}
		c.started, c.seen, c.reservedAgain = map[*Stage]int32{}, map[AttemptID]bool{}, map[guaranteeKey]Time{}
		c.latest, c.broughtTo = map[ReservationID]*Reservation{}, map[NodeID][]ReservationID{}
	}
	clear(c.charged.tenants)
	clear(c.charged.jobs)
	clear(c.started)
	clear(c.seen)
	clear(c.reservedAgain)
	clear(c.latest)
	clear(c.broughtTo)
	c.nodes, c.placed, c.dropped, c.infeasible, c.violations = c.nodes[:0], c.placed[:0], c.dropped[:0], c.infeasible[:0], c.violations[:0]
	for i := range d.PolicyStates {
		if p := &d.PolicyStates[i]; p.Kind == InfeasibleState {
			c.infeasible = append(c.infeasible, p.Job)
		}
	}
}

func (c *checker) violate(r Rule, format string, args ...any) {
	c.violations = append(c.violations, Violation{r, c.index, fmt.Sprintf(format, args...)})
}

// violateBy records a violation for an action that Apply would refuse with err.
func (c *checker) violateBy(err error) {
	rule := RuleUnknown
	for _, class := range []error{ErrUnknown, ErrStale, ErrNoCapacity} { // in the order of their rules; RuleInvalid is the rest
		if errors.Is(err, class) {
			break
		}
		rule++
	}
	c.violate(rule, "%v", err)
}

func (c *checker) checkAction(a *Action) {
	if a.Kind == ActReserve || a.Kind == ActUnreserve {
		c.checkReserve(a)
		return
	}
	t, err := c.s.applier().find(a, true)
	if err != nil {
		c.violateBy(err)
		return
	}
	id := AttemptID{TaskID: a.Task}
	if a.Kind != ActPlace {
		id = t.a.ID
	}
	if c.seen[id] {
		c.violate(RuleStale, "attempt %s: a second action on it", id)
		return
	}
	c.seen[id] = true
	if a.Kind == ActSuspend || a.Kind == ActKill {
		c.checkVictim(t.a, t.g.Job)
		return
	}
	p := placedTask{node: a.Node, disk: a.Disk, job: t.g.Job, demand: t.g.Spec.Demand, space: t.g.Spec.Disk}
	ran := time.Duration(0)
	total, more := p.demand, p.demand
	if a.Kind == ActPlace {
		if a.Run != 1 {
			c.violate(RuleStale, "task %s: run %d of a new attempt", a.Task, a.Run)
			return
		}
		if most := t.g.Spec.MaxParallel; most > 0 {
			if c.started[t.g]++; t.g.Running+t.g.Suspended+c.started[t.g] > most {
				c.violate(RuleParallel, "stage %s: more than max_parallel %d at once", t.g.ID(), most)
				return
			}
		}
	} else {
		total, more, ran = t.a.Demand, t.a.Demand.Sub(t.a.Occupied.Resources), t.a.RanFor(c.now)
		p.demand, p.space = t.a.Demand, t.a.DiskSpace
	}
	if a.Kind == ActResume { // charge only what it did not occupy before
		p.node, p.disk, p.demand, p.space, p.resumed = t.a.Node, t.a.Disk, more, t.a.DiskSpace-t.a.Occupied.Disk, t.a
	}
	p.end = boundedEnd(t.g, ran, c.now)
	if c.chargeNode(&p) && c.chargeCaps(p.job, total, more) {
		c.checkGuarantees(&p, t.g, a.Task.Index)
	}
	c.placed = append(c.placed, p)
}

// account returns what the decision so far leaves free on a node. It is valid until the next call.
func (c *checker) account(id NodeID) *nodeAccount {
	if at := int(c.nodeIndex[id]); at < len(c.nodes) && c.nodes[at].id == id {
		return &c.nodes[at]
	}
	at := len(c.nodes)
	c.nodeIndex[id] = int32(at)
	if at < cap(c.nodes) {
		c.nodes = c.nodes[:at+1] // reuses the memory of its disks
	} else {
		c.nodes = append(c.nodes, nodeAccount{})
	}
	n := &c.nodes[at]
	n.id, n.free, n.disks = id, c.s.cluster.nodes[id].Free, append(n.disks[:0], c.s.cluster.nodes[id].Disks...)
	return n
}

// chargeNode charges a node and its disk for a task. If they lack capacity it records a violation and returns false.
func (c *checker) chargeNode(p *placedTask) bool {
	n, d := c.account(p.node), p.demand
	n.free = n.free.Sub(d)
	short := (d[CPU] > 0 && n.free[CPU] < 0) || (d[Memory] > 0 && n.free[Memory] < 0)
	if p.disk >= 0 {
		disk := &n.disks[p.disk]
		disk.FreeIO -= d[IO]
		disk.FreeSpace -= p.space
		short = short || (d[IO] > 0 && disk.FreeIO < 0) || (p.space > 0 && disk.FreeSpace < 0)
	}
	if short {
		c.violate(RuleCapacity, "node %q disk %d: %v and %d bytes exceed what is free", c.s.cluster.nodes[p.node].Spec.Name, p.disk, d, p.space)
	}
	return !short
}

// chargeCaps charges d to the job and tenants of a task that occupies task in total. It returns false if a cap forbids
// it.
func (c *checker) chargeCaps(j *Job, task, d Resources) bool {
	if c.s.tree.capped == 0 {
		return true
	}
	for t := j.tenant; t != nil; t = c.s.tree.tenant(t.Spec.Parent) {
		c.charged.tenants[t.Spec.ID] = c.charged.tenants[t.Spec.ID].Add(d)
	}
	c.charged.jobs[j.Spec.ID] = c.charged.jobs[j.Spec.ID].Add(d)
	t, scope, r, ok := c.s.tree.underCaps(j, task, Resources{}, &c.charged)
	if !ok {
		c.violate(RuleCap, "job %d is over the %v cap of tenant %q on %v", j.Spec.ID, scope, c.s.tree.tenants[t].Spec.Name, r)
	}
	return ok
}

// checkVictim checks that an attempt of a job may be suspended or killed. A reduce that waits for lost outputs
// always may be: it cannot progress, so no guarantee loses by it, and the maps may need what it occupies.
func (c *checker) checkVictim(a *Attempt, j *Job) {
	switch {
	case j.Phase != JobActive || a.Speculative || c.s.StageOf(a).WaitsForInput():
	case j.IsAccepted() && !c.countsAsInfeasible(j) && c.keepsDeadline(j, a.Node):
		c.violate(RuleVictim, "attempt %s: its job has an accepted deadline", a.ID)
	case c.keepsProject(j, a):
		c.violate(RuleVictim, "attempt %s: its project, or its job, has a guarantee", a.ID)
	}
}

// countsAsInfeasible reports whether the deadline of the job is infeasible, by this decision or before (IsInfeasible).
func (c *checker) countsAsInfeasible(j *Job) bool {
	return j.IsInfeasible() || slices.Contains(c.infeasible, j.Spec.ID)
}

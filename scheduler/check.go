package scheduler

import (
	"fmt"
	"slices"

	"github.com/drover-run/drover/internal/enum"
)

// Rule is a rule that a decision can break.
type Rule uint8

// The rules that Check enforces.
const (
	RuleUnknown     Rule = iota + 1 // an id that does not exist
	RulePhase                       // a second action on a task or attempt, or one that its phase does not allow
	RuleCapacity                    // over capacity on a node or disk
	RuleSchedulable                 // a node that is not schedulable
	RuleCap                         // over a cap of a task, job, tenant or group
	RuleParallel                    // over a stage's MaxParallel
	RuleGuarantee                   // a guarantee would be violated
	RuleVictim                      // a task with an accepted deadline or of a guaranteed project is suspended or killed
	RuleRestore                     // a resume or migration where it cannot be restored
	RuleFencing                     // a wrong attempt or run number
	RulePolicyState                 // a policy state that State would refuse
	RuleMalformed                   // a value out of range
)

// String returns the rule's name.
func (r Rule) String() string {
	return enum.Name("rule", r, []string{RuleUnknown: "unknown", RulePhase: "phase", RuleCapacity: "capacity", RuleSchedulable: "schedulable", RuleCap: "cap",
		RuleParallel: "parallel", RuleGuarantee: "guarantee", RuleVictim: "victim", RuleRestore: "restore", RuleFencing: "fencing",
		RulePolicyState: "policy_state", RuleMalformed: "malformed"})
}

// Violation is one broken rule: the index of the action (or policy state) in the decision, and
// what is wrong.
type Violation struct {
	Rule   Rule
	Action int
	Text   string
}

// Error returns the violation as one line.
func (v Violation) Error() string {
	return fmt.Sprintf("action %d breaks rule %v: %s", v.Action, v.Rule, v.Text)
}

// checker is Check's own account of the effects of a decision, separate from State.Apply so
// that each finds the other's mistakes. An entry is valid only in its epoch, so nothing is
// cleared between cycles.
type checker struct {
	epoch               uint32
	nodeIndex           []int32       // for each node its position in nodes; valid if that entry has its id
	nodes               []nodeAccount // changed by the decision so far
	tenants             []tenantAccount
	jobs                map[JobID]Resources
	stages              map[*Stage]int32
	seen                map[AttemptID]bool  // that the decision so far acts on; a placement has no attempt number
	changed             changedReservations // by the decision so far
	placed              []placedTask        // by the decision so far
	scratchReservations []*Reservation
	scratchDisks        []DiskUse
	stateBatch          policyStateBatch
	dropped             []droppedGuarantee // by the decision so far
	reservedAgain       map[guaranteeKey]bool
	// infeasible are the jobs that the decision's policy states declare infeasible.
	infeasible []JobID
	violations []Violation
}

// nodeAccount is what the decision so far leaves free on a node.
type nodeAccount struct {
	id    NodeID
	free  Resources
	disks []DiskUse
}

// tenantAccount is what a tenant uses after the decision so far.
type tenantAccount struct {
	epoch uint32
	used  Resources
}

// Check validates a decision against a State without changing it: every rule after every
// action, in order. It uses neither State.Apply nor code of a policy. It returns nil for a
// valid decision, and allocates nothing then once it has reached its size. O(actions x (depth
// of the tenant tree + reservations on the node)). The result is valid until the next Check of
// the same State.
func Check(s *State, d *Decision, now Time) []Violation {
	c := &s.checker
	c.begin(s)
	for i := range d.PolicyStates {
		if p := &d.PolicyStates[i]; p.Kind == InfeasibleState {
			c.infeasible = append(c.infeasible, p.Job)
		}
	}
	for i := range d.Actions {
		a := &d.Actions[i]
		if v := c.checkAction(s, d, a, i, now); v.Rule != 0 {
			v.Action = i
			c.violations = append(c.violations, v)
		}
	}
	c.checkDropped(s, d)
	if n := len(d.PolicyStates); n > 0 {
		c.stateBatch.begin(n)
	}
	for i := range d.PolicyStates {
		if err := c.stateBatch.add(s, &d.PolicyStates[i]); err != nil {
			c.violations = append(c.violations, Violation{RulePolicyState, i, err.Error()})
		}
	}
	if len(c.violations) == 0 {
		return nil
	}
	return c.violations
}

func (c *checker) begin(s *State) {
	c.epoch++
	if c.epoch == 0 {
		*c = checker{epoch: 1}
	}
	for len(c.nodeIndex) < len(s.cluster.nodes) {
		c.nodeIndex = append(c.nodeIndex, 0)
	}
	c.nodes = c.nodes[:0]
	for len(c.tenants) < len(s.tree.tenants) {
		c.tenants = append(c.tenants, tenantAccount{})
	}
	if c.jobs == nil {
		c.jobs, c.stages, c.seen = map[JobID]Resources{}, map[*Stage]int32{}, map[AttemptID]bool{}
	}
	clear(c.jobs)
	clear(c.stages)
	c.changed.begin()
	c.placed, c.dropped = c.placed[:0], c.dropped[:0]
	clear(c.reservedAgain)
	c.infeasible = c.infeasible[:0]
	clear(c.seen)
	c.violations = c.violations[:0]
}

// violationOf returns a violation; Check fills in the action.
func violationOf(r Rule, format string, args ...any) Violation {
	return Violation{Rule: r, Text: fmt.Sprintf(format, args...)}
}

func (c *checker) checkAction(s *State, d *Decision, a *Action, i int, now Time) Violation {
	switch a.Kind {
	case ActPlace:
		return c.checkPlace(s, a, now)
	case ActSuspend, ActKill:
		return c.checkStop(s, d, a, now)
	case ActResume, ActMigrate:
		return c.checkResume(s, a, now)
	case ActReserve, ActUnreserve:
		return c.checkReserve(s, d, a, i)
	default:
		return violationOf(RuleMalformed, "kind is %v", a.Kind)
	}
}

// account returns what the decision so far leaves free on a node. It is valid until the next
// call.
func (c *checker) account(s *State, id NodeID) *nodeAccount {
	if at := int(c.nodeIndex[id]); at < len(c.nodes) && c.nodes[at].id == id {
		return &c.nodes[at]
	}
	at := len(c.nodes)
	c.nodeIndex[id] = int32(at)
	if at < cap(c.nodes) {
		c.nodes = c.nodes[:at+1] // with the disks it had
	} else {
		c.nodes = append(c.nodes, nodeAccount{})
	}
	n := &c.nodes[at]
	n.id, n.free, n.disks = id, s.cluster.nodes[id].Free, append(n.disks[:0], s.cluster.nodes[id].Disks...)
	return n
}

// seeFirst adds an attempt to seen and reports whether it is new.
func (c *checker) seeFirst(id AttemptID) bool {
	if c.seen[id] {
		return false
	}
	c.seen[id] = true
	return true
}

// checkPlace checks a placement.
func (c *checker) checkPlace(s *State, a *Action, now Time) Violation {
	g := s.Stage(a.Task.StageID())
	if g == nil {
		return violationOf(RuleUnknown, "task %s: no such stage", a.Task)
	}
	j := g.Job
	i := a.Task.Index
	if i < 0 || i >= g.Spec.Tasks {
		return violationOf(RuleUnknown, "task %s: the stage has %d tasks", a.Task, g.Spec.Tasks)
	}
	if j.Phase != JobActive || !g.Open {
		return violationOf(RulePhase, "task %s: its stage may not start", a.Task)
	}
	lives := g.active.get(i) != 0
	waits := !lives && !g.done.has(i) && g.pastAttempts[i].Failures < g.maxAttempts()
	second := lives && s.Attempts().at(g.active.get(i)-1).sibling == 0 && !g.done.has(i)
	if (!a.Speculative && !waits) || (a.Speculative && !second) || !c.seeFirst(AttemptID{TaskID: a.Task}) {
		return violationOf(RulePhase, "task %s: it is not pending", a.Task)
	}
	want := g.pastAttempts[i].Last
	if lives {
		want = max(want, s.Attempts().at(g.active.get(i)-1).ID.Attempt)
	}
	if a.Attempt != want+1 || a.Run != 1 {
		return violationOf(RuleFencing, "task %s: attempt %d run %d, want attempt %d run 1", a.Task, a.Attempt, a.Run, want+1)
	}
	if g.Spec.MaxParallel > 0 {
		c.stages[g]++
		if g.Running+g.Suspended+c.stages[g] > g.Spec.MaxParallel {
			return violationOf(RuleParallel, "stage %s: more than max_parallel %d at once", g.ID(), g.Spec.MaxParallel)
		}
	}
	if v := c.takeCapacity(s, a.Node, a.Disk, g.Spec.Demand, g.Spec.Disk, false); v.Rule != 0 {
		return v
	}
	if v := c.chargeCaps(s, j, g.Spec.Demand, g.Spec.Demand); v.Rule != 0 {
		return v
	}
	v := c.checkGuarantees(s, j, g, i, a.Node, now)
	c.placed = append(c.placed, placedTask{a.Node, a.Disk, j, g.Spec.Demand, g.Spec.Disk, boundedEnd(g, now)})
	return v
}

// takeCapacity takes capacity of a node and disk. resident is set for an attempt that is
// already there: it may continue while the node drains.
func (c *checker) takeCapacity(s *State, id NodeID, disk int16, d Resources, space int64, resident bool) Violation {
	if id < 0 || int(id) >= len(s.cluster.nodes) {
		return violationOf(RuleUnknown, "node %d: no such node", id)
	}
	if spec := &s.cluster.nodes[id].Spec; spec.Down || (spec.Draining && !resident) {
		return violationOf(RuleSchedulable, "node %q is down or draining", spec.Name)
	}
	n := c.account(s, id)
	if int(disk) >= len(n.disks) || disk < -1 || (disk < 0 && (d[IO] > 0 || space > 0)) {
		return violationOf(RuleUnknown, "node %q: no disk %d", s.cluster.nodes[id].Spec.Name, disk)
	}
	n.free = n.free.Sub(d)
	short := (d[CPU] > 0 && n.free[CPU] < 0) || (d[Memory] > 0 && n.free[Memory] < 0)
	if disk >= 0 {
		n.disks[disk].FreeIO -= d[IO]
		n.disks[disk].FreeSpace -= space
		short = short || (d[IO] > 0 && n.disks[disk].FreeIO < 0) || (space > 0 && n.disks[disk].FreeSpace < 0)
	}
	if short {
		return violationOf(RuleCapacity, "node %q disk %d: %v and %d bytes exceed what is free", s.cluster.nodes[id].Spec.Name, disk, d, space)
	}
	return Violation{}
}

// chargeCaps charges d to a job and its tenants, for a task that occupies task in total.
func (c *checker) chargeCaps(s *State, j *Job, task, d Resources) Violation {
	t := s.tree.tenants[j.Spec.Tenant]
	if r, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return violationOf(RuleCap, "job %d: a task is over the cap of tenant %q on %v", j.Spec.ID, t.Spec.Name, r)
	}
	jobCapped := false
	for id, n := j.Spec.Tenant, 0; id != NoTenant && n <= MaxTenantDepth; n++ {
		t := s.tree.tenants[id]
		u := &c.tenants[id]
		if u.epoch != c.epoch {
			u.epoch, u.used = c.epoch, t.Used
		}
		u.used = u.used.Add(d)
		if r, ok := t.Spec.Caps.Total.Allows(u.used); !ok {
			return violationOf(RuleCap, "tenant %q is over its cap on %v", t.Spec.Name, r)
		}
		jobCapped = jobCapped || !t.Spec.Caps.Job.none()
		id = t.Spec.Parent
	}
	if !jobCapped {
		return Violation{}
	}
	used, ok := c.jobs[j.Spec.ID]
	if !ok {
		used = j.Used
	}
	used = used.Add(d)
	c.jobs[j.Spec.ID] = used
	for id, n := j.Spec.Tenant, 0; id != NoTenant && n <= MaxTenantDepth; n++ {
		t := s.tree.tenants[id]
		if r, ok := t.Spec.Caps.Job.Allows(used); !ok {
			return violationOf(RuleCap, "job %d is over the cap of tenant %q for a job on %v", j.Spec.ID, t.Spec.Name, r)
		}
		id = t.Spec.Parent
	}
	return Violation{}
}

// checkStop checks a suspension or kill.
func (c *checker) checkStop(s *State, d *Decision, a *Action, now Time) Violation {
	att := s.Attempt(a.AttemptID())
	if att == nil {
		return violationOf(RuleUnknown, "attempt %s: it is not live", a.AttemptID())
	}
	if att.Run != a.Run {
		return violationOf(RuleFencing, "attempt %s: run %d is not the current run %d", a.AttemptID(), a.Run, att.Run)
	}
	if !c.seeFirst(a.AttemptID()) {
		return violationOf(RulePhase, "attempt %s: a second action on it", a.AttemptID())
	}
	j := s.StageOf(att).Job
	if j.Phase == JobActive && j.IsAccepted() && !c.isInfeasible(j) && !att.Speculative && (c.keepsDeadline(s, d, j) || !c.isGuaranteeDueOn(s, att.Node, now)) {
		return violationOf(RuleVictim, "attempt %s: its job has an accepted deadline", a.AttemptID())
	}
	if c.isProtectedByProject(s, d, att, j, now) {
		return violationOf(RuleVictim, "attempt %s: its project has a guarantee", a.AttemptID())
	}
	if a.Kind == ActKill {
		if att.Phase == AttemptKilling {
			return violationOf(RulePhase, "attempt %s: it is being killed", a.AttemptID())
		}
		return Violation{}
	}
	switch {
	case !a.Level.Suspended():
		return violationOf(RuleMalformed, "attempt %s: cannot suspend to level %v: use frozen, swapped or checkpointed", a.AttemptID(), a.Level)
	case !s.cluster.nodes[att.Node].Spec.Levels.Has(a.Level):
		return violationOf(RuleRestore, "attempt %s: node %q does not support level %v", a.AttemptID(), s.cluster.nodes[att.Node].Spec.Name, a.Level)
	case att.RefusedLevels.Has(a.Level):
		return violationOf(RuleRestore, "attempt %s: node %q has refused level %v", a.AttemptID(), s.cluster.nodes[att.Node].Spec.Name, a.Level)
	case att.Phase != AttemptStarting && att.Phase != AttemptRunning && (att.Phase != AttemptSuspended || a.Level <= att.Level):
		return violationOf(RulePhase, "attempt %s: it is %v", a.AttemptID(), att.Phase)
	}
	return Violation{}
}

// isInfeasible reports whether the deadline of the job is infeasible, by this decision or
// before.
func (c *checker) isInfeasible(j *Job) bool {
	return j.HasState(InfeasibleState) || slices.Contains(c.infeasible, j.Spec.ID)
}

// checkResume checks a resume or migration.
func (c *checker) checkResume(s *State, a *Action, now Time) Violation {
	id := a.AttemptID()
	att := s.Attempt(id)
	if att == nil {
		return violationOf(RuleUnknown, "attempt %s: it is not live", id)
	}
	run := a.Run
	if a.Kind == ActMigrate {
		run--
	}
	if att.Run != run {
		return violationOf(RuleFencing, "attempt %s: run %d is not the current run %d", id, a.Run, att.Run)
	}
	if !c.seeFirst(id) {
		return violationOf(RulePhase, "attempt %s: a second action on it", id)
	}
	g := s.StageOf(att)
	more := att.Demand.Sub(att.Occupied.Resources)
	if a.Kind == ActResume {
		if att.Phase != AttemptSuspended {
			return violationOf(RulePhase, "attempt %s: it is %v, not suspended", id, att.Phase)
		}
		if v := c.takeCapacity(s, att.Node, att.Disk, more, att.DiskSpace-att.Occupied.Disk, true); v.Rule != 0 {
			return v
		}
	} else {
		if att.From != NoNode || (att.Phase != AttemptRunning && att.Phase != AttemptSuspended) || a.Node == att.Node {
			return violationOf(RulePhase, "attempt %s: it is %v and cannot migrate to node %d", id, att.Phase, a.Node)
		}
		if v := c.takeCapacity(s, a.Node, a.Disk, att.Demand, att.DiskSpace, false); v.Rule != 0 {
			return v
		}
		if !CanRestore(&s.cluster.nodes[att.Node].Spec, &s.cluster.nodes[a.Node].Spec) {
			return violationOf(RuleRestore, "attempt %s: node %q cannot restore its checkpoint", id, s.cluster.nodes[a.Node].Spec.Name)
		}
	}
	if v := c.chargeCaps(s, g.Job, att.Demand, more); v.Rule != 0 {
		return v
	}
	back := placedTask{att.Node, att.Disk, g.Job, more, att.DiskSpace - att.Occupied.Disk, boundedEnd(g, now)}
	if a.Kind == ActMigrate {
		back.node, back.disk, back.demand, back.space = a.Node, a.Disk, att.Demand, att.DiskSpace
	}
	v := c.checkGuarantees(s, g.Job, g, att.ID.Index, back.node, now)
	c.placed = append(c.placed, back)
	return v
}

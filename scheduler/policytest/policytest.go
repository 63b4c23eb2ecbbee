// Package policytest is the conformance suite of all policies. The test of a policy calls Run;
// package policies runs it for its whole table.
//
// The suite applies random events to a random cluster (schedtest.Chaos) and checks every
// decision: the State is unchanged byte for byte; Check passes; there are at most limit
// actions; a new instance of the policy on a loaded copy of the State decides exactly the
// same; a second decision without an event in between is empty unless the first requested it;
// and each waiting stage has one reason that Prove, which shares no code with the policies,
// confirms. It sums up idle capacity by reason and fails if some of it has none.
package policytest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/schedtest"
)

// Maker returns a new instance of a policy.
type Maker func() scheduler.Policy

// Run runs the suite in random worlds.
func Run(t *testing.T, newPolicy Maker) {
	var all idleCapacity
	t.Run("random worlds", rapid.MakeCheck(func(t *rapid.T) {
		all.join(world(t, newPolicy, rapid.Uint64().Draw(t, "seed"), rapid.IntRange(1, maxCycles()).Draw(t, "cycles")))
	}))
	t.Log(&all)
	t.Run("nothing changed costs no allocation", func(t *testing.T) { idleCycle(t, newPolicy) })
	t.Run("an empty cluster", func(t *testing.T) {
		w := schedtest.New(t)
		Round(t, w.State, newPolicy(), newPolicy, w.Now, 10)
		w.AddTenants("a").Submit("a", 3, schedtest.R(1, 1, 1))
		Round(t, w.State, newPolicy(), newPolicy, w.Now, 10)
	})
}

// RunWorld runs the suite in one random world, with the seed and cycles that the suite prints when it fails.
func RunWorld(t TB, newPolicy Maker, seed uint64, cycles int) {
	world(t, newPolicy, seed, cycles)
}

// world runs the suite in one random world and returns the idle capacity, all of which has a reason.
func world(t TB, newPolicy Maker, seed uint64, cycles int) *idleCapacity {
	t.Helper()
	idle := &idleCapacity{}
	c := schedtest.NewChaos(t, seed)
	warm := newPolicy()
	for range cycles {
		for range 1 + c.R.IntN(4) {
			c.Step()
		}
		if c.R.IntN(3) == 0 {
			suspendSome(c)
		}
		if c.R.IntN(4) == 0 {
			avoidSome(c)
		}
		if c.R.IntN(4) == 0 {
			c.OrderWindows()
		}
		limit := 10_000
		if c.R.IntN(4) == 0 {
			limit = 1 + c.R.IntN(3)
		}
		d := Round(t, c.State, warm, newPolicy, c.Now, limit)
		if err := schedtest.Invariants(c.State); err != nil {
			t.Fatalf("%v", err)
		}
		idle.add(c.State, &d, time.Second)
		if idle.Unexplained > 0 {
			t.Fatalf("capacity is idle for no reason: %v", idle)
		}
	}
	return idle
}

// RunOverTime checks in random worlds that time alone changes nothing until the wake of a decision. It is
// not part of Run: easy and multifactor leave capacity of tasks past their bounds to earlier jobs only
// while these could end before the head's start, and request no decision for when they no longer can.
func RunOverTime(t *testing.T, newPolicy Maker) {
	worlds := 20
	if testing.Short() {
		worlds = 3
	}
	first := seed.New(t)
	for i := range worlds {
		timePasses(t, newPolicy, first+uint64(i))
	}
}

// timePasses applies events to a random world. Between them it lets the policy decide at times without an event
// and before the requested wake: a new instance must then decide the same as one that decided at each event.
func timePasses(t TB, newPolicy Maker, seed uint64) {
	c := schedtest.NewChaos(t, seed)
	warm := newPolicy()
	for range 12 { // with fewer rounds there is too little work for an order to matter
		for range 1 + c.R.IntN(4) {
			c.Step()
		}
		if c.R.IntN(4) == 0 {
			c.OrderWindows()
		}
		d := Round(t, c.State, warm, newPolicy, c.Now, 10_000)
		for range 3 {
			span := time.Minute
			if d.Wake > 0 {
				span = min(span, d.Wake.Sub(c.Now)-2) // times in seconds as floating-point numbers are not exact
			}
			if span <= 0 {
				break
			}
			c.Now = c.Now.Add(1 + time.Duration(c.R.Int64N(int64(span))))
			DecideWarmAndCold(t, c.State, warm, newPolicy, c.Now, 10_000)
		}
	}
}

// maxCycles limits the cycles of one random world, so that the whole table runs in seconds,
// unless DROVER_SOAK is set.
func maxCycles() int {
	if os.Getenv("DROVER_SOAK") != "" {
		return 100
	}
	if testing.Short() {
		return 5
	}
	return 10
}

// suspendSome suspends random attempts as an operator might.
func suspendSome(c *schedtest.Chaos) {
	for _, a := range c.Attempts() {
		if a.Phase == scheduler.AttemptRunning && c.State.Node(a.Node).CanReach(a, scheduler.LevelFrozen) && !c.State.StageOf(a).Job.IsAccepted() && c.R.IntN(4) == 0 {
			act := scheduler.Action{Kind: scheduler.ActSuspend, Task: a.ID.TaskID, Attempt: a.ID.Attempt, Run: a.Run, Level: scheduler.LevelFrozen}
			if err := c.State.Apply(&act, c.Now); err != nil {
				c.Fatalf("suspend: %v", err)
			}
		}
	}
}

// avoidSome makes random jobs avoid random nodes, or stop avoiding them.
func avoidSome(c *schedtest.Chaos) {
	for j := range c.State.Jobs() {
		if c.R.IntN(3) > 0 {
			continue
		}
		var nodes []scheduler.NodeID
		for _, n := range c.State.Nodes() {
			if c.R.IntN(3) == 0 {
				nodes = append(nodes, n.Spec.ID)
			}
		}
		if err := c.State.Events().SetAvoided(j.Spec.ID, nodes); err != nil {
			c.Fatalf("avoid: %v", err)
		}
	}
}

// avoids reports whether a job avoids a node for the tasks of a stage: it does while a schedulable
// node that it does not avoid could run one if nothing else ran there.
func avoids(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node) bool {
	avoided := g.Job.Avoided()
	return slices.Contains(avoided, n.Spec.ID) && slices.ContainsFunc(s.Nodes(), func(o *scheduler.Node) bool {
		d := g.Spec.Demand
		onDisk := slices.ContainsFunc(o.Spec.Disks, func(k scheduler.Disk) bool { return k.IO >= d[scheduler.IO] && k.Space >= g.Spec.Disk })
		return !o.Spec.Down && !o.Spec.Draining && !slices.Contains(avoided, o.Spec.ID) && d[scheduler.CPU] <= o.Spec.Capacity[scheduler.CPU] &&
			d[scheduler.Memory] <= o.Spec.Capacity[scheduler.Memory] && (onDisk || len(o.Spec.Disks) == 0 && d[scheduler.IO] == 0 && g.Spec.Disk == 0)
	})
}

// mayStartOn reports whether a task of a stage may start on a node now.
func mayStartOn(s *scheduler.State, g *scheduler.Stage, n *scheduler.Node, now scheduler.Time) bool {
	_, ok := n.Fits(g.Spec.Demand, g.Spec.Disk)
	return ok && !avoids(s, g, n) && !leaves(g, n, now)
}

// TB is the part of a test that Round uses.
type TB interface {
	Helper()
	Fatalf(format string, args ...any)
}

// maxDecisions is how many decisions a policy may need at one time, each leaving work to the next.
const maxDecisions = 50

// Round lets the policy decide, checks and applies the decision, and lets it decide again. It
// returns the decision, or the last one if each left work to the next.
func Round(t TB, s *scheduler.State, p scheduler.Policy, newPolicy Maker, now scheduler.Time, limit int) scheduler.Decision {
	t.Helper()
	for range maxDecisions {
		if d, again := decideAndApply(t, s, p, newPolicy, now, limit); !again {
			return d
		}
	}
	t.Fatalf("%s: %d decisions at one time, and work is left", p.Name(), maxDecisions)
	return scheduler.Decision{}
}

// decideAndApply makes one decision of Round. again reports that it left work to the next.
func decideAndApply(t TB, s *scheduler.State, p scheduler.Policy, newPolicy Maker, now scheduler.Time, limit int) (d scheduler.Decision, again bool) {
	t.Helper()
	d = DecideWarmAndCold(t, s, p, newPolicy, now, limit)
	if len(d.Actions) > limit {
		t.Fatalf("%s: %d actions, at most %d", p.Name(), len(d.Actions), limit)
	}
	if v := scheduler.Check(s, &d, now); len(v) > 0 {
		t.Fatalf("%s: %v\n%s", p.Name(), v, d.String())
	}
	if err := checkWindows(s, &d, now); err != nil {
		t.Fatalf("%s: %v\n%s", p.Name(), err, d.String())
	}
	for i := range d.Actions {
		if err := s.Apply(&d.Actions[i], now); err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
	}
	if err := s.PolicyStates().Apply(d.PolicyStates); err != nil {
		t.Fatalf("%s: %v", p.Name(), err)
	}
	if err := ProveAll(s, &d, now, limit); err != nil {
		t.Fatalf("%s: %v\n%s", p.Name(), err, d.String())
	}
	if len(d.Actions) == limit {
		return d, false
	}
	if d.Wake == now+1 && !d.Empty() {
		return d, true
	}
	if opensStages(s, &d) {
		return d, false // the next decision has more work
	}
	requireNoMoreActions(t, s, p, now, limit, &d)
	return d, false
}

// openedBy reports whether the applied decision has opened stage g: a reduce with a slow start opens when
// no map waits or is suspended. The policy could not know of that, and the next decision serves the stage.
func openedBy(d *scheduler.Decision, g *scheduler.Stage) bool {
	return g.Spec.SlowStart > 0 && g.Ready() && slices.ContainsFunc(d.Actions, func(a scheduler.Action) bool {
		starts := a.Kind == scheduler.ActPlace || a.Kind == scheduler.ActResume || a.Kind == scheduler.ActMigrate
		return starts && a.Task.Job == g.Job.Spec.ID && slices.Contains(g.Spec.After, a.Task.Stage)
	})
}

// opensStages reports whether the applied decision has opened any stage.
func opensStages(s *scheduler.State, d *scheduler.Decision) bool {
	for j := range s.Jobs() {
		if slices.ContainsFunc(j.Stages, func(g *scheduler.Stage) bool { return openedBy(d, g) }) {
			return true
		}
	}
	return false
}

// DecideWarmAndCold lets the policy decide once, and fails the test unless a new instance on a
// rebuilt State decides the same, and the State is unchanged.
func DecideWarmAndCold(t TB, s *scheduler.State, p scheduler.Policy, newPolicy Maker, now scheduler.Time, limit int) scheduler.Decision {
	t.Helper()
	s.SetTime(now)
	before, stamp := schedtest.Bytes(s), s.Stamp()
	copied := s.Clone()
	copied.SetTime(now)
	d := p.Decide(s, now, limit)
	d.Actions, d.PolicyStates, d.Waiting = slices.Clone(d.Actions), slices.Clone(d.PolicyStates), slices.Clone(d.Waiting)
	if after := schedtest.Bytes(s); !bytes.Equal(before, after) || s.Stamp() != stamp || inTry(s) {
		t.Fatalf("%s: Decide changed the State:\n%s", p.Name(), schedtest.Diff(copied, s))
	}
	cold := newPolicy().Decide(copied, now, limit)
	if a, b := mustEncode(t, d), mustEncode(t, cold); a != b {
		t.Fatalf("%s: a new instance on a rebuilt State decides differently:\nwarm\n%s\ncold\n%s", p.Name(), a, b)
	}
	return d
}

// inTry reports whether a try was left open: State.Events panics then.
func inTry(s *scheduler.State) (open bool) {
	defer func() { open = recover() != nil }()
	s.Events()
	return false
}

// requireNoMoreActions fails the test unless two more decisions without an event are empty.
func requireNoMoreActions(t TB, s *scheduler.State, p scheduler.Policy, now scheduler.Time, limit int, d *scheduler.Decision) {
	t.Helper()
	for range 2 {
		if again := p.Decide(s, now, limit); !again.Empty() {
			t.Fatalf("%s: a second decision without an event is not empty:\n%s\nafter\n%s", p.Name(), again.String(), d.String())
		}
	}
}

func mustEncode(t TB, d scheduler.Decision) string {
	raw, err := json.MarshalIndent(d, "", " ")
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	return d.String() + string(raw)
}

// idleCycle fails the test if a decision without changes allocates.
func idleCycle(t *testing.T, newPolicy Maker) {
	w := schedtest.New(t).AddNodes(50, schedtest.R(8, 16, 100)).AddTenants("a", "b")
	for range 40 {
		w.Submit("a", 7, schedtest.R(2, 3, 10))
		w.Submit("b", 5, schedtest.R(3, 3, 10))
	}
	p := newPolicy()
	for range 100 { // more than one if planning has a budget
		if d := w.Cycle(p); d.Empty() {
			break
		}
	}
	if n := testing.AllocsPerRun(20, func() { p.Decide(w.State, w.Now, 1000) }); n > 0 {
		t.Errorf("%s: %v allocations in a cycle in which nothing changed", p.Name(), n)
	}
}

// ProveAll returns an error unless every waiting stage that the decision did not open has exactly
// one reason and it is true. s is the State with the decision applied.
func ProveAll(s *scheduler.State, d *scheduler.Decision, now scheduler.Time, limit int) error {
	given := map[scheduler.StageID]*scheduler.Waiting{}
	for i := range d.Waiting {
		w := &d.Waiting[i]
		if given[w.Stage] != nil {
			return fmt.Errorf("stage %s has two reasons", w.Stage)
		}
		given[w.Stage] = w
	}
	for i := range d.Waiting {
		if err := prove(s, d, &d.Waiting[i], given, now, limit); err != nil {
			return fmt.Errorf("%s: %w", d.Waiting[i].String(), err)
		}
	}
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			if g.Ready() && given[g.ID()] == nil && !openedBy(d, g) {
				return fmt.Errorf("stage %s is ready with %d pending tasks but has no reason", g.ID(), g.Pending)
			}
		}
	}
	return nil
}

// prove returns an error unless the reason of w is true. s is the State with the decision
// applied.
func prove(s *scheduler.State, d *scheduler.Decision, w *scheduler.Waiting, given map[scheduler.StageID]*scheduler.Waiting,
	now scheduler.Time, limit int,
) error {
	g := s.Stage(w.Stage)
	if g == nil || !g.Ready() {
		return fmt.Errorf("the stage is not ready")
	}
	if w.Tasks != g.Pending {
		return fmt.Errorf("it has %d pending tasks", g.Pending)
	}
	switch w.Reason {
	case scheduler.ReasonNoCPU, scheduler.ReasonNoMemory, scheduler.ReasonNoIO, scheduler.ReasonNoDiskSpace, scheduler.ReasonNoNode, scheduler.ReasonMaintenance:
		return proveNoCapacity(s, g, w, now)
	case scheduler.ReasonCap:
		return proveCap(s, g, w)
	case scheduler.ReasonMaxParallel:
		return errorUnless(g.Spec.MaxParallel > 0 && g.Running+g.Suspended >= g.Spec.MaxParallel,
			"%d run or are suspended of %d", g.Running+g.Suspended, g.Spec.MaxParallel)
	case scheduler.ReasonCycleFull:
		return errorUnless(len(d.Actions) >= limit || d.Wake == now+1, "only %d of %d actions were used, and the next cycle is not due at once", len(d.Actions), limit)
	case scheduler.ReasonHeadOfLine:
		head := given[w.Behind]
		return errorUnless(head != nil && head.Reason != scheduler.ReasonHeadOfLine && head.Reason != scheduler.ReasonCycleFull, "%s does not wait for a reason of its own", w.Behind)
	case scheduler.ReasonShare:
		return proveShare(s, g, w, given, now)
	case scheduler.ReasonNotAdmitted:
		_, ok := s.PolicyState(scheduler.PolicyStateKey{Kind: scheduler.AdmittedState, Job: w.Stage.Job})
		return errorUnless(!ok, "it is admitted")
	case scheduler.ReasonReservation:
		return proveReservation(s, g, w, now)
	case scheduler.ReasonData:
		return proveData(s, g, w, now)
	case scheduler.ReasonSuspending:
		return proveSuspending(s, g, w, now)
	case scheduler.ReasonLater:
		return proveLater(s, g, w, now)
	case scheduler.ReasonDue:
		return proveDue(s, g, w, now)
	case scheduler.ReasonPlanning:
		return provePlanning(s, g)
	case scheduler.ReasonNotExamined:
		return errorUnless(len(d.Waiting) > minExamined || unreserved(s) > s.Reservations().Left()-keptReservations,
			"only %d stages wait, and there are reservations for all tasks", len(d.Waiting))
	default:
		return fmt.Errorf("reason %v cannot be proved", w.Reason)
	}
}

// keptReservations is how many reservations a policy that plans all tasks may leave unused.
const keptReservations = 1 << 13

// unreserved returns how many waiting tasks have no reservation.
func unreserved(s *scheduler.State) (n int) {
	for j := range s.Jobs() {
		for _, g := range j.Stages {
			for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
				if g.PlannedAt(i) == nil {
					n++
				}
			}
		}
	}
	return n
}

// minExamined is the least number of different demands that a policy examines.
const minExamined = 64

// provePlanning: the job or its project could have a guarantee, and neither has one nor was
// refused one.
func provePlanning(s *scheduler.State, g *scheduler.Stage) error {
	j := g.Job
	if pr := s.Project(j.Spec.Project); pr != nil {
		if pr.HasState(scheduler.GuaranteeState) && !s.GuaranteeIncludes(j) { // it joined later
			return errorUnless(!j.HasState(scheduler.RefusedState), "its request was decided")
		}
		return errorUnless(!pr.HasState(scheduler.GuaranteeState) && !pr.HasState(scheduler.RefusedState), "its project's request was decided")
	}
	return errorUnless(j.Spec.Deadline != 0 && !j.IsAccepted(), "it requests no guarantee")
}

// errorUnless returns nil if ok, else the formatted error.
func errorUnless(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// proveNoCapacity examines every node and disk separately.
func proveNoCapacity(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, now scheduler.Time) error {
	nodes, leave := int32(0), int32(0)
	var lack [4]int32
	for _, n := range s.Nodes() {
		if n.Spec.Down || n.Spec.Draining || avoids(s, g, n) {
			continue
		}
		if leaves(g, n, now) {
			leave++
			continue
		}
		nodes++
		d := g.Spec.Demand
		cpu, mem := n.Free[scheduler.CPU] >= d[scheduler.CPU], n.Free[scheduler.Memory] >= d[scheduler.Memory]
		io, space, both := d[scheduler.IO] == 0, g.Spec.Disk == 0, d[scheduler.IO] == 0 && g.Spec.Disk == 0
		if len(n.Disks) > 0 {
			io, space, both = false, false, false
		}
		for _, k := range n.Disks {
			a, b := k.FreeIO >= d[scheduler.IO], k.FreeSpace >= g.Spec.Disk
			io, space, both = io || a, space || b, both || (a && b)
		}
		if cpu && mem && both {
			return fmt.Errorf("it fits on node %q", n.Spec.Name)
		}
		for i, ok := range []bool{cpu, mem, io && (both || !space || !cpu || !mem), space} {
			if !ok {
				lack[i]++
			}
		}
	}
	switch w.Reason {
	case scheduler.ReasonNoNode:
		return errorUnless(nodes+leave == 0, "%d nodes are schedulable", nodes+leave)
	case scheduler.ReasonMaintenance:
		return errorUnless(nodes == 0 && leave > 0, "%d nodes are schedulable and stay long enough, %d leave", nodes, leave)
	}
	k := int(w.Reason - scheduler.ReasonNoCPU)
	for i := range lack {
		if lack[i] > lack[k] || (lack[i] == lack[k] && i < k) {
			return fmt.Errorf("%d nodes lack %v, %d lack %v", lack[i], scheduler.Resource(i), lack[k], scheduler.Resource(k))
		}
	}
	return errorUnless(lack[k] == w.Nodes && nodes > 0, "%d of %d nodes lack %v", lack[k], nodes, scheduler.Resource(k))
}

// proveCap: one more task would exceed the named cap of the job's tenant or one above it.
func proveCap(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting) error {
	above := false
	for t := s.Tenant(g.Job.Spec.Tenant); t != nil; t = s.Tenant(t.Spec.Parent) {
		above = above || t.Spec.ID == w.Tenant
	}
	if !above {
		return fmt.Errorf("tenant %d is not above the job", w.Tenant)
	}
	t := s.Tenant(w.Tenant)
	var used int64
	var limit scheduler.Limit
	switch w.Cap {
	case scheduler.CapTask:
		limit = t.Spec.Caps.Task
	case scheduler.CapJob:
		used, limit = g.Job.Used[w.Resource], t.Spec.Caps.Job
	case scheduler.CapTotal:
		used, limit = t.Used[w.Resource], t.Spec.Caps.Total
	default:
		return fmt.Errorf("no such cap")
	}
	return errorUnless(limit[w.Resource] > 0 && used+g.Spec.Demand[w.Resource] > limit[w.Resource],
		"%d and %d more are within %d", used, g.Spec.Demand[w.Resource], limit[w.Resource])
}

// proveReservation: the named reservation is another job's and not over, on a node with free
// capacity, and every node that fits has a reservation for another job, so that only reservations
// prevent a start. Or a cap leaves too little beside the guarantees below it.
func proveReservation(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, now scheduler.Time) error {
	r := s.Reservations().Get(w.Reservation)
	if r != nil && isCapReserved(s, g, r, now) {
		return errorUnless(w.Until == r.End, "the reservation ends at %d", r.End)
	}
	if r == nil || r.Job == w.Stage.Job || r.End <= now || w.Until <= now {
		return fmt.Errorf("no such reservation of another job is in force")
	}
	others := func(n scheduler.NodeID) bool {
		for _, o := range s.Reservations().On(n) {
			if o.Job != w.Stage.Job && o.End > now {
				return true
			}
		}
		return false
	}
	fits := 0
	for _, n := range s.Nodes() {
		if !mayStartOn(s, g, n, now) {
			if r.Node == n.Spec.ID {
				return fmt.Errorf("node %q of the reservation has too little free capacity", n.Spec.Name)
			}
			continue
		}
		fits++
		if !others(n.Spec.ID) && !others(scheduler.NoNode) {
			return fmt.Errorf("the stage fits on node %q and nothing is reserved there", n.Spec.Name)
		}
	}
	return errorUnless(fits > 0, "no node fits it: that is the reason")
}

// isCapReserved reports whether a reservation is a guarantee for a task of another job, or for a
// due task of another stage, and a cap above both tenants has too little for a task of the stage at
// some time of the reservation.
func isCapReserved(s *scheduler.State, g *scheduler.Stage, r *scheduler.Reservation, now scheduler.Time) bool {
	k := s.Stage(r.StageID())
	return k != nil && (k.Job != g.Job || (k != g && r.Start <= now)) && r.Kind.IsGuarantee() && r.Task >= 0 &&
		lacksCap(s, g, k.Job.Spec.Tenant, max(r.Start, now), r.End)
}

// lacksCap reports whether a cap above both a tenant and that of a stage has, at some time in [from, to),
// too little for a task of the stage beside all tasks reserved below the cap then and all live tasks.
func lacksCap(s *scheduler.State, g *scheduler.Stage, tenant scheduler.TenantID, from, to scheduler.Time) bool {
	for t := s.Tenant(g.Job.Spec.Tenant); t != nil; t = s.Tenant(t.Spec.Parent) {
		if t.Spec.Caps.Total == (scheduler.Limit{}) || !s.TenantTree().IsBelow(tenant, t.Spec.ID) {
			continue
		}
		for _, x := range s.Reservations().All() {
			at := max(x.Start, from)
			if _, ok := t.Spec.Caps.Total.Allows(reservedBelow(s, t, at).Add(g.Spec.Demand)); !ok && at < to {
				return true
			}
		}
	}
	return false
}

// reservedBelow returns the use of a tenant's cap by live tasks below it, as if all stayed and
// suspended ones resumed, plus the tasks that are reserved below it at a time.
func reservedBelow(s *scheduler.State, t *scheduler.Tenant, at scheduler.Time) (sum scheduler.Resources) {
	for j := range s.Jobs() {
		if !s.TenantTree().IsBelow(j.Spec.Tenant, t.Spec.ID) {
			continue
		}
		for _, g := range j.Stages {
			for a := range s.Attempts().In(g) {
				sum = sum.Add(a.Occupied.Resources.Max(a.Demand))
			}
		}
		for _, o := range j.Reservations() {
			if o.Kind.IsGuarantee() && o.Task >= 0 && o.Start <= at && o.End > at {
				sum = sum.Add(o.Demand)
			}
		}
	}
	return sum
}

// proveShare: the stage fits on some node, and the stage it is behind fits on none, or is
// itself behind another such stage, and so on.
func proveShare(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, given map[scheduler.StageID]*scheduler.Waiting, now scheduler.Time) error {
	behind := given[w.Behind]
	for n := 0; behind != nil && behind.Stage != w.Stage && n <= len(given); n++ {
		if behind.Reason != scheduler.ReasonShare {
			return errorUnless(fitsAnywhere(s, g, now) && !fitsAnywhere(s, s.Stage(behind.Stage), now), "no node fits it, or one fits %s too", behind.Stage)
		}
		behind = given[behind.Behind]
	}
	return fmt.Errorf("the stage it is behind does not wait, or is behind it")
}

func fitsAnywhere(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) bool {
	return slices.ContainsFunc(s.Nodes(), func(n *scheduler.Node) bool { return mayStartOn(s, g, n, now) })
}

// proveSuspending: capacity is reserved for this stage on the node, and victims there are
// releasing it.
func proveSuspending(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, now scheduler.Time) error {
	n := s.Node(w.Node)
	if n == nil || n.Releasing.IsZero() {
		return fmt.Errorf("node %d releases nothing", w.Node)
	}
	for _, r := range s.Reservations().On(w.Node) {
		if r.Kind == scheduler.ReservePreempt && r.Job == w.Stage.Job && r.Stage == w.Stage.Stage && r.End > now {
			return errorUnless(g.Spec.Demand.Fits(n.Free.Add(n.Releasing).Max(scheduler.Resources{})), "it does not fit on node %q even after its releases", n.Spec.Name)
		}
	}
	return fmt.Errorf("nothing is reserved for it on node %q", n.Spec.Name)
}

// proveLater: the stage's next reservation starts at the stated time. With Never it has no future
// reservation, some node fits it, and on every such node, or of a cap, something is reserved.
func proveLater(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, now scheduler.Time) error {
	if w.Until <= now {
		return fmt.Errorf("the start is not in the future")
	}
	next := scheduler.Never
	for _, r := range s.Reservations().All() {
		if r.Job == w.Stage.Job && (r.Stage < 0 || r.Stage == g.Index) && r.Start > now {
			next = min(next, r.Start)
		}
	}
	if w.Until != next {
		return fmt.Errorf("its first reservation to come starts at %d", next)
	}
	if next != scheduler.Never || lacksCap(s, g, g.Job.Spec.Tenant, now, scheduler.Never) {
		return nil
	}
	fits := 0
	for _, n := range s.Nodes() {
		if !mayStartOn(s, g, n, now) {
			continue
		}
		fits++
		if !slices.ContainsFunc(s.Reservations().On(n.Spec.ID), func(r *scheduler.Reservation) bool { return r.End > now }) {
			return fmt.Errorf("the stage fits on node %q and nothing is planned there", n.Spec.Name)
		}
	}
	return errorUnless(fits > 0, "no node fits it: that is the reason")
}

// proveDue: the reservation is in force for a pending task of the stage, and its schedulable
// node has too little free capacity for it.
func proveDue(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, now scheduler.Time) error {
	r := s.Reservations().Get(w.Reservation)
	if r == nil || r.Job != w.Stage.Job || r.Stage != w.Stage.Stage || r.Node != w.Node || !g.IsPending(r.Task) || r.Start > now || r.End <= now {
		return fmt.Errorf("no reservation for it is due there")
	}
	n := s.Node(r.Node)
	d := g.Spec.Demand
	fits := d[scheduler.CPU] <= n.Free[scheduler.CPU] && d[scheduler.Memory] <= n.Free[scheduler.Memory] &&
		(r.OnDisk < 0 || (d[scheduler.IO] <= n.Disks[r.OnDisk].FreeIO && g.Spec.Disk <= n.Disks[r.OnDisk].FreeSpace))
	return errorUnless(n.Schedulable() && !fits, "it fits on node %q, or the node is not schedulable", n.Spec.Name)
}

// proveData: a pending task has data on the named node, which is schedulable, and the wait is
// not over.
func proveData(s *scheduler.State, g *scheduler.Stage, w *scheduler.Waiting, now scheduler.Time) error {
	if w.Until <= now {
		return fmt.Errorf("it has waited long enough")
	}
	for i := g.NextPending(0); i >= 0; i = g.NextPending(i + 1) {
		_, nodes, _ := g.Input(i)
		for _, n := range nodes {
			if n == w.Node && s.Node(n) != nil && s.Node(n).Schedulable() {
				return nil
			}
		}
	}
	return fmt.Errorf("no waiting task has data on node %d", w.Node)
}

package scheduler

import (
	"fmt"
	"math"
)

// Rule is what a decision can break.
type Rule uint8

// The rules that Check holds a decision to.
const (
	RuleUnknown   Rule = iota + 1 // an id that is not there
	RuleTwice                     // a task or attempt acted on twice, or not in a state for it
	RuleRoom                      // over capacity on a node or disk
	RuleNode                      // a node that takes no work
	RuleCap                       // over a cap of a task, job, tenant or group
	RuleParallel                  // over a stage's MaxParallel
	RulePromise                   // a promise would be broken
	RuleVictim                    // a task of an accepted deadline or of a promised project is suspended or killed
	RuleRestore                   // a resume or migration where it cannot be restored
	RuleFencing                   // a wrong attempt or run number
	RuleNote                      // a note that State would refuse
	RuleMalformed                 // a value without meaning
)

// String gives the rule's name.
func (r Rule) String() string {
	names := [...]string{RuleUnknown: "unknown", RuleTwice: "twice", RuleRoom: "room", RuleNode: "node", RuleCap: "cap",
		RuleParallel: "parallel", RulePromise: "promise", RuleVictim: "victim", RuleRestore: "restore", RuleFencing: "fencing",
		RuleNote: "note", RuleMalformed: "malformed"}
	if int(r) < len(names) && names[r] != "" {
		return names[r]
	}
	return fmt.Sprintf("rule(%d)", uint8(r))
}

// Violation is one broken rule: the number of the action (or note) in the
// decision, and what is wrong.
type Violation struct {
	Rule   Rule
	Action int
	Text   string
}

// Error prints it on one line.
func (v Violation) Error() string {
	return fmt.Sprintf("action %d breaks rule %v: %s", v.Action, v.Rule, v.Text)
}

// checker is Check's own account of what the decision does, kept apart from
// State.Apply so that a mistake there is seen here. Entries count only where
// their epoch is the present one, so nothing is cleared between cycles.
type checker struct {
	epoch   uint32
	nodeAt  []int32     // of each node its position in nodes, good if that one is it
	nodes   []checkNode // touched by the decision so far
	tenants []checkTenant
	jobs    map[JobID]Resources
	stages  map[*Stage]int32
	seen    idSet
	moved   movedReservations // by the decision so far
	placed  []placedHere      // by the decision so far
	list    []*Reservation    // scratch
	disks   []DiskUse         // scratch
	notes   noteBatch
	dropped []droppedPromise // by the decision so far
	again   map[promiseKey]bool
	// hopeless jobs are those that the decision notes as such.
	hopeless []JobID
	pool     []poolPromise
	pooled   bool // pool is filled in
	out      []Violation
}

type checkNode struct {
	id    NodeID
	free  Resources
	disks []DiskUse
}

type checkTenant struct {
	epoch uint32
	used  Resources
}

// Check judges a decision against a State without changing it: every rule at
// every step, in the order of the actions. It does not use State.Apply nor
// anything of a policy. Nothing broken gives nil, without allocation once it
// has its size. O(actions x (depth of the tenant tree + reservations on the
// node)). The result is good until the next Check of the same State.
func Check(s *State, d *Decision, now Time) []Violation {
	c := &s.checker
	c.begin(s)
	for i := range d.Notes {
		if n := &d.Notes[i]; n.Kind == NoteHopeless {
			c.hopeless = append(c.hopeless, n.Job)
		}
	}
	for i := range d.Actions {
		a := &d.Actions[i]
		if v := c.action(s, d, a, i, now); v.Rule != 0 {
			v.Action = i
			c.out = append(c.out, v)
		}
	}
	c.dropsKept(s, d)
	if len(d.Notes) > 0 {
		c.notes.begin()
	}
	for i := range d.Notes {
		if err := c.notes.add(s, &d.Notes[i]); err != nil {
			c.out = append(c.out, Violation{RuleNote, i, err.Error()})
		}
	}
	if len(c.out) == 0 {
		return nil
	}
	return c.out
}

func (c *checker) begin(s *State) {
	c.epoch++
	if c.epoch == 0 {
		*c = checker{epoch: 1}
	}
	for len(c.nodeAt) < len(s.nodes) {
		c.nodeAt = append(c.nodeAt, 0)
	}
	c.nodes = c.nodes[:0]
	for len(c.tenants) < len(s.tenants) {
		c.tenants = append(c.tenants, checkTenant{})
	}
	if c.jobs == nil {
		c.jobs, c.stages = map[JobID]Resources{}, map[*Stage]int32{}
	}
	if len(c.jobs) > 0 {
		clear(c.jobs)
	}
	if len(c.stages) > 0 {
		clear(c.stages)
	}
	c.moved.begin()
	c.placed, c.dropped = c.placed[:0], c.dropped[:0]
	c.pool, c.pooled = c.pool[:0], false
	if len(c.again) > 0 {
		clear(c.again)
	}
	c.hopeless = c.hopeless[:0]
	c.seen.reset()
	c.out = c.out[:0]
}

func broke(r Rule, format string, args ...any) Violation {
	return Violation{Rule: r, Text: fmt.Sprintf(format, args...)}
}

func (c *checker) action(s *State, d *Decision, a *Action, i int, now Time) Violation {
	switch a.Kind {
	case ActPlace:
		return c.place(s, a, now)
	case ActSuspend, ActKill:
		return c.stop(s, d, a, now)
	case ActResume, ActMigrate:
		return c.resume(s, a, now)
	case ActReserve, ActUnreserve:
		return c.reserve(s, d, a, i)
	default:
		return broke(RuleMalformed, "kind is %v", a.Kind)
	}
}

// node gives what the decision so far leaves free on a node, good until the next
// call.
func (c *checker) node(s *State, id NodeID) *checkNode {
	if at := int(c.nodeAt[id]); at < len(c.nodes) && c.nodes[at].id == id {
		return &c.nodes[at]
	}
	at := len(c.nodes)
	c.nodeAt[id] = int32(at)
	if at < cap(c.nodes) {
		c.nodes = c.nodes[:at+1] // with the disks it had
	} else {
		c.nodes = append(c.nodes, checkNode{})
	}
	n := &c.nodes[at]
	n.id, n.free, n.disks = id, s.nodes[id].Free, append(n.disks[:0], s.nodes[id].Disks...)
	return n
}

func (c *checker) place(s *State, a *Action, now Time) Violation {
	g := s.stageFor(a.Task.StageID())
	if g == nil {
		return broke(RuleUnknown, "task %s: no such stage", a.Task)
	}
	j := g.Job
	i := a.Task.Index
	if i < 0 || i >= g.Spec.Tasks {
		return broke(RuleUnknown, "task %s: the stage has %d tasks", a.Task, g.Spec.Tasks)
	}
	if j.Phase != JobActive || !g.Open {
		return broke(RuleTwice, "task %s: its stage may not start", a.Task)
	}
	lives := g.active[i] != 0
	waits := !lives && !g.done.has(i) && g.tries[i].Failures < g.maxAttempts()
	second := lives && s.at(g.active[i]-1).sibling == 0 && !g.done.has(i)
	if (!a.Speculative && !waits) || (a.Speculative && !second) || !c.seen.add(AttemptID{TaskID: a.Task}) {
		return broke(RuleTwice, "task %s: it does not wait for a place", a.Task)
	}
	want := g.tries[i].Last
	if lives {
		want = max(want, s.at(g.active[i]-1).ID.Attempt)
	}
	if a.Attempt != want+1 || a.Run != 1 {
		return broke(RuleFencing, "task %s: attempt %d run %d, want attempt %d run 1", a.Task, a.Attempt, a.Run, want+1)
	}
	if g.Spec.MaxParallel > 0 {
		c.stages[g]++
		if g.Running+g.Suspended+c.stages[g] > g.Spec.MaxParallel {
			return broke(RuleParallel, "stage %s: more than %d at once", g.ID(), g.Spec.MaxParallel)
		}
	}
	if v := c.take(s, a.Node, a.Disk, g.Spec.Demand, g.Spec.Disk, false); v.Rule != 0 {
		return v
	}
	if v := c.caps(s, j, g.Spec.Demand, g.Spec.Demand); v.Rule != 0 {
		return v
	}
	v := c.promises(s, j, g, i, a.Node, now)
	c.placed = append(c.placed, placedHere{a.Node, a.Disk, j, g.Spec.Demand, g.Spec.Disk, predictedEnd(g, now)})
	return v
}

// take takes room on a node and disk. What is there already may go on while
// the node drains.
func (c *checker) take(s *State, id NodeID, disk int16, d Resources, space int64, there bool) Violation {
	if id < 0 || int(id) >= len(s.nodes) {
		return broke(RuleUnknown, "node %d: no such node", id)
	}
	if spec := &s.nodes[id].Spec; spec.Down || (spec.Draining && !there) {
		return broke(RuleNode, "node %q is down or draining", spec.Name)
	}
	n := c.node(s, id)
	if int(disk) >= len(n.disks) || disk < -1 || (disk < 0 && (d[IO] > 0 || space > 0)) {
		return broke(RuleUnknown, "node %q: no disk %d", s.nodes[id].Spec.Name, disk)
	}
	n.free = n.free.Sub(d)
	short := (d[CPU] > 0 && n.free[CPU] < 0) || (d[Memory] > 0 && n.free[Memory] < 0)
	if disk >= 0 {
		n.disks[disk].FreeIO -= d[IO]
		n.disks[disk].FreeSpace -= space
		short = short || (d[IO] > 0 && n.disks[disk].FreeIO < 0) || (space > 0 && n.disks[disk].FreeSpace < 0)
	}
	if short {
		return broke(RuleRoom, "node %q disk %d: %v and %d bytes are more than is free", s.nodes[id].Spec.Name, disk, d, space)
	}
	return Violation{}
}

// caps charges d more to a job and its tenants, the task holding task in all.
func (c *checker) caps(s *State, j *Job, task, d Resources) Violation {
	t := s.tenants[j.Spec.Tenant]
	if r, ok := t.Spec.Caps.Task.Allows(task); !ok {
		return broke(RuleCap, "job %d: a task is over the cap of tenant %q on %v", j.Spec.ID, t.Spec.Name, r)
	}
	jobCapped := false
	for id, n := j.Spec.Tenant, 0; id != NoTenant && n <= MaxTenantDepth; n++ {
		t := s.tenants[id]
		u := &c.tenants[id]
		if u.epoch != c.epoch {
			u.epoch, u.used = c.epoch, t.Used
		}
		u.used = u.used.Add(d)
		if r, ok := t.Spec.Caps.Total.Allows(u.used); !ok {
			return broke(RuleCap, "tenant %q is over its cap on %v", t.Spec.Name, r)
		}
		jobCapped = jobCapped || !t.Spec.Caps.Job.None()
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
		t := s.tenants[id]
		if r, ok := t.Spec.Caps.Job.Allows(used); !ok {
			return broke(RuleCap, "job %d is over the cap of tenant %q for a job on %v", j.Spec.ID, t.Spec.Name, r)
		}
		id = t.Spec.Parent
	}
	return Violation{}
}

func (c *checker) stop(s *State, d *Decision, a *Action, now Time) Violation {
	att := s.Attempt(a.AttemptID())
	if att == nil {
		return broke(RuleUnknown, "attempt %s: it is not live", a.AttemptID())
	}
	if att.Run != a.Run {
		return broke(RuleFencing, "attempt %s: run %d, it is at %d", a.AttemptID(), a.Run, att.Run)
	}
	if !c.seen.add(a.AttemptID()) {
		return broke(RuleTwice, "attempt %s: acted on twice", a.AttemptID())
	}
	j := s.StageOf(att).Job
	if j.Phase == JobActive && s.Accepted(j) && !hopeless(d, j) && !att.Speculative {
		return broke(RuleVictim, "attempt %s: its job has an accepted deadline", a.AttemptID())
	}
	if c.spared(s, d, att, j, now) {
		return broke(RuleVictim, "attempt %s: its project has a guarantee", a.AttemptID())
	}
	if a.Kind == ActKill {
		if att.Phase == AttemptKilling {
			return broke(RuleTwice, "attempt %s: it is being killed", a.AttemptID())
		}
		return Violation{}
	}
	switch {
	case !a.Level.Suspended():
		return broke(RuleMalformed, "attempt %s: %v is no level to suspend to", a.AttemptID(), a.Level)
	case !s.nodes[att.Node].Spec.Levels.Has(a.Level):
		return broke(RuleRestore, "attempt %s: node %q cannot do %v", a.AttemptID(), s.nodes[att.Node].Spec.Name, a.Level)
	case att.Barred.Has(a.Level):
		return broke(RuleRestore, "attempt %s: node %q could not bring it to %v before", a.AttemptID(), s.nodes[att.Node].Spec.Name, a.Level)
	case att.Phase != AttemptStarting && att.Phase != AttemptRunning && (att.Phase != AttemptSuspended || a.Level <= att.Level):
		return broke(RuleTwice, "attempt %s: it is %v", a.AttemptID(), att.Phase)
	}
	return Violation{}
}

// hopeless tells whether the job left its lane, now or before.
func hopeless(d *Decision, j *Job) bool {
	if j.Noted(NoteHopeless) {
		return true
	}
	for i := range d.Notes {
		if d.Notes[i].Kind == NoteHopeless && d.Notes[i].Job == j.Spec.ID {
			return true
		}
	}
	return false
}

func (c *checker) resume(s *State, a *Action, now Time) Violation {
	id := a.AttemptID()
	att := s.Attempt(id)
	if att == nil {
		return broke(RuleUnknown, "attempt %s: it is not live", id)
	}
	run := a.Run
	if a.Kind == ActMigrate {
		run--
	}
	if att.Run != run {
		return broke(RuleFencing, "attempt %s: run %d, it is at %d", id, a.Run, att.Run)
	}
	if !c.seen.add(id) {
		return broke(RuleTwice, "attempt %s: acted on twice", id)
	}
	g := s.StageOf(att)
	more := att.Demand.Sub(att.Held.Resources)
	if a.Kind == ActResume {
		if att.Phase != AttemptSuspended {
			return broke(RuleTwice, "attempt %s: it is %v, not suspended", id, att.Phase)
		}
		if v := c.take(s, att.Node, att.Disk, more, att.DiskSpace-att.Held.Disk, true); v.Rule != 0 {
			return v
		}
	} else {
		if att.From != NoNode || (att.Phase != AttemptRunning && att.Phase != AttemptSuspended) || a.Node == att.Node {
			return broke(RuleTwice, "attempt %s: it is %v and cannot move to %d", id, att.Phase, a.Node)
		}
		if v := c.take(s, a.Node, a.Disk, att.Demand, att.DiskSpace, false); v.Rule != 0 {
			return v
		}
		if !CanRestore(&s.nodes[att.Node].Spec, &s.nodes[a.Node].Spec) {
			return broke(RuleRestore, "attempt %s: node %q cannot restore it", id, s.nodes[a.Node].Spec.Name)
		}
	}
	if v := c.caps(s, g.Job, att.Demand, more); v.Rule != 0 {
		return v
	}
	back := placedHere{att.Node, att.Disk, g.Job, more, att.DiskSpace - att.Held.Disk, predictedEnd(g, now)}
	if a.Kind == ActMigrate {
		back.node, back.disk, back.demand, back.space = a.Node, a.Disk, att.Demand, att.DiskSpace
	}
	v := c.promises(s, g.Job, g, att.ID.Index, back.node, now)
	c.placed = append(c.placed, back)
	return v
}

// idSet is a set of attempts with open addressing; reset is O(1). It begins with a
// small table each time: most decisions name a few attempts, and one in a table
// that a large decision left behind is never at hand.
type idSet struct {
	tables [][]idEntry // each twice as long as the one before
	level  int         // of the table in use
	now    uint32
	n      int
}

type idEntry struct {
	id    AttemptID
	epoch uint32 // it counts where this is now
}

const smallestIDSet = 32

func (t *idSet) reset() {
	t.now++
	t.n, t.level = 0, 0
	if t.now == 0 || t.tables == nil {
		t.tables, t.now = [][]idEntry{make([]idEntry, smallestIDSet)}, 1
	}
}

// add puts id in and tells whether it is new.
func (t *idSet) add(id AttemptID) bool {
	if 2*t.n >= len(t.tables[t.level]) {
		t.grow()
	}
	e := t.find(id)
	if e.epoch == t.now {
		return false
	}
	e.id, e.epoch = id, t.now
	t.n++
	return true
}

// has tells whether id was put in.
func (t *idSet) has(id AttemptID) bool { return t.find(id).epoch == t.now }

// find gives the entry of id, or the free one where it belongs.
func (t *idSet) find(id AttemptID) *idEntry {
	table := t.tables[t.level]
	mask := len(table) - 1
	for i := int(hashID(id)) & mask; ; i = (i + 1) & mask {
		if e := &table[i]; e.epoch != t.now || e.id == id {
			return e
		}
	}
}

// grow goes on with the next table. Its entries are of earlier resets.
func (t *idSet) grow() {
	old := t.tables[t.level]
	if t.level++; t.level == len(t.tables) {
		t.tables = append(t.tables, make([]idEntry, 2*len(old)))
	}
	for i := range old {
		if e := &old[i]; e.epoch == t.now {
			*t.find(e.id) = *e
		}
	}
}

func hashID(id AttemptID) uint64 {
	h := uint64(id.Job)*0x9e3779b97f4a7c15 ^ uint64(uint32(id.Stage))<<32 ^ uint64(uint32(id.Index)) ^ uint64(uint32(id.Attempt))<<48
	h ^= h >> 29
	h *= 0xbf58476d1ce4e5b9
	return (h ^ h>>32) & math.MaxInt64
}

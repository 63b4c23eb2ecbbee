package scheduler

import "slices"

// journal records how to undo Apply and PolicyStates.Apply since a Mark. Its slices are reused, so
// that a try allocates nothing once they have grown.
type journal struct {
	depth        int
	steps        uint64 // number of steps in tries since New; never decreases
	records      []undoRec
	attempts     []undoneAttempt
	reservations []Reservation
	policyStates []PolicyState
}

// undoneAttempt is a copy of an attempt and of its details before a change.
type undoneAttempt struct {
	Attempt
	savedDetails attemptDetails
}

// undoOp is the kind of an undoRec.
type undoOp uint8

const (
	undoPlace       undoOp = iota + 1 // remove the attempt in slot
	undoWithdraw                      // link the attempt in slot again
	undoAttempt                       // restore the last copy in attempts
	undoReservation                   // restore the last copy in reservations
	undoPolicyState                   // restore the last copy in policyStates
)

// undoRec is one undoable step. Copies of the objects that it changed are on the journal's stacks.
type undoRec struct {
	op       undoOp
	first    bool // undoPlace: this was the job's first placement
	isNew    bool // there was no reservation or policy state before: the copy has only its id or key
	slot     int32
	taskTime float64
	lastTick Time
}

// Journal records the steps of tries, and undoes them.
type Journal struct{ s *State }

// Mark is a point to roll back to.
type Mark struct {
	records, depth int
	seq            uint64
}

// Mark starts a try: Apply and PolicyStates.Apply become undoable. Each Mark must be ended by one Rollback or Keep, the
// latest first. No event may happen during a try. O(1), no allocation.
func (jn Journal) Mark() Mark {
	jn.s.undo.depth++
	return Mark{len(jn.s.undo.records), jn.s.undo.depth, jn.s.seq}
}

// Rollback undoes everything since the mark, byte for byte, and ends the try. It panics if the
// mark is not the latest one, which is a defect of the caller. O(steps undone), no allocation.
func (jn Journal) Rollback(m Mark) {
	jn.endMark(m)
	u := &jn.s.undo
	jn.s.timeline.setUndoing(true)
	for i := len(u.records) - 1; i >= m.records; i-- {
		jn.undoRecord(&u.records[i])
	}
	jn.s.timeline.setUndoing(false)
	u.records = u.records[:m.records]
	jn.s.seq = m.seq
}

// Keep ends the try and keeps its changes. Within an outer try they become part of it; otherwise they count as one change.
func (jn Journal) Keep(m Mark) {
	jn.endMark(m)
	u := &jn.s.undo
	if u.depth > 0 {
		return
	}
	if len(u.records) > m.records {
		jn.s.countChange()
	}
	for i := range u.records {
		switch r := &u.records[i]; r.op {
		case undoPlace:
			jn.s.Queue().updateReady(jn.s.stages[jn.s.Attempts().at(r.slot).stage])
		case undoAttempt:
			jn.s.Queue().openEarly(jn.s.stages[jn.s.Attempts().at(r.slot).stage])
		case undoWithdraw:
			jn.s.freeSlots = append(jn.s.freeSlots, r.slot)
		}
	}
	u.records, u.attempts, u.reservations, u.policyStates = u.records[:0], u.attempts[:0], u.reservations[:0], u.policyStates[:0]
}

func (jn Journal) endMark(m Mark) {
	if m.depth != jn.s.undo.depth || m.records > len(jn.s.undo.records) {
		panic("scheduler: Rollback or Keep of a mark that is not the latest one")
	}
	jn.s.undo.depth--
}

func pop[T any](s *[]T) *T {
	v := &(*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return v
}

func (jn Journal) undoRecord(r *undoRec) {
	u := &jn.s.undo
	switch r.op {
	case undoPlace:
		a := jn.s.Attempts().at(r.slot)
		g, n := jn.s.stages[a.stage], jn.s.cluster.nodes[a.Node]
		n.attempts = n.attempts[:len(n.attempts)-1]
		jn.s.links().setPlaced(g, a, r.slot, -1)
		g.taskTime, g.lastTick = r.taskTime, r.lastTick
		if r.first {
			g.Job.FirstPlaced = 0
		}
		jn.s.freeSlots = append(jn.s.freeSlots, r.slot)
	case undoWithdraw:
		jn.relinkStarting(jn.s.Attempts().at(r.slot), r.slot, 1)
	case undoAttempt:
		was, a := pop(&u.attempts), jn.s.Attempts().at(r.slot)
		g, sibling := jn.s.stages[a.stage], a.sibling
		jn.s.links().detach(a, r.slot)
		*a = was.Attempt
		a.sibling = sibling
		if a.attemptDetails.owned {
			*a.attemptDetails = was.savedDetails
		}
		jn.s.links().attach(a, r.slot)
		g.taskTime, g.lastTick = r.taskTime, r.lastTick
	case undoReservation:
		if was := pop(&u.reservations); r.isNew {
			i, _ := jn.s.Reservations().find(was.ID)
			jn.s.Reservations().drop(i)
		} else {
			jn.s.Reservations().put(*was)
		}
	case undoPolicyState:
		if was := pop(&u.policyStates); r.isNew {
			jn.s.PolicyStates().drop(was.PolicyStateKey)
		} else {
			jn.s.PolicyStates().put(was)
		}
	default:
		panic("scheduler: unknown undo record")
	}
}

// countStep counts a change, or a step of the current try.
func (jn Journal) countStep() {
	if jn.s.undo.depth == 0 {
		jn.s.countChange()
	} else {
		jn.s.undo.steps++
	}
}

// Withdraw takes back a placement of the current try; later actions of the try stay. It returns ErrStale unless the
// attempt is the first at its task and was placed in this try. O(1) plus the tenant's depth and the node's attempts.
func (jn Journal) Withdraw(act *Action) error {
	a, _, slot, err := jn.s.applier().findAttempt(act.AttemptID(), act.Run)
	if err != nil {
		return err
	}
	if jn.s.undo.depth == 0 || act.Kind != ActPlace || a.Phase != AttemptStarting || a.Speculative || a.sibling != 0 || !jn.placedInTry(slot) {
		return refuse(ErrStale, "attempt "+a.ID.String(), "it was not placed in the current try")
	}
	jn.relinkStarting(a, slot, -1)
	jn.s.undo.records = append(jn.s.undo.records, undoRec{op: undoWithdraw, slot: slot})
	return nil
}

func (jn Journal) placedInTry(slot int32) bool {
	for _, r := range slices.Backward(jn.s.undo.records) {
		if r.op == undoPlace && r.slot == slot {
			return true
		}
	}
	return false
}

// relinkStarting removes (sign -1) a starting attempt from its task and its node, or adds it back (sign 1).
func (jn Journal) relinkStarting(a *Attempt, slot int32, sign int64) {
	g := jn.s.stages[a.stage]
	n := jn.s.cluster.nodes[a.Node]
	jn.s.links().updateSlotList(&n.attempts, slot, sign)
	jn.s.links().setPlaced(g, a, slot, sign)
}

// save records a step, and on the stack of its kind the object before the change; for a new object only its id or key.
func save[T any](u *journal, stack *[]T, was T, step undoRec) {
	if u.depth > 0 {
		*stack = append(*stack, was)
		u.records = append(u.records, step)
	}
}

func (jn Journal) saveAttempt(a *Attempt, g *Stage, slot int32) {
	if u := &jn.s.undo; u.depth > 0 {
		save(u, &u.attempts, undoneAttempt{*a, *a.attemptDetails}, undoRec{op: undoAttempt, slot: slot, taskTime: g.taskTime, lastTick: g.lastTick})
	}
}

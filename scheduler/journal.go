package scheduler

import (
	"cmp"
	"slices"
)

// journal records how to undo Apply and ApplyPolicyStates since a Mark. Its slices are reused,
// so that a try allocates nothing once they have grown.
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
	undoPlace        undoOp = iota + 1 // remove the attempt in slot
	undoAttempt                        // restore the last copy in attempts
	undoReserve                        // delete the reservation that was added
	undoReplace                        // restore the last copy in reservations
	undoUnreserve                      // add the last copy in reservations again
	undoReplaceState                   // restore the last copy in policyStates
	undoNewState                       // delete the state whose key is last in policyStates
	undoWithdraw                       // link the attempt in slot again
)

// undoRec is one undoable step; copies of what it changed are on the journal's stacks.
type undoRec struct {
	op       undoOp
	phase    uint8 // undoPlace: 1 if this was the job's first placement
	slot     int32
	taskTime float64
	lastTick Time // undoReserve: the reservation's id
}

// Mark is a point to roll back to.
type Mark struct {
	records, depth int
	seq            uint64
}

// Mark starts a try: Apply and ApplyPolicyStates become undoable. Each Mark must be ended by
// one Rollback or Keep, the latest first. Events are refused during a try. O(1), no
// allocation.
func (s *State) Mark() Mark {
	s.undo.depth++
	return Mark{len(s.undo.records), s.undo.depth, s.seq}
}

// Rollback undoes everything since the mark, byte for byte, and ends the try. It panics if the
// mark is not the latest one, which is a defect of the caller. O(steps undone), no allocation.
func (s *State) Rollback(m Mark) {
	s.endMark(m)
	u := &s.undo
	s.timeline.setUndoing(true)
	for i := len(u.records) - 1; i >= m.records; i-- {
		s.undoRecord(&u.records[i])
	}
	s.timeline.setUndoing(false)
	u.records = u.records[:m.records]
	s.seq = m.seq
}

// Keep ends the try and keeps its changes. Inside another try they become part of that one;
// otherwise they count as one change.
func (s *State) Keep(m Mark) {
	s.endMark(m)
	u := &s.undo
	if u.depth > 0 {
		return
	}
	if len(u.records) > m.records {
		s.countChange()
	}
	for i := range u.records {
		if u.records[i].op == undoWithdraw {
			s.freeSlots = append(s.freeSlots, u.records[i].slot)
		}
	}
	u.records, u.attempts, u.reservations, u.policyStates = u.records[:0], u.attempts[:0], u.reservations[:0], u.policyStates[:0]
}

func (s *State) endMark(m Mark) {
	if m.depth != s.undo.depth || m.records > len(s.undo.records) {
		panic("scheduler: Rollback or Keep of a mark that is not the latest one")
	}
	s.undo.depth--
}

// InTry reports whether a try is in progress.
func (s *State) InTry() bool { return s.undo.depth > 0 }

// refuseInTry returns an error during a try. what is the event in words.
func (s *State) refuseInTry(what string) error {
	if s.undo.depth > 0 {
		return refuse(ErrBusy, "state", "cannot %s during a try: roll back first", what)
	}
	return nil
}

func pop[T any](s *[]T) *T {
	v := &(*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return v
}

func (s *State) undoRecord(r *undoRec) {
	u := &s.undo
	switch r.op {
	case undoPlace:
		s.revertPlace(r)
	case undoWithdraw:
		s.relinkStarting(s.attemptAt(r.slot), r.slot, 1)
	case undoAttempt:
		s.revertAttempt(r, pop(&u.attempts))
	case undoReserve:
		i, _ := s.findReservation(ReservationID(r.lastTick))
		s.dropReservation(i)
	case undoReplace:
		s.putReservation(*pop(&u.reservations))
	case undoUnreserve:
		s.putReservation(*pop(&u.reservations))
	case undoReplaceState:
		s.putPolicyState(*pop(&u.policyStates))
	case undoNewState:
		s.dropPolicyState(pop(&u.policyStates).PolicyStateKey)
	default:
		panic("scheduler: unknown undo record")
	}
}

// putReservation adds or replaces a reservation. It returns the one replaced, if any.
func (s *State) putReservation(r Reservation) (old Reservation, had bool) {
	i, ok := s.findReservation(r.ID)
	if !ok {
		p := &Reservation{}
		*p = r
		s.reservations = slices.Insert(s.reservations, i, p)
		s.linkReservation(p)
		return Reservation{}, false
	}
	p := s.reservations[i]
	old = *p
	if old.Job == r.Job && old.Node == r.Node && old.Kind == r.Kind {
		s.moveReservation(p, r.Start)
		*p = r
		if s.timeline != nil {
			s.timeline.dropReservation(r.ID)
			s.timeline.addReservation(s, p)
		}
		return old, true
	}
	s.unlinkReservation(p)
	*p = r
	s.linkReservation(p)
	return old, true
}

func (s *State) dropReservation(i int) {
	s.unlinkReservation(s.reservations[i])
	s.reservations = slices.Delete(s.reservations, i, i+1)
}

func byStart(a, b *Reservation) int {
	if a.Start != b.Start {
		if a.Start < b.Start {
			return -1
		}
		return 1
	}
	if a.ID < b.ID {
		return -1
	} else if a.ID > b.ID {
		return 1
	}
	return 0
}

// linkReservation adds a reservation to its lists.
func (s *State) linkReservation(r *Reservation) {
	s.countReservation(r, 1)
	if s.timeline != nil {
		s.timeline.addReservation(s, r)
	}
	for _, list := range [...]*[]*Reservation{s.reservedOn(r.Node), s.listOfKind(r.Kind)} {
		i, _ := slices.BinarySearchFunc(*list, r, byStart)
		*list = slices.Insert(*list, i, r)
	}
}

// moveReservation moves a reservation to another start: only the entries between its old and
// its new position in the lists move.
func (s *State) moveReservation(r *Reservation, start Time) {
	if j := s.jobs[r.Job]; j != nil {
		s.recordJobChange(j)
	}
	if r.Start == start {
		return
	}
	to := Reservation{ID: r.ID, Start: start}
	for _, list := range [...]*[]*Reservation{s.reservedOn(r.Node), s.listOfKind(r.Kind)} {
		l := *list
		i, _ := slices.BinarySearchFunc(l, r, byStart)
		j, _ := slices.BinarySearchFunc(l, &to, byStart)
		if j > i {
			j--
			copy(l[i:j], l[i+1:j+1])
		} else {
			copy(l[j+1:i+1], l[j:i])
		}
		l[j] = r
	}
}

func (s *State) unlinkReservation(r *Reservation) {
	s.countReservation(r, -1)
	if s.timeline != nil {
		s.timeline.dropReservation(r.ID)
	}
	for _, list := range [...]*[]*Reservation{s.reservedOn(r.Node), s.listOfKind(r.Kind)} {
		if i, ok := slices.BinarySearchFunc(*list, r, byStart); ok {
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

// listOfKind returns the list of the guarantees or that of the other reservations.
func (s *State) listOfKind(k ReservationKind) *[]*Reservation {
	if k.IsGuarantee() {
		return &s.guarantees
	}
	return &s.unguaranteed
}

// countReservation adds (n 1) a reservation to its job's list and counts, or removes it (n
// -1).
func (s *State) countReservation(r *Reservation, n int32) {
	if r.Job == 0 {
		s.projectReservations += int(n)
	}
	if j := s.jobs[r.Job]; j != nil {
		s.recordJobChange(j)
		i, _ := slices.BinarySearchFunc(j.reservations, r, func(a, b *Reservation) int { return cmp.Compare(a.ID, b.ID) })
		if n > 0 {
			j.reservations = slices.Insert(j.reservations, i, r)
		} else {
			j.reservations = slices.Delete(j.reservations, i, i+1)
		}
		if r.Kind.IsGuarantee() {
			j.Guarantees += n
		}
	}
}

// stateKindSet is the set of the kinds of policy states that a job or project has as a whole.
type stateKindSet uint32

func (m stateKindSet) has(k PolicyStateKind) bool { return m&(1<<k) != 0 }

// updateStateKinds updates the stateKinds of the job or project of a policy state after the
// state was added (there) or deleted.
func (s *State) updateStateKinds(k PolicyStateKey, there bool) {
	whole := k
	whole.Job, whole.Project = 0, 0
	if k.Kind == ViolatedState {
		whole.Slot = 0
	}
	if whole != (PolicyStateKey{Kind: k.Kind}) {
		return
	}
	var m *stateKindSet
	if j := s.jobs[k.Job]; j != nil && k.Project == 0 {
		m = &j.stateKinds
	} else if p := s.projects[k.Project]; p != nil && k.Job == 0 {
		m = &p.stateKinds
	} else {
		return
	}
	if k.Kind == ViolatedState && !there { // a state with another cause may remain
		for k.Slot = range int32(maxCauses) {
			_, left := s.policyStates[k]
			there = there || left
		}
	}
	was := *m
	if *m &^= 1 << k.Kind; there {
		*m |= 1 << k.Kind
	}
	if *m != was && (k.Kind == AcceptedState || k.Kind == InfeasibleState || k.Kind == ViolatedState) {
		s.bumpNodeVersionsOfOwner(k)
	}
}

func (s *State) putPolicyState(p PolicyState) {
	s.recordStateChange(&p.PolicyStateKey)
	s.updateStateKinds(p.PolicyStateKey, true)
	if _, had := s.policyStates[p.PolicyStateKey]; !had {
		s.countPolicyState(p.PolicyStateKey, 1)
	}
	s.policyStates[p.PolicyStateKey] = p
}

func (s *State) dropPolicyState(k PolicyStateKey) {
	if _, had := s.policyStates[k]; had {
		delete(s.policyStates, k)
		s.recordStateChange(&k)
		s.countPolicyState(k, -1)
		s.updateStateKinds(k, false)
	}
}

// recordStateChange logs that a policy state of a job or project changed.
func (s *State) recordStateChange(k *PolicyStateKey) {
	if j := s.jobs[k.Job]; j != nil {
		s.recordJobChange(j)
	} else if k.Project != 0 {
		s.changeLog.add(ChangedOwner{Project: k.Project})
	}
}

func (s *State) countPolicyState(k PolicyStateKey, n int32) {
	if j := s.jobs[k.Job]; j != nil {
		j.policyStates += n
	} else {
		s.joblessStates += int(n)
	}
}

func (s *State) applyPolicyState(p *PolicyState) {
	k := p.PolicyStateKey
	if p.Kind == TombstoneState {
		k.Kind = PolicyStateKind(p.Value)
	}
	old, had := s.policyStates[k]
	if s.undo.depth > 0 {
		op := undoReplaceState
		if !had {
			old.PolicyStateKey, op = k, undoNewState
		}
		s.undo.policyStates = append(s.undo.policyStates, old)
		s.undo.records = append(s.undo.records, undoRec{op: op})
	}
	if p.Kind == TombstoneState {
		s.dropPolicyState(k)
		return
	}
	s.putPolicyState(*p)
}

package scheduler

import (
	"cmp"
	"slices"
)

// journal remembers how to undo what Apply and ApplyNotes did since a Mark. Its
// slices are kept, so that trying allocates nothing once they have grown.
type journal struct {
	depth    int
	tried    uint64 // what was done in tries since New; it only grows
	recs     []undoRec
	attempts []undoneAttempt
	res      []Reservation
	notes    []Note
}

// undoneAttempt is an attempt as it was, with what its details said then.
type undoneAttempt struct {
	Attempt
	was details
}

type undoOp uint8

const (
	undoPlace     undoOp = iota + 1 // drop the attempt in slot
	undoAttempt                     // put back the last copy in attempts
	undoReserve                     // a reservation was made: drop it
	undoReplace                     // put back the last copy in res
	undoUnreserve                   // make the last copy in res again
	undoNote                        // put back the last copy in notes
	undoNewNote                     // drop the note whose key is last in notes
	undoWithdraw                    // bring the attempt in slot back
)

type undoRec struct {
	op       undoOp
	phase    uint8 // undoPlace: 1 if this was the job's first placement
	slot     int32
	taskTime float64
	lastTick Time
}

// Mark is a point to go back to.
type Mark struct {
	recs, depth int
	seq         uint64
}

// Mark starts a try: what Apply and ApplyNotes do from here on is remembered.
// Each Mark is ended by one Rollback or Keep, the latest first. Events are
// refused in between. O(1), no allocation.
func (s *State) Mark() Mark {
	s.undo.depth++
	return Mark{len(s.undo.recs), s.undo.depth, s.seq}
}

// Rollback undoes everything since the mark, byte for byte, and ends the try.
// It panics when the mark is not the latest one, which only wrong code of
// ours can bring about. O(steps undone), no allocation.
func (s *State) Rollback(m Mark) {
	s.endMark(m)
	u := &s.undo
	for i := len(u.recs) - 1; i >= m.recs; i-- {
		s.undoOne(&u.recs[i])
	}
	u.recs = u.recs[:m.recs]
	s.seq = m.seq
}

// Keep ends the try and leaves what was done. Inside another try it stays part
// of that one; otherwise it counts as one change.
func (s *State) Keep(m Mark) {
	s.endMark(m)
	u := &s.undo
	if u.depth > 0 {
		return
	}
	if len(u.recs) > m.recs {
		s.changed()
	}
	for i := range u.recs {
		if u.recs[i].op == undoWithdraw {
			s.freeSlots = append(s.freeSlots, u.recs[i].slot)
		}
	}
	u.recs, u.attempts, u.res, u.notes = u.recs[:0], u.attempts[:0], u.res[:0], u.notes[:0]
}

func (s *State) endMark(m Mark) {
	if m.depth != s.undo.depth || m.recs > len(s.undo.recs) {
		panic("scheduler: Rollback or Keep of a mark that is not the latest")
	}
	s.undo.depth--
}

// Trying tells whether a try is under way.
func (s *State) Trying() bool { return s.undo.depth > 0 }

func (s *State) atRest(what string) error {
	if s.undo.depth > 0 {
		return refuse(ErrBusy, "state", "cannot %s while a try is under way: roll back first", what)
	}
	return nil
}

func pop[T any](s *[]T) *T {
	v := &(*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return v
}

func (s *State) undoOne(r *undoRec) {
	u := &s.undo
	switch r.op {
	case undoPlace:
		s.unplace(r)
	case undoWithdraw:
		s.hook(s.at(r.slot), r.slot, 1)
	case undoAttempt:
		s.putBack(r, pop(&u.attempts))
	case undoReserve:
		i, _ := s.findReservation(ReservationID(r.lastTick))
		s.dropReservation(i)
	case undoReplace:
		s.putReservation(*pop(&u.res))
	case undoUnreserve:
		s.putReservation(*pop(&u.res))
	case undoNote:
		s.setNote(*pop(&u.notes))
	case undoNewNote:
		s.dropNote(pop(&u.notes).NoteKey)
	default:
		panic("scheduler: unknown undo record")
	}
}

// putReservation makes or replaces a reservation and tells what was there.
func (s *State) putReservation(r Reservation) (old Reservation, had bool) {
	i, ok := s.findReservation(r.ID)
	if !ok {
		p := &Reservation{}
		*p = r
		s.reservations = slices.Insert(s.reservations, i, p)
		s.link(p)
		return Reservation{}, false
	}
	p := s.reservations[i]
	old = *p
	if old.Job == r.Job && old.Node == r.Node && old.Kind == r.Kind {
		s.relink(p, r.Start)
		*p = r
		return old, true
	}
	s.unlink(p)
	*p = r
	s.link(p)
	return old, true
}

func (s *State) dropReservation(i int) {
	s.unlink(s.reservations[i])
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

func (s *State) link(r *Reservation) {
	s.countReservation(r, 1)
	for _, list := range [...]*[]*Reservation{s.reservedOn(r.Node), s.ofKind(r.Kind)} {
		i, _ := slices.BinarySearchFunc(*list, r, byStart)
		*list = slices.Insert(*list, i, r)
	}
}

// relink has a reservation start at another instant: in its lists only those
// between its old and its new place move.
func (s *State) relink(r *Reservation, start Time) {
	if j := s.jobs[r.Job]; j != nil {
		s.worked(j)
	}
	if r.Start == start {
		return
	}
	to := Reservation{ID: r.ID, Start: start}
	for _, list := range [...]*[]*Reservation{s.reservedOn(r.Node), s.ofKind(r.Kind)} {
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

func (s *State) unlink(r *Reservation) {
	s.countReservation(r, -1)
	for _, list := range [...]*[]*Reservation{s.reservedOn(r.Node), s.ofKind(r.Kind)} {
		if i, ok := slices.BinarySearchFunc(*list, r, byStart); ok {
			*list = slices.Delete(*list, i, i+1)
		}
	}
}

func (s *State) ofKind(k ReservationKind) *[]*Reservation {
	if k.Promise() {
		return &s.promises
	}
	return &s.held
}

// countReservation keeps a job's numbers of reservations.
func (s *State) countReservation(r *Reservation, n int32) {
	if r.Job == 0 {
		s.jobless += int(n)
	}
	if j := s.jobs[r.Job]; j != nil {
		s.worked(j)
		i, _ := slices.BinarySearchFunc(j.reservations, r, func(a, b *Reservation) int { return cmp.Compare(a.ID, b.ID) })
		if n > 0 {
			j.reservations = slices.Insert(j.reservations, i, r)
		} else {
			j.reservations = slices.Delete(j.reservations, i, i+1)
		}
		if r.Kind.Promise() {
			j.Promises += n
		}
	}
}

// marks are the kinds of notes that there are on a job or project as a whole.
type marks uint32

func (m marks) has(k NoteKind) bool { return m&(1<<k) != 0 }

// mark keeps the marks of the job or project that a note is on.
func (s *State) mark(k NoteKey, there bool) {
	whole := k
	whole.Job, whole.Project = 0, 0
	if k.Kind == NoteBroken {
		whole.Slot = 0
	}
	if whole != (NoteKey{Kind: k.Kind}) {
		return
	}
	var m *marks
	if j := s.jobs[k.Job]; j != nil && k.Project == 0 {
		m = &j.marks
	} else if p := s.projects[k.Project]; p != nil && k.Job == 0 {
		m = &p.marks
	} else {
		return
	}
	if k.Kind == NoteBroken && !there { // one of another cause may be left
		for k.Slot = range int32(maxCauses) {
			_, left := s.notes[k]
			there = there || left
		}
	}
	was := *m
	if *m &^= 1 << k.Kind; there {
		*m |= 1 << k.Kind
	}
	if j := s.jobs[k.Job]; j != nil && *m != was && (k.Kind == NoteAccepted || k.Kind == NoteHopeless) {
		s.predictedAnewOf(j)
	}
}

func (s *State) setNote(n Note) {
	s.noted(&n.NoteKey)
	s.mark(n.NoteKey, true)
	if _, had := s.notes[n.NoteKey]; !had {
		s.countNote(n.NoteKey, 1)
	}
	s.notes[n.NoteKey] = n
}

func (s *State) dropNote(k NoteKey) {
	if _, had := s.notes[k]; had {
		delete(s.notes, k)
		s.noted(&k)
		s.countNote(k, -1)
		s.mark(k, false)
	}
}

// noted tells that a note on a job or project came, changed or went.
func (s *State) noted(k *NoteKey) {
	if j := s.jobs[k.Job]; j != nil {
		s.worked(j)
	} else if k.Project != 0 {
		s.work.add(Worked{Project: k.Project})
	}
}

func (s *State) countNote(k NoteKey, n int32) {
	if j := s.jobs[k.Job]; j != nil {
		j.notes += n
	} else {
		s.looseNotes += int(n)
	}
}

func (s *State) applyNote(n *Note) {
	k := n.NoteKey
	if n.Kind == NoteForget {
		k.Kind = NoteKind(n.Value)
	}
	old, had := s.notes[k]
	if s.undo.depth > 0 {
		op := undoNote
		if !had {
			old.NoteKey, op = k, undoNewNote
		}
		s.undo.notes = append(s.undo.notes, old)
		s.undo.recs = append(s.undo.recs, undoRec{op: op})
	}
	if n.Kind == NoteForget {
		s.dropNote(k)
		return
	}
	s.setNote(*n)
}

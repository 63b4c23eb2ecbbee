package scheduler

// noteBatch counts what a batch of notes, taken one after the other, would leave
// with each job, so that the limit holds within a batch as well.
type noteBatch struct {
	here  map[NoteKey]bool // keys that the batch put or dropped
	count map[JobID]int32  // notes of each job; those without a job under 0
}

func (b *noteBatch) begin() {
	if b.here == nil {
		b.here, b.count = map[NoteKey]bool{}, map[JobID]int32{}
	}
	clear(b.here)
	clear(b.count)
}

// add takes in the next note of the batch, or refuses it: for a job or project
// that is not there, a value without meaning, or one too many. A note that
// replaces another is never one too many.
func (b *noteBatch) add(s *State, n *Note) error {
	if err := n.validate(); err != nil {
		return err
	}
	k := n.NoteKey
	if n.Kind == NoteForget {
		k.Kind = NoteKind(n.Value)
	}
	had, known := b.here[k]
	if !known {
		_, had = s.notes[k]
	}
	if n.Kind == NoteForget {
		if had {
			b.here[k] = false
			b.count[k.Job]--
		}
		return nil
	}
	what, j := "note "+n.Kind.String(), s.jobs[n.Job]
	switch {
	case n.Job != 0 && j == nil:
		return refuse(ErrUnknown, what, "its job %d is not there", n.Job)
	case n.Job == 0 && n.Project != 0 && s.projects[n.Project] == nil:
		return refuse(ErrUnknown, what, "its project %d is not there", n.Project)
	case had:
		return nil
	}
	if j != nil {
		if have := j.notes + b.count[n.Job]; have >= MaxNotesPerJob {
			return refuse(ErrInvalid, what, "job %d has %d notes: no more are kept", n.Job, have)
		}
	} else if have := s.looseNotes + int(b.count[0]); have >= MaxNotesNoJob {
		return refuse(ErrInvalid, what, "there are %d notes without a job: no more are kept", have)
	}
	b.here[k] = true
	b.count[n.Job]++
	return nil
}

// ApplyNotes remembers notes. Nothing is remembered if one of them is refused:
// for a job that is not there, not finite, or too many of them.
func (s *State) ApplyNotes(notes []Note) error {
	if len(notes) == 0 {
		return nil
	}
	s.batch.begin()
	for i := range notes {
		if err := s.batch.add(s, &notes[i]); err != nil {
			return err
		}
	}
	for i := range notes {
		s.applyNote(&notes[i])
	}
	s.didOne()
	return nil
}

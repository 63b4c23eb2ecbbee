package facts

import "github.com/drover-run/drover/jobspec"

// Ended is an attempt or a job that ended for good: what a history keeps. The same
// entries produce the same records on every server, in the same order. An attempt
// whose output was lost after it ended is recorded again, with its new state.
type Ended struct {
	Index uint64 // of the entry
	Key   Key    // of the attempt; Key.Job of the job

	// Of the job, for both.
	Name      string
	Actor     string
	Submitted int64 // Unix ns
	Spec      *jobspec.Job

	// Of an attempt; nil for a job.
	Attempt *Attempt
	Node    string
	Demand  Amounts
	Winner  bool
	Before  int64 // when the last attempt of its task before it ended, Unix ns; 0 for none

	// Job is a copy of an ended job without its tasks, once none of its attempts
	// is active; nil for an attempt.
	Job    *Job
	Events []*Event // of the job, the first and the newest; immutable
}

// Record makes the facts collect what ends from now on, for EndedLog.Take.
func (l EndedLog) Record() { l.f.recordsEnded = true }

// Take returns and clears what ended since its last call. It needs the write
// lock. The caller owns the slice.
func (l EndedLog) Take() []Ended {
	e := l.f.ended
	l.f.ended = nil
	return e
}

// All returns what ended among all that is not forgotten, in the order of jobs
// and attempts, with the index of the facts. O(attempts).
func (l EndedLog) All() []Ended {
	var out []Ended
	for _, id := range l.f.JobIDs() {
		j := l.f.jobs[id]
		l.f.EachAttempt(j, func(k Key, t *Task, a *Attempt) {
			if !a.State.IsActive() {
				out = append(out, l.endedAttempt(j, k, t, a))
			}
		})
		if j.HasEnded() && j.Live == 0 {
			out = append(out, l.endedJob(j))
		}
	}
	return out
}

func (l EndedLog) addAttempt(j *Job, k Key, t *Task, a *Attempt) {
	if l.f.recordsEnded {
		l.f.ended = append(l.f.ended, l.endedAttempt(j, k, t, a))
	}
}

func (l EndedLog) addJob(j *Job) {
	if l.f.recordsEnded {
		l.f.ended = append(l.f.ended, l.endedJob(j))
	}
}

func (l EndedLog) endedAttempt(j *Job, k Key, t *Task, a *Attempt) Ended {
	e := Ended{Index: l.f.index, Key: k, Name: j.Name, Actor: j.Actor, Submitted: j.Submitted, Spec: j.Spec,
		Attempt: a, Node: l.f.EventLog().nodeNameOf(a.Node), Demand: j.Demand(int(k.Stage)), Winner: t.Winner == k.Attempt}
	for _, o := range t.Attempts {
		if o.Attempt < a.Attempt {
			e.Before = max(e.Before, o.Ended)
		}
	}
	return e
}

func (l EndedLog) endedJob(j *Job) Ended {
	c := *j
	c.Stages = append([]Stage(nil), j.Stages...)
	for i := range c.Stages {
		c.Stages[i].chunks, c.Stages[i].Splits = nil, nil
	}
	return Ended{Index: l.f.index, Key: Key{Job: j.ID}, Name: j.Name, Actor: j.Actor, Submitted: j.Submitted, Spec: j.Spec, Job: &c, Events: l.f.eventsOfJob[j.ID].all()}
}

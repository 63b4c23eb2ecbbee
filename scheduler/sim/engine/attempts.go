package engine

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// phase is what an attempt is doing.
type phase uint8

const (
	phaseBefore phase = iota + 1 // starts, and reads where that takes a fixed time
	phaseRead                    // reads or fetches over shared links
	phaseWork                    // computes, and writes where that takes a fixed time
	phaseWrite                   // writes to a shared disk
	phaseOver
)

// attempt is a try at a task under way, at the slot that the State gives it: one
// cache line, for of tens of thousands the next one is never at hand.
type attempt struct {
	job    int32
	task   int32
	number int32 // from 1, AttemptID.Attempt
	node   scheduler.NodeID
	stage  int16
	phase  phase
	state  state
	level  scheduler.Level
	local  locality
	due    uint64 // the key of the event to come of it, 0 for none
	// work is what is left of its timed phase; since is when the present phase
	// began or went on, ran for how long it ran until then.
	work  time.Duration
	since scheduler.Time
	ran   time.Duration
	*more
}

// more is what only some runs and some attempts need: all others share the
// world's one, which nobody changes (world.own).
type more struct {
	run  int32
	disk int16
	flow int32 // while reading or writing over shared links, else -1
	// before is what is left of the timed phase before its work, read and write
	// the bytes left of the others.
	before      time.Duration
	read, write float64
	placed      scheduler.Time
	whole       time.Duration // as planned at its placement, for progress
}

func (t *attempt) id() scheduler.AttemptID {
	return scheduler.AttemptID{TaskID: scheduler.TaskID{Job: scheduler.JobID(t.job + 1), Stage: int32(t.stage), Index: t.task}, Attempt: t.number}
}

// own gives an attempt a record of its own, to be changed.
func (w *world) own(t *attempt) *more {
	if t.more == &w.alike {
		m := w.alike
		t.more = &m
	}
	return t.more
}

// state is whether an attempt goes on.
type state uint8

const (
	attemptRuns state = iota + 1
	attemptHeld       // suspended, or on its way there or back
	attemptDying
	attemptGone
)

// locality is where a task's input lies, seen from where it runs.
type locality uint8

const (
	localNone locality = iota // it reads nothing that has a place
	localNode
	localRack
	localFar
)

// find gives the slot of a live attempt.
func (w *world) find(id scheduler.AttemptID) (int32, error) {
	first, second := w.s.Slots(id.TaskID)
	for _, slot := range [...]int32{first, second} {
		if slot >= 0 && w.attempts[slot].number == id.Attempt {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("attempt %s is not live in the world", id)
}

// place starts an attempt.
func (w *world) place(a *scheduler.Action) error {
	slot, second := w.s.Slots(a.Task)
	if a.Speculative {
		slot = second
	}
	if slot > maxRef {
		return fmt.Errorf("more than %d attempts live at once: simulate fewer nodes or larger tasks", maxRef)
	}
	for int(slot) >= len(w.attempts) {
		w.attempts = append(w.attempts, attempt{})
	}
	j := &w.jobs[a.Task.Job-1]
	g := &j.spec.Stages[a.Task.Stage]
	t := &w.attempts[slot]
	*t = attempt{job: int32(a.Task.Job - 1), task: a.Task.Index, number: a.Attempt, node: a.Node, stage: int16(a.Task.Stage),
		phase: phaseBefore, state: attemptRuns, level: scheduler.LevelRunning, since: w.now, more: &w.alike}
	j.live++
	if j.res.Start < 0 {
		j.res.Start = since0(w.now)
	}
	w.res.Placements++
	w.use.add(g.Demand)
	if err := w.plan(t, j, g, a.Disk); err != nil {
		return err
	}
	if err := w.s.AttemptStarted(a.AttemptID(), a.Run, w.now); err != nil {
		return err
	}
	return w.goOn(slot)
}

// plan works out what an attempt has to do, where it is now.
func (w *world) plan(t *attempt, j *job, g *Stage, disk int16) error {
	m := &w.Models
	work := g.Work
	if g.Each != nil {
		work = g.Each[t.task]
	}
	before := m.Launch
	if g.Starts != nil {
		before += g.Starts[t.task]
	}
	t.work = scale(work, w.luck(t)/w.pace[t.node])
	if w.plain {
		if j.stages[t.stage].reads {
			w.see(t)
		}
		t.work += before // one event does for both
		return nil
	}
	o := w.own(t)
	o.disk, o.placed, o.before = disk, w.now, before
	if m.transfer() != TransferFree {
		w.planTransfers(t, j, g)
	} else if j.stages[t.stage].reads {
		w.see(t)
	}
	o.whole = o.before + t.work
	if r := w.Models.LocalRate; r > 0 {
		o.whole += time.Duration((o.read + o.write) / float64(r) * float64(time.Second))
	}
	return nil
}

// luck is how much longer than usual this attempt works.
func (w *world) luck(t *attempt) float64 {
	m := &w.Models
	f := 1.0
	if m.Spread > 0 {
		f = lognormal(hash(w.Seed, drawSpread, uint64(t.job+1), uint64(t.stage), uint64(t.task)), m.Spread)
	}
	if m.StragglerPart > 0 && unit(hash(w.Seed, drawStraggler, uint64(t.job+1), uint64(t.stage), uint64(t.task), uint64(t.number))) < m.StragglerPart {
		f *= max(1, m.StragglerFactor)
	}
	return f
}

// goOn plans the end of an attempt's present phase, skipping empty ones.
func (w *world) goOn(slot int32) error {
	t := &w.attempts[slot]
	t.since = w.now
	if t.phase == phaseBefore && t.read <= 0 && t.write <= 0 && !w.Models.Contention { // one event does for all
		if t.before > 0 {
			t.work += t.before
			t.before = 0
		}
		t.phase = phaseWork
	}
	for ; t.phase < phaseOver; t.phase++ {
		switch {
		case t.phase == phaseBefore && t.before > 0:
			w.due(slot, w.now.Add(t.before), evPhase)
			return nil
		case t.phase == phaseRead && t.read > 0:
			t.flow = w.net.begin(w, slot, t.read)
			return nil
		case t.phase == phaseWork && (t.work > 0 || t.write <= 0):
			if w.Models.Contention {
				w.joinCrowd(slot)
				return nil
			}
			w.due(slot, w.now.Add(t.work), evPhase)
			return nil
		case t.phase == phaseWrite && t.write > 0:
			t.flow = w.net.begin(w, slot, t.write)
			return nil
		}
	}
	w.due(slot, w.now, evPhase)
	return nil
}

// phaseEnds takes an attempt to its next phase, or to its end.
func (w *world) phaseEnds(slot int32) error {
	t := &w.attempts[slot]
	t.ran += w.now.Sub(t.since)
	switch t.phase {
	case phaseBefore:
		t.before = 0
	case phaseRead:
		t.read = 0
	case phaseWork:
		t.work = 0
		if w.Models.Contention {
			t.since = w.now
			w.leaveCrowd(slot)
		}
		if t.write <= 0 {
			return w.endAttempt(slot, scheduler.OutcomeSucceeded)
		}
	case phaseWrite, phaseOver:
		return w.endAttempt(slot, scheduler.OutcomeSucceeded)
	}
	w.own(t).flow = -1
	t.phase++
	t.due = 0
	return w.goOn(slot)
}

// due plans what happens to an attempt next; what was planned for it is void.
func (w *world) due(slot int32, at scheduler.Time, k eventKind) {
	w.attempts[slot].due = w.events.plan(at, k, slot)
}

// pause takes an attempt off its phase and keeps what is left of it.
func (w *world) pause(slot int32) {
	t := &w.attempts[slot]
	t.due = 0
	if t.state != attemptRuns {
		return
	}
	passed := w.now.Sub(t.since)
	t.ran += passed
	t.since = w.now
	switch t.phase {
	case phaseBefore:
		t.before = max(0, t.before-passed)
	case phaseWork:
		t.work = max(0, t.work-time.Duration(float64(passed)/w.slowness(t)))
		if w.Models.Contention {
			w.leaveCrowd(slot)
		}
	case phaseRead:
		t.read = max(1, w.net.stop(w, t.flow))
	case phaseWrite:
		t.write = max(1, w.net.stop(w, t.flow))
	}
	if t.flow >= 0 {
		t.flow = -1
	}
	t.state = attemptHeld
}

// endAttempt ends an attempt, what hangs on it, and the job with its last.
func (w *world) endAttempt(slot int32, o scheduler.Outcome) error {
	id := w.attempts[slot].id()
	j := &w.jobs[id.Job-1]
	if err := w.dropAttempt(slot, o); err != nil {
		return err
	}
	if o == scheduler.OutcomeSucceeded {
		if err := w.taskDone(j, id); err != nil {
			return err
		}
	}
	if j.left == 0 && j.live == 0 && !j.ended {
		return w.endJob(j, scheduler.JobSucceeded)
	}
	return nil
}

// taskDone counts a task and ends the slower attempt at it, if there is one.
func (w *world) taskDone(j *job, id scheduler.AttemptID) error {
	j.left--
	w.res.TasksDone++
	if other, _ := w.s.Slots(id.TaskID); other >= 0 {
		w.pause(other)
		w.attempts[other].state = attemptDying
		w.due(other, w.now.Add(w.Models.KillDelay), evKilled)
	}
	return nil
}

// dropAttempt takes an attempt out of the world and tells the State.
func (w *world) dropAttempt(slot int32, o scheduler.Outcome) error {
	t := &w.attempts[slot]
	held := w.jobs[t.job].spec.Stages[t.stage].Demand
	if o != scheduler.OutcomeSucceeded { // what succeeds runs, and on one node
		held = w.held(t)
	}
	w.settle(slot, o)
	if err := w.s.AttemptEnded(t.id(), t.run, o, w.now); err != nil {
		return err
	}
	w.use.sub(held)
	return nil
}

// settle does the world's part of an attempt's end: its accounts.
func (w *world) settle(slot int32, o scheduler.Outcome) {
	t := &w.attempts[slot]
	if o != scheduler.OutcomeSucceeded {
		w.pause(slot)
	}
	j := &w.jobs[t.job]
	g := &j.spec.Stages[t.stage]
	r := j.res
	cpu := t.ran.Seconds() * float64(g.Demand[scheduler.CPU]) / 1000
	if o == scheduler.OutcomeSucceeded {
		r.Served += t.ran
		r.count(t.local)
		w.use.useful += cpu
		if ran := j.stages[t.stage].ran; ran != nil {
			ran[t.task] = t.node
		}
		w.keep(t)
	} else {
		r.LostCPU += cpu
		w.res.WorkLostCPU += cpu
	}
	j.live--
	t.due = 0
	t.state = attemptGone
}

// held is what the State says the attempt holds, on both nodes while it moves.
func (w *world) held(t *attempt) scheduler.Resources {
	a := w.s.Attempt(t.id())
	if a == nil {
		return scheduler.Resources{}
	}
	if a.From != scheduler.NoNode {
		return a.Held.Resources.Add(a.FromHeld.Resources)
	}
	return a.Held.Resources
}

// keep remembers a run of a task for the Gantt chart.
func (w *world) keep(t *attempt) {
	if len(w.res.Runs) < w.KeepTasks {
		w.res.Runs = append(w.res.Runs, TaskRun{t.id(), t.node, since0(t.placed), since0(w.now)})
	}
}

// heartbeat reports the progress of everything that runs.
func (w *world) heartbeat() error {
	w.events.plan(w.now.Add(w.Models.Heartbeat), evHeartbeat, 0)
	for slot := range w.attempts {
		t := &w.attempts[slot]
		if t.state != attemptRuns || t.whole <= 0 {
			continue
		}
		part := min(0.999, float64(t.ran+w.now.Sub(t.since))/float64(t.whole))
		if err := w.s.AttemptProgress(t.id(), t.run, part, 0); err != nil {
			return err
		}
	}
	return nil
}

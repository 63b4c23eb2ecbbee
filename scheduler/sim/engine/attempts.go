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

// attempt is a try at a task under way.
type attempt struct {
	id    scheduler.AttemptID
	run   int32
	job   int32
	node  scheduler.NodeID
	disk  int16
	phase phase
	state state
	due   uint64 // the key of the event to come of it, 0 for none
	next  int32  // slot+1 of the task's other attempt
	flow  int32  // while reading or writing over shared links, else -1
	// before and work are what is left of the timed phases, read and write
	// the bytes left of the others; since is when the present phase began or
	// went on.
	before, work time.Duration
	read, write  float64
	since        scheduler.Time
	placed       scheduler.Time
	ran          time.Duration // until since
	whole        time.Duration // as planned at its placement, for progress
	level        scheduler.Level
	local        locality
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

func (w *world) newSlot() int32 {
	if n := len(w.free); n > 0 {
		slot := w.free[n-1]
		w.free = w.free[:n-1]
		return slot
	}
	w.attempts = append(w.attempts, attempt{})
	return int32(len(w.attempts) - 1)
}

// find gives the slot of a live attempt.
func (w *world) find(id scheduler.AttemptID) (int32, error) {
	j := &w.jobs[id.Job-1]
	if int(id.Stage) < len(j.stages) {
		for slot := j.stages[id.Stage].first[id.Index] - 1; slot >= 0; slot = w.attempts[slot].next - 1 {
			if w.attempts[slot].id.Attempt == id.Attempt {
				return slot, nil
			}
		}
	}
	return 0, fmt.Errorf("attempt %s is not live in the world", id)
}

// place starts an attempt.
func (w *world) place(a *scheduler.Action) error {
	slot := w.newSlot()
	if slot > maxRef {
		return fmt.Errorf("more than %d attempts live at once: simulate fewer nodes or larger tasks", maxRef)
	}
	j := &w.jobs[a.Task.Job-1]
	g := &j.spec.Stages[a.Task.Stage]
	t := &w.attempts[slot]
	*t = attempt{id: a.AttemptID(), run: a.Run, job: int32(a.Task.Job - 1), node: a.Node, disk: a.Disk, phase: phaseBefore,
		state: attemptRuns, flow: -1, since: w.now, placed: w.now, level: scheduler.LevelRunning}
	first := &j.stages[a.Task.Stage].first[a.Task.Index]
	t.next, *first = *first, slot+1
	j.live++
	if j.res.Start < 0 {
		j.res.Start = since0(w.now)
	}
	w.res.Placements++
	w.use.add(g.Demand)
	if err := w.plan(t, j, g); err != nil {
		return err
	}
	if err := w.s.AttemptStarted(t.id, t.run, w.now); err != nil {
		return err
	}
	return w.goOn(slot)
}

// plan works out what an attempt has to do, where it is now.
func (w *world) plan(t *attempt, j *job, g *Stage) error {
	m := &w.Models
	t.before = m.Launch
	work := g.Work
	if g.Each != nil {
		work = g.Each[t.id.Index]
	}
	if g.Starts != nil {
		t.before += g.Starts[t.id.Index]
	}
	t.work = scale(work, w.luck(t)/w.pace[t.node])
	if m.transfer() != TransferFree {
		if err := w.planTransfers(t, j, g); err != nil {
			return err
		}
	} else if j.stages[t.id.Stage].reads {
		w.see(t)
	}
	t.whole = t.before + t.work
	if r := w.Models.LocalRate; r > 0 {
		t.whole += time.Duration((t.read + t.write) / float64(r) * float64(time.Second))
	}
	return nil
}

// luck is how much longer than usual this attempt works.
func (w *world) luck(t *attempt) float64 {
	m := &w.Models
	f := 1.0
	if m.Spread > 0 {
		f = lognormal(hash(w.Seed, drawSpread, uint64(t.id.Job), uint64(t.id.Stage), uint64(t.id.Index)), m.Spread)
	}
	if m.StragglerPart > 0 && unit(hash(w.Seed, drawStraggler, uint64(t.id.Job), uint64(t.id.Stage), uint64(t.id.Index), uint64(t.id.Attempt))) < m.StragglerPart {
		f *= max(1, m.StragglerFactor)
	}
	return f
}

// goOn plans the end of an attempt's present phase, skipping empty ones.
func (w *world) goOn(slot int32) error {
	t := &w.attempts[slot]
	t.since = w.now
	if t.phase == phaseBefore && t.read <= 0 && t.write <= 0 && !w.Models.Contention { // one event does for all
		t.work += t.before
		t.before = 0
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
	t.flow = -1
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
	t.flow = -1
	t.state = attemptHeld
}

// endAttempt ends an attempt, what hangs on it, and the job with its last.
func (w *world) endAttempt(slot int32, o scheduler.Outcome) error {
	id := w.attempts[slot].id
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
	g := &j.stages[id.Stage]
	if other := g.first[id.Index] - 1; other >= 0 {
		w.pause(other)
		w.attempts[other].state = attemptDying
		w.due(other, w.now.Add(w.Models.KillDelay), evKilled)
	}
	return nil
}

// dropAttempt takes an attempt out of the world and tells the State.
func (w *world) dropAttempt(slot int32, o scheduler.Outcome) error {
	t := &w.attempts[slot]
	held := w.jobs[t.job].spec.Stages[t.id.Stage].Demand
	if o != scheduler.OutcomeSucceeded { // what succeeds runs, and on one node
		held = w.held(t)
	}
	w.settle(slot, o)
	if err := w.s.AttemptEnded(t.id, t.run, o, w.now); err != nil {
		return err
	}
	w.use.sub(held)
	return nil
}

// settle does the world's part of an attempt's end: its accounts, its place
// among the task's attempts, its slot.
func (w *world) settle(slot int32, o scheduler.Outcome) {
	t := &w.attempts[slot]
	if o != scheduler.OutcomeSucceeded {
		w.pause(slot)
	}
	j := &w.jobs[t.job]
	g := &j.spec.Stages[t.id.Stage]
	r := j.res
	cpu := t.ran.Seconds() * float64(g.Demand[scheduler.CPU]) / 1000
	if o == scheduler.OutcomeSucceeded {
		r.Served += t.ran
		r.count(t.local)
		w.use.useful += cpu
		if ran := j.stages[t.id.Stage].ran; ran != nil {
			ran[t.id.Index] = t.node
		}
		w.keep(t)
	} else {
		r.LostCPU += cpu
		w.res.WorkLostCPU += cpu
	}
	p := &j.stages[t.id.Stage].first[t.id.Index]
	for *p-1 != slot {
		p = &w.attempts[*p-1].next
	}
	*p = t.next
	j.live--
	t.due = 0
	t.state = attemptGone
	w.free = append(w.free, slot)
}

// held is what the State says the attempt holds, on both nodes while it moves.
func (w *world) held(t *attempt) scheduler.Resources {
	a := w.s.Attempt(t.id)
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
		w.res.Runs = append(w.res.Runs, TaskRun{t.id, t.node, since0(t.placed), since0(w.now)})
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
		if err := w.s.AttemptProgress(t.id, t.run, part, 0); err != nil {
			return err
		}
	}
	return nil
}

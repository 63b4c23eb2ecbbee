package engine

import (
	"fmt"
	"slices"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// phase is the current phase of an attempt.
type phase uint8

const (
	phaseSetup phase = iota + 1 // starting, and reading if that takes a fixed time
	phaseRead                   // reading or fetching over shared links
	phaseWork                   // computing, and writing if that takes a fixed time
	phaseWrite                  // writing to a shared disk
	phaseDone
)

// attempt is one running attempt, stored at the slot that the State assigned. It fills one cache
// line: with tens of thousands of attempts every access is a cache miss.
type attempt struct {
	job      int32
	task     int32
	number   int32 // AttemptID.Attempt, from 1
	node     scheduler.NodeID
	stage    int16
	phase    phase
	state    attemptState
	level    scheduler.Level
	locality locality
	eventKey uint64 // key of its next event; 0: none
	// workLeft is the rest of the compute phase. phaseStart is when the current phase began or
	// resumed; elapsed is the running time before that.
	workLeft   time.Duration
	phaseStart scheduler.Time
	elapsed    time.Duration
	*attemptExtra
}

// attemptExtra is the state that only some attempts need. All others share world.sharedExtra, which
// must not be changed (see ownExtra).
type attemptExtra struct {
	run         int32
	disk        int16
	suspensions int32
	flow        int32 // its transfer over shared links; -1: none
	// setupLeft is the rest of the setup phase; the next two are the bytes left to read and write.
	setupLeft                     time.Duration
	readBytesLeft, writeBytesLeft float64
	placedAt                      scheduler.Time
	plannedDuration               time.Duration // total at placement, for progress reports
	waited                        time.Duration // time spent waiting for maps, if attempts are recorded; not part of elapsed
}

func (t *attempt) id() scheduler.AttemptID {
	return scheduler.AttemptID{TaskID: scheduler.TaskID{Job: scheduler.JobID(t.job + 1), Stage: int32(t.stage), Index: t.task}, Attempt: t.number}
}

// ownExtra returns an attemptExtra that belongs to t alone and may be changed.
func (w *world) ownExtra(t *attempt) *attemptExtra {
	if t.attemptExtra == &w.sharedExtra {
		m := w.sharedExtra
		t.attemptExtra = &m
	}
	return t.attemptExtra
}

// attemptState is whether an attempt makes progress.
type attemptState uint8

const (
	attemptRunning   attemptState = iota + 1
	attemptWaiting                // a reduce that has fetched and waits for maps: it runs but makes no progress
	attemptSuspended              // suspended, suspending or resuming
	attemptDying
	attemptEnded
)

// locality is the distance from a task to its input.
type locality uint8

const (
	localNone locality = iota // no input with a location
	localNode
	localRack
	localRemote
)

// findSlot returns the slot of a live attempt.
func (w *world) findSlot(id scheduler.AttemptID) (int32, error) {
	first, second := w.s.Attempts().Slots(id.TaskID)
	for _, slot := range [...]int32{first, second} {
		if slot >= 0 && w.attempts[slot].number == id.Attempt {
			return slot, nil
		}
	}
	return 0, fmt.Errorf("attempt %s is not live in the simulation", id)
}

// placeAttempt starts the attempt of a placement.
func (w *world) placeAttempt(a *scheduler.Action) error {
	slot, second := w.s.Attempts().Slots(a.Task)
	if a.Speculative {
		slot = second
	}
	if slot > maxRef {
		return fmt.Errorf("more than %d live attempts: simulate fewer nodes or larger tasks", maxRef)
	}
	for int(slot) >= len(w.attempts) {
		w.attempts = append(w.attempts, attempt{})
	}
	j := &w.jobs[a.Task.Job-1]
	g := &j.spec.Stages[a.Task.Stage]
	t := &w.attempts[slot]
	*t = attempt{job: int32(a.Task.Job - 1), task: a.Task.Index, number: a.Attempt, node: a.Node, stage: int16(a.Task.Stage),
		phase: phaseSetup, state: attemptRunning, level: scheduler.LevelRunning, phaseStart: w.now, attemptExtra: &w.sharedExtra}
	j.liveAttempts++
	if j.res.Start < 0 {
		j.res.Start = sinceEpoch(w.now)
	}
	w.res.Placements++
	w.use.changeUse(j, g.Demand)
	w.use.countWork(j, 0, +1, 0)
	if err := w.planWork(t, j, g, a.Disk); err != nil {
		return err
	}
	if err := w.s.Events().AttemptStarted(a.AttemptID(), a.Run, w.now); err != nil {
		return err
	}
	return w.schedulePhaseEnd(slot)
}

// planWork computes the phases of an attempt on its current node.
func (w *world) planWork(t *attempt, j *job, g *Stage, disk int16) error {
	m := &w.Models
	work := g.Work
	if g.WorkPerTask != nil {
		work = g.WorkPerTask[t.task]
	}
	before := m.Launch
	if g.StartDelays != nil {
		before += g.StartDelays[t.task]
	}
	t.workLeft = scale(work, m.workFactor(w.Seed, t)/w.cluster.nodeSpeed[t.node])
	if w.computeOnly {
		if j.stages[t.stage].hasInputs {
			w.resolveLocality(t)
		}
		t.workLeft += before // one event covers setup and work
		return nil
	}
	o := w.ownExtra(t)
	o.disk, o.placedAt, o.setupLeft = disk, w.now, before
	if m.transferModel() != TransferFree {
		w.planTransfers(t, j, g)
	} else if j.stages[t.stage].hasInputs {
		w.resolveLocality(t)
	}
	o.plannedDuration = o.setupLeft + t.workLeft
	if r := w.Models.LocalRate; r > 0 {
		o.plannedDuration += time.Duration((o.readBytesLeft + o.writeBytesLeft) / float64(r) * float64(time.Second))
	}
	return nil
}

// workFactor returns how much longer than nominal the attempt computes (spread and stragglers).
func (m *Models) workFactor(seed uint64, t *attempt) float64 {
	f := 1.0
	if m.Spread > 0 {
		f = lognormal(hash(seed, drawSpread, uint64(t.job+1), uint64(t.stage), uint64(t.task)), m.Spread)
	}
	if m.StragglerFraction > 0 && unit(hash(seed, drawStraggler, uint64(t.job+1), uint64(t.stage), uint64(t.task), uint64(t.number))) < m.StragglerFraction {
		f *= max(1, m.StragglerFactor)
	}
	return f
}

// schedulePhaseEnd schedules the end of the attempt's current phase and skips empty phases.
func (w *world) schedulePhaseEnd(slot int32) error {
	t := &w.attempts[slot]
	t.phaseStart = w.now
	waits := t.phase <= phaseWork && w.jobs[t.job].waitsForMaps(w.s, t.stage)
	if t.phase == phaseSetup && t.readBytesLeft <= 0 && t.writeBytesLeft <= 0 && !w.Models.Contention && !waits { // one event covers all phases
		if t.setupLeft > 0 {
			t.workLeft += t.setupLeft
			t.setupLeft = 0
		}
		t.phase = phaseWork
	}
	for ; t.phase < phaseDone; t.phase++ {
		switch {
		case t.phase == phaseSetup && t.setupLeft > 0:
			w.scheduleEvent(slot, w.now.Add(t.setupLeft), evPhase)
			return nil
		case t.phase == phaseRead && t.readBytesLeft > 0:
			t.flow = w.net.startFlow(w, slot, t.readBytesLeft)
			return nil
		case t.phase == phaseWork && waits:
			t.state, t.eventKey = attemptWaiting, 0
			w.jobs[t.job].waiting.add(slot)
			return nil
		case t.phase == phaseWork && (t.workLeft > 0 || t.writeBytesLeft <= 0):
			if w.Models.Contention {
				w.contention.startComputing(w, slot)
				return nil
			}
			w.scheduleEvent(slot, w.now.Add(t.workLeft), evPhase)
			return nil
		case t.phase == phaseWrite && t.writeBytesLeft > 0:
			t.flow = w.net.startFlow(w, slot, t.writeBytesLeft)
			return nil
		}
	}
	w.scheduleEvent(slot, w.now, evPhase)
	return nil
}

// waitsForMaps reports whether a reduce that started early still needs outputs of unfinished maps.
func (j *job) waitsForMaps(s *scheduler.State, stage int16) bool {
	g := &j.spec.Stages[stage]
	if g.SlowStart <= 0 || g.Kind != scheduler.KindReduce {
		return false
	}
	stages := s.Job(j.id).Stages
	return slices.ContainsFunc(g.After, func(k int32) bool { return stages[k].Done < stages[k].Spec.Tasks })
}

// waitingReduces are the slots of a job's reduces that wait for maps. A reduce that was suspended
// or has ended since stays in it until the others continue.
type waitingReduces struct{ slots []int32 }

func (r *waitingReduces) add(slot int32) { r.slots = append(r.slots, slot) }

// resume continues the reduces of job j; they wait again if maps are not done.
func (r *waitingReduces) resume(w *world, j *job) error {
	slots := r.slots
	r.slots = nil
	for _, slot := range slots {
		t := &w.attempts[slot]
		if t.state != attemptWaiting || &w.jobs[t.job] != j {
			continue
		}
		t.countWaiting(w)
		t.state = attemptRunning
		if err := w.schedulePhaseEnd(slot); err != nil {
			return err
		}
	}
	return nil
}

// countWaiting adds the time that an attempt has waited for maps until now.
func (t *attempt) countWaiting(w *world) {
	if w.OnAttempt != nil {
		w.ownExtra(t).waited += w.now.Sub(t.phaseStart)
		t.phaseStart = w.now
	}
}

// finishPhase moves an attempt to its next phase or ends it.
func (w *world) finishPhase(slot int32) error {
	t := &w.attempts[slot]
	t.elapsed += w.now.Sub(t.phaseStart)
	switch t.phase {
	case phaseSetup:
		t.setupLeft = 0
	case phaseRead:
		t.readBytesLeft = 0
	case phaseWork:
		t.workLeft = 0
		if w.Models.Contention {
			t.phaseStart = w.now
			w.contention.stopComputing(w, slot)
		}
		if t.writeBytesLeft <= 0 {
			return w.endAttempt(slot, scheduler.OutcomeSucceeded)
		}
	case phaseWrite, phaseDone:
		return w.endAttempt(slot, scheduler.OutcomeSucceeded)
	}
	w.ownExtra(t).flow = -1
	t.phase++
	t.eventKey = 0
	return w.schedulePhaseEnd(slot)
}

// scheduleEvent schedules the next event of an attempt and voids the previous one.
func (w *world) scheduleEvent(slot int32, at scheduler.Time, k eventKind) {
	w.attempts[slot].eventKey = w.events.schedule(at, k, slot)
}

// pauseAttempt stops the current phase of an attempt and keeps the rest of it.
func (w *world) pauseAttempt(slot int32) {
	t := &w.attempts[slot]
	t.eventKey = 0
	switch t.state {
	case attemptRunning:
	case attemptWaiting:
		t.countWaiting(w)
		t.state = attemptSuspended
		return
	default:
		return
	}
	passed := w.now.Sub(t.phaseStart)
	t.elapsed += passed
	t.phaseStart = w.now
	switch t.phase {
	case phaseSetup:
		t.setupLeft = max(0, t.setupLeft-passed)
	case phaseWork:
		t.workLeft = max(0, t.workLeft-time.Duration(float64(passed)/w.contention.slowdown(w, t)))
		if w.Models.Contention {
			w.contention.stopComputing(w, slot)
		}
	case phaseRead:
		t.readBytesLeft = max(1, w.net.cancelFlow(w, t.flow))
	case phaseWrite:
		t.writeBytesLeft = max(1, w.net.cancelFlow(w, t.flow))
	}
	if t.flow >= 0 {
		t.flow = -1
	}
	t.state = attemptSuspended
}

// endAttempt ends an attempt, and its job if it was the last one.
func (w *world) endAttempt(slot int32, o scheduler.Outcome) error {
	id := w.attempts[slot].id()
	j := &w.jobs[id.Job-1]
	if err := w.removeAttempt(slot, o); err != nil {
		return err
	}
	if o == scheduler.OutcomeSucceeded {
		if err := w.completeTask(j, id); err != nil {
			return err
		}
	}
	if j.tasksLeft == 0 && j.liveAttempts == 0 && !j.ended {
		return w.admission.endJob(w, j, JobSucceeded)
	}
	return nil
}

// completeTask counts a completed task and kills its other attempt, if any.
func (w *world) completeTask(j *job, id scheduler.AttemptID) error {
	j.tasksLeft--
	w.use.countWork(j, 0, 0, -1)
	w.res.TasksDone++
	if other, _ := w.s.Attempts().Slots(id.TaskID); other >= 0 {
		w.pauseAttempt(other)
		w.attempts[other].state = attemptDying
		w.scheduleEvent(other, w.now.Add(w.Models.KillDelay), evKilled)
	}
	return j.waiting.resume(w, j)
}

// removeAttempt removes an attempt from the simulation and the State.
func (w *world) removeAttempt(slot int32, o scheduler.Outcome) error {
	t := &w.attempts[slot]
	j := &w.jobs[t.job]
	occupied := j.spec.Stages[t.stage].Demand
	if o != scheduler.OutcomeSucceeded { // a successful attempt runs, on one node only
		occupied = w.occupiedResources(t)
	}
	w.suspensions.endMigration(slot)
	w.recordAttemptEnd(slot, o)
	if err := w.s.Events().AttemptEnded(t.id(), t.run, o, w.now); err != nil {
		return err
	}
	w.use.changeUse(j, scheduler.Resources{}.Sub(occupied))
	return nil
}

// recordAttemptEnd updates the accounts for the end of an attempt.
func (w *world) recordAttemptEnd(slot int32, o scheduler.Outcome) {
	t := &w.attempts[slot]
	if o != scheduler.OutcomeSucceeded {
		w.pauseAttempt(slot)
	}
	j := &w.jobs[t.job]
	g := &j.spec.Stages[t.stage]
	r := j.res
	cpu := t.elapsed.Seconds() * float64(g.Demand[scheduler.CPU]) / 1000
	if o == scheduler.OutcomeSucceeded {
		r.countLocality(t.locality)
		w.use.useful += cpu
		r.UsefulCPU += cpu
		if ran := j.stages[t.stage].ranOn; ran != nil {
			ran[t.task] = t.node
		}
		w.recordExecution(t)
	} else {
		r.LostCPU += cpu
		w.res.WorkLostCPU += cpu
	}
	w.recordAttempt(t, o)
	j.liveAttempts--
	w.use.countWork(j, 0, -1, 0)
	t.eventKey = 0
	t.state = attemptEnded
}

// occupiedResources returns what the attempt occupies according to the State, on both nodes while
// it migrates.
func (w *world) occupiedResources(t *attempt) scheduler.Resources {
	a := w.s.Attempt(t.id())
	if a == nil {
		return scheduler.Resources{}
	}
	if a.From != scheduler.NoNode {
		return a.Occupied.Resources.Add(a.FromOccupied.Resources)
	}
	return a.Occupied.Resources
}

// recordExecution records a successful attempt for the Gantt chart.
func (w *world) recordExecution(t *attempt) {
	if len(w.res.TaskExecutions) < w.MaxTaskExecutions {
		w.res.TaskExecutions = append(w.res.TaskExecutions, TaskExecution{t.id(), t.node, sinceEpoch(t.placedAt), sinceEpoch(w.now)})
	}
}

// reportProgress reports the progress of all running attempts and schedules the next report.
func (w *world) reportProgress() error {
	w.events.schedule(w.now.Add(w.Models.Heartbeat), evHeartbeat, 0)
	for slot := range w.attempts {
		t := &w.attempts[slot]
		if t.state != attemptRunning || t.plannedDuration <= 0 {
			continue
		}
		part := min(0.999, float64(t.elapsed+w.now.Sub(t.phaseStart))/float64(t.plannedDuration))
		if err := w.s.Events().AttemptProgress(t.id(), t.run, part, 0); err != nil {
			return err
		}
	}
	return nil
}

package engine

import (
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// world is the state of a running simulation.
type world struct {
	Config
	s      *scheduler.State
	now    scheduler.Time
	events eventQueue
	jobs   []job

	attempts      []attempt    // indexed by slot (Attempts.Slots)
	sharedExtra   attemptExtra // shared by all attempts without an own record
	computeOnly   bool         // attempts only compute: no transfers, no contention, no reports
	prefetchSlots []int32      // scratch of prefetch
	prefetchSink  int64        // keeps the compiler from removing prefetch's reads
	net           network
	contention    contention
	suspensions   suspensions
	admission     admission
	outages       outages

	cluster     cluster
	dirty       bool // the state changed since the last cycle
	wakeAt      scheduler.Time
	nextCycleAt scheduler.Time // no cycle before this time
	eventCount  uint64         // events handled
	res         Result
	use         usage
	waited      waitedTimes
}

// job is the running state of a Job.
type job struct {
	spec         *Job
	id           scheduler.JobID
	project      scheduler.ProjectID
	stages       []stage
	tasksLeft    int32 // tasks not done
	liveAttempts int32
	waiting      waitingReduces
	ended        bool
	refused      bool // it can never run; the scheduler does not see it
	res          *JobResult
}

// stage is the running state of a Stage.
type stage struct {
	hasInputs bool // its input has locations
	ranOn     []scheduler.NodeID
}

// Simulate runs a workload to its end. The error names input that cannot be simulated, a decision
// that Check refused, or a job that can never start; the Result then holds everything up to that
// point.
func Simulate(c Config) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	w := &world{Config: c, s: scheduler.New(), now: Epoch, wakeAt: scheduler.Never}
	if w.maxActions == 0 {
		w.maxActions = defaultMaxActions
	}
	m := &w.Models
	w.computeOnly = m.transferModel() == TransferFree && !m.Contention && m.Heartbeat == 0 && w.MaxTaskExecutions == 0 && w.OnAttempt == nil
	w.sharedExtra = attemptExtra{run: 1, disk: -1, flow: -1}
	if err := w.build(); err != nil {
		return nil, err
	}
	w.requestReasons(w.WaitedTimes)
	err := w.loop()
	w.fillResult()
	return &w.res, err
}

// build adds nodes, tenants and projects to the State and schedules the first events.
func (w *world) build() error {
	if err := w.cluster.build(w); err != nil {
		return err
	}
	if len(w.Tenants) == 0 {
		w.Tenants = []scheduler.TenantSpec{{Name: "default", Parent: scheduler.NoTenant, Weight: 1}}
	}
	for i, t := range w.Tenants {
		t.ID = scheduler.TenantID(i)
		if err := w.s.Events().PutTenant(t); err != nil {
			return err
		}
	}
	w.outages.downReasons, w.outages.drainReasons = make([]int, len(w.Nodes)), make([]int, len(w.Nodes))
	w.net.build(w)
	if w.Models.Contention {
		w.contention.build(len(w.Nodes))
		w.use.measuredOnly = true
	}
	w.jobs = make([]job, len(w.Jobs))
	w.res.Jobs = make([]JobResult, len(w.Jobs))
	for i := range w.Jobs {
		if err := w.admission.initJob(w, i); err != nil {
			return err
		}
	}
	w.admission.refuseUnplaceable(w)
	if len(w.Jobs) > 0 {
		w.events.schedule(w.timeAt(w.Jobs[0].Submit), evSubmit, 0)
	}
	if w.Models.Heartbeat > 0 {
		w.events.schedule(w.now.Add(w.Models.Heartbeat), evHeartbeat, 0)
	}
	w.use.start(w.now)
	if w.TenantSeries {
		w.use.tenants.start(len(w.Tenants), w.now)
	}
	w.use.setCapacity(w.s.Cluster().Total())
	return w.outages.scheduleAbsences(w)
}

func (w *world) timeAt(d time.Duration) scheduler.Time { return Epoch.Add(d) }

// sinceEpoch returns t as an offset from second 0.
func sinceEpoch(t scheduler.Time) time.Duration { return t.Sub(Epoch) }

// loop advances from one time to the next until all jobs have ended.
func (w *world) loop() error {
	atOnce, wakesAlone, lastEvent := 0, 0, w.now
	for w.admission.jobsDone < len(w.jobs) {
		if err := w.checkStop(); err != nil {
			return err
		}
		t := min(w.events.nextTime(), w.wakeAt)
		if w.dirty {
			t = min(t, w.nextCycleAt)
		}
		if wakesAlone++; w.isEventPending() {
			wakesAlone, lastEvent = 0, t
		}
		if t == scheduler.Never || wakesAlone > maxWakesAlone && t.Sub(lastEvent) > maxTimeAlone {
			return fmt.Errorf("at %v: %w", sinceEpoch(w.now), w.stuckError())
		}
		if sinceEpoch(t) > longest {
			return fmt.Errorf("at %v: the next event is after %v, the end of simulated time, and %d of %d jobs are left: simulate shorter tasks or more nodes", sinceEpoch(w.now), longest, len(w.jobs)-w.admission.jobsDone, len(w.jobs))
		}
		w.prefetch()
		if t > w.now {
			w.advanceTo(t)
			atOnce = 0
		}
		if atOnce++; atOnce > maxCyclesAtOnce {
			return fmt.Errorf("at %v: more than %d cycles at one time: policy %s keeps asking to be woken", sinceEpoch(w.now), maxCyclesAtOnce, w.Policy.Name())
		}
		if w.wakeAt <= w.now {
			w.dirty, w.wakeAt = true, scheduler.Never
		}
		if err := w.runInstant(); err != nil {
			return fmt.Errorf("at %v: %w", sinceEpoch(w.now), err)
		}
		if w.events.scheduled > maxScheduled {
			return fmt.Errorf("at %v: %d events were scheduled, the maximum of a simulation: simulate a part of the workload", sinceEpoch(w.now), w.events.scheduled)
		}
		if w.MaxEvents > 0 && w.eventCount > w.MaxEvents {
			return fmt.Errorf("at %v: event limit reached: %d events handled, %d of %d jobs still running", sinceEpoch(w.now), w.eventCount, len(w.jobs)-w.admission.jobsDone, len(w.jobs))
		}
	}
	return nil
}

// isEventPending reports whether an event is pending other than the heartbeat, of which there is always one.
func (w *world) isEventPending() bool {
	beats := 0
	if w.Models.Heartbeat > 0 {
		beats = 1
	}
	return w.events.pending() > beats
}

// checkStop returns the error of Config.Stop, with the progress made.
func (w *world) checkStop() error {
	if w.Stop == nil {
		return nil
	}
	if err := w.Stop(); err != nil {
		return fmt.Errorf("stopped at %v of simulated time, %d of %d jobs done: %w", sinceEpoch(w.now), w.admission.jobsDone, len(w.jobs), err)
	}
	return nil
}

// prefetch reads the memory that the next events will need, for all events of a bucket at once, so
// that the cache misses overlap. It changes no state.
func (w *world) prefetch() {
	w.prefetchSlots = w.prefetchSlots[:0]
	for _, e := range w.events.newlyOpened() {
		if e.kind() == evPhase && w.attempts[e.ref()].eventKey == e.key {
			w.prefetchSlots = append(w.prefetchSlots, e.ref())
		}
	}
	w.prefetchSink += w.s.Attempts().Prefetch(w.prefetchSlots)
}

// runInstant handles all events of the current time, then runs a cycle if one is due.
func (w *world) runInstant() error {
	for w.events.nextTime() <= w.now {
		e := w.events.pop()
		if w.isVoid(&e) {
			continue
		}
		w.eventCount++
		if w.Progress != nil && w.eventCount&(1<<14-1) == 0 {
			w.Progress(Progress{sinceEpoch(w.now), w.eventCount, len(w.jobs), w.admission.jobsDone})
		}
		if err := w.handleEvent(&e); err != nil {
			return err
		}
		if w.CycleEachEvent {
			if err := w.runCycles(); err != nil {
				return err
			}
		}
	}
	return w.runCycles()
}

// isVoid reports whether e was superseded by a later event for the same attempt or flow.
func (w *world) isVoid(e *event) bool {
	switch e.kind() {
	case evPhase, evSuspended, evResumed, evKilled:
		return w.attempts[e.ref()].eventKey != e.key
	case evFlow:
		return w.net.flows[e.ref()].eventKey != e.key
	default:
		return false
	}
}

func (w *world) handleEvent(e *event) error {
	w.dirty = true
	switch e.kind() {
	case evSubmit:
		return w.admission.submitJob(w, int(e.ref()))
	case evFail:
		return w.outages.failNode(w, scheduler.NodeID(e.ref()))
	case evRepair:
		return w.outages.repairNode(w, scheduler.NodeID(e.ref()))
	case evPhase:
		return w.finishPhase(e.ref())
	case evSuspended:
		return w.suspensions.finishSuspend(w, e.ref())
	case evResumed:
		return w.suspensions.finishResume(w, e.ref())
	case evKilled:
		return w.endAttempt(e.ref(), scheduler.OutcomeKilled)
	case evFlow:
		return w.finishPhase(w.net.finishFlow(w, e.ref()))
	case evHeartbeat:
		return w.reportProgress()
	case evDrain:
		return w.outages.startDrain(w, &w.Absences[e.ref()])
	case evLeave:
		return w.outages.nodeDown(w, w.Absences[e.ref()].Node, true)
	case evReturn:
		return w.outages.endAbsence(w, &w.Absences[e.ref()])
	default:
		return fmt.Errorf("unknown event kind %d", e.kind())
	}
}

// runCycles runs scheduler.Cycle until the state no longer changes: again after a cycle that used
// all its actions.
func (w *world) runCycles() error {
	if w.dirty && w.now < w.nextCycleAt {
		return nil
	}
	if w.dirty {
		w.nextCycleAt = w.now.Add(w.CycleInterval)
	}
	for n := 0; w.dirty; n++ {
		if n > maxCyclesAtOnce {
			return fmt.Errorf("%s: more than %d full cycles at one time", w.Policy.Name(), maxCyclesAtOnce)
		}
		w.dirty = false
		d, err := scheduler.Cycle(w.s, w.Policy, w.now, w.maxActions, scheduler.AcceptAll)
		if err != nil {
			return err
		}
		if w.WaitedTimes {
			w.waited.set(d.Waiting, w.now)
		}
		w.wakeAt = scheduler.Never
		if d.Wake > 0 {
			w.wakeAt = max(d.Wake, w.now+1)
		}
		for i := range d.Actions {
			if err := w.execute(&d.Actions[i]); err != nil {
				return err
			}
		}
		for i := range d.PolicyStates {
			if err := w.admission.handlePolicyState(w, &d.PolicyStates[i]); err != nil {
				return err
			}
		}
		if len(d.Actions) >= w.maxActions {
			w.dirty = true
		}
	}
	return nil
}

// advanceTo advances the simulated time to t.
func (w *world) advanceTo(t scheduler.Time) {
	w.use.advanceTo(t)
	w.now = t
}

// requestReasons sets whether the policy lists the reasons of waiting stages.
func (w *world) requestReasons(wanted bool) {
	if r, ok := w.Policy.(scheduler.Reasoner); ok {
		r.SetReasonsWanted(wanted)
	}
}

// stuckError explains why jobs are left although no event is pending.
func (w *world) stuckError() error {
	why := "the policy reports no reason"
	w.requestReasons(true)
	w.s.SetTime(w.now)
	if d := w.Policy.Decide(w.s, w.now, w.maxActions); len(d.Waiting) > 0 {
		why = d.Waiting[0].String()
	}
	return &StuckError{len(w.jobs) - w.admission.jobsDone, "no event is left: stage " + why}
}

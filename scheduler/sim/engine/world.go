package engine

import (
	"cmp"
	"fmt"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// world is a run under way.
type world struct {
	Config
	s      *scheduler.State
	now    scheduler.Time
	events queue
	jobs   []job
	done   int // jobs that ended

	attempts []attempt // by slot (State.Slots)
	alike    more      // of all attempts that need no record of their own
	plain    bool      // attempts do nothing but work
	moving   []int32   // slots of attempts that move between nodes
	soon     []int32   // scratch of fetch
	fetched  int64     // keeps what fetch reads from being left out
	net      network
	crowds   []crowd
	backlog  []int32 // jobs that wait for admission
	admitted int     // jobs that the scheduler sees

	pace      []float64       // how fast each node works
	nominal   map[shape]int64 // tasks of a demand that the empty cluster holds
	rackNodes [][]scheduler.NodeID
	dirty     bool // something happened since the last cycle
	wake      scheduler.Time
	cycleAt   scheduler.Time // no cycle before
	seen      uint64         // events that happened
	res       Result
	use       usage
}

// job is a Job under way.
type job struct {
	spec   *Job
	id     scheduler.JobID
	stages []stage
	left   int32 // tasks not done
	live   int32 // attempts
	ended  bool
	res    *JobResult
}

// stage is a Stage under way.
type stage struct {
	reads bool // it has inputs with a place
	ran   []scheduler.NodeID
}

// Run simulates a workload to its end. An error names what cannot be
// simulated, a decision that Check refused, or the job that can never start;
// the Result holds what happened until then.
func Run(c Config) (*Result, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	w := &world{Config: c, s: scheduler.New(), now: Epoch, nominal: map[shape]int64{}, wake: scheduler.Never}
	if w.MaxActions == 0 {
		w.MaxActions = DefaultMaxActions
	}
	m := &w.Models
	w.plain = m.transfer() == TransferFree && !m.Contention && m.Heartbeat == 0 && w.KeepTasks == 0
	w.alike = more{run: 1, disk: -1, flow: -1}
	if err := w.build(); err != nil {
		return nil, err
	}
	w.reasons(false)
	err := w.loop()
	w.finish()
	return &w.res, err
}

// build brings in nodes, tenants and projects and plans the first events.
func (w *world) build() error {
	racks := map[string]int{}
	for i := range w.Nodes {
		spec := w.Nodes[i].NodeSpec
		spec.ID = scheduler.NodeID(i)
		w.pace = append(w.pace, cmp.Or(max(w.Nodes[i].Speed, 0), 1))
		if err := w.s.AddNode(spec); err != nil {
			return err
		}
		r, ok := racks[spec.Path]
		if !ok {
			r = len(w.rackNodes)
			racks[spec.Path] = r
			w.rackNodes = append(w.rackNodes, nil)
		}
		w.rackNodes[r] = append(w.rackNodes[r], spec.ID)
		if w.Models.MTBF > 0 {
			w.planFailure(spec.ID)
		}
	}
	if len(w.Tenants) == 0 {
		w.Tenants = []scheduler.TenantSpec{{Name: "default", Parent: scheduler.NoTenant, Weight: 1}}
	}
	for i, t := range w.Tenants {
		t.ID = scheduler.TenantID(i)
		if err := w.s.PutTenant(t); err != nil {
			return err
		}
	}
	w.net.build(w)
	if w.Models.Contention {
		w.crowds = make([]crowd, len(w.Nodes))
		for i := range w.crowds {
			w.crowds[i].slow = 1
		}
		w.use.masked = true
	}
	w.jobs = make([]job, len(w.Jobs))
	w.res.Jobs = make([]JobResult, len(w.Jobs))
	for i := range w.Jobs {
		if err := w.prepare(i); err != nil {
			return err
		}
	}
	if len(w.Jobs) > 0 {
		w.events.plan(w.at(w.Jobs[0].Submit), evSubmit, 0)
	}
	if w.Models.Heartbeat > 0 {
		w.events.plan(w.now.Add(w.Models.Heartbeat), evHeartbeat, 0)
	}
	w.use.begin(w.now)
	w.use.capacity(w.s.Total())
	return nil
}

func (w *world) at(d time.Duration) scheduler.Time { return Epoch.Add(d) }

// since0 is an instant counted from second 0.
func since0(t scheduler.Time) time.Duration { return t.Sub(Epoch) }

// loop takes instant after instant.
func (w *world) loop() error {
	atOnce := 0
	for w.done < len(w.jobs) {
		if err := w.stopped(); err != nil {
			return err
		}
		t := min(w.events.next(), w.wake)
		if w.dirty {
			t = min(t, w.cycleAt)
		}
		if t == scheduler.Never {
			return w.stuck()
		}
		w.fetch()
		if t > w.now {
			w.pass(t)
			atOnce = 0
		}
		if atOnce++; atOnce > maxCyclesAtOnce {
			return fmt.Errorf("at %v: more than %d cycles at one instant: %s asks to be woken again and again", since0(w.now), maxCyclesAtOnce, w.Policy.Name())
		}
		if w.wake <= w.now {
			w.dirty, w.wake = true, scheduler.Never
		}
		if err := w.instant(); err != nil {
			return fmt.Errorf("at %v: %w", since0(w.now), err)
		}
		if w.events.count > maxPlanned {
			return fmt.Errorf("at %v: %d events were planned, more than a run may have: simulate a part of the workload", since0(w.now), w.events.count)
		}
		if w.MaxEvents > 0 && w.seen > w.MaxEvents {
			return fmt.Errorf("at %v: %d events and %d of %d jobs still run: the limit is reached", since0(w.now), w.seen, len(w.jobs)-w.done, len(w.jobs))
		}
	}
	return nil
}

// stopped tells whether somebody wants the run to end, and how far it is.
func (w *world) stopped() error {
	if w.Stop == nil {
		return nil
	}
	if err := w.Stop(); err != nil {
		return fmt.Errorf("stopped at %v of simulated time, %d of %d jobs done: %w", since0(w.now), w.done, len(w.jobs), err)
	}
	return nil
}

// fetch asks for the memory that the next events will need, of all of a bucket at
// once: the processor waits for many lines together hardly longer than for one.
// It changes nothing.
func (w *world) fetch() {
	w.soon = w.soon[:0]
	for _, e := range w.events.fresh() {
		if e.kind() == evPhase && w.attempts[e.ref()].due == e.key {
			w.soon = append(w.soon, e.ref())
		}
	}
	w.fetched += w.s.Fetch(w.soon)
}

// instant lets all events of now happen, then runs a cycle if it is due.
func (w *world) instant() error {
	for w.events.next() <= w.now {
		e := w.events.take()
		if w.void(&e) {
			continue
		}
		w.seen++
		if w.Progress != nil && w.seen&(1<<14-1) == 0 {
			w.Progress(Progress{since0(w.now), w.seen, len(w.jobs), w.done})
		}
		if err := w.happen(&e); err != nil {
			return err
		}
		if w.CycleEachEvent {
			if err := w.cycle(); err != nil {
				return err
			}
		}
	}
	return w.cycle()
}

// void tells whether what the event is about has moved on.
func (w *world) void(e *event) bool {
	switch e.kind() {
	case evPhase, evSuspended, evResumed, evKilled:
		return w.attempts[e.ref()].due != e.key
	case evFlow:
		return w.net.flows[e.ref()].due != e.key
	default:
		return false
	}
}

func (w *world) happen(e *event) error {
	w.dirty = true
	switch e.kind() {
	case evSubmit:
		return w.submit(int(e.ref()))
	case evFail:
		return w.fail(scheduler.NodeID(e.ref()))
	case evRepair:
		return w.repair(scheduler.NodeID(e.ref()))
	case evPhase:
		return w.phaseEnds(e.ref())
	case evSuspended:
		return w.suspended(e.ref())
	case evResumed:
		return w.resumed(e.ref())
	case evKilled:
		return w.endAttempt(e.ref(), scheduler.OutcomeKilled)
	case evFlow:
		return w.phaseEnds(w.net.end(w, e.ref()))
	case evHeartbeat:
		return w.heartbeat()
	default:
		return fmt.Errorf("event of kind %d", e.kind())
	}
}

// cycle runs scheduler.Cycle while the state changed or the last one was full.
func (w *world) cycle() error {
	if w.dirty && w.now < w.cycleAt {
		return nil
	}
	if w.dirty {
		w.cycleAt = w.now.Add(w.CycleInterval)
	}
	for n := 0; w.dirty; n++ {
		if n > maxCyclesAtOnce {
			return fmt.Errorf("%s: more than %d full cycles at one instant", w.Policy.Name(), maxCyclesAtOnce)
		}
		w.dirty = false
		d, err := scheduler.Cycle(w.s, w.Policy, w.now, w.MaxActions, scheduler.Identity)
		if err != nil {
			return err
		}
		w.res.Cycles++
		w.wake = scheduler.Never
		if d.Wake > 0 {
			w.wake = max(d.Wake, w.now+1)
		}
		for i := range d.Actions {
			if err := w.carryOut(&d.Actions[i]); err != nil {
				return err
			}
		}
		for i := range d.Notes {
			if err := w.heed(&d.Notes[i]); err != nil {
				return err
			}
		}
		if len(d.Actions) >= w.MaxActions {
			w.dirty = true
		}
	}
	return nil
}

// pass lets time go on to t.
func (w *world) pass(t scheduler.Time) {
	w.use.pass(t)
	w.now = t
}

// reasons tells the policy whether anybody reads why stages wait.
func (w *world) reasons(wanted bool) {
	if r, ok := w.Policy.(scheduler.Reasoner); ok {
		r.Reasons(wanted)
	}
}

// stuck says why nothing can happen any more though jobs are left.
func (w *world) stuck() error {
	why := "the policy gives no reason"
	w.reasons(true)
	if d := w.Policy.Decide(w.s, w.now, w.MaxActions); len(d.Waiting) > 0 {
		why = d.Waiting[0].String()
	}
	return fmt.Errorf("at %v: %d jobs never end and nothing more can happen: stage %s", since0(w.now), len(w.jobs)-w.done, why)
}

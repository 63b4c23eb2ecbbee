package coordinator

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/deadline"
	"github.com/drover-run/drover/scheduler/policies"
)

// Limits of the loop.
const (
	maxActions   = 2000                   // of one decision
	maxEntryPart = 768 << 10              // bytes of actions in one entry, below replica.MaxEntry
	driftPause   = 200 * time.Millisecond // between two rebuilds of the State
	hearPause    = 2 * time.Second        // between two looks at what nodes said of attempts
	nodeLostWhy  = "it did not report within its lease"
)

// leader is what a server does while it leads: one loop owns the State and
// follows the facts; everything slow (orders, commits of results) runs beside
// it. Each pass:
//
//  1. Follow: take the changes of the facts into State, wanted sets, history.
//  2. Expire: propose the loss of nodes whose lease ended, another try of nodes
//     that were held off and whose time is over, and of levels that were refused
//     for a while.
//  3. Deepen: have frozen tasks give their memory where it became too much.
//  4. Hear: every hearPause tell State which attempts run and how far they are,
//     which is no fact: policies that order by progress need it.
//  5. Forecast: predict run times anew where tasks ended; say of deadlines that
//     they cannot be met or have passed.
//  6. Decide: run a Cycle if State changed, cycle_interval after the last one.
//     Its commit proposes the decision and waits: one is in flight.
//  7. Wait for news: entries applied, a lease's end, a policy's wake-up.
type leader struct {
	c    *core
	term uint64

	proj   *projection
	policy scheduler.Policy
	name   string            // of the policy, as the facts have it
	params map[string]string // likewise

	stamp     scheduler.Stamp
	lastCycle time.Time
	wakeAt    scheduler.Time // of the last decision
	lastDrift time.Time
	lastHeard time.Time
	again     bool // decide although State did not change
	dirtyMaps map[uint64]bool

	learnt       bool // tasks ended since the last look at predictions
	lastForecast time.Time
	bandwidth    int64             // of remote reads, as the policy was told, bytes/s; 0 for not measured
	deadlines    map[uint64]missed // live jobs with a deadline
	outlook      deadline.Outlook
	judged       scheduler.Stamp // of the last look at deadlines
	judgeAt      time.Time       // when one may turn without an event, zero for never
	lastJudged   time.Time

	barred map[facts.Key]int64 // attempts that nobody asks for some level: until when, Unix ns

	pressed map[int32]bool // nodes on which levels changed since the last look

	logsGo []logsGo        // ended jobs whose logs are still kept
	held   map[int32]int64 // nodes held off by themselves: until when, Unix ns
	over   map[uint64]bool // ended jobs that hold nothing and were seen to

	wg     sync.WaitGroup // commits, cleanings
	busy   map[intent]bool
	busyMu sync.Mutex
}

// lead runs the loop until ctx ends or this server leads no more.
func (c *core) lead(ctx context.Context) error {
	if err := c.replica.Barrier(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &leader{c: c, term: c.replica.Term(), busy: map[intent]bool{}, dirtyMaps: map[uint64]bool{}, deadlines: map[uint64]missed{}, pressed: map[int32]bool{}}
	l.proj = c.newProjection(c.hosts.of)
	defer l.wg.Wait()
	defer cancel()
	if err := l.start(ctx); err != nil {
		return err
	}
	c.leading.Store(true)
	defer c.leading.Store(false)
	c.becomeReady()
	c.log.Info("leading", "term", l.term)
	return l.run(ctx)
}

// start makes the cluster's first entries and builds everything from facts.
func (l *leader) start(ctx context.Context) error {
	var cluster string
	l.c.replica.Read(func(f *facts.Facts) { cluster = f.Cluster() })
	if cluster == "" {
		e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Cluster{Cluster: &droverv1.ClusterFact{Id: l.c.newID()}}}
		if _, err := l.c.replica.Propose(ctx, e); err != nil {
			return err
		}
	}
	var err error
	l.c.orders.reset(l.term)
	l.c.replica.TakeChanges(func(f *facts.Facts, _ []facts.Change) { err = l.rebuild(ctx, f) })
	return err
}

func (l *leader) rebuild(ctx context.Context, f *facts.Facts) error {
	if err := l.setPolicy(f); err != nil {
		return err
	}
	l.c.sessions.begin(f, l.c.now())
	l.c.wanted.rebuild(f, l.term)
	l.logsGo, l.over, l.held, l.barred = nil, map[uint64]bool{}, map[int32]int64{}, map[facts.Key]int64{}
	for _, n := range f.Nodes() {
		l.noteHeld(n)
		l.pressed[n.ID] = true
	}
	clear(l.deadlines)
	l.learnt = l.c.forecasts.learn(f) || l.learnt
	for _, id := range f.JobIDs() {
		l.follow(ctx, f, f.Job(id))
		l.followDeadline(f.Job(id))
		if j := f.Job(id); j.Live > 0 {
			f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) { l.noteBarred(k, a) })
		}
	}
	l.c.sweep(f)
	return l.proj.rebuild(f)
}

// setPolicy makes the policy that the facts name.
func (l *leader) setPolicy(f *facts.Facts) error {
	name, params := f.Scheduler()
	if name == "" {
		name, params = l.c.cfg.Scheduler, l.c.cfg.SchedulerParams
	}
	if l.policy != nil && name == l.name && maps.Equal(params, l.params) {
		return nil
	}
	p, err := policies.New(name, l.measured(name, params))
	if err != nil && l.policy == nil { // a newer program chose it: this one goes on with its own
		l.c.log.Error("the chosen scheduler is not known here", "err", err)
		name, params = l.c.cfg.Scheduler, l.c.cfg.SchedulerParams
		p, err = policies.New(name, params)
	}
	if err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	l.policy, l.name, l.params, l.again = p, name, maps.Clone(params), true
	return nil
}

// measured adds what was measured to a scheduler's parameters, where the
// operator did not set it: the bandwidth of reading data that lies elsewhere.
func (l *leader) measured(name string, params map[string]string) map[string]string {
	i, err := policies.Get(name)
	if _, set := params["bandwidth"]; err != nil || set || l.bandwidth == 0 || !slices.ContainsFunc(i.Params, func(p policies.Param) bool { return p.Name == "bandwidth" }) {
		return params
	}
	out := maps.Clone(params)
	if out == nil {
		out = map[string]string{}
	}
	out["bandwidth"] = strconv.FormatInt(l.bandwidth, 10)
	return out
}

func (l *leader) run(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := l.followChanges(ctx); err != nil {
			return err
		}
		next, err := l.expire(ctx)
		if err != nil {
			return err
		}
		if err := l.deepen(ctx); err != nil {
			return err
		}
		for _, step := range []func(context.Context) (time.Time, error){l.forecast, l.watchDeadlines} {
			at, err := step(ctx)
			if err != nil {
				return err
			}
			if !at.IsZero() && (next.IsZero() || at.Before(next)) {
				next = at
			}
		}
		if at := l.hear(); !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
		if due := l.decideDue(); due <= 0 {
			if err := l.decide(ctx); err != nil {
				return err
			}
			continue // the decision is a change to follow
		} else if at := l.c.now().Add(due); due < time.Hour && (next.IsZero() || at.Before(next)) {
			next = at
		}
		wait := time.Minute
		if !next.IsZero() {
			wait = max(0, min(wait, next.Sub(l.c.now())))
		}
		timer.Reset(wait)
		select {
		case <-l.c.replica.Applied():
		case <-l.c.hosts.news:
			l.newHosts()
		case <-timer.C:
		case lead := <-l.c.replica.Leadership():
			if !lead {
				return fault.New(fault.Unavailable, "another coordinator leads now")
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// followChanges is step 1.
func (l *leader) followChanges(ctx context.Context) error {
	var err error
	drift, any := error(nil), false
	l.c.replica.TakeChanges(func(f *facts.Facts, changes []facts.Change) {
		any = len(changes) > 0
		if len(changes) > 0 && changes[0].Kind == facts.ChangeReset {
			err = l.rebuild(ctx, f)
			return
		}
		if drift = l.proj.follow(f, changes); drift != nil {
			err = l.proj.rebuild(f)
		}
		for i := range changes {
			l.effect(ctx, f, &changes[i])
		}
		l.touchReduces(f)
		l.learnt = l.c.forecasts.learn(f) || l.learnt
	})
	if drift != nil {
		l.c.metrics.drifts.Inc()
		l.c.log.Error("the scheduler's state was built anew", "err", drift)
		l.again = true
	}
	if any {
		l.c.changed()
	}
	return err
}

// effect carries a change to what is not State.
func (l *leader) effect(ctx context.Context, f *facts.Facts, c *facts.Change) {
	switch c.Kind {
	case facts.ChangeNode:
		l.c.wanted.node(f.Node(c.Node))
		l.noteHeld(f.Node(c.Node))
	case facts.ChangeNodeLost:
		l.noteHeld(f.Node(c.Node))
		l.c.sessions.lost(c.Node)
		l.c.orders.lost(c.Node)
		l.c.hosts.refresh(f, l.c.now())
	case facts.ChangeJob:
		if j := f.Job(c.Key.Job); j != nil {
			l.follow(ctx, f, j)
			l.followDeadline(j)
		}
	case facts.ChangePlaced, facts.ChangeLevel, facts.ChangeStopping, facts.ChangeEnded, facts.ChangeOutput:
		l.attempt(f, c)
	case facts.ChangeForgotten:
		for _, n := range c.Nodes {
			l.c.wanted.forget(n, c.Key.Job)
		}
		l.c.hosts.drop(c.Key.Job)
		delete(l.over, c.Key.Job)
	case facts.ChangeBlobGone:
		if f.Blob(c.Digest) == nil { // it may have been uploaded again since
			l.c.removeBlob(c.Digest)
		}
	case facts.ChangeScheduler:
		if err := l.setPolicy(f); err != nil {
			l.c.log.Error("the scheduler stays as it is", "err", err)
		}
	}
}

func (l *leader) attempt(f *facts.Facts, c *facts.Change) {
	a := f.Attempt(c.Key)
	if a == nil {
		return
	}
	l.c.wanted.touch(a.Node, a.Epoch, c.Key, a.Run)
	if c.Kind == facts.ChangeLevel {
		l.pressed[a.Node] = true
	}
	l.noteBarred(c.Key, a)
	for _, id := range c.Nodes { // where it was, or where its image is
		if n := f.Node(id); n != nil && n.Up {
			l.c.wanted.touch(id, n.Epoch, c.Key, c.Run)
		}
	}
	if c.Kind == facts.ChangeEnded || c.Kind == facts.ChangeOutput {
		l.c.sessions.drop(a.Node, c.Key)
		if j := f.Job(c.Key.Job); int(c.Key.Stage) == j.MapStage() {
			l.dirtyMaps[j.ID] = true
			if a.State == facts.AttemptFailed && a.Cause() == droverv1.Cause_CAUSE_INPUT {
				l.c.hosts.doubt(j.ID, l.c.now())
			}
		}
	}
}

// touchReduces tells the live reduce attempts of jobs whose map outputs
// changed.
func (l *leader) touchReduces(f *facts.Facts) {
	for id := range l.dirtyMaps {
		j := f.Job(id)
		if j == nil || j.ReduceStage() < 0 || j.Stages[j.ReduceStage()].Live == 0 {
			continue
		}
		f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) {
			if int(k.Stage) == j.ReduceStage() && a.State == facts.AttemptLive {
				l.c.wanted.touch(a.Node, a.Epoch, k, a.Run)
			}
		})
	}
	clear(l.dirtyMaps)
}

// expire is step 2; it gives when the next lease ends.
func (l *leader) expire(ctx context.Context) (time.Time, error) {
	gone, next := l.c.sessions.expired(l.c.now(), l.c.cfg.Lease)
	for _, n := range gone {
		e := &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: n.id, Epoch: n.epoch, Why: nodeLostWhy}}}
		if _, err := l.c.replica.Propose(ctx, e); err != nil {
			return next, err
		}
		l.c.sessions.lost(n.id)
	}
	if len(gone) > 0 {
		next = l.c.now()
	}
	for _, try := range []func(context.Context) (time.Time, error){l.tryHeld, l.tryBarred} {
		at, err := try(ctx)
		if err != nil {
			return next, err
		}
		if next.IsZero() || !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	if at := l.dropLogs(); next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}
	return next, nil
}

// hear is step 4; it gives when it is due again, zero while nothing lives.
func (l *leader) hear() time.Time {
	now, s := l.c.now(), l.proj.state
	if s.Live() == 0 {
		return time.Time{}
	}
	if due := l.lastHeard.Add(hearPause); now.Before(due) {
		return due
	}
	l.lastHeard = now
	if err := l.proj.hear(l.c.sessions.running(), scheduler.Time(now.UnixNano())); err != nil {
		l.c.log.Error("what nodes said of attempts", "err", err)
	}
	return now.Add(hearPause)
}

// logsGo is when the nodes may remove the logs of an ended job.
type logsGo struct {
	at  time.Time
	job uint64
}

// keepLogs notes that a job ended.
func (l *leader) keepLogs(j *facts.Job) {
	l.logsGo = append(l.logsGo, logsGo{time.Unix(0, j.Ended).Add(l.c.cfg.KeepLogs), j.ID})
}

// dropLogs has the nodes look again at what they keep of jobs whose time has
// come, and gives when the next one's comes.
func (l *leader) dropLogs() (next time.Time) {
	now, keep := l.c.now(), l.logsGo[:0]
	for _, x := range l.logsGo {
		if x.at.After(now) {
			keep = append(keep, x)
			if next.IsZero() || x.at.Before(next) {
				next = x.at
			}
			continue
		}
		l.c.view(func(f *facts.Facts) {
			if j := f.Job(x.job); j != nil {
				f.EachAttempt(j, func(k facts.Key, _ *facts.Task, a *facts.Attempt) { l.c.wanted.touch(a.Node, a.Epoch, k, a.Run) })
			}
		})
	}
	l.logsGo = keep
	return next
}

// decideDue says how long until a cycle may and should run; an hour or more
// means that there is no reason for one.
func (l *leader) decideDue() time.Duration {
	now := l.c.now()
	due := 24 * time.Hour
	if l.wakeAt > 0 {
		due = max(0, l.wakeAt.Sub(scheduler.Time(now.UnixNano())))
	}
	if l.again || l.proj.state.Stamp() != l.stamp {
		due = 0
	}
	if due < time.Hour {
		due = max(due, l.c.cfg.CycleInterval-now.Sub(l.lastCycle))
	}
	return due
}

// decide is step 6.
func (l *leader) decide(ctx context.Context) error {
	now := l.c.now()
	l.lastCycle, l.again, l.wakeAt = now, false, 0
	var dropped []facts.Drop
	var wake scheduler.Time
	commit := func(d scheduler.Decision) (scheduler.Decision, error) {
		wake = d.Wake
		out, drops, err := l.commit(ctx, d)
		dropped = drops
		return out, err
	}
	d, err := scheduler.Cycle(l.proj.state, l.policy, scheduler.Time(now.UnixNano()), maxActions, commit)
	l.c.metrics.cycle(l.c.now().Sub(now), len(d.Actions), len(dropped))
	l.wakeAt = max(d.Wake, wake)
	l.c.setWaiting(d.Waiting)
	l.stamp = l.proj.state.Stamp()
	dropped = slices.DeleteFunc(dropped, func(x facts.Drop) bool { return x.Reason == facts.OnTrial }) // State knows no more than it did
	if len(d.Actions) > 0 {
		l.again = true // what it placed may leave room for more
	}
	switch {
	case err == nil && len(dropped) == 0:
		return nil
	case err == nil, errors.Is(err, scheduler.ErrInvalid), errors.Is(err, scheduler.ErrNoRoom), errors.Is(err, scheduler.ErrStale), errors.Is(err, scheduler.ErrUnknown):
		return l.drifted(ctx, err, dropped)
	default:
		return err
	}
}

// drifted builds the State anew after a decision that the log dropped in part
// or that did not fit, at most every driftPause.
func (l *leader) drifted(ctx context.Context, err error, dropped []facts.Drop) error {
	for _, x := range dropped {
		l.c.log.Info("dropped from a decision", "action", x.At, "why", x.Reason)
	}
	if err != nil {
		l.c.metrics.drifts.Inc()
		l.c.log.Error("a cycle failed", "err", err)
	}
	if wait := driftPause - l.c.now().Sub(l.lastDrift); wait > 0 && !l.lastDrift.IsZero() {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
	l.lastDrift = l.c.now()
	var bad error
	l.c.replica.TakeChanges(func(f *facts.Facts, changes []facts.Change) {
		for i := range changes {
			l.effect(ctx, f, &changes[i])
		}
		l.touchReduces(f)
		bad = l.proj.rebuild(f)
	})
	l.again = true
	l.c.changed()
	return bad
}

// commit makes a decision durable, in entries of bounded size, and gives back
// what of it holds.
func (l *leader) commit(ctx context.Context, d scheduler.Decision) (scheduler.Decision, []facts.Drop, error) {
	df := decisionFact(&d, l.locality)
	var dropped []facts.Drop
	for at := 0; at < len(df.Actions) || at == 0; {
		part := &droverv1.DecisionFact{Base: df.Base}
		if at == 0 {
			part.Notes = df.Notes
		}
		from, size := at, 0
		for at < len(df.Actions) && size < maxEntryPart {
			size += 128 // an action is smaller than that
			part.Actions = append(part.Actions, df.Actions[at])
			at++
		}
		res, err := l.c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_Decision{Decision: part}})
		if err != nil {
			return scheduler.Decision{}, nil, fmt.Errorf("commit a decision: %w", err)
		}
		for _, x := range res.Dropped {
			dropped = append(dropped, facts.Drop{At: from + x.At, Reason: x.Reason})
		}
		if at == 0 {
			break // notes alone
		}
	}
	return accepted(d, dropped), dropped, nil
}

// locality tells how near to its data a placement is. Data on machines that
// are no nodes of ours is told by the racks that the file system named.
func (l *leader) locality(a *scheduler.Action) string {
	near := locality(l.proj.state, a)
	if near == "node" || near == "rack" || l.proj.state.Stage(a.Task.StageID()).Spec.Kind != scheduler.KindMap {
		return near
	}
	hosts, racks := l.c.hosts.split(uint64(a.Task.Job), a.Task.Index)
	switch n := l.proj.state.Node(a.Node); {
	case n.Spec.Path != "" && contains(racks, n.Spec.Path):
		return "rack"
	case len(hosts) > 0:
		return "remote"
	default:
		return near
	}
}

// newHosts brings in block locations that arrived.
func (l *leader) newHosts() {
	jobs := l.c.hosts.takeNews()
	l.c.replica.Read(func(f *facts.Facts) {
		for _, id := range jobs {
			if err := l.proj.setHosts(f, id); err != nil {
				l.c.log.Error("block locations", "job", id, "err", err)
			}
		}
	})
}

// intent is something to be carried out for a job.
type intent struct {
	job  uint64
	kind intentKind
}

type intentKind int

const (
	intentCommit intentKind = iota + 1
	intentClean
)

// once carries an intent out beside the loop, each one once at a time.
func (l *leader) once(i intent, fn func()) {
	l.busyMu.Lock()
	defer l.busyMu.Unlock()
	if l.busy[i] {
		return
	}
	l.busy[i] = true
	l.wg.Go(func() {
		defer func() {
			l.busyMu.Lock()
			defer l.busyMu.Unlock()
			delete(l.busy, i)
		}()
		fn()
	})
}

package policies

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// speculateParam is a parameter of every policy.
var speculateParam = Param{Name: "speculate", Kind: Float, Default: "0", Min: 0, Max: 1e6,
	Help: "start a second attempt of a task once it has run this many times as long as its stage's done tasks on average; 0 for never"}

// Bounds of speculation: 1/minDoneDivisor of a stage must be done before its tasks are compared, and at most
// 1/maxSpeculativeDivisor of the running attempts (at least one) are second attempts, not to crowd out first attempts.
const (
	minDoneDivisor        = 2
	maxSpeculativeDivisor = 10
)

// speculativePolicy adds second attempts to the decisions of another policy. After that policy has
// placed all it could, each task that lags behind its stage gets a second attempt on a node with
// free capacity and no reservations, if it leaves the policy's guarantees enough of the caps. The
// policy then decides again, since its reasons may have changed, until neither adds anything. The
// first attempt to succeed wins; the State ends the other. Nothing is remembered: run times are in
// the State.
type speculativePolicy struct {
	scheduler.Policy
	factor float64

	seenStamp      scheduler.Stamp
	idleAtStamp    bool // the decision at seenStamp was empty
	lastDecision   scheduler.Decision
	actions        []scheduler.Action
	states         []scheduler.PolicyState
	waitingReasons []scheduler.Waiting
}

const maxSpeculationRounds = 16 // bounds how often the policy decides in one cycle; the next cycle continues

// SetReasonsWanted passes the setting on to a policy that implements it.
func (p *speculativePolicy) SetReasonsWanted(wanted bool) {
	if r, ok := p.Policy.(scheduler.Reasoner); ok {
		r.SetReasonsWanted(wanted)
	}
	p.idleAtStamp = false
}

// DeadlineService returns the policy's service.
func (p *speculativePolicy) DeadlineService() scheduler.DeadlineService {
	return scheduler.DeadlineServiceOf(p.Policy)
}

// RefusedByCap returns the policy's answer.
func (p *speculativePolicy) RefusedByCap(s *scheduler.State, g *scheduler.Stage, node scheduler.NodeID, second bool, now scheduler.Time) (scheduler.CapRefusal, bool) {
	return scheduler.RefusedByCap(p.Policy, s, g, node, second, now)
}

// Decide costs O(1) if nothing changed at the same time, else what the policy costs plus O(live
// attempts), repeated if second attempts were added. Only the policy knows what time alone changes for it.
func (p *speculativePolicy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	if p.idleAtStamp && p.seenStamp == s.Stamp() && now == p.lastDecision.At && limit > 0 {
		return p.lastDecision
	}
	p.seenStamp = s.Stamp()
	p.actions, p.states = p.actions[:0], p.states[:0]
	mark := s.Journal().Mark()
	var d scheduler.Decision
	for n := range maxSpeculationRounds {
		d = p.Policy.Decide(s, now, limit-len(p.actions))
		p.apply(s, &d, now)
		if len(p.actions) == limit || n == maxSpeculationRounds-1 || !p.addSecondAttempts(s, &d, now, limit) {
			break
		}
		if len(p.actions) == limit { // stages still wait for lack of actions
			p.waitingReasons = p.waitingReasons[:0]
			for _, w := range d.Waiting {
				p.waitingReasons = append(p.waitingReasons, scheduler.Waiting{Stage: w.Stage, Tasks: w.Tasks, Reason: scheduler.ReasonCycleFull})
			}
			d.Waiting = p.waitingReasons
			break
		}
	}
	s.Journal().Rollback(mark)
	d.Actions, d.PolicyStates = p.actions, p.states
	p.idleAtStamp, p.lastDecision = d.Empty() && limit > 0, d
	return d
}

func (p *speculativePolicy) apply(s *scheduler.State, d *scheduler.Decision, now scheduler.Time) {
	for i := range d.Actions {
		if err := s.Apply(&d.Actions[i], now); err != nil {
			panic("policies: State refused an action of " + p.Name() + ": " + err.Error())
		}
	}
	if err := s.PolicyStates().Apply(d.PolicyStates); err != nil {
		panic("policies: State refused a policy state of " + p.Name() + ": " + err.Error())
	}
	p.actions, p.states = append(p.actions, d.Actions...), append(p.states, d.PolicyStates...)
}

// addSecondAttempts reports whether it added any. It moves d.Wake forward to when the next one may be due.
func (p *speculativePolicy) addSecondAttempts(s *scheduler.State, d *scheduler.Decision, now scheduler.Time, limit int) bool {
	before := len(p.actions)
	seconds := secondAttempts(s)
	left := 1 + (s.Attempts().Live()-seconds)/maxSpeculativeDivisor - seconds
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive || j.Live == 0 {
			continue
		}
		for _, g := range j.Stages {
			late, wake := p.lagging(s, g, now)
			for _, a := range late {
				if left <= 0 || len(p.actions) >= limit {
					break
				}
				act, retryAt := p.placeSecondAttempt(s, g, a, now)
				if act.Kind == scheduler.ActPlace && s.Apply(&act, now) == nil {
					p.actions = append(p.actions, act)
					left--
				}
				wake = min(wake, retryAt)
			}
			if wake > now {
				d.WakeAt(wake)
			}
		}
	}
	return len(p.actions) > before
}

func secondAttempts(s *scheduler.State) int {
	n := 0
	for _, node := range s.Nodes() {
		for a := range s.Attempts().On(node.Spec.ID) {
			if a.Speculative {
				n++
			}
		}
	}
	return n
}

// lagging returns the attempts of a stage that have run factor times as long as its done tasks on average, and when
// the next attempt will have, Never for none. A stage that was closed again because its input was lost has none.
func (p *speculativePolicy) lagging(s *scheduler.State, g *scheduler.Stage, now scheduler.Time) (late []*scheduler.Attempt, wake scheduler.Time) {
	if !g.Open || g.Spec.Exclusive || g.Running == 0 || g.Done == 0 || g.Done*minDoneDivisor < g.Spec.Tasks {
		return nil, scheduler.Never
	}
	wake = scheduler.Never
	spent := g.TaskTime(now)
	for a := range s.Attempts().In(g) {
		spent -= a.RanFor(now)
	}
	limit := time.Duration(p.factor * float64(spent) / float64(g.Done))
	for a := range s.Attempts().In(g) {
		if _, second := s.Attempts().Slots(a.ID.TaskID); a.Phase != scheduler.AttemptRunning || a.Speculative || second >= 0 {
			continue
		}
		ran := a.RanFor(now)
		if ran >= limit {
			late = append(late, a)
		} else {
			wake = min(wake, now.Add(limit-ran))
		}
	}
	return late, wake
}

// placeSecondAttempt returns the placement of a second attempt on another node with free capacity
// and no reservations. If there is none, its kind is 0, and retryAt is when one may leave
// guarantees enough of the caps if nothing happens, Never if it lacks more than that.
func (p *speculativePolicy) placeSecondAttempt(s *scheduler.State, g *scheduler.Stage, a *scheduler.Attempt, now scheduler.Time) (act scheduler.Action, retryAt scheduler.Time) {
	retryAt = scheduler.Never
	if g.IsDone(a.ID.Index) || (g.Spec.MaxParallel > 0 && g.Running+g.Suspended >= g.Spec.MaxParallel) || !s.TenantTree().Allows(g) {
		return act, retryAt
	}
	for n := s.Cluster().NextNode(g, 0); n != scheduler.NoNode; n = s.Cluster().NextNode(g, n+1) {
		if n == a.Node || len(s.Reservations().On(n)) > 0 {
			continue
		}
		if r, refused := p.RefusedByCap(s, g, n, true, now); refused {
			if retryAt = min(retryAt, r.Until); !r.Awaited.IsZero() {
				break // on all nodes
			}
			continue
		}
		disk, _ := s.Node(n).Fits(g.Spec.Demand, g.Spec.Disk)
		act = s.Attempts().PlaceAction(g, a.ID.Index, n, disk)
		act.Attempt, act.Speculative = s.Attempts().NextAttempt(g, a.ID.Index), true
		return act, scheduler.Never
	}
	return scheduler.Action{}, retryAt
}

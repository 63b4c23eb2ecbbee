package policies

import (
	"time"

	"github.com/drover-run/drover/scheduler"
)

// speculateParam is a parameter of every policy.
var speculateParam = Param{Name: "speculate", Kind: Float, Default: "0", Min: 0, Max: 1e6,
	Help: "start a second attempt of a task that has run this many times as long as its stage's tasks that are done take on average; 0 for never"}

// Bounds of speculation: at least half of a stage must be done before its tasks
// are compared, and second attempts are at most a tenth of what runs (one at
// least), so that they cannot crowd out work that has none.
const (
	speculateDone = 2
	speculatePart = 10
)

// speculating adds second attempts to what another policy decides: once it has
// placed all it could, on nodes where there still is room and nothing is
// reserved, one for each task that lags behind its stage. Then the policy is
// asked again, for they may have taken what a reason of its was about, and so on
// until neither adds anything: the next cycle finds nothing left to do. The first
// of the two to succeed wins, State sees to the other. It remembers nothing: how
// long tasks take is in State's counts.
type speculating struct {
	scheduler.Policy
	factor float64

	seen    scheduler.Stamp
	known   bool // the decision at seen was empty
	last    scheduler.Decision
	actions []scheduler.Action
	notes   []scheduler.Note
	waiting []scheduler.Waiting
}

// maxRounds bounds how often the policy is asked in one cycle; past it what is
// left is for the next one.
const maxRounds = 16

// Reasons says whether Decision.Waiting is wanted, to a policy that asks.
func (p *speculating) Reasons(wanted bool) {
	if r, ok := p.Policy.(scheduler.Reasoner); ok {
		r.Reasons(wanted)
	}
	p.known = false
}

// Decide costs O(1) when nothing changed, else what the policy costs and
// O(live attempts), once more where second attempts were added.
func (p *speculating) Decide(s *scheduler.State, now scheduler.Time, max int) scheduler.Decision {
	if p.known && p.seen == s.Stamp() && (p.last.Wake == 0 || now < p.last.Wake) && max > 0 {
		d := p.last
		d.At = now
		return d
	}
	p.seen = s.Stamp()
	p.actions, p.notes = p.actions[:0], p.notes[:0]
	mark := s.Mark()
	var d scheduler.Decision
	for n := range maxRounds {
		d = p.Policy.Decide(s, now, max-len(p.actions))
		p.take(s, &d, now)
		if len(p.actions) == max || n == maxRounds-1 || !p.second(s, &d, now, max) {
			break
		}
		if len(p.actions) == max { // what waits does so for its turn, whatever it was before
			p.waiting = p.waiting[:0]
			for _, w := range d.Waiting {
				p.waiting = append(p.waiting, scheduler.Waiting{Stage: w.Stage, Tasks: w.Tasks, Reason: scheduler.ReasonTurn})
			}
			d.Waiting = p.waiting
			break
		}
	}
	s.Rollback(mark)
	d.Actions, d.Notes = p.actions, p.notes
	p.known, p.last = d.Empty() && max > 0, d
	return d
}

// take carries out what the policy decided, in the try.
func (p *speculating) take(s *scheduler.State, d *scheduler.Decision, now scheduler.Time) {
	for i := range d.Actions {
		if err := s.Apply(&d.Actions[i], now); err != nil {
			panic("policies: an action of " + p.Name() + " is refused: " + err.Error())
		}
	}
	if err := s.ApplyNotes(d.Notes); err != nil {
		panic("policies: a note of " + p.Name() + " is refused: " + err.Error())
	}
	p.actions, p.notes = append(p.actions, d.Actions...), append(p.notes, d.Notes...)
}

// second adds second attempts, and tells whether it did; d.Wake is brought
// forward to when the next one may be due.
func (p *speculating) second(s *scheduler.State, d *scheduler.Decision, now scheduler.Time, max int) bool {
	before := len(p.actions)
	seconds := secondAttempts(s)
	left := 1 + (s.Live()-seconds)/speculatePart - seconds
	for j := range s.Jobs() {
		if j.Phase != scheduler.JobActive || j.Live == 0 {
			continue
		}
		for _, g := range j.Stages {
			wake := p.lagging(s, g, now, func(a *scheduler.Attempt) bool {
				if left <= 0 || len(p.actions) >= max {
					return false
				}
				if act, ok := place2(s, g, a); ok && s.Apply(&act, now) == nil {
					p.actions = append(p.actions, act)
					left--
				}
				return true
			})
			if wake > now && (d.Wake == 0 || wake < d.Wake) {
				d.Wake = wake
			}
		}
	}
	return len(p.actions) > before
}

// secondAttempts counts the second attempts that live.
func secondAttempts(s *scheduler.State) int {
	n := 0
	for _, node := range s.Nodes() {
		for a := range s.AttemptsOn(node.Spec.ID) {
			if a.Speculative {
				n++
			}
		}
	}
	return n
}

// lagging yields the attempts of a stage that have run factor times as long as
// its done tasks took on average, until yield says stop, and says when the next
// one will have, 0 for none. A stage that is closed again, as output that it reads
// was lost, starts nothing.
func (p *speculating) lagging(s *scheduler.State, g *scheduler.Stage, now scheduler.Time, yield func(*scheduler.Attempt) bool) (wake scheduler.Time) {
	if !g.Open || g.Spec.Exclusive || g.Running == 0 || g.Done == 0 || g.Done*speculateDone < g.Spec.Tasks {
		return 0
	}
	spent := g.TaskTime(now)
	for a := range s.AttemptsIn(g) {
		spent -= a.RanFor(now)
	}
	limit := time.Duration(p.factor * float64(spent) / float64(g.Done))
	var late []*scheduler.Attempt
	for a := range s.AttemptsIn(g) {
		if a.Phase != scheduler.AttemptRunning || a.Speculative || paired(s, g, a) {
			continue
		}
		ran := a.RanFor(now)
		if ran >= limit {
			late = append(late, a)
		} else if at := now.Add(limit - ran); wake == 0 || at < wake {
			wake = at
		}
	}
	for _, a := range late {
		if !yield(a) {
			break
		}
	}
	return wake
}

// paired tells whether the task has two attempts already.
func paired(s *scheduler.State, g *scheduler.Stage, a *scheduler.Attempt) bool {
	n := 0
	for range s.AttemptsOf(g, a.ID.Index) {
		n++
	}
	return n > 1
}

// place2 finds a node other than the attempt's own, with room that nobody
// reserved, for a second attempt.
func place2(s *scheduler.State, g *scheduler.Stage, a *scheduler.Attempt) (scheduler.Action, bool) {
	if g.IsDone(a.ID.Index) || (g.Spec.MaxParallel > 0 && g.Running+g.Suspended >= g.Spec.MaxParallel) || len(s.ReservationsOn(scheduler.NoNode)) > 0 {
		return scheduler.Action{}, false
	}
	if _, _, _, ok := s.UnderCaps(g); !ok {
		return scheduler.Action{}, false
	}
	for n := s.NextNode(g, 0); n != scheduler.NoNode; n = s.NextNode(g, n+1) {
		if n == a.Node || len(s.ReservationsOn(n)) > 0 {
			continue
		}
		disk, _ := s.Node(n).Fits(g.Spec.Demand, g.Spec.Disk)
		act := s.Place(g, a.ID.Index, n, disk)
		act.Attempt, act.Speculative = s.NextAttempt(g, a.ID.Index), true
		return act, true
	}
	return scheduler.Action{}, false
}

package scheduler

import "fmt"

// Policy is a scheduling policy. Decide reads no clock and no global random source, starts no goroutine
// and does no I/O. It may try actions on the State (Journal.Mark) but must leave it unchanged, byte for
// byte. A policy remembers facts between cycles only in Decision.PolicyStates; its other memory is a
// cache, and a new instance must decide the same. Decide returns at most limit actions.
type Policy interface {
	Name() string
	Decide(s *State, now Time, limit int) Decision
}

// Reasoner is a policy that can leave out the reasons, which cost more for each waiting stage than
// the decision itself. Actions and policy states are the same either way, and so is Wake, unless
// some reasons are left to the next decision (Decision.WaitingMore), which it then requests.
type Reasoner interface {
	// SetReasonsWanted sets whether Decide fills in Decision.Waiting. The default is true.
	SetReasonsWanted(wanted bool)
}

// DeadlineService is what a policy does for jobs with a deadline, with its present parameters.
type DeadlineService struct {
	First      bool // serves them before others
	Preempts   bool // suspends other tasks for them
	Guarantees bool // guarantees the deadlines of those with a runtime bound
}

// deadlineServer is a policy that does something for jobs with a deadline.
type deadlineServer interface {
	DeadlineService() DeadlineService
}

// DeadlineServiceOf returns what a policy does for jobs with a deadline.
func DeadlineServiceOf(p Policy) (d DeadlineService) {
	if s, ok := p.(deadlineServer); ok {
		d = s.DeadlineService()
	}
	return d
}

// CapRefusal is why a task that a policy does not place itself may not start below a cap now.
type CapRefusal struct {
	// Awaited is the need of a guarantee's due task that waits below the cap; zero if a future
	// guarantee needs the rest.
	Awaited Resources
	// Until is the earliest time at which the task may start if nothing else happens.
	Until Time
}

// capKeeper is a policy whose guarantees rely on free capacity below caps.
type capKeeper interface {
	RefusedByCap(s *State, g *Stage, node NodeID, second bool, now Time) (CapRefusal, bool)
}

// RefusedByCap reports whether, and why, the guarantees of a policy forbid a placement from outside the policy: on
// a node, the next task of a stage or a second attempt at a running one. It would leave them too little of a cap.
func RefusedByCap(p Policy, s *State, g *Stage, node NodeID, second bool, now Time) (CapRefusal, bool) {
	if k, ok := p.(capKeeper); ok {
		return k.RefusedByCap(s, g, node, second, now)
	}
	return CapRefusal{}, false
}

// Commit makes a decision durable and returns the accepted part of it: the coordinator's log drops stale
// actions. The simulator returns the decision unchanged. The decision's slices belong to the policy.
type Commit func(Decision) (Decision, error)

// AcceptAll is the Commit that accepts every decision unchanged.
func AcceptAll(d Decision) (Decision, error) { return d, nil }

// Cycle runs one round of scheduling, the same live and simulated:
//
//  1. Decide: the policy makes a decision.
//  2. Amend it, whatever the policy: tasks that it puts back on a node where they failed change
//     places with others of their stage (moveRetriesElsewhere), and running reduces that wait for
//     lost map outputs get the maps placed (unblockStalledReduces). If the decision is empty then,
//     the cycle ends here.
//  3. Check: an independent validation rejects a decision that breaks a rule.
//  4. commit: the decision, or part of it, becomes durable.
//  5. Apply: the accepted actions change the State, then the accepted policy states.
//
// It returns what was accepted. A decision that Check rejects changes nothing and returns an
// error of class ErrInvalid: it is a defect of the policy, which the owner reports before it
// continues with the next cycle. An error of commit is returned unchanged.
func Cycle(s *State, p Policy, now Time, limit int, commit Commit) (Decision, error) {
	s.SetTime(now)
	d := p.Decide(s, now, limit)
	moveRetriesElsewhere(s, &d)
	unblockStalledReduces(s, p, &d, now, limit)
	if d.Empty() {
		return d, nil
	}
	if v := Check(s, &d, now); len(v) > 0 {
		return Decision{}, &Error{Class: ErrInvalid, what: "policy " + p.Name(),
			text: fmt.Sprintf("its decision breaks %d rules, the first: %v", len(v), v[0])}
	}
	d, err := commit(d)
	if err != nil {
		return Decision{}, err
	}
	for i := range d.Actions {
		if err := s.Apply(&d.Actions[i], now); err != nil {
			return d, fmt.Errorf("apply %v: %w", &d.Actions[i], err)
		}
	}
	if err := s.PolicyStates().Apply(d.PolicyStates); err != nil {
		return d, fmt.Errorf("apply policy states: %w", err)
	}
	return d, nil
}

package scheduler

import "fmt"

// Policy decides. Decide reads no clock, no global random source, starts no
// goroutine and does no I/O; it may try things on the State and must leave it
// as it found it, byte for byte. What a policy must remember between cycles it
// says in Notes; whatever else it keeps is a cache, and a new instance of the
// policy decides the same. It gives at most max actions.
type Policy interface {
	Name() string
	Decide(s *State, now Time, max int) Decision
}

// Reasoner is a policy that need not give reasons where nobody reads them: for
// each stage that waits they cost more than deciding does. Actions, notes and
// Wake are the same either way.
type Reasoner interface {
	Policy
	// Reasons says whether Decision.Waiting is wanted, as it is at first.
	Reasons(wanted bool)
}

// Commit makes a decision durable and gives back what was accepted of it, which
// may be less: the coordinator's log drops what became stale. The simulator
// gives it back as it is. The decision's slices belong to the policy.
type Commit func(Decision) (Decision, error)

// Identity is the Commit of a world where every decision is accepted.
func Identity(d Decision) (Decision, error) { return d, nil }

// Cycle is one round of scheduling, the same live and simulated:
//
//  1. Decide: the policy says what it wants.
//  2. Check: an independent judge refuses a decision that breaks a rule.
//  3. commit: the decision becomes durable, maybe less of it.
//  4. apply: what was accepted is brought into the State.
//
// It returns what was accepted. A decision that Check refuses changes nothing
// and is an error of class ErrInvalid (wrong code of ours): the owner shows it
// and goes on with the next cycle. An error of commit is returned as it is.
func Cycle(s *State, p Policy, now Time, max int, commit Commit) (Decision, error) {
	if err := s.atRest("run a cycle"); err != nil {
		return Decision{}, err
	}
	d := p.Decide(s, now, max)
	if d.Empty() {
		return d, nil
	}
	if v := Check(s, &d, now); len(v) > 0 {
		return Decision{}, &Error{Class: ErrInvalid, What: "policy " + p.Name(),
			Text: fmt.Sprintf("its decision breaks %d rules, the first: %v", len(v), v[0])}
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
	if err := s.ApplyNotes(d.Notes); err != nil {
		return d, fmt.Errorf("apply notes: %w", err)
	}
	return d, nil
}

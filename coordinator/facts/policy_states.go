package facts

import (
	"iter"
	"maps"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// owned has the keys of what goes with its owner, a job or a project, by the owner's number.
// Without it each end of a job would look at what all others have.
type owned[K comparable] map[uint64]map[K]struct{}

// add adds a key; owner 0 is none.
func (o owned[K]) add(owner uint64, k K) {
	if owner == 0 {
		return
	}
	if o[owner] == nil {
		o[owner] = map[K]struct{}{}
	}
	o[owner][k] = struct{}{}
}

func (o owned[K]) remove(owner uint64, k K) {
	if delete(o[owner], k); len(o[owner]) == 0 {
		delete(o, owner)
	}
}

// of yields the keys of an owner, in no order. They may be removed meanwhile.
func (o owned[K]) of(owner uint64) iter.Seq[K] { return maps.Keys(o[owner]) }

// policyStates is what policies asked to have stored.
type policyStates struct {
	all              map[PolicyStateKey]*PolicyState
	ofJob, ofProject owned[PolicyStateKey]
}

func newPolicyStates() policyStates {
	return policyStates{map[PolicyStateKey]*PolicyState{}, owned[PolicyStateKey]{}, owned[PolicyStateKey]{}}
}

func (p policyStates) put(s *PolicyState) {
	p.all[s.PolicyStateKey] = s
	p.ofJob.add(s.Job, s.PolicyStateKey)
	p.ofProject.add(s.Project, s.PolicyStateKey)
}

func (p policyStates) remove(k PolicyStateKey) {
	delete(p.all, k)
	p.ofJob.remove(k.Job, k)
	p.ofProject.remove(k.Project, k)
}

// reservations is what policies have reserved, by number.
type reservations struct {
	all              map[uint64]*droverv1.ReservationFact
	ofJob, ofProject owned[uint64]
}

func newReservations() reservations {
	return reservations{map[uint64]*droverv1.ReservationFact{}, owned[uint64]{}, owned[uint64]{}}
}

// put takes the place of a reservation of the same number, which may be another owner's.
func (r reservations) put(x *droverv1.ReservationFact) {
	r.remove(x.GetId())
	r.all[x.GetId()] = x
	r.ofJob.add(x.GetJob(), x.GetId())
	r.ofProject.add(x.GetProject(), x.GetId())
}

func (r reservations) remove(id uint64) {
	x := r.all[id]
	delete(r.all, id)
	r.ofJob.remove(x.GetJob(), id)
	r.ofProject.remove(x.GetProject(), id)
}

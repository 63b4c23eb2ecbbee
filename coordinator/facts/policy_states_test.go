package facts

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// What an owner has is what a look at everything finds, whatever was put, replaced and removed before.
func TestOwnersOfPolicyStatesAndReservations(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	states, reserved := newPolicyStates(), newReservations()
	for range 2000 {
		k := PolicyStateKey{Kind: int32(1 + r.IntN(2)), Job: uint64(r.IntN(4)), Project: uint64(r.IntN(3))}
		x := &droverv1.ReservationFact{Id: uint64(1 + r.IntN(5)), Job: uint64(r.IntN(4)), Project: uint64(r.IntN(3))}
		if r.IntN(2) == 0 {
			states.put(&PolicyState{PolicyStateKey: k})
			reserved.put(x)
		} else {
			states.remove(k)
			reserved.remove(x.Id)
		}
		for owner := range uint64(4) {
			var ofJob, ofProject, jobs, projects int
			for k := range states.all {
				ofJob += count(owner > 0 && k.Job == owner)
				ofProject += count(owner > 0 && k.Project == owner)
			}
			for _, x := range reserved.all {
				jobs += count(owner > 0 && x.Job == owner)
				projects += count(owner > 0 && x.Project == owner)
			}
			got := []int{len(slices.Collect(states.ofJob.of(owner))), len(slices.Collect(states.ofProject.of(owner))),
				len(slices.Collect(reserved.ofJob.of(owner))), len(slices.Collect(reserved.ofProject.of(owner)))}
			if want := []int{ofJob, ofProject, jobs, projects}; !slices.Equal(got, want) {
				t.Fatalf("seed %d: owner %d has %v, want %v", seed, owner, got, want)
			}
		}
	}
	for _, k := range slices.Collect(maps.Keys(states.all)) {
		states.remove(k)
	}
	if len(states.ofJob)+len(states.ofProject) > 0 {
		t.Errorf("seed %d: owners of nothing: %v, %v", seed, states.ofJob, states.ofProject)
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// The end of a job takes no longer where other jobs have policy states: of 10,000 jobs with twelve each, it had looked at all of
// them each time.
func TestEndsOfJobsLookAtTheirOwnPolicyStates(t *testing.T) {
	const jobs, states, limit = 10_000, 12, 8 * time.Second
	f := New()
	apply := func(e *droverv1.Entry) {
		t.Helper()
		e.Version, e.At = EntryVersion, int64(f.Index()+1)*1e6
		if r := f.Apply(f.Index()+1, e); r.Err != nil || len(r.Dropped) > 0 {
			t.Fatal(r)
		}
	}
	for id := uint64(1); id <= jobs; id++ {
		text, err := jobspec.Encode(&jobspec.Job{Version: 1, Name: fmt.Sprint("j", id), Tenant: DefaultTenant, Priority: jobspec.PriorityLow,
			Stages: []jobspec.Stage{{Name: "g", Kind: jobspec.KindGroup, Tasks: 1, Command: []string{"x"}, Attempts: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(text)}}})
		d := &droverv1.DecisionFact{}
		for task := range int32(states) {
			d.PolicyStates = append(d.PolicyStates, &droverv1.PolicyStateFact{Kind: 3, Job: id, Task: task})
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: d}})
	}
	if n := len(f.PolicyStates()); n != jobs*states {
		t.Fatalf("%d states", n)
	}
	began := time.Now()
	for id := uint64(1); id <= jobs; id++ {
		apply(&droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: id}}})
		if took := time.Since(began); took > limit {
			t.Fatalf("%d of %d ends took %s", id, jobs, took)
		}
	}
	t.Log(jobs, "ends took", time.Since(began))
	if n := len(f.PolicyStates()); n != 0 {
		t.Errorf("%d states are left", n)
	}
}

package coordinator

import (
	"context"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// lateDecision is what a decision that was made before its project ended stores after it.
func lateDecision(project uint64) *droverv1.Entry {
	return &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{
		PolicyStates: []*droverv1.PolicyStateFact{{Kind: int32(scheduler.GuaranteeState), Project: project, At: 5}},
		Actions: []*droverv1.ActionFact{{Kind: int32(scheduler.ActReserve), Reservation: &droverv1.ReservationFact{Id: 9, Kind: int32(scheduler.ReserveProject),
			Project: project, Node: 1, Demand: facts.Amounts{CPU: 1}.Proto(), Start: 1, End: 1 << 60}}},
	}}}
}

// projectJob is a job that waits, the only one of project p.
func projectJob(name string) *jobspec.Job {
	j := groupJob(name, 1)
	j.Tenant, j.Project = "default", "p"
	return j
}

// A leader can rebuild its State although a decision has stored the state of a project that has ended, and deletes it.
func TestStatesOfAGoneProjectAreDropped(t *testing.T) {
	l := newTestLeader(t, nil)
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
	s := &submitter{l.c}
	accept := func(name string) (job, project uint64) {
		t.Helper()
		res, err := s.propose(t.Context(), identity{}, projectJob(name), "", "", &located{}, jobForecast{})
		if err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
		l.c.view(func(f *facts.Facts) { project = f.Job(res.Job).Project })
		return res.Job, project
	}
	stop := func(job uint64) {
		mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: job}}})
	}
	ended, gone := accept("ended")
	stop(ended)
	_, lives := accept("lives")
	if gone == 0 || gone == lives {
		t.Fatalf("the projects are %d and %d, want two", gone, lives)
	}
	mustPropose(t, l, lateDecision(gone))
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{
		PolicyStates: []*droverv1.PolicyStateFact{{Kind: int32(scheduler.GuaranteeState), Project: lives, At: 6}}}}})
	if err := l.followChanges(t.Context()); err != nil {
		t.Fatal(err)
	}
	var err error
	l.c.view(func(f *facts.Facts) { err = l.proj.rebuild(f) })
	if err != nil {
		t.Fatalf("State cannot be rebuilt: %v", err)
	}
	if err := l.resync(t.Context(), nil, nil); err != nil {
		t.Fatal(err)
	}
	l.c.view(func(f *facts.Facts) {
		if all := statesOfPolicies(f); len(all) != 1 || all[0].Project != lives {
			t.Errorf("the policy states are %+v, want that of project %d alone", all, lives)
		}
		if all := f.Reservations(); len(all) != 0 {
			t.Errorf("reservations are left: %v", all)
		}
	})
}

// A scheduler that makes no reservations begins without those of the one that was configured before; its own states stay.
func TestReservationsOfAnotherSchedulerAreDropped(t *testing.T) {
	for name, want := range map[string]int{"fifo": 0, "two_tier": 1} {
		l := newTestLeader(t, func(c *Config) { c.Scheduler = name })
		mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
		job := projectJob("j")
		res, err := (&submitter{l.c}).propose(t.Context(), identity{}, job, "", "", &located{}, jobForecast{})
		if err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
		var project uint64
		l.c.view(func(f *facts.Facts) { project = f.Job(res.Job).Project })
		mustPropose(t, l, lateDecision(project))
		if err := newLeader(l.c, l.term).start(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.c.view(func(f *facts.Facts) {
			if n, states := len(f.Reservations()), len(statesOfPolicies(f)); n != want || states != 1 {
				t.Errorf("%s begins with %d reservations and %d policy states, want %d and 1", name, n, states, want)
			}
		})
	}
}

// One that comes into force at a start makes its states and reservations anew, whether or not it makes reservations: it may
// not be able to keep what another one has guaranteed. It begins with its own ones later.
func TestStatesOfAnotherSchedulerAreDroppedAtAStart(t *testing.T) {
	l := newTestLeader(t, func(c *Config) { c.Scheduler = "3dsf" })
	begin := func(scheduler string, want int) {
		t.Helper()
		l.c.schedulerDefault.Store(&SchedulerChoice{Name: scheduler})
		if err := newLeader(l.c, l.term).start(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.c.view(func(f *facts.Facts) {
			if n, states := len(f.Reservations()), len(statesOfPolicies(f)); n != want || states != want || madeBy(f) != makerState(scheduler).GetValue() {
				t.Errorf("%s begins with %d reservations and %d policy states, want %d each", scheduler, n, states, want)
			}
		})
	}
	begin("3dsf", 0)
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
	res, err := (&submitter{l.c}).propose(t.Context(), identity{}, projectJob("j"), "", "", &located{}, jobForecast{})
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	var project uint64
	l.c.view(func(f *facts.Facts) { project = f.Job(res.Job).Project })
	mustPropose(t, l, lateDecision(project))
	begin("3dsf", 1)
	begin("two_tier", 0)
	mustPropose(t, l, lateDecision(project))
	begin("two_tier", 1)
	begin("fifo", 0)
}

// statesOfPolicies returns the policy states but for the one that says which scheduler makes them.
func statesOfPolicies(f *facts.Facts) []*facts.PolicyState {
	return slices.DeleteFunc(slices.Clone(f.PolicyStates()), func(n *facts.PolicyState) bool { return n.Slot == makerSlot })
}

// latePolicy reserves capacity for a project while another scheduler is being chosen.
type latePolicy struct {
	decide func(*scheduler.State, scheduler.Time) scheduler.Decision
}

func (latePolicy) Name() string { return "late" }

func (p latePolicy) Decide(s *scheduler.State, now scheduler.Time, _ int) scheduler.Decision {
	return p.decide(s, now)
}

// What a scheduler decides while an operator chooses another comes before that choice, which deletes it.
func TestAChoiceOfSchedulerComesAfterADecision(t *testing.T) {
	l := newTestLeader(t, nil)
	job := projectJob("j")
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
	res, err := (&submitter{l.c}).propose(t.Context(), identity{}, job, "", "", &located{}, jobForecast{})
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	set := make(chan error, 1)
	l.policy = latePolicy{func(s *scheduler.State, now scheduler.Time) scheduler.Decision {
		go func() {
			_, err := newClientService(l.c).SetScheduler(context.WithValue(t.Context(), identityKey{}, identity{kind: kindLocal}),
				connect.NewRequest(&droverv1.SetSchedulerRequest{Name: "fifo"}))
			set <- err
		}()
		select {
		case err := <-set: // it did not wait for this decision
			set <- err
		case <-time.After(100 * time.Millisecond):
		}
		r := scheduler.Reservation{ID: 1, Kind: scheduler.ReserveProject, Project: s.Job(scheduler.JobID(res.Job)).Spec.Project,
			Demand: scheduler.Resources{1, 1, 1}, Start: now + 1e9, End: scheduler.Never}
		return scheduler.Decision{Base: s.Index(), Actions: []scheduler.Action{{Kind: scheduler.ActReserve, Reservation: r}}}
	}}
	if err := l.decide(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-set; err != nil {
		t.Fatal(err)
	}
	l.c.view(func(f *facts.Facts) {
		if left := f.Reservations(); len(left) != 0 {
			t.Errorf("under fifo, reservations of the scheduler before it are left: %v", left)
		}
	})
}

package facts

import (
	"fmt"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// guaranteeFixture has facts to which entries of some rules are applied.
type guaranteeFixture struct {
	*testing.T
	f     *Facts
	rules uint32
}

func (w *guaranteeFixture) apply(e *droverv1.Entry) Result {
	w.Helper()
	e.Version, e.At, e.StepRules = EntryVersion, 1e9, w.rules
	r := w.f.Apply(w.f.Index()+1, e)
	if r.Err != nil {
		w.Fatal(r.Err)
	}
	return r
}

// accept accepts a job of one task, in a project unless that is empty, with or without a deadline, and returns its ID.
func (w *guaranteeFixture) accept(name, project string, deadline *time.Time) uint64 {
	w.Helper()
	j := &jobspec.Job{Name: name, Tenant: DefaultTenant, Project: project, Deadline: deadline, Stages: []jobspec.Stage{{Name: "m", Kind: jobspec.KindGroup, Tasks: 1,
		Command: []string{"x"}, Resources: jobspec.Resources{CPU: 100, Memory: 1 << 20}}}}
	jobspec.SetDefaults(j)
	b, err := jobspec.Encode(j)
	if err != nil {
		w.Fatal(err)
	}
	return w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(b)}}}).Job
}

// decide applies a decision with policy states, and returns how many violations it records.
func (w *guaranteeFixture) decide(states ...*droverv1.PolicyStateFact) int {
	w.Helper()
	return w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{PolicyStates: states}}}).Violated
}

// The first violation of a guarantee, of a job and of a project, is an event with its cause, and is known until the
// job's end and after it. Entries of before are applied as they were.
func TestViolatedGuaranteesAreRecorded(t *testing.T) {
	for rules, recorded := range map[uint32]bool{lossRules: false, violationRules: true} {
		w := &guaranteeFixture{t, New(), rules}
		f, apply, decide, deadline := w.f, w.apply, w.decide, time.Unix(100, 0)
		accept := func(name, project string) uint64 { return w.accept(name, project, &deadline) }
		alone, inProject := accept("alone", ""), accept("first", "p")
		accept("second", "p")
		project := f.Job(inProject).Project
		check := func(what string, wantAlone, wantProject string) {
			t.Helper()
			if !recorded {
				wantAlone, wantProject = "", ""
			}
			if a, p := f.Deadlines().GuaranteeViolated(f.Job(alone)), f.Deadlines().GuaranteeViolated(f.Job(inProject)); a != wantAlone || p != wantProject {
				t.Errorf("rules %d, %s: violated %q and %q, want %q and %q", rules, what, a, p, wantAlone, wantProject)
			}
		}
		check("before", "", "")
		first := decide(&droverv1.PolicyStateFact{Kind: acceptedState, Job: alone, Value: 100e9, At: 50e9}, &droverv1.PolicyStateFact{Kind: violatedState, Job: alone, Slot: 2, At: 1e9},
			&droverv1.PolicyStateFact{Kind: guaranteeState, Project: project, At: 60e9}, &droverv1.PolicyStateFact{Kind: violatedState, Project: project, Slot: 1, At: 1e9})
		second := decide(&droverv1.PolicyStateFact{Kind: violatedState, Job: alone, Slot: 3, At: 1e9}, &droverv1.PolicyStateFact{Kind: violatedState, Project: project, Slot: 4, At: 1e9})
		if want := map[bool]int{true: 2}[recorded]; first != want || second != 0 {
			t.Errorf("rules %d: %d violations in the first decision, want %d, and %d in the second, want none", rules, first, want, second)
		}
		check("live", "a node was lost", "a job ran past its bound")
		got := ""
		for _, e := range f.EventLog().Since(0, 100) {
			if e.Kind == "job.guarantee_violated" || e.Kind == "project.guarantee_violated" {
				got += fmt.Sprintf("%s of %s: %s; ", e.Kind, e.Job, e.Text)
			}
		}
		if want := map[bool]string{true: "job.guarantee_violated of alone: a node was lost; project.guarantee_violated of first: p: a job ran past its bound; "}[recorded]; got != want {
			t.Errorf("rules %d: %s, want %s", rules, got, want)
		}
		for _, id := range []uint64{alone, inProject} {
			apply(&droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: id}}})
		}
		check("ended", "a node was lost", "a job ran past its bound")
		if recorded {
			apply(&droverv1.Entry{Body: &droverv1.Entry_Scheduler{Scheduler: &droverv1.SchedulerFact{Name: "edf"}}})
			if p := f.Deadlines().Project(project); p.GuaranteeViolated != "" {
				t.Errorf("another scheduler gave no guarantee, and %q violates it", p.GuaranteeViolated)
			}
		}
	}
	violates := &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{PolicyStates: []*droverv1.PolicyStateFact{{Kind: violatedState, Job: 1, Slot: 1}}}}}
	keeps := &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{PolicyStates: []*droverv1.PolicyStateFact{{Kind: acceptedState, Job: 1}}}}}
	if v, k := New().Clock().ApplyRules(violates, 0), New().Clock().ApplyRules(keeps, 0); v != violationRules || k != 0 {
		t.Errorf("a decision that records a violation has rules %d, another one %d", v, k)
	}
}

// The guarantee of a project, or its refusal, is an event of its first live job, once, and again with the next scheduler. Entries
// of before are applied as they were.
func TestGuaranteesOfProjectsAreEvents(t *testing.T) {
	for rules, told := range map[uint32]bool{levelStepRules: false, projectRules: true} {
		w := &guaranteeFixture{t, New(), rules}
		f, apply := w.f, w.apply
		project := func(name, project string) uint64 { return f.Job(w.accept(name, project, nil)).Project }
		p, q, r := project("first", "p"), project("other", "q"), project("third", "r")
		project("second", "p")
		decision := func(at int64) *droverv1.Entry {
			return &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{PolicyStates: []*droverv1.PolicyStateFact{
				{Kind: guaranteeState, Project: p, At: at}, {Kind: latestDepartureState, Project: p, At: at + 10e9},
				{Kind: refusedState, Project: q, At: at + 20e9}, {Kind: refusedState, Project: r}, {Kind: refusedState, Project: 99},
				{Kind: latestDepartureState, Job: 1, Project: 0, At: at}}}}}
		}
		first := f.Clock().ApplyRules(decision(60e9), 1e9)
		apply(decision(60e9))
		if again := f.Clock().ApplyRules(decision(70e9), 1e9); first != projectRules || again != 0 {
			t.Errorf("the first decision has rules %d, the next one %d", first, again)
		}
		apply(decision(70e9))
		events := func() (got string) {
			for _, e := range f.EventLog().Since(0, 100) {
				if e.Kind == "project.guaranteed" || e.Kind == "project.guarantee_refused" {
					got += fmt.Sprintf("%s of %s: %s; ", e.Kind, e.Job, e.Text)
				}
			}
			return got
		}
		want := "project.guaranteed of first: p: by 1970-01-01T00:01:10Z; project.guarantee_refused of other: q: no guarantee before 1970-01-01T00:01:20Z; " +
			"project.guarantee_refused of third: r: no guarantee; "
		if !told {
			want = ""
		}
		if got := events(); got != want {
			t.Errorf("rules %d: %s, want %s", rules, got, want)
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_Scheduler{Scheduler: &droverv1.SchedulerFact{Name: "3dsf"}}})
		apply(decision(60e9))
		if got := events(); got != want+want {
			t.Errorf("rules %d, with the next scheduler: %s", rules, got)
		}
	}
}

// A job that joined a project after its guarantee was given has that guarantee once it is included.
func TestLatestDepartureOfAJobThatJoined(t *testing.T) {
	w := &guaranteeFixture{t, New(), violationRules}
	f, decide := w.f, w.decide
	jobs := []uint64{w.accept("first", "p", nil), w.accept("second", "p", nil)}
	project := f.Job(jobs[0]).Project
	check := func(what string, first, second int64) {
		t.Helper()
		if a, b := f.Deadlines().LatestDeparture(f.Job(jobs[0])), f.Deadlines().LatestDeparture(f.Job(jobs[1])); a != first || b != second {
			t.Errorf("%s: the latest departures are %d and %d, want %d and %d", what, a, b, first, second)
		}
	}
	check("without a guarantee", 0, 0)
	guarantee := func(last uint64) {
		decide(&droverv1.PolicyStateFact{Kind: guaranteeState, Project: project, Value: int64(last), At: 50e9}, &droverv1.PolicyStateFact{Kind: latestDepartureState, Project: project, At: 60e9})
	}
	guarantee(0)
	check("a guarantee of all jobs", 60e9, 60e9)
	guarantee(jobs[0])
	check("one of the first", 60e9, 0)
	decide(&droverv1.PolicyStateFact{Kind: guaranteeState, Job: jobs[1], At: 55e9})
	check("the second is included", 60e9, 60e9)
}

package coordinator

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
)

// A reduce reaches its level in the report whose lost output fails the job: it is stopped like all other attempts.
func TestALostOutputThatFailsTheJobStopsEveryAttempt(t *testing.T) {
	l := newTestLeader(t, nil)
	service := &nodeService{l.c}
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
	job := mapReduceJob("wc", 1)
	job.Tenant = "default"
	res, err := (&submitter{l.c}).propose(t.Context(), identity{}, job, "", "1a", &located{splits: []*droverv1.FactSplit{{}}}, jobForecast{})
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	var node *facts.Node
	l.c.view(func(f *facts.Facts) { node = f.NodeByName("n1") })
	act := func(kind facts.ActionKind, k facts.Key, level droverv1.Level) {
		t.Helper()
		a := &droverv1.ActionFact{Kind: int32(kind), Key: k.Proto(1), Node: node.ID, Level: level, Locality: "none"}
		if r := mustPropose(t, l, &droverv1.Entry{Term: l.term, Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{a}}}}); len(r.Dropped) > 0 {
			t.Fatal(r.Dropped)
		}
	}
	report := func(seen *droverv1.SeenAttempt) {
		t.Helper()
		if err := service.proposeReports(t.Context(), node, &droverv1.ReportRequest{Attempts: []*droverv1.SeenAttempt{seen}}); err != nil {
			t.Fatal(err)
		}
	}
	reduce := facts.Key{Job: res.Job, Stage: 1, Attempt: 1}
	for attempt := int32(1); ; attempt++ {
		m := facts.Key{Job: res.Job, Attempt: attempt}
		act(facts.ActPlace, m, 0)
		report(&droverv1.SeenAttempt{Key: m.Proto(1), Phase: droverv1.Phase_PHASE_SUCCEEDED})
		if attempt == 1 {
			act(facts.ActPlace, reduce, 0)
		}
		lost := &droverv1.SeenAttempt{Key: reduce.Proto(1), Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_RUNNING,
			LostOutputs: []*droverv1.MapOutput{{Attempt: attempt, Run: 1}}}
		var failures int32
		l.c.view(func(f *facts.Facts) { failures = f.Job(res.Job).Stages[0].Task(0).InfraFailures })
		if failures == 7 { // the next one fails the job
			act(facts.ActSuspend, reduce, droverv1.Level_LEVEL_FROZEN)
			lost.Level = droverv1.Level_LEVEL_FROZEN
			report(lost)
			report(lost) // as a node does, which reports what it sees
			break
		}
		report(lost)
	}
	l.c.view(func(f *facts.Facts) {
		j, a := f.Job(res.Job), f.Attempt(reduce)
		if j.State != droverv1.JobState_JOB_STATE_FAILED || a.State != facts.AttemptStopping {
			t.Errorf("the job is %s, its reduce is %s, want a failed job that stops its reduce", j.State, a.State)
		}
	})
}

package coordinator

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/past"
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

// A map whose node was lost when all reduces had fetched its output does not run again: its job succeeds, and the map counts
// as done, in the status, in the list of tasks and in what is kept of the job. While a reduce runs, it is pending.
func TestAMapThatIsLostAfterItWasFetchedCountsAsDone(t *testing.T) {
	l := newTestLeader(t, nil)
	service := &nodeService{l.c}
	nodes := map[string]*facts.Node{}
	for _, name := range []string{"n1", "n2"} {
		mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info(name)}}})
		l.c.view(func(f *facts.Facts) { nodes[name] = f.NodeByName(name) })
	}
	job := mapReduceJob("wc", 1)
	job.Tenant = "default"
	res, err := (&submitter{l.c}).propose(t.Context(), identity{}, job, "", "1a", &located{splits: []*droverv1.FactSplit{{}}}, jobForecast{})
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	place := func(k facts.Key, node *facts.Node) {
		t.Helper()
		a := &droverv1.ActionFact{Kind: int32(facts.ActPlace), Key: k.Proto(1), Node: node.ID, Locality: "none"}
		if r := mustPropose(t, l, &droverv1.Entry{Term: l.term, Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{a}}}}); len(r.Dropped) > 0 {
			t.Fatal(r.Dropped)
		}
	}
	succeed := func(k facts.Key, node *facts.Node) {
		t.Helper()
		seen := &droverv1.SeenAttempt{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_SUCCEEDED}
		if err := service.proposeReports(t.Context(), node, &droverv1.ReportRequest{Attempts: []*droverv1.SeenAttempt{seen}}); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(when string, done, pending int32, task string) {
		t.Helper()
		l.c.view(func(f *facts.Facts) {
			j := f.Job(res.Job)
			st, tasks := l.c.jobs.status(f, j), &droverv1.ListTasksResponse{}
			if err := l.c.jobs.addTasks(f, j, &droverv1.ListTasksRequest{Stage: "map"}, tasks); err != nil {
				t.Fatal(err)
			}
			if m := st.Stages[0]; m.Done != done || m.Pending != pending || st.Job.TasksDone != done+st.Stages[1].Done || tasks.Tasks[0].State != task {
				t.Errorf("%s: %d maps are done and %d pending, %d tasks of the job, and the map is %q; want %d, %d, %q",
					when, m.Done, m.Pending, st.Job.TasksDone, tasks.Tasks[0].State, done, pending, task)
			}
			if m := st.Stages[0]; done == 1 && m.Progress != 1 {
				t.Errorf("%s: progress %g", when, m.Progress)
			}
		})
	}
	mapKey, reduce := facts.Key{Job: res.Job, Attempt: 1}, facts.Key{Job: res.Job, Stage: 1, Attempt: 1}
	place(mapKey, nodes["n1"])
	succeed(mapKey, nodes["n1"])
	place(reduce, nodes["n2"])
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: nodes["n1"].ID, Epoch: nodes["n1"].Epoch}}})
	shows("the reduce runs", 0, 1, "pending")
	succeed(reduce, nodes["n2"])
	shows("it is published", 1, 0, "done")
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobEnded{JobEnded: &droverv1.JobEndedFact{Job: res.Job, State: succeeded}}})
	shows("it has succeeded", 1, 0, "done")

	var kept *droverv1.PastJob
	l.c.view(func(f *facts.Facts) {
		st := l.c.jobs.status(f, f.Job(res.Job))
		kept = &droverv1.PastJob{Summary: st.Job, Stages: st.Stages}
	})
	lost := past.Attempt{PastAttempt: &droverv1.PastAttempt{Key: mapKey.Proto(1), Node: "n1", State: facts.AttemptLost.String()}}
	if err := l.c.past.Write(past.Batch{Attempts: []past.Attempt{lost}}); err != nil {
		t.Fatal(err)
	}
	if tasks, err := l.c.pastJobs.tasks(kept, &droverv1.ListTasksRequest{Stage: "map"}); err != nil || len(tasks.Tasks) != 1 || tasks.Tasks[0].State != "done" || len(tasks.Tasks[0].Attempts) != 1 {
		t.Errorf("of what is kept: %v, %v", tasks, err)
	}
}

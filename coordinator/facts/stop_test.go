package facts

import (
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// committingJob returns facts with a job, number 1, whose result is being published.
func committingJob(t *testing.T) *nodeFixture {
	w := &nodeFixture{t: t, f: New(), clock: time.Hour}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: "n1",
		Allocatable: &droverv1.Resources{Cpu: 4000, Memory: 4 << 30, Io: 1 << 30}, Disks: []*droverv1.Disk{{Name: "d", Io: 1 << 30, Space: 1 << 40}}}}}})
	j := &jobspec.Job{Name: "words", Tenant: DefaultTenant, Input: &jobspec.Input{Paths: []string{"hdfs:///in"}}, Output: &jobspec.Output{Path: "hdfs:///out"},
		Stages: []jobspec.Stage{{Name: "m", Kind: jobspec.KindMap, Builtin: []string{"wordcount"}, Resources: jobspec.Resources{CPU: 100, Memory: 1 << 20}}}}
	jobspec.SetDefaults(j)
	b, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(b), Output: "hdfs:///out",
		Splits: []*droverv1.FactSplit{{}}}}}); r.Err != nil {
		t.Fatal(r.Err)
	}
	k, why := w.place()
	if why != "" {
		t.Fatal(why)
	}
	w.endAttempt(k, droverv1.Phase_PHASE_SUCCEEDED, 0)
	if j := w.f.Job(1); j.State != droverv1.JobState_JOB_STATE_COMMITTING {
		t.Fatalf("the job is %s, want committing", j.State)
	}
	return w
}

// TestAStopWaitsForTheCommit checks that a job whose result is being published ends as that ends, since files may be
// renamed there when its user stops it.
func TestAStopWaitsForTheCommit(t *testing.T) {
	const (
		succeeded = droverv1.JobState_JOB_STATE_SUCCEEDED
		failed    = droverv1.JobState_JOB_STATE_FAILED
		stopped   = droverv1.JobState_JOB_STATE_STOPPED
	)
	for _, x := range []struct {
		name    string
		stop    *droverv1.JobStopFact
		outcome droverv1.JobState
		want    droverv1.JobState
		message string // a part of it
	}{
		{"no stop", nil, succeeded, succeeded, ""},
		{"published", &droverv1.JobStopFact{Job: 1, Reason: "typo", AfterCommit: true}, succeeded, succeeded, "its result was being published when it was stopped by test: typo"},
		{"not published", &droverv1.JobStopFact{Job: 1, AfterCommit: true}, failed, stopped, "stopped by test; no space"},
		{"an entry from before", &droverv1.JobStopFact{Job: 1}, succeeded, stopped, "stopped by test"},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := committingJob(t)
			if x.stop != nil {
				w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: x.stop}})
			}
			if x.stop.GetAfterCommit() {
				if j := w.f.Job(1); j.HasEnded() || !strings.HasPrefix(j.Message, "stopped by test") {
					t.Errorf("while its result is being published it is %s with %q", j.State, j.Message)
				}
				if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: x.stop}}); r.Err != nil || r.Changed != 0 {
					t.Errorf("a second stop: %+v", r)
				}
			}
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobEnded{JobEnded: &droverv1.JobEndedFact{Job: 1, State: x.outcome, Message: map[bool]string{true: "no space"}[x.outcome == failed]}}})
			if j := w.f.Job(1); j.State != x.want || !strings.Contains(j.Message, x.message) || x.message == "" && j.Message != "" {
				t.Errorf("it ended as %s with %q, want %s with %q", j.State, j.Message, x.want, x.message)
			}
		})
	}
}

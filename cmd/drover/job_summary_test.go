package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// Where logs are gathered is said from the end of the job on, and what is missing once all has been tried.
func TestSummaryOfGatheredLogs(t *testing.T) {
	for want, r := range map[string]*droverv1.GetJobResponse{
		"": {Job: &droverv1.JobSummary{Job: 7}, Logs: "hdfs:///logs/j-7"},
		"logs    hdfs:///logs/j-7 (being gathered; `drover job status 7` says when they are there)\n": {Job: &droverv1.JobSummary{Job: 7, EndedMs: 5}, Logs: "hdfs:///logs/j-7"},
		"logs    hdfs:///logs/j-7\n":                        {Job: &droverv1.JobSummary{Job: 7, EndedMs: 5}, Logs: "hdfs:///logs/j-7", LogsGathered: true},
		"logs    hdfs:///logs/j-7 (missing: those of n1)\n": {Job: &droverv1.JobSummary{Job: 7, EndedMs: 5}, Logs: "hdfs:///logs/j-7", LogsGathered: true, LogsMissing: "those of n1"},
	} {
		var b strings.Builder
		if printLogsFolder(&b, r); b.String() != want {
			t.Errorf("%q, want %q", b.String(), want)
		}
	}
}

func TestSummaryNamesAvoidedNodes(t *testing.T) {
	r := &droverv1.GetJobResponse{Job: &droverv1.JobSummary{Job: 7, Name: "j"}}
	var b strings.Builder
	if printSummary(&b, r, nil, nil, ""); strings.Contains(b.String(), "avoids") {
		t.Errorf("it avoids nothing:\n%s", b.String())
	}
	for i := range 10 {
		r.AvoidedNodes = append(r.AvoidedNodes, fmt.Sprint("n", i))
	}
	b.Reset()
	printSummary(&b, r, nil, nil, "")
	if want := "  avoids n0, n1, n2, n3, n4, n5, n6, n7 and 2 more, where its tasks alone fail: drover events -job 7\n"; !strings.Contains(b.String(), want) {
		t.Errorf("no line %q in\n%s", want, b.String())
	}
}

// A job that waits: for how long, why, said once, and what says more.
func TestStatusOfAJobThatWaits(t *testing.T) {
	r := &droverv1.GetJobResponse{
		Job:    &droverv1.JobSummary{Job: 9, Name: "sort", State: droverv1.JobState_JOB_STATE_PENDING, SubmittedMs: viewMs(0), Message: "map: no free cpu on 1 node"},
		Stages: []*droverv1.StageSummary{{Name: "map", Tasks: 3, Pending: 3, Waiting: "no free cpu on 1 node"}, {Name: "reduce", Tasks: 1, Suspended: 1}},
	}
	var b strings.Builder
	printHeading(&b, r, time.UnixMilli(viewMs(192)))
	printWaiting(&b, r)
	wantText(t, "it waits", b.String(), "job 9 (sort) pending for 3m12s\n"+
		"map waits: no free cpu on 1 node\n"+
		"  what would have to give way: drover job why 9\n"+
		"reduce: 1 suspended: `drover task status 9` shows them; one that a user suspended waits for `drover task resume 9 reduce/INDEX`\n")
	b.Reset()
	r.Job.State, r.Job.EndedMs, r.Job.Message = droverv1.JobState_JOB_STATE_STOPPED, viewMs(5), "stopped by a"
	printHeading(&b, r, time.UnixMilli(viewMs(192)))
	printWaiting(&b, r)
	wantText(t, "it has ended", b.String(), "job 9 (sort) stopped after 5s\n  stopped by a\n")
}

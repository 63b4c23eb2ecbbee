package main

import (
	"fmt"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

func TestSummaryNamesAvoidedNodes(t *testing.T) {
	r := &droverv1.GetJobResponse{Job: &droverv1.JobSummary{Job: 7, Name: "j"}}
	var b strings.Builder
	if printSummary(&b, r, nil, ""); strings.Contains(b.String(), "avoids") {
		t.Errorf("it avoids nothing:\n%s", b.String())
	}
	for i := range 10 {
		r.AvoidedNodes = append(r.AvoidedNodes, fmt.Sprint("n", i))
	}
	b.Reset()
	printSummary(&b, r, nil, "")
	if want := "  avoids n0, n1, n2, n3, n4, n5, n6, n7 and 2 more, where its tasks alone fail: drover events -job 7\n"; !strings.Contains(b.String(), want) {
		t.Errorf("no line %q in\n%s", want, b.String())
	}
}

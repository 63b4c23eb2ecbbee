package facts

import (
	"fmt"
	"maps"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// What a map counted is taken off the totals when its output is lost, and names that the totals did not take are not. Under the
// rules of earlier entries it stays, and the map that runs again counts twice.
func TestLostOutputsTakeTheirCountsOff(t *testing.T) {
	for rules, want := range map[uint32]struct {
		ms, records, dropped int64
	}{
		4: {14, 9, 6},
		5: {9, 5, 3},
	} {
		w := newBlameFixture(t)
		res := jobspec.Resources{CPU: 100, Memory: 1 << 20}
		j := &jobspec.Job{Name: "mr", Tenant: DefaultTenant, Output: &jobspec.Output{Path: "hdfs:///out"}, Stages: []jobspec.Stage{
			{Name: "m", Kind: jobspec.KindMap, Command: []string{"x"}, Resources: res},
			{Name: "r", Kind: jobspec.KindReduce, Tasks: 1, Command: []string{"y"}, Resources: res}}}
		jobspec.SetDefaults(j)
		b, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		split := &droverv1.FactSplit{Pieces: []*droverv1.SplitPiece{{Uri: "hdfs:///in", Length: 3}}}
		if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(b),
			Splits: []*droverv1.FactSplit{split, split}}}}); r.Err != nil {
			t.Fatal(r.Err)
		}
		job := uint64(3)
		succeed := func(task, attempt, node int32, ms, records int64, names int) {
			k := Key{job, 0, task, attempt}
			w.start(k, node)
			counters := map[string]int64{"app.records": records}
			for i := range names {
				counters[fmt.Sprintf("app.z%05d", i)] = 1
			}
			if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: node, Epoch: w.f.Node(node).Epoch,
				Seen: []*droverv1.SeenAttempt{{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_SUCCEEDED, RunningMs: ms, Counters: counters}}}}}); r.Changed != 1 {
				t.Fatalf("%+v", r)
			}
		}
		// "app.records" and all names but the last three fit.
		succeed(0, 1, 1, 5, 4, MaxCounters+2)
		before := maps.Clone(w.f.Job(job).Counters)
		succeed(1, 1, 2, 4, 1, 0)
		w.apply(&droverv1.Entry{StepRules: rules, Body: &droverv1.Entry_NodeLost{NodeLost: &droverv1.NodeLostFact{Node: 1, Epoch: w.f.Node(1).Epoch}}})
		if s := w.f.Job(job).Stages[0]; s.Done != 1 || rules == lossRules && s.SumTaskMS != 4 {
			t.Errorf("rules %d: %d done, %d ms", rules, s.Done, s.SumTaskMS)
		}
		succeed(0, 2, 3, 5, 4, MaxCounters+2)
		after := w.f.Job(job)
		if got := after.Counters; after.Stages[0].SumTaskMS != want.ms || got["app.records"] != want.records || got[CountersDropped] != want.dropped {
			t.Errorf("rules %d: %d ms, %d records, %d counts dropped, want %+v", rules, after.Stages[0].SumTaskMS, got["app.records"], got[CountersDropped], want)
		}
		before["app.records"]++ // of the other map
		if rules == lossRules && !maps.Equal(before, after.Counters) {
			t.Error("other counters than those of one attempt of each map")
		}
	}
}

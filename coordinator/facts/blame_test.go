package facts

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/jobspec"
)

// blameFixture has four nodes and two jobs of many tasks.
type blameFixture struct {
	nodeFixture
	next map[uint64]int32 // task of each job
}

func newBlameFixture(t *testing.T) *blameFixture {
	w := &blameFixture{nodeFixture{t: t, f: New(), clock: time.Hour}, map[uint64]int32{}}
	for i := range 4 {
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: fmt.Sprint("n", i+1),
			Allocatable: &droverv1.Resources{Cpu: 64000, Memory: 64 << 30, Io: 1 << 30}, Disks: []*droverv1.Disk{{Name: "d", Io: 1 << 30, Space: 1 << 40}}}}}})
	}
	for _, name := range []string{"hostile", "other"} {
		j := &jobspec.Job{Name: name, Tenant: DefaultTenant, Stages: []jobspec.Stage{{Name: "g", Kind: jobspec.KindGroup, Tasks: 60, Command: []string{"x"},
			Resources: jobspec.Resources{CPU: 100, Memory: 1 << 20}}}}
		jobspec.SetDefaults(j)
		b, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(b)}}}); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	return w
}

// fail places a task of a job on a node, where the infrastructure fails it.
func (w *blameFixture) fail(job uint64, node int32) {
	w.t.Helper()
	k := Key{job, 0, w.next[job], 1}
	w.next[job]++
	w.clock += time.Second
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
		Actions: []*droverv1.ActionFact{{Kind: int32(ActPlace), Key: k.Proto(1), Node: node}}}}})
	if len(r.Dropped) > 0 {
		w.t.Fatalf("n%d: %s", node, r.Dropped[0].Reason)
	}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: node, Epoch: w.f.Node(node).Epoch,
		Seen: []*droverv1.SeenAttempt{{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_FAILED, Cause: droverv1.Cause_CAUSE_INFRA, Message: "no shim"}}}}})
}

func (w *blameFixture) quarantined() (names []string) {
	for _, n := range w.f.Nodes() {
		if n.RetryAt > 0 {
			names = append(names, n.Info.GetName())
		}
	}
	return names
}

func TestOneJobCannotTakeNodeAfterNode(t *testing.T) {
	w := newBlameFixture(t)
	for node := int32(1); node <= 4; node++ {
		for range 3 {
			w.fail(1, node)
		}
	}
	if got := w.quarantined(); len(got) > 0 {
		t.Errorf("one job took out %v", got)
	}
	for _, n := range w.f.Nodes()[:2] { // it had taken them before it was known to be the cause
		if !n.Probation || n.Draining || n.QuarantineStreak != 0 {
			t.Errorf("%s is not on probation after the job was blamed: %+v", n.Info.GetName(), n)
		}
	}
	blamed := 0
	for _, e := range w.f.EventLog().Since(0, MaxEvents) {
		if e.Kind == "job.blamed" {
			blamed++
			if e.Job != "hostile" || !strings.Contains(e.Text, "on 2 other nodes") && !strings.Contains(e.Text, "on 3 other nodes") {
				t.Errorf("event %+v", e)
			}
		}
	}
	if blamed != 2 {
		t.Errorf("%d events, want one for each spared node", blamed)
	}
	// A node that fails another job too is at fault.
	for range 3 {
		w.fail(2, 3)
	}
	if got := w.quarantined(); !slices.Contains(got, "n3") || slices.Contains(got, "n4") {
		t.Errorf("after the failures of another job on n3: %v", got)
	}
	if n := w.f.Node(1); !n.Probation {
		t.Errorf("the failures on n3 concern n1: %+v", n)
	}
	// The job is blamed for ten minutes only.
	w.clock += infraWindow
	for range 3 {
		w.fail(1, 4)
	}
	if got := w.quarantined(); !slices.Contains(got, "n4") {
		t.Errorf("later, on n4 alone: %v", got)
	}
}

// TestNodesThatFailTwoJobsAreNotAcquitted blames a job after a node failed another
// one too: that node stays in quarantine.
func TestNodesThatFailTwoJobsAreNotAcquitted(t *testing.T) {
	w := newBlameFixture(t)
	w.fail(2, 1)
	for _, node := range []int32{1, 1, 2, 2, 2} {
		w.fail(1, node)
	}
	if got := w.quarantined(); !slices.Equal(got, []string{"n1", "n2"}) {
		t.Fatalf("in quarantine: %v", got)
	}
	w.fail(1, 3)
	if got := w.quarantined(); !slices.Equal(got, []string{"n1"}) {
		t.Errorf("in quarantine: %v, want n1 alone", got)
	}
}

// What a clock that was ahead recorded of another job is forgotten ten minutes after the right clock is back. Under the rules
// of earlier entries it counted until that time had come, so that no job was blamed until then.
func TestFailuresOfOtherJobsStepBackWithTheClock(t *testing.T) {
	const ahead = 48 * time.Hour
	for rules, want := range map[uint32]string{2: "[n1 n2 n3 n4]", 3: "[]"} {
		w := newBlameFixture(t)
		w.clock += ahead
		for node := int32(1); node <= 4; node++ {
			w.fail(2, node)
		}
		w.clock -= ahead
		w.apply(&droverv1.Entry{StepRules: rules, Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}})
		w.clock += infraWindow
		for node := int32(1); node <= 4; node++ {
			for range 3 {
				w.fail(1, node)
			}
		}
		if got := fmt.Sprint(w.quarantined()); got != want {
			t.Errorf("rules %d: one job took out %s, want %s", rules, got, want)
		}
	}
}

package facts

import (
	"fmt"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// The deadline of a drain that was set by a clock that was ahead comes the while after the right time that it was given; one
// that was set by the right clock stays, and so does the beginning of a window until that is to come again. Under the rules of earlier entries nothing
// changes.
func TestDeadlinesOfDrainsStepBackWithTheClock(t *testing.T) {
	const day = 24 * 3600
	for rules, want := range map[uint32]string{
		1: "right 1100 ahead 173900 window 174000",
		2: "right 1100 ahead 1150 window 174000",
		3: "right 1100 ahead 1150 window 174000",
		4: "right 1100 ahead 1150 window 0", // which is to come again
	} {
		f := New()
		apply := func(at int64, rules uint32, e *droverv1.Entry) {
			t.Helper()
			e.Version, e.At, e.StepRules = EntryVersion, at*1e9, rules
			if r := f.Apply(f.Index()+1, e); r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		names := []string{"right", "ahead", "window"}
		for _, name := range names {
			apply(50, 0, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: &droverv1.NodeInfo{Name: name}}}})
		}
		drain := func(at int64, node int32) {
			apply(at, 0, &droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: node, Draining: true,
				Deadline: (at + 1000) * 1e9, DeadlineMs: 1_000_000}}})
		}
		drain(100, 1)
		drain(100+2*day, 2)
		for _, change := range []droverv1.MaintenanceChange{droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED, droverv1.MaintenanceChange_MAINTENANCE_CHANGE_BEGUN} {
			apply(150+2*day, 0, &droverv1.Entry{Body: &droverv1.Entry_Maintenance{Maintenance: &droverv1.MaintenanceFact{Node: 3, From: 174_000 * 1e9, To: 174_100 * 1e9, Change: change}}})
		}
		apply(200, rules, &droverv1.Entry{Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}})
		got := ""
		for _, name := range names {
			got += fmt.Sprintf(" %s %d", name, f.NodeByName(name).DrainDeadline/1e9)
		}
		if got != " "+want {
			t.Errorf("rules %d:%s, want %s", rules, got, want)
		}
	}
	notice := &droverv1.Entry{Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}}
	if r, other := New().Clock().ApplyRules(notice, -2*int64(ClockTolerance)), New().Clock().ApplyRules(notice, 0); r != levelStepRules || other != 0 {
		t.Errorf("an entry that steps back now has rules %d, another one %d", r, other)
	}
}

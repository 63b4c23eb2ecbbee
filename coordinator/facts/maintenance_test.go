package facts

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// An operator's drain and a window do not end each other by accident.
func TestMaintenanceAndDrains(t *testing.T) {
	const begun, ended = droverv1.MaintenanceChange_MAINTENANCE_CHANGE_BEGUN, droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ENDED
	drain := func(on bool) *droverv1.Entry {
		return &droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: 1, Draining: on}}}
	}
	change := func(c droverv1.MaintenanceChange) *droverv1.Entry {
		return &droverv1.Entry{Body: &droverv1.Entry_Maintenance{Maintenance: &droverv1.MaintenanceFact{Node: 1, From: int64(90 * time.Minute), To: int64(2 * time.Hour), Change: c}}}
	}
	for name, c := range map[string]struct {
		entries  []*droverv1.Entry
		draining bool
		left     int
	}{
		"it begins":                       {[]*droverv1.Entry{change(begun)}, true, 1},
		"it ends":                         {[]*droverv1.Entry{change(begun), change(ended)}, false, 0},
		"it begins twice":                 {[]*droverv1.Entry{change(begun), change(begun), change(ended)}, false, 0},
		"drained before, stays drained":   {[]*droverv1.Entry{drain(true), change(begun), change(ended)}, true, 0},
		"drained meanwhile":               {[]*droverv1.Entry{change(begun), drain(true), change(ended)}, true, 0},
		"the drain ends, and the window":  {[]*droverv1.Entry{change(begun), drain(false)}, false, 0},
		"the drain ends before it begins": {[]*droverv1.Entry{drain(true), drain(false)}, false, 1},
	} {
		w := newNodeFixture(t)
		w.apply(change(droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED))
		for _, e := range c.entries {
			w.apply(e)
		}
		if n := w.f.Node(1); n.Draining != c.draining || len(n.Maintenance) != c.left {
			t.Errorf("%s: %+v", name, n)
		}
	}
}

// A checkpoint is restored on a node that stays, though one that leaves soon has more room; on that one
// only where no other can.
func TestACheckpointIsRestoredWhereItStays(t *testing.T) {
	const running, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_CHECKPOINTED
	w := newNodeFixture(t)
	w.f.Node(1).Info.Levels = []droverv1.Level{running, checkpointed}
	for name, cpu := range map[string]int64{"large": 64000, "small": 8000} {
		info := proto.CloneOf(w.f.Node(1).Info)
		info.Name, info.Allocatable.Cpu = name, cpu
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: info}}})
	}
	k, why := w.place()
	if why != "" {
		t.Fatal(why)
	}
	w.setLevel(k, checkpointed)
	to := func() string { return RestoreNode(w.f, k).Info.GetName() }
	leave := func(name string, in time.Duration) {
		from := int64(w.clock + in)
		r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Maintenance{Maintenance: &droverv1.MaintenanceFact{Node: w.f.NodeByName(name).ID, From: from, To: from + int64(time.Hour),
			Change: droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED}}})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	if got := to(); got != "large" {
		t.Errorf("both stay: %s", got)
	}
	if leave("large", 3*time.Hour); to() != "large" {
		t.Errorf("it leaves in hours: %s", to())
	}
	if leave("large", 5*time.Minute); to() != "small" {
		t.Errorf("the larger leaves soon: %s", to())
	}
	if leave("small", 5*time.Minute); to() != "large" {
		t.Errorf("both leave soon: %s", to())
	}
}

// A window that a clock that was ahead has begun too early is to come again once the clock is right: the node takes work, and
// what was parked for the window may go on, unless an operator drains the node. Under the rules of earlier entries the node
// took no work until the end of the window. One that the right clock would have begun as well goes on.
func TestWindowsThatBeganTooEarlyStepBackWithTheClock(t *testing.T) {
	const begun, ended = droverv1.MaintenanceChange_MAINTENANCE_CHANGE_BEGUN, droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ENDED
	const day, until = 24 * time.Hour, "maintenance until 1970-01-22 01:00:00 UTC"
	drain := func(w *nodeFixture) {
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: 1, Draining: true, Reason: "by hand"}}})
	}
	nothing := func(*nodeFixture) {}
	type state struct {
		begun, draining, parked bool
		reason                  string
	}
	for name, c := range map[string]struct {
		before, meanwhile func(*nodeFixture) // the window begins
		back              time.Duration      // where the right clock is
		was, want         state              // after the step, under the rules before and now
		end               bool               // the node is drained after the end of the window
	}{
		"too early":               {nothing, nothing, 0, state{true, true, true, until}, state{}, false},
		"in time":                 {nothing, nothing, 20*day + time.Hour, state{true, true, true, until}, state{true, true, true, until}, false},
		"drained before":          {drain, nothing, 0, state{true, true, true, "by hand"}, state{false, true, true, "by hand"}, true},
		"drained meanwhile":       {nothing, drain, 0, state{true, true, true, "by hand"}, state{false, true, true, "by hand"}, true},
		"the node is down by now": {nothing, func(w *nodeFixture) { w.step("lost", nil) }, 0, state{true, true, true, "silent"}, state{false, false, true, "silent"}, false},
	} {
		for rules, want := range map[uint32]state{3: c.was, 4: c.want} {
			w := newNodeFixture(t)
			w.f.Node(1).Info.Levels = []droverv1.Level{droverv1.Level_LEVEL_FROZEN}
			right := w.clock
			from := int64(right + 20*day)
			change := func(change droverv1.MaintenanceChange) {
				t.Helper()
				if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Maintenance{Maintenance: &droverv1.MaintenanceFact{Node: 1, From: from, To: from + int64(day), Change: change}}}); r.Err != nil || r.Changed != 1 {
					t.Fatal(name, change, r)
				}
			}
			change(droverv1.MaintenanceChange_MAINTENANCE_CHANGE_ORDERED)
			k, _ := w.place()
			c.before(w)
			w.clock = right + 20*day + 2*time.Hour
			change(begun)
			w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
				Actions: []*droverv1.ActionFact{{Kind: int32(ActSuspend), Key: k.Proto(1), Level: droverv1.Level_LEVEL_FROZEN, Drain: true}}}}})
			c.meanwhile(w)
			w.clock = right + c.back
			w.apply(&droverv1.Entry{StepRules: rules, Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}})
			n := w.f.Node(1)
			if len(n.Maintenance) != 1 {
				t.Fatalf("%s, rules %d: windows %v", name, rules, n.Maintenance)
			}
			if got := (state{n.Maintenance[0].Begun, n.Draining, w.f.Attempt(k).Suspension.Parked, n.Reason}); got != want {
				t.Errorf("%s, rules %d: %+v, want %+v", name, rules, got, want)
			}
			if !n.Draining && (n.DrainDeadline != 0 || n.SchedulableSince != int64(w.clock)) {
				t.Errorf("%s, rules %d: %+v", name, rules, n)
			}
			w.clock = right + 20*day + 2*time.Hour
			if !n.Maintenance[0].Begun {
				change(begun)
			}
			change(ended)
			if n := w.f.Node(1); n.Draining != c.end || len(n.Maintenance) != 0 {
				t.Errorf("%s, rules %d: after the window: %+v", name, rules, n)
			}
		}
	}
}

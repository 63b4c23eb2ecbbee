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

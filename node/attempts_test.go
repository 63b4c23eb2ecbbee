package node

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
)

func newTestTable(id store.Identity) *attemptTable {
	return newAttemptTable(id, 0)
}

func (t *attemptTable) addTest(id store.ID, wanted *droverv1.WantedAttempt) *attempt {
	a := newAttempt(&daemon{cfg: Config{Data: "/nowhere"}}, id)
	a.setWanted(wanted)
	t.add(a)
	return a
}

// removeTest removes an attempt as the daemon does.
func (t *attemptTable) removeTest(a *attempt) (removed bool, next *attempt) {
	return t.remove(a, func(w *droverv1.WantedAttempt) *attempt {
		next := newAttempt(a.d, a.id)
		next.setWanted(w)
		return next
	})
}

// reports sends a report that is answered, and returns the phases in it.
func (t *attemptTable) reports(full bool) map[store.ID]droverv1.Phase {
	all := map[store.ID]droverv1.Phase{}
	req := t.nextReport(full)
	for _, s := range req.GetAttempts() {
		all[store.IDOf(s.GetKey())] = s.GetPhase()
	}
	t.reported(req.GetAttempts())
	return all
}

// What is gone is reported until the coordinator has answered, and then no more.
func TestGoneIsReportedUntilAnswered(t *testing.T) {
	table := newTestTable(store.Identity{Epoch: 1})
	if a := table.unwant("1.0.0.1.1"); a != nil {
		t.Fatal("an attempt that is not here")
	}
	for range 2 {
		if req := table.nextReport(false); len(req.GetAttempts()) != 1 || req.GetAttempts()[0].GetPhase() != gone {
			t.Fatalf("without an answer: %v", req.GetAttempts())
		}
	}
	sent := table.nextReport(false)
	table.unwant("1.0.1.1.1") // during the report
	if more := table.reported(sent.GetAttempts()); !more {
		t.Error("an attempt that went during a report is forgotten")
	}
	if got := table.reports(false); len(got) != 1 || got["1.0.1.1.1"] != gone {
		t.Errorf("after the answer: %v", got)
	}
	if got := table.reports(true); len(got) != 0 {
		t.Errorf("at the end: %v", got)
	}
}

// An attempt of an older epoch is reported no more; one that is wanted under its id
// waits until it has left.
func TestOrphanLeavesBeforeItsIDIsWantedAgain(t *testing.T) {
	const id = store.ID("1.0.0.1.1")
	w := &droverv1.WantedAttempt{Key: id.Key(), Goal: droverv1.Goal_GOAL_RUN}
	table := newTestTable(store.Identity{Node: 1, Epoch: 1})
	old := table.addTest(id, w)
	if got := table.enterEpoch(store.Identity{Node: 1, Epoch: 1, Term: 2}); got != nil {
		t.Fatalf("a new term orphans %v", got)
	}
	if got := table.enterEpoch(store.Identity{Node: 1, Epoch: 2}); len(got) != 1 || got[0] != old {
		t.Fatalf("orphans: %v", got)
	}
	if table.find(id) != nil || table.get(id) != old {
		t.Error("an orphan must be here, and must not be found")
	}
	if e := table.epochOf(old, 1); e != 1 {
		t.Errorf("the orphan has epoch %d", e)
	}
	table.markChanged(id, false)
	if got := table.reports(true); len(got) != 0 {
		t.Errorf("an orphan is reported: %v", got)
	}
	if a, later := table.want(id, w); a != nil || !later {
		t.Fatalf("wanted again: %v, %v", a, later)
	}
	if removed, _ := table.removeTest(old); removed {
		t.Fatal("an attempt that is wanted was removed")
	}
	old.setWanted(nil)
	removed, next := table.removeTest(old)
	if !removed || next == nil || next != table.find(id) {
		t.Fatalf("removed %v, next %v", removed, next)
	}
	if wanted, _ := next.mail.wantedAndSpec(); wanted != w {
		t.Errorf("the next one is wanted as %v", wanted)
	}
	if got := table.reports(true); len(got) != 1 || got[id] != droverv1.Phase_PHASE_PREPARING {
		t.Errorf("an orphan that has left is reported, or the next one is not: %v", got)
	}
	now := next
	if e := table.epochOf(now, 0); e != 2 {
		t.Errorf("the new attempt has epoch %d", e)
	}
	now.setWanted(nil)
	if removed, next := table.removeTest(now); !removed || next != nil {
		t.Fatalf("removed %v, next %v", removed, next)
	}
	if got := table.reports(false); len(got) != 1 || got[id] != gone {
		t.Errorf("an attempt that has left: %v", got)
	}
}

// What is not wanted any more does not come back when the orphan has left.
func TestUnwantedAgain(t *testing.T) {
	const id = store.ID("1.0.0.1.1")
	table := newTestTable(store.Identity{Epoch: 1})
	old := table.addTest(id, nil)
	table.enterEpoch(store.Identity{Epoch: 2})
	table.want(id, &droverv1.WantedAttempt{Key: id.Key()})
	if a := table.unwant(id); a != old {
		t.Fatalf("unwanted: %v", a)
	}
	if removed, next := table.removeTest(old); !removed || next != nil {
		t.Errorf("removed %v, next %v", removed, next)
	}
}

// Nor does what a later full set, or a later epoch, does not list any more.
func TestUnlistedAgain(t *testing.T) {
	const id = store.ID("1.0.0.1.1")
	for name, forget := range map[string]func(*attemptTable){
		"a full set":    func(table *attemptTable) { table.unlisted(nil) },
		"another epoch": func(table *attemptTable) { table.enterEpoch(store.Identity{Epoch: 3}) },
	} {
		table := newTestTable(store.Identity{Epoch: 1})
		old := table.addTest(id, nil)
		table.enterEpoch(store.Identity{Epoch: 2})
		table.want(id, &droverv1.WantedAttempt{Key: id.Key()})
		forget(table)
		if removed, next := table.removeTest(old); !removed || next != nil {
			t.Errorf("%s: removed %v, next %v", name, removed, next)
		}
	}
}

// The attempts of a coordinator that was restored stay, and what went is not reported to it.
func TestRestoredCoordinatorKeepsAttempts(t *testing.T) {
	const id = store.ID("1.0.0.1.1")
	table := newTestTable(store.Identity{Cluster: "c", ClusterEpoch: 1, Epoch: 1})
	table.addTest(id, &droverv1.WantedAttempt{Key: id.Key()})
	table.unwant("1.0.1.1.1")
	if got := table.enterEpoch(store.Identity{Cluster: "c", ClusterEpoch: 2, Epoch: 2}); got != nil {
		t.Fatalf("orphans: %v", got)
	}
	if got := table.reports(true); len(got) != 1 || got[id] == gone {
		t.Errorf("reported: %v", got)
	}
	if others := table.unlisted(map[store.ID]*droverv1.WantedAttempt{id: {}}); others != nil {
		t.Errorf("a listed attempt is unlisted: %v", others)
	}
	if others := table.unlisted(nil); len(others) != 1 {
		t.Errorf("unlisted: %v", others)
	}
}

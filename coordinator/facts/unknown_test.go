package facts

import (
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// restoredFixture is a cluster with a node and a job of waiting tasks, of which task 1 has an attempt,
// after a restore.
func restoredFixture(t *testing.T) *nodeFixture {
	w := newNodeFixture(t)
	w.task = 1
	if _, why := w.place(); why != "" {
		t.Fatal(why)
	}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: "restored", SkipJobs: 100, SkipRuns: 1000, ClusterEpoch: 77}}})
	return w
}

// found is what a node reports of a frozen run that the state does not know.
func found(key *droverv1.AttemptKey) *droverv1.SeenAttempt {
	return &droverv1.SeenAttempt{Key: key, Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_FROZEN, Occupied: &droverv1.Resources{Memory: 1 << 20},
		Unknown: &droverv1.UnknownRun{DiskName: "d"}}
}

func (w *nodeFixture) unknown(u *droverv1.UnknownRunsFact) Result {
	u.Node, u.Epoch = 1, w.f.Node(1).Epoch
	return w.apply(&droverv1.Entry{Body: &droverv1.Entry_UnknownRuns{UnknownRuns: u}})
}

// Which runs become attempts again, and why the others do not.
func TestWhichUnknownRunsCanBeAdopted(t *testing.T) {
	key := func(job uint64, task, attempt int32) *droverv1.AttemptKey {
		return &droverv1.AttemptKey{Job: job, Task: task, Attempt: attempt, Run: 1}
	}
	thawed, lost := found(key(1, 0, 1)), found(key(1, 0, 1))
	thawed.Level, lost.Unknown.DiskName = droverv1.Level_LEVEL_RUNNING, "other"
	for name, c := range map[string]struct {
		seen *droverv1.SeenAttempt
		want string
	}{
		"its task waits":               {found(key(1, 0, 1)), ""},
		"an unknown job":               {found(key(2, 0, 1)), "its job is unknown"},
		"no such task":                 {found(key(1, 60, 1)), "its job has no such task"},
		"no task number":               {found(key(1, -1, 1)), "its job has no such task"},
		"its task has another attempt": {found(key(1, 1, 2)), "its task has another attempt"},
		"an attempt is missing":        {found(key(1, 0, 2)), "it is attempt 2, and the next of its task is 1"},
		"it still runs":                {thawed, "it is not frozen"},
		"on a disk that is gone":       {lost, "its disk is unknown"},
	} {
		w := restoredFixture(t)
		before := w.f.Node(1).Attempts
		r := w.unknown(&droverv1.UnknownRunsFact{Found: []*droverv1.SeenAttempt{c.seen}})
		why := ""
		if len(r.Dropped) > 0 {
			why = r.Dropped[0].Reason
		}
		if why != c.want || r.Err != nil || w.f.Node(1).Attempts-before != int32(r.Changed) {
			t.Errorf("%s: %q, want %q; %+v", name, why, c.want, r)
		}
		if err := verifyCounts(w.f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	w := newNodeFixture(t)
	if r := w.unknown(&droverv1.UnknownRunsFact{Found: []*droverv1.SeenAttempt{found(key(1, 0, 1))}}); len(r.Dropped) != 1 || r.Dropped[0].Reason != "the cluster was never restored" {
		t.Errorf("without a restore: %+v", r)
	}
}

// An unknown run is suspended until an operator decides: nobody else resumes it, and its task is not
// placed again.
func TestAnOperatorDecidesAboutUnknownRuns(t *testing.T) {
	const adopt, kill = droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT, droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_KILL
	for name, decision := range map[string]droverv1.UnknownRunDecision{"adopt": adopt, "kill": kill} {
		w := restoredFixture(t)
		k := Key{1, 0, 0, 1}
		w.unknown(&droverv1.UnknownRunsFact{Found: []*droverv1.SeenAttempt{found(k.Proto(1))}})
		if a := w.f.Attempt(k); a == nil || a.Level != droverv1.Level_LEVEL_FROZEN || !a.Suspension.Parked {
			t.Fatalf("%s: %+v", name, a)
		}
		resume := func() string { return w.act(&droverv1.ActionFact{Kind: int32(ActResume), Key: k.Proto(1)}) }
		if why := resume(); why != unknownReason {
			t.Errorf("%s: a resume before: %q", name, why)
		}
		if why := w.act(&droverv1.ActionFact{Kind: int32(ActPlace), Key: Key{1, 0, 0, 2}.Proto(1001), Node: 1}); why != "the task is not pending" {
			t.Errorf("%s: placed again: %q", name, why)
		}
		for what, u := range map[string]*droverv1.UnknownRunsFact{
			"another run":   {Key: k.Proto(2), Decision: adopt},
			"no decision":   {Key: k.Proto(1)},
			"a known run":   {Key: Key{1, 0, 1, 1}.Proto(1), Decision: kill},
			"one not there": {Key: Key{9, 0, 0, 1}.Proto(1), Decision: adopt},
		} {
			if r := w.unknown(u); r.Err == nil {
				t.Errorf("%s: %s was accepted", name, what)
			}
		}
		if r := w.unknown(&droverv1.UnknownRunsFact{Key: k.Proto(1), Decision: decision}); r.Err != nil {
			t.Fatalf("%s: %v", name, r.Err)
		}
		if err := verifyCounts(w.f); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		a := w.f.Attempt(k)
		if decision == kill && a.State != AttemptStopping {
			t.Errorf("killed: %+v", a)
		}
		if why := resume(); decision == adopt && (why != "" || a.Suspension.Parked) {
			t.Errorf("adopted: %q, %+v", why, a)
		}
		if r := w.unknown(&droverv1.UnknownRunsFact{Key: k.Proto(1), Decision: kill}); r.Err == nil {
			t.Errorf("%s: a second decision was accepted", name)
		}
	}
}

// act applies an action and returns why it was dropped.
func (w *nodeFixture) act(a *droverv1.ActionFact) string {
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{a}}}})
	if len(r.Dropped) > 0 {
		return r.Dropped[0].Reason
	}
	return ""
}

// After a restore attempts begin with a run that the lost log did not give, and nodes get an epoch above
// any that they had.
func TestARestoreRaisesRunsAndEpochs(t *testing.T) {
	w := restoredFixture(t)
	if s := RestoresOf(w.f); s.ClusterEpoch() != 77 || !s.AwaitsNodes() || s.FirstRun() != 1001 {
		t.Errorf("restored: %+v", w.f.restores)
	}
	place := func(run int32) string {
		return w.act(&droverv1.ActionFact{Kind: int32(ActPlace), Key: Key{1, 0, 0, 1}.Proto(run), Node: 1})
	}
	if why := place(1); !strings.HasSuffix(why, "at least 1 run 1001") {
		t.Errorf("placed with run 1: %q", why)
	}
	if why := place(1001); why != "" || RestoresOf(w.f).AwaitsNodes() {
		t.Errorf("placed with run 1001: %q", why)
	}
	info := w.f.Node(1).Info
	for epoch, want := range map[uint64]uint64{9: 10, 1<<64 - 1: 1<<63 + 0} {
		w := restoredFixture(t)
		if r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Epoch: epoch, Info: info}}}); r.Epoch != want {
			t.Errorf("a node that had epoch %d got %d, want %d", epoch, r.Epoch, want)
		}
	}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: "again"}}})
	if s := RestoresOf(w.f); s.ClusterEpoch() != 78 || s.FirstRun() != 1001 {
		t.Errorf("restored by an older program: %+v", w.f.restores)
	}
}

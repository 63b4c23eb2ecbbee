package coordinator

import (
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/scheduler"
)

// A task that a user froze, or a drain, is parked. Others need its memory: the scheduler, or the leader for a node under
// memory pressure, brings it to a deeper level. It stays parked then, by whom it was, and the scheduler may not resume it.
func TestDeeperSuspensionKeepsParked(t *testing.T) {
	const frozen, swapped = droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_SWAPPED
	for name, parked := range map[string]struct{ manual, drain bool }{
		"by a user": {manual: true}, "by a drain": {drain: true}, "by nobody": {},
	} {
		for who, deeper := range map[string]func(w *randomCluster, k facts.Key) *droverv1.DecisionFact{
			"the scheduler": func(w *randomCluster, k facts.Key) *droverv1.DecisionFact {
				d := decisionFact(&scheduler.Decision{Actions: []scheduler.Action{{Kind: scheduler.ActSuspend, Task: taskID(k), Attempt: 1, Run: 1,
					Level: scheduler.LevelSwapped}}}, nil)
				keepParked(w.f, d)
				return d
			},
			"memory pressure": func(w *randomCluster, _ facts.Key) *droverv1.DecisionFact {
				return &droverv1.DecisionFact{Actions: escalations(w.f, w.f.NodeByName("n"), 0)}
			},
		} {
			t.Run(name+"/"+who, func(t *testing.T) {
				w := newRandomCluster(t, 1)
				info := levelNode("n")
				info.Levels, info.Swap = append(info.Levels, swapped), 1<<30
				k := w.runOnNode(info)
				n := w.f.NodeByName("n")
				if parked.drain {
					w.must(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: n.ID, Draining: true, Deadline: w.now}}})
				}
				report := func(l droverv1.Level) {
					t.Helper()
					seen := &droverv1.SeenAttempt{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_RUNNING, Level: l, Occupied: &droverv1.Resources{Memory: 1 << 20}}
					w.must(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: n.ID, Epoch: n.Epoch, Seen: []*droverv1.SeenAttempt{seen}}}})
				}
				decide := func(d *droverv1.DecisionFact) {
					t.Helper()
					w.must(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: d}})
				}
				decide(&droverv1.DecisionFact{Actions: []*droverv1.ActionFact{{Kind: int32(facts.ActSuspend), Key: k.Proto(1), Level: frozen, Manual: parked.manual, Drain: parked.drain}}})
				report(frozen)
				decide(deeper(w, k))
				report(swapped)
				a := w.f.Attempt(k)
				if a.Level != swapped || a.Suspension.Parked != (parked.manual || parked.drain) || a.Suspension.Drained != parked.drain {
					t.Errorf("it is %v, parked %v, drained %v", a.Level, a.Suspension.Parked, a.Suspension.Drained)
				}
				if err := w.p.follow(w.f, w.takeJournal()); err != nil {
					t.Fatal(err)
				}
				if got := w.p.state.Attempt(attemptID(k)).Parked; got != (parked.manual || parked.drain) {
					t.Errorf("the scheduler may resume it: %v", !got)
				}
			})
		}
	}
}

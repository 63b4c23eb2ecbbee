package facts

import (
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// setLevel requests a level and has the node confirm it.
func (w *nodeFixture) setLevel(k Key, l droverv1.Level) {
	w.t.Helper()
	kind := ActSuspend
	if l == droverv1.Level_LEVEL_RUNNING {
		kind = ActResume
	}
	r := w.apply(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Base: w.f.Index(),
		Actions: []*droverv1.ActionFact{{Kind: int32(kind), Key: k.Proto(1), Level: l}}}}})
	if len(r.Dropped) > 0 {
		w.t.Fatal(r.Dropped[0].Reason)
	}
	w.apply(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: 1, Epoch: w.f.Node(1).Epoch,
		Seen: []*droverv1.SeenAttempt{{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_RUNNING, Level: l}}}}})
}

func TestRunTimeExcludesSuspension(t *testing.T) {
	const running, frozen = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN
	for name, c := range map[string]struct {
		live func(w *nodeFixture, k Key)
		want time.Duration
	}{
		"never suspended": {func(w *nodeFixture, _ Key) { w.clock += 7 * time.Minute }, 7 * time.Minute},
		"suspended twice": {func(w *nodeFixture, k Key) {
			w.setLevelFor(k, frozen, 3)
			w.setLevelFor(k, running, 2)
			w.setLevelFor(k, frozen, 60)
			w.setLevelFor(k, running, 1)
		}, 3 * time.Minute},
		"done before it was frozen": {func(w *nodeFixture, k Key) { w.clock += time.Minute; w.setLevelFor(k, frozen, 30) }, time.Minute},
		"suspended at once":         {func(w *nodeFixture, k Key) { w.setLevelFor(k, frozen, 30); w.setLevelFor(k, running, 4) }, 4 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newNodeFixture(t)
			w.f.Node(1).Info.Levels = []droverv1.Level{running, frozen}
			k, why := w.place()
			if why != "" {
				t.Fatal(why)
			}
			c.live(w, k)
			w.endAttempt(k, droverv1.Phase_PHASE_SUCCEEDED, 0)
			ran, _ := w.f.Deadlines().CompletionsSince(0)
			if len(ran) != 1 || time.Duration(ran[0].RunNS) != c.want {
				t.Fatalf("recorded %v, want one of %s", ran, c.want)
			}
		})
	}
}

// An attempt that resumed by a clock that was ahead has run since no later than now, once the clock is right. Under the rules of
// earlier entries it ran from a time to come on, and counted as one that ran until then.
func TestLevelsReachedTooEarlyStepBackWithTheClock(t *testing.T) {
	const running, frozen = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN
	for rules, back := range map[uint32]bool{violationRules: false, levelStepRules: true} {
		w := newNodeFixture(t)
		w.f.Node(1).Info.Levels = []droverv1.Level{running, frozen}
		right := w.clock + time.Hour
		before, _ := w.place()
		w.setLevelFor(before, frozen, 1)
		w.setLevelFor(before, running, 1)
		reached := w.f.Attempt(before).Suspension.LevelSince
		k, _ := w.place()
		w.clock = right + 24*time.Hour
		w.setLevelFor(k, frozen, 1)
		w.setLevelFor(k, running, 1)
		ahead := w.f.Attempt(k).Suspension.LevelSince
		w.clock = right
		w.apply(&droverv1.Entry{StepRules: rules, Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}})
		want := ahead
		if back {
			want = int64(right)
		}
		if got := w.f.Attempt(k).Suspension.LevelSince; got != want {
			t.Errorf("rules %d: it runs since %d, want %d; it is %d", rules, got, want, w.clock)
		}
		if got := w.f.Attempt(before).Suspension.LevelSince; got != reached {
			t.Errorf("rules %d: what runs since %d runs since %d after the step", rules, reached, got)
		}
	}
	violates := &droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{PolicyStates: []*droverv1.PolicyStateFact{{Kind: violatedState, Job: 1, Slot: 1}}}}}
	if r := New().Clock().ApplyRules(violates, -2*int64(ClockTolerance)); r != levelStepRules {
		t.Errorf("a decision that records a violation and steps back has rules %d", r)
	}
}

// setLevelFor brings an attempt to a level, then advances the clock.
func (w *nodeFixture) setLevelFor(k Key, l droverv1.Level, minutes int) {
	w.t.Helper()
	w.setLevel(k, l)
	w.clock += time.Duration(minutes) * time.Minute
}

func TestCheckpointsAreRestoredOnNodesOfTheirKind(t *testing.T) {
	info := func(change func(*droverv1.NodeInfo)) *droverv1.NodeInfo {
		i := &droverv1.NodeInfo{Driver: "containerd", CpuFlags: []string{"sse"}, Levels: []droverv1.Level{droverv1.Level_LEVEL_CHECKPOINTED},
			Versions: map[string]string{"kernel": "6.1", "criu": "3.17", "runc": "1.1", "dump": "4", "drover": "v2"}}
		change(i)
		return i
	}
	same := func(*droverv1.NodeInfo) {}
	for name, c := range map[string]struct {
		from, to func(*droverv1.NodeInfo)
		want     bool
	}{
		"same":                 {same, same, true},
		"another Drover":       {same, func(i *droverv1.NodeInfo) { i.Versions["drover"] = "v1" }, true},
		"more CPU flags":       {same, func(i *droverv1.NodeInfo) { i.CpuFlags = append(i.CpuFlags, "avx") }, true},
		"fewer CPU flags":      {func(i *droverv1.NodeInfo) { i.CpuFlags = append(i.CpuFlags, "avx") }, same, false},
		"another kernel":       {same, func(i *droverv1.NodeInfo) { i.Versions["kernel"] = "6.2" }, false},
		"another criu":         {same, func(i *droverv1.NodeInfo) { i.Versions["criu"] = "4.0" }, false},
		"a later format":       {func(i *droverv1.NodeInfo) { i.Versions["dump"] = "9" }, func(i *droverv1.NodeInfo) { i.Versions["dump"] = "10" }, true},
		"an earlier format":    {func(i *droverv1.NodeInfo) { i.Versions["dump"] = "10" }, func(i *droverv1.NodeInfo) { i.Versions["dump"] = "9" }, false},
		"a node that is older": {same, func(i *droverv1.NodeInfo) { delete(i.Versions, "dump") }, false},
		"from an older node":   {func(i *droverv1.NodeInfo) { delete(i.Versions, "dump") }, same, true},
		"no checkpoints":       {same, func(i *droverv1.NodeInfo) { i.Levels = nil }, false},
		"another driver":       {same, func(i *droverv1.NodeInfo) { i.Driver = "process" }, false},
	} {
		if got := CanRestore(info(c.from), info(c.to)); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

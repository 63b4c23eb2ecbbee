package coordinator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// drain drains the node of a name; 0 is no deadline.
func (b *testCluster) drain(node string, deadline time.Duration) {
	b.t.Helper()
	if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: node, DeadlineMs: deadline.Milliseconds()})); err != nil {
		b.t.Fatal(err)
	}
}

// nodeStatus returns the status of the node of a name.
func (b *testCluster) nodeStatus(name string) *droverv1.NodeStatus {
	b.t.Helper()
	res, err := b.client.ListNodes(b.ctx, connect.NewRequest(&droverv1.ListNodesRequest{}))
	if err != nil {
		b.t.Fatal(err)
	}
	for _, n := range res.Msg.Nodes {
		if n.Info.GetName() == name {
			return n
		}
	}
	b.t.Fatalf("there is no node %s", name)
	return nil
}

func TestDrainMovesWhatRunsAtItsDeadline(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(levelNode("n1"), levelNode("n2"))
	from := b.lastAttempt("hang").Node
	b.drain(from, time.Hour)
	if n := b.nodeStatus(from); n.DrainDeadlineMs == 0 || len(n.Staying) > 0 || !n.Draining {
		t.Errorf("before the deadline: %v", n)
	}
	b.drain(from, time.Millisecond)
	b.waitUntil("it runs on the other node", func() bool {
		a := b.lastAttempt("hang")
		return a.Node != from && a.Key.Run == 2 && a.Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING && a.Level.GetLevel() == droverv1.Level_LEVEL_RUNNING && a.Level.GetTarget() == 0
	})
	b.waitUntil("the node is drained", func() bool { return b.nodeStatus(from).State == "drained" })
	if story := b.eventLog(); !strings.Contains(story, "task.migrating") || !strings.Contains(story, drainedReason) || strings.Contains(story, "task.lost") {
		t.Errorf("events:\n%s", story)
	}
}

// Without another node the task waits as a checkpoint, over a restart of the
// coordinator too, and no scheduler resumes it on the node that is drained. It resumes
// there when the drain ends, and elsewhere when a node comes.
func TestDrainWithoutAnotherNodeParks(t *testing.T) {
	for name, end := range map[string]struct {
		with func(*testCluster)
		node string
	}{
		"the drain ends": {func(b *testCluster) {
			if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1", Off: true})); err != nil {
				t.Fatal(err)
			}
		}, "n1"},
		"a node comes": {func(b *testCluster) { b.addNode(levelNode("n2"), coordtest.Hang) }, "n2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestCluster(t, nil)
			b.startHangingTask(levelNode("n1"))
			b.drain("n1", time.Millisecond)
			b.waitForLevel("hang", droverv1.Level_LEVEL_CHECKPOINTED)
			b.kill()
			b.start()
			b.waitUntil("the status says why it stays", func() bool {
				return strings.Contains(strings.Join(b.nodeStatus("n1").Staying, ""), "hang main/0: it is checkpointed, and no other node")
			})
			if a := b.lastAttempt("hang"); a.Level.GetLevel() != droverv1.Level_LEVEL_CHECKPOINTED || a.Level.GetTarget() != 0 {
				t.Errorf("after the restart: %v", a.Level)
			}
			end.with(b)
			b.waitUntil("it runs", func() bool {
				a := b.lastAttempt("hang")
				return a.Node == end.node && a.Level.GetLevel() == droverv1.Level_LEVEL_RUNNING && a.Level.GetTarget() == 0
			})
		})
	}
}

// The step off a drained node by the state of an attempt. One that was frozen on its way
// to a checkpoint that fails for good goes on where it is.
func TestEvacuation(t *testing.T) {
	const running, frozen, checkpointed = droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN, droverv1.Level_LEVEL_CHECKPOINTED
	drained, parked := facts.Suspension{Parked: true, Drained: true}, facts.Suspension{Parked: true}
	refused := func(s facts.Suspension, passing bool) facts.Suspension {
		if s.RefusedLevels = 1 << checkpointed; passing {
			s.RefusedLevels, s.TransientRefused = 0, 1<<checkpointed
		}
		return s
	}
	for name, c := range map[string]struct {
		a    facts.Attempt
		want facts.ActionKind // 0: nothing
		park bool             // for the drain
	}{
		"running":                             {facts.Attempt{Level: running}, facts.ActSuspend, true},
		"frozen by the scheduler":             {facts.Attempt{Level: frozen}, facts.ActSuspend, true},
		"frozen by a user":                    {facts.Attempt{Level: frozen, Suspension: parked}, facts.ActSuspend, false},
		"checkpointed by a user":              {facts.Attempt{Level: checkpointed, Suspension: parked}, 0, false},
		"on its way":                          {facts.Attempt{Level: frozen, Target: checkpointed, Suspension: drained}, 0, false},
		"running, refused for good":           {facts.Attempt{Level: running, Suspension: refused(facts.Suspension{}, false)}, 0, false},
		"frozen for the drain, refused":       {facts.Attempt{Level: frozen, Suspension: refused(drained, false)}, facts.ActResume, false},
		"frozen by a user, refused":           {facts.Attempt{Level: frozen, Suspension: refused(parked, false)}, 0, false},
		"frozen for the drain, refused today": {facts.Attempt{Level: frozen, Suspension: refused(drained, true)}, 0, false},
	} {
		c.a.State = facts.AttemptLive
		act, why := evacuation(nil, &facts.Node{Info: levelNode("n1")}, facts.Key{}, &c.a)
		if got := facts.ActionKind(act.GetKind()); got != c.want || act.GetDrain() != c.park || why == "" {
			t.Errorf("%s: action %d, %v, %q", name, got, act, why)
		}
	}
}

// A look moves no task off a node whose drain has ended, or whose deadline was delayed, since the
// loop last followed the facts: no later end of a drain would resume the task.
func TestEvacuationLooksAtTheNodeAsItIsNow(t *testing.T) {
	const deadline = int64(time.Second)
	now := time.Unix(0, deadline+int64(evacuationPause))
	later := now.Add(time.Hour).UnixNano()
	for name, c := range map[string]struct {
		change func(*facts.Node)
		acts   int
		next   time.Time
	}{
		"drained":                   {func(*facts.Node) {}, 1, now.Add(evacuationPause)},
		"the drain has ended":       {func(n *facts.Node) { n.Draining, n.DrainDeadline = false, 0 }, 0, time.Time{}},
		"the deadline was taken":    {func(n *facts.Node) { n.DrainDeadline = 0 }, 0, time.Time{}},
		"the deadline was delayed":  {func(n *facts.Node) { n.DrainDeadline = later }, 0, time.Unix(0, later)},
		"the node was lost":         {func(n *facts.Node) { n.Up = false }, 0, time.Time{}},
		"the deadline is still due": {func(n *facts.Node) { n.DrainDeadline = now.UnixNano() }, 1, now.Add(evacuationPause)},
	} {
		w := newRandomCluster(t, 1)
		w.runOnNode(levelNode("n1"))
		n := w.f.Node(1)
		n.Draining, n.DrainDeadline = true, deadline
		e := evacuations{}
		e.track(n)
		c.change(n)
		if acts, next := e.look(w.f, now); len(acts) != c.acts || !next.Equal(c.next) {
			t.Errorf("%s: %v, the next look at %v, want %d actions and %v", name, acts, next, c.acts, c.next)
		}
	}
}

// What was parked for a drain by an entry that came after the end of the drain, as one that was proposed just before may,
// is resumed by the scheduler.
func TestAnEvacuationThatComesLateParksNothing(t *testing.T) {
	w := newRandomCluster(t, 1)
	k := w.runOnNode(levelNode("n1"))
	drain := func(on bool) {
		d := &droverv1.NodeDrainFact{Node: 1, Draining: on}
		if on {
			d.Deadline = w.now
		}
		w.must(&droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: d}})
	}
	var acts []*droverv1.ActionFact
	propose := func() {
		acts, _ = evacuations{1: 0}.look(w.f, time.Unix(0, w.now).Add(evacuationPause))
	}
	park := func() {
		t.Helper()
		w.must(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: acts}}})
	}
	parked := func(want bool, when string) {
		t.Helper()
		if err := w.p.follow(w.f, w.takeJournal()); err != nil {
			t.Fatal(err)
		}
		if a := w.p.state.Attempt(attemptID(k)); a.Phase != scheduler.AttemptSuspended || a.Parked != want {
			t.Errorf("%s: it is %v, parked %v, want %v", when, a.Phase, a.Parked, want)
		}
	}
	drain(true)
	propose()
	drain(false)
	park()
	seen := &droverv1.SeenAttempt{Key: k.Proto(1), Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_CHECKPOINTED, Occupied: &droverv1.Resources{}}
	w.must(&droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: 1, Epoch: w.f.Node(1).Epoch, Seen: []*droverv1.SeenAttempt{seen}}}})
	parked(false, "suspended after the end of the drain")
	drain(true)
	parked(true, "drained again")
	drain(false)
	parked(false, "the second drain has ended")
	drain(true)
	propose()
	drain(false)
	park() // it was checkpointed, so it was to be parked alone
	parked(false, "parked after the end of a drain")
}

// One look moves a single task to a node on probation; to others it moves as many as there are.
func TestEvacuationMovesOneTaskToANodeOnProbation(t *testing.T) {
	f := facts.New()
	for i := range 3 {
		f.Apply(uint64(i)+1, &droverv1.Entry{Version: facts.EntryVersion, Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info(fmt.Sprint("n", i+1))}}})
	}
	f.Node(2).Probation = true
	move := func(node int32) *droverv1.ActionFact {
		return &droverv1.ActionFact{Kind: int32(facts.ActMigrate), Node: node}
	}
	suspend := &droverv1.ActionFact{Kind: int32(facts.ActSuspend), Node: 2}
	for name, c := range map[string]struct {
		before []*droverv1.ActionFact
		act    *droverv1.ActionFact
		want   bool
	}{
		"the first":              {nil, move(2), false},
		"another goes elsewhere": {[]*droverv1.ActionFact{move(3)}, move(2), false},
		"another goes there":     {[]*droverv1.ActionFact{move(3), move(2)}, move(2), true},
		"another is suspended":   {[]*droverv1.ActionFact{suspend}, move(2), false},
		"to a healthy node":      {[]*droverv1.ActionFact{move(3)}, move(3), false},
		"no move":                {[]*droverv1.ActionFact{move(2)}, suspend, false},
	} {
		if got := joinsProbation(f, c.before, c.act); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Of a decision of the scheduler, which knows nothing of probation, a single task comes to such a node, by a move or as a
// new one: the log drops the second of two new ones alone. A user is told that a node on probation has its task already.
func TestOneTaskMovesToANodeOnProbation(t *testing.T) {
	w := newRandomCluster(t, 1)
	for i := range 3 {
		w.must(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: levelNode(fmt.Sprint("n", i+1))}}})
	}
	job := groupJob("g", 3)
	jobspec.SetDefaults(job)
	text, err := jobspec.Encode(job)
	if err != nil {
		t.Fatal(err)
	}
	w.must(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{ShuffleToken: "t", Spec: string(text)}}})
	key := func(task int32) facts.Key { return facts.Key{Job: w.f.JobIDs()[0], Task: task, Attempt: 1} }
	place := func(task, node int32) {
		t.Helper()
		w.must(&droverv1.Entry{Body: &droverv1.Entry_Decision{Decision: &droverv1.DecisionFact{Actions: []*droverv1.ActionFact{
			{Kind: int32(facts.ActPlace), Key: key(task).Proto(1), Node: node}}}}})
	}
	place(0, 1)
	w.f.Node(2).Probation = true
	move := func(task int32, node scheduler.NodeID) scheduler.Action {
		return scheduler.Action{Kind: scheduler.ActMigrate, Task: taskID(key(task)), Attempt: 1, Run: 2, Node: node}
	}
	start := func(task int32, node scheduler.NodeID) scheduler.Action {
		return scheduler.Action{Kind: scheduler.ActPlace, Task: taskID(key(task)), Attempt: 1, Run: 1, Node: node}
	}
	decide := func(actions ...scheduler.Action) []int {
		var dropped []int
		d := &scheduler.Decision{Actions: actions}
		for _, x := range beyondProbation(w.f, decisionFact(d, func(*scheduler.Action) string { return "" })) {
			dropped = append(dropped, x.Index)
		}
		return dropped
	}
	for name, c := range map[string]struct {
		actions []scheduler.Action
		dropped []int
	}{
		"one":                       {[]scheduler.Action{move(0, 1)}, nil},
		"two":                       {[]scheduler.Action{move(0, 1), move(1, 1)}, []int{1}},
		"two to a healthy node":     {[]scheduler.Action{move(0, 2), move(1, 2)}, nil},
		"one behind a new task":     {[]scheduler.Action{start(1, 1), move(0, 1)}, []int{1}},
		"one before a new task":     {[]scheduler.Action{move(0, 1), start(1, 1)}, nil}, // which the log drops
		"one behind one to another": {[]scheduler.Action{start(1, 2), move(2, 2), move(0, 1)}, nil},
	} {
		if got := decide(c.actions...); !slices.Equal(got, c.dropped) {
			t.Errorf("%s: %v are dropped, want %v", name, got, c.dropped)
		}
	}
	q := &droverv1.SetLevelRequest{Job: "g", Stage: job.Stages[0].Name, Level: droverv1.Level_LEVEL_RUNNING, Node: "n2"}
	if _, _, err := levelAction(w.f, w.f.Job(key(0).Job), q); err != nil {
		t.Errorf("to a node on probation without a task: %v", err)
	}
	w.f.Node(2).Probation = false
	place(1, 2)
	w.f.Node(2).Probation = true
	if got := decide(move(0, 1)); !slices.Equal(got, []int{0}) {
		t.Errorf("%v are dropped while the node has its task", got)
	}
	if _, _, err := levelAction(w.f, w.f.Job(key(0).Job), q); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), facts.DropProbation) {
		t.Errorf("a user moves a second task to a node on probation: %v", err)
	}
}

// What cannot be checkpointed, and what a user suspended, is left as it is, and the
// status says so.
func TestDrainSaysWhatStays(t *testing.T) {
	b := newTestCluster(t, nil)
	b.startHangingTask(coordtest.Info("n1"))
	b.addNode(levelNode("n2"), coordtest.Hang)
	b.drain("n1", time.Millisecond)
	b.waitUntil("it says that the node cannot", func() bool {
		return strings.Join(b.nodeStatus("n1").Staying, "") == "hang main/0: the node cannot checkpoint tasks"
	})
	b.submit(groupJob("parked", 1))
	b.waitUntil("it runs", func() bool { return b.lastAttempt("parked").Seen.GetPhase() == droverv1.Phase_PHASE_RUNNING })
	if err := b.setLevel("parked", droverv1.Level_LEVEL_FROZEN, ""); err != nil {
		t.Fatal(err)
	}
	b.waitForLevel("parked", droverv1.Level_LEVEL_FROZEN)
	b.addNode(levelNode("n3"), coordtest.Hang)
	b.drain("n2", time.Millisecond)
	b.waitForLevel("parked", droverv1.Level_LEVEL_CHECKPOINTED)
	b.waitUntil("it says that a user has to", func() bool {
		return strings.Contains(strings.Join(b.nodeStatus("n2").Staying, ""), "parked main/0: it was suspended by a user: move it to another node (drover task migrate -node NODE JOB STAGE/INDEX)")
	})
	if a := b.lastAttempt("hang"); a.Node != "n1" || a.Key.Run != 1 || a.Level.GetLevel() > droverv1.Level_LEVEL_RUNNING {
		t.Errorf("the task that cannot be checkpointed: %v", a)
	}
	for _, bad := range []*droverv1.DrainNodeRequest{{Node: "n1", DeadlineMs: -1}, {Node: "n1", DeadlineMs: 1 << 62}, {Node: "n1", Off: true, DeadlineMs: 5}} {
		if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(bad)); !errors.Is(wire.FromError(err), fault.Invalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

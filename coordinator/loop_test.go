package coordinator

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// newTestLeader returns a leader of a new cluster that is driven by the test: neither its loop nor a server runs.
func newTestLeader(t *testing.T, change func(*Config)) *leader {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	local, err := ListenLocal(filepath.Join(t.TempDir(), "c.sock")) // nothing is served
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = local.Close() })
	cfg := Config{Dir: filepath.Join(t.TempDir(), "state"), NoSync: true, Local: local}
	if change != nil {
		change(&cfg)
	}
	c, err := open(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	var term uint64
	for end := time.Now().Add(waitLimit); ; {
		if term, err = c.replica.BeginTerm(ctx); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Millisecond)
	}
	l := newLeader(c, term)
	if err := l.start(ctx); err != nil {
		t.Fatal(err)
	}
	return l
}

// mustPropose proposes an entry, which must be accepted.
func mustPropose(t *testing.T, l *leader, e *droverv1.Entry) facts.Result {
	t.Helper()
	res, err := l.c.propose(context.Background(), "test", e)
	if err != nil || res.Err != nil {
		t.Fatal(err, res.Err)
	}
	return res
}

// The nodes of a rack are lost at once: their losses are proposed together, and all jobs are looked at once for inputs that
// were there.
func TestManyNodesAreLostTogether(t *testing.T) {
	const nodes = 30
	var ahead, looks atomic.Int64
	var order []replica.Point // of proposals and answers; nil: nobody asks
	l := newTestLeader(t, func(c *Config) {
		c.Crash = func(p replica.Point, _ uint64) bool {
			if order != nil {
				order = append(order, p)
			}
			return false
		}
		c.Now = func() time.Time {
			if calledBy("(*leader).applyChange") || calledBy("(*leader).applyChanges") {
				looks.Add(1)
			}
			return time.Now().Add(time.Duration(ahead.Load()))
		}
	})
	for i := range nodes {
		mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info(fmt.Sprint("n", i))}}})
	}
	if err := l.followChanges(context.Background()); err != nil {
		t.Fatal(err)
	}
	ahead.Store(int64(2 * l.c.cfg.Lease))
	order = []replica.Point{}
	if _, err := l.expire(context.Background()); err != nil {
		t.Fatal(err)
	}
	if want := append(slices.Repeat([]replica.Point{replica.Before}, nodes), slices.Repeat([]replica.Point{replica.After}, nodes)...); !slices.Equal(order, want) {
		t.Errorf("proposals and answers come as %v: not together", order)
	}
	l.c.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			if n.Up {
				t.Errorf("%s is up", n.Info.GetName())
			}
		}
	})
	looks.Store(0)
	if err := l.followChanges(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := looks.Load(); n != 1 {
		t.Errorf("%d looks at all jobs, want one", n)
	}
}

// Who waits for the end of a job hears of one that came with a step of the clock, too.
func TestTheEndOfAJobIsHeardAlthoughTheClockSteppedBack(t *testing.T) {
	var ahead atomic.Int64
	ahead.Store(int64(time.Hour))
	l := newTestLeader(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	job := groupJob("j", 1)
	jobspec.SetDefaults(job)
	text, err := jobspec.Encode(job)
	if err != nil {
		t.Fatal(err)
	}
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(text)}}})
	if err := l.followChanges(context.Background()); err != nil {
		t.Fatal(err)
	}
	ends := l.c.jobEnded.next()
	ahead.Store(0)
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: 1}}})
	if err := l.followChanges(context.Background()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ends:
	default:
		t.Error("nobody was told")
	}
}

// A decision that was dropped in part may be followed by a journal that has been cut: the log's time went back, or very
// much changed at once.
func TestResyncAfterTheJournalWasCut(t *testing.T) {
	var ahead atomic.Int64
	ahead.Store(int64(time.Hour))
	l := newTestLeader(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) } })
	register := func(name string) facts.Result {
		return mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info(name)}}})
	}
	register("n1")
	if err := l.followChanges(context.Background()); err != nil {
		t.Fatal(err)
	}
	ahead.Store(0)
	n := register("n2")
	if err := l.resync(context.Background(), nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := l.c.wanted.changesSince(nodeEpoch{n.Node, n.Epoch}, 0); !ok {
		t.Error("a node that registered meanwhile is told nothing")
	}
	if l.proj.state.Node(nodeID(n.Node)) == nil {
		t.Error("the scheduler does not know it")
	}
}

// What became of a job's result reaches the log although the log could not be written at first: nothing else ends the job.
func TestOutcomeOfAnIntentIsProposedAgain(t *testing.T) {
	var lost atomic.Int64
	l := newTestLeader(t, func(c *Config) {
		c.Crash = func(p replica.Point, _ uint64) bool { return p == replica.Before && lost.Add(-1) >= 0 }
	})
	lost.Store(2)
	l.intents.proposeOutcome(context.Background(), &droverv1.Entry{Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "test.outcome"}}})
	found := false
	l.c.view(func(f *facts.Facts) {
		for _, e := range f.EventLog().Since(0, facts.MaxClusterEvents) {
			found = found || e.Kind == "test.outcome"
		}
	})
	if !found {
		t.Error("the outcome is not in the log")
	}
}

// What does not fit into one entry is proposed in several: a decision that a new scheduler makes about all jobs, and what a
// node has from before a restore.
func TestLargeProposalsAreDivided(t *testing.T) {
	ctx := context.Background()
	l := newTestLeader(t, nil)
	const tasks = 300
	job := groupJob("j", tasks)
	jobspec.SetDefaults(job)
	text, err := jobspec.Encode(job)
	if err != nil {
		t.Fatal(err)
	}
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: string(text)}}})
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Restored{Restored: &droverv1.RestoredFact{What: "a test"}}})
	info := coordtest.Info("n1")
	id := mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: info}}}).Node

	d := scheduler.Decision{PolicyStates: make([]scheduler.PolicyState, 40_000)}
	for i := range d.PolicyStates {
		d.PolicyStates[i] = scheduler.PolicyState{PolicyStateKey: scheduler.PolicyStateKey{Kind: scheduler.GuaranteeState, Slot: int32(i)}, Value: 1 << 50, At: 1 << 60}
	}
	if _, _, err := l.commit(ctx, d); err != nil {
		t.Errorf("a large decision: %v", err)
	}

	var r droverv1.ReportRequest
	for i := range int32(tasks) {
		r.Attempts = append(r.Attempts, &droverv1.SeenAttempt{Key: &droverv1.AttemptKey{Job: 1, Task: i, Attempt: 1, Run: 1}, Phase: droverv1.Phase_PHASE_RUNNING,
			Level: droverv1.Level_LEVEL_FROZEN, StderrTail: strings.Repeat("x", maxTail), Unknown: &droverv1.UnknownRun{DiskName: info.GetDisks()[0].GetName()}})
	}
	var n *facts.Node
	l.c.view(func(f *facts.Facts) { n = f.Node(id) })
	if err := l.c.findUnknownRuns(ctx, n, &r); err != nil {
		t.Errorf("many unknown runs: %v", err)
	}
	l.c.view(func(f *facts.Facts) {
		if states, runs := len(statesOfPolicies(f)), len(f.AttemptsOn(id)); states != len(d.PolicyStates) || runs != tasks {
			t.Errorf("%d of %d policy states and %d of %d runs are in the facts", states, len(d.PolicyStates), runs, tasks)
		}
	})
}

// Of a large submission that breaks off nothing stays.
func TestStagedSplitsAreDropped(t *testing.T) {
	splits := make([]*droverv1.FactSplit, 3*chunkBytes/100)
	for i := range splits {
		splits[i] = &droverv1.FactSplit{Pieces: []*droverv1.SplitPiece{{Uri: "hdfs:///" + strings.Repeat("x", 100), Length: 1}}}
	}
	ctx, cancel := context.WithCancel(context.Background())
	entries := 0
	l := newTestLeader(t, func(c *Config) {
		c.Crash = func(p replica.Point, _ uint64) bool {
			if entries++; p == replica.After && entries > 6 {
				cancel()
			}
			return false
		}
	})
	entries = 0
	s := &submitter{l.c}
	res, err := s.propose(ctx, identity{}, groupJob("j", 1), "", "", &located{splits: splits}, jobForecast{})
	if err == nil {
		t.Fatalf("it was accepted: %+v", res)
	}
	var snapshot bytes.Buffer
	l.c.view(func(f *facts.Facts) { err = f.Snapshot().Encode(&snapshot) })
	if err != nil || bytes.Contains(snapshot.Bytes(), []byte(`"t":"staging"`)) {
		t.Errorf("%v; staged parts are left in %d bytes", err, snapshot.Len())
	}
}

// A writeFunc is called with each line of a log.
type writeFunc func(line []byte)

func (f writeFunc) Write(line []byte) (int, error) {
	f(line)
	return len(line), nil
}

// An entry of an earlier leader, under the same key, is committed after a submission has looked for one: the folder of the
// job that it accepted stays.
func TestTheFolderOfAnAcceptedJobIsNotRemoved(t *testing.T) {
	var tries atomic.Int32
	l := newTestLeader(t, func(c *Config) {
		c.Logger = slog.New(slog.NewTextHandler(writeFunc(func(line []byte) {
			if bytes.Contains(line, []byte("cannot remove the empty folder")) {
				tries.Add(1)
			}
		}), nil))
	})
	s := &submitter{l.c}
	canceled, cancel := context.WithCancel(t.Context())
	cancel() // a removal is refused, with a line in the log
	job := mapReduceJob("wc", 1)
	job.Tenant = "default"
	propose := func(tag string) facts.Result {
		t.Helper()
		res, err := s.propose(t.Context(), identity{}, job, "k", tag, &located{splits: []*droverv1.FactSplit{{}}}, jobForecast{})
		if err != nil || res.Err != nil {
			t.Fatal(err, res.Err)
		}
		return res
	}
	first := propose("1a")
	for tag, want := range map[string]int32{"1a": 0, "2b": 1} {
		again := propose(tag)
		if again.Changed != 0 || again.Job != first.Job {
			t.Fatalf("the second submission: %+v, the first: %+v", again, first)
		}
		tries.Store(0)
		s.removeOutputFolder(canceled, job, tag, again.Job)
		if got := tries.Load(); got != want {
			t.Errorf("the folder of tag %s was to be removed %d times, want %d", tag, got, want)
		}
	}
}

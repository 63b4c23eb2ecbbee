package coordinator

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/scheduler"
)

// TestReadFailureRelocatesInput lets every map of a job fail once because no
// DataNode serves its block: the input is located again, once for all maps.
func TestReadFailureRelocatesInput(t *testing.T) {
	t.Parallel()
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 6, "n1")
	var mu sync.Mutex
	failed := map[int32]bool{}
	b.addNode(coordtest.Info("n1"), func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		if w.GetSpec().GetKind() == "map" && !failed[w.GetKey().GetTask()] {
			failed[w.GetKey().GetTask()] = true
			return coordtest.Fail(droverv1.Cause_CAUSE_INPUT, "no DataNode has the block")(w)
		}
		return coordtest.Succeed(w)
	})
	b.waitForNodes()
	b.submit(mapReduceJob("wc", 1))
	b.waitForEnd("wc", succeeded)
	b.waitUntil("the input is located again", func() bool { return b.fs.RequestCount("locate") > 1 })
	if n := b.fs.RequestCount("locate"); n != 2 {
		t.Errorf("the input was located %d times, want once at submission and once later", n)
	}
}

// TestPackedSplitsFollowMovedReplicas moves the replicas of a job whose splits
// pack files by their hosts: packed anew, the files would make other splits.
func TestPackedSplitsFollowMovedReplicas(t *testing.T) {
	t.Parallel()
	b := newTestCluster(t, func(c *Config) { c.retainJobs, c.KeepLogs = 0, -1 })
	for i := range 4 {
		b.fs.Input(fmt.Sprint("hdfs:///in/", i), 1, fmt.Sprint("n", 1+i%2))
	}
	var mu sync.Mutex
	failed := map[int32]bool{}
	read := func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
		mu.Lock()
		defer mu.Unlock()
		if w.GetSpec().GetKind() == "map" && !failed[w.GetKey().GetTask()] {
			b.fs.Move("n2")
			failed[w.GetKey().GetTask()] = true
			return coordtest.Fail(droverv1.Cause_CAUSE_INPUT, "no DataNode has the block")(w)
		}
		if b.fs.RequestCount("locate") < 2 {
			return nil // runs until the input is located again
		}
		return coordtest.Succeed(w)
	}
	n1, _ := b.addNode(coordtest.Info("n1"), read)
	n2, _ := b.addNode(coordtest.Info("n2"), read)
	b.waitForNodes()
	j := mapReduceJob("wc", 1)
	j.Input.Paths, j.Input.CombineBytes = []string{"hdfs:///in/*"}, 2<<20
	b.submit(j)
	b.waitUntil("the input is located again", func() bool { return b.fs.RequestCount("locate") > 1 })
	n1.Advance()
	n2.Advance()
	b.waitForEnd("wc", succeeded)
	var got [][]string
	for _, k := range readHistory(t, b, 1)[0].Stages[0].Tasks {
		got = append(got, k.Hosts)
	}
	if d := cmp.Diff([][]string{{"n2"}, {"n2"}}, got); d != "" {
		t.Errorf("nodes with the input of each map: %s", d)
	}
}

// TestInputsHaveTheBytesOnEachNode follows packed splits to State: a node with one of the small files is not where the data is.
func TestInputsHaveTheBytesOnEachNode(t *testing.T) {
	block := func(uri string, n int64, hosts ...string) *droverv1.FileBlock {
		return &droverv1.FileBlock{Uri: uri, Length: n, FileLength: n, Hosts: hosts}
	}
	in, err := planSplits([]*droverv1.FileBlock{block("a", 40, "n1:9866", "n2:9866"), block("b", 50, "n1:9866"), block("whole", 200, "n3:9866", "n1:9866")}, 100)
	if err != nil {
		t.Fatal(err)
	}
	w := newRandomCluster(t, 1)
	w.p.hosts = func(f *facts.Facts, _ uint64) []splitNodes { return in.hosts.nodes(f) }
	for _, name := range []string{"n1", "n2", "n3"} {
		info := coordtest.Info(name)
		info.Rack = "/r-" + name
		w.apply(&droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: info}}})
	}
	j := mapReduceJob("wc", 0)
	jobspec.SetDefaults(j)
	res := w.apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: encoded(t, j), Output: j.Output.Path, Splits: in.splits}}})
	if res.Err != nil {
		t.Fatal(res.Err)
	}
	if err := w.p.rebuild(w.f); err != nil {
		t.Fatal(err)
	}
	stage := scheduler.StageID{Job: scheduler.JobID(res.Job)}
	want := &scheduler.Inputs{Bytes: []int64{90, 200}, Start: []int32{0, 2, 4}, Nodes: []scheduler.NodeID{0, 1, 0, 2}, Local: []int64{90, 40, 200, 200}}
	if d := cmp.Diff(want, w.p.state.Stage(stage).Spec.Inputs); d != "" {
		t.Fatal(d)
	}
	var near []string
	for i := range int32(2) {
		for n := range scheduler.NodeID(3) {
			near = append(near, locality(w.p.state, &scheduler.Action{Task: scheduler.TaskID{Job: stage.Job, Index: i}, Node: n}))
		}
	}
	if d := cmp.Diff([]string{"node", "rack", "remote", "node", "remote", "node"}, near); d != "" {
		t.Errorf("locality of both tasks on each node: %s", d)
	}
	in.hosts.splits[0].bytes = []int64{50, 40} // a replica of a file is gone
	in.hosts.splits[1].bytes = []int64{200, 200}
	if err := w.p.setInputNodes(w.f, res.Job); err != nil {
		t.Fatal(err)
	}
	if _, _, local := w.p.state.Stage(stage).Input(0); !slices.Equal(local, []int64{50, 40}) {
		t.Errorf("after the loss of a replica the nodes have %v", local)
	}
}

func TestSmallFilesWarning(t *testing.T) {
	const mib = 1 << 20
	for name, c := range map[string]struct {
		splits  int
		bytes   int64 // of each
		combine int64
		want    string // the size to write, "" for no warning
	}{
		"1,500 tiny files":              {1500, 3 << 10, 0, "1MiB"},
		"enough to fill larger splits":  {10_000, 100 << 10, 0, "64MiB"},
		"never more than a usual block": {1_000_000, 2 * mib, 0, "128MiB"},
		"few":                           {99, 1, 0, ""},
		"large enough":                  {1000, 4 * mib, 0, ""},
		"packed already":                {1000, 1, 1, ""},
		"nothing":                       {0, 0, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			in := &located{}
			for range c.splits {
				in.splits = append(in.splits, &droverv1.FactSplit{Pieces: []*droverv1.SplitPiece{{Length: c.bytes}}})
			}
			got := smallFilesWarning(&jobspec.Job{Input: &jobspec.Input{CombineBytes: c.combine}}, in)
			if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || !strings.Contains(got[0], fmt.Sprintf("combine = %q", c.want))) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if got := smallFilesWarning(&jobspec.Job{}, &located{}); got != nil {
		t.Errorf("without an input: %q", got)
	}
}

func beginTerm(t *testing.T, c *core) uint64 {
	t.Helper()
	term, err := c.replica.BeginTerm(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// TestLocationsOfForgottenJobsGo has a coordinator lead with a job that is located, which is forgotten when this one no longer
// leads: it follows the entry, or facts that it got at once, or leads again. Locations that a lookup finds after that are not kept.
func TestLocationsOfForgottenJobsGo(t *testing.T) {
	for name, change := range map[string]func(*testing.T, *core, *atomic.Int64){
		"it follows": func(_ *testing.T, c *core, _ *atomic.Int64) { c.followEntries() },
		"it follows, and the changes do not say it": func(t *testing.T, c *core, ahead *atomic.Int64) {
			ahead.Store(0) // a step of the clock is a reset, as a snapshot is
			if _, err := c.propose(t.Context(), "test", &droverv1.Entry{Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "k"}}}); err != nil {
				t.Fatal(err)
			}
			c.followEntries()
		},
		"it leads again": func(t *testing.T, c *core, _ *atomic.Int64) {
			if err := newLeader(c, beginTerm(t, c)).start(t.Context()); err != nil {
				t.Fatal(err)
			}
		},
		"it was being looked up": func(t *testing.T, c *core, _ *atomic.Int64) {
			c.followEntries()
			c.view(func(f *facts.Facts) { c.locations.store(f, 1, &jobHosts{}, c.now()) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			var ahead atomic.Int64
			ahead.Store(int64(48 * time.Hour))
			local, err := net.Listen("tcp", "127.0.0.1:0") // a coordinator has one; nothing is served here
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = local.Close() }()
			c, err := open(t.Context(), Config{Dir: t.TempDir(), Local: local, NoSync: true, Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.close(); err != nil {
					t.Error(err)
				}
			}()
			if err := c.follow(t.Context()); err != nil {
				t.Fatal(err)
			}
			l := newLeader(c, beginTerm(t, c))
			if err := l.start(t.Context()); err != nil {
				t.Fatal(err)
			}
			propose := func(e *droverv1.Entry) {
				t.Helper()
				if res, err := c.propose(t.Context(), "test", e); err != nil || res.Err != nil || res.Changed != 1 {
					t.Fatalf("%+v, %v", res, err)
				}
			}
			j := mapReduceJob("wc", 1)
			jobspec.SetDefaults(j)
			c.locations.addPending("token", &jobHosts{splits: []splitHosts{{hosts: []string{"n1:9866"}}}})
			propose(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: encoded(t, j), ShuffleToken: "token", Splits: []*droverv1.FactSplit{{}}}}})
			if err := l.followChanges(t.Context()); err != nil {
				t.Fatal(err)
			}
			c.locations.reportReadFailure(1, c.now())
			if len(c.locations.jobs) != 1 || len(c.locations.stale) != 1 {
				t.Fatalf("the job is not located: %+v", c.locations)
			}
			propose(&droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: 1}}})
			propose(&droverv1.Entry{Body: &droverv1.Entry_JobsForgotten{JobsForgotten: &droverv1.JobsForgottenFact{Jobs: []uint64{1}}}})
			change(t, c, &ahead)
			if len(c.locations.jobs) != 0 || len(c.locations.stale) != 0 {
				t.Errorf("the forgotten job is still located: %v, stale %v", c.locations.jobs, c.locations.stale)
			}
		})
	}
}

// TestAQuoteChangesNoLocations: what simulates the cluster reads where inputs are. The leader alone takes over what a submission
// found, and asks for what nobody knows.
func TestAQuoteChangesNoLocations(t *testing.T) {
	l := newTestLeader(t, nil)
	mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Info: coordtest.Info("n1")}}})
	at := l.c.locations
	at.addPending("t1", &jobHosts{splits: []splitHosts{{hosts: []string{"n1:9866"}}}})
	for i, token := range []string{"t1", "t2"} {
		j := mapReduceJob(token, 1)
		j.Output.Path += fmt.Sprint(i)
		jobspec.SetDefaults(j)
		mustPropose(t, l, &droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{Spec: encoded(t, j), ShuffleToken: token, Output: j.Output.Path, Splits: []*droverv1.FactSplit{{}}}}})
	}
	(&clientService{core: l.c}).expected(t.Context())
	l.c.view(func(f *facts.Facts) {
		if got := at.resolve(f, 1); len(got) != 1 || len(got[0].nodes) != 1 || at.resolve(f, 2) != nil {
			t.Errorf("before the leader follows job 1 is at %v, job 2 at %v", got, at.resolve(f, 2))
		}
	})
	if len(at.jobs) != 0 || len(at.pending) != 1 || len(at.stale) != 0 {
		t.Errorf("a quote has changed the locations: of jobs %v, pending %v, stale %v", at.jobs, at.pending, at.stale)
	}
	if err := l.followChanges(t.Context()); err != nil {
		t.Fatal(err)
	}
	if at.jobs[1] == nil || len(at.pending) != 0 || len(at.stale) != 1 || !at.stale[2] {
		t.Errorf("after the leader followed: of jobs %v, pending %v, stale %v", at.jobs, at.pending, at.stale)
	}
}

package node

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/mapreduce/harness"
	"github.com/drover-run/drover/node/helper"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime/containerd/logger"
	"github.com/drover-run/drover/runtime/fake"
	"github.com/drover-run/drover/runtime/reuse/taskinit"
)

// TestMain makes this test binary the harness and the helper too, like cmd/drover.
// Those exit at once: os.Exit sleeps for a second under the race detector.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case logger.Verb:
			syscall.Exit(logger.Main(os.Args[2:]))
		case taskinit.Verb:
			syscall.Exit(taskinit.Main(os.Args[2:]))
		case "harness":
			syscall.Exit(harness.Main(os.Args[2:]))
		case intrudeVerb:
			syscall.Exit(intrude(os.Args[2]))
		case "helper":
			syscall.Exit(helper.Main(os.Args[2:]))
		}
	}
	goleak.VerifyTestMain(m)
}

// fakeCoordinator is the coordinator of one node: it streams the state that a test
// wants and stores the node's reports.
type fakeCoordinator struct {
	droverv1connect.UnimplementedNodeServiceHandler

	mu              sync.Mutex
	term            uint64
	epoch           uint64
	clusterEpoch    uint64
	registeredTerm  uint64 // of the last answer to a registration
	oldReports      bool   // reports are answered by the leader that registered the node
	unreachable     bool   // every call fails
	loseAnswers     bool   // registrations have their effect, and are not answered
	protocol        uint32
	owner           *wire.NodeOwner // another daemon's epoch of the node: registrations are refused
	refusals        int
	registrations   int
	leaseMS         int64
	registerAgain   bool // the next report is answered with a request to register again
	revision        uint64
	wanted          map[store.ID]*droverv1.WantedAttempt
	log             []*droverv1.Wanted // deltas since the streams were cut
	changed         chan struct{}      // closed and replaced when log grows or streams are cut
	cutCount        int                // how often the streams were cut
	seen            map[store.ID]*droverv1.SeenAttempt
	answers         map[uint64]*droverv1.NodeResponse
	fullReportCount int
	reportCount     int
	watches         []uint64      // revision from which each watch started
	silent          chan struct{} // if not nil, watches say nothing until it is closed
	blobs           map[string][]byte
	node            *droverv1.NodeInfo // as it last registered
	tokens          []string           // of the registrations
	load            *droverv1.NodeLoad // as last reported
}

func newFakeCoordinator() *fakeCoordinator {
	return &fakeCoordinator{
		term: 1, epoch: 1, protocol: version.Protocol, wanted: map[store.ID]*droverv1.WantedAttempt{}, changed: make(chan struct{}),
		seen: map[store.ID]*droverv1.SeenAttempt{}, answers: map[uint64]*droverv1.NodeResponse{}, blobs: map[string][]byte{},
	}
}

func (b *fakeCoordinator) Register(_ context.Context, r *connect.Request[droverv1.RegisterRequest]) (*connect.Response[droverv1.RegisterResponse], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unreachable {
		return nil, errUnreachable
	}
	if b.owner != nil {
		b.refusals++
		return nil, wire.NameTaken(*b.owner, "the name is taken")
	}
	b.node = r.Msg.GetNode()
	b.registrations++
	b.registeredTerm = b.term
	b.tokens = append(b.tokens, r.Msg.GetRegistration())
	if b.loseAnswers {
		return nil, errUnreachable
	}
	return connect.NewResponse(&droverv1.RegisterResponse{Node: 1, Epoch: b.epoch, Term: b.term, Cluster: "c", ClusterEpoch: b.clusterEpoch, ReportIntervalMs: 50, LeaseMs: b.leaseMS, Protocol: b.protocol}), nil
}

func (b *fakeCoordinator) Watch(ctx context.Context, r *connect.Request[droverv1.WatchRequest], out *connect.ServerStream[droverv1.Wanted]) error {
	b.mu.Lock()
	b.watches = append(b.watches, r.Msg.GetRevision())
	silent := b.silent
	b.mu.Unlock()
	if silent != nil {
		select {
		case <-silent:
		case <-ctx.Done():
			return nil
		}
	}
	b.mu.Lock()
	cut, at := b.cutCount, len(b.log)
	full := &droverv1.Wanted{Term: b.term, Revision: b.revision, Full: true}
	for _, w := range b.wanted {
		full.Put = append(full.Put, w)
	}
	b.mu.Unlock()
	if err := out.Send(full); err != nil {
		return err
	}
	for {
		b.mu.Lock()
		if b.cutCount != cut {
			b.mu.Unlock()
			return wire.Error(fault.New(fault.Unavailable, "cut"))
		}
		more, changed := b.log[at:], b.changed
		at = len(b.log)
		b.mu.Unlock()
		for _, m := range more {
			if err := out.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (b *fakeCoordinator) Report(_ context.Context, r *connect.Request[droverv1.ReportRequest]) (*connect.Response[droverv1.ReportResponse], error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.unreachable {
		return nil, errUnreachable
	}
	if r.Msg.GetFull() {
		b.fullReportCount++
	}
	for _, s := range r.Msg.GetAttempts() {
		b.seen[store.IDOf(s.GetKey())] = s
	}
	b.reportCount++
	b.load = r.Msg.GetLoad()
	for _, a := range r.Msg.GetResponses() {
		b.answers[a.GetId()] = a
	}
	again := b.registerAgain
	b.registerAgain = false
	term := b.term
	if b.oldReports {
		term = b.registeredTerm
	}
	return connect.NewResponse(&droverv1.ReportResponse{Term: term, RegisterAgain: again, LeaseMs: b.leaseMS}), nil
}

func (b *fakeCoordinator) GetBlob(_ context.Context, r *connect.Request[droverv1.GetBlobRequest], out *connect.ServerStream[droverv1.BlobChunk]) error {
	data, ok := b.blobs[r.Msg.GetDigest()]
	if !ok {
		return wire.Error(fault.New(fault.NotFound, "no blob %s", r.Msg.GetDigest()))
	}
	return out.Send(&droverv1.BlobChunk{Data: data[r.Msg.GetOffset():]})
}

var errUnreachable = wire.Error(fault.New(fault.Unavailable, "away"))

func (b *fakeCoordinator) setUnreachable(away bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unreachable = away
}

// setProtocol changes the coordinator's protocol and cuts its streams, as an upgrade
// does. It returns the number of registrations until then.
func (b *fakeCoordinator) setProtocol(v uint32) int {
	b.mu.Lock()
	b.protocol = v
	n := b.registrations
	b.mu.Unlock()
	b.cutStreams()
	return n
}

func (b *fakeCoordinator) registered() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.registrations
}

// send appends a delta to every stream.
func (b *fakeCoordinator) send(m *droverv1.Wanted) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.revision++
	m.Revision = b.revision
	if m.Term == 0 {
		m.Term = b.term
	}
	for _, w := range m.GetPut() {
		b.wanted[store.IDOf(w.GetKey())] = w
	}
	for _, k := range m.GetRemove() {
		delete(b.wanted, store.IDOf(k))
	}
	b.log = append(b.log, m)
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeCoordinator) put(w ...*droverv1.WantedAttempt) { b.send(&droverv1.Wanted{Put: w}) }

func (b *fakeCoordinator) remove(w ...*droverv1.WantedAttempt) {
	m := &droverv1.Wanted{}
	for _, w := range w {
		m.Remove = append(m.Remove, w.GetKey())
	}
	b.send(m)
}

// cutStreams ends all streams, like a coordinator that restarts.
func (b *fakeCoordinator) cutStreams() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cutCount++
	b.log = nil
	close(b.changed)
	b.changed = make(chan struct{})
}

func (b *fakeCoordinator) get(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.seen[store.IDOf(w.GetKey())]
}

// await waits until the attempt is reported in a phase, and returns the report.
func (b *fakeCoordinator) await(t testing.TB, w *droverv1.WantedAttempt, phase droverv1.Phase) *droverv1.SeenAttempt {
	t.Helper()
	poll(t, fmt.Sprintf("attempt %s in %s", store.IDOf(w.GetKey()), phase), func() bool {
		s := b.get(w)
		if s.GetPhase() > phase {
			t.Fatalf("attempt %s: %s %s %q, want %s\n%s", store.IDOf(w.GetKey()), s.GetPhase(), s.GetCause(), s.GetMessage(), phase, s.GetStderrTail())
		}
		return s.GetPhase() == phase
	})
	return b.get(w)
}

func poll(t testing.TB, what string, cond func() bool) {
	t.Helper()
	limit := time.Minute                     // 20 s were too few for a thousand tasks on a busy machine
	if os.Getenv("DROVER_TEST_NODE") != "" { // an emulated machine
		limit = 5 * time.Minute // with other work on the host a container over its memory limit took 90 s
	}
	end := time.NewTimer(limit)
	defer end.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited in vain for: %s", what)
		}
	}
}

// testNode is a fake coordinator, a fake engine and a node that can be stopped and
// restarted.
type testNode struct {
	*fakeCoordinator
	t       testing.TB
	engine  *fake.Engine
	config  Config
	address string // of the node's HTTP server
	stop    func() // stops the daemon, not the tasks
}

func newTestNode(t testing.TB, programs map[string]fake.Program) *testNode {
	t.Helper()
	dir := t.TempDir() // first: it is removed last, when nothing writes there any more
	b := &testNode{fakeCoordinator: newFakeCoordinator(), t: t, engine: fake.New(nil, programs)}
	t.Cleanup(b.engine.Close)
	_, h := droverv1connect.NewNodeServiceHandler(b.fakeCoordinator, connect.WithReadMaxBytes(16<<20)) // as the coordinator
	srv := httptest.NewServer(h)
	t.Cleanup(func() { b.stopDaemon(); b.cutStreams(); srv.CloseClientConnections(); srv.Close() })
	b.config = Config{
		Data: filepath.Join(dir, "data"), Coordinator: droverv1connect.NewNodeServiceClient(srv.Client(), srv.URL),
		Info: &droverv1.NodeInfo{Name: "n1"}, Driver: b.engine.Driver(), AllowRoot: true, Harness: smallHarness(t),
		Grace: 200 * time.Millisecond,
	}
	return b
}

// smallHarness returns a file that replaces the harness in tests that do not run it.
func smallHarness(t testing.TB) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "harness")
	if err := os.WriteFile(p, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return p
}

// start runs the daemon until stopDaemon, and waits for it to register.
func (b *testNode) start() {
	b.t.Helper()
	b.startOnly()()
}

// startOnly runs the daemon until stopDaemon. It returns a function that waits for it to register.
func (b *testNode) startOnly() (wait func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	cfg := b.config
	ready := make(chan string, 1)
	cfg.Ready = func(a string) {
		select {
		case ready <- a:
		default:
		}
	}
	go func() { done <- Run(ctx, cfg) }()
	b.stop = func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Errorf("the daemon ended with %v", err)
		}
		b.stop = nil
	}
	return func() {
		b.t.Helper()
		select {
		case b.address = <-ready:
		case err := <-done:
			cancel()
			b.stop = nil
			b.t.Fatalf("the daemon did not start: %v", err)
		}
	}
}

func (b *testNode) stopDaemon() {
	if b.stop != nil {
		b.stop()
	}
}

// changeRecord changes the record of an attempt while no daemon runs.
func (b *testNode) changeRecord(w *droverv1.WantedAttempt, f func(*store.Record)) {
	b.t.Helper()
	st, err := store.Open(filepath.Join(b.config.Data, StoreFile))
	if err != nil {
		b.t.Fatal(err)
	}
	defer st.Close()
	records, err := st.Records()
	if err != nil {
		b.t.Fatal(err)
	}
	id := store.IDOf(w.GetKey())
	rec := records[id]
	f(&rec)
	if err := st.PutRecord(id, rec); err != nil {
		b.t.Fatal(err)
	}
}

func (b *testNode) attemptFolder(w *droverv1.WantedAttempt) string {
	return filepath.Join(b.config.Data, "attempts", string(store.IDOf(w.GetKey())))
}

// putHangingAndEnded puts two tasks, and returns them when the first runs, which it does until it
// is stopped, and the second has succeeded.
func (b *testNode) putHangingAndEnded(t *testing.T) (hanging, ended *droverv1.WantedAttempt) {
	t.Helper()
	hanging, ended = groupTask(0, "hang"), groupTask(1, "true")
	b.put(hanging, ended)
	b.await(t, hanging, running)
	b.await(t, ended, succeeded)
	return hanging, ended
}

// areRemoved reports whether the engine has no container and the node has none of the attempts'
// folders.
func (b *testNode) areRemoved(t *testing.T, attempts ...*droverv1.WantedAttempt) bool {
	all, err := b.engine.Driver().List(t.Context())
	return err == nil && len(all) == 0 && !slices.ContainsFunc(attempts, func(w *droverv1.WantedAttempt) bool { return pathExists(b.attemptFolder(w)) })
}

// checkNothingLeft waits until the node has no container and no folder.
func (b *testNode) checkNothingLeft() {
	b.t.Helper()
	poll(b.t, "an empty node", func() bool {
		left, err := os.ReadDir(filepath.Join(b.config.Data, "attempts"))
		if err != nil {
			b.t.Fatal(err)
		}
		all, err := b.config.Driver.List(context.Background())
		return err == nil && len(all) == 0 && len(left) == 0
	})
}

func groupTask(task int32, command ...string) *droverv1.WantedAttempt {
	return &droverv1.WantedAttempt{
		Key:  &droverv1.AttemptKey{Job: 1, Task: task, Attempt: 1, Run: 1},
		Goal: droverv1.Goal_GOAL_RUN, Level: droverv1.Level_LEVEL_RUNNING,
		Spec: &droverv1.TaskSpec{JobName: "j", StageName: "s", Tenant: "t", Kind: "group", Command: command, StageTasks: 1,
			Demand: &droverv1.Resources{Cpu: 100, Memory: 64 << 20, Io: 1 << 20}},
	}
}

func with(w *droverv1.WantedAttempt, f func(*droverv1.WantedAttempt)) *droverv1.WantedAttempt {
	f(w)
	return w
}

// programs returns the programs of the fake engine.
func programs() map[string]fake.Program {
	return map[string]fake.Program{
		"true": func(context.Context, *fake.Process) int { return 0 },
		"fail": func(_ context.Context, p *fake.Process) int {
			fmt.Fprintln(p.Stderr, "it went wrong")
			return 3
		},
		"hang": func(ctx context.Context, _ *fake.Process) int { <-ctx.Done(); return 0 },
		"deaf": func(ctx context.Context, p *fake.Process) int { p.Handle(); <-ctx.Done(); return 0 },
		"env": func(_ context.Context, p *fake.Process) int {
			fmt.Fprintln(p.Stdout, strings.Join(p.Spec.Env, "\n"))
			return 0
		},
	}
}

const (
	running   = droverv1.Phase_PHASE_RUNNING
	succeeded = droverv1.Phase_PHASE_SUCCEEDED
	failed    = droverv1.Phase_PHASE_FAILED
	gone      = droverv1.Phase_PHASE_GONE
)

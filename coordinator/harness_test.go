package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/jobspec"
)

func TestMain(m *testing.M) {
	// net/http lingers for half a second after it refused a body.
	// Raft never answers a proposal that is still in its queue when it shuts down.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*conn).closeWriteAndWait"),
		goleak.IgnoreAnyFunction("github.com/hashicorp/raft.(*deferError).Error"))
}

// testCluster is a coordinator with simulated nodes. A test may kill the
// coordinator and restart it on the same folder.
type testCluster struct {
	t    testing.TB
	ctx  context.Context
	dir  string
	sock string
	cfg  Config
	fs   *coordtest.FS

	caFile string // of a cluster made by secure

	client droverv1connect.ClientServiceClient
	http   *http.Client
	nodes  []*coordtest.Node

	cancel context.CancelFunc
	done   chan error

	patience time.Duration // longer than waitLimit, for several coordinators on a slow machine
}

// newTestCluster starts a coordinator; change may alter its configuration
// first.
func newTestCluster(t testing.TB, change func(*Config)) *testCluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "drover") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	b := &testCluster{t: t, ctx: context.Background(), dir: dir, sock: filepath.Join(dir, "c.sock"), fs: coordtest.NewFS()}
	b.cfg = Config{Dir: filepath.Join(dir, "state"), NoSync: true, ReportInterval: 50 * time.Millisecond}
	if testing.Verbose() {
		b.cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	if change != nil {
		change(&b.cfg)
	}
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.sock)
	}}
	b.http = &http.Client{Transport: tr}
	b.client = droverv1connect.NewClientServiceClient(b.http, "http://c")
	t.Cleanup(func() {
		b.kill()
		tr.CloseIdleConnections()
		_ = os.RemoveAll(dir)
	})
	b.start()
	return b
}

// start runs the coordinator until kill or a crash.
func (b *testCluster) start() {
	b.t.Helper()
	l, err := ListenLocal(b.sock)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.ctx)
	cfg := b.cfg
	cfg.Local, cfg.Metrics = l, nil
	b.cancel, b.done = cancel, make(chan error, 1)
	go func(done chan error) { done <- Run(ctx, cfg) }(b.done)
}

// kill stops the coordinator. An orderly stop writes nothing that a kill would
// lose: entries are in the log before they are acknowledged.
func (b *testCluster) kill() {
	if b.cancel == nil {
		return
	}
	b.cancel()
	select {
	case err := <-b.done:
		if err != nil && b.cfg.Crash == nil {
			b.t.Errorf("the coordinator ended with: %v", err)
		}
	case <-time.After(20 * time.Second):
		b.t.Error("the coordinator does not stop")
	}
	b.cancel = nil
}

// addNode adds a simulated node that runs until the test ends or stop is
// called.
func (b *testCluster) addNode(info *droverv1.NodeInfo, how coordtest.Behaviour) (n *coordtest.Node, stop func()) {
	n = coordtest.New(droverv1connect.NewNodeServiceClient(b.http, "http://c"), info, b.fs, how)
	ctx, cancel := context.WithCancel(b.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Run(ctx)
	}()
	stop = func() { cancel(); <-done }
	b.t.Cleanup(stop)
	b.nodes = append(b.nodes, n)
	return n, stop
}

const waitLimit = 20 * time.Second

// waitUntil polls ok until it is true, at most waitLimit or b.patience.
func (b *testCluster) waitUntil(what string, ok func() bool) {
	b.t.Helper()
	limit := max(waitLimit, b.patience)
	began := time.Now()
	for !ok() {
		if time.Since(began) > limit {
			b.t.Fatalf("not within %s: %s\n%s", limit, what, b.eventsSoFar())
		}
		time.Sleep(min(max(2*time.Millisecond, time.Since(began)/16), 20*time.Millisecond)) // a look is often a call
	}
}

// eventLog returns all of the coordinator's events, which must answer.
func (b *testCluster) eventLog() string {
	b.t.Helper()
	log, err := b.readEvents(max(waitLimit, b.patience))
	if err != nil {
		b.t.Fatalf("the events: %v", err)
	}
	return log
}

// eventsSoFar returns what there is of the coordinator's events for the message of a test that has failed: the
// coordinator may be the reason.
func (b *testCluster) eventsSoFar() string {
	log, err := b.readEvents(time.Second)
	if err != nil {
		log += "no more events: " + err.Error() + "\n"
	}
	return log
}

// readEvents returns the coordinator's events, or those before an error.
func (b *testCluster) readEvents(limit time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s, err := b.client.Events(ctx, connect.NewRequest(&droverv1.EventsRequest{}))
	if err != nil {
		return "", err
	}
	defer s.Close()
	var log strings.Builder
	for s.Receive() {
		e := s.Msg()
		fmt.Fprintln(&log, e.Actor, e.Kind, e.Job, e.Task, e.Node, e.Text)
	}
	return log.String(), s.Err()
}

// submit submits a job, which must be accepted, and returns its number.
func (b *testCluster) submit(j *jobspec.Job) uint64 {
	b.t.Helper()
	id, err := b.trySubmit(j, "")
	if err != nil {
		b.t.Fatalf("submit %s: %v", j.Name, err)
	}
	return id
}

func (b *testCluster) trySubmit(j *jobspec.Job, key string) (uint64, error) {
	b.t.Helper()
	jobspec.SetDefaults(j)
	text, err := jobspec.Encode(j)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit)
	defer cancel()
	res, err := b.client.SubmitJob(ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text), IdempotencyKey: key}))
	if err != nil {
		return 0, wire.FromError(err)
	}
	return res.Msg.Job, nil
}

// job returns a job's status, nil after an error.
func (b *testCluster) job(name string) *droverv1.GetJobResponse {
	ctx, cancel := context.WithTimeout(b.ctx, waitLimit/2)
	defer cancel()
	res, err := b.client.GetJob(ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: name}))
	if err != nil {
		return nil
	}
	return res.Msg
}

// waitForEnd waits for a job's end and checks its state.
func (b *testCluster) waitForEnd(name string, want droverv1.JobState) *droverv1.GetJobResponse {
	b.t.Helper()
	var got *droverv1.GetJobResponse
	b.waitUntil("job "+name+" ends", func() bool {
		got = b.job(name)
		return got != nil && ended(got.Job.State)
	})
	if got.Job.State != want {
		b.t.Fatalf("job %s: %s (%s), want %s\n%s", name, got.Job.State, got.Job.Message, want, b.eventsSoFar())
	}
	return got
}

const (
	succeeded = droverv1.JobState_JOB_STATE_SUCCEEDED
	failed    = droverv1.JobState_JOB_STATE_FAILED
	stopped   = droverv1.JobState_JOB_STATE_STOPPED
)

// groupJob returns a job of n tasks.
func groupJob(name string, n int) *jobspec.Job {
	return &jobspec.Job{Name: name, Stages: []jobspec.Stage{{Name: "main", Kind: jobspec.KindGroup, Tasks: n, Command: []string{"true"},
		Resources: jobspec.Resources{CPU: 500, Memory: 64 << 20, IO: 1 << 20}}}}
}

// mapReduceJob returns a job that reads /in and writes /out/<name>, with r
// reduce tasks; 0 for none.
func mapReduceJob(name string, r int) *jobspec.Job {
	small := jobspec.Resources{CPU: 500, Memory: 64 << 20, IO: 1 << 20}
	j := &jobspec.Job{Name: name, Input: &jobspec.Input{Paths: []string{"hdfs:///in"}}, Output: &jobspec.Output{Path: "hdfs:///out/" + name},
		Stages: []jobspec.Stage{{Name: "map", Kind: jobspec.KindMap, Builtin: []string{"wordcount"}, Resources: small}}}
	if r > 0 {
		j.Stages = append(j.Stages, jobspec.Stage{Name: "reduce", Kind: jobspec.KindReduce, Tasks: r, Builtin: []string{"wordcount"}, Resources: small})
	}
	return j
}

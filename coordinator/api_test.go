package coordinator

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

// plainClient returns an HTTP/1.1 client that knows nothing of Connect.
func (b *testCluster) plainClient() *http.Client {
	t := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", b.sock)
	}}
	b.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

func TestPlainJSONOverHTTPWorks(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Succeed)
	b.waitForNodes()
	post := func(method, body string) (int, map[string]any) {
		t.Helper()
		res, err := b.plainClient().Post("http://c/drover.v1.ClientService/"+method, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var out map[string]any
		if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, out
	}
	spec, _ := json.Marshal(`{"version":1,"name":"j","stages":[{"name":"s","kind":"group","command":["x"]}]}`)
	if code, out := post("SubmitJob", `{"spec":`+string(spec)+`}`); code != 200 || out["job"] != "1" {
		t.Fatalf("%d %v", code, out)
	}
	b.waitForEnd("j", succeeded)
	if code, out := post("GetJob", `{"job":"nobody"}`); code != 404 || out["code"] != "not_found" {
		t.Fatalf("%d %v", code, out)
	}
	scrape := func() string {
		res, err := b.plainClient().Get("http://c/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, want := range []string{"drover_nodes_up 1", "drover_leading 1", "drover_actions_total 1", "drover_state_rebuilds_total 0", `drover_jobs_ended_total{state="succeeded"} 1`} {
		b.waitUntil("metrics have "+want, func() bool { return strings.Contains(scrape(), want) })
	}
}

func TestUploadIsStoredByDigestAndCollected(t *testing.T) {
	var ahead atomic.Int64
	b := newTestCluster(t, func(c *Config) {
		c.Now = func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	})
	data := bytes.Repeat([]byte("drover "), 100_000)
	sum := sha256.Sum256(data)
	digest := "sha256:" + hex.EncodeToString(sum[:])
	put := func(data []byte, size int64) error {
		s := b.client.PutBlob(b.ctx)
		for first, rest := true, data; first || len(rest) > 0; first = false {
			n := min(len(rest), 64<<10)
			if err := s.Send(&droverv1.PutBlobRequest{Digest: digest, Size: size, Data: rest[:n]}); err != nil {
				break // the response carries the error
			}
			rest = rest[n:]
		}
		_, err := s.CloseAndReceive()
		return wire.FromError(err)
	}
	if err := put(data[1:], int64(len(data))); !errors.Is(err, fault.Invalid) {
		t.Fatalf("a short upload: %v", err)
	}
	if err := put(data[:10], 2<<30); !errors.Is(err, fault.Exhausted) || !strings.Contains(err.Error(), "over the limit of 512 MiB") {
		t.Fatalf("2 GiB: %v", err)
	}
	if err := put(data, int64(len(data))); err != nil {
		t.Fatal(err)
	}
	has, err := b.client.HasBlobs(b.ctx, connect.NewRequest(&droverv1.HasBlobsRequest{Digests: []string{digest}}))
	if err != nil || len(has.Msg.Missing) != 0 {
		t.Fatalf("%v %v", has, err)
	}
	b.kill()
	b.start()
	n := droverv1connect.NewNodeServiceClient(b.http, "http://c")
	get := func() (got []byte, err error) {
		s, err := n.GetBlob(b.ctx, connect.NewRequest(&droverv1.GetBlobRequest{Digest: digest, Offset: 7}))
		if err != nil {
			return nil, err
		}
		defer s.Close()
		for s.Receive() {
			got = append(got, s.Msg().Data...)
		}
		return got, wire.FromError(s.Err())
	}
	got, err := get()
	if err != nil || !bytes.Equal(got, data[7:]) {
		t.Fatalf("%d bytes from offset 7, %v", len(got), err)
	}
	ahead.Add(int64(2 * time.Hour)) // longer than a file is kept that no job needs
	b.wakeLoop()
	b.waitUntil("it is collected", func() bool { // a client that asks for it would keep it
		_, err := get()
		return errors.Is(err, fault.NotFound)
	})
	has, err = b.client.HasBlobs(b.ctx, connect.NewRequest(&droverv1.HasBlobsRequest{Digests: []string{digest}}))
	if err != nil || !slices.Equal(has.Msg.Missing, []string{digest}) {
		t.Errorf("the collected file is not missing: %v %v", has, err)
	}
}

// secure starts a coordinator that also listens on TCP with mutual TLS.
func secure(t *testing.T) (b *testCluster, as func(name string) *http.Client, base string) {
	return secureWith(t, nil)
}

// secureWith is secure with a changed configuration.
func secureWith(t *testing.T, change func(*Config)) (b *testCluster, as func(name string) *http.Client, base string) {
	dir := t.TempDir()
	if err := pki.CreateCA(dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	issue := func(r pki.CertRequest) pki.Files {
		t.Helper()
		if err := pki.IssueCert(dir, r, time.Now()); err != nil {
			t.Fatal(err)
		}
		return pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, r.Name+".pem"), Key: filepath.Join(dir, r.Name+".key")}
	}
	own := issue(pki.CertRequest{Kind: pki.KindCoordinator, Name: "c", Hosts: []string{"127.0.0.1"}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b = newTestCluster(t, func(c *Config) {
		c.Remote = l
		c.Operators = []string{"user/root"}
		c.CertificatesEvery = 20 * time.Millisecond
		if c.Certificate, err = own.Open(pki.KindCoordinator); err != nil {
			t.Fatal(err)
		}
		if change != nil {
			change(c)
		}
	})
	b.caFile = own.CA
	as = func(name string) *http.Client {
		kind, short, _ := strings.Cut(name, "/")
		conf, err := issue(pki.CertRequest{Kind: pki.Kind(kind), Name: short, Hosts: []string{"127.0.0.1"}}).ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr}
	}
	return b, as, "https://" + l.Addr().String()
}

func TestRightsFollowCertificate(t *testing.T) {
	b, as, base := secure(t)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	_, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "a", Submit: []string{"user/ann"}, Read: []string{"rita"}, Operate: []string{"olaf"}}}}))
	if err != nil {
		t.Fatal(err)
	}
	submit := func(name, job string) error {
		j := groupJob(job, 1)
		j.Tenant = "a"
		jobspec.SetDefaults(j)
		text, _ := jobspec.Encode(j)
		_, err := droverv1connect.NewClientServiceClient(as(name), base).SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text)}))
		return wire.FromError(err)
	}
	if err := submit("user/ann", "j"); err != nil {
		t.Fatal(err)
	}
	get := func(name string) error {
		_, err := droverv1connect.NewClientServiceClient(as(name), base).GetJob(b.ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: "j"}))
		return wire.FromError(err)
	}
	stop := func(name string) error {
		_, err := droverv1connect.NewClientServiceClient(as(name), base).StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "j"}))
		return wire.FromError(err)
	}
	drain := func(name string) error {
		_, err := droverv1connect.NewClientServiceClient(as(name), base).DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1"}))
		return wire.FromError(err)
	}
	register := func(name, node string) error {
		_, err := droverv1connect.NewNodeServiceClient(as(name), base).Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: coordtest.Info(node)}))
		return wire.FromError(err)
	}
	report := func(name string) error {
		_, err := droverv1connect.NewNodeServiceClient(as(name), base).Report(b.ctx, connect.NewRequest(&droverv1.ReportRequest{Node: 1, Epoch: 1}))
		return wire.FromError(err)
	}
	tests := []struct {
		what string
		err  error
		want error
	}{
		{"a stranger submits", submit("user/eve", "k"), fault.Denied},
		{"a reader submits", submit("user/rita", "k"), fault.Denied},
		{"a reader reads", get("user/rita"), nil},
		{"a stranger reads", get("user/eve"), fault.NotFound},
		{"a node reads", get("node/n1"), fault.Denied},
		{"a reader stops", stop("user/rita"), fault.Denied},
		{"a tenant's operator drains a node", drain("user/olaf"), fault.Denied},
		{"the cluster's operator drains a node", drain("user/root"), nil},
		{"a node registers as itself", register("node/n2", "n2"), nil},
		{"a node registers as another", register("node/n2", "n3"), fault.Denied},
		{"a user registers as a node", register("user/ann", "n3"), fault.Denied},
		{"a node reports for another", report("node/n2"), fault.Denied},
		{"the tenant's operator stops", stop("user/olaf"), nil},
	}
	for _, tc := range tests {
		if !errors.Is(tc.err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.what, tc.err, tc.want)
		}
	}
}

func TestCertificateIsRequired(t *testing.T) {
	_, as, base := secure(t)
	c := as("user/x")
	tr := c.Transport.(*http.Transport).Clone()
	tr.TLSClientConfig.GetClientCertificate = nil
	defer tr.CloseIdleConnections()
	if _, err := (&http.Client{Transport: tr}).Get(base + "/metrics"); err == nil { // the server's alert, or a connection that it has closed
		t.Fatal("a caller without a certificate got an answer")
	}
}

// taskServer simulates a node's own server, with canned logs and an echoing
// exec.
type taskServer struct {
	droverv1connect.UnimplementedTaskServiceHandler
}

func (taskServer) Logs(_ context.Context, r *connect.Request[droverv1.LogsRequest], s *connect.ServerStream[droverv1.LogsResponse]) error {
	return s.Send(&droverv1.LogsResponse{Data: []byte(r.Msg.Stream + " of attempt " + string(rune('0'+r.Msg.Key.Attempt)))})
}

func (taskServer) Exec(_ context.Context, s *connect.BidiStream[droverv1.ExecRequest, droverv1.ExecResponse]) error {
	first, err := s.Receive()
	if err != nil {
		return err
	}
	if err := s.Send(&droverv1.ExecResponse{Stdout: []byte(strings.Join(first.Command, " "))}); err != nil {
		return err
	}
	return s.Send(&droverv1.ExecResponse{Ended: true, ExitCode: 3})
}

// nodeWithServer returns a node whose own server is a taskServer.
func nodeWithServer(t *testing.T, b *testCluster) *droverv1.NodeInfo {
	t.Helper()
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	mux := http.NewServeMux()
	mux.Handle(droverv1connect.NewTaskServiceHandler(taskServer{}))
	sock := filepath.Join(b.dir, "n.sock")
	l, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux, Protocols: p, ReadHeaderTimeout: time.Second}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	info := coordtest.Info("n1")
	info.Address = "unix:" + sock
	return info
}

// The logs of an attempt are asked of its node after its job was forgotten too, by
// who may read the job; a command cannot run there any more.
func TestLogsOfAForgottenJob(t *testing.T) {
	b := newTestCluster(t, func(c *Config) { c.retainJobs, c.KeepLogs = 1, -1 })
	b.addNode(nodeWithServer(t, b), coordtest.Succeed)
	b.waitForNodes()
	id := b.submit(groupJob("first", 2))
	for i := range 3 {
		b.submit(groupJob(fmt.Sprint("later", i), 1))
		b.waitForEnd(fmt.Sprint("later", i), succeeded)
	}
	b.waitUntil("it is forgotten", func() bool {
		_, err := b.client.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "first"}))
		return connect.CodeOf(err) == connect.CodeNotFound
	})
	for name, c := range map[string]struct {
		key  *droverv1.AttemptKey
		want string
		code connect.Code
	}{
		"the newest":         {&droverv1.AttemptKey{Job: id, Task: 1}, "stdout of attempt 1", 0},
		"an attempt":         {&droverv1.AttemptKey{Job: id, Attempt: 1}, "stdout of attempt 1", 0},
		"no such attempt":    {&droverv1.AttemptKey{Job: id, Attempt: 2}, "", connect.CodeNotFound},
		"no such task":       {&droverv1.AttemptKey{Job: id, Task: 9}, "", connect.CodeNotFound},
		"a stage below 0":    {&droverv1.AttemptKey{Job: id, Stage: -1}, "", connect.CodeInvalidArgument},
		"a job of no number": {&droverv1.AttemptKey{Job: 99}, "", connect.CodeNotFound},
	} {
		st, err := b.client.Logs(b.ctx, connect.NewRequest(&droverv1.LogsRequest{Key: c.key, Stream: "stdout"}))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if st.Receive() {
			got = string(st.Msg().GetData())
		}
		if err := st.Err(); got != c.want || (err != nil) != (c.code != 0) || err != nil && connect.CodeOf(err) != c.code {
			t.Errorf("%s: %q %v", name, got, err)
		}
		_ = st.Close()
	}
	ex := b.client.Exec(b.ctx)
	_ = ex.Send(&droverv1.ExecRequest{Key: &droverv1.AttemptKey{Job: id}, Command: []string{"ps"}}) // the answer says why
	if _, err := ex.Receive(); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("a command in it: %v", err)
	}
	_ = ex.CloseRequest()
	_ = ex.CloseResponse()
}

func TestLogsAndExecReachNode(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(nodeWithServer(t, b), coordtest.Hang)
	b.waitForNodes()
	id := b.submit(groupJob("j", 1))
	b.waitUntil("it runs", func() bool { return b.job("j").Job.TasksRunning == 1 })
	logs, err := b.client.Logs(b.ctx, connect.NewRequest(&droverv1.LogsRequest{Key: &droverv1.AttemptKey{Job: id}, Stream: "stderr"}))
	if err != nil {
		t.Fatal(err)
	}
	if !logs.Receive() || string(logs.Msg().Data) != "stderr of attempt 1" {
		t.Fatalf("%v %v", logs.Msg(), logs.Err())
	}
	_ = logs.Close()
	ex := b.client.Exec(b.ctx)
	if err := ex.Send(&droverv1.ExecRequest{Key: &droverv1.AttemptKey{Job: id}, Command: []string{"ps", "aux"}}); err != nil {
		t.Fatal(err)
	}
	out, err1 := ex.Receive()
	end, err2 := ex.Receive()
	if err := errors.Join(err1, err2); err != nil || string(out.Stdout) != "ps aux" || end.ExitCode != 3 {
		t.Fatalf("%v %v %v", out, end, err)
	}
	_ = ex.CloseRequest()
	_ = ex.CloseResponse()
}

// silentRelay forwards connections to the socket at the path until it is silent. Then it takes what comes, and forwards
// nothing, as a network does to a machine that is gone.
func silentRelay(t *testing.T, to string) (address string, silent *atomic.Bool) {
	t.Helper()
	silent = new(atomic.Bool)
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "relay.sock"))
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	forward := func(from, to net.Conn) {
		defer from.Close()
		defer to.Close()
		b := make([]byte, 4096)
		for {
			n, err := from.Read(b)
			if err != nil {
				return
			}
			if silent.Load() {
				continue
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			wg.Go(func() { forward(in, out) })
			wg.Go(func() { forward(out, in) })
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return "unix:" + l.Addr().String(), silent
}

// TestANodeThatDiesEndsItsStreams: a machine that is gone closes no connection, and the kernel gives one up after a quarter
// of an hour.
func TestANodeThatDiesEndsItsStreams(t *testing.T) {
	b := newTestCluster(t, nil)
	path, _ := strings.CutPrefix(nodeWithServer(t, b).Address, "unix:")
	address, silent := silentRelay(t, path)
	p := newProxy(nil)
	p.pingAfter = 300 * time.Millisecond
	defer p.close()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for _, dead := range []bool{false, true} {
		silent.Store(dead)
		st, err := p.node(address).tasks.Logs(ctx, connect.NewRequest(&droverv1.LogsRequest{Key: &droverv1.AttemptKey{Attempt: 1}, Stream: "stdout"}))
		answered := false
		if err == nil {
			answered = st.Receive()
			err = st.Err()
			_ = st.Close()
		}
		if err = nodeError(err); answered == dead || dead && !errors.Is(err, fault.Unavailable) {
			t.Errorf("dead %t: an answer %t, %v", dead, answered, err)
		}
	}
}

// TestErrorsOfANodeThatDropsPackets: a dial that ends by its own time limit says, as one that is refused, that the node does
// not answer.
func TestErrorsOfANodeThatDropsPackets(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code connect.Code
		text string
	}{
		"dropped": {connect.NewError(connect.CodeDeadlineExceeded, &net.OpError{Op: "dial", Err: context.DeadlineExceeded}), connect.CodeUnavailable, "the node does not answer: dial: "},
		"refused": {connect.NewError(connect.CodeUnavailable, &net.OpError{Op: "dial", Err: os.ErrPermission}), connect.CodeUnavailable, "the node does not answer: dial: "},
		"its own": {connect.NewWireError(connect.CodeNotFound, errors.New("there is no such log")), connect.CodeNotFound, "there is no such log"},
	} {
		var sent *connect.Error
		if err := wire.Error(nodeError(c.err)); !errors.As(err, &sent) || sent.Code() != c.code || !strings.HasPrefix(sent.Message(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestStreamsEndOnStop(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("j", 1))
	watch, err := b.client.WatchJob(b.ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: "j"}))
	if err != nil || !watch.Receive() {
		t.Fatal(err, watch.Err())
	}
	events, err := b.client.Events(b.ctx, connect.NewRequest(&droverv1.EventsRequest{Follow: true}))
	if err != nil || !events.Receive() {
		t.Fatal(err)
	}
	b.kill()
	for watch.Receive() {
		continue
	}
	for events.Receive() {
		continue
	}
	if connect.CodeOf(watch.Err()) != connect.CodeUnavailable || connect.CodeOf(events.Err()) != connect.CodeUnavailable {
		t.Fatalf("%v; %v", watch.Err(), events.Err())
	}
	_, _ = watch.Close(), events.Close()
}

// TestListenLocalReplacesNothingButASocket: -socket may be a slip of the keyboard,
// and what stands at that path is then a file of somebody.
func TestListenLocalReplacesNothingButASocket(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := errors.Join(os.WriteFile(file, []byte("precious"), 0o600), os.Symlink(file, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, dir} {
		l, err := ListenLocal(path)
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "is no socket: name another path with -socket") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if b, err := os.ReadFile(link); err != nil || string(b) != "precious" {
		t.Errorf("the file has %q, %v", b, err)
	}
	if _, err := ListenLocal(filepath.Join(dir, strings.Repeat("s", 120))); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "too long for Linux: name a shorter one with -socket") {
		t.Errorf("a long path: %v", err)
	}
}

func TestListenLocalIsPrivateAndReplacesStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d", "c.sock")
	l, err := ListenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ListenLocal(path); !errors.Is(err, fault.Conflict) {
		t.Fatalf("a second listener: %v", err)
	}
	if err := l.(*localListener).Listener.Close(); err != nil { // as after a kill: the socket remains
		t.Fatal(err)
	}
	l, err = ListenLocal(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

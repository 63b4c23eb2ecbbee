package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/runtime/fake"
)

// tasks returns a client of the node's HTTP server. Exec needs HTTP/2.
func (b *testNode) tasks() droverv1connect.TaskServiceClient {
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p, DialContext: unixhttp.DialContext(&net.Dialer{})}
	b.t.Cleanup(tr.CloseIdleConnections)
	return droverv1connect.NewTaskServiceClient(&http.Client{Transport: tr}, "http://"+unixhttp.Host(b.address))
}

func (b *testNode) logs(r *droverv1.LogsRequest) (string, error) {
	s, err := b.tasks().Logs(b.t.Context(), connect.NewRequest(r))
	if err != nil {
		return "", err
	}
	defer s.Close()
	var text strings.Builder
	for s.Receive() {
		text.Write(s.Msg().GetData())
	}
	return text.String(), s.Err()
}

func TestLogs(t *testing.T) {
	say := make(chan string)
	b := newTestNode(t, map[string]fake.Program{"talk": func(_ context.Context, p *fake.Process) int {
		for s := range say {
			fmt.Fprintln(p.Stdout, s)
		}
		return 0
	}})
	b.start()
	w := groupTask(0, "talk")
	b.put(w)
	b.await(t, w, running)
	say <- "one"
	say <- "two"
	followed := make(chan string)
	go func() {
		text, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey(), Follow: true})
		followed <- fmt.Sprint(text, err)
	}()
	say <- "three"
	close(say)
	b.await(t, w, succeeded)
	if got := <-followed; got != "one\ntwo\nthree\n<nil>" {
		t.Errorf("followed: %q", got)
	}
	for name, c := range map[string]struct {
		r    *droverv1.LogsRequest
		want string
		code connect.Code
	}{
		"all of an ended task": {&droverv1.LogsRequest{Key: w.GetKey()}, "one\ntwo\nthree\n", 0},
		"its tail":             {&droverv1.LogsRequest{Key: w.GetKey(), Stream: "stdout", Tail: 2}, "two\nthree\n", 0},
		"a longer tail":        {&droverv1.LogsRequest{Key: w.GetKey(), Tail: 20}, "one\ntwo\nthree\n", 0},
		"an empty stream":      {&droverv1.LogsRequest{Key: w.GetKey(), Stream: "stderr"}, "", 0},
		"no such stream":       {&droverv1.LogsRequest{Key: w.GetKey(), Stream: "../x"}, "", connect.CodeInvalidArgument},
		"not yet here":         {&droverv1.LogsRequest{Key: groupTask(9).GetKey(), Follow: true}, "", connect.CodeNotFound},
		"of no job here":       {&droverv1.LogsRequest{Key: &droverv1.AttemptKey{Job: 9, Attempt: 1, Run: 1}}, "", connect.CodeNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := b.logs(c.r)
			if got != c.want || connect.CodeOf(err) != c.code && c.code != 0 || c.code == 0 && err != nil {
				t.Errorf("%q %v, want %q", got, err, c.want)
			}
		})
	}
}

// The logs of an attempt outlive it on the node, over a restart of the daemon, until
// there are too many.
func TestLogsOutliveTheAttempt(t *testing.T) {
	b := newTestNode(t, map[string]fake.Program{"say": func(_ context.Context, p *fake.Process) int {
		fmt.Fprintln(p.Stdout, "said")
		return 0
	}})
	b.start()
	w := groupTask(0, "say")
	b.put(w)
	b.await(t, w, succeeded)
	b.remove(w)
	b.checkNothingLeft()
	check := func() {
		t.Helper()
		if text, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey(), Follow: true}); text != "said\n" || err != nil {
			t.Errorf("%q %v", text, err)
		}
	}
	check()
	b.stopDaemon()
	b.start()
	check()
	b.stopDaemon()
	b.config.KeepLogBytes, b.config.CollectEvery = -1, time.Millisecond
	b.start()
	poll(t, "the logs are removed", func() bool {
		_, err := b.logs(&droverv1.LogsRequest{Key: w.GetKey()})
		return connect.CodeOf(err) == connect.CodeNotFound && strings.Contains(err.Error(), "-keep-logs-size")
	})
}

// Across rotations no line is lost or duplicated.
func TestLogsAcrossRotations(t *testing.T) {
	dir := folder(t.TempDir())
	if err := os.Mkdir(dir.logs(), 0o755); err != nil {
		t.Fatal(err)
	}
	name := func(suffix string) string { return dir.join(nameLogs, "stdout.log"+suffix) }
	line := 0
	appendLines := func(n int) {
		f, err := os.OpenFile(name(""), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for range n {
			line++
			fmt.Fprintf(f, "%d\n", line)
		}
	}
	rotate := func() {
		for _, r := range [][2]string{{".1", ".2"}, {"", ".1"}} {
			if err := os.Rename(name(r[0]), name(r[1])); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
	}
	l, err := openLogs(dir, "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var got strings.Builder
	read := func() {
		if err := l.copy(func(b []byte, _ int64) error { got.Write(b); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	read() // before there is any file
	appendLines(3)
	read()
	appendLines(2)
	rotate()
	appendLines(2)
	rotate()
	appendLines(1)
	read()
	rotate()
	read() // the current file does not exist yet
	appendLines(2)
	read()
	var want strings.Builder
	for i := range line {
		fmt.Fprintf(&want, "%d\n", i+1)
	}
	if got.String() != want.String() {
		t.Errorf("got %q, want %q", got.String(), want.String())
	}
	for n, want := range map[int64]string{1: "10\n", 2: "9\n10\n", 4: "7\n8\n9\n10\n", 99: "6\n7\n8\n9\n10\n"} {
		tail, err := openLogs(dir, "stdout")
		if err != nil {
			t.Fatal(err)
		}
		if err := tail.seekTail(n); err != nil {
			t.Fatal(err)
		}
		got.Reset()
		if err := tail.copy(func(b []byte, _ int64) error { got.Write(b); return nil }); err != nil || got.String() != want {
			t.Errorf("the last %d lines: %q %v", n, got.String(), err)
		}
		tail.close()
	}
}

func TestExec(t *testing.T) {
	p := programs()
	p["cat"] = func(_ context.Context, p *fake.Process) int {
		b, err := io.ReadAll(p.Stdin)
		if err != nil {
			return 1
		}
		fmt.Fprintf(p.Stdout, "got %s", b)
		return 5
	}
	b := newTestNode(t, p)
	b.start()
	w := groupTask(0, "hang")
	b.put(w)
	b.await(t, w, running)
	run := func(k *droverv1.AttemptKey, args ...string) (string, int32, error) {
		s := b.tasks().Exec(t.Context())
		if err := s.Send(&droverv1.ExecRequest{Key: k, Command: args, Stdin: []byte("he")}); err != nil {
			return "", 0, err
		}
		// io.EOF: the server has answered already; Receive returns the answer.
		if err := s.Send(&droverv1.ExecRequest{Stdin: []byte("llo"), StdinEnd: true}); err != nil && !errors.Is(err, io.EOF) {
			return "", 0, err
		}
		defer s.CloseRequest()
		out := ""
		for {
			m, err := s.Receive()
			if err != nil {
				return out, 0, err
			}
			out += string(m.GetStdout())
			if m.GetEnded() {
				return out, m.GetExitCode(), s.CloseResponse()
			}
		}
	}
	if out, code, err := run(w.GetKey(), "cat"); out != "got hello" || code != 5 || err != nil {
		t.Errorf("exec: %q %d %v", out, code, err)
	}
	if _, _, err := run(w.GetKey(), "nosuch"); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("no such command: %v", err)
	}
	if _, _, err := run(groupTask(9).GetKey(), "cat"); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("no such attempt: %v", err)
	}
}

// getStatus returns the status of a GET of the node's server.
func (b *testNode) getStatus(path string) int {
	b.t.Helper()
	tr := &http.Transport{DialContext: unixhttp.DialContext(&net.Dialer{})}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get("http://" + unixhttp.Host(b.address) + path)
	if err != nil {
		b.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}

func TestMetricsAndHealth(t *testing.T) {
	b := newTestNode(t, programs())
	b.start()
	w := groupTask(0, "true")
	b.put(w)
	b.await(t, w, succeeded)
	get := func(path string) (int, string) {
		tr := &http.Transport{DialContext: unixhttp.DialContext(&net.Dialer{})}
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get("http://" + unixhttp.Host(b.address) + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, `drover_node_steps_total{result="ok",step="start"} 1`) {
		t.Errorf("%d\n%s", code, body)
	}
	if code, body := get("/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("healthy: %d %q", code, body)
	}
	b.engine.Down(true)
	code, body := get("/healthz")
	for end := time.Now().Add(10 * time.Second); code == 200 && time.Now().Before(end); { // it answered lately
		code, body = get("/healthz")
	}
	if code != 503 || !strings.Contains(body, "container engine fake") {
		t.Errorf("without its engine: %d %q", code, body)
	}
	b.engine.Down(false)
}

func TestPortRequiresTLS(t *testing.T) {
	b := newTestNode(t, programs())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b.config.Listener = l
	if err := Run(t.Context(), b.config); err == nil || !strings.Contains(err.Error(), "would answer anybody") {
		t.Errorf("%v", err)
	}
	g := newPeerGuard(&Config{tls: &tls.Config{MinVersion: tls.VersionTLS13}})
	called := false
	h := g.requireCoordinator(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called = true }))
	peer := func(name string) *tls.ConnectionState {
		if name == "" {
			return &tls.ConnectionState{}
		}
		return &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: name}}}}}
	}
	for name, want := range map[string]bool{"": false, "user/alice": false, "node/n2": false, "coordinator/c1": true} {
		rec := &statusWriter{}
		called = false
		h.ServeHTTP(rec, &http.Request{TLS: peer(name)})
		if called != want || (!want && rec.status != http.StatusForbidden) {
			t.Errorf("certificate %q: status %d, called %v", name, rec.status, called)
		}
	}
}

type statusWriter struct{ status int }

func (w *statusWriter) Header() http.Header         { return http.Header{} }
func (w *statusWriter) Write(b []byte) (int, error) { return len(b), nil }
func (w *statusWriter) WriteHeader(s int)           { w.status = s }

func TestFilesStayInTheirFolder(t *testing.T) {
	dir := folder(filepath.Join(t.TempDir(), "a"))
	if err := dir.create(t.Context(), true, allowed, allowed); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"../x", "/etc/x", ".drover/spec.json", ".drover", "a/../../x"} {
		if err := dir.putFile(bad, 0, uint32(os.Geteuid()), func(f *os.File) error { _, err := f.WriteString("x"); return err }); err == nil {
			t.Errorf("file name %q was taken", bad)
		}
	}
	if err := os.Symlink("/etc/passwd", dir.metaPath(nameResult)); err != nil {
		t.Fatal(err)
	}
	if _, err := dir.readTaskFile(filepath.Join(nameMeta, nameResult), 1<<20); err == nil {
		t.Error("a link out of the folder was followed")
	}
	if err := os.Symlink(t.TempDir(), filepath.Join(dir.task(), "link")); err != nil {
		t.Fatal(err)
	}
	if err := dir.trim(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir.task())
	if err != nil || len(left) != 1 || left[0].Name() != nameMeta || dir.isComplete() {
		t.Errorf("after trim: %v %v", left, err)
	}
}

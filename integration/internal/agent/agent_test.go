package agent

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/internal/seed"
)

// testTimeout is generous: a test that reaches it has failed.
const testTimeout = 30 * time.Second

// serve runs a server on a socket and returns a client of it.
func serve(t *testing.T) *Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	server := new(Server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		server.KillStarted()
	})
	return &Client{Name: "test", Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func TestExec(t *testing.T) {
	tests := map[string]struct {
		request          Request
		in               string
		wantOut, wantErr string
		wantCode         int
	}{
		"output, errors and exit code are separate": {
			request: Request{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}},
			wantOut: "out\n", wantErr: "err\n", wantCode: 3},
		"input reaches the command": {
			request: Request{Argv: []string{"cat"}}, in: "some words", wantOut: "some words"},
		"a command need not read its input": {
			request: Request{Argv: []string{"true"}}, in: strings.Repeat("x", 3<<20)},
		"environment and folder are set": {
			request: Request{Argv: []string{"sh", "-c", "echo $A; pwd"}, Env: []string{"A=b"}, Dir: "/"},
			wantOut: "b\n/\n"},
		"a killed command's code is 128 and the signal": {
			request: Request{Argv: []string{"sh", "-c", "kill -9 $$"}}, wantCode: 137},
		"a child that keeps the output open does not delay the answer": {
			request: Request{Argv: []string{"sh", "-c", "sleep 600 & echo done"}}, wantOut: "done\n"},
		"a terminal translates line ends": {
			request: Request{Argv: []string{"sh", "-c", "stty size; test -t 0 && echo tty"}, TTY: true, Rows: 11, Cols: 22},
			wantOut: "11 22\r\ntty\r\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := serve(t)
			var out, errs bytes.Buffer
			tt.request.Op = Exec
			s := Streams{Out: &out, Err: &errs}
			if tt.in != "" || !tt.request.TTY {
				s.In = strings.NewReader(tt.in)
			}
			end, err := c.Do(testContext(t), tt.request, s)
			if err != nil {
				t.Fatal(err)
			}
			if out.String() != tt.wantOut || errs.String() != tt.wantErr || end.Code != tt.wantCode {
				t.Errorf("got %q, %q, code %d; want %q, %q, code %d",
					out.String(), errs.String(), end.Code, tt.wantOut, tt.wantErr, tt.wantCode)
			}
		})
	}
}

func TestAgentErrorsDifferFromCommandErrors(t *testing.T) {
	tests := map[string]Request{
		"no such program":              {Op: Exec, Argv: []string{"/does/not/exist"}},
		"no command":                   {Op: Exec},
		"unknown operation":            {Op: 99},
		"process of another parent":    {Op: Status, PID: 1},
		"signal to an unknown process": {Op: Signal, PID: 1, Signal: 9},
		"missing file":                 {Op: Get, Path: "/does/not/exist"},
		"folder":                       {Op: Get, Path: "/"},
		"start without a log":          {Op: Start, Argv: []string{"true"}},
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := serve(t).Do(testContext(t), r, Streams{}); err == nil {
				t.Error("no error")
			}
		})
	}
}

func TestACommandDiesWithItsClient(t *testing.T) {
	c := serve(t)
	ctx, cancel := context.WithCancel(testContext(t))
	pidFile := filepath.Join(t.TempDir(), "pid")
	started := make(chan error, 1)
	go func() {
		_, err := c.Do(ctx, Request{Op: Exec, Argv: []string{"sh", "-c", "echo $$ >" + pidFile + ".part; mv " + pidFile + ".part " + pidFile + "; sleep 600"}}, Streams{})
		started <- err
	}()
	var pid string
	wait(t, "the command's start", func() bool {
		b, err := os.ReadFile(pidFile)
		pid = strings.TrimSpace(string(b))
		return err == nil
	})
	cancel()
	if err := <-started; err == nil {
		t.Error("no error from a cancelled command")
	}
	wait(t, "the command's end", func() bool {
		_, err := os.Stat("/proc/" + pid)
		return err != nil
	})
}

// wait polls a condition up to the limit. (Package testbed has such a function too, but imports
// this package.)
func wait(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(testTimeout); !condition(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited %v for %s", testTimeout, what)
		}
	}
}

func TestAStartedProcessOutlivesItsConnection(t *testing.T) {
	c, ctx := serve(t), testContext(t)
	log := filepath.Join(t.TempDir(), "folder", "log")
	end, err := c.Do(ctx, Request{Op: Start, Argv: []string{"sh", "-c", "echo started; sleep 600"}, Log: log}, Streams{})
	if err != nil {
		t.Fatal(err)
	}
	wait(t, "its output", func() bool {
		b, err := os.ReadFile(log)
		return err == nil && string(b) == "started\n"
	})
	status := func() End {
		e, err := c.Do(ctx, Request{Op: Status, PID: end.PID}, Streams{})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	if !status().Running {
		t.Fatal("it has ended")
	}
	if _, err := c.Do(ctx, Request{Op: Signal, PID: end.PID, Signal: int(syscall.SIGTERM)}, Streams{}); err != nil {
		t.Fatal(err)
	}
	wait(t, "its end", func() bool { return !status().Running })
	if got := status().Code; got != 128+15 {
		t.Errorf("code %d", got)
	}
}

func TestFilesArriveWholeWithTheirMode(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 0))
	c, ctx, dir := serve(t), testContext(t), t.TempDir()
	for _, size := range []int{0, 1, maxFrame - 1, maxFrame, maxFrame + 1, 3*maxFrame + r.IntN(maxFrame)} {
		b := make([]byte, size)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		local, remote, back := filepath.Join(dir, "local"), filepath.Join(dir, "new", "remote"), filepath.Join(dir, "back")
		if err := os.WriteFile(local, b, 0o751); err != nil {
			t.Fatal(err)
		}
		if err := c.PutFile(ctx, local, remote, 0); err != nil {
			t.Fatal(err)
		}
		if i, err := os.Stat(remote); err != nil || i.Mode().Perm() != 0o751 {
			t.Errorf("size %d: %v, %v", size, i.Mode(), err)
		}
		if err := c.GetFile(ctx, remote, back); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, b) {
			t.Errorf("size %d: came back different (%d bytes, %v)", size, len(got), err)
		}
	}
}

func TestABrokenUploadLeavesTheOldFile(t *testing.T) {
	c, dir := serve(t), t.TempDir()
	remote := filepath.Join(dir, "f")
	if err := os.WriteFile(remote, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	in, out := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := c.Do(ctx, Request{Op: Put, Path: remote, Mode: 0o644}, Streams{In: in})
		done <- err
	}()
	out.Write([]byte("new"))
	wait(t, "the part file", func() bool {
		_, err := os.Stat(remote + ".part")
		return err == nil
	})
	cancel()
	if err := <-done; err == nil {
		t.Error("no error")
	}
	wait(t, "the part file's removal", func() bool {
		_, err := os.Stat(remote + ".part")
		return err != nil
	})
	if b, err := os.ReadFile(remote); err != nil || string(b) != "old" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestIdentityAfterNoise(t *testing.T) {
	id := Identity{Name: "n2", IP: "10.77.0.12", Gateway: "10.77.0.1", Now: time.Unix(1700000000, 5).UTC()}
	line, err := id.Line()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]string{
		"as sent":                            line,
		"without its first bytes":            line[40:],
		"after a line without its beginning": line[70:] + line,
		"after a line with lost bytes":       line[:80] + line[90:] + line,
		"after garbage":                      "\x00\xff\n\n  zz\n" + line,
	}
	for name, text := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := ReadIdentity(strings.NewReader(text))
			if err != nil || got != id {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
	if _, err := ReadIdentity(strings.NewReader(line[:len(line)-10] + "\n")); err == nil {
		t.Error("a truncated line was accepted")
	}
}

func FuzzReadFrame(f *testing.F) {
	var b bytes.Buffer
	(&frames{w: &b}).send(kindOutput, []byte("hello"))
	f.Add(b.Bytes())
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	fuzztest.Run(f, func(t *testing.T, in []byte) {
		k, p, err := readFrame(bytes.NewReader(in))
		if err != nil {
			return
		}
		var again bytes.Buffer
		if err := (&frames{w: &again}).send(k, p); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.Bytes(), in[:again.Len()]) {
			t.Errorf("%x was read from %x", again.Bytes(), in)
		}
	})
}

func FuzzReadIdentity(f *testing.F) {
	line, err := Identity{Name: "n1", Now: time.Unix(0, 0).UTC()}.Line()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	fuzztest.Run(f, func(t *testing.T, in string) {
		ReadIdentity(strings.NewReader(in))
	})
}

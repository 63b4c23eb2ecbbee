package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// localDataNode serves requests for files on a Unix socket until the test ends: status, then a file
// with the digits of a block without checksums. It counts the requests.
type localDataNode struct {
	socket   string
	status   uint64
	mu       sync.Mutex
	requests int
}

const digits = "0123456789"

func startLocalDataNode(t *testing.T, status uint64) *localDataNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "dn") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	d := &localDataNode{socket: filepath.Join(dir, "dn.9866"), status: status}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket, Net: "unix"})
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "data"), bytes.Repeat([]byte(digits), blockBytes/len(digits)), 0o600),
		os.WriteFile(filepath.Join(dir, "meta"), []byte{0, 1, 0, 0, 0, 2, 0}, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			d.serve(conn, dir)
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
		os.RemoveAll(dir)
	})
	return d
}

func (d *localDataNode) serve(conn *net.UnixConn, dir string) {
	defer conn.Close()
	_, _ = conn.Read(make([]byte, 1000))
	d.mu.Lock()
	d.requests++
	d.mu.Unlock()
	_, _ = conn.Write(wire.Message(nil).Delimited(wire.Message(nil).Uint(1, d.status).Uint(6, 1)))
	if d.status != 0 {
		return
	}
	data, err := os.Open(filepath.Join(dir, "data"))
	meta, merr := os.Open(filepath.Join(dir, "meta"))
	if errors.Join(err, merr) == nil {
		_, _, _ = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(data.Fd()), int(meta.Fd())), nil)
		data.Close()
		meta.Close()
	}
}

func (d *localDataNode) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.requests
}

// newShortCircuitClient returns a client of a file of three blocks, whose DataNodes 10.0.0.1 to
// 10.0.0.3 send nothing but digits over TCP. The first two are on this machine.
func newShortCircuitClient(t *testing.T, socket string, verify func(string) (string, error), events Events) *Client {
	return newCallerClient(t, &fakeNameNode{length: 3 * blockBytes, id: 1}, Options{
		LocalAddresses: []string{"10.0.0.1", "10.0.0.2"}, DomainSocket: socket, Events: events, verifySocket: verify, MissingWait: time.Second,
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if network == "unix" {
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}
			near, far := net.Pipe()
			go serveBytes(far, strings.Repeat(digits, blockBytes/len(digits)))
			return near, nil
		}})
}

func trusted(path string) (string, error) { return path, nil }

func TestShortCircuitReadsAndFallsBack(t *testing.T) {
	for name, c := range map[string]struct {
		status   uint64
		socket   string // replaces that of the DataNode
		verify   func(string) (string, error)
		local    int64 // bytes read from files
		requests int
		warning  error // class
	}{
		"blocks of this machine":                {verify: trusted, local: 2 * blockBytes, requests: 2},
		"no socket is configured":               {socket: "-", verify: trusted},
		"the socket is absent":                  {socket: "/nonexistent/dn", verify: trusted, warning: unix.ENOENT},
		"the socket is absent, really verified": {socket: "/nonexistent/dn", verify: verifySocket, warning: fs.ErrNotExist},
		"the socket may be anybody's":           {verify: verifySocket, warning: hdfs.ErrPermission},
		"the DataNode passes no files":          {status: 7, verify: trusted, requests: 1, warning: hdfs.ErrUnsupported},
		"the DataNode refuses the tokens":       {status: 5, verify: trusted, requests: 2, warning: hdfs.ErrPermission},
		"the DataNode fails":                    {status: 1, verify: trusted, requests: 2},
	} {
		t.Run(name, func(t *testing.T) {
			d := startLocalDataNode(t, c.status)
			socket := strings.Replace(d.socket, "9866", "_PORT", 1)
			switch c.socket {
			case "":
			case "-":
				socket = ""
			default:
				socket = c.socket
			}
			var local int64
			var warnings []error
			cl := newShortCircuitClient(t, socket, c.verify, Events{
				Read: func(e ReadEvent) {
					if e.ShortCircuit {
						local += e.Bytes
					}
				},
				ShortCircuitFailed: func(err error) { warnings = append(warnings, err) },
			})
			r, err := cl.Open(t.Context(), "/file", 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(r)
			r.Close()
			if err != nil || string(got) != strings.Repeat(digits, 3*blockBytes/len(digits)) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
			wantWarnings := 0
			if c.warning != nil || c.status == 1 {
				wantWarnings = 1
			}
			if len(warnings) != wantWarnings || c.warning != nil && !errors.Is(warnings[0], c.warning) {
				t.Errorf("warnings: %v, want one of %v", warnings, c.warning)
			}
			if local != c.local || d.count() != c.requests {
				t.Errorf("%d bytes from files by %d requests, want %d by %d", local, d.count(), c.local, c.requests)
			}
		})
	}
}

// A socket that cannot be used is tried again later; the warning is not repeated.
func TestSocketIsTriedAgain(t *testing.T) {
	warnings := 0
	cl := newShortCircuitClient(t, "/nonexistent/dn", trusted, Events{ShortCircuitFailed: func(error) { warnings++ }})
	read := func() {
		if _, err := hdfs.ReadFile(t.Context(), cl, "/file", 1000); err != nil {
			t.Fatal(err)
		}
	}
	read()
	if !cl.local.isPaused() {
		t.Error("an absent socket is tried for each block")
	}
	d := startLocalDataNode(t, 0)
	cl.local.path = d.socket
	read()
	if d.count() != 0 {
		t.Error("the pause was not observed")
	}
	cl.local.pausedUntil = time.Now()
	read()
	if d.count() != 2 || warnings != 1 {
		t.Errorf("%d requests after the pause, want 2; %d warnings, want 1", d.count(), warnings)
	}
}

func TestDomainSocketOption(t *testing.T) {
	for path, valid := range map[string]bool{"": true, "/var/lib/hadoop-hdfs/dn_socket": true, "dn_socket": false, "@abstract": false, "/" + strings.Repeat("x", 107): false} {
		_, err := New(Options{NameNodes: []string{"nowhere:1"}, User: "test", DomainSocket: path})
		if (err == nil) != valid || err != nil && !errors.Is(err, hdfs.ErrInvalid) {
			t.Errorf("%.40q: %v", path, err)
		}
	}
}

func TestInsecureFolder(t *testing.T) {
	const hdfsUser, tenant, other = 990, 2001, 2002
	for name, c := range map[string]struct {
		mode, uid, gid uint32
		secure         bool
	}{
		"of root":                       {0o755, 0, 0, true},
		"of root and its group":         {0o775, 0, 0, true},
		"of the DataNode's user":        {0o755, hdfsUser, hdfsUser, true},
		"of this user":                  {0o700, tenant, tenant, true},
		"of another user":               {0o755, other, 0, false},
		"of another group":              {0o775, 0, other, false},
		"writable by everybody":         {0o757, 0, 0, false},
		"writable by everybody, as tmp": {0o1777, 0, 0, false},
	} {
		if why := insecureFolder(c.mode, c.uid, c.gid, hdfsUser, tenant); (why == "") != c.secure {
			t.Errorf("%s: %q", name, why)
		}
	}
}

func TestVerifySocketRefuses(t *testing.T) {
	d := startLocalDataNode(t, 0) // below /tmp
	dir := t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	if err := errors.Join(os.Symlink(d.socket, link), os.WriteFile(file, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{d.socket: hdfs.ErrPermission, link: hdfs.ErrPermission, file: hdfs.ErrInvalid, dir + "/absent": fs.ErrNotExist} {
		if _, err := verifySocket(path); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
}

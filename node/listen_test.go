package node

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/node/shuffle"
)

// intrudeVerb makes this test binary try to connect to a socket as somebody else.
const intrudeVerb = "intrude"

// intrude reports whether the socket takes a connection of this process: 0 if it
// is refused for lack of rights, 1 if it is open, 2 otherwise.
func intrude(path string) int {
	conn, err := net.Dial("unix", path)
	switch {
	case err == nil:
		conn.Close()
		return 1
	case errors.Is(err, syscall.EACCES):
		return 0
	default:
		fmt.Println(err)
		return 2
	}
}

// A node without a certificate, as in `drover dev`, opens no port, and its socket
// admits nobody but its own user.
func TestWithoutTLSOnlyTheOwnUserGetsIn(t *testing.T) {
	before := tcpListeners(t)
	b := newTestNode(t, programs())
	coordinator := tcpListeners(t) // the fake coordinator has a port
	b.start()
	if now := tcpListeners(t); len(now) != len(coordinator) {
		t.Errorf("the node listens on %d ports: %v", len(now)-len(coordinator), now)
	}
	path, ok := strings.CutPrefix(b.address, unixhttp.Scheme)
	if !ok || len(before) == len(coordinator) {
		t.Fatalf("address %q; listeners %v, then %v", b.address, before, coordinator)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", st, err)
	}
	if os.Geteuid() != 0 {
		t.Skip("not proved here: that another user cannot reach the node's socket; only root can become another user")
	}
	if code := asNobody(t, path); code != 0 {
		t.Errorf("another user and the node's socket: %d", code)
	}
}

// Helpers that run as tenants reach the map outputs, and nothing else.
func TestShuffleSocketServesMapOutputsAlone(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not proved here: that helpers of other users reach the map outputs alone; only root has such helpers")
	}
	b := newTestNode(t, programs())
	b.config.Helper = []string{os.Args[0], "helper"}
	b.start()
	s := newSockets(&b.config, pki.NewConnections(maxConnections))
	path := strings.TrimPrefix(s.helperAddress(b.address), unixhttp.Scheme)
	if filepath.Base(path) != nameShuffleSocket {
		t.Fatalf("helpers use %q", path)
	}
	if code := asNobody(t, path); code != 1 {
		t.Errorf("a tenant and the socket of map outputs: %d", code)
	}
	b.address = unixhttp.Scheme + path
	if got := b.getStatus("/drover.v1.TaskService/Logs"); got != 404 {
		t.Errorf("task API on it: %d", got)
	}
	if got := b.getStatus("/metrics"); got != 404 {
		t.Errorf("metrics on it: %d", got)
	}
	if got := b.getStatus(shuffle.Path(outputKey(groupTask(0).GetKey()), 0)); got != 404 {
		t.Errorf("an output that is not there: %d", got)
	}
}

// Also a node with a certificate has the socket, and its helpers use it for the node's own map outputs alone.
func TestHelpersReachTheOwnNodeOverTheSocket(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not proved here: that helpers of other users reach the map outputs of their node over a socket; only root has such helpers")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := newSockets(&Config{Data: dir, Helper: []string{"helper"}, Listener: l, tls: &tls.Config{MinVersion: tls.VersionTLS13}, Info: &droverv1.NodeInfo{}}, pki.NewConnections(maxConnections))
	all, err := s.listen(http.NotFoundHandler(), http.NotFoundHandler())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		defer e.Close()
	}
	own, socket := l.Addr().String(), unixhttp.Scheme+filepath.Join(dir, nameShuffleSocket)
	for address, want := range map[string]string{own: socket, "192.0.2.1:7101": "192.0.2.1:7101", "unix:/elsewhere/" + nameSocket: "unix:/elsewhere/" + nameShuffleSocket} {
		if got := s.helperAddress(address); got != want {
			t.Errorf("the helper's address of %s is %q, want %q", address, got, want)
		}
	}
	if len(all) != 2 || all[1].Addr().Network() != "unix" {
		t.Errorf("%d listeners", len(all))
	}
}

// asNobody runs intrude as uid 65534.
func asNobody(t *testing.T, path string) int {
	t.Helper()
	// The folders above belong to the test; that they are closed must not decide.
	for dir := filepath.Dir(path); dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self := filepath.Join("/tmp", fmt.Sprintf("drover-intrude-%d", os.Getpid()))
	b, err := os.ReadFile("/proc/self/exe")
	if err == nil {
		err = os.WriteFile(self, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(self)
	cmd := exec.Command(self, intrudeVerb, path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if code := cmd.ProcessState.ExitCode(); code == 0 || code == 1 {
		return code
	}
	t.Fatalf("intrude: %v %s", err, out)
	return -1
}

// tcpListeners returns the TCP ports on which this process listens.
func tcpListeners(t *testing.T) []string {
	t.Helper()
	own := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil {
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	var ports []string
	for _, file := range []string{"/proc/self/net/tcp", "/proc/self/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) > 9 && f[3] == "0A" && own[f[9]] { // 0A: listening
				ports = append(ports, f[1])
			}
		}
	}
	return ports
}

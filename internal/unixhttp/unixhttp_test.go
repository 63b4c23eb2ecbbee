package unixhttp

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

func TestClientReachesASocketAndAPort(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a socket, with blanks")
	l, err := Listen(path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })}
	go srv.Serve(l)
	go srv.Serve(port)
	defer srv.Close()
	tr := &http.Transport{DialContext: DialContext(&net.Dialer{})}
	defer tr.CloseIdleConnections()
	for _, address := range []string{Scheme + path, port.Addr().String()} {
		res, err := (&http.Client{Transport: tr}).Get("http://" + Host(address) + "/x")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if string(b) != "/x" {
			t.Errorf("%s: %q", address, b)
		}
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v %v", st, err)
	}
}

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path, 0o666)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, 0o600); !errors.Is(err, fault.Conflict) {
		t.Errorf("beside a live one: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) != 0 {
		t.Errorf("left: %v %v", left, err)
	}
	// A killed process leaves its socket: the next one replaces it.
	dead, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	if l, err = Listen(path, 0o600); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, err := Listen("/tmp/"+strings.Repeat("x", MaxPath), 0o600); !errors.Is(err, fault.Invalid) {
		t.Errorf("a long path: %v", err)
	}
}

package httplog

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
)

// full is a listener that lacks a file descriptor for its first connection, and then ends.
type full struct {
	net.Listener
	calls int
}

func (f *full) Accept() (net.Conn, error) {
	if f.calls++; f.calls == 1 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
	}
	return nil, net.ErrClosed
}

func (*full) Close() error { return nil }

// TestWhatBefallsTheServerIsLogged: at a daemon's log level, a lack of file descriptors and a panic
// appear, and messages that strangers cause do not.
func TestWhatBefallsTheServerIsLogged(t *testing.T) {
	for name, c := range map[string]struct {
		cause func(t *testing.T, s *httptest.Server)
		want  string // "": nothing
	}{
		"no file descriptor": {func(t *testing.T, s *httptest.Server) {
			if err := s.Config.Serve(&full{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve: %v", err)
			}
		}, "level=WARN msg=\"http: Accept error: accept tcp: too many open files"},
		"a panic": {func(t *testing.T, s *httptest.Server) {
			s.StartTLS()
			if res, err := s.Client().Get(s.URL); err == nil {
				t.Errorf("%s: the handler did not panic", res.Status)
				_ = res.Body.Close()
			}
		}, "level=ERROR msg=\"http: panic serving"},
		"no handshake": {func(t *testing.T, s *httptest.Server) {
			s.StartTLS()
			conn, err := net.Dial("tcp", s.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, err := conn.Write([]byte("no handshake\r\n\r\n")); err != nil {
				t.Fatal(err)
			}
			for err == nil { // to the end, which comes after the message
				_, err = conn.Read(make([]byte, 1))
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("a fault") }))
			s.Config.ErrorLog = New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn}))
			c.cause(t, s)
			s.Close()
			if got := out.String(); !strings.Contains(got, c.want) || (c.want == "") != (got == "") {
				t.Errorf("logged %q, want %q", got, c.want)
			}
		})
	}
}

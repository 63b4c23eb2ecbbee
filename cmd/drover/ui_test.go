package main

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/ui"
)

// TestStrangersHoldNoConnectionOfThePage connects to the page of `drover ui` as any user of the machine can,
// without its cookie, and waits: whatever was sent, the server ends the connection.
func TestStrangersHoldNoConnectionOfThePage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	s := newUIServer(t.Context(), ui.NewGuard(http.NotFoundHandler(), at), time.Second, 50*time.Millisecond)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), <-served); !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	for name, tc := range map[string]struct{ send, want string }{
		"nothing":                         {"", ""},
		"half a header":                   {"GET / HTTP/1.1\r\nHo", ""},
		"a request, and no further one":   {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "401 "},
		"a body that does not come":       {"POST /do/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n", ""},
		"a body in parts without its end": {"POST /do/stop HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", at)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, tc.send); err != nil {
				t.Fatal(err)
			}
			_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
			got, err := io.ReadAll(c) // a reset ends it too
			if errors.Is(err, os.ErrDeadlineExceeded) || !strings.Contains(string(got), tc.want) {
				t.Errorf("%v %q", err, got)
			}
		})
	}
}

package dump

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// stallingClient is a client of a source that answers each request with a text, byte by byte with a pause before
// each, and then says nothing more, though it announced more.
func stallingClient(t *testing.T, text string, pause time.Duration) *Client {
	dial := func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		t.Cleanup(func() { theirs.Close() })
		go func() {
			if _, err := http.ReadRequest(bufio.NewReader(theirs)); err != nil {
				return
			}
			_, _ = io.WriteString(theirs, "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
			for i := range text {
				time.Sleep(pause)
				if _, err := theirs.Write([]byte{text[i]}); err != nil {
					return
				}
			}
		}()
		return ours, nil
	}
	return &Client{HTTP: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}, Scheme: "http", Address: "n1:80", Attempt: "1.0.0.1.1"}
}

// A source that stands still ends a fetch after stallLimit, wherever it does; a slow one does not.
func TestAFetchEndsWhereItsSourceStandsStill(t *testing.T) {
	for name, text := range map[string]string{
		"before the first byte": "",
		"within the manifest":   `{"files": [{"path": "a`,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const pause = stallLimit - time.Second
				c, begin := stallingClient(t, text, pause), time.Now()
				_, err := c.Manifest(t.Context())
				if !errors.Is(err, fault.Unavailable) {
					t.Errorf("error: %v, want one that says that the node is unavailable", err)
				}
				if took, want := time.Since(begin), time.Duration(len(text))*pause+stallLimit; took != want {
					t.Errorf("it ended after %v, want %v", took, want)
				}
			})
		})
	}
}

package helper

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// A node that accepts a connection and then says nothing ends a request after five seconds.
func TestAHandshakeWithASilentNodeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		web, err := HTTPClient("", func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			t.Cleanup(func() { theirs.Close() })
			go func() { _, _ = io.Copy(io.Discard, theirs) }()
			return ours, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		if res, err := web.Get("https://n1:80/"); err == nil {
			res.Body.Close()
			t.Error("a silent node answered")
		}
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it ended after %v, want 5s", took)
		}
	})
}

// Package stall cuts off responses that their callers do not read, and requests whose body does not
// arrive. A server of ours writes to the network in three ways, which net/http bounds by one limit
// for the whole response or not at all: long files, streams that are silent for hours, and buffered
// bytes after the handler has returned. With HTTP/2 a caller can close the window of a response
// with one frame, and could thus hold the memory of thousands of responses. With HTTP/1, net/http
// reads the rest of a body that the handler did not read before it sends the header, and waits for
// that without a limit.
package stall

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Handler serves with next. It cuts off each response of which nothing is read for limit while
// there is something to write. A stream flushes each message; between two messages there is no
// limit. The rest of a request body that next has not read when it answers must arrive within the
// same limit.
func Handler(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &writer{ResponseWriter: w, ctl: http.NewResponseController(w), limit: limit}
		if r.ProtoMajor == 1 && r.ContentLength != 0 {
			out.body = &body{ReadCloser: r.Body}
			r.Body = out.body
		}
		if r.ProtoMajor == 1 { // in HTTP/1 deadlines belong to the connection: an earlier response may have set one
			_ = out.ctl.SetWriteDeadline(time.Time{}) // only test doubles do not support it; so also below
		}
		defer out.arm() // for bytes that are still buffered
		next.ServeHTTP(out, r)
	})
}

type writer struct {
	http.ResponseWriter
	ctl   *http.ResponseController
	limit time.Duration
	body  *body     // the request's body, which is read before the response is sent; nil: there is none
	armed time.Time // when the deadlines were last moved; zero: no deadline is set
}

// body remembers whether it was read to its end.
type body struct {
	io.ReadCloser
	ended atomic.Bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		b.ended.Store(true)
	}
	return n, err
}

// arm moves the deadlines, unless they were moved recently.
func (w *writer) arm() {
	if now := time.Now(); now.Sub(w.armed) > w.limit/8 {
		w.armed = now
		_ = w.ctl.SetWriteDeadline(now.Add(w.limit))
		if w.body != nil && !w.body.ended.Load() {
			_ = w.ctl.SetReadDeadline(now.Add(w.limit))
		}
	}
}

// Write implements io.Writer.
func (w *writer) Write(p []byte) (int, error) {
	w.arm()
	return w.ResponseWriter.Write(p)
}

// Flush implements http.Flusher, which streams need.
func (w *writer) Flush() {
	w.arm()
	_ = w.ctl.Flush() // the next Write returns the error
	w.armed = time.Time{}
	_ = w.ctl.SetWriteDeadline(time.Time{})
	if w.body != nil { // otherwise the server would conclude that the caller of a stream is gone
		_ = w.ctl.SetReadDeadline(time.Time{})
	}
}

// Unwrap lets http.ResponseController find the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

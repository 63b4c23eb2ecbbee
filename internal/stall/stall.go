// Package stall cuts off responses that their callers do not read, and requests whose rest nobody
// waits for. A server of ours writes to the network in three ways that net/http bounds by one
// number for the whole response or not at all: long files, streams that are silent for hours, and
// what is left in buffers when the handler has returned. With HTTP/2 a caller closes the window of
// a response with one frame, and could so hold the memory of thousands of them. With HTTP/1 it
// reads what the handler left of a body before it sends the header, and waits for that without a
// limit.
package stall

import (
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

// Handler answers with next, and cuts off each response of which nothing is read for limit while
// there is something to write. Between two messages of a stream, which flushes each, there is no
// limit. A body that the handler has not read when it answers has as long to come.
func Handler(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &writer{ResponseWriter: w, ctl: http.NewResponseController(w), limit: limit}
		if r.ProtoMajor == 1 && r.ContentLength != 0 {
			out.body = &body{ReadCloser: r.Body}
			r.Body = out.body
		}
		if r.ProtoMajor == 1 { // whose deadlines are those of the connection: an earlier response set one
			_ = out.ctl.SetWriteDeadline(time.Time{}) // unsupported only by test doubles; also below
		}
		defer out.arm() // for what is in buffers yet
		next.ServeHTTP(out, r)
	})
}

type writer struct {
	http.ResponseWriter
	ctl   *http.ResponseController
	limit time.Duration
	body  *body     // of the request, whose rest comes before the response; nil: there is none
	armed time.Time // when the deadlines were last moved; zero: there are none
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

// arm moves the deadlines, unless they were moved a moment ago.
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
	_ = w.ctl.Flush() // the next Write returns what failed
	w.armed = time.Time{}
	_ = w.ctl.SetWriteDeadline(time.Time{})
	if w.body != nil { // else the server would take the caller of a stream for gone
		_ = w.ctl.SetReadDeadline(time.Time{})
	}
}

// Unwrap lets http.ResponseController find the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

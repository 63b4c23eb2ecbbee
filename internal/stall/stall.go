// Package stall cuts off responses that their callers do not read. A server of ours writes to the network in
// three ways that net/http bounds by one number for the whole response or not at all: long files, streams that
// are silent for hours, and what is left in buffers when the handler has returned. With HTTP/2 a caller
// closes the window of a response with one frame, and could so hold the memory of thousands of them.
package stall

import (
	"net/http"
	"time"
)

// Handler answers with next, and cuts off each response of which nothing is read for limit while there is
// something to write. Between two messages of a stream, which flushes each, there is no limit.
func Handler(limit time.Duration, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		out := &writer{ResponseWriter: w, ctl: http.NewResponseController(w), limit: limit}
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
	armed time.Time // when the deadline was last moved; zero: there is none
}

// arm moves the deadline, unless it was moved a moment ago.
func (w *writer) arm() {
	if now := time.Now(); now.Sub(w.armed) > w.limit/8 {
		w.armed = now
		_ = w.ctl.SetWriteDeadline(now.Add(w.limit))
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
}

// Unwrap lets http.ResponseController find the connection.
func (w *writer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

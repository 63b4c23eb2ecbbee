package coordinator

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
)

// inProcess performs requests with a handler of this process, as if they had come over the network:
// admission, checks and limits are the same. The request's context holds the caller and its
// address.
type inProcess struct {
	handler http.Handler
	log     *slog.Logger
}

type addressKey struct{}

// withAddress adds the caller's network address to the context of each request, for the calls that
// next makes in this process.
func withAddress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), addressKey{}, r.RemoteAddr)))
	})
}

// RoundTrip implements http.RoundTripper. It returns when the handler has
// written the header of its response. The handler ends when it has written the
// body, or when the context ends or the body is closed.
func (t inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	in := r.Clone(r.Context())
	in.RequestURI = in.URL.RequestURI()
	in.RemoteAddr, _ = r.Context().Value(addressKey{}).(string)
	if in.Body == nil {
		in.Body = http.NoBody
	}
	body, out := io.Pipe()
	w := &pipeWriter{header: http.Header{}, body: out, ready: make(chan struct{})}
	go func() { // ends with the handler: see above
		defer func() {
			end := io.EOF
			if p := recover(); p != nil { // as net/http does for a handler of its own
				t.log.Error("a call of the page panicked", "call", in.URL.Path, "panic", p, "stack", string(debug.Stack()))
				end = io.ErrUnexpectedEOF
			}
			_ = out.CloseWithError(end) // never fails
			w.WriteHeader(http.StatusOK)
		}()
		t.handler.ServeHTTP(w, in)
	}()
	select {
	case <-w.ready:
	case <-r.Context().Done():
		_ = body.CloseWithError(r.Context().Err()) // never fails
		return nil, r.Context().Err()
	}
	return &http.Response{Status: http.StatusText(w.status), StatusCode: w.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.sent, Body: body, ContentLength: -1, Request: r}, nil
}

// pipeWriter is the http.ResponseWriter of a request in this process.
type pipeWriter struct {
	header http.Header
	body   *io.PipeWriter
	once   sync.Once
	ready  chan struct{} // closed after status and sent are set
	status int
	sent   http.Header
}

// Header implements http.ResponseWriter.
func (w *pipeWriter) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *pipeWriter) WriteHeader(status int) {
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.ready)
	})
}

// Write implements http.ResponseWriter.
func (w *pipeWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush implements http.Flusher. It only has to send the header: the reader has already received
// what was written.
func (w *pipeWriter) Flush() { w.WriteHeader(http.StatusOK) }

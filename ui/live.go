package ui

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of live pages.
const (
	maxLive   = 2000             // open streams
	liveEvery = time.Second      // between two renderings of a page
	liveBeat  = 15 * time.Second // a comment on a silent stream, so that both ends notice its loss
)

// stream writes server-sent events.
type stream struct {
	w   http.ResponseWriter
	z   *packedWriter // nil: not compressed
	ctl *http.ResponseController
}

// newStream begins a stream, or refuses it if too many are open. The caller
// calls close.
func (s *server) newStream(w http.ResponseWriter, r *http.Request) *stream {
	if s.live.Add(1) > maxLive {
		s.live.Add(-1)
		http.Error(w, "too many pages are open: close some, or reload this one later", http.StatusServiceUnavailable)
		return nil
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	st := &stream{w: w, ctl: http.NewResponseController(w)}
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		st.z = newPackedWriter(w)
	}
	w.WriteHeader(http.StatusOK)
	_ = st.ctl.Flush() // the reader sees that it is connected before there is anything to say; fails only if the reader is gone
	return st
}

func (s *server) endStream(st *stream) {
	if st.z != nil {
		_ = st.z.close() // fails only if the reader is gone
	}
	s.live.Add(-1)
}

// newEvent returns an event; v becomes JSON, which has no line break.
func newEvent(kind string, v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return fmt.Appendf(nil, "event: %s\ndata: %s\n\n", kind, b), err
}

func (st *stream) send(kind string, v any) error {
	b, err := newEvent(kind, v)
	if err != nil {
		return err
	}
	return st.write(b)
}

func (st *stream) beat() error { return st.write([]byte(":\n\n")) }

func (st *stream) write(b []byte) error {
	if st.z != nil {
		return st.writePacked(newPacked(b))
	}
	return st.writePacked(&packed{text: b})
}

// writePacked writes what was compressed for many streams.
func (st *stream) writePacked(p *packed) error {
	var err error
	if st.z != nil {
		err = st.z.write(p)
	} else {
		_, err = st.w.Write(p.text)
	}
	if err != nil {
		return err
	}
	return st.ctl.Flush()
}

// serveLive streams the main part of the page at ?path= whenever it differs
// from ?have=, the digest of what the reader has, or from what was sent last.
func (s *server) serveLive(w http.ResponseWriter, r *http.Request) {
	u, err := url.Parse(r.URL.Query().Get("path"))
	if err != nil || u.IsAbs() || u.Host != "" {
		http.Error(w, "the path is no address of a page", http.StatusBadRequest)
		return
	}
	st := s.newStream(w, r)
	if st == nil {
		return
	}
	defer s.endStream(st)
	have, failed, silent := r.URL.Query().Get("have"), false, time.Now()
	t := time.NewTicker(liveEvery)
	defer t.Stop()
	for {
		body, err := s.renderShared(r.Context(), u)
		switch {
		case r.Context().Err() != nil:
			return
		case err != nil:
			failed = true
			if to := s.away(r.Context()); to != "" {
				_ = st.send("elsewhere", strings.TrimRight(to, "/")+"/"+strings.TrimLeft(u.RequestURI(), "/")) // fails only if the reader is gone
				return
			}
			err = st.send("trouble", err.Error())
			silent = time.Now()
		case failed || body.digest != have:
			failed, have = false, body.digest
			err = st.writePacked(body.event)
			silent = time.Now()
		case time.Since(silent) > liveBeat:
			silent = time.Now()
			err = st.beat()
		}
		if err != nil {
			return
		}
		select {
		case <-t.C:
		case <-r.Context().Done():
			return
		}
	}
}

// rendered is the main part of a page.
type rendered struct {
	digest string
	event  *packed // with which it is sent
}

// renderShared renders the main part of a page, once for all readers of one
// name. An error is one that passes: what else a page says instead of its
// content is its content.
func (s *server) renderShared(ctx context.Context, u *url.URL) (*rendered, error) {
	key := s.reader(ctx) + "\x00main\x00" + u.RequestURI()
	v, err := s.shared.get(ctx, key, func(ctx context.Context) (any, error) {
		q, err := s.newQuery(ctx, u)
		var v *view
		if err == nil {
			v, err = q.page()
		}
		if err != nil {
			if errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Overloaded) {
				return nil, err
			}
			v = errorView(err)
		}
		var b bytes.Buffer
		if err := q.renderMain(&b, v); err != nil {
			return nil, err
		}
		sum := digest(b.Bytes())
		event, err := newEvent("main", map[string]any{"html": b.String(), "digest": sum, "title": v.Title, "error": v.Failed})
		if err != nil {
			return nil, err
		}
		return &rendered{digest: sum, event: newPacked(event)}, nil
	})
	if err != nil {
		return nil, err
	}
	return v.(*rendered), nil
}

// serveFollow streams the output of an attempt.
func (s *server) serveFollow(w http.ResponseWriter, r *http.Request) {
	key, err := attemptKey(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	st := s.newStream(w, r)
	if st == nil {
		return
	}
	defer s.endStream(st)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	req := &droverv1.LogsRequest{Key: key, Stream: r.URL.Query().Get("stream"), Tail: logTail, Follow: true}
	var rest []byte // the beginning of a letter
	req.After, rest = parseLogPlace(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after")))
	parts, done := make(chan logPart), make(chan error, 1)
	go func() { done <- s.readLog(ctx, req, parts) }() // ends with ctx
	beat := time.NewTicker(liveBeat)
	defer beat.Stop()
	for {
		select {
		case p := <-parts:
			var text string
			text, rest = logText(append(rest, p.data...))
			err = st.sendText(text, logPlace(p.position, rest))
		case err := <-done:
			what := ""
			if err != nil {
				what = err.Error()
			}
			_ = st.send("end", what) // fails only if the reader is gone
			return
		case <-beat.C:
			err = st.beat()
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			cancel()
			<-done
			return
		}
	}
}

// logPart is a part of a log, and the position where it ends.
type logPart struct {
	data     []byte
	position string
}

// logPlace returns where a page has come to in a log: at a position, with the beginning
// of a letter before it that was not shown yet. It is "" if the position is not known.
func logPlace(position string, rest []byte) string {
	if position == "" {
		return ""
	}
	return hex.EncodeToString(rest) + "." + url.QueryEscape(position) // a node's text must not end the line
}

// parseLogPlace returns what logPlace was given; of what is no place, nothing.
func parseLogPlace(place string) (position string, rest []byte) {
	letter, after, _ := strings.Cut(place, ".")
	rest, err := hex.DecodeString(letter)
	position, bad := url.QueryUnescape(after)
	if err != nil || bad != nil || len(rest) >= utf8.UTFMax {
		return "", nil
	}
	return position, rest
}

// sendText sends text of a log. The browser gives place back when the stream is opened
// again.
func (st *stream) sendText(text, place string) error {
	b, err := newEvent("text", text)
	if err != nil {
		return err
	}
	if place != "" { // without this line the browser keeps the last one
		b = append([]byte("id: "+place+"\n"), b...)
	}
	return st.write(b)
}

// logText returns bytes of a log as text, and the beginning of a letter at their
// end. What is no UTF-8 is replaced.
func logText(b []byte) (text string, rest []byte) {
	end := len(b)
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if at := len(b) - i; utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				end = at
			}
			break
		}
	}
	return string(bytes.ToValidUTF8(b[:end], []byte("\uFFFD"))), b[end:]
}

// logTail is how much of a log a page shows at first, in lines.
const logTail = 2000

// readLog sends what a request asks of an attempt's output, and what follows, to parts.
func (s *server) readLog(ctx context.Context, req *droverv1.LogsRequest, parts chan<- logPart) error {
	from, err := s.api.Logs(ctx, connect.NewRequest(req))
	if err != nil {
		return classify(err)
	}
	defer func() { _ = from.Close() }() // its error was returned by Err
	for from.Receive() {
		m := from.Msg()
		p := logPart{bytes.Clone(m.GetData()), m.GetPosition()}
		if n := m.GetLost(); n > 0 {
			p.data = append(fmt.Appendf(nil, "\n(%d bytes of the output are missing here: they were rotated away)\n", n), p.data...)
		}
		select {
		case parts <- p:
		case <-ctx.Done():
			return nil
		}
	}
	if err := from.Err(); err != nil && ctx.Err() == nil {
		return classify(err)
	}
	return nil
}

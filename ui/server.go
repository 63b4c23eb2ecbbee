package ui

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/fault"
)

// maxForm bounds the body of a form, in bytes.
const maxForm = 64 << 10

// Config configures the page.
type Config struct {
	// API is called with the context of the reader's request.
	API droverv1connect.ClientServiceClient
	// History is called in the same way.
	History droverv1connect.HistoryServiceClient
	// Reader names who reads, from the context of a request. Readers of one name
	// share answers of the API. nil: there is one reader.
	Reader func(context.Context) string
	// Rights names what a reader may read: readers of equal rights share what costs
	// most, such as the schedule. nil: as Reader.
	Rights func(context.Context) string
	// Elsewhere returns the URL of the coordinator whose page has the answers,
	// "" while that is this one. A reader is sent there. nil: always this one.
	Elsewhere func(context.Context) string
}

// server serves the pages.
type server struct {
	api    droverv1connect.ClientServiceClient
	past   droverv1connect.HistoryServiceClient
	reader func(context.Context) string
	rights func(context.Context) string
	away   func(context.Context) string
	shared *shared
	secret []byte // authenticates forms
	live   atomic.Int64
}

// New returns the handler of the page. It serves every path.
func New(cfg Config) http.Handler {
	s := &server{api: cfg.API, past: cfg.History, reader: cfg.Reader, rights: cfg.Rights, away: cfg.Elsewhere, shared: newShared(), secret: make([]byte, 32)}
	_, _ = rand.Read(s.secret) // never fails: see its documentation
	if s.reader == nil {
		s.reader = func(context.Context) string { return "" }
	}
	if s.rights == nil {
		s.rights = s.reader
	}
	if s.away == nil {
		s.away = func(context.Context) string { return "" }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /static/{name}", serveStatic)
	mux.HandleFunc("GET /live", s.serveLive)
	mux.HandleFunc("GET /follow", s.serveFollow)
	mux.HandleFunc("GET /data/{what}", s.serveData)
	mux.HandleFunc("POST /do/{action}", s.serveAction)
	mux.HandleFunc("GET /", s.servePage)
	return secure(http.NewCrossOriginProtection().Handler(mux))
}

// contentPolicy allows the files of this package and nothing else.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// secure adds the headers that every response has.
func secure(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		next.ServeHTTP(w, r)
	})
}

// query is the request for one page.
type query struct {
	*source
	ctx    context.Context
	path   []string // segments, unescaped
	values url.Values
	reader string
	token  string // of forms
}

func (s *server) newQuery(ctx context.Context, u *url.URL) (*query, error) {
	q := &query{ctx: ctx, values: u.Query(), reader: s.reader(ctx)}
	q.source = &source{api: s.api, past: s.past, shared: s.shared, reader: q.reader, rights: "rights " + s.rights(ctx), ctx: ctx}
	q.token = s.formToken(q.reader)
	for seg := range strings.SplitSeq(strings.Trim(u.EscapedPath(), "/"), "/") {
		text, err := url.PathUnescape(seg)
		if err != nil {
			return nil, fault.New(fault.NotFound, "there is no page at this address")
		}
		q.path = append(q.path, text)
	}
	return q, nil
}

// segment returns the i-th segment of the path, "" beyond its end.
func (q *query) segment(i int) string {
	if i >= len(q.path) {
		return ""
	}
	return q.path[i]
}

// formToken returns what a form must carry: another origin cannot read it.
func (s *server) formToken(reader string) string {
	m := hmac.New(sha256.New, s.secret)
	m.Write([]byte(reader))
	return hex.EncodeToString(m.Sum(nil))
}

// view is a page before it is rendered.
type view struct {
	Title    string
	Nav      string // the entry of the navigation that is current
	Template string
	Scripts  []string
	Data     any
	Failed   bool // it says why there is none, and has no scripts
}

// page returns the view of a request.
func (q *query) page() (*view, error) {
	switch n := len(q.path); {
	case n == 1 && q.path[0] == "":
		return q.clusterPage()
	case n == 1 && q.path[0] == "jobs":
		return q.jobsPage()
	case n == 1 && q.path[0] == "schedule":
		return q.schedulePage()
	case n == 1 && q.path[0] == "tenants":
		return q.tenantsPage()
	case n == 1 && q.path[0] == "scheduler":
		return q.schedulerPage()
	case n == 1 && q.path[0] == "events":
		return q.eventsPage()
	case n == 2 && q.path[0] == "nodes":
		return q.nodePage()
	case n == 2 && q.path[0] == "jobs":
		return q.jobPage()
	case n == 5 && q.path[0] == "jobs" && q.path[2] == "tasks":
		return q.taskPage()
	case n == 5 && q.path[0] == "jobs" && q.path[2] == "logs":
		return q.logPage()
	default:
		return nil, fault.New(fault.NotFound, "there is no page at this address")
	}
}

func (s *server) servePage(w http.ResponseWriter, r *http.Request) {
	if to := s.away(r.Context()); to != "" {
		w.Header().Set("Cache-Control", "no-store") // another one may lead tomorrow
		http.Redirect(w, r, strings.TrimRight(to, "/")+"/"+strings.TrimLeft(r.URL.RequestURI(), "/"), http.StatusTemporaryRedirect)
		return
	}
	q, err := s.newQuery(r.Context(), r.URL)
	var v *view
	if err == nil {
		v, err = q.page()
	}
	status := http.StatusOK
	if err != nil {
		status, v = statusOf(err), errorView(err)
	}
	var b bytes.Buffer
	_, noCookie := r.Cookie(TokenCookie)
	if err := q.renderPage(&b, v, r.URL.RequestURI(), noCookie == nil); err != nil {
		http.Error(w, "the page cannot be rendered: "+err.Error(), http.StatusInternalServerError)
		return
	}
	writeBody(w, r, status, "text/html; charset=utf-8", b.Bytes())
}

// statusOf returns the HTTP status of an error of a page.
func statusOf(err error) int {
	switch {
	case errors.Is(err, fault.NotFound):
		return http.StatusNotFound
	case errors.Is(err, fault.Denied):
		return http.StatusForbidden
	case errors.Is(err, fault.Invalid), errors.Is(err, fault.Conflict), errors.Is(err, fault.Exists):
		return http.StatusBadRequest
	case errors.Is(err, fault.Overloaded), errors.Is(err, fault.Exhausted):
		return http.StatusTooManyRequests
	case errors.Is(err, fault.Unavailable):
		return http.StatusServiceUnavailable
	default:
		return http.StatusInternalServerError
	}
}

// failure is what an error page says.
type failure struct {
	What string
	Cure string
	Back string // address of a page that may help; "" for none
}

func errorView(err error) *view {
	f := failure{What: err.Error()}
	switch {
	case errors.Is(err, fault.NotFound):
		f.Cure, f.Back = "It may have been removed since, or you may not read it. The list of jobs shows what there is.", "/jobs"
	case errors.Is(err, fault.Denied):
		f.Cure = "An operator of the cluster can give you the right."
	case errors.Is(err, fault.Unavailable):
		f.Cure = "This page tries again by itself; nothing needs to be done."
	case errors.Is(err, fault.Overloaded):
		f.Cure = "This page tries again by itself."
	}
	return &view{Title: "Error", Template: "error", Data: f, Failed: true}
}

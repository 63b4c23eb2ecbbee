package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of the API.
const (
	maxMessage    = 16 << 20 // bytes of one message
	maxStreams    = 4096     // streams at once
	drainLimit    = 5 * time.Second
	flushPause    = 10 * time.Millisecond // for the last answers to leave
	callLimit     = 5 * time.Minute       // of one unary call
	readyLimit    = 10 * time.Second
	headerLimit   = 10 * time.Second
	idleLimit     = 2 * time.Minute
	maxH2Streams  = 1000
	maxHeaderSize = 64 << 10
)

// serve answers on the configured listeners until ctx ends: then streams end
// by themselves (their handlers watch c.stop) and calls under way are answered.
func (c *core) serve(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	start := func(l net.Listener, of func(*http.Request) identity, tls bool) {
		running := &inFlight{idle: make(chan struct{}, 1)}
		s := c.server(of, running)
		if tls {
			s.TLSConfig = c.cfg.TLS.Clone()
		}
		g.Go(func() error {
			var err error
			if tls {
				err = s.ServeTLS(l, "", "")
			} else {
				err = s.Serve(l)
			}
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("the API on %s: %w", l.Addr(), err)
		})
		g.Go(func() error {
			<-gctx.Done()
			return drain(s, running)
		})
	}
	if c.cfg.Local != nil {
		start(c.cfg.Local, localIdentity, false)
	}
	if c.cfg.Remote != nil {
		start(c.cfg.Remote, tlsIdentity, true)
	}
	return g.Wait()
}

func (c *core) server(of func(*http.Request) identity, running *inFlight) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: running.count(withIdentity(of, c.handler())), Protocols: p, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: maxHeaderSize,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxH2Streams}, ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
}

// inFlight counts the requests that are being answered.
type inFlight struct {
	n    atomic.Int64
	idle chan struct{} // a token when the count came to zero
}

func (f *inFlight) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.n.Add(1)
		defer func() {
			if f.n.Add(-1) == 0 {
				select {
				case f.idle <- struct{}{}:
				default:
				}
			}
		}()
		next.ServeHTTP(w, r)
	})
}

// drain closes the listener, waits for the calls under way, and closes the
// connections. Server.Shutdown alone waits a whole second for each idle
// HTTP/2 client.
func drain(s *http.Server, running *inFlight) error {
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(ctx) }()
	for running.n.Load() > 0 && ctx.Err() == nil {
		select {
		case <-running.idle:
		case <-ctx.Done():
		}
	}
	sleep(ctx, flushPause)
	err := s.Close()
	cancel()
	<-down // ended by Close or the context; its connections are closed
	return err
}

// handler is the whole HTTP surface: both services and /metrics.
func (c *core) handler() http.Handler {
	mux := http.NewServeMux()
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithInterceptors(&guard{c: c, calls: make(chan struct{}, c.cfg.MaxRequests), streams: make(chan struct{}, maxStreams)}),
	}
	mux.Handle(droverv1connect.NewClientServiceHandler(&clientService{core: c, rates: newRates(c.cfg.SubmitRate)}, opts...))
	mux.Handle(droverv1connect.NewNodeServiceHandler(&nodeService{core: c}, opts...))
	metrics := promhttp.HandlerFor(c.cfg.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if caller(r.Context()).kind == kindOther {
			http.Error(w, "a user's or node's certificate is needed", http.StatusForbidden)
			return
		}
		metrics.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.leading.Load() {
			http.Error(w, "not leading", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // the reader is gone where this fails
	})
	return mux
}

// guard is in front of every call: bounds, time limits, classes of errors.
type guard struct {
	c       *core
	calls   chan struct{}
	streams chan struct{}
}

func enter(slots chan struct{}) (leave func(), err error) {
	select {
	case slots <- struct{}{}:
		return func() { <-slots }, nil
	default:
		return nil, fault.New(fault.Exhausted, "%d calls are under way, the limit: try again in a second", cap(slots))
	}
}

// retryAfter is what an overloaded server asks for.
const retryAfter = "1"

func translate(err error) error {
	if err == nil {
		return nil
	}
	err = wire.Error(err)
	var ce *connect.Error
	if errors.As(err, &ce) && ce.Code() == connect.CodeResourceExhausted {
		ce.Meta().Set("Retry-After", retryAfter)
	}
	return err
}

// WrapUnary bounds a unary call and gives its error a code.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		leave, err := enter(g.calls)
		if err != nil {
			return nil, translate(err)
		}
		defer leave()
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer g.c.whileServing(cancel)()
		if err := g.c.awaitLeader(ctx); err != nil {
			return nil, translate(err)
		}
		start := g.c.now()
		res, err := next(ctx, req)
		g.c.metrics.call(req.Spec().Procedure, g.c.now().Sub(start), err)
		return res, translate(err)
	}
}

// WrapStreamingClient is not used: this is a server.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler bounds streams and ends them when the server stops.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		leave, err := enter(g.streams)
		if err != nil {
			return translate(err)
		}
		defer leave()
		ctx, cancel := context.WithCancel(ctx)
		defer g.c.whileServing(cancel)()
		if err := g.c.awaitLeader(ctx); err != nil {
			return translate(err)
		}
		return translate(next(ctx, conn))
	}
}

// whileServing cancels a call when the coordinator stops: it then answers that
// it gave up, instead of holding up the stop. The function it gives ends both.
func (c *core) whileServing(cancel context.CancelFunc) func() {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.stop:
			cancel()
		case <-done:
		}
	})
	return func() {
		close(done)
		wg.Wait()
		cancel()
	}
}

// awaitLeader lets calls of the first moments wait for the election, and sends
// others away while somebody else leads.
func (c *core) awaitLeader(ctx context.Context) error {
	if c.leading.Load() {
		return nil
	}
	t := time.NewTimer(readyLimit)
	defer t.Stop()
	select {
	case <-c.readyCh:
	case <-t.C:
	case <-c.stop:
	case <-ctx.Done():
	}
	if c.leading.Load() {
		return nil
	}
	if l := c.replica.Leader(); l != "" && l != c.cfg.ID {
		return fault.New(fault.Unavailable, "coordinator %q does not lead, %q does: ask that one", c.cfg.ID, l)
	}
	return fault.New(fault.Unavailable, "the coordinators have no leader yet: try again in a second")
}

// ListenLocal makes the local socket, which only its owner can open (0600). A
// socket that an ended coordinator left is replaced; Conflict: one that runs
// listens there.
func ListenLocal(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("folder of the local socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close() // it only had to open
		return nil, fault.New(fault.Conflict, "another coordinator listens on %s", path)
	}
	// Made under another name, so that nobody reaches it before its mode is
	// set.
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if err := os.RemoveAll(tmp); err != nil {
		return nil, fmt.Errorf("local socket: %w", err)
	}
	l, err := net.Listen("unix", tmp)
	if err != nil {
		return nil, fmt.Errorf("local socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	err = os.Chmod(tmp, 0o600)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("local socket: %w", err), l.Close())
	}
	return &localListener{l, path}, nil
}

// localListener removes its socket when it is closed.
type localListener struct {
	net.Listener
	path string
}

// Close closes and removes the socket.
func (l *localListener) Close() error {
	return errors.Join(l.Listener.Close(), ignoreMissing(os.Remove(l.path)))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

package coordinator

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/httplog"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/internal/stall"
)

// Limits of the API.
const (
	shutdownLimit = 5 * time.Second
	flushPause    = 10 * time.Millisecond // for the last responses to leave
	callLimit     = 5 * time.Minute       // of one unary call
	headerLimit   = 10 * time.Second
	idleLimit     = 2 * time.Minute
	maxH2Streams  = 1000
	maxHeaderSize = 16 << 10
	compressFrom  = 16 << 10 // bytes of a response; smaller ones take longer to compress than to send
)

// serve serves the configured listeners until ctx ends. Then streams end by
// themselves (their handlers watch c.stop) and calls in progress are answered.
func (c *core) serve(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	start := func(l net.Listener, of identify, secure bool) {
		running := &inFlight{idle: make(chan struct{}, 1)}
		s := c.newServer(of, running, c.newHandler())
		if secure {
			s.TLSConfig = c.certificates.open.Config(c.remoteTLS())
			s.ConnState = c.certificates.open.Observe
			s.ConnContext = withConn
		}
		g.Go(func() error {
			var err error
			if secure {
				err = s.ServeTLS(newPausingListener(l), "", "")
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
			return shutdownServer(s, running)
		})
	}
	if c.cfg.Local != nil {
		start(c.cfg.Local, localIdentity, false)
	}
	if c.cfg.Remote != nil {
		start(c.cfg.Remote, c.callers.remoteIdentity, true)
	}
	return g.Wait()
}

// remoteTLS returns the TLS configuration of the port for users and nodes. A caller without a
// certificate fails in the handshake unless there are other ways to authenticate: tokens, or a
// provider of ID tokens.
func (c *core) remoteTLS() *tls.Config {
	base := c.cfg.tls.Clone()
	optional := c.cfg.tls.Clone()
	optional.ClientAuth = tls.VerifyClientCertIfGiven
	base.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		some := c.cfg.IDTokens != nil
		if !some {
			c.view(func(f *facts.Facts) { some = f.Tokens().Any(c.now().UnixMilli()) })
		}
		if some {
			return optional, nil
		}
		return nil, nil // base
	}
	return base
}

func (c *core) newServer(of identify, running *inFlight, h http.Handler) *http.Server {
	p := new(http.Protocols)
	p.SetHTTP1(true)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: running.count(stall.Handler(c.cfg.limits.pace.Stall, c.refuseEnded(c.callers.withIdentity(of, h)))), Protocols: p, ReadHeaderTimeout: headerLimit, IdleTimeout: idleLimit, MaxHeaderBytes: maxHeaderSize,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: maxH2Streams}, ErrorLog: httplog.New(c.log.Handler()),
	}
}

// inFlight counts the requests in progress.
type inFlight struct {
	n    atomic.Int64
	idle chan struct{} // a token when the count has reached zero
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

// shutdownServer closes the listener, waits for the calls in progress, and
// closes the connections. Server.Shutdown alone waits a whole second for each
// idle HTTP/2 client.
func shutdownServer(s *http.Server, running *inFlight) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownLimit)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(ctx) }()
	for running.n.Load() > 0 && ctx.Err() == nil {
		select {
		case <-running.idle:
		case <-ctx.Done():
		}
	}
	sleep.For(ctx, flushPause)
	err := s.Close()
	cancel()
	<-down // ended by Close or the context; its connections are closed
	return err
}

// newHandler returns the HTTP handler of all services, /metrics and /healthz.
func (c *core) newHandler() http.Handler {
	mux := http.NewServeMux()
	opts := []connect.HandlerOption{
		connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
			most := procedures[spec.Procedure].maxMessage
			return []connect.HandlerOption{connect.WithReadMaxBytes(most), boundedGzip(most)}
		}),
		connect.WithInterceptors(&guard{c: c}),
		connect.WithCompressMinBytes(compressFrom),
	}
	lazily(mux, droverv1connect.ClientServiceName, func() (string, http.Handler) {
		return droverv1connect.NewClientServiceHandler(newClientService(c), opts...)
	})
	lazily(mux, droverv1connect.NodeServiceName, func() (string, http.Handler) {
		return droverv1connect.NewNodeServiceHandler(&nodeService{core: c}, opts...)
	})
	lazily(mux, droverv1connect.OperatorServiceName, func() (string, http.Handler) {
		return droverv1connect.NewOperatorServiceHandler(&operatorService{core: c}, opts...)
	})
	lazily(mux, droverv1connect.DebugServiceName, func() (string, http.Handler) {
		return droverv1connect.NewDebugServiceHandler(&debugService{c, &diagnosis.Service{Log: c.cfg.RecentLog}}, opts...)
	})
	lazily(mux, droverv1connect.TokenServiceName, func() (string, http.Handler) {
		return droverv1connect.NewTokenServiceHandler(&tokenService{c}, opts...)
	})
	lazily(mux, droverv1connect.SecretServiceName, func() (string, http.Handler) {
		return droverv1connect.NewSecretServiceHandler(&secretService{c}, opts...)
	})
	lazily(mux, droverv1connect.HistoryServiceName, func() (string, http.Handler) {
		return droverv1connect.NewHistoryServiceHandler(&historyService{core: c}, opts...)
	})
	metrics := promhttp.HandlerFor(c.cfg.Metrics, promhttp.HandlerOpts{Timeout: 10 * time.Second})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		if caller(r.Context()).kind == kindOther {
			http.Error(w, "a user's or node's certificate is needed", http.StatusForbidden)
			return
		}
		done, err := c.admission.readTurns.wait(r.Context(), caller(r.Context()))
		if err != nil {
			tellLater(w, err)
			return
		}
		defer done()
		metrics.ServeHTTP(&turnWriter{w, done}, r) // it is complete in memory when it begins
	})
	mux.HandleFunc("GET "+pki.CRLPath, c.serveCRL)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if !c.leadership.leads() {
			http.Error(w, "not leading", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n")) // fails only if the reader is gone
	})
	if c.cfg.Page != nil {
		h := &http.Client{Transport: inProcess{c.admission.admit(mux), c.log}}
		mux.Handle("/", withAddress(c.admission.inPageTurn(c.cfg.Page(PageConfig{
			API:       droverv1connect.NewClientServiceClient(h, "http://coordinator"),
			History:   droverv1connect.NewHistoryServiceClient(h, "http://coordinator"),
			Reader:    func(ctx context.Context) string { return caller(ctx).reader() },
			Rights:    func(ctx context.Context) string { return c.rights.readerRights(caller(ctx)) },
			Elsewhere: c.gate.elsewhere,
		}))))
	}
	return c.admission.admit(mux)
}

// lazily registers a service whose handler is built at its first request. A handler has tables for
// each procedure, and a coordinator that does not lead needs almost none.
func lazily(mux *http.ServeMux, service string, build func() (path string, h http.Handler)) {
	handler := sync.OnceValue(func() http.Handler {
		_, h := build()
		return h
	})
	mux.HandleFunc("/"+service+"/", func(w http.ResponseWriter, r *http.Request) { handler().ServeHTTP(w, r) })
}

// boundedGzip decompresses only as much of a message as shows that it exceeds most bytes. Connect
// would decompress a message to its end before it refuses it: a megabyte of compressed zeros costs
// as much processor time as a gigabyte.
func boundedGzip(most int) connect.HandlerOption {
	return connect.WithCompression("gzip", func() connect.Decompressor { return &boundedReader{most: int64(most) + 1} },
		func() connect.Compressor { return gzip.NewWriter(io.Discard) })
}

type boundedReader struct {
	gzip.Reader
	most, left int64 // bytes
}

// Reset implements connect.Decompressor.
func (r *boundedReader) Reset(from io.Reader) error {
	r.left = r.most
	return r.Reader.Reset(from)
}

// Read implements io.Reader.
func (r *boundedReader) Read(p []byte) (int, error) {
	if r.left <= 0 && len(p) > 0 {
		return 0, fault.New(fault.Exhausted, "it unpacks to more than %d bytes", r.most-1)
	}
	n, err := r.Reader.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	return n, err
}

// guard intercepts every admitted call: it sets time limits and translates errors.
type guard struct{ c *core }

// retryAfter is how long an overloaded server asks its clients to wait, in seconds.
const retryAfter = "1"

func toWireError(err error) error {
	if err == nil {
		return nil
	}
	err = wire.Error(err)
	var ce *connect.Error
	if errors.As(err, &ce) && errors.Is(err, fault.Overloaded) {
		ce.Meta().Set(wire.RetryAfter, retryAfter)
	}
	return err
}

// WrapUnary bounds the time of a unary call and gives its error a code.
func (g *guard) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		ctx, release, err := g.c.gate.enterCall(ctx, cancel, req.Spec().Procedure, req.Header())
		defer release()
		if err != nil {
			return nil, toWireError(err)
		}
		start := g.c.now()
		res, err := next(ctx, req)
		g.c.metrics.observeCall(req.Spec().Procedure, g.c.now().Sub(start), err)
		g.c.auditor.record(ctx, auditedCall{procedure: req.Spec().Procedure, from: req.Peer().Addr, target: auditResult(auditTarget(req.Any()), res, err)}, err)
		g.c.admission.pressure.refused(ctx, caller(ctx), err)
		return res, markTokenEnd(ctx, g.c.gate.markChange(ctx, toWireError(err)))
	}
}

// WrapStreamingClient returns next: the guard is only used in servers.
func (g *guard) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler ends streams when the server stops.
func (g *guard) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		ctx, cancel := context.WithCancel(ctx)
		ctx, release, err := g.c.gate.enterCall(ctx, cancel, conn.Spec().Procedure, conn.RequestHeader())
		defer release()
		if err != nil {
			return toWireError(err)
		}
		seen := &auditedConn{StreamingHandlerConn: conn}
		err = next(ctx, seen)
		g.c.auditor.record(ctx, auditedCall{conn.Spec().Procedure, conn.Peer().Addr, seen.target, seen.sent.Load()}, err)
		g.c.admission.pressure.refused(ctx, caller(ctx), err)
		return markTokenEnd(ctx, g.c.gate.markChange(ctx, toWireError(err)))
	}
}

// maxSocketPath is the longest path of a unix socket: sun_path of Linux, less
// its final NUL.
const maxSocketPath = 107

// ListenLocal creates the local socket, which only its owner can open (0600).
// It replaces the socket of an ended coordinator. Conflict: a running one
// listens there.
func ListenLocal(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("folder of the local socket: %w", err)
	}
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close() // only checked for a listener
		return nil, fault.New(fault.Conflict, "another coordinator listens on %s: stop it, or choose another socket with -socket", path)
	}
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() != fs.ModeSocket {
		return nil, fault.New(fault.Conflict, "%s is there and is no socket: name another path with -socket, or remove it", path)
	}
	// Created under another name, so that nobody can connect before its mode is
	// set.
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	if over := len(tmp) - maxSocketPath; over > 0 {
		return nil, fault.New(fault.Invalid, "the path of the local socket is %d bytes too long for Linux: name a shorter one with -socket than %s", over, path)
	}
	if err := ignoreMissing(os.Remove(tmp)); err != nil {
		return nil, fmt.Errorf("local socket: %w", err)
	}
	l, err := net.Listen("unix", tmp)
	if err != nil {
		if sys := new(os.SyscallError); errors.As(err, &sys) { // its path is not that of the user
			err = sys.Err
		}
		return nil, fmt.Errorf("local socket %s: %w: name one with -socket in a folder that you may write to", path, err)
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

package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"google.golang.org/protobuf/proto"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// defaultAddress is the socket of a coordinator on this machine.
const defaultAddress = "unix:///run/drover/coordinator.sock"

// client is the API client of one command. classifyError converts its errors to fault
// classes.
type client struct {
	droverv1connect.ClientServiceClient
	operator  droverv1connect.OperatorServiceClient
	tokens    droverv1connect.TokenServiceClient
	secrets   droverv1connect.SecretServiceClient
	history   droverv1connect.HistoryServiceClient
	debug     droverv1connect.DebugServiceClient
	transport *coordclient.Transport
	tls       *tls.Config     // nil on a unix socket
	token     bool            // it shows a token, and has no certificate
	ctx       context.Context // of the command: distinguishes Ctrl-C from a lost connection
	patience  time.Duration   // of a command that follows something
}

// method is a method of a service.
type method[Q, R any] func(context.Context, *connect.Request[Q]) (*connect.Response[R], error)

// show returns the action of a command without arguments, which calls a method and prints what
// that returns, with -json as it is.
func show[Q, R any, M interface {
	*R
	proto.Message
}](of func(*client) method[Q, R], print func(io.Writer, M)) cli.ActionFunc {
	return func(c *cli.Context) error {
		if _, err := positionalArgs(c, 0, 0, ""); err != nil {
			return err
		}
		cl, err := dial(c)
		if err != nil {
			return err
		}
		res, err := of(cl)(c.Context, connect.NewRequest(new(Q)))
		if err != nil {
			return cl.classifyError(err)
		}
		if c.Bool("json") {
			return printProto(c.App.Writer, M(res.Msg))
		}
		print(c.App.Writer, M(res.Msg))
		return nil
	}
}

// dial returns a client for the global flags. It does not connect yet.
func dial(c *cli.Context) (*client, error) {
	return dialTo(c, c.String("address"), c.Bool(staleFlag))
}

// dialTo is dial for other addresses, with or without answers of coordinators that do not lead.
func dialTo(c *cli.Context, addresses string, stale bool) (*client, error) {
	token, err := readToken(c)
	if err != nil {
		return nil, err
	}
	conf := clientTLS(c)
	if token != "" {
		conf = sync.OnceValues(func() (*tls.Config, error) { return pki.TokenConfig(c.String("tls-ca")) })
	}
	t, err := openCoordinators("-address", addresses, conf)
	if err != nil {
		return nil, err
	}
	t.ShowToken(token)
	var more []connect.Interceptor
	if stale {
		more = append(more, staleReader{})
	}
	h, opts := &http.Client{Transport: t}, connect.WithInterceptors(append(more, coordclient.NewRetrier(t))...)
	cl := &client{
		ClientServiceClient: droverv1connect.NewClientServiceClient(h, coordclient.Base, opts),
		tokens:              droverv1connect.NewTokenServiceClient(h, coordclient.Base, opts),
		secrets:             droverv1connect.NewSecretServiceClient(h, coordclient.Base, opts),
		operator:            droverv1connect.NewOperatorServiceClient(h, coordclient.Base, opts),
		history:             droverv1connect.NewHistoryServiceClient(h, coordclient.Base, opts),
		debug:               droverv1connect.NewDebugServiceClient(h, coordclient.Base, opts),
		transport:           t,
		token:               token != "",
		ctx:                 c.Context,
		patience:            followLimit,
	}
	if strings.HasPrefix(t.Current(), "https://") {
		cl.tls, err = conf()
	}
	return cl, err
}

// followLimit is how long a command that follows something tries to reach a coordinator that has
// answered it.
const followLimit = 2 * time.Minute

// following returns a context for the calls of a command that follows something: they wait for a
// coordinator that has answered before and is gone. say tells the user of a wait that does not end
// at once.
func (c *client) following(ctx context.Context, say func(string)) context.Context {
	return coordclient.WithPatience(ctx, &coordclient.Patience{
		Limit: c.patience,
		Lost: func(until time.Time) {
			say(fmt.Sprintf("no coordinator answers at %s: trying until %s", c.address(), until.Format(time.TimeOnly)))
		},
		Found:   func() { say("the coordinator answers again") },
		Refused: c.refused,
	})
}

// refused reports whether the coordinator does not trust this client, or the client not the
// coordinator.
func (c *client) refused(ctx context.Context) bool {
	err := tryHandshake(ctx, c.address(), c.tls)
	return err != nil && (errors.Is(err, pki.ErrWrongPeer) || isTLSReason(connectionReason(err)))
}

// sayTo returns what writes each text as a line.
func sayTo(w io.Writer) func(string) {
	return func(text string) { fmt.Fprintln(w, text) }
}

// address is where the client's requests go now.
func (c *client) address() string { return c.transport.Current() }

// staleFlag accepts answers of coordinators that do not lead.
const staleFlag = "stale"

// staleReader asks for answers of any coordinator.
type staleReader struct{}

// WrapUnary implements connect.Interceptor.
func (staleReader) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		req.Header().Set(wire.Stale, "1")
		return next(ctx, req)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (staleReader) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		conn.RequestHeader().Set(wire.Stale, "1")
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (staleReader) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}

// clientTLS returns the TLS configuration of the flags, which is read when it is
// first needed.
func clientTLS(c *cli.Context) func() (*tls.Config, error) {
	return sync.OnceValues(func() (*tls.Config, error) {
		files := clientTLSFiles(c)
		m, err := files.Open("")
		if err != nil && files.Cert == "" && files.Key == "" {
			return nil, fault.New(fault.Invalid, "%w; or a token: -token-file, with -tls-ca (`drover token create`, `drover login`)", err)
		}
		if err != nil {
			return nil, err
		}
		if leaf := m.Leaf(); pki.ExpiresSoon(leaf, time.Now()) {
			fmt.Fprintln(c.App.ErrWriter, "warning: "+pki.ExpiryText(leaf, time.Now()))
		}
		return m.ClientConfig(pki.KindCoordinator), nil
	})
}

// clientTLSFiles returns the files of the command's certificate. `drover node` and `drover
// coordinator` have flags of the same names for daemons: where those are not given, the ones
// before the command count.
func clientTLSFiles(c *cli.Context) (f pki.Files) {
	for _, level := range c.Lineage() {
		if own := tlsFiles(level); own != (pki.Files{}) {
			return own
		}
	}
	return pki.Files{}
}

// httpClient returns an HTTP/2 client for the addresses of coordinators, separated
// by commas, and the base URL.
func httpClient(c *cli.Context, address string) (*http.Client, string, error) {
	t, err := openCoordinators("-address", address, clientTLS(c))
	if err != nil {
		return nil, "", err
	}
	return &http.Client{Transport: t}, coordclient.Base, nil
}

// openCoordinators returns the transport to the coordinators of a flag, separated
// by commas. tlsConfig is for https addresses.
func openCoordinators(flag, addresses string, tlsConfig func() (*tls.Config, error)) (*coordclient.Transport, error) {
	list := splitList(addresses)
	if len(list) == 0 {
		return nil, usageErrorf("%s is empty: want unix:///path or https://host:port", flag)
	}
	return coordclient.NewTransport(list, func(address string) (*http.Transport, string, error) {
		return openCoordinator(flag, address, tlsConfig)
	})
}

func openCoordinator(flag, address string, tlsConfig func() (*tls.Config, error)) (*http.Transport, string, error) {
	t := &http.Transport{Protocols: new(http.Protocols), IdleConnTimeout: time.Minute, TLSHandshakeTimeout: dialLimit, HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingAfter}}
	t.Protocols.SetHTTP2(true)
	switch {
	case strings.HasPrefix(address, "unix://"):
		path := strings.TrimPrefix(address, "unix://")
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
		}
		return t, coordclient.Base, nil
	case strings.HasPrefix(address, "https://"):
		conf, err := tlsConfig()
		if err != nil {
			return nil, "", err
		}
		t.TLSClientConfig = conf.Clone()
		t.DialContext = (&net.Dialer{Timeout: dialLimit}).DialContext
		return t, strings.TrimRight(address, "/"), nil
	default:
		return nil, "", usageErrorf("%s %q: want unix:///path or https://host:port, several separated by commas", flag, address)
	}
}

const (
	dialLimit = 5 * time.Second
	pingAfter = 2 * time.Second // of silence; a machine that is gone is found so
)

// classifyError adds the fault class to an error of a call and, if no coordinator
// answers, the cure.
func (c *client) classifyError(err error) error {
	if err == nil {
		return nil
	}
	// A connection that is closed while the call waits for it cancels the call, also for a refusal
	// of this certificate.
	closed := errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled
	if closed && c.ctx.Err() != nil {
		return errInterrupted
	}
	if closed || wire.NotConnected(err) || connect.CodeOf(err) == connect.CodeUnavailable && !isServerError(err) {
		why := connectionReason(err)
		if refusal := tryHandshake(c.ctx, c.address(), c.tls); refusal != nil {
			why = connectionReason(refusal)
		}
		if errors.Is(err, pki.ErrWrongPeer) {
			return fault.New(fault.Unavailable, "%s is no coordinator: %s; set -address to one, or have its certificate made with `drover tls cert -kind coordinator`", c.address(), why)
		}
		if c.token && strings.Contains(why, "certificate required") {
			return fault.New(fault.Denied, "%s accepts no token now, so this one has expired or was revoked: have another one made with `drover token create`, or use -tls-cert and -tls-key", c.address())
		}
		if isTLSReason(why) {
			return fault.New(fault.Unavailable, "%s and this command do not trust each other's certificates (%s); -tls-ca, -tls-cert and -tls-key must be of the coordinator's CA (`drover tls`), its certificate must contain the address, and yours must not have expired or been revoked (`drover tls show`)", c.address(), why)
		}
		if closed {
			return fault.New(fault.Unavailable, "%s closed the connection before it answered: it is stopping, or does not accept this certificate; retry in a second", c.address())
		}
		if errors.Is(err, fs.ErrPermission) {
			return fault.New(fault.Unavailable, "%s may be opened by its owner alone: run the command as that user or as root, or set -address to the coordinator's https:// address", c.address())
		}
		return fault.New(fault.Unavailable, "no coordinator answers at %s (%s); start one with `drover coordinator` or `drover dev`, or set -address", c.address(), why)
	}
	if brokeOff(err) {
		return fault.New(fault.Unavailable, "the connection to %s broke off (%s)", c.address(), connectionReason(err))
	}
	return wire.FromError(err)
}

// brokeOff reports whether an answer ended in its midst, as when a coordinator is killed.
func brokeOff(err error) bool {
	var op *net.OpError
	return !isServerError(err) && (errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op))
}

// errInterrupted reports Ctrl-C before a response.
var errInterrupted = fmt.Errorf("interrupted before the coordinator answered%w", wordless{context.Canceled})

// wordless is an error without text; it only adds its cause to a wrapping error.
type wordless struct{ error }

func (wordless) Error() string   { return "" }
func (s wordless) Unwrap() error { return s.error }

// tryHandshake tries mutual TLS separately: in a failed call the server's refusal of a
// certificate is often hidden by the error of the closed connection.
func tryHandshake(ctx context.Context, address string, conf *tls.Config) error {
	u, err := url.Parse(address)
	if conf == nil || err != nil {
		return nil
	}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 2 * time.Second}, Config: conf}).DialContext(ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	// The server verifies this certificate after the client's side of the handshake. A server that
	// accepts it is silent until it is asked something: without the request each caller would wait
	// for the deadline.
	_, err = io.WriteString(conn, "OPTIONS * HTTP/1.1\r\nHost: "+u.Host+"\r\nConnection: close\r\n\r\n")
	if err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// isServerError reports whether the error came from a server rather than the network.
func isServerError(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && connect.IsWireError(ce)
}

// isTLSReason reports whether a connection failed since one side does not trust the other.
func isTLSReason(why string) bool {
	return strings.Contains(why, "tls:") || strings.Contains(why, "x509:")
}

// connectionReason returns the innermost message of a failed connection.
func connectionReason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

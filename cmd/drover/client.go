package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// defaultAddress is where a coordinator on this machine listens.
const defaultAddress = "unix:///run/drover/coordinator.sock"

// client is the API as one command uses it, with errors in Drover's classes.
type client struct {
	droverv1connect.ClientServiceClient
	address string
	tls     *tls.Config     // nil on a unix socket
	ctx     context.Context // of the command: tells a Ctrl-C from a connection that was cut
}

// dial makes the client of the global flags; nothing is sent yet.
func dial(c *cli.Context) (*client, error) {
	h, base, err := httpClient(c, c.String("address"))
	if err != nil {
		return nil, err
	}
	return &client{
		ClientServiceClient: droverv1connect.NewClientServiceClient(h, base),
		address:             c.String("address"),
		tls:                 h.Transport.(*http.Transport).TLSClientConfig,
		ctx:                 c.Context,
	}, nil
}

// httpClient gives an HTTP/2 client for an address, and the base URL to use.
func httpClient(c *cli.Context, address string) (*http.Client, string, error) {
	t := &http.Transport{Protocols: new(http.Protocols), IdleConnTimeout: time.Minute}
	t.Protocols.SetHTTP2(true)
	switch {
	case strings.HasPrefix(address, "unix://"):
		path := strings.TrimPrefix(address, "unix://")
		t.Protocols.SetUnencryptedHTTP2(true)
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", path)
		}
		return &http.Client{Transport: t}, "http://coordinator", nil
	case strings.HasPrefix(address, "https://"):
		conf, err := pki.Files{CA: c.String("tls-ca"), Cert: c.String("tls-cert"), Key: c.String("tls-key")}.ClientConfig()
		if err != nil {
			return nil, "", err
		}
		t.TLSClientConfig = conf
		t.DialContext = (&net.Dialer{Timeout: 10 * time.Second}).DialContext
		return &http.Client{Transport: t}, strings.TrimRight(address, "/"), nil
	default:
		return nil, "", usage("-address %q: want unix:///path or https://host:port", address)
	}
}

// explain gives a call's error its class and, where nobody answers, the cure.
func (c *client) explain(err error) error {
	if err == nil {
		return nil
	}
	if connect.CodeOf(err) == connect.CodeUnavailable && !answered(err) {
		why := reason(err)
		if refusal := c.handshake(); refusal != nil {
			why = reason(refusal)
		}
		if strings.Contains(why, "tls:") || strings.Contains(why, "x509:") {
			return fault.New(fault.Unavailable, "%s and this command do not trust each other's certificates (%s); -tls-ca, -tls-cert and -tls-key must be of one authority (`drover tls`), and the address among the names of the coordinator's certificate", c.address, why)
		}
		return fault.New(fault.Unavailable, "no coordinator answers at %s (%s); start one with `drover coordinator` or `drover dev`, or set -address", c.address, why)
	}
	if errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled {
		if c.ctx.Err() != nil {
			return errInterrupted
		}
		return fault.New(fault.Unavailable, "%s cut the connection before it answered: it is stopping, or does not accept this certificate; try again in a second", c.address)
	}
	return wire.FromError(err)
}

// errInterrupted is Ctrl-C before an answer.
var errInterrupted = fmt.Errorf("interrupted before the coordinator answered%w", silent{context.Canceled})

// silent is an error that adds no words to those before it.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// handshake tries mutual TLS once, alone: in a failed call the server's
// refusal of a certificate is often lost behind the broken connection.
func (c *client) handshake() error {
	u, err := url.Parse(c.address)
	if c.tls == nil || err != nil {
		return nil
	}
	conn, err := (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 2 * time.Second}, Config: c.tls}).DialContext(c.ctx, "tcp", u.Host)
	if err != nil {
		return err
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	// The server judges our certificate after our side of the handshake.
	if _, err = conn.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	return err
}

// answered tells whether a server, not the network, gave the error.
func answered(err error) bool {
	var ce *connect.Error
	return errors.As(err, &ce) && connect.IsWireError(ce)
}

// reason is the innermost text of a failed connection.
func reason(err error) string {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err.Error()
	}
	return err.Error()
}

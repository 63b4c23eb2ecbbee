package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// defaultAddress is where a coordinator on this machine listens.
const defaultAddress = "unix:///run/drover/coordinator.sock"

// client is the API as one command uses it, with errors in Drover's classes.
type client struct {
	droverv1connect.ClientServiceClient
	address string
}

// dial makes the client of the global flags; nothing is sent yet.
func dial(c *cli.Context) (*client, error) {
	h, base, err := httpClient(c, c.String("address"))
	if err != nil {
		return nil, err
	}
	return &client{droverv1connect.NewClientServiceClient(h, base), c.String("address")}, nil
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
		conf, err := clientTLS(c.String("tls-ca"), c.String("tls-cert"), c.String("tls-key"))
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

// clientTLS reads the files of mutual TLS; all three are needed.
func clientTLS(ca, cert, key string) (*tls.Config, error) {
	if ca == "" || cert == "" || key == "" {
		return nil, usage("an https address needs -tls-ca, -tls-cert and -tls-key (or DROVER_TLS_CA, …); `drover tls` makes them")
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fault.New(fault.Invalid, "-tls-ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fault.New(fault.Invalid, "-tls-ca %s holds no certificate", ca)
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fault.New(fault.Invalid, "-tls-cert and -tls-key: %w", err)
	}
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}, nil
}

// explain gives a call's error its class and, where nobody answers, the cure.
func (c *client) explain(err error) error {
	if err == nil {
		return nil
	}
	if connect.CodeOf(err) == connect.CodeUnavailable && !answered(err) {
		return fault.New(fault.Unavailable, "no coordinator answers at %s (%s); start one with `drover coordinator` or `drover dev`, or set -address", c.address, reason(err))
	}
	if errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled {
		return context.Canceled
	}
	return wire.FromError(err)
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

// keyText writes an attempt's key the way commands take it.
func keyText(k *droverv1.AttemptKey) string {
	if k == nil {
		return "-"
	}
	s := fmt.Sprintf("%d/%d.%d", k.Stage, k.Task, k.Attempt)
	if k.Run > 1 {
		s += fmt.Sprintf(" run %d", k.Run)
	}
	return s
}

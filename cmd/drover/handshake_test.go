package main

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// TestHandshakeAsksTheServer: a server that accepts a certificate says nothing until it is asked, so a caller that only
// listened would wait for its deadline each time, as each start of a node daemon did.
func TestHandshakeAsksTheServer(t *testing.T) {
	for name, c := range map[string]struct {
		want     tls.ClientAuthType
		accepted bool
	}{
		"accepted": {tls.NoClientCert, true},
		"refused":  {tls.RequireAnyClientCert, false},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var states []http.ConnState
			s := httptest.NewUnstartedServer(http.NotFoundHandler())
			s.TLS = &tls.Config{ClientAuth: c.want}
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				mu.Lock()
				defer mu.Unlock()
				states = append(states, state)
			}
			s.StartTLS()
			defer s.Close()
			err := tryHandshake(t.Context(), s.URL, s.Client().Transport.(*http.Transport).TLSClientConfig)
			if (err == nil) != c.accepted {
				t.Errorf("%v, want accepted %v", err, c.accepted)
			}
			mu.Lock()
			defer mu.Unlock()
			if asked := slices.Contains(states, http.StateActive); asked != c.accepted {
				t.Errorf("asked %v (%v)", asked, states)
			}
		})
	}
}

// Who follows something does not wait for a coordinator that refuses its certificate, or whose certificate it does not trust; one
// that accepts it, or ends, may answer yet.
func TestFollowingEndsWhereACertificateIsRefused(t *testing.T) {
	server := func(want tls.ClientAuthType) *httptest.Server {
		s := httptest.NewUnstartedServer(http.NotFoundHandler())
		s.TLS, s.Config.ErrorLog = &tls.Config{ClientAuth: want, MinVersion: tls.VersionTLS13}, log.New(io.Discard, "", 0)
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	good, strict, gone := server(tls.NoClientCert), server(tls.RequireAnyClientCert), server(tls.NoClientCert)
	trusting := good.Client().Transport.(*http.Transport).TLSClientConfig
	gone.Close()
	for name, c := range map[string]struct {
		address string
		conf    *tls.Config
		refused bool
	}{
		"it accepts the client":        {good.URL, trusting, false},
		"it refuses the client":        {strict.URL, trusting, true},
		"the client does not trust it": {good.URL, &tls.Config{MinVersion: tls.VersionTLS13}, true},
		"it is gone":                   {gone.URL, trusting, false},
		"a socket":                     {"unix:///run/drover/coordinator.sock", nil, false},
	} {
		tr, err := coordclient.NewTransport([]string{c.address}, func(string) (*http.Transport, string, error) { return &http.Transport{}, "http://c", nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := (&client{transport: tr, tls: c.conf}).refused(t.Context()); got != c.refused {
			t.Errorf("%s: refused %t, want %t", name, got, c.refused)
		}
	}
}

// TestATokenWhereNoneIsGood: a coordinator for which no token is good wants a certificate in the handshake. That
// refuses the token, and says nothing about certificates that the caller does not use.
func TestATokenWhereNoneIsGood(t *testing.T) {
	s := httptest.NewUnstartedServer(http.NotFoundHandler())
	s.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, MinVersion: tls.VersionTLS13}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	h := s.Client().Transport.(*http.Transport)
	tr, err := coordclient.NewTransport([]string{s.URL}, func(address string) (*http.Transport, string, error) { return h, address, nil })
	if err != nil {
		t.Fatal(err)
	}
	for token, want := range map[bool]error{true: fault.Denied, false: fault.Unavailable} {
		cl := &client{transport: tr, tls: h.TLSClientConfig, token: token, ctx: t.Context(),
			ClientServiceClient: droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, coordclient.Base)}
		_, err := cl.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
		if err = cl.classifyError(err); !errors.Is(err, want) || strings.Contains(err.Error(), "drover token create") != token {
			t.Errorf("with a token %t: %v", token, err)
		}
	}
}

// TestASocketOfAnotherUser: who may not open the coordinator's socket is told so, and not to start a coordinator.
func TestASocketOfAnotherUser(t *testing.T) {
	const address = "unix:///run/drover/coordinator.sock"
	refuse := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", syscall.EACCES)}
	}
	h := &http.Transport{DialContext: refuse, DialTLSContext: refuse}
	tr, err := coordclient.NewTransport([]string{address}, func(string) (*http.Transport, string, error) { return h, "http://socket", nil })
	if err != nil {
		t.Fatal(err)
	}
	cl := &client{transport: tr, ctx: t.Context(), ClientServiceClient: droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, coordclient.Base)}
	_, err = cl.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
	if err = cl.classifyError(err); !errors.Is(err, fault.Unavailable) || !strings.HasPrefix(err.Error(), address+" may be opened by its owner alone: run the command as that user or as root") {
		t.Error(err)
	}
}

// TestACoordinatorThatDropsPackets: a dial that ends by its own time limit means that no coordinator answers, with the cure,
// also where the call has no limit.
func TestACoordinatorThatDropsPackets(t *testing.T) {
	const address = "unix:///run/drover/coordinator.sock"
	drop := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	}
	h := &http.Transport{DialContext: drop, DialTLSContext: drop}
	tr, err := coordclient.NewTransport([]string{address}, func(string) (*http.Transport, string, error) { return h, "http://socket", nil })
	if err != nil {
		t.Fatal(err)
	}
	cl := &client{transport: tr, ctx: t.Context(), ClientServiceClient: droverv1connect.NewClientServiceClient(&http.Client{Transport: tr}, coordclient.Base)}
	_, err = cl.Status(t.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
	if err = cl.classifyError(err); exitCode(err) != exitUnavailable || !strings.HasPrefix(err.Error(), "no coordinator answers at "+address) {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}

// TestOneBadCoordinatorKeepsNoNodeFromStarting: of several coordinators one with the certificate of another authority
// is named in a warning. With none but such, the node does not start.
func TestOneBadCoordinatorKeepsNoNodeFromStarting(t *testing.T) {
	good := httptest.NewUnstartedServer(http.NotFoundHandler())
	good.Config.ErrorLog = log.New(io.Discard, "", 0)
	good.StartTLS()
	t.Cleanup(good.Close)
	dir := t.TempDir()
	if err := errors.Join(pki.CreateCA(dir, time.Now()), pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindCoordinator, Name: "c2", Hosts: []string{"127.0.0.1"}, Lifetime: time.Hour}, time.Now())); err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "c2.pem"), filepath.Join(dir, "c2.key"))
	if err != nil {
		t.Fatal(err)
	}
	bad := httptest.NewUnstartedServer(http.NotFoundHandler())
	bad.Config.ErrorLog = log.New(io.Discard, "", 0)
	bad.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}
	bad.StartTLS()
	t.Cleanup(bad.Close)
	closed := httptest.NewServer(http.NotFoundHandler())
	away := strings.Replace(closed.URL, "http://", "https://", 1)
	closed.Close()
	conf := good.Client().Transport.(*http.Transport).TLSClientConfig
	for _, c := range []struct {
		name      string
		addresses []string
		starts    bool
	}{
		{"one is bad", []string{bad.URL, good.URL}, true},
		{"one is bad, the other away", []string{bad.URL, away}, true},
		{"the only one is bad", []string{bad.URL}, false},
		{"all are bad", []string{bad.URL, bad.URL}, false},
		{"all are good", []string{good.URL}, true},
	} {
		var text strings.Builder
		err := checkTrusts(t.Context(), c.addresses, conf, slog.New(slog.NewTextHandler(&text, nil)))
		if (err == nil) != c.starts || err != nil && !errors.Is(err, fault.Denied) {
			t.Errorf("%s: %v", c.name, err)
		}
		if warned := strings.Contains(text.String(), bad.URL); warned != (c.starts && slices.Contains(c.addresses, bad.URL)) {
			t.Errorf("%s: logged %q", c.name, text.String())
		}
	}
}

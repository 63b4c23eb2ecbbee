package coordclient

import (
	"net/http"
	"net/url"
	"slices"
	"sync"

	"github.com/drover-run/drover/internal/fault"
)

// Base is the base URL of a client with a Transport, which replaces it by the URL of a coordinator.
const Base = "http://coordinator"

// Opener returns the HTTP transport to the coordinator at an address, and its base URL. It does not
// connect. It is called once for each address.
type Opener func(address string) (*http.Transport, string, error)

// Transport sends requests to one of several coordinators. It is safe for
// concurrent use.
type Transport struct {
	open  Opener
	token string

	mu        sync.Mutex // guards the fields below
	addresses []string
	current   string
	targets   map[string]target
}

type target struct {
	transport *http.Transport
	base      *url.URL
}

// NewTransport returns a transport to the coordinators at these addresses; it asks the first one
// first. It returns fault.Invalid if there is no address, or one cannot be opened.
func NewTransport(addresses []string, open Opener) (*Transport, error) {
	t := &Transport{open: open, addresses: addresses, targets: map[string]target{}}
	for _, a := range addresses {
		if _, err := t.targetLocked(a); err != nil {
			return nil, err
		}
	}
	if len(addresses) == 0 {
		return nil, fault.New(fault.Invalid, "no address of a coordinator")
	}
	t.current = addresses[0]
	return t, nil
}

// ShowToken makes requests over TLS carry a token. Call it before the first request.
func (t *Transport) ShowToken(token string) { t.token = token }

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	t.mu.Lock()
	to, err := t.targetLocked(t.current)
	t.mu.Unlock()
	if err != nil {
		return nil, err
	}
	sent := req.Clone(req.Context())
	sent.URL.Scheme, sent.URL.Host, sent.Host = to.base.Scheme, to.base.Host, ""
	if t.token != "" && to.base.Scheme == "https" {
		sent.Header.Set("Authorization", "Bearer "+t.token)
	}
	return to.transport.RoundTrip(sent)
}

// CloseIdleConnections implements the method that http.Client looks for.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.targets {
		x.transport.CloseIdleConnections()
	}
}

// Current returns the address of the coordinator to which requests go now.
func (t *Transport) Current() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current
}

// alone reports whether there is only one address.
func (t *Transport) alone() bool { return len(t.addresses) == 1 }

// follow sends further requests to the coordinator at a URL, which may be the current one. It
// returns false if that is not possible.
func (t *Transport) follow(address string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, err := t.targetLocked(address); err != nil {
		return false
	}
	t.current = address
	return true
}

// turn sends further requests to the next coordinator in the list.
func (t *Transport) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.current = t.addresses[(slices.Index(t.addresses, t.current)+1)%len(t.addresses)]
}

// maxTargets bounds the coordinators that followers have named.
const maxTargets = 64

func (t *Transport) targetLocked(address string) (target, error) {
	if x, ok := t.targets[address]; ok {
		return x, nil
	}
	if len(t.targets) >= maxTargets {
		return target{}, fault.New(fault.Exhausted, "%d coordinators were named as leaders", maxTargets)
	}
	transport, base, err := t.open(address)
	if err != nil {
		return target{}, err
	}
	u, err := url.Parse(base)
	if err != nil {
		return target{}, fault.New(fault.Invalid, "address of a coordinator: %w", err)
	}
	t.targets[address] = target{transport, u}
	return t.targets[address], nil
}

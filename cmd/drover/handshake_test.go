package main

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
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

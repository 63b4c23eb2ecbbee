package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/pki"
)

const (
	certificatesEvery = 15 * time.Second // between two checks of the files and of the coordinator's list
	fetchCRLLimit     = 10 * time.Second
	maxConnections    = 512 // of one certificate name
	nameCRL           = "revoked.crl"
)

// peerGuard owns who may call the node's server: the node's certificate, with which it verifies
// others, the revocation list in use, and the open connections, which it closes when their
// certificate is revoked. No field changes, except stored; member and connections have locks of
// their own.
type peerGuard struct {
	member      *pki.Member // nil: callers are verified by the TLS configuration as given
	certified   bool        // callers use TLS; otherwise a socket that only the daemon's user can open
	openMetrics bool
	fetchCRL    func(context.Context) ([]byte, error) // the coordinator's list; nil: only that of member's files is used
	file        string                                // where the newest list is stored
	stored      []byte                                // what this daemon has stored in the file; owned by follow
	connections *pki.Connections
	log         *slog.Logger
}

func newPeerGuard(cfg *Config) *peerGuard {
	return &peerGuard{
		member: cfg.Certificate, certified: cfg.tls != nil, openMetrics: cfg.OpenMetrics, fetchCRL: cfg.FetchCRL,
		file: filepath.Join(cfg.Data, nameCRL), connections: pki.NewConnections(maxConnections), log: cfg.Log,
	}
}

// checkPeer returns an error unless the peer has a verified certificate of one of the kinds that is
// not revoked.
func (g *peerGuard) checkPeer(s *tls.ConnectionState, kinds ...pki.Kind) error {
	if m := g.member; m != nil {
		return m.Check(s, kinds...)
	}
	kind, _, err := pki.PeerIdentity(s)
	if err == nil && !slices.Contains(kinds, kind) {
		err = pki.ErrWrongPeer
	}
	return err
}

// requireCoordinator admits only the coordinator, which has checked the rights of the users on
// whose behalf it calls. It is recognised by its certificate, or by the use of the socket that only
// the daemon's user can open.
func (g *peerGuard) requireCoordinator(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.certified {
			if err := g.checkPeer(r.TLS, pki.KindCoordinator); err != nil {
				http.Error(w, "only the coordinator may call this: send the request through the coordinator", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// requireMember admits callers with any certificate of the cluster. It admits everybody on the
// socket that only the daemon's user can open, and where the operator allows it.
func (g *peerGuard) requireMember(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.certified && !g.openMetrics {
			if err := g.checkPeer(r.TLS, pki.Kinds()...); err != nil {
				http.Error(w, "a certificate of the cluster is needed (drover tls cert), or -open-metrics on the node", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// follow keeps the certificate and the revocation list up to date,
// and closes connections of revoked certificates, until ctx ends. The list comes
// from the file beside the CA's certificate and from the coordinator; the CA's
// signature is checked, and only a newer list replaces the one in use.
func (g *peerGuard) follow(ctx context.Context) error {
	m := g.member
	if m == nil {
		return nil
	}
	if err := g.loadCRL(); err != nil {
		g.log.Warn("the stored revocation list cannot be used", "err", err)
	}
	t := time.NewTicker(certificatesEvery)
	defer t.Stop()
	last := ""
	for {
		text := ""
		if err := errors.Join(m.Reload(), g.updateCRL(ctx)); err != nil {
			text = err.Error()
		}
		if text != "" && text != last && ctx.Err() == nil {
			g.log.Warn("the certificate or the revocation list in use may be old", "err", text)
		}
		last = text
		for _, why := range g.connections.CloseEnded(m, time.Now()) {
			g.log.Warn("closed a connection: its certificate has ended", "certificate", why)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// loadCRL uses the list that an earlier daemon stored.
func (g *peerGuard) loadCRL() error {
	b, err := os.ReadFile(g.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = g.member.SetCRL(b)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; the coordinator's list takes its place", g.file, err)
	}
	return nil
}

// updateCRL fetches the coordinator's list, and stores the list in use unless it is stored already.
// So a list that could not be stored on a full disk is stored later.
func (g *peerGuard) updateCRL(ctx context.Context) error {
	if g.fetchCRL == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchCRLLimit)
	defer cancel()
	b, err := g.fetchCRL(ctx)
	if err != nil || len(b) == 0 {
		return err
	}
	if _, err := g.member.SetCRL(b); err != nil {
		return err
	}
	list := g.member.CRL()
	if bytes.Equal(list, g.stored) {
		return nil
	}
	if err := pki.WriteCRL(g.file, list); err != nil {
		return err
	}
	g.stored = list
	return nil
}

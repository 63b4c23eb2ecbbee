package node

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/pki"
)

const (
	certificatesEvery = 15 * time.Second // how often the files and the coordinator's list are looked at
	fetchCRLLimit     = 10 * time.Second
	maxConnections    = 512 // of one certificate name
	nameCRL           = "revoked.crl"
)

// checkPeer returns an error unless the other side has a verified certificate of
// one of the kinds that was not revoked.
func (d *daemon) checkPeer(s *tls.ConnectionState, kinds ...pki.Kind) error {
	if m := d.cfg.Certificate; m != nil {
		return m.Check(s, kinds...)
	}
	kind, _, err := pki.PeerIdentity(s)
	if err == nil && !slices.Contains(kinds, kind) {
		err = pki.ErrWrongPeer
	}
	return err
}

// requireMember admits callers with any certificate of the cluster, or everybody
// on the socket that only the daemon's user can open and if the operator says
// so.
func (d *daemon) requireMember(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if d.cfg.TLS != nil && !d.cfg.OpenMetrics {
			if err := d.checkPeer(r.TLS, pki.Kinds()...); err != nil {
				http.Error(w, "a certificate of the cluster is needed (drover tls cert), or -open-metrics on the node", http.StatusForbidden)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// followCertificates keeps the certificate and the revocation list up to date,
// and closes connections of revoked certificates, until ctx ends. The list comes
// from the file beside the CA's certificate and from the coordinator; the CA's
// signature is checked, and only a newer list replaces the one in use.
func (d *daemon) followCertificates(ctx context.Context) error {
	m := d.cfg.Certificate
	if m == nil {
		return nil
	}
	if err := d.loadCRL(); err != nil {
		d.log.Warn("the stored revocation list cannot be used", "err", err)
	}
	t := time.NewTicker(certificatesEvery)
	defer t.Stop()
	last := ""
	for {
		text := ""
		if err := errors.Join(m.Reload(), d.updateCRL(ctx)); err != nil {
			text = err.Error()
		}
		if text != "" && text != last && ctx.Err() == nil {
			d.log.Warn("the certificate or the revocation list in use may be old", "err", text)
		}
		last = text
		for _, name := range d.connections.CloseRevoked(m) {
			d.log.Warn("closed a connection: its certificate was revoked", "certificate", name)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// loadCRL uses the list that an earlier daemon stored.
func (d *daemon) loadCRL() error {
	b, err := os.ReadFile(filepath.Join(d.cfg.Data, nameCRL))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = d.cfg.Certificate.SetCRL(b)
	}
	return err
}

// updateCRL fetches the coordinator's list, and stores it if it is newer.
func (d *daemon) updateCRL(ctx context.Context) error {
	if d.cfg.FetchCRL == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchCRLLimit)
	defer cancel()
	b, err := d.cfg.FetchCRL(ctx)
	if err != nil || len(b) == 0 {
		return err
	}
	newer, err := d.cfg.Certificate.SetCRL(b)
	if err != nil || !newer {
		return err
	}
	return pki.WriteCRL(filepath.Join(d.cfg.Data, nameCRL), d.cfg.Certificate.CRL())
}

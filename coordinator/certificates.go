package coordinator

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/sleep"
)

const (
	noticeEvery    = 24 * time.Hour // between two events about one certificate
	maxNotices     = 10_000         // certificates remembered for that
	maxConnections = 512            // of one certificate name
)

// certificates follows the coordinator's own certificate, the revocation list
// and the certificates that callers show. With a nil member, on the local
// socket alone, it does nothing.
type certificates struct {
	member *pki.Member
	open   *pki.Connections

	mu      sync.Mutex
	ending  map[string]*x509.Certificate // of nodes, which expire soon, by common name
	noticed map[string]time.Time         // when the last event was, by serial number
}

func newCertificates(m *pki.Member) *certificates {
	return &certificates{member: m, open: pki.NewConnections(maxConnections), ending: map[string]*x509.Certificate{}, noticed: map[string]time.Time{}}
}

// admit says why a request comes with a certificate that has ended since its connection was opened,
// or returns "". It notes a certificate that expires soon.
func (t *certificates) admit(s *tls.ConnectionState, now time.Time) (ended string) {
	if t.member == nil || s == nil || len(s.VerifiedChains) == 0 {
		return ""
	}
	leaf := s.VerifiedChains[0][0]
	if why := t.member.Ended(leaf, now); why != "" {
		return why
	}
	if pki.ExpiresSoon(leaf, now) && strings.HasPrefix(leaf.Subject.CommonName, string(pki.KindNode)+"/") {
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(t.ending) < maxNotices {
			t.ending[leaf.Subject.CommonName] = leaf
		}
	}
	return ""
}

// refuseEnded answers requests with a certificate that was revoked or has expired.
func (c *core) refuseEnded(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if why := c.certificates.admit(r.TLS, c.now()); why != "" {
			err := fault.New(fault.Denied, "this certificate %s: ask an operator for another", why)
			if errs := connect.NewErrorWriter(); errs.IsSupported(r) {
				_ = errs.Write(w, r, toWireError(err)) // fails only if the caller is gone
				return
			}
			http.Error(w, err.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// serveCRL returns the revocation list to nodes and users. It is signed by the
// authority, so that they need not trust the coordinator about it.
func (c *core) serveCRL(w http.ResponseWriter, _ *http.Request) {
	var crl []byte
	if c.certificates.member != nil {
		crl = c.certificates.member.CRL()
	}
	if crl == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Type", "application/pkix-crl")
	_, _ = w.Write(crl) // fails only if the reader is gone
}

// followCertificates reloads renewed certificates and the revocation list,
// closes connections of certificates that have ended, and records events about those
// that expire soon, until ctx ends.
func (c *core) followCertificates(ctx context.Context) error {
	if c.certificates.member == nil {
		return nil
	}
	last := ""
	for {
		text := ""
		if err := c.certificates.member.Reload(); err != nil {
			text = err.Error()
		}
		if text != "" && text != last {
			c.log.Warn("the certificates in use are not those on disk", "err", text)
		}
		last = text
		for _, why := range c.certificates.open.CloseEnded(c.certificates.member, c.now()) {
			c.log.Warn("closed a connection: its certificate has ended", "certificate", why)
		}
		if c.leadership.leads() {
			c.announceExpiry(ctx)
		}
		if !sleep.For(ctx, c.cfg.CertificatesEvery) {
			return nil
		}
	}
}

// announceExpiry records an event for each certificate that expires soon, once
// a day.
func (c *core) announceExpiry(ctx context.Context) {
	for _, leaf := range c.certificates.due(c.now()) {
		node, _ := strings.CutPrefix(leaf.Subject.CommonName, string(pki.KindNode)+"/")
		if node == leaf.Subject.CommonName {
			node = ""
		}
		e := &droverv1.Entry{Body: &droverv1.Entry_Notice{Notice: &droverv1.NoticeFact{Kind: "certificate.expires", Node: node, Text: pki.ExpiryText(leaf, c.now())}}}
		if _, err := c.propose(ctx, actorSelf, e); err != nil {
			return // again in a while
		}
		c.certificates.setNoticed(leaf, c.now())
	}
}

// due returns the certificates of which an event is due, the own one included.
func (t *certificates) due(now time.Time) (out []*x509.Certificate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	add := func(leaf *x509.Certificate) {
		if now.Sub(t.noticed[leaf.SerialNumber.String()]) >= noticeEvery {
			out = append(out, leaf)
		}
	}
	if own := t.member.Leaf(); pki.ExpiresSoon(own, now) {
		add(own)
	}
	for _, leaf := range t.ending {
		add(leaf)
	}
	return out
}

func (t *certificates) setNoticed(leaf *x509.Certificate, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.noticed) >= maxNotices {
		clear(t.noticed)
	}
	t.noticed[leaf.SerialNumber.String()] = now
	delete(t.ending, leaf.Subject.CommonName) // noted again by its next request
}

// untilMS returns when the own certificate expires, Unix milliseconds, 0 without one.
func (t *certificates) untilMS() int64 {
	if t.member == nil {
		return 0
	}
	return t.member.Leaf().NotAfter.UnixMilli()
}

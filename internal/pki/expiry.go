package pki

import (
	"crypto/x509"
	"fmt"
	"time"
)

// warnBefore is how long before its expiry a certificate is announced.
const warnBefore = 30 * 24 * time.Hour

// ExpiresSoon reports whether a certificate has expired or will within
// warnBefore.
func ExpiresSoon(c *x509.Certificate, now time.Time) bool {
	return c.NotAfter.Sub(now) < warnBefore
}

// ExpiryText returns a sentence that says when a certificate expires, and the cure.
func ExpiryText(c *x509.Certificate, now time.Time) string {
	left := c.NotAfter.Sub(now)
	until := c.NotAfter.UTC().Format("2006-01-02 15:04 MST")
	cure := "make another with `drover tls cert` and replace the files; no restart is needed"
	if left <= 0 {
		return fmt.Sprintf("the certificate of %s expired on %s: %s", c.Subject.CommonName, until, cure)
	}
	return fmt.Sprintf("the certificate of %s expires in %d days, on %s: %s", c.Subject.CommonName, int(left/(24*time.Hour)), until, cure)
}

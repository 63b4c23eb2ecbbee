package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// Check finds problems that would keep a daemon from using its files: a certificate that has
// expired, is of another kind or name, or was signed by another authority. name "" accepts any
// name. The error is fault.Invalid and names the file and the cure.
func (f Files) Check(kind Kind, name string, now time.Time) error {
	pool, pair, _, err := f.Load()
	if err != nil {
		return err
	}
	leaf := pair.Leaf
	gotKind, gotName, _ := strings.Cut(leaf.Subject.CommonName, "/")
	renew := RenewalText(kind, nameOr(name, gotName))
	switch {
	case now.After(leaf.NotAfter):
		return fault.New(fault.Invalid, "certificate %s expired at %s: %s", f.Cert, leaf.NotAfter.UTC().Format(time.RFC3339), renew)
	case now.Before(leaf.NotBefore):
		return fault.New(fault.Invalid, "certificate %s is not valid before %s, and the clock of this machine says %s: set the clock", f.Cert, leaf.NotBefore.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	case gotKind != string(kind):
		return fault.New(fault.Invalid, "certificate %s is %s's, not a %s's: %s", f.Cert, leaf.Subject.CommonName, kind, renew)
	case name != "" && gotName != name:
		return fault.New(fault.Invalid, "certificate %s is %s's and this is %s/%s: set the name to %q, or %s", f.Cert, leaf.Subject.CommonName, kind, name, gotName, renew)
	}
	usage := x509.ExtKeyUsageServerAuth
	if kind == KindUser {
		usage = x509.ExtKeyUsageClientAuth
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	var expired x509.CertificateInvalidError
	if errors.As(err, &expired) && expired.Reason == x509.Expired {
		return fault.New(fault.Invalid, "the authority in %s has expired (%w): make one with `drover tls ca`, and all certificates renew", f.CA, err)
	}
	if err != nil {
		return fault.New(fault.Invalid, "certificate %s was not made by the authority in %s (%w): the two are of different clusters; use files of one", f.Cert, f.CA, err)
	}
	return nil
}

// RenewalText says how to make the certificate of a daemon; name "" stands for any name. The text
// has no colon, because the text of Check has a colon in front of the cure.
func RenewalText(kind Kind, name string) string {
	return fmt.Sprintf("make a new one with `drover tls cert -kind %s -host HOST %s` where the authority is, and put it in place", kind, nameOr(name, "NAME"))
}

func nameOr(name, otherwise string) string {
	if name != "" {
		return name
	}
	return otherwise
}

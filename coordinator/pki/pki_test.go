package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

func leaf(t *testing.T, p Pair) *x509.Certificate {
	t.Helper()
	b, _ := pem.Decode(p.Cert)
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificatesVerifyForWhatTheyAreMadeFor(t *testing.T) {
	now := time.Now()
	ca, err := NewCA("x", now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewCA("y", now)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf(t, ca))
	tests := map[string]struct {
		by    Pair
		name  string
		hosts []string
		use   x509.ExtKeyUsage
		host  string
		at    time.Time
		ok    bool
	}{
		"a user connects":                       {ca, "user/ann", nil, x509.ExtKeyUsageClientAuth, "", now, true},
		"a user serves":                         {ca, "user/ann", nil, x509.ExtKeyUsageServerAuth, "", now, false},
		"a node serves on its address":          {ca, "node/n1", []string{"10.0.0.1"}, x509.ExtKeyUsageServerAuth, "10.0.0.1", now, true},
		"a node serves on another":              {ca, "node/n1", []string{"10.0.0.1"}, x509.ExtKeyUsageServerAuth, "10.0.0.2", now, false},
		"a coordinator is reached by its name":  {ca, "coordinator", nil, x509.ExtKeyUsageServerAuth, "coordinator", now, true},
		"an expired one":                        {ca, "user/ann", nil, x509.ExtKeyUsageClientAuth, "", now.Add(CertLifetime + time.Hour), false},
		"one of another CA":                     {other, "user/ann", nil, x509.ExtKeyUsageClientAuth, "", now, false},
		"a clock that is two minutes behind us": {ca, "user/ann", nil, x509.ExtKeyUsageClientAuth, "", now.Add(-2 * time.Minute), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := Issue(tc.by, tc.name, tc.hosts, now)
			if err != nil {
				t.Fatal(err)
			}
			_, err = leaf(t, p).Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{tc.use}, DNSName: tc.host, CurrentTime: tc.at})
			if (err == nil) != tc.ok {
				t.Fatalf("verify: %v, want ok %v", err, tc.ok)
			}
		})
	}
}

func TestIssueRefuses(t *testing.T) {
	ca, err := NewCA("x", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "ann", "user/", "user/a b", "root/x", "user/a/b", "coordinator2"} {
		if _, err := Issue(ca, name, nil, time.Now()); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	user, err := Issue(ca, "user/ann", nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Issue(user, "user/eve", nil, time.Now()); !errors.Is(err, fault.Invalid) {
		t.Errorf("a user signs: %v", err)
	}
}

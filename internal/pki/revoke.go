package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

const (
	caCRL     = "ca.crl"
	issuedDir = "issued"
	// CRLPath is where a coordinator serves the list over HTTPS.
	CRLPath = "/tls/crl"
	// MaxCRL bounds a revocation list, in bytes: about 20,000 entries.
	MaxCRL = 1 << 20
)

// revocations is a parsed revocation list.
type revocations struct {
	der    []byte
	number *big.Int // nil for no list
	serial map[string]bool
}

func (r *revocations) has(serial *big.Int) bool { return r.serial[serial.String()] }

func (r *revocations) newerThan(o *revocations) bool {
	return o.number == nil || r.number.Cmp(o.number) > 0
}

// parseRevocations reads a list in PEM or DER that one of the authorities signed.
func parseRevocations(b []byte, cas []*x509.Certificate) (*revocations, error) {
	if len(b) > MaxCRL {
		return nil, fault.New(fault.Exhausted, "a revocation list of %d KiB, at most %d are read", len(b)>>10, MaxCRL>>10)
	}
	if p, _ := pem.Decode(b); p != nil {
		b = p.Bytes
	}
	list, err := x509.ParseRevocationList(b)
	if err != nil {
		return nil, fault.New(fault.Invalid, "no revocation list: %w", err)
	}
	signed := slices.ContainsFunc(cas, func(c *x509.Certificate) bool { return list.CheckSignatureFrom(c) == nil })
	if !signed || list.Number == nil {
		return nil, fault.New(fault.Denied, "the cluster's authority did not sign this revocation list")
	}
	r := &revocations{der: list.Raw, number: list.Number, serial: map[string]bool{}}
	for _, e := range list.RevokedCertificateEntries {
		r.serial[e.SerialNumber.String()] = true
	}
	return r, nil
}

// Issued is a certificate that the authority in a folder has signed.
type Issued struct {
	Cert    *x509.Certificate
	Kind    Kind
	Name    string
	Current bool // it is in <name>.pem; if no certificate of this kind and name is there, it is the newest of them
	Revoked bool
}

// List returns the certificates that the authority in dir has signed, by name
// and then from the newest to the oldest, and the authority itself.
func List(dir string) (ca *x509.Certificate, issued []Issued, err error) {
	if ca, err = ReadCertificate(filepath.Join(dir, caCert)); errors.Is(err, fs.ErrNotExist) {
		return nil, nil, noAuthority(dir, err)
	} else if err != nil {
		return nil, nil, err
	}
	revoked, err := readCRL(dir, ca)
	if err != nil {
		return nil, nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*.pem"))
	if err != nil {
		return nil, nil, err
	}
	older, err := filepath.Glob(filepath.Join(dir, issuedDir, "*.pem"))
	if err != nil {
		return nil, nil, err
	}
	known := map[string]bool{ca.SerialNumber.String(): true}
	inPlace := map[string]*x509.Certificate{}
	for _, p := range slices.Concat(paths, older) {
		c, err := ReadCertificate(p)
		if err != nil {
			return nil, nil, err
		}
		kind, name, err := subject(c)
		if err != nil || c.CheckSignatureFrom(ca) != nil {
			continue // signed by another authority
		}
		if p == filepath.Join(dir, name+".pem") {
			inPlace[c.Subject.CommonName] = c
		}
		if known[c.SerialNumber.String()] {
			continue // already in the list
		}
		known[c.SerialNumber.String()] = true
		issued = append(issued, Issued{Cert: c, Kind: kind, Name: name, Revoked: revoked.has(c.SerialNumber)})
	}
	slices.SortStableFunc(issued, func(a, b Issued) int {
		if a.Name != b.Name {
			return bytes.Compare([]byte(a.Name), []byte(b.Name))
		}
		return b.Cert.NotBefore.Compare(a.Cert.NotBefore)
	})
	markCurrent(issued, inPlace)
	return ca, issued, nil
}

// markCurrent sets Current of certificates that are sorted as by List. inPlace holds the
// certificates in <name>.pem, by common name. If two newest ones are from the same second, neither
// is known to be replaced, so both are current.
func markCurrent(issued []Issued, inPlace map[string]*x509.Certificate) {
	newest := map[string]*x509.Certificate{}
	for k := range issued {
		i := &issued[k]
		name := i.Cert.Subject.CommonName
		if newest[name] == nil {
			newest[name] = i.Cert
		}
		if c := inPlace[name]; c != nil {
			i.Current = c.Equal(i.Cert)
		} else {
			i.Current = i.Cert.NotBefore.Equal(newest[name].NotBefore)
		}
	}
}

// ReadCertificate reads the first certificate of a PEM file.
func ReadCertificate(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fault.New(fault.NotFound, "%w", err)
	}
	list, err := parseCertificates(path, b)
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// parseCertificates returns all certificates of a PEM file, at least one.
func parseCertificates(path string, b []byte) (out []*x509.Certificate, err error) {
	for {
		var p *pem.Block
		if p, b = pem.Decode(b); p == nil {
			break
		}
		if p.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return nil, fault.New(fault.Invalid, "%s: %w", path, err)
		}
		out = append(out, c)
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Invalid, "%s holds no certificate", path)
	}
	return out, nil
}

// readCRL reads the folder's revocation list; a missing one is empty.
func readCRL(dir string, ca *x509.Certificate) (*revocations, error) {
	b, err := os.ReadFile(filepath.Join(dir, caCRL))
	if errors.Is(err, os.ErrNotExist) {
		return &revocations{}, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := parseRevocations(b, []*x509.Certificate{ca})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, caCRL), err)
	}
	return r, nil
}

// Revoke adds serial numbers to the revocation list ca.crl of the authority in dir, which daemons
// read beside their ca.pem. Existing entries stay. It returns how many it added.
func Revoke(dir string, serials []*big.Int, now time.Time) (added int, err error) {
	ca, signer, err := loadCA(dir)
	if err != nil {
		return 0, err
	}
	old, err := readCRL(dir, ca)
	if err != nil {
		return 0, err
	}
	list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: now, NextUpdate: ca.NotAfter}
	if old.number != nil {
		prior, err := x509.ParseRevocationList(old.der)
		if err != nil {
			return 0, err
		}
		list.Number.Add(old.number, big.NewInt(1))
		list.RevokedCertificateEntries = prior.RevokedCertificateEntries
	}
	for _, s := range serials {
		listed := slices.ContainsFunc(list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool { return e.SerialNumber.Cmp(s) == 0 })
		if !listed {
			added++
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: s, RevocationTime: now})
		}
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca, signer)
	if err != nil {
		return 0, err
	}
	if len(der) > MaxCRL {
		return 0, fault.New(fault.Exhausted, "the revocation list would have %d KiB, at most %d are read: make a new authority", len(der)>>10, MaxCRL>>10)
	}
	return added, WriteCRL(filepath.Join(dir, caCRL), der)
}

// WriteCRL replaces a revocation list as a whole. It syncs the new list before the rename: a loss
// of power leaves the old list or the new one.
func WriteCRL(path string, der []byte) error {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

package main

import (
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
)

// shownCertificate is one row of `drover tls show`.
type shownCertificate struct {
	Name   string    `json:"name"`
	Serial string    `json:"serial"`
	Until  time.Time `json:"until"`
	Hosts  []string  `json:"hosts,omitempty"`
	State  string    `json:"state"` // good, expires soon, expired, revoked; replaced where another has its file
}

func tlsShowCommand() *cli.Command {
	return &cli.Command{
		Name:        "show",
		Usage:       "show who has certificates, and until when",
		ArgsUsage:   "[FILE...]",
		Description: "Without a file it shows all that the CA in -dir has signed. Of a file it shows that it is revoked where that CA is in -dir.",
		Flags:       []cli.Flag{tlsDirFlag, jsonFlag},
		Action: func(c *cli.Context) error {
			files, err := positionalArgs(c, 0, 1000, "[FILE...]")
			if err != nil {
				return err
			}
			now := time.Now()
			var rows []shownCertificate
			known, err := issuedBySerial(c.String("dir"))
			if err != nil {
				return err
			}
			for _, f := range files {
				leaf, err := pki.ReadCertificate(f)
				if err != nil {
					return err
				}
				rows = append(rows, showCertificate(leaf, now, known[leaf.SerialNumber.Text(16)].Revoked, true))
			}
			if len(files) == 0 {
				ca, issued, err := pki.List(c.String("dir"))
				if err != nil {
					return err
				}
				rows = append(rows, showCertificate(ca, now, false, true))
				for _, i := range issued {
					rows = append(rows, showCertificate(i.Cert, now, i.Revoked, i.Current))
				}
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, map[string]any{"certificates": rows})
			}
			var table [][]string
			for _, r := range rows {
				table = append(table, []string{r.Name, r.Until.Format(time.DateOnly), r.State, strings.Join(r.Hosts, " "), r.Serial})
			}
			printTable(c.App.Writer, []string{"certificate", "until", "state", "hosts", "serial"}, table)
			return nil
		},
	}
}

// issuedBySerial returns what the CA in a folder has signed; nothing where there is none.
func issuedBySerial(dir string) (map[string]pki.Issued, error) {
	out := map[string]pki.Issued{}
	_, issued, err := pki.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return out, nil // a file's own dates are shown without a CA
	}
	for _, i := range issued {
		out[i.Cert.SerialNumber.Text(16)] = i
	}
	return out, err
}

func showCertificate(c *x509.Certificate, now time.Time, revoked, current bool) shownCertificate {
	s := shownCertificate{Name: c.Subject.CommonName, Serial: c.SerialNumber.Text(16), Until: c.NotAfter.UTC(), Hosts: c.DNSNames}
	for _, ip := range c.IPAddresses {
		s.Hosts = append(s.Hosts, ip.String())
	}
	switch {
	case revoked:
		s.State = "revoked"
	case now.After(c.NotAfter):
		s.State = "expired"
	case pki.ExpiresSoon(c, now):
		s.State = fmt.Sprintf("expires in %d days", int(c.NotAfter.Sub(now)/(24*time.Hour)))
	default:
		s.State = "good"
	}
	if !current {
		s.State += ", replaced"
	}
	return s
}

func tlsRevokeCommand() *cli.Command {
	return &cli.Command{
		Name:      "revoke",
		Usage:     "revoke the certificates of a name",
		ArgsUsage: "[NAME]",
		Description: "NAME may have a kind, as in user/m2; without one, certificates of every kind are meant.\n" +
			"It writes ca.crl in -dir, signed by the CA. Copy it beside each coordinator's ca.pem: within a minute the\n" +
			"coordinator and its nodes refuse the certificates and close their connections, without a restart.",
		Flags: []cli.Flag{
			tlsDirFlag,
			&cli.BoolFlag{Name: "old", Usage: "only certificates that were replaced, not the one in NAME.pem, or the newest where that file is gone"},
			&cli.StringSliceFlag{Name: "serial", Usage: "serial number, as 'drover tls show' prints it, instead of a name; repeatable"},
			&cli.BoolFlag{Name: "force", Usage: "also a serial number that no certificate in -dir has, as of one whose file is gone"},
		},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 0, 1, "[NAME]")
			if err != nil {
				return err
			}
			if (len(a) == 0) == (len(c.StringSlice("serial")) == 0) {
				return usageErrorf("give either a NAME or -serial")
			}
			now := time.Now()
			serials, err := serialsToRevoke(c, a, now)
			if err != nil {
				return err
			}
			added, err := pki.Revoke(c.String("dir"), serials, now)
			if err != nil {
				return err
			}
			before := ""
			if n := len(serials) - added; n > 0 {
				before = fmt.Sprintf(", %d already was", n)
			}
			fmt.Fprintf(c.App.Writer, "revoked %d%s; copy %s beside ca.pem of the coordinator\n", added, before, filepath.Join(c.String("dir"), "ca.crl"))
			return nil
		},
	}
}

// serialsToRevoke returns the serial numbers that the command line means, at
// least one.
func serialsToRevoke(c *cli.Context, name []string, now time.Time) (out []*big.Int, err error) {
	parsed, err := parseSerials(c.StringSlice("serial"))
	if err != nil {
		return nil, err
	}
	_, issued, err := pki.List(c.String("dir"))
	if err != nil {
		return nil, err
	}
	if len(name) == 0 {
		for _, s := range parsed {
			if !c.Bool("force") && !slices.ContainsFunc(issued, func(i pki.Issued) bool { return i.Cert.SerialNumber.Cmp(s) == 0 }) {
				return nil, fault.New(fault.NotFound, "no certificate in %s has the serial number %x: `drover tls show -dir %s` lists them; -force revokes one whose file is gone",
					c.String("dir"), s, c.String("dir"))
			}
		}
		return parsed, nil
	}
	known := false
	for _, i := range issued {
		if i.Name != name[0] && string(i.Kind)+"/"+i.Name != name[0] {
			continue
		}
		known = true
		if !i.Revoked && i.Cert.NotAfter.After(now) && !(c.Bool("old") && i.Current) {
			out = append(out, i.Cert.SerialNumber)
		}
	}
	switch {
	case !known:
		return nil, fault.New(fault.NotFound, "%s has signed no certificate of %q: `drover tls show -dir %s` lists them", filepath.Join(c.String("dir"), "ca.pem"), name[0], c.String("dir"))
	case len(out) == 0:
		return nil, fault.New(fault.NotFound, "no certificate of %q is left to revoke: `drover tls show -dir %s` lists them", name[0], c.String("dir"))
	}
	return out, nil
}

// parseSerials returns the numbers that hexadecimal texts mean.
func parseSerials(texts []string) (out []*big.Int, err error) {
	for _, s := range texts {
		b, err := hex.DecodeString(strings.Repeat("0", len(s)%2) + s)
		if err != nil || len(b) == 0 {
			return nil, usageErrorf("-serial %q: want the hexadecimal number that `drover tls show` prints", s)
		}
		out = append(out, new(big.Int).SetBytes(b))
	}
	return out, nil
}

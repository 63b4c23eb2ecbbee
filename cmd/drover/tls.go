package main

import (
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/pki"
)

// tlsDirFlag names the folder of the CA.
var tlsDirFlag = &cli.StringFlag{Name: "dir", Value: "drover-tls", Usage: "folder for the CA and its certificates"}

func tlsCommand() *cli.Command {
	return &cli.Command{
		Name:        "tls",
		Usage:       "create, show and revoke the certificates of a cluster",
		Subcommands: []*cli.Command{tlsCACommand(), tlsCertCommand(), tlsShowCommand(), tlsRevokeCommand()},
	}
}

func tlsCACommand() *cli.Command {
	return &cli.Command{
		Name:        "ca",
		Usage:       "create the cluster's CA",
		Description: "Keep ca.key off the machines of the cluster; they need ca.pem only.",
		Flags:       []cli.Flag{tlsDirFlag},
		Action: func(c *cli.Context) error {
			if _, err := positionalArgs(c, 0, 0, ""); err != nil {
				return err
			}
			if err := pki.CreateCA(c.String("dir"), time.Now()); err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "created %s and ca.key, the signing key\n", filepath.Join(c.String("dir"), "ca.pem"))
			return nil
		},
	}
}

func tlsCertCommand() *cli.Command {
	return &cli.Command{
		Name:      "cert",
		Usage:     "create a certificate for a coordinator, a node or a user",
		ArgsUsage: "NAME",
		Description: "A second certificate of a name replaces the files of the first, which stays good until it expires or is\n" +
			"revoked (drover tls revoke -old NAME). Daemons use replaced files without a restart.",
		Flags: []cli.Flag{
			tlsDirFlag,
			&cli.StringFlag{Name: "kind", Value: "user", Usage: "coordinator, node or user"},
			&cli.StringSliceFlag{Name: "host", Usage: "host name or address of the server, repeatable"},
			&cli.DurationFlag{Name: "life", Value: pki.CertLifetime, Usage: "validity"},
		},
		Action: func(c *cli.Context) error {
			a, err := positionalArgs(c, 1, 1, "NAME")
			if err != nil {
				return err
			}
			now := time.Now()
			if d := c.Duration("life"); d <= 0 {
				return usageErrorf("-life %s: want how long it is valid, such as 720h", d)
			}
			r := pki.CertRequest{Kind: pki.Kind(c.String("kind")), Name: a[0], Hosts: c.StringSlice("host"), Lifetime: c.Duration("life")}
			old, err := pki.Issue(c.String("dir"), r, now)
			if err != nil {
				return err
			}
			fmt.Fprintf(c.App.Writer, "created %s and its key: %s/%s\n", filepath.Join(c.String("dir"), a[0]+".pem"), r.Kind, r.Name)
			noteFormer(c, old, a[0], now)
			return nil
		},
	}
}

// noteFormer says that the certificate that was replaced, if any, stays good.
func noteFormer(c *cli.Context, old *x509.Certificate, name string, now time.Time) {
	if old != nil && old.NotAfter.After(now) {
		fmt.Fprintf(c.App.ErrWriter, "note: this is another certificate of %s; the former one (serial %x) stays good until %s: `drover tls revoke -dir %s -old %s` ends that\n",
			old.Subject.CommonName, old.SerialNumber, old.NotAfter.UTC().Format(time.DateOnly), c.String("dir"), name)
	}
}

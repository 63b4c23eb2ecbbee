package main

import (
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/pki"
)

func tlsCommand() *cli.Command {
	dir := &cli.StringFlag{Name: "dir", Value: "drover-tls", Usage: "folder of the authority and what it signs"}
	return &cli.Command{
		Name:  "tls",
		Usage: "certificates of a cluster: who may be what",
		Subcommands: []*cli.Command{
			{
				Name:        "ca",
				Usage:       "make the cluster's authority",
				Description: "Keep ca.key off the machines of the cluster; they need ca.pem.",
				Flags:       []cli.Flag{dir},
				Action: func(c *cli.Context) error {
					if _, err := args(c, 0, 0, ""); err != nil {
						return err
					}
					if err := pki.CreateCA(c.String("dir"), time.Now()); err != nil {
						return err
					}
					fmt.Fprintf(c.App.Writer, "made %s and ca.key, which signs\n", filepath.Join(c.String("dir"), "ca.pem"))
					return nil
				},
			},
			{
				Name:      "cert",
				Usage:     "make a certificate for a coordinator, a node or a user",
				ArgsUsage: "NAME",
				Flags: []cli.Flag{
					dir,
					&cli.StringFlag{Name: "kind", Value: "user", Usage: "coordinator, node or user"},
					&cli.StringSliceFlag{Name: "host", Usage: "name or address under which it is reached, repeatable"},
					&cli.DurationFlag{Name: "life", Value: pki.CertLife, Usage: "how long it holds"},
				},
				Action: func(c *cli.Context) error {
					a, err := args(c, 1, 1, "NAME")
					if err != nil {
						return err
					}
					r := pki.Request{Kind: pki.Kind(c.String("kind")), Name: a[0], Hosts: c.StringSlice("host"), Life: c.Duration("life")}
					if err := pki.Issue(c.String("dir"), r, time.Now()); err != nil {
						return err
					}
					fmt.Fprintf(c.App.Writer, "made %s and its key: %s/%s\n", filepath.Join(c.String("dir"), a[0]+".pem"), r.Kind, r.Name)
					return nil
				},
			},
		},
	}
}

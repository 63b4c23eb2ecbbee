package main

import (
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/internal/pki"
)

func coordinatorCommand() *cli.Command {
	return &cli.Command{
		Name:  "coordinator",
		Usage: "run the coordinator of a cluster",
		Description: "Operators on this machine use the socket, which only its owner can open. Nodes and users elsewhere come over\n" +
			"mutual TLS: give -listen with -tls-ca, -tls-cert and -tls-key (`drover tls` makes them).",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover/coordinator", Usage: "folder of the log, the uploaded files and the history"},
			&cli.StringFlag{Name: "socket", Value: "/run/drover/coordinator.sock", Usage: "socket for this machine"},
			&cli.StringFlag{Name: "listen", Usage: "host:port for other machines; without it there are none"},
			&cli.StringSliceFlag{Name: "operator", Usage: "certificate name (user/NAME) that may do everything, repeatable"},
			&cli.StringSliceFlag{Name: "allow-image", Usage: "prefix of images by name that jobs may use: registry:docker.io/library/ or rootfs:/srv/images/, repeatable"},
			&cli.DurationFlag{Name: "lease", Value: 15 * time.Second, Usage: "a node that is silent for longer is lost"},
			&cli.Float64Flag{Name: "frozen-share", Value: 0.5, Usage: "of a node's memory that frozen tasks may hold; above it the largest are swapped out or checkpointed"},
			&cli.DurationFlag{Name: "keep-logs", Value: 15 * time.Minute, Usage: "nodes keep the logs of an ended job; negative: not at all"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log what happens, not only warnings"},
		}, append(tlsFlags(), schedulerFlags...)...),
		Action: runCoordinator,
	}
}

// tlsFlags name a daemon's certificate; they have the names of the client's.
func tlsFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "tls-ca", Usage: "certificate of the cluster's authority", EnvVars: []string{"DROVER_TLS_CA"}},
		&cli.StringFlag{Name: "tls-cert", Usage: "this daemon's certificate", EnvVars: []string{"DROVER_TLS_CERT"}},
		&cli.StringFlag{Name: "tls-key", Usage: "its key", EnvVars: []string{"DROVER_TLS_KEY"}},
	}
}

func tlsFiles(c *cli.Context) pki.Files {
	return pki.Files{CA: c.String("tls-ca"), Cert: c.String("tls-cert"), Key: c.String("tls-key")}
}

func runCoordinator(c *cli.Context) error {
	if _, err := args(c, 0, 0, ""); err != nil {
		return err
	}
	params, err := parseParams(c.StringSlice("set"))
	if err != nil {
		return err
	}
	data, err := filepath.Abs(c.String("data"))
	if err != nil {
		return err
	}
	cfg := coordinator.Config{
		Dir: data, Metrics: newRegistry(), Logger: daemonLog(c, c.Bool("verbose")), Operators: c.StringSlice("operator"), AllowImages: c.StringSlice("allow-image"),
		Lease: c.Duration("lease"), KeepLogs: c.Duration("keep-logs"), Scheduler: c.String("scheduler"), SchedulerParams: params,
		FrozenShare: c.Float64("frozen-share"),
	}
	if at := c.String("listen"); at != "" {
		if cfg.TLS, err = tlsFiles(c).ServerConfig(); err != nil {
			return err
		}
		if cfg.NodeTLS, err = tlsFiles(c).ClientConfig(); err != nil {
			return err
		}
		if cfg.Remote, err = net.Listen("tcp", at); err != nil {
			return fmt.Errorf("-listen: %w", err)
		}
	}
	if cfg.Local, err = coordinator.ListenLocal(c.String("socket")); err != nil {
		return err
	}
	cfg.Ready = func() {
		at := c.String("socket")
		if cfg.Remote != nil {
			at += " and https://" + cfg.Remote.Addr().String()
		}
		fmt.Fprintln(c.App.ErrWriter, "ready: coordinator on "+at)
	}
	return coordinator.Run(c.Context, cfg)
}

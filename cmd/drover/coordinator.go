package main

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/systemd"
	"github.com/drover-run/drover/ui"
)

func coordinatorCommand() *cli.Command {
	return &cli.Command{
		Name:  "coordinator",
		Usage: "run the coordinator of a cluster",
		Description: "Operators on this machine use the socket, which only its owner can open. Nodes and users elsewhere connect with\n" +
			"mutual TLS: set -listen, -tls-ca, -tls-cert and -tls-key (`drover tls` creates the certificates).",
		Flags: append([]cli.Flag{
			newConfigFlag("coordinator"),
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover/coordinator", Usage: "folder of the log, the uploaded files and the history"},
			&cli.StringFlag{Name: "socket", Value: "/run/drover/coordinator.sock", Usage: "socket for this machine"},
			&cli.StringFlag{Name: "listen", Usage: "host:port for other machines; default: none"},
			&cli.StringFlag{Name: "api-address", Usage: "https://host:port under which nodes and users reach -listen; default: -listen, with the host of -peer-address where it names none"},
			&cli.StringFlag{Name: "id", Value: "c1", Usage: "name of this coordinator among several; its certificate has it too"},
			&cli.StringFlag{Name: "peer-listen", Usage: "host:port for the other coordinators of the cluster; default: none, this coordinator is alone"},
			&cli.StringFlag{Name: "peer-address", Usage: "host:port under which they reach -peer-listen; default: that"},
			&cli.StringSliceFlag{Name: "servers", Usage: "coordinators of the cluster as ID=PEER-ADDRESS, this one among them, repeatable"},
			&cli.BoolFlag{Name: "bootstrap", Usage: "begin a new cluster of -servers when all of them answer and none has a log; nothing happens where there is one"},
			&cli.StringSliceFlag{Name: "join", Usage: "peer address of a coordinator whose cluster this one joins if its data folder is empty, repeatable"},
			&cli.StringSliceFlag{Name: "operator", Usage: "certificate name (user/NAME) with all rights, repeatable"},
			&cli.StringSliceFlag{Name: "allow-image", Usage: "prefix of image names that jobs may use: registry:docker.io/library/ or rootfs:/srv/images/, repeatable"},
			&cli.DurationFlag{Name: "lease", Value: 15 * time.Second, Usage: "a node without a heartbeat for longer is lost"},
			&cli.Float64Flag{Name: "frozen-share", Value: 0.5, Usage: "share of a node's memory that frozen tasks may occupy; above it the largest are swapped out or checkpointed"},
			&cli.DurationFlag{Name: "keep-logs", Value: 15 * time.Minute, Usage: "how long the newest attempts of an ended job stay on their nodes, with all its logs; -keep-logs-age of the node is about these after that; negative: not at all"},
			&cli.StringFlag{Name: "history-size", Value: "2GiB", Usage: "size of the history of ended jobs; the oldest go first"},
			&cli.DurationFlag{Name: "history-age", Value: 180 * 24 * time.Hour, Usage: "how long ended jobs stay in the history; negative: for ever"},
			&cli.StringFlag{Name: "blob-quota", Value: "20GiB", Usage: "total size of the uploaded files and images"},
			&cli.StringFlag{Name: "disk-reserve", Usage: "of the disk of -data kept free for the log, such as 1GiB: with less, no job and no file is accepted; default: 256MiB or 5% of the disk, whichever is less; 0: none"},
			&cli.StringFlag{Name: "audit-log", Usage: "file that has who changed what, when, with which outcome; none: no such file; default: audit.jsonl in -data"},
			&cli.StringFlag{Name: "secret-keys", Usage: "file with the keys of the tenants' secrets, mode 0600, made by 'drover secret key'; default: secrets.key in -data"},
			&cli.StringFlag{Name: "traces-endpoint", Usage: "OTLP/HTTP endpoint for a trace of each job, such as http://collector:4318; the OTEL_EXPORTER_OTLP_* variables set headers and certificates; default: no traces"},
			logLevelFlag,
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log information, not only warnings: -log-level info"},
		}, slices.Concat(oidcFlags(), tlsFlags(), schedulerFlags)...),
		Action: withConfig(runCoordinator),
	}
}

// tlsFlags returns the flags of a daemon's certificate, named like those of the client.
func tlsFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "tls-ca", Usage: "CA certificate of the cluster", EnvVars: []string{"DROVER_TLS_CA"}},
		&cli.StringFlag{Name: "tls-cert", Usage: "this daemon's certificate", EnvVars: []string{"DROVER_TLS_CERT"}},
		&cli.StringFlag{Name: "tls-key", Usage: "its key", EnvVars: []string{"DROVER_TLS_KEY"}},
	}
}

func tlsFiles(c *cli.Context) pki.Files {
	return pki.Files{CA: c.String("tls-ca"), Cert: c.String("tls-cert"), Key: c.String("tls-key")}
}

// runCoordinator checks settings, ports and state folder, in this order, before it
// changes anything.
func runCoordinator(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	service, err := newDaemon(c, "coordinator", checkCoordinator)
	if err != nil {
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
	provider, err := idTokens(c)
	if err != nil {
		return err
	}
	changes := make(chan coordinator.SchedulerChoice, 1)
	cfg := coordinator.Config{
		HistoryAge: c.Duration("history-age"),
		Dir:        data, Metrics: newRegistry(), Logger: service.log, RecentLog: service.recent, Operators: c.StringSlice("operator"), AllowImages: c.StringSlice("allow-image"),
		Lease: c.Duration("lease"), KeepLogs: c.Duration("keep-logs"), Scheduler: c.String("scheduler"), SchedulerParams: params, SchedulerChanges: changes,
		FrozenShare: c.Float64("frozen-share"), Page: webPage, SignIn: ui.NewSignIn, TokenCookie: ui.TokenCookie, AuditLog: c.String("audit-log"),
		TracesEndpoint: c.String("traces-endpoint"), SecretKeys: c.String("secret-keys"), IDTokens: provider,
	}
	if cfg.HistoryBytes, err = historySize(c); err != nil {
		return err
	}
	if cfg.BlobQuota, err = blobQuota(c); err != nil {
		return err
	}
	if cfg.DiskReserve, err = diskReserve(c); err != nil {
		return err
	}
	if err := openRemote(c, service.certs, &cfg); err != nil {
		return err
	}
	if err := openPeers(c, service.certs, &cfg); err != nil {
		return err
	}
	if cfg.Local, err = coordinator.ListenLocal(c.String("socket")); err != nil {
		return err
	}
	if err := coordinator.CheckState(data); err != nil {
		return errors.Join(err, cfg.Local.Close()) // its socket goes with it
	}
	cfg.Ready = func() {
		at := c.String("socket")
		if cfg.Remote != nil {
			at += " and https://" + cfg.Remote.Addr().String()
		}
		if cfg.PeerListener != nil {
			at += ", server " + cfg.ID + " at " + cfg.PeerAddress
		}
		service.ready("coordinator on " + at)
	}
	if cfg.PeerListener != nil {
		// Prepared is ready for systemd: there may be no leader until the others are started, and
		// they may be started when systemctl has returned for this one.
		service.notified(systemd.Ready("waits for the other coordinators"))
	}
	setGCPercent(coordinatorGCPercent)
	adviseHugePages()
	return service.run(func(ctx context.Context) error { return coordinator.Run(ctx, cfg) }, func(next *cli.Context) {
		params, err := parseParams(next.StringSlice("set")) // checked before
		if err == nil {
			select {
			case <-changes: // one that was not taken yet is stale
			default:
			}
			changes <- coordinator.SchedulerChoice{Name: next.String("scheduler"), Params: params}
		}
	})
}

// openRemote opens the port for other machines, where one is wanted.
func openRemote(c *cli.Context, certs *pki.Member, cfg *coordinator.Config) (err error) {
	at := c.String("listen")
	if at == "" {
		return nil
	}
	cfg.Certificate = certs
	cfg.Remote, err = listenTCP(at)
	return err
}

// openPeers opens the port for the other coordinators, where one is wanted.
func openPeers(c *cli.Context, certs *pki.Member, cfg *coordinator.Config) (err error) {
	cfg.ID = c.String("id")
	at := c.String("peer-listen")
	if at == "" {
		return nil
	}
	if cfg.PeerListener, err = listenTCP(at); err != nil {
		return err
	}
	cfg.Certificate, cfg.Join, cfg.Bootstrap = certs, c.StringSlice("join"), c.Bool("bootstrap")
	if cfg.Servers, err = initialServers(c); err != nil {
		return err
	}
	cfg.PeerAddress = peerAddress(c, cfg.PeerListener.Addr().String())
	if cfg.APIAddress = c.String("api-address"); cfg.APIAddress == "" && cfg.Remote != nil {
		cfg.APIAddress, err = defaultAPIAddress(c.String("listen"), cfg)
	}
	return err
}

// peerAddress returns where the other coordinators reach this one, whose port for them is bound to
// an address.
func peerAddress(c *cli.Context, bound string) string {
	if at := c.String("peer-address"); at != "" {
		return at
	}
	if host, _, err := net.SplitHostPort(c.String("peer-listen")); err == nil && net.ParseIP(host) == nil && host != "" { // as it was named
		_, port, _ := net.SplitHostPort(bound)
		return net.JoinHostPort(host, port)
	}
	return bound
}

// defaultAPIAddress is the URL of -listen, with the host of the peer address where
// it names none.
func defaultAPIAddress(listen string, cfg *coordinator.Config) (string, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		if host, _, err = net.SplitHostPort(cfg.PeerAddress); err != nil {
			return "", err
		}
	}
	_, port, err := net.SplitHostPort(cfg.Remote.Addr().String())
	return "https://" + net.JoinHostPort(host, port), err
}

package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/innerbin"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/systemd"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/measure"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd"
	"github.com/drover-run/drover/runtime/reuse"
)

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "node",
		Usage: "run the node daemon, or inspect and drain nodes",
		Description: "Without a subcommand it runs the node daemon, which needs root, containerd and cgroup v2; `drover doctor` checks\n" +
			"that. SIGTERM stops the daemon but not its tasks; the next daemon takes them over.",
		Flags: append([]cli.Flag{
			newConfigFlag("node"),
			&cli.StringFlag{Name: "coordinator", Usage: "https://host:port, or unix:///path on one machine; several separated by commas", EnvVars: []string{"DROVER_COORDINATOR"}},
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover/node", Usage: "folder of the daemon; tasks use the same disk"},
			&cli.StringFlag{Name: "name", Usage: "name of the node; default: the host name"},
			&cli.StringFlag{Name: "rack", Value: "/default-rack", Usage: "rack of the machine, as HDFS names it"},
			&cli.StringFlag{Name: "listen", Usage: "host:port for other nodes and the coordinator"},
			&cli.StringFlag{Name: "node-address", Usage: "host or host:port under which other nodes and the coordinator reach -listen; default: -listen"},
			&cli.StringSliceFlag{Name: "storage-address", Usage: "address of the DataNode on this machine, repeatable"},
			&cli.StringFlag{Name: "domain-socket", Usage: domainSocketUsage},
			&cli.StringFlag{Name: "namenode", Usage: "host:port of the NameNodes for hdfs:/// paths, separated by commas"},
			&cli.StringSliceFlag{Name: "service", Usage: "name service as name=host:port,host:port, repeatable"},
			&cli.StringSliceFlag{Name: "allow-namenode", Usage: "further NameNode (host:port) that jobs may name in a URI, or *; repeatable"},
			&cli.BoolFlag{Name: "local-files", Usage: "let jobs read and write file:// paths of this machine, in part with the rights of root"},
			&cli.StringFlag{Name: "local-root", Usage: "folder that file:/// is with -local-files: no path leaves it; default: the whole machine"},
			&cli.StringFlag{Name: "containerd", Value: defaultContainerd, Usage: "containerd's socket"},
			&cli.StringFlag{Name: "oci-runtime", Value: "auto", Usage: "what makes containers: auto is crun, where it is installed, for those that are never checkpointed, and runc for the others; runc is for all"},
			&cli.IntFlag{Name: "reserve", Value: 10, Usage: "percent of CPU, memory and disk reserved for the system"},
			&cli.StringFlag{Name: "secrets", Usage: "folder with one folder per tenant, with one file per secret; default: secrets in -data"},
			&cli.StringFlag{Name: "keep-logs-size", Value: "2GiB", Usage: "how much of the logs of jobs that have ended is kept, the newest; 0 for none"},
			&cli.DurationFlag{Name: "keep-logs-age", Value: 7 * 24 * time.Hour, Usage: "how long they are kept"},
			&cli.BoolFlag{Name: "open-metrics", Usage: "serve /metrics to callers without a certificate"},
			&cli.BoolFlag{Name: "allow-root", Usage: "allow tenants with uid 0 to run as root"},
			&cli.BoolFlag{Name: "probe", Value: true, Usage: "at the first start, test with a container which suspension levels work here; =false: skip"},
			&cli.StringFlag{Name: "cgroup", Value: "/drover", Usage: "cgroup of the tasks, below the mount; a unit of systemd must be running and delegated"},
			logLevelFlag,
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log information, not only warnings: -log-level info"},
		}, tlsFlags()...),
		Action:      withConfig(runNode),
		Subcommands: []*cli.Command{nodeListCommand(), nodeStatusCommand(), nodeDrainCommand(), nodeMaintainCommand(), nodeCleanCommand()},
	}
}

func runNode(c *cli.Context) error {
	if c.Args().Present() {
		return usageErrorf("%s", unknownCommand(c, c.Args().First()))
	}
	service, err := newDaemon(c, "node", checkNode)
	if err != nil {
		return err
	}
	cfg, err := nodeConfig(c, service)
	if err != nil {
		return err
	}
	cfg.Ready = func(at string) { service.ready("node " + cfg.Info.Name + " at " + at) }
	// Prepared is ready for systemd: tasks run on without a coordinator, and a
	// machine that boots does not wait for one.
	service.notified(systemd.Ready("not registered with the coordinator yet"))
	return service.run(func(ctx context.Context) error { return node.Run(ctx, cfg) }, func(*cli.Context) {})
}

// nodeConfig assembles the real parts of the daemon. It finds problems with state, ports and
// certificates before it changes anything.
func nodeConfig(c *cli.Context, service *daemon) (node.Config, error) {
	none := node.Config{}
	data, err := filepath.Abs(c.String("data"))
	if err != nil {
		return none, err
	}
	cfg := node.Config{Data: data, Registry: newRegistry(), Log: service.log, RecentLog: service.recent, Secrets: c.String("secrets"), AllowRoot: c.Bool("allow-root"), OpenMetrics: c.Bool("open-metrics"), Probe: c.Bool("probe"),
		KeepLogAge: c.Duration("keep-logs-age")}
	if cfg.KeepLogBytes, err = keepLogsSize(c); err != nil {
		return none, err
	}
	if cfg.FilesConfig, err = nodeFilesConfig(c); err != nil {
		return none, err
	}
	if err := store.Check(filepath.Join(data, node.StoreFile)); err != nil {
		return none, err
	}
	if err := setNodeServer(c, service.certs, &cfg); err != nil {
		return none, err
	}
	if err := setNodeCoordinator(c, service.certs, &cfg); err != nil {
		return none, err
	}
	if cfg.Harness, cfg.HarnessArgs, err = harnessCommand(data); err != nil {
		return none, err
	}
	helper, err := innerProgram(data, innerbin.Helper)
	if err != nil {
		return none, err
	}
	logger, err := innerProgram(data, innerbin.Logger)
	if err != nil {
		return none, err
	}
	cfg.Helper = []string{helper, "helper"}
	base := c.String("cgroup")
	oci, err := ociRuntime(c)
	if err != nil {
		return none, err
	}
	engine, err := containerd.New(containerd.Config{Address: c.String("containerd"), Logger: logger, ShimCgroup: base + "/tasks/system", OCIRuntime: oci,
		Warnf: func(f string, a ...any) { service.log.Warn(fmt.Sprintf(f, a...)) }})
	if err != nil {
		return none, err
	}
	if cfg.Driver, err = reusingDriver(engine, data, logger, base); err != nil {
		return none, err
	}
	if cfg.Info, err = nodeInfo(c, cfg, containerdVersion(c.Context, engine)); err != nil {
		return none, err
	}
	reserved := cfg.Info.Measured.Io - cfg.Info.Allocatable.Io
	enforcer, err := node.NewCgroupEnforcer(base, []string{data}, reserved, true)
	if err != nil {
		return none, err
	}
	if err := limitImages(c.Context, engine, &enforcer); err != nil {
		service.log.Warn("what tasks read of their images is not limited", "err", err)
	}
	cfg.Enforcer = enforcer
	return cfg, nil
}

// limitImages limits tasks on the disk where the engine has their images, which may be another than
// that of -data.
func limitImages(ctx context.Context, engine *containerd.Driver, e *node.CgroupEnforcer) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	root := containerd.SnapshotRoot(ctx, engine)
	if root == "" {
		return fault.New(fault.Unavailable, "containerd does not say where it unpacks images")
	}
	return e.LimitImages(root)
}

// reusingDriver returns a driver that can run tasks one after another in one container of engine.
func reusingDriver(engine *containerd.Driver, data, logger, cgroup string) (runtime.Driver, error) {
	first, err := innerProgram(data, innerbin.Init)
	if err != nil {
		return nil, err
	}
	mount, err := cgroups.Mount()
	if err != nil {
		return nil, err
	}
	return reuse.New(engine, reuse.Config{Dir: "/run/drover-node/reuse", Init: []string{first}, Logger: logger, Mount: mount, Cgroup: cgroup + "/reused"})
}

// setNodeCoordinator makes the connection to the coordinator. A coordinator of
// another cluster is refused here; one that does not answer is waited for later.
func setNodeCoordinator(c *cli.Context, certs *pki.Member, cfg *node.Config) error {
	conf := clientTLS(c)
	if certs != nil { // which follows its files
		conf = func() (*tls.Config, error) { return certs.ClientConfig(pki.KindCoordinator), nil }
	}
	t, err := openCoordinators("-coordinator", c.String("coordinator"), conf)
	if err != nil {
		return err
	}
	h := &http.Client{Transport: t}
	if certs != nil {
		cfg.FetchCRL = func(ctx context.Context) ([]byte, error) { return fetchCRL(ctx, h, coordclient.Base) }
	}
	if certs != nil {
		if err := checkTrusts(c.Context, splitList(c.String("coordinator")), certs.ClientConfig(pki.KindCoordinator), cfg.Log); err != nil {
			return err
		}
	}
	cfg.Coordinator = droverv1connect.NewNodeServiceClient(h, coordclient.Base, connect.WithInterceptors(coordclient.NewRetrier(t)))
	return nil
}

// checkTrusts is checkTrust for all coordinators. It fails where none is left with which the node
// can work or that may still answer; of the others it warns.
func checkTrusts(ctx context.Context, addresses []string, conf *tls.Config, log *slog.Logger) error {
	var refused []error
	for _, address := range addresses {
		if strings.HasPrefix(address, "https://") {
			if err := checkTrust(ctx, address, conf); err != nil {
				refused = append(refused, err)
			}
		}
	}
	if len(refused) == len(addresses) {
		return errors.Join(refused...)
	}
	for _, err := range refused {
		log.Warn("a coordinator cannot be used; the others are", "err", err)
	}
	return nil
}

// checkTrust shakes hands with the coordinator once, and fails where one of the
// two does not accept the other's certificate.
func checkTrust(ctx context.Context, address string, conf *tls.Config) error {
	err := tryHandshake(ctx, address, conf)
	if err == nil {
		return nil
	}
	if why := connectionReason(err); strings.Contains(why, "tls:") || strings.Contains(why, "x509:") {
		return fault.New(fault.Denied, "the coordinator at %s and this node do not accept each other's certificates (%s): use certificates that this cluster's authority made (`drover tls cert -kind node`), and the address that the coordinator's certificate names", address, why)
	}
	return nil
}

const domainSocketUsage = "domain socket of the DataNode on this machine (dfs.domain.socket.path), to read its blocks from their files; default: over TCP"

// setDomainSocket sets the domain socket of the DataNode at -storage-address.
func setDomainSocket(c *cli.Context, f *fsys.Config) error {
	f.DomainSocket = c.String("domain-socket")
	if f.DomainSocket != "" && (!filepath.IsAbs(f.DomainSocket) || len(c.StringSlice("storage-address")) == 0) {
		return usageErrorf("-domain-socket %q: want an absolute path, and -storage-address for the address of that DataNode", f.DomainSocket)
	}
	return nil
}

// nodeFilesConfig says which file systems this machine reaches.
func nodeFilesConfig(c *cli.Context) (fsys.Config, error) {
	f := fsys.Config{LocalAddresses: c.StringSlice("storage-address"), Rack: c.String("rack"), Local: c.Bool("local-files"), LocalRoot: c.String("local-root"), Allowed: c.StringSlice("allow-namenode")}
	f.NameNodes = splitList(c.String("namenode"))
	if err := setDomainSocket(c, &f); err != nil {
		return f, err
	}
	if f.LocalRoot != "" && (!f.Local || !filepath.IsAbs(f.LocalRoot)) {
		return f, usageErrorf("-local-root %q: want -local-files too, and an absolute path", f.LocalRoot)
	}
	last := ""
	for _, s := range c.StringSlice("service") {
		name, hosts, ok := strings.Cut(s, "=")
		switch {
		case !ok && last != "" && hosts == "" && name != "": // the parser of flags cut books=nn3:8020,nn4:8020 at the comma
			name, hosts = last, s
		case !ok || name == "" || hosts == "":
			return f, usageErrorf("-service %q: want name=host:port,host:port", s)
		}
		for _, at := range splitList(hosts) {
			if err := checkHostPort("-service", at); err != nil {
				return f, err
			}
		}
		if f.Services == nil {
			f.Services = map[string][]string{}
		}
		last, f.Services[name] = name, append(f.Services[name], splitList(hosts)...)
	}
	return f, nil
}

// harnessCommand returns the harness embedded in this binary, or this binary itself as
// harness.
func harnessCommand(data string) (string, []string, error) {
	path, err := innerbin.Install(filepath.Join(data, "bin"), innerbin.Harness)
	if err != nil {
		return "", nil, fmt.Errorf("harness: %w", err)
	}
	if path != "" {
		return path, []string{}, nil
	}
	path, err = os.Executable()
	return path, []string{"harness"}, err
}

// innerProgram returns the program with the command of that name: the small one embedded in
// this binary, or this binary itself.
func innerProgram(data, name string) (string, error) {
	path, err := innerbin.Install(filepath.Join(data, "bin"), name)
	if err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	if path != "" {
		return path, nil
	}
	return os.Executable()
}

// setNodeServer opens the daemon's own server, with TLS where there are
// certificates.
func setNodeServer(c *cli.Context, certs *pki.Member, cfg *node.Config) (err error) {
	if at := c.String("listen"); at != "" {
		if cfg.Listener, err = listenTCP(at); err != nil {
			return err
		}
	}
	cfg.Certificate = certs
	return nil
}

// advertisedAddress returns the host:port under which others reach the node's server, which is
// bound to an address: its host is that of -node-address or else of -listen, as it was named, for
// its own name may be a loopback address here.
func advertisedAddress(c *cli.Context, bound net.Addr) (string, error) {
	_, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "", err
	}
	host, given, err := advertisedHost(c)
	return net.JoinHostPort(host, cmp.Or(given, port)), err
}

// advertisedHost returns the host of advertisedAddress, and the port where -node-address has one.
func advertisedHost(c *cli.Context) (host, port string, err error) {
	const flag = "node-address"
	at := c.String(flag)
	switch {
	case at == "":
		host, _, err = net.SplitHostPort(c.String("listen")) // checked before
	case net.ParseIP(at) != nil || !strings.Contains(at, ":"):
		host = at
	default:
		if err = checkHostPort("-"+flag, at); err == nil {
			host, port, err = net.SplitHostPort(at)
		}
	}
	if err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		err = usageErrorf("other nodes and the coordinator cannot reach %q: set -%s to the name or the address of this machine", cmp.Or(at, c.String("listen")), flag)
	}
	return host, port, err
}

// fetchCRL gets the revocation list that the coordinator has, empty for none.
func fetchCRL(ctx context.Context, h *http.Client, base string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+pki.CRLPath, nil)
	if err != nil {
		return nil, err
	}
	res, err := h.Do(req)
	if err != nil {
		return nil, fmt.Errorf("revocation list: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent {
		return nil, fmt.Errorf("revocation list: the coordinator answers %s", res.Status)
	}
	return io.ReadAll(io.LimitReader(res.Body, pki.MaxCRL+1))
}

// containerdVersion requests the version from containerd, which is faster than starting
// its program. Without an answer the map is empty.
func containerdVersion(ctx context.Context, d *containerd.Driver) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	v, err := d.Version(ctx)
	if err != nil {
		return nil
	}
	return map[string]string{d.Name(): strings.TrimPrefix(v, "v")}
}

// nodeInfo measures the machine. versions are known without measuring.
func nodeInfo(c *cli.Context, cfg node.Config, versions map[string]string) (*droverv1.NodeInfo, error) {
	name, err := nodeName(c)
	if err != nil {
		return nil, err
	}
	reserve := c.Int("reserve")
	info, err := measure.Host(c.Context, measure.Options{
		Name: name, Rack: c.String("rack"), Data: cfg.Data, Cgroup: c.String("cgroup"), Reserve: float64(reserve) / 100,
		Harness: append([]string{cfg.Harness}, cfg.HarnessArgs...), Helper: cfg.Helper, Versions: versions,
		Logf: func(f string, a ...any) { cfg.Log.Info(fmt.Sprintf(f, a...)) },
	})
	if err != nil {
		return nil, err
	}
	if cfg.Listener != nil {
		if info.Address, err = advertisedAddress(c, cfg.Listener.Addr()); err != nil {
			return nil, err
		}
	}
	info.StorageAddresses = cfg.FilesConfig.LocalAddresses
	info.Schemes = cfg.FilesConfig.Schemes()
	info.Driver, info.Confined = cfg.Driver.Name(), true
	return info, nil
}

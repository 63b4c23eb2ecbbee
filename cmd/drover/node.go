package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/innerbin"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/measure"
	"github.com/drover-run/drover/runtime/containerd"
)

func nodeCommand() *cli.Command {
	return &cli.Command{
		Name:  "node",
		Usage: "run the daemon of this machine, or look at machines",
		Description: "Without a verb it is the node daemon. It needs root, containerd and cgroup v2; `drover doctor` says what is\n" +
			"missing. Leaving (SIGTERM) leaves tasks running; the next daemon finds them.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "coordinator", Usage: "https://host:port, or unix:///path on one machine", EnvVars: []string{"DROVER_COORDINATOR"}},
			&cli.StringFlag{Name: "data", Value: "/var/lib/drover/node", Usage: "folder of the daemon; tasks' files lie on its disk"},
			&cli.StringFlag{Name: "name", Usage: "name of the node; default: the host name"},
			&cli.StringFlag{Name: "rack", Value: "/default-rack", Usage: "where the machine stands, as HDFS names it"},
			&cli.StringFlag{Name: "listen", Usage: "host:port under which other nodes and the coordinator reach it"},
			&cli.StringSliceFlag{Name: "storage-address", Usage: "address of the DataNode on this machine, repeatable"},
			&cli.StringFlag{Name: "namenode", Usage: "host:port of the NameNode (several: comma) for hdfs:/// paths"},
			&cli.StringSliceFlag{Name: "service", Usage: "name service as name=host:port,host:port, repeatable"},
			&cli.StringSliceFlag{Name: "allow-namenode", Usage: "further NameNode (host:port) that jobs may name in a URI, or *; repeatable"},
			&cli.BoolFlag{Name: "local-files", Usage: "let jobs read and write file:// paths of this machine"},
			&cli.StringFlag{Name: "containerd", Value: defaultContainerd, Usage: "containerd's socket"},
			&cli.IntFlag{Name: "reserve", Value: 10, Usage: "percent of CPU, memory and disk kept for the system"},
			&cli.StringFlag{Name: "secrets", Usage: "folder with one file for each secret; default: secrets in -data"},
			&cli.BoolFlag{Name: "allow-root", Usage: "tenants with uid 0 may run as root"},
			&cli.BoolFlag{Name: "probe", Value: true, Usage: "find out at the first start, with a container, how tasks can be suspended here; =false: not at all"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log what happens, not only warnings"},
		}, tlsFlags()...),
		Action:      runNode,
		Subcommands: []*cli.Command{nodeListCommand(), nodeStatusCommand(), nodeDrainCommand()},
	}
}

func runNode(c *cli.Context) error {
	if c.Args().Present() {
		return usage("%s", unknownCommand(c, c.Args().First()))
	}
	if c.String("coordinator") == "" {
		return usage("the node daemon needs -coordinator https://host:port (verbs: list, status, drain)")
	}
	cfg, err := nodeConfig(c)
	if err != nil {
		return err
	}
	cfg.Ready = func(at string) { fmt.Fprintf(c.App.ErrWriter, "ready: node %s at %s\n", cfg.Info.Name, at) }
	return node.Run(c.Context, cfg)
}

// nodeConfig puts the real parts of the daemon together.
func nodeConfig(c *cli.Context) (node.Config, error) {
	none := node.Config{}
	data, err := filepath.Abs(c.String("data"))
	if err != nil {
		return none, err
	}
	log := daemonLog(c, c.Bool("verbose"))
	cfg := node.Config{Data: data, Registry: newRegistry(), Log: log, Secrets: c.String("secrets"), AllowRoot: c.Bool("allow-root"), Probe: c.Bool("probe")}
	if cfg.FilesConfig, err = nodeFiles(c); err != nil {
		return none, err
	}
	if cfg.Harness, cfg.HarnessArgs, err = nodeHarness(data); err != nil {
		return none, err
	}
	beside, err := nodeHelper(data)
	if err != nil {
		return none, err
	}
	cfg.Helper = []string{beside, "helper"}
	if err := nodeServer(c, &cfg); err != nil {
		return none, err
	}
	h, base, err := httpClient(c, c.String("coordinator"))
	if err != nil {
		return none, err
	}
	cfg.Coordinator = droverv1connect.NewNodeServiceClient(h, base)
	engine, err := containerd.New(containerd.Config{Address: c.String("containerd"), Logger: beside, ShimCgroup: "/drover/tasks/system"})
	if err != nil {
		return none, err
	}
	cfg.Driver = engine
	if cfg.Info, err = nodeInfo(c, cfg, engineVersion(c.Context, engine)); err != nil {
		return none, err
	}
	reserved := cfg.Info.Measured.Io - cfg.Info.Allocatable.Io
	cfg.Enforcer, err = node.NewCgroupEnforcer("", []string{data}, reserved, true)
	return cfg, err
}

// nodeFiles says which file systems this machine reaches.
func nodeFiles(c *cli.Context) (fsys.Config, error) {
	f := fsys.Config{LocalAddresses: c.StringSlice("storage-address"), Rack: c.String("rack"), Local: c.Bool("local-files"), Allowed: c.StringSlice("allow-namenode")}
	if n := c.String("namenode"); n != "" {
		f.NameNodes = strings.Split(n, ",")
	}
	for _, s := range c.StringSlice("service") {
		name, hosts, ok := strings.Cut(s, "=")
		if !ok || name == "" || hosts == "" {
			return f, usage("-service %q: want name=host:port,host:port", s)
		}
		if f.Services == nil {
			f.Services = map[string][]string{}
		}
		f.Services[name] = strings.Split(hosts, ",")
	}
	return f, nil
}

// nodeHarness gives the harness that this binary carries, or this binary as its
// own harness.
func nodeHarness(data string) (string, []string, error) {
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

// nodeHelper gives the program that knows "helper" and "logger": the small one
// that this binary carries, or this binary.
func nodeHelper(data string) (string, error) {
	path, err := innerbin.Install(filepath.Join(data, "bin"), innerbin.Helper)
	if err != nil {
		return "", fmt.Errorf("helper: %w", err)
	}
	if path != "" {
		return path, nil
	}
	return os.Executable()
}

// nodeServer opens the daemon's own server, with TLS where there are
// certificates.
func nodeServer(c *cli.Context, cfg *node.Config) error {
	if at := c.String("listen"); at != "" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return fmt.Errorf("-listen: %w", err)
		}
		cfg.Listener = l
	}
	files := tlsFiles(c)
	if files.Cert == "" {
		return nil
	}
	conf, err := files.ServerConfig()
	if err != nil {
		return err
	}
	_, _, ca, err := files.Load()
	if err != nil {
		return err
	}
	cfg.TLS, cfg.ShuffleCA = conf, string(ca)
	return nil
}

// engineVersion asks containerd itself, which is quicker than to start its
// program; where it does not answer the map is empty.
func engineVersion(ctx context.Context, d *containerd.Driver) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	v, err := d.Version(ctx)
	if err != nil {
		return nil
	}
	return map[string]string{d.Name(): strings.TrimPrefix(v, "v")}
}

// nodeInfo measures the machine; versions are those known without that.
func nodeInfo(c *cli.Context, cfg node.Config, versions map[string]string) (*droverv1.NodeInfo, error) {
	name := c.String("name")
	if name == "" {
		var err error
		if name, err = os.Hostname(); err != nil {
			return nil, err
		}
	}
	reserve := c.Int("reserve")
	if reserve < 1 || reserve > 90 {
		return nil, usage("-reserve %d: want 1 to 90 percent", reserve)
	}
	info, err := measure.Host(c.Context, measure.Options{
		Name: name, Rack: c.String("rack"), Data: cfg.Data, Reserve: float64(reserve) / 100,
		Harness: append([]string{cfg.Harness}, cfg.HarnessArgs...), Helper: cfg.Helper, Versions: versions,
		Say: func(f string, a ...any) { cfg.Log.Info(fmt.Sprintf(f, a...)) },
	})
	if err != nil {
		return nil, err
	}
	info.StorageAddresses = cfg.FilesConfig.LocalAddresses
	info.Schemes = cfg.FilesConfig.Schemes()
	info.Driver, info.Confined = cfg.Driver.Name(), true
	return info, nil
}

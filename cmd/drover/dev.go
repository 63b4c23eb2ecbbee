package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"syscall"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/measure"
	"github.com/drover-run/drover/runtime/process"
	"github.com/drover-run/drover/ui"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "coordinator and node in one process, to try out jobs",
		Description: "Input and output are local files (file:///…). Tasks are plain processes of your user, without confinement and\n" +
			"limits. The state is removed at the end unless -data names a folder. In another terminal:\n" +
			"drover job run examples/hello/hello.hcl",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "data", Usage: "folder for the state; default: a temporary one"},
			&cli.StringFlag{Name: "socket", Usage: "socket for clients; default: that of -address"},
			&cli.StringFlag{Name: "ui", Usage: "`HOST:PORT` of the web page on a loopback address; empty for none", Value: "127.0.0.1:0"},
			&cli.StringFlag{Name: "namenode", Usage: "host:port of a NameNode, for hdfs:/// paths"},
			&cli.StringSliceFlag{Name: "storage-address", Usage: "address of the DataNode on this machine besides 127.0.0.1, repeatable"},
			&cli.StringFlag{Name: "domain-socket", Usage: domainSocketUsage},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "show the daemons' logs"},
		}, schedulerFlags...),
		Action: runDev,
	}
}

func runDev(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	params, err := initialPolicy(c)
	if err != nil {
		return err
	}
	if listen := c.String("ui"); listen != "" {
		if err := checkPageAddress("ui", listen); err != nil {
			return err
		}
	}
	data := c.String("data")
	if data == "" {
		if data, err = os.MkdirTemp("", "drover-dev-"); err != nil {
			return err
		}
		defer os.RemoveAll(data)
	} else if data, err = filepath.Abs(data); err != nil {
		return err
	}
	socket, err := devSocketPath(c)
	if err != nil {
		return err
	}
	local, err := coordinator.ListenLocal(socket)
	if err != nil {
		return err
	}
	if err := makeDevKey(filepath.Join(data, "coordinator")); err != nil {
		return errors.Join(err, local.Close())
	}
	noCoreDumps()
	setGCPercent(devGCPercent)
	recent := diagnosis.NewLog()
	log := slog.New(recent.Handler(newDevLogger(c).Handler()))
	up := make(chan struct{})
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGHUP)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return coordinator.Run(ctx, coordinator.Config{
			Dir: filepath.Join(data, "coordinator"), Metrics: newRegistry(), Local: local, Logger: log, RecentLog: recent, NoSync: c.String("data") == "",
			Scheduler: c.String("scheduler"), SchedulerParams: params, Ready: func() { close(up) },
		})
	})
	g.Go(func() error { return runDevNode(ctx, c, data, socket, up, func(*node.Config) {}) })
	if listen := c.String("ui"); listen != "" {
		g.Go(func() error {
			h, base, err := httpClient(c, "unix://"+socket)
			if err != nil {
				return err
			}
			return serveUI(ctx, listen, ui.Config{API: droverv1connect.NewClientServiceClient(h, base), History: droverv1connect.NewHistoryServiceClient(h, base)}, func(address string) {
				fmt.Fprintf(c.App.ErrWriter, "page: %s (opens once; `drover ui` gives another address)\n", address)
			})
		})
	}
	return g.Wait()
}

// devSocketPath returns the socket of -socket or -address.
func devSocketPath(c *cli.Context) (string, error) {
	if s := c.String("socket"); s != "" {
		return filepath.Abs(s)
	}
	s, ok := strings.CutPrefix(c.String("address"), "unix://")
	if !ok {
		return "", usageErrorf("drover dev listens on a unix socket: set -socket /path")
	}
	return s, nil
}

// runDevNode runs the node of `drover dev` in this process. It writes its programs while
// the coordinator starts, and begins when up is closed: until then the folder may belong
// to another `drover dev`, whose processes the driver would take for orphans. tune may
// change the node's settings.
func runDevNode(ctx context.Context, c *cli.Context, data, socket string, up <-chan struct{}, tune func(*node.Config)) error {
	h, base, err := httpClient(c, "unix://"+socket)
	if err != nil {
		return err
	}
	files := fsys.Config{Local: true, Allowed: []string{"*"}, LocalAddresses: append([]string{"127.0.0.1"}, c.StringSlice("storage-address")...), Rack: "/local"}
	if err := setDomainSocket(c, &files); err != nil {
		return err
	}
	if n := c.String("namenode"); n != "" {
		files.NameNodes = strings.Split(n, ",")
	}
	harness, harnessArgs, err := harnessCommand(data)
	if err != nil {
		return err
	}
	info, err := devNodeInfo(ctx, data, files.Schemes())
	if err != nil {
		return err
	}
	select {
	case <-up:
	case <-ctx.Done():
		return nil
	}
	driver, err := process.New(process.Config{StateDir: filepath.Join(data, "processes")})
	if err != nil {
		return err
	}
	defer driver.Close()
	recent := diagnosis.NewLog()
	var once sync.Once
	cfg := node.Config{
		Data: filepath.Join(data, "node"), Registry: newRegistry(), Coordinator: droverv1connect.NewNodeServiceClient(h, base), Driver: driver,
		Info: info, FilesConfig: files, AllowRoot: true, Probe: true, NoSync: c.String("data") == "", Log: slog.New(recent.Handler(newDevLogger(c).Handler())), RecentLog: recent, Harness: harness, HarnessArgs: harnessArgs,
		Ready: func(string) { // also when the node registers again, as after the machine stood still
			once.Do(func() {
				fmt.Fprintf(c.App.ErrWriter, "ready: coordinator and node on %s, tasks are plain processes (unconfined, no limits enforced)\n", socket)
				if "unix://"+socket != defaultAddress {
					fmt.Fprintf(c.App.ErrWriter, "clients: export DROVER_ADDRESS=unix://%s\n", socket)
				}
				tellOtherScheduler(ctx, c, droverv1connect.NewClientServiceClient(h, base), data)
			})
		},
	}
	tune(&cfg)
	return node.Run(ctx, cfg)
}

// tellOtherScheduler says so if the state has another scheduler than the flags name.
func tellOtherScheduler(ctx context.Context, c *cli.Context, cl droverv1connect.ClientServiceClient, data string) {
	if !c.IsSet("scheduler") && !c.IsSet("set") {
		return
	}
	res, err := cl.GetScheduler(ctx, connect.NewRequest(&droverv1.GetSchedulerRequest{}))
	if err != nil { // dev is ending
		return
	}
	if params, err := parseParams(c.StringSlice("set")); err == nil && (res.Msg.Name != c.String("scheduler") || !maps.Equal(res.Msg.Params, params)) {
		fmt.Fprintf(c.App.ErrWriter, "note: the state in %s has scheduler %s, as `drover scheduler set` chose it; -scheduler and -set are for a state without one\n", data, res.Msg.Name)
	}
}

// newDevLogger logs only errors unless -verbose: warnings about missing quotas or a
// single raft server do not matter to a user who tries out a job.
func newDevLogger(c *cli.Context) *slog.Logger {
	if c.Bool("verbose") {
		return newDaemonLogger(c, true)
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelError}))
}

// devNodeInfo describes this machine as a node without a reserve, because the process
// driver enforces no limits. Disk rates are not measured.
func devNodeInfo(ctx context.Context, data string, schemes []string) (*droverv1.NodeInfo, error) {
	var mem unix.Sysinfo_t
	if err := unix.Sysinfo(&mem); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(data), &fs); err != nil {
		return nil, err
	}
	own, err := measure.OwnBytes(ctx, filepath.Join(data, "node"), quota.Counting)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	const unmeasuredIO = 1 << 30 // bytes per second: I/O must not delay jobs
	all := &droverv1.Resources{Cpu: int64(goruntime.NumCPU()) * 1000, Memory: int64(mem.Totalram) * int64(mem.Unit), Io: unmeasuredIO}
	return &droverv1.NodeInfo{
		Name: host, Rack: "/local", StorageAddresses: []string{"127.0.0.1"}, Measured: all, Allocatable: all,
		Disks:  []*droverv1.Disk{{Name: "data", Path: data, Io: unmeasuredIO, Space: max(int64(fs.Bavail)*fs.Bsize+own, jobspec.DefaultDisk)}},
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Driver: "process", Schemes: schemes,
	}, nil
}

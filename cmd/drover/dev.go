package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/runtime/process"
)

func devCommand() *cli.Command {
	return &cli.Command{
		Name:  "dev",
		Usage: "everything in one process on this machine, to try jobs out",
		Description: "Local files are input and output (file:///…), tasks are plain processes as you: nothing confines them and no\n" +
			"limit is enforced. State goes with the process unless -data names a folder. In another terminal:\n" +
			"drover job run examples/hello/hello.hcl",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "data", Usage: "folder that keeps state between runs; default: a temporary one"},
			&cli.StringFlag{Name: "socket", Usage: "where clients find it; default: that of -address"},
			&cli.StringFlag{Name: "namenode", Usage: "host:port of a NameNode, for hdfs:/// paths"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "show the daemons' logs"},
		}, schedulerFlags...),
		Action: dev,
	}
}

func dev(c *cli.Context) error {
	if _, err := args(c, 0, 0, ""); err != nil {
		return err
	}
	params, err := parseParams(c.StringSlice("set"))
	if err != nil {
		return err
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
	socket, err := devSocket(c)
	if err != nil {
		return err
	}
	local, err := coordinator.ListenLocal(socket)
	if err != nil {
		return err
	}
	log := devLog(c)
	up := make(chan struct{})
	ctx, stop := signal.NotifyContext(c.Context, syscall.SIGHUP)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return coordinator.Run(ctx, coordinator.Config{
			Dir: filepath.Join(data, "coordinator"), Metrics: newRegistry(), Local: local, Logger: log, NoSync: c.String("data") == "",
			Scheduler: c.String("scheduler"), SchedulerParams: params, Ready: func() { close(up) },
		})
	})
	g.Go(func() error {
		select {
		case <-up:
		case <-ctx.Done():
			return nil
		}
		return devNode(ctx, c, data, socket)
	})
	return g.Wait()
}

// devSocket is where clients look by default, if this user may make it there.
func devSocket(c *cli.Context) (string, error) {
	if s := c.String("socket"); s != "" {
		return filepath.Abs(s)
	}
	s, ok := strings.CutPrefix(c.String("address"), "unix://")
	if !ok {
		return "", usage("drover dev listens on a unix socket: give -socket /path")
	}
	return s, nil
}

// devNode runs the node of `drover dev` in this process.
func devNode(ctx context.Context, c *cli.Context, data, socket string) error {
	driver, err := process.New(process.Config{StateDir: filepath.Join(data, "processes")})
	if err != nil {
		return err
	}
	defer driver.Close()
	h, base, err := httpClient(c, "unix://"+socket)
	if err != nil {
		return err
	}
	files := fsys.Config{Local: true, Allowed: []string{"*"}, LocalAddresses: []string{"127.0.0.1"}, Rack: "/local"}
	if n := c.String("namenode"); n != "" {
		files.NameNodes = strings.Split(n, ",")
	}
	harness, harnessArgs, err := nodeHarness(data)
	if err != nil {
		return err
	}
	info, err := devInfo(data, files.Schemes())
	if err != nil {
		return err
	}
	return node.Run(ctx, node.Config{
		Data: filepath.Join(data, "node"), Registry: newRegistry(), Coordinator: droverv1connect.NewNodeServiceClient(h, base), Driver: driver,
		Info: info, FilesConfig: files, AllowRoot: true, Probe: true, Log: devLog(c), Harness: harness, HarnessArgs: harnessArgs,
		Ready: func(string) {
			fmt.Fprintf(c.App.ErrWriter, "ready: coordinator and node on %s, tasks are plain processes (unconfined, no limits enforced)\n", socket)
			if "unix://"+socket != defaultAddress {
				fmt.Fprintf(c.App.ErrWriter, "clients: export DROVER_ADDRESS=unix://%s\n", socket)
			}
		},
	})
}

// devLog shows only errors unless -verbose: that there is no quota here, or one
// server elects itself, is nothing to warn somebody of who tries a job out.
func devLog(c *cli.Context) *slog.Logger {
	if c.Bool("verbose") {
		return daemonLog(c, true)
	}
	return slog.New(slog.NewTextHandler(c.App.ErrWriter, &slog.HandlerOptions{Level: slog.LevelError}))
}

// devInfo is this machine as one node: what it has, less nothing, since the
// process driver enforces nothing. Disk rates are not measured.
func devInfo(data string, schemes []string) (*droverv1.NodeInfo, error) {
	var mem unix.Sysinfo_t
	if err := unix.Sysinfo(&mem); err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(data), &fs); err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	const unmeasuredIO = 1 << 30 // bytes per second, so that I/O does not hold jobs back
	all := &droverv1.Resources{Cpu: int64(goruntime.NumCPU()) * 1000, Memory: int64(mem.Totalram) * int64(mem.Unit), Io: unmeasuredIO}
	return &droverv1.NodeInfo{
		Name: host, Rack: "/local", StorageAddresses: []string{"127.0.0.1"}, Measured: all, Allocatable: all,
		Disks:  []*droverv1.Disk{{Name: "data", Path: data, Io: unmeasuredIO, Space: max(int64(fs.Bavail)*fs.Bsize, jobspec.DefaultDisk)}},
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Driver: "process", Schemes: schemes,
	}, nil
}

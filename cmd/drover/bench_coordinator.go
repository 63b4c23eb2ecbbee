package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/bench"
	"github.com/drover-run/drover/internal/filesystem"
)

// Of `drover bench coordinator`.
const (
	serveBenchCommand = "serve"
	benchReadyLine    = "ready"
	clockTicks        = 100 // per second in /proc/PID/stat: USER_HZ, the same on all of Linux's architectures
	benchStopLimit    = 30 * time.Second
)

func benchCoordinatorCommand() *cli.Command {
	shared := []cli.Flag{
		&cli.StringFlag{Name: "profile", Usage: "write a CPU profile of the coordinator to this file (go tool pprof)"},
		&cli.BoolFlag{Name: "no-sync", Usage: "the coordinator does not wait for the disk: what fsync costs is the difference"},
		&cli.StringFlag{Name: "scheduler", Value: "3dsf", Usage: "policy of the coordinator"},
	}
	return &cli.Command{
		Name:  "coordinator",
		Usage: "the whole live way of jobs through a coordinator: submission, decision, log, nodes, ends",
		Description: "Starts a coordinator in a process of its own, with its log on the disk of -dir, and simulated nodes that speak\n" +
			"the real protocol over a connection each. The phases: nodes register; pages are opened, with -pages; nodes report\n" +
			"while nothing runs; jobs are submitted and their tasks placed and ended; jobs of one task are submitted one after\n" +
			"another, each when a node has received the one before; and jobs of one task are submitted by all clients, first as many\n" +
			"as are answered, then -submission-rate in a second, with latencies from when each was due. Of three coordinators\n" +
			"(-servers), whose log is replicated over mutual TLS, the one that leads is killed at the end.",
		Flags: append([]cli.Flag{
			&cli.IntFlag{Name: "servers", Value: 1, Usage: "coordinators: 1 or 3, all on this machine"},
			&cli.IntFlag{Name: "nodes", Value: 1000, Usage: "simulated nodes of 32 cores and 128 GiB"},
			&cli.IntFlag{Name: "jobs", Value: 20, Usage: "jobs whose tasks are placed"},
			&cli.IntFlag{Name: "tasks", Value: 5000, Usage: "tasks of each"},
			&cli.IntFlag{Name: "alone", Value: 100, Usage: "jobs of one task that are then submitted one after another"},
			&cli.IntFlag{Name: "submissions", Value: 5000, Usage: "jobs of one task that are submitted at the end, twice"},
			&cli.Float64Flag{Name: "submission-rate", Value: 2000, Usage: "those submitted per second the second time"},
			&cli.IntFlag{Name: "clients", Value: 128, Usage: "clients that submit at once"},
			&cli.IntFlag{Name: "pages", Usage: "open web pages that stay live during the measurement: what they cost is the difference"},
			&cli.Float64Flag{Name: "rate", Usage: "jobs submitted per second while tasks are placed; 0: as many as are answered"},
			&cli.DurationFlag{Name: "idle", Value: 9 * time.Second, Usage: "length of the phase without work; nodes report every 3 s"},
			&cli.DurationFlag{Name: "limit", Value: 5 * time.Minute, Usage: "longest time of a phase"},
			&cli.IntFlag{Name: "runs", Value: 1, Usage: "repetitions, each with a new coordinator"},
			&cli.StringFlag{Name: "dir", Usage: "folder for the coordinator's state, on the disk to be measured; default: a temporary one"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per run, one per line"},
		}, shared...),
		Subcommands: []*cli.Command{{Name: serveBenchCommand, Hidden: true, HideHelp: true, Action: profiled(serveBench),
			Flags: append([]cli.Flag{&cli.StringFlag{Name: "data"}, &cli.StringFlag{Name: "socket"},
				&cli.StringFlag{Name: "id"}, &cli.StringFlag{Name: "tls"}, &cli.StringSliceFlag{Name: "servers"}}, shared...)}},
		Action: runBenchCoordinator,
	}
}

// serveBench runs the coordinator that is measured until standard input closes, so that
// it ends with its parent, however that ends.
func serveBench(c *cli.Context) error {
	l, err := coordinator.ListenLocal(c.String("socket"))
	if err != nil {
		return err
	}
	setGCPercent(coordinatorGCPercent)
	adviseHugePages()
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	cfg := coordinator.Config{Dir: c.String("data"), Metrics: newRegistry(), Local: l, Scheduler: c.String("scheduler"),
		NoSync: c.Bool("no-sync"), SubmitRate: 1e6, Page: webPage, Ready: func() { fmt.Fprintln(c.App.Writer, benchReadyLine) }}
	if err := setBenchPeers(c, &cfg); err != nil {
		return err
	}
	return coordinator.Run(ctx, cfg)
}

func runBenchCoordinator(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	if n := c.Int("servers"); n != 1 && n != 3 {
		return usageErrorf("-servers %d: want 1 or 3", n)
	}
	cfg := bench.Config{Nodes: c.Int("nodes"), Jobs: c.Int("jobs"), Tasks: c.Int("tasks"), Alone: c.Int("alone"), Submits: c.Int("submissions"), Clients: c.Int("clients"), Pages: c.Int("pages"),
		Steady: c.Float64("submission-rate"), Rate: c.Float64("rate"), Idle: c.Duration("idle"), Limit: c.Duration("limit")}
	sync, err := syncedTo(c)
	if err != nil {
		return err
	}
	var rows [][]string
	for range max(c.Int("runs"), 1) {
		r, err := measureCoordinator(c, cfg)
		if err != nil {
			return err
		}
		if c.Bool("json") {
			if err := json.NewEncoder(c.App.Writer).Encode(r); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, benchCoordinatorRow(c.Int("servers"), sync, &r))
	}
	if rows != nil {
		printTable(c.App.Writer, benchCoordinatorHeader, rows)
	}
	return nil
}

// benchCoordinatorHeader begins with the settings: rows of other settings are other figures for
// integration/cmd/record. A latency belongs to the rate before it.
var benchCoordinatorHeader = []string{"servers", "nodes", "tasks", "sync", "pages", "register/s", "reports/s", "nodes at half a core", "placements/s", "per cpu s", "page changes",
	"receipt p50 ms", "receipt p99 ms", "submissions/s", "p50 ms", "p99 ms", "at a rate/s", "p50 ms", "p99 ms", "rss", "failover ms"}

// syncedTo returns what a submission waits for, the file system of the state: tmpfs is no disk, and
// refused where the user names it. "no" without waiting.
func syncedTo(c *cli.Context) (string, error) {
	if c.Bool("no-sync") {
		return "no", nil
	}
	dir := c.String("dir")
	kind, err := filesystem.Kind(cmp.Or(dir, os.TempDir()))
	if err == nil && dir != "" && kind == filesystem.Tmpfs {
		return "", usageErrorf("-dir %s is in memory (tmpfs), where fsync waits for nothing: name a folder on the disk to be measured, or use -no-sync", dir)
	}
	return kind, err
}

func benchCoordinatorRow(servers int, sync string, r *bench.Result) []string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	failover := "-"
	if r.FailoverMS > 0 {
		failover = f(r.FailoverMS)
	}
	return []string{strconv.Itoa(servers), strconv.Itoa(r.Nodes), strconv.Itoa(r.Jobs * r.Tasks), sync, strconv.Itoa(r.Pages), f(r.RegistrationsPerS), f(r.ReportsPerS), f(r.NodesAtHalfCore), f(r.PlacementsPerS), f(r.PlacementsPerCPUS), strconv.FormatInt(r.PageChanges, 10),
		f(r.ReceiptP50MS), f(r.ReceiptP99MS), f(r.SubmitsPerS), f(r.SubmitP50MS), f(r.SubmitP99MS), f(r.SteadyPerS), f(r.SteadyP50MS), f(r.SteadyP99MS), fmt.Sprintf("%d MiB", r.RSSBytes>>20), failover}
}

// measureCoordinator starts coordinators with an empty state, measures them, and ends them.
func measureCoordinator(c *cli.Context, cfg bench.Config) (r bench.Result, err error) {
	dir, err := os.MkdirTemp(c.String("dir"), "drover-bench-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	servers, err := startBenchServers(c, dir)
	defer func() { err = errors.Join(err, servers.stop()) }()
	if err != nil {
		return r, err
	}
	meter := bench.Meter{CPU: servers.cpu, RSS: servers.rss}
	if len(servers) > 1 {
		meter.KillLeader = func(ctx context.Context) error { return servers.killLeader(ctx, c) }
	}
	return bench.Run(c.Context, cfg, func() (bench.Client, error) { return servers.dial(c) }, meter, func(phase string) {
		fmt.Fprintf(c.App.ErrWriter, "%s ...\n", phase)
	})
}

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/bench"
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
			"as are answered, then -submission-rate in a second, with latencies from when each was due.",
		Flags: append([]cli.Flag{
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
		Subcommands: []*cli.Command{{Name: serveBenchCommand, Hidden: true, HideHelp: true, Action: serveBench,
			Flags: append([]cli.Flag{&cli.StringFlag{Name: "data"}, &cli.StringFlag{Name: "socket"}}, shared...)}},
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
	if file := c.String("profile"); file != "" {
		f, err := os.Create(file)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	setGCPercent(coordinatorGCPercent)
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return coordinator.Run(ctx, coordinator.Config{Dir: c.String("data"), Metrics: newRegistry(), Local: l, Scheduler: c.String("scheduler"),
		NoSync: c.Bool("no-sync"), SubmitRate: 1e6, Page: webPage, Ready: func() { fmt.Fprintln(c.App.Writer, benchReadyLine) }})
}

func runBenchCoordinator(c *cli.Context) error {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	cfg := bench.Config{Nodes: c.Int("nodes"), Jobs: c.Int("jobs"), Tasks: c.Int("tasks"), Alone: c.Int("alone"), Submits: c.Int("submissions"), Clients: c.Int("clients"), Pages: c.Int("pages"),
		Steady: c.Float64("submission-rate"), Rate: c.Float64("rate"), Idle: c.Duration("idle"), Limit: c.Duration("limit")}
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
		rows = append(rows, benchCoordinatorRow(&r))
	}
	if rows != nil {
		printTable(c.App.Writer, []string{"nodes", "tasks", "register/s", "reports/s", "nodes at half a core", "placements/s", "per cpu s", "page changes", "receipt p50 ms", "p99 ms",
			"submissions/s", "p50 ms", "p99 ms", "at a rate/s", "p50 ms", "p99 ms", "rss"}, rows)
	}
	return nil
}

func benchCoordinatorRow(r *bench.Result) []string {
	f := func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) }
	return []string{strconv.Itoa(r.Nodes), strconv.Itoa(r.Jobs * r.Tasks), f(r.RegistrationsPerS), f(r.ReportsPerS), f(r.NodesAtHalfCore), f(r.PlacementsPerS), f(r.PlacementsPerCPUS), strconv.FormatInt(r.PageChanges, 10),
		f(r.ReceiptP50MS), f(r.ReceiptP99MS), f(r.SubmitsPerS), f(r.SubmitP50MS), f(r.SubmitP99MS), f(r.SteadyPerS), f(r.SteadyP50MS), f(r.SteadyP99MS), fmt.Sprintf("%d MiB", r.RSSBytes>>20)}
}

// measureCoordinator starts a coordinator with an empty state, measures it, and ends it.
func measureCoordinator(c *cli.Context, cfg bench.Config) (r bench.Result, err error) {
	dir, err := os.MkdirTemp(c.String("dir"), "drover-bench-")
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := startBenchServer(c, dir)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	dial := func() (*http.Client, string, error) { return httpClient(c, "unix://"+server.socket) }
	return bench.Run(c.Context, cfg, dial, bench.Meter{CPU: server.cpu, RSS: server.rss}, func(phase string) {
		fmt.Fprintf(c.App.ErrWriter, "%s ...\n", phase)
	})
}

// benchServer is the process of the coordinator that is measured.
type benchServer struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	socket string
}

func startBenchServer(c *cli.Context, dir string) (*benchServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &benchServer{socket: filepath.Join(dir, "c.sock")}
	args := []string{"bench", "coordinator", serveBenchCommand, "-data", filepath.Join(dir, "state"), "-socket", s.socket, "-scheduler", c.String("scheduler"),
		"-no-sync=" + strconv.FormatBool(c.Bool("no-sync"))}
	if p := c.String("profile"); p != "" {
		args = append(args, "-profile", p)
	}
	s.cmd = exec.Command(self, args...)
	s.cmd.Stderr = c.App.ErrWriter
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != benchReadyLine {
		return nil, errors.Join(errors.New("the coordinator did not start"), s.stop())
	}
	return s, nil
}

// stop ends the coordinator in order, so that a profile is complete.
func (s *benchServer) stop() error {
	_ = s.stdin.Close() // its end is what matters
	t := time.AfterFunc(benchStopLimit, func() { _ = s.cmd.Process.Kill() })
	defer t.Stop()
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the measured coordinator: %w", err)
	}
	return nil
}

// cpu returns the CPU time of the process, 0 if it has ended.
func (s *benchServer) cpu() time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // the name may contain spaces
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		return 0
	}
	return time.Duration(user+system) * time.Second / clockTicks
}

// rss returns the resident memory of the process in bytes, 0 if it has ended.
func (s *benchServer) rss() uint64 { return residentBytesOf(s.cmd.Process.Pid) }

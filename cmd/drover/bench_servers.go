package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/bench"
	"github.com/drover-run/drover/internal/coordclient"
	"github.com/drover-run/drover/internal/pki"
)

// benchServers are the processes of the coordinators that are measured.
type benchServers []*benchServer

// startBenchServers starts as many as -servers says, each with a folder of its own in dir.
func startBenchServers(c *cli.Context, dir string) (all benchServers, err error) {
	if c.Int("servers") == 1 {
		s, err := newBenchServer(c, dir, "c1")
		if err != nil {
			return nil, err
		}
		all := benchServers{s}
		return all, all.start()
	}
	tlsDir := filepath.Join(dir, "tls")
	if err := pki.CreateCA(tlsDir, time.Now()); err != nil {
		return nil, err
	}
	var peers []string
	for i := range c.Int("servers") {
		id := fmt.Sprintf("c%d", i+1)
		if _, err := issueFor(tlsDir, pki.KindCoordinator, id); err != nil {
			return nil, err
		}
		s, err := newBenchServer(c, filepath.Join(dir, id), id)
		if err != nil {
			return nil, err
		}
		l, err := net.Listen("tcp", "127.0.0.1:0") // here, so that all ports are known before the first one starts
		if err != nil {
			return nil, err
		}
		defer l.Close()
		port, err := l.(*net.TCPListener).File()
		if err != nil {
			return nil, err
		}
		defer port.Close()
		s.cmd.ExtraFiles = []*os.File{port}
		peers = append(peers, id+"="+l.Addr().String())
		all = append(all, s)
	}
	for _, s := range all {
		s.cmd.Args = append(s.cmd.Args, "-id", s.id, "-tls", tlsDir, "-servers", strings.Join(peers, ","))
	}
	return all, all.start()
}

// start starts them and waits until all answer: each of several waits for the others. If one does not
// start, it kills all.
func (all benchServers) start() error {
	g, ctx := errgroup.WithContext(context.Background())
	for _, s := range all {
		g.Go(func() error { return s.start(ctx) })
	}
	err := g.Wait()
	if err != nil {
		for _, s := range all {
			_ = s.kill() // it may have ended
		}
	}
	return err
}

// setBenchPeers makes the coordinator one of several, where -servers names them. Its port for the
// others is the first file that it inherited.
func setBenchPeers(c *cli.Context, cfg *coordinator.Config) (err error) {
	if cfg.Servers, err = initialServers(c); err != nil || len(cfg.Servers) == 0 {
		return err
	}
	const firstInherited = 3
	if cfg.PeerListener, err = net.FileListener(os.NewFile(firstInherited, "peers")); err != nil {
		return err
	}
	cfg.ID, cfg.Bootstrap, cfg.APIAddress = c.String("id"), true, "unix://"+c.String("socket")
	files, err := issueFor(c.String("tls"), pki.KindCoordinator, cfg.ID)
	if err != nil {
		return err
	}
	cfg.Certificate, err = files.Open(pki.KindCoordinator)
	return err
}

// dial returns a client that finds the one that leads.
func (all benchServers) dial(c *cli.Context) (bench.Client, error) {
	addresses := make([]string, len(all))
	for i, s := range all {
		addresses[i] = "unix://" + s.socket
	}
	t, err := openCoordinators("-servers", strings.Join(addresses, ","), clientTLS(c))
	if err != nil {
		return bench.Client{}, err
	}
	cl := bench.Client{HTTP: &http.Client{Transport: t}, Base: coordclient.Base}
	if len(all) > 1 {
		cl.Options = []connect.ClientOption{connect.WithInterceptors(coordclient.NewRetrier(t))}
	}
	return cl, nil
}

// killLeader ends the process of the coordinator that leads, as kill -9 does.
func (all benchServers) killLeader(ctx context.Context, c *cli.Context) error {
	cl, err := all.dial(c)
	if err != nil {
		return err
	}
	defer cl.HTTP.CloseIdleConnections()
	res, err := droverv1connect.NewOperatorServiceClient(cl.HTTP, cl.Base, cl.Options...).ListServers(ctx, connect.NewRequest(&droverv1.ListServersRequest{}))
	if err != nil {
		return err
	}
	for _, known := range res.Msg.GetServers() {
		if i := slices.IndexFunc(all, func(s *benchServer) bool { return s.id == known.GetId() }); known.GetLeader() && i >= 0 {
			return all[i].kill()
		}
	}
	return errors.New("no coordinator leads")
}

// cpu returns the CPU time of all of them.
func (all benchServers) cpu() (sum time.Duration) {
	for _, s := range all {
		sum += s.cpu()
	}
	return sum
}

// rss returns the resident memory of the largest, in bytes.
func (all benchServers) rss() (most uint64) {
	for _, s := range all {
		most = max(most, residentBytesOf(s.cmd.Process.Pid))
	}
	return most
}

// stop ends them in order, so that profiles are complete.
func (all benchServers) stop() error {
	var g errgroup.Group
	for _, s := range all {
		g.Go(s.stop)
	}
	return g.Wait()
}

// benchServer is one of them.
type benchServer struct {
	id     string
	cmd    *exec.Cmd
	stdin  io.Closer // nil unless it runs
	socket string
	used   time.Duration // CPU time when it was last seen
	killed bool
}

// newBenchServer returns one with a folder that start makes.
func newBenchServer(c *cli.Context, dir, id string) (*benchServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &benchServer{id: id, socket: filepath.Join(dir, "c.sock")}
	args := []string{"bench", "coordinator", serveBenchCommand, "-data", filepath.Join(dir, "state"), "-socket", s.socket, "-scheduler", c.String("scheduler"),
		"-no-sync=" + strconv.FormatBool(c.Bool("no-sync"))}
	if p := c.String("profile"); p != "" {
		if c.Int("servers") > 1 {
			p += "." + id
		}
		args = append(args, "-profile", p)
	}
	s.cmd = exec.Command(self, args...)
	s.cmd.Stderr = c.App.ErrWriter
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return s, nil
}

// start starts it and waits until it answers. It is killed if ctx ends before that.
func (s *benchServer) start(ctx context.Context) error {
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	s.stdin = stdin
	defer context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })() // its output ends then
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != benchReadyLine {
		return errors.New("the coordinator did not start")
	}
	return nil
}

// kill ends it at once.
func (s *benchServer) kill() error {
	if s.stdin == nil {
		return nil
	}
	s.killed = true
	return s.cmd.Process.Kill()
}

// stop ends it in order.
func (s *benchServer) stop() error {
	if s.stdin == nil {
		return nil
	}
	_ = s.stdin.Close() // its end is what matters
	t := time.AfterFunc(benchStopLimit, func() { _ = s.cmd.Process.Kill() })
	defer t.Stop()
	if err := s.cmd.Wait(); err != nil && !s.killed {
		return fmt.Errorf("the measured coordinator: %w", err)
	}
	return nil
}

// cpu returns the CPU time of the process; what was seen last if it has ended.
func (s *benchServer) cpu() time.Duration {
	s.used = max(s.used, cpuOf(s.cmd.Process.Pid))
	return s.used
}

// cpuOf returns the CPU time of a process, 0 if it has ended.
func cpuOf(pid int) time.Duration {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
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

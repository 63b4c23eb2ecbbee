package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/coordinator/bench"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

func benchFloodsCommand() *cli.Command {
	return &cli.Command{
		Name:  "floods",
		Usage: "what the floods of one user cost another one",
		Description: "Starts a coordinator with mutual TLS in a process of its own, and simulated nodes. One identity after another\n" +
			"floods it: with submissions, quotes, lists, streams, uploads, bodies, connections and more, each as fast as -rate\n" +
			"says. Another user reads, submits, asks for a quote and connects anew, and has jobs of many tasks placed, before\n" +
			"each flood and during it, in -rounds, whose medians are shown. The command fails if a median of that user is over -ratio times the one before, if\n" +
			"the tasks placed in a second are fewer by more than -slower, if the coordinator's memory grows by more than\n" +
			"-memory, or if a flooder is not told to come back later.",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "only", Usage: "one flood, repeatable"},
			&cli.IntFlag{Name: "rounds", Value: 3, Usage: "how often each flood is measured, without it and with it"},
			&cli.IntFlag{Name: "probes", Value: 50, Usage: "calls of each kind of the other user before and during a flood, in each round"},
			&cli.IntFlag{Name: "batches", Value: 9, Usage: "jobs of 2,000 tasks of that user before and during a flood, in each round, for placements per second"},
			&cli.DurationFlag{Name: "warm", Value: 3 * time.Second, Usage: "how long a flood lasts before they are measured"},
			&cli.Float64Flag{Name: "rate", Value: 2000, Usage: "attempts of a flood in a second"},
			&cli.Float64Flag{Name: "ratio", Value: 10, Usage: "most that another user's median may grow to, as a multiple"},
			&cli.DurationFlag{Name: "least", Value: 50 * time.Millisecond, Usage: "shorter medians count as this for -ratio"},
			&cli.Float64Flag{Name: "slower", Value: 0.1, Usage: "part of another user's placements per second that a flood may cost"},
			&cli.StringFlag{Name: "memory", Value: "384MiB", Usage: "most by which the coordinator may grow in a flood"},
			&cli.DurationFlag{Name: "limit", Value: 2 * time.Minute, Usage: "longest time of a round"},
			&cli.StringFlag{Name: "dir", Usage: "folder for the coordinator's state; default: a temporary one"},
			&cli.BoolFlag{Name: "json", Usage: "one JSON object per flood, one per line"},
		},
		Subcommands: []*cli.Command{{Name: attackCommand, Hidden: true, HideHelp: true, Action: runBenchAttack, Flags: []cli.Flag{
			&cli.StringFlag{Name: "flood"}, &cli.Float64Flag{Name: "rate"}, &cli.Uint64Flag{Name: "crowded"}, &cli.Uint64Flag{Name: "held"},
			&cli.StringFlag{Name: "tls"}, &cli.StringFlag{Name: "server"}}}},
		Action: runBenchFloods,
	}
}

func runBenchFloods(c *cli.Context) (err error) {
	if _, err := positionalArgs(c, 0, 0, ""); err != nil {
		return err
	}
	memory, err := jobspec.ParseSize(c.String("memory"))
	if err != nil {
		return usageErrorf("-memory: %w", err)
	}
	for _, name := range c.StringSlice("only") {
		if !slices.Contains(bench.FloodNames(), name) {
			return usageErrorf("-only %q: there are %v", name, bench.FloodNames())
		}
	}
	if err := requireAtLeast(c, map[string]float64{"rounds": 1, "probes": 1, "batches": 1, "rate": 1, "ratio": 1, "slower": 0}); err != nil {
		return err
	}
	if c.Duration("warm") <= 0 || c.Duration("limit") <= 0 {
		return usageErrorf("-warm %s, -limit %s: want durations above zero, such as 3s", c.Duration("warm"), c.Duration("limit"))
	}
	dir, err := os.MkdirTemp(c.String("dir"), "drover-floods-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := startFloodedServer(c, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	server, err := floodTarget(s.tlsDir, s.address)
	if err != nil {
		return err
	}
	server.RSS = func() uint64 { return residentBytesOf(s.cmd.Process.Pid) }
	server.Attack = func(ctx context.Context, a bench.Attack) (bench.Attacker, error) {
		a.Rate = c.Float64("rate")
		return startAttack(ctx, s, a)
	}
	cfg := bench.FloodConfig{Rounds: c.Int("rounds"), Probes: c.Int("probes"), Batches: c.Int("batches"), Warm: c.Duration("warm"), Limit: c.Duration("limit"), Only: c.StringSlice("only")}
	bounds := bench.FloodBounds{Ratio: c.Float64("ratio"), Least: c.Duration("least"), Slower: c.Float64("slower"), Memory: uint64(memory)}
	var rows [][]string
	var broken []error
	err = bench.RunFloods(c.Context, cfg, server, func(r bench.FloodResult) {
		broken = append(broken, r.Check(bounds))
		if c.Bool("json") {
			broken = append(broken, json.NewEncoder(c.App.Writer).Encode(r))
			return
		}
		fmt.Fprintf(c.App.ErrWriter, "%s ...\n", r.Flood)
		rows = append(rows, benchFloodRow(&r))
	})
	if rows != nil {
		printTable(c.App.Writer, []string{"flood", "attempts", "answered", "told", "failed", "read ms", "during", "place ms", "during", "quote ms", "during", "connect ms", "during",
			"worst", "placed/s", "during", "kept", "rss", "peak"}, rows)
	}
	return errors.Join(append(broken, err)...)
}

func benchFloodRow(r *bench.FloodResult) []string {
	ms := func(v float64) string { return strconv.FormatFloat(v, 'f', 1, 64) }
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	q, d := &r.Quiet, &r.During
	return []string{r.Flood, n(r.Attempts), n(r.Answered), n(r.Told), n(r.Failed), ms(q.ReadMS), ms(d.ReadMS), ms(q.PlaceMS), ms(d.PlaceMS), ms(q.PlanMS), ms(d.PlanMS),
		ms(q.ConnectMS), ms(d.ConnectMS), ms(r.Ratio) + "x", fmt.Sprintf("%.0f", q.PlacedPerSecond), fmt.Sprintf("%.0f", d.PlacedPerSecond), keptText(r), fmt.Sprintf("%d MiB", r.RSSBefore>>20), fmt.Sprintf("%d MiB", r.RSSPeak>>20)}
}

// keptText returns the median and the range of which part of the placements per second a flood left.
func keptText(r *bench.FloodResult) string {
	if len(r.Kept) == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f (%.2f to %.2f)", r.KeptMedian(), slices.Min(r.Kept), slices.Max(r.Kept))
}

// floodedServer is the process of the coordinator that is flooded.
type floodedServer struct {
	cmd     *exec.Cmd
	tlsDir  string
	address string
	drained chan struct{} // its log has ended
}

const floodsOperator = "root"

var readyAddress = regexp.MustCompile(`ready: coordinator on .* and https://([0-9.:]+)`)

func startFloodedServer(c *cli.Context, dir string) (*floodedServer, error) {
	s := &floodedServer{tlsDir: filepath.Join(dir, "tls"), drained: make(chan struct{})}
	if err := pki.CreateCA(s.tlsDir, time.Now()); err != nil {
		return nil, err
	}
	own, err := issueFor(s.tlsDir, pki.KindCoordinator, "coordinator")
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.cmd = &exec.Cmd{Path: self, Args: []string{"drover", "coordinator", "-data", filepath.Join(dir, "state"), "-socket", filepath.Join(dir, "s"), "-listen", "127.0.0.1:0",
		"-tls-ca", own.CA, "-tls-cert", own.Cert, "-tls-key", own.Key, "-operator", "user/" + floodsOperator, "-blob-quota", "256MiB"},
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		defer close(s.drained)
		defer close(ready)
		for lines := bufio.NewScanner(log); lines.Scan(); {
			if m := readyAddress.FindStringSubmatch(lines.Text()); m != nil {
				ready <- m[1]
			} else if c.Bool("verbose") {
				fmt.Fprintln(c.App.ErrWriter, lines.Text())
			}
		}
	}()
	select {
	case s.address = <-ready:
	case <-time.After(benchStopLimit):
	}
	if s.address == "" {
		return nil, errors.Join(errors.New("the coordinator did not start"), s.stop())
	}
	return s, nil
}

// issueFor returns the files of a certificate, which it makes if there is none.
func issueFor(dir string, kind pki.Kind, name string) (pki.Files, error) {
	f := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, name+".pem"), Key: filepath.Join(dir, name+".key")}
	if _, err := os.Stat(f.Cert); err == nil {
		return f, nil
	}
	return f, pki.IssueCert(dir, pki.CertRequest{Kind: kind, Name: name, Hosts: []string{"127.0.0.1"}}, time.Now())
}

// floodTarget returns the server at an address whose CA is in a folder.
func floodTarget(tlsDir, address string) (bench.Server, error) {
	stranger, err := pki.TokenConfig(filepath.Join(tlsDir, "ca.pem"))
	if err != nil {
		return bench.Server{}, err
	}
	conf := func(kind pki.Kind, name string) (*tls.Config, error) {
		f, err := issueFor(tlsDir, kind, name)
		if err != nil {
			return nil, err
		}
		return f.ClientConfig()
	}
	return bench.Server{Address: address, Operator: floodsOperator, Certificate: conf, Stranger: stranger}, nil
}

// stop ends the coordinator in order.
func (s *floodedServer) stop() error {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	t := time.AfterFunc(benchStopLimit, func() { _ = s.cmd.Process.Kill() })
	defer t.Stop()
	<-s.drained
	if err := s.cmd.Wait(); err != nil {
		return fmt.Errorf("the flooded coordinator: %w", err)
	}
	return nil
}

// attackCommand is the process that floods. It has a lower priority, because real flooders have
// machines of their own, and their processor time is not measured.
const (
	attackCommand  = "attack"
	attackPriority = 10
)

func runBenchAttack(c *cli.Context) error {
	if err := syscall.Setpriority(syscall.PRIO_PGRP, 0, attackPriority); err != nil {
		return err
	}
	server, err := floodTarget(c.String("tls"), c.String("server"))
	if err != nil {
		return err
	}
	server.From = net.IPv4(127, 0, 0, 2) // flooders have addresses of their own too
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		cancel()
	}()
	out := json.NewEncoder(c.App.Writer)
	a := bench.Attack{Flood: c.String("flood"), Rate: c.Float64("rate"), Crowded: c.Uint64("crowded"), Held: c.Uint64("held")}
	return bench.RunAttack(ctx, a, server, func(n bench.AttackCounts) { _ = out.Encode(n) }) // fails only if the parent has ended
}

// attackProcess implements bench.Attacker.
type attackProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	read  chan struct{} // all counts are read

	mu     sync.Mutex
	counts bench.AttackCounts
}

func startAttack(ctx context.Context, s *floodedServer, a bench.Attack) (bench.Attacker, error) {
	p := &attackProcess{read: make(chan struct{})}
	p.cmd = exec.CommandContext(ctx, s.cmd.Path)
	p.cmd.Args = []string{"drover", "bench", "floods", attackCommand, "-flood", a.Flood, "-rate", strconv.FormatFloat(a.Rate, 'g', -1, 64), "-crowded", strconv.FormatUint(a.Crowded, 10),
		"-held", strconv.FormatUint(a.Held, 10), "-tls", s.tlsDir, "-server", s.address}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // a group of its own for its priority
	p.cmd.Stderr = os.Stderr
	var err error
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.read)
		for in := json.NewDecoder(out); ; {
			var n bench.AttackCounts
			if in.Decode(&n) != nil { // it has ended
				return
			}
			p.mu.Lock()
			p.counts = n
			p.mu.Unlock()
		}
	}()
	return p, nil
}

// Counts implements bench.Attacker.
func (p *attackProcess) Counts() bench.AttackCounts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts
}

// Stop implements bench.Attacker.
func (p *attackProcess) Stop() error {
	_ = p.stdin.Close() // its end is what matters
	t := time.AfterFunc(benchStopLimit, func() { _ = p.cmd.Process.Kill() })
	defer t.Stop()
	<-p.read
	return p.cmd.Wait()
}

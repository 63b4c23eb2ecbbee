// Package cluster runs Drover in a test bed: one coordinator or several on the host side, a node daemon on
// every machine, mutual TLS between them, all with the real binary and its commands. Demos and
// end-to-end tests build on it.
//
// Every method has a time limit. Stop ends everything that Start started; Leftovers checks what
// remains on the machines.
package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// Config configures a Cluster.
type Config struct {
	Testbed          *testbed.Bed
	Drover           string   // path of the binary on the host side
	Dir              string   // folder on the host side for data, certificates and logs
	nodes            []int    // machines to use, from 1; nil: all
	Servers          int      // coordinators with networks of their own; 0: one without
	CoordinatorFlags []string // additional flags of `drover coordinator`
	NodeFlags        []string // additional flags of `drover node`
	// OnStep, if not nil, is called after each step of Start.
	OnStep func(step string, took time.Duration)
}

// Cluster is a running coordinator with its nodes.
type Cluster struct {
	cfg              Config
	coordinator      *exec.Cmd
	coordinatorEnded chan error
	servers          []*Server // with Config.Servers, instead of coordinator
	nodes            map[int]*testbed.Process
	remoteBinary     string   // path of the binary on the machines
	extraFlags       []string // additional flags from RestartCoordinator
}

// Paths on the machines, and ports.
const (
	remoteDir  = "/data/drover"
	remoteLog  = "/data/drover-node.log"
	remoteCert = "/data/drover-tls"
	apiPort    = "7070"
	nodePort   = "7071"
)

// Start starts the cluster and waits until every node is up. With an error it returns what was
// started, which the caller must stop.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.nodes == nil {
		for k := range cfg.Testbed.Nodes {
			cfg.nodes = append(cfg.nodes, k+1)
		}
	}
	abs, err := filepath.Abs(cfg.Drover)
	if err != nil {
		return nil, err
	}
	cfg.Drover = abs
	c := &Cluster{cfg: cfg, nodes: map[int]*testbed.Process{}, remoteBinary: "/data/bin/drover"}
	c.makeServers()
	startCoordinator := c.StartCoordinator
	if cfg.Servers > 0 {
		startCoordinator = c.startServers
	}
	steps := []struct {
		what string
		do   func(context.Context) error
	}{
		{"make certificates", c.makeCertificates},
		{"start the coordinator", startCoordinator},
		{"copy the binary to the machines", c.installBinary},
		{"start the node daemons", c.startNodes},
	}
	for _, s := range steps {
		start := time.Now()
		if err := s.do(ctx); err != nil {
			return c, fmt.Errorf("cluster: %s: %w", s.what, err)
		}
		if cfg.OnStep != nil {
			cfg.OnStep(s.what, time.Since(start))
		}
	}
	return c, nil
}

// Dir returns the folder on the host side.
func (c *Cluster) Dir() string { return c.cfg.Dir }

// socket returns the path of the coordinator's socket.
func (c *Cluster) socket() string { return filepath.Join(c.cfg.Dir, "coordinator.sock") }

func (c *Cluster) tlsFile(name string) string { return filepath.Join(c.cfg.Dir, "tls", name) }

func (c *Cluster) makeCertificates(ctx context.Context) error {
	dir := filepath.Join(c.cfg.Dir, "tls")
	if _, err := c.runLocal(ctx, "tls", "ca", "-dir", dir); err != nil {
		return err
	}
	if _, err := c.runLocal(ctx, "tls", "cert", "-dir", dir, "-kind", "coordinator", "-host", c.cfg.Testbed.File.Host, "coordinator"); err != nil {
		return err
	}
	for _, v := range c.servers {
		if _, err := c.runLocal(ctx, "tls", "cert", "-dir", dir, "-kind", "coordinator", "-host", v.IP, v.ID); err != nil {
			return err
		}
	}
	if _, err := c.runLocal(ctx, "tls", "cert", "-dir", dir, "-kind", "user", userName); err != nil {
		return err
	}
	for _, k := range c.cfg.nodes {
		n := c.node(k)
		if _, err := c.runLocal(ctx, "tls", "cert", "-dir", dir, "-kind", "node", "-host", n.IP, n.Name); err != nil {
			return err
		}
	}
	return nil
}

// runLocal runs a drover command that needs no coordinator.
func (c *Cluster) runLocal(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.cfg.Drover, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("drover %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// StartCoordinator starts the coordinator and waits until it answers.
func (c *Cluster) StartCoordinator(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(c.cfg.Dir, "coordinator.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	args := append([]string{"coordinator",
		"-data", filepath.Join(c.cfg.Dir, "coordinator"), "-socket", c.socket(),
		"-listen", c.cfg.Testbed.File.Host + ":" + apiPort,
		"-tls-ca", c.tlsFile("ca.pem"), "-tls-cert", c.tlsFile("coordinator.pem"), "-tls-key", c.tlsFile("coordinator.key"),
	}, append(slices.Clone(c.cfg.CoordinatorFlags), c.extraFlags...)...)
	cmd := exec.Command(c.cfg.Drover, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	c.coordinator, c.coordinatorEnded = cmd, make(chan error, 1)
	go func() { c.coordinatorEnded <- cmd.Wait() }()
	return c.awaitAnswer(ctx, func() error {
		select {
		case err := <-c.coordinatorEnded:
			c.coordinatorEnded <- err
			return fmt.Errorf("it has ended (%v):\n%s", err, logTail(log.Name()))
		default:
			return nil
		}
	})
}

// RestartCoordinator kills the coordinator and starts it again with additional flags.
func (c *Cluster) RestartCoordinator(ctx context.Context, flags ...string) error {
	if err := c.KillCoordinator(); err != nil {
		return err
	}
	c.extraFlags = flags
	return c.StartCoordinator(ctx)
}

// KillCoordinator kills the coordinator with SIGKILL and waits for its end.
func (c *Cluster) KillCoordinator() error {
	if c.coordinator == nil {
		return errors.New("cluster: no coordinator runs")
	}
	if err := c.coordinator.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-c.coordinatorEnded
	c.coordinator = nil
	return nil
}

func (c *Cluster) node(k int) *testbed.Node { return c.cfg.Testbed.Nodes[k-1] }

// forEachNode calls do for every machine in use, in parallel.
func (c *Cluster) forEachNode(do func(k int) error) error {
	errs := make(chan error, len(c.cfg.nodes))
	for _, k := range c.cfg.nodes {
		go func() { errs <- do(k) }()
	}
	var all []error
	for range c.cfg.nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}

func (c *Cluster) installBinary(ctx context.Context) error {
	return c.forEachNode(func(k int) error {
		n := c.node(k)
		for _, f := range []struct{ from, to string }{
			{c.cfg.Drover, c.remoteBinary},
			{c.tlsFile("ca.pem"), remoteCert + "/ca.pem"},
			{c.tlsFile(n.Name + ".pem"), remoteCert + "/node.pem"},
			{c.tlsFile(n.Name + ".key"), remoteCert + "/node.key"},
		} {
			if err := n.Put(ctx, f.from, f.to); err != nil {
				return fmt.Errorf("%s: put %s: %w", n.Name, f.to, err)
			}
		}
		_, err := n.Sh(ctx, "sync") // a machine whose power is cut has them when it boots
		return err
	})
}

func (c *Cluster) startNodes(ctx context.Context) error {
	// All at once, since each measures its share of the disk that they have in common.
	for _, k := range c.cfg.nodes {
		if err := c.StartNode(ctx, k); err != nil {
			return err
		}
	}
	return c.AwaitNodes(ctx, len(c.cfg.nodes))
}

// StartNode starts the daemon of machine k; AwaitNodes waits until it is up.
func (c *Cluster) StartNode(ctx context.Context, k int) error {
	n := c.node(k)
	argv := []string{c.remoteBinary, "node", "-data", remoteDir, "-name", n.Name, "-rack", n.Rack,
		"-coordinator", c.addresses(), "-listen", n.IP + ":" + nodePort,
		"-tls-ca", remoteCert + "/ca.pem", "-tls-cert", remoteCert + "/node.pem", "-tls-key", remoteCert + "/node.key"}
	if n.Storage != "" {
		argv = append(argv, "-storage-address", n.Storage)
	}
	if h := c.cfg.Testbed.HDFS; h != nil {
		argv = append(argv, "-namenode", h.NameNode)
	}
	p, err := n.Start(ctx, remoteLog, append(argv, c.cfg.NodeFlags...)...)
	if err != nil {
		return fmt.Errorf("%s: %w", n.Name, err)
	}
	c.nodes[k] = p
	return nil
}

// RenewNode makes another certificate for machine k and puts it in the place of the former one there.
func (c *Cluster) RenewNode(ctx context.Context, k int, life time.Duration) error {
	n := c.node(k)
	if _, err := c.runLocal(ctx, "tls", "cert", "-dir", filepath.Join(c.cfg.Dir, "tls"), "-kind", "node", "-life", life.String(), "-host", n.IP, n.Name); err != nil {
		return err
	}
	return errors.Join(n.Put(ctx, c.tlsFile(n.Name+".pem"), remoteCert+"/node.pem"), n.Put(ctx, c.tlsFile(n.Name+".key"), remoteCert+"/node.key"))
}

// KillNode kills the daemon of machine k with SIGKILL; its tasks keep running.
func (c *Cluster) KillNode(ctx context.Context, k int) error {
	p := c.nodes[k]
	if p == nil {
		return fmt.Errorf("cluster: no daemon runs on machine %d", k)
	}
	delete(c.nodes, k)
	return p.Kill(ctx)
}

// ResetNode cuts the power of machine k and switches it on again. The channel has its result once it has booted;
// then StartNode starts its daemon.
func (c *Cluster) ResetNode(ctx context.Context, k int) <-chan error {
	delete(c.nodes, k)
	booted := make(chan error, 1)
	go func() { booted <- c.node(k).Reset(ctx) }()
	return booted
}

// NodeLog returns the log of machine k's daemon.
func (c *Cluster) NodeLog(ctx context.Context, k int) string {
	b, err := c.node(k).ReadFile(ctx, remoteLog)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// CoordinatorLog returns the coordinator's log.
func (c *Cluster) CoordinatorLog() string {
	b, err := os.ReadFile(filepath.Join(c.cfg.Dir, "coordinator.log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// nodeExit returns the exit code of the daemon that was started on machine k, and an error with its last lines, if it has
// ended by itself.
func (c *Cluster) nodeExit(ctx context.Context, k int) (code int, ended error) {
	p := c.nodes[k]
	if p == nil {
		return 0, nil
	}
	running, code, err := p.Running(ctx)
	if err != nil || running {
		return 0, nil
	}
	return code, fmt.Errorf("the daemon of n%d has ended with code %d:\n%s", k, code, lastLines(c.NodeLog(ctx, k), 10))
}

// wrongUsage is the exit code after which systemd does not start a daemon again, and that of a panic.
const wrongUsage = 2

// RestartNode starts the daemon of machine k again if it has ended by itself, as its systemd unit does: one that starts
// while its disk is full ends. It returns why, or "". The error is that of an end after which the unit leaves it so.
func (c *Cluster) RestartNode(ctx context.Context, k int) (why string, err error) {
	code, ended := c.nodeExit(ctx, k)
	if ended == nil {
		return "", nil
	}
	if code == wrongUsage {
		return "", ended
	}
	return ended.Error(), c.StartNode(ctx, k)
}

// AwaitNodes waits, up to 6 minutes, until exactly n nodes are up: a new one probes
// its levels before it registers.
func (c *Cluster) AwaitNodes(ctx context.Context, n int) error {
	return testbed.WaitFor(ctx, 6*time.Minute, fmt.Sprintf("%d nodes up", n), func(ctx context.Context) error {
		for k := range c.nodes {
			if _, err := c.nodeExit(ctx, k); err != nil {
				return err
			}
		}
		var list struct {
			Nodes []struct{ State string }
		}
		if err := c.JSON(ctx, &list, "node", "list", "-json"); err != nil {
			return err
		}
		up := 0
		for _, s := range list.Nodes {
			if s.State == "up" {
				up++
			}
		}
		if up != n {
			return fmt.Errorf("%d are up", up)
		}
		return nil
	})
}

// AwaitLevels waits, up to 5 minutes, until every node has reported that it can checkpoint: a
// daemon probes the levels after its first start.
func (c *Cluster) AwaitLevels(ctx context.Context) error {
	return testbed.WaitFor(ctx, 5*time.Minute, "levels of every machine", func(ctx context.Context) error {
		var list struct {
			Nodes []struct {
				Info struct {
					Name       string
					Levels     []string
					LevelNotes []string `json:"level_notes"`
				}
			}
		}
		if err := c.JSON(ctx, &list, "node", "list", "-json"); err != nil {
			return err
		}
		for _, n := range list.Nodes {
			if !strings.Contains(strings.Join(n.Info.Levels, " "), "CHECKPOINTED") {
				return fmt.Errorf("%s has %v: %v", n.Info.Name, n.Info.Levels, n.Info.LevelNotes)
			}
		}
		return nil
	})
}

// Result is the result of a drover command.
type Result struct {
	args           []string
	Stdout, Stderr string
	ExitCode       int
	took           time.Duration
}

// Err returns nil for exit code 0, else an error with the command and its output.
func (r Result) Err() error {
	if r.ExitCode == 0 {
		return nil
	}
	return fmt.Errorf("drover %s: exit code %d\n%s%s", strings.Join(r.args, " "), r.ExitCode, r.Stdout, r.Stderr)
}

// Drover runs a client command against the coordinator's socket. The error is that of starting it;
// a command that fails sets ExitCode.
func (c *Cluster) Drover(ctx context.Context, args ...string) (Result, error) {
	return c.DroverTo(ctx, nil, nil, args...)
}

// DroverTo is Drover and also copies the output as it arrives.
func (c *Cluster) DroverTo(ctx context.Context, out, errw io.Writer, args ...string) (Result, error) {
	cmd := exec.CommandContext(ctx, c.cfg.Drover, append(c.clientFlags(), args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = tee(&stdout, out), tee(&stderr, errw)
	start := time.Now()
	err := cmd.Run()
	r := Result{args: args, Stdout: stdout.String(), Stderr: stderr.String(), took: time.Since(start)}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		r.ExitCode = exit.ExitCode()
		err = nil
	}
	return r, err
}

func tee(b *bytes.Buffer, w io.Writer) io.Writer {
	if w == nil {
		return b
	}
	return io.MultiWriter(b, w)
}

// JSON runs a client command and decodes its output.
func (c *Cluster) JSON(ctx context.Context, to any, args ...string) error {
	r, err := c.Drover(ctx, args...)
	if err != nil {
		return err
	}
	if err := r.Err(); err != nil {
		return err
	}
	return json.Unmarshal([]byte(r.Stdout), to)
}

// Stop ends the node daemons, all at once, and then the coordinator.
func (c *Cluster) Stop(ctx context.Context) error {
	ended := make(chan error, len(c.nodes))
	for k, p := range c.nodes {
		go func() { ended <- c.stopNode(ctx, k, p) }()
	}
	var all []error
	for range c.nodes {
		all = append(all, <-ended)
	}
	c.nodes = map[int]*testbed.Process{}
	for _, v := range c.servers {
		all = append(all, v.stop())
	}
	if c.coordinator != nil {
		if err := c.coordinator.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			all = append(all, err)
		}
		select {
		case <-c.coordinatorEnded:
		case <-time.After(20 * time.Second):
			all = append(all, errors.New("the coordinator did not end within 20 s of SIGTERM"), c.coordinator.Process.Kill())
			<-c.coordinatorEnded
		}
		c.coordinator = nil
	}
	return errors.Join(all...)
}

// stopNode ends the daemon of machine k, unless the machine stands still.
func (c *Cluster) stopNode(ctx context.Context, k int, p *testbed.Process) error {
	if state, err := c.node(k).State(ctx); err == nil && state != "running" {
		return nil
	}
	if err := p.Signal(ctx, syscall.SIGTERM); err != nil {
		return nil // it has ended
	}
	if _, err := p.Wait(ctx, 30*time.Second); err != nil {
		return errors.Join(err, p.Kill(ctx))
	}
	return nil
}

func logTail(file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(b), 20)
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

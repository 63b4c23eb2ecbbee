package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

const (
	peerPort   = "7072"
	userName   = "chaos" // certificate of the commands' user, an operator
	serverLink = "eth0"  // a server's end of its cable
)

// Server is one of several coordinators. It is a process of the host side with a network
// namespace, an address and a cable of its own, so that it can be cut off in one direction
// or both, and a disk in memory, which can be full or slow. Its clock is the host's.
type Server struct {
	c         *Cluster
	ID        string
	IP        string
	network   *exec.Cmd    // holds the network namespace
	process   *exec.Cmd    // nil while it does not run
	disk      bool         // whether its folder is a disk of its own
	syncTakes atomic.Int64 // nanoseconds
	ended     chan struct{}
}

// Servers returns the coordinators of a cluster with Config.Servers.
func (c *Cluster) Servers() []*Server { return c.servers }

// makeServers prepares the network of the servers, without starting one.
func (c *Cluster) makeServers() {
	prefix := c.cfg.Testbed.File.Host[:strings.LastIndex(c.cfg.Testbed.File.Host, ".")+1]
	for k := 1; k <= c.cfg.Servers; k++ {
		c.servers = append(c.servers, &Server{c: c, ID: fmt.Sprint("c", k), IP: fmt.Sprint(prefix, 30+k)})
	}
}

// addresses returns the API's addresses of all servers, separated by commas.
func (c *Cluster) addresses() string {
	if len(c.servers) == 0 {
		return "https://" + c.cfg.Testbed.File.Host + ":" + apiPort
	}
	var all []string
	for _, s := range c.servers {
		all = append(all, "https://"+s.IP+":"+apiPort)
	}
	return strings.Join(all, ",")
}

// clientFlags returns the flags with which commands reach the cluster.
func (c *Cluster) clientFlags() []string {
	if len(c.servers) == 0 {
		return []string{"-address", "unix://" + c.socket()}
	}
	return []string{"-address", c.addresses(), "-tls-ca", c.tlsFile("ca.pem"), "-tls-cert", c.tlsFile(userName + ".pem"), "-tls-key", c.tlsFile(userName + ".key")}
}

// OperatorFlags returns the flags of a coordinator of which ClientOn's commands are an operator's.
func OperatorFlags() []string { return []string{"-operator", "user/" + userName} }

// ClientOn puts the certificate of the commands' user on machine k. It returns the command line
// of a client there, without the command.
func (c *Cluster) ClientOn(ctx context.Context, k int) ([]string, error) {
	cert, key := remoteCert+"/user.pem", remoteCert+"/user.key"
	for _, f := range [][2]string{{c.tlsFile(userName + ".pem"), cert}, {c.tlsFile(userName + ".key"), key}} {
		if err := c.node(k).Put(ctx, f[0], f[1]); err != nil {
			return nil, fmt.Errorf("put %s: %w", f[1], err)
		}
	}
	return []string{c.remoteBinary, "-address", c.addresses(), "-tls-ca", remoteCert + "/ca.pem", "-tls-cert", cert, "-tls-key", key}, nil
}

// startServers starts all servers as a new cluster and waits until one leads.
func (c *Cluster) startServers(ctx context.Context) error {
	bridge, err := linkOf(c.cfg.Testbed.File.Host)
	if err != nil {
		return err
	}
	for _, s := range c.servers {
		if err := s.connect(ctx, bridge); err != nil {
			return err
		}
		if err := s.mountDisk(ctx); err != nil {
			return err
		}
		if err := s.Start(); err != nil {
			return err
		}
	}
	return c.awaitAnswer(ctx, func() error {
		for _, s := range c.servers {
			if s.hasEnded() {
				return fmt.Errorf("%s has ended:\n%s", s.ID, logTail(s.logFile()))
			}
		}
		return nil
	})
}

// linkOf returns the name of the network interface with an address.
func linkOf(ip string) (string, error) {
	links, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, l := range links {
		addresses, err := l.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range addresses {
			if strings.HasPrefix(a.String(), ip+"/") {
				return l.Name, nil
			}
		}
	}
	return "", fmt.Errorf("cluster: no network interface has the address %s: run this in a test bed", ip)
}

// connect makes the server's network namespace and plugs its cable into the bridge.
func (s *Server) connect(ctx context.Context, bridge string) error {
	s.network = exec.Command("sleep", "infinity")
	s.network.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	if err := s.network.Start(); err != nil {
		return err
	}
	for _, argv := range [][]string{
		{"ip", "link", "add", "drover-" + s.ID, "type", "veth", "peer", "name", serverLink, "netns", fmt.Sprint(s.network.Process.Pid)},
		{"ip", "link", "set", "drover-" + s.ID, "master", bridge, "up"},
		s.inside("ip", "addr", "add", s.IP+"/24", "dev", serverLink),
		s.inside("ip", "link", "set", serverLink, "up"),
		s.inside("ip", "link", "set", "lo", "up"),
	} {
		if err := runHost(ctx, argv); err != nil {
			return err
		}
	}
	return nil
}

// inside returns a command line in the server's network namespace.
func (s *Server) inside(argv ...string) []string {
	return append([]string{"nsenter", "--target", fmt.Sprint(s.network.Process.Pid), "--net"}, argv...)
}

func runHost(ctx context.Context, argv []string) error {
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cluster: %s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (s *Server) logFile() string { return filepath.Join(s.c.cfg.Dir, s.ID+".log") }

// Log returns the server's log, of all its runs.
func (s *Server) Log() string {
	b, err := os.ReadFile(s.logFile())
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Start starts the server on its folder, which it may have from before. It does not wait
// until the server answers.
func (s *Server) Start() error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	var peers []string
	for _, p := range s.c.servers {
		peers = append(peers, p.ID+"="+p.IP+":"+peerPort)
	}
	argv := s.inside(append([]string{s.c.cfg.Drover, "coordinator", "-id", s.ID, "-operator", "user/" + userName,
		"-data", s.dataDir(), "-socket", filepath.Join(s.c.cfg.Dir, s.ID+".sock"),
		"-listen", s.IP + ":" + apiPort, "-peer-listen", s.IP + ":" + peerPort, "-servers", strings.Join(peers, ","), "-bootstrap",
		"-tls-ca", s.c.tlsFile("ca.pem"), "-tls-cert", s.c.tlsFile(s.ID + ".pem"), "-tls-key", s.c.tlsFile(s.ID + ".key"),
	}, s.c.cfg.CoordinatorFlags...)...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := startWithSyncs(cmd, &s.syncTakes); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.process, s.ended = cmd, ended
	go func() {
		_ = cmd.Wait() // a killed one ends with an error
		close(ended)
	}()
	return nil
}

func (s *Server) dataDir() string { return filepath.Join(s.c.cfg.Dir, s.ID) }

// diskSize is that of a server's disk. It is not taken before it is used.
const diskSize = "4g"

// mountDisk gives the server's folder a disk of its own.
func (s *Server) mountDisk(ctx context.Context) error {
	if err := os.MkdirAll(s.dataDir(), 0o700); err != nil {
		return err
	}
	err := runHost(ctx, []string{"mount", "-t", "tmpfs", "-o", "mode=700,size=" + diskSize, "drover-" + s.ID, s.dataDir()})
	s.disk = err == nil
	return err
}

// FillDisk has the server's disk be as large as what is on it. A server that cannot write ends.
func (s *Server) FillDisk(ctx context.Context) error {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(s.dataDir(), &fs); err != nil {
		return err
	}
	var err error
	for spare := range uint64(64) { // the server may write meanwhile, and then the disk cannot be as small
		size := (fs.Blocks - fs.Bfree + spare*spare) * uint64(fs.Bsize)
		if err = runHost(ctx, []string{"mount", "-o", fmt.Sprint("remount,size=", size), s.dataDir()}); err == nil {
			return nil
		}
	}
	return err
}

// EmptyDisk ends FillDisk, and starts the server if it has ended. One that could not write may end only now: see Restart.
func (s *Server) EmptyDisk(ctx context.Context) error {
	if err := runHost(ctx, []string{"mount", "-o", "remount,size=" + diskSize, s.dataDir()}); err != nil {
		return err
	}
	_, err := s.Restart()
	return err
}

// Restart starts the server again if it has ended by itself, as its systemd unit does, and reports whether it had.
func (s *Server) Restart() (ended bool, err error) {
	if s.process == nil || !s.hasEnded() {
		return false, nil
	}
	return true, s.Start()
}

// SlowDisk has each sync of the server take a time and wait for those before it; 0 ends that, also for one that waits.
func (s *Server) SlowDisk(each time.Duration) { s.syncTakes.Store(int64(each)) }

// hasEnded reports whether the server was started and does not run any more.
func (s *Server) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// Kill kills the server with SIGKILL and waits for its end.
func (s *Server) Kill() error {
	if err := s.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-s.ended
	s.process = nil
	return nil
}

// Signal sends a signal to the server, such as SIGSTOP and SIGCONT. One that has ended is
// an error: nothing but Kill and Stop ends a server.
func (s *Server) Signal(sig syscall.Signal) error {
	if s.process == nil || s.hasEnded() {
		return fmt.Errorf("cluster: %s does not run:\n%s", s.ID, logTail(s.logFile()))
	}
	return s.process.Process.Signal(sig)
}

// Mute has the server's packets to everybody vanish; it still hears them.
func (s *Server) Mute(ctx context.Context) error {
	return runHost(ctx, s.inside("iptables", "-A", "OUTPUT", "-o", serverLink, "-j", "DROP"))
}

// Deafen has the packets to the server vanish; it still sends its own.
func (s *Server) Deafen(ctx context.Context) error {
	return runHost(ctx, s.inside("iptables", "-A", "INPUT", "-i", serverLink, "-j", "DROP"))
}

// Lose drops packets to the server with a probability.
func (s *Server) Lose(ctx context.Context, probability float64) error {
	return runHost(ctx, s.inside("iptables", "-A", "INPUT", "-i", serverLink, "-m", "statistic", "--mode", "random", "--probability", fmt.Sprint(probability), "-j", "DROP"))
}

// Shun has the server's packets to one address vanish.
func (s *Server) Shun(ctx context.Context, ip string) error {
	return runHost(ctx, s.inside("iptables", "-A", "OUTPUT", "-o", serverLink, "-d", ip, "-j", "DROP"))
}

// Heal ends Mute, Deafen, Lose and Shun.
func (s *Server) Heal(ctx context.Context) error {
	return runHost(ctx, s.inside("iptables", "-F"))
}

// stop ends the server in an orderly way, and its network.
func (s *Server) stop() (err error) {
	s.SlowDisk(0)
	if s.process != nil {
		if !s.hasEnded() {
			err = errors.Join(s.Signal(syscall.SIGCONT), s.Signal(syscall.SIGTERM))
		}
		select {
		case <-s.ended:
		case <-time.After(20 * time.Second):
			err = errors.Join(fmt.Errorf("%s did not end within 20 s of SIGTERM", s.ID), s.Kill())
		}
		s.process = nil
	}
	if s.disk {
		err = errors.Join(err, syscall.Unmount(s.dataDir(), 0))
	}
	if s.network != nil && s.network.Process != nil {
		_ = s.network.Process.Kill() // with it the namespace and the cable end
		_ = s.network.Wait()
	}
	return err
}

// awaitAnswer waits until the cluster answers a command, while check finds nothing wrong.
func (c *Cluster) awaitAnswer(ctx context.Context, check func() error) error {
	return testbed.WaitFor(ctx, time.Minute, "an answer of the coordinator", func(ctx context.Context) error {
		if err := check(); err != nil {
			return err
		}
		r, err := c.Drover(ctx, "status", "-json")
		if err == nil {
			err = r.Err()
		}
		return err
	})
}

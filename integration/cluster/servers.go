package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/testbed"
)

const (
	peerPort   = "7072"
	userName   = "chaos" // certificate of the commands' user, an operator
	serverLink = "eth0"  // a server's end of its cable
)

// Server is one of several coordinators. It is a process of the host side with a network
// namespace, an address and a cable of its own, so that it can be cut off in one direction
// or both, and a disk in memory, which can be full or slow, or lose its power. Its clock is the host's.
type Server struct {
	c         *Cluster
	ID        string
	IP        string
	network   *exec.Cmd    // holds the network namespace
	process   *exec.Cmd    // nil while it does not run
	mounted   []string     // what unmount takes off, the last first
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
		if err := s.makeDisk(ctx); err != nil {
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

// diskDir is where the server's disk is mounted, imageDir the memory that holds its image.
func (s *Server) diskDir() string  { return filepath.Join(s.c.cfg.Dir, s.ID) }
func (s *Server) imageDir() string { return s.diskDir() + ".memory" }
func (s *Server) dataDir() string  { return filepath.Join(s.diskDir(), "data") }
func (s *Server) filler() string   { return filepath.Join(s.diskDir(), "filler") }

// diskSize is that of a server's disk. It is not taken before it is used.
const diskSize = "4g"

// makeDisk gives the server's folder a disk of its own: an ext4 in a file in memory. What the server has written and not synced is in
// the kernel's cache alone, as with any disk.
func (s *Server) makeDisk(ctx context.Context) error {
	if err := os.MkdirAll(s.imageDir(), 0o700); err != nil {
		return err
	}
	if err := runHost(ctx, []string{"mount", "-t", "tmpfs", "-o", "mode=700,size=" + diskSize, "drover-" + s.ID, s.imageDir()}); err != nil {
		return err
	}
	s.mounted = append(s.mounted, s.imageDir())
	image := filepath.Join(s.imageDir(), "image")
	for _, argv := range [][]string{{"truncate", "-s", diskSize, image}, {"mkfs.ext4", "-q", "-m", "0", "-J", "size=16", image}} {
		if err := runHost(ctx, argv); err != nil {
			return err
		}
	}
	if err := s.mountDisk(ctx); err != nil {
		return err
	}
	return os.MkdirAll(s.dataDir(), 0o700)
}

func (s *Server) mountDisk(ctx context.Context) error {
	if err := os.MkdirAll(s.diskDir(), 0o700); err != nil {
		return err
	}
	if err := runHost(ctx, []string{"mount", "-o", "loop,discard", filepath.Join(s.imageDir(), "image"), s.diskDir()}); err != nil {
		return err
	}
	s.mounted = append(s.mounted, s.diskDir())
	return nil
}

// unmount takes off what is mounted, down to n of it. The kernel may still close files of a server that has ended.
func (s *Server) unmount(n int) error {
	for len(s.mounted) > n {
		last := len(s.mounted) - 1
		unmounted := func(context.Context) error { return syscall.Unmount(s.mounted[last], 0) }
		if err := testbed.WaitFor(context.Background(), 20*time.Second, "unmount of "+s.mounted[last], unmounted); err != nil {
			return err
		}
		s.mounted = s.mounted[:last]
	}
	return nil
}

// ext4Shutdown is ext4's request to stop at once; with noLogFlush it writes nothing more, its journal neither.
const (
	ext4Shutdown = 0x8004587d
	noLogFlush   = 2
)

// LosePower kills the server, and takes from its disk what was not synced. Start starts it again.
func (s *Server) LosePower(ctx context.Context) error {
	if err := s.Kill(); err != nil {
		return err
	}
	return s.loseUnsynced(ctx)
}

// loseUnsynced takes from the disk what was not synced, and mounts it again.
func (s *Server) loseUnsynced(ctx context.Context) error {
	dir, err := os.Open(s.diskDir())
	if err != nil {
		return err
	}
	err = unix.IoctlSetPointerInt(int(dir.Fd()), ext4Shutdown, noLogFlush)
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("cluster: cut the power of %s: %w", s.diskDir(), err)
	}
	if err := s.unmount(1); err != nil {
		return err
	}
	return s.mountDisk(ctx)
}

// FillDisk leaves no block of the server's disk free. A server that cannot write ends.
func (s *Server) FillDisk() error {
	f, err := os.OpenFile(s.filler(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var fs syscall.Statfs_t
	if err := syscall.Fstatfs(int(f.Fd()), &fs); err != nil {
		return err
	}
	const spare = 64 // blocks that the file system needs for its own lists, and the server takes meanwhile
	if free := int64(fs.Bavail) - spare; free > 0 {
		if err := syscall.Fallocate(int(f.Fd()), 0, 0, free*fs.Bsize); err != nil {
			return err
		}
		if _, err := f.Seek(0, io.SeekEnd); err != nil {
			return err
		}
	}
	for block := make([]byte, fs.Bsize); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

// EmptyDisk ends FillDisk, and starts the server if it has ended. One that could not write may end only now: see Restart.
func (s *Server) EmptyDisk() error {
	if err := os.Remove(s.filler()); err != nil {
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
	err = errors.Join(err, s.unmount(0))
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

package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/internal/agent"
	"github.com/drover-run/drover/integration/internal/build"
	"github.com/drover-run/drover/integration/internal/qemu"
	"github.com/drover-run/drover/integration/testbed"
)

const (
	machineUpLimit = 4 * time.Minute        // until the agent answers; cold boots of several machines take longest
	identityEvery  = 300 * time.Millisecond // the identity is sent again until the machine is up
)

// machine is one running virtual machine.
type machine struct {
	info  testbed.NodeInfo
	vm    *qemu.Machine
	cmd   *exec.Cmd
	tap   string
	ended chan struct{} // closed when QEMU has ended
}

// startMachine starts machine k and returns at once.
func startMachine(c *Config, info testbed.NodeInfo, k int) (*machine, error) {
	ctx := context.Background()
	m := &machine{info: info, tap: fmt.Sprintf("tap%d", k)}
	if err := runIP(ctx, "tuntap", "add", m.tap, "mode", "tap"); err != nil {
		return nil, err
	}
	if err := runIP(ctx, "link", "set", m.tap, "master", bridge, "up"); err != nil {
		return nil, err
	}
	ms := c.Machines
	m.vm = &qemu.Machine{Name: info.Name, Dir: c.Dir, Kernel: filepath.Join(ms.Debian, build.DebianKernel),
		Initrd: filepath.Join(ms.Boot, build.BootInitrd), Options: build.WarmOption, MemoryMB: ms.Size.MemoryMB, CPUs: ms.Size.CPUs, Tap: m.tap}
	if ms.Saved != "" {
		m.vm.Incoming = filepath.Join(ms.Saved, build.SavedRAM)
		for _, d := range []string{build.SavedRoot, build.SavedData, build.SavedSwap} {
			m.vm.Disks = append(m.vm.Disks, qemu.Disk{Path: filepath.Join(ms.Saved, d), Ephemeral: true})
		}
	} else {
		if err := build.MakeDisks(ctx, c.Dir, info.Name+"."); err != nil {
			return nil, err
		}
		m.vm.Options = ""
		m.vm.Disks = []qemu.Disk{
			{Path: filepath.Join(ms.Debian, build.DebianDisk), Ephemeral: true},
			{Path: filepath.Join(c.Dir, info.Name+"."+build.SavedData)},
			{Path: filepath.Join(c.Dir, info.Name+"."+build.SavedSwap)},
		}
	}
	return m, m.launch()
}

// launch starts QEMU, the first time or after it ended.
func (m *machine) launch() error {
	cmd, err := m.vm.Start()
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	m.cmd, m.ended = cmd, ended
	go func() { // stop waits for it through ended
		cmd.Wait()
		close(ended)
	}()
	return nil
}

// machineTries is how often a machine is started before the test bed fails.
const machineTries = 3

// bringUp waits until the machine is up. A kernel that panics while it is resumed, which happens
// now and then on an emulated CPU, is started again; nothing is lost, since no command has run yet.
func (m *machine) bringUp(ctx context.Context) error {
	for try := 1; ; try++ {
		err := m.awaitUp(ctx)
		state, _ := m.state()
		if err == nil || try == machineTries || ctx.Err() != nil || state != "dead" {
			return err
		}
		fmt.Fprintf(os.Stderr, "%v\ntestbed: %s ended before it was up; starting it again\n", err, m.info.Name)
		if err := m.launch(); err != nil {
			return err
		}
	}
}

// awaitUp sends the machine its identity and waits until its agent answers.
func (m *machine) awaitUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, machineUpLimit)
	defer cancel()
	ictx, stopIdentity := context.WithCancel(ctx)
	sent := make(chan error, 1)
	go func() { sent <- m.sendIdentity(ictx) }()
	err := build.AwaitConsole(ctx, m.info.Console, "UP", machineUpLimit, m.ended)
	stopIdentity()
	err = errors.Join(err, <-sent)
	if err == nil {
		err = m.awaitAgent(ctx)
	}
	if err != nil {
		return fmt.Errorf("testbed: machine %s: %w; QEMU said: %s", m.info.Name, err,
			lastLines(filepath.Join(m.vm.Dir, m.vm.Log()), 5))
	}
	return nil
}

// sendIdentity writes the machine's identity to its serial line until the context ends.
func (m *machine) sendIdentity(ctx context.Context) error {
	socket := filepath.Join(m.vm.Dir, m.vm.Serial())
	var conn net.Conn
	err := testbed.WaitFor(ctx, machineUpLimit, "QEMU's serial line", func(ctx context.Context) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", socket)
		return err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil // awaitUp reports the console
		}
		return err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	tick := time.NewTicker(identityEvery)
	defer tick.Stop()
	for {
		line, err := agent.Identity{Name: m.info.Name, IP: m.info.IP, Gateway: hostIP, Now: time.Now()}.Line()
		if err != nil {
			return err
		}
		if _, err := conn.Write([]byte(line)); err != nil {
			return nil // QEMU has ended or the machine is up; awaitUp finds out which
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// awaitAgent waits for the agent and sets the machine's clock.
func (m *machine) awaitAgent(ctx context.Context) error {
	c := &agent.Client{Name: m.info.Name, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", m.info.Agent)
	}}
	return testbed.WaitFor(ctx, time.Minute, "its agent", c.SetClock)
}

// reset cuts the machine's power and switches it on again. The machine keeps the data written to
// its disks and loses its memory. reset returns when the machine has booted.
func (m *machine) reset(ctx context.Context) error {
	monitor, err := qemu.OpenMonitor(ctx, filepath.Join(m.vm.Dir, m.vm.Monitor()))
	if err != nil {
		return err
	}
	defer monitor.Close()
	for try := 1; ; try++ {
		// The old console output must not be taken for new output. QEMU appends to the file.
		if err := os.Truncate(m.info.Console, 0); err != nil {
			return err
		}
		if err := monitor.Reset(); err != nil {
			return err
		}
		boot, cancel := context.WithTimeout(ctx, bootLimit)
		err := m.awaitUp(boot)
		cancel()
		if err == nil || try == maxBoots || ctx.Err() != nil {
			return errors.Join(err, monitor.EndReset())
		}
	}
}

// An emulated machine sometimes hangs silently while it boots. Otherwise it boots within a minute.
const (
	bootLimit = 2 * time.Minute
	maxBoots  = 3
)

// stop kills the machine like a power cut and waits for its end. It may be called repeatedly.
func (m *machine) stop() {
	m.cmd.Process.Kill()
	<-m.ended
}

func (m *machine) signal(s syscall.Signal) error {
	select {
	case <-m.ended:
		return fmt.Errorf("machine %s is dead", m.info.Name)
	default:
		return m.cmd.Process.Signal(s)
	}
}

// setLink sets the host side of the machine's network cable up or down.
func (m *machine) setLink(ctx context.Context, state string) error {
	return runIP(ctx, "link", "set", m.tap, state)
}

// state returns "running", "paused" or "dead".
func (m *machine) state() (string, error) {
	select {
	case <-m.ended:
		return "dead", nil
	default:
	}
	s, err := processState(m.cmd.Process.Pid)
	if err != nil {
		return "", err
	}
	if s == 'T' {
		return "paused", nil
	}
	return "running", nil
}

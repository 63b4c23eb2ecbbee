// Command agent runs inside a test machine. It reads the machine's name and address from the second
// serial line, sets them, and then serves the host side (package agent). The machine's init starts
// it before the RAM is saved, so a resumed machine needs only that one line.
package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/internal/agent"
)

// listen is the address on which the host side expects the agent.
const listen = ":99"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: agent SERIAL-LINE CONSOLE")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "TESTBED-FAIL", err)
		os.Exit(1)
	}
}

func run(serial, console string) error {
	line, err := os.OpenFile(serial, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if runtime.NumCPU() > 1 {
		if err := holdPerfEvent(); err != nil {
			return err
		}
	}
	announce(console, "READY")
	id, err := agent.ReadIdentity(line) // a saved machine resumes here
	if err != nil {
		return err
	}
	if err := assumeIdentity(id); err != nil {
		return err
	}
	go func() { // the line must be read for the machine's lifetime, or it fills up
		agent.ReadIdentity(line)
	}()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	announce(console, "UP")
	return new(agent.Server).Serve(context.Background(), l)
}

// holdPerfEvent keeps one software performance event open for the machine's lifetime. Without it,
// the kernel patches its own code when the first event opens and when the last one closes, for
// example at each breakpoint of criu. An emulated second processor that executes that code at the
// time panics: in __schedule, in two runs of four.
func holdPerfEvent() error {
	a := unix.PerfEventAttr{Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_DUMMY}
	a.Size = uint32(unsafe.Sizeof(a))
	if _, err := unix.PerfEventOpen(&a, os.Getpid(), -1, -1, unix.PERF_FLAG_FD_CLOEXEC); err != nil {
		return fmt.Errorf("performance event: %w", err)
	}
	return nil
}

// announce sends a word to the host side through the console.
func announce(console, word string) {
	if f, err := os.OpenFile(console, os.O_WRONLY, 0); err == nil {
		fmt.Fprintln(f, "TESTBED-"+word)
		f.Close()
	}
}

// assumeIdentity sets the machine's clock, name and network.
func assumeIdentity(id agent.Identity) error {
	tv := syscall.NsecToTimeval(id.Now.UnixNano())
	if err := syscall.Settimeofday(&tv); err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	if err := syscall.Sethostname([]byte(id.Name)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if err := os.WriteFile("/etc/hostname", []byte(id.Name+"\n"), 0o644); err != nil {
		return err
	}
	hosts := fmt.Sprintf("127.0.0.1 localhost\n%s %s\n", id.IP, id.Name)
	if err := os.WriteFile("/etc/hosts", []byte(hosts), 0o644); err != nil {
		return err
	}
	ip := net.ParseIP(id.IP).To4()
	if ip == nil {
		return fmt.Errorf("%q is not an IPv4 address", id.IP)
	}
	// All machines resume with the same hardware address, so each derives one from its IP.
	batch := strings.Join([]string{
		fmt.Sprintf("link set eth0 address 52:54:%02x:%02x:%02x:%02x", ip[0], ip[1], ip[2], ip[3]),
		"addr add " + id.IP + "/24 dev eth0",
		"link set eth0 up",
		"route add default via " + id.Gateway,
	}, "\n")
	c := exec.Command("ip", "-batch", "-")
	c.Stdin = strings.NewReader(batch + "\n")
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("network: %w: %s", err, out)
	}
	return nil
}

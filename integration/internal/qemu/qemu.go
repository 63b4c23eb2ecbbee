// Package qemu makes the command line of a test machine and talks to QEMU's monitor. A machine is
// the same whether it boots to be saved, boots to be used, or is resumed, because a RAM image can
// be loaded only into an equal machine.
package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// program is the name of QEMU's program.
const program = "qemu-system-x86_64"

// accelerator emulates with one thread per virtual CPU. The translation cache is not saved with the
// RAM.
const accelerator = "tcg,thread=multi,tb-size=512"

// cpuModel has all features that can be emulated, except slow ones. With five levels of page
// tables, each fault walks one more level. With erms, kernel and libraries move memory by "rep
// movsb", which is emulated byte by byte (a fresh page takes 7 times as long, reading a file 4
// times). 256-bit instructions are emulated by calls (sha512 of Go takes 4 times as long, sha256
// 1.5 times). With smap and smep, the emulator has separate address tables, and each copy between
// kernel and programs must switch them (without, a container's life takes an eighth less).
const cpuModel = "max,la57=off,erms=off,avx=off,avx2=off,smap=off,smep=off"

// Machine describes one virtual machine. Paths of sockets are relative to Dir, because they must be
// short.
type Machine struct {
	Name     string // prefix of its file names in Dir
	Dir      string
	Kernel   string
	Initrd   string
	Options  string // appended to the kernel's command line
	MemoryMB int
	CPUs     int
	Disks    []Disk // vda, vdb, ...
	Tap      string // network device on the host side; "": a disconnected network card
	Incoming string // file with a saved RAM image to resume; "" boots
}

// Disk is a raw image. Writes to an Ephemeral disk are discarded with the machine.
type Disk struct {
	Path      string
	Ephemeral bool
}

// KernelOptions returns the kernel command line of all machines on this host.
//
// The guest takes the time from its TSC, as real machines do: programs read it without a system
// call, and a paused machine knows afterwards how long it was paused. (The ACPI timer wraps around
// every 4.7 s, so a machine that was paused longer lost time.) Under load, the guest measures the
// TSC's rate up to six times wrong at boot, and a saved image keeps the error. KernelOptions
// therefore passes the rate, which the kernel corrects by at most one percent, and marks the TSC as
// reliable. On a host whose clock scales, the rate is not known as surely: there the guest takes
// the time from the ACPI timer, which is QEMU's own clock.
//
// A kernel that detects an internal error stops: otherwise a test would wait in vain for a partly
// dead machine. A machine that stops while it is resumed is started again.
//
// Kernel and programs always have the same addresses, because translated code is reused only at the
// address for which it was translated. With random addresses the machine would translate libraries
// and criu again for each process.
func KernelOptions() (string, error) {
	info, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "", err
	}
	_, err = os.Stat("/sys/devices/system/cpu/cpu0/cpufreq")
	scales := err == nil
	khz, err := cpuKHz(string(info)+"\n\n", scales)
	if err != nil {
		return "", err
	}
	clock := "clocksource=tsc tsc=reliable"
	if scales {
		clock = "clocksource=acpi_pm"
	}
	return fmt.Sprintf("console=ttyS0 quiet loglevel=3 panic=-1 oops=panic reboot=t %s tsc_early_khz=%d "+
		"mitigations=off no_timer_check cryptomgr.notests random.trust_cpu=on nokaslr norandmaps audit=0", clock, khz), nil
}

// cpuKHz returns the TSC's rate of the first processor: "cpu MHz" of /proc/cpuinfo, rounded to be
// stable between runs, or the rate in the model's name if the clock scales.
func cpuKHz(info string, scales bool) (int, error) {
	mhz := 0.0
	for _, line := range strings.Split(info, "\n") {
		name, value, _ := strings.Cut(line, ":")
		var err error
		switch strings.TrimSpace(name) {
		case "model name":
			if _, rate, ok := strings.Cut(value, "@ "); ok && scales {
				ghz, gerr := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(rate), "GHz"), 64)
				mhz, err = ghz*1000, gerr
			}
		case "cpu MHz":
			if mhz == 0 {
				mhz, err = strconv.ParseFloat(strings.TrimSpace(value), 64)
			}
		case "":
			if mhz > 0 {
				return int(mhz+0.5) * 1000, nil
			}
		}
		if err != nil {
			return 0, fmt.Errorf("/proc/cpuinfo: %w", err)
		}
	}
	return 0, errors.New("/proc/cpuinfo names no cpu MHz")
}

// Version returns QEMU's version, as part of the key of a saved image.
func Version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, program, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", program, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line + " " + accelerator + " " + cpuModel, nil
}

// Console, Serial, Monitor and Log return names in Dir: the output of the kernel and init, the
// sockets of the second serial line and of the monitor, and the output of QEMU itself.
func (m *Machine) Console() string { return m.Name + ".console" }
func (m *Machine) Serial() string  { return m.Name + ".serial" }
func (m *Machine) Monitor() string { return m.Name + ".monitor" }
func (m *Machine) Log() string     { return m.Name + ".qemu.log" }

// Start starts the machine in its own process group and returns at once.
func (m *Machine) Start() (*exec.Cmd, error) {
	options, err := KernelOptions()
	if err != nil {
		return nil, err
	}
	log, err := os.Create(m.Dir + "/" + m.Log())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if err := os.WriteFile(m.Dir+"/"+m.Console(), nil, 0o644); err != nil { // QEMU appends to it
		return nil, err
	}
	c := exec.Command(program, m.args(options)...)
	c.Dir, c.Stdout, c.Stderr = m.Dir, log, log
	c.Env = append(os.Environ(), "TMPDIR="+m.Dir) // for the writes to ephemeral disks
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("starting a machine: %w", err)
	}
	return c, nil
}

func (m *Machine) args(options string) []string {
	a := []string{"-nodefaults", "-no-user-config", "-machine", "q35", "-cpu", cpuModel, "-accel", accelerator,
		"-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.MemoryMB), "-display", "none", "-no-reboot",
		"-kernel", m.Kernel, "-initrd", m.Initrd, "-append", strings.TrimSpace(options + " " + m.Options),
		"-device", "vmgenid,guid=auto", // otherwise machines of one image share their random numbers
		"-chardev", "file,id=console,append=on,path=" + m.Console(), "-serial", "chardev:console",
		"-chardev", "socket,id=identity,path=" + m.Serial() + ",server=on,wait=off", "-serial", "chardev:identity",
		"-qmp", "unix:" + m.Monitor() + ",server=on,wait=off",
		"-netdev", m.netdev(), "-device", "virtio-net-pci,netdev=net"}
	for i, d := range m.Disks {
		drive := fmt.Sprintf("if=none,format=raw,id=disk%d,file=%s", i, strings.ReplaceAll(d.Path, ",", ",,"))
		if d.Ephemeral {
			drive += ",snapshot=on"
		}
		a = append(a, "-drive", drive+",cache=unsafe", "-device", fmt.Sprintf("virtio-blk-pci,drive=disk%d", i))
	}
	if m.Incoming != "" {
		a = append(a, "-incoming", "exec:cat "+shellQuote(m.Incoming))
	}
	return a
}

func (m *Machine) netdev() string {
	if m.Tap == "" {
		return "hubport,id=net,hubid=0"
	}
	return "tap,id=net,ifname=" + m.Tap + ",script=no,downscript=no,vnet_hdr=off"
}

func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// Monitor is a connection to QEMU's monitor (QMP).
type Monitor struct {
	conn net.Conn
	in   *bufio.Scanner
}

// OpenMonitor connects to the monitor's socket, waiting for it until the context ends.
func OpenMonitor(ctx context.Context, socket string) (*Monitor, error) {
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			m := &Monitor{conn: c, in: bufio.NewScanner(c)}
			if deadline, ok := ctx.Deadline(); ok {
				c.SetDeadline(deadline)
			}
			if _, err := m.do("qmp_capabilities", nil); err != nil {
				c.Close()
				return nil, err
			}
			return m, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("QEMU's monitor: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Close ends the connection.
func (m *Monitor) Close() error { return m.conn.Close() }

// do executes a command and returns its result. Events are dropped.
func (m *Monitor) do(command string, arguments any) (json.RawMessage, error) {
	b, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if arguments == nil {
		b, err = json.Marshal(map[string]any{"execute": command})
	}
	if err != nil {
		return nil, err
	}
	if _, err := m.conn.Write(b); err != nil {
		return nil, fmt.Errorf("QEMU's monitor: %s: %w", command, err)
	}
	for m.in.Scan() {
		var a struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(m.in.Bytes(), &a); err != nil {
			return nil, fmt.Errorf("QEMU's monitor: %s: %w", command, err)
		}
		if a.Error != nil {
			return nil, fmt.Errorf("QEMU's monitor: %s: %s", command, a.Error.Desc)
		}
		if a.Return != nil {
			return a.Return, nil
		}
	}
	return nil, fmt.Errorf("QEMU's monitor: %s: connection lost: %w", command, errors.Join(m.in.Err(), net.ErrClosed))
}

// Reset resets the machine, which then boots. The firmware resets it once more, so until EndReset a
// machine that resets itself, or panics, boots again.
func (m *Monitor) Reset() error {
	if err := m.onReboot("reset"); err != nil {
		return err
	}
	_, err := m.do("system_reset", nil)
	return err
}

// EndReset makes a machine end when it resets itself, as before Reset.
func (m *Monitor) EndReset() error { return m.onReboot("shutdown") }

func (m *Monitor) onReboot(action string) error {
	_, err := m.do("set-action", map[string]any{"reboot": action})
	return err
}

// Save writes the RAM of the running machine to a file and leaves the machine stopped, so that RAM
// and disks are consistent. The image runs as soon as it is loaded.
func (m *Monitor) Save(ctx context.Context, file string) error {
	if _, err := m.do("migrate-set-parameters", map[string]any{"max-bandwidth": 10 << 30}); err != nil {
		return err
	}
	if _, err := m.do("migrate", map[string]any{"uri": "exec:cat > " + shellQuote(file)}); err != nil {
		return err
	}
	for {
		b, err := m.do("query-migrate", nil)
		if err != nil {
			return err
		}
		var s struct {
			Status string `json:"status"`
		}
		if err := json.Unmarshal(b, &s); err != nil {
			return err
		}
		switch s.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("saving the machine's RAM: %s", s.Status)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("saving the machine's RAM: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

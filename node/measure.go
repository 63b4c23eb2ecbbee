package node

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/cgroups/diskbench"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/runtime"
)

// Defaults of a MeasureConfig.
const (
	// DefaultReservePercent of what was measured is kept from tasks: for the
	// system, the daemons, and what is charged to no task.
	DefaultReservePercent = 10
	// DefaultTaskOverhead is what harness and helper of one task use beside the
	// user's program, in bytes; it is added to every memory limit.
	DefaultTaskOverhead = int64(48) << 20
)

// DiskRates is what a disk was measured to do with several streams, in bytes
// per second over all of them; Mixed is reads and writes at once, in sum.
type DiskRates struct{ Read, Write, Mixed int64 }

// MeasureConfig says what cannot be measured, and how to measure the rest.
type MeasureConfig struct {
	Name             string // unique in the cluster; "" = the host's name
	Rack             string // "" = /default-rack
	StorageAddresses []string
	Address          string   // host:port under which others reach the node; "" = that of the listener
	Disks            []string // a folder on each disk that attempts can touch; the first is the data folder
	ReservePercent   int      // 0 = DefaultReservePercent
	TaskOverhead     int64    // bytes; 0 = DefaultTaskOverhead
	Driver           runtime.Driver
	Confined         bool // limits are enforced by the kernel
	Schemes          []string
	// Rates measures the disk of a folder, or gives what was measured before;
	// nil = diskbench, with its result kept in the folder for ratesAge.
	Rates func(ctx context.Context, dir string) (DiskRates, error)
}

// ratesAge is how long the measured rates of a disk are believed, and
// ratesFile where they are kept, in the folder that was measured.
const (
	ratesAge  = 30 * 24 * time.Hour
	ratesFile = "disk-rates.json"
)

func benchRates(ctx context.Context, dir string) (DiskRates, error) {
	r, _, err := diskbench.Cached(ctx, dir, filepath.Join(dir, ratesFile), ratesAge, time.Now(), diskbench.Options{})
	return DiskRates{Read: r.ReadBPS, Write: r.WriteBPS, Mixed: r.MixedBPS}, err
}

// Measure finds out what the machine has and can do. It takes as long as Rates
// does.
func Measure(ctx context.Context, c MeasureConfig) (*droverv1.NodeInfo, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	reserve := int64(or(c.ReservePercent, DefaultReservePercent))
	if reserve < 0 || reserve > 90 {
		return nil, fault.New(fault.Invalid, "reserve of %d%%: want 1 to 90", reserve)
	}
	less := func(v int64) int64 { return v / 100 * (100 - reserve) }
	if len(c.Disks) == 0 || c.Driver == nil {
		return nil, fault.New(fault.Invalid, "a node needs a driver and at least one disk")
	}
	if c.Rates == nil {
		c.Rates = benchRates
	}
	info := &droverv1.NodeInfo{
		Name: or(c.Name, host), Rack: or(c.Rack, "/default-rack"), StorageAddresses: c.StorageAddresses, Address: c.Address,
		Measured: &droverv1.Resources{Cpu: int64(goruntime.NumCPU()) * 1000, Memory: memInfo("MemTotal")},
		Swap:     memInfo("SwapTotal"), CpuFlags: cpuField("flags"), Versions: versions(ctx),
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}, Driver: c.Driver.Name(),
		Emulated: emulated(), Confined: c.Confined, TaskOverheadMemory: or(c.TaskOverhead, DefaultTaskOverhead), Schemes: c.Schemes,
	}
	for _, dir := range c.Disks {
		disk, err := measureDisk(ctx, c, dir, less)
		if err != nil {
			return nil, fmt.Errorf("disk of %s: %w", dir, err)
		}
		info.Disks = append(info.Disks, disk)
	}
	first := info.Disks[0]
	info.Measured.Io = min(first.ReadBps, first.WriteBps, first.MixedBps/2)
	info.Allocatable = &droverv1.Resources{Cpu: less(info.Measured.Cpu), Memory: less(info.Measured.Memory), Io: first.Io}
	return info, nil
}

// measureDisk describes the disk that holds a folder. A task with a demand of d
// may read d and write d at once, so the disk carries min(read, write, mixed/2).
func measureDisk(ctx context.Context, c MeasureConfig, dir string, less func(int64) int64) (*droverv1.Disk, error) {
	rates, err := c.Rates(ctx, dir)
	if err != nil {
		return nil, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return nil, err
	}
	d := &droverv1.Disk{
		Name: filepath.Base(dir), Path: dir, ReadBps: rates.Read, WriteBps: rates.Write, MixedBps: rates.Mixed,
		Io: less(min(rates.Read, rates.Write, rates.Mixed/2)), Space: less(int64(fs.Bavail) * fs.Bsize),
	}
	if device, err := cgroups.DiskOf(dir); err == nil {
		d.Name, d.Device = cgroups.DiskName(device), device.String()
	} else if c.Confined {
		return nil, err // its I/O could not be limited
	}
	method, _, err := quota.Probe(dir)
	if err != nil {
		return nil, err
	}
	d.Quota = method == quota.Kernel
	return d, nil
}

// cpuField gives the words of a field of the first processor in /proc/cpuinfo.
func cpuField(name string) []string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(b)); lines.Scan(); {
		if key, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == name {
			words := strings.Fields(v)
			if name == "flags" {
				slices.Sort(words)
			}
			return words
		}
	}
	return nil
}

// emulated tells whether the processor is one of QEMU's own, which is what its
// emulation without hardware help shows unless told otherwise. Figures of such
// a machine are 10 to 25 times worse than metal.
func emulated() bool {
	model := strings.Join(cpuField("model name"), " ")
	return strings.Contains(model, "QEMU") || strings.Contains(model, "TCG")
}

// versions asks the programs that a node relies on who they are; one that is
// not there is left out.
func versions(ctx context.Context) map[string]string {
	v := map[string]string{"drover": version.Version}
	var uts unix.Utsname
	if unix.Uname(&uts) == nil {
		v["kernel"] = unix.ByteSliceToString(uts.Release[:])
	}
	for _, program := range []string{"containerd", "runc", "criu"} {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		out, err := exec.CommandContext(ctx, program, "--version").Output()
		cancel()
		if err != nil {
			continue
		}
		if n := versionWord(string(out)); n != "" {
			v[program] = n
		}
	}
	return v
}

// versionWord finds the first word that looks like a version.
func versionWord(text string) string {
	for w := range strings.FieldsSeq(text) {
		w = strings.TrimPrefix(w, "v")
		if len(w) > 2 && w[0] >= '0' && w[0] <= '9' && strings.Contains(w, ".") {
			return w
		}
	}
	return ""
}

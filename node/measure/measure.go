// Package measure finds out what a machine has and can hand out: cores and
// memory as the kernel counts them, each disk's rates as measured with several
// streams, swap, CPU flags and versions. Numbers that a user sees were
// measured or read here, never assumed.
package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/cgroups/diskbench"
	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/internal/version"
)

// Options say what to measure and what to keep back.
type Options struct {
	Name string
	Rack string
	Data string // folder of the daemon; its disk is the node's disk
	// Reserve is the part of CPU, memory, disk I/O and space that is kept for
	// the system, 0 to 0.9; 0 = 0.1.
	Reserve float64
	// ReserveMemory is the least memory kept back, in bytes; 0 = 128 MiB.
	ReserveMemory int64
	// Harness and Helper are our own programs in each task, as argv. Each is
	// run once without work to see what memory it takes.
	Harness, Helper []string
	Versions        map[string]string                // of programs that need not be started to ask
	MaxAge          time.Duration                    // of a disk measurement that may be used again; 0 = a week
	Say             func(format string, args ...any) // progress; may be nil
}

const week = 7 * 24 * time.Hour

// slack covers what our programs need beside their own pages: pipe buffers and
// garbage between two collections.
const slack = 8 << 20 // bytes

// emulatedBench is for machines whose disks are files behind an emulated CPU:
// less data, since writing it takes longer than measuring.
var emulatedBench = diskbench.Options{Streams: 2, Span: 700 * time.Millisecond, FileBytes: 16 << 20}

// Host measures this machine. The disk measurement takes about three seconds
// unless a recent one lies in Data.
func Host(ctx context.Context, o Options) (*droverv1.NodeInfo, error) {
	if o.Reserve == 0 {
		o.Reserve = 0.1
	}
	if o.ReserveMemory == 0 {
		o.ReserveMemory = 128 << 20
	}
	if o.MaxAge == 0 {
		o.MaxAge = week
	}
	if o.Say == nil {
		o.Say = func(string, ...any) {}
	}
	var mem unix.Sysinfo_t
	if err := unix.Sysinfo(&mem); err != nil {
		return nil, fmt.Errorf("memory of this machine: %w", err)
	}
	unit := int64(mem.Unit)
	flags, model := cpu("/proc/cpuinfo")
	emulated := strings.Contains(model, "TCG")
	disk, err := disk(ctx, o, emulated)
	if err != nil {
		return nil, err
	}
	overhead, err := overhead(ctx, o)
	if err != nil {
		return nil, err
	}
	cores, total := int64(goruntime.NumCPU())*1000, int64(mem.Totalram)*unit
	return &droverv1.NodeInfo{
		Name: o.Name, Rack: o.Rack,
		Measured:    &droverv1.Resources{Cpu: cores, Memory: total, Io: min(disk.ReadBps, disk.WriteBps, disk.MixedBps/2)},
		Allocatable: &droverv1.Resources{Cpu: keep(cores, o.Reserve), Memory: min(keep(total, o.Reserve), total-o.ReserveMemory), Io: disk.Io},
		Disks:       []*droverv1.Disk{disk}, Swap: int64(mem.Freeswap) * unit,
		CpuFlags: flags, Versions: versions(ctx, o.Versions), Emulated: emulated, TaskOverheadMemory: overhead,
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING},
	}, nil
}

// keep is what is left of an amount after the reserve.
func keep(amount int64, reserve float64) int64 { return amount - int64(float64(amount)*reserve) }

// disk measures the disk under the data folder.
func disk(ctx context.Context, o Options, emulated bool) (*droverv1.Disk, error) {
	if err := os.MkdirAll(o.Data, 0o755); err != nil {
		return nil, err
	}
	dev, err := cgroups.DiskOf(o.Data)
	if err != nil {
		return nil, fmt.Errorf("disk of %s: %w", o.Data, err)
	}
	o.Say("measuring disk %s under %s", cgroups.DiskName(dev), o.Data)
	var bench diskbench.Options
	if emulated {
		bench = emulatedBench
	}
	r, fresh, err := diskbench.Cached(ctx, o.Data, filepath.Join(o.Data, "disk-rates.json"), o.MaxAge, time.Now(), bench)
	if err != nil {
		return nil, fmt.Errorf("rates of the disk under %s: %w", o.Data, err)
	}
	o.Say("disk rates (new: %v): read %d, write %d, mixed %d bytes/s", fresh, r.ReadBPS, r.WriteBPS, r.MixedBPS)
	var fs unix.Statfs_t
	if err := unix.Statfs(o.Data, &fs); err != nil {
		return nil, fmt.Errorf("space under %s: %w", o.Data, err)
	}
	method, _, err := quota.Probe(o.Data)
	if err != nil {
		return nil, err
	}
	return &droverv1.Disk{
		Name: cgroups.DiskName(dev), Device: dev.String(), Path: o.Data,
		ReadBps: r.ReadBPS, WriteBps: r.WriteBPS, MixedBps: r.MixedBPS,
		Io: keep(r.Capacity(), o.Reserve), Space: keep(int64(fs.Bavail)*fs.Bsize, o.Reserve), Quota: method == quota.Kernel,
	}, nil
}

// overhead is the memory that our programs take in a task, in bytes: what
// each had when it was run without work, and the slack. Both wait for their
// orders, the helper on standard input, the harness for the spec, a pipe here.
func overhead(ctx context.Context, o Options) (int64, error) {
	pipe := filepath.Join(o.Data, "measure.pipe")
	if err := os.RemoveAll(pipe); err != nil {
		return 0, err
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		return 0, fmt.Errorf("pipe for measuring: %w", err)
	}
	defer os.Remove(pipe)
	sum := int64(slack)
	for _, argv := range [][]string{append(slices.Clone(o.Harness), pipe), o.Helper} {
		n, err := resident(ctx, argv)
		if err != nil {
			return 0, fmt.Errorf("memory of %s: %w", argv[0], err)
		}
		sum += n
	}
	const whole = 1 << 20
	return (sum + whole - 1) / whole * whole, nil
}

// Bounds on one look at a program.
const (
	lookLimit = 20 * time.Second
	lookEvery = 20 * time.Millisecond
	lookSame  = 5 // equal looks in a row
)

// resident starts a program that waits, and gives the largest memory that it
// had once that stays the same. The figure comes from /proc: what the kernel
// tells of an ended child begins with the memory of the process that started
// it.
func resident(ctx context.Context, argv []string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, lookLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	last, same := int64(0), 0
	for same < lookSame {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
		now, err := highWater(cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
	}
	return last, nil
}

// highWater reads the largest resident memory of a process, in bytes; 0 while
// it has none yet.
func highWater(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "State:"); ok && strings.HasPrefix(strings.TrimSpace(v), "Z") {
			return 0, errors.New("it ended at once")
		}
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, nil
}

// cpu reads the flags and the model's name of the first core.
func cpu(file string) (flags []string, model string) {
	f, err := os.Open(file)
	if err != nil {
		return nil, ""
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		k, v, _ := strings.Cut(s.Text(), ":")
		switch strings.TrimSpace(k) {
		case "model name":
			model = strings.TrimSpace(v)
		case "flags":
			return strings.Fields(v), model
		}
	}
	return nil, model
}

// versions asks the kernel and those programs that are there and not known.
func versions(ctx context.Context, known map[string]string) map[string]string {
	v := map[string]string{"drover": version.Version}
	maps.Copy(v, known)
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		v["kernel"] = unix.ByteSliceToString(u.Release[:])
	}
	for _, p := range []struct {
		name string
		args []string
	}{{"containerd", []string{"--version"}}, {"runc", []string{"--version"}}, {"criu", []string{"--version"}}} {
		if v[p.name] != "" {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		out, err := exec.CommandContext(ctx, p.name, p.args...).Output()
		cancel()
		if err == nil {
			line, _, _ := strings.Cut(string(out), "\n")
			v[p.name] = lastWord(p.name, line)
		}
	}
	return v
}

// lastWord finds the version in the first line of what a program says of
// itself: "runc version 1.1.15", "containerd github.com/… 1.7.24 hash",
// "Version: 4.1.1".
func lastWord(program, line string) string {
	for _, w := range strings.Fields(line) {
		if w = strings.TrimPrefix(w, "v"); w != "" && w[0] >= '0' && w[0] <= '9' {
			return w
		}
	}
	return strings.TrimSpace(strings.TrimPrefix(line, program))
}

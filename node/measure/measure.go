// Package measure determines the resources of a machine: cores and memory as the
// kernel reports them, each disk's bandwidth measured with several streams, swap,
// CPU flags and versions. Numbers shown to users are measured or read, never
// assumed.
package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// Options configure a measurement and the reserve of the system.
type Options struct {
	Name string
	Rack string
	Data string // the daemon's folder; its disk is the node's disk
	// Cgroup is Drover's cgroup below the mount: what tasks in it have in swap is the node's own.
	Cgroup string
	// Reserve is the part of CPU, memory, disk I/O and space reserved for the
	// system, 0 to 0.9; 0 = 0.1.
	Reserve float64
	// reserveMemory is the minimum of reserved memory in bytes; 0 = 128 MiB.
	reserveMemory int64
	// Harness and Helper are Drover's own programs in each task, as argv. Each is
	// run once without work to measure its memory.
	Harness, Helper []string
	Versions        map[string]string                // known versions of programs, which are then not executed
	maxAge          time.Duration                    // maximum age of a reused disk measurement; 0 = a week
	Logf            func(format string, args ...any) // reports progress; may be nil
}

const week = 7 * 24 * time.Hour

// memoryMargin is added to the programs' own pages for pipe buffers and garbage
// between two collections.
const memoryMargin = 8 << 20 // bytes

// emulatedBench is for machines whose disks are files behind an emulated CPU. It writes less data,
// since writing takes longer than measuring, for a shorter time, in which it still moves dozens of
// blocks. Such a disk is memory of the host, and each block takes processor time that other
// emulated machines wait for.
var emulatedBench = diskbench.Options{Streams: 2, Duration: 200 * time.Millisecond, FileBytes: 16 << 20}

// Host measures this machine. The disk measurement takes about three seconds
// unless Data has a recent one.
func Host(ctx context.Context, o Options) (*droverv1.NodeInfo, error) {
	if o.Reserve == 0 {
		o.Reserve = 0.1
	}
	if o.reserveMemory == 0 {
		o.reserveMemory = 128 << 20
	}
	if o.maxAge == 0 {
		o.maxAge = week
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	var mem unix.Sysinfo_t
	if err := unix.Sysinfo(&mem); err != nil {
		return nil, fmt.Errorf("memory of this machine: %w", err)
	}
	unit := int64(mem.Unit)
	flags, model := readCPUInfo("/proc/cpuinfo")
	emulated := strings.Contains(model, "TCG")
	disk, err := measureDisk(ctx, o, emulated)
	if err != nil {
		return nil, err
	}
	overhead, err := taskOverhead(ctx, o)
	if err != nil {
		return nil, err
	}
	swapped, err := tasksSwap(o.Cgroup)
	if err != nil {
		return nil, err
	}
	cores, total := int64(goruntime.NumCPU())*1000, int64(mem.Totalram)*unit
	return &droverv1.NodeInfo{
		Name: o.Name, Rack: o.Rack,
		Measured:    &droverv1.Resources{Cpu: cores, Memory: total, Io: min(disk.ReadBps, disk.WriteBps, disk.MixedBps/2)},
		Allocatable: &droverv1.Resources{Cpu: afterReserve(cores, o.Reserve), Memory: min(afterReserve(total, o.Reserve), total-o.reserveMemory), Io: disk.Io},
		Disks:       []*droverv1.Disk{disk}, Swap: int64(mem.Freeswap)*unit + swapped,
		CpuFlags: flags, Versions: readVersions(ctx, o.Versions), Emulated: emulated, TaskOverheadMemory: overhead,
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING},
	}, nil
}

// afterReserve returns the part of an amount that is not reserved.
func afterReserve(amount int64, reserve float64) int64 {
	return amount - int64(float64(amount)*reserve)
}

// measureDisk measures the disk under the data folder.
func measureDisk(ctx context.Context, o Options, emulated bool) (*droverv1.Disk, error) {
	if err := os.MkdirAll(o.Data, 0o755); err != nil {
		return nil, err
	}
	dev, err := cgroups.DiskOf(o.Data)
	if err != nil {
		return nil, fmt.Errorf("disk of %s: %w", o.Data, err)
	}
	o.Logf("measuring disk %s under %s", cgroups.DiskName(dev), o.Data)
	var bench diskbench.Options
	if emulated {
		bench = emulatedBench
	}
	r, fresh, err := diskbench.Cached(ctx, o.Data, filepath.Join(o.Data, "disk-rates.json"), o.maxAge, time.Now(), bench)
	if err != nil {
		return nil, fmt.Errorf("rates of the disk under %s: %w", o.Data, err)
	}
	o.Logf("disk rates (new: %v): read %d, write %d, mixed %d bytes/s", fresh, r.ReadBPS, r.WriteBPS, r.MixedBPS)
	method, _, err := quota.Probe(o.Data)
	if err != nil {
		return nil, err
	}
	own, err := OwnBytes(ctx, o.Data, method)
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t // afterwards, so that what tasks write meanwhile is counted too little and not twice
	if err := unix.Statfs(o.Data, &st); err != nil {
		return nil, fmt.Errorf("space under %s: %w", o.Data, err)
	}
	return &droverv1.Disk{
		Name: cgroups.DiskName(dev), Device: dev.String(), Path: o.Data,
		ReadBps: r.ReadBPS, WriteBps: r.WriteBPS, MixedBps: r.MixedBPS,
		Io: afterReserve(r.Capacity(), o.Reserve), Space: afterReserve(spaceOf(&st, own), o.Reserve), Quota: method == quota.Kernel,
	}, nil
}

// spaceOf returns the disk space for attempts and their dumps: what is free plus what they occupy
// already, which the scheduler subtracts again.
func spaceOf(st *unix.Statfs_t, own int64) int64 { return int64(st.Bavail)*st.Bsize + own }

// OwnBytes returns the disk space of the attempts and dumps that an earlier daemon left in the
// folder data. O(attempts) with quotas of the kernel, otherwise O(files).
func OwnBytes(ctx context.Context, data string, method quota.Method) (sum int64, err error) {
	for _, of := range []struct {
		folder string
		method quota.Method
	}{{"attempts", method}, {"images", quota.Counting}} {
		dir := filepath.Join(data, of.folder)
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, err
		}
		for _, e := range entries {
			sum += folderBytes(ctx, filepath.Join(dir, e.Name()), of.method)
		}
	}
	return sum, ctx.Err()
}

// folderBytes returns the disk space of a folder, as far as it can be read. For a folder without a
// limit the kernel does not count.
func folderBytes(ctx context.Context, dir string, method quota.Method) int64 {
	use, err := quota.Measure(ctx, dir, method)
	if method == quota.Kernel && (err != nil || use.Bytes == 0) {
		use, _ = quota.Measure(ctx, dir, quota.Counting)
	}
	return use.Bytes
}

// tasksSwap returns how much the tasks below the cgroup base have in swap.
func tasksSwap(base string) (int64, error) {
	if base == "" {
		return 0, nil
	}
	r, err := cgroups.New(cgroups.Config{Base: base})
	if err != nil {
		return 0, err
	}
	return r.TasksSwap()
}

// taskOverhead returns the memory of Drover's programs in a task, in bytes: what each occupies when
// idle, and a margin, rounded up by roundOverhead. Both wait for input: the helper on standard
// input, the harness for its spec, which is a pipe here.
func taskOverhead(ctx context.Context, o Options) (int64, error) {
	pipe := filepath.Join(o.Data, "measure.pipe")
	if err := os.RemoveAll(pipe); err != nil {
		return 0, err
	}
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		return 0, fmt.Errorf("pipe for measuring: %w", err)
	}
	defer os.Remove(pipe)
	sum := int64(memoryMargin)
	for _, argv := range [][]string{append(slices.Clone(o.Harness), pipe), o.Helper} {
		n, err := residentMemory(ctx, argv)
		if err != nil {
			return 0, fmt.Errorf("memory of %s: %w", argv[0], err)
		}
		sum += n
	}
	return roundOverhead(sum), nil
}

// roundOverhead rounds up to 8 MiB. Idle programs of one version differ by one or
// two MiB from start to start; nodes of one kind should give a task the same
// memory.max, so that one which fits on a node fits on the next.
func roundOverhead(bytes int64) int64 {
	const unit = 8 << 20
	return (bytes + unit - 1) / unit * unit
}

// Limits of measuring a program's memory.
const (
	sampleLimit    = 20 * time.Second
	sampleInterval = 20 * time.Millisecond
	stableSamples  = 5 // equal samples in a row
)

// residentMemory starts a program that waits for input, and returns its peak memory
// once that is stable. The value comes from /proc: the kernel's usage of an exited
// child includes the memory of the process that started it.
func residentMemory(ctx context.Context, argv []string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, sampleLimit)
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
	tick := time.NewTicker(sampleInterval)
	defer tick.Stop()
	last, same := int64(0), 0
	for same < stableSamples {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-tick.C:
		}
		now, err := peakResidentMemory(cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		if same++; now != last || now == 0 {
			last, same = now, 0
		}
	}
	return last, nil
}

// peakResidentMemory reads the peak resident memory of a process in bytes; 0 if it
// has none yet.
func peakResidentMemory(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "State:"); ok && strings.HasPrefix(strings.TrimSpace(v), "Z") {
			return 0, errors.New("the program exited at once")
		}
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kb << 10, err
		}
	}
	return 0, nil
}

// readCPUInfo reads flags and model name of the first core.
func readCPUInfo(file string) (flags []string, model string) {
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

// readVersions returns the versions of the kernel and of installed programs that are
// not known.
func readVersions(ctx context.Context, known map[string]string) map[string]string {
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
			v[p.name] = parseVersion(p.name, line)
		}
	}
	return v
}

// parseVersion extracts the version from the first line of a program's version
// output: "runc version 1.1.15", "containerd github.com/… 1.7.24 hash",
// "Version: 4.1.1".
func parseVersion(program, line string) string {
	for _, w := range strings.Fields(line) {
		if w = strings.TrimPrefix(w, "v"); w != "" && w[0] >= '0' && w[0] <= '9' {
			return w
		}
	}
	return strings.TrimSpace(strings.TrimPrefix(line, program))
}

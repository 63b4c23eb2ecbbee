package cgroups

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/drover-run/drover/internal/fault"
)

// Max is the absence of a limit; the kernel writes "max".
const Max int64 = math.MaxInt64

// cpuPeriodUS is the period of cpu.max in microseconds, the kernel's default.
const cpuPeriodUS = 100_000

// minCPUMillis is the smallest CPU limit that the kernel accepts: 1 ms per period.
const minCPUMillis = 10

// Limits are the resources that one attempt may use. Every field but SwapBytes must be above zero;
// Max removes a limit.
type Limits struct {
	CPUMillis   int64       // thousandths of one core
	MemoryBytes int64       // rounded down to whole pages
	SwapBytes   int64       // 0 while running; raised only while the attempt is swapped out
	PIDs        int64       // processes and threads
	Disks       []DiskLimit // sorted by device; a disk that is not listed has no limit
}

// DiskLimit bounds the bytes per second between one attempt and one disk,
// separately for reads and writes.
type DiskLimit struct {
	Device   Device
	ReadBPS  int64
	WriteBPS int64
}

// Device identifies a whole disk by the kernel's numbers.
type Device struct{ Major, Minor uint32 }

// String returns "major:minor".
func (d Device) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// parseDevice parses "major:minor".
func parseDevice(s string) (Device, error) {
	a, b, ok := strings.Cut(s, ":")
	major, err1 := strconv.ParseUint(a, 10, 32)
	minor, err2 := strconv.ParseUint(b, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return Device{}, fault.New(fault.Invalid, "device %q is not major:minor", s)
	}
	return Device{uint32(major), uint32(minor)}, nil
}

func compareDevices(a, b Device) int {
	if a.Major != b.Major {
		return int(int64(a.Major) - int64(b.Major))
	}
	return int(int64(a.Minor) - int64(b.Minor))
}

// Pair is one write of a value to a cgroup file, which must read back equal.
type Pair struct{ File, Value string }

// validate checks that the kernel can hold the limits.
func (l Limits) validate() error {
	switch {
	case l.CPUMillis < minCPUMillis:
		return fault.New(fault.Invalid, "a CPU limit of %d millicores: the kernel's least is %d", l.CPUMillis, minCPUMillis)
	case l.CPUMillis != Max && l.CPUMillis > Max/cpuPeriodUS:
		return fault.New(fault.Invalid, "a CPU limit of %d millicores exceeds any machine: use Max for no limit", l.CPUMillis)
	case l.MemoryBytes < int64(os.Getpagesize()):
		return fault.New(fault.Invalid, "a memory limit of %d bytes is smaller than one page", l.MemoryBytes)
	case l.SwapBytes < 0:
		return fault.New(fault.Invalid, "a swap limit of %d bytes is negative", l.SwapBytes)
	case l.PIDs < 1:
		return fault.New(fault.Invalid, "a limit of %d processes: at least 1 is needed", l.PIDs)
	}
	seen := map[Device]bool{}
	for _, d := range l.Disks {
		switch {
		case seen[d.Device]:
			return fault.New(fault.Invalid, "two limits for disk %s", d.Device)
		case d.ReadBPS < 1 || d.WriteBPS < 1:
			return fault.New(fault.Invalid, "disk %s: limits of %d and %d bytes/s: the kernel's least is 1", d.Device, d.ReadBPS, d.WriteBPS)
		}
		seen[d.Device] = true
	}
	return nil
}

// normalized returns the limits in the form in which they read back from the
// kernel: whole pages, disks sorted, disks without any limit left out.
func (l Limits) normalized() Limits {
	l.MemoryBytes, l.SwapBytes = roundDownToPages(l.MemoryBytes), roundDownToPages(l.SwapBytes)
	disks := slices.Clone(l.Disks)
	slices.SortFunc(disks, func(a, b DiskLimit) int { return compareDevices(a.Device, b.Device) })
	l.Disks = slices.DeleteFunc(disks, func(d DiskLimit) bool { return d.ReadBPS == Max && d.WriteBPS == Max })
	if len(l.Disks) == 0 {
		l.Disks = nil
	}
	return l
}

// Equal reports whether both have the same normalized form.
func (l Limits) Equal(m Limits) bool {
	l, m = l.normalized(), m.normalized()
	return l.CPUMillis == m.CPUMillis && l.MemoryBytes == m.MemoryBytes && l.SwapBytes == m.SwapBytes &&
		l.PIDs == m.PIDs && slices.Equal(l.Disks, m.Disks)
}

// String returns the limits as file=value pairs.
func (l Limits) String() string {
	var s []string
	for _, p := range l.Pairs(nil) {
		s = append(s, p.File+"="+p.Value)
	}
	return strings.Join(s, ", ")
}

// Pairs returns the writes that apply the limits, in order. Devices of had
// without a limit in l are reset to no limit. The kernel takes one line of
// io.max per write, so there is one pair for each disk.
//
// Swap precedes memory: a memory limit below current use pushes pages out
// immediately, and whether it may use swap must be set before.
func (l Limits) Pairs(had []Device) []Pair {
	l = l.normalized()
	quota := "max"
	if l.CPUMillis != Max {
		quota = strconv.FormatInt(l.CPUMillis*cpuPeriodUS/1000, 10)
	}
	pairs := []Pair{
		{"cpu.max", quota + " " + strconv.Itoa(cpuPeriodUS)},
		{"memory.swap.max", formatLimit(l.SwapBytes)},
		{"memory.max", formatLimit(l.MemoryBytes)},
		{"pids.max", formatLimit(l.PIDs)},
	}
	limited := map[Device]bool{}
	for _, d := range l.Disks {
		limited[d.Device] = true
		pairs = append(pairs, Pair{"io.max", d.ioMaxLine()})
	}
	for _, d := range had {
		if !limited[d] {
			pairs = append(pairs, Pair{"io.max", DiskLimit{Device: d, ReadBPS: Max, WriteBPS: Max}.ioMaxLine()})
		}
	}
	return pairs
}

func (d DiskLimit) ioMaxLine() string {
	return fmt.Sprintf("%s rbps=%s wbps=%s", d.Device, formatLimit(d.ReadBPS), formatLimit(d.WriteBPS))
}

func formatLimit(n int64) string {
	if n == Max {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func roundDownToPages(n int64) int64 {
	if n == Max {
		return n
	}
	return n - n%int64(os.Getpagesize())
}

// parseLimits parses limits from cgroup files; read returns the content of one
// of cpu.max, memory.max, memory.swap.max, pids.max, io.max.
func parseLimits(read func(file string) (string, error)) (Limits, error) {
	var l Limits
	text, err := read("cpu.max")
	if err != nil {
		return Limits{}, err
	}
	if l.CPUMillis, err = parseCPU(text); err != nil {
		return Limits{}, err
	}
	for _, f := range []struct {
		file string
		to   *int64
	}{{"memory.max", &l.MemoryBytes}, {"memory.swap.max", &l.SwapBytes}, {"pids.max", &l.PIDs}} {
		if text, err = read(f.file); err != nil {
			return Limits{}, err
		}
		if *f.to, err = parseLimit(text); err != nil {
			return Limits{}, fault.New(fault.Corrupt, "%s: %w", f.file, err)
		}
	}
	if text, err = read("io.max"); err != nil {
		return Limits{}, err
	}
	if l.Disks, err = parseIOMax(text); err != nil {
		return Limits{}, err
	}
	return l.normalized(), nil
}

// parseCPU parses "quota period", both in microseconds, or "max period".
func parseCPU(text string) (int64, error) {
	f := strings.Fields(text)
	if len(f) != 2 {
		return 0, fault.New(fault.Corrupt, "cpu.max %q: want a quota and a period", text)
	}
	quota, err1 := parseLimit(f[0])
	period, err2 := parseLimit(f[1])
	if err1 != nil || err2 != nil || period < 1 || period > 1_000_000 || quota != Max && quota > Max/1000 {
		return 0, fault.New(fault.Corrupt, "cpu.max %q: want a quota and a period of at most 1 s in microseconds", text)
	}
	if quota == Max {
		return Max, nil
	}
	return quota * 1000 / period, nil
}

// parseIOMax parses the lines "major:minor rbps=… wbps=… riops=… wiops=…".
func parseIOMax(text string) ([]DiskLimit, error) {
	var disks []DiskLimit
	for _, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		dev, err := parseDevice(f[0])
		if err != nil {
			return nil, fault.New(fault.Corrupt, "io.max %q: %w", line, err)
		}
		d := DiskLimit{Device: dev, ReadBPS: Max, WriteBPS: Max}
		for _, kv := range f[1:] {
			key, value, _ := strings.Cut(kv, "=")
			n, err := parseLimit(value)
			if err != nil {
				return nil, fault.New(fault.Corrupt, "io.max %q: %w", line, err)
			}
			switch key {
			case "rbps":
				d.ReadBPS = n
			case "wbps":
				d.WriteBPS = n
			default: // riops, wiops: Drover sets none; a newer kernel may add more
			}
		}
		disks = append(disks, d)
	}
	return disks, nil
}

func parseLimit(s string) (int64, error) {
	s = strings.TrimSpace(s)
	if s == "max" {
		return Max, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		return 0, fault.New(fault.Corrupt, "%q is neither a number nor max", s)
	}
	return n, nil
}

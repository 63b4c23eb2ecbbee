package cgroups

import (
	"fmt"
	"slices"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Stats is the usage of an attempt, container and helpers together.
type Stats struct {
	CPU              time.Duration // time used
	Throttled        time.Duration // time stopped by cpu.max
	ThrottledPeriods uint64        // 100 ms periods in which it reached cpu.max
	MemoryBytes      int64         // charged now, page cache included
	PeakBytes        int64         // the most ever charged
	OOMs             uint64        // times that usage reached memory.max, nothing could be reclaimed, and a process was to be killed
	OOMKills         uint64        // processes killed for lack of memory: at memory.max if OOMs is not 0, else because the machine or a higher cgroup lacked memory
	Disks            []DiskStats   // sorted by device
}

// DiskStats is the traffic between an attempt and one disk.
type DiskStats struct {
	Device                Device
	ReadBytes, WriteBytes uint64
}

// Stats reads the counters of the group.
func (g *Group) Stats() (Stats, error) {
	if _, err := g.r.fs.read(g.filePath("cgroup.events")); err != nil {
		return Stats{}, fmt.Errorf("statistics of %s: %w", g.name, g.notFound(err)) // the library reads missing files as zero
	}
	m, err := cgroup2.Load(g.path, cgroup2.WithMountpoint(g.r.mount))
	if err != nil {
		return Stats{}, fmt.Errorf("statistics of %s: %w", g.name, err)
	}
	raw, err := m.StatFiltered(cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatMemoryEvents | cgroup2.StatIO)
	if err != nil {
		return Stats{}, fmt.Errorf("statistics of %s: %w", g.name, g.notFound(err))
	}
	return convertStats(raw), nil
}

// Swap returns the bytes of the attempt's memory that are in swap. It reads one
// file; Stats reads a dozen.
func (g *Group) Swap() (int64, error) {
	n, err := g.readLimit(Whole, "memory.swap.current")
	if err != nil {
		return 0, fmt.Errorf("swap of %s: %w", g.name, err)
	}
	return n, nil
}

func convertStats(m *stats.Metrics) Stats {
	us := func(n uint64) time.Duration { return time.Duration(n) * time.Microsecond }
	s := Stats{
		CPU:              us(m.GetCPU().GetUsageUsec()),
		Throttled:        us(m.GetCPU().GetThrottledUsec()),
		ThrottledPeriods: m.GetCPU().GetNrThrottled(),
		MemoryBytes:      int64(m.GetMemory().GetUsage()),
		PeakBytes:        int64(m.GetMemory().GetMaxUsage()),
		OOMs:             m.GetMemoryEvents().GetOom(),
		OOMKills:         m.GetMemoryEvents().GetOomKill(),
	}
	for _, d := range m.GetIo().GetUsage() {
		s.Disks = append(s.Disks, DiskStats{
			Device:    Device{uint32(d.GetMajor()), uint32(d.GetMinor())},
			ReadBytes: d.GetRbytes(), WriteBytes: d.GetWbytes(),
		})
	}
	slices.SortFunc(s.Disks, func(a, b DiskStats) int { return compareDevices(a.Device, b.Device) })
	return s
}

package cgroups

import (
	"fmt"
	"slices"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
)

// Stats is what an attempt has used, container and helpers together.
type Stats struct {
	CPU              time.Duration // time used
	Throttled        time.Duration // time stopped by cpu.max
	Periods          uint64        // 100 ms periods in which it wanted to run
	ThrottledPeriods uint64        // those of Periods in which it reached cpu.max
	MemoryBytes      int64         // charged now, page cache included
	PeakBytes        int64         // the most ever charged
	AnonBytes        int64         // part of MemoryBytes that only swap can take
	CacheBytes       int64         // part of MemoryBytes that is page cache, which the kernel can drop
	SwapBytes        int64
	OOMKills         uint64 // processes killed at memory.max
	MaxEvents        uint64 // times memory.max was reached
	PIDs             int64
	Disks            []DiskStats   // sorted by device
	CPUStalled       time.Duration // time in which some task waited for CPU (pressure stall information)
	MemoryStalled    time.Duration
	IOStalled        time.Duration
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
	raw, err := m.StatFiltered(cgroup2.StatPids | cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatMemoryEvents | cgroup2.StatIO)
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
		Periods:          m.GetCPU().GetNrPeriods(),
		ThrottledPeriods: m.GetCPU().GetNrThrottled(),
		MemoryBytes:      int64(m.GetMemory().GetUsage()),
		PeakBytes:        int64(m.GetMemory().GetMaxUsage()),
		AnonBytes:        int64(m.GetMemory().GetAnon()),
		CacheBytes:       int64(m.GetMemory().GetFile()),
		SwapBytes:        int64(m.GetMemory().GetSwapUsage()),
		OOMKills:         m.GetMemoryEvents().GetOomKill(),
		MaxEvents:        m.GetMemoryEvents().GetMax(),
		PIDs:             int64(m.GetPids().GetCurrent()),
		CPUStalled:       us(m.GetCPU().GetPSI().GetSome().GetTotal()), MemoryStalled: us(m.GetMemory().GetPSI().GetSome().GetTotal()),
		IOStalled: us(m.GetIo().GetPSI().GetSome().GetTotal()),
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

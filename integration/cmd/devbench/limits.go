package main

import (
	"fmt"
	"os/exec"
	"runtime/debug"
	"time"

	"github.com/drover-run/drover/internal/filesystem"
)

// limit is what the machine can do at most with the bytes of a file, measured beside programs that
// handle as many.
type limit struct {
	name string // as a peer of rates
	note string
	use  func() (resourceUse, error) // the time of all bytes
}

// The buffers of a memory copy are larger than the caches of processors, in quick runs as well, and
// are copied several times, since once takes a moment only.
const (
	copyBuffer = 256 * mib
	copyTimes  = 8
)

// memoryLimit copies as many bytes in memory, on one processor.
func memoryLimit(size int64) limit {
	return limit{"memory copy", fmt.Sprintf("one thread, buffers of %d MiB", copyBuffer/mib), func() (resourceUse, error) {
		from, to := make([]byte, copyBuffer), make([]byte, copyBuffer)
		for i := 0; i < copyBuffer; i += 4096 { // the kernel gives memory when it is written to
			from[i], to[i] = 1, 2
		}
		start := time.Now()
		for range copyTimes {
			copy(to, from)
		}
		took := time.Since(start).Seconds() * float64(size) / (copyTimes * copyBuffer)
		from, to = nil, nil
		debug.FreeOSMemory() // what is measured next has the memory
		return resourceUse{took, took}, nil
	}}
}

// diskLimits write and read a file of a size with dd, in the folder of the data: the second one reads
// the file that the first one wrote, and removes it. They bypass the page cache where the file system
// can. Without dd there are none.
func (b *bench) diskLimits(size int64) []limit {
	if _, err := exec.LookPath("dd"); err != nil {
		return nil
	}
	direct, how := " oflag=direct", "direct"
	if _, err := b.shell("dd if=/dev/zero of=dd.bin bs=1M count=1 oflag=direct 2>/dev/null && rm dd.bin"); err != nil {
		direct, how = "", "through the page cache"
	}
	kind, err := filesystem.Kind(b.dir)
	if err != nil {
		kind = "an unknown file system"
	}
	write := fmt.Sprintf("rm -f dd.bin && dd if=/dev/zero of=dd.bin bs=1M count=%d conv=fsync status=none%s", size/mib, direct)
	read := "dd if=dd.bin of=/dev/null bs=1M status=none"
	if direct != "" {
		read += " iflag=direct"
	}
	return []limit{
		{"dd write", fmt.Sprintf("bs=1M conv=fsync, %s, %s", how, kind), func() (resourceUse, error) { return b.shell(write) }},
		{"dd read", fmt.Sprintf("bs=1M, %s, %s", how, kind), func() (resourceUse, error) { return b.shell(read + " && rm dd.bin") }},
	}
}

// limits returns all limits for a size.
func (b *bench) limits(size int64) []limit {
	return append([]limit{memoryLimit(size)}, b.diskLimits(size)...)
}

// uses returns the measurements of limits.
func uses(limits []limit) (all []func() (resourceUse, error)) {
	for _, l := range limits {
		all = append(all, l.use)
	}
	return all
}

// rateOverLimits returns the rate of the input's bytes, and its ratios to those of the limits, which
// were measured in turn with ours.
func rateOverLimits(what string, size int64, ours []resourceUse, limits []limit, theirs [][]resourceUse) []figure {
	rows := []figure{{what + "input rate", float64(size) / 1e6 / medianBy(ours, wallOf), "MB/s", "input bytes per second of wall time"}}
	for i, l := range limits {
		p := pairResult{theirs[i], ours} // a rate is the inverse of a time
		rows = append(rows, figure{what + "input rate over " + l.name, p.ratio(wallOf), "times", p.ratioSpread(wallOf)})
	}
	return rows
}

// measureMachine measures the limits of the machine by themselves.
func (b *bench) measureMachine() ([]figure, error) {
	size := largeSize / int64(b.divide)
	limits := b.limits(size)
	all, err := b.alternate(uses(limits)...)
	if err != nil {
		return nil, err
	}
	var rows []figure
	for i, l := range limits {
		rows = append(rows, figure{l.name + " of " + mb(size), float64(size) / 1e6 / medianBy(all[i], wallOf), "MB/s", l.note + "; " + rateSpread(size, all[i])})
	}
	return rows, nil
}

// rateSpread states the number of runs behind a median, and the range of their rates.
func rateSpread(size int64, all []resourceUse) string {
	least, most := 0.0, 0.0
	for i, u := range all {
		rate := float64(size) / 1e6 / u.wall
		if i == 0 || rate < least {
			least = rate
		}
		most = max(most, rate)
	}
	return fmt.Sprintf("median of %d, %.0f to %.0f MB/s", len(all), least, most)
}

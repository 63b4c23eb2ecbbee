package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// engineGrace is how long an engine may be unreachable before that is reported as a problem of the
// node. A restart is not a problem, and the coordinator schedules no work on a node with problems.
const engineGrace = time.Minute

// loadAge is how old the reported load may be. The kernel renews the pressures
// every two seconds, and a busy node sends a report every few milliseconds.
const loadAge = 250 * time.Millisecond

// ratesOver is the shortest time between two readings from which rates are computed: the kernel
// counts CPU time in hundredths of a second.
const ratesOver = time.Second

// machineLoad is the machine's load as last read; reportLoop owns it.
type machineLoad struct {
	containers *containerLister // whether the engine answers
	counts     kernelCounts
	data       string // folder on the disk of the attempts

	load   *droverv1.NodeLoad
	disk   string        // its problem, or ""
	readAt time.Duration // monotonic

	before counts // with which the rates began
	cpu    int64  // millicores used
	io     int64  // bytes a second
}

// counts are the kernel's counters since boot.
type counts struct {
	at   time.Duration // monotonic
	busy time.Duration // of all processors
	io   int64         // bytes to and from disks
}

// read returns a copy of the load, at most loadAge old at time now.
func (m *machineLoad) read(now time.Duration) *droverv1.NodeLoad {
	if m.load == nil || now-m.readAt >= loadAge {
		m.readAt = now
		total, available := m.counts.memory()
		m.load = &droverv1.NodeLoad{
			MemoryAvailable: available,
			CpuPressure:     m.counts.pressure("cpu"), IoPressure: m.counts.pressure("io"), MemoryPressure: m.counts.pressure("memory"),
		}
		if total > available {
			m.load.MemoryUsed = total - available
		}
		m.updateRates(now)
		m.load.CpuUsed, m.load.IoUsed = m.cpu, m.io
		m.disk = diskProblem(m.data)
	}
	return proto.CloneOf(m.load)
}

// updateRates computes rates from the counters since the last call.
func (m *machineLoad) updateRates(now time.Duration) {
	since := now - m.before.at
	if m.before.at > 0 && since < ratesOver {
		return
	}
	c := counts{at: now, busy: m.counts.busy(), io: m.counts.diskBytes()}
	if m.before.at > 0 {
		m.cpu = max(0, int64(1000*(c.busy-m.before.busy)/since))
		m.io = max(0, int64(float64(c.io-m.before.io)/since.Seconds()))
	}
	m.before = c
}

// ticksPerS is the unit of /proc/stat, the same on every Linux that Go runs on.
const ticksPerS = 100

// kernelCounts reads the kernel's counters from files below a folder, which is /proc except in
// tests. A file that this kernel does not have, such as pressure files, is looked for only once.
type kernelCounts struct {
	dir     string
	missing map[string]error
}

func newKernelCounts(dir string) kernelCounts {
	return kernelCounts{dir: dir, missing: map[string]error{}}
}

func (k kernelCounts) read(name string) ([]byte, error) {
	if err := k.missing[name]; err != nil {
		return nil, err
	}
	b, err := os.ReadFile(filepath.Join(k.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		k.missing[name] = err
	}
	return b, err
}

// busy returns the CPU time that was not idle, of all processors; 0 if it is not
// known.
func (k kernelCounts) busy() time.Duration {
	b, err := k.read("stat")
	if err != nil {
		return 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	busy := int64(0)
	for i, f := range strings.Fields(line) {
		// user, nice, system, idle, iowait, irq, softirq; then steal, and guest times, which user
		// includes.
		if i == 0 || i == 4 || i == 5 || i > 7 {
			continue
		}
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0
		}
		busy += n
	}
	return time.Duration(busy) * time.Second / ticksPerS
}

// diskBytes returns how much was read from and written to block devices; 0 if it
// is not known.
func (k kernelCounts) diskBytes() (sum int64) {
	b, err := k.read("vmstat")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "pgpgin" || name == "pgpgout" {
			kib, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return 0
			}
			sum += kib << 10
		}
	}
	return sum
}

// current returns the machine's load and problems. It waits for nothing, because a delayed report
// may cost the lease.
func (m *machineLoad) current(now time.Duration) *droverv1.NodeLoad {
	l := m.read(now)
	for _, p := range []string{m.containers.problem(engineGrace), m.disk} {
		if p != "" {
			l.Problems = append(l.Problems, p)
		}
	}
	return l
}

// memory returns the machine's memory and how much of it is available, in bytes; 0 if unknown.
func (k kernelCounts) memory() (total, available int64) {
	b, err := k.read("meminfo")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(b)) {
		name, rest, _ := strings.Cut(line, ":")
		if name != "MemTotal" && name != "MemAvailable" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch {
		case err != nil:
			continue
		case name == "MemTotal":
			total = kib << 10
		default:
			return total, kib << 10 // the later line of the two
		}
	}
	return total, available
}

// pressure returns the share of the last ten seconds, 0 to 1, in which some
// process waited for the resource; 0 without pressure stall information.
func (k kernelCounts) pressure(resource string) float64 {
	b, err := k.read("pressure/" + resource)
	if err != nil {
		return 0
	}
	for field := range strings.FieldsSeq(string(b)) {
		if v, ok := strings.CutPrefix(field, "avg10="); ok {
			percent, err := strconv.ParseFloat(v, 64)
			if err != nil {
				return 0
			}
			return percent / 100 // the first line is "some"
		}
	}
	return 0
}

package node

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// engineGrace is how long an engine may be unreachable before it is reported as
// a problem of the node. A restart is not a problem, and the coordinator
// schedules no work on a node with problems.
const engineGrace = time.Minute

// loadAge is how old the reported load may be. The kernel renews the pressures
// every two seconds, and a busy node sends a report every few milliseconds.
const loadAge = 250 * time.Millisecond

// machineLoad is the machine's load as last read; reportLoop owns it.
type machineLoad struct {
	load   *droverv1.NodeLoad
	readAt time.Duration // monotonic
}

// read returns a copy of the load, which is at most loadAge old at time now.
func (m *machineLoad) read(now time.Duration) *droverv1.NodeLoad {
	if m.load == nil || now-m.readAt >= loadAge {
		m.readAt = now
		m.load = &droverv1.NodeLoad{
			MemoryAvailable: readMemInfo("MemAvailable"),
			CpuPressure:     readPressure("cpu"), IoPressure: readPressure("io"), MemoryPressure: readPressure("memory"),
		}
	}
	return proto.CloneOf(m.load)
}

// currentLoad returns the machine's load and problems.
func (d *daemon) currentLoad(ctx context.Context) *droverv1.NodeLoad {
	if d.containers.problem(0) != "" { // it may be back
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = d.containers.list(ctx) // the error is in problem
		cancel()
	}
	l := d.load.read(d.clock.Monotonic())
	if p := d.containers.problem(engineGrace); p != "" {
		l.Problems = append(l.Problems, p)
	}
	return l
}

// readMemInfo reads one line of /proc/meminfo in bytes; 0 if it is missing.
func readMemInfo(name string) int64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), name+":"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// readPressure returns the share of the last ten seconds, 0 to 1, in which some
// process waited for the resource; 0 without pressure stall information.
func readPressure(resource string) float64 {
	b, err := os.ReadFile("/proc/pressure/" + resource)
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

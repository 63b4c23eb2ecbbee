package node

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// engineGrace is how long an engine may be away before it is a problem of the
// node: a restart is none, and the coordinator keeps work off a node with
// problems.
const engineGrace = time.Minute

// load is how the machine is doing now.
func (d *daemon) load(ctx context.Context) *droverv1.NodeLoad {
	if d.containers.problem(0) != "" { // perhaps it is back
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = d.containers.get(ctx) // its error is what problem gives
		cancel()
	}
	l := &droverv1.NodeLoad{
		MemoryAvailable: memInfo("MemAvailable"),
		CpuPressure:     pressure("cpu"), IoPressure: pressure("io"), MemoryPressure: pressure("memory"),
	}
	if p := d.containers.problem(engineGrace); p != "" {
		l.Problems = append(l.Problems, p)
	}
	return l
}

// memInfo reads one line of /proc/meminfo in bytes; 0 where it is not there.
func memInfo(name string) int64 {
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

// pressure is the share of the last ten seconds, 0 to 1, in which some process
// waited for the resource; 0 on a kernel without pressure stall information.
func pressure(resource string) float64 {
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

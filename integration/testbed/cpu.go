package testbed

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// DataNodeCPU returns the CPU time of the process of DataNode k (from 1) since its start. It looks
// for it in /proc, so it works in the namespaces of the test bed alone.
func (h *HDFS) DataNodeCPU(k int) (time.Duration, error) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	mark := []byte("\x00-Ddrover.testbed.daemon=" + strconv.Itoa(k) + "\x00")
	for _, path := range all {
		if b, err := os.ReadFile(path); err != nil || !bytes.Contains(b, mark) { // processes end meanwhile
			continue
		}
		stat, err := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		if err != nil {
			return 0, err
		}
		return parseCPU(stat)
	}
	return 0, fmt.Errorf("no process of DataNode %d", k)
}

// clockTick is the unit of times in /proc, USER_HZ.
const clockTick = 10 * time.Millisecond

// parseCPU returns the user and system time in a stat file of /proc, of which the name of the
// program, in brackets, may contain anything.
func parseCPU(stat []byte) (time.Duration, error) {
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const user, system = 11, 12 // after the name
	if len(fields) <= system {
		return 0, fmt.Errorf("not a stat file: %.80q", stat)
	}
	u, uerr := strconv.ParseInt(string(fields[user]), 10, 64)
	s, serr := strconv.ParseInt(string(fields[system]), 10, 64)
	return time.Duration(u+s) * clockTick, errors.Join(uerr, serr)
}

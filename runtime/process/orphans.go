package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
)

// recordSuffix ends the name of a record, <StateDir>/<id>.process.
const recordSuffix = ".process"

// processRecord identifies a running process: a PID alone may be reused, a PID with
// its start time is unique.
type processRecord struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // clock ticks since boot, field 22 of /proc/<pid>/stat
	Boot  string `json:"boot"`  // boot_id
}

// writeRecord writes the record of a process; boot is bootID's.
func writeRecord(dir, id, boot string, pid int) error {
	start, err := readStartTime(pid)
	if err != nil {
		return err
	}
	b, err := json.Marshal(processRecord{PID: pid, Start: start, Boot: boot})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, id+recordSuffix), b, 0o600)
}

func removeRecord(dir, id string) { os.Remove(filepath.Join(dir, id+recordSuffix)) }

// killOrphans kills the process groups of all records and removes the records.
func killOrphans(dir string) error {
	names, err := filepath.Glob(filepath.Join(escapeGlob(dir), "*"+recordSuffix))
	if err != nil {
		return err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		var n processRecord
		// A truncated record identifies no process: the crash that truncated it also
		// killed the process, or there is no record to trust.
		if json.Unmarshal(b, &n) == nil && n.PID > 1 && n.Boot == bootID() {
			if start, err := readStartTime(n.PID); err == nil && start == n.Start {
				if err := signalGroup(n.PID, syscall.SIGKILL); err != nil {
					return err
				}
			}
		}
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// readStartTime reads the start time of a process.
func readStartTime(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field is the name in parentheses and may contain anything.
	_, rest, ok := strings.Cut(string(b[max(0, strings.LastIndexByte(string(b), ')')):]), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 20 {
		return "", fault.New(fault.Corrupt, "/proc/%d/stat: %q", pid, b)
	}
	return f[19], nil
}

func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}

func escapeGlob(p string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(p)
}

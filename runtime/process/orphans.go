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

// noteSuffix ends the name of a note, <StateDir>/<id>.process.
const noteSuffix = ".process"

// noted says which process runs: its number may be given to another later, its
// number with the time of its start not.
type noted struct {
	PID   int    `json:"pid"`
	Start string `json:"start"` // in clock ticks since boot, field 22 of /proc/<pid>/stat
	Boot  string `json:"boot"`  // boot_id
}

func note(dir, id string, pid int) error {
	start, err := startOf(pid)
	if err != nil {
		return err
	}
	b, err := json.Marshal(noted{PID: pid, Start: start, Boot: bootID()})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, id+noteSuffix), b, 0o600)
}

func forget(dir, id string) { os.Remove(filepath.Join(dir, id+noteSuffix)) }

// endOrphans kills the process groups of all notes and removes the notes.
func endOrphans(dir string) error {
	names, err := filepath.Glob(filepath.Join(escapeGlob(dir), "*"+noteSuffix))
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
		var n noted
		// A note that was cut by a crash names nobody: its process was killed by
		// the same crash, or has no note we could trust.
		if json.Unmarshal(b, &n) == nil && n.PID > 1 && n.Boot == bootID() {
			if start, err := startOf(n.PID); err == nil && start == n.Start {
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

// startOf reads the time of start of a process.
func startOf(pid int) (string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	// The second field is the name in parentheses and may hold anything.
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

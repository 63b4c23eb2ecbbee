package process

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
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
	b, err := linesum.Marshal(processRecord{PID: pid, Start: start, Boot: boot})
	if err != nil {
		return err
	}
	path := filepath.Join(dir, id+recordSuffix)
	f, err := openPlain(path, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// openPlain opens a file, but does not ask first whether it can be polled, as os.OpenFile does with
// five more calls: short tasks do this often.
func openPlain(path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
		switch {
		case err == nil:
			return os.NewFile(uintptr(fd), path), nil
		case !errors.Is(err, unix.EINTR):
			return nil, &fs.PathError{Op: "open", Path: path, Err: err}
		}
	}
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
		if n, ok := parseRecord(b); ok && n.Boot == bootID() {
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

// parseRecord reads a record. A truncated or damaged one identifies no process: the crash
// that truncated it also killed the process, or there is no record to trust.
func parseRecord(b []byte) (n processRecord, ok bool) {
	err := linesum.Unmarshal(b, &n)
	return n, err == nil && n.PID > 1
}

// readStartTime reads the start time of a process.
func readStartTime(pid int) (string, error) {
	in, err := openPlain("/proc/"+strconv.Itoa(pid)+"/stat", unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer in.Close()
	buf := make([]byte, 4096) // more than the line has; the kernel gives it whole
	n, err := in.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	b := buf[:n]
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

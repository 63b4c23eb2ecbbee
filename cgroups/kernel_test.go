package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/sleep"
)

// fakeKernelFS imitates the kernel's cgroup2 in a folder: a new cgroup gets the files of the
// controllers that its parent enables, io.max has one line per disk, and a populated cgroup cannot
// be removed.
type fakeKernelFS struct {
	kernelFS
	t *testing.T
	// stuckUntilLifted prevents freezing while the parent has a limit in io.max.
	stuckUntilLifted bool
	neverFreezes     bool
	// throttled prevents freezing while the parent has a limit in cpu.max.
	throttled bool
	// readBackAs replaces the value stored for a file, by base name.
	readBackAs map[string]string
	// lacks is a file that the kernel does not have.
	lacks string
	// failNth is the number of the write, from 1, that fails.
	failNth int
	writes  []string // "file=value" of all writes, below the mount
	mount   string
	// reclaimable is the most that one write to memory.reclaim reclaims, in bytes.
	reclaimable int64
}

var errBroken = errors.New("broken by the test")

func newFakeRoot(t *testing.T) (*fakeKernelFS, *Root) {
	t.Helper()
	k := &fakeKernelFS{t: t, mount: t.TempDir(), readBackAs: map[string]string{}}
	k.put(k.mount, "cgroup.controllers", "cpuset cpu io memory hugetlb pids")
	k.put(k.mount, "cgroup.subtree_control", "")
	r, err := newRoot(Config{mount: k.mount}, k)
	if err != nil {
		t.Fatal(err)
	}
	return k, r
}

func (k *fakeKernelFS) put(dir, file, text string) {
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text+"\n"), 0o644); err != nil {
		k.t.Fatal(err)
	}
}

func (k *fakeKernelFS) get(dir, file string) string {
	b, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		k.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func (k *fakeKernelFS) mkdir(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	k.put(path, "cgroup.subtree_control", "")
	k.put(path, "cgroup.events", "populated 0\nfrozen 0")
	k.put(path, "cgroup.freeze", "0")
	k.put(path, "cgroup.kill", "")
	k.put(path, "cgroup.procs", "")
	given := strings.Fields(k.get(filepath.Dir(path), "cgroup.subtree_control"))
	for c, files := range map[string]map[string]string{
		"cpu":    {"cpu.max": "max 100000", "cpu.stat": "usage_usec 1500\nnr_periods 9\nnr_throttled 4\nthrottled_usec 77"},
		"memory": {"memory.max": "max", "memory.swap.max": "max", "memory.oom.group": "0", "memory.current": "0", "memory.swap.current": "0", "memory.peak": "9000", "memory.reclaim": "", "memory.stat": "anon 4096\nfile 8192", "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 2"},
		"io":     {"io.max": "", "io.stat": "254:16 rbytes=10 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n8:0 rbytes=1 wbytes=2 rios=1 wios=1 dbytes=0 dios=0"},
		"pids":   {"pids.max": "max", "pids.current": "5"},
	} {
		if !slices.Contains(given, c) {
			continue
		}
		for f, text := range files {
			if f != k.lacks {
				k.put(path, f, text)
			}
		}
	}
	return nil
}

func (k *fakeKernelFS) write(path, value string) error {
	rel, _ := filepath.Rel(k.mount, path)
	k.writes = append(k.writes, rel+"="+value)
	if k.failNth--; k.failNth == 0 {
		return &fs.PathError{Op: "write", Path: path, Err: errBroken}
	}
	dir, file := filepath.Split(path)
	dir = filepath.Clean(dir)
	if _, err := os.Stat(path); err != nil {
		return err
	}
	if lie, ok := k.readBackAs[file]; ok {
		value = lie
	}
	switch file {
	case "cgroup.subtree_control":
		k.put(dir, file, strings.TrimSpace(k.get(dir, file)+" "+strings.TrimPrefix(value, "+")))
	case "io.max":
		k.put(dir, file, mergeIOMax(k.get(dir, file), value))
	case "cgroup.freeze":
		k.put(dir, file, value)
		k.updateFrozen(dir)
	case "cgroup.procs":
		k.put(dir, file, value)
		for at := dir; at != k.mount; at = filepath.Dir(at) {
			k.put(at, "cgroup.events", "populated 1\nfrozen 0")
		}
	case "cgroup.kill":
		k.depopulate(dir)
	case "memory.reclaim":
		var asked, now int64
		fmt.Sscan(value, &asked)
		fmt.Sscan(k.get(dir, "memory.current"), &now)
		got := min(asked, k.reclaimable, now)
		k.put(dir, "memory.current", fmt.Sprint(now-got))
		if got < asked {
			return &fs.PathError{Op: "write", Path: path, Err: unix.EAGAIN}
		}
	default:
		k.put(dir, file, value)
	}
	return nil
}

// updateFrozen applies cgroup.freeze to cgroup.events, if the cgroup can freeze.
func (k *fakeKernelFS) updateFrozen(dir string) {
	want := k.get(dir, "cgroup.freeze")
	held := k.stuckUntilLifted && k.get(filepath.Dir(dir), "io.max") != ""
	still := strings.Contains(k.get(dir, "cgroup.events"), "frozen 1") // a frozen cgroup does not depend on its next period
	held = held || k.throttled && !still && limited(k.get(filepath.Dir(dir), "cpu.max"))
	if want == "1" && (held || k.neverFreezes) {
		want = "0"
	}
	populated, _, _ := strings.Cut(k.get(dir, "cgroup.events"), "\n")
	k.put(dir, "cgroup.events", populated+"\nfrozen "+want)
}

// limited reports whether a cpu.max can throttle.
func limited(cpuMax string) bool {
	var quota, period int64
	n, _ := fmt.Sscan(cpuMax, &quota, &period)
	return n == 2 && quota < unthrottledCPUs*period
}

// await polls every millisecond of the test's clock.
func (k *fakeKernelFS) await(ctx context.Context, path string, limit time.Duration, ok func(string) (bool, error)) (bool, error) {
	for end := time.Now().Add(limit); ; {
		text, err := k.read(path)
		if err != nil {
			return false, err
		}
		if done, err := ok(text); done || err != nil {
			return done, err
		}
		if time.Now().After(end) || !sleep.For(ctx, time.Millisecond) {
			return false, nil
		}
	}
}

func (k *fakeKernelFS) depopulate(dir string) {
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			k.put(p, "cgroup.events", "populated 0\nfrozen 0")
		}
		return err
	})
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *fakeKernelFS) read(path string) (string, error) {
	if filepath.Base(path) == "cgroup.events" {
		if dir := filepath.Dir(path); strings.HasSuffix(dir, "/container") {
			if _, err := os.Stat(dir); err == nil {
				k.updateFrozen(dir)
			}
		}
	}
	return k.kernelFS.read(path)
}

func (k *fakeKernelFS) rmdir(path string) error {
	if _, err := os.Stat(path); err != nil {
		return nil
	}
	if below, _ := k.childGroups(path); len(below) > 0 || strings.Contains(k.get(path, "cgroup.events"), "populated 1") {
		return &fs.PathError{Op: "rmdir", Path: path, Err: unix.EBUSY}
	}
	return os.RemoveAll(path)
}

func mergeIOMax(old, line string) string {
	dev, rest, _ := strings.Cut(line, " ")
	var lines []string
	for _, l := range strings.Split(old, "\n") {
		if l != "" && !strings.HasPrefix(l, dev+" ") {
			lines = append(lines, l)
		}
	}
	if rest != "rbps=max wbps=max" {
		lines = append(lines, line+" riops=max wiops=max")
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

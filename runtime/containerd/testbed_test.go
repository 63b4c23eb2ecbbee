package containerd

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd/logger"
	"github.com/drover-run/drover/runtime/runtimetest"
)

// The tests of this file and those that use it need root, cgroup v2, containerd and
// a static test binary: DROVER_TEST_CONTAINERD=1, on the test bed.
const testbedEnv = "DROVER_TEST_CONTAINERD"

// verbLimit is generous, since the machines of the test bed are emulated.
const verbLimit = 60 * time.Second

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == logger.Verb {
		os.Exit(logger.Main(os.Args[2:]))
	}
	runtimetest.Main()
	os.Exit(m.Run())
}

// testbed is the shared environment of the tests on the test bed.
type testbed struct {
	cfg    Config
	groups *cgroups.Root
	disk   cgroups.Device
	data   string // folder on the data disk
}

var image struct {
	sync.Once
	digest  string
	archive []byte
	err     error
}

func newTestbed(t *testing.T) *testbed {
	t.Helper()
	if os.Getenv(testbedEnv) == "" {
		t.Skip("not proved here: that the containerd driver does what its test says, with a real containerd; set " + testbedEnv + "=1 on a machine of the test bed")
	}
	groups, err := cgroups.New(cgroups.Config{})
	if err == nil {
		err = groups.Prepare()
	}
	if err != nil {
		t.Fatal(err)
	}
	data := os.Getenv("DROVER_TEST_DATA")
	if data == "" {
		data = "/data"
	}
	disk, err := cgroups.DiskOf(data)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(data, "bed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &testbed{
		cfg:    Config{Namespace: "drover-test", ShimCgroup: groups.System().LeafPath(cgroups.Whole)},
		groups: groups, disk: disk, data: dir,
	}
}

// connect returns a driver with the test image.
func (b *testbed) connect(t *testing.T) *Driver {
	t.Helper()
	d, err := New(b.cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// imported returns the digest of an image with this binary as /bin/prog.
func (b *testbed) imported(t *testing.T, d *Driver) string {
	t.Helper()
	image.Do(func() {
		var self []byte
		if self, image.err = os.ReadFile("/proc/self/exe"); image.err == nil {
			image.digest, image.archive, image.err = runtimetest.Archive(map[string][]byte{"bin/prog": self}, []string{"bin/prog"}, []string{"PATH=/bin", "FROM_IMAGE=yes"})
		}
	})
	if image.err != nil {
		t.Fatal(image.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
	defer cancel()
	if err := d.Import(ctx, image.digest, bytes.NewReader(image.archive)); err != nil {
		t.Fatal(err)
	}
	return image.digest
}

func (b *testbed) limits() cgroups.Limits {
	return cgroups.Limits{CPUMillis: 1000, MemoryBytes: 128 << 20, PIDs: 200, Disks: []cgroups.DiskLimit{{Device: b.disk, ReadBPS: 64 << 20, WriteBPS: 64 << 20}}}
}

// group makes the attempt's cgroup and removes it at the end.
func (b *testbed) group(t *testing.T, id string, l cgroups.Limits) *cgroups.Group {
	t.Helper()
	g, err := b.groups.Create(id, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(cgroups.Whole); err != nil {
			t.Error(err)
		}
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return g
}

// spec runs runtimetest's Program in a container of the test image.
func (b *testbed) spec(t *testing.T, d *Driver, id string, args ...string) runtime.Spec {
	t.Helper()
	s := runtime.Spec{
		ID: id, Image: b.imported(t, d), Args: append([]string{"prog", runtimetest.Marker}, args...),
		UID: 1000, GID: 1000, Log: runtime.Log{Dir: t.TempDir()},
	}
	if runtime.ValidID(id) {
		s.Cgroup = b.group(t, id, b.limits()).LeafPath(cgroups.Container)
	}
	return s
}

// leftovers describes what is left of a container.
func (b *testbed) leftovers(t *testing.T, d *Driver, id string) []string {
	t.Helper()
	var left []string
	ctx, cancel := context.WithTimeout(context.Background(), verbLimit)
	defer cancel()
	if _, err := d.c.SnapshotService(d.cfg.snapshotter).Stat(ctx, id); err == nil {
		left = append(left, "snapshot "+id)
	}
	if c, err := d.c.LoadContainer(ctx, id); err == nil {
		left = append(left, "container "+c.ID())
	}
	for _, p := range []string{
		"/run/containerd/io.containerd.runtime.v2.task/" + d.cfg.Namespace + "/" + id,
		"/run/containerd/runc/" + d.cfg.Namespace + "/" + id,
		filepath.Join(d.cfg.stateDir, id),
	} {
		if _, err := os.Lstat(p); err == nil {
			left = append(left, p)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err == nil {
		for _, l := range strings.Split(string(mounts), "\n") {
			if strings.Contains(l, "/"+id+"/") {
				left = append(left, "mount "+l)
			}
		}
	}
	if g, err := b.groups.Open(id); err == nil { // runc removes its leaf; without a start it stays, empty
		if pids, err := g.Processes(cgroups.Container); err == nil && len(pids) > 0 {
			left = append(left, fmt.Sprintf("processes %v", pids))
		}
	}
	shim := func(args []string) bool { return isShimOf(args, id) }
	for range 50 { // the shim and the logger exit a moment after Delete
		if len(processes(shim)) == 0 {
			break
		}
		sleep.For(ctx, 20*time.Millisecond)
	}
	for _, pid := range processes(shim) {
		left = append(left, fmt.Sprintf("shim %d", pid))
	}
	return left
}

// processes returns the process IDs whose command line matches.
func processes(match func(args []string) bool) []int {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	var pids []int
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil || len(b) == 0 {
			continue
		}
		if match(strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(n)))
			pids = append(pids, pid)
		}
	}
	return pids
}

func isShimOf(args []string, id string) bool {
	return strings.Contains(args[0], "containerd-shim") && strings.Contains(strings.Join(args, " ")+" ", "-id "+id+" ")
}

func isContainerd(args []string) bool { return filepath.Base(args[0]) == "containerd" }

// stopEngine kills containerd, like a crash.
func (b *testbed) stopEngine(t *testing.T) {
	t.Helper()
	for _, pid := range processes(isContainerd) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
}

// startEngine restarts containerd and waits until the driver reaches it.
func (b *testbed) startEngine(t *testing.T, d *Driver) {
	t.Helper()
	log, err := os.OpenFile("/run/containerd.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("containerd")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait() // it keeps running
	ctx, cancel := context.WithTimeout(context.Background(), verbLimit)
	defer cancel()
	for {
		if _, err := d.List(ctx); err == nil {
			return
		}
		if !sleep.For(ctx, 50*time.Millisecond) {
			t.Fatal("containerd did not come back")
		}
	}
}

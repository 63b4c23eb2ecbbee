package node

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/onmachine"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime/containerd"
	"github.com/drover-run/drover/runtime/reuse"
)

func TestOnMachine(t *testing.T) {
	limit := 20 * time.Minute
	if os.Getenv("DROVER_SOAK") != "" {
		limit = 3 * time.Hour
	}
	onmachine.Run(t, "^TestMachine", limit, "DROVER_TEST_NODE=1", "DROVER_SOAK="+os.Getenv("DROVER_SOAK"))
}

// onContainers configures a node with containerd, cgroups, quotas and helper
// processes, on a machine of the test bed.
func onContainers(t *testing.T, b *testNode) {
	t.Helper()
	if os.Getenv("DROVER_TEST_NODE") == "" {
		t.Skip("not proved here: that a node runs, limits and cleans up real containers; TestOnMachine runs this on the test bed")
	}
	dir, err := os.MkdirTemp("/data", "node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	e, err := NewCgroupEnforcer("", []string{dir}, 20<<20, true)
	if err != nil {
		t.Fatal(err)
	}
	d, err := containerd.New(containerd.Config{Namespace: "drover-node-test", ShimCgroup: e.root.System().LeafPath(cgroups.Whole)})
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b.config.Driver, b.config.Enforcer, b.config.Data = d, e, filepath.Join(dir, "data")
	b.config.Harness, b.config.Helper = "", []string{program, "helper"}
	b.config.FilesConfig = fsys.Config{Local: true, LocalBlock: 1 << 20}
	b.config.AllowRoot, b.config.Info.TaskOverheadMemory, b.config.Grace = false, 48<<20, time.Second
	t.Cleanup(func() {
		b.stopDaemon()
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if left, err := e.List(); err != nil || len(left) > 0 {
			t.Errorf("cgroups left: %v %v", left, err)
		}
		if out, err := exec.Command("grep", "-c", dir, "/proc/mounts").Output(); err == nil {
			t.Errorf("%s mounts left below %s", strings.TrimSpace(string(out)), dir)
		}
	})
}

func asTenant(w *droverv1.WantedAttempt) *droverv1.WantedAttempt {
	w.Spec.Uid, w.Spec.Tenant, w.Spec.Disk = 4242, "books", 64<<20
	w.Spec.Demand = &droverv1.Resources{Cpu: 1000, Memory: 64 << 20, Io: 8 << 20}
	return w
}

// A map and a reduce in containers, with helper processes, leave nothing behind.
func TestMachineMapReduce(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	dir := filepath.Dir(n.config.Data)
	s, want := corpus(3000)
	input, out := filepath.Join(dir, "in.txt"), filepath.Join(dir, "out", "0")
	if err := os.WriteFile(input, []byte(s), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(out, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(out, 0o777); err != nil {
		t.Fatal(err)
	}
	var outputs []*droverv1.MapOutput
	tasks := splitMaps(input, int64(len(s)), 2, 1)
	for _, w := range tasks {
		n.put(asTenant(w))
	}
	for _, w := range tasks {
		seen := n.await(t, w, succeeded)
		l := seen.GetLimits()
		if l.GetMemoryMax() != fmt.Sprint(112<<20) || l.GetCpuMax() != "100000 100000" || l.GetMemorySwapMax() != "0" || len(l.GetIoMax()) != 1 || l.GetDiskQuota() != 64<<20 {
			t.Errorf("limits read back: %v", l)
		}
		if u := seen.GetUsage(); u.GetCpuMs() <= 0 || u.GetMemoryPeak() <= 0 {
			t.Errorf("usage: %v", u)
		}
		outputs = append(outputs, outputOf(w, n.address))
	}
	r := asTenant(reduceTask(0, 2, filepath.Join(out, "part"), outputs))
	n.put(r)
	n.await(t, r, succeeded)
	sameCounts(t, readCounts(t, filepath.Join(out, "part")), want)
	n.remove(append(tasks, r)...)
	n.checkNothingLeft()
}

// rootfs makes a task use this machine's own programs as its root.
func rootfs(w *droverv1.WantedAttempt) *droverv1.WantedAttempt {
	w.Spec.Image = &droverv1.ImageRef{Kind: "rootfs", Source: "/"}
	return asTenant(w)
}

func TestMachineLimits(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	task := int32(0)
	for name, c := range map[string]struct {
		command []string
		cause   droverv1.Cause
		message string
	}{
		"over memory": {[]string{"python3", "-c", "b = bytearray(400 << 20); print(len(b))"}, droverv1.Cause_CAUSE_MEMORY, `memory = "64MiB"`},
		"over disk":   {[]string{"sh", "-c", "head -c 100M /dev/zero > /task/big"}, droverv1.Cause_CAUSE_DISK, `disk = "64MiB"`},
		"over files":  {[]string{"sh", "-c", "mkdir /task/d; i=0; while : > /task/d/$i; do i=$((i+1)); done 2>/dev/null; exit 1"}, droverv1.Cause_CAUSE_DISK, "files and folders"},
		"exit code":   {[]string{"sh", "-c", "echo sorry >&2; exit 7"}, droverv1.Cause_CAUSE_EXIT, "exit code 7"},
		"no command":  {[]string{"nosuchprogram"}, droverv1.Cause_CAUSE_SPEC, "nosuchprogram"},
	} {
		t.Run(name, func(t *testing.T) {
			w := rootfs(groupTask(task, c.command...))
			task++
			n.put(w)
			s := n.await(t, w, failed)
			t.Logf("%s: %s", s.GetCause(), s.GetMessage())
			if s.GetCause() != c.cause || !strings.Contains(s.GetMessage(), c.message) {
				t.Errorf("%s %q, want %s %q\n%s", s.GetCause(), s.GetMessage(), c.cause, c.message, s.GetStderrTail())
			}
			if c.cause == droverv1.Cause_CAUSE_EXIT && !strings.Contains(s.GetStderrTail(), "sorry") {
				t.Errorf("standard error's tail: %q", s.GetStderrTail())
			}
			n.remove(w)
			n.await(t, w, gone)
		})
	}
	n.checkNothingLeft()
}

func TestMachineRestart(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	w := rootfs(groupTask(0, "sh", "-c", "while [ ! -e /task/go ]; do sleep 0.1; done; echo done"))
	n.put(w)
	n.await(t, w, running)
	n.stopDaemon()
	if err := os.WriteFile(filepath.Join(n.attemptFolder(w), "task", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.start()
	s := n.await(t, w, succeeded)
	if s.GetLimits().GetMemoryMax() != fmt.Sprint(112<<20) {
		t.Errorf("limits after a restart: %v", s.GetLimits())
	}
	if text, err := n.logs(&droverv1.LogsRequest{Key: w.GetKey()}); text != "done\n" || err != nil {
		t.Errorf("log %q %v", text, err)
	}
	n.remove(w)
	n.await(t, w, gone)
	n.checkNothingLeft()
}

// The pages of a task's files are charged to its helpers leaf, not to the daemon.
func TestMachineFilesAreCharged(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	big := bytes.Repeat([]byte("all work and no play\n"), 400_000) // 8 MiB
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(big))
	n.blobs[digest] = big
	w := rootfs(groupTask(0, "sh", "-c", "wc -c <big; while [ ! -e go ]; do sleep 0.1; done"))
	w.Spec.Files = []*droverv1.FileRef{{Name: "big", Digest: digest, Size: int64(len(big))}}
	n.put(w)
	n.await(t, w, running)
	g, err := n.config.Enforcer.(CgroupEnforcer).root.Open(string(store.IDOf(w.GetKey())))
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", g.LeafPath(cgroups.Helpers), "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	var pages int64
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "file "); ok {
			if pages, err = strconv.ParseInt(strings.TrimSpace(v), 10, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	if pages < int64(len(big)) {
		t.Errorf("%d bytes of page cache are charged to the helpers' leaf, want the file's %d", pages, len(big))
	}
	if err := os.WriteFile(filepath.Join(n.attemptFolder(w), "task", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.await(t, w, succeeded)
	if text, err := n.logs(&droverv1.LogsRequest{Key: w.GetKey()}); strings.TrimSpace(text) != fmt.Sprint(len(big)) || err != nil {
		t.Errorf("log %q %v", text, err)
	}
	n.remove(w)
	n.await(t, w, gone)
	n.checkNothingLeft()
}

// onReused configures a node like onContainers, with containers that are used again. It returns a
// function that opens that driver anew, as a restarted daemon does.
func onReused(t *testing.T, n *testNode) (reopen func()) {
	t.Helper()
	onContainers(t, n)
	engine, ok := n.config.Driver.(*containerd.Driver)
	if !ok {
		t.Fatalf("the driver is a %T", n.config.Driver)
	}
	system := n.config.Enforcer.(CgroupEnforcer).root.System().LeafPath(cgroups.Whole)
	cfg := reuse.Config{Dir: t.TempDir(), Init: []string{n.config.Helper[0]}, Logger: n.config.Helper[0], Mount: "/sys/fs/cgroup", Cgroup: filepath.Join(filepath.Dir(filepath.Dir(system)), "reused")}
	reopen = func() {
		if old, ok := n.config.Driver.(*reuse.Driver); ok {
			if err := old.Close(); err != nil {
				t.Error(err)
			}
		}
		d, err := reuse.New(engine, cfg)
		if err != nil {
			t.Fatal(err)
		}
		n.config.Driver = d
	}
	reopen()
	t.Cleanup(func() {
		n.stopDaemon()
		if err := n.config.Driver.(*reuse.Driver).Close(); err != nil {
			t.Error(err)
		}
	})
	return reopen
}

// Tasks of a stage that allows it run in one container, each with its own limits, counters, folder and
// log; after a restart of the daemon a task that runs is found, and nothing is left of any of it.
func TestMachineUsedAgain(t *testing.T) {
	n := newTestNode(t, nil)
	reopen := onReused(t, n)
	n.config.reuseIdle = 20 * time.Second // longer than an emulated machine takes between two tasks
	n.start()
	// A container is known by its namespace and by when process 1 began: the kernel gives the number of a
	// namespace that is gone to the next one.
	container := func(w *droverv1.WantedAttempt) string {
		text, err := n.logs(&droverv1.LogsRequest{Key: w.GetKey()})
		if f := strings.Fields(text); err != nil || len(f) != 2 || !strings.HasPrefix(f[0], "pid:[") {
			t.Fatalf("log %q %v", text, err)
		}
		return text
	}
	again := func(task int32, script string) *droverv1.WantedAttempt {
		w := rootfs(groupTask(task, "sh", "-c", "readlink /proc/self/ns/pid; cut -d' ' -f22 /proc/1/stat; "+script))
		w.Spec.ContainersUsedAgain = proto.Bool(true)
		return w
	}
	var tasks []*droverv1.WantedAttempt
	for i := range int32(3) {
		// What another task left would end it with an error.
		w := again(i, "set -e; [ ! -e left ]; [ ! -e /tmp/left ]; echo x > left; echo x > /tmp/left")
		w.Spec.Demand.Memory += int64(i) << 20
		n.put(w)
		s := n.await(t, w, succeeded)
		if want := fmt.Sprint(112<<20 + int64(i)<<20); s.GetLimits().GetMemoryMax() != want {
			t.Errorf("task %d: limits read back: %v, want memory.max %s", i, s.GetLimits(), want)
		}
		if u := s.GetUsage(); u.GetCpuMs() <= 0 || u.GetMemoryPeak() <= 0 {
			t.Errorf("task %d: usage %v", i, u)
		}
		tasks = append(tasks, w)
	}
	if a, b, c := container(tasks[0]), container(tasks[1]), container(tasks[2]); a != b || b != c {
		t.Errorf("the tasks of one stage ran in %q, %q and %q", a, b, c)
	}
	over := again(3, `exec python3 -c "b = bytearray(400 << 20); print(len(b))"`)
	n.put(over)
	if s := n.await(t, over, failed); s.GetCause() != droverv1.Cause_CAUSE_MEMORY {
		t.Errorf("a task over its memory: %s %q", s.GetCause(), s.GetMessage())
	}
	last := again(4, "while [ ! -e /task/go ]; do sleep 0.1; done")
	n.put(last)
	n.await(t, last, running)
	n.stopDaemon()
	reopen()
	if err := os.WriteFile(filepath.Join(n.attemptFolder(last), "task", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.config.reuseIdle = time.Second
	n.start()
	n.await(t, last, succeeded)
	t.Logf("containers %q, and %q after a task had failed", container(tasks[0]), container(last))
	if container(last) == container(tasks[0]) {
		t.Error("a container was used again after a task in it had failed")
	}
	n.remove(append(tasks, over, last)...)
	n.checkNothingLeft()
	engine := n.config.Driver.(*reuse.Driver).Engine
	poll(t, "no container at the engine", func() bool {
		all, err := engine.List(t.Context())
		return err == nil && len(all) == 0
	})
}

// Programs that are hard to stop. Each prints a line again and again.
const (
	// Waits for its disk nearly all the time.
	syncsAlways = `while :; do dd if=/dev/zero of=/task/f bs=1M count=1 conv=fsync 2>/dev/null || exit 1; echo synced; done`
	// Uses 100 MiB again and again, and checks them.
	usesAlways = `
block = bytes(range(256)) * 16
b = bytearray(block) * (100 << 8)
while True:
    for i in range(0, len(b), 4096):
        assert b[i + 1:i + 4096] == block[1:], i
        b[i] ^= 1
    print("used", flush=True)`
	// Has a child between vfork and exec for much of the time: it opens files before.
	vforksAlways = `
import os
before = [(os.POSIX_SPAWN_OPEN, 9, "/dev/null", os.O_RDONLY, 0)] * 500
while True:
    _, status = os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=before), 0)
    assert status == 0, status
    print("ran", flush=True)`
)

// Tasks that criu could not stop at some moments are dumped whenever that is asked for, and go on.
func TestMachineDumps(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	tries := 2
	if os.Getenv("DROVER_SOAK") != "" {
		tries = 50
	}
	for task, c := range []struct {
		name     string
		command  []string
		demand   *droverv1.Resources
		swapping bool // its memory comes back from swap at the time
	}{
		{"syncs", []string{"sh", "-c", syncsAlways}, &droverv1.Resources{Cpu: 500, Memory: 64 << 20, Io: 1000_000}, false},
		{"comes back from swap", []string{"python3", "-c", usesAlways}, &droverv1.Resources{Cpu: 1000, Memory: 160 << 20, Io: 8 << 20}, true},
		{"vforks", []string{"python3", "-c", vforksAlways}, &droverv1.Resources{Cpu: 500, Memory: 64 << 20, Io: 8 << 20}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := rootfs(groupTask(int32(task), c.command...))
			w.Spec.Demand = c.demand
			t.Cleanup(func() {
				n.remove(w)
				n.await(t, w, gone)
			})
			n.put(w)
			n.await(t, w, running)
			goesOn := func() {
				t.Helper()
				from := n.countLogLines(w)
				poll(t, "another line of the task", func() bool {
					if s := n.get(w); s.GetPhase() != running {
						t.Fatalf("it is %s: %s %q", s.GetPhase(), s.GetMessage(), s.GetStderrTail())
					}
					return n.countLogLines(w) > from+1
				})
			}
			goesOn()
			for try := 1; try <= tries; try++ {
				if c.swapping {
					n.requestLevel(w, levelSwapped)
					if s := n.awaitLevel(w, levelSwapped); s.GetSwapOccupied() < 95<<20 {
						t.Fatalf("try %d: %d bytes are in swap", try, s.GetSwapOccupied())
					}
					n.requestLevel(w, levelRunning)
					n.awaitLevel(w, levelRunning)
				}
				n.requestLevel(w, levelCheckpointed)
				start, s := time.Now(), n.get(w)
				poll(t, "a dump", func() bool {
					s = n.get(w)
					return s.GetLevel() == levelCheckpointed || s.GetTargetRefused() != 0 || s.GetPhase() != running
				})
				var steps []string
				for _, x := range s.GetLevelSteps() {
					steps = append(steps, fmt.Sprintf("%s %d ms %s", x.GetStep(), x.GetDurationUs()/1000, x.GetError()))
				}
				t.Logf("try %d: %s after %s: %s", try, s.GetLevel(), time.Since(start).Round(time.Millisecond), strings.Join(steps, ", "))
				if s.GetLevel() != levelCheckpointed {
					t.Fatalf("try %d: at %s, %s, refused %s: %q %q", try, s.GetPhase(), s.GetLevel(), s.GetTargetRefused(), s.GetLevelNote(), s.GetMessage())
				}
				n.requestLevel(w, levelRunning)
				n.awaitLevel(w, levelRunning)
				goesOn()
			}
		})
	}
	n.checkNothingLeft()
}

package node

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/node/store"
)

// hostilePrograms use up, or try to reach, what is not theirs. Each ends by itself or at a limit.
var hostilePrograms = map[string]string{
	"processes": `import os, time
n = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(3600)
        n += 1
except OSError:
    print("refused after", n)`,
	"descriptors": `import os
n = 0
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
        n += 1
except OSError:
    print("refused after", n)`,
	"deep folders": `import os
for i in range(10000):
    os.mkdir("d")
    os.chdir("d")`,
	"links and pipes": `import os
for name in ("stdout.log", "stderr.log", "result", "counters"):
    os.symlink("/etc/shadow", name)
os.symlink("/", "root")
os.mkfifo("pipe")
os.mkdir("locked")
open("locked/file", "w")
os.chmod("locked", 0)`,
	"a flood of lines": `import sys
line = "x" * 1000 + "\n"
while True:
    sys.stdout.write(line)`,
	"signals to all": `import os
os.kill(-1, 9)
os.kill(1, 9)`,
	"memory": `b = []
while True:
    b.append(bytearray(1 << 20))`,
	"a full disk": `f = open("big", "wb")
while True:
    f.write(b"x" * (1 << 20))`,
	"threads": `import threading, time
n = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        n += 1
except RuntimeError:
    print("refused after", n)`,
}

// leastKept is the part of its rate that a neighbour keeps at least. On a machine that is emulated it may lose some of it to
// the host's other work, because periods of its quota pass while its processor does not run.
const leastKept = 0.8

// Whatever a task does, its neighbour keeps its rate and runs on without noticing, the daemon goes on, and nothing is left.
func TestMachineHostile(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	const own, others = 300, 500 // thousandths of a processor: the two leave some of the machine's one to the system
	neighbour := rootfs(groupTask(0, "sh", "-c", "while [ ! -e /task/go ]; do :; done; echo well"))
	neighbour.Spec.Demand.Cpu = own
	n.put(neighbour)
	n.await(t, neighbour, running)
	group, err := n.config.Enforcer.(CgroupEnforcer).root.Open(string(store.IDOf(neighbour.GetKey())))
	if err != nil {
		t.Fatal(err)
	}
	rate := func(while func()) float64 { // processors that the neighbour has meanwhile
		before, err := group.Stats()
		began := time.Now()
		if err != nil {
			t.Fatal(err)
		}
		while()
		after, err := group.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return float64(after.CPU-before.CPU) / float64(time.Since(began))
	}
	alone := rate(func() {
		pause, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		<-pause.Done()
	})
	if alone < 0.8*own/1000 { // a neighbour that does nothing would keep all of its rate
		t.Fatalf("the neighbour has %.3f of a processor alone, its limit is %.3f", alone, own/1000.0)
	}
	task := int32(0)
	for name, program := range hostilePrograms {
		t.Run(name, func(t *testing.T) {
			task++
			w := rootfs(groupTask(task, "python3", "-c", program))
			w.Spec.Demand.Cpu, w.Spec.TimeLimitMs = others, (6 * time.Second).Milliseconds()
			var s *droverv1.SeenAttempt
			beside := rate(func() {
				n.put(w)
				poll(t, "an end", func() bool {
					s = n.get(w)
					return s.GetPhase() == droverv1.Phase_PHASE_SUCCEEDED || s.GetPhase() == droverv1.Phase_PHASE_FAILED
				})
			})
			t.Logf("%s: %s %s; the neighbour had %.3f of a processor, alone %.3f", s.GetPhase(), s.GetCause(), s.GetMessage(), beside, alone)
			if s.GetCause() == droverv1.Cause_CAUSE_INFRA {
				t.Error("the node is blamed for it")
			}
			if beside < leastKept*alone {
				t.Errorf("its neighbour had %.3f of a processor beside it, %.3f alone", beside, alone)
			}
			n.remove(w)
			n.await(t, w, gone)
			if s := n.get(neighbour); s.GetPhase() != droverv1.Phase_PHASE_RUNNING {
				t.Errorf("its neighbour: %s %s %s", s.GetPhase(), s.GetCause(), s.GetMessage())
			}
		})
	}
	if err := os.WriteFile(filepath.Join(n.attemptFolder(neighbour), "task", "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	n.await(t, neighbour, succeeded)
	if text, err := n.logs(&droverv1.LogsRequest{Key: neighbour.GetKey()}); text != "well\n" || err != nil {
		t.Errorf("log of the neighbour: %q %v", text, err)
	}
	n.remove(neighbour)
	n.await(t, neighbour, gone)
	n.checkNothingLeft()
}

// What the daemon and its helpers use for all tasks together is bounded too.
func TestMachineSystemIsLimited(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	e := n.config.Enforcer.(CgroupEnforcer)
	got, err := e.root.System().Limits()
	if err != nil {
		t.Fatal(err)
	}
	const reserved, page = 20 << 20, 4096
	if got.CPUMillis != cgroups.Max || got.MemoryBytes != e.systemMemory/page*page || len(got.Disks) != 1 || got.Disks[0].WriteBPS != reserved || got.Disks[0].ReadBPS != reserved {
		t.Errorf("limits of the system's cgroup: %s, want no limit of CPU, memory %d, I/O %d", got, e.systemMemory, reserved)
	}
}

// Work that is charged to no attempt may use each processor that tasks leave, and no more
// than one task while tasks want more than there is.
func TestMachineSystemLeavesTasksTheirShare(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	var busy []*exec.Cmd
	for range goruntime.NumCPU() {
		c := exec.Command("/bin/sh", "-c", "while :; do :; done")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		busy = append(busy, c)
	}
	defer func() {
		for _, c := range busy {
			_ = c.Process.Kill() // it never ends by itself
			_ = c.Wait()
		}
	}()
	system := n.config.Enforcer.(CgroupEnforcer).root.System()
	for _, c := range busy {
		if err := system.AddProcess(cgroups.Whole, c.Process.Pid); err != nil {
			t.Fatal(err)
		}
	}
	cpuTime := func() time.Duration {
		u, err := system.Stats()
		if err != nil {
			t.Fatal(err)
		}
		return u.CPU
	}
	share := func() float64 { // of all processors that system work has for a while
		before, began := cpuTime(), time.Now()
		pause, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		<-pause.Done()
		return float64(cpuTime()-before) / float64(time.Since(began)) / float64(goruntime.NumCPU())
	}
	alone := share()
	w := rootfs(groupTask(0, "sh", "-c", strings.Repeat("(while :; do :; done) & ", goruntime.NumCPU())+"wait"))
	w.Spec.Demand.Cpu = int64(goruntime.NumCPU()) * 1000
	n.put(w)
	n.await(t, w, running)
	beside := share()
	t.Logf("busy system work had %.2f of the processors alone, %.2f beside a busy task", alone, beside)
	if alone < 0.7 || beside > 0.65 {
		t.Errorf("busy system work had %.2f of the processors alone, want nearly all, and %.2f beside a busy task, want half", alone, beside)
	}
	n.remove(w)
	n.await(t, w, gone)
}

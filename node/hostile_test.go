package node

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
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
	"threads": `import threading, time
n = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
        n += 1
except RuntimeError:
    print("refused after", n)`,
}

// Whatever a task does, its neighbour runs on without noticing, the daemon goes on, and nothing is left.
func TestMachineHostile(t *testing.T) {
	n := newTestNode(t, nil)
	onContainers(t, n)
	n.start()
	neighbour := rootfs(groupTask(0, "sh", "-c", "while [ ! -e /task/go ]; do sleep 0.1; done; echo well"))
	n.put(neighbour)
	n.await(t, neighbour, running)
	task := int32(0)
	for name, program := range hostilePrograms {
		t.Run(name, func(t *testing.T) {
			task++
			w := rootfs(groupTask(task, "python3", "-c", program))
			w.Spec.TimeLimitMs = (8 * time.Second).Milliseconds()
			n.put(w)
			var s *droverv1.SeenAttempt
			poll(t, "an end", func() bool {
				s = n.get(w)
				return s.GetPhase() == droverv1.Phase_PHASE_SUCCEEDED || s.GetPhase() == droverv1.Phase_PHASE_FAILED
			})
			t.Logf("%s: %s %s", s.GetPhase(), s.GetCause(), s.GetMessage())
			if s.GetCause() == droverv1.Cause_CAUSE_INFRA {
				t.Error("the node is blamed for it")
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
	if got.CPUMillis != e.systemCPU || got.MemoryBytes != e.systemMemory/page*page || len(got.Disks) != 1 || got.Disks[0].WriteBPS != reserved || got.Disks[0].ReadBPS != reserved {
		t.Errorf("limits of the system's cgroup: %s, want CPU %d, memory %d, I/O %d", got, e.systemCPU, e.systemMemory, reserved)
	}
}

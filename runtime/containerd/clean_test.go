package containerd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/runtime"
)

// fakeMachine returns the locations of a machine in a folder, with the leftovers of
// an interrupted start.
func fakeMachine(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	c := Config{
		Address: "/run/containerd/containerd.sock", Namespace: "drover", stateDir: filepath.Join(dir, "state"),
		engineState: filepath.Join(dir, "run"), proc: filepath.Join(dir, "proc"), cgroupMount: filepath.Join(dir, "cgroup"),
	}
	put(t, filepath.Join(c.proc, "self/mountinfo"), "")
	return c
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestLeftoversOfAStartAreFoundAndRemoved(t *testing.T) {
	c := fakeMachine(t)
	const id = "8.3.0.1.1"
	work := filepath.Join(filepath.Dir(c.engineState), "root", id)
	put(t, filepath.Join(work, "options"), "x")
	put(t, filepath.Join(c.bundle(id), "config.json"), `{"linux":{"cgroupsPath":"/drover/tasks/8.3.0.1.1/container"}}`)
	put(t, filepath.Join(c.bundle(id), "address"), "unix://"+filepath.Join(c.engineState, "s", "other"))
	put(t, filepath.Join(c.engineState, "s", "other"), "")
	put(t, c.socket(id), "")
	put(t, filepath.Join(c.runcState(id), "state.json"), "{}")
	leaf := filepath.Join(c.cgroupMount, "drover/tasks", id, "container")
	put(t, filepath.Join(leaf, "cgroup.procs"), "123\n")
	put(t, filepath.Join(leaf, "cgroup.kill"), "")
	if err := os.Symlink(work, filepath.Join(c.bundle(id), "work")); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(c.bundle("8.3.0.1.10"), "config.json"), "{}") // another container whose name has the same prefix
	all, err := c.leftovers(map[string]runtime.Phase{"8.3.0.1.10": runtime.PhaseRunning})
	if err != nil || len(all) != 1 || all[0].ID != id || all[0].Listed || len(all[0].Parts) != 4 {
		t.Fatalf("found %+v, %v; want four parts of %s", all, err, id)
	}
	for range 2 {
		if err := c.removeLeft(id); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := c.leftOf(id, c.engineProcesses()); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for _, p := range []string{work, filepath.Join(c.engineState, "s", "other")} {
		if _, err := os.Lstat(p); err == nil {
			t.Errorf("%s is left", p)
		}
	}
	if b, err := os.ReadFile(filepath.Join(leaf, "cgroup.kill")); err != nil || string(b) != "1" {
		t.Errorf("the cgroup was not killed: %q, %v", b, err)
	}
	if left, err := c.leftOf("8.3.0.1.10", c.engineProcesses()); err != nil || len(left) != 1 {
		t.Errorf("the neighbour has %v, %v", left, err)
	}
}

func TestProcessesOfAContainerAreToldByTheirCommandLines(t *testing.T) {
	c := fakeMachine(t)
	for pid, line := range map[string]string{
		"10": "/usr/bin/containerd-shim-runc-v2 -namespace drover -id 1.0.0.1.1 -address /run/containerd/containerd.sock",
		"11": "/usr/bin/containerd-shim-runc-v2 -namespace other -id 1.0.0.1.1",
		"12": "runc --root " + c.runcStates() + " --log x create --bundle b --pid-file p 1.0.0.1.1",
		"13": "runc --root " + c.runcStates() + " state 1.0.0.1.1",
		"14": "runc --root /run/containerd/runc/other create 1.0.0.1.1",
		"15": "sh -c containerd-shim-runc-v2 -namespace drover -id 1.0.0.1.1",
		"16": "/usr/bin/containerd-shim-runc-v2 -namespace drover -id 1.0.0.1.11",
		"18": "/usr/bin/crun --root " + c.runcStates() + " --log x create --bundle b --pid-file p 1.0.0.1.1",
		"17": "/usr/bin/containerd-shim-runc-v2 -namespace drover -id ../..",
		"19": "containerd-shim-runc-v2 -namespace drover -id 1.0.0.1.1", // so says a task of another container
	} {
		put(t, filepath.Join(c.proc, pid, "cmdline"), strings.ReplaceAll(line, " ", "\x00")+"\x00")
		uid := os.Geteuid()
		if pid == "19" {
			uid += 1000
		}
		put(t, filepath.Join(c.proc, pid, "status"), fmt.Sprintf("Name:\tx\nUid:\t%d\t%d\t%d\t%d\nGid:\t0\t0\t0\t0\n", uid, uid, uid, uid))
	}
	want := map[int]string{10: "containerd-shim-runc-v2", 12: "runc", 18: "crun"}
	if d := cmp.Diff(want, processesOf("1.0.0.1.1", c.engineProcesses())); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestMountsOfAContainerComeInTheirOrder(t *testing.T) {
	c := fakeMachine(t)
	at := c.bundle("1.0.0.1.1")
	put(t, filepath.Join(c.proc, "self/mountinfo"), strings.Join([]string{
		"30 1 0:40 / " + at + "/rootfs ro - overlay overlay ro",
		`31 30 0:41 / ` + at + `/rootfs/a\040b rw - tmpfs tmpfs rw`,
		"32 1 0:42 / " + c.bundle("1.0.0.1.11") + "/rootfs ro - overlay overlay ro",
	}, "\n")+"\n")
	got, err := c.mountsOf("1.0.0.1.1")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{at + "/rootfs", at + "/rootfs/a b"}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestThawIsOnlyOfFrozenLeaves(t *testing.T) {
	c := fakeMachine(t)
	file := filepath.Join(c.cgroupMount, "drover/tasks/7.1.0.1.1/container/cgroup.freeze")
	put(t, file, "1\n")
	for _, leaf := range []string{"", "/", "/container", "/drover/tasks/other/container"} {
		if thawed, err := c.thaw(leaf); thawed || err != nil {
			t.Errorf("leaf %q: %v, %v", leaf, thawed, err)
		}
	}
	for _, want := range []bool{true, false} {
		if thawed, err := c.thaw("/drover/tasks/7.1.0.1.1/container"); thawed != want || err != nil {
			t.Errorf("%v, %v, want %v", thawed, err, want)
		}
		if b, err := os.ReadFile(file); string(b) != "0" || err != nil {
			t.Errorf("cgroup.freeze is %q, %v", b, err)
		}
	}
}

// A task that cannot be killed stays frozen: it must not go on while it is removed.
func TestFrozenTasksAreKilledBeforeTheyThaw(t *testing.T) {
	c := fakeMachine(t)
	const leaf = "/drover/tasks/7.1.0.1.1/container"
	freeze, kill := filepath.Join(c.cgroupMount, leaf, "cgroup.freeze"), filepath.Join(c.cgroupMount, leaf, "cgroup.kill")
	put(t, freeze, "1")
	put(t, filepath.Join(c.cgroupMount, leaf, "cgroup.procs"), "123\n")
	put(t, filepath.Join(kill, "x"), "") // a folder cannot be written
	if err := c.killCgroup(leaf); err == nil {
		t.Error("no error")
	}
	if b, err := os.ReadFile(freeze); string(b) != "1" || err != nil {
		t.Errorf("not killed, and cgroup.freeze is %q, %v", b, err)
	}
	if err := os.RemoveAll(kill); err != nil {
		t.Fatal(err)
	}
	put(t, kill, "")
	if err := c.killCgroup(leaf); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(freeze); string(b) != "0" || err != nil {
		t.Errorf("killed, and cgroup.freeze is %q, %v", b, err)
	}
}

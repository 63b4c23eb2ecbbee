package cgroupkill

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// startSleep starts a process that lives until it is killed, and returns a function that waits for
// its end and returns the signal.
func startSleep(t *testing.T) (pid int, ended func() syscall.Signal) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd.Process.Pid, func() syscall.Signal {
		_ = cmd.Wait()
		return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
	}
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

// TestKillWithoutCgroupKill imitates a kernel before 5.14.
func TestKillWithoutCgroupKill(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a")
	top, topEnded := startSleep(t)
	below, belowEnded := startSleep(t)
	put(t, filepath.Join(dir, "cgroup.procs"), "0\n"+strconv.Itoa(top)+"\n") // 0: of another PID namespace
	put(t, filepath.Join(dir, "leaf", "cgroup.procs"), strconv.Itoa(below)+"\n")
	if err := Kill(dir); err != nil {
		t.Fatal(err)
	}
	for what, ended := range map[string]func() syscall.Signal{"a process of the cgroup": topEnded, "one of a cgroup below": belowEnded} {
		if s := ended(); s != syscall.SIGKILL {
			t.Errorf("%s ended by %v", what, s)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "cgroup.kill")); err == nil {
		t.Error("cgroup.kill was made, which a kernel without it refuses")
	}
}

func TestKillByTheKernel(t *testing.T) {
	dir := t.TempDir()
	pid, _ := startSleep(t)
	put(t, filepath.Join(dir, "cgroup.kill"), "")
	put(t, filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid)+"\n")
	if err := Kill(dir); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "cgroup.kill")); err != nil || string(b) != "1" {
		t.Errorf("cgroup.kill has %q, %v", b, err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Errorf("the process was signalled beside the kernel: %v", err)
	}
	if err := Kill(filepath.Join(dir, "none")); err != nil {
		t.Errorf("no such cgroup: %v", err)
	}
}

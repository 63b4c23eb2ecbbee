package harness

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
)

// Orphans are reaped even if they lead a process group or a session, and the reaper does not take
// the exit codes of the harness's own children.
func TestOrphansAreReaped(t *testing.T) {
	cmd := exec.Command(os.Args[0]) // a separate process, which inherits only the orphans and no children of other tests
	cmd.Env = append(os.Environ(), "DROVER_TEST_REAP=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// inheritOrphans starts programs that leave orphans behind, as the harness in a container does. It
// returns an exit code.
func inheritOrphans() int {
	const setChildSubreaper = 36 // of prctl
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); e != 0 {
		fmt.Println("prctl:", e)
		return 1
	}
	s := newSpawner()
	defer s.close()
	ctx, cancel := context.WithCancel(context.Background())
	var reaper sync.WaitGroup
	reaper.Go(func() { reapOrphans(ctx, s) })
	defer reaper.Wait()
	defer cancel()
	for range 20 {
		cmd := exec.Command("/bin/sh", "-c", "for i in 1 2 3 4 5; do (setsid true &); (true &); done; exit 7")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := s.startProcess(cmd); err != nil {
			fmt.Println(err)
			return 1
		}
		err := pollUntil(func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
			return err != nil || parseStat(stat).state == 'Z'
		})
		if err != nil {
			fmt.Println("the program does not end:", err)
			return 1
		}
		s.withoutStart(reapOnce) // before the program is waited for
		if _ = s.wait(cmd); cmd.ProcessState.ExitCode() != 7 {
			fmt.Println("the program ended with", cmd.ProcessState)
			return 1
		}
	}
	if err := pollUntil(func() bool { return zombies() == 0 }); err != nil {
		fmt.Println(zombies(), "orphans are left:", err)
		return 1
	}
	return 0
}

// zombies counts the children of this process that have ended and are not reaped.
func zombies() (n int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		panic(err) // of the pattern
	}
	for _, path := range stats {
		if stat, err := os.ReadFile(path); err == nil {
			if z := parseStat(stat); z.state == 'Z' && z.parent == os.Getpid() {
				n++
			}
		}
	}
	return n
}

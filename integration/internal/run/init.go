package run

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// initMain is process 1 of the namespaces: it mounts /proc, starts the inner process and reaps
// orphans. When the inner process ends, initMain ends and thereby everything else in the namespace.
func initMain() int {
	fail := func(what string, err error) int {
		fmt.Fprintf(os.Stderr, "testbed: %s: %v\n", what, err)
		return exitTestbedFailed
	}
	outside, err := os.Readlink("/proc/self") // while it still is the outer /proc
	if err == nil {
		err = os.Setenv(envPID, outside)
	}
	if err != nil {
		return fail("own process id", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fail("private mounts", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC, ""); err != nil {
		return fail("mounting /proc", err)
	}
	self, err := os.Executable()
	if err != nil {
		return fail("own executable", err)
	}
	if err := os.Setenv(envStage, "inner"); err != nil {
		return fail("environment", err)
	}
	// os.StartProcess and wait4 instead of os/exec: the loop below reaps every child, and os/exec
	// would miss its own.
	inner, err := os.StartProcess(self, []string{self}, &os.ProcAttr{
		Env: os.Environ(), Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
	})
	if err != nil {
		return fail("starting the inner process", err)
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	pid := inner.Pid
	go func() { // ends with the process
		for s := range signals {
			if s != syscall.SIGINT { // a terminal sends SIGINT to all its processes
				syscall.Kill(pid, syscall.SIGTERM)
			}
		}
	}()
	return reapUntil(pid)
}

func reapUntil(pid int) int {
	for {
		var status syscall.WaitStatus
		got, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			fmt.Fprintf(os.Stderr, "testbed: waiting for children: %v\n", err)
			return exitTestbedFailed
		case got != pid:
		case status.Signaled():
			return 128 + int(status.Signal())
		case status.Exited():
			return status.ExitStatus()
		}
	}
}

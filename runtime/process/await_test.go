package process

import (
	"os/exec"
	"testing"
)

// Both ways return after the end of the process, not before, and leave it to be reaped.
func TestAwaitExit(t *testing.T) {
	for name, await := range map[string]func(int){
		"poll": func(pid int) {
			if !awaitByPoll(pid) {
				t.Skip("not proved here: waiting by pidfd, which needs Linux 5.10")
			}
		},
		"wait": awaitByWait,
		"any":  awaitExit,
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", "read -r line; exit 7")
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			told := make(chan struct{})
			go func() {
				close(told)
				in.Close() // the process ends after this
			}()
			await(cmd.Process.Pid)
			select {
			case <-told:
			default:
				t.Error("it returned while the process ran")
			}
			_ = cmd.Wait() // its error is the exit code
			if code := cmd.ProcessState.ExitCode(); code != 7 {
				t.Errorf("exit code %d, want 7: was the process reaped before?", code)
			}
		})
	}
}

// The start time of a process is what a second reading of it says, and a process that does not exist has none.
func TestStartTime(t *testing.T) {
	self, err := readStartTime(1)
	if again, err2 := readStartTime(1); err != nil || err2 != nil || self == "" || self != again {
		t.Errorf("read %q, %v and %q, %v", self, err, again, err2)
	}
	if got, err := readStartTime(1 << 30); err == nil {
		t.Errorf("a process that does not exist started at %q", got)
	}
}

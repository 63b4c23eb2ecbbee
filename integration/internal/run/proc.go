package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// processState returns the letter of a process's state in /proc: R, S, D, T (stopped), Z.
func processState(pid int) (byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseState(b)
}

// parseState returns the state in a stat file: the letter after the last bracket of the program's
// name, which may contain anything.
func parseState(stat []byte) (byte, error) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return 0, fmt.Errorf("not a stat file: %.80q", stat)
	}
	return stat[i+2], nil
}

// stoppedLimit limits the time until a process has stopped after SIGSTOP.
const stoppedLimit = 5 * time.Second

// awaitStopped waits until every thread of a process has stopped; SIGSTOP returns before that.
func awaitStopped(ctx context.Context, pid int) error {
	return testbed.WaitFor(ctx, stoppedLimit, fmt.Sprintf("process %d to stop", pid), func(context.Context) error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			return err
		}
		for _, t := range threads {
			b, err := os.ReadFile(t)
			if errors.Is(err, os.ErrNotExist) {
				continue // that thread ended
			}
			if err != nil {
				return err
			}
			if s, err := parseState(b); err != nil || s != 'T' {
				return fmt.Errorf("%s is in state %q (%v)", t, s, err)
			}
		}
		return nil
	})
}

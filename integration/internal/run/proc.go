package run

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/drover-run/drover/integration/bed"
)

// processState returns the letter of a process's state in /proc: R, S, D, T (stopped), Z.
func processState(pid int) (byte, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return parseState(b)
}

// parseState finds the state in a stat file: the letter behind the last bracket of the program's name, which may
// itself hold anything.
func parseState(stat []byte) (byte, error) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 || i+2 >= len(stat) {
		return 0, fmt.Errorf("not a stat file: %.80q", stat)
	}
	return stat[i+2], nil
}

// stillLimit is how long a process may take to stand still after SIGSTOP.
const stillLimit = 5 * time.Second

// awaitStopped waits until every thread of a process stands still: SIGSTOP
// itself returns before that.
func awaitStopped(ctx context.Context, pid int) error {
	return bed.WaitFor(ctx, stillLimit, fmt.Sprintf("process %d to stand still", pid), func(context.Context) error {
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

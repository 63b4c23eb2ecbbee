package harness

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// reapOrphans waits for processes that the harness inherited because their parent
// ended, so that they do not use up the pids limit of the container. It leaves
// the harness's own children to the goroutines that wait for them.
func reapOrphans(ctx context.Context, own *spawner) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ch:
			own.withoutStart(reapOnce)
		}
	}
}

// reapOnce waits for each child that has ended and is not the harness's own.
func reapOnce(isOwn func(pid int) bool) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		if z := parseStat(stat); z.state == 'Z' && z.parent == os.Getpid() && !isOwn(pid) {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

type procStat struct {
	state  byte
	parent int
}

// parseStat reads state and parent from /proc/PID/stat. The name before them is
// in parentheses and may contain any character.
func parseStat(b []byte) procStat {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 2 {
		return procStat{}
	}
	parent, _ := strconv.Atoi(string(f[1]))
	return procStat{f[0][0], parent}
}

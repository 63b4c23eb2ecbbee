package harness

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

// reapOrphans waits for processes that became ours because their parent
// ended, so that they do not fill the pids limit of the container. Our own
// children, which lead their process groups, are left to those who wait for
// them.
func reapOrphans(ctx context.Context) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			return
		case <-ch:
			reapOnce()
		}
	}
}

func reapOnce() {
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
		if z := parseStat(stat); z.state == 'Z' && z.parent == os.Getpid() && z.group != pid {
			syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
		}
	}
}

type procStat struct {
	state         byte
	parent, group int
}

// parseStat reads the state, parent and process group of /proc/PID/stat; the
// name before them is in parentheses and may hold anything.
func parseStat(b []byte) procStat {
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(f) < 3 {
		return procStat{}
	}
	parent, _ := strconv.Atoi(string(f[1]))
	group, _ := strconv.Atoi(string(f[2]))
	return procStat{f[0][0], parent, group}
}

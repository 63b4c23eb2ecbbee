package run

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/internal/control"
)

// hdfsCallLimit limits one command to the HDFS daemons; loading a large file takes longest.
const hdfsCallLimit = 5 * time.Minute

// handle handles one request from the control socket.
func (b *inner) handle(ctx context.Context, r control.Request) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, hdfsCallLimit)
	defer cancel()
	switch r.Op {
	case control.Stop:
		b.stopOnce.Do(func() { close(b.stopped) })
		return "", nil
	case control.StopDataNode, control.StartDataNode, control.KillDataNode, control.StopNameNode, control.StartNameNode,
		control.KillNameNode, control.PauseHDFS, control.ContinueHDFS, control.LiveDataNodes, control.LoadFile:
		if b.hdfs == nil {
			return "", errors.New("this test bed runs no HDFS: start it with -hdfs")
		}
		return b.hdfs.handle(ctx, r)
	case control.KillMachine, control.PauseMachine, control.ContinueMachine,
		control.PartitionMachine, control.HealMachine, control.MachineState, control.ResetMachine:
		return b.handleMachine(ctx, r)
	default:
		return "", fmt.Errorf("operation %v is not supported by this test bed", r.Op)
	}
}

func (b *inner) handleMachine(ctx context.Context, r control.Request) (string, error) {
	if b.config.Host {
		if r.Op == control.MachineState {
			return "running", nil
		}
		return "", errIsHost
	}
	if r.N < 1 || r.N > len(b.machines) {
		return "", fmt.Errorf("no machine %d: they are numbered from 1 to %d", r.N, len(b.machines))
	}
	m := b.machines[r.N-1]
	switch r.Op {
	case control.KillMachine:
		m.stop()
		return "", nil
	case control.PauseMachine:
		if err := m.signal(syscall.SIGSTOP); err != nil {
			return "", err
		}
		return "", awaitStopped(ctx, m.cmd.Process.Pid)
	case control.ContinueMachine:
		return "", m.signal(syscall.SIGCONT)
	case control.PartitionMachine:
		return "", m.setLink(ctx, "down")
	case control.HealMachine:
		return "", m.setLink(ctx, "up")
	case control.MachineState:
		return m.state()
	case control.ResetMachine:
		return "", m.reset(ctx)
	default:
		return "", fmt.Errorf("operation %v is not supported by machines", r.Op)
	}
}

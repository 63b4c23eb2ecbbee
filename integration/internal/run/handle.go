package run

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	case control.StopDataNode, control.StartDataNode:
		return b.callHDFS(ctx, r.Op.String(), strconv.Itoa(r.N))
	case control.StopNameNode, control.StartNameNode:
		return b.callHDFS(ctx, r.Op.String())
	case control.LiveDataNodes:
		return b.callHDFS(ctx, "live")
	case control.LoadFile:
		return b.load(ctx, r)
	case control.PauseHDFS:
		if err := b.signalHDFS(syscall.SIGSTOP); err != nil {
			return "", err
		}
		return "", awaitStopped(ctx, b.hdfs.cmd.Process.Pid)
	case control.ContinueHDFS:
		return "", b.signalHDFS(syscall.SIGCONT)
	case control.KillMachine, control.PauseMachine, control.ContinueMachine,
		control.PartitionMachine, control.HealMachine, control.MachineState, control.ResetMachine:
		return b.handleMachine(ctx, r)
	default:
		return "", fmt.Errorf("operation %v is not supported by this test bed", r.Op)
	}
}

func (b *inner) callHDFS(ctx context.Context, words ...string) (string, error) {
	if b.hdfs == nil {
		return "", errors.New("this test bed runs no HDFS: start it with -hdfs")
	}
	return b.hdfs.call(ctx, words...)
}

func (b *inner) signalHDFS(s syscall.Signal) error {
	if b.hdfs == nil {
		return errors.New("this test bed runs no HDFS: start it with -hdfs")
	}
	return b.hdfs.signal(s)
}

func (b *inner) load(ctx context.Context, r control.Request) (string, error) {
	if len(r.Places) == 0 || r.BlockBytes <= 0 {
		return "", errors.New("load: a block size and at least one DataNode are required")
	}
	if strings.ContainsAny(r.Local+r.Remote, "\t\n") {
		return "", errors.New("load: names must not contain tabs or newlines")
	}
	places := make([]string, len(r.Places))
	for i, k := range r.Places {
		places[i] = strconv.Itoa(k)
	}
	return b.callHDFS(ctx, "load", r.Local, r.Remote, strconv.Itoa(r.BlockBytes), strings.Join(places, ","))
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

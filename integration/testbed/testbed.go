package testbed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/drover-run/drover/integration/internal/control"
)

// ErrNoTestbed means that the program does not run inside a test bed; tests skip with it.
var ErrNoTestbed = errors.New("not inside a test bed (run it with: go run ./integration/cmd/testbed run -hdfs -- CMD)")

// Bed is a running test bed.
type Bed struct {
	File  File
	Nodes []*Node // machine k is Nodes[k-1]; empty in a test bed with HDFS only
	HDFS  *HDFS   // nil without HDFS
}

// FromEnv returns the test bed that this program runs in, or ErrNoTestbed.
func FromEnv() (*Bed, error) {
	path := os.Getenv(EnvFile)
	if path == "" {
		return nil, ErrNoTestbed
	}
	return Open(path)
}

// Open returns the running test bed that a test bed file describes.
func Open(path string) (*Bed, error) {
	f, err := readFile(path)
	if err != nil {
		return nil, err
	}
	b := &Bed{File: *f}
	for k := 1; k <= len(f.Nodes); k++ {
		b.Nodes = append(b.Nodes, newNode(&b.File, k))
	}
	if f.HDFS != nil {
		b.HDFS = &HDFS{HDFSInfo: *f.HDFS, socket: f.Control}
	}
	return b, nil
}

// Dial connects to an address in the test bed's network, also from outside it.
func (b *Bed) Dial(ctx context.Context, address string) (net.Conn, error) {
	return control.DialThrough(ctx, b.File.Control, address)
}

// Stop tells the test bed to end. It has ended when its control socket is gone.
func (b *Bed) Stop(ctx context.Context) error {
	_, err := control.Call(ctx, b.File.Control, control.Request{Op: control.Stop})
	return err
}

// HDFS is the Apache HDFS of a test bed: one NameNode and one DataNode per machine, each in a JVM of its own.
// Stopping a daemon is orderly, killing it is not (kill -9); use Pause to simulate hanging ones.
type HDFS struct {
	HDFSInfo
	socket string
}

func (h *HDFS) call(ctx context.Context, r control.Request) (string, error) {
	return control.Call(ctx, h.socket, r)
}

// StopDataNode stops DataNode k (from 1). Its blocks keep their location until it counts as dead,
// after DeadAfterMS; AwaitLive waits for that.
func (h *HDFS) StopDataNode(ctx context.Context, k int) error {
	_, err := h.call(ctx, control.Request{Op: control.StopDataNode, N: k})
	return err
}

// StartDataNode starts DataNode k, which was stopped or killed, again with its old blocks. AwaitLive waits
// until it has registered.
func (h *HDFS) StartDataNode(ctx context.Context, k int) error {
	_, err := h.call(ctx, control.Request{Op: control.StartDataNode, N: k})
	return err
}

// KillDataNode kills DataNode k (from 1), whose blocks stay on its disk as they are. The NameNode does not
// notice at once: see StopDataNode.
func (h *HDFS) KillDataNode(ctx context.Context, k int) error {
	_, err := h.call(ctx, control.Request{Op: control.KillDataNode, N: k})
	return err
}

// StopNameNode stops the NameNode: connections break and new ones are refused.
func (h *HDFS) StopNameNode(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.StopNameNode})
	return err
}

// StartNameNode starts the NameNode, which was stopped or killed, again. It stays in safe mode until the
// DataNodes have reported their blocks.
func (h *HDFS) StartNameNode(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.StartNameNode})
	return err
}

// KillNameNode kills the NameNode. What it acknowledged is in its edit log, which has no end then.
func (h *HDFS) KillNameNode(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.KillNameNode})
	return err
}

// Pause stops all daemons with SIGSTOP: connections stay open without an answer.
func (h *HDFS) Pause(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.PauseHDFS})
	return err
}

// Continue ends Pause. DataNodes that were silent for longer than DeadAfterMS register again.
func (h *HDFS) Continue(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.ContinueHDFS})
	return err
}

// LiveDataNodes returns the NameNode's number of live DataNodes, 0 if it is stopped or killed, and whether it
// is in safe mode.
func (h *HDFS) LiveDataNodes(ctx context.Context) (n int, safeMode bool, err error) {
	s, err := h.call(ctx, control.Request{Op: control.LiveDataNodes})
	if err != nil {
		return 0, false, err
	}
	number, mode, _ := strings.Cut(s, " ")
	if n, err = strconv.Atoi(number); err != nil {
		return 0, false, fmt.Errorf("testbed: number of live DataNodes: %w", err)
	}
	return n, mode == "safemode", nil
}

// AwaitLive waits until the NameNode is out of safe mode and has exactly n live DataNodes.
func (h *HDFS) AwaitLive(ctx context.Context, n int, limit time.Duration) error {
	return WaitFor(ctx, limit, fmt.Sprintf("%d live DataNodes outside safe mode", n), func(ctx context.Context) error {
		got, safe, err := h.LiveDataNodes(ctx)
		if err == nil && (got != n || safe) {
			err = fmt.Errorf("%d are alive, safe mode %v", got, safe)
		}
		return err
	})
}

// Load writes a local file to HDFS with replication 1: block i of blockBytes goes to DataNode
// places[i mod len(places)]. It checks the resulting locations. The remote file must not exist;
// missing folders are created.
func (h *HDFS) Load(ctx context.Context, local, remote string, blockBytes int, places ...int) error {
	_, err := h.call(ctx, control.Request{Op: control.LoadFile, Local: local, Remote: remote, BlockBytes: blockBytes, Places: places})
	return err
}

// Pauses of WaitFor between two looks.
const (
	shortestPause = 20 * time.Millisecond
	longestPause  = time.Second
)

// pauseAfter returns how long WaitFor pauses after a look that took so long: four times as long, in bounds. A look
// may start programs on an emulated processor; without a pause, looking would take the processor time of what is
// waited for.
func pauseAfter(look time.Duration) time.Duration {
	return min(longestPause, max(shortestPause, 4*look))
}

// WaitFor polls a condition until it returns nil. It fails after limit or when ctx ends; the error
// names what was waited for and the condition's last error.
func WaitFor(ctx context.Context, limit time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var last error
	for {
		began := time.Now()
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // an error caused by the end of ctx says less
			last = err
		}
		pause := time.NewTimer(pauseAfter(time.Since(began)))
		select {
		case <-ctx.Done():
			pause.Stop()
			return fmt.Errorf("waited %v for %s: %w", limit, what, last)
		case <-pause.C:
		}
	}
}

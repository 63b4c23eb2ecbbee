package bed

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

// ErrNoBed says that the program does not run inside a bed; a test skips with it.
var ErrNoBed = errors.New("not inside a test bed (run it with: go run ./integration/cmd/bed run -hdfs -- CMD)")

// Bed is a running test bed.
type Bed struct {
	File  File
	Nodes []*Node // machine k is element k-1; empty in a bed of HDFS alone
	HDFS  *HDFS   // nil when the bed runs without HDFS
}

// FromEnv returns the bed that this program runs in, or ErrNoBed.
func FromEnv() (*Bed, error) {
	path := os.Getenv(EnvFile)
	if path == "" {
		return nil, ErrNoBed
	}
	return Open(path)
}

// Open returns the running bed that a bed file describes.
func Open(path string) (*Bed, error) {
	f, err := ReadFile(path)
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

// Dial connects to an address inside the bed's network, also from outside of it.
func (b *Bed) Dial(ctx context.Context, address string) (net.Conn, error) {
	return control.DialThrough(ctx, b.File.Control, address)
}

// Stop asks the bed to end; it has gone when its control socket is no longer there.
func (b *Bed) Stop(ctx context.Context) error {
	_, err := control.Call(ctx, b.File.Control, control.Request{Op: control.Stop})
	return err
}

// HDFS is the Apache HDFS of a bed: one NameNode and a DataNode for each machine, in one JVM. Stopping a daemon
// here is orderly; for a daemon that hangs there is Pause.
type HDFS struct {
	HDFSInfo
	socket string
}

func (h *HDFS) call(ctx context.Context, r control.Request) (string, error) {
	return control.Call(ctx, h.socket, r)
}

// StopDataNode stops DataNode k (from 1). Its blocks keep their location until it counts as dead, after
// DeadAfterMS; AwaitLive waits for that.
func (h *HDFS) StopDataNode(ctx context.Context, k int) error {
	_, err := h.call(ctx, control.Request{Op: control.StopDataNode, N: k})
	return err
}

// StartDataNode starts DataNode k again, with the blocks it had. It has registered when AwaitLive says so.
func (h *HDFS) StartDataNode(ctx context.Context, k int) error {
	_, err := h.call(ctx, control.Request{Op: control.StartDataNode, N: k})
	return err
}

// StopNameNode stops the NameNode: connections break and new ones are refused.
func (h *HDFS) StopNameNode(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.StopNameNode})
	return err
}

// StartNameNode starts the NameNode again. It is in safe mode until the DataNodes have reported their blocks.
func (h *HDFS) StartNameNode(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.StartNameNode})
	return err
}

// Pause stops all daemons in their tracks: connections stay open and nobody answers.
func (h *HDFS) Pause(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.PauseHDFS})
	return err
}

// Continue ends Pause. DataNodes that were silent for longer than DeadAfterMS register anew.
func (h *HDFS) Continue(ctx context.Context) error {
	_, err := h.call(ctx, control.Request{Op: control.ContinueHDFS})
	return err
}

// Live returns how many DataNodes the NameNode holds for alive, and whether it is in safe mode; a stopped NameNode
// has none.
func (h *HDFS) Live(ctx context.Context) (n int, safeMode bool, err error) {
	s, err := h.call(ctx, control.Request{Op: control.LiveDataNodes})
	if err != nil {
		return 0, false, err
	}
	number, mode, _ := strings.Cut(s, " ")
	if n, err = strconv.Atoi(number); err != nil {
		return 0, false, fmt.Errorf("bed: number of live DataNodes: %w", err)
	}
	return n, mode == "safemode", nil
}

// AwaitLive waits until the NameNode is out of safe mode and holds exactly n DataNodes for alive.
func (h *HDFS) AwaitLive(ctx context.Context, n int, limit time.Duration) error {
	return WaitFor(ctx, limit, fmt.Sprintf("%d live DataNodes outside safe mode", n), func(ctx context.Context) error {
		got, safe, err := h.Live(ctx)
		if err == nil && (got != n || safe) {
			err = fmt.Errorf("%d are alive, safe mode %v", got, safe)
		}
		return err
	})
}

// Load writes a local file to HDFS with replication 1: block i of blockBytes goes to DataNode places[i mod
// len(places)]. Where the blocks went is checked. The remote file must not exist; folders are made.
func (h *HDFS) Load(ctx context.Context, local, remote string, blockBytes int, places ...int) error {
	_, err := h.call(ctx, control.Request{Op: control.LoadFile, Local: local, Remote: remote, BlockBytes: blockBytes, Places: places})
	return err
}

// pollEvery is the time between two looks at a condition.
const pollEvery = 20 * time.Millisecond

// WaitFor looks at a condition again and again until it returns nil, and gives up after limit or when the context
// ends; the error then names what was waited for and says what the condition said last.
func WaitFor(ctx context.Context, limit time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil { // what a look said that the limit cut short says less
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited %v for %s: %w", limit, what, last)
		case <-tick.C:
		}
	}
}

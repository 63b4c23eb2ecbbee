package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/version"
)

// Limits of a node's reports, as those of the daemon.
const (
	minReportGap      = 5 * time.Millisecond
	maxReportAttempts = 500
	reconnectPause    = 50 * time.Millisecond
)

// heldCommand is the command of tasks that a node reports no end of.
const heldCommand = "hold"

// attemptKey identifies a run of an attempt.
type attemptKey struct {
	job                       uint64
	stage, task, attempt, run int32
}

func keyOf(k *droverv1.AttemptKey) attemptKey {
	return attemptKey{k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt(), k.GetRun()}
}

func (k attemptKey) proto() *droverv1.AttemptKey {
	return &droverv1.AttemptKey{Job: k.job, Stage: k.stage, Task: k.task, Attempt: k.attempt, Run: k.run}
}

// node is one simulated node. It remembers every attempt that the coordinator wants,
// and reports each
// but the held ones as succeeded once.
type node struct {
	client     droverv1connect.NodeServiceClient
	info       *droverv1.NodeInfo
	counts     *counts
	registered func() // called after each registration

	wake chan struct{} // holds one: there is something to report

	mu       sync.Mutex
	id       int32
	epoch    uint64
	revision uint64
	sequence uint64
	wanted   map[attemptKey]bool
	pending  []attemptKey // succeeded and not reported yet
}

func newNode(number int, client droverv1connect.NodeServiceClient, c *counts, registered func()) *node {
	const cores, gib = 32, int64(1) << 30
	return &node{client: client, counts: c, registered: registered, wake: make(chan struct{}, 1), wanted: map[attemptKey]bool{},
		info: &droverv1.NodeInfo{Name: fmt.Sprintf("n%d", number), Rack: fmt.Sprintf("/r%d", number/40), Address: fmt.Sprintf("n%d.invalid:7777", number),
			Allocatable: &droverv1.Resources{Cpu: cores * 1000, Memory: 128 * gib, Io: gib}, Driver: "simulated",
			Disks:  []*droverv1.Disk{{Name: "d0", Io: gib, Space: 1000 * gib}},
			Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}}}
}

// run keeps a session with the coordinator until ctx ends.
func (n *node) run(ctx context.Context) {
	for ctx.Err() == nil {
		err := n.session(ctx)
		if ctx.Err() != nil {
			return
		}
		n.counts.sessionLost(n.info.GetName(), err)
		select {
		case <-time.After(reconnectPause):
		case <-ctx.Done():
		}
	}
}

func (n *node) session(ctx context.Context) error {
	res, err := n.client.Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: n.info, Epoch: n.epoch, Protocol: version.Protocol}))
	if err != nil {
		return fmt.Errorf("register: %w", err)
	}
	n.enter(res.Msg)
	n.registered()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.watch(ctx) })
	g.Go(func() error { return n.report(ctx, time.Duration(res.Msg.GetReportIntervalMs())*time.Millisecond) })
	return g.Wait()
}

// enter begins the epoch of a registration: what ran in another one is forgotten.
func (n *node) enter(r *droverv1.RegisterResponse) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.epoch != r.GetEpoch() {
		clear(n.wanted)
		n.pending, n.revision = nil, 0
	}
	n.id, n.epoch = r.GetNode(), r.GetEpoch()
}

func (n *node) watch(ctx context.Context) error {
	n.mu.Lock()
	req := &droverv1.WatchRequest{Node: n.id, Epoch: n.epoch, Revision: n.revision}
	n.mu.Unlock()
	stream, err := n.client.Watch(ctx, connect.NewRequest(req))
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer stream.Close()
	for stream.Receive() {
		if n.apply(stream.Msg()) {
			select {
			case n.wake <- struct{}{}:
			default:
			}
		}
	}
	return fmt.Errorf("the watch ended: %w", stream.Err())
}

// apply takes a full set or a delta over, and reports whether attempts came.
func (n *node) apply(w *droverv1.Wanted) bool {
	now := time.Now()
	n.mu.Lock()
	defer n.mu.Unlock()
	before := len(n.pending)
	n.revision = w.GetRevision()
	for _, k := range w.GetRemove() {
		delete(n.wanted, keyOf(k))
	}
	for _, p := range w.GetPut() {
		k := keyOf(p.GetKey())
		if n.wanted[k] || p.GetGoal() != droverv1.Goal_GOAL_RUN {
			continue
		}
		n.wanted[k] = true
		if c := p.GetSpec().GetCommand(); len(c) == 0 || c[0] != heldCommand {
			n.pending = append(n.pending, k)
		}
		n.counts.received(k.job, now)
	}
	return len(n.pending) > before
}

// report sends a full report, then what has ended, and at least one report per
// interval.
func (n *node) report(ctx context.Context, interval time.Duration) error {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	gap := time.NewTimer(minReportGap)
	defer gap.Stop()
	for full := true; ; full = false {
		more, err := n.reportOnce(ctx, full)
		if err != nil {
			return err
		}
		gap.Reset(minReportGap)
		select {
		case <-gap.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		if more {
			continue
		}
		select {
		case <-n.wake:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// reportOnce sends one report; more reports whether another one is due at once.
func (n *node) reportOnce(ctx context.Context, full bool) (more bool, err error) {
	n.mu.Lock()
	n.sequence++
	req := &droverv1.ReportRequest{Node: n.id, Epoch: n.epoch, Sequence: n.sequence, Full: full, AppliedRevision: n.revision, Load: &droverv1.NodeLoad{}}
	sent := n.pending[:min(len(n.pending), maxReportAttempts)]
	for _, k := range sent {
		req.Attempts = append(req.Attempts, &droverv1.SeenAttempt{Key: k.proto(), Phase: droverv1.Phase_PHASE_SUCCEEDED, RunningMs: 1,
			Usage: &droverv1.Usage{CpuMs: 1, MemoryPeak: 1 << 20}})
	}
	n.mu.Unlock()
	res, err := n.client.Report(ctx, connect.NewRequest(req))
	if err != nil {
		return false, fmt.Errorf("report: %w", err)
	}
	if res.Msg.GetRegisterAgain() {
		return false, fmt.Errorf("the coordinator declared the node lost")
	}
	n.counts.reported(len(sent))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pending = n.pending[len(sent):]
	return len(n.pending) > 0, nil
}

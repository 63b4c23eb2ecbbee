// Package coordtest simulates a node: it speaks the node protocol to a
// coordinator and pretends to run tasks, for tests of the coordinator and of
// clients. A test determines how each attempt ends (Behaviour) and what the
// file system contains (FS), and injects faults by calling the node's methods.
//
// It is no model of the real daemon: package node has its own tests.
package coordtest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/mapreduce"
)

// key identifies a run of an attempt.
type key struct {
	job                       uint64
	stage, task, attempt, run int32
}

func keyOf(k *droverv1.AttemptKey) key {
	return key{k.GetJob(), k.GetStage(), k.GetTask(), k.GetAttempt(), k.GetRun()}
}

// proto returns k as a message.
func (k key) proto() *droverv1.AttemptKey {
	return &droverv1.AttemptKey{Job: k.job, Stage: k.stage, Task: k.task, Attempt: k.attempt, Run: k.run}
}

// Behaviour determines how a wanted attempt continues: nil leaves it running,
// otherwise it returns the report of its end, without the key. It is called
// again at every change of the wanted state, and by Advance.
type Behaviour func(w *droverv1.WantedAttempt) *droverv1.SeenAttempt

// Succeed ends every attempt successfully at once; a reduce task waits for its
// maps.
func Succeed(w *droverv1.WantedAttempt) *droverv1.SeenAttempt {
	if w.GetSpec().GetKind() == "reduce" && !w.GetMapOutputsComplete() {
		return nil
	}
	return &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_SUCCEEDED, RunningMs: 5, OutputLength: 7, OutputChecksum: "crc32c:00000007",
		Counters: map[string]int64{"app.records": 1}, Usage: &droverv1.Usage{CpuMs: 3, MemoryPeak: 1 << 20}, Limits: &droverv1.Limits{MemoryMax: "1"}}
}

// Fail ends every attempt with a cause.
func Fail(cause droverv1.Cause, message string) Behaviour {
	return func(*droverv1.WantedAttempt) *droverv1.SeenAttempt {
		return &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_FAILED, Cause: cause, ExitCode: 1, Message: message, StderrTail: "last words\n"}
	}
}

// Hang never ends an attempt.
func Hang(*droverv1.WantedAttempt) *droverv1.SeenAttempt { return nil }

// Info returns a node of 4 cores, 4 GiB and one disk of 100 MiB/s.
func Info(name string) *droverv1.NodeInfo {
	return &droverv1.NodeInfo{Name: name, Rack: "/r1", StorageAddresses: []string{name + ":9866"}, Address: name + ":7777", Schemes: []string{"hdfs", "file"}, Features: []string{mapreduce.FeatureKeys, mapreduce.FeatureKeyOrder},
		Allocatable: &droverv1.Resources{Cpu: 4000, Memory: 4 << 30, Io: 100 << 20},
		Disks:       []*droverv1.Disk{{Name: "d0", Io: 100 << 20, Space: 100 << 30}}, Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING, droverv1.Level_LEVEL_FROZEN}}
}

// Node simulates a node daemon.
type Node struct {
	Client droverv1connect.NodeServiceClient
	Info   *droverv1.NodeInfo
	fs     *FS

	mu            sync.Mutex
	behaviour     Behaviour
	registration  *droverv1.RegisterResponse
	epoch         uint64
	revision      uint64
	wanted        map[key]*droverv1.WantedAttempt
	ended         map[key]*droverv1.SeenAttempt
	dirty         map[key]bool
	responses     []*droverv1.NodeResponse
	problems      []string
	sequence      uint64
	starts        map[key]int  // per run
	live          map[key]bool // runs that were started and are still the node's
	refuse        map[droverv1.Level]bool
	refuseIf      func(*droverv1.WantedAttempt) bool // additional condition; may be nil
	refuseForGood []droverv1.Level                   // refused levels that are reported as permanent
	reached       map[key]droverv1.Level             // levels other than running
	preparing     bool                               // attempts stay in preparation, at their level
	wakeup        chan struct{}
	reports       int // sent so far
	fullSets      int
}

// New returns a node; Run connects it.
func New(c droverv1connect.NodeServiceClient, info *droverv1.NodeInfo, fs *FS, b Behaviour) *Node {
	return &Node{Client: c, Info: info, fs: fs, behaviour: b, wanted: map[key]*droverv1.WantedAttempt{}, ended: map[key]*droverv1.SeenAttempt{},
		dirty: map[key]bool{}, starts: map[key]int{}, live: map[key]bool{}, reached: map[key]droverv1.Level{}, wakeup: make(chan struct{}, 1)}
}

// Run keeps a session with the coordinator until ctx ends, and reconnects like
// a daemon.
func (n *Node) Run(ctx context.Context) {
	for ctx.Err() == nil {
		_ = n.session(ctx) // tests observe the consequences
		t := time.NewTimer(2 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

// SetBehaviour changes how attempts continue.
func (n *Node) SetBehaviour(b Behaviour) {
	n.mu.Lock()
	n.behaviour = b
	n.mu.Unlock()
	n.Advance()
}

// SetProblems sets the problems that the node reports.
func (n *Node) SetProblems(problems ...string) {
	n.mu.Lock()
	n.problems = problems
	n.mu.Unlock()
	n.signal()
}

// Advance calls the behaviour of every running attempt again.
func (n *Node) Advance() {
	n.mu.Lock()
	n.advanceLocked()
	n.mu.Unlock()
	n.signal()
}

func (n *Node) signal() {
	select {
	case n.wakeup <- struct{}{}:
	default:
	}
}

// Wanted returns what the coordinator wants of this node, by key.
func (n *Node) Wanted() []*droverv1.WantedAttempt {
	n.mu.Lock()
	defer n.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(n.wanted), compareKeys)
	var out []*droverv1.WantedAttempt
	for _, k := range keys {
		out = append(out, n.wanted[k])
	}
	return out
}

// StartCounts returns how many runs were started, and the most starts of one
// run.
func (n *Node) StartCounts() (runs, most int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range n.starts {
		runs++
		most = max(most, c)
	}
	return runs, most
}

// FullSets returns how often the coordinator has sent all that is wanted of the node.
func (n *Node) FullSets() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fullSets
}

// Registered returns the node's number and epoch; zeros before registration.
func (n *Node) Registered() (id int32, epoch uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.registration.GetNode(), n.epoch
}

// SendReport reports anything about an attempt, true or not.
func (n *Node) SendReport(ctx context.Context, seen *droverv1.SeenAttempt) (*droverv1.ReportResponse, error) {
	n.mu.Lock()
	n.sequence++
	req := &droverv1.ReportRequest{Node: n.registration.GetNode(), Epoch: n.epoch, Sequence: n.sequence, Attempts: []*droverv1.SeenAttempt{seen}}
	n.mu.Unlock()
	res, err := n.Client.Report(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

func compareKeys(a, b key) int {
	return slices.Compare([]int64{int64(a.job), int64(a.stage), int64(a.task), int64(a.attempt), int64(a.run)},
		[]int64{int64(b.job), int64(b.stage), int64(b.task), int64(b.attempt), int64(b.run)})
}

var errReregister = errors.New("register again")

func (n *Node) session(ctx context.Context) error {
	res, err := n.Client.Register(ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: n.Info, Epoch: n.epoch, Protocol: version.Protocol}))
	if err != nil {
		return err
	}
	n.mu.Lock()
	if n.epoch != res.Msg.Epoch { // what ran in another epoch is killed and never reported
		clear(n.wanted)
		clear(n.ended)
		clear(n.dirty)
		clear(n.live)
		n.responses, n.revision = nil, 0
	}
	n.registration, n.epoch = res.Msg, res.Msg.Epoch
	n.mu.Unlock()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return n.watch(ctx) })
	g.Go(func() error { return n.report(ctx, res.Msg) })
	return g.Wait()
}

func (n *Node) watch(ctx context.Context) error {
	n.mu.Lock()
	req := &droverv1.WatchRequest{Node: n.registration.Node, Epoch: n.epoch, Revision: n.revision}
	n.mu.Unlock()
	stream, err := n.Client.Watch(ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	defer stream.Close()
	for stream.Receive() {
		n.apply(stream.Msg())
		n.signal()
	}
	return errors.Join(stream.Err(), errors.New("the watch ended"))
}

func (n *Node) apply(w *droverv1.Wanted) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w.Full {
		n.fullSets++
		clear(n.wanted)
	} else if w.Revision <= n.revision {
		return
	}
	n.revision = w.Revision
	for _, k := range w.Remove {
		delete(n.wanted, keyOf(k))
		delete(n.ended, keyOf(k))
		delete(n.live, keyOf(k))
	}
	for _, p := range w.Put {
		n.wanted[keyOf(p.Key)] = p
		n.dirty[keyOf(p.Key)] = true // its level may have changed
	}
	if w.Full { // what it lacks is removed: the node starts it anew if it is wanted again
		maps.DeleteFunc(n.ended, func(k key, _ *droverv1.SeenAttempt) bool { return n.wanted[k] == nil })
		maps.DeleteFunc(n.live, func(k key, _ bool) bool { return n.wanted[k] == nil })
	}
	for _, o := range w.Requests {
		n.responses = append(n.responses, n.fs.perform(n.Info.GetName(), o))
	}
	n.advanceLocked()
}

// advanceLocked advances every wanted attempt as far as possible.
func (n *Node) advanceLocked() {
	for k, w := range n.wanted {
		if n.ended[k] != nil {
			continue
		}
		var end *droverv1.SeenAttempt
		switch w.Goal {
		case droverv1.Goal_GOAL_RUN:
			if !n.live[k] {
				n.live[k] = true
				n.starts[k]++
				n.dirty[k] = true
			}
			end = n.behaviour(w)
		default:
			end = &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_FAILED, Cause: droverv1.Cause_CAUSE_STOPPED}
		}
		if end != nil {
			if end.Phase == droverv1.Phase_PHASE_SUCCEEDED && w.GetSpec().GetOutput() != "" {
				n.fs.write(w.GetSpec().GetOutput())
			}
			n.ended[k] = end
			n.dirty[k] = true
		}
	}
}

func (n *Node) report(ctx context.Context, reg *droverv1.RegisterResponse) error {
	tick := time.NewTicker(max(time.Millisecond, time.Duration(reg.ReportIntervalMs)*time.Millisecond))
	defer tick.Stop()
	for full := true; ; full = false {
		if err := n.reportOnce(ctx, full); err != nil {
			return err
		}
		select {
		case <-n.wakeup:
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (n *Node) reportOnce(ctx context.Context, full bool) error {
	n.mu.Lock()
	n.sequence++
	req := &droverv1.ReportRequest{Node: n.registration.Node, Epoch: n.epoch, Sequence: n.sequence, Full: full, AppliedRevision: n.revision, Responses: n.responses,
		Load: &droverv1.NodeLoad{Problems: n.problems}}
	n.responses = nil
	keys := slices.SortedFunc(maps.Keys(n.dirty), compareKeys)
	if full {
		keys = slices.SortedFunc(maps.Keys(n.wanted), compareKeys)
	}
	for _, k := range keys {
		seen := n.running(k)
		if e := n.ended[k]; e != nil {
			seen = e
		}
		seen.Key = k.proto()
		req.Attempts = append(req.Attempts, seen)
	}
	clear(n.dirty)
	n.reports++
	n.mu.Unlock()
	res, err := n.Client.Report(ctx, connect.NewRequest(req))
	if err != nil {
		n.mu.Lock()
		n.responses = append(req.Responses, n.responses...)
		for _, k := range keys {
			n.dirty[k] = true
		}
		n.mu.Unlock()
		return err
	}
	if res.Msg.RegisterAgain {
		return errReregister
	}
	return nil
}

// running returns the report of an attempt that has not ended: at the wanted
// level, or refusing it.
func (n *Node) running(k key) *droverv1.SeenAttempt {
	seen := &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, Level: droverv1.Level_LEVEL_RUNNING, Progress: 0.5, Usage: &droverv1.Usage{CpuMs: 1000}}
	w := n.wanted[k]
	if w.GetGoal() != droverv1.Goal_GOAL_RUN {
		return seen
	}
	if n.preparing {
		seen.Phase = droverv1.Phase_PHASE_PREPARING
		return seen
	}
	l := w.GetLevel()
	switch {
	case n.refuse[l] || n.refuseIf != nil && n.refuseIf(w):
		seen.TargetRefused, seen.LevelNote, seen.LevelsRefused = l, "as the test says", n.refuseForGood
		if w.GetResumeFrom() != "" {
			n.reached[k] = droverv1.Level_LEVEL_CHECKPOINTED
		}
	case l > droverv1.Level_LEVEL_RUNNING:
		n.reached[k] = l
	default:
		delete(n.reached, k)
	}
	if l := n.reached[k]; l != 0 {
		seen.Level, seen.Occupied = l, &droverv1.Resources{Memory: 1 << 20}
	}
	return seen
}

// Preparing sets whether the node keeps its attempts in preparation: none of
// them runs or changes its level.
func (n *Node) Preparing(on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.preparing = on
	for k := range n.wanted {
		n.dirty[k] = true
	}
}

// Refuse makes the node refuse a level for every attempt.
func (n *Node) Refuse(l droverv1.Level) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse == nil {
		n.refuse = map[droverv1.Level]bool{}
	}
	n.refuse[l] = true
}

// RefuseIf makes the node refuse the requests for which f is true. f is called
// repeatedly, one call at a time.
func (n *Node) RefuseIf(f func(*droverv1.WantedAttempt) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuseIf = f
}

// RefuseForGood makes the node report its refusals of some levels as permanent.
func (n *Node) RefuseForGood(l ...droverv1.Level) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuseForGood = l
}

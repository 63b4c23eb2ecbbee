package coordinator

import (
	"context"
	"errors"
	"math"
	"net"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/plain"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/mapreduce"
)

// Limits of what a node may send.
const (
	maxTail        = 4 << 10                  // bytes of an attempt's stderr tail
	maxLine        = 1 << 10                  // bytes of a message
	maxCounterName = mapreduce.MaxCounterName // bytes of GROUP:NAME
	maxLostOutputs = 10_000
	maxLevelSteps  = 32        // of one change of level
	maxReportBytes = 512 << 10 // of reports in one entry
	blobChunk      = 256 << 10 // bytes of one GetBlob message
	maxKeepBlobs   = 10_000
	registerRate   = 1 // registrations per second that change something, with bursts of ten times that; each is an entry in the log
)

// nodeService serves node daemons.
type nodeService struct{ core *core }

var _ droverv1connect.NodeServiceHandler = (*nodeService)(nil)

// requireNode returns an error unless the caller is the node of that name. On
// the local socket (a node beside its coordinator, `drover dev`) every name is
// accepted.
func requireNode(ctx context.Context, name string) error {
	switch id := caller(ctx); {
	case id.kind == kindLocal, id.kind == kindNode && id.name == "node/"+name:
		return nil
	default:
		return fault.New(fault.Denied, "%s may not speak for node %q: its certificate must be called node/%s", id.displayName(), name, name)
	}
}

// nodeClaims are the names of the nodes whose registrations are in progress.
type nodeClaims struct {
	mu    sync.Mutex
	names map[string]bool
}

// claim returns an error while an earlier registration of the same name is being written to the
// log.
func (c *nodeClaims) claim(name string) (leave func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.names[name] {
		return nil, fault.Overload("node %s is still being registered by an earlier call: try again in a second", name)
	}
	c.names[name] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.names, name)
	}, nil
}

// session returns the node that sends a report or watches. again is set if the node must register
// again, because it was lost or has another epoch.
func (s *nodeService) session(ctx context.Context, id int32, epoch uint64) (n *facts.Node, again bool, err error) {
	s.core.view(func(f *facts.Facts) { n = f.Node(id) })
	if n == nil {
		return nil, true, nil
	}
	if err := requireNode(ctx, n.Info.GetName()); err != nil {
		return nil, false, err
	}
	return n, !n.Up || n.Epoch != epoch, nil
}

// checkNodeAddress refuses an address by which other machines would reach themselves instead of the
// node, such as localhost.
func checkNodeAddress(address string) error {
	if strings.HasPrefix(address, unixhttp.Scheme) {
		return fault.New(fault.Invalid, "its address is %q: other machines would call a socket of their own, with their own rights", clipText(address, 128))
	}
	if host, _, err := net.SplitHostPort(address); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		return fault.New(fault.Invalid, "its address is %q, at which other machines reach themselves: set its -node-address to its name or an address of its machine", clipText(address, 128))
	}
	return nil
}

// Register assigns a node its number and epoch.
func (s *nodeService) Register(ctx context.Context, req *connect.Request[droverv1.RegisterRequest]) (*connect.Response[droverv1.RegisterResponse], error) {
	info := req.Msg.GetNode()
	if info == nil {
		return nil, fault.New(fault.Invalid, "a registration without a node")
	}
	if err := requireNode(ctx, info.GetName()); err != nil {
		return nil, err
	}
	if caller(ctx).kind != kindLocal {
		if err := checkNodeAddress(info.GetAddress()); err != nil {
			return nil, fault.New(fault.Invalid, "this node cannot be used: %w", err)
		}
	}
	if err := version.CheckProtocol("the coordinator", "node "+info.GetName(), req.Msg.GetProtocol()); err != nil {
		return nil, err
	}
	info = proto.CloneOf(info)
	info.Registration = req.Msg.GetRegistration()
	io := int64(0)
	for _, d := range info.GetDisks() {
		io += d.GetIo()
	}
	if info.Allocatable == nil {
		info.Allocatable = &droverv1.Resources{}
	}
	info.Allocatable.Io = io
	if err := checkNode(info); err != nil {
		return nil, fault.New(fault.Invalid, "this node cannot be used: %w", err)
	}
	leave, err := s.core.registering.claim(info.GetName())
	if err != nil {
		return nil, err
	}
	defer leave()
	id, epoch, err := s.assignEpoch(ctx, info, req.Msg.GetEpoch())
	if err != nil {
		return nil, err
	}
	if !s.core.sessions.register(id, epoch, s.core.now()) {
		return nil, fault.New(fault.Unavailable, "node %s did not report for as long as its lease, and is being declared lost: register again in a second", info.GetName())
	}
	var cluster string
	var clusterEpoch uint64
	s.core.view(func(f *facts.Facts) { cluster, clusterEpoch = f.Cluster(), facts.RestoresOf(f).ClusterEpoch() })
	return connect.NewResponse(&droverv1.RegisterResponse{Node: id, Epoch: epoch, Term: termOf(ctx), LeaseMs: s.core.sessions.leaseMS(s.core.now(), s.core.cfg.Lease),
		ReportIntervalMs: s.core.cfg.ReportInterval.Milliseconds(), Cluster: cluster, ClusterEpoch: clusterEpoch, Protocol: version.Protocol}), nil
}

// assignEpoch returns the number and epoch of a node that registers and knows an epoch, after they
// are in the log. It must not run twice at once for one name: what it reads in the facts must hold
// until its entry is applied.
func (s *nodeService) assignEpoch(ctx context.Context, info *droverv1.NodeInfo, known uint64) (id int32, epoch uint64, err error) {
	var n *facts.Node
	var same bool
	s.core.view(func(f *facts.Facts) {
		if n = f.NodeByName(info.GetName()); n != nil && n.Up && info.GetRegistration() != "" && n.Info.GetRegistration() == info.GetRegistration() {
			known = n.Epoch // it was given it, and the answer was lost
		}
		same = f.Checks().RegistrationUnchanged(info, known)
	})
	if same {
		return n.ID, n.Epoch, nil
	}
	if err := s.checkDaemon(n, info); err != nil {
		return 0, 0, err
	}
	if !s.core.registrations.allow(caller(ctx).name) && caller(ctx).kind != kindLocal {
		return 0, 0, fault.Overload("node %s registers more than %d times a second: try again in a second", info.GetName(), registerRate)
	}
	if n != nil && n.Up && n.Epoch != known {
		s.core.log.Warn("a node that is up registers anew, and loses its tasks: its data folder is another one, or two daemons have its name",
			"node", info.GetName(), "address", info.GetAddress(), "address_before", n.Info.GetAddress())
	}
	// With the term, the entry is refused if another leader has registered nodes since. The wait
	// continues when the caller is gone: the next call, perhaps a retry of this registration, must
	// find the outcome.
	e := &droverv1.Entry{Term: termOf(ctx), Body: &droverv1.Entry_Node{Node: &droverv1.NodeFact{Epoch: known, Info: info}}}
	res, err := s.core.propose(context.WithoutCancel(ctx), info.GetName(), e)
	if errors.Is(res.Err, fault.Conflict) {
		res.Err = fault.New(fault.Unavailable, "register again: %v", res.Err) // a new node ends at a Conflict
	}
	if err = errors.Join(err, res.Err); err != nil {
		return 0, 0, err
	}
	s.core.view(func(f *facts.Facts) { s.core.wanted.registerNode(f.Node(res.Node)) })
	return res.Node, res.Epoch, nil
}

// checkDaemon refuses the name of a node that is up to a daemon with another data folder. That
// daemon may be on another machine, while the node's tasks continue: registering it would lose
// them, and start them elsewhere, exclusive tasks too. Once the node's lease has ended, nothing
// exclusive runs on it any more. Daemons of releases without ids are always accepted. The error
// contains the node's epoch: everything that the daemon has of an earlier epoch was lost.
func (s *nodeService) checkDaemon(n *facts.Node, info *droverv1.NodeInfo) error {
	if n == nil || !n.Up || n.Info.GetDaemonId() == "" || info.GetDaemonId() == "" || n.Info.GetDaemonId() == info.GetDaemonId() {
		return nil
	}
	if s.core.sessions.refuse(n.ID, n.Epoch, info.GetDaemonId()) {
		s.core.log.Warn("a daemon with another data folder wants the name of a node that is up: it waits for the end of the node's lease",
			"node", info.GetName(), "address", info.GetAddress(), "address_of_node", n.Info.GetAddress())
	}
	owner := wire.NodeOwner{Node: n.ID, Epoch: n.Epoch}
	s.core.view(func(f *facts.Facts) {
		owner.Cluster, owner.ClusterEpoch = f.Cluster(), facts.RestoresOf(f).ClusterEpoch()
	})
	return wire.NameTaken(owner, "node %s is up with another data folder, at %s: this daemon gets the name %s after the last report from there. Stop the daemon there, or give this machine another name",
		info.GetName(), n.Info.GetAddress(), s.core.cfg.Lease)
}

// Watch streams the changes of a node's wanted set.
func (s *nodeService) Watch(ctx context.Context, req *connect.Request[droverv1.WatchRequest], stream *connect.ServerStream[droverv1.Wanted]) error {
	node, epoch := req.Msg.GetNode(), req.Msg.GetEpoch()
	if _, again, err := s.session(ctx, node, epoch); err != nil {
		return err
	} else if again {
		return fault.New(fault.Conflict, "the node is not registered in that epoch: register again")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.core.sessions.setWatch(node, epoch, cancel)
	at, term, rev := nodeEpoch{node, epoch}, termOf(ctx), req.Msg.GetRevision()
	for {
		b, ok := s.core.wanted.changesSince(at, rev)
		if !ok {
			return fault.New(fault.Conflict, "the node was declared lost: register again")
		}
		if b.full || b.rev > rev {
			if err := stream.Send(s.wantedMessage(at, term, b)); err != nil {
				return err
			}
			rev = b.rev
		}
		select {
		case <-b.wake:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the watch ended: watch again")
		}
	}
}

func (s *nodeService) wantedMessage(at nodeEpoch, term uint64, b wantedBatch) *droverv1.Wanted {
	m := &droverv1.Wanted{Term: term, Revision: b.rev, Full: b.full, Requests: s.core.dispatcher.requestsFor(at.node, b.full, b.requests)}
	now := s.core.now().UnixNano()
	s.core.view(func(f *facts.Facts) {
		blobs := map[string]bool{}
		for _, c := range b.keys {
			w := wantedAttempt(f, at, c.key, c.kept, now, s.core.cfg.KeepLogs)
			switch {
			case w != nil:
				m.Put = append(m.Put, w)
			case !b.full:
				m.Remove = append(m.Remove, c.key.Proto(max(c.run, 1)))
			}
			if j := f.Job(c.key.Job); b.full && j != nil && !j.HasEnded() {
				for _, d := range facts.Digests(j.Spec) {
					if !blobs[d] && len(blobs) < maxKeepBlobs {
						blobs[d] = true
						m.KeepBlobs = append(m.KeepBlobs, d)
					}
				}
			}
		}
	})
	return m
}

// Report handles a node's report. Durable changes in it are in the log before
// the response.
func (s *nodeService) Report(ctx context.Context, req *connect.Request[droverv1.ReportRequest]) (*connect.Response[droverv1.ReportResponse], error) {
	r := req.Msg
	res := &droverv1.ReportResponse{Term: termOf(ctx), LeaseMs: s.core.sessions.leaseMS(s.core.now(), s.core.cfg.Lease)}
	n, again, err := s.session(ctx, r.GetNode(), r.GetEpoch())
	if err != nil {
		return nil, err
	}
	for _, a := range r.GetAttempts() {
		sanitizeReport(a)
	}
	boundLoad(r.GetLoad())
	if again || !s.core.sessions.report(r, s.core.now()) {
		res.RegisterAgain = true
		return connect.NewResponse(res), nil
	}
	if err := errors.Join(s.proposeReports(ctx, n, r), s.core.findUnknownRuns(ctx, n, r)); err != nil {
		return nil, err
	}
	for _, a := range r.GetResponses() {
		s.core.dispatcher.handleResponse(r.GetNode(), a)
	}
	if err := s.quarantineUnhealthy(ctx, n, r.GetLoad()); err != nil {
		return nil, err
	}
	if len(r.GetAttempts()) > 0 {
		s.core.changed.notify()
	}
	return connect.NewResponse(res), nil
}

// proposeReports proposes the reports that change the facts.
func (s *nodeService) proposeReports(ctx context.Context, n *facts.Node, r *droverv1.ReportRequest) error {
	var changing []*droverv1.SeenAttempt
	s.core.view(func(f *facts.Facts) {
		for _, a := range r.GetAttempts() {
			if changesFacts(f, n, a) {
				changing = append(changing, s.core.startFailures.markElsewhere(f, n, oneChange(f, a)))
			}
		}
	})
	for _, part := range splitIntoChunks(changing, maxReportBytes) {
		e := &droverv1.Entry{Body: &droverv1.Entry_Attempts{Attempts: &droverv1.AttemptsFact{Node: n.ID, Epoch: n.Epoch, Seen: part}}}
		res, err := s.core.propose(ctx, n.Info.GetName(), e)
		if err != nil {
			return err
		}
		for _, d := range res.Dropped {
			s.core.log.Debug("dropped a stale report", "node", n.Info.GetName(), "key", part[d.Index].GetKey(), "why", d.Reason)
		}
	}
	return nil
}

// changesFacts reports whether a report may change the facts; Apply checks again. Most reports of
// running attempts do not.
func changesFacts(f *facts.Facts, n *facts.Node, seen *droverv1.SeenAttempt) bool {
	k := facts.KeyOf(seen.GetKey())
	a := f.Attempt(k)
	if a == nil || a.Node != n.ID || a.Epoch != n.Epoch || a.Run != seen.GetKey().GetRun() {
		return false
	}
	switch seen.GetPhase() {
	case droverv1.Phase_PHASE_SUCCEEDED:
		return a.State.IsActive()
	case droverv1.Phase_PHASE_FAILED, droverv1.Phase_PHASE_GONE:
		j := f.Job(k.Job)
		return a.State.IsActive() || (a.State == facts.AttemptSucceeded && j.OutputsNeeded(int(k.Stage)) && j.Stages[k.Stage].Task(k.Task).Winner == k.Attempt)
	default:
		return a.State.IsActive() && (reportsLevel(a, seen) || reportsLostOutputs(f, k, seen))
	}
}

// reportsLevel reports whether a running attempt has reached another level than in the facts, or
// cannot reach its target.
func reportsLevel(a *facts.Attempt, seen *droverv1.SeenAttempt) bool {
	l := seen.GetLevel()
	return l != 0 && (l != a.Level || a.Target != 0 && seen.GetTargetRefused() == a.Target) && seen.GetPhase() == droverv1.Phase_PHASE_RUNNING
}

// oneChange returns a report that may change the facts, without the lost outputs if the attempt's
// level changes too. Apply handles the lost outputs first, which can fail the job and stop the
// attempt, and then confirms the level of the attempt as it was before: the attempt would be live
// again in a job that has ended, and nothing would stop it. Once the level is a fact, the node
// reports its lost outputs again.
func oneChange(f *facts.Facts, seen *droverv1.SeenAttempt) *droverv1.SeenAttempt {
	if a := f.Attempt(facts.KeyOf(seen.GetKey())); len(seen.GetLostOutputs()) == 0 || !reportsLevel(a, seen) {
		return seen
	}
	level := proto.CloneOf(seen) // the report itself is what users are shown
	level.LostOutputs = nil
	return level
}

// reportsLostOutputs reports whether a reduce task misses map outputs that the facts have.
func reportsLostOutputs(f *facts.Facts, k facts.Key, seen *droverv1.SeenAttempt) bool {
	j := f.Job(k.Job)
	return slices.ContainsFunc(seen.GetLostOutputs(), func(o *droverv1.MapOutput) bool { return j.MapOutput(o) != nil })
}

// sanitizeReport truncates or drops what is invalid or exceeds the limits, before a report becomes
// a fact.
func sanitizeReport(a *droverv1.SeenAttempt) {
	a.Elsewhere = false // it is the coordinator's to say
	a.Message = clipText(plain.Clean(a.GetMessage()), maxLine)
	a.Status = clipText(plain.Clean(a.GetStatus()), maxLine)
	a.LevelNote = clipText(plain.Clean(a.GetLevelNote()), maxLine)
	if t := a.GetStderrTail(); len(t) > maxTail {
		a.StderrTail = strings.ToValidUTF8(t[len(t)-maxTail:], "")
	}
	if !(a.Progress >= 0 && a.Progress <= 1) || math.IsNaN(a.Progress) {
		a.Progress = 0
	}
	for name := range a.Counters {
		if plain.HasControl(name) || len(name) > maxCounterName {
			delete(a.Counters, name) // the harness refuses it: the tenant forged the result
		}
	}
	if len(a.Counters) > mapreduce.MaxCounters+len(mapreduce.HarnessCounters()) {
		a.Counters = nil // forged too
		a.Message = clipText(a.Message+" (its counters were dropped: too many names)", maxLine)
	}
	if len(a.LostOutputs) > maxLostOutputs {
		a.LostOutputs = a.LostOutputs[:maxLostOutputs]
	}
	for _, o := range a.LostOutputs {
		o.Address = "" // it says nothing, and would be kept
	}
	if len(a.LevelSteps) > maxLevelSteps {
		a.LevelSteps = a.LevelSteps[:maxLevelSteps]
	}
	for _, s := range a.LevelSteps {
		s.Step, s.Error = clipText(s.GetStep(), 32), clipText(s.GetError(), maxLine)
	}
	boundNumbers(a)
	if u := a.Unknown; u != nil {
		u.JobName, u.StageName, u.Tenant, u.DiskName = clipText(plain.Clean(u.GetJobName()), 128), clipText(plain.Clean(u.GetStageName()), 128), clipText(plain.Clean(u.GetTenant()), 128), clipText(u.GetDiskName(), 128)
	}
}

func clipText(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// quarantineUnhealthy quarantines a node that reports problems. The leader
// starts its probation when they are gone.
func (s *nodeService) quarantineUnhealthy(ctx context.Context, n *facts.Node, load *droverv1.NodeLoad) error {
	if len(load.GetProblems()) == 0 || n.Draining {
		return nil
	}
	why := clipText(strings.Join(load.GetProblems(), "; "), 256)
	_, err := s.core.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: &droverv1.NodeDrainFact{Node: n.ID, Draining: true, Reason: why, Automatic: true}}})
	return err
}

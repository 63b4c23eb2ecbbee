package coordinator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// An unknown run was placed after the archive was saved from which the coordinator was restored.
// Its node freezes and reports it. If its task is pending, it becomes a suspended attempt, which no
// scheduler resumes (package facts); others are known only from reports. An operator decides about
// both. Until the nodes have had the time to report them, nothing is placed.

// Limits of unknown runs.
const (
	maxUnknownRuns     = 10_000 // of a node
	maxUnknownRunsList = 10_000 // in an answer
)

// unknownRun identifies an unknown run on its node.
type unknownRun struct {
	key facts.Key
	run int32
}

// reportUnknown stores or drops the report of an unknown run, and reports whether the attempt is
// one.
func (n *nodeSession) reportUnknown(k facts.Key, a *droverv1.SeenAttempt) bool {
	id := unknownRun{k, a.GetKey().GetRun()}
	if a.GetUnknown() == nil || a.GetPhase() > droverv1.Phase_PHASE_RUNNING {
		delete(n.unknown, id)
		return a.GetUnknown() != nil
	}
	if n.unknown == nil {
		n.unknown = map[unknownRun]*droverv1.SeenAttempt{}
	}
	if n.unknown[id] != nil || len(n.unknown) < maxUnknownRuns {
		n.unknown[id] = a
	}
	return true
}

// unknownRuns returns the unknown runs of a node, in no order.
func (s *sessions) unknownRuns(node int32) (out []*droverv1.SeenAttempt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		for _, a := range n.unknown {
			out = append(out, a)
		}
	}
	return out
}

// findUnknownRuns proposes that reported unknown runs of pending tasks become attempts again, and
// has those that have ended removed.
func (c *core) findUnknownRuns(ctx context.Context, n *facts.Node, r *droverv1.ReportRequest) error {
	var found []*droverv1.SeenAttempt
	c.view(func(f *facts.Facts) {
		for _, a := range r.GetAttempts() {
			switch {
			case a.GetUnknown() == nil:
			case a.GetPhase() > droverv1.Phase_PHASE_RUNNING:
				c.wanted.recordChange(f, nodeEpoch{n.ID, n.Epoch}, facts.KeyOf(a.GetKey()), a.GetKey().GetRun())
			case facts.RestoresOf(f).WhyNotAdoptable(n, a) == "":
				found = append(found, a)
			}
		}
	})
	for _, part := range splitIntoChunks(found, maxReportBytes) {
		e := &droverv1.Entry{Body: &droverv1.Entry_UnknownRuns{UnknownRuns: &droverv1.UnknownRunsFact{Node: n.ID, Epoch: n.Epoch, Found: part}}}
		if _, err := c.propose(ctx, n.Info.GetName(), e); err != nil {
			return err
		}
	}
	return nil
}

// earliestCycle returns when a leader may place tasks and grant leases: after a restore, once every
// node has had the time of a lease to report its attempts, and no lease of the coordinator that was
// lost is left. An attempt of the archive may have been replaced since, by one that still runs.
func earliestCycle(f *facts.Facts, now time.Time, lease time.Duration) time.Time {
	if facts.RestoresOf(f).AwaitsNodes() {
		return now.Add(lease)
	}
	return time.Time{}
}

// ListUnknownRuns lists the runs from before a restore that wait for an operator.
func (s *operatorService) ListUnknownRuns(ctx context.Context, req *connect.Request[droverv1.ListUnknownRunsRequest]) (*connect.Response[droverv1.ListUnknownRunsResponse], error) {
	if err := s.core.rights.needOperator(ctx, "list unknown runs"); err != nil {
		return nil, err
	}
	var all []*droverv1.UnknownRunInfo
	var err error
	s.core.view(func(f *facts.Facts) {
		nodes := f.Nodes()
		if name := req.Msg.GetNode(); name != "" {
			n := f.NodeByName(name)
			if n == nil {
				err = fault.New(fault.NotFound, "there is no node %q: `drover node list` shows them", clipText(name, 128))
				return
			}
			nodes = []*facts.Node{n}
		}
		for _, n := range nodes {
			all = append(all, s.core.unknownRunsOn(f, n)...)
		}
	})
	if err != nil {
		return nil, err
	}
	res := &droverv1.ListUnknownRunsResponse{Runs: all[:min(len(all), maxUnknownRunsList)]}
	res.More = int64(len(all) - len(res.Runs))
	return connect.NewResponse(res), nil
}

// unknownRunsOn returns the unknown runs on a node in key order: suspended attempts that wait for
// an operator, and those known only from the node's reports.
func (c *core) unknownRunsOn(f *facts.Facts, n *facts.Node) (out []*droverv1.UnknownRunInfo) {
	if !n.Up {
		return nil
	}
	var attempts []facts.Key
	if facts.RestoresOf(f).ClusterEpoch() > 0 { // else none of them is unknown
		attempts = f.AttemptsOn(n.ID)
	}
	for _, k := range attempts {
		if a := f.Attempt(k); a != nil && a.Node == n.ID && a.State == facts.AttemptLive && a.Suspension.Unknown {
			j := f.Job(k.Job)
			u := &droverv1.UnknownRun{JobName: j.Name, StageName: j.Spec.Stages[k.Stage].Name, Tenant: j.Spec.Tenant}
			out = append(out, unknownRunInfo(n, k.Proto(a.Run), u, a.Level, a.Seen()))
			out[len(out)-1].Adoptable = true
		}
	}
	for _, seen := range c.sessions.unknownRuns(n.ID) {
		k := facts.KeyOf(seen.GetKey())
		if a := f.Attempt(k); a != nil && a.Node == n.ID && a.Epoch == n.Epoch && a.Run == seen.GetKey().GetRun() && a.State.IsActive() {
			continue // it is an attempt again, but the node does not know yet
		}
		info := unknownRunInfo(n, seen.GetKey(), seen.GetUnknown(), seen.GetLevel(), seen)
		info.WhyNot = facts.RestoresOf(f).WhyNotAdoptable(n, seen)
		info.Adoptable = info.WhyNot == ""
		out = append(out, info)
	}
	slices.SortFunc(out, func(a, b *droverv1.UnknownRunInfo) int {
		return cmp.Or(facts.CompareKeys(facts.KeyOf(a.GetKey()), facts.KeyOf(b.GetKey())), cmp.Compare(a.GetKey().GetRun(), b.GetKey().GetRun()))
	})
	return out
}

func unknownRunInfo(n *facts.Node, key *droverv1.AttemptKey, u *droverv1.UnknownRun, level droverv1.Level, seen *droverv1.SeenAttempt) *droverv1.UnknownRunInfo {
	return &droverv1.UnknownRunInfo{Node: n.Info.GetName(), Key: key, JobName: u.GetJobName(), StageName: u.GetStageName(), Tenant: u.GetTenant(),
		Level: level, StartedMs: seen.GetStartedMs(), RunningMs: seen.GetRunningMs()}
}

// DecideUnknownRun adopts or kills an unknown run.
func (s *operatorService) DecideUnknownRun(ctx context.Context, req *connect.Request[droverv1.DecideUnknownRunRequest]) (*connect.Response[droverv1.DecideUnknownRunResponse], error) {
	if err := s.core.rights.needOperator(ctx, "decide about unknown runs"); err != nil {
		return nil, err
	}
	key, k := req.Msg.GetKey(), facts.KeyOf(req.Msg.GetKey())
	var n *facts.Node
	known := false
	s.core.view(func(f *facts.Facts) {
		if n = f.NodeByName(req.Msg.GetNode()); n != nil {
			known = slices.ContainsFunc(s.core.unknownRunsOn(f, n), func(u *droverv1.UnknownRunInfo) bool {
				return facts.KeyOf(u.GetKey()) == k && u.GetKey().GetRun() == key.GetRun()
			})
		}
	})
	if !known {
		return nil, fault.New(fault.NotFound, "node %q has no such unknown run: `drover operator runs list` shows them", clipText(req.Msg.GetNode(), 128))
	}
	u := &droverv1.UnknownRunsFact{Node: n.ID, Epoch: n.Epoch, Key: key, Decision: req.Msg.GetDecision()}
	for _, seen := range s.core.sessions.unknownRuns(n.ID) {
		if adopt := droverv1.UnknownRunDecision_UNKNOWN_RUN_DECISION_ADOPT; u.Decision == adopt && facts.KeyOf(seen.GetKey()) == k && seen.GetKey().GetRun() == key.GetRun() {
			u.Found = append(u.Found, seen) // its task may be pending by now
		}
	}
	res, err := s.core.propose(ctx, caller(ctx).name, &droverv1.Entry{Body: &droverv1.Entry_UnknownRuns{UnknownRuns: u}})
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	s.core.view(func(f *facts.Facts) { s.core.wanted.recordChange(f, nodeEpoch{n.ID, n.Epoch}, k, key.GetRun()) })
	return connect.NewResponse(&droverv1.DecideUnknownRunResponse{}), nil
}

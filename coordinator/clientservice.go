package coordinator

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/names"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/scheduler/policies"
)

// MaxListed is the most jobs of a list, and the most sums of a usage report.
const MaxListed = 10_000

// Limits of responses.
const (
	maxTasks   = 20_000 // of one ListTasks response
	maxDigests = 10_000
	watchGap   = 100 * time.Millisecond // between two updates of a running job
)

// clientService serves users and operators.
type clientService struct {
	core        *core
	rates       *rates
	submissions *submitter
	events      *eventReader
}

func newClientService(c *core) *clientService {
	return &clientService{core: c, rates: newRates(c.cfg.SubmitRate), submissions: &submitter{c},
		events: &eventReader{view: c.view, rights: c.rights, pastJobs: c.pastJobs, changed: c.changed, looks: newLookTurns()}}
}

var _ droverv1connect.ClientServiceHandler = (*clientService)(nil)

// Status returns the state of the cluster.
func (s *clientService) Status(ctx context.Context, _ *connect.Request[droverv1.StatusRequest]) (*connect.Response[droverv1.StatusResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.StatusResponse{Version: version.Version, Leader: s.core.replica.Leader(), Caller: caller(ctx).name, Operator: s.core.rights.operator(caller(ctx)),
		CertificateUntilMs: s.core.certificates.untilMS()}
	s.core.view(func(f *facts.Facts) {
		res.Cluster, res.Index, res.Nodes = f.Cluster(), f.Index(), int32(len(f.Nodes()))
		for _, n := range f.Nodes() {
			if n.Up {
				res.NodesUp++
			}
		}
		_, live := f.JobCount()
		res.JobsRunning = int32(live)
		res.Scheduler, _ = s.core.schedulerOf(f)
		at, by := f.Clock().Step()
		res.ClockSteppedAtMs, res.ClockSteppedMs = at/1e6, by.Milliseconds()
	})
	s.core.addHealth(res)
	return connect.NewResponse(res), nil
}

// schedulerOf returns the policy in force and its parameters. Those that another version stored and
// this one does not have are left out.
func (c *core) schedulerOf(f *facts.Facts) (string, map[string]string) {
	if name, params, _ := chosenScheduler(f); name != "" {
		return name, params
	}
	return c.defaultScheduler()
}

// chosenScheduler returns the policy that an operator chose, its parameters, and the names of those
// that are left out; no name if none was chosen.
func chosenScheduler(f *facts.Facts) (name string, params map[string]string, unknown []string) {
	name, params = f.Scheduler()
	params, unknown = policies.WithoutUnknown(name, params)
	return name, params, unknown
}

// newProjection returns an empty projection for the current scheduler.
func (c *core) newProjection(hosts hostSource) *projection {
	p := newProjection(hosts)
	var known guaranteeCache
	p.guaranteesDeadlines = func(f *facts.Facts) bool { return known.get(c.schedulerOf(f)) }
	return p
}

// ListNodes returns all nodes.
func (s *clientService) ListNodes(ctx context.Context, _ *connect.Request[droverv1.ListNodesRequest]) (*connect.Response[droverv1.ListNodesResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListNodesResponse{}
	s.core.view(func(f *facts.Facts) {
		suspended := suspendedByNode(f)
		for _, n := range f.Nodes() {
			last, load := s.core.sessions.status(n.ID)
			st := &droverv1.NodeStatus{Node: n.ID, Info: n.Info, State: nodeState(n), Draining: n.Draining, Used: n.Used.Proto(), Attempts: n.Attempts, Load: load,
				Reason: s.core.rights.visibleReason(ctx, n.Reason), RetryAtMs: n.RetryAt / 1e6, Probation: n.Probation, Suspended: suspended[n.ID], DrainDeadlineMs: n.DrainDeadline / 1e6, Staying: s.stayingTexts(ctx, f, n), Maintenance: maintenanceProto(n), UnknownRuns: int32(len(s.core.unknownRunsOn(f, n)))}
			if !last.IsZero() {
				st.LastReportMs = last.UnixMilli()
			}
			res.Nodes = append(res.Nodes, st)
		}
	})
	return connect.NewResponse(res), nil
}

func nodeState(n *facts.Node) string {
	switch {
	case !n.Up:
		return "down"
	case n.IsQuarantined():
		return "quarantined"
	case n.Draining && n.Attempts == 0:
		return "drained"
	case n.Probation:
		return "probation"
	default:
		return "up"
	}
}

// DrainNode drains a node, or makes it schedulable again.
func (s *clientService) DrainNode(ctx context.Context, req *connect.Request[droverv1.DrainNodeRequest]) (*connect.Response[droverv1.DrainNodeResponse], error) {
	if err := s.core.rights.needOperator(ctx, "drain nodes"); err != nil {
		return nil, err
	}
	id, err := s.nodeID(req.Msg.GetNode())
	if err != nil {
		return nil, err
	}
	d := &droverv1.NodeDrainFact{Node: id, Draining: !req.Msg.GetOff()}
	if d.Draining {
		d.Reason = "drained by " + caller(ctx).name
	}
	if ms := req.Msg.GetDeadlineMs(); ms != 0 {
		if req.Msg.GetOff() || ms < 0 || ms > maxDrainDeadline.Milliseconds() {
			return nil, fault.New(fault.Invalid, "a deadline of %d ms: give a drain one of at most %s", ms, maxDrainDeadline)
		}
		d.Deadline, d.DeadlineMs = s.core.now().UnixNano()+ms*1e6, ms
	}
	res, err := s.core.propose(ctx, caller(ctx).name, &droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: d}})
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.DrainNodeResponse{}), nil
}

// ApplyTenants creates or changes tenants; those not named are unchanged.
func (s *clientService) ApplyTenants(ctx context.Context, req *connect.Request[droverv1.ApplyTenantsRequest]) (*connect.Response[droverv1.ApplyTenantsResponse], error) {
	if err := s.core.rights.needOperator(ctx, "change tenants"); err != nil {
		return nil, err
	}
	for _, t := range req.Msg.GetTenants() {
		if !names.Valid(t.GetName()) { // no job could be of it
			return nil, fault.New(fault.Invalid, "tenant %q: use 1 to 128 letters, digits, '.', '_' or '-', a letter or digit first", clipText(t.GetName(), 128))
		}
		if t.GetWeight() == 0 {
			t.Weight = 1
		}
	}
	if err := checkTenantCaps(req.Msg.GetTenants()); err != nil {
		return nil, err
	}
	var tooDeep error
	s.core.view(func(f *facts.Facts) { tooDeep = f.Checks().CheckTreeDepth(req.Msg.GetTenants()) })
	if tooDeep != nil {
		return nil, tooDeep
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{Tenants: req.Msg.GetTenants()}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.ApplyTenantsResponse{Changed: int32(res.Changed)}), nil
}

// DeleteTenant deletes a tenant that has no live jobs, no tenants below it and no stored secrets.
func (s *clientService) DeleteTenant(ctx context.Context, req *connect.Request[droverv1.DeleteTenantRequest]) (*connect.Response[droverv1.DeleteTenantResponse], error) {
	if err := s.core.rights.needOperator(ctx, "delete tenants"); err != nil {
		return nil, err
	}
	name := req.Msg.GetName()
	e := &droverv1.Entry{Body: &droverv1.Entry_TenantDeleted{TenantDeleted: &droverv1.TenantDeletedFact{Name: name}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.DeleteTenantResponse{Name: name}), nil
}

// ListTenants returns the tenants and what they use.
func (s *clientService) ListTenants(ctx context.Context, _ *connect.Request[droverv1.ListTenantsRequest]) (*connect.Response[droverv1.ListTenantsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListTenantsResponse{}
	s.core.view(func(f *facts.Facts) { res.Tenants = s.core.rights.visibleTenants(ctx, f) })
	return connect.NewResponse(res), nil
}

// Events streams past events, oldest first, and with follow also new ones.
func (s *clientService) Events(ctx context.Context, req *connect.Request[droverv1.EventsRequest], stream *connect.ServerStream[droverv1.Event]) error {
	if err := s.core.rights.needUser(ctx); err != nil {
		return err
	}
	return s.events.stream(ctx, req.Msg, stream)
}

// GetScheduler returns the current policy and those available.
func (s *clientService) GetScheduler(ctx context.Context, _ *connect.Request[droverv1.GetSchedulerRequest]) (*connect.Response[droverv1.GetSchedulerResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.schedulerStatus()), nil
}

func (s *clientService) schedulerStatus() *droverv1.GetSchedulerResponse {
	res := &droverv1.GetSchedulerResponse{}
	for _, n := range policies.Names() {
		if i, err := policies.Get(n); err == nil && !i.SimOnly {
			res.Available = append(res.Available, n)
		}
	}
	s.core.view(func(f *facts.Facts) { res.Name, res.Params = s.core.schedulerOf(f) })
	res.Pending = s.core.waits.sums()
	return res
}

// SetScheduler replaces the policy, from the next cycle on.
func (s *clientService) SetScheduler(ctx context.Context, req *connect.Request[droverv1.SetSchedulerRequest]) (*connect.Response[droverv1.GetSchedulerResponse], error) {
	if err := s.core.rights.needOperator(ctx, "choose the scheduler"); err != nil {
		return nil, err
	}
	i, err := policies.Get(req.Msg.GetName())
	if err != nil { // its text names policies for simulations too
		return nil, fault.New(fault.Invalid, "unknown scheduler %q: use one of %s", req.Msg.GetName(), strings.Join(s.schedulerStatus().GetAvailable(), ", "))
	}
	if i.SimOnly {
		return nil, fault.New(fault.Unsupported, "scheduler %q needs knowledge of the future: it works only in simulations", i.Name)
	}
	if _, err := policies.New(req.Msg.GetName(), req.Msg.GetParams()); err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	select {
	case s.core.deciding <- struct{}{}:
		defer func() { <-s.core.deciding }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Scheduler{Scheduler: &droverv1.SchedulerFact{Name: req.Msg.GetName(), Params: req.Msg.GetParams()}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.schedulerStatus()), nil
}

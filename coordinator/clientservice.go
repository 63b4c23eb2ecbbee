package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/names"
	"github.com/drover-run/drover/internal/plain"
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

// chosenScheduler returns the policy that an operator chose, its parameters, and the names of those that are
// left out; no name if none was chosen.
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

// HasBlobs returns which of the digests must be uploaded. It tells any submitter of any file whether it is here:
// docs/explanation/threat-model.md.
func (s *clientService) HasBlobs(ctx context.Context, req *connect.Request[droverv1.HasBlobsRequest]) (*connect.Response[droverv1.HasBlobsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if n := len(req.Msg.GetDigests()); n > maxDigests {
		return nil, fault.New(fault.Exhausted, "%d digests, at most %d can be asked for at once", n, maxDigests)
	}
	res := &droverv1.HasBlobsResponse{}
	for _, d := range req.Msg.GetDigests() {
		if err := blobs.CheckDigest(d); err != nil {
			return nil, err
		}
		if !s.core.files.ask(ctx, d) {
			res.Missing = append(res.Missing, d)
		}
	}
	return connect.NewResponse(res), nil
}

// PutBlob stores a file. It is durable, on a majority of the coordinators, and a
// fact before the response.
func (s *clientService) PutBlob(ctx context.Context, stream *connect.ClientStream[droverv1.PutBlobRequest]) (*connect.Response[droverv1.PutBlobResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if !stream.Receive() {
		return nil, errors.Join(fault.New(fault.Invalid, "an upload without a message"), stream.Err())
	}
	digest, size := stream.Msg().GetDigest(), stream.Msg().GetSize()
	if err := blobs.CheckDigest(digest); err != nil {
		return nil, err
	}
	if err := s.core.disk.requireSpace(size); err != nil {
		return nil, err
	}
	done, err := s.core.uploads.claim(caller(ctx), digest, size)
	if err != nil {
		return nil, err
	}
	stored := false
	defer func() { done(stored) }()
	s.core.files.touch(digest)
	r := &uploadReader{stream: stream, rest: bytes.Clone(stream.Msg().GetData())}
	if err := s.core.blobs.Put(digest, size, r); err != nil {
		return nil, err
	}
	if err := s.core.peers.keeper().replicate(ctx, fileSize{digest, size}); err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: digest, Size: size}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	if !s.core.files.has(ctx, digest) { // it was collected in the meantime
		return nil, fault.New(fault.Unavailable, "%s was removed while it was sent: send it again", digest)
	}
	stored = true
	return connect.NewResponse(&droverv1.PutBlobResponse{Digest: digest}), nil
}

// uploadReader reads the bytes of an upload's messages.
type uploadReader struct {
	stream *connect.ClientStream[droverv1.PutBlobRequest]
	rest   []byte
}

// Read implements io.Reader.
func (r *uploadReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// ListJobs returns the jobs that the caller may read, newest first.
func (s *clientService) ListJobs(ctx context.Context, req *connect.Request[droverv1.ListJobsRequest]) (*connect.Response[droverv1.ListJobsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if err := checkStates(req.Msg.GetStates()); err != nil {
		return nil, err
	}
	limit := int(req.Msg.GetLimit())
	if limit <= 0 || limit > MaxListed {
		limit = MaxListed
	}
	res := &droverv1.ListJobsResponse{}
	withEnded, known := listsEnded(req.Msg), map[uint64]bool{} // jobs that are listed or counted already
	expected, now := s.expected(ctx), s.core.now()
	s.core.view(func(f *facts.Facts) {
		ids := f.JobIDs()
		slices.Reverse(ids)
		for _, id := range ids {
			j := f.Job(id)
			if !isListed(req.Msg, j, caller(ctx).name) || s.core.rights.needJob(ctx, mayRead, f, j) != nil {
				continue
			}
			if withEnded {
				known[id] = true
			}
			if len(res.Jobs) < limit {
				res.Jobs = append(res.Jobs, s.core.jobs.summary(f, j))
				s.core.jobs.expectedOfJob(f, expected, res.Jobs[len(res.Jobs)-1], now)
			} else {
				res.More++
			}
		}
	})
	if withEnded {
		if err := s.addPastJobs(ctx, req.Msg, limit, known, res); err != nil {
			return nil, err
		}
	}
	return connect.NewResponse(res), nil
}

// checkStates returns an error that names the states of jobs if a list is to have jobs of another one, of which there are none.
func checkStates(states []droverv1.JobState) error {
	for _, s := range states {
		if _, known := droverv1.JobState_name[int32(s)]; known && s != droverv1.JobState_JOB_STATE_UNSPECIFIED {
			continue
		}
		var names []string
		for n := range int32(len(droverv1.JobState_name)) - 1 {
			names = append(names, droverv1.JobState(n+1).String())
		}
		return fault.New(fault.Invalid, "jobs have no state %d: want some of %s", s, strings.Join(names, ", "))
	}
	return nil
}

// listsEnded reports whether a list contains ended jobs.
func listsEnded(q *droverv1.ListJobsRequest) bool {
	return len(q.GetStates()) == 0 && q.GetAll() || slices.ContainsFunc(q.GetStates(), ended)
}

// isListed reports whether a job matches the filters of a list.
func isListed(q *droverv1.ListJobsRequest, j *facts.Job, caller string) bool {
	switch {
	case len(q.GetStates()) > 0 && !slices.Contains(q.GetStates(), j.State),
		len(q.GetStates()) == 0 && j.HasEnded() && !q.GetAll(),
		q.GetTenant() != "" && q.GetTenant() != j.Spec.Tenant,
		q.GetMine() && j.Actor != caller:
		return false
	}
	return strings.HasPrefix(j.Name, q.GetNamePrefix())
}

// GetJob returns the status of a job.
func (s *clientService) GetJob(ctx context.Context, req *connect.Request[droverv1.GetJobRequest]) (*connect.Response[droverv1.GetJobResponse], error) {
	res, err := s.getJob(ctx, req.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

func (s *clientService) getJob(ctx context.Context, name string) (res *droverv1.GetJobResponse, err error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, name); err == nil {
			err = s.core.rights.needJob(ctx, mayRead, f, j)
		}
		if err == nil {
			res = s.core.jobs.status(f, j)
			res.MayOperate = s.core.rights.needJob(ctx, mayOperate, f, j) == nil
			t := f.Tenant(j.Spec.Tenant)
			res.MaySubmit = t != nil && s.core.rights.need(ctx, maySubmit, t.Spec) == nil
		}
	})
	if err == nil {
		s.addExpected(ctx, res)
	}
	if errors.Is(err, fault.NotFound) {
		j, pastErr := s.core.pastJobs.find(ctx, name)
		switch {
		case pastErr == nil:
			return s.core.pastJobs.status(ctx, j), nil
		case !errors.Is(pastErr, fault.NotFound):
			return nil, pastErr
		}
	}
	return res, err
}

// WatchJob streams a job's status when it changes, at most every watchGap while
// it runs, and its end at once.
func (s *clientService) WatchJob(ctx context.Context, req *connect.Request[droverv1.GetJobRequest], stream *connect.ServerStream[droverv1.GetJobResponse]) error {
	name := req.Msg.GetJob()
	var last *droverv1.GetJobResponse
	for {
		changes, ends, read := s.core.changed.next(), s.core.jobEnded.next(), time.Now() // taken before the read, so that no change is missed
		now, err := s.watchedJob(ctx, name)
		if err != nil {
			return err
		}
		jobEnded := ended(now.GetJob().GetState())
		if jobEnded || !proto.Equal(last, now) {
			if err := stream.Send(now); err != nil || jobEnded {
				return err
			}
			last = now
		}
		name = fmt.Sprint(now.GetJob().GetJob()) // another job may take the name later
		if err := s.waitForJob(ctx, changes, ends, now.GetJob().GetJob(), read.Add(watchGap)); err != nil {
			return err
		}
	}
}

// watchedJob is getJob in the caller's turn: each change of anything wakes all
// watches.
func (s *clientService) watchedJob(ctx context.Context, name string) (*droverv1.GetJobResponse, error) {
	done, err := s.core.watchTurns.wait(ctx, caller(ctx))
	if err != nil {
		return nil, err
	}
	defer done()
	return s.getJob(ctx, name)
}

// waitForJob waits for a change, and until a time unless the job has ended: until then it hears only of jobs that
// end, since each change of anything would wake all watches.
func (s *clientService) waitForJob(ctx context.Context, changes, ends <-chan struct{}, job uint64, until time.Time) error {
	due := time.NewTimer(time.Until(until))
	defer due.Stop()
	for passed := false; !passed; {
		select {
		case <-ends:
			ends = s.core.jobEnded.next()
			over := false
			s.core.view(func(f *facts.Facts) { j := f.Job(job); over = j == nil || j.HasEnded() })
			if over {
				return nil
			}
		case <-due.C:
			passed = true
		case <-ctx.Done():
			return errStreamEnded
		}
	}
	select {
	case <-changes:
		return nil
	case <-ctx.Done():
		return errStreamEnded
	}
}

func ended(s droverv1.JobState) bool {
	j := facts.Job{State: s}
	return j.HasEnded()
}

// StopJob stops a live job. One whose result is being published is stopped only if that fails. Stopping an ended one
// succeeds.
func (s *clientService) StopJob(ctx context.Context, req *connect.Request[droverv1.StopJobRequest]) (*connect.Response[droverv1.StopJobResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if plain.HasControl(req.Msg.GetReason()) {
		return nil, fault.New(fault.Invalid, "the reason has a control character or is no UTF-8: give one line of text")
	}
	var id uint64
	var err error
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, req.Msg.GetJob()); err == nil {
			id, err = j.ID, s.core.rights.needJob(ctx, mayOperate, f, j)
		}
	})
	if err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: id, Reason: req.Msg.GetReason(), AfterCommit: true}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.StopJobResponse{}), nil
}

// ListTasks returns the tasks of a job with their attempts.
func (s *clientService) ListTasks(ctx context.Context, req *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListTasksResponse{}
	var err error
	gone := false // not in the facts
	s.core.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = s.core.rights.findJob(ctx, f, req.Msg.GetJob()); err == nil {
			err = s.core.rights.needJob(ctx, mayRead, f, j)
		}
		if err == nil {
			err = s.core.jobs.addTasks(f, j, req.Msg, res)
		}
		gone = j == nil && errors.Is(err, fault.NotFound)
	})
	if gone {
		j, pastErr := s.core.pastJobs.find(ctx, req.Msg.GetJob())
		if pastErr == nil {
			res, err = s.core.pastJobs.tasks(j, req.Msg)
		} else if !errors.Is(pastErr, fault.NotFound) {
			err = pastErr
		}
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
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

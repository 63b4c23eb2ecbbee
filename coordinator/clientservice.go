package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
	"github.com/drover-run/drover/scheduler/policies"
)

// Limits of answers.
const (
	maxListed   = 10_000
	maxTasks    = 20_000 // of one ListTasks answer
	maxDigests  = 10_000
	watchGap    = 100 * time.Millisecond // between two updates of a job that runs on
	eventsBatch = 500
)

// clientService answers users and operators.
type clientService struct {
	*core
	rates *rates
}

var _ droverv1connect.ClientServiceHandler = (*clientService)(nil)

// Status says how the cluster is.
func (s *clientService) Status(ctx context.Context, _ *connect.Request[droverv1.StatusRequest]) (*connect.Response[droverv1.StatusResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.StatusResponse{Version: version.Version, Leader: s.replica.Leader()}
	s.view(func(f *facts.Facts) {
		res.Cluster, res.Index, res.Nodes = f.Cluster(), f.Index(), int32(len(f.Nodes()))
		for _, n := range f.Nodes() {
			if n.Up {
				res.NodesUp++
			}
		}
		_, live := f.JobCount()
		res.JobsRunning = int32(live)
		res.Scheduler, _ = s.schedulerOf(f)
	})
	return connect.NewResponse(res), nil
}

func (c *core) schedulerOf(f *facts.Facts) (string, map[string]string) {
	if name, params := f.Scheduler(); name != "" {
		return name, params
	}
	return c.cfg.Scheduler, c.cfg.SchedulerParams
}

// newProjection makes a projection under the scheduler in force.
func (c *core) newProjection(hosts hostSource) *projection {
	p := newProjection(hosts)
	p.guarantees = func(f *facts.Facts) bool { return guarantees(c.schedulerOf(f)) }
	return p
}

// HasBlobs lists which of the digests must be uploaded.
func (s *clientService) HasBlobs(ctx context.Context, req *connect.Request[droverv1.HasBlobsRequest]) (*connect.Response[droverv1.HasBlobsResponse], error) {
	if err := s.needUser(ctx); err != nil {
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
		s.touch(d)
		if !s.hasBlob(d) {
			res.Missing = append(res.Missing, d)
		}
	}
	return connect.NewResponse(res), nil
}

func (s *clientService) hasBlob(d string) (has bool) {
	s.view(func(f *facts.Facts) { has = f.Blob(d) != nil })
	if has {
		_, has = s.blobs.Has(d)
	}
	return has
}

// PutBlob takes a file; it is durable and a fact before the answer.
func (s *clientService) PutBlob(ctx context.Context, stream *connect.ClientStream[droverv1.PutBlobRequest]) (*connect.Response[droverv1.PutBlobResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	if !stream.Receive() {
		return nil, errors.Join(fault.New(fault.Invalid, "an upload without a message"), stream.Err())
	}
	digest, size := stream.Msg().GetDigest(), stream.Msg().GetSize()
	s.touch(digest)
	r := &uploadReader{stream: stream, rest: bytes.Clone(stream.Msg().GetData())}
	if err := s.blobs.Put(digest, size, r); err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: digest, Size: size}}}
	res, err := s.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	if !s.hasBlob(digest) { // it was collected at the same moment
		return nil, fault.New(fault.Unavailable, "%s was removed while it was sent: send it again", digest)
	}
	return connect.NewResponse(&droverv1.PutBlobResponse{Digest: digest}), nil
}

// uploadReader reads the bytes of an upload's messages.
type uploadReader struct {
	stream *connect.ClientStream[droverv1.PutBlobRequest]
	rest   []byte
}

// Read gives bytes in order.
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

// ListJobs lists jobs that the caller may read, newest first.
func (s *clientService) ListJobs(ctx context.Context, req *connect.Request[droverv1.ListJobsRequest]) (*connect.Response[droverv1.ListJobsResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	limit := int(req.Msg.GetLimit())
	if limit <= 0 || limit > maxListed {
		limit = maxListed
	}
	res := &droverv1.ListJobsResponse{}
	s.view(func(f *facts.Facts) {
		ids := f.JobIDs()
		slices.Reverse(ids)
		for _, id := range ids {
			j := f.Job(id)
			if len(res.Jobs) >= limit || (j.HasEnded() && !req.Msg.GetAll()) || s.needJob(ctx, mayRead, f, j) != nil {
				continue
			}
			res.Jobs = append(res.Jobs, s.summary(f, j))
		}
	})
	return connect.NewResponse(res), nil
}

// GetJob tells all about one job.
func (s *clientService) GetJob(ctx context.Context, req *connect.Request[droverv1.GetJobRequest]) (*connect.Response[droverv1.GetJobResponse], error) {
	res, err := s.getJob(ctx, req.Msg.GetJob())
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

func (s *clientService) getJob(ctx context.Context, name string) (res *droverv1.GetJobResponse, err error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	s.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = findJob(f, name); err == nil {
			err = s.needJob(ctx, mayRead, f, j)
		}
		if err == nil {
			res = s.jobStatus(f, j)
		}
	})
	if err == nil {
		s.addStarts(ctx, res)
	}
	return res, err
}

// WatchJob streams a job's status when it changes, at most every watchGap
// while it runs, and its end at once.
func (s *clientService) WatchJob(ctx context.Context, req *connect.Request[droverv1.GetJobRequest], stream *connect.ServerStream[droverv1.GetJobResponse]) error {
	name := req.Msg.GetJob()
	var last *droverv1.GetJobResponse
	var sent time.Time
	for {
		news := s.newsCh() // before reading, so that nothing is missed
		now, err := s.getJob(ctx, name)
		if err != nil {
			return err
		}
		name = fmt.Sprint(now.GetJob().GetJob()) // the name may be taken by another job later
		over := ended(now.GetJob().GetState())
		gap := watchGap - time.Since(sent)
		if over || (gap <= 0 && !proto.Equal(last, now)) {
			if err := stream.Send(now); err != nil || over {
				return err
			}
			last, sent, gap = now, time.Now(), 0
		}
		if err := waitNews(ctx, news, gap, !proto.Equal(last, now)); err != nil {
			return err
		}
	}
}

// waitNews waits for news, or for gap when something is ready to be sent then.
func waitNews(ctx context.Context, news <-chan struct{}, gap time.Duration, ready bool) error {
	var due <-chan time.Time
	if ready {
		t := time.NewTimer(max(gap, time.Millisecond))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-news:
		return nil
	case <-due:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "the watch ended: watch again")
	}
}

func ended(s droverv1.JobState) bool {
	j := facts.Job{State: s}
	return j.HasEnded()
}

// StopJob ends a job that runs. Stopping an ended one is fine.
func (s *clientService) StopJob(ctx context.Context, req *connect.Request[droverv1.StopJobRequest]) (*connect.Response[droverv1.StopJobResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	var id uint64
	var err error
	s.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = findJob(f, req.Msg.GetJob()); err == nil {
			id, err = j.ID, s.needJob(ctx, mayOperate, f, j)
		}
	})
	if err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: id, Reason: req.Msg.GetReason()}}}
	res, err := s.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.StopJobResponse{}), nil
}

// ListTasks lists the tasks of a job with their attempts.
func (s *clientService) ListTasks(ctx context.Context, req *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListTasksResponse{}
	var err error
	s.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = findJob(f, req.Msg.GetJob()); err == nil {
			err = s.needJob(ctx, mayRead, f, j)
		}
		if err == nil {
			err = s.tasks(f, j, req.Msg.GetStage(), res)
		}
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(res), nil
}

// ListNodes lists all nodes.
func (s *clientService) ListNodes(ctx context.Context, _ *connect.Request[droverv1.ListNodesRequest]) (*connect.Response[droverv1.ListNodesResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListNodesResponse{}
	s.view(func(f *facts.Facts) {
		for _, n := range f.Nodes() {
			last, load := s.sessions.status(n.ID)
			st := &droverv1.NodeStatus{Node: n.ID, Info: n.Info, State: nodeState(n), Draining: n.Draining, Used: n.Used.Proto(), Attempts: n.Attempts, Load: load,
				Why: n.Why, BackMs: n.Back / 1e6, Trial: n.Trial}
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
	case n.Draining && n.Back > 0:
		return "held off"
	case n.Draining && n.Attempts == 0:
		return "drained"
	case n.Trial:
		return "trial"
	default:
		return "up"
	}
}

// DrainNode has a node take no new work, or take it again.
func (s *clientService) DrainNode(ctx context.Context, req *connect.Request[droverv1.DrainNodeRequest]) (*connect.Response[droverv1.DrainNodeResponse], error) {
	if err := s.needOperator(ctx, "drain nodes"); err != nil {
		return nil, err
	}
	id := int32(0)
	s.view(func(f *facts.Facts) {
		if n := f.NodeByName(req.Msg.GetNode()); n != nil {
			id = n.ID
		}
	})
	if id == 0 {
		return nil, fault.New(fault.NotFound, "there is no node %q: `drover node list` shows them", clipText(req.Msg.GetNode(), 128))
	}
	d := &droverv1.NodeDrainFact{Node: id, Draining: !req.Msg.GetOff()}
	if d.Draining {
		d.Why = "drained by " + caller(ctx).name
	}
	res, err := s.propose(ctx, caller(ctx).name, &droverv1.Entry{Body: &droverv1.Entry_NodeDrain{NodeDrain: d}})
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.DrainNodeResponse{}), nil
}

// ApplyTenants makes tenants or changes them; those not named stay.
func (s *clientService) ApplyTenants(ctx context.Context, req *connect.Request[droverv1.ApplyTenantsRequest]) (*connect.Response[droverv1.ApplyTenantsResponse], error) {
	if err := s.needOperator(ctx, "change tenants"); err != nil {
		return nil, err
	}
	for _, t := range req.Msg.GetTenants() {
		if t.GetWeight() == 0 {
			t.Weight = 1
		}
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{Tenants: req.Msg.GetTenants()}}}
	res, err := s.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.ApplyTenantsResponse{Changed: int32(res.Changed)}), nil
}

// ListTenants lists the tenants and what they use.
func (s *clientService) ListTenants(ctx context.Context, _ *connect.Request[droverv1.ListTenantsRequest]) (*connect.Response[droverv1.ListTenantsResponse], error) {
	if err := s.needUser(ctx); err != nil {
		return nil, err
	}
	res := &droverv1.ListTenantsResponse{}
	s.view(func(f *facts.Facts) { res.Tenants = tenantStatus(f) })
	return connect.NewResponse(res), nil
}

// Events streams what happened, oldest first, and with follow what happens.
func (s *clientService) Events(ctx context.Context, req *connect.Request[droverv1.EventsRequest], stream *connect.ServerStream[droverv1.Event]) error {
	if err := s.needUser(ctx); err != nil {
		return err
	}
	q := req.Msg
	job, err := s.eventsOf(ctx, q.GetJob())
	if err != nil {
		return err
	}
	left := int(q.GetLimit())
	if left <= 0 {
		left = -1
	}
	seq := uint64(0)
	if left > 0 && !q.GetFollow() {
		seq = s.skipTo(ctx, q, job, left)
	}
	for {
		news := s.newsCh()
		list, next := s.readEvents(ctx, q, job, seq)
		for _, e := range list {
			if left == 0 {
				return nil
			}
			if err := stream.Send(e); err != nil {
				return err
			}
			left--
		}
		if next > seq {
			seq = next
			continue
		}
		if !q.GetFollow() {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "the stream ended: ask again")
		}
	}
}

// eventsOf gives the number of the job whose events are wanted, 0 for all.
func (s *clientService) eventsOf(ctx context.Context, name string) (id uint64, err error) {
	if name == "" {
		return 0, nil
	}
	s.view(func(f *facts.Facts) {
		var j *facts.Job
		if j, err = findJob(f, name); err == nil {
			id, err = j.ID, s.needJob(ctx, mayRead, f, j)
		}
	})
	return id, err
}

// skipTo gives the sequence number after which the last n matching events
// come.
func (s *clientService) skipTo(ctx context.Context, q *droverv1.EventsRequest, job uint64, n int) (seq uint64) {
	s.view(func(f *facts.Facts) {
		var at []uint64
		for _, e := range f.EventsSince(0, facts.MaxEvents) {
			if s.showEvent(ctx, f, q, job, e) {
				at = append(at, e.Seq)
			}
		}
		if len(at) > n {
			seq = at[len(at)-n] - 1
		}
	})
	return seq
}

// readEvents gives the matching ones among the next events after seq, and the
// number to go on from.
func (s *clientService) readEvents(ctx context.Context, q *droverv1.EventsRequest, job, seq uint64) (out []*droverv1.Event, next uint64) {
	next = seq
	s.view(func(f *facts.Facts) {
		for _, e := range f.EventsSince(seq, eventsBatch) {
			next = e.Seq
			if s.showEvent(ctx, f, q, job, e) {
				out = append(out, &droverv1.Event{Index: e.Index, AtMs: e.At / 1e6, Actor: e.Actor, Kind: e.Kind, Job: e.Job, Task: e.Task, Node: e.Node, Text: e.Text})
			}
		}
	})
	return out, next
}

// showEvent tells whether the caller asked for an event and may see it. Events
// of jobs that left the memory are for operators.
func (s *clientService) showEvent(ctx context.Context, f *facts.Facts, q *droverv1.EventsRequest, job uint64, e *facts.Event) bool {
	if e.At/1e6 < q.GetSinceMs() || (job != 0 && e.JobID != job) {
		return false
	}
	if e.JobID == 0 || s.operator(caller(ctx)) {
		return true
	}
	j := f.Job(e.JobID)
	return j != nil && s.needJob(ctx, mayRead, f, j) == nil
}

// GetScheduler tells which policy decides and which there are.
func (s *clientService) GetScheduler(ctx context.Context, _ *connect.Request[droverv1.GetSchedulerRequest]) (*connect.Response[droverv1.GetSchedulerResponse], error) {
	if err := s.needUser(ctx); err != nil {
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
	s.view(func(f *facts.Facts) { res.Name, res.Params = s.schedulerOf(f) })
	return res
}

// SetScheduler makes another policy decide, from the next cycle on.
func (s *clientService) SetScheduler(ctx context.Context, req *connect.Request[droverv1.SetSchedulerRequest]) (*connect.Response[droverv1.GetSchedulerResponse], error) {
	if err := s.needOperator(ctx, "choose the scheduler"); err != nil {
		return nil, err
	}
	if i, err := policies.Get(req.Msg.GetName()); err == nil && i.SimOnly {
		return nil, fault.New(fault.Unsupported, "scheduler %q knows the future: it works in simulations only", i.Name)
	}
	if _, err := policies.New(req.Msg.GetName(), req.Msg.GetParams()); err != nil {
		return nil, fault.New(fault.Invalid, "%w", err)
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Scheduler{Scheduler: &droverv1.SchedulerFact{Name: req.Msg.GetName(), Params: req.Msg.GetParams()}}}
	res, err := s.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	return connect.NewResponse(s.schedulerStatus()), nil
}

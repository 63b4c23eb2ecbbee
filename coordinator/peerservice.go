package coordinator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/version"
)

// peerService serves the other coordinators.
type peerService struct{ p *peers }

var _ droverv1connect.PeerServiceHandler = (*peerService)(nil)

// log returns the open log. Unavailable: this server is entering a cluster or opening its log.
func (s *peerService) log() (*replica.Replica, error) {
	switch r := s.p.replica.Load(); {
	case r != nil:
		return r, nil
	case s.p.entering.Load():
		return nil, fault.New(fault.Unavailable, "coordinator %q is not in a cluster yet", s.p.c.cfg.ID)
	default:
		return nil, s.p.opening()
	}
}

// opening returns the error of a server that does not know yet whether it has a log.
func (p *peers) opening() error {
	return fault.New(fault.Unavailable, "coordinator %q is opening its log", p.c.cfg.ID)
}

// Describe returns the state of this server, and what it knows of the caller's log. Unavailable
// while it opens its own log.
func (s *peerService) Describe(ctx context.Context, _ *connect.Request[droverv1.DescribeRequest]) (*connect.Response[droverv1.DescribeResponse], error) {
	res, err := s.p.describeSelf()
	if err != nil {
		return nil, err
	}
	if r := s.p.replica.Load(); r != nil {
		res.AcknowledgedIndex = r.Acknowledged(strings.TrimPrefix(caller(ctx).name, string(pki.KindCoordinator)+"/"))
	}
	return connect.NewResponse(res), nil
}

// describeSelf returns the state of this server. Only while it enters a cluster it knows that it
// has no log. Before that, and while it opens its log, it returns Unavailable: a server that took
// this one for empty would begin a new cluster in place of the existing one.
func (p *peers) describeSelf() (*droverv1.DescribeResponse, error) {
	r := p.replica.Load()
	if r == nil && !p.entering.Load() {
		return nil, p.opening()
	}
	res := &droverv1.DescribeResponse{Id: p.c.cfg.ID, ApiAddress: p.c.cfg.APIAddress, Version: version.Version, Protocol: version.Protocol, LastContactMs: -1}
	if free, total, err := p.c.cfg.diskSpace(); err == nil {
		res.DiskFree, res.DiskTotal = free, total
	}
	res.CertificateUntilMs = p.c.certificates.untilMS()
	if r == nil {
		return res, nil
	}
	res.Leader, res.LeaderAddress, res.Term, res.AppliedIndex, res.HasLog = r.Leader(), r.LeaderAddress(), r.Term(), r.Applied(), r.HasLog()
	if at := r.LastContact(); !at.IsZero() {
		res.LastContactMs = max(0, time.Since(at).Milliseconds())
	}
	r.Read(func(f *facts.Facts) { res.Cluster = f.Cluster() })
	if servers, _, err := r.Servers(); err == nil {
		for _, x := range servers {
			res.Servers = append(res.Servers, string(x.ID))
		}
	}
	res.MissingFiles = int64(len(p.files.missing()))
	return res, nil
}

// Join adds the caller to the cluster, if this server leads. One whose certificate has another name
// is let in once an operator has added it (AddServer).
func (s *peerService) Join(ctx context.Context, req *connect.Request[droverv1.JoinRequest]) (*connect.Response[droverv1.JoinResponse], error) {
	r, err := s.log()
	if err != nil {
		return nil, err
	}
	m := req.Msg
	if id := caller(ctx); id.name != "coordinator/"+m.GetId() && !isAdded(r, m.GetId(), m.GetAddress()) {
		return nil, fault.New(fault.Denied, "%s may not join as server %q: start it with the -id that its certificate names, or add it (drover operator server add %s %s)", id.name, m.GetId(), m.GetId(), m.GetAddress())
	}
	if err := version.CheckProtocol("the leader", "coordinator "+m.GetId(), m.GetProtocol()); err != nil {
		return nil, err
	}
	if err := checkPeer(m.GetId(), m.GetAddress()); err != nil {
		return nil, err
	}
	if err := r.Verify(ctx); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.JoinResponse{}), r.Admit(replica.Peer{ID: m.GetId(), Address: m.GetAddress()}, m.GetEmpty())
}

// isAdded reports whether the log has a server without a vote at an address: joining then changes
// nothing. A server with a vote that joins has lost its log, and must first lose its vote.
func isAdded(r *replica.Replica, id, address string) bool {
	servers, _, err := r.Servers()
	return err == nil && slices.ContainsFunc(servers, func(s raft.Server) bool {
		return string(s.ID) == id && string(s.Address) == address && s.Suffrage != raft.Voter
	})
}

// FetchFiles fetches what this server lacks from the caller.
func (s *peerService) FetchFiles(ctx context.Context, req *connect.Request[droverv1.FetchFilesRequest]) (*connect.Response[droverv1.FetchFilesResponse], error) {
	if _, err := s.log(); err != nil {
		return nil, err
	}
	if len(req.Msg.GetFiles()) > maxDigests {
		return nil, fault.New(fault.Exhausted, "%d files, at most %d at once", len(req.Msg.GetFiles()), maxDigests)
	}
	var err error
	for _, f := range req.Msg.GetFiles() {
		s.p.c.files.touch(f.GetDigest()) // it may be no fact for a while
		err = errors.Join(err, s.p.files.fetchFrom(ctx, req.Msg.GetAddress(), f.GetDigest(), f.GetSize()))
	}
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.FetchFilesResponse{}), nil
}

// GetFile streams an uploaded file.
func (s *peerService) GetFile(ctx context.Context, req *connect.Request[droverv1.GetBlobRequest], stream *connect.ServerStream[droverv1.BlobChunk]) error {
	return s.p.c.blobs.Send(req.Msg.GetDigest(), req.Msg.GetOffset(), make([]byte, blobChunk), func(part []byte) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		return stream.Send(&droverv1.BlobChunk{Data: part})
	})
}

package coordinator

import (
	"context"
	"net"
	"slices"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/names"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/internal/version"
)

// transferLimit bounds the wait for another leader after a transfer.
const transferLimit = 10 * time.Second

// checkPeer checks the name and the peer address of a server.
func checkPeer(id, address string) error {
	if !names.Valid(id) {
		return fault.New(fault.Invalid, "server %.64q: a server's name has letters, digits, '.', '_' and '-'", id)
	}
	host, port, err := net.SplitHostPort(address)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || host == "" {
		return fault.New(fault.Invalid, "address %.128q of server %q: want host:port of its peer port", address, id)
	}
	return nil
}

// needPeers returns an error if this coordinator is configured to stay alone.
func (s *operatorService) needPeers() error {
	if s.core.peers == nil {
		return fault.New(fault.Unsupported, "this coordinator is alone: start it with -peer-listen, and others with -join, for a cluster")
	}
	return nil
}

// ListServers returns the servers of the replicated log, each with what it reports about itself.
func (s *operatorService) ListServers(ctx context.Context, _ *connect.Request[droverv1.ListServersRequest]) (*connect.Response[droverv1.ListServersResponse], error) {
	if err := s.core.rights.needOperator(ctx, "list the servers"); err != nil {
		return nil, err
	}
	list, leader, err := s.core.replica.Servers()
	if err != nil {
		return nil, err
	}
	res := &droverv1.ListServersResponse{Term: s.core.replica.Term()}
	for _, d := range s.describeServers(ctx, list) {
		x := &droverv1.Server{Id: d.peer.ID, Address: d.peer.Address, Leader: d.peer.ID == leader, Voter: d.voter}
		if st := d.state; st != nil {
			x.ApiAddress, x.LastContactMs, x.AppliedIndex, x.DiskFree, x.DiskTotal = st.GetApiAddress(), st.GetLastContactMs(), st.GetAppliedIndex(), st.GetDiskFree(), st.GetDiskTotal()
			x.MissingFiles, x.Version, x.CertificateUntilMs = st.GetMissingFiles(), st.GetVersion(), st.GetCertificateUntilMs()
		}
		if d.err != nil {
			x.Error = d.err.Error()
		}
		res.Servers = append(res.Servers, x)
	}
	return connect.NewResponse(res), nil
}

func (s *operatorService) describeServers(ctx context.Context, list []raft.Server) []described {
	if s.core.peers != nil {
		return s.core.peers.describeAll(ctx, list)
	}
	var out []described
	for _, x := range list {
		st := &droverv1.DescribeResponse{Id: s.core.cfg.ID, AppliedIndex: s.core.replica.Applied(), Version: version.Version, CertificateUntilMs: s.core.certificates.untilMS()}
		if free, total, err := s.core.cfg.diskSpace(); err == nil {
			st.DiskFree, st.DiskTotal = free, total
		}
		out = append(out, described{peer: replica.Peer{ID: string(x.ID), Address: string(x.Address)}, voter: true, state: st})
	}
	return out
}

// AddServer adds a server that is running with -join, or changes the address of
// one. It votes when it has caught up (peers.promote).
func (s *operatorService) AddServer(ctx context.Context, req *connect.Request[droverv1.AddServerRequest]) (*connect.Response[droverv1.AddServerResponse], error) {
	if err := s.core.rights.needOperator(ctx, "add servers"); err != nil {
		return nil, err
	}
	if err := s.needPeers(); err != nil {
		return nil, err
	}
	id, at := req.Msg.GetId(), req.Msg.GetAddress()
	if err := checkPeer(id, at); err != nil {
		return nil, err
	}
	var cluster string
	s.core.view(func(f *facts.Facts) { cluster = f.Cluster() })
	d, err := s.core.peers.describe(ctx, at)
	switch {
	case err != nil:
		return nil, fault.New(fault.Unavailable, "no coordinator answers at %s: start server %q with -join first: %w", at, id, err)
	case d.GetId() != id:
		return nil, fault.New(fault.Conflict, "server %q answers at %s, not %q", d.GetId(), at, id)
	case d.GetCluster() != "" && d.GetCluster() != cluster:
		return nil, fault.New(fault.Conflict, "server %q is of another cluster: it needs an empty data folder", id)
	}
	if err := s.core.replica.Admit(replica.Peer{ID: id, Address: at}, !d.GetHasLog()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.AddServerResponse{}), nil
}

// RemoveServer removes a server from the cluster, if a majority of the remaining servers answers. A
// leader that is to be removed first transfers the leadership; the caller then has the new leader
// remove it.
func (s *operatorService) RemoveServer(ctx context.Context, req *connect.Request[droverv1.RemoveServerRequest]) (*connect.Response[droverv1.RemoveServerResponse], error) {
	if err := s.core.rights.needOperator(ctx, "remove servers"); err != nil {
		return nil, err
	}
	if err := s.needPeers(); err != nil {
		return nil, err
	}
	id := req.Msg.GetId()
	list, _, err := s.core.replica.Servers()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(x raft.Server) bool { return string(x.ID) == id })
	if i < 0 { // already removed: the caller may have missed the response
		return connect.NewResponse(&droverv1.RemoveServerResponse{}), nil
	}
	if err := majorityWithout(id, s.core.peers.describeAll(ctx, list)); err != nil {
		return nil, err
	}
	if id == s.core.cfg.ID {
		if _, err := s.transfer(ctx, replica.Peer{}); err != nil {
			return nil, err
		}
		return nil, s.core.gate.notLeader(ctx)
	}
	if err := s.core.replica.Remove(id); err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.RemoveServerResponse{}), nil
}

// majorityWithout returns an error if the cluster would have no majority without one server.
func majorityWithout(id string, all []described) error {
	voters, answer := 0, 0
	for _, d := range all {
		if !d.voter || d.peer.ID == id {
			continue
		}
		voters++
		answer += boolInt(d.err == nil)
	}
	if need := voters/2 + 1; answer < need || voters == 0 {
		return fault.New(fault.Conflict, "without %q %d servers vote, of which %d answer and %d must: the cluster would stand still; start or add others first (drover operator server list)", id, voters, answer, need)
	}
	return nil
}

// TransferLeadership makes another server the leader.
func (s *operatorService) TransferLeadership(ctx context.Context, req *connect.Request[droverv1.TransferLeadershipRequest]) (*connect.Response[droverv1.TransferLeadershipResponse], error) {
	if err := s.core.rights.needOperator(ctx, "choose the leader"); err != nil {
		return nil, err
	}
	if err := s.needPeers(); err != nil {
		return nil, err
	}
	id := req.Msg.GetId()
	if id == s.core.cfg.ID {
		return connect.NewResponse(&droverv1.TransferLeadershipResponse{Leader: id}), nil
	}
	to := replica.Peer{}
	if id != "" {
		list, _, err := s.core.replica.Servers()
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(x raft.Server) bool { return string(x.ID) == id && x.Suffrage == raft.Voter })
		if i < 0 {
			return nil, fault.New(fault.NotFound, "no server %q votes: `drover operator server list` shows them", id)
		}
		to = replica.Peer{ID: id, Address: string(list[i].Address)}
	}
	leader, err := s.transfer(ctx, to)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&droverv1.TransferLeadershipResponse{Leader: leader}), nil
}

// transfer makes another server the leader, and returns which one it is. It ignores the call's
// context, which ends with the term of this server.
func (s *operatorService) transfer(_ context.Context, to replica.Peer) (string, error) {
	ctx, cancel := context.WithTimeout(s.core.peers.background, transferLimit)
	defer cancel()
	if err := s.core.replica.Transfer(ctx, to); err != nil {
		return "", err
	}
	for {
		if l := s.core.replica.Leader(); l != "" && l != s.core.cfg.ID {
			return l, nil
		}
		if !sleep.For(ctx, leaderPoll) {
			return "", wire.NotLeader("", "coordinator %q does not lead any more, and no other one does yet: try again in a second", s.core.cfg.ID)
		}
	}
}

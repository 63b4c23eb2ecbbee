package coordinator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/peer"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/internal/version"
)

// Limits of what coordinators ask each other.
const (
	describeLimit = 2 * time.Second
	joinLimit     = 15 * time.Second
	keepEvery     = time.Second      // between two looks at the servers and their files
	apiAddressFor = 10 * time.Second // that the leader's URL is believed
	crlEvery      = 6                // looks at the own certificates between two at the others' revocation lists: a minute
	whyFor        = time.Second      // that the state of the others is believed
)

// peers connects this server with the other coordinators. It enters the cluster, keeps its address
// and its files up to date there and, as the leader, gives a vote to servers that have caught up.
// It is nil for a coordinator that stays alone.
type peers struct {
	c      *core
	net    *peer.Network
	server *http.Server
	wg     sync.WaitGroup

	replica  atomic.Pointer[replica.Replica] // nil until the log is open
	entering atomic.Bool                     // this server has no log, and enters a cluster
	removed  atomic.Bool                     // this server was taken out of the cluster

	background context.Context // of what goes on after a call has ended
	endTasks   context.CancelFunc
	files      *fileKeeper

	// Used by keep alone.
	crlAt        time.Time // when the others were last asked for their revocation lists
	promoteAfter uint64    // what this leader had applied at the last pass; no leader: the largest number
	membership   membership

	mu           sync.Mutex // guards the fields below
	apiAddresses map[string]apiAddress
	why          noLeader
	whyAt        time.Time
}

type apiAddress struct {
	url string
	at  time.Time
}

func newPeers(c *core) *peers {
	p := &peers{c: c, promoteAfter: math.MaxUint64, apiAddresses: map[string]apiAddress{}}
	p.net = peer.Listen(peer.Config{Listener: c.cfg.PeerListener, Member: c.cfg.Certificate, Address: c.cfg.PeerAddress, Dial: c.cfg.PeerDial, Logger: c.log})
	p.background, p.endTasks = context.WithCancel(context.Background())
	p.files = &fileKeeper{p: p}
	return p
}

// start starts to answer the other coordinators. That happens before the log is open, because a
// server that enters a cluster asks the others whether they have a log.
func (p *peers) start() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pki.CRLPath, p.c.serveCRL)
	mux.Handle(droverv1connect.NewPeerServiceHandler(&peerService{p}, connect.WithReadMaxBytes(digestMessage), connect.WithCompressMinBytes(compressFrom), connect.WithInterceptors(&guard{c: p.c})))
	p.server = p.c.newServer(peerIdentity, &inFlight{idle: make(chan struct{}, 1)}, p.c.admission.admit(mux))
	p.server.ConnState = p.net.Forget
	p.net.Start()
	p.wg.Go(func() {
		if err := p.server.Serve(p.net.API()); !errors.Is(err, http.ErrServerClosed) {
			p.c.log.Error("the port for other coordinators", "err", err)
		}
	})
}

// opened makes the open log available to the other coordinators.
func (p *peers) opened(r *replica.Replica) {
	if p != nil {
		p.replica.Store(r)
	}
}

// keeper returns the fileKeeper of a cluster, nil if the coordinator stays alone.
func (p *peers) keeper() *fileKeeper {
	if p == nil {
		return nil
	}
	return p.files
}

// close stops what runs for the other coordinators, and closes the port.
func (p *peers) close() error {
	if p == nil {
		return nil
	}
	p.endTasks()
	err := errors.Join(p.server.Close(), p.net.Close())
	p.wg.Wait()
	return err
}

func (p *peers) describe(ctx context.Context, address string) (*droverv1.DescribeResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, describeLimit)
	defer cancel()
	res, err := p.net.Client(address).Describe(ctx, connect.NewRequest(&droverv1.DescribeRequest{}))
	if err != nil {
		return nil, wire.FromError(err)
	}
	if err := version.CheckProtocol("coordinator "+p.c.cfg.ID, "the one at "+address, res.Msg.GetProtocol()); err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// described is a server's description of itself, or the error of asking for it.
type described struct {
	peer  replica.Peer
	voter bool
	state *droverv1.DescribeResponse // nil after an error
	err   error
}

// describeAll asks several servers in parallel. The result is in their order.
func (p *peers) describeAll(ctx context.Context, servers []raft.Server) []described {
	out := make([]described, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		out[i] = described{peer: replica.Peer{ID: string(s.ID), Address: string(s.Address)}, voter: s.Suffrage == raft.Voter}
		wg.Go(func() {
			if out[i].peer.ID == p.c.cfg.ID {
				out[i].state, out[i].err = p.describeSelf()
				return
			}
			out[i].state, out[i].err = p.describe(ctx, out[i].peer.Address)
			if out[i].err == nil && out[i].state.GetId() != out[i].peer.ID {
				out[i].err = fault.New(fault.Conflict, "server %q answers at %s, the address of server %q: correct the -peer-address of one of them", out[i].state.GetId(), out[i].peer.Address, out[i].peer.ID)
			}
		})
	}
	wg.Wait()
	return out
}

// enter returns the servers with which this one, which has no log, begins a cluster; none if a
// leader has added it to an existing one:
//
//  1. Without servers, and without addresses to join, it is a cluster of its own.
//  2. If any server answers that it has a log, the leader of that log adds this server. It gets a
//     vote when it has caught up: a server that lost its disk has forgotten its votes and what it
//     stored.
//  3. If all of them answer, none has a log, and Bootstrap is set, they begin a new cluster. A
//     server that does not answer, or is opening its log, may have a log.
//
// Otherwise it tries again until ctx ends. If a server's protocol is too far from that of another,
// waiting does not help: enter returns fault.Unsupported.
func (p *peers) enter(ctx context.Context) ([]replica.Peer, error) {
	p.entering.Store(true)
	defer p.entering.Store(false)
	cfg := &p.c.cfg
	if len(cfg.Servers) == 0 && len(cfg.Join) == 0 {
		return []replica.Peer{{ID: cfg.ID, Address: cfg.PeerAddress}}, nil
	}
	last := ""
	for {
		servers, err := p.tryEnter(ctx)
		if err == nil {
			return servers, nil
		}
		if errors.Is(err, fault.Unsupported) {
			return nil, err
		}
		if err.Error() != last {
			p.c.log.Warn("not in a cluster yet", "err", err)
			last = err.Error()
		}
		if !sleep.For(ctx, keepEvery) {
			return nil, fault.New(fault.Unavailable, "server %q did not enter a cluster: %w", cfg.ID, err)
		}
	}
}

func (p *peers) tryEnter(ctx context.Context) ([]replica.Peer, error) {
	cfg := &p.c.cfg
	ask := p.others(cfg.Servers)
	listed := len(ask)
	ask = append(ask, p.toJoin()...)
	var problems []string
	for i, d := range p.describeAll(ctx, ask) {
		if errors.Is(d.err, fault.Unsupported) {
			return nil, d.err
		}
		if d.state == nil {
			problems = append(problems, fmt.Sprintf("%s does not answer: %v", d.peer.Address, d.err))
			continue
		}
		switch s := d.state; {
		case s.GetHasLog() && s.GetLeaderAddress() == "":
			return nil, fault.New(fault.Unavailable, "%s has a log and no leader: start the other coordinators of its cluster", d.peer.Address)
		case s.GetHasLog():
			return nil, p.join(ctx, s.GetLeaderAddress(), true)
		case i >= listed:
			problems = append(problems, d.peer.Address+" is not in a cluster itself")
		case d.err != nil:
			problems = append(problems, d.err.Error())
		}
	}
	if len(problems) == 0 && cfg.Bootstrap {
		return cfg.Servers, nil
	}
	if len(problems) == 0 {
		problems = []string{"none of -servers has a log: start all of them with -bootstrap to begin a new cluster"}
	}
	return nil, fault.New(fault.Unavailable, "%s", strings.Join(problems, "; "))
}

// others returns servers without this one.
func (p *peers) others(servers []replica.Peer) (out []raft.Server) {
	for _, s := range servers {
		if s.ID != p.c.cfg.ID {
			out = append(out, raft.Server{ID: raft.ServerID(s.ID), Address: raft.ServerAddress(s.Address)})
		}
	}
	return out
}

// toJoin returns the servers that this one is configured to join. Their names are unknown.
func (p *peers) toJoin() (out []raft.Server) {
	for _, a := range p.c.cfg.Join {
		if a != p.c.cfg.PeerAddress {
			out = append(out, raft.Server{Address: raft.ServerAddress(a)})
		}
	}
	return out
}

// acknowledged asks other servers up to which entry this server is known to have stored the log. It
// returns the highest answer and who gave it. It asks the servers of the log and those of the
// configuration, since an old log may have fewer, and waits at most describeLimit.
func (p *peers) acknowledged(ctx context.Context, servers []replica.Peer) (index uint64, by string) {
	ask := slices.Concat(p.others(servers), p.others(p.c.cfg.Servers), p.toJoin())
	slices.SortStableFunc(ask, func(a, b raft.Server) int { return strings.Compare(string(a.Address), string(b.Address)) })
	ask = slices.CompactFunc(ask, func(a, b raft.Server) bool { return a.Address == b.Address })
	for _, d := range p.describeAll(ctx, ask) {
		if n := d.state.GetAcknowledgedIndex(); n > index {
			index, by = n, fmt.Sprintf("%q at %s", d.state.GetId(), d.peer.Address)
		}
	}
	return index, by
}

// join has the leader add this server.
func (p *peers) join(ctx context.Context, leader string, empty bool) error {
	ctx, cancel := context.WithTimeout(ctx, joinLimit)
	defer cancel()
	_, err := p.net.Client(leader).Join(ctx, connect.NewRequest(&droverv1.JoinRequest{Id: p.c.cfg.ID, Address: p.c.cfg.PeerAddress, Empty: empty, Protocol: version.Protocol}))
	return wire.FromError(err)
}

// keep does the periodic work for the cluster until ctx ends.
func (p *peers) keep(ctx context.Context) error {
	last := ""
	for {
		err := errors.Join(p.announce(ctx), p.promote(ctx), p.files.fetchMissing(ctx), p.fetchCRLs(ctx))
		p.checkRemoved(ctx)
		p.files.removeUnknown()
		p.net.CloseRevoked()
		text := ""
		if err != nil {
			text = err.Error()
		}
		if text != "" && text != last && ctx.Err() == nil {
			p.c.log.Warn("in the cluster of coordinators", "err", err)
		}
		last = text
		if !sleep.For(ctx, keepEvery) {
			return nil
		}
	}
}

// fetchCRLs takes over the newest revocation list of the other coordinators: an operator may have
// copied it to only one of them. The authority has signed and numbered it. A coordinator that does
// not answer is asked again later.
func (p *peers) fetchCRLs(ctx context.Context) error {
	if time.Since(p.crlAt) < crlEvery*p.c.cfg.CertificatesEvery {
		return nil
	}
	p.crlAt = time.Now()
	servers, _, err := p.c.replica.Servers()
	if err != nil {
		return err
	}
	var mu sync.Mutex // guards wrong
	var wrong error
	var wg sync.WaitGroup
	for _, s := range servers {
		if string(s.ID) == p.c.cfg.ID {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, describeLimit)
			defer cancel()
			crl, err := p.net.FetchCRL(ctx, string(s.Address))
			if err != nil || len(crl) == 0 {
				return
			}
			newer, err := p.c.cfg.Certificate.SetCRL(crl)
			if newer {
				p.c.log.Info("another coordinator has a newer revocation list", "server", s.ID)
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				wrong = errors.Join(wrong, fmt.Errorf("revocation list of server %q: %w", s.ID, err))
			}
		})
	}
	wg.Wait()
	return wrong
}

// membership remembers whether this server was in its own log's list of servers. A log that does
// not list it may begin with a snapshot from before the server was added.
type membership struct{ listed bool }

// ends takes the log's current list and reports whether the server has left it since the last call.
func (m *membership) ends(servers []raft.Server, id string) bool {
	lists := slices.ContainsFunc(servers, func(s raft.Server) bool { return string(s.ID) == id })
	ended := m.listed && !lists
	m.listed = m.listed || lists
	return ended
}

// checkRemoved finds out whether this server was taken out of the cluster. Its own
// log may never say so: the leader stops sending to a server that it removed.
func (p *peers) checkRemoved(ctx context.Context) {
	servers, _, err := p.c.replica.Servers()
	if err != nil {
		return
	}
	if p.membership.ends(servers, p.c.cfg.ID) {
		p.removed.Store(true)
	}
	if p.c.leadership.leads() || p.c.gate.follows() {
		return
	}
	for _, d := range p.describeAll(ctx, servers) {
		if s := d.state; s != nil && d.peer.ID != p.c.cfg.ID && s.GetLeader() == s.GetId() && s.GetTerm() >= p.c.replica.Term() && !slices.Contains(s.GetServers(), p.c.cfg.ID) {
			p.removed.Store(true)
		}
	}
}

// announce has the leader change this server's address in the log, if the address has changed.
func (p *peers) announce(ctx context.Context) error {
	servers, _, err := p.c.replica.Servers()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(servers, func(s raft.Server) bool { return string(s.ID) == p.c.cfg.ID })
	if i < 0 || string(servers[i].Address) == p.c.cfg.PeerAddress {
		return nil
	}
	if p.c.replica.Leads() {
		return p.c.replica.Admit(replica.Peer{ID: p.c.cfg.ID, Address: p.c.cfg.PeerAddress}, false)
	}
	if leader := p.c.replica.LeaderAddress(); leader != "" {
		return p.join(ctx, leader, false)
	}
	return nil
}

// promote gives a vote to servers that have caught up: they have applied what the leader had
// applied at the previous pass, and have every file of those entries. A server learns of a file by
// its entry, so a server that lacks entries does not report their files as missing. Newer files are
// sent to servers without a vote too (fileKeeper.replicate).
func (p *peers) promote(ctx context.Context) error {
	after := p.promoteAfter
	p.promoteAfter = math.MaxUint64
	if !p.c.leadership.leads() {
		return nil
	}
	p.promoteAfter = p.c.replica.Applied()
	servers, _, err := p.c.replica.Servers()
	if err != nil {
		return err
	}
	servers = slices.DeleteFunc(servers, func(s raft.Server) bool { return s.Suffrage == raft.Voter })
	for _, d := range p.describeAll(ctx, servers) {
		if d.state == nil || d.err != nil {
			continue // it is not running: its turn comes
		}
		if d.state.GetHasLog() && d.state.GetAppliedIndex() >= after && d.state.GetMissingFiles() <= int64(len(p.files.missing())) {
			p.c.log.Info("a server has caught up and votes from now on", "server", d.peer.ID)
			err = errors.Join(err, p.c.replica.Promote(d.peer))
		}
	}
	return err
}

// apiAddress returns the URL for nodes and users of the coordinator at a peer
// address, "" if it is not known.
func (p *peers) apiAddress(ctx context.Context, address string) string {
	p.mu.Lock()
	known, ok := p.apiAddresses[address]
	p.mu.Unlock()
	if ok && p.c.now().Sub(known.at) < apiAddressFor || address == "" {
		return known.url
	}
	d, err := p.describe(ctx, address)
	if err != nil {
		return known.url
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.apiAddresses) > maxPeerAddresses {
		clear(p.apiAddresses)
	}
	p.apiAddresses[address] = apiAddress{d.GetApiAddress(), p.c.now()}
	return d.GetApiAddress()
}

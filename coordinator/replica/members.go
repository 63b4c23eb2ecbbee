package replica

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// memberLimit bounds a change of the servers: it is an entry of the log.
const memberLimit = 10 * time.Second

// Servers returns the servers of the log, and the id of the leader, "" for none.
// The caller owns the slice.
func (r *Replica) Servers() ([]raft.Server, string, error) {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return nil, "", classifyRaftError(err)
	}
	return slices.Clone(f.Configuration().Servers), r.Leader(), nil // raft's own slice is shared
}

// LeaderAddress returns the peer address of the current leader, "" if there is
// none.
func (r *Replica) LeaderAddress() string {
	a, _ := r.raft.LeaderWithID()
	return string(a)
}

// LastContact returns when this server last heard from the leader; zero for
// never. The leader hears from itself now.
func (r *Replica) LastContact() time.Time {
	if r.Leads() {
		return r.now()
	}
	return r.raft.LastContact()
}

// Applied returns the index of the last entry that the facts have. Raft's own number is
// ahead of it while entries are on their way to the facts.
func (r *Replica) Applied() (index uint64) {
	r.Read(func(f *facts.Facts) { index = f.Index() })
	return index
}

// HasLog reports whether the log has more than the servers that a new cluster
// begins with.
func (r *Replica) HasLog() bool { return r.raft.LastIndex() > 1 }

// Admit adds a server without a vote, or changes the address of a server. A voter whose log is
// empty first loses its vote, because it has lost its earlier votes. Only the leader can do it. If
// nothing would change, it does nothing.
func (r *Replica) Admit(p Peer, empty bool) error {
	servers, _, err := r.Servers()
	if err != nil {
		return err
	}
	id, at := raft.ServerID(p.ID), raft.ServerAddress(p.Address)
	for _, s := range servers {
		switch {
		case s.ID != id && s.Address == at:
			return fault.New(fault.Conflict, "server %q has the address %s already: remove it first (drover operator server remove)", s.ID, at)
		case s.ID == id && s.Suffrage == raft.Voter && empty:
			if err := r.raft.DemoteVoter(id, 0, memberLimit).Error(); err != nil {
				return classifyRaftError(err)
			}
			return r.addNonvoter(id, at)
		case s.ID == id && s.Address == at:
			return nil
		case s.ID == id && s.Suffrage == raft.Voter:
			return classifyRaftError(r.raft.AddVoter(id, at, 0, memberLimit).Error())
		}
	}
	return r.addNonvoter(id, at)
}

func (r *Replica) addNonvoter(id raft.ServerID, at raft.ServerAddress) error {
	return classifyRaftError(r.raft.AddNonvoter(id, at, 0, memberLimit).Error())
}

// Promote has a server vote. It needs the leader.
func (r *Replica) Promote(p Peer) error {
	return classifyRaftError(r.raft.AddVoter(raft.ServerID(p.ID), raft.ServerAddress(p.Address), 0, memberLimit).Error())
}

// Remove takes another server out of the cluster. It needs the leader.
func (r *Replica) Remove(id string) error {
	return classifyRaftError(r.raft.RemoveServer(raft.ServerID(id), 0, memberLimit).Error())
}

// Transfer has another voter lead, the one that is furthest if p is the zero
// value. It needs the leader, and returns when the other one has been asked to
// stand for election. Unavailable: it does not lead, another transfer is in
// progress, or the other server did not take over. Conflict: one to that server has
// failed in this term.
func (r *Replica) Transfer(ctx context.Context, p Peer) error {
	if !r.transfers.mu.TryLock() {
		return fault.New(fault.Unavailable, "another transfer of the leadership is in progress: try again in a second")
	}
	defer r.transfers.mu.Unlock()
	if err := r.transfers.check(r.raft.CurrentTerm(), p.ID); err != nil {
		return err
	}
	var f raft.Future
	if p.ID == "" {
		f = r.raft.LeadershipTransfer()
	} else {
		f = r.raft.LeadershipTransferToServer(raft.ServerID(p.ID), raft.ServerAddress(p.Address))
	}
	err := awaitFuture(ctx, f)
	if err != nil && !errors.Is(err, raft.ErrNotLeader) && !errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		r.transfers.failed[p.ID] = true
		return transferFailed(p.ID, err)
	}
	return err
}

// transferFailed returns an error that says which server did not take over, and what to do.
func transferFailed(id string, err error) error {
	to := "the other server"
	if id != "" {
		to = fmt.Sprintf("server %q", id)
	}
	return fault.New(fault.Unavailable, "%s did not take over the leadership (%w): see that it answers (drover operator server list), or transfer it to another one", to, err)
}

// transfers are the transfers of the leadership that failed in a term. There is no
// second one to the same server: raft 1.8 may then wait for ever for room in its
// queue to the goroutine that replicates to that server, if the leadership is lost
// meanwhile. It would count as in a transfer from then on, and refuse every entry
// when it leads again.
type transfers struct {
	mu     sync.Mutex      // held during a transfer
	term   uint64          // of failed
	failed map[string]bool // by the server's id, "" for one that raft chose
}

// check returns why no transfer may begin. The caller holds mu.
func (t *transfers) check(term uint64, id string) error {
	if t.term != term {
		t.term, t.failed = term, map[string]bool{}
	}
	const cure = "transfer it to another server (drover operator server transfer ID), or restart this coordinator"
	switch {
	case t.failed[""]: // it is not known to which
		return fault.New(fault.Conflict, "a transfer of the leadership has failed in this term: restart this coordinator, and another one leads")
	case t.failed[id]:
		return fault.New(fault.Conflict, "a transfer of the leadership to %q has failed in this term: "+cure, id)
	case id == "" && len(t.failed) > 0: // raft might choose one of these
		return fault.New(fault.Conflict, "a transfer of the leadership to %s has failed in this term: "+cure, strings.Join(slices.Sorted(maps.Keys(t.failed)), ", "))
	}
	return nil
}

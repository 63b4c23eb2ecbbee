package replica

import (
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fault"
)

// refuseOldCopy refuses a folder that has not all that its server is known to have stored: an old
// copy was put back, as with the image of a machine, or the disk confirmed what it forgot. This
// server might vote for one that lacks the same entries, and they would be lost, although a
// majority had them. Raft cannot know it; the other servers can (acknowledged):
//
//  1. A leader notes of each follower the last committed entry up to which the follower has said that its log is the
//     leader's: it says so when those entries are on its disk. A follower notes of its leader the last entry that it knows
//     to be committed: a leader has on its disk what it sends, and whatever earlier leaders committed.
//  2. An entry that is committed is in the log of every later leader, so none has a follower remove it. What a follower
//     had stored and was not committed, a new leader may have it remove: it is not noted.
//  3. So a server that has not lost its folder has all that is noted of it, in whichever term. One that lost it enters the
//     cluster again without a vote, and gets the vote back when it has what its leader has (Admit, Promote): nothing is
//     held against servers that do not vote (Acknowledged), since no vote depends on what they have.
//
// What is noted is lost with the process, and servers that do not answer cannot say it: an old copy
// passes where all others have been started since, or none can be reached. Only the ends of the
// logs are compared.
func (f folder) refuseOldCopy(c Config) error {
	if c.Acknowledged == nil {
		return nil
	}
	last, err := f.last()
	if err != nil {
		return err
	}
	servers, err := f.servers()
	if err != nil {
		return err
	}
	if index, by := c.Acknowledged(servers); index > last {
		return fault.New(fault.Conflict, "%s is an old copy: it ends at entry %d, and server %s knows that %q has stored entry %d, so that its vote might lose what was acknowledged: move the data folder away and start with an empty one and the same -servers, or -join", f.dir, last, by, c.ID, index)
	}
	return nil
}

// folder is what a server has stored, before raft is started.
type folder struct {
	dir   string
	logs  raft.LogStore
	snaps raft.SnapshotStore
}

// last returns the last index of log and snapshots, 0 for none.
func (f folder) last() (uint64, error) {
	last, err := f.logs.LastIndex()
	if err != nil {
		return 0, err
	}
	list, err := f.snaps.List()
	if err != nil {
		return 0, fmt.Errorf("list the snapshots below %s: %w", f.dir, err)
	}
	for _, s := range list {
		last = max(last, s.Index)
	}
	return last, nil
}

// servers returns the servers that the log names last, or the newest snapshot, O(entries).
func (f folder) servers() ([]Peer, error) {
	last, err := f.logs.LastIndex()
	if err != nil {
		return nil, err
	}
	first, err := f.logs.FirstIndex()
	if err != nil {
		return nil, err
	}
	for i := last; i >= max(first, 1); i-- {
		var l raft.Log
		if err := f.logs.GetLog(i, &l); err != nil {
			return nil, err
		}
		if l.Type == raft.LogConfiguration {
			return peersOf(raft.DecodeConfiguration(l.Data)), nil
		}
	}
	list, err := f.snaps.List() // newest first
	if err != nil || len(list) == 0 {
		return nil, err
	}
	return peersOf(list[0].Configuration), nil
}

func peersOf(c raft.Configuration) (out []Peer) {
	for _, s := range c.Servers {
		out = append(out, Peer{string(s.ID), string(s.Address)})
	}
	return out
}

// Acknowledged returns the last entry that a server which votes is known to have stored, and to be
// committed, since this server was started; 0 for none. See refuseOldCopy.
func (r *Replica) Acknowledged(id string) uint64 {
	for _, s := range r.raft.GetConfiguration().Configuration().Servers {
		if s.ID == raft.ServerID(id) && s.Suffrage == raft.Voter {
			return r.acks.of(s.ID)
		}
	}
	return 0
}

// acknowledgements are the last entries that other servers are known to have stored.
type acknowledgements struct {
	mu   sync.Mutex // guards last
	last map[raft.ServerID]uint64
}

func (a *acknowledgements) note(id raft.ServerID, index uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last == nil {
		a.last = map[raft.ServerID]uint64{}
	}
	a.last[id] = max(a.last[id], index)
}

func (a *acknowledgements) of(id raft.ServerID) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[id]
}

// notingTransport is raft's transport, which notes what followers acknowledge to this server.
type notingTransport struct {
	*raft.NetworkTransport
	acks *acknowledgements
}

// AppendEntries implements raft.Transport.
func (t notingTransport) AppendEntries(id raft.ServerID, target raft.ServerAddress, req *raft.AppendEntriesRequest, res *raft.AppendEntriesResponse) error {
	err := t.NetworkTransport.AppendEntries(id, target, req, res)
	if err == nil {
		t.acks.note(id, acknowledgedBy(req, res))
	}
	return err
}

// acknowledgedBy returns the last committed entry that a follower has stored which answered a
// leader, 0 if it does not say.
func acknowledgedBy(req *raft.AppendEntriesRequest, res *raft.AppendEntriesResponse) uint64 {
	if !res.Success {
		return 0
	}
	return min(req.PrevLogEntry+uint64(len(req.Entries)), req.LeaderCommitIndex)
}

package replica

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fault"
)

func (r *Replica) start(c Config) error {
	logger := hclog.New(&hclog.LoggerOptions{Name: "raft", Level: hclog.Warn, Output: newRaftLog(c.Logger, time.Now), DisableTime: true})
	files, err := raft.NewFileSnapshotStoreWithLogger(c.Dir, 2, logger)
	if err != nil {
		return fmt.Errorf("folder of snapshots below %s: %w", c.Dir, err)
	}
	snaps := tidySnapshots{files, c.Dir}
	stored := folder{c.Dir, r.store, snaps}
	conf := r.raftConfig(c, logger)
	known, err := raft.HasExistingState(r.store, r.store, snaps)
	if err != nil {
		return fmt.Errorf("look at the raft store in %s: %w", c.Dir, err)
	}
	marked, err := r.checkOwner(c)
	if err != nil {
		return err
	}
	var servers []raft.Server
	if !known {
		if servers, err = r.firstServers(c); err != nil {
			return err
		}
		if !marked {
			if err := markOwner(r.store, c.Dir, c.ID); err != nil {
				return err
			}
		}
	}
	if known {
		if err := stored.refuseOldCopy(c); err != nil {
			return err
		}
	}
	r.transport(c, logger)
	if len(servers) > 0 {
		if err := raft.BootstrapCluster(conf, r.store, r.store, snaps, r.trans, raft.Configuration{Servers: servers}); err != nil {
			return fmt.Errorf("start a new cluster in %s: %w", c.Dir, err)
		}
	}
	if err := rewindRecorder(r.record, stored); err != nil {
		return err
	}
	r.store.running = make(chan func() raft.Future, 1)
	if r.raft, err = raft.NewRaft(conf, fsm{r}, r.store, r.store, snaps, r.trans); err != nil {
		return fmt.Errorf("start raft in %s: %w", c.Dir, err)
	}
	r.end = sync.OnceValue(r.raft.Shutdown) // raft waits for its end in the first call alone
	r.store.running <- r.end
	if err := r.WriteError(); err != nil { // raft began with a term that is in no log
		return errors.Join(err, r.end().Error())
	}
	if err := r.checkMember(c); err != nil {
		return err
	}
	if known && !marked {
		if err := markOwner(r.store, c.Dir, c.ID); err != nil {
			return errors.Join(err, r.end().Error())
		}
	}
	if r.watch != nil {
		r.watch.start()
	}
	return nil
}

// rewindRecorder rewinds a recorder that is ahead of the log; record may be nil.
func rewindRecorder(record Recorder, stored folder) error {
	if record == nil {
		return nil
	}
	last, err := stored.last()
	if err != nil {
		return err
	}
	if record.Applied() > last {
		return record.Rewind(last)
	}
	return nil
}

// ownerKey has the server's name in the store of raft's term and vote, which are that server's alone.
var ownerKey = []byte("ServerID")

// checkOwner refuses the folder of another server: this server would go on with the votes of the
// other, without its own, and might vote twice in a term. It reports whether the folder has a mark.
func (r *Replica) checkOwner(c Config) (marked bool, err error) {
	known, err := r.store.Lookup(ownerKey)
	if err != nil {
		return false, fmt.Errorf("owner of the log in %s: %w", c.Dir, err)
	}
	if known != nil && string(known) != c.ID {
		return true, fault.New(fault.Conflict, "%s is the folder of server %q, and not of %q, which would vote for it: start it with -id %s, or, for %q, with an empty folder and -join", c.Dir, known, c.ID, known, c.ID)
	}
	return known != nil, nil
}

// markOwner marks a folder as a server's. One with a log is marked only when the log names that
// server: a wrong mark would keep the right one out.
func markOwner(store raft.StableStore, dir, id string) error {
	if err := store.Set(ownerKey, []byte(id)); err != nil {
		return fmt.Errorf("mark %s as the folder of server %q: %w", dir, id, err)
	}
	return nil
}

// checkMember makes sure that this server is one of its own cluster: without its
// name there it would wait for a leader for ever.
func (r *Replica) checkMember(c Config) error {
	f := r.raft.GetConfiguration()
	if err := f.Error(); err != nil {
		return fmt.Errorf("servers of the cluster in %s: %w", c.Dir, err)
	}
	var names []string
	for _, s := range f.Configuration().Servers {
		if s.ID == raft.ServerID(c.ID) {
			return nil
		}
		names = append(names, string(s.ID))
	}
	if len(names) == 0 { // it was never started, and is to be added to a cluster
		return nil
	}
	return errors.Join(fault.New(fault.Conflict, "%s is the log of servers %q, and %q is none of them: start it with the -id that it had, or, if %q was removed from the cluster, move the folder away and start with -join", c.Dir, names, c.ID, c.ID), r.end().Error())
}

// aloneTimeout is how long a server that is alone waits before it elects itself, once or twice as
// long, and between two looks of raft at its lease, which it cannot lose: shorter ones wake an idle
// coordinator more often, longer ones delay its start.
const aloneTimeout = 50 * time.Millisecond

// commitNews is how many times in the time of an election an idle leader tells its followers, at
// most, up to where the log is committed; each entry tells them too. They need it for what callers
// accept although it may be old.
const commitNews = 5

// raftConfig returns raft's configuration. A server that is alone waits for no
// others.
func (r *Replica) raftConfig(c Config, logger hclog.Logger) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(c.ID)
	conf.Logger = logger
	conf.NotifyCh = r.leading
	// Group commit: proposals that wait while an fsync is under way share the next.
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = groupCommit
	conf.SnapshotInterval = 20 * time.Second
	conf.SnapshotThreshold = 8192
	conf.TrailingLogs = 4096
	conf.NoLegacyTelemetry = true
	conf.CommitTimeout = defaultElection / commitNews
	if c.SnapshotEntries > 0 {
		conf.SnapshotThreshold, conf.TrailingLogs, conf.SnapshotInterval = c.SnapshotEntries, c.SnapshotEntries, 200*time.Millisecond
	}
	if r.single {
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = aloneTimeout, aloneTimeout, aloneTimeout
		conf.CommitTimeout = 5 * time.Millisecond
	} else if c.Election > 0 {
		conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = c.Election, c.Election, c.Election/2
		conf.CommitTimeout = c.Election / commitNews
	}
	return conf
}

// firstServers returns the servers of a log that does not exist yet, none for a
// server that waits for the log of a leader.
func (r *Replica) firstServers(c Config) ([]raft.Server, error) {
	if c.Network == nil {
		return []raft.Server{{ID: raft.ServerID(c.ID), Address: raft.ServerAddress(c.ID)}}, nil
	}
	peers := []Peer{{c.ID, c.Network.Addr().String()}}
	if c.Enter != nil {
		var err error
		if peers, err = c.Enter(); err != nil {
			return nil, err
		}
	}
	var servers []raft.Server
	for _, p := range peers {
		servers = append(servers, raft.Server{ID: raft.ServerID(p.ID), Address: raft.ServerAddress(p.Address)})
	}
	return servers, nil
}

// transport makes raft's transport: in memory for a server that is alone.
func (r *Replica) transport(c Config, logger hclog.Logger) {
	if c.Network == nil {
		_, r.trans = raft.NewInmemTransport(raft.ServerAddress(c.ID))
		return
	}
	election := cmp.Or(c.Election, defaultElection)
	r.watch = newLeaderWatch(r, c.Network, election)
	// No pipelining: raft 1.8 stops reading answers at the first that is an error,
	// and its sender then waits for ever for room in the pipeline. That follower gets
	// no entry any more, and the server does not stop. Batches of entries make up
	// for it.
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: guardedLayer{c.Network, r.watch.noteEnd}, MaxPool: 3, MaxRPCsInFlight: 1, Timeout: rpcElections * election, Logger: logger})
	r.trans = notingTransport{t, &r.acks}
}

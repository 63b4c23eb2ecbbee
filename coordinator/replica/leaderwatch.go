package replica

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/raft"
)

// leaderWatch has a follower give up a leader at a known time.
//
// Raft's follower looks whether it has heard from its leader at a random time after each look, so
// it finds out one to three times Election after the last message. It also refuses its vote until
// it has found out itself: the slower of two followers decides. That waiting protects nobody, since
// a leader steps down itself when it has not heard a majority for half of Election.
//
// Here a follower looks at once when the leader has been silent for as long as silence permits.
// Where a connection from another server ended and the leader's port refuses a new one, its process
// is gone, and half of Election is enough: no heartbeat is on its way any more. The servers give up
// one after another, in the order of the configuration, so that no two stand for election at a
// time.
type leaderWatch struct {
	r        *Replica
	network  raft.StreamLayer
	election time.Duration
	ended    chan struct{} // one token: a connection from another server ended
	stop     chan struct{}
	wg       sync.WaitGroup
}

func newLeaderWatch(r *Replica, network raft.StreamLayer, election time.Duration) *leaderWatch {
	return &leaderWatch{r: r, network: network, election: election, ended: make(chan struct{}, 1), stop: make(chan struct{})}
}

// noteEnd says that a connection from another server ended. It does not block.
func (w *leaderWatch) noteEnd() {
	select {
	case w.ended <- struct{}{}:
	default:
	}
}

// start starts the watch; close ends it, and waits.
func (w *leaderWatch) start() { w.wg.Go(w.run) }

func (w *leaderWatch) close() {
	close(w.stop)
	w.wg.Wait()
}

// run gives up leaders until close.
func (w *leaderWatch) run() {
	var gone time.Time // the last contact with a leader whose process is gone: after a new contact none is
	timer := time.NewTimer(w.election)
	defer timer.Stop()
	for {
		select {
		case <-w.ended:
			if leader := w.leader(); leader != "" && w.refuses(leader) {
				gone = w.r.raft.LastContact()
			}
		case <-timer.C:
		case <-w.stop:
			return
		}
		w.noteStored() // before the leader is given up
		leader, contact := w.leader(), w.r.raft.LastContact()
		wait := w.silence(!gone.IsZero() && contact.Equal(gone))
		if leader != "" {
			if wait = time.Until(contact.Add(wait)); wait <= 0 {
				w.giveUp(leader)
				wait = w.election
			}
		}
		timer.Reset(wait)
	}
}

// noteStored notes what the leader that this server follows has stored: see refuseOldCopy. The
// index is read first: what was committed by then is in the log of the server that leads now.
func (w *leaderWatch) noteStored() {
	index := w.r.raft.CommitIndex()
	if _, id := w.r.raft.LeaderWithID(); id != "" && id != raft.ServerID(w.r.id) {
		w.r.acks.note(id, index)
	}
}

// leader returns the address of the leader that this server follows, "" for none.
func (w *leaderWatch) leader() raft.ServerAddress {
	if w.r.raft.State() != raft.Follower {
		return ""
	}
	leader, _ := w.r.raft.LeaderWithID()
	return leader
}

// silence returns for how long the leader may be silent: one and a half times Election, half of it if
// its process is gone, and a tenth more for each server before this one in the configuration.
func (w *leaderWatch) silence(gone bool) time.Duration {
	rank := slices.IndexFunc(w.r.raft.GetConfiguration().Configuration().Servers, func(s raft.Server) bool { return s.ID == raft.ServerID(w.r.id) })
	limit := 3 * w.election / 2
	if gone {
		limit = w.election / 2
	}
	return limit + time.Duration(max(0, rank))*w.election/10
}

// refuses reports whether the machine at an address answers, and nothing listens there.
func (w *leaderWatch) refuses(address raft.ServerAddress) bool {
	c, err := w.network.Dial(address, w.election/2)
	if err == nil {
		_ = c.Close() // nothing was said
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// giveUp has raft look now whether it heard from its leader within half of Election, which is the
// shortest time that it takes: as long as a leader waits for a majority.
func (w *leaderWatch) giveUp(leader raft.ServerAddress) {
	usual := w.r.raft.ReloadableConfig()
	short := usual
	short.HeartbeatTimeout = w.election / 2
	if err := w.r.raft.ReloadConfig(short); err != nil {
		return // raft then finds out by itself
	}
	for range looks {
		if w.leader() != leader {
			break
		}
		time.Sleep(w.election / 100)
	}
	_ = w.r.raft.ReloadConfig(usual) // it was valid before
}

// looks bounds how often giveUp looks whether raft has given up the leader.
const looks = 20

// watchedConn is a connection from another server whose end is noted.
type watchedConn struct {
	net.Conn
	noteEnd func()
}

// Close implements net.Conn.
func (c watchedConn) Close() error {
	c.noteEnd()
	return c.Conn.Close()
}

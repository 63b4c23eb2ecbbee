package coordinator

import (
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// sessions is what the nodes said lately and what is no fact: when they last
// reported, their load, and what each running attempt looks like. It is lost
// with the process; the nodes tell it again.
type sessions struct {
	mu    sync.Mutex
	nodes map[int32]*nodeSession
}

type nodeSession struct {
	epoch    uint64
	last     time.Time // of the last report, or of the start of this leader
	reported bool      // it reported to this leader
	applied  uint64
	load     *droverv1.NodeLoad
	seen     map[facts.Key]*droverv1.SeenAttempt
	watch    func() // ends the present watch stream
}

func newSessions() *sessions { return &sessions{nodes: map[int32]*nodeSession{}} }

// begin gives every node that is up a full lease.
func (s *sessions) begin(f *facts.Facts, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.nodes {
		if n.watch != nil {
			n.watch()
		}
		delete(s.nodes, id)
	}
	for _, n := range f.Nodes() {
		if n.Up {
			s.nodes[n.ID] = &nodeSession{epoch: n.Epoch, last: now, seen: map[facts.Key]*droverv1.SeenAttempt{}}
		}
	}
}

// register opens or renews the session of a node.
func (s *sessions) register(node int32, epoch uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || n.epoch != epoch {
		if n != nil && n.watch != nil {
			n.watch()
		}
		n = &nodeSession{epoch: epoch, seen: map[facts.Key]*droverv1.SeenAttempt{}}
		s.nodes[node] = n
	}
	n.last = now
}

// report takes what is no fact out of a report.
func (s *sessions) report(r *droverv1.ReportRequest, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[r.GetNode()]
	if n == nil || n.epoch != r.GetEpoch() {
		n = &nodeSession{epoch: r.GetEpoch(), seen: map[facts.Key]*droverv1.SeenAttempt{}}
		s.nodes[r.GetNode()] = n
	}
	n.last, n.reported, n.applied = now, true, r.GetAppliedRevision()
	if r.GetLoad() != nil {
		n.load = r.GetLoad()
	}
	if r.GetFull() {
		clear(n.seen)
	}
	for _, a := range r.GetAttempts() {
		k := facts.KeyOf(a.GetKey())
		switch a.GetPhase() {
		case droverv1.Phase_PHASE_PREPARING, droverv1.Phase_PHASE_RUNNING:
			n.seen[k] = a
		default: // an end is a fact
			delete(n.seen, k)
		}
	}
}

// seen gives the last report of an attempt that has not ended, or nil.
func (s *sessions) seen(node int32, k facts.Key, run int32) *droverv1.SeenAttempt {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		if a := n.seen[k]; a != nil && a.GetKey().GetRun() == run {
			return a
		}
	}
	return nil
}

// heard is what a node said of an attempt that has not ended.
type heard struct {
	key     facts.Key
	run     int32
	started bool
	part    float64 // done, 0..1
}

// running lists what was heard of all attempts, in no order.
func (s *sessions) running() []heard {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []heard
	for _, n := range s.nodes {
		for k, a := range n.seen {
			out = append(out, heard{k, a.GetKey().GetRun(), a.GetPhase() == droverv1.Phase_PHASE_RUNNING, a.GetProgress()})
		}
	}
	return out
}

// drop forgets what was seen of an attempt.
func (s *sessions) drop(node int32, k facts.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		delete(n.seen, k)
	}
}

// lost ends a node's session.
func (s *sessions) lost(node int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		if n.watch != nil {
			n.watch()
		}
		delete(s.nodes, node)
	}
}

// watching makes end the way to end the node's watch stream; an older stream
// of it is ended.
func (s *sessions) watching(node int32, epoch uint64, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || n.epoch != epoch {
		return
	}
	if n.watch != nil {
		n.watch()
	}
	n.watch = end
}

// expired lists the nodes whose lease ended, and when the next one ends.
func (s *sessions) expired(now time.Time, lease time.Duration) (gone []lostNode, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.nodes {
		end := n.last.Add(lease)
		if !end.After(now) {
			gone = append(gone, lostNode{id, n.epoch})
			continue
		}
		if next.IsZero() || end.Before(next) {
			next = end
		}
	}
	return gone, next
}

type lostNode struct {
	id    int32
	epoch uint64
}

// status gives what is known of a node beside the facts.
func (s *sessions) status(node int32) (last time.Time, load *droverv1.NodeLoad) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		if n.reported {
			last = n.last
		}
		load = n.load
	}
	return last, load
}

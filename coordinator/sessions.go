package coordinator

import (
	"cmp"
	"slices"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// sessions holds recent reports that are no facts: when nodes last reported, their load, and the
// state of each running attempt. It is lost with the process; nodes report everything again.
type sessions struct {
	mu    sync.Mutex
	nodes map[int32]*nodeSession
	// No lease is granted before: until then nodes may run exclusive tasks under leases of a coordinator
	// that was lost, and tasks that the restored one has on other nodes.
	leasesFrom time.Time
}

type nodeSession struct {
	epoch       uint64
	lastReport  time.Time // time of the last report, or of this leader's start
	leaseFrom   time.Time // if later, the lease counts from here: the coordinator had stood still
	reported    bool      // if later, the lease counts from here, because the coordinator stood still
	lost        bool      // its lease has ended: no report of this epoch renews it
	declared    bool      // its loss is in the facts too; kept so that a call that began earlier does not open the session again
	refused     string    // the last daemon that was refused the node's name
	load        *droverv1.NodeLoad
	seen        map[facts.Key]*droverv1.SeenAttempt
	unknown     map[unknownRun]*droverv1.SeenAttempt // from before a restore, and not in the facts
	cancelWatch func()                               // ends the current watch stream
}

func newSessions() *sessions { return &sessions{nodes: map[int32]*nodeSession{}} }

// reset gives every node that is up the time of a full lease to report. No lease is granted before
// from.
func (s *sessions) reset(f *facts.Facts, now, from time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leasesFrom = from
	for id, n := range s.nodes {
		if n.cancelWatch != nil {
			n.cancelWatch()
		}
		delete(s.nodes, id)
	}
	for _, n := range f.Nodes() {
		if n.Up {
			s.nodes[n.ID] = &nodeSession{epoch: n.Epoch, lastReport: now, seen: map[facts.Key]*droverv1.SeenAttempt{}}
		}
	}
}

// leaseMS returns the lease that an answer grants, 0 for none.
func (s *sessions) leaseMS(now time.Time, lease time.Duration) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Before(s.leasesFrom) {
		return 0
	}
	return lease.Milliseconds()
}

// open opens the session of a registered node, unless it has one of that epoch or a later one.
func (s *sessions) open(node int32, epoch uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.openLocked(node, epoch, now)
}

func (s *sessions) openLocked(node int32, epoch uint64, now time.Time) *nodeSession {
	n := s.nodes[node]
	if n == nil || n.epoch < epoch {
		if n != nil && n.cancelWatch != nil {
			n.cancelWatch()
		}
		n = &nodeSession{epoch: epoch, lastReport: now, seen: map[facts.Key]*droverv1.SeenAttempt{}}
		s.nodes[node] = n
	}
	return n
}

// register opens or renews a node's session. It returns false if the node has no lease, because the
// lease of that epoch has ended.
func (s *sessions) register(node int32, epoch uint64, now time.Time) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.openLocked(node, epoch, now)
	if n.epoch != epoch || n.lost {
		return false
	}
	n.heardAt(now)
	return true
}

// refuse records that a daemon was refused the name of a node. It reports whether that daemon is
// another one than the last.
func (s *sessions) refuse(node int32, epoch uint64, daemon string) (news bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || n.epoch != epoch || n.refused == daemon {
		return false
	}
	n.refused = daemon
	return true
}

// heardAt records a message of the node at now. The time of the last report never goes back: a
// clock that was set back for a moment must not end the lease of a node that reports meanwhile.
func (n *nodeSession) heardAt(now time.Time) {
	if now.After(n.lastReport) {
		n.lastReport = now
	}
}

// report stores the parts of a report that are no facts, and renews the node's lease. It returns
// false if the node has no lease: it has no session, or its lease has ended. The response to a
// report grants the node a lease, while the leader may start its tasks elsewhere as soon as it has
// found the lease ended.
func (s *sessions) report(r *droverv1.ReportRequest, now time.Time) (ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[r.GetNode()]
	if n == nil || n.epoch != r.GetEpoch() || n.lost {
		return false
	}
	n.heardAt(now)
	n.reported = true
	if r.GetLoad() != nil {
		n.load = r.GetLoad()
	}
	if r.GetFull() {
		clear(n.seen)
		clear(n.unknown)
	}
	for _, a := range r.GetAttempts() {
		k := facts.KeyOf(a.GetKey())
		if n.reportUnknown(k, a) {
			continue
		}
		switch a.GetPhase() {
		case droverv1.Phase_PHASE_PREPARING, droverv1.Phase_PHASE_RUNNING:
			n.seen[k] = a
		default: // ends are facts
			delete(n.seen, k)
		}
	}
	return true
}

// seen returns the last report of an attempt that has not ended, or nil.
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

// attemptProgress is the reported progress of an attempt that has not ended.
type attemptProgress struct {
	key      facts.Key
	run      int32
	started  bool
	progress float64 // completed share, 0 to 1
}

// runningAttempts returns the progress of all attempts, in no order.
func (s *sessions) runningAttempts() []attemptProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []attemptProgress
	for _, n := range s.nodes {
		for k, a := range n.seen {
			out = append(out, attemptProgress{k, a.GetKey().GetRun(), a.GetPhase() == droverv1.Phase_PHASE_RUNNING, a.GetProgress()})
		}
	}
	return out
}

// dropAttempt drops the report of an attempt.
func (s *sessions) dropAttempt(node int32, k facts.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		delete(n.seen, k)
	}
}

// end ends the session of a node whose loss in that epoch is in the facts.
func (s *sessions) end(node int32, epoch uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || n.epoch != epoch {
		return
	}
	if n.cancelWatch != nil {
		n.cancelWatch()
	}
	s.nodes[node] = &nodeSession{epoch: epoch, lost: true, declared: true}
}

// setWatch sets the function that ends the node's watch stream, and ends the
// previous stream.
func (s *sessions) setWatch(node int32, epoch uint64, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[node]
	if n == nil || n.epoch != epoch {
		return
	}
	if n.cancelWatch != nil {
		n.cancelWatch()
	}
	n.cancelWatch = end
}

// endLeases ends the leases that are due. It returns their nodes, by number, at each call until
// their loss is declared, and when the next lease ends. A report later than now, because the clock
// was set back, counts from now on, so that the lease does not last longer.
func (s *sessions) endLeases(now time.Time, lease time.Duration) (gone []lostNode, next time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, n := range s.nodes {
		if n.declared {
			continue
		}
		if n.lastReport.After(now) {
			n.lastReport = now
		}
		if n.leaseFrom.After(now) {
			n.leaseFrom = now
		}
		end := n.leaseEnd(lease)
		if n.lost || !end.After(now) {
			n.lost = true
			gone = append(gone, lostNode{id, n.epoch})
			continue
		}
		next = earlier(next, end)
	}
	slices.SortFunc(gone, func(a, b lostNode) int { return cmp.Compare(a.id, b.id) })
	return gone, next
}

type lostNode struct {
	id    int32
	epoch uint64
}

// status returns the time of a node's last report to this leader, zero for
// none, and its load.
func (s *sessions) status(node int32) (last time.Time, load *droverv1.NodeLoad) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		if n.reported {
			last = n.lastReport
		}
		load = n.load
	}
	return last, load
}

package coordinator

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/coordinator/facts"
)

// Bounds of the changes kept for each node: twice the number of its attempts. A watcher that is
// further behind receives a full set, which is shorter.
const (
	minWantedLog = 256
	maxWantedLog = 1 << 14
)

// keptEnded is how many ended attempts that nobody needs stay in a node's set for each job: the
// newest. A small job thus stays as a whole. A node that has logs of a job also has one of its
// attempts until the logs expire, by which it knows that it must keep the logs. Of all other ended
// attempts the node keeps only the logs.
const keptEnded = 20

// wantedSets holds the attempts that each node must have, as a projection of the facts: only keys,
// runs and revisions. The content of a message is read from the facts when it is sent, so it is
// never older than its revision. At most keptEnded attempts of a node and a job stay without need.
// Which those are follows from the facts alone (facts.Attempt.EndSeq), so that the next leader
// keeps the same.
//
// A revision is term<<32 + a counter, so that revisions of different leaders never coincide.
type wantedSets struct {
	now      func() time.Time
	keepLogs time.Duration // see Config.KeepLogs
	maxEnded int           // keptEnded

	mu    sync.Mutex
	term  uint64
	nodes map[int32]*wantedNode
}

type wantedNode struct {
	epoch uint64
	rev   uint64
	items map[uint64]map[facts.Key]int32 // runs, by job, so that a job can be forgotten without visiting the others
	size  int                            // attempts in items
	ended map[uint64][]endedAttempt      // by job: the items that nobody needs, at most keptEnded, oldest first
	log   []wantedChange                 // ascending revisions
	base  uint64                         // the log contains every change above this revision
	wake  chan struct{}                  // closed and replaced at every change
}

type endedAttempt struct {
	seq uint64 // facts.Attempt.EndSeq
	key facts.Key
}

// wantedChange is a change of an attempt, or a new request (requestID > 0).
type wantedChange struct {
	rev       uint64
	key       facts.Key
	run       int32
	kept      bool // in a batch: the attempt is in the set
	requestID uint64
}

func newWantedSets(now func() time.Time, keepLogs time.Duration) *wantedSets {
	return &wantedSets{now: now, keepLogs: keepLogs, maxEnded: keptEnded, nodes: map[int32]*wantedNode{}}
}

// rebuild rebuilds the sets for a leader of that term.
func (w *wantedSets) rebuild(f *facts.Facts, term uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.term = term
	for _, n := range f.Nodes() {
		if n.Up {
			w.resetLocked(n)
		}
	}
	for _, id := range f.JobIDs() {
		f.EachAttempt(f.Job(id), func(k facts.Key, t *facts.Task, a *facts.Attempt) {
			if n := f.Node(a.Node); n != nil && n.Up {
				w.syncLocked(f, nodeEpoch{a.Node, a.Epoch}, k, t, a, a.Run)
			}
			if n := f.Node(a.Suspension.ImageNode); n != nil && n.Up {
				w.syncLocked(f, nodeEpoch{n.ID, a.Suspension.ImageEpoch}, k, t, a, a.Suspension.ImageRun)
			}
		})
	}
	for _, s := range w.nodes {
		s.log, s.base = nil, s.rev // attempts that left the set during the rebuild are in no other set
	}
}

// resetLocked replaces a node's set: its next message is a full set.
func (w *wantedSets) resetLocked(n *facts.Node) *wantedNode {
	old := w.nodes[n.ID]
	s := &wantedNode{epoch: n.Epoch, rev: w.term << 32, items: map[uint64]map[facts.Key]int32{}, ended: map[uint64][]endedAttempt{}, wake: make(chan struct{})}
	if old != nil {
		s.rev = max(s.rev, old.rev)
		close(old.wake)
	}
	s.rev++
	s.base = s.rev
	w.nodes[n.ID] = s
	return s
}

// registerNode starts an empty set for a new epoch of a node.
func (w *wantedSets) registerNode(n *facts.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.nodes[n.ID]; n.Up && (s == nil || s.epoch != n.Epoch) {
		w.resetLocked(n)
	}
}

// follow applies a change of an attempt, and to which nodes it matters.
func (w *wantedSets) follow(f *facts.Facts, c *facts.Change) {
	a := f.Attempt(c.Key)
	if a == nil {
		return
	}
	w.recordChange(f, nodeEpoch{a.Node, a.Epoch}, c.Key, a.Run)
	for _, id := range c.Nodes { // where it was, or where its image is
		if n := f.Node(id); n != nil && n.Up {
			w.recordChange(f, nodeEpoch{id, n.Epoch}, c.Key, c.Run)
		}
	}
}

// recordChange records that the wanted state of an attempt on a node changed. run is the attempt's
// run there.
func (w *wantedSets) recordChange(f *facts.Facts, at nodeEpoch, k facts.Key, run int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.nodes[at.node]
	if s == nil || s.epoch != at.epoch {
		return
	}
	if a := f.Attempt(k); a != nil {
		w.syncLocked(f, at, k, f.Job(k.Job).Stages[k.Stage].Task(k.Task), a, run)
	}
	s.add(wantedChange{key: k, run: run})
}

// review records which attempts of a job nobody needs on their nodes any more. O(attempts).
func (w *wantedSets) review(f *facts.Facts, j *facts.Job) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.EachAttempt(j, func(k facts.Key, t *facts.Task, a *facts.Attempt) {
		s := w.nodes[a.Node]
		if s == nil || s.epoch != a.Epoch {
			return
		}
		if _, is := s.item(k); is && w.syncLocked(f, nodeEpoch{a.Node, a.Epoch}, k, t, a, a.Run) {
			s.add(wantedChange{key: k, run: a.Run})
		}
	})
}

// syncLocked puts an attempt into the set of a node or removes it, according to the facts. It
// reports whether the wanted state changed.
func (w *wantedSets) syncLocked(f *facts.Facts, at nodeEpoch, k facts.Key, t *facts.Task, a *facts.Attempt, run int32) bool {
	s := w.nodes[at.node]
	if s == nil || s.epoch != at.epoch {
		return false
	}
	_, had := s.item(k)
	switch retentionOf(f, at, k, t, a, w.now().UnixNano(), w.keepLogs) {
	case retainAll:
		s.put(k, run)
		return !had
	case retainLogs:
		return s.keepEnded(endedAttempt{a.EndSeq, k}, run, w.maxEnded)
	default:
		s.drop(k)
		return had
	}
}

// keepEnded puts an ended attempt into the set. Only the newest limit of each job stay: beyond
// that, the oldest is removed. It reports whether the attempt is new to the set.
func (s *wantedNode) keepEnded(e endedAttempt, run int32, limit int) bool {
	list := s.ended[e.key.Job]
	i, is := slices.BinarySearchFunc(list, e, func(x, y endedAttempt) int {
		return cmp.Or(cmp.Compare(x.seq, y.seq), facts.CompareKeys(x.key, y.key))
	})
	s.put(e.key, run)
	if is {
		return false
	}
	s.ended[e.key.Job] = slices.Insert(list, i, e)
	if len(list) == limit {
		oldest := s.ended[e.key.Job][0].key
		run, _ := s.item(oldest)
		change := wantedChange{key: oldest, run: run}
		s.drop(oldest)
		s.add(change)
	}
	return true
}

// item returns the run of an attempt in the set.
func (s *wantedNode) item(k facts.Key) (run int32, ok bool) {
	run, ok = s.items[k.Job][k]
	return run, ok
}

func (s *wantedNode) put(k facts.Key, run int32) {
	of := s.items[k.Job]
	if of == nil {
		of = map[facts.Key]int32{}
		s.items[k.Job] = of
	}
	s.size -= len(of)
	of[k] = run
	s.size += len(of)
}

// drop removes an attempt from the set.
func (s *wantedNode) drop(k facts.Key) {
	if of := s.items[k.Job]; of != nil {
		s.size -= len(of)
		delete(of, k)
		s.size += len(of)
		if len(of) == 0 {
			delete(s.items, k.Job)
		}
	}
	list := slices.DeleteFunc(s.ended[k.Job], func(e endedAttempt) bool { return e.key == k })
	if s.ended[k.Job] = list; len(list) == 0 {
		delete(s.ended, k.Job)
	}
}

// forgetJob removes all attempts of a job from a node's set. O(those attempts).
func (w *wantedSets) forgetJob(node int32, job uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.nodes[node]
	if s == nil {
		return
	}
	runs := s.items[job]
	s.size -= len(runs)
	delete(s.items, job)
	delete(s.ended, job)
	for _, k := range slices.SortedFunc(maps.Keys(runs), facts.CompareKeys) {
		s.add(wantedChange{key: k, run: runs[k]})
	}
}

// addRequest records a new request for a node.
func (w *wantedSets) addRequest(node int32, id uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.nodes[node]; s != nil {
		s.add(wantedChange{requestID: id})
	}
}

func (s *wantedNode) add(c wantedChange) {
	s.rev++
	c.rev = s.rev
	if len(s.log) >= min(max(minWantedLog, 2*s.size), maxWantedLog) {
		half := len(s.log) / 2
		s.base = s.log[half-1].rev
		s.log = append(s.log[:0:0], s.log[half:]...)
	}
	s.log = append(s.log, c)
	close(s.wake)
	s.wake = make(chan struct{})
}

// wantedBatch is the next message to a watcher.
type wantedBatch struct {
	rev      uint64
	full     bool
	keys     []wantedChange // each attempt once
	requests []uint64
	wake     <-chan struct{}
}

// changesSince returns what changed after rev; ok is false if the node has no set of that epoch. If
// the batch is empty and not full, the caller must wait for wake.
func (w *wantedSets) changesSince(at nodeEpoch, rev uint64) (b wantedBatch, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.nodes[at.node]
	if s == nil || s.epoch != at.epoch {
		return wantedBatch{}, false
	}
	b = wantedBatch{rev: s.rev, wake: s.wake, full: rev < s.base || rev > s.rev}
	if b.full {
		for _, runs := range s.items {
			for k := range runs {
				b.keys = append(b.keys, wantedChange{key: k, kept: true})
			}
		}
		slices.SortFunc(b.keys, func(x, y wantedChange) int { return facts.CompareKeys(x.key, y.key) })
		return b, true
	}
	i, _ := slices.BinarySearchFunc(s.log, rev+1, func(c wantedChange, r uint64) int { return int(int64(c.rev) - int64(r)) })
	seen := map[facts.Key]bool{}
	for _, c := range s.log[i:] {
		switch {
		case c.requestID > 0:
			b.requests = append(b.requests, c.requestID)
		case !seen[c.key]:
			seen[c.key] = true
			_, c.kept = s.item(c.key)
			b.keys = append(b.keys, c)
		}
	}
	return b, true
}

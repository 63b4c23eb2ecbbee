package node

import (
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/store"
)

// attemptTable owns the set of attempts on this node, the identity under which the coordinator
// knows the node, and what must still be reported. It starts and ends nothing: the daemon acts on
// what it returns. Invariants:
//
//   - an orphaned attempt is never reported, not even as gone;
//   - wantedAgain has an id only while an orphaned attempt of that id is here;
//   - an attempt is unmarked when a report of it is made; an attempt that is gone is unmarked only
//     when the coordinator has answered.
type attemptTable struct {
	reportNow chan struct{} // something must be reported; capacity 1

	mu          sync.Mutex // taken before mailbox.mu; guards also attempt.orphaned once the loop has started
	adopted     bool       // everything that an earlier daemon left is here
	id          store.Identity
	sequence    uint64 // of the last report
	byID        map[store.ID]*attempt
	dirty       map[store.ID]bool                    // changed since the last report
	gone        map[store.ID]bool                    // removed but not yet reported
	wantedAgain map[store.ID]*droverv1.WantedAttempt // wanted again while the old attempt is being removed
}

// newAttemptTable returns an empty table. The first report has the number after
// sequence.
func newAttemptTable(id store.Identity, sequence uint64) *attemptTable {
	return &attemptTable{reportNow: make(chan struct{}, 1), id: id, sequence: sequence,
		byID: map[store.ID]*attempt{}, dirty: map[store.ID]bool{},
		gone: map[store.ID]bool{}, wantedAgain: map[store.ID]*droverv1.WantedAttempt{},
	}
}

// identity returns the node's current identity.
func (t *attemptTable) identity() store.Identity {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.id
}

// epoch returns the node's current epoch.
func (t *attemptTable) epoch() uint64 { return t.identity().Epoch }

// epochOf returns the epoch for the record of an attempt, given the recorded one. After a restore
// of the coordinator the attempt moves to the node's new epoch; an orphaned attempt keeps its own.
func (t *attemptTable) epochOf(a *attempt, recorded uint64) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a.orphaned {
		return recorded
	}
	return t.id.Epoch
}

// setRevision records the term and the revision of the wanted state in force.
func (t *attemptTable) setRevision(term, revision uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.id.Term, t.id.Revision = term, revision
}

// fullSetApplied records that the last full set has been applied to every attempt here. If it is
// the first since the coordinator was restored, the next report is sent at once, because its
// response is the first that grants a lease.
func (t *attemptTable) fullSetApplied() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.id.Restored {
		t.id.Restored = false
		t.requestReport()
	}
}

// get returns the attempt, also an orphaned one, or nil.
func (t *attemptTable) get(id store.ID) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
}

// find returns the attempt, or nil if the coordinator has no attempt of that id on this node.
func (t *attemptTable) find(id store.ID) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.byID[id]; a != nil && !a.orphaned {
		return a
	}
	return nil
}

// setAdopted records that everything an earlier daemon left has been adopted.
func (t *attemptTable) setAdopted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.adopted = true
}

// lookUp returns an attempt that another node requests. NotFound: it is not on this node.
// Unavailable: the adoption has not finished, so it may still appear.
func (t *attemptTable) lookUp(id store.ID) (*attempt, error) {
	t.mu.Lock()
	adopted := t.adopted // read first: afterwards, an attempt that find does not return is not here
	t.mu.Unlock()
	a := t.find(id)
	switch {
	case a != nil:
		return a, nil
	case !adopted:
		return nil, fault.New(fault.Unavailable, "the daemon of this node is starting")
	default:
		return nil, fault.New(fault.NotFound, "attempt %s is not on this node", id)
	}
}

// count returns the number of attempts with anything left on this node.
func (t *attemptTable) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID)
}

// each calls f for every attempt, in no order, under the table's lock: f must not
// call the table.
func (t *attemptTable) each(f func(*attempt)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, a := range t.byID {
		f(a)
	}
}

// add registers a new attempt.
func (t *attemptTable) add(a *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addLocked(a)
}

func (t *attemptTable) addLocked(a *attempt) {
	t.byID[a.id] = a
	if !a.orphaned {
		t.dirty[a.id] = true
	}
}

// want returns the attempt of a wanted state, nil if it is not here. later is true if an orphaned
// attempt of that id must be removed first: remove then returns w.
func (t *attemptTable) want(id store.ID, w *droverv1.WantedAttempt) (a *attempt, later bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.gone, id)
	a = t.byID[id]
	if a != nil && a.orphaned {
		t.wantedAgain[id] = w
		return nil, true
	}
	return a, false
}

// unwant returns an attempt that is no longer wanted. If it is not here, it returns nil and has the
// attempt reported as gone.
func (t *attemptTable) unwant(id store.ID) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.wantedAgain, id)
	a := t.byID[id]
	if a == nil {
		t.gone[id] = true
	}
	return a
}

// unlisted returns the attempts that are missing in put, a full wanted set.
func (t *attemptTable) unlisted(put map[store.ID]*droverv1.WantedAttempt) (others []*attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id, a := range t.byID {
		if put[id] == nil {
			others = append(others, a)
			delete(t.wantedAgain, id)
		}
	}
	return others
}

// enterEpoch takes over a new identity. If the epoch or the node's number changed, the coordinator
// has given up all attempts here: they become orphans and are returned. If the coordinator was
// restored, they stay: those that the first full set does not list are frozen (store.Apply).
func (t *attemptTable) enterEpoch(id store.Identity) (orphans []*attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.id
	t.id = id
	if old.ClusterEpoch != id.ClusterEpoch && old.Cluster != "" {
		clear(t.gone) // reported to the coordinator before its restore; this one did not ask for them
	} else if old.Epoch != id.Epoch || old.Node != id.Node {
		orphans = t.orphanLocked()
	}
	return orphans
}

// orphanLocked gives up all attempts and returns those that were not given up before.
func (t *attemptTable) orphanLocked() (orphans []*attempt) {
	for aid, a := range t.byID {
		if !a.orphaned {
			orphans = append(orphans, a)
			a.orphaned = true
			delete(t.dirty, aid)
		}
	}
	clear(t.gone)
	clear(t.wantedAgain) // the next set says again what is wanted
	return orphans
}

// isOutdated reports whether another daemon has the node's name in a later epoch than this node's,
// and anything wanted in this one's epoch is still here. Runs from before a restore of the
// coordinator are left to an operator.
func (t *attemptTable) isOutdated(by wire.NodeOwner) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	mine := wire.NodeOwner{Cluster: t.id.Cluster, ClusterEpoch: t.id.ClusterEpoch, Node: t.id.Node, Epoch: by.Epoch}
	if mine != by || t.id.Epoch >= by.Epoch || t.id.Restored {
		return false
	}
	for _, a := range t.byID {
		if !a.orphaned {
			return true
		}
	}
	return t.id.Revision > 0
}

// giveUp gives up all attempts, and returns those that are to be removed.
func (t *attemptTable) giveUp() (orphans []*attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.id.Revision = 0
	return t.orphanLocked()
}

// remove removes an attempt of which nothing is left; it returns false if the attempt has become
// wanted again. If its id is wanted again, next is the attempt that takes its place, made by
// successor. Both happen under one lock: a change of the wanted state in between would miss the
// successor.
func (t *attemptTable) remove(a *attempt, successor func(*droverv1.WantedAttempt) *attempt) (removed bool, next *attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if wanted, _ := a.mail.wantedAndSpec(); wanted != nil {
		return false, nil
	}
	delete(t.byID, a.id)
	delete(t.dirty, a.id)
	if !a.orphaned {
		t.gone[a.id] = true
	}
	if w := t.wantedAgain[a.id]; w != nil {
		delete(t.wantedAgain, a.id)
		next = successor(w)
		t.addLocked(next)
	}
	return true, next
}

// markChanged marks an attempt for the next report; with atOnce the report is sent now.
func (t *attemptTable) markChanged(id store.ID, atOnce bool) {
	t.mu.Lock()
	t.dirty[id] = true
	t.mu.Unlock()
	if atOnce {
		t.requestReport()
	}
}

// requestReport makes reportLoop send a report soon; it never blocks.
func (t *attemptTable) requestReport() {
	select {
	case t.reportNow <- struct{}{}:
	default:
	}
}

// nextReport returns the next report: everything or the changes, by id, within maxReportAttempts
// and maxReportBytes. The rest stays marked for the next report; the coordinator expects several
// reports after a full one.
func (t *attemptTable) nextReport(full bool) *droverv1.ReportRequest {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sequence++
	req := &droverv1.ReportRequest{Node: t.id.Node, Epoch: t.id.Epoch, Sequence: t.sequence, Full: full, AppliedRevision: t.id.Revision}
	if full {
		for id, a := range t.byID {
			if !a.orphaned {
				t.dirty[id] = true
			}
		}
	}
	ids := slices.Collect(maps.Keys(t.dirty))
	for id := range t.gone {
		if !t.dirty[id] {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	bytes := 0
	for _, id := range ids {
		if len(req.Attempts) == maxReportAttempts {
			break
		}
		s := t.reportLocked(id)
		if n := proto.Size(s); len(req.Attempts) > 0 && bytes+n > maxReportBytes {
			break
		} else {
			bytes += n
		}
		delete(t.dirty, id)
		if s != nil {
			req.Attempts = append(req.Attempts, s)
		}
	}
	return req
}

// reportLocked returns the current report of an attempt, PHASE_GONE for a removed
// one, and nil for one that is not reported. mu must be held.
func (t *attemptTable) reportLocked(id store.ID) *droverv1.SeenAttempt {
	a := t.byID[id]
	switch {
	case a != nil && a.orphaned:
		return nil
	case a != nil:
		return a.mail.snapshot()
	case t.gone[id]:
		return &droverv1.SeenAttempt{Key: id.Key(), Phase: droverv1.Phase_PHASE_GONE}
	default:
		return nil
	}
}

// reported records that the coordinator has answered a report of these attempts. It reports whether
// more is marked. Attempts that went away since stay marked.
func (t *attemptTable) reported(sent []*droverv1.SeenAttempt) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, s := range sent {
		if s.GetPhase() == droverv1.Phase_PHASE_GONE {
			delete(t.gone, store.IDOf(s.GetKey()))
		}
	}
	return len(t.dirty) > 0 || len(t.gone) > 0
}

// neededImages returns the images of attempts that have not ended.
func (t *attemptTable) neededImages() (digests []string) {
	t.each(func(a *attempt) {
		if img := a.mail.liveImage(); img.GetKind() == string(jobspec.ImageOCIArchive) {
			digests = append(digests, img.GetDigest())
		}
	})
	return digests
}

// isOldHarnessInUse reports whether an active attempt may use an earlier harness.
func (t *attemptTable) isOldHarnessInUse() (used bool) {
	t.each(func(a *attempt) { used = used || a.mayNeedOldHarness && a.mail.isAlive() })
	return used
}

// allocatedIO returns the disk bandwidth of all attempts that may be running, in
// bytes per second.
func (t *attemptTable) allocatedIO() (sum int64) {
	t.each(func(a *attempt) {
		w, spec := a.mail.wantedAndSpec()
		if w != nil && w.GetGoal() != droverv1.Goal_GOAL_KEEP && w.GetLevel() <= droverv1.Level_LEVEL_RUNNING {
			sum += spec.GetDemand().GetIo()
		}
	})
	return sum
}

// jobsInUse returns the jobs of the attempts here. They are the jobs that are live, or ended so
// recently that all their logs must stay readable: of such a job the coordinator leaves some
// attempts on each node where any were.
func (t *attemptTable) jobsInUse() map[uint64]bool {
	jobs := map[uint64]bool{}
	t.each(func(a *attempt) {
		if w, _ := a.mail.wantedAndSpec(); w != nil && w.GetGoal() != droverv1.Goal_GOAL_KEEP {
			jobs[a.id.Key().GetJob()] = true
		}
	})
	return jobs
}

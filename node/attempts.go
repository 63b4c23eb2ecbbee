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

// attemptTable owns which attempts are on this node, the identity under which the
// coordinator knows the node, and what must still be reported. It starts and ends
// nothing: the daemon acts on what it returns. What may not change:
//
//   - an orphaned attempt is never reported, neither as it is nor as gone;
//   - wantedAgain has an id only while an orphaned attempt of that id is here;
//   - what a report contains is unmarked when the report is made, but an attempt
//     that is gone only when the coordinator has answered.
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

// epochOf returns the epoch for the record of an attempt, which has recorded until
// now. After a restore of the coordinator the attempt goes over to the node's new
// epoch; an orphaned one keeps its own.
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

// fullSetApplied records that every attempt here is what the last full set made of it. If that is the first since the
// coordinator was restored, the next report is sent at once: its answer is the first that gives a lease.
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

// find returns the attempt, or nil if the coordinator knows none of that id here.
func (t *attemptTable) find(id store.ID) *attempt {
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := t.byID[id]; a != nil && !a.orphaned {
		return a
	}
	return nil
}

// setAdopted records that everything that an earlier daemon left is here.
func (t *attemptTable) setAdopted() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.adopted = true
}

// lookUp returns an attempt that another node asks for. NotFound: it is not on this node. Unavailable: it may yet come,
// since not everything that an earlier daemon left is here.
func (t *attemptTable) lookUp(id store.ID) (*attempt, error) {
	t.mu.Lock()
	adopted := t.adopted // asked first: what find then does not know is not here
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

// want returns the attempt that is wanted, nil if it is not here. later is true if an
// orphaned attempt of that id must go first: remove then returns w.
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

// unwant returns the attempt that is not wanted any more. One that is not here is
// to be reported as gone, and nil.
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

// unlisted returns the attempts that are not in put, which is all that is wanted.
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

// enterEpoch takes over a new identity. If the epoch or the node's number changed,
// all attempts become orphans, which it returns: the coordinator has given them up.
// Where the coordinator was restored they stay: what the first full set does not
// list is frozen (store.Apply).
func (t *attemptTable) enterEpoch(id store.Identity) (orphans []*attempt) {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.id
	t.id = id
	if old.ClusterEpoch != id.ClusterEpoch && old.Cluster != "" {
		clear(t.gone) // reported to the coordinator that was restored; this one did not ask
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

// isOutdated reports whether the node's name is another daemon's in a later epoch than this node's, and there is anything
// here that was wanted of it. From before a restore of the coordinator there may be runs of which an operator decides.
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

// remove removes an attempt of which nothing is left; false if it has become wanted
// again. next is the attempt that takes its place, made by successor of what is wanted
// under the same id, or nil. There is no moment at which the id is free and yet wanted:
// another change of what is wanted would miss the successor.
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

// markChanged marks an attempt for the next report; atOnce sends it now.
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

// nextReport returns the next report: everything or what has changed, in the
// order of the ids, as far as maxReportAttempts and maxReportBytes allow. What is
// left stays marked for the next report; the coordinator takes a full report as
// the first of several.
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

// reported notes that the coordinator has answered a report of these attempts. It
// reports whether there is more to say. Attempts that went since stay marked.
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

// isOldHarnessInUse reports whether an attempt that may use an earlier harness is
// alive.
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

// jobsInUse returns the jobs that are live, or ended so recently that all their logs are to be read, as far as
// attempts of them were here: of such a job the coordinator leaves some here that are not kept for themselves.
func (t *attemptTable) jobsInUse() map[uint64]bool {
	jobs := map[uint64]bool{}
	t.each(func(a *attempt) {
		if w, _ := a.mail.wantedAndSpec(); w != nil && w.GetGoal() != droverv1.Goal_GOAL_KEEP {
			jobs[a.id.Key().GetJob()] = true
		}
	})
	return jobs
}

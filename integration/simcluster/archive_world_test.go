package simcluster

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// afterRestore is what the world knows of the runs of a cluster that was restored.
type afterRestore struct {
	restored bool
	active   map[string]bool // attempts that the archive has, and that have not ended in it
	killed   []*programRun   // that were unknown when they were killed
	lastJob  uint64          // that the lost coordinators can have accepted
	frozen   map[string]bool // that a node says it has frozen, since the coordinator does not know them; nobody has decided to adopt them
}

// lastOldRun is the last run of an attempt that was placed before the restore.
const lastOldRun = 1000

// hasMoved reports whether the archive has an attempt with a lower run than a program of it has. When the restored coordinator
// moves it, it is that run again: see migrate in package facts.
func (a *afterRestore) hasMoved(id string) bool {
	for old, active := range a.active {
		if active && taskOf(old) == taskOf(id) && attemptOf(old) == attemptOf(id) && runOf(old) < runOf(id) {
			return true
		}
	}
	return false
}

// mayCount reports whether the success of a run that the restored state does not know may count: it had ended before its node,
// which did not know that yet, reported it, or it is a run that the restored coordinator made again.
func (a *afterRestore) mayCount(id string) bool {
	_, reported := a.frozen[id]
	return reported || a.hasMoved(id)
}

// isUnknown reports whether a program that starts now is of an attempt that the restored state does not know.
func (a *afterRestore) isUnknown(id string) bool {
	return a.restored && jobOf(id) <= a.lastJob && runOf(id) <= lastOldRun && !a.active[id]
}

// restoreFrom takes what the restored state knows. What has succeeded that it does not know counts no more, and what it knows
// may start again.
func (w *world) restoreFrom(lastJob uint64, known, active map[string]bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after = afterRestore{restored: true, lastJob: lastJob, active: active, frozen: map[string]bool{}}
	for id, run := range w.runs {
		run.unknown = !known[id]
	}
	for id := range active {
		delete(w.started, id)
	}
	newest := map[string]string{}
	for task, id := range w.newest {
		newest[unknownTask(task)] = id
	}
	w.newest = newest
}

// unknownTask returns what stands for a task in world.newest as far as unknown attempts of it go.
func unknownTask(task string) string { return "unknown " + task }

func (w *world) isUnknown(run *programRun) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return run.unknown
}

// freezes takes note that a node reports a run as unknown and frozen.
func (w *world) freezes(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if run := w.runs[id]; run != nil && run.unknown {
		w.after.frozen[id] = true
	}
}

// adopt takes note that the operator is about to adopt a run, or that this was refused.
func (w *world) adopt(id string, adopted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.after.frozen[id] = !adopted
	if run := w.runs[id]; run != nil {
		run.unknown = !adopted
	}
}

// mustWait checks that a program which nothing holds may act. It reports whether it was frozen in this instant.
func (w *world) mustWait(run *programRun, m *machine) bool {
	w.mu.Lock()
	unknown, frozen, moved := run.unknown, w.after.frozen[run.id], w.after.hasMoved(run.id)
	w.mu.Unlock()
	if !unknown || moved {
		return false
	}
	if is, _ := m.kernel.Frozen(context.Background(), run.id); is { // never fails
		return true
	}
	if frozen {
		w.c.violated("%s goes on on %s, which has reported it as unknown and frozen: nobody has adopted it", run.id, m.name)
	}
	if d := m.hears(); d > 2*lease {
		w.c.violated("%s goes on on %s, which has heard for %s from a restored coordinator that does not know it", run.id, m.name, d)
	}
	return false
}

// hearing is how long a daemon has been heard by a restored coordinator since it registered.
type hearing struct {
	restored    bool   // the coordinator was
	epoch       uint64 // of the node
	fenced      bool   // its epoch has changed since, or its power was cut
	first, last time.Time
}

// registered takes note of a registration.
func (m *machine) registered(res *droverv1.RegisterResponse) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := hearing{restored: res.GetClusterEpoch() > 0, epoch: res.GetEpoch()}
	h.fenced = m.heard.fenced || m.heard.epoch != 0 && m.heard.epoch != h.epoch && h.restored == m.heard.restored
	m.heard = h
}

// fence takes note that what ran on the machine does not any more.
func (m *machine) fence() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard.fenced = true
}

func (m *machine) wasFenced() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.heard.fenced
}

// reported takes note of a report that was answered.
func (m *machine) reported() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard.last = time.Now()
	if m.heard.first.IsZero() {
		m.heard.first = m.heard.last
	}
}

// hears returns how long the daemon has been heard.
func (m *machine) hears() time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.heard.restored {
		return 0
	}
	return m.heard.last.Sub(m.heard.first)
}

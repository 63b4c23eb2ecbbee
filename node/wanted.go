package node

import (
	"slices"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/node/store"
)

// applyWanted stores a message of the coordinator and then acts on it.
func (d *daemon) applyWanted(w *droverv1.Wanted) error {
	change, err := d.store.Apply(w)
	if err != nil {
		return err
	}
	if change.Stale {
		d.log.Debug("outdated revision ignored", "revision", w.GetRevision())
		return nil
	}
	d.attempts.setRevision(w.GetTerm(), w.GetRevision())
	ids := make([]store.ID, 0, len(change.Put))
	for id := range change.Put {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		d.setWanted(id, change.Put[id])
	}
	for _, k := range w.GetRemove() {
		d.removeWanted(store.IDOf(k))
	}
	if w.GetFull() {
		d.removeUnlisted(change.Put)
		d.attempts.fullSetApplied()
		if len(w.GetKeepBlobs()) > 0 || len(w.GetPut()) == 0 {
			d.blobs.Prune(w.GetKeepBlobs())
		}
	}
	return nil
}

// setWanted passes the wanted state to the attempt, which it creates if needed.
// While an orphaned attempt with that ID is being removed, the state waits.
func (d *daemon) setWanted(id store.ID, w *droverv1.WantedAttempt) {
	a, later := d.attempts.want(id, w)
	if later {
		return
	}
	if a != nil {
		a.setWanted(w)
		return
	}
	d.launch(d.newWanted(id, w))
}

// removeWanted starts the removal of an attempt. An attempt that is not on this
// node is reported as gone.
func (d *daemon) removeWanted(id store.ID) {
	if a := d.attempts.unwant(id); a != nil {
		a.setWanted(nil)
		return
	}
	d.attempts.requestReport()
}

// removeUnlisted starts the removal of every attempt that a full set does not list.
func (d *daemon) removeUnlisted(put map[store.ID]*droverv1.WantedAttempt) {
	for _, a := range d.attempts.unlisted(put) {
		a.setWanted(nil)
	}
}

// newWanted returns an attempt that is wanted and not here yet.
func (d *daemon) newWanted(id store.ID, w *droverv1.WantedAttempt) *attempt {
	a := newAttempt(d, id)
	a.mail.wanted, a.mail.spec = w, w.GetSpec()
	a.mayNeedOldHarness = w.GetResumeFrom() != "" // it may need an older harness
	return a
}

// launch registers the attempt and starts its loop; the caller must not modify
// the attempt afterwards.
func (d *daemon) launch(a *attempt) {
	d.attempts.add(a)
	a.startLoop()
	d.attempts.requestReport()
}

// removeFinished removes an attempt of which nothing is left from the daemon. It
// returns false if the attempt has become wanted again.
func (d *daemon) removeFinished(a *attempt) bool {
	removed, next := d.attempts.remove(a, func(w *droverv1.WantedAttempt) *attempt { return d.newWanted(a.id, w) })
	if !removed {
		return false
	}
	if next != nil {
		next.startLoop()
	}
	d.attempts.requestReport()
	return true
}

// enterEpoch takes over a new identity, and removes the attempts that the
// coordinator has given up. The lease of that epoch may be used only afterwards.
func (d *daemon) enterEpoch(id store.Identity) {
	d.removeOrphans(d.attempts.enterEpoch(id))
}

// leaveName removes all attempts if the coordinator says that another daemon has the node's name in
// a later epoch. The attempts were lost with the earlier epoch, have been started elsewhere, and
// can never count. The coordinator gives the name to another daemon only once the lease of this one
// has ended. If the store cannot be written, everything continues until the next registration.
func (d *daemon) leaveName(by wire.NodeOwner) {
	if !d.attempts.isOutdated(by) {
		return
	}
	if err := d.store.GiveUp(); err != nil {
		d.log.Warn("another daemon has the name of this node; what ran here cannot be removed yet", "err", err)
		return
	}
	orphans := d.attempts.giveUp()
	d.log.Warn("another daemon has the name of this node: what ran here was lost, and is removed", "attempts", len(orphans), "epoch", d.attempts.epoch(), "epoch_of_name", by.Epoch)
	d.removeOrphans(orphans)
}

func (d *daemon) removeOrphans(orphans []*attempt) {
	for _, a := range orphans {
		d.log.Info("attempt of an older epoch is removed", "attempt", a.id)
		_, spec := a.mail.wantedAndSpec()
		d.exclusive.abandon(a.id, spec)
		a.setWanted(nil)
	}
}

package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/node/task"
)

// adopt finds what an earlier daemon left: records, wanted attempts,
// containers, cgroups and folders. Attempts with a record continue from where
// they are; the others are removed.
func (d *daemon) adopt(ctx context.Context) error {
	records, err := d.store.Records()
	if err != nil {
		return err
	}
	wanted, err := d.store.Wanted()
	if err != nil {
		return err
	}
	known := map[store.ID]bool{}
	for id := range records {
		known[id] = true
	}
	for id := range wanted {
		known[id] = true
	}
	listing, cancel := context.WithTimeout(ctx, d.cfg.adoptLimit)
	containers, listErr := d.containers.list(listing) // bounded: attempts list again later, and the lease does not wait
	cancel()
	if listErr != nil {
		d.log.Warn("the container engine is not answering yet", "err", listErr)
	}
	for id := range containers {
		d.addKnown(known, id)
	}
	folders, err := os.ReadDir(filepath.Join(d.cfg.Data, "attempts"))
	if err != nil {
		return err
	}
	for _, f := range folders {
		d.addKnown(known, f.Name())
	}
	dumps, err := os.ReadDir(filepath.Join(d.cfg.Data, "images"))
	if err != nil {
		return err
	}
	for _, f := range dumps {
		d.addKnown(known, f.Name())
	}
	groups, strays, err := d.adoptCgroups(ctx, known)
	if err != nil {
		return err
	}
	epoch := d.attempts.epoch()
	for id := range known {
		a := newAttempt(d, id)
		a.mayNeedOldHarness, a.adopted = true, true
		rec, recorded := records[id]
		if err := a.adopt(rec, recorded, groups[id]); err != nil {
			return fmt.Errorf("attempt %s: %w", id, err)
		}
		a.container.set(containers[id.String()])
		if listErr != nil {
			a.container.phase = task.ContainerUnknown
		}
		a.helpers.strays = strays[id]
		a.mail.wanted, a.mail.spec = wanted[id], wanted[id].GetSpec()
		a.orphaned = recorded && rec.Epoch != epoch || !recorded && wanted[id] == nil
		if a.orphaned {
			a.mail.wanted = nil
		}
		if a.outcome == nil { // another node may request the dump before the loop knows the state of the container
			a.mail.dump = a.dumpToServe(a.suspension.level(a.mail.wanted))
		}
		d.launch(a)
	}
	d.attempts.setAdopted()
	d.log.Info("adopted", "attempts", len(known), "containers", len(containers))
	return nil
}

// adoptCgroups lists the attempts' cgroups and kills the helpers that an earlier daemon left in
// them. strays are the attempts with helpers that did not die in time, for example because their
// disk hangs; the others do not wait for them.
func (d *daemon) adoptCgroups(ctx context.Context, known map[store.ID]bool) (groups, strays map[store.ID]bool, err error) {
	groups, strays = map[store.ID]bool{}, map[store.ID]bool{}
	if d.cfg.Enforcer == nil {
		return groups, strays, nil
	}
	names, err := d.cfg.Enforcer.List()
	if err != nil {
		return nil, nil, err
	}
	killing, cancel := context.WithTimeout(ctx, helperKillLimit) // all of them together
	defer cancel()
	for _, n := range names {
		d.addKnown(known, n)
		if !known[store.ID(n)] {
			continue
		}
		groups[store.ID(n)] = true
		if err := d.cfg.Enforcer.KillHelpers(killing, n); err != nil {
			d.log.Warn("helpers of the attempt from before the restart are not gone", "attempt", n, "err", err)
			strays[store.ID(n)] = true
		}
	}
	return groups, strays, nil
}

// addKnown adds name to known if it is an attempt id; other names are ignored.
func (d *daemon) addKnown(known map[store.ID]bool, name string) {
	if _, err := store.ParseID(name); err != nil {
		d.log.Warn("name is not an attempt id, ignored", "name", name)
		return
	}
	known[store.ID(name)] = true
}

// adopt restores the attempt's state from its record.
func (a *attempt) adopt(rec store.Record, recorded, cgroup bool) error {
	a.rec.Record, a.rec.exists, a.cgroup.exists = rec, recorded, cgroup
	end, err := rec.DecodeEnd()
	if err != nil {
		return err
	}
	if bounded := boundReport(end); bounded != end { // recorded by a daemon without these limits
		end = bounded
		b, err := proto.Marshal(end)
		if err != nil {
			return err
		}
		if err := a.rec.change(func(r *store.Record) { r.End = b }); err != nil {
			return err
		}
	}
	if end != nil {
		a.outcome = &outcome{end}
		a.mail.seen = end
	}
	if rec.Started { // it is prepared already, and must not be prepared again
		a.files.hasImage, a.files.hasFiles = true, true
		if end == nil {
			a.cgroup.exists = cgroup || a.d.cfg.Enforcer == nil // a checkpointed attempt has none after a move or a reboot
			a.cgroup.limits = readLimits(a.d.cfg.Enforcer, a.id)
			a.cgroup.read() // the engine may not answer, and a level is reported with its footprint
		}
	}
	if rec.Dumped {
		a.cgroup.recoverUsage()
	}
	return nil
}

// readLimits returns the limits in force for an adopted attempt, or nil.
func readLimits(e Enforcer, id store.ID) *droverv1.Limits {
	r, ok := e.(interface {
		Limits(id string) (*droverv1.Limits, error)
	})
	if !ok {
		return nil
	}
	l, err := r.Limits(id.String())
	if err != nil {
		return nil
	}
	return l
}

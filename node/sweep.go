package node

import (
	"context"
	"errors"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// sweepLimit bounds the removal of what one container left.
const sweepLimit = time.Minute

// sweepLoop periodically removes what containers without an attempt left on the
// machine: containers that the engine still lists, and leftovers that the engine
// itself has forgotten.
func (d *daemon) sweepLoop(ctx context.Context) error {
	t := time.NewTicker(d.cfg.SweepEvery)
	defer t.Stop()
	for {
		d.sweep(ctx)
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// sweep does one round; what cannot be removed is left for the next round.
func (d *daemon) sweep(ctx context.Context) {
	found, err := d.findUnowned(ctx)
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("cannot list leftovers of containers", "err", err)
		}
		return
	}
	for _, l := range found {
		if d.isOwned(l) {
			continue // became wanted after the listing
		}
		within, cancel := context.WithTimeout(ctx, sweepLimit)
		err := d.cfg.Driver.Delete(within, l.ID)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.log.Warn("leftovers of a container were not removed", "container", l.ID, "parts", strings.Join(l.Parts, "; "), "err", err)
			continue
		}
		d.log.Info("leftovers of a container were removed", "container", l.ID, "parts", strings.Join(l.Parts, "; "))
	}
}

// findUnowned lists containers and leftovers of containers that no attempt owns.
func (d *daemon) findUnowned(ctx context.Context) ([]runtime.Leftover, error) {
	listed, err := d.containers.list(ctx)
	if err != nil {
		return nil, err
	}
	var found []runtime.Leftover
	for id := range listed {
		if l := (runtime.Leftover{ID: id, Listed: true, Parts: []string{"container"}}); !d.isOwned(l) {
			found = append(found, l)
		}
	}
	s, ok := d.cfg.Driver.(runtime.Sweeper)
	if !ok {
		return found, nil
	}
	left, err := s.Leftovers(ctx)
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	for _, l := range left {
		if _, is := listed[l.ID]; !is && !d.isOwned(l) {
			found = append(found, l)
		}
	}
	return found, nil
}

// isOwned reports whether an attempt or the probe is responsible for a
// container. An ended attempt is responsible only while the engine lists the
// container. Names that are not attempt ids belong to others.
func (d *daemon) isOwned(l runtime.Leftover) bool {
	if _, err := store.ParseID(l.ID); err != nil {
		return true
	}
	d.mu.Lock()
	a := d.attempts[store.ID(l.ID)]
	d.mu.Unlock()
	if a == nil {
		return false
	}
	phase := a.snapshot().GetPhase()
	return l.Listed || phase != droverv1.Phase_PHASE_SUCCEEDED && phase != droverv1.Phase_PHASE_FAILED
}

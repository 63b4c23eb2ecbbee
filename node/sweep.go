package node

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// sweepLimit bounds the removal of what one container left.
const sweepLimit = time.Minute

// sweeper removes containers that no attempt owns and their leftovers, and leftovers of interrupted
// imports. It keeps no state between rounds: the engine and the attempts are asked each time.
type sweeper struct {
	driver     runtime.Driver
	containers *containerLister
	attempts   *attemptTable
	every      time.Duration
	log        *slog.Logger
}

func (d *daemon) sweeper() *sweeper {
	return &sweeper{driver: d.cfg.Driver, containers: d.containers, attempts: d.attempts, every: d.cfg.SweepEvery, log: d.log}
}

// loop sweeps periodically: it removes containers without an attempt that the engine still lists,
// leftovers of containers that the engine has forgotten, and leftovers of interrupted imports of
// images.
func (s *sweeper) loop(ctx context.Context) error {
	t := time.NewTicker(s.every)
	defer t.Stop()
	for {
		s.sweep(ctx)
		s.releaseImports(ctx)
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// sweep does one round. What cannot be removed is left for the next round.
func (s *sweeper) sweep(ctx context.Context) {
	found, err := s.findUnowned(ctx)
	if err != nil {
		if ctx.Err() == nil {
			s.log.Warn("cannot list leftovers of containers", "err", err)
		}
		return
	}
	for _, l := range found {
		if s.isOwned(l) {
			continue // became wanted after the listing
		}
		within, cancel := context.WithTimeout(ctx, sweepLimit)
		err := s.driver.Delete(within, l.ID)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.log.Warn("leftovers of a container were not removed", "container", l.ID, "parts", strings.Join(l.Parts, "; "), "err", err)
			continue
		}
		s.log.Info("leftovers of a container were removed", "container", l.ID, "parts", strings.Join(l.Parts, "; "))
	}
}

// releaseImports removes leftovers of imports during which the engine or an earlier daemon ended.
func (s *sweeper) releaseImports(ctx context.Context) {
	images, ok := s.driver.(runtime.Images)
	if !ok {
		return
	}
	within, cancel := context.WithTimeout(ctx, sweepLimit)
	defer cancel()
	if err := images.ReleaseImports(within); err != nil && ctx.Err() == nil {
		s.log.Warn("what interrupted imports of images left was not removed", "err", err)
	}
}

// findUnowned lists containers and leftovers of containers that no attempt owns.
func (s *sweeper) findUnowned(ctx context.Context) ([]runtime.Leftover, error) {
	listed, err := s.containers.list(ctx)
	if err != nil {
		return nil, err
	}
	var found []runtime.Leftover
	for id := range listed {
		if l := (runtime.Leftover{ID: id, Listed: true, Parts: []string{"container"}}); !s.isOwned(l) {
			found = append(found, l)
		}
	}
	w, ok := s.driver.(runtime.Sweeper)
	if !ok {
		return found, nil
	}
	left, err := w.Leftovers(ctx)
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	for _, l := range left {
		if _, is := listed[l.ID]; !is && !s.isOwned(l) {
			found = append(found, l)
		}
	}
	return found, nil
}

// isOwned reports whether an attempt or the probe is responsible for a
// container. An ended attempt is responsible only while the engine lists the
// container. Names that are not attempt ids belong to others.
func (s *sweeper) isOwned(l runtime.Leftover) bool {
	if _, err := store.ParseID(l.ID); err != nil {
		return true
	}
	a := s.attempts.get(store.ID(l.ID))
	if a == nil {
		return false
	}
	phase := a.mail.snapshot().GetPhase()
	return l.Listed || phase != droverv1.Phase_PHASE_SUCCEEDED && phase != droverv1.Phase_PHASE_FAILED
}

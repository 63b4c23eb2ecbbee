package coordinator

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/sleep"
)

// Limits of upkeep.
const (
	upkeepEvery  = 30 * time.Second
	forgetAtOnce = 500
)

// upkeep writes ended jobs to the history, forgets old ones and collects unused
// blobs, until ctx ends.
func (c *core) upkeep(ctx context.Context) error {
	t := time.NewTicker(upkeepEvery)
	defer t.Stop()
	for {
		if err := c.ended.flush(); err != nil {
			c.log.Error("the history cannot be written; jobs stay in memory until it can", "err", err)
		} else if c.leadership.leads() {
			c.forgetJobs(ctx)
			c.files.collect(ctx)
		}
		changes := c.changed.next()
		if c.ended.hasUnwritten() {
			continue
		}
		select {
		case <-changes:
			// A burst of ends is one write.
			if !sleep.For(ctx, 20*time.Millisecond) {
				return c.ended.flush()
			}
		case <-t.C:
		case <-ctx.Done():
			return c.ended.flush()
		}
	}
}

// forgetJobs proposes to forget ended jobs that are in the history and its lines, if there
// are more than retainJobs or they ended RetainFor ago.
func (c *core) forgetJobs(ctx context.Context) {
	type settledJob struct {
		id  uint64
		old bool
	}
	var settled []settledJob
	before, old := c.now().Add(-c.cfg.RetainFor).UnixNano(), 0
	c.view(func(f *facts.Facts) {
		for _, id := range f.JobIDs() {
			j := f.Job(id)
			if !j.IsSettled() {
				continue
			}
			settled = append(settled, settledJob{id, j.Ended < before})
			if j.Ended < before {
				old++
			}
		}
	})
	excess := len(settled) - c.cfg.retainJobs
	if old >= excess { // without those there are not too many
		excess = 0
	}
	var drop []uint64
	for i, j := range settled { // only of those that may go it is asked whether the files have them: this comes after each burst of changes
		if (j.old || i < excess) && c.history.Has(j.id) && c.past.Has(j.id) {
			drop = append(drop, j.id)
		}
	}
	if len(drop) == 0 {
		return
	}
	drop = drop[:min(len(drop), forgetAtOnce)]
	if err := c.history.Sync(); err != nil {
		c.log.Error("the history cannot be made durable", "err", err)
		return
	}
	_, err := c.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_JobsForgotten{JobsForgotten: &droverv1.JobsForgottenFact{Jobs: drop}}})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot forget old jobs", "err", err)
	}
	if err == nil {
		c.history.Forget(drop)
	}
}

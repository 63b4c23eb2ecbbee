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
	upkeepRetry  = 5 * time.Second // before the history is written again where it could not be
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
			if !sleep.For(ctx, upkeepRetry) {
				return c.ended.flush()
			}
			continue
		}
		if c.leadership.leads() {
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

// forgetJobs proposes to forget ended jobs that are in the history and its lines, or are not in the history any more, if there
// are more than retainJobs or they ended RetainFor ago.
func (c *core) forgetJobs(ctx context.Context) {
	old := c.now().Add(-c.cfg.RetainFor).UnixNano()
	var drop, ended []uint64
	recorded := recordedJobs(c)
	c.view(func(f *facts.Facts) {
		for _, id := range f.JobIDs() {
			if j := f.Job(id); j.IsSettled() && c.history.Has(id) && recorded(id) {
				ended = append(ended, id)
				if j.Ended < old {
					drop = append(drop, id)
				}
			}
		}
	})
	if excess := len(ended) - c.cfg.retainJobs; excess > len(drop) {
		drop = ended[:excess]
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

// recordedJobs returns what reports whether a settled job was recorded in the history, even if it has been removed from there
// to keep its limits.
func recordedJobs(c *core) func(job uint64) bool {
	absent, index := map[uint64]bool{}, uint64(0)
	c.view(func(f *facts.Facts) {
		index = f.Index()
		for _, id := range f.JobIDs() {
			if f.Job(id).IsSettled() && !c.past.Has(id) {
				absent[id] = true
			}
		}
	})
	if len(absent) > 0 && c.recorder.Sync(index) != nil { // then it has recorded all that settled by then
		absent = nil // it is told where the history is written
	}
	return func(job uint64) bool { return absent[job] || c.past.Has(job) }
}

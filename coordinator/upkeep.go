package coordinator

import (
	"context"
	"slices"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/sleep"
)

// Limits of upkeep.
const (
	upkeepEvery  = 30 * time.Second
	tidyPause    = time.Second     // between two passes over all jobs and files
	upkeepRetry  = 5 * time.Second // before a failed write of the history is tried again
	forgetAtOnce = 500
)

// upkeep writes ended jobs to the history, forgets old ones and collects unused
// blobs, until ctx ends.
func (c *core) upkeep(ctx context.Context) error {
	t := time.NewTicker(upkeepEvery)
	defer t.Stop()
	var tidyAt time.Time // not before
	for {
		if err := c.ended.flush(); err != nil {
			c.log.Error("the history cannot be written; jobs stay in memory until it can", "err", err)
			if !sleep.For(ctx, upkeepRetry) {
				return c.ended.flush()
			}
			continue
		}
		c.view(c.ended.addLater)
		var due <-chan time.Time
		changes := c.changed.next()
		switch wait := time.Until(tidyAt); {
		case wait > 0: // what has changed since is looked at then
			due = time.After(wait)
		case c.leadership.leads():
			moreJobs, moreFiles := c.forgetJobs(ctx), c.files.collect(ctx) // O(jobs + files)
			if !moreJobs && !moreFiles {
				tidyAt = time.Now().Add(tidyPause)
			} else if ctx.Err() == nil {
				continue
			}
		}
		if c.ended.hasUnwritten() {
			continue
		}
		select {
		case <-due:
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

// forgetJobs proposes to forget ended jobs, if there are more than retainJobs or they ended
// RetainFor ago. It forgets only jobs that were written to the history and its JSON lines, or have
// been removed from the history since. It reports whether there may be more to forget.
func (c *core) forgetJobs(ctx context.Context) (more bool) {
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
	var mayGo []uint64
	for i, j := range settled { // only these are looked up in the files: forgetJobs runs after each burst of changes
		if (j.old || i < excess) && c.history.Has(j.id) {
			mayGo = append(mayGo, j.id)
		}
	}
	drop := recordedJobs(c, mayGo)
	if len(drop) == 0 {
		return false
	}
	more = len(drop) > forgetAtOnce
	drop = drop[:min(len(drop), forgetAtOnce)]
	if err := c.history.Sync(); err != nil {
		c.log.Error("the history cannot be made durable", "err", err)
		return false
	}
	_, err := c.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_JobsForgotten{JobsForgotten: &droverv1.JobsForgottenFact{Jobs: drop}}})
	if err != nil && ctx.Err() == nil {
		c.log.Warn("cannot forget old jobs", "err", err)
	}
	if err != nil {
		return false
	}
	c.history.Forget(drop)
	return more
}

// recordedJobs returns the settled jobs that were written to the history, even if they have been
// removed from it since to keep its limits.
func recordedJobs(c *core, jobs []uint64) []uint64 {
	absent := func(id uint64) bool { return !c.past.Has(id) }
	if !slices.ContainsFunc(jobs, absent) {
		return jobs
	}
	index := uint64(0)
	c.view(func(f *facts.Facts) { index = f.Index() })
	if c.recorder.Sync(index) == nil { // then it has recorded all that settled by then
		return jobs
	}
	return slices.DeleteFunc(jobs, absent) // it is told where the history is written
}

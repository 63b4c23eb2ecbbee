package coordinator

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// logAhead returns how far the log's time is ahead of this machine's clock.
func (c *core) logAhead() (d time.Duration) {
	now := c.now().UnixNano()
	c.view(func(f *facts.Facts) { d = f.Clock().Ahead(now) })
	return d
}

// correctTime proposes an entry that changes nothing, if the log's time is ahead of the clock by
// more than facts.ClockTolerance. The clock was ahead when the log was last written; the entry sets
// the log's time back. Deadlines, quotes and submissions then follow the clock again at once.
func (c *core) correctTime(ctx context.Context) error {
	ahead := c.logAhead()
	if ahead <= facts.ClockTolerance {
		return nil
	}
	c.log.Warn("the log's time is ahead of this machine's clock: the clock was ahead once, or is behind now; the log follows the clock. Check that the time is synchronised",
		"ahead", ahead.Round(time.Second), "clock", c.now().UTC().Format(time.RFC3339))
	_, err := c.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_RefusalsExpired{RefusalsExpired: &droverv1.RefusalsExpiredFact{}}})
	return err
}

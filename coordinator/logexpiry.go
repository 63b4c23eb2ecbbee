package coordinator

import (
	"time"

	"github.com/drover-run/drover/coordinator/facts"
)

// logExpiry is when nodes may remove the logs of an ended job.
type logExpiry struct {
	at  time.Time
	job uint64
}

// logExpiries are the times at which the logs of ended jobs expire. The leader's loop owns it.
type logExpiries struct {
	due       []logExpiry
	next      time.Time       // the first of due; zero for none
	scheduled map[uint64]bool // ended jobs that are or were in due; the logs of other ended jobs are kept until they are gathered
}

// schedule schedules the removal of an ended job's logs, once.
func (e *logExpiries) schedule(j *facts.Job, keep time.Duration) {
	if !e.scheduled[j.ID] {
		e.scheduled[j.ID] = true
		x := logExpiry{time.Unix(0, j.Ended).Add(keep), j.ID}
		e.due, e.next = append(e.due, x), earlier(e.next, x.at)
	}
}

// expire updates the wanted sets for jobs whose logs have expired, and returns when the next ones
// expire, zero for never. O(1) before the next ones expire, else O(ended jobs whose logs are kept).
func (e *logExpiries) expire(c *core) (next time.Time) {
	now := c.now()
	if e.next.IsZero() || e.next.After(now) {
		return e.next
	}
	keep := e.due[:0]
	for _, x := range e.due {
		if x.at.After(now) {
			keep = append(keep, x)
			next = earlier(next, x.at)
			continue
		}
		c.view(func(f *facts.Facts) {
			if j := f.Job(x.job); j != nil {
				c.wanted.review(f, j)
			}
		})
	}
	e.due, e.next = keep, next
	return next
}

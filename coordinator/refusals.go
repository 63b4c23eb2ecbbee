package coordinator

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// Limits of transient refusals. A level that a node could not reach for a retryable reason, such as
// a full disk, is requested again only after a back-off. Its expiry is an entry, like the refusal.
const (
	refusalPause       = 5 * time.Second // between two proposals for the same attempt
	maxExpiredRefusals = 256             // in one entry
)

// refusals holds when the back-off of each attempt after a transient refusal expires, Unix ns.
type refusals map[facts.Key]int64

// track follows a change of an attempt.
func (r refusals) track(k facts.Key, a *facts.Attempt) {
	if a.State == facts.AttemptLive && a.Suspension.TransientRefused != 0 {
		r[k] = a.Suspension.RetryAt
	} else {
		delete(r, k)
	}
}

// expire proposes the end of the back-offs that have expired, so that the scheduler may request
// those levels again. It returns when the next one expires, zero for none. O(attempts with a
// back-off).
func (r refusals) expire(ctx context.Context, c *core) (next time.Time, err error) {
	now := c.now()
	expired := &droverv1.RefusalsExpiredFact{}
	c.view(func(f *facts.Facts) {
		for k, retryAt := range r {
			a, at := f.Attempt(k), time.Unix(0, retryAt)
			switch {
			case a == nil || a.State != facts.AttemptLive: // its job may be forgotten
				delete(r, k)
				continue
			case !at.After(now) && len(expired.Attempts) < maxExpiredRefusals:
				expired.Attempts = append(expired.Attempts, k.Proto(a.Run))
				at = now.Add(refusalPause) // the change removes it
				r[k] = at.UnixNano()
			}
			next = earlier(next, at)
		}
	})
	if len(expired.Attempts) == 0 {
		return next, nil
	}
	_, err = c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_RefusalsExpired{RefusalsExpired: expired}})
	return next, err
}

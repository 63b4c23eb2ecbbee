package coordinator

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// Limits of transient refusals: a level that a node could not reach for a
// retryable reason, such as a full disk, is not requested again before a
// back-off expires. Its expiry is an entry, like the refusal.
const (
	refusalPause       = 5 * time.Second // between two proposals for the same attempt
	maxExpiredRefusals = 256             // in one entry
)

// trackRefusals records when an attempt's back-off expires.
func (l *leader) trackRefusals(k facts.Key, a *facts.Attempt) {
	if a.State == facts.AttemptLive && a.Suspension.TransientRefused != 0 {
		l.refusalRetryAt[k] = a.Suspension.RetryAt
	} else {
		delete(l.refusalRetryAt, k)
	}
}

// expireRefusals proposes the end of the back-off of attempts whose time has
// come, so that the scheduler may request those levels again. It returns when
// the next one is due, zero for none. O(attempts with a back-off).
func (l *leader) expireRefusals(ctx context.Context) (next time.Time, err error) {
	now := l.c.now()
	expired := &droverv1.RefusalsExpiredFact{}
	l.c.view(func(f *facts.Facts) {
		for k, retryAt := range l.refusalRetryAt {
			a, at := f.Attempt(k), time.Unix(0, retryAt)
			switch {
			case a == nil || a.State != facts.AttemptLive: // its job may be forgotten
				delete(l.refusalRetryAt, k)
				continue
			case !at.After(now) && len(expired.Attempts) < maxExpiredRefusals:
				expired.Attempts = append(expired.Attempts, k.Proto(a.Run))
				at = now.Add(refusalPause) // the change removes it
				l.refusalRetryAt[k] = at.UnixNano()
			}
			next = earlier(next, at)
		}
	})
	if len(expired.Attempts) == 0 {
		return next, nil
	}
	_, err = l.c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_RefusalsExpired{RefusalsExpired: expired}})
	return next, err
}

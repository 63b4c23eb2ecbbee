package coordinator

import (
	"context"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
)

// Limits of attempts that their node could not bring to a level for a reason that
// may pass, such as a full disk: nobody asks for that level before a while is
// over, and the entry that ends the while is a fact like the one that began it.
const (
	barPause    = 5 * time.Second // between two proposals that an attempt's while is over
	maxBarsOver = 256             // attempts in one entry
)

// noteBarred keeps until when some level is not to be asked for of an attempt.
func (l *leader) noteBarred(k facts.Key, a *facts.Attempt) {
	if a.State == facts.AttemptLive && a.Sus.Passing != 0 {
		l.barred[k] = a.Sus.Back
	} else {
		delete(l.barred, k)
	}
}

// tryBarred proposes that the attempts whose while is over may be asked again. It
// gives when the next one is due, zero for none. O(attempts that wait).
func (l *leader) tryBarred(ctx context.Context) (next time.Time, err error) {
	now := l.c.now()
	over := &droverv1.BarsPassedFact{}
	l.c.view(func(f *facts.Facts) {
		for k, back := range l.barred {
			a, at := f.Attempt(k), time.Unix(0, back)
			switch {
			case a == nil || a.State != facts.AttemptLive: // its job may be forgotten
				delete(l.barred, k)
				continue
			case !at.After(now) && len(over.Attempts) < maxBarsOver:
				over.Attempts = append(over.Attempts, k.Proto(a.Run))
				at = now.Add(barPause) // the change takes it off the list
				l.barred[k] = at.UnixNano()
			}
			if next.IsZero() || at.Before(next) {
				next = at
			}
		}
	})
	if len(over.Attempts) == 0 {
		return next, nil
	}
	_, err = l.c.replica.Propose(ctx, &droverv1.Entry{Actor: actorSelf, Body: &droverv1.Entry_BarsPassed{BarsPassed: over}})
	return next, err
}

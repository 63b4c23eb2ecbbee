package coordinator

import (
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxRates is the number of identities whose rate is tracked.
const maxRates = 10_000

// rates limits how often each identity does something.
type rates struct {
	perS float64

	mu sync.Mutex
	of map[string]*rate.Limiter
}

func newRates(perS float64) *rates { return &rates{perS: perS, of: map[string]*rate.Limiter{}} }

func (r *rates) allow(name string) bool { return r.limiter(name).Allow() }

// reserve returns how long name has to wait for its next turn, and reserves the turn. If the wait
// is longer than most, it reserves nothing.
func (r *rates) reserve(name string, most time.Duration) (wait time.Duration, ok bool) {
	place := r.limiter(name).Reserve()
	if wait = place.Delay(); wait > most {
		place.Cancel()
		return 0, false
	}
	return wait, true
}

func (r *rates) limiter(name string) *rate.Limiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.of[name]
	if l == nil {
		if len(r.of) >= maxRates {
			clear(r.of)
		}
		l = rate.NewLimiter(rate.Limit(r.perS), int(10*r.perS)+1)
		r.of[name] = l
	}
	return l
}

package coordclient

import (
	"context"
	"sync"
	"time"
)

// noticeAfter is how long no coordinator answers before Patience.Lost is called: a change of the
// leader takes less.
const noticeAfter = 2 * time.Second

// Patience is of a command that follows something: its calls wait for a coordinator that has
// answered and is gone, also for one that is alone. One command has one, for all its calls. Lost
// and Found are called one at a time.
type Patience struct {
	Limit   time.Duration              // how long the calls try, from when no coordinator answers
	Lost    func(until time.Time)      // is called once no coordinator has answered for a while
	Found   func()                     // is called when one answers after that
	Refused func(context.Context) bool // reports whether coordinator and client do not trust each other; asked after a connection broke off

	mu    sync.Mutex
	began time.Time // of the outage, zero if there is none
	told  bool      // of the outage
}

type patienceKey struct{}

// WithPatience returns a context for the calls of a command that follows something.
func WithPatience(ctx context.Context, p *Patience) context.Context {
	return context.WithValue(ctx, patienceKey{}, p)
}

// patienceOf returns the patience of a call, nil if it has none.
func patienceOf(ctx context.Context) *Patience {
	p, _ := ctx.Value(patienceKey{}).(*Patience)
	return p
}

// outage returns when no coordinator answered for the first time, which is now unless another call
// has noticed it.
func (p *Patience) outage(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() {
		p.began = now
	}
	return p.began
}

// noticed calls Lost once in an outage that has lasted for a while.
func (p *Patience) noticed(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.told && !p.began.IsZero() && now.Sub(p.began) >= noticeAfter {
		p.told = true
		p.Lost(p.began.Add(p.Limit))
	}
}

// answered ends an outage.
func (p *Patience) answered() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.told {
		p.Found()
	}
	p.began, p.told = time.Time{}, false
}

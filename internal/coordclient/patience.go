package coordclient

import (
	"context"
	"sync"
	"time"
)

// noticeAfter is how long no coordinator must have answered before Patience.Lost is called. A
// change of the leader takes less time.
const noticeAfter = 2 * time.Second

// Patience belongs to a command that follows something, such as a log. Its calls wait for a
// coordinator that has answered before and is gone, even if the command knows only one coordinator.
// One Patience serves all calls of a command. Lost and Found are called one at a time.
type Patience struct {
	Limit   time.Duration              // how long the calls retry, counted from the start of the outage
	Lost    func(until time.Time)      // called once no coordinator has answered for noticeAfter
	Found   func()                     // called when a coordinator answers after Lost
	Refused func(context.Context) bool // reports whether coordinator and client do not trust each other; called after a connection broke off

	mu    sync.Mutex
	began time.Time // start of the outage, zero if there is none
	told  bool      // Lost was called in this outage
}

type patienceKey struct{}

// WithPatience returns a context for the calls of a command with this patience.
func WithPatience(ctx context.Context, p *Patience) context.Context {
	return context.WithValue(ctx, patienceKey{}, p)
}

// patienceOf returns the patience of a call, nil if the call has none.
func patienceOf(ctx context.Context) *Patience {
	p, _ := ctx.Value(patienceKey{}).(*Patience)
	return p
}

// outage returns the start of the outage. If no call has noticed an outage yet, it starts now.
func (p *Patience) outage(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() {
		p.began = now
	}
	return p.began
}

// noticed calls Lost, once in an outage, when the outage has lasted for noticeAfter.
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

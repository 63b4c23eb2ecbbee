package containerd

import (
	"context"
	"sync"
)

// idLocks serialises the methods that change one container. The zero value is ready.
type idLocks struct {
	mu   sync.Mutex // guards byID
	byID map[string]*idLock
}

type idLock struct {
	sem   chan struct{} // capacity 1
	users int
}

// lock waits for the container's lock.
func (k *idLocks) lock(ctx context.Context, id string) (unlock func(), err error) {
	k.mu.Lock()
	l, ok := k.byID[id]
	if !ok {
		if k.byID == nil {
			k.byID = map[string]*idLock{}
		}
		l = &idLock{sem: make(chan struct{}, 1)}
		k.byID[id] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.byID, id)
		}
	}
	select {
	case l.sem <- struct{}{}:
		return func() { <-l.sem; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}

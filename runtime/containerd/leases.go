package containerd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
)

// labelImport marks the leases of imports; its value is the image's digest.
const labelImport = "drover/import"

// leaseLimit is when the engine itself lets go of what an import holds: nothing else does once
// Drover is gone from the machine.
const leaseLimit = 24 * time.Hour

// importLeases keeps from the engine's garbage collection what imports have stored and nothing
// refers to yet. A lease outlives the import if the daemon or the engine ended meanwhile.
type importLeases struct {
	manager leases.Manager

	mu       sync.Mutex
	underWay []string // IDs
}

// begin returns a context whose work in the engine is kept until done is called.
func (l *importLeases) begin(ctx context.Context, digest string) (_ context.Context, done func(), err error) {
	lease := leases.Lease{ID: rand.Text()}
	// Before the engine has the lease: releaseInterrupted must not take it for an old one.
	l.mu.Lock()
	l.underWay = append(l.underWay, lease.ID)
	l.mu.Unlock()
	end := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.underWay = slices.DeleteFunc(l.underWay, func(id string) bool { return id == lease.ID })
	}
	_, err = l.manager.Create(ctx, leases.WithID(lease.ID), leases.WithLabel(labelImport, digest), leases.WithExpiration(leaseLimit))
	if err != nil {
		end()
		return ctx, nil, err
	}
	return leases.WithLease(ctx, lease.ID), func() {
		defer end()
		_ = l.manager.Delete(context.WithoutCancel(ctx), lease) // one that stays is releaseInterrupted's
	}, nil
}

// releaseInterrupted deletes the leases of imports that are not under way, and returns when what
// they held is removed.
func (l *importLeases) releaseInterrupted(ctx context.Context) error {
	all, err := l.manager.List(ctx, fmt.Sprintf("labels.%q", labelImport))
	if err != nil {
		return err
	}
	var errs []error
	for _, lease := range all {
		if l.isUnderWay(lease.ID) {
			continue
		}
		if err := l.manager.Delete(ctx, lease, leases.SynchronousDelete); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("lease %s: %w", lease.ID, err))
		}
	}
	return errors.Join(errs...)
}

// isUnderWay reports whether the lease is that of an import under way.
func (l *importLeases) isUnderWay(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.underWay, id)
}

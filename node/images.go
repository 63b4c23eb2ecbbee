package node

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/node/pastlogs"
	"github.com/drover-run/drover/runtime"
)

// collectLimit bounds one collection of unneeded images and programs.
const collectLimit = 5 * time.Minute

// imageStore imports images into the engine, each once, and removes them when no
// attempt needs them.
type imageStore struct {
	driver   runtime.Driver
	blobs    *blob.Cache
	now      func() time.Time
	inFlight singleflight.Group

	// importing is read-locked during an import, so that no image is removed
	// between the check for it and its use.
	importing sync.RWMutex

	mu       sync.Mutex
	lastUsed map[string]time.Time // when an attempt last needed the image
}

// ensure imports the image unless the engine has it. O(image size) the first time.
func (im *imageStore) ensure(ctx context.Context, digest string) error {
	store, ok := im.driver.(runtime.Images)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s runs host programs and has no images: remove image from the job, or run it on nodes with containerd", im.driver.Name())
	}
	im.importing.RLock()
	defer im.importing.RUnlock()
	im.markUsed(digest)
	done := im.inFlight.DoChan(digest, func() (any, error) { return nil, im.importImage(ctx, store, digest) })
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (im *imageStore) markUsed(digest string) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.lastUsed[digest] = im.now()
}

func (im *imageStore) importImage(ctx context.Context, store runtime.Images, digest string) error {
	if has, err := store.Has(ctx, digest); err != nil || has {
		return err
	}
	archive, err := im.blobs.Get(ctx, digest)
	if err != nil {
		return err
	}
	defer archive.Close()
	if err := archive.Verify(); err != nil { // before the engine reads it, so that a refusal by the engine is the tenant's fault
		return err
	}
	return store.Import(ctx, digest, archive)
}

// collect removes images that no attempt needs: those unused for age, and the
// longest unused ones while the total exceeds limit bytes. needed lists images
// that must stay; it is called while no import can start. If an import is under
// way, collect does nothing.
func (im *imageStore) collect(ctx context.Context, age time.Duration, limit int64, needed func() []string) (removed []string, err error) {
	store, ok := im.driver.(runtime.Images)
	if !ok || !im.importing.TryLock() {
		return nil, nil
	}
	defer im.importing.Unlock()
	all, err := store.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range im.selectUnneeded(all, needed(), age, limit) {
		if e := store.Remove(ctx, d); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, d)
	}
	return removed, err
}

// selectUnneeded returns the images to remove. An image without a known use
// (after a restart) counts as used now.
func (im *imageStore) selectUnneeded(all []runtime.Image, needed []string, age time.Duration, limit int64) (gone []string) {
	im.mu.Lock()
	defer im.mu.Unlock()
	now, total := im.now(), int64(0)
	used := make(map[string]time.Time, len(all))
	var idle []runtime.Image
	for _, i := range all {
		total += i.Bytes
		used[i.Digest] = now
		if slices.Contains(needed, i.Digest) {
			continue
		}
		if at, known := im.lastUsed[i.Digest]; known {
			used[i.Digest] = at
		}
		idle = append(idle, i)
	}
	im.lastUsed = used // forgets removed images
	slices.SortFunc(idle, func(a, b runtime.Image) int {
		return cmp.Or(used[a.Digest].Compare(used[b.Digest]), cmp.Compare(a.Digest, b.Digest))
	})
	for _, i := range idle {
		if now.Sub(used[i.Digest]) < age && total <= limit {
			break // the following ones were used later
		}
		gone = append(gone, i.Digest)
		total -= i.Bytes
	}
	return gone
}

// collector removes what the node keeps for attempts and no longer needs: images, programs of
// earlier versions, and old logs. Each of the three has an owner; the collector decides when they
// collect, and with which limits.
type collector struct {
	images   *imageStore
	programs programStore
	pastLogs *pastlogs.Store
	attempts *attemptTable // by which is decided what is needed
	clock    clock
	every    time.Duration
	age      time.Duration // after which unneeded images and old programs are removed
	limit    int64         // bytes of images
	log      *slog.Logger
}

func (d *daemon) collector() *collector {
	return &collector{
		images: d.images, programs: d.programs, pastLogs: d.pastLogs, attempts: d.attempts, clock: d.clock,
		every: d.cfg.CollectEvery, age: d.cfg.imageAge, limit: d.cfg.imageLimit, log: d.log,
	}
}

// loop collects periodically until ctx ends.
func (c *collector) loop(ctx context.Context) error {
	t := time.NewTicker(c.every)
	defer t.Stop()
	for {
		c.collect(ctx)
		now := c.clock.Now() // before the jobs are read, since later logs may belong to other jobs
		jobs := c.attempts.jobsInUse()
		if err := c.pastLogs.Prune(now, func(job uint64) bool { return jobs[job] }); err != nil {
			c.log.Warn("old logs were not removed", "err", err)
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *collector) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	gone, err := c.images.collect(ctx, c.age, c.limit, c.attempts.neededImages)
	if len(gone) > 0 {
		c.log.Info("unneeded images were removed", "images", gone)
	}
	if err != nil && ctx.Err() == nil {
		c.log.Warn("unneeded images were not removed", "err", err)
	}
	gone, err = nil, nil
	if !c.attempts.isOldHarnessInUse() {
		gone, err = c.programs.collect(c.clock.Now(), c.age)
	}
	if len(gone) > 0 {
		c.log.Info("programs of earlier versions were removed", "folders", gone)
	}
	if err != nil {
		c.log.Warn("programs of earlier versions were not removed", "err", err)
	}
}

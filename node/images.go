package node

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/blob"
	"github.com/drover-run/drover/runtime"
)

// collectLimit is how long one look for what nobody needs may take.
const collectLimit = 5 * time.Minute

// images brings images into the engine, each once, and takes them out again
// when no attempt needs them.
type images struct {
	driver runtime.Driver
	blobs  *blob.Cache
	now    func() time.Time
	flight singleflight.Group

	// busy is held for reading while an image is brought, so that none is
	// collected between the look for it and its use.
	busy sync.RWMutex

	mu   sync.Mutex
	used map[string]time.Time // when an attempt last needed the image
}

// get makes sure that the engine has the image. O(its size) the first time.
func (im *images) get(ctx context.Context, digest string) error {
	store, ok := im.driver.(runtime.Images)
	if !ok {
		return fault.New(fault.Unsupported, "driver %s runs host programs and has no images: remove image from the job, or run it on nodes with containerd", im.driver.Name())
	}
	im.busy.RLock()
	defer im.busy.RUnlock()
	im.use(digest)
	done := im.flight.DoChan(digest, func() (any, error) { return nil, im.bring(ctx, store, digest) })
	select {
	case r := <-done:
		return r.Err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (im *images) use(digest string) {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.used[digest] = im.now()
}

func (im *images) bring(ctx context.Context, store runtime.Images, digest string) error {
	if has, err := store.Has(ctx, digest); err != nil || has {
		return err
	}
	archive, err := im.blobs.Get(ctx, digest)
	if err != nil {
		return err
	}
	defer archive.Close()
	return store.Import(ctx, digest, archive)
}

// collect removes images that no attempt needs: those that none has needed for
// age, and the longest unneeded ones while all together are over limit bytes.
// needed lists what must stay; it is asked while no image can be brought. A
// moment when one is being brought is not the time: it says so and does nothing.
func (im *images) collect(ctx context.Context, age time.Duration, limit int64, needed func() []string) (removed []string, err error) {
	store, ok := im.driver.(runtime.Images)
	if !ok || !im.busy.TryLock() {
		return nil, nil
	}
	defer im.busy.Unlock()
	all, err := store.ListImages(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range im.stale(all, needed(), age, limit) {
		if e := store.Remove(ctx, d); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, d)
	}
	return removed, err
}

// stale chooses what goes. An image of which no use is known, after a restart,
// counts as used now.
func (im *images) stale(all []runtime.Image, needed []string, age time.Duration, limit int64) (gone []string) {
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
		if at, known := im.used[i.Digest]; known {
			used[i.Digest] = at
		}
		idle = append(idle, i)
	}
	im.used = used // of images that are gone nothing is kept
	slices.SortFunc(idle, func(a, b runtime.Image) int {
		return cmp.Or(used[a.Digest].Compare(used[b.Digest]), cmp.Compare(a.Digest, b.Digest))
	})
	for _, i := range idle {
		if now.Sub(used[i.Digest]) < age && total <= limit {
			break // so are all that follow
		}
		gone = append(gone, i.Digest)
		total -= i.Bytes
	}
	return gone
}

// collecting removes, from time to time, images and programs that nothing here
// needs any more.
func (d *daemon) collecting(ctx context.Context) error {
	t := time.NewTicker(d.cfg.CollectEvery)
	defer t.Stop()
	for {
		d.collect(ctx)
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (d *daemon) collect(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, collectLimit)
	defer cancel()
	gone, err := d.images.collect(ctx, d.cfg.ImageAge, d.cfg.ImageLimit, d.neededImages)
	if len(gone) > 0 {
		d.log.Info("images that no attempt needed were removed", "images", gone)
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("images stay that nobody needs", "err", err)
	}
	gone, err = d.collectPrograms()
	if len(gone) > 0 {
		d.log.Info("programs of earlier versions were removed", "folders", gone)
	}
	if err != nil {
		d.log.Warn("programs stay that nobody needs", "err", err)
	}
}

// neededImages lists the images of attempts that have not ended.
func (d *daemon) neededImages() (digests []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		if img := a.liveImage(); img.GetKind() == string(jobspec.ImageOCIArchive) {
			digests = append(digests, img.GetDigest())
		}
	}
	return digests
}

// lives tells whether the attempt has not ended, as far as it was reported.
func (a *attempt) lives() bool {
	switch a.snapshot().GetPhase() {
	case droverv1.Phase_PHASE_PREPARING, droverv1.Phase_PHASE_RUNNING:
		return true
	default:
		return false
	}
}

// liveImage is the image of an attempt that has not ended, else nil.
func (a *attempt) liveImage() *droverv1.ImageRef {
	if !a.lives() {
		return nil
	}
	_, spec := a.goal()
	return spec.GetImage()
}

// collectPrograms removes harness and helper programs of earlier versions. They
// stay while an attempt lives that an earlier daemon may have begun with one of
// them, and for ImageAge after they were last the present ones: a task that
// was dumped with one finds it here until then.
func (d *daemon) collectPrograms() (removed []string, err error) {
	if d.adoptedLives() {
		return nil, nil
	}
	dir := filepath.Join(d.cfg.Data, "harness")
	folders, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		path := filepath.Join(dir, f.Name())
		if path == filepath.Dir(d.harness) || path == filepath.Dir(d.helper) {
			continue
		}
		st, e := f.Info()
		if e != nil || d.clock.Now().Sub(st.ModTime()) < d.cfg.ImageAge {
			err = errors.Join(err, e)
			continue
		}
		if e := os.RemoveAll(path); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, f.Name())
	}
	return removed, err
}

// adoptedLives tells whether an attempt of an earlier daemon has not ended.
func (d *daemon) adoptedLives() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.attempts {
		if a.adopted && a.lives() {
			return true
		}
	}
	return false
}

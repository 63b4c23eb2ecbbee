package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

var digestPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Has implements runtime.Images. It takes a digest or the name of an image that an
// operator pulled into the driver's namespace.
func (d *Driver) Has(ctx context.Context, digest string) (bool, error) {
	img, err := d.c.GetImage(ctx, digest)
	if errdefs.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, engineError(ctx, "look for image "+digest, "", err)
	}
	ok, err := img.IsUnpacked(ctx, d.cfg.snapshotter)
	return ok, engineError(ctx, "look for image "+digest, "", err)
}

// Import implements runtime.Images. The archive (OCI or docker, possibly gzipped)
// streams into containerd's content store and nowhere else. Steps, under one
// lease, so that garbage collection removes everything after a failure or crash:
// store the blobs; link them by labels; name the image; unpack it. Compressed
// layers are not linked and go after unpacking.
func (d *Driver) Import(ctx context.Context, digest string, tar io.Reader) error {
	if !digestPattern.MatchString(digest) {
		return fault.New(fault.Invalid, "image digest %q: want sha256: and 64 hexadecimal digits", digest)
	}
	if ok, err := d.Has(ctx, digest); ok || err != nil {
		return err
	}
	ctx, done, err := d.c.WithLease(ctx)
	if err != nil {
		return engineError(ctx, "import "+digest, "", err)
	}
	defer done(context.WithoutCancel(ctx))
	source := &errReader{r: tar}
	store := d.c.ContentStore()
	index, err := archive.ImportIndex(ctx, store, source)
	switch {
	case source.err != nil:
		return fmt.Errorf("image %s: reading the archive: %w", digest, source.err)
	case err != nil && (fault.Class(engineError(ctx, "", "", err)) == fault.Unavailable || isHostFault(err)):
		return engineError(ctx, "import "+digest, "", err)
	case err != nil && ctx.Err() == nil:
		return fault.New(fault.Invalid, "image %s: not an OCI or docker archive: %w: make it with `podman save --format oci-archive` or `docker save`", digest, err)
	case err != nil:
		return ctx.Err()
	}
	tie := images.SetChildrenMappedLabels(store, images.FilterPlatforms(images.ChildrenHandler(store), platforms.Default()), images.ChildGCLabelsFilterLayers)
	if err := images.WalkNotEmpty(ctx, tie, index); err != nil {
		if errdefs.IsNotFound(err) {
			return fault.New(fault.Invalid, "image %s: its archive has no image for %s: %w", digest, platforms.DefaultString(), err)
		}
		return archiveError(ctx, "read the manifests of", digest, err)
	}
	img := images.Image{Name: digest, Target: index, Labels: map[string]string{labelArchive: digest}}
	named, err := d.c.ImageService().Create(ctx, img)
	if errdefs.IsAlreadyExists(err) {
		named, err = d.c.ImageService().Update(ctx, img)
	}
	if err != nil {
		return engineError(ctx, "import "+digest, "", err)
	}
	if err := client.NewImage(d.c, named).Unpack(ctx, d.cfg.snapshotter); err != nil {
		err = archiveError(ctx, "unpack", digest, err)
		return errors.Join(err, d.Remove(context.WithoutCancel(ctx), digest))
	}
	return nil
}

// errReader separates errors of the reader from errors of the archive's format.
type errReader struct {
	r   io.Reader
	err error
}

func (e *errReader) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	if err != nil && err != io.EOF {
		e.err = err
	}
	return n, err
}

// Remove implements runtime.Images. It waits for garbage collection, so that the
// space is free when it returns; an image that containers use stays on disk until
// the last of them is deleted.
func (d *Driver) Remove(ctx context.Context, digest string) error {
	err := d.c.ImageService().Delete(ctx, digest, images.SynchronousDelete())
	if errdefs.IsNotFound(err) {
		return nil
	}
	return engineError(ctx, "remove image "+digest, "", err)
}

// ListImages implements runtime.Images. O(images and their layers).
func (d *Driver) ListImages(ctx context.Context) ([]runtime.Image, error) {
	all, err := d.c.ImageService().List(ctx, fmt.Sprintf("labels.%q", labelArchive))
	if err != nil {
		return nil, engineError(ctx, "list images", "", err)
	}
	var list []runtime.Image
	for _, i := range all { // sorted by name in containerd
		size, err := client.NewImage(d.c, i).Usage(ctx, client.WithSnapshotUsage())
		if errdefs.IsNotFound(err) { // being removed, or incomplete
			continue
		}
		if err != nil {
			return nil, engineError(ctx, "size of image "+i.Name, "", err)
		}
		list = append(list, runtime.Image{Digest: i.Name, Bytes: size})
	}
	return list, nil
}

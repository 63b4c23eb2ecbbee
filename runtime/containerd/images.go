package containerd

import (
	"context"
	"fmt"
	"io"
	"regexp"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"

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

// Import implements runtime.Images. The archive (OCI or docker, possibly gzipped) streams into
// containerd's content store and nowhere else. Steps, under one lease, so that garbage collection
// removes everything after a failure or crash: store the blobs; link them by labels; count the
// bytes to unpack; name the image; unpack it. Compressed layers are not linked and are removed
// after unpacking.
func (d *Driver) Import(ctx context.Context, digest string, tar io.Reader) error {
	if !digestPattern.MatchString(digest) {
		return fault.New(fault.Invalid, "image digest %q: want sha256: and 64 hexadecimal digits", digest)
	}
	if ok, err := d.Has(ctx, digest); ok || err != nil {
		return err
	}
	ctx, done, err := d.imports.begin(ctx, digest)
	if err != nil {
		return engineError(ctx, "import "+digest, "", err)
	}
	defer done()
	index, err := importArchive(ctx, d.c.ContentStore(), digest, tar, limitsOf(ctx, d.c, d.cfg.snapshotter))
	if err != nil {
		return err
	}
	return d.unpack(ctx, digest, index)
}

// ReleaseImports implements runtime.Images.
func (d *Driver) ReleaseImports(ctx context.Context) error {
	return engineError(ctx, "release interrupted imports", "", d.imports.releaseInterrupted(ctx))
}

// errReader separates errors of the reader from errors of the archive's format.
type errReader struct {
	r     io.Reader
	bytes int64 // that were read
	err   error
}

func (e *errReader) Read(b []byte) (int, error) {
	n, err := e.r.Read(b)
	e.bytes += int64(n)
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

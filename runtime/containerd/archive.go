package containerd

import (
	"archive/tar"
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Limits of an image's archive. It comes from a tenant, and a few kilobytes of it can unpack to
// terabytes: sparse files, compressed zeros. Its documents are read into memory, and its lists can
// refer to each other. So it is read once before the engine unpacks it, and refused if it exceeds
// these limits.
const (
	maxImageBytes    = 32 << 30 // of its files, unpacked; half of the disk, if that is less
	maxImageFiles    = 2_000_000
	maxDocumentBytes = 8 << 20   // of an index, a manifest or a configuration
	maxDocuments     = 100       // indexes and manifests, each as often as it is named
	maxDescriptors   = 10_000    // of all that they name
	maxImageLayers   = 500       // the kernel's limit of an overlay
	maxAttributes    = 2 << 10   // bytes of a file's extended attributes: ext4 has no space left for more than its block
	maxZstdWindow    = 128 << 20 // what the engine has in memory for it; zstd's own default
	blockBytes       = 4 << 10   // what a file occupies at least
)

// imageLimits bounds what an archive makes the engine write.
type imageLimits struct {
	bytes, files int64
	free         int64 // bytes that can be written on the engine's disk now; -1 if that is not known
}

// limitsOf returns the limits of the engine's disk, or those of any if it is not known
// where the engine writes.
func limitsOf(ctx context.Context, c *client.Client, snapshotter string) imageLimits {
	l := imageLimits{bytes: maxImageBytes, files: maxImageFiles, free: -1}
	var st unix.Statfs_t
	if root := snapshotRoot(ctx, c, snapshotter); root == "" || unix.Statfs(root, &st) != nil {
		return l
	}
	return l.onDisk(&st)
}

// SnapshotRoot returns the folder to which the driver's engine unpacks images; "" if the engine
// does not say.
func SnapshotRoot(ctx context.Context, d *Driver) string {
	return snapshotRoot(ctx, d.c, d.cfg.snapshotter)
}

// snapshotRoot returns the folder to which the engine unpacks images; "" if the engine does not say.
func snapshotRoot(ctx context.Context, c *client.Client, snapshotter string) string {
	found, err := c.IntrospectionService().Plugins(ctx, "type==io.containerd.snapshotter.v1,id=="+snapshotter)
	if err != nil || len(found.GetPlugins()) == 0 {
		return ""
	}
	return found.GetPlugins()[0].GetExports()["root"]
}

// onDisk returns the limits that also leave half of a disk to others.
func (l imageLimits) onDisk(st *unix.Statfs_t) imageLimits {
	l.bytes = min(l.bytes, int64(st.Blocks)*st.Bsize/2)
	if st.Files > 0 { // file systems that make inodes as needed report none
		l.files = min(l.files, int64(st.Files)/2)
	}
	l.free = int64(st.Bavail) * st.Bsize
	return l
}

// tooLarge is the error of an archive over the limit.
func (l imageLimits) tooLarge() error {
	return fault.New(fault.Invalid, "an image may have %s unpacked here, in at most %d files: make it smaller", jobspec.FormatSize(l.bytes), l.files)
}

// boundedStore is the engine's store for one archive. It accepts a limited number of bytes, and
// large documents cannot be read from it.
type boundedStore struct {
	content.Store
	archive string // digest
	file    *errReader
	limits  imageLimits
	written int64
	// importing says that blobs whose kind is not known yet are opened too, to look at
	// their first bytes.
	importing          bool
	documents, visited int
}

// Writer implements content.Ingester. A blob has the archive's own name until it is complete. The
// importer names blobs after the archive's files: with such names, an import would wait for that of
// another tenant, and continue with what an interrupted one has left.
func (s *boundedStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	var o content.WriterOpts
	for _, set := range opts {
		if err := set(&o); err != nil {
			return nil, err
		}
	}
	w, err := s.Store.Writer(ctx, append(slices.Clone(opts), content.WithRef(s.archive+"/"+o.Ref))...)
	if err != nil {
		return nil, err
	}
	return &boundedWriter{w, s}, nil
}

type boundedWriter struct {
	content.Writer
	store *boundedStore
}

// Write implements io.Writer. The data was checked before, except zeros of a sparse file, and
// manifests that the importer converts from docker's.
func (w *boundedWriter) Write(b []byte) (int, error) {
	switch w.store.written += int64(len(b)); {
	case w.store.written > w.store.limits.bytes:
		return 0, w.store.limits.tooLarge()
	case w.store.written > w.store.file.bytes+maxDocumentBytes:
		return 0, fault.New(fault.Invalid, "its archive has a sparse file: make it again with `podman save --format oci-archive` or `docker save`")
	}
	return w.Writer.Write(b)
}

// ReaderAt implements content.Provider for documents.
func (s *boundedStore) ReaderAt(ctx context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	r, err := s.Store.ReaderAt(ctx, desc)
	if err != nil || r.Size() <= maxDocumentBytes || s.importing && desc.MediaType == "" {
		return r, err
	}
	size := r.Size()
	return nil, errors.Join(r.Close(), fault.New(fault.Invalid, "its document %s has %s, more than %s", desc.Digest, jobspec.FormatSize(size), jobspec.FormatSize(maxDocumentBytes)))
}

// children is images.Children for each document and layer of an archive.
func (s *boundedStore) children(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	s.visited++
	if images.IsIndexType(desc.MediaType) || images.IsManifestType(desc.MediaType) {
		s.documents++
	}
	if s.documents > maxDocuments || s.visited > maxDescriptors {
		return nil, fault.New(fault.Invalid, "it names over %d manifests, or %d parts of them: save one image alone", maxDocuments, maxDescriptors)
	}
	return images.Children(ctx, s, desc)
}

// importArchive stores an archive's blobs, ties them together, and returns its index.
func importArchive(ctx context.Context, engine content.Store, digest string, file io.Reader, l imageLimits) (ocispec.Descriptor, error) {
	source := &errReader{r: file}
	store := &boundedStore{Store: engine, archive: digest, file: source, limits: l, importing: true}
	index, err := archive.ImportIndex(ctx, store, source)
	switch {
	case source.err != nil:
		return index, fmt.Errorf("image %s: reading the archive: %w", digest, source.err)
	case err != nil:
		return index, readError(ctx, "import", digest, err)
	}
	store.importing = false
	tie := images.SetChildrenMappedLabels(engine, images.FilterPlatforms(images.HandlerFunc(store.children), platforms.Default()), images.ChildGCLabelsFilterLayers)
	if err := images.WalkNotEmpty(ctx, tie, index); err != nil {
		if errdefs.IsNotFound(err) {
			return index, fault.New(fault.Invalid, "image %s: its archive has no image for %s: %w", digest, platforms.DefaultString(), err)
		}
		return index, readError(ctx, "read the manifests of", digest, err)
	}
	return index, store.checkImage(ctx, digest, index)
}

// checkImage reads what the engine would unpack. O(bytes of the unpacked layers).
func (s *boundedStore) checkImage(ctx context.Context, digest string, index ocispec.Descriptor) error {
	manifest, err := images.Manifest(ctx, s, index, platforms.Default())
	if err != nil {
		return readError(ctx, "read the manifest of", digest, err)
	}
	text, err := content.ReadBlob(ctx, s, manifest.Config)
	if err != nil {
		return readError(ctx, "read the configuration of", digest, err)
	}
	var conf ocispec.Image
	if err := json.Unmarshal(text, &conf); err != nil {
		return fault.New(fault.Invalid, "image %s: its configuration: %w", digest, err)
	}
	if n := len(manifest.Layers); n != len(conf.RootFS.DiffIDs) || n > maxImageLayers {
		return fault.New(fault.Invalid, "image %s: it has %d layers, and its configuration %d: want the same number, at most %d", digest, n, len(conf.RootFS.DiffIDs), maxImageLayers)
	}
	c := layerCount{store: s.Store, limits: s.limits}
	for i, layer := range manifest.Layers {
		if diff := conf.RootFS.DiffIDs[i]; diff.Validate() != nil {
			return fault.New(fault.Invalid, "image %s: %q in its configuration is no digest", digest, diff)
		}
		if err := c.add(ctx, layer); err != nil {
			return readError(ctx, "read the layers of", digest, err)
		}
	}
	if need := c.bytes + s.limits.reserve(); s.limits.free >= 0 && need > s.limits.free {
		return fault.New(fault.Exhausted, "image %s needs %s on the engine's disk, where %s are free: make room there", digest, jobspec.FormatSize(need), jobspec.FormatSize(s.limits.free))
	}
	return nil
}

// reserve returns what must stay free on the disk.
func (l imageLimits) reserve() int64 { return min(1<<30, l.bytes/10) }

// layerCount counts what layers are unpacked to.
type layerCount struct {
	store        content.Provider
	limits       imageLimits
	bytes, files int64
}

// add reads a layer as the engine does.
func (c *layerCount) add(ctx context.Context, layer ocispec.Descriptor) error {
	blob, err := c.store.ReaderAt(ctx, layer)
	if err != nil {
		return err
	}
	defer blob.Close()
	source := &errReader{r: content.NewReader(blob)}
	err = c.read(ctx, bufio.NewReaderSize(source, 1<<20), layer.MediaType)
	switch {
	case source.err != nil:
		return source.err
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && fault.Class(err) == nil:
		return fault.New(fault.Invalid, "layer %s: %w", layer.Digest, err)
	}
	return err
}

// read counts the files of a layer up to its end. A sparse file counts with the size to which the
// engine writes it, not with the number of bytes read here.
func (c *layerCount) read(ctx context.Context, blob *bufio.Reader, mediaType string) error {
	plain, err := decompress(ctx, blob, mediaType)
	if err != nil {
		return err
	}
	defer plain.Close()
	// The headers of files are read too, and what follows the last one.
	all := &io.LimitedReader{R: plain, N: 2*c.limits.bytes + 1}
	files := tar.NewReader(all)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, all)
		} else if err == nil {
			err = c.addFile(h)
		}
		switch {
		case all.N == 0:
			return c.limits.tooLarge()
		case err != nil || h == nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
	}
}

func (c *layerCount) addFile(h *tar.Header) error {
	c.files++
	c.bytes += blockBytes
	if h.Size > 0 {
		c.bytes += min(h.Size, c.limits.bytes+1)
	}
	if c.files > c.limits.files || c.bytes > c.limits.bytes {
		return c.limits.tooLarge()
	}
	attributes := 0
	for key, v := range h.PAXRecords {
		if strings.HasPrefix(key, "SCHILY.xattr.") {
			attributes += len(key) + len(v)
		}
	}
	if attributes > maxAttributes {
		return fault.New(fault.Invalid, "%q has %d bytes of extended attributes, more than %d", h.Name, attributes, maxAttributes)
	}
	return nil
}

// decompress returns a layer's tar file. Which layers are decompressed is the engine's rule:
// by the media type first, then by the first bytes.
func decompress(ctx context.Context, blob *bufio.Reader, mediaType string) (io.ReadCloser, error) {
	kind, err := images.DiffCompression(ctx, mediaType)
	if err != nil {
		return nil, fault.New(fault.Unsupported, "media type %q of a layer is not supported", mediaType)
	}
	if kind == "" {
		return io.NopCloser(blob), nil
	}
	start, err := blob.Peek(10)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch compression.DetectCompression(start) {
	case compression.Gzip:
		return gzip.NewReader(blob)
	case compression.Zstd:
		z, err := zstd.NewReader(blob, zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	default:
		return io.NopCloser(blob), nil
	}
}

// unpack names an imported archive and unpacks it.
func (d *Driver) unpack(ctx context.Context, digest string, index ocispec.Descriptor) error {
	img := images.Image{Name: digest, Target: index, Labels: map[string]string{labelArchive: digest}}
	named, err := d.c.ImageService().Create(ctx, img)
	if errdefs.IsAlreadyExists(err) {
		named, err = d.c.ImageService().Update(ctx, img)
	}
	if err != nil {
		return engineError(ctx, "import "+digest, "", err)
	}
	if err := d.unpackSynced(ctx, named); err != nil {
		err = archiveError(ctx, "unpack", digest, err)
		return errors.Join(err, d.Remove(context.WithoutCancel(ctx), digest))
	}
	return nil
}

// unpackSynced unpacks an image, each layer of which is on the disk before the engine counts it as
// unpacked. Containerd syncs only its own notes: after a loss of power it would have layers whose
// files are empty, and use them.
func (d *Driver) unpackSynced(ctx context.Context, img images.Image) error {
	conn, ok := d.c.Conn().(*grpc.ClientConn)
	if !ok {
		return fmt.Errorf("containerd's client has a connection of type %T", d.c.Conn())
	}
	root := SnapshotRoot(ctx, d)
	synced := syncedDiff{d.c.DiffService(), func() error { return syncFileSystem(root) }}
	c, err := client.NewWithConn(conn, client.WithDefaultNamespace(d.cfg.Namespace), client.WithServices(client.WithDiffService(synced)))
	if err != nil {
		return err
	}
	return client.NewImage(c, img).Unpack(ctx, d.cfg.snapshotter) // c has the connection of d.c, which is not to be closed
}

// syncedDiff applies a layer's difference and syncs it.
type syncedDiff struct {
	client.DiffService
	sync func() error
}

// Apply implements diff.Applier.
func (s syncedDiff) Apply(ctx context.Context, desc ocispec.Descriptor, mounts []mount.Mount, opts ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	applied, err := s.DiffService.Apply(ctx, desc, mounts, opts...)
	if err != nil {
		return applied, err
	}
	return applied, s.sync()
}

// syncFileSystem writes all of the file system with a folder to its disk; nothing if the folder is "".
func syncFileSystem(dir string) error {
	if dir == "" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("sync the file system of %s: %w", dir, err)
	}
	return nil
}

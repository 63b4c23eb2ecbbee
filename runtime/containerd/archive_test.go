package containerd

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

const (
	typeTar = "application/vnd.oci.image.layer.v1.tar"
	small   = 1 << 20
)

type object map[string]any

// hostileArchive is an archive in the making.
type hostileArchive struct {
	t     *testing.T
	blobs map[string][]byte
}

func (a *hostileArchive) blob(media string, b []byte) object {
	digest := fmt.Sprintf("sha256:%x", sha256.Sum256(b))
	a.blobs[digest] = b
	return object{"mediaType": media, "digest": digest, "size": len(b)}
}

func (a *hostileArchive) document(media string, v any) object {
	b, err := json.Marshal(v)
	if err != nil {
		a.t.Fatal(err)
	}
	return a.blob("application/vnd.oci.image."+media+".v1+json", b)
}

// manifest returns a manifest of layers, with so many digests in its configuration.
func (a *hostileArchive) manifest(diffs []string, layers ...object) object {
	config := a.document("config", object{"os": "linux", "architecture": goruntime.GOARCH, "rootfs": object{"type": "layers", "diff_ids": diffs}})
	return a.document("manifest", object{"schemaVersion": 2, "config": config, "layers": layers})
}

// image returns the index of an image with one layer.
func (a *hostileArchive) image(media string, layer []byte) object {
	return a.index(a.manifest([]string{"sha256:" + strings.Repeat("0", 64)}, a.blob(media, layer)))
}

func (a *hostileArchive) index(parts ...object) object {
	return a.document("index", object{"schemaVersion": 2, "manifests": parts})
}

// file returns the archive as a tar file.
func (a *hostileArchive) file(index object) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	put := func(name string, b []byte) {
		writeTar(a.t, w, &tar.Header{Name: name, Mode: 0o644, Size: int64(len(b))}, b)
	}
	put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	put("index.json", a.blobs[index["digest"].(string)])
	for _, digest := range slices.Sorted(maps.Keys(a.blobs)) {
		put("blobs/sha256/"+strings.TrimPrefix(digest, "sha256:"), a.blobs[digest])
	}
	if err := w.Close(); err != nil {
		a.t.Fatal(err)
	}
	return out.Bytes()
}

func writeTar(t *testing.T, w *tar.Writer, h *tar.Header, b []byte) {
	t.Helper()
	if err := w.WriteHeader(h); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
}

// layerOf returns a layer with files of a size.
func layerOf(t *testing.T, files int, size int64, pax map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for i := range files {
		h := &tar.Header{Name: "f" + strconv.Itoa(i), Mode: 0o644, Size: size, PAXRecords: pax}
		writeTar(t, w, h, make([]byte, size))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// sparse returns a tar file of one sparse file that has nothing but its size, before its end.
func sparse(t *testing.T, name string, size int64) []byte {
	t.Helper()
	records := ""
	for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=" + name, "GNU.sparse.realsize=" + strconv.FormatInt(size, 10)} {
		n := len(r) + 2 // the space and the line's end
		for n != len(r)+2+len(strconv.Itoa(n)) {
			n++
		}
		records += strconv.Itoa(n) + " " + r + "\n"
	}
	var out bytes.Buffer
	for _, part := range []struct {
		kind byte
		text string
	}{{tar.TypeXHeader, records}, {tar.TypeReg, fmt.Sprintf("1\n%d\n0\n%s", size, strings.Repeat("\x00", 512-4-len(strconv.FormatInt(size, 10))-1))}} {
		h := make([]byte, 512)
		copy(h, name)
		copy(h[100:], "0000644\x000000000\x000000000\x00")
		copy(h[124:], fmt.Sprintf("%011o\x00%011o\x00        %c", len(part.text), 0, part.kind))
		copy(h[257:], "ustar\x0000")
		sum := 0
		for _, c := range h {
			sum += int(c)
		}
		copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
		out.Write(h)
		out.WriteString(part.text)
		out.Write(make([]byte, (512-len(part.text)%512)%512))
	}
	return out.Bytes()
}

func gzipped(t *testing.T, parts ...[]byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func zstdOf(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	if err == nil {
		_, err = w.Write(b)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestArchivesWriteNoMoreThanTheirLimit imports archives of a few kilobytes that would be
// gigabytes to write, to read into memory or to walk through.
func TestArchivesWriteNoMoreThanTheirLimit(t *testing.T) {
	const many = 600
	laughs := func(a *hostileArchive) []byte {
		index := a.image(typeTar, layerOf(t, 1, 1, nil))
		for range 20 {
			index = a.index(index, index, index)
		}
		return a.file(index)
	}
	for name, c := range map[string]struct {
		archive func(a *hostileArchive) []byte
		want    string // of the error; "" for none
	}{
		"an image":       {func(a *hostileArchive) []byte { return a.file(a.image(typeTar, layerOf(t, 3, 100, nil))) }, ""},
		"one of no file": {func(a *hostileArchive) []byte { return a.file(a.image(typeTar, nil)) }, ""},
		"compressed by gzip": {func(a *hostileArchive) []byte {
			return a.file(a.image(typeTar+"+gzip", gzipped(t, layerOf(t, 3, 1000, nil))))
		}, ""},
		"compressed by zstd": {func(a *hostileArchive) []byte {
			return a.file(a.image(typeTar+"+zstd", zstdOf(t, layerOf(t, 3, 1000, nil))))
		}, ""},
		"a sparse file in a layer": {func(a *hostileArchive) []byte {
			return a.file(a.image(typeTar, append(sparse(t, "f", 1<<40), make([]byte, 1024)...)))
		}, "an image may have 1MiB unpacked here"},
		"a sparse file in a raw layer that looks like gzip": {func(a *hostileArchive) []byte {
			b := append(sparse(t, "\x1f\x8b\x08f", 1<<40), make([]byte, 1024)...)
			return a.file(a.image(typeTar, b))
		}, "an image may have 1MiB unpacked here"},
		"a sparse index": {func(a *hostileArchive) []byte {
			return append(sparse(a.t, "index.json", 1<<40), a.file(a.image(typeTar, layerOf(t, 1, 1, nil)))...)
		}, "an image may have 1MiB unpacked here"},
		"compressed zeros": {func(a *hostileArchive) []byte {
			return a.file(a.image(typeTar+"+gzip", gzipped(t, layerOf(t, 1, 2*small, nil))))
		}, "an image may have 1MiB unpacked here"},
		"zeros after the last file": {func(a *hostileArchive) []byte {
			return a.file(a.image(typeTar+"+gzip", gzipped(t, layerOf(t, 1, 1, nil), make([]byte, 3*small))))
		}, "an image may have 1MiB unpacked here"},
		"a window of half a gigabyte": {func(a *hostileArchive) []byte {
			b := layerOf(t, 1, 1, nil)
			n := len(b)<<3 | 1 // one block, the last, as it is
			return a.file(a.image(typeTar+"+zstd", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, (29 - 10) << 3, byte(n), byte(n >> 8), byte(n >> 16)}, b...)))
		}, "window size exceeded"},
		"small files": {func(a *hostileArchive) []byte { return a.file(a.image(typeTar, layerOf(t, 101, 0, nil))) }, "in at most 100 files"},
		"a layer named again and again": {func(a *hostileArchive) []byte {
			layer := a.blob(typeTar, layerOf(t, 30, 0, nil))
			return a.file(a.index(a.manifest(slices.Repeat([]string{"sha256:" + strings.Repeat("1", 64)}, 4), layer, layer, layer, layer)))
		}, "in at most 100 files"},
		"layers without end": {func(a *hostileArchive) []byte {
			layer := a.blob(typeTar, nil)
			return a.file(a.index(a.manifest(slices.Repeat([]string{"sha256:" + strings.Repeat("1", 64)}, many), slices.Repeat([]object{layer}, many)...)))
		}, "it has 600 layers"},
		"lists that name each other": {laughs, "it names over 100 manifests"},
		"attributes for which a disk has no space": {func(a *hostileArchive) []byte {
			return a.file(a.image(typeTar, layerOf(t, 1, 1, map[string]string{"SCHILY.xattr.user.a": strings.Repeat("x", 3000)})))
		}, "bytes of extended attributes"},
		"digests that are none": {func(a *hostileArchive) []byte {
			return a.file(a.index(a.manifest([]string{"sha256:0: failed to mount "}, a.blob(typeTar, nil))))
		}, "is no digest"},
		"an unknown media type": {func(a *hostileArchive) []byte { return a.file(a.image("text/plain", nil)) }, "is not supported"},
		"a list that is a manifest": {func(a *hostileArchive) []byte {
			return a.file(a.manifest([]string{}))
		}, "expected index but found manifest"},
		"a torn layer": {func(a *hostileArchive) []byte { return a.file(a.image(typeTar, layerOf(t, 1, 100, nil)[:520])) }, "unexpected EOF"},
	} {
		t.Run(name, func(t *testing.T) {
			store := newLocalStore(t)
			a := &hostileArchive{t: t, blobs: map[string][]byte{}}
			_, err := importArchive(t.Context(), store, "sha256:ab", bytes.NewReader(c.archive(a)), imageLimits{bytes: small, files: 100, free: -1})
			if c.want == "" && err == nil {
				return
			}
			if err == nil || c.want == "" || !strings.Contains(err.Error(), c.want) || !errors.Is(err, fault.Invalid) && !errors.Is(err, fault.Unsupported) {
				t.Errorf("error %v of class %v, want one of the archive's with %q", err, fault.Class(err), c.want)
			}
		})
	}
}

func newLocalStore(t *testing.T) content.Store {
	t.Helper()
	store, err := local.NewLabeledStore(t.TempDir(), memoryLabels{})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// TestSparseArchivesAreRefused stops an archive that says of a file only how large it is, before
// the limit of unpacked images is reached.
func TestSparseArchivesAreRefused(t *testing.T) {
	a := &hostileArchive{t: t, blobs: map[string][]byte{}}
	file := append(sparse(t, "index.json", 1<<40), a.file(a.image(typeTar, layerOf(t, 1, 1, nil)))...)
	_, err := importArchive(t.Context(), newLocalStore(t), "sha256:ab", bytes.NewReader(file), imageLimits{bytes: 1 << 40, files: 100, free: -1})
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "its archive has a sparse file") {
		t.Error(err)
	}
}

// TestLargeDocumentsAreNotRead refuses a configuration, whatever media type it is said to have,
// and a manifest that the daemon would read into memory as a whole.
func TestLargeDocumentsAreNotRead(t *testing.T) {
	large := bytes.Repeat([]byte(" "), maxDocumentBytes+1)
	for _, media := range []string{"application/vnd.oci.image.config.v1+json", typeTar, ""} {
		a := &hostileArchive{t: t, blobs: map[string][]byte{}}
		index := a.index(a.document("manifest", object{"schemaVersion": 2, "config": a.blob(media, large), "layers": []object{}}))
		checkLargeDocument(t, media, a.file(index))
	}
	a := &hostileArchive{t: t, blobs: map[string][]byte{}}
	checkLargeDocument(t, "manifest", a.file(a.index(a.blob("application/vnd.oci.image.manifest.v1+json", large))))
}

func checkLargeDocument(t *testing.T, what string, archive []byte) {
	t.Helper()
	_, err := importArchive(t.Context(), newLocalStore(t), "sha256:ab", bytes.NewReader(archive), imageLimits{bytes: 100 << 20, files: 100, free: -1})
	if !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "more than 8MiB") {
		t.Errorf("%s: %v", what, err)
	}
}

func TestImagesLeaveRoomOnTheDisk(t *testing.T) {
	l := imageLimits{bytes: maxImageBytes, files: maxImageFiles, free: -1}
	disk := &unix.Statfs_t{Bsize: 4096, Blocks: 1 << 20, Bavail: 1000, Files: 5000}
	if got, want := l.onDisk(disk), (imageLimits{bytes: 2 << 30, files: 2500, free: 1000 * 4096}); got != want {
		t.Errorf("limits %+v, want %+v", got, want)
	}
	a := &hostileArchive{t: t, blobs: map[string][]byte{}}
	file := a.file(a.image(typeTar, layerOf(t, 1, 1, nil)))
	l = imageLimits{bytes: small, files: 100}
	l.free = blockBytes + 1 + l.reserve()
	if _, err := importArchive(t.Context(), newLocalStore(t), "sha256:ab", bytes.NewReader(file), l); err != nil {
		t.Error(err)
	}
	l.free--
	if _, err := importArchive(t.Context(), newLocalStore(t), "sha256:ab", bytes.NewReader(file), l); !errors.Is(err, fault.Exhausted) {
		t.Errorf("%v, want that the disk has no room", err)
	}
}

// TestImportsAreApart imports an image beside one that is under way, and after one that was
// interrupted, of another tenant.
func TestImportsAreApart(t *testing.T) {
	store := newLocalStore(t)
	for _, interrupted := range []bool{false, true} {
		w, err := content.OpenWriter(t.Context(), store, content.WithRef("tar-index.json"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 10_000)); err != nil {
			t.Fatal(err)
		}
		if interrupted {
			w.Close()
		}
		a := &hostileArchive{t: t, blobs: map[string][]byte{}}
		file := a.file(a.image(typeTar, layerOf(t, 1, 1, nil)))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := importArchive(ctx, store, fmt.Sprintf("sha256:%x", sha256.Sum256(file)), bytes.NewReader(file), imageLimits{bytes: small, files: 100, free: -1}); err != nil {
			t.Errorf("interrupted %v: %v", interrupted, err)
		}
		cancel()
		w.Close()
	}
}

// TestReadingErrorsAreNotTheArchives keeps what the node reads badly from being called the
// archive's fault.
func TestReadingErrorsAreNotTheArchives(t *testing.T) {
	broken := errors.New("input/output error")
	_, err := importArchive(t.Context(), newLocalStore(t), "sha256:ab", io.MultiReader(strings.NewReader("x"), &failingReader{broken}), imageLimits{bytes: small, files: 100, free: -1})
	if !errors.Is(err, broken) || fault.Class(err) != nil {
		t.Errorf("error %v of class %v", err, fault.Class(err))
	}
}

type failingReader struct{ err error }

func (r *failingReader) Read([]byte) (int, error) { return 0, r.err }

// memoryLabels are the labels of a store's blobs.
type memoryLabels map[digest.Digest]map[string]string

func (m memoryLabels) Get(d digest.Digest) (map[string]string, error) { return m[d], nil }

func (m memoryLabels) Set(d digest.Digest, labels map[string]string) error {
	m[d] = labels
	return nil
}

func (m memoryLabels) Update(d digest.Digest, labels map[string]string) (map[string]string, error) {
	if m[d] == nil {
		m[d] = map[string]string{}
	}
	maps.Copy(m[d], labels)
	return m[d], nil
}

// recordedDiff records that a layer was applied.
type recordedDiff struct {
	client.DiffService
	steps *[]string
	err   error
}

func (r recordedDiff) Apply(_ context.Context, d ocispec.Descriptor, _ []mount.Mount, _ ...diff.ApplyOpt) (ocispec.Descriptor, error) {
	*r.steps = append(*r.steps, "apply")
	return d, r.err
}

// A layer is on the disk when the engine is told that it is complete, or the engine is told of an error.
func TestAppliedLayersAreSynced(t *testing.T) {
	broken := errors.New("broken")
	for what, c := range map[string]struct {
		apply, sync error
		steps       string
		want        error
	}{
		"applied and synced": {steps: "apply sync"},
		"not applied":        {apply: broken, steps: "apply", want: broken},
		"not synced":         {sync: broken, steps: "apply sync", want: broken},
	} {
		var steps []string
		s := syncedDiff{recordedDiff{steps: &steps, err: c.apply}, func() error {
			steps = append(steps, "sync")
			return c.sync
		}}
		if _, err := s.Apply(t.Context(), ocispec.Descriptor{}, nil); !errors.Is(err, c.want) || strings.Join(steps, " ") != c.steps {
			t.Errorf("%s: %v, steps %v", what, err, steps)
		}
	}
	if err := errors.Join(syncFileSystem(t.TempDir()), syncFileSystem("")); err != nil {
		t.Error(err)
	}
	if err := syncFileSystem(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a folder that is not there was synced")
	}
}

package containerd

import (
	"archive/tar"
	"bufio"
	"bytes"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzDumpManifest reads the list of an image's files: it never names a file outside of
// the image without an error.
func FuzzDumpManifest(f *testing.F) {
	f.Add([]byte(`{"version":3,"id":"c-1","files":[{"name":"core-1.img","bytes":3,"xxh64":"44bc2cf5ad770999"}]}`))
	f.Add([]byte(`{"version":1,"files":[{"name":"../../etc/shadow","bytes":-1}]}`))
	dir := f.TempDir()
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		var m manifest
		if err := decodeManifest(b, &m); err != nil || m.Version > manifestVersion {
			return
		}
		if err := m.checkSizes(dir); len(m.Files) == 0 || fault.Class(err) != fault.Corrupt {
			t.Errorf("%+v: %v", m, err)
		}
	})
}

// FuzzLayer counts the files of a layer: whatever it is, what passes is below the limits.
func FuzzLayer(f *testing.F) {
	layer := fuzzLayer()
	f.Add(typeTar, layer)
	f.Add(typeTar+"+gzip", []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\x01\x00\x00\xff\xff\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(typeTar+"+zstd", append([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 7 << 3, byte(len(layer)<<3 | 1), byte(len(layer) >> 5), 0}, layer...))
	f.Add("application/vnd.docker.image.rootfs.diff.tar", layer)
	fuzztest.Run(f, func(t *testing.T, mediaType string, b []byte) {
		c := layerCount{limits: imageLimits{bytes: small, files: 100}}
		err := c.read(t.Context(), bufio.NewReader(bytes.NewReader(b)), mediaType)
		if err == nil && (c.bytes > c.limits.bytes || c.files > c.limits.files || c.bytes < c.files*blockBytes) {
			t.Errorf("%d bytes in %d files of %q pass", c.bytes, c.files, mediaType)
		}
	})
}

// fuzzLayer returns a layer of one file.
func fuzzLayer() []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	_ = w.WriteHeader(&tar.Header{Name: "f", Size: 3, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}})
	_, _ = w.Write([]byte("abc"))
	_ = w.Close()
	return b.Bytes()
}

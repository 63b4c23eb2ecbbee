package containerd

import (
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

package dump

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzManifest reads manifests as another node sends them: one that is accepted names no file outside
// of its roots.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"harness_sha256":"00","files":[{"root":"image","path":"a/b","bytes":3}]}`))
	f.Add([]byte(`{"version":1,"harness_sha256":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","files":[{"root":"folder","path":"../x"}]}`))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		var m Manifest
		if json.Unmarshal(b, &m) != nil || m.validate() != nil {
			return
		}
		for _, x := range m.Files {
			if at := filepath.Join("/root", x.Path); !filepath.IsLocal(x.Path) || at[:5] != "/root" {
				t.Errorf("a file %q", x.Path)
			}
		}
	})
}

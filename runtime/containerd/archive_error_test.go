package containerd

import (
	"context"
	"errors"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

// TestArchiveError separates a tenant's bad archive from a failure of the
// machine: only the second may count against the node.
func TestArchiveError(t *testing.T) {
	for text, want := range map[string]error{
		"failed to extract layer sha256:12: archive/tar: invalid tar header: unknown":                                 fault.Invalid,
		"failed to extract layer sha256:12: mount callback failed on /tmp/x: unexpected EOF":                          fault.Invalid,
		"failed to extract layer sha256:12: gzip: invalid checksum":                                                   fault.Invalid,
		"wrong diff id calculated on extraction \"sha256:1\" expected \"sha256:2\"":                                   fault.Invalid,
		"invalid character 'x' looking for beginning of value":                                                        fault.Invalid,
		"failed to extract layer sha256:12: mount callback failed on /tmp/x: write /tmp/x/f: no space left on device": nil,
		"failed to extract layer sha256:12: failed to mount /tmp/x: operation not permitted":                          nil,
		"failed to extract layer sha256:12: read /var/lib/containerd/blob: input/output error":                        nil,
		"something that nobody has seen before":                                                                       nil,
	} {
		if got := fault.Class(archiveError(context.Background(), "unpack", "sha256:ab", errors.New(text))); got != want {
			t.Errorf("%s\nis classed %v, want %v", text, got, want)
		}
	}
}

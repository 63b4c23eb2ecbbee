package containerd

import (
	"context"
	"strings"

	"github.com/drover-run/drover/internal/fault"
)

// hostFaults are texts of errors that are the machine's and not the archive's.
// containerd passes most errors of its snapshotter on as text alone.
var hostFaults = []string{
	"no space left on device", "disk quota exceeded", "input/output error", "read-only file system", "cannot allocate memory",
	"too many open files", "transport endpoint", "connection refused", "failed to mount", "permission denied", "operation not permitted",
}

// archiveFaults are texts of errors that only the bytes of an archive cause.
var archiveFaults = []string{
	"archive/tar:", "invalid tar header", "gzip: ", "flate: ", "zstd: ", "magic number mismatch", "unexpected eof", "wrong diff id",
	"mismatched image rootfs and manifest layers", "unmarshal", "invalid character", "unsupported compression", "no unpack", "breakout", "failed to extract layer",
}

func isHostFault(err error) bool { return containsAny(strings.ToLower(err.Error()), hostFaults) }

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// archiveError returns the error of reading an image's archive: Invalid if its
// bytes are at fault, so that it counts as the job's failure and not as one of
// the node, which a tenant could else have quarantined; otherwise as engineError.
func archiveError(ctx context.Context, doing, digest string, err error) error {
	out := engineError(ctx, doing+" "+digest, "", err)
	text := strings.ToLower(err.Error())
	if fault.Class(out) != nil || ctx.Err() != nil || isHostFault(err) || !containsAny(text, archiveFaults) {
		return out
	}
	return fault.New(fault.Invalid, "image %s: its archive is damaged or wrong: %w: make it again with `podman save --format oci-archive` or `docker save`", digest, err)
}

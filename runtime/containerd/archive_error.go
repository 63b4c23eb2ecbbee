package containerd

import (
	"context"
	"regexp"
	"slices"
	"strings"

	"github.com/drover-run/drover/internal/fault"
)

// hostFaults are the last words of errors that are the machine's and not the archive's.
// containerd passes most errors of its snapshotter on as text alone, and before its last
// words that text has names that the archive's author chose.
var hostFaults = []string{
	"no space left on device", "disk quota exceeded", "input/output error", "read-only file system", "cannot allocate memory",
	"too many open files", "transport endpoint is not connected", "connection refused",
}

// deniedFaults are the last words of errors of the machine where an archive causes none of
// them. Unpacking it can: a symbolic link with an attribute of users is not permitted.
var deniedFaults = []string{"permission denied", "operation not permitted"}

// mountFault is the text of an error before the engine looks at a layer's bytes.
var mountFault = regexp.MustCompile(`failed to extract layer sha256:[0-9a-f]+: failed to mount `)

// archiveFaults are texts of errors that only the bytes of an archive cause.
var archiveFaults = []string{
	"archive/tar:", "invalid tar header", "gzip: ", "flate: ", "zstd: ", "magic number mismatch", "unexpected eof", "wrong diff id",
	"mismatched image rootfs and manifest layers", "unmarshal", "invalid character", "unsupported compression", "no unpack", "breakout", "failed to extract layer",
}

func isHostFault(err error) bool { return endsIn(err, hostFaults) }

func isDenied(err error) bool { return endsIn(err, deniedFaults) }

// endsIn reports whether an error's last words are in a list.
func endsIn(err error, words []string) bool {
	text := strings.TrimSuffix(strings.ToLower(err.Error()), ": unknown")
	return slices.ContainsFunc(words, func(w string) bool { return strings.HasSuffix(text, w) })
}

func containsAny(text string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(text, p) {
			return true
		}
	}
	return false
}

// readError returns the error of reading an image's archive. Errors that are not the engine's or
// the machine's are Invalid: they count as the job's failure, since a tenant could otherwise have
// nodes quarantined.
func readError(ctx context.Context, doing, digest string, err error) error {
	out := engineError(ctx, doing+" "+digest, "", err)
	switch {
	case ctx.Err() != nil:
		return out
	case fault.Class(err) != nil: // found by the driver itself
		return fault.New(fault.Class(err), "image %s: %w", digest, err)
	case fault.Class(out) == fault.Unavailable, isHostFault(err), isDenied(err):
		return out
	default:
		return fault.New(fault.Invalid, "image %s: not an OCI or docker archive: %w: make it with `podman save --format oci-archive` or `docker save`", digest, err)
	}
}

// archiveError returns the error of unpacking an image, classified as in readError, except that
// unknown errors are the engine's.
func archiveError(ctx context.Context, doing, digest string, err error) error {
	out := engineError(ctx, doing+" "+digest, "", err)
	text := strings.ToLower(err.Error())
	if fault.Class(out) != nil || ctx.Err() != nil || isHostFault(err) || mountFault.MatchString(text) || !containsAny(text, archiveFaults) {
		return out
	}
	return fault.New(fault.Invalid, "image %s: its archive is damaged or wrong: %w: make it again with `podman save --format oci-archive` or `docker save`", digest, err)
}

package containerd

import (
	"context"
	"errors"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

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
		"failed to extract layer sha256:12: mkdir /x/no space left on device: not a directory: unknown":               fault.Invalid,
		"failed to extract layer sha256:12: mkdir /x/failed to mount : permission denied":                             fault.Invalid,
		"failed to extract layer sha256:12: failed to set xattr \"user.a\" on /x/l: operation not permitted":          fault.Invalid,
		"failed to extract layer sha256:12: failed to mount /tmp/x: operation not permitted":                          nil,
		"failed to extract layer sha256:12: read /var/lib/containerd/blob: input/output error":                        nil,
		"something that nobody has seen before":                                                                       nil,
	} {
		if got := fault.Class(archiveError(context.Background(), "unpack", "sha256:ab", errors.New(text))); got != want {
			t.Errorf("%s\nis classed %v, want %v", text, got, want)
		}
	}
}

// TestRootFault separates an image in which nothing can be mounted from a machine that
// cannot mount.
func TestRootFault(t *testing.T) {
	const runc = "failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
	for text, want := range map[string]bool{
		runc + `error during container init: error mounting "/d/task" to rootfs at "/task": create mount destination for /task mount: cannot mkdir in /r/task: not a directory: unknown`: true,
		runc + `error during container init: error mounting "proc" to rootfs at "/proc": filesystem "proc" must be mounted on ordinary directory: unknown`:                               true,
		runc + `error during container init: error mounting "/d/task" to rootfs at "/task": mount src=/d/task, dst=/task: cannot allocate memory: unknown`:                               false,
		runc + `error during container init: error setting cgroup config for procHooks process: no such file or directory: unknown`:                                                      false,
		runc + `error during container init: error mounting "/" to rootfs at "/task": open /r/task: no such file or directory: unknown`:                                                  true,
		runc + `error during container init: error mounting "/gone/\"task\"" to rootfs at "/task": stat /gone/"task": no such file or directory: unknown`:                                false, // the node has lost it
		"something that nobody has seen before": false,
	} {
		err := commandError(context.Background(), "c", errors.New(text))
		if got := fault.Class(err) == fault.Invalid; got != want {
			t.Errorf("%s\nis classed %v", text, fault.Class(err))
		}
	}
}

func TestImagesWithAnImpossibleEnvironmentAreRefused(t *testing.T) {
	for _, c := range []struct {
		env []string
		ok  bool
	}{{nil, true}, {[]string{"A=", "B==\n"}, true}, {[]string{"A"}, false}, {[]string{"=A"}, false}, {[]string{""}, false}, {[]string{"A=\x00"}, false}} {
		err := checkConfig("i", ocispec.ImageConfig{Env: c.env})
		if c.ok != (err == nil) || err != nil && !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", c.env, err)
		}
	}
}

package containerd

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Containers are made by runc. Those that are never dumped are made by crun where it is installed:
// starting one then takes two thirds of the processor time. crun 1.21 ignores the options that Drover
// passes to criu, so it makes none that may be dumped.

// RuncOnly is the Config.OCIRuntime with which crun is not used.
const RuncOnly = "runc"

// labelRuntime names the program that made a container; runc without it. It is chosen when the
// container is created, because the same program must also end the container.
const labelRuntime = "drover/runtime"

// ociRuntimes chooses the programs that make containers.
type ociRuntimes struct {
	runcOnly   bool
	warnf      func(format string, args ...any)
	crun       func() string // its path, found once; "" if it cannot be used
	crunFailed atomic.Bool   // crun failed where runc did not
}

func newOCIRuntimes(c Config) *ociRuntimes {
	return &ociRuntimes{runcOnly: c.OCIRuntime == RuncOnly, warnf: c.Warnf, crun: sync.OnceValue(findCrun)}
}

// choose returns the program that makes a container; "" is runc.
func (r *ociRuntimes) choose(s runtime.Spec) string {
	if r.runcOnly || r.crunFailed.Load() {
		return ""
	}
	if _, err := exec.LookPath("criu"); err == nil && !s.NeverDumped {
		return ""
	}
	return r.crun()
}

// use calls try with a container's program. If crun cannot make it and runc can, runc makes all later
// ones too: it then returns true, and the container's label is the caller's to remove.
func (r *ociRuntimes) use(ctx context.Context, box containers.Container, try func(program string) error) (gaveUp bool, err error) {
	err = try(box.Labels[labelRuntime])
	if err == nil || isRuncs(box) || errors.Is(err, fault.Invalid) || ctx.Err() != nil {
		return false, err
	}
	if rerr := try(""); rerr != nil {
		return false, rerr
	}
	if !r.crunFailed.Swap(true) && r.warnf != nil {
		r.warnf("crun cannot start containers here, runc can and starts all from now on; to use runc from the beginning give the node -oci-runtime runc: %v", err)
	}
	return true, nil
}

// isRuncs reports whether runc makes a container, so that it can be dumped.
func isRuncs(box containers.Container) bool { return box.Labels[labelRuntime] == "" }

// versionLimit bounds how long crun may take to say its version.
const versionLimit = 10 * time.Second

// findCrun returns the path of crun; "" without one that filters system calls, for one that does not
// ignores the filter in silence.
func findCrun() string {
	path, err := exec.LookPath("crun")
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), versionLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	if err != nil || !bytes.Contains(out, []byte("+SECCOMP")) {
		return ""
	}
	return path
}

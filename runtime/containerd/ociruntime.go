package containerd

import (
	"bytes"
	"context"
	"os/exec"
	"time"

	"github.com/containerd/containerd/v2/core/containers"

	"github.com/drover-run/drover/runtime"
)

// Containers are made by runc. Those that are never dumped are made by crun where it is installed:
// starting one then takes two thirds of the processor time. crun before 1.22 ignores the options that
// Drover passes to criu, so it makes none that may be dumped.

// RuncOnly is the Config.OCIRuntime with which crun is not used.
const RuncOnly = "runc"

// labelRuntime is the program that makes a container; runc without it. It is chosen when the container
// is created: what makes a container also ends it.
const labelRuntime = "drover/runtime"

// ociRuntime returns the program that makes a container; "" is runc.
func (d *Driver) ociRuntime(s runtime.Spec) string {
	if d.cfg.OCIRuntime == RuncOnly || d.crunFailed.Load() {
		return ""
	}
	if _, err := exec.LookPath("criu"); err == nil && !s.NeverDumped {
		return ""
	}
	return d.crun()
}

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

// giveUpCrun makes this container and all later ones runc's, after runc has made one that crun could not
// make. The label of a container that is there is the caller's to remove.
func (d *Driver) giveUpCrun(cause error) {
	if !d.crunFailed.Swap(true) && d.cfg.Warnf != nil {
		d.cfg.Warnf("crun cannot start containers here, runc can and starts all from now on; to use runc from the beginning give the node -oci-runtime runc: %v", cause)
	}
}

// isRuncs reports whether runc makes a container, so that it can be dumped.
func isRuncs(box containers.Container) bool { return box.Labels[labelRuntime] == "" }

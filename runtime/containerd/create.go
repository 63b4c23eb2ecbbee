package containerd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/defaults"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drover-run/drover/internal/environ"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
)

// Settings of every task.
const (
	openFiles   = 65536 // RLIMIT_NOFILE; the default of 1024 is too low for a merge
	oomScoreAdj = 500   // if the machine runs out of memory, tasks are killed before daemons
	tmpBytes    = "64m" // of the tmpfs on /tmp
	defaultPath = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
)

// Create implements runtime.Driver. Steps: check whether the container exists; remove
// the snapshot that a crash in Delete left of another one with this ID; make the
// container; make its snapshot. The container comes before its snapshot, since it
// protects the snapshot from garbage collection, which otherwise takes a lease. So a
// container's snapshot is its own or missing, and a start makes one that is missing.
func (d *Driver) Create(ctx context.Context, s runtime.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Image == "" && s.Rootfs == "" {
		return fault.New(fault.Invalid, "container %s: neither Image nor Rootfs: a container needs a root", s.ID)
	}
	if s.Cgroup == "" || s.Cgroup == "/" {
		return fault.New(fault.Invalid, "container %s: no cgroup: it would run without limits", s.ID)
	}
	labels, err := labelsOf(s)
	if err != nil {
		return err
	}
	if program := d.runtimes.choose(s); program != "" {
		labels[labelRuntime] = program
	}
	unlock, err := d.locks.lock(ctx, s.ID)
	if err != nil {
		return err
	}
	defer unlock()
	old, err := d.c.ContainerService().Get(ctx, s.ID)
	switch {
	case err == nil && old.Labels[labelSpec] == labels[labelSpec]:
		return nil
	case err == nil:
		return fault.New(fault.Exists, "container %s exists with another spec: delete it first", s.ID)
	case !errdefs.IsNotFound(err):
		return engineError(ctx, "create", s.ID, err)
	}
	if err := d.removeRoot(ctx, s.ID); err != nil {
		return engineError(ctx, "create", s.ID, err)
	}
	return engineError(ctx, "create", s.ID, d.create(ctx, s, labels))
}

// create makes a container that does not exist; after an error there is none, if the
// engine answers.
func (d *Driver) create(ctx context.Context, s runtime.Spec, labels map[string]string) error {
	// The shim of runc, also for crun, whatever the namespace's default is: options, clean-up and
	// criu's files are its.
	box := containers.Container{ID: s.ID, Labels: labels, Runtime: containers.RuntimeInfo{Name: defaults.DefaultRuntime}}
	var img imageConfig
	var opts []oci.SpecOpts
	var err error
	if s.Image != "" {
		if img, err = d.images.config(ctx, d.c, s.Image); err != nil {
			return err
		}
		box.Image, box.Snapshotter, box.SnapshotKey = s.Image, d.cfg.snapshotter, s.ID
		opts = append(opts, ociSpec(s, img.env, img.dir), withSeccomp())
	} else {
		if err := checkRootFolder(s, d.cfg.stateDir); err != nil {
			return err
		}
		opts = append(opts, ociSpec(s, nil, ""), withSeccomp(), oci.WithAnnotations(map[string]string{annotationRoot: s.Rootfs}))
	}
	spec, err := oci.GenerateSpec(namespaces.WithNamespace(ctx, d.cfg.Namespace), d.c, &box, append(opts, d.criu.annotate(s.ID))...)
	if err != nil {
		return err
	}
	if box.Spec, err = typeurl.MarshalAny(spec); err != nil {
		return err
	}
	if _, err := d.c.ContainerService().Create(ctx, box); err != nil || s.Image == "" {
		return err
	}
	if _, err = d.makeSnapshot(ctx, s.ID, img); err == nil {
		return nil
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanLimit)
	defer cancel()
	if e := d.c.ContainerService().Delete(clean, s.ID); e != nil && !errdefs.IsNotFound(e) {
		return errors.Join(err, e)
	}
	return err
}

// checkRootFolder checks a folder of the host that is to be a root; it is never
// written to.
func checkRootFolder(s runtime.Spec, state string) error {
	if st, err := os.Stat(s.Rootfs); err != nil || !st.IsDir() {
		return fault.New(fault.NotFound, "container %s: root folder %s does not exist: %v", s.ID, s.Rootfs, err)
	}
	for _, p := range []string{s.Rootfs, state} {
		if strings.ContainsAny(p, `:,\`) {
			return fault.New(fault.Invalid, "container %s: path %s: must not contain : , or \\, since overlayfs separates paths by them", s.ID, p)
		}
	}
	return nil
}

// taskMounts returns the mounts in addition to containerd's default ones.
func taskMounts(s runtime.Spec) []specs.Mount {
	var all []specs.Mount
	tmp := true
	for _, m := range s.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		tmp = tmp && m.Target != "/tmp"
		all = append(all, specs.Mount{Type: "bind", Source: m.Source, Destination: m.Target, Options: []string{"rbind", "nosuid", "nodev", mode}})
	}
	if tmp {
		all = append(all, specs.Mount{Type: "tmpfs", Source: "tmpfs", Destination: "/tmp", Options: []string{"nosuid", "nodev", "mode=1777", "size=" + tmpBytes}})
	}
	return all
}

// ociSpec edits containerd's default OCI spec: its namespaces, masked paths and
// mounts of /proc, /dev and /sys stay.
func ociSpec(s runtime.Spec, imageEnv []string, imageDir string) oci.SpecOpts {
	return func(_ context.Context, _ oci.Client, _ *containers.Container, o *oci.Spec) error {
		p := o.Process
		p.Args, p.Cwd = s.Args, "/"
		for _, dir := range []string{imageDir, s.Dir} {
			if dir != "" {
				p.Cwd = dir
			}
		}
		p.Env = environment(imageEnv, s.Env)
		p.User = specs.User{UID: s.UID, GID: s.GID, AdditionalGids: []uint32{s.GID}}
		p.NoNewPrivileges = true
		p.Capabilities = &specs.LinuxCapabilities{}
		p.Rlimits = []specs.POSIXRlimit{
			{Type: "RLIMIT_NOFILE", Hard: openFiles, Soft: openFiles},
			{Type: "RLIMIT_CORE"},
		}
		adj := oomScoreAdj
		p.OOMScoreAdj = &adj
		o.Root.Readonly = true
		if o.Hostname = s.Hostname; s.Hostname == "" {
			o.Hostname = s.ID
		}
		if s.UID != 0 {
			writeProtect(o.Mounts)
		}
		o.Mounts = append(o.Mounts, taskMounts(s)...)
		o.Linux.CgroupsPath = s.Cgroup
		o.Linux.Resources = &specs.LinuxResources{Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}}
		o.Linux.Namespaces = []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			{Type: specs.MountNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.CgroupNamespace},
		}
		return nil
	}
}

// environment is environ.Merge after the default PATH.
func environment(lists ...[]string) []string {
	return environ.Merge(append([][]string{{defaultPath}}, lists...)...)
}

// removeRoot removes what Create makes in addition to the container. It is not an
// error if there is nothing.
func (d *Driver) removeRoot(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return nil
	}
	err := d.c.SnapshotService(d.cfg.snapshotter).Remove(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return os.RemoveAll(filepath.Join(d.cfg.stateDir, id))
}

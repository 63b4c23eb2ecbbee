package containerd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

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

// Create implements runtime.Driver. Steps: check whether the container exists;
// remove a snapshot that a crash left; make snapshot and container.
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
	opts := []client.NewContainerOpts{client.WithContainerLabels(labels)}
	if s.Image != "" {
		opts, err = d.withImage(ctx, s, opts)
	} else {
		opts, err = d.withRootFolder(s, opts)
	}
	if err != nil {
		return engineError(ctx, "create", s.ID, err)
	}
	ctx, done, err := d.c.WithLease(ctx) // otherwise garbage collection may remove the snapshot before the container refers to it
	if err != nil {
		return engineError(ctx, "create", s.ID, err)
	}
	defer done(context.WithoutCancel(ctx))
	_, err = d.c.NewContainer(ctx, s.ID, opts...)
	return engineError(ctx, "create", s.ID, err)
}

// withImage sets root, environment and working directory from an image.
func (d *Driver) withImage(ctx context.Context, s runtime.Spec, opts []client.NewContainerOpts) ([]client.NewContainerOpts, error) {
	img, err := d.c.GetImage(ctx, s.Image)
	if errdefs.IsNotFound(err) {
		return nil, fault.New(fault.NotFound, "container %s: image %s is not here: import it first", s.ID, s.Image)
	}
	if err != nil {
		return nil, err
	}
	conf, err := img.Spec(ctx)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s.Image, err)
	}
	layers, err := img.RootFS(ctx)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", s.Image, err)
	}
	snapshot := client.WithNewSnapshot(s.ID, img)
	if d.cfg.Snapshotter == "overlayfs" && len(layers) <= maxLayers {
		snapshot = client.WithNewSnapshotView(s.ID, img)
	}
	return append(opts, client.WithSnapshotter(d.cfg.Snapshotter), client.WithImage(img), snapshot,
		client.WithNewSpec(ociSpec(s, conf.Config.Env, conf.Config.WorkingDir), withSeccomp(), d.criu.annotate(s.ID))), nil
}

// withRootFolder sets a folder of the host as root; it is never written to.
func (d *Driver) withRootFolder(s runtime.Spec, opts []client.NewContainerOpts) ([]client.NewContainerOpts, error) {
	if st, err := os.Stat(s.Rootfs); err != nil || !st.IsDir() {
		return nil, fault.New(fault.NotFound, "container %s: root folder %s does not exist: %v", s.ID, s.Rootfs, err)
	}
	for _, p := range []string{s.Rootfs, d.cfg.StateDir} {
		if strings.ContainsAny(p, `:,\`) {
			return nil, fault.New(fault.Invalid, "container %s: path %s: must not contain : , or \\, since overlayfs separates paths by them", s.ID, p)
		}
	}
	spec := ociSpec(s, nil, "")
	return append(opts, client.WithNewSpec(spec, withSeccomp(), oci.WithAnnotations(map[string]string{annotationRoot: s.Rootfs}), d.criu.annotate(s.ID))), nil
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

// environment joins lists of "K=V". The last value of a name wins; the order is
// that of first mention.
func environment(lists ...[]string) []string {
	at := map[string]int{}
	var all []string
	for _, list := range append([][]string{{defaultPath}}, lists...) {
		for _, kv := range list {
			k, _, _ := strings.Cut(kv, "=")
			if i, ok := at[k]; ok {
				all[i] = kv
				continue
			}
			at[k] = len(all)
			all = append(all, kv)
		}
	}
	return all
}

// removeRoot removes what Create makes in addition to the container. It is not an
// error if there is nothing.
func (d *Driver) removeRoot(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return nil
	}
	err := d.c.SnapshotService(d.cfg.Snapshotter).Remove(ctx, id)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return os.RemoveAll(filepath.Join(d.cfg.StateDir, id))
}

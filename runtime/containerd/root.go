package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drover-run/drover/internal/fault"
)

// A container's root is a read-only overlay: a folder with the mount points that
// runc would make, and below it the layers of the image or the operator's folder.
// It has no upper layer, since unmounting an overlay with one makes the kernel
// write out all dirty data of its disk, including a throttled neighbour's, and
// Delete would wait for it.

// annotationRoot stores the root folder with the container, for Start.
const annotationRoot = "drover/rootfs"

// maxLayers bounds the layers of such a root, since mount(2) takes one page of
// options. An image with more layers gets an upper layer.
const maxLayers = 40

// imageConfig is what a container needs to know of its image.
type imageConfig struct {
	env    []string
	dir    string // working directory
	layers int
	chain  string // the snapshot of all layers
}

// maxImageConfigs bounds imageConfigs.
const maxImageConfigs = 64

// imageConfigs caches the configurations of images by the digest of what they point to,
// which never changes: for each container only the name is looked up. Its zero value is
// empty.
type imageConfigs struct {
	mu sync.Mutex // guards by
	by map[string]imageConfig
}

// config returns the configuration of a named image.
func (m *imageConfigs) config(ctx context.Context, c *client.Client, name string) (imageConfig, error) {
	img, err := c.GetImage(ctx, name)
	if errdefs.IsNotFound(err) {
		return imageConfig{}, fault.New(fault.NotFound, "image %s is not here: import it first", name)
	}
	if err != nil {
		return imageConfig{}, err
	}
	target := img.Target().Digest.String()
	m.mu.Lock()
	known, ok := m.by[target]
	m.mu.Unlock()
	if ok {
		return known, nil
	}
	conf, err := img.Spec(ctx)
	if err != nil {
		return imageConfig{}, fmt.Errorf("image %s: %w", name, err)
	}
	if err := checkConfig(name, conf.Config); err != nil {
		return imageConfig{}, err
	}
	layers := conf.RootFS.DiffIDs
	dir := conf.Config.WorkingDir
	if dir != "" {
		dir = path.Clean("/" + dir) // below the folder of mount points, whatever the image says
	}
	known = imageConfig{env: conf.Config.Env, dir: dir, layers: len(layers), chain: identity.ChainID(layers).String()}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.by == nil || len(m.by) >= maxImageConfigs {
		m.by = map[string]imageConfig{}
	}
	m.by[target] = known
	return known, nil
}

// checkConfig refuses an environment with which no container can be started: runc's error
// would be one of the node.
func checkConfig(name string, c ocispec.ImageConfig) error {
	for _, e := range c.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" || strings.ContainsRune(e, 0) {
			return fault.New(fault.Invalid, "image %s: its environment entry %q is not NAME=value", name, e)
		}
	}
	return nil
}

// makeSnapshot makes the snapshot of a container that has none.
func (d *Driver) makeSnapshot(ctx context.Context, id string, img imageConfig) ([]mount.Mount, error) {
	s := d.c.SnapshotService(d.cfg.snapshotter)
	if d.cfg.snapshotter == "overlayfs" && img.layers <= maxLayers {
		return s.View(ctx, id, img.chain)
	}
	return s.Prepare(ctx, id, img.chain)
}

// rootSpec is the part of a container's spec that determines its root. The rest, most of it the
// seccomp profile, is not decoded.
type rootSpec struct {
	Process     struct{ Cwd string }
	Mounts      []specs.Mount
	Annotations map[string]string
}

// rootMounts returns the mounts of a task's root file system.
func (d *Driver) rootMounts(ctx context.Context, box containers.Container) ([]mount.Mount, error) {
	var spec rootSpec
	if err := json.Unmarshal(box.Spec.GetValue(), &spec); err != nil {
		return nil, fault.New(fault.Corrupt, "spec of container %s: %w", box.ID, err)
	}
	if root := spec.Annotations[annotationRoot]; root != "" {
		return d.readOnlyRoot(box.ID, spec, []string{root}, nil)
	}
	all, err := d.c.SnapshotService(d.cfg.snapshotter).Mounts(ctx, box.ID)
	if errdefs.IsNotFound(err) { // a crash came between the container and its snapshot
		var img imageConfig
		if img, err = d.images.config(ctx, d.c, box.Image); err == nil {
			all, err = d.makeSnapshot(ctx, box.ID, img)
		}
	}
	if err != nil {
		return nil, err
	}
	if lowers, opts, ok := layersOf(all); ok {
		return d.readOnlyRoot(box.ID, spec, lowers, opts)
	}
	return all, nil
}

// layersOf returns the folders of a read-only snapshot, topmost first, and further
// options of its mount; ok is false for other snapshots.
func layersOf(all []mount.Mount) (lowers, opts []string, ok bool) {
	if len(all) != 1 {
		return nil, nil, false
	}
	switch m := all[0]; m.Type {
	case "bind":
		return []string{m.Source}, nil, hasOption(m.Options, "ro")
	case "overlay":
		for _, o := range m.Options {
			switch {
			case strings.HasPrefix(o, "lowerdir="):
				lowers = strings.Split(strings.TrimPrefix(o, "lowerdir="), ":")
			case strings.HasPrefix(o, "upperdir="):
				return nil, nil, false
			case o != "ro":
				opts = append(opts, o)
			}
		}
		return lowers, opts, len(lowers) > 0
	default:
		return nil, nil, false
	}
}

func hasOption(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// readOnlyRoot makes the mount points that the layers lack and returns the overlay.
func (d *Driver) readOnlyRoot(id string, spec rootSpec, lowers, opts []string) ([]mount.Mount, error) {
	points := filepath.Join(d.cfg.stateDir, id, "points")
	if err := os.MkdirAll(points, 0o755); err != nil {
		return nil, err
	}
	targets := append([]specs.Mount{{Destination: spec.Process.Cwd}}, spec.Mounts...)
	for _, m := range targets {
		if isInsideMount(spec.Mounts, m.Destination) {
			continue // the mount around it has it, or runc makes it there
		}
		if err := makeMountPoint(points, lowers, m); err != nil {
			return nil, fmt.Errorf("mount point %s: %w", m.Destination, err)
		}
	}
	return []mount.Mount{{Type: "overlay", Source: "overlay",
		Options: append([]string{"ro", "lowerdir=" + strings.Join(append([]string{points}, lowers...), ":")}, opts...)}}, nil
}

// isInsideMount reports whether path lies below the target of a mount.
func isInsideMount(all []specs.Mount, path string) bool {
	for _, m := range all {
		if strings.HasPrefix(path, strings.TrimSuffix(m.Destination, "/")+"/") {
			return true
		}
	}
	return false
}

// makeMountPoint makes an empty file or folder as mount point unless a layer has it.
func makeMountPoint(points string, lowers []string, m specs.Mount) error {
	for _, l := range lowers {
		st, err := os.Lstat(filepath.Join(l, m.Destination))
		if err != nil {
			continue
		}
		if st.Mode()&os.ModeCharDevice != 0 {
			break // removed by this layer
		}
		return nil
	}
	at := filepath.Join(points, m.Destination)
	if st, err := os.Stat(m.Source); m.Type == "bind" && err == nil && !st.IsDir() {
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(at, os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	}
	return os.MkdirAll(at, 0o755)
}

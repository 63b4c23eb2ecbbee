package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/api/services/tasks/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/grpc/status"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime"
	"github.com/drover-run/drover/runtime/containerd/logger"
)

// Config locates containerd and the driver's own files.
type Config struct {
	Address     string // of containerd's socket; "" is /run/containerd/containerd.sock
	Namespace   string // "" is drover
	snapshotter string // "" is overlayfs
	stateDir    string // for what lives as long as a container; "" is /run/drover-node/containerd/<namespace>
	// Logger is our own executable, as absolute path, that takes
	// containerd/logger's verb; "" is the running one.
	Logger string
	// ShimCgroup is the cgroup, below the mount, of the shims, runc and the loggers:
	// work that is charged to no attempt. "" leaves them in containerd's cgroup.
	ShimCgroup string
	// OCIRuntime is which program makes containers: "" is crun, where it is installed, for those that
	// are never dumped, and runc for the others; RuncOnly is runc for all.
	OCIRuntime string
	Warnf      func(format string, args ...any) // for the operator; nil drops it

	// Locations of containerd's and the kernel's state; "" is the default. Set
	// only by tests.
	engineState, proc, cgroupMount string
}

const (
	labelSpec    = "drover/spec"
	labelStarted = "drover/started"
	labelLog     = "drover/log"
	labelPrefix  = "drover.label/"
	labelArchive = "drover/archive"
)

// maxLabelBytes is containerd's limit of a label's key plus value.
const maxLabelBytes = 4096

// Driver implements runtime.Driver, Images and Execer on containerd.
type Driver struct {
	c     *client.Client
	cfg   Config
	locks idLocks // of containers
	criu  criuFiles

	images  imageConfigs
	imports importLeases

	runtimes *ociRuntimes
}

var (
	_ runtime.Driver = (*Driver)(nil)
	_ runtime.Images = (*Driver)(nil)
	_ runtime.Execer = (*Driver)(nil)

	_ runtime.Preparer = (*Driver)(nil)
	_ runtime.Sweeper  = (*Driver)(nil)
)

// dialLimit bounds the first connection, and the pause between later ones.
const dialLimit = 3 * time.Second

// New connects to containerd. If it does not answer, the error is
// fault.Unavailable with the cure; a connection that breaks later is restored
// automatically.
func New(cfg Config) (*Driver, error) {
	if cfg.Address == "" {
		cfg.Address = "/run/containerd/containerd.sock"
	}
	if cfg.Namespace == "" {
		cfg.Namespace = "drover"
	}
	if cfg.snapshotter == "" {
		cfg.snapshotter = "overlayfs"
	}
	if cfg.stateDir == "" {
		cfg.stateDir = filepath.Join("/run/drover-node/containerd", cfg.Namespace)
	}
	if cfg.Logger == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("containerd driver: own executable: %w", err)
		}
		cfg.Logger = self
	}
	cfg = cfg.withPlaces()
	if _, err := os.Stat(cfg.Address); err != nil {
		return nil, fault.New(fault.Unavailable, "containerd: no socket: %w: start containerd, or give its socket with -containerd", err)
	}
	c, err := client.New(cfg.Address, client.WithDefaultNamespace(cfg.Namespace), client.WithTimeout(dialLimit))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "containerd at %s: %w", cfg.Address, err)
	}
	return &Driver{c: c, cfg: cfg, criu: criuFiles(cfg.stateDir), imports: importLeases{manager: c.LeasesService()}, runtimes: newOCIRuntimes(cfg)}, nil
}

// Close closes the connection; containers keep running.
func (d *Driver) Close() error { return d.c.Close() }

// Name implements runtime.Driver.
func (d *Driver) Name() string { return "containerd" }

// Version returns the engine's version.
func (d *Driver) Version(ctx context.Context) (string, error) {
	v, err := d.c.Version(ctx)
	if err != nil {
		return "", engineError(ctx, "version", "", err)
	}
	return v.Version, nil
}

// List implements runtime.Driver.
func (d *Driver) List(ctx context.Context) ([]runtime.Status, error) {
	boxes, err := d.c.ContainerService().List(ctx, fmt.Sprintf("labels.%q", labelSpec))
	if err != nil {
		return nil, engineError(ctx, "list", "", err)
	}
	listed, err := d.c.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, engineError(ctx, "list", "", err)
	}
	procs := map[string]*tasktypes.Process{}
	for _, p := range listed.GetTasks() {
		procs[p.GetID()] = p
	}
	var all []runtime.Status
	for _, b := range boxes {
		p := procs[b.ID]
		if p == nil && b.Labels[labelStarted] != "" { // containerd omits tasks whose shim answered late
			if p, err = d.firstProcess(ctx, b.ID); err != nil && !errdefs.IsNotFound(err) {
				return nil, engineError(ctx, "list", b.ID, err)
			}
		}
		all = append(all, statusOf(b.ID, b.Labels, p))
	}
	slices.SortFunc(all, func(a, b runtime.Status) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}

// firstProcess returns the first process of a task; the error is containerd's own.
func (d *Driver) firstProcess(ctx context.Context, id string) (*tasktypes.Process, error) {
	r, err := d.c.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return nil, toNative(err)
	}
	return r.GetProcess(), nil
}

// statusOf combines the container's labels with its task; p is nil without a
// task.
func statusOf(id string, labels map[string]string, p *tasktypes.Process) runtime.Status {
	s := runtime.Status{ID: id, Labels: map[string]string{}}
	for k, v := range labels {
		if name, ok := strings.CutPrefix(k, labelPrefix); ok {
			s.Labels[name] = v
		}
	}
	if t, err := time.Parse(time.RFC3339Nano, labels[labelStarted]); err == nil {
		s.Started = t
	}
	switch {
	case p == nil && s.Started.IsZero():
		s.Phase = runtime.PhaseCreated
		return s
	case p == nil:
		s.Phase, s.ExitCode, s.Exited = runtime.PhaseStopped, runtime.ExitLost, s.Started
		return s
	}
	switch p.GetStatus() {
	case tasktypes.Status_CREATED:
		s.Phase = runtime.PhaseCreated
	case tasktypes.Status_RUNNING, tasktypes.Status_PAUSED, tasktypes.Status_PAUSING:
		s.Phase, s.PID = runtime.PhaseRunning, int(p.GetPid())
	case tasktypes.Status_STOPPED:
		s.Phase, s.ExitCode, s.Exited = runtime.PhaseStopped, int(p.GetExitStatus()), p.GetExitedAt().AsTime()
	default:
		s.Phase = runtime.PhaseUnknown
	}
	return s
}

// labelsOf returns the labels of a new container.
func labelsOf(s runtime.Spec) (map[string]string, error) {
	log, err := json.Marshal(logger.Config{Dir: s.Log.Dir, MaxBytes: s.Log.MaxBytes, MaxFiles: s.Log.MaxFiles, BytesPerS: s.Log.BytesPerS})
	if err != nil {
		return nil, err
	}
	labels := map[string]string{labelSpec: s.Fingerprint(), labelLog: string(log)}
	for _, k := range slices.Sorted(maps.Keys(s.Labels)) {
		if len(labelPrefix)+len(k)+len(s.Labels[k]) > maxLabelBytes {
			return nil, fault.New(fault.Invalid, "container %s: label %q with its value is over %d bytes", s.ID, k, maxLabelBytes-len(labelPrefix))
		}
		labels[labelPrefix+k] = s.Labels[k]
	}
	return labels, nil
}

// engineError adds the class of package fault to an error of containerd. id may be "".
func engineError(ctx context.Context, doing, id string, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if fault.Class(err) != nil {
		return err
	}
	err = toNative(err)
	what := "containerd: " + doing
	if id != "" {
		what += " of container " + id
	}
	text := err.Error()
	switch {
	case errdefs.IsNotFound(err):
		return fault.New(fault.NotFound, "%s: %w", what, err)
	case errdefs.IsAlreadyExists(err):
		return fault.New(fault.Exists, "%s: %w", what, err)
	case errdefs.IsInvalidArgument(err):
		return fault.New(fault.Invalid, "%s: %w", what, err)
	case errdefs.IsUnavailable(err), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		strings.Contains(text, "ttrpc: closed"), strings.Contains(text, "shim is not running"):
		return fault.New(fault.Unavailable, "%s: %w", what, err)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
}

// toNative converts errors of the raw services to containerd's error classes.
// The client's methods have done so already; converting twice would lose them.
func toNative(err error) error {
	if _, ok := status.FromError(err); ok {
		return errgrpc.ToNative(err)
	}
	return err
}

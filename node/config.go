package node

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/store"
	"github.com/drover-run/drover/runtime"
)

// Config configures a node daemon. Zero fields take the defaults named beside
// them.
type Config struct {
	Data         string                                // the daemon's folder, absolute; its disk holds the attempts
	Coordinator  droverv1connect.NodeServiceClient     // required
	Driver       runtime.Driver                        // required
	Info         *droverv1.NodeInfo                    // identity and measurements of the node; required, see package measure
	Enforcer     Enforcer                              // nil: no limits are enforced
	files        FileSystems                           // for requests of the coordinator and helpers inside the daemon; nil: from FilesConfig
	FilesConfig  fsys.Config                           // reachable file systems; passed to helper processes
	Helper       []string                              // argv of the helper program: a path and its arguments; nil: helpers run inside the daemon
	Harness      string                                // path of the harness program; "" = this executable
	HarnessArgs  []string                              // arguments between the program and the spec's path; nil = "harness"
	Secrets      string                                // secret NAME of a tenant is <Secrets>/TENANT/NAME; "" = <Data>/secrets
	secretMount  string                                // folder in memory for the secrets of containers, 0700; "" = one below /run for Data
	AllowRoot    bool                                  // allow tasks with uid 0
	switchUser   bool                                  // with a driver without file systems of its own, run tasks as the tenant's uid instead of the daemon's
	Listener     net.Listener                          // for the node's HTTP server, only with TLS; nil = a free port of 127.0.0.1
	tls          *tls.Config                           // for the node's HTTP server; callers of the task API must present a certificate. nil = no port: a unix socket in Data
	Certificate  *pki.Member                           // the node's certificate and what it checks others by; gives tls and shuffleCA; nil = tls as given
	FetchCRL     func(context.Context) ([]byte, error) // the coordinator's revocation list, empty for none; nil = only that of Certificate's files
	OpenMetrics  bool                                  // serve /metrics to callers without a certificate
	shuffleCA    string                                // PEM of the CA of the other nodes' servers; "" = they do not use TLS
	NoSync       bool                                  // the state in Data need not survive a crash of the machine: no fsync
	Grace        time.Duration                         // between TERM and KILL; 0 = 10 s
	parallel     int                                   // concurrent container creations and removals, and as many dumps and restores; 0 = twice the cores
	blobLimit    int64                                 // bytes of cached files and images; 0 = 10 GiB
	imageLimit   int64                                 // bytes of unpacked images in the engine; 0 = 10 GiB
	imageAge     time.Duration                         // age after which unneeded images and old programs are removed; 0 = 24 h
	CollectEvery time.Duration                         // interval of removing unneeded images and programs; 0 = 10 min
	SampleEvery  time.Duration                         // interval of reading the usage and progress of a running task; 0 = 1 s
	SweepEvery   time.Duration                         // interval of removing what containers left on the machine; 0 = 1 min
	adoptLimit   time.Duration                         // how long a daemon that starts waits for the engine's list, before it registers; 0 = 5 s
	reuseIdle    time.Duration                         // age at which an unused container for several tasks is deleted; 0 = 10 s
	maxLogBytes  int64                                 // size at which a log file is rotated; 0 = 10 MiB
	maxLogFiles  int                                   // files kept per stream; 0 = 3
	KeepLogBytes int64                                 // bytes of logs kept of attempts that have left the node; 0 = 2 GiB, negative for none
	KeepLogAge   time.Duration                         // how long they are kept; 0 = 7 days
	Probe        bool                                  // at the start, find out with a test container which levels work; otherwise Info says so
	Log          *slog.Logger                          // nil = discard
	RecentLog    *diagnosis.Log                        // what Log logged, for operators to follow; nil = nothing
	Registry     *prometheus.Registry                  // nil = a new one
	Ready        func(address string)                  // called after the first registration; may be nil

	// Dial connects the daemon to other nodes, for tests; nil = the network. Helper processes do
	// not use it.
	Dial      func(ctx context.Context, network, address string) (net.Conn, error)
	SinceBoot func() time.Duration // for tests: monotonic time of the machine, across restarts of the daemon; nil = the machine's clocks
	Now       func() time.Time     // for tests with SinceBoot: wall-clock time of the machine; nil = time.Now
	BootID    string               // for tests: of this boot of the machine; "" = the kernel's
	machineID string               // for tests: the machine's id; "" = that in /etc/machine-id
	StoreDisk store.Disk           // for simulations of the disk of the daemon's own state
	// KernelCounts is for tests: a folder with the kernel's counts of memory, processors and disks,
	// whose missing files are counts that are not known; "" = /proc
	KernelCounts string
}

// defaults fills in zero fields and validates the rest.
func (c Config) defaults() (Config, error) {
	missing := func(field string) (Config, error) {
		return c, fault.New(fault.Invalid, "node: Config.%s is not set", field)
	}
	switch {
	case !filepath.IsAbs(c.Data):
		return c, fault.New(fault.Invalid, "node: data folder %q is not an absolute path", c.Data)
	case c.Coordinator == nil:
		return missing("Coordinator")
	case c.Driver == nil:
		return missing("Driver")
	case c.Info.GetName() == "":
		return missing("Info.Name")
	}
	c.Data = filepath.Clean(c.Data)
	if c.Harness == "" {
		exe, err := os.Executable()
		if err != nil {
			return c, err
		}
		c.Harness = exe
	}
	if c.HarnessArgs == nil {
		c.HarnessArgs = []string{"harness"}
	}
	if c.Certificate != nil {
		c.tls = c.Certificate.ServerConfig() // which kind a caller must be, each path says
		c.shuffleCA = string(c.Certificate.CA())
	}
	c.Secrets = orDefault(c.Secrets, filepath.Join(c.Data, "secrets"))
	c.secretMount = orDefault(c.secretMount, SecretFolder(c.Data))
	c.Grace = orDefault(c.Grace, 10*time.Second)
	c.parallel = orDefault(c.parallel, max(2, 2*goruntime.NumCPU()))
	c.blobLimit = orDefault(c.blobLimit, int64(10)<<30)
	c.imageLimit = orDefault(c.imageLimit, int64(10)<<30)
	c.imageAge = orDefault(c.imageAge, 24*time.Hour)
	c.CollectEvery = orDefault(c.CollectEvery, 10*time.Minute)
	c.SampleEvery = orDefault(c.SampleEvery, time.Second)
	c.SweepEvery = orDefault(c.SweepEvery, time.Minute)
	c.adoptLimit = orDefault(c.adoptLimit, 5*time.Second)
	c.reuseIdle = orDefault(c.reuseIdle, 10*time.Second)
	c.maxLogBytes = orDefault(c.maxLogBytes, int64(10)<<20)
	c.maxLogFiles = orDefault(c.maxLogFiles, 3)
	c.KeepLogBytes = orDefault(c.KeepLogBytes, int64(2)<<30)
	c.KeepLogAge = orDefault(c.KeepLogAge, 7*24*time.Hour)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c, nil
}

func orDefault[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// usesHostPaths reports whether tasks see the host's paths.
func (c *Config) usesHostPaths() bool {
	h, ok := c.Driver.(runtime.HostPaths)
	return ok && h.HostPaths()
}

// explainNoImage adds to the error of a command that cannot run that its job has no image, so that
// the container has only the task's own files.
func (c *Config) explainNoImage(spec *droverv1.TaskSpec, err error) error {
	if !errors.Is(err, fault.Invalid) || spec.GetKind() != kindGroup || spec.GetImage().GetKind() != "" || c.usesHostPaths() {
		return err
	}
	return fault.New(fault.Invalid, "the job has no image, so its containers have no programs: %w", err)
}

// freezer returns what freezes an attempt's processes: its cgroup if there is
// one, otherwise the driver; nil if neither can.
func (c *Config) freezer() runtime.Freezer {
	if f, ok := c.Enforcer.(runtime.Freezer); ok {
		return f
	}
	if f, ok := c.Driver.(runtime.Freezer); ok && c.Enforcer == nil {
		return f
	}
	return nil
}

// taskUID returns the uid that the task runs as.
func (c *Config) taskUID(spec *droverv1.TaskSpec) (uint32, error) {
	if os.Geteuid() != 0 || c.usesHostPaths() && !c.switchUser {
		return uint32(os.Geteuid()), nil
	}
	if spec.GetUid() == 0 && !c.AllowRoot {
		return 0, fault.New(fault.Denied, "tenant %q has no uid, and this node runs nothing as root: give the tenant a uid, or allow root tasks on this node", spec.GetTenant())
	}
	return spec.GetUid(), nil
}

// limitsOf returns the limits of a task that runs.
func (c *Config) limitsOf(spec *droverv1.TaskSpec) Limits {
	r := spec.GetDemand()
	l := Limits{CPU: r.GetCpu(), Memory: r.GetMemory() + c.harnessMemory(spec), io: r.GetIo(), Pids: maxPids}
	if i := spec.GetImage(); i.GetKind() == string(jobspec.ImageRootfs) {
		l.rootfs = i.GetSource()
	}
	return l
}

// harnessMemory returns the memory that a task has on top of its demand, in bytes. It is what the
// scheduler counted, so that all limits together fit on the node. If the scheduler counted none, it
// is what this node measured.
func (c *Config) harnessMemory(spec *droverv1.TaskSpec) int64 {
	return cmp.Or(spec.GetHarnessMemory(), c.Info.GetTaskOverheadMemory())
}

// filesLimit returns how many files and folders an attempt may have: its share of the disk's inodes
// is its share of the disk's space.
func (c *Config) filesLimit(spec *droverv1.TaskSpec) int64 {
	var st unix.Statfs_t
	if err := unix.Statfs(c.Data, &st); err != nil {
		return maxFiles
	}
	return shareOfInodes(spec.GetDisk(), int64(st.Blocks)*st.Bsize, int64(st.Files))
}

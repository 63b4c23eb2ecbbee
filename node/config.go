package node

import (
	"crypto/tls"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/runtime"
)

// Config is all that a node daemon is given. Zero fields take the defaults
// named beside them.
type Config struct {
	Data         string                            // folder of the daemon, absolute; its disk holds the attempts
	Coordinator  droverv1connect.NodeServiceClient // required
	Driver       runtime.Driver                    // required
	Info         *droverv1.NodeInfo                // who the node is and what it measured; required, see Measure
	Enforcer     Enforcer                          // nil: no limits are enforced
	Files        FileSystems                       // for orders, and for helpers inside the daemon; nil: from FilesConfig
	FilesConfig  fsys.Config                       // what the node reaches; helper processes get it
	Helper       []string                          // argv of the helper program: a path and its arguments; nil: helpers run inside the daemon
	Harness      string                            // path of the harness program; "" = this executable
	HarnessArgs  []string                          // between the program and the spec's path; nil = "harness"
	Secrets      string                            // folder with one file for each secret; "" = <Data>/secrets
	AllowRoot    bool                              // the operator lets tasks run as uid 0
	SwitchUser   bool                              // a driver without file systems of its own runs tasks as their tenant's uid, not as the daemon's
	Listener     net.Listener                      // of the node's own server; nil = a free port of 127.0.0.1
	TLS          *tls.Config                       // of that server; nil = plain. Callers of the task API must show a certificate
	ShuffleCA    string                            // PEM of the authority of the other nodes' servers; "" = they are plain
	Insecure     bool                              // plain also off the loopback interface
	Grace        time.Duration                     // between TERM and KILL; 0 = 10 s
	Parallel     int                               // container creations and removals at once; 0 = twice the cores
	BlobLimit    int64                             // bytes of cached files and images; 0 = 10 GiB
	ImageLimit   int64                             // bytes of unpacked images in the engine; 0 = 10 GiB
	ImageAge     time.Duration                     // images and old programs that nothing needs go after this long; 0 = 24 h
	CollectEvery time.Duration                     // between two looks for what nothing needs; 0 = 10 min
	MaxLogBytes  int64                             // size at which a log file is rotated; 0 = 10 MiB
	MaxLogFiles  int                               // files kept of each stream; 0 = 3
	Probe        bool                              // find out at the start which levels work, with a container of the harness; else Info says so
	Log          *slog.Logger                      // nil = discard
	Registry     *prometheus.Registry              // nil = a new one
	Ready        func(address string)              // called once the node is registered; may be nil
}

// defaults fills zero fields and checks the rest.
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
	c.Secrets = or(c.Secrets, filepath.Join(c.Data, "secrets"))
	c.Grace = or(c.Grace, 10*time.Second)
	c.Parallel = or(c.Parallel, max(2, 2*goruntime.NumCPU()))
	c.BlobLimit = or(c.BlobLimit, int64(10)<<30)
	c.ImageLimit = or(c.ImageLimit, int64(10)<<30)
	c.ImageAge = or(c.ImageAge, 24*time.Hour)
	c.CollectEvery = or(c.CollectEvery, 10*time.Minute)
	c.MaxLogBytes = or(c.MaxLogBytes, int64(10)<<20)
	c.MaxLogFiles = or(c.MaxLogFiles, 3)
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c, nil
}

func or[T comparable](v, def T) T {
	var zero T
	if v == zero {
		return def
	}
	return v
}

// hostPaths tells whether tasks see the host's paths.
func (c *Config) hostPaths() bool {
	h, ok := c.Driver.(runtime.HostPaths)
	return ok && h.HostPaths()
}

package coordinator

import (
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// Config says how a coordinator runs. Dir and at least one of Local and
// Remote are needed; zero values of the rest take the defaults written beside
// them.
type Config struct {
	// Dir holds the log, the store of files and the history, 0700.
	Dir string
	// ID names this server in the cluster. Default "c1".
	ID string
	// Local is the listener of local operators and of nodes on this machine: a
	// unix socket that only its owner can open (see ListenLocal). Whoever
	// connects has every right.
	Local net.Listener
	// Remote is the listener for other machines; TLS must be set with it and
	// must demand client certificates (see internal/pki).
	Remote net.Listener
	TLS    *tls.Config
	// NodeTLS is shown to nodes when logs and exec are fetched from them; nil
	// with a Local-only coordinator.
	NodeTLS *tls.Config
	// Operators are certificate names that may do everything, besides whoever
	// is on the local socket.
	Operators []string

	// Raft of a cluster of several servers; empty for one.
	Peers        []replica.Peer
	RaftListener net.Listener
	RaftTLS      *tls.Config

	Scheduler       string // default policy, until an operator sets one; "fifo"
	SchedulerParams map[string]string
	CycleInterval   time.Duration // shortest time between two cycles; 10 ms, negative for none
	Lease           time.Duration // a node silent for that long is lost; 15 s
	ReportInterval  time.Duration // of a node's sign of life; Lease/5
	FrozenShare     float64       // of a node's memory that frozen tasks may hold before they are brought to the next level; 0.5
	LocateLimit     time.Duration // for the blocks of an input at submission; 2 min
	KeepLogs        time.Duration // nodes keep the logs of an ended job; 15 min, negative for not at all
	RetainJobs      int           // ended jobs that stay in listings; 200
	RetainFor       time.Duration // and how long at most; 24 h
	BlobQuota       int64         // bytes of all uploads; 20 GiB
	BlobMinAge      time.Duration // unused uploads stay so long at least; 1 h
	// AllowImages lists prefixes of registry names and rootfs folders that
	// jobs may use; none by default. "rootfs:/srv/images/", "registry:docker.io/library/".
	AllowImages []string
	// MaxRequests bounds the calls under way at once; 1024.
	MaxRequests int
	// SubmitRate bounds submissions a second of one identity, with bursts of
	// ten times that; 200.
	SubmitRate float64

	Logger  *slog.Logger
	Metrics *prometheus.Registry // own registry by default
	Now     func() time.Time
	// Ready is called once, when this server leads for the first time and its
	// API answers.
	Ready func()

	// For tests.
	NoSync          bool
	SnapshotEntries uint64
	Crash           func(replica.Point, uint64) bool
}

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		return fault.New(fault.Invalid, "the coordinator needs a folder for its state")
	}
	if c.Local == nil && c.Remote == nil {
		return fault.New(fault.Invalid, "the coordinator needs a listener")
	}
	if c.Remote != nil && (c.TLS == nil || c.TLS.ClientAuth != tls.RequireAndVerifyClientCert) {
		return fault.New(fault.Invalid, "off this machine the coordinator listens only with mutual TLS: give a certificate, its key and the CA (`drover tls`)")
	}
	def(&c.ID, "c1")
	def(&c.Scheduler, "fifo")
	def(&c.CycleInterval, 10*time.Millisecond)
	def(&c.Lease, 15*time.Second)
	def(&c.ReportInterval, c.Lease/5)
	def(&c.FrozenShare, 0.5)
	def(&c.LocateLimit, 2*time.Minute)
	def(&c.KeepLogs, 15*time.Minute)
	def(&c.RetainJobs, 200)
	def(&c.RetainFor, 24*time.Hour)
	def(&c.BlobQuota, 20<<30)
	def(&c.BlobMinAge, time.Hour)
	def(&c.MaxRequests, 1024)
	def(&c.SubmitRate, 200)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	c.KeepLogs = max(c.KeepLogs, 0)
	return nil
}

func def[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// maxUpload bounds one file or image, in bytes.
const maxUpload = jobspec.MaxSubmission

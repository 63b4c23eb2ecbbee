package coordinator

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/idtoken"
	"github.com/drover-run/drover/coordinator/past"
	"github.com/drover-run/drover/coordinator/peer"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/diagnosis"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

// Config configures a coordinator. Dir and at least one of Local and Remote are
// required; zero values of the rest take the defaults given here.
type Config struct {
	// Dir holds the log, the blob store and the history; mode 0700.
	Dir string
	// ID names this server in the cluster; default "c1".
	ID string
	// Local listens for local operators and for nodes on this machine: a Unix
	// socket that only its owner can open (see ListenLocal). Its clients have
	// every right.
	Local net.Listener
	// Remote listens for other machines. It requires TLS, with client
	// certificates verified (see internal/pki).
	Remote net.Listener
	tls    *tls.Config
	// Certificate is this coordinator's certificate with what it checks others
	// by. It gives tls and nodeTLS unless they are set, follows its files, and
	// applies the revocation list.
	Certificate *pki.Member
	// CertificatesEvery is the time between two looks at its files; 10 s.
	CertificatesEvery time.Duration
	// nodeTLS authenticates the coordinator to nodes, for logs and exec; nil
	// with a Local-only coordinator.
	nodeTLS *tls.Config
	// Operators are certificate names with every right.
	Operators []string

	// PeerListener listens for the other coordinators of a cluster, and needs
	// Certificate; nil for a coordinator that stays alone.
	PeerListener net.Listener
	PeerAddress  string // host:port under which they reach it; its own address by default
	// APIAddress is the URL under which nodes and users reach Remote; followers
	// send them there while this server leads.
	APIAddress string
	// Servers, Bootstrap and Join matter where Dir has no log: see enter.
	Servers   []replica.Peer // of the cluster, this one among them
	Bootstrap bool           // begin a new cluster of Servers
	Join      []string       // peer addresses of a cluster that is to add this server
	// Election is how long a follower waits for its leader before it stands for
	// election; 1 s. All servers have the same.
	Election time.Duration

	Scheduler       string // default policy, until an operator sets one; "fifo"
	SchedulerParams map[string]string
	cycleInterval   time.Duration // shortest time between two cycles; 10 ms, negative for none
	Lease           time.Duration // a node silent for that long is lost; 15 s
	ReportInterval  time.Duration // between two reports of a node; Lease/5
	FrozenShare     float64       // of a node's memory that frozen tasks may occupy before they are escalated to the next level; 0.5
	locateLimit     time.Duration // to locate the blocks of an input at submission; 2 min
	KeepLogs        time.Duration // how long nodes keep the logs of an ended job; 15 min, negative for not at all
	retainJobs      int           // ended jobs kept in listings; 200
	RetainFor       time.Duration // at most that long; 24 h
	unwrittenJobs   int           // lines of ended jobs that wait for the history in JSON to be written; 4096
	HistoryBytes    int64         // of the history of ended jobs, which drops the oldest beyond; 2 GiB, negative for no limit
	HistoryAge      time.Duration // how long ended jobs stay in it; 180 days, negative for ever
	SampleEvery     time.Duration // between two samples that it keeps; a minute
	BlobQuota       int64         // total bytes of uploads; 20 GiB
	blobMinAge      time.Duration // unused uploads are kept at least that long; 1 h
	// DiskReserve is how many bytes of the disk of Dir stay free for the log: with
	// less, no job and no file is accepted. 256 MiB or 5% of the disk, whichever
	// is less; negative for none.
	DiskReserve int64
	// AuditLog is the file of the audit log; audit.jsonl in Dir by default, none
	// for "none".
	AuditLog string
	// SecretKeys is the file of the keys of secrets (package secrets); secrets.key in
	// Dir by default. Without it no secret can be put, and tasks that need one wait.
	SecretKeys string
	// AllowImages lists prefixes of registry names and rootfs folders that jobs
	// may use, such as "rootfs:/srv/images/" or "registry:docker.io/library/";
	// none by default.
	AllowImages []string
	// SchedulerChanges delivers another default policy while the coordinator runs;
	// nil for none. A policy that an operator set stays in force.
	SchedulerChanges <-chan SchedulerChoice
	// limits bounds what callers occupy at once.
	limits callLimits
	// SubmitRate bounds the submissions per second of one identity, with bursts
	// of ten times that; 200.
	SubmitRate float64

	// TracesEndpoint is the OTLP/HTTP endpoint to which traces of jobs are sent, such as
	// http://collector:4318; "" for no traces.
	TracesEndpoint string

	Logger *slog.Logger
	// RecentLog has the latest records of Logger, for operators to follow; nil for none.
	RecentLog *diagnosis.Log
	Metrics   *prometheus.Registry // a new registry by default
	Now       func() time.Time
	// Ready is called once, when this server leads for the first time and its
	// API answers, or when it follows another one.
	Ready func()

	// Page makes the handler of the web page, which has every path that is no
	// call of the API; nil for none.
	Page func(PageConfig) http.Handler

	// SignIn makes the handler of the sign-in page for unauthenticated readers on the remote port;
	// nil refuses them. check returns an error that says why a token of a caller at an address is
	// refused. The handler sets the cookie TokenCookie.
	SignIn      func(check func(ctx context.Context, token, address string) error) http.Handler
	TokenCookie string
	// IDTokens verifies ID tokens of an OpenID provider on the remote port; nil accepts none.
	IDTokens *idtoken.Verifier

	// diskSpace returns the free and all bytes of the disk of Dir; statfs by
	// default.
	diskSpace func() (free, total int64, err error)

	// For tests.
	NoSync          bool
	SnapshotEntries uint64
	Crash           func(replica.Point, uint64) bool
	LogFault        func(written bool) error
	Writing         func(path string, synced bool)
	PeerDial        peer.Dialer
	RaftNetwork     raft.StreamLayer // of raft alone, instead of PeerListener with TLS
}

// noAuditLog as Config.AuditLog turns the audit log off.
const noAuditLog = "none"

func (c *Config) setDefaults() error {
	if c.Dir == "" {
		return fault.New(fault.Invalid, "the coordinator needs a folder for its state: set -data")
	}
	if c.Local == nil && c.Remote == nil {
		return fault.New(fault.Invalid, "the coordinator needs a listener: set -socket or -listen")
	}
	if c.Certificate != nil && c.tls == nil {
		c.tls = c.Certificate.ServerConfig() // of which kind a caller may be, each call says
	}
	if c.Certificate != nil && c.nodeTLS == nil {
		c.nodeTLS = c.Certificate.ClientConfig(pki.KindNode)
	}
	for _, o := range c.Operators {
		if !strings.HasPrefix(o, "user/") || o == "user/" {
			return fault.New(fault.Invalid, "operator %q: write the name in the certificate, such as user/%s", o, path.Base("/"+o))
		}
	}
	if c.Remote != nil && (c.tls == nil || c.tls.ClientAuth != tls.RequireAndVerifyClientCert) {
		return fault.New(fault.Invalid, "off this machine the coordinator listens only with mutual TLS: give a certificate, its key and the CA (`drover tls`)")
	}
	if err := c.checkServers(); err != nil {
		return err
	}
	setDefault(&c.ID, "c1")
	setDefault(&c.Scheduler, "fifo")
	setDefault(&c.cycleInterval, 10*time.Millisecond)
	setDefault(&c.Lease, 15*time.Second)
	setDefault(&c.ReportInterval, c.Lease/5)
	setDefault(&c.FrozenShare, 0.5)
	setDefault(&c.locateLimit, 2*time.Minute)
	setDefault(&c.KeepLogs, 15*time.Minute)
	setDefault(&c.retainJobs, 200)
	setDefault(&c.RetainFor, 24*time.Hour)
	setDefault(&c.unwrittenJobs, 4096)
	setDefault(&c.HistoryBytes, 2<<30)
	setDefault(&c.HistoryAge, 180*24*time.Hour)
	setDefault(&c.SampleEvery, past.SampleEvery)
	setDefault(&c.BlobQuota, 20<<30)
	setDefault(&c.blobMinAge, time.Hour)
	setDefault(&c.CertificatesEvery, 10*time.Second)
	c.limits.setDefaults()
	setDefault(&c.SubmitRate, 200)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = prometheus.NewRegistry()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.diskSpace == nil {
		c.diskSpace = func() (int64, int64, error) { return diskSpace(c.Dir) }
	}
	c.KeepLogs = max(c.KeepLogs, 0)
	return nil
}

// checkServers checks what concerns a cluster of several coordinators.
func (c *Config) checkServers() error {
	if c.PeerListener == nil {
		if len(c.Servers) > 0 || len(c.Join) > 0 || c.Bootstrap {
			return fault.New(fault.Invalid, "a coordinator of a cluster needs a port for the others: set -peer-listen")
		}
		return nil
	}
	if c.Certificate == nil {
		return fault.New(fault.Invalid, "coordinators connect to each other only with mutual TLS: give a certificate, its key and the CA (`drover tls`)")
	}
	setDefault(&c.PeerAddress, c.PeerListener.Addr().String())
	return CheckServers(c.ID, c.PeerAddress, c.Servers, c.Bootstrap)
}

// CheckServers checks the list of a new cluster's coordinators, and this one's id and address for
// the others, which must be those in the list. Both are as the daemon has them when it starts.
func CheckServers(id, address string, servers []replica.Peer, bootstrap bool) error {
	if host, _, err := net.SplitHostPort(address); err != nil || host == "" || net.ParseIP(host).IsUnspecified() {
		return fault.New(fault.Invalid, "the other coordinators cannot reach %q: set -peer-address to a host:port of this machine", address)
	}
	if bootstrap && len(servers) == 0 {
		return fault.New(fault.Invalid, "-bootstrap begins a cluster of the servers in -servers, which is empty; a coordinator without it begins a cluster of its own")
	}
	ids, self := map[string]bool{}, false
	for _, s := range servers {
		if ids[s.ID] {
			return fault.New(fault.Invalid, "two servers are called %q in -servers: give each a name of its own", s.ID)
		}
		ids[s.ID] = true
		if s.ID == id {
			self = true
			if s.Address != address {
				return fault.New(fault.Invalid, "-servers has %s=%s, and this server's own -peer-address is %s: make the two equal", s.ID, s.Address, address)
			}
		}
	}
	if len(servers) > 0 && !self {
		return fault.New(fault.Invalid, "server %q is not in -servers: set -id to its name there", id)
	}
	return nil
}

func setDefault[T comparable](v *T, otherwise T) {
	var zero T
	if *v == zero {
		*v = otherwise
	}
}

// maxUpload bounds one file or image, in bytes.
const maxUpload = jobspec.MaxUploadBytes

// PageConfig is what a coordinator gives to the web page that it serves. The
// clients make their calls with the identity in the context of the reader's
// request, so that the page can do what its reader can.
type PageConfig struct {
	API     droverv1connect.ClientServiceClient
	History droverv1connect.HistoryServiceClient
	// Reader names that identity.
	Reader func(context.Context) string
	// Rights names what that identity may read: it is the same for all operators.
	Rights func(context.Context) string
	// Elsewhere returns the URL of the coordinator that leads, if this one does
	// not and knows which one does; "" otherwise.
	Elsewhere func(context.Context) string
}

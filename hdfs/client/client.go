package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/rpc"
)

// Auth authenticates the client to the NameNode; the extension point for Kerberos.
type Auth = rpc.Auth

// simpleAuth states a user name without proof.
type simpleAuth = rpc.SimpleAuth

// Options configures a Client. NameNodes and User (or Auth) are required; zero
// values of the other fields are usable.
type Options struct {
	// NameNodes are the addresses (host:port) of the NameNodes of one name service; any may be
	// active.
	NameNodes []string
	// User is the HDFS user of all requests.
	User string
	// auth authenticates the user; nil: simpleAuth(User).
	auth Auth

	// LocalAddresses are the IP addresses and host names of the DataNodes on this
	// machine; their replicas are read first.
	LocalAddresses []string
	// LocalRack is this machine's rack; its replicas are read second.
	LocalRack string
	// DomainSocket is the path of the domain socket of the DataNodes on LocalAddresses
	// (dfs.domain.socket.path), through which they pass the open files of their blocks; "_PORT" in it
	// stands for the port of the DataNode. "": blocks are read over TCP.
	DomainSocket string
	// verifySocket checks who can replace a domain socket; nil: verifySocket.
	verifySocket func(path string) (string, error)

	// dial opens connections to NameNodes and DataNodes; nil: net.Dialer.
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	// dialTimeout bounds opening a connection; 0 means 5 s.
	dialTimeout time.Duration
	// CallTimeout bounds one attempt of a NameNode request; 0: 20 s.
	CallTimeout time.Duration
	// dataTimeout bounds each wait for bytes of a read; 0: 30 s. A pipeline waits longer.
	dataTimeout time.Duration
	// WaitLimit bounds the retries of a request while no NameNode can answer; 0:
	// 60 s, negative: fail at once.
	WaitLimit time.Duration
	// MissingWait bounds the retries of a reader for a block that no DataNode can
	// serve; 0: 10 s, negative: fail at once.
	MissingWait time.Duration
	// writeWait bounds how long a writer waits while the NameNode has too few DataNodes
	// for a block, and how long Commit waits for their reports; 0: 30 s.
	writeWait time.Duration
	// jitter returns numbers in [0, 1) that spread the pauses of many clients; nil:
	// no jitter.
	jitter func() float64

	// blocksPerCall bounds one request for locations, in blocks of the file's block
	// size; 0: 1,000.
	blocksPerCall int
	// CacheBlocks bounds the cached block locations of all files; 0: 100,000 (about
	// 50 MB), negative: no cache.
	CacheBlocks int
	// cacheAge is how long cached locations are used; 0: 1 minute.
	cacheAge time.Duration
	// maxFrame bounds a response of the NameNode in bytes; 0: 64 MiB.
	maxFrame int

	Events Events
}

// Events are optional callbacks. They are called from the goroutine concerned and
// must return soon.
type Events struct {
	// Waiting: a request waits because no NameNode can answer.
	Waiting func(hdfs.WaitNotice)
	// ReplicaFailed: a DataNode could not serve a block, or was dropped from a
	// pipeline; another one is tried.
	ReplicaFailed func(file string, blockID uint64, address string, err error)
	// Read: bytes of a file were read from a DataNode; once for each block range.
	Read func(ReadEvent)
	// ShortCircuitFailed: blocks of this machine are read over TCP although Options.DomainSocket is
	// set; called at most once.
	ShortCircuitFailed func(error)
}

// ReadEvent describes bytes of one block that were read from one replica.
type ReadEvent struct {
	Replica      hdfs.Replica
	Local        bool // the replica is on this machine
	ShortCircuit bool // from its files, not over TCP
	Bytes        int64
}

const (
	maxListEntries = 4_000_000 // entries of one directory; HDFS allows 6.4 million
	filePerm       = 0o644
	dirPerm        = 0o755
	defaultsTTL    = time.Hour
	renewInterval  = 20 * time.Second // a third of HDFS's soft limit for leases
	abortTimeout   = 15 * time.Second
	failedNodeTTL  = 30 * time.Second
)

func (o *Options) setDefaults() {
	if o.auth == nil {
		o.auth = simpleAuth(o.User)
	}
	if o.dial == nil {
		o.dial = (&net.Dialer{}).DialContext
	}
	setDefault(&o.dialTimeout, 5*time.Second)
	setDefault(&o.dataTimeout, 30*time.Second)
	setDefault(&o.MissingWait, 10*time.Second)
	setDefault(&o.writeWait, 30*time.Second)
	setDefault(&o.blocksPerCall, 1000)
	setDefault(&o.CacheBlocks, 100_000)
	setDefault(&o.cacheAge, time.Minute)
	if o.Events.Waiting == nil {
		o.Events.Waiting = func(hdfs.WaitNotice) {}
	}
	if o.Events.ReplicaFailed == nil {
		o.Events.ReplicaFailed = func(string, uint64, string, error) {}
	}
	if o.Events.Read == nil {
		o.Events.Read = func(ReadEvent) {}
	}
	if o.Events.ShortCircuitFailed == nil {
		o.Events.ShortCircuitFailed = func(error) {}
	}
	if o.verifySocket == nil {
		o.verifySocket = verifySocket
	}
}

func setDefault[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Client is an hdfs.FS for one user of one name service.
type Client struct {
	options     Options
	rpc         *rpc.Client
	caller      namenode.Caller // rpc; replaced in tests
	cache       *locationCache
	failedNodes *failedNodes
	local       *shortCircuit
	nameSeq     atomic.Uint64

	mu              sync.Mutex
	defaults        namenode.ServerDefaults
	defaultsFetched time.Time // zero: not requested yet
}

var (
	_ hdfs.FS        = (*Client)(nil)
	_ hdfs.Forgetter = (*Client)(nil)
)

// New validates the options. It does no I/O; the first request dials.
func New(options Options) (*Client, error) {
	options.setDefaults()
	if err := checkSocketOption(options.DomainSocket); err != nil {
		return nil, err
	}
	caller, err := rpc.NewClient(rpc.Options{
		Addresses: options.NameNodes, Auth: options.auth, Protocol: namenode.Protocol,
		Dial: options.dial, DialTimeout: options.dialTimeout, CallTimeout: options.CallTimeout,
		WaitLimit: options.WaitLimit, MaxFrame: options.maxFrame, Jitter: options.jitter,
		OnWait: options.Events.Waiting,
	})
	if err != nil {
		return nil, err
	}
	return &Client{options: options, rpc: caller, caller: caller,
		cache: newLocationCache(options.CacheBlocks, options.cacheAge), failedNodes: newFailedNodes(),
		local: &shortCircuit{path: options.DomainSocket, verify: options.verifySocket, failed: options.Events.ShortCircuitFailed}}, nil
}

// Close closes the connection to the NameNode. Open readers continue until they
// need the NameNode; open writers fail.
func (c *Client) Close() error { return c.rpc.Close() }

// pathError adds operation and path to an error, unless the error names the path.
func pathError(operation, name string, err error) error {
	if missing := (*hdfs.BlockMissingError)(nil); errors.As(err, &missing) {
		return fmt.Errorf("hdfs: %s: %w", operation, err) // the error names the file itself
	}
	return fmt.Errorf("hdfs: %s %s: %w", operation, name, err)
}

// cleanPath validates a path passed by a caller.
func cleanPath(operation, name string) (string, error) {
	p, err := hdfs.CleanPath(name)
	if err != nil {
		return "", fmt.Errorf("hdfs: %s: %w", operation, err)
	}
	return p, nil
}

// Stat implements hdfs.Source.
func (c *Client) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	name, err := cleanPath("stat", name)
	if err != nil {
		return hdfs.Info{}, err
	}
	status, err := c.status(ctx, name)
	if err != nil {
		return hdfs.Info{}, pathError("stat", name, err)
	}
	return status.Info, nil
}

func (c *Client) status(ctx context.Context, name string) (namenode.FileStatus, error) {
	status, err := namenode.GetFileInfo(ctx, c.caller, name)
	if err == nil && status.Symlink {
		err = fmt.Errorf("%w: symbolic link", hdfs.ErrUnsupported)
	}
	status.Info.Path = name
	return status, err
}

// List implements hdfs.Source. Cost: one request for each 1,000 entries (or the
// NameNode's batch size). Symbolic links are omitted.
func (c *Client) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	name, err := cleanPath("list", name)
	if err != nil {
		return nil, err
	}
	infos, received := []hdfs.Info{}, 0
	for after := ""; ; {
		entries, remaining, err := namenode.GetListing(ctx, c.caller, name, after)
		if err != nil {
			return nil, pathError("list", name, err)
		}
		received += len(entries)
		for _, entry := range entries {
			if entry.Name == "" {
				return nil, pathError("list", name, hdfs.ErrNotDirectory)
			}
			entry.Info.Path = path.Join(name, entry.Name)
			if !entry.Symlink {
				infos = append(infos, entry.Info)
			}
		}
		if remaining == 0 || len(entries) == 0 {
			slices.SortFunc(infos, func(a, b hdfs.Info) int { return strings.Compare(a.Path, b.Path) })
			return infos, nil
		}
		if received > maxListEntries {
			return nil, pathError("list", name, fmt.Errorf("%w: more than %d entries", hdfs.ErrInvalid, maxListEntries))
		}
		next := entries[len(entries)-1].Name
		if next == after { // the order of names is the NameNode's own, so only equality shows that the listing does not advance
			return nil, pathError("list", name, fmt.Errorf("%w: listing does not advance past %q", hdfs.ErrProtocol, after))
		}
		after = next
	}
}

// Mkdir implements hdfs.Sink.
func (c *Client) Mkdir(ctx context.Context, name string) error {
	name, err := cleanPath("mkdir", name)
	if err != nil {
		return err
	}
	if err := namenode.Mkdirs(ctx, c.caller, name, dirPerm); err != nil {
		return pathError("mkdir", name, err)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (c *Client) Rename(ctx context.Context, from, to string) error {
	from, err := cleanPath("rename", from)
	if err != nil {
		return err
	}
	to, err = cleanPath("rename", to)
	if err != nil {
		return err
	}
	err = namenode.Rename(ctx, c.caller, from, to)
	if err == nil {
		c.cache.dropPath(from)
		return nil
	}
	err = c.classifyRename(ctx, from, to, err)
	return pathError("rename", from+" to "+to, err)
}

// classifyRename adds an error class to refusals of rename2 that arrive as plain
// IOException: a file onto a directory, a directory onto a file, a directory into
// itself.
func (c *Client) classifyRename(ctx context.Context, from, to string, err error) error {
	if remote := (*rpc.RemoteError)(nil); !errors.As(err, &remote) || remote.Class != "java.io.IOException" {
		return err
	}
	if from == "/" || from != to && hdfs.IsWithin(to, from) {
		return errors.Join(hdfs.ErrInvalid, err)
	}
	if _, statErr := c.status(ctx, to); statErr == nil {
		return errors.Join(hdfs.ErrExist, err)
	}
	return err
}

// Delete implements hdfs.Sink.
func (c *Client) Delete(ctx context.Context, name string) error {
	name, err := cleanPath("delete", name)
	if err != nil {
		return err
	}
	if name == "/" {
		return pathError("delete", name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	if _, err := namenode.Delete(ctx, c.caller, name); err != nil {
		return pathError("delete", name, err)
	}
	c.cache.dropPath(name)
	return nil
}

// serverDefaults returns the NameNode's defaults for new files, cached for an hour.
func (c *Client) serverDefaults(ctx context.Context) (namenode.ServerDefaults, error) {
	c.mu.Lock()
	defaults, at := c.defaults, c.defaultsFetched
	c.mu.Unlock()
	if !at.IsZero() && time.Since(at) < defaultsTTL {
		return defaults, nil
	}
	defaults, err := namenode.GetServerDefaults(ctx, c.caller)
	if err != nil {
		return defaults, err
	}
	c.mu.Lock()
	c.defaults, c.defaultsFetched = defaults, time.Now()
	c.mu.Unlock()
	return defaults, nil
}

// plainDefaults returns the NameNode's defaults. It returns an error if the DataNodes demand
// encrypted transfer, which this client cannot do: they would close each connection without a
// reason.
func (c *Client) plainDefaults(ctx context.Context) (namenode.ServerDefaults, error) {
	defaults, err := c.serverDefaults(ctx)
	if err == nil && defaults.Encrypted {
		err = fmt.Errorf("%w: the cluster demands encrypted data transfer (dfs.encrypt.data.transfer)", hdfs.ErrUnsupported)
	}
	return defaults, err
}

// dataOptions returns the options of a transfer with DataNodes.
func (c *Client) dataOptions(clientName string) datanode.Options {
	return datanode.Options{Dial: c.options.dial, DialTimeout: c.options.dialTimeout,
		IOTimeout: c.options.dataTimeout, ClientName: clientName}
}

// newClientName returns a unique name for a reader or writer; it holds the lease.
func (c *Client) newClientName() string {
	return fmt.Sprintf("drover_%x_%d", c.rpc.ID(), c.nameSeq.Add(1))
}

// isLocal reports whether a replica is on this machine.
func (c *Client) isLocal(r hdfs.Replica) bool {
	for _, local := range c.options.LocalAddresses {
		if r.IP == local || strings.EqualFold(r.Host, local) {
			return true
		}
	}
	return false
}

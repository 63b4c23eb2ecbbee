package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/datanode"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/rpc"
)

// Auth proves to the NameNode who calls; the seam for Kerberos.
type Auth = rpc.Auth

// Simple is the Auth that states a user name and proves nothing.
type Simple = rpc.Simple

// Options of a Client. NameNodes and User (or Auth) must be set; the zero value
// of everything else is sensible.
type Options struct {
	// NameNodes of one name service, host:port; any may be the active one.
	NameNodes []string
	// User is the HDFS user that everything is done as.
	User string
	// Auth proves the user; nil means Simple(User).
	Auth Auth

	// LocalAddresses are the IP addresses and host names of DataNodes that are
	// on this machine; replicas there are read first.
	LocalAddresses []string
	// LocalRack is this machine's rack; replicas there are read second.
	LocalRack string

	// Dial opens connections to NameNodes and DataNodes; nil means net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// DialTimeout bounds opening a connection; 0 means 5 s.
	DialTimeout time.Duration
	// CallTimeout bounds one try of a NameNode request; 0 means 20 s.
	CallTimeout time.Duration
	// DataTimeout bounds each wait for a DataNode's bytes; 0 means 30 s.
	DataTimeout time.Duration
	// WaitLimit bounds how long a request is repeated while no NameNode can
	// answer; 0 means 60 s, negative means that it fails at once.
	WaitLimit time.Duration
	// MissingWait bounds how long a reader asks again for a block that no
	// DataNode can serve; 0 means 10 s, negative means that it fails at once.
	MissingWait time.Duration
	// WriteWait bounds how long a writer looks for DataNodes for one block, and
	// how long Commit waits for their reports; 0 means 30 s.
	WriteWait time.Duration
	// Jitter gives numbers in [0, 1) that spread the pauses of many clients;
	// nil means none.
	Jitter func() float64

	// BlocksPerCall bounds what one request for locations asks for, in blocks
	// of the file's block size; 0 means 1,000.
	BlocksPerCall int
	// CacheBlocks bounds the locations that are remembered, over all files; 0
	// means 100,000 (about 50 MB), negative none.
	CacheBlocks int
	// CacheAge is how long they are believed; 0 means 1 minute.
	CacheAge time.Duration
	// MaxFrame bounds an answer of the NameNode in bytes; 0 means 64 MiB.
	MaxFrame int

	Events Events
}

// Events are functions to call when something happens, each of which may be
// nil. They are called from the goroutine that it happened to and must return
// soon.
type Events struct {
	// Waiting: a request is held back because no NameNode can answer.
	Waiting func(hdfs.Waiting)
	// ReplicaFailed: a DataNode could not serve a block, or was dropped from a
	// pipeline; the next one is tried.
	ReplicaFailed func(file string, blockID uint64, address string, err error)
	// Read: bytes of a file came from a DataNode; once for each block range.
	Read func(file string, blockID uint64, replica hdfs.Replica, local bool, bytes int64)
}

const (
	maxList      = 4_000_000 // entries of one directory; HDFS allows 6.4 million
	filePerm     = 0o644
	dirPerm      = 0o755
	defaultsAge  = time.Hour
	renewEvery   = 20 * time.Second // a third of HDFS's soft limit for leases
	abortLimit   = 15 * time.Second
	failedMemory = 30 * time.Second
)

func (o *Options) setDefaults() {
	if o.Auth == nil {
		o.Auth = Simple(o.User)
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	setDefault(&o.DialTimeout, 5*time.Second)
	setDefault(&o.DataTimeout, 30*time.Second)
	setDefault(&o.MissingWait, 10*time.Second)
	setDefault(&o.WriteWait, 30*time.Second)
	setDefault(&o.BlocksPerCall, 1000)
	setDefault(&o.CacheBlocks, 100_000)
	setDefault(&o.CacheAge, time.Minute)
	if o.Events.Waiting == nil {
		o.Events.Waiting = func(hdfs.Waiting) {}
	}
	if o.Events.ReplicaFailed == nil {
		o.Events.ReplicaFailed = func(string, uint64, string, error) {}
	}
	if o.Events.Read == nil {
		o.Events.Read = func(string, uint64, hdfs.Replica, bool, int64) {}
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
	options Options
	rpc     *rpc.Client
	caller  namenode.Caller // rpc; tests put another one in its place
	cache   *locationCache
	failed  *failedNodes
	writers atomic.Uint64

	mu         sync.Mutex
	defaults   namenode.Defaults
	defaultsAt time.Time // zero: not asked yet
}

var _ hdfs.FS = (*Client)(nil)

// New checks the options. It does no I/O; the first request dials.
func New(options Options) (*Client, error) {
	options.setDefaults()
	caller, err := rpc.NewClient(rpc.Options{
		Addresses: options.NameNodes, Auth: options.Auth, Protocol: namenode.Protocol,
		Dial: options.Dial, DialTimeout: options.DialTimeout, CallTimeout: options.CallTimeout,
		WaitLimit: options.WaitLimit, MaxFrame: options.MaxFrame, Jitter: options.Jitter,
		Notify: options.Events.Waiting,
	})
	if err != nil {
		return nil, err
	}
	return &Client{options: options, rpc: caller, caller: caller,
		cache: newLocationCache(options.CacheBlocks, options.CacheAge), failed: newFailedNodes()}, nil
}

// Close ends the connection to the NameNode. Open readers go on until they need
// it; open writers fail.
func (c *Client) Close() error { return c.rpc.Close() }

// fail names the operation and the path of an error once.
func fail(operation, name string, err error) error {
	if missing := (*hdfs.BlockMissingError)(nil); errors.As(err, &missing) {
		return fmt.Errorf("hdfs: %s: %w", operation, err) // it names the file itself
	}
	return fmt.Errorf("hdfs: %s %s: %w", operation, name, err)
}

// clean checks a path of a caller.
func clean(operation, name string) (string, error) {
	p, err := hdfs.CleanPath(name)
	if err != nil {
		return "", fmt.Errorf("hdfs: %s: %w", operation, err)
	}
	return p, nil
}

// Stat implements hdfs.Source.
func (c *Client) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	name, err := clean("stat", name)
	if err != nil {
		return hdfs.Info{}, err
	}
	status, err := c.status(ctx, name)
	if err != nil {
		return hdfs.Info{}, fail("stat", name, err)
	}
	return status.Info, nil
}

func (c *Client) status(ctx context.Context, name string) (namenode.Status, error) {
	status, err := namenode.GetFileInfo(ctx, c.caller, name)
	if err == nil && status.Symlink {
		err = fmt.Errorf("%w: it is a symbolic link", hdfs.ErrUnsupported)
	}
	status.Info.Path = name
	return status, err
}

// List implements hdfs.Source. Cost: one request for each 1,000 entries (or
// what the NameNode sends at once). Symbolic links are left out.
func (c *Client) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	name, err := clean("list", name)
	if err != nil {
		return nil, err
	}
	infos := []hdfs.Info{}
	for after := ""; ; {
		entries, remaining, err := namenode.GetListing(ctx, c.caller, name, after)
		if err != nil {
			return nil, fail("list", name, err)
		}
		for _, entry := range entries {
			if entry.Name == "" {
				return nil, fail("list", name, hdfs.ErrNotDirectory)
			}
			entry.Info.Path = path.Join(name, entry.Name)
			if !entry.Symlink {
				infos = append(infos, entry.Info)
			}
		}
		if remaining == 0 || len(entries) == 0 {
			return infos, nil
		}
		if len(infos) > maxList {
			return nil, fail("list", name, fmt.Errorf("%w: more than %d entries", hdfs.ErrInvalid, maxList))
		}
		next := entries[len(entries)-1].Name
		if next <= after {
			return nil, fail("list", name, fmt.Errorf("%w: listing does not advance past %q", hdfs.ErrProtocol, after))
		}
		after = next
	}
}

// Mkdir implements hdfs.Sink.
func (c *Client) Mkdir(ctx context.Context, name string) error {
	name, err := clean("mkdir", name)
	if err != nil {
		return err
	}
	if err := namenode.Mkdirs(ctx, c.caller, name, dirPerm); err != nil {
		return fail("mkdir", name, err)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (c *Client) Rename(ctx context.Context, from, to string) error {
	from, err := clean("rename", from)
	if err != nil {
		return err
	}
	to, err = clean("rename", to)
	if err != nil {
		return err
	}
	err = namenode.Rename(ctx, c.caller, from, to)
	if err == nil {
		c.cache.drop(from)
		return nil
	}
	err = c.renameClass(ctx, from, to, err)
	return fail("rename", from+" to "+to, err)
}

// renameClass gives a class to the refusals of rename2 that come as plain
// IOException: a file onto a directory, a directory onto a file, a directory
// into itself.
func (c *Client) renameClass(ctx context.Context, from, to string, err error) error {
	if remote := (*rpc.RemoteError)(nil); !errors.As(err, &remote) || remote.Class != "java.io.IOException" {
		return err
	}
	if from == "/" || from != to && hdfs.Within(to, from) {
		return errors.Join(hdfs.ErrInvalid, err)
	}
	if _, statErr := c.status(ctx, to); statErr == nil {
		return errors.Join(hdfs.ErrExist, err)
	}
	return err
}

// Delete implements hdfs.Sink.
func (c *Client) Delete(ctx context.Context, name string) error {
	name, err := clean("delete", name)
	if err != nil {
		return err
	}
	if name == "/" {
		return fail("delete", name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	if _, err := namenode.Delete(ctx, c.caller, name); err != nil {
		return fail("delete", name, err)
	}
	c.cache.drop(name)
	return nil
}

// serverDefaults asks the NameNode how new files are stored, once an hour.
func (c *Client) serverDefaults(ctx context.Context) (namenode.Defaults, error) {
	c.mu.Lock()
	defaults, at := c.defaults, c.defaultsAt
	c.mu.Unlock()
	if !at.IsZero() && time.Since(at) < defaultsAge {
		return defaults, nil
	}
	defaults, err := namenode.GetServerDefaults(ctx, c.caller)
	if err != nil {
		return defaults, err
	}
	c.mu.Lock()
	c.defaults, c.defaultsAt = defaults, time.Now()
	c.mu.Unlock()
	return defaults, nil
}

// dataOptions are those of a transfer with DataNodes.
func (c *Client) dataOptions(clientName string) datanode.Options {
	return datanode.Options{Dial: c.options.Dial, DialTimeout: c.options.DialTimeout,
		IOTimeout: c.options.DataTimeout, ClientName: clientName}
}

// clientName is unique to one reader or writer: leases are held by it.
func (c *Client) clientName() string {
	return fmt.Sprintf("drover_%x_%d", c.rpc.ID(), c.writers.Add(1))
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

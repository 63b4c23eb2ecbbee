// Package fake implements hdfs.FS in memory, for tests of its users: with the
// hosts, racks and blocks of a cluster, and with injected faults. It behaves as
// hdfs/client does after its retries: a fault is the error that the client would
// return after waiting in vain.
//
// It is deterministic: replicas are placed round robin, on two racks if there are
// two, starting with the host after the one that got the previous block.
package fake

import (
	"context"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
)

// Op names a method, for faults and counts.
type Op int

// The methods. OpRead and OpWrite are calls on a reader or writer.
const (
	OpStat Op = iota + 1
	OpList
	OpOpen
	OpLocations
	OpCreate
	OpMkdir
	OpRename
	OpDelete
	OpRead
	OpWrite
	OpCommit
	OpAbort
	opCount
)

var opNames = [...]string{OpStat: "stat", OpList: "list", OpOpen: "open", OpLocations: "locations", OpCreate: "create",
	OpMkdir: "mkdir", OpRename: "rename", OpDelete: "delete", OpRead: "read", OpWrite: "write", OpCommit: "commit", OpAbort: "abort"}

func (o Op) String() string {
	if o < OpStat || o >= opCount {
		return fmt.Sprintf("op(%d)", int(o))
	}
	return opNames[o]
}

// Options configures an FS. The zero value has three hosts in two racks, blocks of
// 4,096 bytes and one replica.
type Options struct {
	// Hosts are the DataNodes.
	Hosts []hdfs.Replica
	// LocalIP is the host of readers and writers: it stores the first replica of each written block
	// and is preferred for reading. Empty: none.
	LocalIP string
	// BlockBytes and Replication are the defaults of new files.
	BlockBytes  int64
	replication int
	// now returns modification times; nil: one second more at each change.
	now func() time.Time
}

// Hosts returns n DataNodes, 10.0.0.1 to 10.0.0.n, named node1 to node<n>, spread
// over racks /rack1 to /rack<racks>.
func Hosts(n, racks int) []hdfs.Replica {
	hosts := make([]hdfs.Replica, n)
	for i := range hosts {
		hosts[i] = hdfs.Replica{IP: fmt.Sprintf("10.0.0.%d", i+1), Host: fmt.Sprintf("node%d", i+1), Port: 9866,
			Rack: fmt.Sprintf("/rack%d", i%racks+1)}
	}
	return hosts
}

// FS is a file system in memory. Its methods may be called concurrently.
type FS struct {
	options Options

	mu       sync.Mutex
	inodes   map[string]*inode // by clean path
	lastID   uint64            // last file or block id
	clock    time.Time
	nextHost int // host at which the placement of the next block starts
	safeMode bool
	stopped  map[string]bool // by IP
	calls    [opCount]int
	faults   [opCount]map[int]error // by number of the call
	delays   [opCount]time.Duration
	served   map[string]int64 // bytes read, by IP
}

// inode is a file or directory.
type inode struct {
	info              hdfs.Info
	content           []byte
	blocks            []block
	underConstruction bool
}

type block struct {
	id      uint64
	hosts   []hdfs.Replica
	corrupt bool
}

var _ hdfs.FS = (*FS)(nil)

// New returns an empty file system.
func New(options Options) *FS {
	if options.Hosts == nil {
		options.Hosts = Hosts(3, 2)
	}
	if options.BlockBytes == 0 {
		options.BlockBytes = 4096
	}
	if options.replication == 0 {
		options.replication = 1
	}
	f := &FS{options: options, inodes: map[string]*inode{}, stopped: map[string]bool{}, served: map[string]int64{},
		clock: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.inodes["/"] = f.newInodeLocked("/", true)
	return f
}

// FailNth makes the n-th call of a method from now on (1: the next) fail with err
// before it does anything.
func (f *FS) FailNth(op Op, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.faults[op] == nil {
		f.faults[op] = map[int]error{}
	}
	f.faults[op][f.calls[op]+n] = err
}

// Delay makes every call of a method wait for d, or until its context ends.
func (f *FS) Delay(op Op, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays[op] = d
}

// SetSafeMode makes every change fail with hdfs.ErrSafeMode.
func (f *FS) SetSafeMode(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.safeMode = on
}

// StopDataNode makes a DataNode (by IP) and its replicas unavailable.
func (f *FS) StopDataNode(ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped[ip] = true
}

// StartDataNode makes a stopped DataNode available again.
func (f *FS) StartDataNode(ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.stopped, ip)
}

// SetReplicas sets the replicas of a block of a file; none means that it is lost.
// It panics if there is no such block.
func (f *FS) SetReplicas(name string, index int, hosts ...hdfs.Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inodes[name].blocks[index].hosts = slices.Clone(hosts)
}

// SetCorrupt marks all replicas of a block as corrupt. It panics if there is no
// such block.
func (f *FS) SetCorrupt(name string, index int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inodes[name].blocks[index].corrupt = true
}

// Calls returns how often a method has been called.
func (f *FS) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Served returns the number of bytes read from each DataNode, by IP.
func (f *FS) Served() map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	served := map[string]int64{}
	for ip, n := range f.served {
		served[ip] = n
	}
	return served
}

// beginCall counts a call, waits for its delay, and returns its injected fault.
func (f *FS) beginCall(ctx context.Context, op Op, name string) error {
	f.mu.Lock()
	f.calls[op]++
	fault, delay := f.faults[op][f.calls[op]], f.delays[op]
	delete(f.faults[op], f.calls[op])
	safe := f.safeMode
	f.mu.Unlock()
	if delay > 0 {
		if err := hdfs.Sleep(ctx, delay); err != nil {
			return pathError(op, name, err)
		}
	}
	if ctx.Err() != nil {
		return pathError(op, name, context.Cause(ctx))
	}
	if fault != nil {
		return pathError(op, name, fault)
	}
	switch op {
	case OpCreate, OpMkdir, OpRename, OpDelete, OpCommit:
		if safe {
			return pathError(op, name, hdfs.ErrSafeMode)
		}
	}
	return nil
}

func pathError(op Op, name string, err error) error {
	return fmt.Errorf("fake: %s %s: %w", op, name, err)
}

// beginPathCall is beginCall followed by a check of the path.
func (f *FS) beginPathCall(ctx context.Context, op Op, name string) (string, error) {
	if err := f.beginCall(ctx, op, name); err != nil {
		return "", err
	}
	clean, err := hdfs.CleanPath(name)
	if err != nil {
		return "", pathError(op, name, err)
	}
	return clean, nil
}

func (f *FS) nowLocked() time.Time {
	if f.options.now != nil {
		return f.options.now()
	}
	f.clock = f.clock.Add(time.Second)
	return f.clock
}

func (f *FS) newInodeLocked(name string, dir bool) *inode {
	f.lastID++
	n := &inode{info: hdfs.Info{Path: name, Dir: dir, ID: f.lastID, ModTime: f.nowLocked(), Owner: "drover", Group: "drover", Perm: 0o644}}
	if dir {
		n.info.Perm = 0o755
	}
	return n
}

// lookupLocked returns a path's inode; ErrNotDirectory if a parent is a file.
func (f *FS) lookupLocked(name string) (*inode, error) {
	if n := f.inodes[name]; n != nil {
		return n, nil
	}
	for parent := path.Dir(name); ; parent = path.Dir(parent) {
		if n := f.inodes[parent]; n != nil {
			if !n.info.Dir {
				return nil, hdfs.ErrNotDirectory
			}
			return nil, hdfs.ErrNotExist
		}
	}
}

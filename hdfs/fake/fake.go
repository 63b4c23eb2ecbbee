// Package fake is hdfs.FS in memory, for tests of what uses one: with hosts,
// racks and blocks as a cluster has them, and with the faults that a cluster
// shows. It behaves as hdfs/client does behind its retries: a fault is what the
// client would return after waiting in vain.
//
// Everything is deterministic: replicas are placed round robin, two racks where
// there are two, starting with the host after the one that got the last block.
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

// Op names a method for faults and counts.
type Op int

// The methods. OpRead and OpWrite are single calls on a reader or writer.
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
	opEnd
)

var opNames = [...]string{OpStat: "stat", OpList: "list", OpOpen: "open", OpLocations: "locations", OpCreate: "create",
	OpMkdir: "mkdir", OpRename: "rename", OpDelete: "delete", OpRead: "read", OpWrite: "write", OpCommit: "commit", OpAbort: "abort"}

func (o Op) String() string {
	if o < OpStat || o >= opEnd {
		return fmt.Sprintf("op(%d)", int(o))
	}
	return opNames[o]
}

// Options of an FS. The zero value is three hosts in two racks, blocks of
// 4,096 bytes and one replica.
type Options struct {
	// Hosts are the DataNodes.
	Hosts []hdfs.Replica
	// Local is the IP of the host that readers and writers run on: the first
	// replica of what is written, the first choice of what is read. Empty
	// means none.
	Local string
	// BlockBytes and Replication are the defaults of new files.
	BlockBytes  int64
	Replication int
	// Now gives modification times; nil means one second more at each change.
	Now func() time.Time
}

// Hosts gives n DataNodes 10.0.0.1 to n, called node1 to node<n>, dealt out to
// so many racks /rack1 to /rack<racks>.
func Hosts(n, racks int) []hdfs.Replica {
	hosts := make([]hdfs.Replica, n)
	for i := range hosts {
		hosts[i] = hdfs.Replica{IP: fmt.Sprintf("10.0.0.%d", i+1), Host: fmt.Sprintf("node%d", i+1), Port: 9866,
			Rack: fmt.Sprintf("/rack%d", i%racks+1)}
	}
	return hosts
}

// FS is a file system in memory. All methods may be called from many
// goroutines.
type FS struct {
	options Options

	mu     sync.Mutex
	nodes  map[string]*node // by clean path
	ids    uint64           // last file or block id
	clock  time.Time
	turn   int // host that the next block starts with
	safe   bool
	dead   map[string]bool // by IP
	calls  [opEnd]int
	faults [opEnd]map[int]error // by number of the call
	delays [opEnd]time.Duration
	served map[string]int64 // bytes read, by IP
}

// node is a file or directory.
type node struct {
	info    hdfs.Info
	content []byte
	blocks  []block
	writing bool
}

type block struct {
	id      uint64
	hosts   []hdfs.Replica
	corrupt bool
}

var _ hdfs.FS = (*FS)(nil)

// New makes an empty file system.
func New(options Options) *FS {
	if options.Hosts == nil {
		options.Hosts = Hosts(3, 2)
	}
	if options.BlockBytes == 0 {
		options.BlockBytes = 4096
	}
	if options.Replication == 0 {
		options.Replication = 1
	}
	f := &FS{options: options, nodes: map[string]*node{}, dead: map[string]bool{}, served: map[string]int64{},
		clock: time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.nodes["/"] = f.newNodeLocked("/", true)
	return f
}

// FailNth makes the n-th call of a method from now on, counted from 1, fail
// with err before it does anything.
func (f *FS) FailNth(op Op, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.faults[op] == nil {
		f.faults[op] = map[int]error{}
	}
	f.faults[op][f.calls[op]+n] = err
}

// Delay makes every call of a method wait first, or until its context ends.
func (f *FS) Delay(op Op, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delays[op] = d
}

// SetSafeMode makes every change fail with hdfs.ErrSafeMode.
func (f *FS) SetSafeMode(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.safe = on
}

// StopDataNode takes a DataNode (by IP) and its replicas away.
func (f *FS) StopDataNode(ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dead[ip] = true
}

// StartDataNode brings it back.
func (f *FS) StartDataNode(ip string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.dead, ip)
}

// SetReplicas says where a block of a file is; none means that it is lost. It
// panics if there is no such block.
func (f *FS) SetReplicas(name string, index int, hosts ...hdfs.Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name].blocks[index].hosts = slices.Clone(hosts)
}

// SetCorrupt damages all replicas of a block. It panics if there is no such
// block.
func (f *FS) SetCorrupt(name string, index int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[name].blocks[index].corrupt = true
}

// Calls is how often a method was called.
func (f *FS) Calls(op Op) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[op]
}

// Served is how many bytes were read from each DataNode, by IP.
func (f *FS) Served() map[string]int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	served := map[string]int64{}
	for ip, n := range f.served {
		served[ip] = n
	}
	return served
}

// begin counts a call, waits, and gives the fault that it meets.
func (f *FS) begin(ctx context.Context, op Op, name string) error {
	f.mu.Lock()
	f.calls[op]++
	fault, delay := f.faults[op][f.calls[op]], f.delays[op]
	delete(f.faults[op], f.calls[op])
	safe := f.safe
	f.mu.Unlock()
	if delay > 0 {
		if err := hdfs.Sleep(ctx, delay); err != nil {
			return fail(op, name, err)
		}
	}
	if ctx.Err() != nil {
		return fail(op, name, context.Cause(ctx))
	}
	if fault != nil {
		return fail(op, name, fault)
	}
	switch op {
	case OpCreate, OpMkdir, OpRename, OpDelete, OpCommit:
		if safe {
			return fail(op, name, hdfs.ErrSafeMode)
		}
	}
	return nil
}

func fail(op Op, name string, err error) error {
	return fmt.Errorf("fake: %s %s: %w", op, name, err)
}

// start is begin with a check of the path.
func (f *FS) start(ctx context.Context, op Op, name string) (string, error) {
	if err := f.begin(ctx, op, name); err != nil {
		return "", err
	}
	clean, err := hdfs.CleanPath(name)
	if err != nil {
		return "", fail(op, name, err)
	}
	return clean, nil
}

func (f *FS) nowLocked() time.Time {
	if f.options.Now != nil {
		return f.options.Now()
	}
	f.clock = f.clock.Add(time.Second)
	return f.clock
}

func (f *FS) newNodeLocked(name string, dir bool) *node {
	f.ids++
	n := &node{info: hdfs.Info{Path: name, Dir: dir, ID: f.ids, ModTime: f.nowLocked(), Owner: "drover", Group: "drover", Perm: 0o644}}
	if dir {
		n.info.Perm = 0o755
	}
	return n
}

// lookupLocked finds a path; ErrNotDirectory if it goes through a file.
func (f *FS) lookupLocked(name string) (*node, error) {
	if n := f.nodes[name]; n != nil {
		return n, nil
	}
	for parent := path.Dir(name); ; parent = path.Dir(parent) {
		if n := f.nodes[parent]; n != nil {
			if !n.info.Dir {
				return nil, hdfs.ErrNotDirectory
			}
			return nil, hdfs.ErrNotExist
		}
	}
}

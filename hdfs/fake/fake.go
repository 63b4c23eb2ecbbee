// Package fake is hdfs.FS in memory, for tests of what uses one: with hosts,
// racks and blocks as a cluster has them, and with the faults that a cluster
// shows. It behaves as hdfs/client does behind its retries: a fault is what the
// client would return after waiting in vain.
//
// Everything is deterministic: replicas are placed round robin, two racks where
// there are two, starting with the host after the one that got the last block.
package fake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
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

// Stat implements hdfs.Source.
func (f *FS) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	name, err := f.start(ctx, OpStat, name)
	if err != nil {
		return hdfs.Info{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookupLocked(name)
	if err != nil {
		return hdfs.Info{}, fail(OpStat, name, err)
	}
	return n.info, nil
}

// List implements hdfs.Source.
func (f *FS) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	name, err := f.start(ctx, OpList, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookupLocked(name)
	if err == nil && !n.info.Dir {
		err = hdfs.ErrNotDirectory
	}
	if err != nil {
		return nil, fail(OpList, name, err)
	}
	infos := []hdfs.Info{}
	for p, n := range f.nodes {
		if p != "/" && path.Dir(p) == name {
			infos = append(infos, n.info)
		}
	}
	slices.SortFunc(infos, func(a, b hdfs.Info) int { return strings.Compare(a.Path, b.Path) })
	return infos, nil
}

func (f *FS) fileLocked(name string) (*node, error) {
	n, err := f.lookupLocked(name)
	if err == nil && n.info.Dir {
		err = hdfs.ErrIsDirectory
	}
	return n, err
}

// Locations implements hdfs.Source.
func (f *FS) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	name, err := f.start(ctx, OpLocations, name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.fileLocked(name)
	if err != nil {
		return hdfs.Layout{}, fail(OpLocations, name, err)
	}
	from, to, err := hdfs.CutRange(offset, length, n.info.LengthBytes)
	if err != nil {
		return hdfs.Layout{}, fail(OpLocations, name, err)
	}
	layout := hdfs.Layout{Path: name, FileLengthBytes: n.info.LengthBytes, UnderConstruction: n.writing, Blocks: []hdfs.Block{}}
	if from < to {
		size := n.info.BlockSizeBytes
		for i := from / size; i*size < to; i++ {
			layout.Blocks = append(layout.Blocks, f.blockLocked(n, int(i)))
		}
	}
	return layout, nil
}

// blockLocked describes a block with its live replicas, the local one first.
func (f *FS) blockLocked(n *node, i int) hdfs.Block {
	at := int64(i) * n.info.BlockSizeBytes
	b := hdfs.Block{ID: n.blocks[i].id, OffsetBytes: at, LengthBytes: min(n.info.BlockSizeBytes, n.info.LengthBytes-at),
		Corrupt: n.blocks[i].corrupt}
	for _, host := range n.blocks[i].hosts {
		if !f.dead[host.IP] {
			b.Replicas = append(b.Replicas, host)
		}
	}
	slices.SortStableFunc(b.Replicas, func(x, y hdfs.Replica) int { return f.distance(x) - f.distance(y) })
	return b
}

func (f *FS) distance(host hdfs.Replica) int {
	if host.IP == f.options.Local {
		return 0
	}
	return 1
}

// Open implements hdfs.Source.
func (f *FS) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	name, err := f.start(ctx, OpOpen, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.fileLocked(name)
	if err != nil {
		return nil, fail(OpOpen, name, err)
	}
	from, to, err := hdfs.CutRange(offset, length, n.info.LengthBytes)
	if err != nil {
		return nil, fail(OpOpen, name, err)
	}
	return &reader{f: f, ctx: ctx, name: name, opened: n.info, at: from, to: to}, nil
}

type reader struct {
	f      *FS
	ctx    context.Context
	name   string
	opened hdfs.Info
	at, to int64
	closed bool
}

// Read gives bytes of one block, from its first live replica.
func (r *reader) Read(b []byte) (int, error) {
	if r.closed {
		return 0, fail(OpRead, r.name, io.ErrClosedPipe)
	}
	if err := r.f.begin(r.ctx, OpRead, r.name); err != nil {
		return 0, err
	}
	if r.at >= r.to {
		return 0, io.EOF
	}
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	n := r.f.nodes[r.name]
	if n == nil || !n.info.Same(r.opened) {
		return 0, fail(OpRead, r.name, hdfs.ErrChanged)
	}
	place := r.f.blockLocked(n, int(r.at/n.info.BlockSizeBytes))
	layout := hdfs.Layout{Path: r.name, Blocks: []hdfs.Block{place}}
	if err := layout.Err(); err != nil {
		return 0, fail(OpRead, r.name, err)
	}
	end := min(r.to, place.OffsetBytes+place.LengthBytes)
	k := copy(b, n.content[r.at:end])
	r.at += int64(k)
	r.f.served[place.Replicas[0].IP] += int64(k)
	return k, nil
}

func (r *reader) Close() error {
	r.closed = true
	return nil
}

// parentLocked checks that a new name has a directory to be in.
func (f *FS) parentLocked(name string) error {
	parent, err := f.lookupLocked(path.Dir(name))
	if err == nil && !parent.info.Dir {
		err = hdfs.ErrNotDirectory
	}
	return err
}

// Create implements hdfs.Sink.
func (f *FS) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := f.start(ctx, OpCreate, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if options.Replication < 0 || options.BlockSizeBytes < 0 {
		return nil, fail(OpCreate, name, hdfs.ErrInvalid)
	}
	if old := f.nodes[name]; old != nil && (old.info.Dir || !options.Overwrite) {
		return nil, fail(OpCreate, name, hdfs.ErrExist)
	}
	if err := f.parentLocked(name); err != nil {
		return nil, fail(OpCreate, name, err)
	}
	n := f.newNodeLocked(name, false)
	n.writing = true
	n.info.BlockSizeBytes, n.info.Replication = f.options.BlockBytes, f.options.Replication
	if options.BlockSizeBytes > 0 {
		n.info.BlockSizeBytes = options.BlockSizeBytes
	}
	if options.Replication > 0 {
		n.info.Replication = options.Replication
	}
	f.nodes[name] = n
	return &writer{f: f, ctx: ctx, name: name, node: n}, nil
}

type writer struct {
	f      *FS
	ctx    context.Context
	name   string
	node   *node
	buffer bytes.Buffer
	ended  bool
}

func (w *writer) Write(b []byte) (int, error) {
	if w.ended {
		return 0, fail(OpWrite, w.name, io.ErrClosedPipe)
	}
	if err := w.f.begin(w.ctx, OpWrite, w.name); err != nil {
		return 0, err
	}
	return w.buffer.Write(b)
}

// Commit implements hdfs.Writer.
func (w *writer) Commit() error {
	if w.ended {
		return fail(OpCommit, w.name, io.ErrClosedPipe)
	}
	if err := w.f.begin(w.ctx, OpCommit, w.name); err != nil {
		return err
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	n := w.node
	if w.f.nodes[n.info.Path] != n {
		return fail(OpCommit, w.name, fmt.Errorf("%w: removed while it was written", hdfs.ErrChanged))
	}
	n.content = bytes.Clone(w.buffer.Bytes())
	for at := int64(0); at < int64(len(n.content)); at += n.info.BlockSizeBytes {
		hosts, err := w.f.placeLocked(n.info.Replication)
		if err != nil {
			n.blocks = nil
			return fail(OpCommit, w.name, err)
		}
		w.f.ids++
		n.blocks = append(n.blocks, block{id: w.f.ids, hosts: hosts})
	}
	n.info.LengthBytes, n.info.ModTime, n.writing = int64(len(n.content)), w.f.nowLocked(), false
	w.ended = true
	return nil
}

// placeLocked chooses hosts for a block: the local one first, then in turn.
func (f *FS) placeLocked(replication int) ([]hdfs.Replica, error) {
	var alive []hdfs.Replica
	for i := range f.options.Hosts {
		if host := f.options.Hosts[(f.turn+i)%len(f.options.Hosts)]; !f.dead[host.IP] {
			alive = append(alive, host)
		}
	}
	f.turn++
	if len(alive) == 0 {
		return nil, fmt.Errorf("%w: no live DataNode", hdfs.ErrUnavailable)
	}
	slices.SortStableFunc(alive, func(x, y hdfs.Replica) int { return f.distance(x) - f.distance(y) })
	return alive[:min(replication, len(alive))], nil
}

// Abort implements hdfs.Writer.
func (w *writer) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	if err := w.f.begin(context.WithoutCancel(w.ctx), OpAbort, w.name); err != nil {
		return err
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if w.f.nodes[w.node.info.Path] == w.node {
		delete(w.f.nodes, w.node.info.Path)
	}
	return nil
}

// Mkdir implements hdfs.Sink.
func (f *FS) Mkdir(ctx context.Context, name string) error {
	name, err := f.start(ctx, OpMkdir, name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var missing []string
	for p := name; ; p = path.Dir(p) {
		n := f.nodes[p]
		if n == nil {
			missing = append(missing, p)
			continue
		}
		switch {
		case n.info.Dir:
		case p == name:
			return fail(OpMkdir, name, hdfs.ErrExist)
		default:
			return fail(OpMkdir, name, hdfs.ErrNotDirectory)
		}
		break
	}
	for _, p := range slices.Backward(missing) {
		f.nodes[p] = f.newNodeLocked(p, true)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	from, err := f.start(ctx, OpRename, from)
	if err != nil {
		return err
	}
	to, err = hdfs.CleanPath(to)
	if err != nil {
		return fail(OpRename, from, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.renameLocked(from, to); err != nil {
		return fail(OpRename, from+" to "+to, err)
	}
	return nil
}

func (f *FS) renameLocked(from, to string) error {
	if _, err := f.lookupLocked(from); err != nil {
		return err
	}
	if f.nodes[to] != nil {
		return hdfs.ErrExist
	}
	if hdfs.Within(to, from) {
		return fmt.Errorf("%w: a directory into itself", hdfs.ErrInvalid)
	}
	if err := f.parentLocked(to); err != nil {
		return err
	}
	moved := map[string]*node{}
	for p, n := range f.nodes {
		if hdfs.Within(p, from) {
			moved[p] = n
		}
	}
	for p, n := range moved {
		delete(f.nodes, p)
		n.info.Path = to + strings.TrimPrefix(p, from)
		f.nodes[n.info.Path] = n
	}
	return nil
}

// Delete implements hdfs.Sink.
func (f *FS) Delete(ctx context.Context, name string) error {
	name, err := f.start(ctx, OpDelete, name)
	if err != nil {
		return err
	}
	if name == "/" {
		return fail(OpDelete, name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.nodes {
		if hdfs.Within(p, name) {
			delete(f.nodes, p)
		}
	}
	return nil
}

package fake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/drover-run/drover/hdfs"
)

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

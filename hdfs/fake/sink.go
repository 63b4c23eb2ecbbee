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

// checkParentLocked checks that the parent of a new name is a directory.
func (f *FS) checkParentLocked(name string) error {
	parent, err := f.lookupLocked(path.Dir(name))
	if err == nil && !parent.info.Dir {
		err = hdfs.ErrNotDirectory
	}
	return err
}

// Create implements hdfs.Sink.
func (f *FS) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := f.beginPathCall(ctx, OpCreate, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if options.Replication < 0 || options.BlockSizeBytes < 0 {
		return nil, pathError(OpCreate, name, hdfs.ErrInvalid)
	}
	if old := f.inodes[name]; old != nil && (old.info.Dir || !options.Overwrite) {
		return nil, pathError(OpCreate, name, hdfs.ErrExist)
	}
	if err := f.checkParentLocked(name); err != nil {
		return nil, pathError(OpCreate, name, err)
	}
	n := f.newInodeLocked(name, false)
	n.underConstruction = true
	n.info.BlockSizeBytes, n.info.Replication = f.options.BlockBytes, f.options.replication
	if options.BlockSizeBytes > 0 {
		n.info.BlockSizeBytes = options.BlockSizeBytes
	}
	if options.Replication > 0 {
		n.info.Replication = options.Replication
	}
	f.inodes[name] = n
	return &writer{f: f, ctx: ctx, name: name, node: n}, nil
}

type writer struct {
	f      *FS
	ctx    context.Context
	name   string
	node   *inode
	buffer bytes.Buffer
	ended  bool
}

func (w *writer) Write(b []byte) (int, error) {
	if w.ended {
		return 0, pathError(OpWrite, w.name, io.ErrClosedPipe)
	}
	if err := w.f.beginCall(w.ctx, OpWrite, w.name); err != nil {
		return 0, err
	}
	return w.buffer.Write(b)
}

// Commit implements hdfs.Writer.
func (w *writer) Commit() error {
	if w.ended {
		return pathError(OpCommit, w.name, io.ErrClosedPipe)
	}
	if err := w.f.beginCall(w.ctx, OpCommit, w.name); err != nil {
		return err
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	n := w.node
	if w.f.inodes[n.info.Path] != n {
		return pathError(OpCommit, w.name, fmt.Errorf("%w: removed while it was written", hdfs.ErrChanged))
	}
	n.content = bytes.Clone(w.buffer.Bytes())
	for at := int64(0); at < int64(len(n.content)); at += n.info.BlockSizeBytes {
		hosts, err := w.f.chooseHostsLocked(n.info.Replication)
		if err != nil {
			n.blocks = nil
			return pathError(OpCommit, w.name, err)
		}
		w.f.lastID++
		n.blocks = append(n.blocks, block{id: w.f.lastID, hosts: hosts})
	}
	n.info.LengthBytes, n.info.ModTime, n.underConstruction = int64(len(n.content)), w.f.nowLocked(), false
	w.ended = true
	return nil
}

// chooseHostsLocked chooses hosts for a block: the local one first, then round
// robin.
func (f *FS) chooseHostsLocked(replication int) ([]hdfs.Replica, error) {
	var alive []hdfs.Replica
	for i := range f.options.Hosts {
		if host := f.options.Hosts[(f.nextHost+i)%len(f.options.Hosts)]; !f.stopped[host.IP] {
			alive = append(alive, host)
		}
	}
	f.nextHost++
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
	if err := w.f.beginCall(context.WithoutCancel(w.ctx), OpAbort, w.name); err != nil {
		return err
	}
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if w.f.inodes[w.node.info.Path] == w.node {
		delete(w.f.inodes, w.node.info.Path)
	}
	return nil
}

// Mkdir implements hdfs.Sink.
func (f *FS) Mkdir(ctx context.Context, name string) error {
	name, err := f.beginPathCall(ctx, OpMkdir, name)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var missing []string
	for p := name; ; p = path.Dir(p) {
		n := f.inodes[p]
		if n == nil {
			missing = append(missing, p)
			continue
		}
		switch {
		case n.info.Dir:
		case p == name:
			return pathError(OpMkdir, name, hdfs.ErrExist)
		default:
			return pathError(OpMkdir, name, hdfs.ErrNotDirectory)
		}
		break
	}
	for _, p := range slices.Backward(missing) {
		f.inodes[p] = f.newInodeLocked(p, true)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	from, err := f.beginPathCall(ctx, OpRename, from)
	if err != nil {
		return err
	}
	to, err = hdfs.CleanPath(to)
	if err != nil {
		return pathError(OpRename, from, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.renameLocked(from, to); err != nil {
		return pathError(OpRename, from+" to "+to, err)
	}
	return nil
}

func (f *FS) renameLocked(from, to string) error {
	if _, err := f.lookupLocked(from); err != nil {
		return err
	}
	if f.inodes[to] != nil {
		return hdfs.ErrExist
	}
	if hdfs.IsWithin(to, from) {
		return fmt.Errorf("%w: a directory into itself", hdfs.ErrInvalid)
	}
	if err := f.checkParentLocked(to); err != nil {
		return err
	}
	moved := map[string]*inode{}
	for p, n := range f.inodes {
		if hdfs.IsWithin(p, from) {
			moved[p] = n
		}
	}
	for p, n := range moved {
		delete(f.inodes, p)
		n.info.Path = to + strings.TrimPrefix(p, from)
		f.inodes[n.info.Path] = n
	}
	return nil
}

// Delete implements hdfs.Sink.
func (f *FS) Delete(ctx context.Context, name string) error {
	name, err := f.beginPathCall(ctx, OpDelete, name)
	if err != nil {
		return err
	}
	if name == "/" {
		return pathError(OpDelete, name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for p := range f.inodes {
		if hdfs.IsWithin(p, name) {
			delete(f.inodes, p)
		}
	}
	return nil
}

package fake

import (
	"context"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/drover-run/drover/hdfs"
)

// Stat implements hdfs.Source.
func (f *FS) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	name, err := f.beginPathCall(ctx, OpStat, name)
	if err != nil {
		return hdfs.Info{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.lookupLocked(name)
	if err != nil {
		return hdfs.Info{}, pathError(OpStat, name, err)
	}
	return n.info, nil
}

// List implements hdfs.Source.
func (f *FS) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	name, err := f.beginPathCall(ctx, OpList, name)
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
		return nil, pathError(OpList, name, err)
	}
	infos := []hdfs.Info{}
	for p, n := range f.inodes {
		if p != "/" && path.Dir(p) == name {
			infos = append(infos, n.info)
		}
	}
	slices.SortFunc(infos, func(a, b hdfs.Info) int { return strings.Compare(a.Path, b.Path) })
	return infos, nil
}

func (f *FS) fileLocked(name string) (*inode, error) {
	n, err := f.lookupLocked(name)
	if err == nil && n.info.Dir {
		err = hdfs.ErrIsDirectory
	}
	return n, err
}

// Locations implements hdfs.Source.
func (f *FS) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	name, err := f.beginPathCall(ctx, OpLocations, name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.fileLocked(name)
	if err != nil {
		return hdfs.Layout{}, pathError(OpLocations, name, err)
	}
	from, to, err := hdfs.ClampRange(offset, length, n.info.LengthBytes)
	if err != nil {
		return hdfs.Layout{}, pathError(OpLocations, name, err)
	}
	layout := hdfs.Layout{Path: name, FileLengthBytes: n.info.LengthBytes, UnderConstruction: n.underConstruction, Blocks: []hdfs.Block{}}
	if from < to {
		size := n.info.BlockSizeBytes
		for i := from / size; i*size < to; i++ {
			layout.Blocks = append(layout.Blocks, f.blockLocked(n, int(i)))
		}
	}
	return layout, nil
}

// blockLocked returns a block with its live replicas, the local one first.
func (f *FS) blockLocked(n *inode, i int) hdfs.Block {
	at := int64(i) * n.info.BlockSizeBytes
	b := hdfs.Block{ID: n.blocks[i].id, OffsetBytes: at, LengthBytes: min(n.info.BlockSizeBytes, n.info.LengthBytes-at),
		Corrupt: n.blocks[i].corrupt}
	for _, host := range n.blocks[i].hosts {
		if !f.stopped[host.IP] {
			b.Replicas = append(b.Replicas, host)
		}
	}
	slices.SortStableFunc(b.Replicas, func(x, y hdfs.Replica) int { return f.distance(x) - f.distance(y) })
	return b
}

func (f *FS) distance(host hdfs.Replica) int {
	if host.IP == f.options.LocalIP {
		return 0
	}
	return 1
}

// Open implements hdfs.Source.
func (f *FS) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	name, err := f.beginPathCall(ctx, OpOpen, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.fileLocked(name)
	if err != nil {
		return nil, pathError(OpOpen, name, err)
	}
	from, to, err := hdfs.ClampRange(offset, length, n.info.LengthBytes)
	if err != nil {
		return nil, pathError(OpOpen, name, err)
	}
	return &reader{f: f, ctx: ctx, name: name, opened: n.info, pos: from, end: to}, nil
}

type reader struct {
	f        *FS
	ctx      context.Context
	name     string
	opened   hdfs.Info
	pos, end int64
	closed   bool
}

// Read returns bytes of one block, from its first live replica.
func (r *reader) Read(b []byte) (int, error) {
	if r.closed {
		return 0, pathError(OpRead, r.name, io.ErrClosedPipe)
	}
	if err := r.f.beginCall(r.ctx, OpRead, r.name); err != nil {
		return 0, err
	}
	if r.pos >= r.end {
		return 0, io.EOF
	}
	r.f.mu.Lock()
	defer r.f.mu.Unlock()
	n := r.f.inodes[r.name]
	if n == nil || !n.info.SameVersion(r.opened) {
		return 0, pathError(OpRead, r.name, hdfs.ErrChanged)
	}
	place := r.f.blockLocked(n, int(r.pos/n.info.BlockSizeBytes))
	layout := hdfs.Layout{Path: r.name, Blocks: []hdfs.Block{place}}
	if err := layout.Err(); err != nil {
		return 0, pathError(OpRead, r.name, err)
	}
	end := min(r.end, place.OffsetBytes+place.LengthBytes)
	k := copy(b, n.content[r.pos:end])
	r.pos += int64(k)
	r.f.served[place.Replicas[0].IP] += int64(k)
	return k, nil
}

func (r *reader) Close() error {
	r.closed = true
	return nil
}

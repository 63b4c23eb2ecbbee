// Package localfs is hdfs.FS over a directory tree of this machine: what
// file:/// means in `drover dev`, and where a cluster's machines mount the same
// tree.
//
// All blocks lie on one host. They are cut every BlockBytes, so that local jobs
// are split like those on HDFS. With a Root, paths are below it and cannot leave
// it, neither with ".." nor over a symbolic link (os.Root sees to it); without
// one they are the machine's.
//
// Rename without overwriting is renameat2(2) with RENAME_NOREPLACE: Linux only,
// and not on every network file system, which is then ErrUnsupported.
package localfs

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
)

// Options of an FS; the zero value is the whole machine with blocks of 64 MiB.
type Options struct {
	// Root is the directory that paths are below of; empty is the machine's
	// root. It must exist.
	Root string
	// BlockBytes is the length of a block; 0 means 64 MiB.
	BlockBytes int64
	// Host is the one place where all blocks are. Empty fields mean
	// 127.0.0.1, localhost and /default-rack.
	Host hdfs.Replica
}

// FS is a directory tree. Close it.
type FS struct {
	tree  tree
	block int64
	host  hdfs.Replica
}

var _ hdfs.FS = (*FS)(nil)

// New opens the root.
func New(options Options) (*FS, error) {
	f := &FS{tree: machine{}, block: options.BlockBytes, host: options.Host}
	if f.block == 0 {
		f.block = 64 << 20
	}
	if f.block < 0 {
		return nil, fmt.Errorf("localfs: %w: blocks of %d bytes", hdfs.ErrInvalid, f.block)
	}
	for _, field := range []struct {
		value *string
		empty string
	}{{&f.host.IP, "127.0.0.1"}, {&f.host.Host, "localhost"}, {&f.host.Rack, "/default-rack"}} {
		if *field.value == "" {
			*field.value = field.empty
		}
	}
	if options.Root != "" {
		root, err := os.OpenRoot(options.Root)
		if err != nil {
			return nil, fmt.Errorf("localfs: %w", err)
		}
		f.tree = jail{root}
	}
	return f, nil
}

// Close lets go of the root.
func (f *FS) Close() error { return f.tree.close() }

// fail names the operation and the path, and gives the error its class.
func fail(operation, name string, err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		err = pathErr.Err // the path is named already
	}
	class := error(nil)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		class = hdfs.ErrNotDirectory
	case errors.Is(err, syscall.EISDIR):
		class = hdfs.ErrIsDirectory
	case errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENAMETOOLONG):
		class = hdfs.ErrInvalid
	case errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.ENOSPC):
		class = hdfs.ErrQuota
	case errors.Is(err, syscall.EXDEV), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
		class = hdfs.ErrUnsupported
	}
	if class != nil {
		return fmt.Errorf("localfs: %s %s: %w: %w", operation, name, class, err)
	}
	return fmt.Errorf("localfs: %s %s: %w", operation, name, err)
}

// start checks what every method checks.
func start(ctx context.Context, operation, name string) (string, error) {
	if ctx.Err() != nil {
		return "", fail(operation, name, context.Cause(ctx))
	}
	clean, err := hdfs.CleanPath(name)
	if err != nil {
		return "", fmt.Errorf("localfs: %s: %w", operation, err)
	}
	return clean, nil
}

func (f *FS) info(name string, s fs.FileInfo) hdfs.Info {
	info := hdfs.Info{Path: name, Dir: s.IsDir(), ModTime: s.ModTime().UTC(), Perm: s.Mode().Perm()}
	if st, ok := s.Sys().(*syscall.Stat_t); ok {
		info.ID = st.Ino
		info.Owner, info.Group = strconv.Itoa(int(st.Uid)), strconv.Itoa(int(st.Gid))
	}
	if !info.Dir {
		info.LengthBytes, info.Replication, info.BlockSizeBytes = s.Size(), 1, f.block
	}
	return info
}

// Stat implements hdfs.Source. Symbolic links are followed.
func (f *FS) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	name, err := start(ctx, "stat", name)
	if err != nil {
		return hdfs.Info{}, err
	}
	s, err := f.tree.stat(name)
	if err != nil {
		return hdfs.Info{}, fail("stat", name, err)
	}
	return f.info(name, s), nil
}

// List implements hdfs.Source. Symbolic links that lead nowhere, and what is
// neither file nor directory, are left out.
func (f *FS) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	name, err := start(ctx, "list", name)
	if err != nil {
		return nil, err
	}
	dir, err := f.tree.open(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fail("list", name, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fail("list", name, err)
	}
	slices.Sort(names)
	infos := make([]hdfs.Info, 0, len(names))
	for _, entry := range names {
		full := path.Join(name, entry)
		s, err := f.tree.stat(full)
		if err != nil || !s.IsDir() && !s.Mode().IsRegular() {
			continue
		}
		infos = append(infos, f.info(full, s))
	}
	return infos, nil
}

// regular opens a file for reading and describes it.
func (f *FS) regular(name string) (*os.File, fs.FileInfo, error) {
	// Opening a named pipe would wait for its writer without O_NONBLOCK.
	file, err := f.tree.open(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	s, err := file.Stat()
	switch {
	case err != nil:
	case s.IsDir():
		err = hdfs.ErrIsDirectory
	case !s.Mode().IsRegular():
		err = fmt.Errorf("%w: neither file nor directory", hdfs.ErrUnsupported)
	default:
		return file, s, nil
	}
	file.Close()
	return nil, nil, err
}

// Open implements hdfs.Source.
func (f *FS) Open(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	name, err := start(ctx, "open", name)
	if err != nil {
		return nil, err
	}
	file, s, err := f.regular(name)
	if err != nil {
		return nil, fail("open", name, err)
	}
	from, to, err := hdfs.CutRange(offset, length, s.Size())
	if err != nil {
		file.Close()
		return nil, fail("open", name, err)
	}
	return &reader{ctx, name, file, from, to}, nil
}

type reader struct {
	ctx    context.Context
	name   string
	file   *os.File
	at, to int64
}

func (r *reader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, fail("read", r.name, context.Cause(r.ctx))
	}
	if r.at >= r.to {
		return 0, io.EOF
	}
	n, err := r.file.ReadAt(b[:min(int64(len(b)), r.to-r.at)], r.at)
	r.at += int64(n)
	switch {
	case n > 0 || len(b) == 0:
		return n, nil
	case err == io.EOF:
		return 0, fail("read", r.name, fmt.Errorf("%w: it became shorter than %d bytes", hdfs.ErrChanged, r.to))
	default:
		return 0, fail("read", r.name, err)
	}
}

func (r *reader) Close() error { return r.file.Close() }

// Locations implements hdfs.Source.
func (f *FS) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	name, err := start(ctx, "locations", name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	file, s, err := f.regular(name)
	if err != nil {
		return hdfs.Layout{}, fail("locations", name, err)
	}
	file.Close()
	from, to, err := hdfs.CutRange(offset, length, s.Size())
	if err != nil {
		return hdfs.Layout{}, fail("locations", name, err)
	}
	layout := hdfs.Layout{Path: name, FileLengthBytes: s.Size(), Blocks: []hdfs.Block{}}
	for at := from - from%f.block; from < to && at < to; at += f.block {
		layout.Blocks = append(layout.Blocks, hdfs.Block{ID: blockID(name, at), OffsetBytes: at,
			LengthBytes: min(f.block, s.Size()-at), Replicas: []hdfs.Replica{f.host}})
	}
	return layout, nil
}

// blockID is a number for a piece of a file that has none of its own.
func blockID(name string, offset int64) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s@%d", name, offset)
	return h.Sum64()
}

// Create implements hdfs.Sink. Replication and block size mean nothing here.
func (f *FS) Create(ctx context.Context, name string, options hdfs.CreateOptions) (hdfs.Writer, error) {
	name, err := start(ctx, "create", name)
	if err != nil {
		return nil, err
	}
	if options.Replication < 0 || options.BlockSizeBytes < 0 {
		return nil, fail("create", name, fmt.Errorf("%w: negative replication or block size", hdfs.ErrInvalid))
	}
	if s, err := f.tree.stat(name); err == nil && (s.IsDir() || !options.Overwrite) {
		return nil, fail("create", name, hdfs.ErrExist)
	}
	if options.Overwrite {
		// A new file, not the old one cut: who reads the old one reads on.
		if err := f.tree.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fail("create", name, err)
		}
	}
	file, err := f.tree.open(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, fail("create", name, err)
	}
	return &writer{ctx: ctx, fs: f, name: name, file: file, sync: options.Sync}, nil
}

type writer struct {
	ctx   context.Context
	fs    *FS
	name  string
	file  *os.File
	sync  bool
	ended bool
}

// check fails once the writer was ended or its context has.
func (w *writer) check(operation string) error {
	if w.ended {
		return fail(operation, w.name, fs.ErrClosed)
	}
	if w.ctx.Err() != nil {
		return fail(operation, w.name, context.Cause(w.ctx))
	}
	return nil
}

func (w *writer) Write(b []byte) (int, error) {
	if err := w.check("write"); err != nil {
		return 0, err
	}
	n, err := w.file.Write(b)
	if err != nil {
		return n, fail("write", w.name, err)
	}
	return n, nil
}

// Commit implements hdfs.Writer. What survives the loss of this process is in
// the page cache; with Sync, file and directory entry are on disk.
func (w *writer) Commit() error {
	if err := w.check("commit"); err != nil {
		return err
	}
	if w.sync {
		if err := w.file.Sync(); err != nil {
			return fail("commit", w.name, err)
		}
	}
	if err := w.file.Close(); err != nil {
		return fail("commit", w.name, err)
	}
	if w.sync {
		if err := w.fs.syncDir(path.Dir(w.name)); err != nil {
			return fail("commit", w.name, err)
		}
	}
	w.ended = true
	return nil
}

func (f *FS) syncDir(name string) error {
	dir, err := f.tree.open(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Abort implements hdfs.Writer. It removes the file only if it is still the one
// that this writer created.
func (w *writer) Abort() error {
	if w.ended {
		return nil
	}
	w.ended = true
	defer w.file.Close()
	mine, err := w.file.Stat()
	if errors.Is(err, fs.ErrClosed) {
		// Commit closed it and then failed: the name was made by us.
		mine, err = nil, nil
	}
	if err != nil {
		return fail("abort", w.name, err)
	}
	there, err := w.fs.tree.stat(w.name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && mine != nil && !os.SameFile(mine, there) {
		return nil
	}
	if err == nil {
		err = w.fs.tree.remove(w.name)
	}
	if err != nil {
		return fail("abort", w.name, err)
	}
	return nil
}

// Mkdir implements hdfs.Sink.
func (f *FS) Mkdir(ctx context.Context, name string) error {
	name, err := start(ctx, "mkdir", name)
	if err != nil {
		return err
	}
	if s, err := f.tree.stat(name); err == nil {
		if s.IsDir() {
			return nil
		}
		return fail("mkdir", name, hdfs.ErrExist)
	}
	if err := f.tree.mkdirAll(name); err != nil {
		return fail("mkdir", name, err)
	}
	return nil
}

// Rename implements hdfs.Sink.
func (f *FS) Rename(ctx context.Context, from, to string) error {
	from, err := start(ctx, "rename", from)
	if err != nil {
		return err
	}
	to, err = start(ctx, "rename", to)
	if err != nil {
		return err
	}
	both := from + " to " + to
	switch {
	case from == to:
		return fail("rename", both, hdfs.ErrExist)
	case hdfs.Within(to, from):
		return fail("rename", both, fmt.Errorf("%w: a directory into itself", hdfs.ErrInvalid))
	case to == "/":
		return fail("rename", both, hdfs.ErrExist)
	}
	if err := f.rename(from, to); err != nil {
		return fail("rename", both, err)
	}
	return nil
}

// rename goes through descriptors of the two parents, so that a jail holds.
func (f *FS) rename(from, to string) error {
	fromDir, err := f.tree.open(path.Dir(from), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer fromDir.Close()
	toDir, err := f.tree.open(path.Dir(to), os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer toDir.Close()
	return unix.Renameat2(int(fromDir.Fd()), path.Base(from), int(toDir.Fd()), path.Base(to), unix.RENAME_NOREPLACE)
}

// Delete implements hdfs.Sink. A symbolic link is removed, not followed.
func (f *FS) Delete(ctx context.Context, name string) error {
	name, err := start(ctx, "delete", name)
	if err != nil {
		return err
	}
	if name == "/" {
		return fail("delete", name, fmt.Errorf("%w: the root stays", hdfs.ErrInvalid))
	}
	if err := f.tree.removeAll(name); err != nil && !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, fs.ErrNotExist) {
		return fail("delete", name, err)
	}
	return nil
}

// tree is what differs between the machine's root and a jail. Names are clean
// and absolute.
type tree interface {
	stat(name string) (fs.FileInfo, error)
	open(name string, flag int, perm fs.FileMode) (*os.File, error)
	mkdirAll(name string) error
	remove(name string) error
	removeAll(name string) error
	close() error
}

type machine struct{}

func (machine) stat(name string) (fs.FileInfo, error) { return os.Stat(name) }
func (machine) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (machine) mkdirAll(name string) error  { return os.MkdirAll(name, 0o755) }
func (machine) remove(name string) error    { return os.Remove(name) }
func (machine) removeAll(name string) error { return os.RemoveAll(name) }
func (machine) close() error                { return nil }

type jail struct{ root *os.Root }

// below turns an absolute path into one relative to the root.
func below(name string) string {
	if name == "/" {
		return "."
	}
	return filepath.FromSlash(strings.TrimPrefix(name, "/"))
}

func (j jail) stat(name string) (fs.FileInfo, error) { return j.root.Stat(below(name)) }
func (j jail) open(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return j.root.OpenFile(below(name), flag, perm)
}
func (j jail) mkdirAll(name string) error  { return j.root.MkdirAll(below(name), 0o755) }
func (j jail) remove(name string) error    { return j.root.Remove(below(name)) }
func (j jail) removeAll(name string) error { return j.root.RemoveAll(below(name)) }
func (j jail) close() error                { return j.root.Close() }

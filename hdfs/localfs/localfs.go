// Package localfs implements hdfs.FS on a directory tree of this machine: file:///
// in `drover dev`, and in clusters whose machines mount a common tree.
//
// All blocks are on one host. Files are divided into blocks of BlockBytes, so that
// local jobs are split like those on HDFS. With a Root, paths are below it and
// cannot leave it, neither by ".." nor through a symbolic link (os.Root enforces
// that); without one they are paths of the machine.
//
// Rename without overwriting uses renameat2(2) with RENAME_NOREPLACE: Linux only,
// and ErrUnsupported on network file systems that lack it.
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
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
)

// Options configures an FS; the zero value is the whole machine with 64 MiB blocks.
type Options struct {
	// Root is the directory that contains all paths; empty: the machine's root. It
	// must exist.
	Root string
	// BlockBytes is the length of a block; 0: 64 MiB.
	BlockBytes int64
	// Host is the host of all blocks. Empty fields mean 127.0.0.1, localhost and
	// /default-rack.
	Host hdfs.Replica
}

// FS is a directory tree. The caller closes it.
type FS struct {
	tree       fileTree
	blockBytes int64
	host       hdfs.Replica
}

var _ hdfs.FS = (*FS)(nil)

// New opens the root.
func New(options Options) (*FS, error) {
	f := &FS{tree: hostTree{}, blockBytes: options.BlockBytes, host: options.Host}
	if f.blockBytes == 0 {
		f.blockBytes = 64 << 20
	}
	if f.blockBytes < 0 {
		return nil, fmt.Errorf("localfs: %w: blocks of %d bytes", hdfs.ErrInvalid, f.blockBytes)
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
		f.tree = jailTree{root}
	}
	return f, nil
}

// Close closes the root.
func (f *FS) Close() error { return f.tree.close() }

// pathError adds operation, path and error class to an error.
func pathError(operation, name string, err error) error {
	if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
		err = pathErr.Err // the caller adds the path
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

// beginCall makes the checks common to all methods.
func beginCall(ctx context.Context, operation, name string) (string, error) {
	if ctx.Err() != nil {
		return "", pathError(operation, name, context.Cause(ctx))
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
	if !info.Dir && !s.Mode().IsRegular() {
		info.Unreadable = "neither file nor directory"
	}
	if !info.Dir {
		info.LengthBytes, info.Replication, info.BlockSizeBytes = s.Size(), 1, f.blockBytes
	}
	return info
}

// Stat implements hdfs.Source. Symbolic links are followed.
func (f *FS) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	name, err := beginCall(ctx, "stat", name)
	if err != nil {
		return hdfs.Info{}, err
	}
	s, err := f.tree.stat(name)
	if err != nil {
		return hdfs.Info{}, pathError("stat", name, err)
	}
	return f.info(name, s), nil
}

// List implements hdfs.Source. Unreadable is set for dangling symbolic links, links to a directory
// that contains them, entries that this process may not stat, and entries that are neither file nor
// directory.
func (f *FS) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	name, err := beginCall(ctx, "list", name)
	if err != nil {
		return nil, err
	}
	dir, err := f.tree.open(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, pathError("list", name, err)
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return nil, pathError("list", name, err)
	}
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	infos := make([]hdfs.Info, 0, len(entries))
	for _, entry := range entries {
		full, link := path.Join(name, entry.Name()), entry.Type()&fs.ModeSymlink != 0
		s, err := f.tree.stat(full)
		switch {
		case err != nil && link && !errors.Is(err, fs.ErrNotExist):
			infos = append(infos, hdfs.Info{Path: full, Unreadable: "a symbolic link that cannot be followed: " + err.Error()})
			continue
		case err != nil && link:
			infos = append(infos, hdfs.Info{Path: full, Unreadable: "a symbolic link that leads nowhere"})
			continue
		case errors.Is(err, fs.ErrNotExist):
			continue // it was removed meanwhile
		case errors.Is(err, fs.ErrPermission):
			infos = append(infos, hdfs.Info{Path: full, Unreadable: "not to be looked at: " + err.Error()})
			continue
		case err != nil: // skipping the entry would leave it out of a job's input without notice
			return nil, pathError("list", full, err)
		}
		info := f.info(full, s)
		if link && s.IsDir() && f.isAbove(name, s) {
			info.Unreadable = "a symbolic link to a directory that it is in"
		}
		infos = append(infos, info)
	}
	return infos, nil
}

// isAbove reports whether dir is the directory name or a directory above it.
func (f *FS) isAbove(name string, dir fs.FileInfo) bool {
	for {
		if s, err := f.tree.stat(name); err == nil && os.SameFile(s, dir) {
			return true
		}
		if name == "/" {
			return false
		}
		name = path.Dir(name)
	}
}

// openRegular opens a regular file for reading and returns its info.
func (f *FS) openRegular(name string) (*os.File, fs.FileInfo, error) {
	// Without O_NONBLOCK, opening a named pipe would wait for its writer.
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
	name, err := beginCall(ctx, "open", name)
	if err != nil {
		return nil, err
	}
	file, s, err := f.openRegular(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	from, to, err := hdfs.ClampRange(offset, length, s.Size())
	if err != nil {
		file.Close()
		return nil, pathError("open", name, err)
	}
	return &reader{ctx, name, file, from, to}, nil
}

type reader struct {
	ctx      context.Context
	name     string
	file     *os.File
	pos, end int64
}

func (r *reader) Read(b []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, pathError("read", r.name, context.Cause(r.ctx))
	}
	if r.pos >= r.end {
		return 0, io.EOF
	}
	n, err := r.file.ReadAt(b[:min(int64(len(b)), r.end-r.pos)], r.pos)
	r.pos += int64(n)
	switch {
	case n > 0 || len(b) == 0:
		return n, nil
	case err == io.EOF:
		return 0, pathError("read", r.name, fmt.Errorf("%w: it became shorter than %d bytes", hdfs.ErrChanged, r.end))
	default:
		return 0, pathError("read", r.name, err)
	}
}

func (r *reader) Close() error { return r.file.Close() }

// Locations implements hdfs.Source.
func (f *FS) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	name, err := beginCall(ctx, "locations", name)
	if err != nil {
		return hdfs.Layout{}, err
	}
	file, s, err := f.openRegular(name)
	if err != nil {
		return hdfs.Layout{}, pathError("locations", name, err)
	}
	file.Close()
	from, to, err := hdfs.ClampRange(offset, length, s.Size())
	if err != nil {
		return hdfs.Layout{}, pathError("locations", name, err)
	}
	layout := hdfs.Layout{Path: name, FileLengthBytes: s.Size(), Blocks: []hdfs.Block{}}
	for at := from - from%f.blockBytes; from < to && at < to; at += f.blockBytes {
		layout.Blocks = append(layout.Blocks, hdfs.Block{ID: blockID(name, at), OffsetBytes: at,
			LengthBytes: min(f.blockBytes, s.Size()-at), Replicas: []hdfs.Replica{f.host}})
	}
	return layout, nil
}

// blockID derives a block id from file name and offset.
func blockID(name string, offset int64) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%s@%d", name, offset)
	return h.Sum64()
}

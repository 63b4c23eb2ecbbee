package dump

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/tree"
)

// Prefix is the path below which dumps are served: Prefix<attempt>/manifest,
// Prefix<attempt>/file?root=R&path=P, which is the whole file, and
// Prefix<attempt>/data?root=R&path=P, which is what is in no hole of it.
const Prefix = "/dump/v1/"

// Version of the manifest. A client names the newest that it supports in versionHeader; nodes of an earlier Drover name
// none, get wholeFilesVersion, and send that.
const (
	Version           = 2
	wholeFilesVersion = 1 // its files have neither holes nor hard links: each is listed with its SHA-256 and sent as a whole
	versionHeader     = "Drover-Dump-Version"
)

// Limits of a manifest.
const (
	maxFiles         = 1_000_000
	maxPathBytes     = 64 << 20  // of all paths together
	maxManifestBytes = 512 << 20 // bytes
	maxFileRanges    = 100_000   // of one file; what follows is sent with its holes
	maxRanges        = 4_000_000
)

// Root is the closed set of transferred folders.
type Root string

// The roots.
const (
	Image   Root = "image"   // criu's files and their own manifest
	Folder  Root = "folder"  // task, tmp and logs
	Harness Root = "harness" // one file, the program
)

// Roots are all roots in the order of a manifest's files.
var Roots = []Root{Image, Folder, Harness}

// HarnessName is the one file below Harness that is transferred.
const HarnessName = "drover"

// logs is the folder of a Folder into which the loggers write, as root.
const logs = "logs"

// File is one thing below a root.
type File struct {
	Root   Root        `json:"root"`
	Path   string      `json:"path"` // local, with slashes
	Mode   fs.FileMode `json:"mode"`
	Bytes  int64       `json:"bytes,omitempty"`
	SHA256 string      `json:"sha256,omitempty"` // of a regular file that is sent as a whole
	Link   string      `json:"link,omitempty"`   // of a symbolic link
	MTime  int64       `json:"mtime"`            // Unix ns

	// Of a regular file in a Folder, which is sent without its holes.
	Blocks   string  `json:"blocks,omitempty"`    // its sum, as blockSum makes it
	Ranges   []Range `json:"ranges,omitempty"`    // what is in no hole, in order
	HardLink string  `json:"hard_link,omitempty"` // the path of an earlier file of which this is another name
}

// Range is a part of a file: bytes From to To, without To.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// DataBytes returns how many bytes of the file are sent.
func (f *File) DataBytes() (n int64) {
	switch {
	case f.HardLink != "":
		return 0
	case f.SHA256 != "" || !f.Mode.IsRegular():
		return f.Bytes
	}
	for _, r := range f.Ranges {
		n += r.To - r.From
	}
	return n
}

// Manifest lists everything that is transferred for one attempt.
type Manifest struct {
	Version       int    `json:"version"`
	Attempt       string `json:"attempt"`
	Files         []File `json:"files"`       // in the order of Roots, and folders before their content
	Bytes         int64  `json:"bytes"`       // that are sent
	DumpNumber    int32  `json:"dump_number"` // on the source node
	RanNS         int64  `json:"ran_ns"`      // unfrozen running time so far
	Waiting       bool   `json:"waiting,omitempty"`
	WaitedNS      int64  `json:"waited_ns,omitempty"` // as in the node's record
	StartedMS     int64  `json:"started_ms"`          // Unix time of the first start
	HarnessSHA256 string `json:"harness_sha256"`      // names the harness's folder
	Usage
}

// Usage is what the attempt has used so far. Nodes of an earlier Drover name the CPU time alone.
type Usage struct {
	CPUMS       int64 `json:"cpu_ms"`
	MemoryPeak  int64 `json:"memory_peak,omitempty"` // bytes
	ReadBytes   int64 `json:"read_bytes,omitempty"`
	WriteBytes  int64 `json:"write_bytes,omitempty"`
	ThrottledMS int64 `json:"throttled_ms,omitempty"`
}

// List returns the files of a root as a manifest of that version has them, sorted by path, so that folders come before
// their content. O(bytes): it hashes all files, but for holes.
func List(ctx context.Context, version int, root Root, dir string) ([]File, error) {
	switch {
	case root != Folder:
		return list(ctx, root, dir, hashEntry)
	case version <= wholeFilesVersion:
		return list(ctx, root, dir, hashTwice)
	}
	l := hardLinks{content: map[inode]File{}, of: map[string]inode{}}
	files, err := list(ctx, root, dir, l.hash)
	if err != nil {
		return nil, err
	}
	l.resolve(files)
	ranges := 0
	for i := range files {
		if ranges += len(files[i].Ranges); ranges > maxRanges {
			return nil, fault.New(fault.Exhausted, "more than %d holes in the files below %s", maxRanges, dir)
		}
	}
	return files, nil
}

// inode names a file whatever its path is.
type inode struct{ dev, ino uint64 }

// hardLinks finds the files that have several names in a Folder. Each is hashed once.
type hardLinks struct {
	content map[inode]File
	of      map[string]inode // by path
}

// hash is hashSparse for a file that may have been hashed under another name.
func (l *hardLinks) hash(ctx context.Context, e *tree.Entry, f *File) error {
	if e.Stat.Nlink < 2 || isLog(f.Path) {
		return hashSparse(ctx, e, f)
	}
	key := inode{e.Stat.Dev, e.Stat.Ino}
	l.of[f.Path] = key
	if c, ok := l.content[key]; ok {
		f.Bytes, f.Blocks, f.Ranges = c.Bytes, c.Blocks, c.Ranges
		return nil
	}
	err := hashSparse(ctx, e, f)
	l.content[key] = *f
	return err
}

// resolve makes every name of a file but the first a link to that.
func (l *hardLinks) resolve(files []File) {
	first := map[inode]string{}
	for i := range files {
		f := &files[i]
		key, ok := l.of[f.Path]
		if !ok {
			continue
		}
		if at, seen := first[key]; seen {
			f.HardLink, f.Ranges = at, nil
		} else {
			first[key] = f.Path
		}
	}
}

// isLog reports whether a path in a Folder is that of a log, or of the folder of the logs.
func isLog(p string) bool {
	top, _, _ := strings.Cut(p, "/")
	return top == logs
}

// list lists the files of a root, whose sums hash sets.
func list(ctx context.Context, root Root, dir string, hash func(context.Context, *tree.Entry, *File) error) ([]File, error) {
	var files []File
	paths := 0
	err := tree.Walk(ctx, dir, func(e *tree.Entry) error {
		if paths += e.PathBytes(); len(files) >= maxFiles || paths > maxPathBytes {
			return fault.New(fault.Exhausted, "more than %d files, or %d bytes of their paths, below %s", maxFiles, maxPathBytes, dir)
		}
		f, err := describeFile(ctx, root, e, hash)
		if err != nil || f == nil {
			return err
		}
		files = append(files, *f)
		return nil
	})
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, err
}

// describeFile returns nil for files that are not transferred: sockets, which criu
// makes again, and devices, which no task can have.
func describeFile(ctx context.Context, root Root, e *tree.Entry, hash func(context.Context, *tree.Entry, *File) error) (*File, error) {
	f := &File{Root: root, Path: e.Path(), MTime: e.Stat.Mtim.Nano(), Mode: fs.FileMode(e.Stat.Mode & 0o777)}
	var err error
	switch e.Stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = hash(ctx, e, f)
	case unix.S_IFDIR:
		f.Mode |= fs.ModeDir
	case unix.S_IFIFO:
		f.Mode |= fs.ModeNamedPipe
	case unix.S_IFLNK:
		f.Mode |= fs.ModeSymlink
		target := make([]byte, unix.PathMax)
		var n int
		n, err = unix.Readlinkat(e.Dir, e.Name, target)
		f.Link = string(target[:max(0, n)])
	default:
		return nil, nil
	}
	return f, err
}

// hashEntry sets the length and the SHA-256 of a file.
func hashEntry(ctx context.Context, e *tree.Entry, f *File) error {
	in, err := open(e)
	if err != nil {
		return err
	}
	h := sha256.New()
	f.Bytes, err = io.Copy(untilDone{ctx, h}, in)
	f.SHA256 = hex.EncodeToString(h.Sum(nil))
	return errors.Join(err, in.Close())
}

// hashTwice is hashEntry that also sets the sum of the file's blocks.
func hashTwice(ctx context.Context, e *tree.Entry, f *File) error {
	in, err := open(e)
	if err != nil {
		return err
	}
	h, blocks := sha256.New(), newBlockSum()
	f.Bytes, err = io.Copy(io.MultiWriter(untilDone{ctx, h}, blocks), in)
	f.SHA256, f.Blocks = hex.EncodeToString(h.Sum(nil)), blocks.end()
	return errors.Join(err, in.Close())
}

func open(e *tree.Entry) (*os.File, error) {
	fd, err := unix.Openat(e.Dir, e.Name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: e.Name, Err: err}
	}
	return os.NewFile(uintptr(fd), e.Name), nil
}

// untilDone passes on what is written until its context ends.
type untilDone struct {
	ctx context.Context
	to  io.Writer
}

// Write implements io.Writer.
func (u untilDone) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.to.Write(p)
}

// validate refuses a manifest of another version, and one that no node's dump has: the node
// that sends it may be anybody's, and the daemon that fetches is root. What is not refused
// writes below its roots only, puts no link where the daemon itself opens files, and brings
// no harness but the one that it names.
func (m *Manifest) validate() error {
	if m.Version < wholeFilesVersion || m.Version > Version {
		return fault.New(fault.Unsupported, "the manifest of the dump has version %d, this program supports up to %d", m.Version, Version)
	}
	if len(m.Files) > maxFiles {
		return fault.New(fault.Exhausted, "the manifest of the dump lists %d files", len(m.Files))
	}
	for i := range m.Files {
		f := &m.Files[i]
		if !filepath.IsLocal(f.Path) || f.Path != path.Clean(f.Path) || f.Path == "." || f.Bytes < 0 || !f.belongs(m.HarnessSHA256) {
			return fault.New(fault.Corrupt, "the manifest of the dump names %q (%s) below %q", f.Path, f.Mode, f.Root)
		}
	}
	if err := m.validateSparse(); err != nil {
		return err
	}
	if !slices.ContainsFunc(m.Files, func(f File) bool { return f.Root == Harness }) {
		return fault.New(fault.Corrupt, "the manifest of the dump names no harness")
	}
	if min(m.RanNS, m.WaitedNS, m.StartedMS, m.CPUMS, m.MemoryPeak, m.ReadBytes, m.WriteBytes, m.ThrottledMS) < 0 {
		return fault.New(fault.Corrupt, "the manifest of the dump names a negative time or usage")
	}
	if len(m.HarnessSHA256) != 2*sha256.Size || strings.Trim(m.HarnessSHA256, "0123456789abcdef") != "" {
		return fault.New(fault.Corrupt, "the manifest of the dump names the harness %q", m.HarnessSHA256)
	}
	return nil
}

// validateSparse refuses ranges that are not in order within their file, and hard links to anything but an earlier file
// of the task's own. The loggers, as root, write to the logs.
func (m *Manifest) validateSparse() error {
	ranges, linkable := 0, map[string]bool{}
	for i := range m.Files {
		f := &m.Files[i]
		own := f.Root == Folder && f.Mode.IsRegular()
		at := int64(0)
		for k, r := range f.Ranges {
			if r.From < at || k > 0 && r.From == at || r.To <= r.From || r.To > f.Bytes {
				return fault.New(fault.Corrupt, "the manifest of the dump names bytes %d to %d of %q", r.From, r.To, f.Path)
			}
			at = r.To
		}
		if ranges += len(f.Ranges); ranges > maxRanges || len(f.Ranges) > 0 && !own {
			return fault.New(fault.Corrupt, "the manifest of the dump names %d parts of files, the last of %q", ranges, f.Path)
		}
		switch {
		case f.HardLink == "":
			if own && !isLog(f.Path) {
				linkable[f.Path] = true
			}
		case !own || isLog(f.Path) || !linkable[f.HardLink]:
			return fault.New(fault.Corrupt, "the manifest of the dump names %q as another name of %q", f.Path, f.HardLink)
		}
	}
	return nil
}

// find returns a file of the manifest that List has made, nil if there is none.
func (m *Manifest) find(root Root, path string) *File {
	rank := func(r Root) int { return slices.Index(Roots, r) }
	i, ok := slices.BinarySearchFunc(m.Files, path, func(f File, path string) int {
		return cmp.Or(cmp.Compare(rank(f.Root), rank(root)), strings.Compare(f.Path, path))
	})
	if !ok {
		return nil
	}
	return &m.Files[i]
}

// belongs reports whether a file may be where it is. Links and pipes are in the task's own folders
// alone: the daemon, the loggers and criu open what is in the others.
func (f *File) belongs(harness string) bool {
	regular, dir := f.Mode.IsRegular(), f.Mode.IsDir()
	switch top, _, below := strings.Cut(f.Path, "/"); {
	case f.Root == Image:
		return regular || dir
	case f.Root == Harness:
		return regular && f.Path == HarnessName && f.SHA256 == harness
	case f.Root != Folder:
		return false
	case !below:
		return dir
	default:
		return top != logs || regular
	}
}

// proof proves for one path that the caller knows the job's token, without
// revealing the token.
func proof(token, path string) string {
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprint(h, "dump ", path)
	return "Drover-Dump " + hex.EncodeToString(h.Sum(nil))
}

// verifyProof reports whether header is the proof; always false without a token.
func verifyProof(header, token, path string) bool {
	return token != "" && hmac.Equal([]byte(header), []byte(proof(token, path)))
}

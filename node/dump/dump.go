package dump

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/drover-run/drover/internal/fault"
)

// Prefix is the path below which dumps are served: Prefix<attempt>/manifest and
// Prefix<attempt>/file?root=R&path=P.
const Prefix = "/dump/v1/"

// Version of the manifest.
const Version = 1

// Limits of what a manifest lists.
const (
	maxFiles    = 1_000_000
	maxManifest = 512 << 20 // bytes
)

// Root is the closed set of folders that travel.
type Root string

// The roots.
const (
	Image   Root = "image"   // criu's files and their own manifest
	Folder  Root = "folder"  // task, tmp and logs
	Harness Root = "harness" // one file, the program
)

// File is one thing below a root.
type File struct {
	Root   Root        `json:"root"`
	Path   string      `json:"path"` // local, with slashes
	Mode   fs.FileMode `json:"mode"`
	Bytes  int64       `json:"bytes,omitempty"`
	SHA256 string      `json:"sha256,omitempty"` // of a regular file
	Link   string      `json:"link,omitempty"`   // of a symbolic link
	MTime  int64       `json:"mtime"`            // Unix ns
}

// Manifest is all that travels of one attempt.
type Manifest struct {
	Version   int    `json:"version"`
	Attempt   string `json:"attempt"`
	Files     []File `json:"files"` // folders before what is in them
	Bytes     int64  `json:"bytes"`
	Dump      int32  `json:"dump"`       // the holder's number of it
	RanNS     int64  `json:"ran_ns"`     // thawed running time so far
	CPUMS     int64  `json:"cpu_ms"`     // CPU time so far
	StartedMS int64  `json:"started_ms"` // Unix time of the first start
	Program   string `json:"program"`    // sha256 that names the harness's folder
}

// List makes the files of a root, in order of path. O(bytes): it sums all up.
func List(ctx context.Context, root Root, dir string) ([]File, error) {
	var files []File
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil || rel == "." {
			return err
		}
		f, err := describe(root, rel, path)
		if err != nil || f == nil {
			return err
		}
		if len(files) >= maxFiles {
			return fault.New(fault.Exhausted, "more than %d files below %s", maxFiles, dir)
		}
		files = append(files, *f)
		return nil
	})
	return files, err
}

// describe gives nil for what does not travel: sockets, which criu makes anew,
// and devices, which no task can have.
func describe(root Root, rel, path string) (*File, error) {
	st, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	f := &File{Root: root, Path: filepath.ToSlash(rel), Mode: st.Mode(), MTime: st.ModTime().UnixNano()}
	switch t := st.Mode().Type(); t {
	case 0:
		f.Bytes, f.SHA256, err = sum(path)
	case fs.ModeDir, fs.ModeNamedPipe:
	case fs.ModeSymlink:
		f.Link, err = os.Readlink(path)
	default:
		return nil, nil
	}
	return f, err
}

func sum(path string) (int64, string, error) {
	in, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return 0, "", err
	}
	h := sha256.New()
	n, err := io.Copy(h, in)
	return n, hex.EncodeToString(h.Sum(nil)), errors.Join(err, in.Close())
}

// check refuses a manifest that could write outside its roots or that is not of
// this version.
func (m *Manifest) check() error {
	if m.Version != Version {
		return fault.New(fault.Unsupported, "the manifest of the dump has version %d, this program knows %d", m.Version, Version)
	}
	if len(m.Files) > maxFiles {
		return fault.New(fault.Exhausted, "the manifest of the dump lists %d files", len(m.Files))
	}
	for i := range m.Files {
		f := &m.Files[i]
		if !slices.Contains([]Root{Image, Folder, Harness}, f.Root) || !filepath.IsLocal(f.Path) || f.Bytes < 0 {
			return fault.New(fault.Corrupt, "the manifest of the dump names %q below %q", f.Path, f.Root)
		}
	}
	if len(m.Program) != 2*sha256.Size || strings.Trim(m.Program, "0123456789abcdef") != "" {
		return fault.New(fault.Corrupt, "the manifest of the dump names the harness %q", m.Program)
	}
	return nil
}

// Proof shows for one path that the asker knows the job's token, without
// showing the token.
func Proof(token, path string) string {
	h := hmac.New(sha256.New, []byte(token))
	fmt.Fprint(h, "dump ", path)
	return "Drover-Dump " + hex.EncodeToString(h.Sum(nil))
}

// Proven tells whether a header is the proof; without a token nothing is.
func Proven(header, token, path string) bool {
	return token != "" && hmac.Equal([]byte(header), []byte(Proof(token, path)))
}

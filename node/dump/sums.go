package dump

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/internal/tree"
)

// blockSumsVersion is the version of files of checksums from which on these are sums of blocks (blockSum) in place of the
// SHA-256 of whole files.
const blockSumsVersion = 2

// sums is the content of a file of checksums, one line with a checksum of its own.
type sums struct {
	Version int    `json:"version"`
	Files   []File `json:"files"`
}

// WriteSums writes the checksums of the files in parts of the folder dir of a suspended task, so that
// damage of a file is found when the task goes on or moves. O(bytes), without those of holes.
func WriteSums(ctx context.Context, file, dir string, parts ...string) error {
	s := sums{Version: blockSumsVersion}
	var err error
	if s.Files, err = listParts(ctx, dir, parts, hashBlocks); err != nil {
		return err
	}
	for i := range s.Files {
		s.Files[i].SHA256, s.Files[i].Blocks = s.Files[i].Blocks, ""
	}
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	out, err := os.OpenFile(file+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(append(linesum.Seal(b), '\n'))
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// CheckSums returns a fault.Corrupt that names the first file of dir that is not as WriteSums found it.
// Without a file of checksums there is nothing to check, and no file of dir is read. O(bytes), without those of holes.
func CheckSums(ctx context.Context, file, dir string, parts ...string) error {
	want, err := readSums(file)
	if want == nil || err != nil {
		return err
	}
	hash := hashBlocks
	if want.Version < blockSumsVersion {
		hash = hashEntry
	}
	have, err := listParts(ctx, dir, parts, hash)
	if err != nil {
		return err
	}
	return want.compare(have)
}

// CompareSums is CheckSums for files of dir that List has listed already, sorted by path.
func CompareSums(ctx context.Context, file, dir string, have []File, parts ...string) error {
	want, err := readSums(file)
	if want == nil || err != nil {
		return err
	}
	if want.Version < blockSumsVersion { // it has the sums of whole files, which the list has not
		return CheckSums(ctx, file, dir, parts...)
	}
	return want.compare(have)
}

// readSums reads a file of checksums. It returns nil if there is none.
func readSums(file string) (*sums, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := linesum.Check(b); err != nil || !linesum.Sealed(b) || !bytes.HasSuffix(b, []byte("\n")) {
		return nil, fault.New(fault.Corrupt, "the checksums of the task's folder are damaged (%s)", file)
	}
	want := &sums{}
	if err := json.Unmarshal(b, want); err != nil {
		return nil, fault.New(fault.Corrupt, "the checksums of the task's folder are damaged (%s): %w", file, err)
	}
	return want, nil
}

// compare compares the files with those that a folder has, sorted by path.
func (want *sums) compare(have []File) error {
	for i := range want.Files {
		w := &want.Files[i]
		k, found := slices.BinarySearchFunc(have, w.Path, func(f File, p string) int { return cmp.Compare(f.Path, p) })
		if !found {
			return fault.New(fault.Corrupt, "the task's folder is damaged: %q is gone", w.Path)
		}
		h := &have[k]
		sum := h.SHA256
		if want.Version >= blockSumsVersion {
			sum = h.Blocks
		}
		if h.Mode.Type() != w.Mode.Type() || h.Bytes != w.Bytes || sum != w.SHA256 || h.Link != w.Link {
			return fault.New(fault.Corrupt, "the task's folder is damaged: %q is not what it was when the task was suspended", w.Path)
		}
	}
	return nil
}

// listParts lists the files in parts of dir, sorted by path.
func listParts(ctx context.Context, dir string, parts []string, hash func(context.Context, *tree.Entry, *File) error) ([]File, error) {
	var all []File
	for _, part := range parts {
		files, err := list(ctx, Folder, filepath.Join(dir, part), hash)
		if err != nil {
			return nil, err
		}
		for i := range files {
			files[i].Path = path.Join(part, files[i].Path)
		}
		all = append(all, files...)
	}
	slices.SortFunc(all, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return all, nil
}

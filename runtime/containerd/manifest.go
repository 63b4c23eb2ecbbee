package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

const (
	manifestName    = "manifest.json"
	manifestVersion = 4 // versions 1 (sha256), 2 (crc32c) and 3 (dumped all mounts) can still be read
)

// manifest proves that a dump is complete.
type manifest struct {
	Version int            `json:"version"`
	ID      string         `json:"id"` // of the container
	Files   []manifestFile `json:"files"`
}

// manifestFile has exactly one of the sums.
type manifestFile struct {
	Name   string `json:"name"` // below image/
	Bytes  int64  `json:"bytes"`
	XXH64  string `json:"xxh64,omitempty"`
	CRC32C string `json:"crc32c,omitempty"` // of version 2
	SHA256 string `json:"sha256,omitempty"` // of version 1
}

func (f manifestFile) sum() string {
	switch {
	case f.SHA256 != "":
		return "sha256 " + f.SHA256
	case f.CRC32C != "":
		return "crc32c " + f.CRC32C
	default:
		return "xxh64 " + f.XXH64
	}
}

// writeManifest syncs the image, completes its sums, and then durably writes the manifest.
// fault.Unavailable: the dump is whole, and the disk has no room for the manifest now. An error of
// the image's own sync is never that: what the disk did not take then is lost, and the next sync
// would not say so.
func writeManifest(ctx context.Context, dir, id string, behind *follower) error {
	files, err := behind.finish(ctx)
	if err != nil {
		return err
	}
	err = manifest{manifestVersion, id, files}.save(dir)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.Unavailable, "the dump is whole, and waits for room on the disk: %w", err)
	}
	return err
}

// save durably writes the manifest.
func (m manifest) save(dir string) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, manifestName+".new")
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	for _, name := range []string{tmp, filepath.Join(dir, imageDir)} {
		if err := syncFile(name); err != nil {
			return err
		}
	}
	if err := os.Rename(tmp, filepath.Join(dir, manifestName)); err != nil {
		return err
	}
	return syncFile(dir)
}

func syncFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func readManifest(dir string) (manifest, error) {
	var m manifest
	b, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fault.New(fault.Corrupt, "%s is not a complete dump: %w", dir, err)
	}
	if err == nil {
		err = decodeManifest(b, &m)
	}
	if err != nil {
		return m, fault.New(fault.Corrupt, "dump %s: %w", dir, err)
	}
	if m.Version < 1 || m.Version > manifestVersion {
		return m, fault.New(fault.Unsupported, "dump %s: its manifest has version %d, this program supports %d", dir, m.Version, manifestVersion)
	}
	return m, nil
}

// decodeManifest refuses fields that no version has: a key that lost a bit would take the
// files, and with them their sums, out of the manifest. A version to come passes, for its
// number is to be named.
func decodeManifest(b []byte, m *manifest) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	err := dec.Decode(m)
	if m.Version > manifestVersion {
		return nil
	}
	if err == nil && dec.More() {
		err = errors.New("its manifest goes on after its end")
	}
	if err == nil && len(m.Files) == 0 {
		err = errors.New("its manifest has no files")
	}
	return err
}

// checkSizes detects missing and truncated files without reading them.
func (m manifest) checkSizes(dir string) error {
	dir = filepath.Join(dir, imageDir)
	for _, f := range m.Files {
		st, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil || st.Size() != f.Bytes || f.Name != filepath.Base(f.Name) {
			return fault.New(fault.Corrupt, "dump %s: file %s: want %d bytes: %v", dir, f.Name, f.Bytes, sizeOrError(st, err))
		}
	}
	return nil
}

// verify reads all files and compares their sums. O(bytes).
func (m manifest) verify(ctx context.Context, dir string) error {
	dir = filepath.Join(dir, imageDir)
	for _, f := range m.Files {
		got, err := sumFile(ctx, filepath.Join(dir, f.Name), f.method())
		if err != nil {
			return err
		}
		if got != f {
			return fault.New(fault.Corrupt, "dump %s: file %s: %s, want %s", dir, f.Name, got.sum(), f.sum())
		}
	}
	return nil
}

func sizeOrError(st fs.FileInfo, err error) any {
	if err != nil {
		return err
	}
	return fmt.Sprintf("it has %d", st.Size())
}

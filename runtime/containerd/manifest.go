package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/internal/fault"
)

const (
	manifestName    = "manifest.json"
	manifestVersion = 2 // 1 had sha256 alone, and is still read
)

// castagnoli is what most processors compute themselves. The sum is against
// damage, not against an enemy, for whom the folder is closed; what travels to
// another node has sha256 besides (package node/dump). On machines without
// instructions for sha256 that took longer than criu's dump.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// manifest proves that a dump is whole.
type manifest struct {
	Version int            `json:"version"`
	ID      string         `json:"id"` // of the container
	Files   []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"` // below image/
	Bytes  int64  `json:"bytes"`
	CRC32C string `json:"crc32c,omitempty"`
	SHA256 string `json:"sha256,omitempty"` // of version 1, in place of CRC32C
}

func (f manifestFile) sum() string {
	if f.SHA256 != "" {
		return "sha256 " + f.SHA256
	}
	return "crc32c " + f.CRC32C
}

// writeManifest sums the image up, and makes it and itself durable.
func writeManifest(ctx context.Context, dir, id string) error {
	files, err := sums(ctx, filepath.Join(dir, imageDir))
	if err != nil {
		return err
	}
	b, err := json.MarshalIndent(manifest{manifestVersion, id, files}, "", "  ")
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

// sums reads, sums and syncs all files of the image, in order of name.
func sums(ctx context.Context, dir string) ([]manifestFile, error) {
	all, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []manifestFile
	for _, e := range all {
		if !e.Type().IsRegular() { // criu writes no others that a restore reads
			continue
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, err := sum(filepath.Join(dir, e.Name()), false)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

// sum reads a file, and makes it durable.
func sum(path string, old bool) (manifestFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifestFile{}, err
	}
	defer f.Close()
	var h hash.Hash = crc32.New(castagnoli)
	if old {
		h = sha256.New()
	}
	m := manifestFile{Name: filepath.Base(path)}
	m.Bytes, err = io.CopyBuffer(h, struct{ io.Reader }{f}, make([]byte, sumBuffer))
	if err == nil {
		err = f.Sync()
	}
	if text := hex.EncodeToString(h.Sum(nil)); old {
		m.SHA256 = text
	} else {
		m.CRC32C = text
	}
	return m, err
}

const sumBuffer = 256 << 10 // bytes read at once

func readManifest(dir string) (manifest, error) {
	var m manifest
	b, err := os.ReadFile(filepath.Join(dir, manifestName))
	if errors.Is(err, fs.ErrNotExist) {
		return m, fault.New(fault.Corrupt, "%s is no whole dump: %w", dir, err)
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return m, fault.New(fault.Corrupt, "dump %s: %w", dir, err)
	}
	if m.Version != manifestVersion && m.Version != 1 {
		return m, fault.New(fault.Unsupported, "dump %s: version %d of its manifest: this program knows %d", dir, m.Version, manifestVersion)
	}
	return m, nil
}

// verify compares sizes first, which costs nothing, and then sums.
func (m manifest) verify(ctx context.Context, dir string) error {
	dir = filepath.Join(dir, imageDir)
	for _, f := range m.Files {
		st, err := os.Lstat(filepath.Join(dir, f.Name))
		if err != nil || st.Size() != f.Bytes || f.Name != filepath.Base(f.Name) {
			return fault.New(fault.Corrupt, "dump %s: file %s: want %d bytes: %v", dir, f.Name, f.Bytes, sizeOr(st, err))
		}
	}
	for _, f := range m.Files {
		if err := ctx.Err(); err != nil {
			return err
		}
		got, err := sum(filepath.Join(dir, f.Name), f.SHA256 != "")
		if err != nil {
			return err
		}
		if got != f {
			return fault.New(fault.Corrupt, "dump %s: file %s: %s, want %s", dir, f.Name, got.sum(), f.sum())
		}
	}
	return nil
}

func sizeOr(st fs.FileInfo, err error) any {
	if err != nil {
		return err
	}
	return fmt.Sprintf("it has %d", st.Size())
}

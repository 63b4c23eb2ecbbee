package containerd

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/internal/fault"
)

const (
	manifestName    = "manifest.json"
	manifestVersion = 1
)

// manifest proves that a dump is whole.
type manifest struct {
	Version int            `json:"version"`
	ID      string         `json:"id"` // of the container
	Files   []manifestFile `json:"files"`
}

type manifestFile struct {
	Name   string `json:"name"` // below image/
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
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
		f, err := sum(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return files, nil
}

func sum(path string) (manifestFile, error) {
	f, err := os.Open(path)
	if err != nil {
		return manifestFile{}, err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err == nil {
		err = f.Sync()
	}
	return manifestFile{filepath.Base(path), n, hex.EncodeToString(h.Sum(nil))}, err
}

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
	if m.Version != manifestVersion {
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
		got, err := sum(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		if got != f {
			return fault.New(fault.Corrupt, "dump %s: file %s: sha256 %s, want %s", dir, f.Name, got.SHA256, f.SHA256)
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

package node

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// programStore owns the programs that tasks and helpers run, each in a folder named by its sha256,
// so that the program of a started attempt never changes.
type programStore struct {
	dir     string // of their folders
	harness string // the current harness
	helper  string // the current helper program; "" without one
}

// installPrograms stores the programs of the configuration.
func installPrograms(cfg *Config) (p programStore, err error) {
	p.dir = filepath.Join(cfg.Data, "harness")
	if p.harness, err = installProgram(cfg.Data, cfg.Harness, cfg.NoSync); err != nil {
		return p, err
	}
	if len(cfg.Helper) > 0 {
		p.helper, err = installProgram(cfg.Data, cfg.Helper[0], cfg.NoSync)
	}
	return p, err
}

// collect removes harness and helper programs of earlier versions, age after they
// were last current, so that a task dumped with one still finds it. It must not be
// called while an attempt that may use one is alive.
func (p programStore) collect(now time.Time, age time.Duration) (removed []string, err error) {
	folders, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	for _, f := range folders {
		path := filepath.Join(p.dir, f.Name())
		if path == filepath.Dir(p.harness) || path == filepath.Dir(p.helper) {
			continue
		}
		st, e := f.Info()
		if e != nil || now.Sub(st.ModTime()) < age {
			err = errors.Join(err, e)
			continue
		}
		if e := os.RemoveAll(path); e != nil {
			err = errors.Join(err, e)
			continue
		}
		removed = append(removed, f.Name())
	}
	return removed, err
}

// installProgram copies the harness or helper program into a folder named by its
// sha256, where every tenant may execute it, and returns the copy's path. A task
// dumped with a program must find the same bytes at restore, also after an
// upgrade of the daemon. A hard link would change with an upgrade in place, so
// it is a copy, durable unless noSync. O(size) at the start of the daemon.
func installProgram(data, program string, noSync bool) (string, error) {
	in, err := os.Open(program)
	if err != nil {
		return "", fmt.Errorf("program: %w", err)
	}
	defer in.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, in); err != nil {
		return "", fmt.Errorf("program %s: %w", program, err)
	}
	digest := hex.EncodeToString(sum.Sum(nil))
	dir := filepath.Join(data, "harness", digest)
	path := filepath.Join(dir, "drover")
	if hasDigest(path, digest) {
		now := time.Now() // last time it was current: see collect
		return path, os.Chtimes(dir, now, now)
	}
	if err := errors.Join(os.MkdirAll(dir, 0o711), os.Chmod(filepath.Join(data, "harness"), 0o711)); err != nil {
		return "", err
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	return path, writeProgram(path, in, noSync)
}

// hasDigest reports whether a file has the sha256 digest. A file that the disk has damaged does
// not, and is written again.
func hasDigest(path, digest string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	sum := sha256.New()
	_, err = io.Copy(sum, f)
	return err == nil && hex.EncodeToString(sum.Sum(nil)) == digest
}

// writeProgram writes an executable file atomically.
func writeProgram(path string, in io.Reader, noSync bool) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(tmp, in)
	if !noSync {
		err = errors.Join(err, tmp.Sync())
	}
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		if e := os.Remove(tmp.Name()); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

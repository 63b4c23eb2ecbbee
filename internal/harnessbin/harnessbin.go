// Package harnessbin carries the harness program inside the drover binary. The
// build puts it into the folder bin first (make build); a drover that was
// built without it serves as its own harness, which starts slower and needs
// more memory in each task.
package harnessbin

import (
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed all:bin
var bin embed.FS

// Install writes the harness into dir and gives its path; "" where this binary
// carries none. A file that is there already with the same bytes stays.
func Install(dir string) (string, error) {
	b, err := bin.ReadFile("bin/harness")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "harness")
	if old, err := os.ReadFile(path); err == nil && string(old) == string(b) {
		return path, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	tmp := path + ".new"
	if err := os.WriteFile(tmp, b, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

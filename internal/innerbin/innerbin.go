// Package innerbin carries the small programs that run in and beside tasks
// inside the drover binary: the harness (cmd/drover-harness) and the helper
// and logger (cmd/drover-helper). The build puts them into the folder bin first
// (make build); a drover that was built without them serves as its own, which
// starts slower and needs more memory in each task.
package innerbin

import (
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed all:bin
var bin embed.FS

// Names of the programs.
const (
	Harness = "harness"
	Helper  = "helper"
)

// Install writes a program into dir and gives its path; "" where this binary
// carries none. A file that is there already with the same bytes stays.
func Install(dir, name string) (string, error) {
	b, err := bin.ReadFile("bin/" + name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
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

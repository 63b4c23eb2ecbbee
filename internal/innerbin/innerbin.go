// Package innerbin embeds the small programs that run in and beside tasks in the drover binary: the
// harness (cmd/drover-harness), the helper (cmd/drover-helper), the logger (cmd/drover-logger) and
// process 1 of reused containers (cmd/drover-init). The build copies them to the folder bin first
// (make build). A drover binary built without them uses itself instead, which starts slower and
// needs more memory per task.
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
	Logger  = "logger"
	Init    = "init"
)

// Install writes a program into dir and returns its path, or "" if this binary does not embed it.
// An existing file with equal content is not replaced.
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

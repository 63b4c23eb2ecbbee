package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/runtime"
)

// brokenEngine is an engine in which one container and one image cannot be removed.
type brokenEngine struct{ removed []string }

func (e *brokenEngine) List(context.Context) ([]runtime.Status, error) {
	return []runtime.Status{{ID: "1.0.0.1.1"}, {ID: "stuck"}, {ID: "gone"}}, nil
}

func (e *brokenEngine) Leftovers(context.Context) ([]runtime.Leftover, error) {
	return []runtime.Leftover{{ID: "stuck", Listed: true}, {ID: "9.0.0.1.1"}}, nil
}

func (e *brokenEngine) ListImages(context.Context) ([]runtime.Image, error) {
	return []runtime.Image{{Digest: "sha256:ab"}, {Digest: "used"}}, nil
}

func (e *brokenEngine) Remove(_ context.Context, digest string) error {
	if digest == "used" {
		return errors.New("it is used")
	}
	e.removed = append(e.removed, digest)
	return nil
}

func (e *brokenEngine) ReleaseImports(context.Context) error {
	e.removed = append(e.removed, "imports")
	return nil
}

func (e *brokenEngine) Delete(_ context.Context, id string) error {
	switch id {
	case "stuck":
		return errors.New("device or resource busy")
	case "gone":
		return fault.New(fault.NotFound, "gone")
	}
	e.removed = append(e.removed, id)
	return nil
}

// What stays keeps nothing else from going, is named, and does not count as removed.
func TestCleanEngineGoesOn(t *testing.T) {
	e := &brokenEngine{}
	var out strings.Builder
	err := cleanEngine(t.Context(), e, &out)
	if err == nil || err.Error() != "container stuck: device or resource busy\nimage used: it is used" {
		t.Errorf("%v", err)
	}
	if !slices.Equal(e.removed, []string{"1.0.0.1.1", "9.0.0.1.1", "sha256:ab", "imports"}) || out.String() != "removed 2 containers and 1 image; 2 could not be removed\n" {
		t.Errorf("removed %v, said %q", e.removed, out.String())
	}
}

// Who may not open the socket of containerd is told to be root, and not to start it.
func TestCleanNeedsRoot(t *testing.T) {
	for want, c := range map[string]struct {
		errno syscall.Errno
		class error
	}{
		"containerd: dial unix s: connect: permission denied; drover node clean needs root":                   {syscall.EACCES, fault.Denied},
		"containerd: dial unix s: connect: connection refused; start it, or name its socket with -containerd": {syscall.ECONNREFUSED, fault.Unavailable},
	} {
		err := containerdError(&net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: "s", Net: "unix"}, Err: os.NewSyscallError("connect", c.errno)})
		if err.Error() != want || !errors.Is(err, c.class) {
			t.Errorf("%v; want %s", err, want)
		}
	}
}

// TestCleanTakesTheNodesSettings: folder and socket are those of the node's file, and the secrets of its tasks go, also
// where containerd is gone already.
func TestCleanTakesTheNodesSettings(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	secrets := node.SecretFolder(data)
	if err := os.MkdirAll(filepath.Join(secrets, "1.0.0.1.1"), 0o700); errors.Is(err, os.ErrPermission) {
		t.Skip("not proved here: that the secrets in memory are removed; only root has such")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(secrets) })
	writeFile(t, filepath.Join(secrets, "1.0.0.1.1", "env"), "TOKEN=secret")
	file, socket := filepath.Join(dir, "node.hcl"), filepath.Join(dir, "gone.sock")
	writeFile(t, file, "coordinator = \"unix:///c\"\ndata = \""+data+"\"\ncontainerd = \""+socket+"\"\n")
	if _, err := droverOutput(t, "node", "clean", "-config", file); !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), socket) {
		t.Errorf("without containerd: %v", err)
	}
	if _, err := os.Stat(secrets); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the secrets are left: %v", err)
	}
}

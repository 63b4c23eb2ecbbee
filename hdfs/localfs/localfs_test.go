package localfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/hdfstest"
	"github.com/drover-run/drover/hdfs/localfs"
)

func open(t *testing.T, options localfs.Options) *localfs.FS {
	t.Helper()
	f, err := localfs.New(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestConformance(t *testing.T) {
	t.Run("machine", func(t *testing.T) {
		f := open(t, localfs.Options{BlockBytes: hdfstest.BlockBytes})
		hdfstest.Run(t, f, hdfstest.Options{Dir: t.TempDir()})
	})
	t.Run("jail", func(t *testing.T) {
		f := open(t, localfs.Options{Root: t.TempDir(), BlockBytes: hdfstest.BlockBytes})
		hdfstest.Run(t, f, hdfstest.Options{Dir: "/"})
	})
}

func TestJailConfinesPaths(t *testing.T) {
	outside, root := t.TempDir(), t.TempDir()
	secret := filepath.Join(outside, "secret")
	if err := os.WriteFile(secret, []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"dir": outside, "file": secret, "up": "../" + filepath.Base(outside)} {
		if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "mine"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f, ctx := open(t, localfs.Options{Root: root}), t.Context()
	for _, name := range []string{"/dir/secret", "/file", "/up/secret"} {
		if _, err := hdfs.ReadFile(ctx, f, name, 100); err == nil {
			t.Errorf("%s was read from outside", name)
		}
	}
	for _, name := range []string{"/dir/new", "/up/new"} {
		if err := hdfs.WriteFile(ctx, f, name, []byte("x"), hdfs.CreateOptions{}); err == nil {
			t.Errorf("%s was written outside", name)
		}
		if err := f.Mkdir(ctx, name); err == nil {
			t.Errorf("%s was made outside", name)
		}
		if err := f.Rename(ctx, "/mine", name); err == nil {
			t.Errorf("moved to %s outside", name)
		}
		if err := f.Delete(ctx, "/dir/secret"); err == nil {
			t.Error("deleted through a link")
		}
	}
	if err := f.Delete(ctx, "/dir"); err != nil { // the link itself may go
		t.Error(err)
	}
	entries, err := os.ReadDir(outside)
	if err != nil || len(entries) != 1 || entries[0].Name() != "secret" {
		t.Errorf("outside: %v %v", entries, err)
	}
}

func TestNonRegularFiles(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600); err != nil {
		t.Skip("not proved here: that a named pipe is refused; none can be made: ", err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling")); err != nil {
		t.Fatal(err)
	}
	f := open(t, localfs.Options{Root: dir})
	if _, err := f.Open(t.Context(), "/pipe", 0, -1); !errors.Is(err, hdfs.ErrUnsupported) {
		t.Errorf("open of a named pipe: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "sub", "deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"sub/deep/up": "../../sub", "sub/deep/self": ".", "sub/aside": "../other", "other": "sub/deep", "self": "self"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for folder, want := range map[string]string{
		"/":         "/dangling a symbolic link that leads nowhere, /other, /pipe neither file nor directory, /self a symbolic link that cannot be followed: statat self: too many levels of symbolic links, /sub",
		"/sub":      "/sub/aside, /sub/deep",
		"/sub/deep": "/sub/deep/self a symbolic link to a directory that it is in, /sub/deep/up a symbolic link to a directory that it is in",
	} {
		entries, err := f.List(t.Context(), folder)
		var got []string
		for _, e := range entries {
			got = append(got, strings.TrimSpace(e.Path+" "+e.Unreadable))
		}
		if err != nil || strings.Join(got, ", ") != want {
			t.Errorf("list of %s: %q %v, want %s", folder, got, err, want)
		}
	}
	if i, err := f.Stat(t.Context(), "/pipe"); err != nil || i.Unreadable == "" {
		t.Errorf("stat of a named pipe: %+v %v", i, err)
	}
}

func TestSyncedFileIsVisible(t *testing.T) {
	f := open(t, localfs.Options{Root: t.TempDir()})
	if err := hdfs.WriteFile(t.Context(), f, "/file", []byte("x"), hdfs.CreateOptions{Sync: true}); err != nil {
		t.Fatal(err)
	}
	if b, err := hdfs.ReadFile(t.Context(), f, "/file", 10); err != nil || string(b) != "x" {
		t.Errorf("%q %v", b, err)
	}
}

func TestShrunkFileIsDetected(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1000), 0o644); err != nil {
		t.Fatal(err)
	}
	f := open(t, localfs.Options{Root: dir})
	r, err := f.Open(t.Context(), "/file", 500, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Truncate(filepath.Join(dir, "file"), 100); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 10)); !errors.Is(err, hdfs.ErrChanged) {
		t.Errorf("read: %v", err)
	}
}

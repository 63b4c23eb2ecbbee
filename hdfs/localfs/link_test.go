package localfs_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/localfs"
)

// A link has the properties of a file that Create makes, and the bytes of the given file.
func TestLink(t *testing.T) {
	for name, c := range map[string]struct {
		to      string
		options hdfs.CreateOptions
		prepare func(t *testing.T, dir, source string)
		want    error
	}{
		"a new name":                   {to: "/out/file"},
		"to disk":                      {to: "/out/file", options: hdfs.CreateOptions{Sync: true}},
		"a name that is taken":         {to: "/out/old", want: hdfs.ErrExist},
		"over a file":                  {to: "/out/old", options: hdfs.CreateOptions{Overwrite: true}},
		"over a folder":                {to: "/out", options: hdfs.CreateOptions{Overwrite: true}, want: hdfs.ErrExist},
		"a folder that is missing":     {to: "/none/file", want: hdfs.ErrNotExist},
		"a file with attributes":       {to: "/out/file", prepare: setAttribute, want: hdfs.ErrUnsupported},
		"a file of another user":       {to: "/out/file", prepare: giveAway, want: hdfs.ErrUnsupported},
		"a folder that passes on ACLs": {to: "/out/file", prepare: setDefaultACL, want: hdfs.ErrUnsupported},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			source := filepath.Join(root, "source")
			write(t, source, "new", 0o600)
			if err := os.Mkdir(filepath.Join(root, "out"), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(root, "out/old"), "old", 0o644)
			if c.prepare != nil {
				c.prepare(t, filepath.Join(root, "out"), source)
			}
			for where, f := range map[string]*localfs.FS{"jail": open(t, localfs.Options{Root: root}), "machine": open(t, localfs.Options{})} {
				to := c.to
				if where == "machine" {
					to = root + to
				}
				file, err := os.Open(source)
				if err != nil {
					t.Fatal(err)
				}
				defer file.Close()
				err = f.Link(t.Context(), file, to, c.options)
				if !errors.Is(err, c.want) {
					t.Fatalf("%s: %v, want %v", where, err, c.want)
				}
				made := filepath.Join(root, c.to)
				if err != nil {
					if _, err := os.Stat(filepath.Join(root, "out/file")); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s: a file is left behind: %v", where, err)
					}
					continue
				}
				checkLinked(t, source, made, filepath.Join(root, "out"))
				if err := os.Remove(made); err != nil {
					t.Fatal(err)
				}
				write(t, filepath.Join(root, "out/old"), "old", 0o644)
			}
		})
	}
}

// checkLinked compares a link with its source, and with a new file in its folder.
func checkLinked(t *testing.T, source, made, dir string) {
	t.Helper()
	a, aErr := os.Stat(source)
	b, bErr := os.Stat(made)
	if aErr != nil || bErr != nil || !os.SameFile(a, b) {
		t.Fatalf("%s is no link: %v %v", made, aErr, bErr)
	}
	other := filepath.Join(dir, "other")
	f, err := os.Create(other)
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(other)
	defer f.Close()
	if s, err := f.Stat(); err != nil || b.Mode() != s.Mode()&^0o022 {
		t.Errorf("permissions %v, those of a new file are %v (%v)", b.Mode(), s.Mode(), err)
	}
}

func TestLinkToAnotherFileSystem(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join("/dev/shm", "drover-"+filepath.Base(filepath.Dir(dir)))
	write(t, source, "new", 0o600)
	defer os.Remove(source)
	file, err := os.Open(source)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a, aErr := file.Stat()
	b, bErr := os.Stat(dir)
	if aErr != nil || bErr != nil || device(a) == device(b) {
		t.Skip("not proved here: that another file system is told; there is only one: ", aErr, bErr)
	}
	if err := open(t, localfs.Options{}).Link(t.Context(), file, dir+"/file", hdfs.CreateOptions{}); !errors.Is(err, hdfs.ErrUnsupported) {
		t.Errorf("%v, want %v", err, hdfs.ErrUnsupported)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
}

func device(s fs.FileInfo) uint64 { return s.Sys().(*syscall.Stat_t).Dev }

func write(t *testing.T, name, content string, perm fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), perm); err != nil {
		t.Fatal(err)
	}
}

func setAttribute(t *testing.T, _, source string) {
	if err := unix.Setxattr(source, "user.drover", []byte("x"), 0); err != nil {
		t.Skip("not proved here: that a file with attributes is copied; it can have none: ", err)
	}
}

func giveAway(t *testing.T, _, source string) {
	if err := os.Chown(source, 12345, -1); err != nil {
		t.Skip("not proved here: that a file of another user is copied; only root can give one away: ", err)
	}
}

// setDefaultACL lets user 12345 read all files created in the folder.
func setDefaultACL(t *testing.T, dir, _ string) {
	acl := "\x02\x00\x00\x00" + "\x01\x00\x07\x00\xff\xff\xff\xff" + "\x02\x00\x04\x00\x39\x30\x00\x00" +
		"\x04\x00\x05\x00\xff\xff\xff\xff" + "\x10\x00\x05\x00\xff\xff\xff\xff" + "\x20\x00\x05\x00\xff\xff\xff\xff"
	if err := unix.Setxattr(dir, "system.posix_acl_default", []byte(acl), 0); err != nil {
		t.Skip("not proved here: that a folder with a default ACL gets copies; it can have none: ", err)
	}
}

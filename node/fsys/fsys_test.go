package fsys

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
)

func TestOpen(t *testing.T) {
	all := Config{NameNodes: []string{"nn:8020"}, Services: map[string][]string{"prod": {"a:1", "b:1"}}, Local: true}
	for name, c := range map[string]struct {
		config Config
		uri    string
		err    error
	}{
		"the default NameNode":                {all, "hdfs:///a", nil},
		"a NameNode on the list":              {Config{Allowed: []string{"other:9000"}}, "hdfs://other:9000/a", nil},
		"any NameNode":                        {Config{Allowed: []string{"*"}}, "hdfs://other:9000/a", nil},
		"a NameNode not on the list":          {all, "hdfs://other:9000/a", fault.Denied},
		"a name service":                      {all, "hdfs://prod/a", nil},
		"an unknown name service":             {all, "hdfs://test/a", fault.Invalid},
		"no default NameNode":                 {Config{Local: true}, "hdfs:///a", fault.Invalid},
		"local files":                         {all, "file:///a", nil},
		"local files where they are not read": {Config{NameNodes: []string{"nn:8020"}}, "file:///a", fault.Denied},
	} {
		t.Run(name, func(t *testing.T) {
			uri, err := hdfs.ParseURI(c.uri)
			if err != nil {
				t.Fatal(err)
			}
			s := New(c.config, nil, nil)
			defer s.Close()
			first, err := s.Open(uri, "u")
			if !errors.Is(err, c.err) {
				t.Fatalf("error %v, want %v", err, c.err)
			}
			if c.err != nil {
				return
			}
			if again, err := s.Open(uri, "u"); err != nil || again != first {
				t.Errorf("a second Open gives another file system (%v)", err)
			}
		})
	}
}

// Jobs of a node with a local root reach what is below it and nothing else of the machine, whose files the
// daemon could write as root.
func TestLocalRootIsNotLeft(t *testing.T) {
	dir := t.TempDir()
	root, outside := filepath.Join(dir, "root"), filepath.Join(dir, "outside")
	if err := errors.Join(os.Mkdir(root, 0o755), os.WriteFile(outside, []byte("secret"), 0o600), os.WriteFile(filepath.Join(root, "in"), nil, 0o600), os.Symlink(outside, filepath.Join(root, "link"))); err != nil {
		t.Fatal(err)
	}
	s := New(Config{Local: true, LocalRoot: root}, nil, nil)
	defer s.Close()
	fs, err := s.Open(hdfs.URI{Scheme: hdfs.SchemeLocal, Path: "/in"}, "u")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(t.Context(), "/in"); err != nil {
		t.Errorf("a file below the root: %v", err)
	}
	for _, path := range []string{outside, "/link", "/etc/passwd"} {
		if _, err := fs.Stat(t.Context(), path); err == nil {
			t.Errorf("%s is reached", path)
		}
	}
	if err := fs.Mkdir(t.Context(), filepath.Join(dir, "made")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); err == nil {
		t.Error("a folder was made outside of the root")
	}
}

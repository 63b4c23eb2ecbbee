package run

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFailedFileLeavesTheFormer: half a file is no result, and the former file is not lost for it.
func TestFailedFileLeavesTheFormer(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "summary.json")
	broken := errors.New("unsupported value: NaN")
	write := func(text string, err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, wrote := io.WriteString(w, text)
			return errors.Join(wrote, err)
		}
	}
	check := func(want string, names int) {
		t.Helper()
		if b, err := os.ReadFile(path); string(b) != want || (err != nil) != (want == "") {
			t.Errorf("the file has %q, %v; want %q", b, err, want)
		}
		if all, err := os.ReadDir(dir); len(all) != names || err != nil {
			t.Errorf("the folder has %v, %v; want %d files", all, err, names)
		}
	}
	if err := WriteFile(path, write("half", broken)); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	check("", 0)
	if err := WriteFile(path, write("first", nil)); err != nil {
		t.Error(err)
	}
	check("first", 1)
	if err := WriteFile(path, write(strings.Repeat("half", 1<<16), broken)); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	check("first", 1)
	link := filepath.Join(dir, "link")
	if err := os.Symlink("summary.json", link); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(link, write("second", nil)); err != nil {
		t.Error(err)
	}
	check("second", 2)
	if to, err := os.Readlink(link); to != "summary.json" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	if err := WriteFile(filepath.Join(dir, "none", "x"), write("", nil)); err == nil || strings.Contains(err.Error(), ".part") {
		t.Errorf("a folder that is missing: %v", err)
	}
}

// TestPipesAndDevicesStay: a path that is no regular file is written to, and still exists afterwards, even after a failure.
func TestPipesAndDevicesStay(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := os.OpenFile(path, os.O_RDWR, 0) // opens without a writer
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	broken := errors.New("broken")
	for _, want := range []error{nil, broken} {
		if err := WriteFile(path, func(w io.Writer) error { _, err := io.WriteString(w, "row"); return errors.Join(err, want) }); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
		if st, err := os.Lstat(path); err != nil || st.Mode()&os.ModeNamedPipe == 0 {
			t.Fatalf("the pipe is gone: %v, %v", st, err)
		}
	}
	b := make([]byte, 8)
	if n, err := r.Read(b); string(b[:n]) != "row" {
		t.Errorf("the pipe got %q, %v", b[:n], err)
	}
}

package tree

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const fileEvery = 10

// makeDeep makes nested folders, some with a file, without a long path.
func makeDeep(t testing.TB, dir string, levels int, name string) {
	t.Helper()
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for i := 0; i < levels && err == nil; i++ {
		var f, next int
		if i%fileEvery == 0 {
			if f, err = unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600); err != nil {
				break
			}
			unix.Close(f)
		}
		if err = unix.Mkdirat(fd, name, 0o700); err != nil {
			break
		}
		next, err = unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		unix.Close(fd)
		fd = next
	}
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
}

// limitFiles lowers the process's limit of open files during a test.
func limitFiles(t *testing.T, most int) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	now := old
	now.Cur = uint64(most)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
}

// 10,000 levels, with paths of 210 kB, are walked and removed within 40 open files.
func TestDeepFolders(t *testing.T) {
	levels := 10_000
	if testing.Short() {
		levels = 2000
	}
	dir := filepath.Join(t.TempDir(), "top")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 20)
	makeDeep(t, dir, levels, name)
	limitFiles(t, 40)
	files, folders, longest := 0, 0, 0
	err := Walk(t.Context(), dir, func(e *Entry) error {
		if e.IsDir() {
			folders++
		} else if e.IsRegular() && e.Name == "file" {
			files++
		}
		longest = max(longest, e.PathBytes())
		return nil
	})
	if err != nil || files != levels/fileEvery || folders != levels || longest != levels*(len(name)+1)-1 {
		t.Errorf("%d files, %d folders, longest path %d, %v", files, folders, longest, err)
	}
	if err := RemoveAll(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("still there: %v", err)
	}
}

func TestRemoveAll(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "outside")
	check(t, os.MkdirAll(filepath.Join(outside, "kept"), 0o755))
	dir := filepath.Join(t.TempDir(), "top")
	for i := range 3 {
		for j := range 300 {
			check(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint(i), fmt.Sprint("d", j), "x"), 0o755))
			check(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i), fmt.Sprint("f\n", j)), nil, 0))
		}
	}
	check(t, os.Symlink(outside, filepath.Join(dir, "link")))
	check(t, os.Symlink("link", filepath.Join(dir, "0", "loop")))
	check(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	check(t, os.Chmod(filepath.Join(dir, "1", "d7"), 0))
	check(t, os.Chmod(filepath.Join(dir, "2"), 0o500))
	check(t, RemoveBelow(t.Context(), dir, "1"))
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "1" {
		t.Errorf("left %v %v", left, err)
	}
	check(t, RemoveAll(t.Context(), dir))
	check(t, RemoveAll(t.Context(), dir))
	check(t, RemoveAll(t.Context(), filepath.Join(dir, "no", "such")))
	check(t, os.Symlink(outside, dir))
	check(t, RemoveBelow(t.Context(), dir, ""))
	if _, err := os.Lstat(filepath.Join(outside, "kept")); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	check(t, os.MkdirAll(filepath.Join(dir, "a"), 0o755))
	if err := RemoveAll(cancelled, dir); !errors.Is(err, context.Canceled) {
		t.Errorf("after its context ended: %v", err)
	}
}

func TestWalkOrder(t *testing.T) {
	dir := t.TempDir()
	check(t, os.MkdirAll(filepath.Join(dir, "b", "c"), 0o755))
	check(t, os.MkdirAll(filepath.Join(dir, "a"), 0o755))
	for _, f := range []string{"z", "b/y", "b/c/x", "a/w"} {
		check(t, os.WriteFile(filepath.Join(dir, f), nil, 0o600))
	}
	check(t, os.Symlink("..", filepath.Join(dir, "b", "up")))
	var got []string
	check(t, Walk(t.Context(), dir, func(e *Entry) error { got = append(got, e.Path()); return nil }))
	if want := []string{"z", "a", "b", "a/w", "b/up", "b/y", "b/c", "b/c/x"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stop := errors.New("stop")
	if err := Walk(t.Context(), dir, func(*Entry) error { return stop }); err != stop {
		t.Errorf("the callback's error: %v", err)
	}
}

// A walk over more subfolders than keptEntries visits each file and folder once, with the right
// kind, files first. Leaf folders and folders with subfolders come in any order.
func TestWalkManyFolders(t *testing.T) {
	dir := t.TempDir()
	var want []string
	add := func(path string, folder bool) {
		want = append(want, path)
		if folder {
			check(t, os.Mkdir(filepath.Join(dir, path), 0o755))
		} else {
			check(t, os.WriteFile(filepath.Join(dir, path), nil, 0o600))
		}
	}
	add("file", false)
	for i := range 3 * keptEntries {
		add(fmt.Sprintf("f%03d", i), true)
	}
	for i := range 3 * keptEntries {
		sub := fmt.Sprintf("f%03d", i)
		if i%3 == 0 {
			add(sub+"/x", false)
		}
		if i%2 == 0 {
			add(sub+"/deep", true)
			add(sub+"/deep/y", false)
		}
	}
	limitFiles(t, 40)
	var got []string
	check(t, Walk(t.Context(), dir, func(e *Entry) error {
		got = append(got, e.Path())
		st, err := os.Lstat(filepath.Join(dir, e.Path()))
		if err == nil && st.IsDir() != e.IsDir() {
			t.Errorf("%s: folder %v", e.Path(), e.IsDir())
		}
		return err
	}))
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

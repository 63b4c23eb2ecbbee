package rotate

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"
)

// readAll joins the files from the oldest to the current one.
func readAll(t testing.TB, path string, files int) (string, []int) {
	t.Helper()
	var text strings.Builder
	var sizes []int
	for i := files - 1; i >= 0; i-- {
		b, err := os.ReadFile(RotatedPath(path, i))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		text.Write(b)
		sizes = append(sizes, len(b))
	}
	return text.String(), sizes
}

// Whatever is written in whatever pieces, the files contain a suffix of it, none is larger than its
// limit, and lines are not split if they fit into a file.
func TestFilesKeepTheEnd(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		path := filepath.Join(dir, strings.Repeat("x", n%7+1), "log")
		os.RemoveAll(filepath.Dir(path))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			rt.Fatal(err)
		}
		files := rapid.IntRange(1, 4).Draw(rt, "files")
		l, err := open(path, minBytes, files)
		if err != nil {
			rt.Fatal(err)
		}
		var want bytes.Buffer
		for range rapid.IntRange(1, 40).Draw(rt, "writes") {
			line := strings.Repeat("a", rapid.IntRange(0, 700).Draw(rt, "length")) + rapid.SampledFrom([]string{"\n", "", "\n\n"}).Draw(rt, "end")
			want.WriteString(line)
			if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
				rt.Fatalf("Write returned %d, %v", n, err)
			}
		}
		l.Close()
		got, sizes := readAll(t, path, files)
		if !strings.HasSuffix(want.String(), got) {
			rt.Fatalf("%d bytes that are not the end of the %d written", len(got), want.Len())
		}
		for _, s := range sizes {
			if s > minBytes {
				rt.Fatalf("sizes %v over %d", sizes, minBytes)
			}
		}
		if want.Len() <= minBytes && got != want.String() {
			rt.Fatal("data that fits into one file is missing")
		}
		if _, err := os.Stat(RotatedPath(path, files)); err == nil {
			rt.Fatal("one file too many")
		}
	})
}

func TestOpenAppends(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for _, text := range []string{"one\n", "two\n"} {
		l, err := open(path, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		l.Write([]byte(text))
		l.Close()
	}
	if got, _ := readAll(t, path, 1); got != "one\ntwo\n" {
		t.Errorf("got %q", got)
	}
}

func TestNewOpensAtTheFirstWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	silent := New(path, 0, 0)
	silent.Close()
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("a log without output has a file: %v", err)
	}
	full := bytes.Repeat([]byte("0123456789abcde\n"), minBytes/16)
	if err := os.WriteFile(path, full, 0o600); err != nil {
		t.Fatal(err)
	}
	l := New(path, minBytes, 2)
	defer l.Close()
	l.Write([]byte("next\n"))
	if got, sizes := readAll(t, path, 2); got != string(full)+"next\n" || sizes[1] != len("next\n") {
		t.Errorf("files of %v bytes that end with %q: what was there before does not count", sizes, got[max(0, len(got)-20):])
	}
}

func TestDropsAreReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := open(path, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("not proved here: that lines dropped on a full disk are reported; this host has no /dev/full")
	}
	disk := l.file
	l.file = full
	for range 2 {
		if n, err := l.Write([]byte("lost\n")); n != 5 || err != nil {
			t.Errorf("Write to a full disk returned %d, %v", n, err)
		}
	}
	if n, err := l.dropped(); n != 10 || err == nil {
		t.Errorf("Dropped returned %d, %v", n, err)
	}
	full.Close()
	l.file = disk
	l.Write([]byte("kept\n"))
	got, _ := readAll(t, path, 1)
	if want := "[drover: 10 bytes of output dropped: write /dev/full: no space left on device]\nkept\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFolderThatGoesAwayDoesNotStopTheWriter(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "sub", "log")
	os.Mkdir(filepath.Dir(path), 0o755)
	l, err := open(path, minBytes, 2)
	if err != nil {
		t.Fatal(err)
	}
	os.RemoveAll(filepath.Dir(path))
	block := bytes.Repeat([]byte("0123456789abcde\n"), 1024)
	for range 4 {
		if n, err := l.Write(block); n != len(block) || err != nil {
			t.Fatalf("Write returned %d, %v", n, err)
		}
	}
	if n, err := l.dropped(); n == 0 || err == nil {
		t.Errorf("Dropped returned %d, %v", n, err)
	}
	l.Close()
}

func BenchmarkWrite(b *testing.B) {
	l, err := open(filepath.Join(b.TempDir(), "log"), 0, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	block := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
	b.SetBytes(int64(len(block)))
	for b.Loop() {
		l.Write(block)
	}
}

// Await ends when the last writer has released the folder, not before, and at once if there never
// was a writer.
func TestAwait(t *testing.T) {
	dir := t.TempDir()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if !Await(ended, dir) || !Await(ended, filepath.Join(dir, "none")) {
		t.Error("waits for logs that nobody writes")
	}
	a, err1 := Hold(dir)
	b, err2 := Hold(dir)
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	a.Close()
	if Await(ended, dir) {
		t.Error("does not wait for the second writer")
	}
	done := make(chan bool)
	go func() { done <- Await(t.Context(), dir) }()
	b.Close()
	if !<-done {
		t.Error("still waits after the last writer")
	}
	if _, err := Hold(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("hold of a folder that does not exist: %v", err)
	}
}

// A copy from a program's pipe loses and adds nothing.
func TestCopyFromAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l := New(path, 0, 0)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Repeat("a line of the program\n", 20_000)
	written := make(chan error, 1)
	go func() {
		_, err := w.WriteString(text)
		written <- errors.Join(err, w.Close())
	}()
	n, err := io.Copy(l, r)
	if err := errors.Join(err, <-written, r.Close(), l.Close()); err != nil || n != int64(len(text)) {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if got, _ := readAll(t, path, 3); got != text {
		t.Errorf("%d bytes arrived of %d", len(got), len(text))
	}
	broken := errors.New("broken")
	if n, err := io.Copy(l, io.MultiReader(strings.NewReader("end\n"), iotest.ErrReader(broken))); n != 4 || !errors.Is(err, broken) {
		t.Errorf("of a reader that fails: %d, %v", n, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, _ := readAll(t, path, 3); got != text+"end\n" {
		t.Errorf("%d bytes after the second copy", len(got))
	}
}

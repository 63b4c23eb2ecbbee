package history

import (
	"errors"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestTruncatedLineIsRemovedAndJobsAreUnique(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append([]Job{{Job: 1, Name: "a"}, {Job: 2, Name: "b"}, {Job: 1, Name: "again"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	f, err := os.OpenFile(files[0], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"version":1,"job":3,"na`); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = Open(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	if w.Has(3) || !w.Has(2) {
		t.Fatalf("has 3: %v, has 2: %v", w.Has(3), w.Has(2))
	}
	if err := w.Append([]Job{{Job: 2}, {Job: 3, Name: "c"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], `"a"`) || !strings.Contains(lines[1], `"b"`) || !strings.Contains(lines[2], `"c"`) {
		t.Fatalf("lines:\n%s", b)
	}
}

// Jobs of a write that failed, on a full disk, are written when there is room again, each in a line of its own.
func TestAppendIsRepeatedAfterAnError(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(dir, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Append([]Job{{Job: 1, Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	limitFileSize(t, uint64(w.size)+20, func() {
		if err := w.Append([]Job{{Job: 2, Name: "b"}, {Job: 3, Name: "c"}}); err == nil {
			t.Error("the file is longer than its limit")
		}
	})
	if w.Has(2) || w.Has(3) {
		t.Error("jobs that were not written count as written")
	}
	if err := w.Append([]Job{{Job: 2, Name: "b"}, {Job: 3, Name: "c"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w, err = Open(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if d := w.Damaged(); len(d) > 0 || !w.Has(1) || !w.Has(2) || !w.Has(3) {
		t.Errorf("has 1: %t, 2: %t, 3: %t; damaged %+v", w.Has(1), w.Has(2), w.Has(3), d)
	}
}

// limitFileSize calls fn while no file of this process can become longer than size bytes.
func limitFileSize(t *testing.T, size uint64, fn func()) {
	t.Helper()
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	var old syscall.Rlimit
	if err := syscall.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Setrlimit(unix.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := syscall.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
	}()
	fn()
}

// The history stays within its limit, whether it is written or opened, and the newest
// jobs are the ones that are left; what will not come again takes no memory.
func TestOldFilesAreRemoved(t *testing.T) {
	const limit = 80_000
	dir := t.TempDir()
	w, err := Open(dir, limit, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(2000) {
		if err := w.Append([]Job{{Job: i + 1, Name: "a"}}); err != nil {
			t.Fatal(err)
		}
		if i > 100 {
			w.Forget([]uint64{i - 100})
		}
		if !w.Has(i + 1) {
			t.Fatal("a new job is not known")
		}
	}
	if len(w.written) > 200 {
		t.Errorf("%d jobs are remembered", len(w.written))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	size := func() (n int64) {
		files, err := Files(dir)
		if err != nil || len(files) < 3 {
			t.Fatal(files, err)
		}
		for _, f := range files {
			st, err := os.Stat(f)
			if err != nil {
				t.Fatal(err)
			}
			n += st.Size()
		}
		return n
	}
	if n := size(); n > limit*5/4 || n < limit/2 {
		t.Errorf("%d bytes, the limit is %d", n, limit)
	}
	if w, err = Open(dir, limit/2, 0); err != nil {
		t.Fatal(err)
	}
	if n := size(); n > limit/2 || !w.Has(2000) || w.Has(1) {
		t.Errorf("%d bytes after the limit was lowered to %d", n, limit/2)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestJobsOfOlderFilesAreNotWrittenAgain opens a history of small files, of which the two newest have few jobs: a coordinator
// that starts appends all ended jobs that it still has.
func TestJobsOfOlderFilesAreNotWrittenAgain(t *testing.T) {
	dir := t.TempDir()
	w, err := Open(dir, 80_000, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(350) {
		if err := w.Append([]Job{{Job: i + 1, Name: "a"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := Files(dir)
	if err != nil || len(files) < 4 {
		t.Fatal(files, err)
	}
	if w, err = Open(dir, 80_000, 200); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(200) {
		if !w.Has(350 - i) {
			t.Fatalf("job %d would be written again", 350-i)
		}
	}
	if w.Has(1) {
		t.Error("more files were read than have 200 jobs")
	}
	if err := w.Append([]Job{{Job: 351, Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if now, err := Files(dir); err != nil || len(now) > len(files)+1 { // the newest file goes on
		t.Error(now, err)
	}
}

// TestAHistoryThatDoesNotOpenLeavesNoFileOpen: a file that cannot be removed makes Open fail.
func TestAHistoryThatDoesNotOpenLeavesNoFileOpen(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"history-000001.jsonl/in-the-way", "history-000002.jsonl", "history-000003.jsonl"} {
		p = filepath.Join(dir, p)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if w, err := Open(dir, 1, 0); err == nil || w != nil {
		t.Fatalf("%v, %v", w, err)
	}
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range open {
		if file, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.HasPrefix(file, dir) {
			t.Errorf("%s is still open", file)
		}
	}
}

package node

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/quota"
	"github.com/drover-run/drover/node/dump"
)

// deepFolders makes nested folders below dir and a file of 4 KiB in the last one,
// whose path is longer than the kernel accepts.
func deepFolders(t testing.TB, dir string, levels int) {
	t.Helper()
	name := strings.Repeat("d", 10)
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for i := 0; i < levels && err == nil; i++ {
		if err = unix.Mkdirat(fd, name, 0o700); err == nil {
			var next int
			next, err = unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			unix.Close(fd)
			fd = next
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	f, err := unix.Openat(fd, "file", unix.O_CREAT|unix.O_WRONLY, 0o600)
	if err == nil {
		_, err = unix.Write(f, make([]byte, 4096))
		unix.Close(f)
	}
	unix.Close(fd)
	if err != nil {
		t.Fatal(err)
	}
}

// A folder of thousands of levels is measured, listed, trimmed and removed while
// the daemon may have no more open files than levels.
func TestDeepFolders(t *testing.T) {
	const levels = 3000
	b := newTestNode(t, programs())
	b.start()
	w := groupTask(0, "fail")
	b.put(w)
	b.await(t, w, failed)
	dir := folder(b.attemptFolder(w))
	deepFolders(t, dir.task(), levels)
	u, err := quota.Measure(t.Context(), dir.task(), quota.Counting)
	if err != nil || u.Files < levels || u.Bytes < 4096 {
		t.Errorf("measured %+v, %v", u, err)
	}
	files, err := dump.List(t.Context(), dump.Version, dump.Folder, dir.task())
	if last := files[len(files)-1]; err != nil || len(files) < levels+1 || last.Bytes != 4096 || len(last.Path) != levels*11+len("file") {
		t.Errorf("%d files, the last of %d bytes, path of %d, %v", len(files), last.Bytes, len(last.Path), err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	now := old
	now.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
	b.remove(w)
	b.await(t, w, gone)
	b.checkNothingLeft()
	next := groupTask(1, "true")
	b.put(next)
	b.await(t, next, succeeded)
	if _, err := os.Lstat(string(dir)); err == nil {
		t.Error("the folder is still there")
	}
}

package taskinit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// requestFrom has a server perform a request, and returns its reply.
func requestFrom(t *testing.T, q Request, fileCount int) (r Reply) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	defer unix.Close(ends[1])
	var files []int
	for range fileCount { // which the server closes
		fd, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, fd)
	}
	s := &server{conn: ends[0], dir: "/", started: map[int]bool{}, forked: make(chan struct{}, 1)}
	s.serve(q, files)
	length := make([]byte, 4)
	if _, err := reader(ends[1]).Read(length); err != nil {
		t.Fatal(err)
	}
	if err := Decode(reader(ends[1]), length, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// A refusal says whether the next try would be refused too.
func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog")
	if err := os.WriteFile(prog, []byte("#!/bin/sh\nexit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args  []string
		files int
		want  bool
	}{
		"no file":              {[]string{"./none"}, 3, true},
		"a folder":             {[]string{dir}, 3, true},
		"not in PATH":          {[]string{"no-such-command"}, 3, true},
		"files that were lost": {[]string{"./prog"}, 2, false}, // without a descriptor left, the kernel drops them
	} {
		if r := requestFrom(t, Request{Args: c.args, Dir: dir, Env: []string{"PATH=/bin"}}, c.files); r.Event != Refused || r.Permanent != c.want || r.Error == "" {
			t.Errorf("%s: %+v, want permanent %v", name, r, c.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "lost"), []byte("#!/no/such/python\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	const hint = `the interpreter of its first line "#!/no/such/python" is not there`
	if r := requestFrom(t, Request{Args: []string{"./lost"}, Dir: dir}, 3); !r.Permanent || !strings.Contains(r.Error, hint) {
		t.Errorf("a script without its interpreter: %+v, want one with %q", r, hint)
	}
	writer, err := os.OpenFile(prog, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if r := requestFrom(t, Request{Args: []string{"./prog"}, Dir: dir}, 3); r.Event != Refused || r.Permanent {
		t.Errorf("a program that is still written: %+v", r)
	}
	writer.Close()
	r := requestFrom(t, Request{Args: []string{"./prog"}, Dir: dir}, 3)
	if r.Event != Started {
		t.Fatalf("afterwards: %+v", r)
	}
	var ws unix.WaitStatus
	if _, err := unix.Wait4(r.PID, &ws, 0, nil); err != nil || ws.ExitStatus() != 0 {
		t.Errorf("it ended as %v, %v", ws, err)
	}
}

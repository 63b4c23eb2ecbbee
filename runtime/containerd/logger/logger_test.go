package logger

import (
	"context"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/rotate"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Verb {
		os.Exit(Main(os.Args[2:]))
	}
	goleak.VerifyTestMain(m)
}

// shim starts the logger like containerd's shim and returns the writing ends.
func shim(t *testing.T, c Config) (cmd *exec.Cmd, stdout, stderr, ready *os.File) {
	t.Helper()
	uri, err := URI(os.Args[0], c)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(uri.String())
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for k, vs := range u.Query() {
		args = append(args, k, vs[0])
	}
	cmd = exec.Command(u.Path, args...)
	var ends [3]*os.File
	for i := range ends {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			r, w = w, r
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, r)
		ends[i] = w
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range cmd.ExtraFiles {
		f.Close()
	}
	t.Cleanup(func() {
		for _, f := range ends {
			f.Close()
		}
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd, ends[0], ends[1], ends[2]
}

func awaitReady(t *testing.T, ready *os.File) {
	t.Helper()
	ready.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, err := ready.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Fatalf("ready signal: %d bytes, %v", n, err)
	}
}

func TestStreamsGoToTheirFiles(t *testing.T) {
	c := Config{Dir: filepath.Join(t.TempDir(), "logs of a task")}
	cmd, stdout, stderr, ready := shim(t, c)
	awaitReady(t, ready)
	for _, w := range []struct {
		f    *os.File
		text string
	}{{stdout, "to out\n"}, {stderr, "to err\n"}, {stdout, strings.Repeat("more\n", 50000)}} {
		if _, err := w.f.WriteString(w.text); err != nil {
			t.Fatal(err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if rotate.Await(ended, c.Dir) {
		t.Error("the logs count as written while the streams are open")
	}
	stdout.Close()
	stderr.Close()
	if !rotate.Await(t.Context(), c.Dir) {
		t.Error("the logs do not count as written")
	}
	defer func() {
		if err := cmd.Wait(); err != nil {
			t.Errorf("the logger ended with %v", err)
		}
	}()
	for file, want := range map[string]string{"stdout.log": "to out\n" + strings.Repeat("more\n", 50000), "stderr.log": "to err\n"} {
		if got, err := os.ReadFile(filepath.Join(c.Dir, file)); err != nil || string(got) != want {
			t.Errorf("%s: %d bytes, want %d, %v", file, len(got), len(want), err)
		}
	}
}

func TestRotation(t *testing.T) {
	c := Config{Dir: t.TempDir(), MaxBytes: 8 << 10, MaxFiles: 3}
	cmd, stdout, stderr, ready := shim(t, c)
	awaitReady(t, ready)
	for range 4096 {
		stdout.WriteString("0123456789abcde\n")
	}
	stdout.Close()
	stderr.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	all, err := os.ReadDir(c.Dir)
	if err != nil || len(all) != 5 { // stderr.log, three of stdout and their mark
		t.Errorf("files %v, %v", all, err)
	}
	for _, e := range all {
		if st, _ := e.Info(); st.Size() > c.MaxBytes {
			t.Errorf("%s has %d bytes", e.Name(), st.Size())
		}
	}
}

func TestTermEndsLoggerWithOpenPipes(t *testing.T) {
	c := Config{Dir: t.TempDir()}
	cmd, stdout, _, ready := shim(t, c)
	awaitReady(t, ready)
	stdout.WriteString("before\n")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("the logger ended with %v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(c.Dir, "stdout.log")); string(got) != "before\n" {
		t.Errorf("stdout.log has %q", got)
	}
}

func TestNoReadySignalWithoutFiles(t *testing.T) {
	_, _, _, ready := shim(t, Config{Dir: "/dev/null/x"})
	ready.SetReadDeadline(time.Now().Add(20 * time.Second))
	if n, _ := ready.Read(make([]byte, 1)); n != 0 {
		t.Error("ready without a file to write")
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"x", "y"}, {"%%"}, {"e30"}} {
		if err := run(args, nil); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v, want fault.Invalid", args, err)
		}
	}
	if _, err := URI("drover", Config{Dir: "/x"}); !errors.Is(err, fault.Invalid) {
		t.Errorf("a relative executable: %v", err)
	}
}

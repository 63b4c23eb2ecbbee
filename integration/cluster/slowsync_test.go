package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/testbed"
)

// TestSyncsTakeAsLongAsTheyAreTo syncs a file with and without a delay. The delay is a lower bound of the time, however slow the host.
func TestSyncsTakeAsLongAsTheyAreTo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var takes atomic.Int64
	start := func(argv ...string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sync", append(argv, path)...)
		if err := startWithSyncs(cmd, &takes); err != nil {
			t.Skip("not proved here: that the disk of a coordinator can be slow; ", err)
		}
		return cmd
	}
	timed := func(argv ...string) time.Duration {
		t.Helper()
		began := time.Now()
		if err := start(argv...).Wait(); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	t.Logf("sync without a delay: %s", timed())
	const delay = 300 * time.Millisecond
	takes.Store(int64(delay))
	for _, argv := range [][]string{nil, {"--data"}} {
		took := timed(argv...)
		t.Logf("sync %v with a delay of %s: %s", argv, delay, took)
		if took < delay {
			t.Errorf("sync %v took %s, want %s or more", argv, took, delay)
		}
	}

	takes.Store(int64(time.Hour))
	cmd := start()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	err := testbed.WaitFor(t.Context(), time.Minute, "the call of fsync", func(context.Context) error {
		call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", cmd.Process.Pid))
		if err == nil && !strings.HasPrefix(string(call), fmt.Sprint(unix.SYS_FSYNC, " ")) {
			err = errors.New(string(call))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	takes.Store(0)
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a sync that waited waits although the disk is slow no more")
	}
}

// Package onmachine runs tests that need a machine of their own (root, cgroup v2, containerd, disks
// to format) from the host side of a test bed: the test binary copies itself to machine 1 and runs
// there.
//
//	CGO_ENABLED=0 go run ./integration/cmd/testbed run -nodes 1 -- go test -p 1 -v -run OnMachine ./cgroups ./runtime/containerd ./internal/quota
//
// The packages run one at a time (-p 1), because they share the machine and one formats its swap
// disk. CGO_ENABLED=0 makes the binary static, which programs in a container must be.
package onmachine

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/testbed"
)

// insideEnv marks the copy on the machine, which must not copy itself again.
const insideEnv = "DROVER_TEST_ON_MACHINE=1"

// Run runs the tests of this test binary that match pattern (as in -run) on machine 1 of the test
// bed, with the variables of env added to their environment, and fails if they do. Outside a test
// bed it skips the test.
func Run(t *testing.T, pattern string, limit time.Duration, env ...string) {
	t.Helper()
	if name, value, _ := strings.Cut(insideEnv, "="); os.Getenv(name) == value {
		t.Skip("not proved here: that this package's tests pass on a machine; this is the copy on it, which runs them")
	}
	b, err := testbed.FromEnv()
	if errors.Is(err, testbed.ErrNoTestbed) {
		t.Skip("not proved here: that this package's tests pass on a machine with root, containerd and cgroup v2; ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Nodes) == 0 {
		t.Skip("not proved here: that this package's tests pass on a machine; the test bed has none, give it -nodes 1")
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if f, err := elf.Open(self); err != nil {
		t.Fatal(err)
	} else if f.Close(); f.Section(".interp") != nil {
		t.Fatal("this test binary needs shared libraries, which containers on the machine do not have: build it with CGO_ENABLED=0")
	}
	machine, remote := b.Nodes[0], filepath.Join("/data", filepath.Base(self))
	if err := machine.Put(ctx, self, remote); err != nil {
		t.Fatal(err)
	}
	t.Logf("on %s:", machine.Name)
	var output bytes.Buffer
	out := io.MultiWriter(&output, t.Output()) // printed as it arrives, so that the log shows the current test if a machine hangs
	r, err := machine.ExecCommand(ctx, testbed.Command{
		Argv: []string{remote, "-test.v", "-test.run", pattern, "-test.timeout", limit.String()},
		Env:  append([]string{insideEnv, "TMPDIR=/data", "HOME=/root"}, env...), Dir: "/data", Stdout: out, Stderr: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.ExitCode != 0 {
		t.Errorf("the tests on %s ended with code %d", machine.Name, r.ExitCode)
	}
	if !strings.Contains(output.String(), "--- PASS") && r.ExitCode == 0 {
		t.Errorf("no test matched %q", pattern)
	}
}

// Package onmachine lets tests that need a machine of their own (root, cgroup
// v2, containerd, disks to format) run from the host's side of a test bed: the
// test binary copies itself to machine 1 and runs there.
//
//	CGO_ENABLED=0 go run ./integration/cmd/bed run -nodes 1 -- go test -p 1 -v -run OnMachine ./cgroups ./runtime/containerd ./internal/quota
//
// The packages come one at a time (-p 1): they share the machine, and one
// formats its swap disk. CGO_ENABLED=0 makes the binary static, as what runs in a container must be.
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

	"github.com/drover-run/drover/integration/bed"
)

// inside marks the copy on the machine, so that it does not copy itself again.
const inside = "DROVER_TEST_ON_MACHINE=1"

// Run runs the tests of this test binary that match the pattern (a flag -run)
// on machine 1 of the bed around it, with the variables added to their
// environment, and fails as they do. Outside a bed it skips.
func Run(t *testing.T, pattern string, limit time.Duration, env ...string) {
	t.Helper()
	if name, value, _ := strings.Cut(inside, "="); os.Getenv(name) == value {
		t.Skip("this is the copy on the machine")
	}
	b, err := bed.FromEnv()
	if errors.Is(err, bed.ErrNoBed) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Nodes) == 0 {
		t.Skip("the bed has no machines: give it -nodes 1")
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
	var kept bytes.Buffer
	out := io.MultiWriter(&kept, t.Output()) // as it comes: where the machine hangs, one sees in which test
	r, err := machine.Run(ctx, bed.Command{
		Argv: []string{remote, "-test.v", "-test.run", pattern, "-test.timeout", limit.String()},
		Env:  append([]string{inside, "TMPDIR=/data", "HOME=/root"}, env...), Dir: "/data", Stdout: out, Stderr: out,
	})
	if err != nil {
		t.Fatal(err)
	}
	if r.Code != 0 {
		t.Errorf("the tests on %s ended with code %d", machine.Name, r.Code)
	}
	if !strings.Contains(kept.String(), "--- PASS") && r.Code == 0 {
		t.Errorf("no test matched %q", pattern)
	}
}

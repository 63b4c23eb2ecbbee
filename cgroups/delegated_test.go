package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

const unitBase = "/system.slice/" + TasksUnit

// newUnitRoot makes the cgroup of a unit as systemd does, with the controllers of Delegate=yes. The
// fake does not record these writes.
func newUnitRoot(t *testing.T) (*fakeKernelFS, *Root) {
	t.Helper()
	k, r := newFakeRoot(t)
	r.base = unitBase
	for _, dir := range []string{"", "system.slice"} {
		k.put(filepath.Join(k.mount, dir), "cgroup.subtree_control", "cpu memory io pids")
		if err := k.mkdir(filepath.Join(k.mount, dir, map[string]string{"": "system.slice", "system.slice": TasksUnit}[dir])); err != nil {
			t.Fatal(err)
		}
	}
	k.put(filepath.Join(k.mount, unitBase), "cgroup.controllers", "cpu memory io pids")
	k.writes = nil
	return k, r
}

func TestUnitWritesNothingAboveItself(t *testing.T) {
	k, r := newUnitRoot(t)
	for range 2 { // safe to repeat
		if err := r.hold(77); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Create("a-1", testLimits()); err != nil {
		t.Fatal(err)
	}
	for _, w := range k.writes {
		if !strings.HasPrefix("/"+w, unitBase+"/") {
			t.Errorf("wrote %s, which belongs to systemd", w)
		}
	}
	for file, want := range map[string]string{
		"cgroup.subtree_control":       "cpu memory io pids",
		"tasks/cgroup.subtree_control": "cpu memory io pids",
		"holder/cgroup.procs":          "77",
		"tasks/a-1/cpu.max":            "50000 100000",
	} {
		if got := k.get(k.mount, filepath.Join(unitBase, file)); got != want {
			t.Errorf("%s holds %q, want %q", file, got, want)
		}
	}
	if names, err := r.List(); err != nil || !slices.Equal(names, []string{"a-1"}) {
		t.Errorf("attempts %v, %v: the holder's leaf is none", names, err)
	}
}

func TestUnitThatIsNotRunning(t *testing.T) {
	k, r := newFakeRoot(t)
	r.base = unitBase
	err := r.Prepare()
	if !errors.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), "systemctl start "+TasksUnit) {
		t.Errorf("%v: want fault.Unavailable with the cure", err)
	}
	if _, err := os.Stat(filepath.Join(k.mount, "system.slice")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it made a cgroup that only systemd may make: %v", err)
	}
}

func TestHolderOutsideAUnit(t *testing.T) {
	k, r := newFakeRoot(t)
	if err := r.hold(77); !errors.Is(err, fault.Invalid) || len(k.writes) > 0 {
		t.Errorf("%v, wrote %v", err, k.writes)
	}
}

func TestUnifiedCgroup(t *testing.T) {
	for text, want := range map[string]string{
		"0::/system.slice/x.service\n":              "/system.slice/x.service",
		"3:cpu:/a\n1:name=systemd:/b\n0::/init\n":   "/init",
		"12:memory:/user.slice\n1:name=systemd:/\n": "",
	} {
		got, err := unifiedCgroup(text)
		if got != want || (want == "") != errors.Is(err, fault.Unsupported) {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

package containerd

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/fault"
)

func TestMountsThatOnlyRootCouldWriteAreReadOnly(t *testing.T) {
	all := []specs.Mount{
		{Destination: "/dev", Type: "tmpfs", Options: []string{"nosuid"}},
		{Destination: "/dev/shm", Type: "tmpfs", Options: []string{"nosuid"}},
		{Destination: "/run", Type: "tmpfs"},
		{Destination: "/sys", Type: "sysfs", Options: []string{"ro"}},
	}
	writeProtect(all)
	for i, want := range []string{"nosuid ro", "nosuid", "ro", "ro"} {
		if got := strings.Join(all[i].Options, " "); got != want {
			t.Errorf("%s: %q, want %q", all[i].Destination, got, want)
		}
	}
}

// Only what nobody can have changed is left out of a dump.
func TestFixedMounts(t *testing.T) {
	c := Config{Namespace: "n", engineState: t.TempDir(), proc: t.TempDir()}
	root := filepath.Join(c.proc, "77", "root")
	for _, dir := range []string{"dev", "run", "proc/acpi", "sys/firmware", "proc/scsi"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(
		os.WriteFile(filepath.Join(root, "proc/kcore"), nil, 0o600),
		os.WriteFile(filepath.Join(root, "proc/scsi/changed"), nil, 0o600),
		os.MkdirAll(c.bundle("c-1"), 0o755),
		os.WriteFile(filepath.Join(c.bundle("c-1"), "config.json"), []byte(`{"linux":{"maskedPaths":["/proc/acpi","/proc/kcore","/proc/scsi","/sys/firmware"]}}`), 0o600),
	); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		run, dev string
		want     map[string]string
	}{
		"of a task without rights":    {"ro,relatime", "ro,nosuid", map[string]string{"/dev": standInDev, "/run": standInEmpty, "/proc/acpi": standInEmpty}},
		"root's, which it can change": {"rw,relatime", "rw,nosuid", map[string]string{"/proc/acpi": standInEmpty}},
	} {
		mounts := strings.Join([]string{
			"67 62 0:29 / / ro - overlay overlay lowerdir=/x",
			"69 67 0:39 / /proc rw - proc proc rw",
			"71 69 0:39 /bus /proc/bus ro - proc proc rw",
			"81 69 0:40 / /proc/acpi ro,relatime - tmpfs tmpfs ro",
			"83 69 0:40 / /proc/scsi ro,relatime - tmpfs tmpfs ro",
			"85 69 0:6 /null /proc/kcore ro - devtmpfs dev rw",
			"87 67 0:44 / /sys/firmware rw - tmpfs tmpfs rw",
			"91 67 0:41 / /dev " + x.dev + " - tmpfs tmpfs rw",
			"95 91 0:41 / /dev/shm rw,nosuid - tmpfs shm rw",
			"103 67 0:46 / /run " + x.run + " - tmpfs tmpfs rw", "",
		}, "\n")
		if err := os.WriteFile(filepath.Join(c.proc, "77/mountinfo"), []byte(mounts), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := c.fixedMounts("c-1", 77); !maps.Equal(got, x.want) {
			t.Errorf("%s: %v, want %v", name, got, x.want)
		}
	}
	if got := c.fixedMounts("c-1", 78); len(got) > 0 {
		t.Errorf("of a process that has exited: %v", got)
	}
}

// mountsOfProcess returns what a process sees of the mounts that a restore makes anew: whether
// each is read-only, and what is in it, with modes, devices and links.
func mountsOfProcess(t *testing.T, pid int) map[string]string {
	t.Helper()
	process := filepath.Join("/proc", strconv.Itoa(pid))
	info, err := os.ReadFile(filepath.Join(process, "mountinfo"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for line := range strings.Lines(string(info)) {
		f := strings.Fields(line)
		at := f[4]
		if st, err := os.Stat(filepath.Join(process, "root", at)); err != nil || !st.IsDir() {
			continue // a masked file, of whose flags criu keeps some: it is /dev/null
		}
		if !slices.Contains([]string{"/dev", "/run", "/proc/acpi", "/sys/firmware"}, at) {
			seen[at] = strings.Join(slices.DeleteFunc(strings.Split(f[5], ","), func(o string) bool { return strings.HasSuffix(o, "atime") }), ",")
			continue
		}
		text := fmt.Sprintf("read-only %v nodev %v:", strings.HasPrefix(f[5], "ro"), strings.Contains(f[5], "nodev"))
		entries, err := os.ReadDir(filepath.Join(process, "root", at))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			st, err := e.Info()
			if err != nil {
				t.Fatal(err)
			}
			to, _ := os.Readlink(filepath.Join(process, "root", at, e.Name()))
			device := ""
			if st.Mode()&os.ModeDevice != 0 {
				device = deviceOf(st)
			}
			text += fmt.Sprintf("\n  %s %s %s %s", e.Name(), st.Mode(), device, to)
		}
		seen[at] = text
	}
	return seen
}

// A dump leaves out what a task cannot change, and the restored task sees the same as before,
// as well protected, also when it is dumped again.
func TestCheckpointLeavesOutFixedMounts(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*verbLimit)
	defer cancel()
	s := b.spec(t, d, "fixed", "sleep")
	if err := errors.Join(d.Create(ctx, s), d.Start(ctx, s.ID)); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(context.WithoutCancel(ctx), s.ID)
	first := func() int {
		p, err := d.firstProcess(ctx, s.ID)
		if err != nil {
			t.Fatal(err)
		}
		return int(p.GetPid())
	}
	before := mountsOfProcess(t, first())
	for _, at := range []string{"/dev", "/run", "/proc/acpi", "/sys/firmware"} {
		if !strings.HasPrefix(before[at], "read-only true") {
			t.Errorf("%s: %q, want it to be read-only", at, before[at])
		}
	}
	for round := range 3 {
		dir := filepath.Join(b.data, "fixed-dump", strconv.Itoa(round))
		g, err := b.groups.Open(s.ID)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := g.Freeze(ctx); err != nil {
			t.Fatal(err)
		}
		if err := d.Checkpoint(ctx, s.ID, dir); err != nil {
			t.Fatal(err)
		}
		tmpfs, err := filepath.Glob(filepath.Join(dir, imageDir, "tmpfs-*"))
		if err != nil || len(tmpfs) > 2 { // /dev/shm and /tmp
			t.Errorf("round %d: the dump has %v, %v", round, tmpfs, err)
		}
		if _, err := b.groups.Create(s.ID, b.limits()); err != nil {
			t.Fatal(err)
		}
		if err := d.Restore(ctx, s, dir); err != nil {
			t.Fatal(err)
		}
		after := mountsOfProcess(t, first())
		for at := range before {
			if before[at] != after[at] {
				t.Errorf("round %d: %s was\n%s\nand is after the restore\n%s", round, at, before[at], after[at])
			}
		}
		if len(before) != len(after) {
			t.Errorf("round %d: %d mounts, before %d", round, len(after), len(before))
		}
		if pids, err := g.Processes(cgroups.Container); err != nil || len(pids) == 0 {
			t.Errorf("round %d: processes %v, %v", round, pids, err)
		}
	}
	if err := d.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Wait(ctx, s.ID); !errors.Is(err, fault.NotFound) {
		t.Errorf("Wait after Delete: %v", err)
	}
	if left := b.leftovers(t, d, s.ID); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

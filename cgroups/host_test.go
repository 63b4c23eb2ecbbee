package cgroups

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

func TestFindMount(t *testing.T) {
	const unified = "32 25 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 c rw,nsdelegate\n"
	for _, c := range []struct {
		name, mountinfo, want, wantErr string
	}{
		{"unified", "24 27 0:22 / /proc rw - proc p rw\n" + unified, "/sys/fs/cgroup", ""},
		{"at an odd place", "32 25 0:28 / /my\\040cgroups rw - cgroup2 c rw\n", "/my cgroups", ""},
		{"the usual place wins", "31 25 0:28 / /a rw - cgroup2 c rw\n" + unified, "/sys/fs/cgroup", ""},
		{"v1 alone", "32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup c rw,memory\n", "", "unified_cgroup_hierarchy=1"},
		{"hybrid", unified + "33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup c rw,memory\n", "", "beside v2"},
		{"none", "24 27 0:22 / /proc rw - proc p rw\n", "", "mount -t cgroup2"},
		{"rubbish", "a b c\n\n - - -\n", "", "none mounted"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := findMount(c.mountinfo)
			if got != c.want || (c.wantErr == "") != (err == nil) {
				t.Fatalf("got %q, %v", got, err)
			}
			if c.wantErr != "" && (!errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), c.wantErr)) {
				t.Errorf("got %v, want fault.Unsupported with %q", err, c.wantErr)
			}
		})
	}
}

func TestMissingControllerIsNamed(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpu memory pids\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{mount: dir})
	if !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "lacks the io controller") {
		t.Errorf("got %v", err)
	}
	if _, err = New(Config{mount: filepath.Join(dir, "none")}); !errors.Is(err, fault.Unsupported) {
		t.Errorf("a mount that is not there: %v", err)
	}
}

func TestWholeDisk(t *testing.T) {
	sys := t.TempDir()
	disk := filepath.Join(sys, "devices/pci/vda")
	part := filepath.Join(disk, "vda1")
	for _, err := range []error{
		os.MkdirAll(part, 0o755), os.MkdirAll(filepath.Join(sys, "dev/block"), 0o755),
		os.WriteFile(filepath.Join(disk, "dev"), []byte("254:0\n"), 0o644),
		os.WriteFile(filepath.Join(part, "dev"), []byte("254:1\n"), 0o644),
		os.WriteFile(filepath.Join(part, "partition"), []byte("1\n"), 0o644),
		os.Symlink(disk, filepath.Join(sys, "dev/block/254:0")),
		os.Symlink(part, filepath.Join(sys, "dev/block/254:1")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range []Device{{254, 0}, {254, 1}} {
		if got, err := wholeDisk(sys, from); err != nil || got != (Device{254, 0}) {
			t.Errorf("from %s: %s, %v", from, got, err)
		}
	}
	if _, err := wholeDisk(sys, Device{0, 22}); !errors.Is(err, fault.Unsupported) {
		t.Errorf("a file system without a disk: %v", err)
	}
	if _, err := DiskOf("/proc"); !errors.Is(err, fault.Unsupported) {
		t.Errorf("/proc is on a disk: %v", err)
	}
}

func TestParseSwap(t *testing.T) {
	free, total, err := parseSwap("MemTotal: 1 kB\nSwapTotal:    1048572 kB\nSwapFree:  1000 kB\n")
	if err != nil || free != 1000<<10 || total != 1048572<<10 {
		t.Errorf("got %d, %d, %v", free, total, err)
	}
	if _, _, err := parseSwap("SwapTotal: x kB"); !errors.Is(err, fault.Corrupt) {
		t.Errorf("got %v, want fault.Corrupt", err)
	}
}

func FuzzFindMount(f *testing.F) {
	f.Add("32 25 0:28 / /sys/fs/cgroup rw,relatime shared:4 - cgroup2 c rw,nsdelegate\n")
	f.Add("33 25 0:29 / /sys/fs/cgroup/memory rw - cgroup c rw,memory\n - \n")
	fuzztest.Run(f, func(t *testing.T, text string) {
		if at, err := findMount(text); err == nil && at == "" || err != nil && !errors.Is(err, fault.Unsupported) {
			t.Fatalf("got %q, %v", at, err)
		}
	})
}

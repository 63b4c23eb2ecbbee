package measure

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/quota"
)

func TestVersionsOutOfFirstLines(t *testing.T) {
	for line, want := range map[string]string{
		"runc version 1.1.15+ds1":                                  "1.1.15+ds1",
		"containerd github.com/containerd/containerd/v2 2.4.2 abc": "2.4.2",
		"containerd github.com/containerd/containerd v1.7.24":      "1.7.24",
		"Version: 4.1.1": "4.1.1",
		"criu":           "",
	} {
		if got := parseVersion("criu", line); got != want {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
}

func TestKnownVersionsAreNotQueried(t *testing.T) {
	dir := t.TempDir()
	for _, p := range []string{"containerd", "runc"} {
		if err := os.WriteFile(filepath.Join(dir, p), []byte("#!/bin/sh\necho "+p+" version 1.0\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	v := readVersions(t.Context(), map[string]string{"containerd": "2.4.2"})
	if _, criu := v["criu"]; v["containerd"] != "2.4.2" || v["runc"] != "1.0" || v["kernel"] == "" || criu {
		t.Errorf("%v", v)
	}
}

func TestCPU(t *testing.T) {
	f := filepath.Join(t.TempDir(), "cpuinfo")
	if err := os.WriteFile(f, []byte("processor\t: 0\nmodel name\t: QEMU TCG CPU version 2.5+\nflags\t\t: fpu sse avx\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	flags, model := readCPUInfo(f)
	if len(flags) != 3 || flags[2] != "avx" || model != "QEMU TCG CPU version 2.5+" {
		t.Errorf("%v %q", flags, model)
	}
	if flags, model := readCPUInfo(filepath.Join(t.TempDir(), "none")); flags != nil || model != "" {
		t.Errorf("without a file: %v %q", flags, model)
	}
}

// TestSpaceDoesNotShrinkWithTheTasksOwnFiles: a daemon that starts again while tasks have files and dumps on its disk
// registers as much as the first one.
func TestSpaceDoesNotShrinkWithTheTasksOwnFiles(t *testing.T) {
	data := t.TempDir()
	free := unix.Statfs_t{Bsize: 512, Bavail: 1 << 20}
	space := func() int64 {
		own, err := OwnBytes(t.Context(), data, quota.Counting)
		if err != nil {
			t.Fatal(err)
		}
		return spaceOf(&free, own)
	}
	before := space()
	for _, dir := range []string{"attempts/1.0.0.1.1/task", "images/1.0.0.1.1/1"} {
		dir = filepath.Join(data, dir)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, "work")
		if err := os.WriteFile(file, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Link(file, file+".again"); err != nil { // which takes nothing
			t.Fatal(err)
		}
		for _, written := range []string{file, dir, filepath.Dir(dir)} {
			var st unix.Stat_t
			if err := unix.Stat(written, &st); err != nil {
				t.Fatal(err)
			}
			free.Bavail -= uint64(st.Blocks)
		}
	}
	if after := space(); after != before || free.Bavail > 1<<20-4000 {
		t.Errorf("%d bytes before, %d with the files; %d blocks free", before, after, free.Bavail)
	}
}

func TestReserve(t *testing.T) {
	if got := afterReserve(1000, 0.1); got != 900 {
		t.Errorf("%d", got)
	}
}

func TestResidentMemoryOfAProgramThatWaits(t *testing.T) {
	n, err := residentMemory(t.Context(), []string{"cat"})
	if err != nil {
		t.Skip("not proved here: that the resident memory of a process is measured; no cat here: ", err)
	}
	if n < 100<<10 || n > 64<<20 {
		t.Errorf("cat has %d bytes", n)
	}
	if _, err := residentMemory(t.Context(), []string{"/no/such/program"}); err == nil {
		t.Error("a program that is not there has memory")
	}
	if _, err := residentMemory(t.Context(), []string{"true"}); err == nil {
		t.Error("a program that ends at once was measured")
	}
}

package quota

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

func TestCounting(t *testing.T) {
	dir := t.TempDir()
	ctx := context.Background()
	empty, err := Measure(ctx, dir, Counting)
	if err != nil || empty.Files != 1 {
		t.Fatalf("an empty folder: %+v, %v", empty, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "sub/a"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Link(filepath.Join(dir, "sub/a"), filepath.Join(dir, "b")), os.Symlink("/etc", filepath.Join(dir, "l"))); err != nil {
		t.Fatal(err)
	}
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sparse.Truncate(1<<30), sparse.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := Measure(ctx, dir, Counting)
	if err != nil || got.Files != 5 || got.Bytes < 1<<20 || got.Bytes > 2<<20 {
		t.Errorf("got %+v, %v: want 5 files, each link once and holes not counted", got, err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := Measure(ended, dir, Counting); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	if _, err := Measure(ctx, filepath.Join(dir, "none"), Counting); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
	if _, err := Measure(ctx, dir, Method(0)); !errors.Is(err, fault.Invalid) {
		t.Errorf("no method: %v", err)
	}
}

func TestProbeReportsReason(t *testing.T) {
	m, why, err := Probe(t.TempDir())
	if err != nil || m != Kernel && m != Counting || (m == Counting) != (why != "") {
		t.Errorf("got %s, %q, %v", m, why, err)
	}
	t.Logf("%s %s", m, why)
	if m == Counting {
		if err := SetLimit(context.Background(), t.TempDir(), Limit{Bytes: 1 << 20}); !errors.Is(err, fault.Unsupported) {
			t.Errorf("SetLimit without quotas: %v, want fault.Unsupported", err)
		}
	}
}

// A project number has 32 bits and is a folder's inode number. On file systems with larger inode
// numbers, such as large xfs, some folders had no quota, and nobody could tell which ones before
// they were made.
func TestLargestInodeOfXFS(t *testing.T) {
	// As xfs_info shows them for mkfs.xfs with its defaults: blocks of 4096 bytes, inodes of 512,
	// four groups.
	for name, c := range map[string]struct {
		g    xfsGeometry
		want uint64
	}{
		"16 GiB":                          {xfsGeometry{blockSize: 4096, inodeSize: 512, groupBlocks: 1 << 20, groups: 4}, 1<<25 - 1},
		"groups that are no power of two": {xfsGeometry{blockSize: 4096, inodeSize: 512, groupBlocks: 1<<20 + 1, groups: 2}, 1<<24 | (1<<23 + 7)},
		"2 TiB":                           {xfsGeometry{blockSize: 4096, inodeSize: 512, groupBlocks: 1 << 27, groups: 4}, 1<<32 - 1},
		"4 TiB":                           {xfsGeometry{blockSize: 4096, inodeSize: 512, groupBlocks: 1 << 28, groups: 4}, 1<<33 - 1},
		"1 TiB of small inodes":           {xfsGeometry{blockSize: 4096, inodeSize: 256, groupBlocks: 1<<26 + 1, groups: 4}, 3<<31 | (1<<30 + 15)},
	} {
		if got := c.g.largestInode(); got != c.want {
			t.Errorf("%s: %#x, want %#x", name, got, c.want)
		}
	}
}

func TestInodesOf32Bits(t *testing.T) {
	const mounts = `25 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
30 25 8:17 / /data rw,relatime shared:1 - xfs /dev/sdb1 rw,attr2,inode32,logbufs=8,prjquota
31 25 8:33 / /more rw,relatime shared:2 - xfs /dev/sdc1 rw,attr2,inode64,logbufs=8,prjquota
`
	for dev, want := range map[string]bool{"8:17": true, "8:33": false, "8:1": false, "8:3": false} {
		if got := hasInodes32(mounts, dev); got != want {
			t.Errorf("%s: %v", dev, got)
		}
	}
}

// TestKernelQuota formats the disk in DROVER_TEST_QUOTA_DISK.
func TestKernelQuota(t *testing.T) {
	disk := os.Getenv("DROVER_TEST_QUOTA_DISK")
	if disk == "" {
		t.Skip("not proved here: that the kernel keeps project quotas; it formats a disk, set DROVER_TEST_QUOTA_DISK to one on a machine of the test bed")
	}
	at := t.TempDir()
	if err := os.Chmod(filepath.Dir(at), 0o755); err != nil { // for the user below
		t.Fatal(err)
	}
	// The test bed's spare disk is its swap, which is restored.
	if exec.Command("swapoff", disk).Run() == nil {
		t.Cleanup(func() {
			if out, err := exec.Command("sh", "-c", "mkswap -f "+disk+" && swapon "+disk).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	for _, c := range [][]string{
		{"mkfs.ext4", "-q", "-F", "-O", "project,quota", "-E", "quotatype=prjquota", disk},
		{"mount", "-o", "prjquota", disk, at},
	} {
		if out, err := exec.Command(c[0], c[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", c, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	if m, why, err := Probe(at); m != Kernel || err != nil {
		t.Fatalf("Probe: %s, %q, %v", m, why, err)
	}
	ctx := context.Background()
	dir, other := filepath.Join(at, "a"), filepath.Join(at, "b")
	for _, d := range []string{dir, other, filepath.Join(dir, "sub")} {
		if err := errors.Join(os.Mkdir(d, 0o777), os.Chmod(d, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "sub/before"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := SetLimit(ctx, dir, Limit{Bytes: 4 << 20, Files: 100}); err != nil {
			t.Fatal(err)
		}
	}
	// As a user, because root is not limited.
	write := func(path string, mib string) error {
		c := exec.Command("dd", "if=/dev/zero", "of="+path, "bs=1M", "count="+mib)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}}
		return c.Run()
	}
	if err := write(filepath.Join(dir, "sub/fits"), "2"); err != nil {
		t.Errorf("2 of the free 3 MiB: %v", err)
	}
	if err := write(filepath.Join(dir, "sub/too-much"), "2"); err == nil {
		t.Error("a write over the limit succeeded")
	}
	if err := write(filepath.Join(other, "free"), "8"); err != nil {
		t.Errorf("another folder: %v", err)
	}
	kernel, err1 := Measure(ctx, dir, Kernel)
	counted, err2 := Measure(ctx, dir, Counting)
	if err1 != nil || err2 != nil || kernel != counted || kernel.Bytes > 4<<20 {
		t.Errorf("the kernel counts %+v, %v; we count %+v, %v", kernel, err1, counted, err2)
	}
	if err := SetLimit(ctx, dir, Limit{Bytes: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := write(filepath.Join(dir, "more"), "8"); err != nil {
		t.Errorf("after the limit was raised: %v", err)
	}
	for range 2 {
		if err := ClearLimit(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(filepath.Join(dir, "free"), "16"); err != nil {
		t.Errorf("after ClearLimit: %v", err)
	}
	if err := ClearLimit(filepath.Join(at, "none")); err != nil {
		t.Errorf("ClearLimit of a removed folder: %v", err)
	}
}

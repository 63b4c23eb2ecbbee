package containerd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/cgroups"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/runtime"
)

// TestEnforcement measures what the kernel grants a container over ten seconds of
// each kind of work and compares it with the limits: never above 105%, and at least
// 90% if the task demands it. The log has the figures.
func TestEnforcement(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	if os.Getenv("DROVER_TEST_ENFORCEMENT") == "" {
		t.Skip("not proved here: that the kernel grants a container what its limits say; it measures for two minutes, set DROVER_TEST_ENFORCEMENT=1 as well")
	}
	const rate = 4 << 20
	limits := cgroups.Limits{CPUMillis: 800, MemoryBytes: 256 << 20, PIDs: 100, Disks: []cgroups.DiskLimit{{Device: b.disk, ReadBPS: rate, WriteBPS: rate}}}
	cores := limits.CPUMillis
	for _, c := range []struct {
		name   string
		args   []string
		file   func(*testing.T, *cgroups.Group, string) // prepares the file
		reads  bool
		writes bool
		cpu    bool
	}{
		{name: "cpu", args: []string{"cpu", "20", "2"}, cpu: true},
		{name: "reads", args: []string{"read", "/task/f", "20"}, file: plainFile, reads: true},
		{name: "writes", args: []string{"write", "/task/f", "20"}, writes: true},
		{name: "reads and writes at once", args: []string{"mixed", "/task/f", "20"}, file: twoFiles, reads: true, writes: true},
		{name: "buffered writes", args: []string{"buffered", "/task/f", "20"}, writes: true},
		{name: "buffered over a file that a helper wrote", args: []string{"overwrite", "/task/f", "20"}, file: helperFile, writes: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			limits.CPUMillis = cores
			if c.cpu {
				limits.CPUMillis = 400
			}
			share := float64(limits.CPUMillis) / 1000
			g, s := b.hogSpec(t, d, strings.ReplaceAll(c.name, " ", "-"), limits, c.args)
			if c.file != nil {
				c.file(t, g, filepath.Join(s.Mounts[0].Source, "f"))
			}
			used := b.measure(t, d, g, s)
			t.Logf("%-42s cpu %5.1f%%  reads %5.1f%%  writes %5.1f%% of their limits", c.name,
				100*used.cpu/share, 100*used.read/rate, 100*used.written/rate)
			t.Logf("%-42s the whole disk: reads %5.1f%%  writes %5.1f%%", "", 100*used.diskRead/rate, 100*used.diskWritten/rate)
			for _, m := range []struct {
				what  string
				share float64
				wants bool
			}{{"cpu", used.cpu / share, c.cpu}, {"reads", used.read / rate, c.reads}, {"writes", used.written / rate, c.writes}} {
				if m.share > 1.05 || m.wants && m.share < 0.9 {
					t.Errorf("%s: %.1f%% of its limit", m.what, 100*m.share)
				}
			}
		})
	}
}

// TestNeighbourOfADiskHog checks that a limited task keeps its rate next to one
// that writes as fast as its own limit allows.
func TestNeighbourOfADiskHog(t *testing.T) {
	b := newTestbed(t)
	d := b.connect(t)
	if os.Getenv("DROVER_TEST_ENFORCEMENT") == "" {
		t.Skip("not proved here: that a limited task keeps its disk rate beside a task that writes all it can; it measures for half a minute, set DROVER_TEST_ENFORCEMENT=1 as well")
	}
	const rate, hogRate = 2 << 20, 8 << 20
	limits := func(bps int64) cgroups.Limits {
		return cgroups.Limits{CPUMillis: 800, MemoryBytes: 256 << 20, PIDs: 100, Disks: []cgroups.DiskLimit{{Device: b.disk, ReadBPS: bps, WriteBPS: bps}}}
	}
	alone := func(id string) float64 {
		g, s := b.hogSpec(t, d, id, limits(rate), []string{"write", "/task/f", "20"})
		return b.measure(t, d, g, s).written
	}
	before := alone("quiet")
	hogGroup, hogSpec := b.hogSpec(t, d, "hog", limits(hogRate), []string{"buffered", "/task/f", "40"})
	ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
	defer cancel()
	if err := d.Create(ctx, hogSpec); err != nil {
		t.Fatal(err)
	}
	defer d.Delete(context.WithoutCancel(ctx), hogSpec.ID)
	if err := d.Start(ctx, hogSpec.ID); err != nil {
		t.Fatal(err)
	}
	for w := uint64(0); w < hogRate; { // until it is working
		st, err := hogGroup.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if _, w = onDisk(st, b.disk); !sleep.For(ctx, 50*time.Millisecond) {
			t.Fatal("the hog does not write")
		}
	}
	beside := alone("beside")
	t.Logf("alone %.2f MiB/s, beside a hog %.2f MiB/s (%+.1f%%)", before/(1<<20), beside/(1<<20), 100*(beside/before-1))
	if beside < 0.9*before {
		t.Errorf("the neighbour's rate fell by %.1f%%", 100*(1-beside/before))
	}
}

// hogSpec makes a container that runs hog with a folder on the data disk.
func (b *testbed) hogSpec(t *testing.T, d *Driver, id string, l cgroups.Limits, args []string) (*cgroups.Group, runtime.Spec) {
	t.Helper()
	task := filepath.Join(b.data, id)
	if err := os.Mkdir(task, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(task, 1000, 1000); err != nil {
		t.Fatal(err)
	}
	g := b.group(t, id, l)
	return g, runtime.Spec{
		ID: id, Image: b.imported(t, d), Args: append([]string{"prog", hogMarker}, args...), UID: 1000, GID: 1000,
		Cgroup: g.LeafPath(cgroups.Container), Log: runtime.Log{Dir: filepath.Join(b.data, id+"-logs")},
		Mounts: []runtime.Mount{{Source: task, Target: "/task"}},
	}
}

const fileBytes = 64 << 20

func plainFile(t *testing.T, _ *cgroups.Group, path string) {
	writeFile(t, path, func(*exec.Cmd) {})
}

// twoFiles makes one file to read and one to overwrite: a growing file would also
// read the file system's metadata.
func twoFiles(t *testing.T, g *cgroups.Group, path string) {
	plainFile(t, g, path+"2")
	plainFile(t, g, path)
}

// helperFile writes two files from the helpers leaf, under limits no tighter than
// those of fetched input.
func helperFile(t *testing.T, g *cgroups.Group, path string) {
	helperWrites(t, g, path+"2")
	helperWrites(t, g, path)
}

func helperWrites(t *testing.T, g *cgroups.Group, path string) {
	leaf, err := g.OpenLeaf(cgroups.Helpers)
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	writeFile(t, path, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(leaf.Fd())}
	})
}

func writeFile(t *testing.T, path string, edit func(*exec.Cmd)) {
	t.Helper()
	c := exec.Command("dd", "if=/dev/zero", "of="+path, "bs=1M", fmt.Sprint("count=", fileBytes>>20), "conv=fsync")
	edit(c)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.Chown(path, 1000, 1000); err != nil {
		t.Fatal(err)
	}
}

// rates are shares of a core, and bytes per second: of the attempt, and of the whole
// disk, which includes traffic charged to other cgroups.
type rates struct{ cpu, read, written, diskRead, diskWritten float64 }

// wholeDisk returns the bytes read from and written to a disk since boot.
func wholeDisk(t *testing.T, dev cgroups.Device) (read, written float64) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/sys/dev/block", dev.String(), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	var n [7]float64
	for i, f := range strings.Fields(string(b))[:7] {
		if n[i], err = strconv.ParseFloat(f, 64); err != nil {
			t.Fatal(err)
		}
	}
	return n[2] * 512, n[6] * 512
}

// measure runs the container and reads the kernel's counters ten seconds apart, once
// the work has started.
func (b *testbed) measure(t *testing.T, d *Driver, g *cgroups.Group, s runtime.Spec) rates {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*verbLimit)
	defer cancel()
	if err := d.Create(ctx, s); err != nil {
		t.Fatal(err)
	}
	var once sync.Once
	remove := func() {
		once.Do(func() {
			if err := d.Delete(context.WithoutCancel(ctx), s.ID); err != nil {
				t.Error(err)
			}
		})
	}
	defer remove()
	base, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	r0, w0 := onDisk(base, b.disk)
	if err := d.Start(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	working := func(st cgroups.Stats) bool {
		r, w := onDisk(st, b.disk)
		const begun = 4 << 20 // more than the program itself reads when it starts
		switch s.Args[2] {
		case "cpu":
			return st.ThrottledPeriods > base.ThrottledPeriods+3
		case "read":
			return r-r0 > begun
		case "mixed":
			return r-r0 > begun && w-w0 > begun
		default:
			return w-w0 > begun
		}
	}
	for {
		st, err := g.Stats()
		if err != nil {
			t.Fatal(err)
		}
		if working(st) {
			break
		}
		if !sleep.For(ctx, 20*time.Millisecond) {
			log, _ := os.ReadFile(filepath.Join(s.Log.Dir, "stderr.log"))
			t.Fatalf("it does not work: %+v: %s", st, log)
		}
	}
	dr1, dw1 := wholeDisk(t, b.disk)
	from, err := g.Stats()
	start := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	sleep.For(ctx, 10*time.Second)
	to, err := g.Stats()
	elapsed := time.Since(start).Seconds()
	dr2, dw2 := wholeDisk(t, b.disk)
	if err != nil {
		t.Fatal(err)
	}
	r1, w1 := onDisk(from, b.disk)
	r2, w2 := onDisk(to, b.disk)
	if log, _ := os.ReadFile(filepath.Join(s.Log.Dir, "stderr.log")); len(log) > 0 {
		t.Errorf("the hog says: %s", log)
	}
	remove()
	if err := os.RemoveAll(s.Mounts[0].Source); err != nil {
		t.Error(err)
	}
	return rates{cpu: (to.CPU - from.CPU).Seconds() / elapsed, read: float64(r2-r1) / elapsed, written: float64(w2-w1) / elapsed, diskRead: (dr2 - dr1) / elapsed, diskWritten: (dw2 - dw1) / elapsed}
}

func onDisk(s cgroups.Stats, dev cgroups.Device) (read, written uint64) {
	for _, x := range s.Disks {
		if x.Device == dev {
			return x.ReadBytes, x.WriteBytes
		}
	}
	return 0, 0
}

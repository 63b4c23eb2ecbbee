package cgroups

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
)

// The tests of this file need root, cgroup v2, a data disk (DROVER_TEST_DATA, else
// /data) and swap: DROVER_TEST_CGROUPS=1, on the test bed.

const workerMarker = "drover-cgroups-work"

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == workerMarker {
		runWorker(os.Args[2:])
		return
	}
	os.Exit(m.Run())
}

// runWorker is the work of a process in a cgroup: "hold MB" touches memory, prints
// "ready" and then rereads it forever, printing the start of each round; "fsync
// PATH" writes and syncs forever, and "spin" computes forever.
func runWorker(args []string) {
	switch args[0] {
	case "hold":
		mb, _ := strconv.Atoi(args[1])
		b := make([]byte, mb<<20)
		for i := range b {
			b[i] = byte(i * i >> 3)
		}
		fmt.Println("ready")
		for {
			start := time.Now().UnixNano()
			for i := 0; i < len(b); i += 4096 {
				if b[i] != byte(i*i>>3) {
					fmt.Println("memory changed")
					os.Exit(1)
				}
			}
			fmt.Println("round", start)
			time.Sleep(10 * time.Millisecond)
		}
	case "spin":
		fmt.Println("ready")
		for n := 0; ; n++ {
		}
	case "fsync":
		f, err := os.Create(args[1])
		if err != nil {
			panic(err)
		}
		fmt.Println("ready")
		for block := make([]byte, 4<<20); ; {
			if _, err := f.WriteAt(block, 0); err != nil {
				panic(err)
			}
			if err := f.Sync(); err != nil {
				panic(err)
			}
		}
	}
}

// machine returns the machine's tree and the data disk.
func machine(t *testing.T) (*Root, string, Device) {
	t.Helper()
	if os.Getenv("DROVER_TEST_CGROUPS") == "" {
		t.Skip("not proved here: that the kernel enforces what this package writes; set DROVER_TEST_CGROUPS=1 on a machine of the test bed")
	}
	r, err := New(Config{Base: "/drover-cgroups-test"})
	if err == nil {
		err = r.Prepare()
	}
	if err != nil {
		t.Fatal(err)
	}
	data := os.Getenv("DROVER_TEST_DATA")
	if data == "" {
		data = "/data"
	}
	if data, err = os.MkdirTemp(data, "cgroups-"); err != nil {
		t.Fatal(err)
	}
	disk, err := DiskOf(data)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		os.RemoveAll(data)
		if names, err := r.List(); err != nil || len(names) > 0 {
			t.Errorf("left %v, %v", names, err)
		}
	})
	return r, data, disk
}

// startWorker starts this binary in the container leaf and returns its output.
func startWorker(t *testing.T, g *Group, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	leaf, err := g.OpenLeaf(Container)
	if err != nil {
		t.Fatal(err)
	}
	defer leaf.Close()
	c := exec.Command("/proc/self/exe", append([]string{workerMarker}, args...)...)
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(leaf.Fd())}
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("the process printed %q", lines.Text())
	}
	return c, lines
}

func stopWorker(t *testing.T, g *Group, c *exec.Cmd) {
	t.Helper()
	if err := g.Kill(Whole); err != nil {
		t.Error(err)
	}
	if c != nil {
		c.Wait()
	}
	for range 2 {
		if err := g.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func TestMachineHoldsLimits(t *testing.T) {
	r, _, disk := machine(t)
	l := testLimits()
	l.Disks = []DiskLimit{{disk, 3 << 20, 5 << 20}}
	g, err := r.Create("a-1", l)
	if err != nil {
		t.Fatal(err)
	}
	defer stopWorker(t, g, nil)
	for _, edit := range []func(*Limits){
		func(l *Limits) { l.CPUMillis, l.PIDs = 1234, 7 },
		func(l *Limits) { l.MemoryBytes = 64<<20 + 123 },
		func(l *Limits) { l.Disks = nil },
		func(l *Limits) { l.Disks = []DiskLimit{{disk, Max, 1 << 30}} },
		func(l *Limits) { l.SwapBytes = 100 << 20 },
		func(l *Limits) { *l = Limits{CPUMillis: Max, MemoryBytes: Max, SwapBytes: Max, PIDs: Max} },
	} {
		edit(&l)
		if err := g.Update(l); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Update(Limits{CPUMillis: 100, MemoryBytes: 1 << 20, PIDs: 1, Disks: []DiskLimit{{Device{253, 77}, 1, 1}}}); err == nil {
		t.Error("a limit for a disk that does not exist was taken")
	}
	if names, err := r.List(); err != nil || !slices.Equal(names, []string{"a-1"}) {
		t.Errorf("list %v, %v", names, err)
	}
}

func TestMachineFreezesAndReclaims(t *testing.T) {
	r, _, disk := machine(t)
	l := Limits{CPUMillis: 1000, MemoryBytes: 192 << 20, PIDs: 50, Disks: []DiskLimit{{disk, 64 << 20, 64 << 20}}}
	g, err := r.Create("a-1", l)
	if err != nil {
		t.Fatal(err)
	}
	c, lines := startWorker(t, g, "hold", "100")
	defer stopWorker(t, g, c)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var freezes, thaws []time.Duration
	for range 20 {
		start := time.Now()
		if _, err := g.Freeze(ctx); err != nil {
			t.Fatal(err)
		}
		freezes = append(freezes, time.Since(start))
		start = time.Now()
		if err := g.Thaw(ctx); err != nil {
			t.Fatal(err)
		}
		thaws = append(thaws, time.Since(start))
	}
	slices.Sort(freezes)
	slices.Sort(thaws)
	t.Logf("freeze: median %s, most %s; thaw: median %s, most %s", freezes[10], freezes[19], thaws[10], thaws[19])
	if _, err := g.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if frozen, wanted, err := g.Frozen(); !frozen || !wanted || err != nil {
		t.Errorf("Frozen: %v, %v, %v", frozen, wanted, err)
	}
	still, err := g.Reclaim(ctx) // no swap allowed: the memory stays
	if err != nil || still.AfterBytes < 100<<20 {
		t.Errorf("without swap: %+v, %v", still, err)
	}
	if free, _, err := swapFree(); err != nil || free < 128<<20 {
		t.Skipf("not proved here: that a frozen group is swapped out; it takes 128 MiB of swap, this machine has %d bytes free, %v", free, err)
	}
	l.SwapBytes = 200 << 20
	if err := g.Update(l); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	got, err := g.Reclaim(ctx)
	if err != nil || got.AfterBytes > 10<<20 || got.swapBytes < 90<<20 {
		t.Errorf("with swap: %+v, %v", got, err)
	}
	if n, err := g.Swap(); err != nil || n < got.swapBytes {
		t.Errorf("Swap: %d, %v; in the container alone %d", n, err, got.swapBytes)
	}
	t.Logf("reclaim: %d to %d bytes in %s, %d in swap", got.BeforeBytes, got.AfterBytes, time.Since(start), got.swapBytes)
	l.SwapBytes = 0
	if err := g.Update(l); err != nil {
		t.Fatal(err)
	}
	start = time.Now()
	if err := g.Thaw(ctx); err != nil {
		t.Fatal(err)
	}
	for began := int64(0); began < start.UnixNano(); { // a whole round after Thaw has read all of the memory
		if !lines.Scan() {
			t.Fatal("the process ended")
		}
		if _, err := fmt.Sscanf(lines.Text(), "round %d", &began); err != nil {
			t.Fatalf("the process printed %q", lines.Text())
		}
	}
	t.Logf("all memory read again %s after Thaw", time.Since(start))
}

// A task that computes under a limit of half the machine is throttled half of the time. It still
// freezes, and its limit is restored.
func TestMachineFreezesThrottledProcess(t *testing.T) {
	r, _, _ := machine(t)
	l := Limits{CPUMillis: 500, MemoryBytes: 64 << 20, PIDs: 50}
	g, err := r.Create("a-1", l)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := startWorker(t, g, "spin")
	defer stopWorker(t, g, c)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var took []time.Duration
	var parts []FreezeTimings
	for i := range 50 {
		if !sleep.For(ctx, time.Duration(20+i)*time.Millisecond) { // at every phase of its period
			t.Fatal("out of time")
		}
		start := time.Now()
		froze, err := g.Freeze(ctx)
		if err != nil {
			t.Fatal(err)
		}
		took, parts = append(took, time.Since(start)), append(parts, froze)
		if got, err := g.Limits(); err != nil || !got.Equal(l) {
			t.Errorf("limits after: %s, %v", got, err)
		}
		if err := g.Thaw(ctx); err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(took)
	t.Logf("freeze: p10 %s, median %s, p90 %s, most %s", took[5], took[25], took[45], took[49])
	for i, f := range parts {
		t.Logf("freeze %d: %+v", i, f)
	}
}

func TestMachineFreezesThroughFsync(t *testing.T) {
	r, data, disk := machine(t)
	l := Limits{CPUMillis: 1000, MemoryBytes: 64 << 20, PIDs: 50, Disks: []DiskLimit{{disk, 1 << 20, 1 << 20}}}
	g, err := r.Create("a-1", l)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := startWorker(t, g, "fsync", filepath.Join(data, "f"))
	defer stopWorker(t, g, c)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 3 {
		start := time.Now()
		if _, err := g.Freeze(ctx); err != nil {
			t.Fatal(err)
		}
		t.Logf("froze in %s", time.Since(start))
		if got, err := g.Limits(); err != nil || !got.Equal(l) {
			t.Errorf("limits after: %s, %v", got, err)
		}
		if err := g.Thaw(ctx); err != nil {
			t.Fatal(err)
		}
		if !sleep.For(ctx, 100*time.Millisecond) { // back into fsync
			t.Fatal("out of time")
		}
	}
}

func TestMachineRemoveWaits(t *testing.T) {
	r, _, _ := machine(t)
	g, err := r.Create("a-1", Limits{CPUMillis: 100, MemoryBytes: 64 << 20, PIDs: 50})
	if err != nil {
		t.Fatal(err)
	}
	c, _ := startWorker(t, g, "hold", "1")
	defer stopWorker(t, g, c)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := g.Remove(ctx); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Remove of a populated group: %v", err)
	}
	if _, err := g.Freeze(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(Whole); err != nil { // kills frozen processes too
		t.Fatal(err)
	}
	if err := c.Wait(); err == nil || c.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
		t.Errorf("it ended with %v", err)
	}
}

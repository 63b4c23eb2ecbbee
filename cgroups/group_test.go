package cgroups

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/internal/fault"
)

func newTestGroup(t *testing.T) (*fakeKernelFS, *Root, *Group) {
	t.Helper()
	k, r := newFakeRoot(t)
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	g, err := r.Create("a-1", testLimits())
	if err != nil {
		t.Fatal(err)
	}
	return k, r, g
}

func TestCreateWritesAndReadsBack(t *testing.T) {
	k, r, g := newTestGroup(t)
	got, err := g.Limits()
	if err != nil || !got.Equal(testLimits()) {
		t.Errorf("limits %s, %v", got, err)
	}
	for _, c := range []struct{ file, want string }{
		{"drover/tasks/a-1/cpu.max", "50000 100000"},
		{"drover/tasks/a-1/memory.swap.max", "0"},
		{"drover/tasks/a-1/io.max", "254:16 rbps=5242880 wbps=5242880 riops=max wiops=max"},
		{"drover/tasks/a-1/container/memory.oom.group", "1"},
		{"drover/tasks/a-1/container/memory.max", "max"},
		{"drover/tasks/a-1/helpers/pids.max", "max"},
		{"drover/tasks/cgroup.subtree_control", "cpu memory io pids"},
	} {
		if got := k.get(k.mount, c.file); got != c.want {
			t.Errorf("%s holds %q, want %q", c.file, got, c.want)
		}
	}
	if g.LeafPath(Container) != "/drover/tasks/a-1/container" || r.System().LeafPath(Whole) != "/drover/tasks/system" {
		t.Errorf("leaf paths %s, %s", g.LeafPath(Container), r.System().LeafPath(Whole))
	}
	if _, err := os.Stat(filepath.Join(k.mount, "drover/tasks/system")); err != nil {
		t.Error(err)
	}
}

func TestCreateIsSafeToRepeat(t *testing.T) {
	k, r, _ := newTestGroup(t)
	other := testLimits()
	other.CPUMillis, other.Disks = 1000, []DiskLimit{{sda, 7, 8}}
	if err := os.RemoveAll(filepath.Join(k.mount, "drover/tasks/a-1/container")); err != nil { // as the engine does
		t.Fatal(err)
	}
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	g, err := r.Create("a-1", other)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := g.Limits(); err != nil || !got.Equal(other) {
		t.Errorf("limits %s, %v", got, err)
	}
	if k.get(k.mount, "drover/tasks/a-1/container/memory.oom.group") != "1" {
		t.Error("the removed leaf was not made again")
	}
	if names, err := r.List(); err != nil || !cmp.Equal(names, []string{"a-1"}) {
		t.Errorf("list %v, %v", names, err)
	}
}

func TestLimitThatDoesNotReadBackIsAnError(t *testing.T) {
	for file, value := range map[string]string{
		"cpu.max": "max 100000", "memory.max": "max", "pids.max": "7", "memory.oom.group": "0",
		"io.max": "254:16 rbps=5242880 wbps=max", "memory.swap.max": "max",
	} {
		k, r := newFakeRoot(t)
		if err := r.Prepare(); err != nil {
			t.Fatal(err)
		}
		k.readBackAs[file] = value
		if _, err := r.Create("a-1", testLimits()); !errors.Is(err, fault.Conflict) {
			t.Errorf("%s=%s: %v, want fault.Conflict", file, value, err)
		}
	}
}

// After a crash between any two writes, the next Create completes the tree.
func TestCreateAfterAnyFailedWrite(t *testing.T) {
	for n := 1; ; n++ {
		k, r := newFakeRoot(t)
		k.failNth = n
		create := func() error {
			if err := r.Prepare(); err != nil {
				return err
			}
			_, err := r.Create("a-1", testLimits())
			return err
		}
		err := create()
		if err == nil {
			if n < 10 {
				t.Fatalf("only %d writes", n)
			}
			return
		}
		if !errors.Is(err, errBroken) {
			t.Fatalf("write %d: %v", n, err)
		}
		if err := create(); err != nil {
			t.Fatalf("after write %d failed: %v", n, err)
		}
	}
}

func TestBadNames(t *testing.T) {
	_, r := newFakeRoot(t)
	for _, name := range []string{"", ".", "..", "a/b", "system", "-x", strings.Repeat("a", 129)} {
		if _, err := r.Create(name, testLimits()); !errors.Is(err, fault.Invalid) {
			t.Errorf("%q: %v, want fault.Invalid", name, err)
		}
	}
	for _, base := range []string{"/", "x", "/a/../b", "/a/"} {
		if _, err := newRoot(Config{mount: r.mount, Base: base}, r.fs); !errors.Is(err, fault.Invalid) {
			t.Errorf("base %q: %v, want fault.Invalid", base, err)
		}
	}
}

func TestMethodsOnMissingGroup(t *testing.T) {
	_, r := newFakeRoot(t)
	ctx := context.Background()
	if _, err := r.Open("a-1"); !errors.Is(err, fault.NotFound) {
		t.Errorf("Open: %v", err)
	}
	g, err := r.group("a-1")
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"Freeze": second(g.Freeze(ctx)), "Thaw": g.Thaw(ctx), "Enter": g.AddProcess(Helpers, 1), "Update": g.Update(testLimits()),
		"Stats": second(g.Stats()), "Reclaim": second(g.Reclaim(ctx)), "Limits": second(g.Limits()),
	} {
		if !errors.Is(err, fault.NotFound) {
			t.Errorf("%s: %v, want fault.NotFound", name, err)
		}
	}
	if err := errors.Join(g.Kill(Whole), g.Remove(ctx)); err != nil {
		t.Errorf("Kill and Remove: %v", err)
	}
	if names, err := r.List(); err != nil || len(names) > 0 {
		t.Errorf("List of a tree that is not there: %v, %v", names, err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestRemoveWaitsForProcesses(t *testing.T) {
	k, _, g := newTestGroup(t)
	if err := k.mkdir(filepath.Join(g.filePath("container"), "inner")); err != nil {
		t.Fatal(err)
	}
	if err := g.AddProcess(Container, 42); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Processes(Container); err != nil || !cmp.Equal(pids, []int{42}) {
		t.Errorf("processes %v, %v", pids, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := g.Remove(ctx); !errors.Is(err, fault.Unavailable) {
		t.Errorf("Remove of a populated group: %v, want fault.Unavailable", err)
	}
	if err := g.Kill(Whole); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.Remove(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(g.filePath()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the group is there: %v", err)
	}
}

func TestWhatIsKilledIsNotThrottled(t *testing.T) {
	k, _, g := newTestGroup(t)
	limit := k.get(g.filePath(), "cpu.max")
	if err := g.Kill(Helpers); err != nil {
		t.Fatal(err)
	}
	if got := k.get(g.filePath(), "cpu.max"); got != limit {
		t.Errorf("cpu.max is %q where only helpers are killed, want %q", got, limit)
	}
	k.writes = nil
	if err := g.Kill(Whole); err != nil {
		t.Fatal(err)
	}
	lifted, _ := unthrottledCPUMax(limit)
	if want := []string{"cgroup.kill=1", "cpu.max=" + lifted}; len(k.writes) != 2 || !strings.HasSuffix(k.writes[0], want[0]) || !strings.HasSuffix(k.writes[1], want[1]) {
		t.Errorf("writes %q, want %q", k.writes, want)
	}
}

func TestFreeze(t *testing.T) {
	for _, c := range []struct {
		name      string
		set       func(*fakeKernelFS)
		wantErr   error
		wantState bool
		lifted    bool // io.max
		freed     bool // cpu.max
	}{
		{"an idle container freezes at once", func(*fakeKernelFS) {}, nil, true, false, false},
		{"one that is throttled freezes once cpu.max is lifted", func(k *fakeKernelFS) { k.throttled = true }, nil, true, false, true},
		{"one in fsync freezes once io.max is lifted", func(k *fakeKernelFS) { k.stuckUntilLifted = true }, nil, true, true, true},
		{"one that never freezes runs on", func(k *fakeKernelFS) { k.neverFreezes = true }, fault.Unavailable, false, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k, _, g := newTestGroup(t)
				c.set(k)
				k.writes = nil
				start := time.Now()
				took, err := g.Freeze(context.Background())
				if c.wantErr == nil && err != nil || c.wantErr != nil && !errors.Is(err, c.wantErr) {
					t.Fatalf("got %v, want %v", err, c.wantErr)
				}
				spent := time.Since(start)
				if spent > freezeWaitIOLifted+time.Second {
					t.Errorf("took %s", spent)
				}
				if parts := took.Write + took.WaitLimited + took.LiftLimits + took.WaitLifted + took.RestoreLimits; c.wantErr == nil && parts != spent {
					t.Errorf("took %s, its parts %+v together %s", spent, took, parts)
				}
				if frozen, _, err := g.Frozen(); err != nil || frozen != c.wantState {
					// unlike the kernel, the fake thaws a frozen cgroup again under a stuck limit
					if !k.stuckUntilLifted {
						t.Errorf("frozen %v, %v", frozen, err)
					}
				}
				if got, err := g.Limits(); err != nil || !got.Equal(testLimits()) {
					t.Errorf("limits after: %s, %v", got, err)
				}
				if lifted := strings.Contains(strings.Join(k.writes, "\n"), "rbps=max wbps=max"); lifted != c.lifted {
					t.Errorf("io.max lifted: %v; writes:\n%s", lifted, strings.Join(k.writes, "\n"))
				}
				if freed := strings.Contains(strings.Join(k.writes, "\n"), "cpu.max=100000000 100000"); freed != c.freed {
					t.Errorf("cpu.max lifted: %v; writes:\n%s", freed, strings.Join(k.writes, "\n"))
				}
				if first := k.writes[0]; !strings.HasSuffix(first, "cgroup.freeze=1") {
					t.Errorf("the first write is %s: Thaw must be able to repair a crash after it", first)
				}
				if err := g.Thaw(context.Background()); err != nil {
					t.Error(err)
				}
				if frozen, wanted, err := g.Frozen(); frozen || wanted || err != nil {
					t.Errorf("after Thaw: %v, %v, %v", frozen, wanted, err)
				}
			})
		})
	}
}

func TestFreezeStopsWhenContextEnds(t *testing.T) {
	k, _, g := newTestGroup(t)
	k.neverFreezes = true
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := g.Freeze(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	if got := k.get(g.filePath("container"), "cgroup.freeze"); got != "0" {
		t.Errorf("cgroup.freeze holds %s", got)
	}
}

// After FreezeLasting the container stays freezing, whatever keeps it from being frozen in time.
func TestFreezeLasting(t *testing.T) {
	k, _, g := newTestGroup(t)
	k.neverFreezes = true
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if _, err := g.FreezeLasting(ctx); !errors.Is(err, fault.Unavailable) {
		t.Errorf("got %v", err)
	}
	if frozen, wanted, err := g.Frozen(); frozen || !wanted || err != nil {
		t.Errorf("frozen %v, freezing %v, %v", frozen, wanted, err)
	}
	if got, err := g.Limits(); err != nil || !got.Equal(testLimits()) {
		t.Errorf("limits after: %s, %v", got, err)
	}
}

func TestReclaim(t *testing.T) {
	for _, c := range []struct {
		name             string
		current          string
		reclaimable      int64
		wantAfter        int64
		minSteps, maxStp int
	}{
		{"100 MB go in steps of 32 MiB", "104857600", 32 << 20, 0, 4, 4},
		{"unreclaimable memory ends it", "104857600", 0, 100 << 20, 3, 3},
		{"crumbs count as no progress", "104857600", 1000, 100<<20 - 3000, 3, 3},
		{"little memory is not reclaimed", "1000000", 32 << 20, 1000000, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			k, _, g := newTestGroup(t)
			k.put(g.filePath("container"), "memory.current", c.current)
			k.reclaimable, k.writes = c.reclaimable, nil
			got, err := g.Reclaim(context.Background())
			if err != nil || got.AfterBytes != c.wantAfter {
				t.Errorf("got %+v, %v", got, err)
			}
			if n := len(k.writes); n < c.minSteps || n > c.maxStp {
				t.Errorf("%d steps: %v", n, k.writes)
			}
		})
	}
}

func TestStats(t *testing.T) {
	k, _, g := newTestGroup(t)
	k.put(g.filePath(), "memory.current", "12345")
	got, err := g.Stats()
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{
		CPU: 1500 * time.Microsecond, Throttled: 77 * time.Microsecond, ThrottledPeriods: 4,
		MemoryBytes: 12345, PeakBytes: 9000, OOMs: 1, OOMKills: 2,
		Disks: []DiskStats{{sda, 1, 2}, {vdb, 10, 20}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestKillOnAKernelWithoutTheFile: before Linux 5.14 there is no cgroup.kill, and remaining helpers
// used to survive without an error.
func TestKillOnAKernelWithoutTheFile(t *testing.T) {
	_, _, g := newTestGroup(t)
	if err := os.Remove(filepath.Join(g.Dir(), "helpers", "cgroup.kill")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	if err := g.AddProcess(Helpers, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if err := g.Kill(Helpers); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("the helper lives")
	}
}

// TestKernelWithoutSwapLimits: the daemon refuses to start and gives the reason. Before, each task
// failed as if its cgroup had vanished.
func TestKernelWithoutSwapLimits(t *testing.T) {
	k, r := newFakeRoot(t)
	k.lacks = "memory.swap.max"
	if err := r.Prepare(); !errors.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "swapaccount=1") {
		t.Errorf("prepared: %v", err)
	}
}

func TestTasksSwap(t *testing.T) {
	k, r := newFakeRoot(t)
	if n, err := r.TasksSwap(); n != 0 || err != nil {
		t.Errorf("before there is a cgroup: %d, %v", n, err)
	}
	if err := r.Prepare(); err != nil {
		t.Fatal(err)
	}
	k.put(r.hostPath(r.base, "tasks"), "memory.swap.current", "4096\n")
	if n, err := r.TasksSwap(); n != 4096 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}

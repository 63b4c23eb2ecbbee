package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/runtime/fake"
)

// fakeKernel is an Enforcer in memory. It can fail the n-th Make, and say that
// the kernel killed somebody.
type fakeKernel struct {
	mu     sync.Mutex
	groups map[string]Limits
	oom    map[string]bool
	fail   int   // Makes to fail
	err    error // with this
	made   int
	killed []string // whose helpers
}

func newKernel() *fakeKernel {
	return &fakeKernel{groups: map[string]Limits{}, oom: map[string]bool{}}
}

func (k *fakeKernel) Make(_ context.Context, id string, l Limits) (*droverv1.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.made++; k.made <= k.fail {
		return nil, k.err
	}
	k.groups[id] = l
	return k.shown(l), nil
}

func (k *fakeKernel) shown(l Limits) *droverv1.Limits {
	return &droverv1.Limits{CpuMax: fmt.Sprintf("%d 100000", l.CPU*100), MemoryMax: fmt.Sprint(l.Memory), PidsMax: fmt.Sprint(l.Pids)}
}

func (k *fakeKernel) Limits(id string) (*droverv1.Limits, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.shown(k.groups[id]), nil
}

func (k *fakeKernel) Leaf(id string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.groups[id]; !ok {
		return ""
	}
	return "/drover/tasks/" + id + "/c"
}

func (k *fakeKernel) HelperLeaf(string) (*os.File, error) {
	return nil, errors.New("no leaf in memory")
}

func (k *fakeKernel) Usage(id string) (*droverv1.Usage, *droverv1.Resources, int64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l, ok := k.groups[id]
	if !ok {
		return nil, nil, 0, fault.New(fault.NotFound, "no group %s", id)
	}
	if k.oom[id] {
		return &droverv1.Usage{MemoryPeak: l.Memory}, &droverv1.Resources{}, 1, nil
	}
	return &droverv1.Usage{CpuMs: 7}, &droverv1.Resources{Memory: 5}, 0, nil
}

func (k *fakeKernel) KillHelpers(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.killed = append(k.killed, id)
	return nil
}

func (k *fakeKernel) Remove(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, id)
	return nil
}

func (k *fakeKernel) List() ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var ids []string
	for id := range k.groups {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids, nil
}

func (k *fakeKernel) empty() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.groups) == 0
}

func TestLimitsAreReadBackAndRemoved(t *testing.T) {
	b, k := newBench(t, programs()), newKernel()
	b.config.Enforcer, b.config.Info.TaskOverheadMemory = k, 16<<20
	b.start()
	w := group(0, "hang")
	b.put(w)
	s := b.await(t, w, running)
	if got := s.GetLimits(); got.GetMemoryMax() != fmt.Sprint(80<<20) || got.GetCpuMax() != "10000 100000" || got.GetPidsMax() == "" {
		t.Errorf("limits as reported: %v", got)
	}
	poll(t, "what it uses", func() bool { return b.get(w).GetUsage().GetCpuMs() == 7 })
	b.halt()
	b.config.Driver = b.engine.Driver()
	b.start()
	if s := b.await(t, w, running); s.GetLimits().GetMemoryMax() != fmt.Sprint(80<<20) {
		t.Errorf("limits after a restart: %v", s.GetLimits())
	}
	if !slices.Equal(k.killed, []string{"1.0.0.1.1"}) {
		t.Errorf("helpers of the dead daemon that were ended: %v", k.killed)
	}
	b.remove(w)
	b.await(t, w, gone)
	b.nothingLeft()
	if !k.empty() {
		t.Errorf("cgroups left: %v", k.groups)
	}
}

func TestOverMemory(t *testing.T) {
	b, k := newBench(t, map[string]fake.Program{"hog": func(context.Context, *fake.Process) int { return 137 }}), newKernel()
	b.config.Enforcer, b.config.Info.TaskOverheadMemory = k, 16<<20
	k.oom["1.0.0.1.1"] = true
	b.start()
	w := group(0, "hog")
	b.put(w)
	s := b.await(t, w, failed)
	if s.GetCause() != droverv1.Cause_CAUSE_MEMORY || s.GetExitCode() != 137 {
		t.Errorf("%s, exit %d", s.GetCause(), s.GetExitCode())
	}
	for _, want := range []string{`memory = "64MiB"`, "peak was 80MiB", `set memory = "112MiB"`} {
		if !strings.Contains(s.GetMessage(), want) {
			t.Errorf("%q does not say %q", s.GetMessage(), want)
		}
	}
}

func TestLimitsThatDoNotStick(t *testing.T) {
	b, k := newBench(t, programs()), newKernel()
	k.fail, k.err = 2, errors.New("memory.max reads back as max")
	b.config.Enforcer = k
	b.start()
	w := group(0, "true")
	b.put(w)
	b.await(t, w, succeeded) // the third time they stick
	k.mu.Lock()
	k.fail = 1000
	k.mu.Unlock()
	w = group(1, "true")
	b.put(w)
	if s := b.await(t, w, failed); s.GetCause() != droverv1.Cause_CAUSE_INFRA || !strings.Contains(s.GetMessage(), "reads back") {
		t.Errorf("limits that never stick: %s %q", s.GetCause(), s.GetMessage())
	}
	if n := b.engine.Calls(fake.Create); n != 1 {
		t.Errorf("%d containers, want 1: none without limits", n)
	}
}

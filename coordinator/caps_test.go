package coordinator

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// What can never run is refused at `job plan` and at submission, with the
// harness's share of memory counted.
func TestTasksOverACapAreRefused(t *testing.T) {
	b := newTestCluster(t, nil)
	info := coordtest.Info("n1")
	info.TaskOverheadMemory = 23 << 20
	b.addNode(info, coordtest.Succeed)
	b.waitForNodes()
	_, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "upper", Cap: &droverv1.Resources{Cpu: 400}},
		{Name: "capped", Parent: "upper", TaskCap: &droverv1.Resources{Memory: 32 << 20}},
	}}))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		cpu, memory int64
		want        string
	}{
		"within all caps":                   {400, 9 << 20, ""},
		"over the task cap by the harness":  {100, 12 << 20, `needs memory 35MiB (12MiB and the harness's 23MiB), and tenant "capped" allows 32MiB (task_cap; drover tenant list): ask for at most memory = "9MiB"`},
		"over the cap of the tenant above":  {500, 8 << 20, `needs cpu 500m, and tenant "upper" allows 400m (cap; drover tenant list): ask for at most cpu = "400m"`},
		"over the task cap with any memory": {100, 64 << 20, "no task of it can ever run"},
	} {
		j := groupJob("job", 1)
		j.Tenant, j.Stages[0].Resources.CPU, j.Stages[0].Resources.Memory = "capped", c.cpu, c.memory
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		_, planErr := b.client.PlanJob(b.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)}))
		_, runErr := b.trySubmit(j, "")
		for what, err := range map[string]error{"plan": planErr, "run": runErr} {
			if c.want == "" && err != nil || c.want != "" && (!errors.Is(wire.FromError(err), fault.Exhausted) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%s: job %s: %v, want %q", name, what, err, c.want)
			}
		}
		b.waitUntil("the name is free", func() bool { return c.want != "" || b.job("job").Job.EndedMs > 0 })
	}
}

// Who asks for what the refusal of a job says is accepted: amounts are rounded down, the harness's memory, which is the
// largest share of any node, and the disk are named, and the node is the one that lacks least.
func TestRefusedDemandsAreToldWhatFits(t *testing.T) {
	b := newTestCluster(t, nil)
	for _, n := range []struct {
		name                     string
		cpu, memory, disk, share int64
	}{{"tiny", 500, 256 << 20, 1 << 30, 40 << 20}, {"big", 8000, 3<<30 + 99<<20, 10<<30 - 1, 23 << 20}, {"small", 1000, 1 << 30, 2 << 30, 23 << 20}} {
		info := coordtest.Info(n.name)
		info.Allocatable.Cpu, info.Allocatable.Memory, info.TaskOverheadMemory = n.cpu, n.memory, n.share
		info.Disks = append([]*droverv1.Disk{{Name: "slow", Io: 100, Space: 1 << 40}}, &droverv1.Disk{Name: "d", Io: 100<<20 - 1, Space: n.disk})
		info.Allocatable.Io = 100<<20 + 99
		b.addNode(info, coordtest.Succeed)
		b.waitUntil(n.name+" is up", func() bool { return b.nodeIsUp(n.name) })
	}
	if _, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "default"}, {Name: "capped", TaskCap: &droverv1.Resources{Memory: 2<<30 - 1}}, {Name: "tight", TaskCap: &droverv1.Resources{Memory: 30 << 20}}}})); err != nil {
		t.Fatal(err)
	}
	plan := func(tenant string, cpu, memory, io, disk int64) error {
		j := groupJob("job", 1)
		j.Tenant = tenant
		j.Stages[0].Resources.CPU, j.Stages[0].Resources.Memory, j.Stages[0].Resources.IO, j.Stages[0].Disk = cpu, memory, io, disk
		text, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.client.PlanJob(b.ctx, connect.NewRequest(&droverv1.PlanJobRequest{Spec: string(text)}))
		return wire.FromError(err)
	}
	const offer = "; node big, which lacks least, has at most cpu 8, memory 3GiB beside the harness's 40MiB, I/O 99.9MiB/s and 9.9GiB of disk for one: ask for less"
	for what, err := range map[string]error{"cpu": plan("default", 9000, 1<<30, 1<<20, 1<<30), "memory": plan("default", 1000, 4<<30, 1<<20, 1<<30),
		"memory beside what is counted for the harness on every node": plan("default", 1000, 3<<30+70<<20, 1<<20, 1<<30),
		"io": plan("default", 1000, 1<<30, 100<<20, 1<<30), "disk": plan("default", 1000, 1<<30, 1<<20, 10<<30)} {
		if !errors.Is(err, fault.Exhausted) || !strings.HasSuffix(err.Error(), offer) {
			t.Errorf("too much %s: %v", what, err)
		}
	}
	size := func(text string) int64 {
		n, err := jobspec.ParseSize(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := plan("default", 8000, size("3GiB"), size("99.9MiB"), size("9.9GiB")); err != nil {
		t.Errorf("what was offered: %v", err)
	}
	if err := plan("capped", 1000, 2<<30, 1<<20, 1<<30); err == nil || !strings.Contains(err.Error(), `ask for at most memory = "1.9GiB"`) {
		t.Errorf("over a cap: %v", err)
	}
	if err := plan("capped", 1000, size("1.9GiB"), 1<<20, 1<<30); err != nil {
		t.Errorf("what the cap allows: %v", err)
	}
	if err := plan("tight", 1000, 8<<20, 1<<20, 1<<30); err == nil || strings.Contains(err.Error(), "at most") {
		t.Errorf("a cap that leaves less than any task may ask for: %v", err)
	}
}

// A job that cannot start as things are has no expected start.
func TestNoExpectedStartOfWhatCannotStart(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	full := groupJob("full", 8)
	full.RuntimeBound = jobspec.Duration(time.Minute)
	b.submit(full)
	b.waitUntil("the node is full", func() bool { return b.job("full").Job.TasksRunning == 8 })
	b.submit(groupJob("waits", 1))
	b.waitUntil("an expected start is shown", func() bool { return b.job("waits").Job.ExpectedStartMs > 0 })
	if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1"})); err != nil {
		t.Fatal(err)
	}
	b.waitUntil("it says that no node is schedulable", func() bool { return strings.Contains(b.job("waits").Stages[0].Waiting, "no new work") })
	if got := b.job("waits"); got.Job.ExpectedStartMs != 0 || got.Stages[0].ExpectedStartMs != 0 {
		t.Errorf("expected to start at %d, though no node is schedulable", got.Stages[0].ExpectedStartMs)
	}
	if _, err := b.client.DrainNode(b.ctx, connect.NewRequest(&droverv1.DrainNodeRequest{Node: "n1", Off: true})); err != nil {
		t.Fatal(err)
	}
	_, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "default", TaskCap: &droverv1.Resources{Cpu: 100}}}}))
	if err != nil {
		t.Fatal(err)
	}
	if got := b.job("waits"); got.Job.ExpectedStartMs != 0 {
		t.Error("expected to start, though a cap that was lowered forbids it")
	}
}

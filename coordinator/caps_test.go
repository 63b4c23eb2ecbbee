package coordinator

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/internal/fault"
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

// A job that cannot start as things are has no expected start.
func TestNoExpectedStartOfWhatCannotStart(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("full", 8))
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

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// TestJobNamesAreTenantsOwn has two tenants with jobs of the same name: neither
// blocks the other, each finds its own, and who may read both must say which.
func TestJobNamesAreTenantsOwn(t *testing.T) {
	b, as, base := secure(t)
	clients := map[string]droverv1connect.ClientServiceClient{}
	for _, who := range []string{"root", "ann", "bob", "both"} {
		clients[who] = droverv1connect.NewClientServiceClient(as("user/"+who), base)
	}
	if _, err := clients["root"].ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "a", Submit: []string{"ann", "both"}}, {Name: "b", Submit: []string{"bob", "both"}}, {Name: "default"}}})); err != nil {
		t.Fatal(err)
	}
	submit := func(who, tenant, name string) (uint64, error) {
		j := groupJob(name, 1)
		j.Tenant = tenant
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		res, err := clients[who].SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text)}))
		if err != nil {
			return 0, wire.FromError(err)
		}
		return res.Msg.GetJob(), nil
	}
	mustSubmit := func(who, tenant, name string) uint64 {
		t.Helper()
		id, err := submit(who, tenant, name)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	annJob, bobJob, secret := mustSubmit("ann", "a", "nightly"), mustSubmit("bob", "b", "nightly"), mustSubmit("bob", "b", "secret")
	if _, err := submit("ann", "a", "nightly"); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), fmt.Sprint(annJob)) {
		t.Errorf("a name that is live in the own tenant: %v", err)
	}
	if _, err := submit("ann", "b", "secret"); !errors.Is(err, fault.Denied) || strings.Contains(err.Error(), "live") {
		t.Errorf("a name in a tenant without rights: %v", err)
	}
	for _, tc := range []struct {
		who, job string
		want     uint64 // 0: an error
		class    error
	}{
		{"ann", "nightly", annJob, nil}, {"bob", "nightly", bobJob, nil},
		{"ann", "b/nightly", 0, fault.NotFound}, {"ann", fmt.Sprint(bobJob), 0, fault.NotFound}, {"ann", "secret", 0, fault.NotFound},
		{"both", "nightly", 0, fault.Invalid}, {"both", "a/nightly", annJob, nil}, {"both", "b/nightly", bobJob, nil},
		{"both", fmt.Sprint(annJob), annJob, nil}, {"both", "secret", secret, nil}, {"root", "b/nightly", bobJob, nil},
	} {
		res, err := clients[tc.who].GetJob(b.ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: tc.job}))
		if tc.want == 0 {
			if !errors.Is(wire.FromError(err), tc.class) {
				t.Errorf("%s asks for %s: %v, want %v", tc.who, tc.job, err, tc.class)
			}
			continue
		}
		if err != nil || res.Msg.GetJob().GetJob() != tc.want {
			t.Errorf("%s asks for %s: %v %v, want job %d", tc.who, tc.job, res, err, tc.want)
		}
	}
	if _, err := clients["ann"].StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "a/nightly"})); err != nil {
		t.Fatal(err)
	}
	res, err := clients["both"].GetJob(b.ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: "nightly"}))
	if err != nil || res.Msg.GetJob().GetJob() != bobJob {
		t.Errorf("with one left live: %v %v, want job %d", res, err, bobJob)
	}
}

// TestReservedOutputTellsNoNames submits to an output path that another tenant's
// job has reserved.
func TestReservedOutputTellsNoNames(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 1, "n1")
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	if _, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "a"}, {Name: "b"}}})); err != nil {
		t.Fatal(err)
	}
	first := mapReduceJob("secret", 0)
	first.Tenant = "a"
	b.submit(first)
	for tenant, told := range map[string]bool{"a": true, "b": false} {
		j := mapReduceJob("other", 0)
		j.Tenant, j.Output = tenant, first.Output
		_, err := b.trySubmit(j, "")
		if !errors.Is(err, fault.Conflict) || strings.Contains(err.Error(), `job "secret"`) != told {
			t.Errorf("tenant %s is told: %v", tenant, err)
		}
	}
}

// A path is reserved in each of its spellings, and stored in one: two jobs published into one folder.
func TestOutputsAreReservedInEachSpelling(t *testing.T) {
	b := newTestCluster(t, nil)
	b.fs.Input("hdfs:///in", 1, "n1")
	b.addNode(coordtest.Info("n1"), coordtest.Hang)
	b.waitForNodes()
	first := mapReduceJob("first", 0)
	first.Output.Path = "hdfs:///r/./x//"
	b.submit(first)
	if got := b.job("first").GetOutput(); got != "hdfs:///r/x" {
		t.Errorf("the output is stored as %q", got)
	}
	for i, path := range []string{"hdfs:///r/x", "hdfs:///r//x", "hdfs:////r/x/", "hdfs:///r/x/.", "hdfs://namenode:8020/r/x", "hdfs://service/r//x"} {
		j := mapReduceJob(fmt.Sprint("other-", i), 0)
		j.Output.Path = path
		if _, err := b.trySubmit(j, ""); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), `job "first"`) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for i, path := range []string{"hdfs:///r/xx", "hdfs:///r", "hdfs:///x", "hdfs://r/x", "hdfs://r/X"} {
		j := mapReduceJob(fmt.Sprint("another-", i), 0)
		j.Output.Path = path
		if _, err := b.trySubmit(j, ""); (err == nil) != (path != "hdfs://r/x") { // /x is reserved by then
			t.Errorf("%s: %v", path, err)
		}
	}
}

// A number is that of its job, also where a live job of an earlier version bears it as its name: who followed or stopped the one
// got the other.
func TestNumbersComeBeforeNames(t *testing.T) {
	f, index := facts.New(), uint64(0)
	apply := func(e *droverv1.Entry) {
		t.Helper()
		index++
		e.Version, e.At = facts.EntryVersion, int64(index)
		if r := f.Apply(index, e); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	apply(&droverv1.Entry{Body: &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{Tenants: []*droverv1.Tenant{{Name: "a", Weight: 1}}}}})
	for _, name := range []string{"first", "1", "9"} {
		j := groupJob(name, 1)
		j.Tenant = "a"
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		apply(&droverv1.Entry{Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{ShuffleToken: "t", Spec: string(text)}}})
	}
	rights := &authorizer{view: func(fn func(*facts.Facts)) { fn(f) }}
	ctx := context.WithValue(t.Context(), identityKey{}, identity{kind: kindLocal})
	for name, want := range map[string]uint64{"1": 1, "2": 2, "first": 1, "a/1": 2, "9": 3, "a/9": 3} {
		if j, err := rights.findJob(ctx, f, name); err != nil || j.ID != want {
			t.Errorf("%s is job %v, %v; want %d", name, j, err, want)
		}
	}
	j := groupJob("12", 1)
	if _, err := newTestCluster(t, nil).trySubmit(j, ""); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), "digits alone") {
		t.Errorf("a new job that is called like a number: %v", err)
	}
}

// A run that goes on late, on a machine that was paused, writes into a folder that no other run has.
func TestRunsHaveFoldersOfTheirOwn(t *testing.T) {
	j, folders := &facts.Job{Temporary: "hdfs:///_temporary.out"}, map[string]bool{}
	n := 0
	for _, stage := range []int32{0, 1} {
		for _, task := range []int32{0, 1, 11} {
			for _, attempt := range []int32{1, 11} {
				for _, run := range []int32{1, 2, 11} {
					folders[path.Dir(attemptOutput(j, facts.Key{Job: 1, Stage: stage, Task: task, Attempt: attempt}, run))] = true
					n++
				}
			}
		}
	}
	if len(folders) != n {
		t.Errorf("%d runs have %d folders: %v", n, len(folders), folders)
	}
}

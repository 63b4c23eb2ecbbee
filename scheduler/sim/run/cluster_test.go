package run

import (
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

func TestClusterFileDescribesTenants(t *testing.T) {
	c, err := ReadCluster(strings.NewReader(`{"nodes":[{"count":2}],"tenants":[{"name":"research","weight":3},
		{"name":"genomics","parent":"research","caps":{"task":{"memory":"4GiB"},"total":{"cpu":"6","io":"1MiB/s"}}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.BuildTenants()
	if err != nil {
		t.Fatal(err)
	}
	want := []scheduler.TenantSpec{{Name: "research", Parent: scheduler.NoTenant, Weight: 3},
		{ID: 1, Name: "genomics", Weight: 1, Caps: scheduler.Caps{Task: scheduler.Limit{0, 4 << 30, 0}, Total: scheduler.Limit{6000, 0, 1 << 20}}}}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("got %+v, want %+v", got, want)
	}
	w := &trace.Workload{Tenants: []scheduler.TenantSpec{{Name: "genomics"}}, Jobs: []engine.Job{{}}, Projects: []engine.Project{{}}}
	in, err := withTenants(w, got)
	if err != nil || in.Jobs[0].Tenant != 1 || in.Projects[0].Tenant != 1 || w.Jobs[0].Tenant != 0 {
		t.Errorf("%+v, %v", in, err)
	}
	w.Tenants[0].Name = "physics"
	if _, err := withTenants(w, got); err == nil || !strings.Contains(err.Error(), `does not name: physics: add them`) {
		t.Errorf("an unknown tenant: %v", err)
	}
}

func TestClusterFileDescribesAbsences(t *testing.T) {
	c, err := ReadCluster(strings.NewReader(`{"nodes":[{"name":"a","count":2,"rack":"/r1"},{"name":"b","rack":"/r2","join":"1h","leave":"3h","drain":"10m"}],
		"outages":[{"nodes":["a2"],"from":"90m","to":"2h"}],"maintenance":[{"rack":"/r1","from":"5h","to":"6h","drain":"30m"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	_, got, err := c.BuildAll()
	if err != nil {
		t.Fatal(err)
	}
	h := time.Hour
	want := []engine.Absence{{Node: 2, To: h}, {Node: 1, From: 90 * time.Minute, To: 2 * h}, {Node: 2, From: 3 * h, Drain: 10 * time.Minute, Known: true},
		{Node: 0, From: 5 * h, To: 6 * h, Drain: 30 * time.Minute, Known: true}, {Node: 1, From: 5 * h, To: 6 * h, Drain: 30 * time.Minute, Known: true}}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("absence %d: got %+v, want %+v", i, got[i], want[i])
		}
	}
}

func TestBadClusterFilesAreNamed(t *testing.T) {
	for name, c := range map[string]struct{ file, want string }{
		"an unknown field":         {`{"nodes":[{}],"tenant":[]}`, `unknown field "tenant"`},
		"a tenant without a name":  {`{"nodes":[{}],"tenants":[{}]}`, "tenants[0] (): name is missing"},
		"a tenant twice":           {`{"nodes":[{}],"tenants":[{"name":"a"},{"name":"a"}]}`, "tenants[1] (a): the name is used twice"},
		"a parent after its child": {`{"nodes":[{}],"tenants":[{"name":"a","parent":"b"},{"name":"b"}]}`, `parent "b" is unknown: put the parent before`},
		"a negative weight":        {`{"nodes":[{}],"tenants":[{"name":"a","weight":-1}]}`, "weight is -1: expected a number above 0"},
		"a cap that is no size":    {`{"nodes":[{}],"tenants":[{"name":"a","caps":{"job":{"memory":"big"}}}]}`, "tenants[0] (a): caps.job: memory:"},
		"an empty cap":             {`{"nodes":[{}],"tenants":[{"name":"a","caps":{"job":{"memory":"0B"}}}]}`, "leave it out for no limit"},
		"an unknown node":          {`{"nodes":[{"name":"a"}],"outages":[{"nodes":["b"],"from":"1h"}]}`, `outages[0]: there is no node "b": the first is "a"`},
		"an unknown rack":          {`{"nodes":[{}],"outages":[{"rack":"/r9","from":"1h"}]}`, `no node is in rack "/r9"`},
		"no nodes":                 {`{"nodes":[{}],"maintenance":[{"from":"1h"}]}`, "maintenance[0]: no nodes: set nodes or rack"},
		"an end before":            {`{"nodes":[{"name":"a"}],"outages":[{"nodes":["a"],"from":"2h","to":"1h"}]}`, `ends at "1h", not after it begins at "2h"`},
		"a warning of an outage":   {`{"nodes":[{"name":"a"}],"outages":[{"nodes":["a"],"from":"2h","drain":"1h"}]}`, "an outage comes without a warning"},
		"a time without a unit":    {`{"nodes":[{"join":"90"}]}`, `join is "90": expected a time after the start`},
		"leaves before it joins":   {`{"nodes":[{"join":"2h","leave":"1h"}]}`, "a node leaves after it has joined"},
		"drains and stays":         {`{"nodes":[{"drain":"1h"}]}`, "the nodes do not leave: set leave"},
		"a negative speed":         {`{"nodes":[{"speed":-1}]}`, "speed is -1"},
	} {
		t.Run(name, func(t *testing.T) {
			c2, err := ReadCluster(strings.NewReader(c.file))
			if err == nil {
				_, _, err = c2.BuildAll()
			}
			if err == nil {
				_, err = c2.BuildTenants()
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want …%s…", err, c.want)
			}
		})
	}
}

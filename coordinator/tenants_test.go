package coordinator

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// TestJobsOfADeletedTenant checks who may read a job that has ended of a tenant that was deleted:
// operators and who submitted it, no longer whom the tenant listed.
func TestJobsOfADeletedTenant(t *testing.T) {
	b, as, base := secure(t)
	clients := map[string]droverv1connect.ClientServiceClient{}
	for _, who := range []string{"root", "ann", "reader", "other"} {
		clients[who] = droverv1connect.NewClientServiceClient(as("user/"+who), base)
	}
	if _, err := clients["root"].ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "a", Submit: []string{"ann"}, Read: []string{"reader"}}, {Name: "default"}}})); err != nil {
		t.Fatal(err)
	}
	j := groupJob("nightly", 1)
	j.Tenant = "a"
	jobspec.SetDefaults(j)
	text, err := jobspec.Encode(j)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients["ann"].SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: string(text)})); err != nil {
		t.Fatal(err)
	}
	remove := func(who string) error {
		_, err := clients[who].DeleteTenant(b.ctx, connect.NewRequest(&droverv1.DeleteTenantRequest{Name: "a"}))
		return wire.FromError(err)
	}
	if err := remove("root"); !errors.Is(err, fault.Conflict) {
		t.Errorf("with a live job: %v", err)
	}
	if _, err := clients["ann"].StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "nightly"})); err != nil {
		t.Fatal(err)
	}
	if err := remove("ann"); !errors.Is(err, fault.Denied) {
		t.Errorf("by a member: %v", err)
	}
	if err := remove("root"); err != nil {
		t.Fatal(err)
	}
	for who, want := range map[string]error{"root": nil, "ann": nil, "reader": fault.NotFound, "other": fault.NotFound} {
		_, err := clients[who].GetJob(b.ctx, connect.NewRequest(&droverv1.GetJobRequest{Job: "1"}))
		if err = wire.FromError(err); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s asks for its job: %v, want %v", who, err, want)
		}
		list, err := clients[who].ListTenants(b.ctx, connect.NewRequest(&droverv1.ListTenantsRequest{}))
		if err != nil || len(list.Msg.GetTenants()) != 1 {
			t.Errorf("%s lists %v, %v", who, list, err)
		}
	}
}

// State has no deeper trees than 32 levels, so that a move which lowers the tenants below too far
// would leave them at the root.
func TestMovesThatMakeATreeTooDeepAreRefused(t *testing.T) {
	b := newTestCluster(t, nil)
	apply := func(list ...*droverv1.Tenant) error {
		_, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: list}))
		return wire.FromError(err)
	}
	for _, prefix := range []string{"x", "y"} {
		chain := []*droverv1.Tenant{{Name: prefix + "00"}}
		for i := range 19 {
			chain = append(chain, &droverv1.Tenant{Name: fmt.Sprintf("%s%02d", prefix, i+1), Parent: chain[i].Name})
		}
		if err := apply(chain...); err != nil {
			t.Fatal(err)
		}
	}
	if err := apply(&droverv1.Tenant{Name: "y00", Parent: "x19"}); !errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), `tenant "y12" would be more than 32 levels deep`) {
		t.Errorf("40 levels: %v", err)
	}
	if err := apply(&droverv1.Tenant{Name: "y00", Parent: "x11"}); err != nil {
		t.Errorf("32 levels: %v", err)
	}
}

// A cap that State cannot count was a fact, and with it no coordinator could lead any more.
func TestCapsThatCannotBeCountedAreRefused(t *testing.T) {
	b := newTestCluster(t, nil)
	const most = 1 << 53
	for _, c := range []struct {
		tenant *droverv1.Tenant
		want   string // "" for none
	}{
		{&droverv1.Tenant{Cap: &droverv1.Resources{Memory: 10 << 50}}, `cap of tenant "a": memory is 11258999068426240: at most 9007199254740992 can be counted`},
		{&droverv1.Tenant{Cap: &droverv1.Resources{Cpu: most + 1}}, `cap of tenant "a": cpu is 9007199254740993`},
		{&droverv1.Tenant{Cap: &droverv1.Resources{Io: -1}}, `cap of tenant "a": io is -1: it must not be negative`},
		{&droverv1.Tenant{TaskCap: &droverv1.Resources{Memory: most + 1}}, `task_cap of tenant "a": memory is 9007199254740993`},
		{&droverv1.Tenant{TaskCap: &droverv1.Resources{Cpu: -1}}, `task_cap of tenant "a": cpu is -1`},
		{&droverv1.Tenant{Cap: &droverv1.Resources{Cpu: most, Memory: most, Io: most}, TaskCap: &droverv1.Resources{Memory: most}}, ""},
	} {
		c.tenant.Name = "a"
		_, err := b.client.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{c.tenant}}))
		if err = wire.FromError(err); (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %v, want %q", c.tenant, err, c.want)
		}
	}
}

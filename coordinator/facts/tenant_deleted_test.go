package facts

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/jobspec"
)

// tenantLog applies entries about tenants.
type tenantLog struct{ f *Facts }

func (l tenantLog) put(name, parent string) Result {
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Body: &droverv1.Entry_Tenants{Tenants: &droverv1.TenantsFact{
		Tenants: []*droverv1.Tenant{{Name: name, Parent: parent, Weight: 1, Read: []string{"*"}}}}}})
}

// submit has team accept job 1, with an output.
func (l tenantLog) submit() Result {
	j := &jobspec.Job{Name: "j", Tenant: "team", Input: &jobspec.Input{Paths: []string{"hdfs:///in"}}, Output: &jobspec.Output{Path: "hdfs:///out"},
		Stages: []jobspec.Stage{{Name: "m", Kind: jobspec.KindMap, Builtin: []string{"wordcount"}, Resources: jobspec.Resources{CPU: 100, Memory: 1 << 20}}}}
	jobspec.SetDefaults(j)
	b, err := jobspec.Encode(j)
	if err != nil {
		return Result{Err: err}
	}
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Body: &droverv1.Entry_JobAccepted{JobAccepted: &droverv1.JobAcceptedFact{
		Spec: string(b), Output: j.Output.Path, Splits: []*droverv1.FactSplit{{}}}}})
}

func (l tenantLog) stop() {
	l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Body: &droverv1.Entry_JobStop{JobStop: &droverv1.JobStopFact{Job: 1}}})
}

func (l tenantLog) clean() {
	l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Body: &droverv1.Entry_JobCleaned{JobCleaned: &droverv1.JobCleanedFact{Job: 1}}})
}

func (l tenantLog) delete(name string) Result {
	return l.f.Apply(l.f.Index()+1, &droverv1.Entry{Version: EntryVersion, Actor: "user/root",
		Body: &droverv1.Entry_TenantDeleted{TenantDeleted: &droverv1.TenantDeletedFact{Name: name}}})
}

func TestTenantsThatCannotBeDeleted(t *testing.T) {
	for name, c := range map[string]struct {
		tenant string
		given  func(tenantLog)
		want   error  // class
		says   string // what there is, and what to do
	}{
		"it does not exist":            {"other", nil, fault.NotFound, "drover tenant list"},
		"it must exist":                {DefaultTenant, nil, fault.Invalid, "empty its lists"},
		"a tenant is below it":         {"team", func(l tenantLog) { l.put("below", "team") }, fault.Conflict, "(below): delete them first"},
		"a job is live":                {"team", func(l tenantLog) { l.submit() }, fault.Conflict, "1 live jobs (j): wait for them, or stop each with `drover job stop team/NAME`"},
		"a job's output is cleaned up": {"team", func(l tenantLog) { l.submit(); l.stop() }, fault.Conflict, "numbers 1): try again"},
		"it has a secret":              {"team", func(l tenantLog) { secretLog(l).put("team", "key", 1, 3) }, fault.Conflict, "(key): delete each with `drover secret delete -all -tenant team NAME`"},
		"it was deleted":               {"team", func(l tenantLog) { l.delete("team") }, fault.NotFound, "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			l := tenantLog{New()}
			l.put("team", "")
			if c.given != nil {
				c.given(l)
			}
			before, events := dump(t, l.f), len(l.f.EventLog().Since(0, 100))
			r := l.delete(c.tenant)
			if !errors.Is(r.Err, c.want) || !strings.Contains(fmt.Sprint(r.Err), c.says) {
				t.Errorf("%v; want %v with %q", r.Err, c.want, c.says)
			}
			if l.f.index--; dump(t, l.f) != before || len(l.f.EventLog().Since(0, 100)) != events {
				t.Errorf("the refused entry changed %s to %s", before, dump(t, l.f))
			}
		})
	}
}

// TestADeletedTenant checks what is left of it, also in a snapshot: its number, which is its own
// again when the name comes back, and nothing of what its jobs could do.
func TestADeletedTenant(t *testing.T) {
	l := tenantLog{New()}
	l.put("top", "")
	l.put("team", "top")
	l.submit()
	l.stop()
	l.clean()
	id := l.f.Tenant("team").ID
	if r := l.delete("team"); r.Err != nil || r.Changed != 1 {
		t.Fatalf("%+v", r)
	}
	if e := l.f.EventLog().Since(0, 100); e[len(e)-1].Kind != "tenant.deleted" || e[len(e)-1].Actor != "user/root" {
		t.Errorf("the event: %+v", e[len(e)-1])
	}
	restored, err := Restore(strings.NewReader(dump(t, l.f)))
	if err != nil {
		t.Fatal(err)
	}
	for what, l := range map[string]tenantLog{"applied": l, "restored": {restored}} {
		if l.f.Tenant("team") != nil || !l.f.Tenants()[id].Deleted || l.f.Tenants()[id].Spec.GetRead() != nil {
			t.Errorf("%s: %+v", what, l.f.Tenants()[id])
		}
		if r := l.submit(); !errors.Is(r.Err, fault.NotFound) {
			t.Errorf("%s: a job of it: %v", what, r.Err)
		}
		if r := l.put("child", "team"); !errors.Is(r.Err, fault.Invalid) {
			t.Errorf("%s: a tenant below it: %v", what, r.Err)
		}
		if r := l.delete("top"); r.Err != nil {
			t.Errorf("%s: the one above it: %v", what, r.Err)
		}
		if r := l.put("team", ""); r.Err != nil || l.f.Tenant("team").ID != id || len(l.f.Tenants()) != 3 {
			t.Errorf("%s: applied again: %v, %s", what, r.Err, dump(t, l.f))
		}
	}
}

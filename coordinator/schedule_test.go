package coordinator

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/coordtest"
)

// oneCore returns a node on which CPU runs out first.
func oneCore() *droverv1.NodeInfo {
	n := matrixNode()
	n.Allocatable = &droverv1.Resources{Cpu: 1000, Memory: 1 << 30, Io: 1 << 30}
	n.Measured = n.Allocatable
	n.Disks[0].Io = 1 << 30
	return n
}

// What occupies the node, what waits and why is in the schedule, and the same
// numbers are in the sums of tenants.
func TestScheduleHasWhatRunsAndWhatWaits(t *testing.T) {
	b := newTestCluster(t, nil)
	b.addNode(oneCore(), coordtest.Hang)
	b.waitForNodes()
	b.submit(groupJob("wide", 5)) // half a core each
	b.waitUntil("two run", func() bool {
		j := b.job("wide")
		return j != nil && j.Stages[0].Running == 2 && j.Stages[0].Waiting != ""
	})
	res, err := b.client.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	m := res.Msg
	if len(m.Nodes) != 1 || len(m.Attempts) != 2 || len(m.Jobs) != 1 || m.Jobs[0].Name != "wide" || m.UntilMs <= m.NowMs || m.FromMs != m.NowMs-time.Hour.Milliseconds() {
		t.Fatalf("schedule %v", m)
	}
	for _, a := range m.Attempts {
		if a.Key.GetJob() != 1 || a.State != "live" || !a.Expected || a.Occupied.GetCpu() != 500 || a.PlacedMs == 0 {
			t.Errorf("attempt %v", a)
		}
	}
	if len(m.Waiting) != 1 || m.Waiting[0].Tasks != 3 || m.Waiting[0].Reason != b.job("wide").Stages[0].Waiting {
		t.Errorf("waiting %v, want %q", m.Waiting, b.job("wide").Stages[0].Waiting)
	}
	b.waitUntil("it is known what would have to give way", func() bool { // with the next expected starts
		res, err := b.client.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{Job: "wide"}))
		if err != nil {
			t.Fatal(err)
		}
		o := res.Msg.Waiting[0].Obstacles
		return len(o) == 1 && o[0].Job == 1 && o[0].Key.GetJob() == 1 && o[0].Node == m.Nodes[0].Node && o[0].Reservation == 0
	})
	if res, err = b.client.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{Limit: 1})); err != nil || len(res.Msg.Attempts) != 1 || res.Msg.More != 1 {
		t.Errorf("limited: %v %v", res.Msg, err)
	}
	tenants, err := b.client.ListTenants(b.ctx, connect.NewRequest(&droverv1.ListTenantsRequest{}))
	if err != nil || tenants.Msg.Tenants[0].TasksRunning != 2 || tenants.Msg.Tenants[0].TasksPending != 3 || tenants.Msg.Tenants[0].FairShare != 1 {
		t.Errorf("tenants %v %v", tenants.Msg, err)
	}
	policy, err := b.client.GetScheduler(b.ctx, connect.NewRequest(&droverv1.GetSchedulerRequest{}))
	if err != nil || len(policy.Msg.Pending) != 1 || policy.Msg.Pending[0].Tasks != 3 {
		t.Errorf("pending %v %v", policy.Msg.GetPending(), err)
	}
}

// A stranger sees that capacity is occupied, and nothing of whose job it is.
func TestScheduleHidesJobsOfOthers(t *testing.T) {
	b, as, base := secure(t)
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	if _, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "a", Submit: []string{"submitter"}}, {Name: "default"}}})); err != nil {
		t.Fatal(err)
	}
	b.addNode(oneCore(), coordtest.Hang)
	j := groupJob("secretname", 3)
	j.Tenant = "a"
	b.submit(j)
	stranger := droverv1connect.NewClientServiceClient(as("user/stranger"), base)
	var m *droverv1.GetScheduleResponse
	b.waitUntil("two run", func() bool {
		res, err := stranger.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{}))
		if err != nil {
			t.Fatal(err)
		}
		m = res.Msg
		return len(m.Attempts) == 2
	})
	if len(m.Jobs) != 0 || len(m.Waiting) != 0 || m.Attempts[0].Key.GetJob() != 0 || m.Attempts[0].Key.GetTask() != 0 || strings.Contains(m.String(), "secret") {
		t.Errorf("the stranger sees %v", m)
	}
	own := groupJob("own", 1)
	own.Tenant = "default"
	if _, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{{Name: "a", Submit: []string{"submitter"}}, {Name: "default", Submit: []string{"stranger", "submitter"}}}})); err != nil {
		t.Fatal(err)
	}
	b.submit(own)
	b.waitUntil("it is known what stops the own job", func() bool {
		res, err := stranger.GetSchedule(b.ctx, connect.NewRequest(&droverv1.GetScheduleRequest{Job: "own"}))
		if err != nil || len(res.Msg.Waiting) != 1 {
			return false
		}
		if strings.Contains(res.Msg.String(), "secret") {
			t.Fatalf("the stranger sees %v", res.Msg)
		}
		o := res.Msg.Waiting[0].Obstacles
		return len(o) == 1 && o[0].Job == 0 && o[0].Key.GetJob() == 0 && o[0].Key.GetRun() > 0
	})
	for _, q := range []*droverv1.GetScheduleRequest{{Tenant: "a"}, {Job: "1"}} {
		if res, err := stranger.GetSchedule(b.ctx, connect.NewRequest(q)); err == nil && len(res.Msg.Attempts) > 0 {
			t.Errorf("%v: %v", q, res.Msg)
		}
	}
}

// Parts of a list of tasks follow each other, over stages.
func TestTasksComeInParts(t *testing.T) {
	b := newTestCluster(t, nil)
	j := groupJob("parts", 5)
	j.Stages = append(j.Stages, j.Stages[0])
	j.Stages[1].Name, j.Stages[1].Tasks = "second", 4
	b.submit(j)
	var got []string
	for from := int32(0); ; {
		res, err := b.client.ListTasks(b.ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: "parts", From: from, Limit: 3}))
		if err != nil {
			t.Fatal(err)
		}
		if res.Msg.Total != 9 || len(res.Msg.Tasks) > 3 {
			t.Fatalf("from %d: %d tasks, %d in all", from, len(res.Msg.Tasks), res.Msg.Total)
		}
		for _, x := range res.Msg.Tasks {
			got = append(got, x.Stage+string(rune('0'+x.Task)))
		}
		if len(res.Msg.Tasks) == 0 {
			break
		}
		from += int32(len(res.Msg.Tasks))
	}
	if want := "main0 main1 main2 main3 main4 second0 second1 second2 second3"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// Fair shares multiply along the chain of parents, among siblings with live jobs
// below them, and end if it is a circle.
func TestFairShares(t *testing.T) {
	tenant := func(name, parent string, weight float64, jobs int32) *droverv1.TenantStatus {
		return &droverv1.TenantStatus{Tenant: &droverv1.Tenant{Name: name, Parent: parent, Weight: weight}, Jobs: jobs}
	}
	list := []*droverv1.TenantStatus{tenant("a", "", 3, 0), tenant("b", "", 1, 2), tenant("c", "a", 1, 1), tenant("d", "a", 1, 1), tenant("idle", "", 4, 0), tenant("x", "y", 1, 1), tenant("y", "x", 1, 0), tenant("z", "gone", 0, 1)}
	fairShares(list)
	for i, want := range []float64{0.75, 0.25, 0.375, 0.375, 0.5, 1, 1, 1} {
		if list[i].FairShare != want {
			t.Errorf("%s: %g, want %g", list[i].Tenant.Name, list[i].FairShare, want)
		}
	}
}

// A sample has the cycles since the one before it.
func TestCyclesOfSample(t *testing.T) {
	var c schedulerCounts
	c.observe(4*time.Millisecond, 5, 2)
	c.observe(2*time.Millisecond, 3, 0)
	if got := c.read(); got != (schedulerTotals{2, int64(6 * time.Millisecond), 6, 2}) {
		t.Errorf("%+v", got)
	}
	if first, second := c.takeLongest(), c.takeLongest(); first != 4*time.Millisecond || second != 0 {
		t.Errorf("longest %s, then %s", first, second)
	}
}

// A call in the process streams, ends with its context, and tells a panic.
func TestInProcessCalls(t *testing.T) {
	calls := func(h http.HandlerFunc) *http.Client {
		return &http.Client{Transport: inProcess{h, slog.New(slog.DiscardHandler)}}
	}
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://c/x", strings.NewReader("question"))
	if err != nil {
		t.Fatal(err)
	}
	res, err := calls(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		text, _ := io.ReadAll(r.Body)
		w.Header().Set("X", r.URL.Path)
		w.WriteHeader(http.StatusTeapot)
		_, _ = w.Write(text)
		<-r.Context().Done()
	}).Do(r)
	if err != nil || res.StatusCode != http.StatusTeapot || res.Header.Get("X") != "/x" {
		t.Fatalf("%v %v", res, err)
	}
	part := make([]byte, 8)
	if _, err := io.ReadFull(res.Body, part); err != nil || string(part) != "question" {
		t.Fatalf("%q %v", part, err)
	}
	cancel()
	select {
	case <-ended:
	case <-time.After(waitLimit):
		t.Fatal("the handler goes on after its caller")
	}
	_ = res.Body.Close()
	res, err = calls(func(http.ResponseWriter, *http.Request) { panic("lost") }).Get("http://c/y")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadAll(res.Body); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a panic is told as %v", err)
	}
}

// The page's calls are its reader's: what the reader may not, the page may not, and the audit log has the reader's address.
func TestPageCallsAsItsReader(t *testing.T) {
	b, as, base := secureWith(t, func(c *Config) {
		c.Page = func(p PageConfig) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				res, err := p.API.Status(r.Context(), connect.NewRequest(&droverv1.StatusRequest{}))
				if err != nil {
					http.Error(w, err.Error(), http.StatusForbidden)
					return
				}
				_, _ = w.Write([]byte(r.URL.Path + " " + p.Reader(r.Context()) + " " + res.Msg.Caller))
				_, err = p.API.DrainNode(r.Context(), connect.NewRequest(&droverv1.DrainNodeRequest{Node: "none"}))
				_, _ = w.Write([]byte(" " + connect.CodeOf(err).String()))
			})
		}
	})
	b.waitUntil("it leads", func() bool {
		_, err := b.client.Status(b.ctx, connect.NewRequest(&droverv1.StatusRequest{}))
		return err == nil
	})
	for name, want := range map[string]string{"user/reader": "/jobs user/reader user/reader permission_denied", "user/root": "/jobs user/root user/root not_found", "node/n1": "node/n1 is no user"} {
		res, err := as(name).Get(base + "/jobs")
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s reads %q (%v), want %q", name, text, err, want)
		}
		_ = res.Body.Close()
	}
	drained := 0
	for _, r := range auditRecords(t, filepath.Join(b.cfg.Dir, "audit.jsonl")) {
		if r.Call == "DrainNode" {
			drained++
		}
		if !strings.HasPrefix(r.From, "127.0.0.1:") {
			t.Errorf("a call of the page without its reader's address: %+v", r)
		}
	}
	if drained != 2 {
		t.Errorf("%d records of DrainNode, want 2", drained)
	}
}

package browser

import (
	"context"
	"fmt"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"github.com/chromedp/chromedp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/ui"
)

// oneJob is an API with one job, whose name ends with a number that a test counts up.
type oneJob struct {
	droverv1connect.ClientServiceClient
	droverv1connect.HistoryServiceClient
	turn atomic.Int64
}

func (o *oneJob) Status(context.Context, *connect.Request[droverv1.StatusRequest]) (*connect.Response[droverv1.StatusResponse], error) {
	return connect.NewResponse(&droverv1.StatusResponse{Version: "v", Cluster: "one", Caller: "user/alice", JobsRunning: 1}), nil
}

func (o *oneJob) ListTenants(context.Context, *connect.Request[droverv1.ListTenantsRequest]) (*connect.Response[droverv1.ListTenantsResponse], error) {
	return connect.NewResponse(&droverv1.ListTenantsResponse{Tenants: []*droverv1.TenantStatus{{Tenant: &droverv1.Tenant{Name: "default"}}}}), nil
}

func (o *oneJob) ListJobs(context.Context, *connect.Request[droverv1.ListJobsRequest]) (*connect.Response[droverv1.ListJobsResponse], error) {
	j := &droverv1.JobSummary{Job: 1, Name: fmt.Sprint("turn-", o.turn.Load()), Tenant: "default", State: droverv1.JobState_JOB_STATE_RUNNING}
	return connect.NewResponse(&droverv1.ListJobsResponse{Jobs: []*droverv1.JobSummary{j}}), nil
}

func (o *oneJob) ListPastJobs(context.Context, *connect.Request[droverv1.ListPastJobsRequest]) (*connect.Response[droverv1.ListPastJobsResponse], error) {
	return connect.NewResponse(&droverv1.ListPastJobsResponse{}), nil
}

func (o *oneJob) GetJob(context.Context, *connect.Request[droverv1.GetJobRequest]) (*connect.Response[droverv1.GetJobResponse], error) {
	return connect.NewResponse(&droverv1.GetJobResponse{Job: &droverv1.JobSummary{Job: 1, Name: "one", Tasks: 300, State: droverv1.JobState_JOB_STATE_RUNNING}, Stages: []*droverv1.StageSummary{{Name: "a", Tasks: 300}}}), nil
}

func (o *oneJob) ListTasks(_ context.Context, r *connect.Request[droverv1.ListTasksRequest]) (*connect.Response[droverv1.ListTasksResponse], error) {
	res := &droverv1.ListTasksResponse{Total: 300}
	for i := r.Msg.GetFrom(); i < min(r.Msg.GetFrom()+r.Msg.GetLimit(), 300); i++ {
		seen := &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, Status: fmt.Sprint("turn-", o.turn.Load())}
		res.Tasks = append(res.Tasks, &droverv1.TaskStatus{Stage: "a", Task: i, State: "running", Attempts: []*droverv1.TaskAttempt{{Key: &droverv1.AttemptKey{Job: 1, Task: i, Attempt: 1}, Seen: seen}}})
	}
	return connect.NewResponse(res), nil
}

func (o *oneJob) GetSchedule(context.Context, *connect.Request[droverv1.GetScheduleRequest]) (*connect.Response[droverv1.GetScheduleResponse], error) {
	return connect.NewResponse(&droverv1.GetScheduleResponse{NowMs: 10_000, UntilMs: 20_000, Nodes: []*droverv1.ScheduleNode{{Node: 1, Name: "n1", State: "up"}}}), nil
}

// newOneJob returns a browser and a server of pages of one job.
func newOneJob(t *testing.T) (*scene, *oneJob) {
	t.Helper()
	s, api := newBrowser(t), &oneJob{}
	srv := httptest.NewServer(ui.New(ui.Config{API: api, History: api}))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections)
	s.base = srv.URL
	return s, api
}

// A page that the browser kept for its button Back is live again.
func TestBackGoesOn(t *testing.T) {
	s, api := newOneJob(t)
	s.open("/jobs")
	s.says("turn-0")
	s.until("the page is kept, and shown again", `["pagehide", "pageshow"].every(e => dispatchEvent(new PageTransitionEvent(e, {persisted: true})))`)
	api.turn.Add(1)
	s.says("turn-1")
	s.complaints()
}

// see shows a page as if its tab were hidden, or seen: tabs without a screen are always seen.
func (s *scene) see(seen bool) {
	s.t.Helper()
	s.until("the tab's state is told", fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %t, configurable: true}) && document.dispatchEvent(new Event("visibilitychange"))`, !seen))
}

// A browser has six connections to a server that speaks HTTP/1.1: with six pages in
// hidden tabs a seventh one is live, and one that is seen again goes on.
func TestHiddenTabsHoldNoConnections(t *testing.T) {
	s, api := newOneJob(t)
	first := s.ctx
	for range 6 {
		s.open("/jobs")
		s.says("turn-0")
		s.see(false)
		ctx, end := chromedp.NewContext(first)
		t.Cleanup(end)
		if err := chromedp.Do(ctx); err != nil { // opens the tab
			t.Fatal(err)
		}
		s.ctx = ctx
	}
	s.open("/jobs")
	api.turn.Add(1)
	s.says("turn-1")
	s.ctx = first
	s.see(true)
	s.says("turn-1")
	s.complaints()
}

// Who goes through the tasks by keyboard stays at one while the table changes, and the
// schedule leaves the browser's own keys alone.
func TestKeyboard(t *testing.T) {
	s, api := newOneJob(t)
	s.open("/jobs/1")
	s.until("the script has the table", `document.querySelector(".virtual tbody tr:last-child[aria-hidden]") !== null`)
	s.until("a task is in focus", `document.querySelectorAll(".virtual tbody a")[3].focus() || document.activeElement.innerText === "a/3"`)
	api.turn.Add(1)
	s.until("the table has changed", `document.querySelector(".virtual tbody td:last-child").innerText === "turn-1" && document.activeElement.innerText === "a/3"`)
	s.until("the rows below are shown", `(e => (e.scrollTop = e.scrollHeight) && e.innerText.includes("a/299"))(document.querySelector(".virtual"))`)

	s.open("/schedule")
	s.until("the schedule is drawn", `document.querySelector("canvas.schedule").style.height !== ""`)
	takes := func(how string) string {
		return `(e => { e.focus(); return !e.dispatchEvent(new KeyboardEvent("keydown", {key: "-", bubbles: true, cancelable: true` + how + `})) })(document.querySelector("canvas.schedule"))`
	}
	s.until("it takes its own key", takes(""))
	for _, how := range []string{"ctrlKey", "metaKey", "altKey"} {
		s.until("it leaves "+how+" to the browser", "!"+takes(", "+how+": true"))
	}
	s.complaints()
}

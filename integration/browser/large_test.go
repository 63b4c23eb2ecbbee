package browser

import (
	"context"
	"fmt"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/integration/internal/browser"
	"github.com/drover-run/drover/ui"
)

// largeNodes and largeAttempts are the size of the cluster of the benchmark. Of the
// attempts an answer has largeListed, as the coordinator's has.
const (
	largeNodes    = 10_000
	largeAttempts = 200_000
	largeListed   = 20_000
)

// largeAPI answers as a coordinator with a large cluster does. Each answer differs
// from the last: the page is live.
type largeAPI struct {
	droverv1connect.ClientServiceClient
	droverv1connect.HistoryServiceClient
	turn atomic.Int64
}

func (l *largeAPI) Status(context.Context, *connect.Request[droverv1.StatusRequest]) (*connect.Response[droverv1.StatusResponse], error) {
	return connect.NewResponse(&droverv1.StatusResponse{Version: "v", Cluster: "large", Caller: "user/alice", Nodes: largeNodes, NodesUp: largeNodes, JobsRunning: 200}), nil
}

func (l *largeAPI) ListTenants(context.Context, *connect.Request[droverv1.ListTenantsRequest]) (*connect.Response[droverv1.ListTenantsResponse], error) {
	return connect.NewResponse(&droverv1.ListTenantsResponse{Tenants: []*droverv1.TenantStatus{{Tenant: &droverv1.Tenant{Name: "default"}, TasksRunning: largeAttempts}}}), nil
}

func (l *largeAPI) ListNodes(context.Context, *connect.Request[droverv1.ListNodesRequest]) (*connect.Response[droverv1.ListNodesResponse], error) {
	res, turn := &droverv1.ListNodesResponse{}, int(l.turn.Add(1))
	for i := range largeNodes {
		res.Nodes = append(res.Nodes, &droverv1.NodeStatus{Node: int32(i + 1), State: "up", Attempts: largeAttempts / largeNodes, LastReportMs: time.Now().UnixMilli(),
			Used: &droverv1.Resources{Cpu: int64((i + turn) * 7919 % 64_000), Memory: int64((i+turn)*104_729%256) << 30, Io: 1 << 20},
			Info: &droverv1.NodeInfo{Name: fmt.Sprintf("node-%05d", i), Rack: fmt.Sprintf("/r%03d", i/40), Allocatable: &droverv1.Resources{Cpu: 64_000, Memory: 256 << 30, Io: 1 << 30}}})
	}
	return connect.NewResponse(res), nil
}

func (l *largeAPI) GetSchedule(context.Context, *connect.Request[droverv1.GetScheduleRequest]) (*connect.Response[droverv1.GetScheduleResponse], error) {
	now, turn := time.Now().UnixMilli(), l.turn.Add(1)
	res := &droverv1.GetScheduleResponse{NowMs: now, FromMs: now - 3_600_000, UntilMs: now + 3_600_000, More: largeAttempts - largeListed}
	for i := range largeNodes {
		res.Nodes = append(res.Nodes, &droverv1.ScheduleNode{Node: int32(i + 1), Name: fmt.Sprintf("node-%05d", i), Rack: fmt.Sprintf("/r%03d", i/40), State: "up", Allocatable: &droverv1.Resources{Cpu: 64_000}})
	}
	for i := range 200 {
		res.Jobs = append(res.Jobs, &droverv1.ScheduleJob{Job: uint64(i + 1), Name: fmt.Sprintf("job-%d", i), Tenant: "default", Stages: []string{"main"}})
	}
	for i := range largeListed {
		at := now - (int64(i)*7919+turn)%3_600_000
		res.Attempts = append(res.Attempts, &droverv1.ScheduleAttempt{Key: &droverv1.AttemptKey{Job: uint64(i%200 + 1), Task: int32(i), Attempt: 1}, Node: int32(i%largeNodes + 1), PlacedMs: at, EndMs: at + 3_600_000,
			Expected: true, State: "live", Level: droverv1.Level_LEVEL_RUNNING, Occupied: &droverv1.Resources{Cpu: 1000}})
	}
	return connect.NewResponse(res), nil
}

// ListPastSamples returns as many samples as a page shows.
func (*largeAPI) ListPastSamples(_ context.Context, r *connect.Request[droverv1.ListPastSamplesRequest]) (*connect.Response[droverv1.ListPastSamplesResponse], error) {
	res := &droverv1.ListPastSamplesResponse{}
	for i := range 300 {
		res.Samples = append(res.Samples, &droverv1.PastSample{AtMs: r.Msg.GetSinceMs() + int64(i)*10_000, NodesUp: largeNodes, TasksRunning: float64(i)})
	}
	return connect.NewResponse(res), nil
}

// measure collects what the browser knows of a page, before the page's own scripts.
const measure = `window.longest = 0; new PerformanceObserver((l) => { for (const e of l.getEntries()) window.longest = Math.max(window.longest, e.duration) }).observe({ type: "longtask", buffered: true })`

// BenchmarkLargeCluster opens pages of a cluster of 10,000 nodes in a real browser
// and reports the time until the picture is drawn, the compressed bytes of all that
// was loaded until then, and the longest task of the browser's main thread until
// the page has changed three times.
func BenchmarkLargeCluster(b *testing.B) {
	if _, err := browser.Find(); err != nil {
		b.Skip("not proved here: the time and the bytes of pages of a large cluster: ", err)
	}
	api := &largeAPI{}
	s := httptest.NewServer(ui.New(ui.Config{API: api, History: api}))
	defer s.Close()
	defer s.CloseClientConnections()
	ctx, end, err := browser.Start(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	defer end()
	if _, err := chromedp.Call(ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: measure}); err != nil {
		b.Fatal(err)
	}
	for name, path := range map[string]string{"cluster": "/", "schedule": "/schedule", "schedule by rack": "/schedule?by=racks", "schedule by tenant": "/schedule?by=tenants"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				until := func(what, expression string) {
					for end := time.Now().Add(browser.Limit); ; time.Sleep(5 * time.Millisecond) { // between two looks at a condition
						if ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression)); err == nil && ok {
							return
						}
						if time.Now().After(end) {
							b.Fatalf("not within %s: %s", browser.Limit, what)
						}
					}
				}
				if err := chromedp.Do(ctx, chromedp.Navigate("about:blank"), chromedp.Navigate(s.URL+path)); err != nil {
					b.Fatal(err)
				}
				until("the picture is drawn", `document.querySelector("main canvas")?.style.height > "" && (window.drawn ??= performance.now()) > 0`)
				number := func(expression string) float64 {
					v, err := chromedp.Run(ctx, chromedp.Evaluate[float64](expression))
					if err != nil {
						b.Fatal(err)
					}
					return v
				}
				b.ReportMetric(number(`window.drawn`), "ms-to-picture")
				b.ReportMetric(number(`performance.getEntriesByType("paint").find(e => e.name === "first-contentful-paint")?.startTime ?? -1`), "ms-to-first-paint")
				b.ReportMetric(number(`[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")].reduce((n, e) => n + e.transferSize, 0)`), "bytes")
				until("it has changed three times", `(window.seen ??= new Set()).add(document.getElementById("main").dataset.digest).size > 3`)
				b.ReportMetric(number(`window.longest`), "ms-longest-task")
			}
		})
	}
}

package ui

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// largeCluster returns an API with 10,000 nodes, and the part of 200,000
// attempts that one answer has.
func largeCluster() *scripted {
	api := &scripted{job: &droverv1.GetJobResponse{Job: &droverv1.JobSummary{}}, plan: &droverv1.GetScheduleResponse{NowMs: 3_600_000, FromMs: 1, UntilMs: 7_200_000, More: 180_000}}
	for i := range 10_000 {
		all := &droverv1.Resources{Cpu: 64_000, Memory: 256 << 30, Io: 1 << 30}
		name, rack := fmt.Sprintf("node-%05d", i), fmt.Sprintf("/r%03d", i/40)
		api.nodes = append(api.nodes, &droverv1.NodeStatus{Node: int32(i + 1), State: "up", Attempts: int32(i % 30), Used: &droverv1.Resources{Cpu: int64(i * 7919 % 64_000), Memory: int64(i*104729%256) << 30},
			Info: &droverv1.NodeInfo{Name: name, Rack: rack, Allocatable: all}})
		api.plan.Nodes = append(api.plan.Nodes, &droverv1.ScheduleNode{Node: int32(i + 1), Name: name, Rack: rack, State: "up", Allocatable: all})
	}
	for i := range 200 {
		api.plan.Jobs = append(api.plan.Jobs, &droverv1.ScheduleJob{Job: uint64(i + 1), Name: fmt.Sprintf("job-%d", i), Tenant: "default", Stages: []string{"main"}})
	}
	for i := range 20_000 {
		at := int64(i) * 7919 % 3_600_000
		api.plan.Attempts = append(api.plan.Attempts, &droverv1.ScheduleAttempt{Key: &droverv1.AttemptKey{Job: uint64(i%200 + 1), Task: int32(i), Attempt: 1}, Node: int32(i%10_000 + 1), PlacedMs: at, EndMs: at + 3_600_000,
			Expected: true, State: "live", Level: droverv1.Level_LEVEL_RUNNING, Occupied: &droverv1.Resources{Cpu: 1000}})
	}
	return api
}

// countingWriter counts the bytes of a response.
type countingWriter struct {
	header http.Header
	n      int
}

func (w *countingWriter) Header() http.Header         { return w.header }
func (w *countingWriter) WriteHeader(int)             {}
func (w *countingWriter) Write(p []byte) (int, error) { w.n += len(p); return len(p), nil }

// BenchmarkPage renders pages of 10,000 nodes with answers of the API that are
// at hand, and reports the compressed bytes.
func BenchmarkPage(b *testing.B) {
	api := largeCluster()
	for _, path := range []string{"/", "/?q=node-09", "/schedule", "/schedule?by=racks", "/data/nodes?v=1", "/data/schedule?v=1"} {
		b.Run(path, func(b *testing.B) {
			h := New(Config{API: api, History: api})
			r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil)
			r.Header.Set("Accept-Encoding", "gzip")
			n := 0
			for b.Loop() {
				w := &countingWriter{header: http.Header{}}
				h.ServeHTTP(w, r)
				n = w.n
			}
			b.ReportMetric(float64(n), "bytes/page")
		})
	}
}

// BenchmarkOpenPages renders what 50 open pages of one reader ask for in one
// moment.
func BenchmarkOpenPages(b *testing.B) {
	s := &server{api: largeCluster(), reader: func(context.Context) string { return "" }, shared: newShared()}
	u := httptest.NewRequest(http.MethodGet, "/", nil).URL
	for b.Loop() {
		for range 50 {
			if _, err := s.renderShared(context.Background(), u); err != nil {
				b.Fatal(err)
			}
		}
		s.shared.drop("")
	}
}

package ui

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// drawPlan draws a schedule of a few nodes with ended and running attempts.
func drawPlan(t *rapid.T) *droverv1.GetScheduleResponse {
	p := &droverv1.GetScheduleResponse{NowMs: 1_000_000, FromMs: 1, UntilMs: 1_500_000, Jobs: []*droverv1.ScheduleJob{{Job: 1, Name: "a", Stages: []string{"s"}}, {Job: 2, Name: "b", Stages: []string{"s"}}}}
	for n := range 3 {
		p.Nodes = append(p.Nodes, &droverv1.ScheduleNode{Node: int32(n + 1), Name: string(rune('a' + n)), State: "up"})
	}
	short := rapid.Bool().Draw(t, "short")
	for i := range rapid.IntRange(0, 60).Draw(t, "attempts") {
		a := &droverv1.ScheduleAttempt{Key: &droverv1.AttemptKey{Job: uint64(rapid.IntRange(1, 2).Draw(t, "job")), Task: int32(i)}, Node: int32(rapid.IntRange(1, 3).Draw(t, "node")),
			PlacedMs: int64(rapid.IntRange(1, 999_999).Draw(t, "placed")), State: rapid.SampledFrom([]string{"succeeded", "failed", "stopped"}).Draw(t, "state")}
		a.EndMs = a.PlacedMs + int64(rapid.IntRange(0, map[bool]int{true: 900, false: 300_000}[short]).Draw(t, "length"))
		if rapid.IntRange(0, 4).Draw(t, "live") == 0 {
			a.State, a.Expected, a.EndMs = "live", true, 1_000_000+int64(rapid.IntRange(0, 500_000).Draw(t, "left"))
		}
		p.Attempts = append(p.Attempts, a)
	}
	return p
}

// Every attempt has a lane in which it is alone, there are no more lanes than
// attempts at one time, and the bars of all parts are all attempts, merged or not.
func TestLayoutShowsEachAttemptOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := drawPlan(t)
		l := newScheduleLayout(plan, rapid.SampledFrom([]string{"", "racks"}).Draw(t, "by"))
		for i, a := range l.list {
			together := 1
			for k, b := range l.list {
				if i == k || a.row != b.row {
					continue
				}
				if a.lane == b.lane && a.GetPlacedMs() < b.GetEndMs() && b.GetPlacedMs() < a.GetEndMs() {
					t.Fatalf("two attempts in one lane: %v and %v", a.ScheduleAttempt, b.ScheduleAttempt)
				}
				if b.GetPlacedMs() <= a.GetPlacedMs() && a.GetPlacedMs() < max(b.GetEndMs(), b.GetPlacedMs()+1) {
					together++
				}
			}
			if a.lane >= together {
				t.Fatalf("lane %d of an attempt with %d at its beginning: %v", a.lane, together, a.ScheduleAttempt)
			}
		}
		single, merged := 0, 0
		for _, b := range l.whole().Bars {
			single += len(b.Row)
		}
		for i := range l.starts {
			b := l.bars(i, window{})
			merged += len(b.Row)
			for _, n := range b.Count {
				merged += n - 1
			}
			if b.Merged != (len(b.Count) > 0) {
				t.Fatalf("merged %t with %d merged bars", b.Merged, len(b.Count))
			}
		}
		if single != len(plan.Attempts) || merged != len(plan.Attempts) {
			t.Fatalf("%d attempts, %d bars, %d with merged ones", len(plan.Attempts), single, merged)
		}
	})
}

// Short attempts beside each other are one bar, in which a failure shows, until the
// window is narrow enough.
func TestShortAttemptsAreOneBar(t *testing.T) {
	plan := &droverv1.GetScheduleResponse{NowMs: 3_600_000, FromMs: 1, UntilMs: 3_600_000, Nodes: []*droverv1.ScheduleNode{{Node: 1, Name: "n"}}, Jobs: []*droverv1.ScheduleJob{{Job: 1, Name: "a", Stages: []string{"s"}}}}
	for i := range 100 {
		a := &droverv1.ScheduleAttempt{Key: &droverv1.AttemptKey{Job: 1, Task: int32(i)}, Node: 1, PlacedMs: int64(1000 + 200*i), EndMs: int64(1100 + 200*i), State: "succeeded"}
		if i == 40 {
			a.State = "failed"
		}
		plan.Attempts = append(plan.Attempts, a)
	}
	l := newScheduleLayout(plan, "")
	far, near := l.bars(0, window{}), l.bars(0, window{from: 5000, to: 9000})
	if len(far.Row) != 1 || far.Count[0] != 100 || far.State[0] != "failed" || far.Job[0] != 0 || far.End[0] != 20_900 || !far.Merged {
		t.Errorf("from afar: %+v", far)
	}
	if len(near.Row) != 21 || near.Merged || near.Task[0] != "s/20" {
		t.Errorf("near: %+v", near)
	}
}

// What a browser loads first for a picture of 10,000 nodes is small, however the rows
// are chosen.
func TestFirstPageIsSmall(t *testing.T) {
	const most = 300 << 10
	api := largeCluster()
	h := New(Config{API: api, History: api})
	get := func(path string) (*httptest.ResponseRecorder, string) {
		r, w := httptest.NewRequest(http.MethodGet, path, nil), httptest.NewRecorder()
		r.Header.Set("Accept-Encoding", "gzip")
		h.ServeHTTP(w, r)
		z, err := gzip.NewReader(bytes.NewReader(w.Body.Bytes()))
		if err != nil {
			return w, w.Body.String()
		}
		text, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(path, err)
		}
		return w, string(text)
	}
	for _, path := range []string{"/", "/schedule", "/schedule?by=racks", "/schedule?by=tenants"} {
		w, text := get(path)
		imported, _ := get("/static/canvas.js")
		all := w.Body.Len() + imported.Body.Len()
		for _, m := range regexp.MustCompile(`(?:src|href|data-map|data-schedule)="(/(?:static|data)/[^"]+)"`).FindAllStringSubmatch(text, -1) {
			got, _ := get(strings.ReplaceAll(m[1], "&amp;", "&"))
			all += got.Body.Len()
		}
		if all > most || all < 20_000 {
			t.Errorf("%s: %d bytes", path, all)
		}
	}
}

// Readers of the same rights share the schedule; others never do.
func TestScheduleIsSharedByRights(t *testing.T) {
	for name, c := range map[string]struct {
		rights func(context.Context) string
		want   int
	}{
		"the same rights":  {func(context.Context) string { return "operators" }, 1},
		"rights not known": {nil, 2},
	} {
		api := &scripted{plan: hostilePlan(), job: hostileJob()}
		type reader struct{}
		h := New(Config{API: api, History: api, Rights: c.rights, Reader: func(ctx context.Context) string { return ctx.Value(reader{}).(string) }})
		for _, who := range []string{"alice", "bob"} {
			r := httptest.NewRequestWithContext(context.WithValue(context.Background(), reader{}, who), http.MethodGet, "/data/schedule?v=1", nil)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code != http.StatusOK {
				t.Fatal(w.Code, w.Body.String())
			}
		}
		if n := api.counted("GetSchedule"); n != c.want {
			// A machine that stands still for as long as an answer is shared may ask again.
			if n < c.want || c.rights == nil {
				t.Errorf("%s: %d calls, want %d", name, n, c.want)
			}
		}
	}
}

// How long an answer is shared grows with what all answers cost that pages ask for.
func TestAllPagesTogetherAreBounded(t *testing.T) {
	s, done := newShared(), make(chan struct{})
	close(done)
	fresh := time.Now().Add(time.Hour)
	s.answers["a"], s.answers["b"] = &answer{done: done, cost: 100 * time.Millisecond, until: fresh}, &answer{done: done, cost: 200 * time.Millisecond, until: fresh}
	s.answers["asked for no more"] = &answer{done: done, cost: time.Hour, until: time.Now().Add(-time.Hour)}
	began := time.Now()
	if _, err := s.get(context.Background(), "c", func(context.Context) (any, error) { return 1, nil }); err != nil {
		t.Fatal(err)
	}
	if left := s.answers["c"].until.Sub(began); left < 300*time.Millisecond*shareFactor || s.answers["asked for no more"] != nil {
		t.Errorf("shared for %s", left)
	}
}

// Texts that were packed apart are one gzip stream.
func TestPackedTextsAreOneStream(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b bytes.Buffer
		z, want := newPackedWriter(&b), []byte(nil)
		for _, text := range rapid.SliceOfN(rapid.SliceOf(rapid.Byte()), 0, 5).Draw(t, "texts") {
			want = append(want, text...)
			if err := z.write(newPacked(text)); err != nil {
				t.Fatal(err)
			}
		}
		if err := z.close(); err != nil {
			t.Fatal(err)
		}
		r, err := gzip.NewReader(&b)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("%v: %q, want %q", err, got, want)
		}
	})
}

// In the waterfall each job has a row of its own, also beside one of the same name.
func TestJobsOfOneNameHaveTheirOwnRows(t *testing.T) {
	p := &droverv1.GetScheduleResponse{FromMs: 1, UntilMs: 1 + 12_000, Nodes: []*droverv1.ScheduleNode{{Node: 1}, {Node: 2}},
		Jobs:     []*droverv1.ScheduleJob{{Job: 1, Name: "j", Tenant: "a"}, {Job: 2, Name: "j", Tenant: "b"}},
		Attempts: []*droverv1.ScheduleAttempt{{Key: &droverv1.AttemptKey{Job: 1}, Node: 1, PlacedMs: 1, EndMs: 6001}, {Key: &droverv1.AttemptKey{Job: 2}, Node: 2, PlacedMs: 1, EndMs: 12_001}}}
	if rows := newScheduleLayout(p, "jobs").data.Rows; len(rows) != 2 || rows[0].Name != "j (1)" || rows[1].Name != "j (2)" {
		t.Errorf("%+v", rows)
	}
}

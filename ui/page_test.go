package ui

import (
	"bufio"
	"compress/gzip"
	"context"
	"html/template"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/tdewolff/parse/v2"
	"github.com/tdewolff/parse/v2/js"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// hostile is what a page must show as text: markup, an attribute's end, a
// script's end, control and right-to-left characters.
const hostile = "\"><script>alert(1)</script><img src=x onerror=alert(2)>'{{.}}\x1b[31m\u202egnp.exe</textarea></pre></script><!--"

func hostileJob() *droverv1.GetJobResponse {
	return &droverv1.GetJobResponse{
		Job:      &droverv1.JobSummary{Job: 7, Name: hostile, Tenant: hostile, Submitter: hostile, Message: hostile, State: droverv1.JobState_JOB_STATE_RUNNING, Tasks: 1, Project: hostile, DeadlineState: hostile, DeadlineMs: 1, ExpectedEndMs: 1_700_000_000_000},
		Stages:   []*droverv1.StageSummary{{Name: hostile, Kind: hostile, Tasks: 1, Running: 1, FailedAttempts: 1, Waiting: hostile}, {Name: "b", Tasks: 1}},
		Spec:     `{"stages":[{"name":"a"},{"name":"b","after":["a"]}]}` + hostile,
		Counters: map[string]int64{hostile: 3}, Output: hostile, Logs: hostile, LogsMissing: hostile, LogsGathered: true, AvoidedNodes: []string{hostile, "n2"}, FailedTask: hostile + "/0.1.1", FailureTail: hostile, MayOperate: true, MaySubmit: true,
	}
}

func hostileTask() *droverv1.TaskStatus {
	return &droverv1.TaskStatus{Stage: hostile, State: hostile, Attempts: []*droverv1.TaskAttempt{{Key: &droverv1.AttemptKey{Job: 7, Attempt: 1, Run: 1}, Node: hostile, Locality: hostile, Retained: true,
		Seen: &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, Message: hostile, Status: hostile, StderrTail: hostile, LevelNote: hostile, Step: hostile, Counters: map[string]int64{hostile: 1},
			Limits: &droverv1.Limits{CpuMax: hostile}, LevelSteps: []*droverv1.LevelStep{{Step: hostile, Error: hostile}}},
		Level: &droverv1.LevelStatus{Reason: hostile, Actor: hostile}},
		{Key: &droverv1.AttemptKey{Job: 7, Attempt: 2, Run: 1}, Node: hostile, Seen: &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_FAILED, Message: hostile, StderrTail: "no such column" + hostile}}}}
}

func hostileNode() *droverv1.NodeStatus {
	all := &droverv1.Resources{Cpu: 4000, Memory: 1 << 30, Io: 1}
	return &droverv1.NodeStatus{Node: 1, State: "up", Reason: hostile, Used: &droverv1.Resources{Cpu: 1000}, Load: &droverv1.NodeLoad{Problems: []string{hostile}, CpuUsed: 700, MemoryUsed: 3 << 20, IoUsed: 5 << 20}, Staying: []string{hostile}, DrainDeadlineMs: 9,
		Info: &droverv1.NodeInfo{Name: hostile, Rack: hostile, Allocatable: all, Disks: []*droverv1.Disk{{Name: hostile}}, LevelNotes: []string{hostile}, Levels: []droverv1.Level{1, 2}}}
}

func hostilePlan() *droverv1.GetScheduleResponse {
	k := &droverv1.AttemptKey{Job: 7, Attempt: 1}
	return &droverv1.GetScheduleResponse{NowMs: 10_000, FromMs: 1, UntilMs: 20_000, Nodes: []*droverv1.ScheduleNode{{Node: 1, Name: hostile, Rack: hostile, Reason: hostile}},
		Jobs:         []*droverv1.ScheduleJob{{Job: 7, Name: hostile, Tenant: hostile, Stages: []string{hostile}, GuaranteedMs: 15_000}},
		Attempts:     []*droverv1.ScheduleAttempt{{Key: k, Node: 1, PlacedMs: 5, EndMs: 11_000, Expected: true, State: "live"}, {Key: &droverv1.AttemptKey{Run: 1}, Node: 1, State: hostile}},
		Reservations: []*droverv1.ScheduleReservation{{Job: 7, Kind: hostile}, {Kind: "head"}},
		Waiting: []*droverv1.ScheduleWaiting{{Job: 7, Reason: hostile, BehindJob: 9, GivesWay: []*droverv1.AttemptKey{k},
			Obstacles: []*droverv1.ScheduleObstacle{{Node: 1, Key: k, Job: 7}, {Node: 1, Key: &droverv1.AttemptKey{Run: 3}}, {Node: 1, Reservation: 4}}}}}
}

func newScripted(t *testing.T) (*scripted, *httptest.Server) {
	t.Helper()
	api := &scripted{t: t, nodes: []*droverv1.NodeStatus{hostileNode()}, job: hostileJob(), tasks: []*droverv1.TaskStatus{hostileTask()}, plan: hostilePlan()}
	s := httptest.NewServer(New(Config{API: api, History: api}))
	t.Cleanup(s.Close)
	return api, s
}

// What comes from jobs, users and nodes is text on every page, and no page has
// a script or style of its own, which the policy would refuse.
func TestHostileTextStaysText(t *testing.T) {
	_, s := newScripted(t)
	stage := url.PathEscape(hostile)
	for _, path := range []string{"/", "/jobs", "/jobs/7", "/jobs/7/tasks/" + stage + "/0", "/jobs/7/logs/" + stage + "/0", "/jobs?q=" + url.QueryEscape(hostile), "/jobs?past=all&q=" + url.QueryEscape(hostile), "/schedule", "/schedule?by=tenants", "/tenants", "/scheduler", "/nodes/" + stage, "/" + stage} {
		code, text := fetch(t, http.DefaultClient, s.URL+path, nil)
		if want := map[bool]int{true: http.StatusNotFound, false: http.StatusOK}[path == "/"+stage]; code != want {
			t.Errorf("%s: %d, want %d: %s", path, code, want, text)
		}
		for _, bad := range []string{"<script>", "<img", "onerror=alert(2)>'", "</textarea>", "<!--", " style=", "onclick="} {
			if strings.Contains(text, bad) {
				t.Errorf("%s has %q", path, bad)
			}
		}
	}
}

// The policy of every response allows the page's own files and nothing else.
func TestPolicyIsStrict(t *testing.T) {
	_, s := newScripted(t)
	for _, path := range []string{"/", "/nowhere", "/static/page.js", "/data/nothing", "/live?path=//x"} {
		res, err := http.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if p := res.Header.Get("Content-Security-Policy"); p != contentPolicy || strings.Contains(p, "unsafe") {
			t.Errorf("%s: policy %q", path, p)
		}
	}
}

func formTokenOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
	_, text := fetch(t, http.DefaultClient, s.URL+"/jobs/7", nil)
	m := regexp.MustCompile(`name="token" value="([0-9a-f]{64})"`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("the page has no form")
	}
	return m[1]
}

// Only a form of the page does something: not one of another origin, not one
// without the token, and not a GET.
func TestOnlyThePageActs(t *testing.T) {
	api, s := newScripted(t)
	token := formTokenOf(t, s)
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for name, try := range map[string]struct {
		token   string
		headers map[string]string
		want    int
	}{
		"the page":                    {token, map[string]string{"Sec-Fetch-Site": "same-origin", "Origin": s.URL}, http.StatusSeeOther},
		"another site":                {token, map[string]string{"Sec-Fetch-Site": "cross-site"}, http.StatusForbidden},
		"another port":                {token, map[string]string{"Sec-Fetch-Site": "same-site"}, http.StatusForbidden},
		"another origin, old browser": {token, map[string]string{"Origin": "http://evil.example"}, http.StatusForbidden},
		"a sandbox":                   {token, map[string]string{"Origin": "null"}, http.StatusForbidden},
		"the page without the token":  {"", map[string]string{"Sec-Fetch-Site": "same-origin"}, http.StatusForbidden},
		"the page with a wrong token": {strings.Repeat("0", 64), map[string]string{"Sec-Fetch-Site": "same-origin"}, http.StatusForbidden},
		"a program without the token": {"", nil, http.StatusForbidden},
	} {
		before := api.counted("StopJob")
		r, err := http.NewRequest(http.MethodPost, s.URL+"/do/stop-job", strings.NewReader(url.Values{"job": {"7"}, "token": {try.token}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for k, v := range try.headers {
			r.Header.Set(k, v)
		}
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if did := api.counted("StopJob") - before; res.StatusCode != try.want || (did == 1) != (try.want == http.StatusSeeOther) {
			t.Errorf("%s: %d with %d calls, want %d", name, res.StatusCode, did, try.want)
		}
	}
	if code, _ := fetch(t, c, s.URL+"/do/stop-job?job=7&token="+token, nil); code != http.StatusNotFound && code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", code)
	}
	if api.counted("StopJob") != 1 {
		t.Errorf("%d stops", api.counted("StopJob"))
	}
}

// The buttons for all tasks go on after a task that is refused, as one that has just ended,
// and say how many were; another error ends them.
func TestSuspendingAllGoesOn(t *testing.T) {
	api, s := newScripted(t)
	api.tasks = nil
	for i := range int32(4) {
		api.tasks = append(api.tasks, &droverv1.TaskStatus{Stage: "a", Task: i, Attempts: []*droverv1.TaskAttempt{{Seen: &droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING}}}})
	}
	form := url.Values{"job": {"7"}, "token": {formTokenOf(t, s)}}
	conflict, gone := wire.Error(fault.New(fault.Conflict, "task a/0 has ended")), wire.Error(fault.New(fault.NotFound, "task a/2 is gone"))
	for name, try := range map[string]struct {
		levels map[int32]error
		calls  int
		code   int
		text   string
	}{
		"none is refused":  {nil, 4, http.StatusSeeOther, ""},
		"two are refused":  {map[int32]error{0: conflict, 2: gone}, 4, http.StatusBadRequest, "2 of 4 tasks were refused and the others asked to change; the last refusal: task a/2 is gone"},
		"nobody may do it": {map[int32]error{1: wire.Error(fault.New(fault.Denied, "you may not"))}, 2, http.StatusForbidden, "you may not"},
	} {
		api.levels = try.levels
		before := api.counted("SetLevel")
		c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		res, err := c.PostForm(s.URL+"/do/suspend-job", form)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if calls := api.counted("SetLevel") - before; err != nil || res.StatusCode != try.code || calls != try.calls || !strings.Contains(string(text), try.text) {
			t.Errorf("%s: %d after %d calls (%v): %s", name, res.StatusCode, calls, err, text)
		}
	}
}

// Who may not operate a job has no button for it.
func TestNoButtonWithoutTheRight(t *testing.T) {
	api, s := newScripted(t)
	api.job.MayOperate, api.job.MaySubmit = false, false
	for _, path := range []string{"/jobs/7", "/jobs/7/tasks/a/0", "/nodes/" + url.PathEscape(hostile)} {
		if _, text := fetch(t, http.DefaultClient, s.URL+path, nil); strings.Contains(text, "<button class=\"danger\"") || strings.Contains(text, "/do/") {
			t.Errorf("%s has a button", path)
		}
	}
}

// Many open pages of one reader cost what one costs, and readers of different
// names never share an answer.
func TestReadersShareAnswersByName(t *testing.T) {
	api := &scripted{t: t, job: hostileJob()}
	a := &source{api: api, shared: newShared(), reader: "a", ctx: t.Context()}
	b := &source{api: api, shared: a.shared, reader: "b", ctx: t.Context()}
	var wait []chan error
	for range 50 {
		done := make(chan error, 1)
		wait = append(wait, done)
		go func() {
			_, err := a.job("7")
			done <- err
		}()
	}
	for _, done := range wait {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	// On a machine that stands still for longer than an answer is shared there
	// may be a second call.
	if n := api.counted("GetJob"); n > 25 {
		t.Errorf("%d calls for 50 readers", n)
	}
	before := api.counted("GetJob")
	if _, err := b.job("7"); err != nil || api.counted("GetJob") != before+1 {
		t.Errorf("another reader was given a shared answer (%v)", err)
	}
	a.shared.drop("b")
	before = api.counted("GetJob")
	if _, err := b.job("7"); err != nil || api.counted("GetJob") != before+1 {
		t.Errorf("a dropped answer was given again (%v)", err)
	}
}

// A coordinator that is gone is said, and its page is an error with a cure, which is marked:
// its stream brings a page that it has not the scripts of.
func TestCoordinatorGone(t *testing.T) {
	api, s := newScripted(t)
	api.mu.Lock()
	api.down = true
	api.mu.Unlock()
	code, text := fetch(t, http.DefaultClient, s.URL+"/jobs", nil)
	if code != http.StatusServiceUnavailable || !strings.Contains(text, "nobody leads") || !strings.Contains(text, "tries again by itself") || !strings.Contains(text, `data-live="/jobs"`) || !strings.Contains(text, `data-error="y"`) {
		t.Errorf("%d %s", code, text)
	}
	_, s = newScripted(t)
	for path, failed := range map[string]string{"/tenants": "false", "/nowhere": "true"} {
		if _, text := fetch(t, http.DefaultClient, s.URL+path, nil); strings.Contains(text, "data-error") != (failed == "true") {
			t.Errorf("%s: %s", path, text)
		}
		if event := firstEvent(t, s.URL+"/live?path="+path); !strings.Contains(event, `"error":`+failed) {
			t.Errorf("%s has the event %s", path, event)
		}
	}
}

// firstEvent returns the data of the first event of a stream.
func firstEvent(t *testing.T, address string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			return data
		}
	}
}

// What an attempt that failed wrote at last is on the page of its job, also while the
// job goes on; what the page begins with is not there twice.
func TestJobShowsFailedAttempts(t *testing.T) {
	api, s := newScripted(t)
	if _, text := fetch(t, http.DefaultClient, s.URL+"/jobs/7", nil); strings.Count(text, "no such column") != 1 || !strings.Contains(text, "Attempts that failed last") {
		t.Error("the failed attempt is not there")
	}
	failed := hostileJob()
	failed.FailedTask = hostile + "/0.2.1"
	b := &query{source: &source{api: api, shared: newShared(), reader: "b", ctx: t.Context()}}
	if list, err := lastFailures(b, failed); err != nil || len(list) != 0 {
		t.Errorf("%v %v", list, err)
	}
}

// The page names the failed task as the command line takes it, and shows no empty log.
func TestPageNamesTheFailedTask(t *testing.T) {
	api, s := newScripted(t)
	for tail, want := range map[string]string{"no such file": "failed. The end of its standard error:", "": "failed without output on standard error"} {
		api.job.FailedTask, api.job.FailureTail = "s.1/0.4.1", tail
		if _, text := fetch(t, http.DefaultClient, s.URL+"/jobs/7", nil); !strings.Contains(text, ">s.1/0.4</a> "+want) {
			t.Errorf("standard error %q: the page has no task s.1/0.4 that %s", tail, want)
		}
	}
}

// The tasks that a job which has ended did not run wait for nothing.
func TestEndedJobHasNoWaitingTasks(t *testing.T) {
	for ended, want := range map[int64]bool{0: true, 5: false} {
		api, s := newScripted(t)
		api.job.Job.EndedMs, api.job.Stages[1].Pending = ended, 432
		if _, text := fetch(t, http.DefaultClient, s.URL+"/jobs/7", nil); strings.Contains(text, ">432<") != want {
			t.Errorf("ended at %d: 432 tasks wait on the page: %t, want %t", ended, !want, want)
		}
	}
}

// Who signed in with a token can sign out on each page; others have nothing to sign
// out of.
func TestSignOutIsOffered(t *testing.T) {
	_, s := newScripted(t)
	for cookie, want := range map[string]bool{TokenCookie + "=x": true, "other=x": false} {
		_, text := fetch(t, http.DefaultClient, s.URL+"/jobs", func(r *http.Request) { r.Header.Set("Cookie", cookie) })
		if got := strings.Contains(text, `action="/sign-out"`); got != want {
			t.Errorf("%s: %t, want %t", cookie, got, want)
		}
	}
}

// A page that has not changed is not sent again, and one that is sent is small.
func TestResponsesAreTaggedAndCompressed(t *testing.T) {
	_, s := newScripted(t)
	address := s.URL + "/static/page.css"
	res, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	tag := res.Header.Get("ETag")
	if code, _ := fetch(t, http.DefaultClient, address, func(r *http.Request) { r.Header.Set("If-None-Match", tag) }); tag == "" || code != http.StatusNotModified {
		t.Errorf("with tag %q: %d", tag, code)
	}
	r, err := http.NewRequest(http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept-Encoding", "gzip")
	if res, err = http.DefaultTransport.RoundTrip(r); err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	z, err := gzip.NewReader(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(z); err != nil || string(b) != string(staticAssets()["page.css"].body) {
		t.Errorf("%d bytes differ (%v)", len(b), err)
	}
}

// Every script of the package can be parsed, and writes nothing as markup.
func TestScripts(t *testing.T) {
	seen := 0
	for name, a := range staticAssets() {
		if !strings.HasSuffix(name, ".js") {
			continue
		}
		seen++
		if _, err := js.Parse(parse.NewInputBytes(append([]byte{}, a.body...)), js.Options{}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "setTimeout(\"", "http://", "https://"} {
			if strings.Contains(string(a.body), bad) {
				t.Errorf("%s has %s", name, bad)
			}
		}
		if !strings.Contains(string(a.body), "// @ts-check") {
			t.Errorf("%s is not type-checked", name)
		}
	}
	all := bundle("format.js", "canvas.js", "morph.js", "stream.js", "page.js", "schedule.js")
	if _, err := js.Parse(parse.NewInputString(all), js.Options{}); err != nil || strings.Contains(all, "\nimport ") || strings.Contains(all, "\nexport ") {
		t.Errorf("the bundle of a simulation: %v", err)
	}
	if seen < 5 {
		t.Errorf("%d scripts", seen)
	}
}

// A log's text is cut where no letter is.
func TestTextOfALog(t *testing.T) {
	if got, rest := logText([]byte("a\xffb")); got != "a\uFFFDb" || len(rest) > 0 {
		t.Errorf("%q, %q is left", got, rest)
	}
	letters, read := "aé–\U0001F600b", ""
	var rest []byte
	for i := range len(letters) {
		var text string
		text, rest = logText(append(rest, letters[i]))
		read += text
	}
	if read != letters || len(rest) > 0 {
		t.Errorf("%q came as %q, %q is left", letters, read, rest)
	}
}

// logServer answers calls for output, and keeps their requests.
type logServer struct {
	droverv1connect.UnimplementedClientServiceHandler
	answers []*droverv1.LogsResponse
	asked   []*droverv1.LogsRequest
}

// Logs implements droverv1connect.ClientServiceHandler.
func (l *logServer) Logs(_ context.Context, r *connect.Request[droverv1.LogsRequest], out *connect.ServerStream[droverv1.LogsResponse]) error {
	l.asked = append(l.asked, r.Msg)
	for _, a := range l.answers {
		if err := out.Send(a); err != nil {
			return err
		}
	}
	return nil
}

// The output of an attempt goes on after what a page has had, also within a letter, when
// the page is seen again or the browser connects again by itself. What was rotated away
// meanwhile is said, and a node's text for a position is no line of the stream.
func TestLogGoesOnWhereItWas(t *testing.T) {
	api, s := newScripted(t)
	l := &logServer{}
	_, h := droverv1connect.NewClientServiceHandler(l)
	from := httptest.NewServer(h)
	t.Cleanup(from.Close)
	api.ClientServiceClient = droverv1connect.NewClientServiceClient(http.DefaultClient, from.URL)
	const follow = "/follow?job=7&stage=0&task=0&attempt=1&stream=stdout"
	l.answers = []*droverv1.LogsResponse{{Data: []byte("one\n\xe2\x80"), Position: "6\nevent: main"}}
	_, text := fetch(t, http.DefaultClient, s.URL+follow, nil)
	m := regexp.MustCompile(`(?m)^id: (.+)\nevent: text\ndata: "one\\n"$`).FindStringSubmatch(text)
	if m == nil || strings.Contains(text, "\nevent: main") {
		t.Fatalf("first: %s", text)
	}
	if r := l.asked[0]; r.GetTail() != logTail || r.GetAfter() != "" || !r.GetFollow() {
		t.Errorf("the first request is %v", r)
	}
	l.answers = []*droverv1.LogsResponse{{Data: []byte("\x93two"), Position: "10"}, {Data: []byte("far"), Lost: 90, Position: "103"}}
	for name, open := range map[string]func() string{
		"seen again": func() string {
			_, text := fetch(t, http.DefaultClient, s.URL+follow+"&after="+url.QueryEscape(m[1]), nil)
			return text
		},
		"connected again": func() string {
			_, text := fetch(t, http.DefaultClient, s.URL+follow+"&after=.1", func(r *http.Request) { r.Header.Set("Last-Event-ID", m[1]) })
			return text
		},
	} {
		text := open()
		if r := l.asked[len(l.asked)-1]; r.GetAfter() != "6\nevent: main" || !strings.Contains(text, "\"–two\"") || !strings.Contains(text, "(90 bytes of the output are missing here") {
			t.Errorf("%s: asked for %v, got %s", name, r, text)
		}
	}
	if _, text := fetch(t, http.DefaultClient, s.URL+follow+"&after=nonsense", nil); l.asked[len(l.asked)-1].GetAfter() != "" || !strings.Contains(text, "two") {
		t.Errorf("after nonsense: %s", text)
	}
}

// The list of the past asks the history for what the address says, and continues
// where the last part ended.
func TestJobsOfThePast(t *testing.T) {
	_, s := newScripted(t)
	_, text := fetch(t, http.DefaultClient, s.URL+"/jobs?past=168&q=etl&state=failed&mine=1&sort=name", nil)
	for _, want := range []string{"etl of [JOB_STATE_FAILED]user/alice", `href="/jobs?after=ab&amp;mine=1&amp;past=168&amp;q=etl&amp;sort=name&amp;state=failed"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %q: %s", want, text)
		}
	}
	_, text = fetch(t, http.DefaultClient, s.URL+"/jobs?user=bob&since=2026-01-30&until=2026-01-31", nil)
	for _, want := range []string{" of []bob", "from 1769731200000 until 1769904000000", `name="since" value="2026-01-30"`} {
		if !strings.Contains(text, want) {
			t.Errorf("between two days, the page lacks %q: %s", want, text)
		}
	}
	if code, text := fetch(t, http.DefaultClient, s.URL+"/jobs?since=yesterday", nil); code != http.StatusBadRequest || !strings.Contains(text, "is no day") {
		t.Errorf("a day that is none: %d %s", code, text)
	}
	if _, text = fetch(t, http.DefaultClient, s.URL+"/jobs?past=168&after=ab", nil); !strings.Contains(text, "No job matches") {
		t.Errorf("the last part: %s", text)
	}
}

// A page is live at once, also if nothing changes.
func TestSilentStreamBeginsAtOnce(t *testing.T) {
	_, s := newScripted(t)
	_, text := fetch(t, http.DefaultClient, s.URL+"/tenants", nil)
	m := regexp.MustCompile(`data-digest="([^"]*)"`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("a page without a digest: %s", text)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*liveBeat/3) // before the first beat
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/live?path=/tenants&have="+m[1], nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
}

// The list of what is live and recent is of one user if the address says so, with or without "user/".
func TestJobsOfAUser(t *testing.T) {
	api, s := newScripted(t)
	api.job.Job.Submitter = "user/alice"
	name := api.job.GetJob().GetName()
	for user, want := range map[string]bool{"": true, "alice": true, "user/alice": true, "bob": false} {
		_, text := fetch(t, http.DefaultClient, s.URL+"/jobs?user="+url.QueryEscape(user), nil)
		if got := strings.Contains(text, template.HTMLEscapeString(name)); got != want {
			t.Errorf("user %q: %v, want %v", user, got, want)
		}
	}
}

// What the list of live and recent jobs is chosen by is asked of the API, which lists the
// newest ones: a choice among them would not see the others. Only the past of a day is
// added, and who chooses only their own and another user sees none.
func TestJobsAreChosenByTheAPI(t *testing.T) {
	pending, running, failed := droverv1.JobState_JOB_STATE_PENDING, droverv1.JobState_JOB_STATE_RUNNING, droverv1.JobState_JOB_STATE_FAILED
	live := []droverv1.JobState{pending, running, droverv1.JobState_JOB_STATE_COMMITTING}
	for path, want := range map[string]struct {
		live, past []droverv1.JobState // nil: they are not asked for
		user       string
	}{
		"":                         {live, []droverv1.JobState{}, ""},
		"state=live":               {live, nil, ""},
		"state=waiting&mine=1":     {live, nil, ""},
		"state=running":            {[]droverv1.JobState{running}, nil, ""},
		"state=failed&user=bob":    {nil, []droverv1.JobState{failed}, "bob"},
		"mine=1":                   {live, []droverv1.JobState{}, "user/alice"},
		"mine=1&user=alice":        {live, []droverv1.JobState{}, "user/alice"},
		"mine=1&user=bob":          {nil, nil, ""},
		"past=24&state=waiting":    {nil, []droverv1.JobState{}, ""},
		"past=24&mine=1&user=bob":  {nil, nil, ""},
		"past=24&state=failed&q=e": {nil, []droverv1.JobState{failed}, ""},
	} {
		api, s := newScripted(t)
		if code, text := fetch(t, http.DefaultClient, s.URL+"/jobs?"+path, nil); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, text)
		}
		if n := len(api.askedJobs); (n == 1) != (want.live != nil) || n == 1 && (!slices.Equal(api.askedJobs[0].GetStates(), want.live) ||
			api.askedJobs[0].GetLimit() != 0 || api.askedJobs[0].GetMine() != strings.Contains(path, "mine=1")) {
			t.Errorf("%q asked for live jobs by %v", path, api.askedJobs)
		}
		if n := len(api.askedPast); (n == 1) != (want.past != nil) || n == 1 && (!slices.Equal(api.askedPast[0].GetStates(), want.past) ||
			api.askedPast[0].GetSinceMs() < time.Now().Add(-25*time.Hour).UnixMilli() || api.askedPast[0].GetUser() != want.user) {
			t.Errorf("%q asked for past jobs by %v", path, api.askedPast)
		}
	}
}

// A parameter of an address that is none of its choices is an error that names them, of pages and of their data. A list by an
// unknown state was empty, and all others were as if nothing were chosen.
func TestUnknownChoicesAreErrors(t *testing.T) {
	const shows = "want one of slowest, failed, running, suspended, waiting"
	for path, want := range map[string]string{
		"/jobs?state=nonsense":                  "want one of live, waiting, running, succeeded, failed, stopped",
		"/jobs?state=RUNNING":                   "want one of live, waiting, running, succeeded, failed, stopped",
		"/jobs?past=24&state=nonsense":          "want one of succeeded, failed, stopped",
		"/jobs?past=later":                      "want one of 24, 168, 720, days, all, or a number of hours",
		"/jobs?sort=-size":                      "want one of deadline, job, name, progress, state, submitted, tenant, took",
		"/?show=nonsense":                       "want one of trouble, busy, idle",
		"/?by=cpu":                              "want one of memory, state",
		"/data/nodes?v=1&show=nonsense":         "want one of trouble, busy, idle",
		"/schedule?by=nonsense":                 "want one of racks, jobs, tenants",
		"/data/schedule?v=1&by=nonsense":        "want one of racks, jobs, tenants",
		"/jobs/7?show=nonsense":                 shows,
		"/data/tasks?v=1&job=7&show=nonsense":   shows,
		"/data/waterfall?v=1&job=7&show=nonsen": shows,
		"/jobs?past=24&state=live":              "", // as after a change from live to past ones: the page has no such choice
		"/jobs?past=48":                         "",
		"/jobs?sort=-took":                      "",
		"/jobs?state=":                          "",
		"/?show=busy&by=state":                  "",
		"/schedule?by=jobs":                     "",
		"/jobs/7?show=slowest":                  "",
	} {
		_, s := newScripted(t)
		code, text := fetch(t, http.DefaultClient, s.URL+path, nil)
		if wantCode := map[bool]int{true: http.StatusOK, false: http.StatusBadRequest}[want == ""]; code != wantCode || !strings.Contains(text, want) {
			t.Errorf("%s: %d, want %d and %q: %s", path, code, wantCode, want, text)
		}
	}
}

// The list counts the live jobs of the cluster, and says what of them it does not show. Of
// the past it searches for how names begin, and has only states of ended jobs to choose.
func TestJobsSayWhatIsListed(t *testing.T) {
	api, s := newScripted(t)
	api.moreJobs, api.live = 30_000, 40_000
	_, text := fetch(t, http.DefaultClient, s.URL+"/jobs?state=running", nil)
	for _, want := range []string{"40\u202f000 live in the cluster", "30\u202f000 of them are not looked at here", ">Search <", `value="waiting"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the live ones lack %q: %s", want, text)
		}
	}
	if _, text = fetch(t, http.DefaultClient, s.URL+"/jobs?past=24&state=waiting", nil); !strings.Contains(text, "Name begins with") || strings.Contains(text, `value="waiting"`) {
		t.Errorf("the past: %s", text)
	}
}

// The data of a picture are no older than the page that asks for them: an ended job's page
// does not ask again.
func TestDataAreAsNewAsThePage(t *testing.T) {
	api, s := newScripted(t)
	for _, what := range []string{"tasks?job=7&n=100", "waterfall?job=7"} {
		api.tasks[0].Stage = "before"
		if _, text := fetch(t, http.DefaultClient, s.URL+"/data/"+what+"&v=a", nil); !strings.Contains(text, "before") {
			t.Fatalf("%s: %s", what, text)
		}
		after := proto.CloneOf(api.tasks[0])
		after.Stage = "after"
		api.tasks = []*droverv1.TaskStatus{after}
		if _, text := fetch(t, http.DefaultClient, s.URL+"/data/"+what+"&v=b", nil); !strings.Contains(text, "after") {
			t.Errorf("%s of a newer page: %s", what, text)
		}
	}
}

// A reader of a coordinator that does not lead is sent to the one that does, to the
// same page, at once and when the leader changes while a page is open.
func TestReaderIsSentToTheLeader(t *testing.T) {
	api := &scripted{t: t, nodes: []*droverv1.NodeStatus{hostileNode()}, job: hostileJob(), plan: hostilePlan(), down: true}
	s := httptest.NewServer(New(Config{API: api, History: api, Elsewhere: func(context.Context) string { return "https://other:7171/" }}))
	defer s.Close()
	c := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for path, want := range map[string]string{"/jobs?q=a": "https://other:7171/jobs?q=a", "/nodes/a%2Fb": "https://other:7171/nodes/a%2Fb"} {
		res, err := c.Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := res.Header.Get("Location"); res.StatusCode != http.StatusTemporaryRedirect || got != want {
			t.Errorf("%s: %d to %q, want %q", path, res.StatusCode, got, want)
		}
	}
	if _, text := fetch(t, http.DefaultClient, s.URL+"/live?path=/jobs%3Fq%3Da", nil); !strings.Contains(text, "event: elsewhere\ndata: \"https://other:7171/jobs?q=a\"") {
		t.Errorf("an open page: %s", text)
	}
}

// The waterfall has the parts of an attempt's time, and a live one is in the part
// that it is in now.
func TestPartsOfAnAttempt(t *testing.T) {
	attempt := func(s *droverv1.SeenAttempt) *droverv1.TaskAttempt {
		return &droverv1.TaskAttempt{Key: &droverv1.AttemptKey{Attempt: 1}, PlacedMs: 1000, Seen: s, Level: &droverv1.LevelStatus{SuspendedMs: 7}}
	}
	for name, c := range map[string]struct {
		seen *droverv1.SeenAttempt
		want taskBar
	}{
		"starting":   {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_PREPARING}, taskBar{State: "starting"}},
		"paused":     {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_PREPARING, StartPauseMs: 3000}, taskBar{State: "starting", Paused: 3000}},
		"back-off":   {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_PREPARING, StartPauseMs: 3000, Step: "wait"}, taskBar{State: "back-off", Paused: 3000}},
		"fetching":   {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_PREPARING, FetchingMs: 5}, taskBar{State: "fetching", Fetching: 5}},
		"running":    {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, FetchingMs: 5, StartedMs: 1200}, taskBar{State: "running", Fetching: 5, Started: 1200}},
		"committing": {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_RUNNING, CommittingMs: 9, StartedMs: 1200}, taskBar{State: "committing", Committing: 9, Started: 1200}},
		"over":       {&droverv1.SeenAttempt{Phase: droverv1.Phase_PHASE_SUCCEEDED, FetchingMs: 5, CommittingMs: 9, StartedMs: 1200, EndedMs: 1500}, taskBar{State: "succeeded", Fetching: 5, Committing: 9, Started: 1200, End: 1500}},
	} {
		c.want.Attempt, c.want.Placed, c.want.Suspended = 1, 1000, 7
		r := newTaskRow(&droverv1.TaskStatus{Attempts: []*droverv1.TaskAttempt{attempt(c.seen)}}, 0)
		if len(r.bars) != 1 || r.bars[0] != c.want {
			t.Errorf("%s: %+v, want %+v", name, r.bars, c.want)
		}
	}
}

// A task waits for a place from the submission on, or from when the stages before
// its own were done.
func TestReadyTimes(t *testing.T) {
	stage := func(name string, tasks, done int32) *droverv1.StageSummary {
		return &droverv1.StageSummary{Name: name, Tasks: tasks, Done: done}
	}
	row := func(stage string, placed, end int64) taskRow {
		return taskRow{Stage: stage, bars: []taskBar{{Placed: placed, End: end}}}
	}
	const spec = `{"name":"j","stages":[{"name":"a","kind":"group","tasks":2},{"name":"b","kind":"group","tasks":1,"after":["a"]}]}`
	for name, c := range map[string]struct {
		spec string
		done int32
		rows []taskRow
		want map[string]int64
	}{
		"the stage before runs":                {spec, 1, []taskRow{row("a", 100, 200), row("a", 110, 0)}, map[string]int64{"a": 50, "b": 0}},
		"the stage before is done":             {spec, 2, []taskRow{row("a", 100, 200), row("a", 110, 300)}, map[string]int64{"a": 50, "b": 300}},
		"its ends are not in view":             {spec, 2, []taskRow{row("b", 400, 0)}, map[string]int64{"a": 50, "b": 400}},
		"it began before the other was done":   {spec, 1, []taskRow{row("a", 100, 200), row("b", 150, 0)}, map[string]int64{"a": 50, "b": 150}},
		"the job file cannot be read any more": {"{", 1, nil, map[string]int64{"a": 50, "b": 50}},
	} {
		res := &droverv1.GetJobResponse{Spec: c.spec, Job: &droverv1.JobSummary{SubmittedMs: 50}, Stages: []*droverv1.StageSummary{stage("a", 2, c.done), stage("b", 1, 0)}}
		if got := readyTimes(res, c.rows); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// What is now is said of the newest sample: over a long time others are means. Without one
// of the last minutes it is the last of the list.
func TestNowIsTheNewestSample(t *testing.T) {
	for name, c := range map[string]struct {
		lately []*droverv1.PastSample
		now    string
		mean   string
	}{
		"it is there":    {[]*droverv1.PastSample{{AtMs: 1, TasksRunning: 7}, {AtMs: 2, TasksRunning: 9, CycleMs: 3}}, "now 9, most 4", "<b>3.0 ms</b><span>mean cycle"},
		"there are none": {nil, "now 0, most 4", "<b>2.0 ms</b><span>mean cycle"},
	} {
		api, s := newScripted(t)
		api.lately = c.lately
		for path, want := range map[string]string{"/?past=720": c.now, "/scheduler?past=720": c.mean} {
			if _, text := fetch(t, http.DefaultClient, s.URL+path, nil); !strings.Contains(text, want) {
				t.Errorf("%s: %s lacks %q: %s", name, path, want, text)
			}
		}
	}
}

// A task that was never placed has waited for no time that is known.
func TestWaitOfAnUnplacedTask(t *testing.T) {
	api, s := newScripted(t)
	api.tasks = []*droverv1.TaskStatus{{Stage: "a", State: "pending"}}
	if _, text := fetch(t, http.DefaultClient, s.URL+"/jobs/7", nil); !strings.Contains(text, `<td class="n">0</td><td class="n">–</td><td class="n">0 s</td>`) {
		t.Error("the page says how long it waited")
	}
	if _, text := fetch(t, http.DefaultClient, s.URL+"/data/tasks?job=7&n=1", nil); !strings.Contains(text, `"waited":-1`) {
		t.Errorf("its data: %s", text)
	}
}

// Each page says what the API knows: of live jobs the expected end, of nodes what is
// used beside what is allocated, of the cluster what was.
func TestPagesSayWhatIsKnown(t *testing.T) {
	_, s := newScripted(t)
	node := "/nodes/" + url.PathEscape(hostile)
	end := time.UnixMilli(1_700_000_000_000).UTC().Format(time.RFC3339)
	for path, want := range map[string][]string{
		"/jobs":           {"until <time", end},
		"/jobs/7":         {"Expected end", end, "Its tasks go elsewhere", ">n2</a>", "Job file as accepted"},
		"/":               {"Used by the machines", "0.7 cores", "3.0 MiB", "5.0 MiB/s", "Over the last hour", "Nodes up"},
		"/?past=24":       {"Over the last day"},
		node:              {"Used by the machine", "0.7 cores", "What still runs leaves it", "Still here:"},
		"/schedule":       {"would have to give way"},
		"/jobs?sort=took": {"Took, or expected end"},
	} {
		_, text := fetch(t, http.DefaultClient, s.URL+path, nil)
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s does not say %q", path, w)
			}
		}
	}
}

// Package browser drives the web page with a real browser against a running
// coordinator and node: what the page says is what the API says, and its
// buttons do what they say.
package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/drover-run/drover/integration/internal/browser"
)

// hostileLine is what a task writes: markup, an escape, a right-to-left mark.
const hostileLine = "<script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;\x1b[31m\u202egnp"

// scene is a running cluster with a browser that is signed in.
type scene struct {
	t       *testing.T
	program string
	dev     *browser.Dev
	ui      *browser.UI
	ctx     context.Context // of the browser
	dir     string
	mu      sync.Mutex
	bad     []string // what the browser complained of
	base    string
}

// newScene starts a cluster and a browser.
func newScene(t *testing.T) *scene {
	t.Helper()
	s := newEmptyScene(t)
	var err error
	if s.dev, err = browser.StartDev(s.program, s.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.dev.Stop(); err != nil {
			t.Error(err)
		}
	})
	if s.ui, err = s.dev.StartUI("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // whichever runs at the end
		if err := s.ui.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.base = browser.Base(s.ui.Page)
	return s
}

// listen accepts every question of the page, and collects its errors.
func (s *scene) listen() {
	dialogs, thrown := chromedp.Events(s.ctx, page.JavascriptDialogOpening), chromedp.Events(s.ctx, runtime.ExceptionThrown)
	go func() { // ends with the browser
		for _, err := range dialogs {
			if err != nil {
				return
			}
			if _, err := chromedp.Call(s.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true}); err != nil {
				return
			}
		}
	}()
	go func() { // as above
		for e, err := range thrown {
			if err != nil {
				return
			}
			s.mu.Lock()
			s.bad = append(s.bad, fmt.Sprint(e.ExceptionDetails.Text, " ", e.ExceptionDetails.URL))
			s.mu.Unlock()
		}
	}()
}

// do performs steps, within the limit.
func (s *scene) do(what string, steps ...chromedp.Action[chromedp.Void]) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, browser.Limit)
	defer cancel()
	if err := chromedp.Do(ctx, steps...); err != nil {
		s.t.Fatalf("%s: %v\n%s", what, err, s.text())
	}
}

// navigate returns the steps that open an address and wait until its page is live.
func (s *scene) navigate(address string) []chromedp.Action[chromedp.Void] {
	return []chromedp.Action[chromedp.Void]{chromedp.Navigate(address), chromedp.WaitVisible(chromedp.CSS(`#connection[data-state=live]`))}
}

// open opens a page and waits until it is live.
func (s *scene) open(path string) {
	s.t.Helper()
	s.do("open "+path, s.navigate(s.base+path)...)
}

// mark returns a step that marks the page: after a reload it has no mark.
func (s *scene) mark() chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := chromedp.Evaluate[bool](`window.old = true`)(ctx, t)
		return err
	})
}

// client returns a client of a socket.
func (s *scene) client(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

// text returns what the page shows.
func (s *scene) text() string {
	ctx, cancel := context.WithTimeout(s.ctx, browser.Limit)
	defer cancel()
	text, err := chromedp.Run(ctx, chromedp.Evaluate[string](`document.body.innerText.slice(0, 4000)`))
	if err != nil {
		return err.Error()
	}
	return text
}

// until waits until an expression is true on the page.
func (s *scene) until(what, expression string) {
	s.t.Helper()
	end := time.Now().Add(browser.Limit)
	for {
		ctx, cancel := context.WithTimeout(s.ctx, browser.Limit)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
		cancel()
		if err == nil && ok {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s (%v)\n%s", browser.Limit, what, err, s.text())
		}
		time.Sleep(50 * time.Millisecond) // between two looks at a condition
	}
}

// holds reports whether an expression is true on the page.
func (s *scene) holds(expression string) bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, browser.Limit)
	defer cancel()
	ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](expression))
	if err != nil {
		s.t.Fatalf("%s: %v", expression, err)
	}
	return ok
}

// says waits until the page shows texts.
func (s *scene) says(texts ...string) {
	s.t.Helper()
	for _, text := range texts {
		b, err := json.Marshal(text)
		if err != nil {
			s.t.Fatal(err)
		}
		s.until("the page says "+text, fmt.Sprintf(`document.body.innerText.includes(%s)`, b))
	}
}

// press presses the button with a label and waits for the next page.
func (s *scene) press(label string) {
	s.t.Helper()
	sel := fmt.Sprintf(`//form[contains(@class,"act")]//button[normalize-space(.)=%q]`, label)
	s.do("press "+label, chromedp.WaitVisible(chromedp.Search(sel)))
	s.do("mark the page", s.mark())
	s.do("press "+label, chromedp.Click(chromedp.Search(sel)))
	s.until("the page after "+label, `!window.old && document.querySelector('#connection')?.dataset.state === 'live'`)
}

// submit submits a job file and returns the job's number.
func (s *scene) submit(text string) string {
	s.t.Helper()
	file := filepath.Join(s.dir, "job.hcl")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	out := s.run("job", "run", "-detach", "-json", file)
	var r struct{ Job json.Number }
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.Job == "" {
		s.t.Fatalf("%v: %s", err, out)
	}
	return r.Job.String()
}

func (s *scene) run(args ...string) string {
	s.t.Helper()
	out, err := s.dev.Run(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

// status is what the API says of a job.
type status struct {
	Job struct {
		Name, State, Message string
		Tasks                int
		TasksDone            int `json:"tasks_done"`
		TasksRunning         int `json:"tasks_running"`
	}
	Stages []struct {
		Name, Waiting               string
		Pending, Running, Suspended int
	}
}

func (s *scene) status(job string) (r status) {
	s.t.Helper()
	out := s.run("job", "status", "-json", job)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// waitFor waits until the API says something of a job.
func (s *scene) waitFor(what, job string, is func(status) bool) {
	s.t.Helper()
	end := time.Now().Add(browser.Limit)
	for !is(s.status(job)) {
		if time.Now().After(end) {
			s.t.Fatalf("not within %s: %s: %+v", browser.Limit, what, s.status(job))
		}
		time.Sleep(50 * time.Millisecond) // between two looks at a condition
	}
}

const small = `resources { cpu = "100m"  memory = "16MiB"  io = "1MiB/s" }`

// TestPages drives every page and button. It is one test, for a browser and a
// cluster take long to start where the machine is slow.
func TestPages(t *testing.T) {
	s := newScene(t)
	if res, err := http.Get(s.base + "/jobs"); err != nil || res.StatusCode != http.StatusUnauthorized {
		t.Errorf("without the cookie: %v %v", res, err)
	}
	s.do("sign in", chromedp.Navigate(s.ui.Page), chromedp.WaitVisible(chromedp.CSS(`#connection[data-state=live]`)))
	if res, err := http.Get(s.ui.Page); err != nil || res.StatusCode != http.StatusUnauthorized {
		t.Errorf("the address, stolen: %v %v", res, err)
	}
	s.says("All is well.", "1 of 1")
	s.open("/jobs")
	s.says("No job yet")

	hold := filepath.Join(s.dir, "go")
	// The job waits for a file, so that nothing here depends on the machine's speed.
	holds := fmt.Sprintf(`printf '%%s\n' '%s'; while [ ! -e %s ]; do sleep 0.1; done; echo after`, strings.ReplaceAll(strings.ReplaceAll(hostileLine, `'`, `'\''`), "\x1b", `'"$(printf '\033')"'`), hold)
	quoted, err := json.Marshal(holds)
	if err != nil {
		t.Fatal(err)
	}
	command := strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&", `${`, `$${`).Replace(string(quoted))
	work := s.submit(fmt.Sprintf(`job "holding" {
  stage "first" {
    tasks   = 2
    command = ["sh", "-c", %s]
    %s
  }
  stage "second" {
    after   = ["first"]
    tasks   = 2
    command = ["true"]
    %s
  }
}`, command, small, small))
	broken := s.submit(fmt.Sprintf("job \"broken\" {\n stage \"only\" {\n tasks = 1\n command = [\"sh\", \"-c\", \"echo no such column >&2; exit 3\"]\n %s\n }\n}", small))
	wide := s.submit("job \"wide\" {\n stage \"huge\" {\n tasks = 100000\n command = [\"sleep\", \"600\"]\n resources { cpu = \"100m\"  memory = \"16MiB\"  io = \"1MiB/s\" }\n }\n}")

	// Without a reload the list says what comes.
	s.says("holding", "broken", "wide")
	s.waitFor("it fails", broken, func(r status) bool { return r.Job.State == "JOB_STATE_FAILED" })
	s.waitFor("it runs", work, func(r status) bool { return r.Stages[0].Running == 2 })
	s.says("failed")

	s.open("/jobs/" + broken)
	s.says("Why it failed", "no such column", s.status(broken).Job.Message)
	s.press("Run again")
	s.until("the new job's page", `/^\/jobs\/[0-9]+$/.test(location.pathname) && location.pathname !== "/jobs/`+broken+`"`)

	s.open("/jobs/" + wide)
	s.until("the tasks", `document.querySelectorAll(".virtual tbody tr").length > 50 && document.body.innerText.includes("100\u202f000 tasks")`)
	s.until("the waterfall is drawn", `document.querySelector("canvas.waterfall").height > 100`)
	s.waitFor("it waits", wide, func(r status) bool { return r.Stages[0].Waiting != "" })
	s.says(s.status(wide).Stages[0].Waiting)
	s.until("the scripts ran once", `performance.getEntriesByType("resource").filter(e => e.name.includes("/static/page.js")).length === 1`)
	s.scrolls()

	s.open("/schedule")
	s.says("wide", "huge", "stage first is not done")
	s.until("the schedule is drawn", `document.querySelector("canvas.schedule").height > 60`)
	s.waitingJobs("stage first is not done")

	s.open("/jobs?past=all&state=failed&user=local")
	s.says("broken")
	s.until("and no other", `document.querySelectorAll("tr[data-key^=j]").length === 1`)
	s.open("/jobs?since=2020-01-01&until=2020-12-31")
	s.says("No job matches")

	s.open("/jobs/" + wide)
	s.press("Stop")
	s.waitFor("it is stopped", wide, func(r status) bool { return r.Job.State == "JOB_STATE_STOPPED" })
	s.says("stopped")

	s.open("/jobs/" + work)
	s.says("holding", "first", "second")
	s.press("Suspend running tasks")
	s.waitFor("it is suspended", work, func(r status) bool { return r.Stages[0].Suspended == 2 })
	s.until("the page says so", `[...document.querySelectorAll("tr[data-key=sfirst] td")][3]?.innerText === "2"`)
	s.press("Resume suspended tasks")
	s.waitFor("it is resumed", work, func(r status) bool { return r.Stages[0].Running == 2 })

	s.open("/jobs/" + work + "/tasks/first/0")
	s.press("Freeze")
	s.waitFor("a task is suspended", work, func(r status) bool { return r.Stages[0].Suspended == 1 })
	s.press("Resume")
	s.waitFor("it goes on", work, func(r status) bool { return r.Stages[0].Running == 2 })

	s.longLine()

	s.open("/jobs/" + work + "/logs/first/0")
	s.says("<script>document.title='owned'</script><img src=x onerror=alert(1)>&amp;")
	s.until("no markup came of it", `document.title !== "owned" && !document.querySelector("#log img, #log script")`)

	s.open("/nodes/" + nodeName(t, s))
	s.press("Drain")
	s.says("draining")
	s.press("Make schedulable")
	s.until("it takes work again", `document.querySelector(".title .chip").innerText === "up"`)

	for path, want := range map[string][]string{"/tenants": {"default", "Fair share"}, "/scheduler": {schedulerName(t, s), "Why tasks wait"}, "/events": {"job.accepted", "job.stopped", "stopped on the page"}} {
		s.open(path)
		s.says(want...)
	}
	s.csrf(work)
	for _, path := range []string{"/", "/jobs", "/jobs?past=all", "/jobs/" + work, "/jobs/" + broken, "/jobs/" + work + "/tasks/first/0", "/jobs/" + work + "/logs/first/0", "/schedule", "/tenants", "/scheduler", "/events", "/nodes/" + nodeName(t, s), "/nowhere"} {
		s.accessible(path)
	}
	// The job ends while its page is open.
	s.open("/jobs/" + work)
	if err := os.WriteFile(hold, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.until("it has ended on the page", `document.querySelector(".title .chip").innerText === "succeeded"`)
	if r := s.status(work); r.Job.State != "JOB_STATE_SUCCEEDED" {
		t.Errorf("the page says succeeded, the API %s", r.Job.State)
	}

	// The coordinator goes and comes back; the page says so and goes on by itself.
	if err := s.dev.Stop(); err != nil {
		t.Fatal(err)
	}
	s.until("the page says that nobody answers", `!document.querySelector("#trouble").hidden && document.querySelector("#connection").dataset.state === "lost"`)
	if err := s.dev.Restart(); err != nil {
		t.Fatal(err)
	}
	s.until("the page goes on", `document.querySelector("#trouble").hidden && document.querySelector("#connection").dataset.state === "live"`)
	// The session ends while a page is open: the proxy was started again.
	listen := strings.TrimPrefix(s.base, "http://")
	if err := s.ui.Stop(); err != nil {
		t.Fatal(err)
	}
	if s.ui, err = s.dev.StartUI(listen); err != nil {
		t.Fatal(err)
	}
	s.says("You are not signed in any more")
	s.do("reload", chromedp.Navigate(s.base+"/jobs"))
	s.says("You are not signed in")
	s.do("a wrong token", chromedp.Navigate(s.base+"/?token=0123456789abcdef0123456789abcdef"))
	s.says("You are not signed in")
	s.do("sign in again", chromedp.Navigate(s.ui.Page), chromedp.WaitVisible(chromedp.CSS(`#connection[data-state=live]`)))

	// A simulation's file shows its schedule without a server.
	file := filepath.Join(s.dir, "plan.html")
	s.run("sim", "run", "-workload", "poisson", "-format", "generate", "-rule", "jobs=8", "-rule", "interval_s=2", "-rule", "task_s=10", "-scheduler", "fifo", "-nodes", "3", "-html", file)
	s.do("open the simulation", chromedp.Navigate("file://"+file))
	s.says("Schedule of fifo", "mean response")
	s.until("its schedule is drawn", `document.querySelector("canvas.schedule").style.height !== ""`)
	s.complaints()
}

// complaints fails if the browser complained of anything.
func (s *scene) complaints() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.bad) > 0 {
		s.t.Errorf("the browser complained: %s", strings.Join(s.bad, "\n"))
	}
}

// scrolls scrolls through the table of 100,000 tasks, by the address of a row, and by
// keyboard to its end: the rows in view are there, and few others.
func (s *scene) scrolls() {
	s.t.Helper()
	for _, row := range []int{50_000, 99_000, 3} {
		s.do("scroll", chromedp.Func(func(ctx context.Context, tg *chromedp.Target) error {
			_, err := chromedp.Evaluate[bool](fmt.Sprintf(`(e => { e.scrollTop = (e.scrollHeight - e.querySelector("thead").offsetHeight) * %d / 100000; return true })(document.querySelector(".virtual"))`, row))(ctx, tg)
			return err
		}))
		s.until(fmt.Sprintf("row %d is in view", row), fmt.Sprintf(`(box => [...box.querySelectorAll("tbody th")].some(e => e.innerText === "huge/%d" && e.getBoundingClientRect().top >= box.getBoundingClientRect().top && e.getBoundingClientRect().bottom <= box.getBoundingClientRect().bottom))(document.querySelector(".virtual"))`, row))
		s.until("few rows exist", `document.querySelectorAll(".virtual tr").length < 120`)
	}
	s.do("the end key", chromedp.Focus(chromedp.CSS(".virtual")), chromedp.KeyEvent(kb.End))
	s.says("huge/99999")
}

// waitingJobs goes through what waits in the schedule by keyboard, and points at one:
// the picture says for what each waits.
func (s *scene) waitingJobs(reason string) {
	s.t.Helper()
	tip := `document.querySelector("#tip:not([hidden])")?.innerText ?? ""`
	s.do("the picture", chromedp.Focus(chromedp.CSS("canvas.schedule")))
	said := false
	for range 20 { // a change of the page may change their order
		s.do("n", chromedp.KeyEvent("n"))
		ctx, cancel := context.WithTimeout(s.ctx, browser.Limit)
		text, err := chromedp.Run(ctx, chromedp.Evaluate[string](tip))
		cancel()
		if err != nil {
			s.t.Fatal(err)
		}
		if !strings.Contains(text, " tasks wait\n") {
			s.t.Errorf("n leads to %q", text)
		}
		if said = said || strings.Contains(text, reason); said {
			break
		}
	}
	if !said {
		s.t.Errorf("n does not lead to what waits for %q", reason)
	}
	s.do("escape", chromedp.KeyEvent(kb.Escape))
	s.until("nothing is pointed at", tip+` === ""`)
	ctx, cancel := context.WithTimeout(s.ctx, browser.Limit)
	defer cancel()
	at, err := chromedp.Run(ctx, chromedp.Evaluate[[]float64](`(b => [b.left + 20, b.bottom - 40])(document.querySelector("canvas.schedule").getBoundingClientRect())`))
	if err != nil {
		s.t.Fatal(err)
	}
	s.do("point at what waits", chromedp.MouseEvent(input.DispatchMouseEventTypeMouseMoved, at[0], at[1]))
	s.until("it says for what", fmt.Sprintf(`(t => /tasks wait\n/.test(t))(%s)`, tip))
}

// longLine has a job print lines of 10 MB, of hostile text, on both streams, and fail:
// its pages show the end of each as text and stay usable.
func (s *scene) longLine() {
	s.t.Helper()
	const line = `yes '<img src=x onerror=alert(3)>' | tr -d '\\n' | head -c 10485760; echo 'the <b>end</b>'`
	job := s.submit(fmt.Sprintf("job \"long\" {\n stage \"only\" {\n tasks = 1\n command = [\"sh\", \"-c\", \"%s; (%s) >&2; exit 3\"]\n %s\n }\n}", line, line, small))
	s.waitFor("it fails", job, func(r status) bool { return r.Job.State == "JOB_STATE_FAILED" })
	for _, stream := range []string{"stdout", "stderr"} {
		s.open("/jobs/" + job + "/logs/only/0?stream=" + stream)
		s.says("the <b>end</b>")
		s.until("it is text, and not too much of it", `(e => e.childElementCount === 0 && e.textContent.includes("<img src=x onerror=alert(3)>") && e.textContent.length <= 1 << 18)(document.querySelector("#log"))`)
	}
	s.open("/jobs/" + job)
	s.says("Why it failed", "the <b>end</b>")
	s.until("no markup came of it", `!document.querySelector("main img, main b:not(.tile b)")`)
	s.accessible("/jobs/" + job)
}

// accessRules are what holds of every page, by what it is for.
var accessRules = map[string]string{
	"pictures have names and tables": `[...document.querySelectorAll("canvas, svg[role=img]")].every(e => e.getAttribute("aria-label") && document.querySelector("main table"))`,
	"other drawings are hidden":      `[...document.querySelectorAll("main svg:not([role=img])")].every(e => e.getAttribute("aria-hidden") === "true")`,
	"fields have labels":             `[...document.querySelectorAll("input:not([type=hidden]), select")].every(e => e.labels.length > 0)`,
	"links and buttons have texts":   `[...document.querySelectorAll("a, button")].every(e => e.textContent.trim() || e.getAttribute("aria-label"))`,
	"there is one heading":           `document.querySelectorAll("h1").length === 1`,
	"heads of tables say of what":    `[...document.querySelectorAll("thead th")].every(e => e.scope === "col")`,
}

// accessible checks a page on a phone and for who cannot see or point: nothing is
// wider than the screen, each picture has a name and a table, each field a label,
// each link and button a text, and the keyboard can skip the navigation.
func (s *scene) accessible(path string) {
	s.t.Helper()
	s.do("open "+path+" on a phone", chromedp.EmulateViewport(390, 844), chromedp.Navigate(s.base+path), chromedp.WaitVisible(chromedp.CSS(`h1`)))
	s.until(path+" is no wider than a phone", `document.documentElement.scrollWidth <= 390`)
	for what, is := range accessRules {
		s.until(path+": "+what, is)
	}
	s.do("the tab key", chromedp.KeyEvent("\t"))
	s.until(path+": the first stop skips the navigation", `document.activeElement.className === "skip"`)
	s.do("a wide screen", chromedp.EmulateViewport(1280, 900))
}

// accessibleHere checks the page that is open as accessible does.
func (s *scene) accessibleHere(what string) {
	s.t.Helper()
	s.do(what+" on a phone", chromedp.EmulateViewport(390, 844))
	s.until(what+" is no wider than a phone", `document.documentElement.scrollWidth <= 390`)
	for rule, is := range accessRules {
		s.until(what+": "+rule, is)
	}
	s.do("a wide screen", chromedp.EmulateViewport(1280, 900))
}

// csrf lets a page of another origin try to stop a job.
func (s *scene) csrf(job string) {
	s.t.Helper()
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form id="f" method="post" action="%s/do/stop-job"><input name="job" value="%s"></form><script>
fetch("%s/do/stop-job", {method: "POST", mode: "no-cors", credentials: "include", body: new URLSearchParams({job: "%s"})}).catch(() => {}).finally(() => { document.title = "tried" })</script>`, s.base, job, s.base, job)
	}))
	defer other.Close()
	s.do("open another site", chromedp.Navigate(other.URL))
	s.until("it tried", `document.title === "tried"`)
	s.do("send its form", chromedp.Submit(chromedp.CSS("#f")))
	s.until("it was refused", `!document.querySelector("#f")`)
	if r := s.status(job); r.Job.State != "JOB_STATE_RUNNING" {
		s.t.Errorf("another site stopped the job: %s", r.Job.State)
	}
}

func nodeName(t *testing.T, s *scene) string {
	t.Helper()
	var r struct {
		Nodes []struct{ Info struct{ Name string } }
	}
	if err := json.Unmarshal([]byte(s.run("node", "list", "-json")), &r); err != nil || len(r.Nodes) != 1 {
		t.Fatalf("%v: %v", err, r)
	}
	return r.Nodes[0].Info.Name
}

func schedulerName(t *testing.T, s *scene) string {
	t.Helper()
	var r struct{ Scheduler string }
	if err := json.Unmarshal([]byte(s.run("status", "-json")), &r); err != nil || r.Scheduler == "" {
		t.Fatalf("%v: %v", err, r)
	}
	return r.Scheduler
}

package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/drover-run/drover/integration/internal/browser"
)

// servers are three coordinators, each a process, and how commands reach them.
type servers struct {
	s    *scene
	env  []string
	all  map[string]*browser.Coordinator // the running ones by ID
	args map[string][]string             // with which each can be started again
}

// startServers starts three coordinators as one cluster.
func (s *scene) startServers() *servers {
	s.t.Helper()
	ca := filepath.Join(s.dir, "ca")
	v := &servers{s: s, all: map[string]*browser.Coordinator{}, args: map[string][]string{}}
	v.run("tls", "ca", "-dir", ca)
	v.run("tls", "cert", "-dir", ca, "-kind", "user", "ann")
	file := func(name string) string { return filepath.Join(ca, name) }
	var join []string
	var addresses []string
	for _, id := range []string{"c1", "c2", "c3"} {
		v.run("tls", "cert", "-dir", ca, "-kind", "coordinator", "-host", "127.0.0.1", id)
		base := []string{"-id", id, "-data", filepath.Join(s.dir, id), "-socket", filepath.Join(s.dir, id+".s"), "-operator", "user/ann",
			"-tls-ca", file("ca.pem"), "-tls-cert", file(id + ".pem"), "-tls-key", file(id + ".key")}
		v.args[id] = append(base, "-listen", "127.0.0.1:0", "-peer-listen", "127.0.0.1:0")
		v.start(id, join...)
		c := v.all[id]
		v.args[id] = append(base, "-listen", strings.TrimPrefix(c.Address, "https://"), "-peer-listen", c.Peer)
		addresses = append(addresses, c.Address)
		if id == "c1" {
			join = []string{"-join", c.Peer}
		}
	}
	s.t.Cleanup(func() {
		for id, c := range v.all {
			if err := c.Stop(); err != nil {
				s.t.Errorf("%s: %v", id, err)
			}
		}
	})
	v.env = []string{"DROVER_ADDRESS=" + strings.Join(addresses, ","), "DROVER_TLS_CA=" + file("ca.pem"), "DROVER_TLS_CERT=" + file("ann.pem"), "DROVER_TLS_KEY=" + file("ann.key")}
	v.leader(3)
	return v
}

func (v *servers) start(id string, more ...string) {
	v.s.t.Helper()
	c, err := browser.StartCoordinator(v.s.program, append(v.args[id], more...)...)
	if err != nil {
		v.s.t.Fatal(err)
	}
	v.all[id] = c
}

// kill ends a coordinator as kill -9 does.
func (v *servers) kill(id string) {
	v.s.t.Helper()
	if err := v.all[id].Kill(); err != nil {
		v.s.t.Fatal(err)
	}
	delete(v.all, id)
}

func (v *servers) try(args ...string) (string, error) {
	cmd := exec.Command(v.s.program, args...)
	cmd.Env = append(os.Environ(), v.env...)
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), err
}

func (v *servers) run(args ...string) string {
	v.s.t.Helper()
	out, err := v.try(args...)
	if err != nil {
		v.s.t.Fatalf("drover %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// leader waits until some coordinators vote and answer, and returns the one that leads.
func (v *servers) leader(answer int) string {
	v.s.t.Helper()
	for end := time.Now().Add(browser.Limit); ; time.Sleep(50 * time.Millisecond) { // between two looks at a condition
		out, err := v.try("operator", "server", "list", "-json")
		var r struct {
			Servers []struct {
				ID            string
				Leader, Voter bool
				Error         string
			}
		}
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		leader, well := "", 0
		for _, s := range r.Servers {
			if s.Leader {
				leader = s.ID
			}
			if s.Voter && s.Error == "" {
				well++
			}
		}
		if err == nil && leader != "" && well >= answer {
			return leader
		}
		if time.Now().After(end) {
			v.s.t.Fatalf("no leader of %d within %s: %v: %s", answer, browser.Limit, err, out)
		}
	}
}

// transfer has another coordinator lead than one.
func (v *servers) transfer(from string) {
	v.s.t.Helper()
	for end := time.Now().Add(browser.Limit); v.leader(3) == from; { // it fails while a follower is behind
		if out, err := v.try("operator", "server", "transfer"); err != nil && time.Now().After(end) {
			v.s.t.Fatalf("no transfer within %s: %v: %s", browser.Limit, err, out)
		}
	}
}

// pageAtLeader waits until the browser shows the page that was opened at the coordinator
// that leads, live, and returns that one. On a slow machine leaders change by themselves.
func (v *servers) pageAtLeader() string {
	v.s.t.Helper()
	for end := time.Now().Add(browser.Limit); ; time.Sleep(50 * time.Millisecond) { // between two looks at a condition
		id := v.leader(2)
		ctx, cancel := context.WithTimeout(v.s.ctx, browser.Limit)
		ok, err := chromedp.Run(ctx, chromedp.Evaluate[bool](fmt.Sprintf(`location.href === %q && document.querySelector("#connection")?.dataset.state === "live"`, v.all[id].Address+"/jobs?q=e")))
		cancel()
		if err == nil && ok {
			return id
		}
		if time.Now().After(end) {
			v.s.t.Fatalf("the page is not at %s, which leads (%v)\n%s", id, err, v.s.text())
		}
	}
}

// queue submits a job that waits, since there is no node.
func (v *servers) queue(name string) {
	v.s.t.Helper()
	file := filepath.Join(v.s.dir, "queue.hcl")
	if err := os.WriteFile(file, []byte(fmt.Sprintf("job %q {\n stage \"only\" {\n tasks = 1\n command = [\"true\"]\n }\n}", name)), 0o600); err != nil {
		v.s.t.Fatal(err)
	}
	v.run("job", "run", "-detach", file)
}

// token creates a token of a user. That is no command that clients repeat by themselves, and fails while leaders change.
func (v *servers) token(user string) string {
	v.s.t.Helper()
	for end := time.Now().Add(browser.Limit); ; time.Sleep(50 * time.Millisecond) { // between two tries
		token, err := v.try("token", "create", "-user", user)
		if err == nil {
			return token
		}
		if time.Now().After(end) {
			v.s.t.Fatalf("no token within %s: %v", browser.Limit, err)
		}
	}
}

// TestLeaderChanges has leaders of three coordinators go while a page is open: killed
// with kill -9, and by a transfer. The page of `drover ui` goes on by itself where it is;
// that of a coordinator's own port goes to the same page of the new leader.
func TestLeaderChanges(t *testing.T) {
	s := newEmptyScene(t)
	v := s.startServers()
	v.queue("before")
	u, err := browser.StartUI(s.program, "127.0.0.1:0", v.env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := u.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.base = browser.Base(u.Page)
	s.do("sign in", s.navigate(u.Page)...)
	s.open("/jobs")
	s.says("before")
	s.do("mark the page", s.mark())
	killed := v.leader(3)
	v.kill(killed)
	v.leader(2)
	v.queue("after")
	s.says("before", "after")
	s.until("the page is live, and the same one", `window.old && document.querySelector("#connection").dataset.state === "live" && document.querySelector("#trouble").hidden`)

	v.start(killed)
	token := v.token("ann")
	s.base = v.all[v.leader(3)].Address
	s.do("open the leader's own page", chromedp.Navigate(s.base+"/jobs?q=e"), chromedp.WaitVisible(chromedp.CSS(`input[name=token]`)),
		chromedp.SetValue(chromedp.CSS(`input[name=token]`), token), chromedp.Click(chromedp.CSS(`form[action="/sign-in"] button`)))
	from := v.pageAtLeader()
	v.transfer(from)
	v.pageAtLeader()
	v.queue("transferred")
	s.says("before", "after", "transferred")

	// Of a coordinator that is gone the page waits, says so, and goes on when it is back.
	gone := v.pageAtLeader()
	v.kill(gone)
	s.until("the page says that nobody answers", `!document.querySelector("#trouble").hidden && document.querySelector("#connection").dataset.state === "lost"`)
	v.leader(2)
	v.start(gone)
	v.leader(3)
	v.queue("last")
	v.pageAtLeader()
	s.says("before", "last")
	s.complaints()
}

package browser

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/drover-run/drover/integration/internal/browser"
)

// TestSignIn signs in with tokens at a coordinator's own port: a wrong one is refused
// with a reason, a good one opens the page, and when it expires while the page is open
// the page says so, the form comes back, and the expired token opens nothing.
func TestSignIn(t *testing.T) {
	s := newEmptyScene(t)
	ca, socket := filepath.Join(s.dir, "ca"), filepath.Join(s.dir, "c")
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(s.program, args...)
		cmd.Env = append(os.Environ(), "DROVER_ADDRESS=unix://"+socket)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("drover %s: %v: %s", strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	run("tls", "ca", "-dir", ca)
	run("tls", "cert", "-dir", ca, "-kind", "coordinator", "-host", "127.0.0.1", "c1")
	c, err := browser.StartCoordinator(s.program, "-data", filepath.Join(s.dir, "data"), "-socket", socket, "-listen", "127.0.0.1:0",
		"-tls-ca", filepath.Join(ca, "ca.pem"), "-tls-cert", filepath.Join(ca, "c1.pem"), "-tls-key", filepath.Join(ca, "c1.key"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.base = c.Address
	run("token", "create", "-user", "bob") // without a good token the port takes nobody without a certificate
	signIn := func(token, then string) {
		t.Helper()
		s.do("sign in", chromedp.WaitVisible(chromedp.CSS(`input[name=token]`)), chromedp.SetValue(chromedp.CSS(`input[name=token]`), token), chromedp.Click(chromedp.CSS(`form[action="/sign-in"] button`)))
		s.until(then, then)
	}
	s.do("open a page", chromedp.Navigate(s.base+"/tenants?past=24"))
	s.says("Sign in to Drover", "drover token create")
	refused := `document.querySelector("[role=alert]")?.innerText.includes("this token is unknown")`
	signIn("drover_0123456789abcdef_"+strings.Repeat("0", 64), refused)
	signIn("<script>document.title='owned'</script>", `document.querySelector("[role=alert]") && document.title !== "owned"`)
	s.accessibleHere("the form")
	var (
		token   string
		expires time.Time
	)
	for tries := 1; ; tries++ { // on a slow machine a token may expire before the page is seen
		token = run("token", "create", "-user", "ann", "-life", "1m")
		expires = time.Now().Add(time.Minute)
		const expired = `document.querySelector("[role=alert]")?.innerText.includes("this token of user/ann is expired")`
		signIn(token, `location.pathname + location.search === "/tenants?past=24" && document.querySelector("#connection")?.dataset.state === "live" && document.body.innerText.includes("user/ann") || `+expired)
		s.do("open another page", chromedp.Navigate(s.base+"/"))
		const first = `["No node has registered yet", "drover node -coordinator"].every(x => document.body.innerText.includes(x))` // an empty cluster says what to do first
		s.until("the page of an empty cluster, or the form", first+` || !!document.querySelector("input[name=token]")`)
		if s.holds(first) {
			break
		}
		if tries == 5 {
			t.Fatalf("%d tokens of a minute expired before the page was seen", tries)
		}
		s.do("open a page once more", chromedp.Navigate(s.base+"/tenants?past=24"))
	}
	s.until("the page says that the session has ended", `document.querySelector("#trouble")?.innerText.includes("You are not signed in any more")`)
	if time.Now().Before(expires.Add(-5 * time.Second)) {
		t.Error("it ended before the token expired")
	}
	s.do("open a page again", chromedp.Navigate(s.base+"/jobs"))
	signIn(token, `document.querySelector("[role=alert]")?.innerText.includes("this token of user/ann is expired")`)
	s.complaints()
}

// newEmptyScene returns a browser and the program, without a cluster.
func newEmptyScene(t *testing.T) *scene {
	t.Helper()
	s := newBrowser(t)
	dir, err := os.MkdirTemp("", "page") // socket paths are short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.dir, s.program = dir, filepath.Join(dir, "drover")
	if out, err := exec.Command("go", "build", "-o", s.program, "github.com/drover-run/drover/cmd/drover").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return s
}

// newBrowser returns a browser alone.
func newBrowser(t *testing.T) *scene {
	t.Helper()
	if testing.Short() {
		t.Skip("not proved here: what the page says is what the API says, with a real browser; it takes minutes, and make test runs it")
	}
	if _, err := browser.Find(); err != nil {
		t.Skip("not proved here: what the page says is what the API says, with a real browser: ", err)
	}
	t.Parallel() // they wait more than they work
	ctx, end, err := browser.Start(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	s := &scene{t: t, ctx: ctx}
	s.listen()
	return s
}

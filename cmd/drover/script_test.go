package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/drover-run/drover/internal/unixhttp"
)

// TestMain lets the test binary act as drover if it is started under that name. Tests have times shown in UTC.
func TestMain(m *testing.M) {
	if program := filepath.Base(os.Args[0]); program != "drover" && program != testNodeProgram {
		time.Local = time.UTC // here alone: servers of other tests may run while one changes it
	}
	testscript.Main(m, map[string]func(){"drover": main, testNodeProgram: testNodeMain})
}

// stepLimit bounds every wait of a script.
const stepLimit = 60 * time.Second

// raceExitOption stops the race detector from sleeping for a second at the end of every
// command.
const raceExitOption = "atexit_sleep_ms=0"

// plainVar is the path of a drover without the race detector, or nothing. With it, TestScripts runs the commands that
// do one thing after another without the detector: it would find nothing in them, and takes most of the time of a
// command that starts and ends.
const plainVar = "DROVER_PLAIN"

// concurrentFiles are the files that start goroutines, and the words of command lines that reach them, which TestScripts
// runs with the race detector. A simulation is a computation; scheduler/sim/run tests its goroutines with the detector.
var concurrentFiles = map[string][]string{
	"bench_coordinator.go": {"bench"}, "bench_criu.go": {"bench"}, "bench_day.go": {"bench"}, "bench_floods.go": {"bench"}, "bench_servers.go": {"bench"},
	"daemon.go": {"coordinator"}, // `drover node` needs containerd, which no script has
	"dev.go":    {"dev"}, "follow_logs.go": {"-follow", "-f"}, "login.go": {"login"},
	"job_run.go":        nil, // a timer that prints that a submission is slow
	"main.go":           nil, // a second signal that ends the process
	"operator_debug.go": {"debug"}, "task.go": {"exec"}, "ui.go": {"ui"},
}

// installDrover writes a program that runs drover with or without the race detector, as concurrentFiles says, and
// returns its folder, or nothing if there is no drover without.
func installDrover(t *testing.T) string {
	t.Helper()
	plain := os.Getenv(plainVar)
	if plain == "" {
		return ""
	}
	detecting, err := exec.LookPath("drover") // TestMain put it there
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, w := range concurrentFiles {
		words = append(words, w...)
	}
	slices.Sort(words)
	dir := t.TempDir()
	text := fmt.Sprintf("#!/bin/sh\nfor word; do case $word in %s) exec '%s' \"$@\";; esac; done\nexec '%s' \"$@\"\n", strings.Join(slices.Compact(words), "|"), detecting, plain)
	if err := os.WriteFile(filepath.Join(dir, "drover"), []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// The scripts run with the race detector what starts goroutines.
func TestConcurrentFiles(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	starts := regexp.MustCompile(`(?m)^\s*go |\.Go\(|\.AfterFunc\(`)
	var found []string
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(name, "_test.go") && starts.Match(text) {
			found = append(found, name)
		}
	}
	if want := slices.Sorted(maps.Keys(concurrentFiles)); !slices.Equal(found, want) {
		t.Errorf("goroutines start in %q, and concurrentFiles has %q", found, want)
	}
}

// TestScripts runs the command line as a user does. Each script has its own folder and
// socket and, after `dev`, its own coordinator and node.
//
//	dev [FLAG ...]            start `drover dev` and wait until it is ready
//	dev stop                  stop it (SIGINT) and expect exit code 0
//	code N COMMAND ...        run a command and expect this exit code
//	until REGEXP COMMAND ...  repeat a command until its output matches
//	await FILE REGEXP         wait until a file matches
//	json FILE [PATH [WANT]]   want one JSON object; with PATH a value in it (a.b.0.c), with WANT this one
//	metrics                   want every metric of the coordinator and its node documented
//	jsonlines FILE            want one JSON object on every line
//	newer FILE                have the state in a file be of a version that drover does not know
func TestScripts(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	installed := installDrover(t)
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(e *testscript.Env) error {
			path := withoutShims(e.Getenv("PATH"))
			if installed != "" {
				path = installed + string(filepath.ListSeparator) + path
			}
			e.Vars = append(e.Vars, "ROOT="+root, "DROVER_ADDRESS=unix://"+filepath.Join(e.WorkDir, "s"), "LC_ALL=C",
				"PATH="+path, "GORACE="+raceExitOption, installedVar+"="+installed)
			return expandWorkDir(e.WorkDir)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"dev": scriptDev, "code": scriptCode, "until": scriptUntil, "await": scriptAwait, "json": scriptJSON, "jsonlines": scriptJSONLines,
			"metrics": scriptMetrics, "newer": scriptNewer,
		},
		Condition: func(cond string) (bool, error) {
			if name, ok := strings.CutPrefix(cond, "has:"); ok {
				_, err := exec.LookPath(name)
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
	})
}

// expandWorkDir replaces @WORK@ by the script's folder in its job files, because URIs are
// absolute.
func expandWorkDir(dir string) error {
	for _, pattern := range []string{"*.hcl", "*.json", "*/*.hcl"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return err
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			if err := os.WriteFile(f, bytes.ReplaceAll(b, []byte("@WORK@"), []byte(dir)), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// withoutShims removes the folders of version managers from a PATH, because their shims of
// interpreters need a home folder.
func withoutShims(path string) string {
	var kept []string
	for _, d := range filepath.SplitList(path) {
		if !strings.Contains(d, "shims") {
			kept = append(kept, d)
		}
	}
	return strings.Join(kept, string(filepath.ListSeparator))
}

// installedVar has the folder of installDrover, for the script's own commands: exec looks in the PATH of the test.
const installedVar = "INSTALLED"

// scriptProcess returns a command with the environment and folder of a script.
func scriptProcess(ts *testscript.TestScript, args []string) *exec.Cmd {
	program := args[0]
	if dir := ts.Getenv(installedVar); dir != "" && program == "drover" {
		program = filepath.Join(dir, program)
	}
	cmd := exec.Command(program, args[1:]...)
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "WORK", "DROVER_ADDRESS", "LC_ALL", "GORACE"} {
		cmd.Env = append(cmd.Env, name+"="+ts.Getenv(name))
	}
	return cmd
}

// lookPause is how long to pause before the next look at a condition that was waited for since a time: what takes long
// is looked at less often, since a look may be a process that starts, or calls of a server.
func lookPause(since time.Time) time.Duration {
	return min(max(10*time.Millisecond, time.Since(since)/8), 250*time.Millisecond)
}

// pollUntil repeats yes until it returns true.
func pollUntil(ts *testscript.TestScript, what string, yes func() bool) {
	began := time.Now()
	for end := began.Add(stepLimit); time.Now().Before(end); time.Sleep(lookPause(began)) {
		if yes() {
			return
		}
	}
	ts.Fatalf("%s: not within %s", what, stepLimit)
}

var devProcesses = map[string]*exec.Cmd{} // by script, guarded by lock
var devProcessesLock = make(chan struct{}, 1)

func scriptDev(ts *testscript.TestScript, neg bool, args []string) {
	if neg {
		ts.Fatalf("! dev has no meaning")
	}
	if len(args) == 1 && args[0] == "stop" {
		stopDev(ts)
		return
	}
	logFile := ts.MkAbs("dev.log")
	log, err := os.Create(logFile)
	ts.Check(err)
	defer log.Close()
	cmd := scriptProcess(ts, append([]string{"drover", "dev"}, args...))
	cmd.Stderr = log
	ts.Check(cmd.Start())
	devProcessesLock <- struct{}{}
	devProcesses[ts.Name()] = cmd
	<-devProcessesLock
	ts.Defer(func() { stopDev(ts) })
	pollUntil(ts, "drover dev is ready", func() bool {
		b, err := os.ReadFile(logFile)
		return err == nil && bytes.Contains(b, []byte("ready: "))
	})
}

// stopDev stops the script's `drover dev`, if it is running.
func stopDev(ts *testscript.TestScript) {
	devProcessesLock <- struct{}{}
	cmd := devProcesses[ts.Name()]
	delete(devProcesses, ts.Name())
	<-devProcessesLock
	if cmd == nil {
		return
	}
	timer := time.AfterFunc(stepLimit, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	ts.Check(cmd.Process.Signal(os.Interrupt))
	if err := cmd.Wait(); err != nil {
		b, _ := os.ReadFile(ts.MkAbs("dev.log"))
		ts.Fatalf("drover dev: %v\n%s", err, b)
	}
}

func scriptCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got, err := 0, ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		got = exit.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("%s: exit code %d, want %d", strings.Join(args[1:], " "), got, want)
	}
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: until REGEXP COMMAND ...")
	}
	want := regexp.MustCompile("(?m)" + args[0])
	var last []byte
	pollUntil(ts, strings.Join(args[1:], " ")+" shows "+args[0], func() bool {
		last, _ = scriptProcess(ts, args[1:]).CombinedOutput() // an error only means another attempt
		return want.Match(last)
	})
	_, err := ts.Stdout().Write(last)
	ts.Check(err)
}

func scriptAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await FILE REGEXP")
	}
	want := regexp.MustCompile("(?m)" + args[1])
	pollUntil(ts, args[0]+" shows "+args[1], func() bool {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		return err == nil && want.Match(b)
	})
}

func scriptJSON(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 || len(args) > 3 {
		ts.Fatalf("usage: json FILE [PATH [WANT]]")
	}
	d := json.NewDecoder(strings.NewReader(ts.ReadFile(args[0])))
	d.UseNumber()
	var v any
	ts.Check(d.Decode(&v))
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		ts.Fatalf("%s: more follows the JSON value", args[0])
	}
	if len(args) == 1 {
		return
	}
	for _, part := range strings.Split(args[1], ".") {
		switch x := v.(type) {
		case map[string]any:
			next, ok := x[part]
			if !ok {
				ts.Fatalf("%s: no %q in %s", args[0], part, args[1])
			}
			v = next
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i >= len(x) {
				ts.Fatalf("%s: no element %s in %s (%d there)", args[0], part, args[1], len(x))
			}
			v = x[i]
		default:
			ts.Fatalf("%s: %s ends before %q", args[0], args[1], part)
		}
	}
	if got := fmt.Sprint(v); len(args) == 3 && got != args[2] {
		ts.Fatalf("%s: %s is %s, want %s", args[0], args[1], got, args[2])
	}
}

func scriptJSONLines(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: jsonlines FILE")
	}
	lines := strings.Split(strings.TrimRight(ts.ReadFile(args[0]), "\n"), "\n")
	for i, l := range lines {
		var v map[string]any
		if err := json.Unmarshal([]byte(l), &v); err != nil {
			ts.Fatalf("%s: line %d: %v", args[0], i+1, err)
		}
	}
}

// scriptMetrics fetches the metrics of the script's coordinator and node, expects each name
// in docs/how-to/operating.md, and prints them.
func scriptMetrics(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 0 {
		ts.Fatalf("usage: metrics")
	}
	out, err := scriptProcess(ts, []string{"drover", "node", "list", "-json"}).Output()
	ts.Check(err)
	var nodes struct {
		Nodes []struct{ Info struct{ Address string } }
	}
	ts.Check(json.Unmarshal(out, &nodes))
	if len(nodes.Nodes) != 1 {
		ts.Fatalf("%d nodes, want 1", len(nodes.Nodes))
	}
	doc, err := os.ReadFile(filepath.Join(ts.Getenv("ROOT"), "docs/how-to/operating.md"))
	ts.Check(err)
	local := &http.Client{Timeout: stepLimit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", strings.TrimPrefix(ts.Getenv("DROVER_ADDRESS"), "unix://"))
	}}}
	node := &http.Client{Timeout: stepLimit, Transport: &http.Transport{DisableKeepAlives: true, DialContext: unixhttp.DialContext(new(net.Dialer))}}
	page := httpGet(ts, local, "http://coordinator/metrics") + httpGet(ts, node, "http://"+unixhttp.Host(nodes.Nodes[0].Info.Address)+"/metrics")
	for _, m := range regexp.MustCompile(`(?m)^# HELP (\S+) ?(.*)$`).FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			continue // library metrics are documented as a whole
		}
		if !bytes.Contains(doc, []byte("`"+m[1]+"`")) {
			ts.Fatalf("docs/how-to/operating.md does not name the metric %s (%s)", m[1], m[2])
		}
		if m[2] == "" {
			ts.Fatalf("metric %s has no help", m[1])
		}
	}
	_, err = io.WriteString(ts.Stdout(), page)
	ts.Check(err)
}

func httpGet(ts *testscript.TestScript, c *http.Client, url string) string {
	res, err := c.Get(url)
	ts.Check(err)
	defer res.Body.Close()
	b, err := io.ReadAll(io.LimitReader(res.Body, 10<<20))
	ts.Check(err)
	if res.StatusCode != http.StatusOK {
		ts.Fatalf("%s: %s", url, res.Status)
	}
	return string(b)
}

package pipe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/scheduler"
	"github.com/drover-run/drover/scheduler/policies"
	"github.com/drover-run/drover/scheduler/sim/engine"
	"github.com/drover-run/drover/scheduler/sim/trace"
)

// TestMain lets the test binary be the process: an environment variable names its behaviour.
func TestMain(m *testing.M) {
	if what := os.Getenv("PIPE_TEST_POLICY"); what != "" {
		serve(what)
		return
	}
	os.Exit(m.Run())
}

// serve answers requests as the behaviour says.
func serve(what string) {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, maxLine)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil || r.Version != version {
			fmt.Fprintln(os.Stderr, "bad request", err)
			os.Exit(3)
		}
		var out response
		switch what {
		case "first fit":
			out = firstFit(&r)
		case "too many":
			out.Place = []placement{{Job: r.Waiting[0].Job, Tasks: r.Waiting[0].Tasks + 1}}
		case "unknown node":
			out.Place = []placement{{Job: r.Waiting[0].Job, Node: 99}}
		case "unknown job":
			out.Place = []placement{{Job: 999}}
		case "a full node":
			out.Place = []placement{{Job: r.Waiting[0].Job, Tasks: 8}}
		case "wake in the past":
			out.Wake = -1 + r.Now
			if out.Wake <= 0 {
				out = firstFit(&r)
			}
		case "words":
			fmt.Println("hello")
			continue
		case "another field":
			fmt.Println(`{"places":[]}`)
			continue
		case "silence":
			_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		case "a child of its own session":
			exe, _ := os.Executable()
			c := exec.Command(exe)
			c.Env, c.SysProcAttr = []string{"PIPE_TEST_POLICY=silence"}, &syscall.SysProcAttr{Setsid: true}
			c.Stdin, c.Stdout = os.Stdin, os.Stdout
			_ = c.Run()
		case "exit":
			os.Exit(4)
		}
		text, _ := json.Marshal(out)
		fmt.Println(string(text))
	}
}

func firstFit(r *request) response {
	var out response
	for _, s := range r.Waiting {
		for i := range r.Nodes {
			n := &r.Nodes[i]
			for s.Tasks > 0 && n.Free.CPU >= s.Demand.CPU && n.Free.Memory >= s.Demand.Memory && n.Free.IO >= s.Demand.IO {
				out.Place = append(out.Place, placement{Job: s.Job, Stage: s.Stage, Node: n.ID})
				n.Free = resources{n.Free.CPU - s.Demand.CPU, n.Free.Memory - s.Demand.Memory, n.Free.IO - s.Demand.IO}
				s.Tasks--
			}
		}
	}
	return out
}

// config returns a small world: two nodes of four cores and 40 jobs of ten tasks.
func config(t *testing.T) engine.Config {
	t.Helper()
	w, err := trace.Generate("poisson", map[string]string{"jobs": "40", "interval_s": "5"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	node := scheduler.NodeSpec{Name: "a", Path: "/r", Capacity: scheduler.Resources{4000, 8 << 30, 0}}
	other := node
	other.Name = "b"
	return engine.Config{Nodes: []engine.Node{{NodeSpec: node}, {NodeSpec: other}}, Tenants: w.Tenants, Jobs: w.Jobs, Seed: 1}
}

// start starts this test binary as a policy with a behaviour.
func start(t *testing.T, what string) (*Policy, *bytes.Buffer) {
	t.Helper()
	t.Setenv("PIPE_TEST_POLICY", what)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	p, err := Start([]string{exe}, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	return p, &stderr
}

// TestProcessSchedulesLikeAPolicy: first come, first served on the first node that fits is fifo.
func TestProcessSchedulesLikeAPolicy(t *testing.T) {
	c := config(t)
	p, stderr := start(t, "first fit")
	c.Policy, c.Stop = p, p.Err
	got, err := engine.Simulate(c)
	if err != nil {
		t.Fatal(err, stderr)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if c.Policy, err = policies.New("fifo", nil); err != nil {
		t.Fatal(err)
	}
	c.Stop = nil
	want, err := engine.Simulate(c)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Jobs {
		if got.Jobs[i].Finish != want.Jobs[i].Finish {
			t.Fatalf("job %d ends at %v, under fifo at %v", i+1, got.Jobs[i].Finish, want.Jobs[i].Finish)
		}
	}
}

func TestBadProcessesEndTheSimulation(t *testing.T) {
	for what, want := range map[string]string{
		"too many":         "tasks of job 1 stage 0: only 10 can start",
		"unknown node":     "on node 99: there are 2 nodes",
		"unknown job":      "job 999, which is unknown or has ended",
		"a full node":      "on node 0 (a), which has capacity for 4 of its tasks",
		"wake in the past": "which is not after now_s",
		"words":            `it answered "hello": expected an object`,
		"another field":    `unknown field "places"`,
		"silence":          "it did not answer within 200ms",
		"exit":             "it ended without an answer",
	} {
		t.Run(what, func(t *testing.T) {
			c := config(t)
			p, _ := start(t, what)
			if what == "silence" {
				p.answerTimeout = 200 * time.Millisecond
			}
			c.Policy, c.Stop = p, p.Err
			_, err := engine.Simulate(c)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want …%s…", err, want)
			}
			if err := p.Close(); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("Close: %v, want …%s…", err, want)
			}
		})
	}
}

// TestChildrenEndWithTheirProcess: a child that keeps the pipes of an ending process open does not block Close.
func TestChildrenEndWithTheirProcess(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		policy  string
		command []string
		asks    bool
	}{
		"a shell's child":                        {"silence", []string{"sh", "-c", `"$0"; exit 1`, exe}, true},
		"a child of its own session":             {"a child of its own session", []string{exe}, true},
		"a child that stays when the input ends": {"silence", []string{"sh", "-c", `sleep 1000000 & exec cat >/dev/null`}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PIPE_TEST_POLICY", c.policy)
			p, err := Start(c.command, io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			p.answerTimeout, p.exitTimeout = 200*time.Millisecond, 200*time.Millisecond
			done := make(chan error, 1)
			go func() {
				if c.asks {
					_, err := p.ask(&request{Version: version})
					done <- err
				}
				done <- p.Close()
			}()
			wait := func() error {
				select {
				case err := <-done:
					return err
				case <-time.After(30 * time.Second):
					t.Fatal("it waits for the child")
					return nil
				}
			}
			if c.asks {
				if err := wait(); err == nil || err.Error() != "it did not answer within 200ms" {
					t.Errorf("%v", err)
				}
			}
			_ = wait()
		})
	}
}

func TestMissingCommandIsNamed(t *testing.T) {
	for _, c := range [][]string{nil, {"./no-such-policy"}} {
		if _, err := Start(c, nil); err == nil {
			t.Errorf("%v was started", c)
		}
	}
}

// TestPythonExample runs examples/pipe-policy/sjf.py: with exact estimates it is the simulator's sjf.
func TestPythonExample(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("not proved here: that examples/pipe-policy/sjf.py schedules shortest job first; python3 is not installed")
	}
	c := config(t)
	var stderr bytes.Buffer
	p, err := Start([]string{python, "../../../../examples/pipe-policy/sjf.py"}, &stderr)
	if err != nil {
		t.Fatal(err)
	}
	c.Policy, c.Stop = p, p.Err
	r, err := engine.Simulate(c)
	if err != nil {
		t.Fatal(err, stderr.String())
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if c.Policy, err = policies.New("fifo", nil); err != nil {
		t.Fatal(err)
	}
	c.Stop = nil
	fifo, err := engine.Simulate(c)
	if err != nil {
		t.Fatal(err)
	}
	mean := func(r *engine.Result) (m time.Duration) {
		for i := range r.Jobs {
			m += r.Jobs[i].Response() / time.Duration(len(r.Jobs))
		}
		return m
	}
	if r.Unfinished != 0 || mean(r) >= mean(fifo) {
		t.Errorf("%d jobs unfinished; mean response %v, fifo %v", r.Unfinished, mean(r), mean(fifo))
	}
}

package browser

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator"
	"github.com/drover-run/drover/coordinator/coordtest"
	"github.com/drover-run/drover/integration/internal/browser"
	"github.com/drover-run/drover/node"
	"github.com/drover-run/drover/runtime/fake"
)

// TestMoves presses the buttons that no plain process has: a coordinator and the
// daemons of two nodes, whose engines keep programs in memory and dump them, checkpoint
// a task, move it while it runs, and it goes on where it was.
func TestMoves(t *testing.T) {
	s := newEmptyScene(t)
	engines := s.startNodes("n1", "n2")
	s.dev = browser.Attach(s.program, filepath.Join(s.dir, "s"))
	var err error
	if s.ui, err = s.dev.StartUI("127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.ui.Stop(); err != nil {
			t.Error(err)
		}
	})
	s.base = browser.Base(s.ui.Page)
	s.do("sign in", s.navigate(s.ui.Page)...)
	job := s.submit("job \"counting\" {\n stage \"only\" {\n tasks = 1\n command = [\"count\"]\n " + small + "\n }\n}")
	s.waitFor("it runs", job, func(r status) bool { return r.Stages[0].Running == 1 })
	from := s.attempt(job).Node
	to := map[string]string{"n1": "n2", "n2": "n1"}[from]
	s.hasCounted(job, 10)

	s.open("/jobs/" + job + "/tasks/only/0")
	s.says("A checkpoint can be moved to another node", from)
	s.press("Checkpoint")
	s.waitFor("it is a checkpoint", job, func(r status) bool { return r.Stages[0].Suspended == 1 })
	s.says("Move to", "suspended")
	s.press("Move")
	s.until("the page says that it runs on the other node", fmt.Sprintf(`document.querySelector(".card .chip").innerText === "running" && document.querySelector("main dl dd a").innerText === %q`, to))
	a := s.attempt(job)
	if a.Node != to || a.Key.Attempt != 1 || a.Key.Run != 2 {
		t.Errorf("after the move the API says: %+v", a)
	}
	if starts := engines[to].Calls(fake.Start); starts != 0 || engines[to].Calls(fake.Restore) != 1 {
		t.Errorf("on %s the task was started %d times, restored %d times", to, starts, engines[to].Calls(fake.Restore))
	}
	s.hasCounted(job, 10) // from 0 on: the log came too

	s.press("Freeze")
	s.waitFor("it is frozen", job, func(r status) bool { return r.Stages[0].Suspended == 1 })
	s.press("Resume")
	s.waitFor("it goes on", job, func(r status) bool { return r.Stages[0].Running == 1 })
	s.says("running")

	s.open("/jobs/" + job)
	s.says("Taken back from its tasks", "2, 1 on another node")
	s.press("Suspend running tasks")
	s.waitFor("it is suspended", job, func(r status) bool { return r.Stages[0].Suspended == 1 })
	s.press("Resume suspended tasks")
	s.waitFor("it is resumed", job, func(r status) bool { return r.Stages[0].Running == 1 })
	s.press("Stop")
	s.waitFor("it is stopped", job, func(r status) bool { return r.Job.State == "JOB_STATE_STOPPED" })
	s.press("Run again")
	s.until("the new job's page", `/^\/jobs\/[0-9]+$/.test(location.pathname) && location.pathname !== "/jobs/`+job+`"`)
	s.open("/events?kind=task.")
	s.says("task.suspended", "task.resumed")
	s.complaints()
}

// startNodes starts a coordinator on the scene's socket, and daemons of nodes whose
// engines share their dumps. They end with the test.
func (s *scene) startNodes(names ...string) map[string]*fake.Engine {
	s.t.Helper()
	socket := filepath.Join(s.dir, "s")
	local, err := coordinator.ListenLocal(socket)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g, ctx := errgroup.WithContext(ctx)
	engines := map[string]*fake.Engine{}
	s.t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			s.t.Error(err)
		}
		for _, e := range engines {
			e.Close()
		}
	})
	ready := make(chan string, 1+len(names))
	g.Go(func() error {
		return coordinator.Run(ctx, coordinator.Config{Dir: filepath.Join(s.dir, "coordinator"), Local: local, NoSync: true, Lease: browser.Limit, ReportInterval: 500 * time.Millisecond, Ready: func() { ready <- "" }})
	})
	s.ready(ctx, ready)
	harness := filepath.Join(s.dir, "harness") // the engine runs no files
	if err := os.WriteFile(harness, []byte("#!/bin/true\n"), 0o755); err != nil {
		s.t.Fatal(err)
	}
	var first *fake.Engine
	for _, name := range names {
		e := fake.New(nil, map[string]fake.Program{"count": count})
		if engines[name] = e; first == nil {
			first = e
		} else {
			e.ShareDumps(first)
		}
		info := coordtest.Info(name)
		info.Schemes, info.Address = []string{"file"}, ""
		info.Levels = append(info.Levels, droverv1.Level_LEVEL_CHECKPOINTED)
		cfg := node.Config{Data: filepath.Join(s.dir, name), Coordinator: droverv1connect.NewNodeServiceClient(s.client(socket), "http://coordinator"), Driver: e.Driver(), Info: info,
			Harness: harness, AllowRoot: true, NoSync: true, Grace: time.Second, Ready: func(string) { ready <- name }}
		g.Go(func() error { return node.Run(ctx, cfg) })
		s.ready(ctx, ready)
	}
	return engines
}

// ready waits until one more of what was started is ready.
func (s *scene) ready(ctx context.Context, ready <-chan string) {
	s.t.Helper()
	select {
	case <-ready:
	case <-ctx.Done():
		s.t.Fatal("it ended before it was ready")
	case <-time.After(browser.Limit):
		s.t.Fatalf("not ready within %s", browser.Limit)
	}
}

// count prints numbers until it is killed.
func count(ctx context.Context, p *fake.Process) int {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if p.Gate(ctx) != nil {
			return 1
		}
		fmt.Fprintln(p.Stdout, i)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 1
		}
	}
}

// attempt is what the API says of an attempt.
type attempt struct {
	Node string
	Key  struct{ Attempt, Run int }
}

// attempt returns the newest attempt of the first task of a job.
func (s *scene) attempt(job string) attempt {
	s.t.Helper()
	api := droverv1connect.NewClientServiceClient(s.client(s.dev.Socket()), "http://coordinator")
	ctx, cancel := context.WithTimeout(context.Background(), browser.Limit)
	defer cancel()
	res, err := api.ListTasks(ctx, connect.NewRequest(&droverv1.ListTasksRequest{Job: job, Limit: 1}))
	if err != nil || len(res.Msg.GetTasks()) != 1 || len(res.Msg.GetTasks()[0].GetAttempts()) == 0 {
		s.t.Fatalf("%v: %v", err, res)
	}
	list := res.Msg.GetTasks()[0].GetAttempts()
	last := list[len(list)-1]
	a := attempt{Node: last.GetNode()}
	a.Key.Attempt, a.Key.Run = int(last.GetKey().GetAttempt()), int(last.GetKey().GetRun())
	return a
}

// hasCounted waits until the output of a job has more numbers than it has now, each
// one more than the one before from 0 on, without a gap.
func (s *scene) hasCounted(job string, more int) {
	s.t.Helper()
	least := 0
	end := time.Now().Add(browser.Limit)
	for i := 0; ; i++ {
		lines := strings.Fields(s.run("task", "logs", job, "only/0"))
		for k, line := range lines {
			if line != fmt.Sprint(k) {
				s.t.Fatalf("line %d of the output is %q", k, line)
			}
		}
		if i == 0 {
			least = len(lines) + more
		}
		if len(lines) >= least {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d lines of output, want %d", len(lines), least)
		}
		time.Sleep(50 * time.Millisecond) // between two looks at a condition
	}
}

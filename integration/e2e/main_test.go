package e2e

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/client"
	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/testbed"
)

var droverPath = flag.String("drover", "../../bin/drover", "the binary under test")

// One cluster serves all tests of the package, which run in sequence. The test that kills a machine
// is the last (file zz_…).
var (
	sharedTestbed *testbed.Bed
	sharedCluster *cluster.Cluster
	skipReason    error
)

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := withCluster(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

func withCluster(m *testing.M) (code int, err error) {
	sharedTestbed, skipReason = testbed.FromEnv()
	if skipReason != nil {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "drover-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute) // longer than AwaitNodes waits
	defer cancel()
	conf := cluster.Config{Testbed: sharedTestbed, Drover: *droverPath, Dir: dir, CoordinatorFlags: []string{"-keep-logs", "25s"}}
	sharedCluster, err = cluster.Start(ctx, conf)
	if sharedCluster != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if e := sharedCluster.Stop(ctx); e != nil && err == nil {
				err = e
			}
		}()
	}
	if err != nil {
		return 1, err
	}
	tenants := filepath.Join(dir, "tenants.hcl")
	if err := os.WriteFile(tenants, []byte("tenant \"e2e\" {\n  uid = 2001\n  hdfs_user = \"root\"\n}\n"), 0o644); err != nil {
		return 1, err
	}
	r, err := sharedCluster.Drover(ctx, "tenant", "apply", tenants)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// fixture is a test's view of the cluster.
type fixture struct {
	*testing.T
	cluster *cluster.Cluster
	testbed *testbed.Bed
	ctx     context.Context
	dir     string

	began            time.Time
	initialLeftovers map[string]bool // what was left on the machines when the test began
	reported         bool            // see Cleanup
}

// newFixture returns a fixture, or skips the test outside a test bed. limit is the time limit of
// the whole test.
func newFixture(t *testing.T, limit time.Duration) *fixture {
	t.Helper()
	if skipReason != nil {
		t.Skip("not proved here: that jobs on a real cluster do what this test says; ", skipReason)
	}
	if !levelsKnown {
		limit += 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	s := &fixture{T: t, cluster: sharedCluster, testbed: sharedTestbed, ctx: ctx, dir: t.TempDir(), began: time.Now(), initialLeftovers: map[string]bool{}}
	s.Cleanup(cancel)
	s.awaitLevels()
	for k := range s.testbed.Nodes {
		left, err := s.cluster.Folders(ctx, k+1) // whatever is retained has a folder
		if err == nil && len(left) > 0 {
			left, err = s.cluster.Leftovers(ctx, k+1)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			s.initialLeftovers[fmt.Sprint(k, l)] = true
		}
	}
	return s
}

// Cleanup is that of testing.T. Before the first function of a failed test the cluster is reported as the
// test left it.
func (s *fixture) Cleanup(f func()) {
	s.T.Cleanup(func() {
		if s.Failed() && !s.reported {
			s.reported = true
			s.report()
		}
		f()
	})
}

// report prints what the cluster knows of the test's time: events, nodes and live jobs, and the ends of the daemons' logs.
func (s *fixture) report() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	show := func(args ...string) {
		if r, err := s.cluster.Drover(ctx, args...); err != nil {
			s.Logf("drover %v: %v", args, err)
		} else {
			s.Logf("drover %s:\n%s%s", strings.Join(args, " "), r.Stdout, r.Stderr)
		}
	}
	show("events", "-since", time.Since(s.began).Round(time.Second).String())
	for k := range s.testbed.Nodes {
		show("node", "status", fmt.Sprint("n", k+1))
	}
	var live struct{ Jobs []struct{ Name string } }
	if err := s.cluster.JSON(ctx, &live, "job", "list", "-json"); err != nil {
		s.Log(err)
	}
	for _, j := range live.Jobs {
		show("job", "status", j.Name)
		show("task", "status", j.Name)
	}
	s.Logf("coordinator:\n%s", lastLines(s.cluster.CoordinatorLog(), 30))
	for k, n := range s.testbed.Nodes {
		if state, err := n.State(ctx); err == nil && state == "running" {
			s.Logf("node %d:\n%s", k+1, lastLines(s.cluster.NodeLog(ctx, k+1), 30))
		}
	}
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

// writeJob writes a job file and returns its path.
func (s *fixture) writeJob(name, text string) string {
	s.Helper()
	path := filepath.Join(s.dir, name+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	return path
}

// runDrover runs a client command.
func (s *fixture) runDrover(args ...string) cluster.Result {
	s.Helper()
	r, err := s.cluster.Drover(s.ctx, args...)
	if err != nil {
		s.Fatalf("drover %v: %v", args, err)
	}
	return r
}

// mustRun runs a client command that must succeed.
func (s *fixture) mustRun(args ...string) cluster.Result {
	s.Helper()
	r := s.runDrover(args...)
	if err := r.Err(); err != nil {
		s.Fatal(err)
	}
	return r
}

// mustRefuse runs a client command that must be refused on one line that contains all the words.
func (s *fixture) mustRefuse(words []string, args ...string) {
	s.Helper()
	r := s.runDrover(args...)
	line := strings.TrimSpace(r.Stderr)
	if r.ExitCode == 0 || r.ExitCode == 1 {
		s.Errorf("drover %v: exit code %d, want a refusal\n%s%s", args, r.ExitCode, r.Stdout, r.Stderr)
	}
	if i := strings.LastIndex(line, "\n"); i >= 0 {
		line = line[i+1:]
	}
	for _, w := range words {
		if !strings.Contains(line, w) {
			s.Errorf("drover %v says %q, which lacks %q", args, line, w)
		}
	}
}

// waitUntil waits for a condition.
func (s *fixture) waitUntil(limit time.Duration, what string, cond func() error) {
	s.Helper()
	if err := testbed.WaitFor(s.ctx, limit, what, func(context.Context) error { return cond() }); err != nil {
		s.Fatal(err)
	}
}

// hdfsClient returns a client of the test bed's HDFS.
func (s *fixture) hdfsClient() *client.Client {
	s.Helper()
	fs, err := client.New(client.Options{NameNodes: []string{s.testbed.HDFS.NameNode}, User: "root"})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { fs.Close() })
	return fs
}

// readParts reads all part files below a folder of HDFS in order of name.
func (s *fixture) readParts(dir string) string {
	s.Helper()
	fs := s.hdfsClient()
	if _, err := fs.Stat(s.ctx, dir+"/_SUCCESS"); err != nil {
		s.Fatalf("%s: no _SUCCESS: %v", dir, err)
	}
	list, err := fs.List(s.ctx, dir)
	if err != nil {
		s.Fatal(err)
	}
	var b strings.Builder
	for _, f := range list {
		if strings.Contains(f.Path, "/part-") {
			text, err := hdfs.ReadFile(s.ctx, fs, f.Path, 1<<28)
			if err != nil {
				s.Fatal(err)
			}
			b.Write(text)
		}
	}
	return b.String()
}

// putHDFS writes a file to HDFS in 1 MiB blocks, distributed over the machines.
func (s *fixture) putHDFS(name, text string) {
	s.Helper()
	local := filepath.Join(s.dir, "put")
	if err := os.WriteFile(local, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	if err := s.testbed.HDFS.Load(s.ctx, local, name, 1<<20, 1, 2, 3); err != nil {
		s.Fatal(err)
	}
}

// imagePath returns the path of a test image.
func (s *fixture) imagePath(name string) string {
	s.Helper()
	p := s.testbed.File.Images[name]
	if p == "" {
		s.Fatalf("the test bed has no image %q", name)
	}
	return p
}

// awaitClean waits until the machines have only the leftovers that existed when the test began:
// attempts of earlier tests that failed are retained (keep_failed).
func (s *fixture) awaitClean(limit time.Duration) {
	s.Helper()
	s.waitUntil(limit, "machines without leftovers", func() error {
		for _, list := range []func(context.Context, int) ([]string, error){s.cluster.Folders, s.cluster.Leftovers} {
			for k := range s.testbed.Nodes {
				left, err := list(s.ctx, k+1)
				if err != nil {
					return err
				}
				left = slices.DeleteFunc(left, func(l string) bool { return s.initialLeftovers[fmt.Sprint(k, l)] })
				if len(left) > 0 {
					return fmt.Errorf("n%d has %s", k+1, strings.Join(left, "; "))
				}
			}
		}
		return nil
	})
}

// awaitLeft waits until a node has leftovers of all these kinds, which a task there now uses: the control of awaitClean.
func (s *fixture) awaitLeft(node string, kinds ...string) {
	s.Helper()
	s.waitUntil(time.Minute, fmt.Sprintf("what a task uses on %s", node), func() error {
		left, err := s.cluster.Leftovers(s.ctx, int(node[1]-'0'))
		for _, kind := range kinds {
			if err == nil && !slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(l, kind+" ") }) {
				err = fmt.Errorf("there is no %s: %s", kind, strings.Join(left, "; "))
			}
		}
		return err
	})
}

// statusReport is the part of `drover job status -json` that the tests need.
type statusReport struct {
	Job struct {
		State   string
		Message string
	}
	Stages []struct {
		FailedAttempts int `json:"failed_attempts"`
	}
	Counters    map[string]json.Number
	FailureTail string `json:"failure_tail"`
	FailedTask  string `json:"failed_task"`
	Preempted   struct {
		Suspends json.Number
		Lost     json.Number `json:"lost_cpu_ms"`
	}
}

func (s *fixture) jobStatus(job string) statusReport {
	s.Helper()
	var st statusReport
	if err := s.cluster.JSON(s.ctx, &st, "job", "status", "-json", job); err != nil {
		s.Fatal(err)
	}
	return st
}

// taskList is the part of `drover task status -json JOB` that the tests need.
type taskList struct {
	Tasks []struct {
		Stage    string
		Task     int
		State    string
		Attempts []attempt
	}
}

func (s *fixture) tasks(job string) taskList {
	s.Helper()
	var list taskList
	if err := s.cluster.JSON(s.ctx, &list, "task", "status", "-json", job); err != nil {
		s.Fatal(err)
	}
	return list
}

// awaitRunning waits until the programs of n tasks of a stage have begun and one of them runs. It returns the attempts
// that run.
func (s *fixture) awaitRunning(job string, stage, n int) (running []attempt) {
	s.Helper()
	s.waitUntil(3*time.Minute, fmt.Sprintf("%d running tasks of %s", n, job), func() error {
		begun, list := 0, s.tasks(job)
		running = nil
		for _, t := range list.Tasks {
			for _, a := range t.Attempts {
				if a.Key.Stage != stage {
					continue
				}
				switch a.Seen.Phase {
				case "PHASE_RUNNING":
					running = append(running, a)
					begun++
				case "PHASE_SUCCEEDED":
					begun++
				}
			}
		}
		if begun < n || len(running) == 0 {
			return fmt.Errorf("%d run, %d have begun: %+v", len(running), begun, list.Tasks)
		}
		return nil
	})
	return running
}

// waitJob waits for the end of a job and returns the result of `job wait`.
func (s *fixture) waitJob(job string) cluster.Result {
	s.Helper()
	return s.runDrover("job", "wait", job)
}

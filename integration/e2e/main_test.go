package e2e

import (
	"context"
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
	"github.com/drover-run/drover/integration/bed"
	"github.com/drover-run/drover/integration/cluster"
)

var drover = flag.String("drover", "../../bin/drover", "the binary under test")

// One cluster serves all tests of the package; they run one after the other,
// and the one that kills a machine is the last (file zz_…).
var (
	theBed *bed.Bed
	theCl  *cluster.Cluster
	skip   error
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
	theBed, skip = bed.FromEnv()
	if skip != nil {
		return m.Run(), nil
	}
	dir, err := os.MkdirTemp("", "drover-e2e-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	conf := cluster.Config{Bed: theBed, Drover: *drover, Dir: dir, Coordinator: []string{"-keep-logs", "25s"}}
	theCl, err = cluster.Start(ctx, conf)
	if theCl != nil {
		defer func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if e := theCl.Stop(ctx); e != nil && err == nil {
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
	r, err := theCl.Drover(ctx, "tenant", "apply", tenants)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// scene is one test's view of the cluster.
type scene struct {
	*testing.T
	cl  *cluster.Cluster
	bed *bed.Bed
	ctx context.Context
	dir string

	before map[string]bool // what lay on the machines when the test began
}

// begin skips without a bed; the test has limit for all it does.
func begin(t *testing.T, limit time.Duration) *scene {
	t.Helper()
	if skip != nil {
		t.Skip(skip)
	}
	if !probed {
		limit += 5 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	s := &scene{T: t, cl: theCl, bed: theBed, ctx: ctx, dir: t.TempDir(), before: map[string]bool{}}
	s.awaitLevels()
	for k := range s.bed.Nodes {
		left, err := s.cl.Leftovers(ctx, k+1)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range left {
			s.before[fmt.Sprint(k, l)] = true
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			s.logs()
		}
	})
	return s
}

// logs shows the ends of the daemons' logs beside a failure.
func (s *scene) logs() {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	s.Logf("coordinator:\n%s", last(s.cl.CoordinatorLog(), 30))
	for k, n := range s.bed.Nodes {
		if state, err := n.State(ctx); err == nil && state == "running" {
			s.Logf("node %d:\n%s", k+1, last(s.cl.NodeLog(ctx, k+1), 30))
		}
	}
}

func last(s string, n int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

// job writes a job file and gives its path.
func (s *scene) job(name, text string) string {
	s.Helper()
	path := filepath.Join(s.dir, name+".hcl")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	return path
}

// drover runs a client command.
func (s *scene) drover(args ...string) cluster.Result {
	s.Helper()
	r, err := s.cl.Drover(s.ctx, args...)
	if err != nil {
		s.Fatalf("drover %v: %v", args, err)
	}
	return r
}

// ok runs a client command that must succeed.
func (s *scene) ok(args ...string) cluster.Result {
	s.Helper()
	r := s.drover(args...)
	if err := r.Err(); err != nil {
		s.Fatal(err)
	}
	return r
}

// refused runs a client command that must be refused at once, on one line that
// holds all the words.
func (s *scene) refused(words []string, args ...string) {
	s.Helper()
	r := s.drover(args...)
	line := strings.TrimSpace(r.Stderr)
	if r.Code == 0 || r.Code == 1 {
		s.Errorf("drover %v: exit code %d, want a refusal\n%s%s", args, r.Code, r.Stdout, r.Stderr)
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

// until waits for a condition.
func (s *scene) until(limit time.Duration, what string, cond func() error) {
	s.Helper()
	if err := bed.WaitFor(s.ctx, limit, what, func(context.Context) error { return cond() }); err != nil {
		s.Fatal(err)
	}
}

// hdfs is a client of the bed's HDFS.
func (s *scene) hdfs() *client.Client {
	s.Helper()
	fs, err := client.New(client.Options{NameNodes: []string{s.bed.HDFS.NameNode}, User: "root"})
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { fs.Close() })
	return fs
}

// parts reads all result files below a folder of HDFS, in order of name.
func (s *scene) parts(dir string) string {
	s.Helper()
	fs := s.hdfs()
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

// put writes a file to HDFS in 1 MiB blocks, spread over the machines.
func (s *scene) put(name, text string) {
	s.Helper()
	local := filepath.Join(s.dir, "put")
	if err := os.WriteFile(local, []byte(text), 0o644); err != nil {
		s.Fatal(err)
	}
	if err := s.bed.HDFS.Load(s.ctx, local, name, 1<<20, 1, 2, 3); err != nil {
		s.Fatal(err)
	}
}

// image is the path of a test image.
func (s *scene) image(name string) string {
	s.Helper()
	p := s.bed.File.Images[name]
	if p == "" {
		s.Fatalf("the bed has no image %q", name)
	}
	return p
}

// clean waits until no task left anything on any machine but what was there when
// the test began: failed attempts of tests before are kept (keep_failed).
func (s *scene) clean(limit time.Duration) {
	s.Helper()
	s.until(limit, "machines without leftovers", func() error {
		for k := range s.bed.Nodes {
			left, err := s.cl.Leftovers(s.ctx, k+1)
			if err != nil {
				return err
			}
			left = slices.DeleteFunc(left, func(l string) bool { return s.before[fmt.Sprint(k, l)] })
			if len(left) > 0 {
				return fmt.Errorf("n%d has %s", k+1, strings.Join(left, "; "))
			}
		}
		return nil
	})
}

// status is a part of `drover job status -json`.
type status struct {
	Job struct {
		State   string
		Message string
	}
	Stages []struct {
		Name           string
		Tasks          int
		Running        int
		Done           int
		FailedAttempts int `json:"failed_attempts"`
	}
	Counters    map[string]string
	FailureTail string `json:"failure_tail"`
	FailedTask  string `json:"failed_task"`
	Preempted   struct {
		Suspends string
		Lost     string `json:"lost_cpu_ms"`
	}
}

func (s *scene) status(job string) status {
	s.Helper()
	var st status
	if err := s.cl.JSON(s.ctx, &st, "job", "status", "-json", job); err != nil {
		s.Fatal(err)
	}
	return st
}

// awaitRunning waits until n tasks of a stage run.
func (s *scene) awaitRunning(job string, stage, n int) {
	s.Helper()
	s.until(90*time.Second, fmt.Sprintf("%d running tasks of %s", n, job), func() error {
		st := s.status(job)
		if got := st.Stages[stage].Running; got < n {
			return fmt.Errorf("%d run, job is %s %s", got, st.Job.State, st.Job.Message)
		}
		return nil
	})
}

// waitJob follows a job to its end and gives the exit code.
func (s *scene) waitJob(job string) cluster.Result { s.Helper(); return s.drover("job", "wait", job) }

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/testbed"
	"github.com/drover-run/drover/internal/seed"
)

var (
	droverPath = flag.String("drover", "../../bin/drover", "the binary under test")
	faultCount = flag.Int("faults", 6, "faults to inject")
)

// Limits of a run. Machines are emulated and slow; what is lost is done again.
const (
	startLimit   = 12 * time.Minute
	perFault     = 6 * time.Minute
	jobLimit     = 15 * time.Minute
	acceptLimit  = 4 * time.Minute
	cleanLimit   = 4 * time.Minute
	shortestTime = 2 * time.Second // of a fault
	longestTime  = 25 * time.Second
)

// TestChaos injects faults, one at a time, while jobs run. Each job that was accepted ends
// with the output that a reference computes, each container has its limits whenever the
// machines are looked at, and at the end nothing is left on them. RAPID_SEED repeats the
// faults, though not the instants at which they meet the jobs.
func TestChaos(t *testing.T) {
	bed, err := testbed.FromEnv()
	if err != nil {
		t.Skip("not proved here: that accepted jobs survive faults of three coordinators and three machines; ", err)
	}
	s := seed.New(t)
	t.Logf("%d faults (-faults)", *faultCount)
	ctx, cancel := context.WithTimeout(context.Background(), startLimit+jobLimit+time.Duration(*faultCount)*perFault)
	t.Cleanup(cancel)
	c, err := cluster.Start(ctx, cluster.Config{Testbed: bed, Drover: *droverPath, Dir: t.TempDir(), Servers: 3,
		CoordinatorFlags: []string{"-keep-logs", "25s"}, OnStep: func(step string, took time.Duration) { t.Logf("%s: %s", step, took.Round(time.Second)) }})
	if c != nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			if err := c.Stop(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	h := &chaos{T: t, ctx: ctx, cluster: c, bed: bed, r: rand.New(rand.NewPCG(s, 0)), dir: t.TempDir()}
	t.Cleanup(func() {
		if t.Failed() {
			h.logDaemons()
		}
	})
	h.prepare()
	for i := range *faultCount {
		h.fault(i)
		if t.Failed() {
			return
		}
	}
	for _, j := range h.jobs {
		h.finish(j)
	}
	h.awaitClean()
	t.Logf("%d faults, %d jobs accepted, all done; %d suspensions", *faultCount, h.accepted, h.suspended)
}

// chaos is a run of the test.
type chaos struct {
	*testing.T
	ctx     context.Context
	cluster *cluster.Cluster
	bed     *testbed.Bed
	r       *rand.Rand
	dir     string
	counts  string // the reference's output

	jobs      []*job // accepted and not yet seen to end
	accepted  int
	suspended int
}

// job is a job that the cluster accepted.
type job struct {
	name  string
	stage string // whose tasks are suspended
	tasks int
	mr    bool
}

func (h *chaos) waitUntil(limit time.Duration, what string, cond func(context.Context) error) {
	h.Helper()
	if err := testbed.WaitFor(h.ctx, limit, what, cond); err != nil {
		h.Fatal(err)
	}
}

func (h *chaos) drover(args ...string) cluster.Result {
	h.Helper()
	r, err := h.cluster.Drover(h.ctx, args...)
	if err != nil {
		h.Fatal(err)
	}
	return r
}

// prepare makes tenant, input and reference, and waits for the machines' levels.
func (h *chaos) prepare() {
	h.Helper()
	tenants := h.write("tenants.hcl", "tenant \"chaos\" {\n  uid = 2001\n  hdfs_user = \"root\"\n}\n")
	if err := h.drover("tenant", "apply", tenants).Err(); err != nil {
		h.Fatal(err)
	}
	text := inputText(h.r, 3<<20)
	h.counts = wordCounts(text)
	if err := h.bed.HDFS.Load(h.ctx, h.write("input", text), "/chaos/input.txt", 1<<20, 1, 2, 3); err != nil {
		h.Fatal(err)
	}
	if err := h.cluster.AwaitLevels(h.ctx); err != nil {
		h.Fatal(err)
	}
}

func (h *chaos) write(name, text string) string {
	h.Helper()
	path := filepath.Join(h.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.Fatal(err)
	}
	return path
}

// fault injects a fault, submits jobs and suspends tasks during it, ends it, and waits
// until all machines are back.
func (h *chaos) fault(i int) {
	h.Helper()
	f := h.draw()
	length := shortestTime + time.Duration(h.r.Int64N(int64(longestTime-shortestTime)))
	h.Logf("fault %d: %s for %s", i, f.what, length.Round(time.Second))
	if err := f.begin(); err != nil {
		h.Fatalf("%s: %v", f.what, err)
	}
	end := time.NewTimer(length)
	h.submitMissing()
	h.suspendOrResume()
	select {
	case <-end.C:
	case <-h.ctx.Done():
	}
	if err := f.end(); err != nil {
		h.Fatalf("the end of: %s: %v", f.what, err)
	}
	h.waitUntil(acceptLimit, "an answer after: "+f.what, func(ctx context.Context) error {
		r, err := h.cluster.Drover(ctx, "status")
		return errors.Join(err, r.Err())
	})
	if err := h.cluster.AwaitNodes(h.ctx, len(h.bed.Nodes)); err != nil {
		h.Fatalf("after %s: %v", f.what, err)
	}
	h.checkLimits()
	h.collect()
}

// submitMissing keeps one job of each kind live.
func (h *chaos) submitMissing() {
	h.Helper()
	live := map[bool]bool{}
	for _, j := range h.jobs {
		live[j.mr] = true
	}
	if !live[true] {
		h.submit(&job{name: fmt.Sprint("count-", h.accepted), stage: "map", tasks: 3, mr: true}, wordCountJob)
	}
	if !live[false] {
		h.submit(&job{name: fmt.Sprint("group-", h.accepted), stage: "main", tasks: 2}, groupJob)
	}
}

// submit submits a job until it is accepted. A command that failed may have had its
// effect: then the job is there.
func (h *chaos) submit(j *job, text func(name, image string) string) {
	h.Helper()
	file := h.write(j.name+".hcl", text(j.name, h.bed.File.Images["busybox"]))
	h.waitUntil(acceptLimit, "acceptance of "+j.name, func(ctx context.Context) error {
		r, err := h.cluster.Drover(ctx, "job", "run", "-detach", file)
		if err != nil || r.ExitCode == 0 {
			return err
		}
		if _, e := h.state(ctx, j.name); e == nil {
			return nil
		}
		return r.Err()
	})
	h.jobs = append(h.jobs, j)
	h.accepted++
}

// suspendOrResume asks for a random level of a random task of each job. That it is
// refused, for example of a task that has not started, is no failure.
func (h *chaos) suspendOrResume() {
	h.Helper()
	for _, j := range h.jobs {
		task := fmt.Sprintf("%s/%d", j.stage, h.r.IntN(j.tasks))
		level := []string{"frozen", "swapped", "checkpointed"}[h.r.IntN(3)]
		args := []string{"task", "suspend", "-level", level, j.name, task}
		if h.r.IntN(3) == 0 {
			args = []string{"task", "resume", j.name, task}
		}
		ctx, cancel := context.WithTimeout(h.ctx, 30*time.Second) // its answer may be long in coming
		r, err := h.cluster.Drover(ctx, args...)
		cancel()
		if err == nil && r.ExitCode == 0 && args[1] == "suspend" {
			h.suspended++
		}
		h.Logf("  %s: code %d", strings.Join(args, " "), r.ExitCode)
	}
}

// state returns the state of a job.
func (h *chaos) state(ctx context.Context, name string) (string, error) {
	var st struct{ Job struct{ State string } }
	err := h.cluster.JSON(ctx, &st, "job", "status", "-json", name)
	return st.Job.State, err
}

// collect checks the jobs that have ended.
func (h *chaos) collect() {
	h.Helper()
	var live []*job
	for _, j := range h.jobs {
		state, err := h.state(h.ctx, j.name)
		switch {
		case err != nil:
			h.Fatalf("the job %s, which was accepted, is lost: %v", j.name, err)
		case state == "JOB_STATE_SUCCEEDED":
			h.checkOutput(j)
		case state == "JOB_STATE_FAILED" || state == "JOB_STATE_STOPPED":
			h.Errorf("%s is %s\n%s", j.name, state, h.drover("job", "status", j.name).Stdout)
		default:
			live = append(live, j)
		}
	}
	h.jobs = live
}

// finish resumes what is suspended and waits for the end of a job.
func (h *chaos) finish(j *job) {
	h.Helper()
	h.waitUntil(jobLimit, "the end of "+j.name, func(ctx context.Context) error {
		for i := range j.tasks {
			if _, err := h.cluster.Drover(ctx, "task", "resume", j.name, fmt.Sprintf("%s/%d", j.stage, i)); err != nil {
				return err
			}
		}
		state, err := h.state(ctx, j.name)
		if err == nil && state != "JOB_STATE_SUCCEEDED" {
			err = fmt.Errorf("it is %s", state)
		}
		return err
	})
	h.checkOutput(j)
}

// awaitClean waits until nothing is left on the machines.
func (h *chaos) awaitClean() {
	h.Helper()
	h.waitUntil(cleanLimit, "machines without leftovers", func(ctx context.Context) error {
		for k := range h.bed.Nodes {
			left, err := h.cluster.Leftovers(ctx, k+1)
			if err != nil {
				return err
			}
			if len(left) > 0 {
				return fmt.Errorf("n%d has %s", k+1, strings.Join(left, "; "))
			}
		}
		return nil
	})
}

func (h *chaos) logDaemons() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, v := range h.cluster.Servers() {
		h.Logf("%s:\n%s", v.ID, lastLines(v.Log(), 25))
	}
	for k, n := range h.bed.Nodes {
		if state, err := n.State(ctx); err == nil && state == "running" {
			h.Logf("n%d:\n%s", k+1, lastLines(h.cluster.NodeLog(ctx, k+1), 25))
		}
	}
}

func lastLines(s string, n int) string {
	l := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

// server draws a coordinator.
func (h *chaos) server() *cluster.Server {
	return h.cluster.Servers()[h.r.IntN(len(h.cluster.Servers()))]
}

func (h *chaos) pause(v *cluster.Server) injection {
	return injection{"the coordinator " + v.ID + " stands still", func() error { return v.Signal(syscall.SIGSTOP) }, func() error { return v.Signal(syscall.SIGCONT) }}
}

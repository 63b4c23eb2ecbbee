// Command demo implements `make run`: a real MapReduce job over real text in a real HDFS, in
// containers with enforced limits on three machines. It runs inside a test bed, starts a cluster
// with the given binary, and prints the job's status and summary, a comparison of the result with
// an independent count, the locality compared with the offline optimum and with a scheduler that
// ignores it, and the limits read back from the kernel. With -scenario it measures suspension or
// runs deadline jobs that preempt others instead.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/preempt"
	"github.com/drover-run/drover/integration/testbed"
)

func main() {
	drover := flag.String("drover", "bin/drover", "path of the drover binary")
	showLogs := flag.Bool("v", false, "print the daemons' logs at the end")
	var p options
	flag.StringVar(&p.scenario, "scenario", "wordcount", "wordcount; suspend: drover bench suspend compared with criu alone; preempt: deadline jobs on full machines; task: drover bench task on one machine")
	flag.IntVar(&p.runs, "runs", 1, "runs of each mode (preempt)")
	flag.StringVar(&p.modes, "modes", "alone,suspend,kill,none", "modes (preempt)")
	flag.IntVar(&p.jobs, "jobs", 10, "number of deadline jobs (preempt)")
	flag.IntVar(&p.holdMiB, "hold", 100, "MiB of memory of the task, 16 or more (suspend)")
	flag.IntVar(&p.rounds, "rounds", 3, "rounds of each level but frozen, and of criu alone (suspend); of both sides (task)")
	flag.IntVar(&p.tasks, "tasks", 10, "containers of each side in a round (task)")
	flag.StringVar(&p.levels, "levels", "frozen,swapped,checkpointed", "levels to measure (suspend)")
	flag.StringVar(&p.out, "json", "", "file for the results (suspend, preempt)")
	limit := flag.Duration("limit", 15*time.Minute, "time limit")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if err := run(ctx, *drover, *showLogs, p); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

// options are the command-line options of a scenario.
type options struct {
	scenario, out, modes        string
	runs, jobs, holdMiB, rounds int
	tasks                       int
	levels                      string
}

// stopwatch prints messages with the elapsed time.
type stopwatch struct{ start time.Time }

func (c stopwatch) logf(format string, args ...any) {
	fmt.Printf("[%6.1fs] %s\n", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, drover string, showLogs bool, p options) (err error) {
	b, err := testbed.FromEnv()
	if err != nil {
		return err
	}
	if p.scenario == "wordcount" && len(b.File.Books) == 0 || p.scenario != "task" && b.HDFS == nil {
		return fmt.Errorf("the test bed has no text or no HDFS: run it with `testbed run -hdfs -books 32`")
	}
	dir, err := os.MkdirTemp("", "drover-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := stopwatch{time.Now()}
	c.logf("starting the coordinator and %d node daemons", len(b.Nodes))
	var node []string
	if p.scenario == "wordcount" || p.scenario == "task" {
		node = []string{"-probe=false"}
	}
	cl, err := cluster.Start(ctx, cluster.Config{Testbed: b, Drover: drover, Dir: dir, CoordinatorFlags: cluster.OperatorFlags(), NodeFlags: node, OnStep: func(step string, took time.Duration) {
		c.logf("%s: %.1f s", step, took.Seconds())
	}})
	if cl != nil {
		defer func() {
			stopCtx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if e := cl.Stop(stopCtx); err == nil {
				err = e
			}
			if showLogs || err != nil {
				printLogs(stopCtx, cl, b)
			}
		}()
	}
	if err != nil {
		return err
	}
	if err := applyTenant(ctx, cl, dir); err != nil {
		return err
	}
	if err := runShown(ctx, cl, "node", "list"); err != nil {
		return err
	}
	s := &demo{stopwatch: c, testbed: b, cluster: cl, dir: dir, image: b.File.Images["busybox"]}
	switch p.scenario {
	case "wordcount":
		return s.runWordCount(ctx)
	case "suspend", "preempt":
		modes, err := parseModes(p.modes, p.runs)
		if err != nil {
			return err
		}
		if p.scenario == "suspend" || slices.Contains(modes, preempt.Suspend) {
			if err := s.awaitLevels(ctx); err != nil {
				return err
			}
		}
		if p.scenario == "suspend" {
			return s.measureSuspend(ctx, p.holdMiB, p.rounds, p.levels, p.out)
		}
		return s.runPreempt(ctx, drover, modes, p.jobs, p.out)
	case "task":
		return s.measureTask(ctx, p.tasks, p.rounds)
	default:
		return fmt.Errorf("-scenario %q: use wordcount, suspend, preempt or task", p.scenario)
	}
}

// applyTenant creates the demo's tenant. HDFS belongs to root here.
func applyTenant(ctx context.Context, cl *cluster.Cluster, dir string) error {
	file := filepath.Join(dir, "tenants.hcl")
	const text = "tenant \"analytics\" {\n  weight = 1\n  uid = 2001\n  hdfs_user = \"root\"\n}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return runShown(ctx, cl, "tenant", "apply", file)
}

// runShown runs a client command and shows it with its output.
func runShown(ctx context.Context, cl *cluster.Cluster, args ...string) error {
	fmt.Printf("\n$ drover %s\n", joinArgs(args))
	r, err := cl.DroverTo(ctx, os.Stdout, os.Stderr, args...)
	fmt.Println()
	if err != nil {
		return err
	}
	return r.Err()
}

func joinArgs(args []string) string {
	s := ""
	for i, a := range args {
		if i > 0 {
			s += " "
		}
		s += filepath.Base(a)
	}
	return s
}

func printLogs(ctx context.Context, cl *cluster.Cluster, b *testbed.Bed) {
	fmt.Printf("--- coordinator\n%s\n", cl.CoordinatorLog())
	for k := range b.Nodes {
		fmt.Printf("--- node %d\n%s\n", k+1, cl.NodeLog(ctx, k+1))
	}
}

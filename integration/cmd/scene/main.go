// Command scene is `make run`: a real MapReduce job over real text in a real
// HDFS, in containers with enforced limits on three machines. It runs inside a
// test bed, starts a cluster of the given binary, and prints what happened:
// the job's own view and summary, the result held against an independent
// count, locality beside the offline optimum and beside a run that ignores
// it, and the limits as the kernel holds them. With -play it measures suspension
// instead, or plays deadline jobs that take room back.
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

	"github.com/drover-run/drover/integration/bed"
	"github.com/drover-run/drover/integration/cluster"
	"github.com/drover-run/drover/integration/preempt"
)

func main() {
	drover := flag.String("drover", "bin/drover", "the binary")
	keep := flag.Bool("v", false, "show the daemons' logs at the end")
	var p play
	flag.StringVar(&p.what, "play", "wordcount", "wordcount; suspend: drover bench suspend beside criu alone; preempt: deadline jobs on full machines")
	flag.IntVar(&p.runs, "runs", 1, "of each mode of preempt")
	flag.StringVar(&p.modes, "modes", "alone,suspend,kill,none", "of preempt")
	flag.IntVar(&p.jobs, "jobs", 10, "with a deadline, of preempt")
	flag.IntVar(&p.hold, "hold", 100, "MiB that the task of suspend holds, 16 or more")
	flag.IntVar(&p.rounds, "rounds", 3, "of each level but frozen, and of criu alone, of suspend")
	flag.StringVar(&p.levels, "levels", "frozen,swapped,checkpointed", "that suspend measures")
	flag.StringVar(&p.out, "json", "", "file for the results of suspend and preempt")
	limit := flag.Duration("limit", 15*time.Minute, "for all of it")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if err := run(ctx, *drover, *keep, p); err != nil {
		fmt.Fprintln(os.Stderr, "scene:", err)
		os.Exit(1)
	}
}

// play is what is played.
type play struct {
	what, out, modes         string
	runs, jobs, hold, rounds int
	levels                   string
}

// steps with what they took, for the person who watches.
type clock struct{ start time.Time }

func (c clock) say(format string, args ...any) {
	fmt.Printf("[%6.1fs] %s\n", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, drover string, keep bool, p play) (err error) {
	b, err := bed.FromEnv()
	if err != nil {
		return err
	}
	if p.what == "wordcount" && len(b.File.Books) == 0 || b.HDFS == nil {
		return fmt.Errorf("the bed has no text or no HDFS: run it with `bed run -hdfs -books 32`")
	}
	dir, err := os.MkdirTemp("", "drover-scene-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	c := clock{time.Now()}
	c.say("starting the coordinator and %d node daemons", len(b.Nodes))
	var node []string
	if p.what == "wordcount" {
		node = []string{"-probe=false"}
	}
	cl, err := cluster.Start(ctx, cluster.Config{Bed: b, Drover: drover, Dir: dir, Node: node, Progress: func(step string, took time.Duration) {
		c.say("%s: %.1f s", step, took.Seconds())
	}})
	if cl != nil {
		defer func() {
			stopCtx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if e := cl.Stop(stopCtx); err == nil {
				err = e
			}
			if keep || err != nil {
				printLogs(stopCtx, cl, b)
			}
		}()
	}
	if err != nil {
		return err
	}
	if err := tenant(ctx, cl, dir); err != nil {
		return err
	}
	if err := show(ctx, cl, "node", "list"); err != nil {
		return err
	}
	s := &scene{clock: c, bed: b, cl: cl, dir: dir, image: b.File.Images["busybox"]}
	switch p.what {
	case "wordcount":
		return s.play(ctx)
	case "suspend", "preempt":
		modes, err := modesOf(p.modes, p.runs)
		if err != nil {
			return err
		}
		if p.what == "suspend" || slices.Contains(modes, preempt.Suspend) {
			if err := s.levels(ctx); err != nil {
				return err
			}
		}
		if p.what == "suspend" {
			return s.measure(ctx, p.hold, p.rounds, p.levels, p.out)
		}
		return s.takeBack(ctx, drover, modes, p.jobs, p.out)
	default:
		return fmt.Errorf("-play %q: use wordcount, suspend or preempt", p.what)
	}
}

// tenant makes the tenant of the scene: HDFS belongs to root here.
func tenant(ctx context.Context, cl *cluster.Cluster, dir string) error {
	file := filepath.Join(dir, "tenants.hcl")
	const text = "tenant \"analytics\" {\n  weight = 1\n  uid = 2001\n  hdfs_user = \"root\"\n}\n"
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return err
	}
	return show(ctx, cl, "tenant", "apply", file)
}

// show runs a client command for the person who watches.
func show(ctx context.Context, cl *cluster.Cluster, args ...string) error {
	fmt.Printf("\n$ drover %s\n", join(args))
	r, err := cl.DroverTo(ctx, os.Stdout, os.Stderr, args...)
	fmt.Println()
	if err != nil {
		return err
	}
	return r.Err()
}

func join(args []string) string {
	s := ""
	for i, a := range args {
		if i > 0 {
			s += " "
		}
		s += filepath.Base(a)
	}
	return s
}

func printLogs(ctx context.Context, cl *cluster.Cluster, b *bed.Bed) {
	fmt.Printf("--- coordinator\n%s\n", cl.CoordinatorLog())
	for k := range b.Nodes {
		fmt.Printf("--- node %d\n%s\n", k+1, cl.NodeLog(ctx, k+1))
	}
}

// Command fuzz runs every fuzz target of the repository, some of them, or one:
//
//	fuzz -time 10s [TARGET...]             Go's engine, which looks for inputs that reach new code
//	fuzz -inputs 10000000 [TARGET...]      that many inputs: those of the engine, if -time is not 0,
//	                                       then mutations of seeds and corpora (internal/fuzztest)
//	fuzz -inputs 10000000 -report          only the table of what was done
//
// After each part, of some seconds, it records the work in the file of -ledger, and continues there
// when it is started again; to start over, remove that file. It prints a table and ends with an
// error if a target failed or had fewer inputs than requested.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var o options
	flag.DurationVar(&o.guided, "time", 0, "how long Go's engine runs for each target")
	flag.Int64Var(&o.inputs, "inputs", 0, "inputs of each target")
	flag.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "targets at once, each on one processor")
	flag.DurationVar(&o.limit, "limit", 0, "longest time; default: until all is done")
	flag.StringVar(&o.out, "out", "out/fuzz", "folder of the test programs")
	file := flag.String("ledger", "out/fuzz/ledger.jsonl", "file of what was done")
	report := flag.Bool("report", false, "run nothing")
	flag.Parse()
	if o.limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.limit)
		defer cancel()
	}
	if err := run(ctx, &o, *file, *report, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "fuzz:", err)
		os.Exit(1)
	}
}

// options are the options of the command line.
type options struct {
	guided   time.Duration
	inputs   int64
	parallel int
	limit    time.Duration
	out      string
}

func run(ctx context.Context, o *options, file string, report bool, names []string) error {
	if o.parallel < 1 || o.inputs < 0 || o.guided < 0 || o.inputs == 0 && o.guided == 0 {
		return fmt.Errorf("give -inputs or -time, and at least -parallel 1")
	}
	targets, err := findTargets(".", names)
	if err != nil {
		return err
	}
	commit, err := output(ctx, "git", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return err
	}
	l, err := openLedger(file, commit)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		l.forget(targets)
	}
	for _, t := range targets {
		l.load(t)
	}
	if !report {
		if err := runAll(ctx, o, l, targets); err != nil {
			return err
		}
	}
	return printTable(os.Stdout, targets, o.inputs)
}

package harness

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/drover-run/drover/mapreduce"
)

// Main runs the task whose spec is the only argument and returns the exit
// code of the process, one of mapreduce.Exit…. It takes SIGTERM and SIGINT as
// the order to stop, and writes to stdout and stderr what the program does.
// With "probe FILE BYTES" it is the program of a node's probe instead.
func Main(args []string) int {
	if len(args) == 3 && args[0] == "probe" {
		return probe(args[1], args[2])
	}
	if len(args) != 1 {
		fmt.Fprintln(os.Stderr, "usage: harness SPEC.json (it is started by the node daemon)")
		return mapreduce.ExitSpec
	}
	spec, err := mapreduce.ReadSpec(args[0])
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness:", err)
		return mapreduce.ExitSpec
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// A log that nobody reads must not end us; a handler, unlike ignoring, is
	// not inherited by the program.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	return run(ctx, spec, os.Stdout, os.Stderr)
}

// run does the task and writes its result.
func run(ctx context.Context, spec *mapreduce.TaskSpec, stdout *os.File, log io.Writer) int {
	t := newTask(ctx, spec, stdout, log)
	err := t.reserve()
	if err == nil {
		err = t.do()
	}
	r := t.result(err)
	if e := t.deliver(r); e != nil {
		fmt.Fprintf(log, "harness: writing the result: %v\n", e)
		if r.Class == mapreduce.ClassOK {
			return classOf(e, spec.Kind).ExitCode()
		}
	}
	if r.Class != mapreduce.ClassOK {
		fmt.Fprintf(log, "harness: %s: %s\n", r.Class, r.Error)
	}
	return r.Class.ExitCode()
}

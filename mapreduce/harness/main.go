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

// Main executes the task whose spec is the only argument and returns the exit code of the process,
// one of mapreduce.Exit…. SIGTERM and SIGINT stop the task. stdout and stderr are the log of the
// program. With the arguments "probe FILE BYTES" Main runs a node's probe instead. With WithSecrets
// it replaces itself by another program.
func Main(args []string) int {
	if len(args) == 3 && args[0] == "probe" {
		return runProbe(args[1], args[2])
	}
	if len(args) >= 3 && args[0] == WithSecrets {
		return execWithSecrets(args[1], args[2:])
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
	// A log without a reader must not end the harness. Unlike an ignored
	// signal, a handled one is not inherited by the program.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	return Run(ctx, spec, os.Stdout, os.Stderr)
}

// Run executes the task, writes its result and returns the exit code. The log of the program is
// written to stdout and log. Run ends early when the context ends.
func Run(ctx context.Context, spec *mapreduce.TaskSpec, stdout *os.File, log io.Writer) int {
	t := newTask(ctx, spec, stdout, log)
	err := t.reserveResultSpace()
	if err == nil {
		err = t.execute()
	}
	r := t.buildResult(err)
	if e := t.writeResult(r); e != nil {
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

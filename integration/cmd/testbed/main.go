// Command testbed builds and runs Drover's test bed: virtual machines with containerd and a real
// Apache HDFS in one private network, and a command beside them. Run it without arguments for the
// list of its verbs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/drover-run/drover/integration/internal/run"
)

// verb is a subcommand.
type verb struct {
	name, args, help string
	do               func(ctx context.Context, args []string) (exit int, err error)
}

func verbs() []verb {
	return []verb{
		{"run", "[flags] -- CMD...", "run CMD beside machines and, with -hdfs, a real HDFS", runVerb},
		{"up", "[flags]", "leave a test bed running in the background (flags of run)", upVerb},
		{"down", "", "end the test bed", downVerb},
		{"status", "", "show the running test bed", statusVerb},
		{"enter", "[-- CMD...]", "run CMD (default: a shell) on the host side of the running test bed", enterVerb},
		{"shell", "[-node K]", "a shell on machine K", shellVerb},
		{"exec", "[-node K] -- CMD...", "run CMD on machine K", execVerb},
		{"put", "[-node K] LOCAL REMOTE", "copy a file to machine K", putVerb},
		{"get", "[-node K] REMOTE LOCAL", "copy a file from machine K", getVerb},
		{"build", "[flags]", "fill the cache ahead of time", buildVerb},
		{"books", "[-mb 32]", "prepare real text in the cache's folder books and print the file names", booksVerb},
		{"deps", "[-install]", "list the packages that the test bed needs and the host lacks", depsVerb},
		{"hdfs", "[flags] -- CMD...", "run CMD beside a real HDFS on loopback (127.0.0.10 to .13), no machines", hdfsVerb},
		{"control", "OPERATION [N]", "stop, start, kill, pause or partition a part of the running test bed (no arguments: list)", controlVerb},
		{"load", "[flags] LOCAL REMOTE", "copy a file into the test bed's HDFS with its blocks on chosen DataNodes", loadVerb},
	}
}

// errUsage is returned for a wrong command line after the usage was printed.
var errUsage = errors.New("usage")

// The kernel sends a child's parent-death signal when the thread that created it ends, so the main
// goroutine stays on the main thread, which lives longest.
func init() { runtime.LockOSThread() }

func main() {
	run.Stage()
	do := func() (int, error) { return dispatch(os.Args[1:]) }
	if os.Getenv(envServe) != "" {
		do = serve
	}
	code, err := do()
	if err != nil && !errors.Is(err, errUsage) && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil && code == 0 {
		code = 1
	}
	os.Exit(code)
}

func dispatch(args []string) (int, error) {
	if len(args) > 0 {
		for _, v := range verbs() {
			if v.name == args[0] {
				ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
				defer stop()
				return v.do(ctx, args[1:])
			}
		}
		fmt.Fprintf(os.Stderr, "testbed: unknown verb %q\n", args[0])
	}
	fmt.Fprintln(os.Stderr, "usage: testbed VERB [flags] ...   (testbed VERB -h shows the flags)")
	for _, v := range verbs() {
		fmt.Fprintf(os.Stderr, "  %-8s %-24s %s\n", v.name, v.args, v.help)
	}
	return 2, errUsage
}

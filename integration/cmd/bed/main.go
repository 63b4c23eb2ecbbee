// Command bed builds and runs Drover's test bed: virtual machines with containerd and a real Apache HDFS on one
// private network, and a command beside them. Run it without arguments for the list of its verbs.
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

// verb is one word of the command line.
type verb struct {
	name, args, help string
	do               func(ctx context.Context, args []string) (exit int, err error)
}

func verbs() []verb {
	return []verb{
		{"run", "[flags] -- CMD...", "run CMD beside machines and, with -hdfs, a real HDFS", runVerb},
		{"up", "[flags]", "leave a bed running in the background (flags of run)", upVerb},
		{"down", "", "end it", downVerb},
		{"status", "", "show what is up", statusVerb},
		{"enter", "[-- CMD...]", "run CMD (default: a shell) on the host side of the bed that is up", enterVerb},
		{"shell", "[-node K]", "a shell on machine K", shellVerb},
		{"exec", "[-node K] -- CMD...", "run CMD on machine K", execVerb},
		{"put", "[-node K] LOCAL REMOTE", "copy a file to machine K", putVerb},
		{"get", "[-node K] REMOTE LOCAL", "copy a file from machine K", getVerb},
		{"build", "[flags]", "make everything slow ahead of time", buildVerb},
		{"books", "[-mb 32]", "prepare real text in the cache's folder books, and print the files' names", booksVerb},
		{"deps", "[-install]", "list the packages that the bed needs and this host lacks", depsVerb},
		{"hdfs", "[flags] -- CMD...", "run CMD beside a real HDFS on loopback (127.0.0.10 to .13), no machines", hdfsVerb},
		{"control", "OPERATION [N]", "stop, start, kill, pause, cut off a part of the running bed (no arguments: list)", controlVerb},
		{"load", "[flags] LOCAL REMOTE", "copy a file into the bed's HDFS, its blocks on chosen DataNodes", loadVerb},
	}
}

// errUsage is a wrong command line; the user has been told already.
var errUsage = errors.New("usage")

// The kernel ties the death signal of a child to the thread that made it; the main thread lives longest.
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
		fmt.Fprintf(os.Stderr, "bed: unknown verb %q\n", args[0])
	}
	fmt.Fprintln(os.Stderr, "usage: bed VERB [flags] ...   (bed VERB -h shows the flags)")
	for _, v := range verbs() {
		fmt.Fprintf(os.Stderr, "  %-8s %-24s %s\n", v.name, v.args, v.help)
	}
	return 2, errUsage
}

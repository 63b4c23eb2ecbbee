// Command drover is Drover: coordinator, node daemon and command line in one
// static binary.
//
// There is one file per command. The programs that Drover starts inside and beside tasks
// (harness, helper, logger) are selected by their first argument before the command tree
// is built, because they start once per task.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/drover-run/drover/internal/plain"
)

func main() {
	if len(os.Args) > 1 {
		if inner, ok := helperPrograms[os.Args[1]]; ok {
			os.Exit(inner(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends what the first cannot, such as a read of a terminal or pipe
	out := &output{w: os.Stdout}
	err := newApp(os.Stdin, out, os.Stderr).RunContext(ctx, os.Args)
	if err == nil {
		err = out.lost()
	}
	stop()
	if err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "drover: "+plain.Text(text))
		}
		os.Exit(exitCode(err))
	}
}

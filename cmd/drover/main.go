// Command drover is Drover: coordinator, node daemon and command line in one
// static binary.
//
// One file holds one verb. The programs that Drover starts itself inside and
// beside tasks (harness, helper, logger) are asked for by their first argument
// before the command tree is built, because they start once per task.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) > 1 {
		if inner, ok := innerPrograms[os.Args[1]]; ok {
			os.Exit(inner(os.Args[2:]))
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newApp(os.Stdin, os.Stdout, os.Stderr).RunContext(ctx, os.Args)
	stop()
	if err != nil {
		if text := err.Error(); text != "" {
			fmt.Fprintln(os.Stderr, "drover: "+text)
		}
		os.Exit(exitCode(err))
	}
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/node"
)

// testNodeProgram is the name under which the test binary is a node daemon with the process driver and
// no coordinator beside it: DATA SOCKET are its arguments.
const testNodeProgram = "drover-test-node"

func testNodeMain() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	data, socket := os.Args[1], os.Args[2]
	app := newApp(strings.NewReader(""), os.Stdout, os.Stderr)
	app.Commands = []*cli.Command{{Name: "test-node", Flags: devCommand().Flags, Action: func(c *cli.Context) error {
		up := make(chan struct{})
		close(up)
		return runDevNode(c.Context, c, data, socket, up, func(*node.Config) {})
	}}}
	if err := app.RunContext(ctx, []string{testNodeProgram, "test-node"}); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
}

// startProcessNode runs a node daemon with the process driver against a socket, as `drover dev` does, until the
// returned function is called.
func startProcessNode(t *testing.T, data, socket string) (stop func()) {
	t.Helper()
	cmd, log := launch(t, testNodeProgram, data, socket)
	waitFor(t, "the node is ready", func() bool { return strings.Contains(log.String(), "ready: ") }, log.String)
	return func() {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("the node: %v\n%s", err, log)
		}
	}
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/node"
)

// testNodeProgram is the name under which the test binary is a node daemon with the process driver and
// no coordinator beside it. It has the flags of `drover node`, of which those about containers have no effect.
const testNodeProgram = "drover-test-node"

func testNodeMain() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	app := newApp(strings.NewReader(""), os.Stdout, os.Stderr)
	app.Commands = []*cli.Command{{Name: "test-node", Flags: nodeCommand().Flags, Action: runTestNode}}
	if err := app.RunContext(ctx, append([]string{testNodeProgram, "test-node"}, os.Args[1:]...)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(exitFailed)
	}
}

func runTestNode(c *cli.Context) error {
	own := node.Config{Log: newDevLogger(c)}
	var certs *pki.Member
	if files := tlsFiles(c); files.Cert != "" {
		var err error
		if certs, err = files.Open(pki.KindNode); err != nil {
			return err
		}
	}
	if err := errors.Join(setNodeServer(c, certs, &own), setNodeCoordinator(c, certs, &own)); err != nil {
		return err
	}
	up := make(chan struct{})
	close(up)
	return runDevNode(c.Context, c, c.String("data"), "", up, func(cfg *node.Config) {
		cfg.Coordinator, cfg.Certificate, cfg.FetchCRL, cfg.Listener, cfg.NoSync = own.Coordinator, own.Certificate, own.FetchCRL, own.Listener, true
		cfg.Info.Name = cmp.Or(c.String("name"), cfg.Info.Name)
	})
}

// startProcessNode runs a node daemon with the process driver against a socket, as `drover dev` does, until the
// returned function is called.
func startProcessNode(t *testing.T, data, socket string) (stop func()) {
	t.Helper()
	return launchNode(t, "-data", data, "-coordinator", "unix://"+socket)
}

// launchNode runs a node daemon with the process driver until the returned function is called.
func launchNode(t *testing.T, args ...string) (stop func()) {
	t.Helper()
	cmd, log := launch(t, testNodeProgram, args...)
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

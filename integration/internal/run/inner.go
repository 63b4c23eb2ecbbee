package run

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/internal/control"
	"github.com/drover-run/drover/integration/testbed"
)

// termLimit limits the end of the command after SIGTERM.
const termLimit = 10 * time.Second

// inner is a running test bed, seen from inside its namespaces.
type inner struct {
	config   *Config
	file     *testbed.File
	hdfs     *hdfs
	machines []*machine
	stopped  chan struct{} // closed when the test bed is told to end
	stopOnce sync.Once
}

// innerMain starts the test bed, runs the command and returns its exit code. When it ends,
// everything ends.
func innerMain(ctx context.Context) int {
	ctx, cancel := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer cancel()
	// Ctrl-C is for the command to handle. The signal is caught and not ignored, because the
	// command would inherit an ignored signal.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT)
	c, err := configFromEnv()
	if err == nil {
		b := &inner{config: c, file: c.layout(), stopped: make(chan struct{})}
		var code int
		if code, err = b.run(ctx); err == nil {
			return code
		}
	}
	fmt.Fprintf(os.Stderr, "%v\n", err)
	return exitTestbedFailed
}

// run works in five steps: network; HDFS and machines in parallel; control socket; test bed file;
// command.
func (b *inner) run(ctx context.Context) (int, error) {
	start := time.Now()
	if b.config.Host {
		stop, err := b.serveHost(ctx)
		if err != nil {
			return 0, err
		}
		defer stop()
	} else if err := b.makeNetwork(ctx); err != nil {
		return 0, err
	}
	defer b.stopAll()
	if err := b.startAll(ctx); err != nil {
		return 0, err
	}
	listener, err := net.Listen("unix", b.file.Control)
	if err != nil {
		return 0, fmt.Errorf("testbed: control socket: %w", err)
	}
	cctx, stopControl := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- control.Serve(cctx, listener, b.handle) }()
	defer func() {
		stopControl()
		<-served
	}()
	path := filepath.Join(b.config.Dir, "testbed.json")
	if err := b.file.Write(path); err != nil {
		return 0, err
	}
	fmt.Fprintf(os.Stderr, "testbed: %s up after %.1f s\n", b.describeContents(), time.Since(start).Seconds())
	if b.config.Publish != "" {
		if err := b.file.Write(b.config.Publish); err != nil {
			return 0, err
		}
		defer os.Remove(b.config.Publish)
	}
	if len(b.config.Command) == 0 {
		select {
		case <-ctx.Done():
		case <-b.stopped:
		}
		return 0, nil
	}
	return b.runCommand(ctx, path)
}

func (b *inner) describeContents() string {
	var parts []string
	if n := len(b.file.Nodes); n > 0 {
		parts = append(parts, fmt.Sprintf("machines: %d", n))
	}
	if h := b.file.HDFS; h != nil {
		parts = append(parts, fmt.Sprintf("HDFS with DataNodes: %d", len(h.DataNodes)))
	}
	return strings.Join(parts, ", ")
}

// startAll starts HDFS and all machines in parallel and waits until all are up.
func (b *inner) startAll(ctx context.Context) error {
	if f := b.file.HDFS; f != nil {
		h, err := startHDFS(b.config, b.config.hdfsDir(), f, b.file.Nodes)
		if err != nil {
			return err
		}
		b.hdfs = h
	}
	for k := range b.file.Nodes {
		if b.file.Nodes[k].IsHost {
			continue
		}
		m, err := startMachine(b.config, b.file.Nodes[k], k+1)
		if err != nil {
			return err
		}
		b.machines = append(b.machines, m)
	}
	errs := make([]error, len(b.machines)+1)
	var wg sync.WaitGroup
	for i, m := range b.machines {
		wg.Go(func() { errs[i] = m.bringUp(ctx) })
	}
	if b.hdfs != nil {
		errs[len(b.machines)] = b.hdfs.awaitReady(ctx)
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (b *inner) stopAll() {
	for _, m := range b.machines {
		m.stop()
	}
	if b.hdfs != nil {
		b.hdfs.stop()
	}
}

// runCommand runs the user's command. SIGTERM or a stop request ends it with SIGTERM, then SIGKILL.
func (b *inner) runCommand(ctx context.Context, file string) (int, error) {
	a := b.config.Command
	cctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends when this function does
		select {
		case <-b.stopped:
			cancel()
		case <-cctx.Done():
		}
	}()
	cmd := exec.CommandContext(cctx, a[0], a[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), testbed.EnvFile+"="+file)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // needed only without namespaces
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = termLimit
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return 0, fmt.Errorf("testbed: %w", err)
	}
	if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/run"
	"github.com/drover-run/drover/integration/testbed"
)

// envServe makes this program the background process of `testbed up`; its value is the
// configuration.
const envServe = "DROVER_TESTBED_SERVE"

const (
	upLimit   = 5 * time.Minute
	downLimit = 30 * time.Second
)

// upVerb starts a test bed in the background. The background process holds the lock "up" for its
// lifetime, so a test bed is up exactly if the lock is taken, however the previous one ended.
func upVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("up")
	b := addTestbedFlags(f)
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	if err := b.check(); err != nil {
		return 2, err
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	if isUp(c) {
		fmt.Fprintln(os.Stderr, "a test bed is up already; testbed status shows it, testbed down ends it")
		return 0, nil
	}
	config, inUse, err := b.prepare(ctx, c)
	if err != nil {
		return 1, err
	}
	defer inUse.Close()
	config.Publish = upFile(c)
	if err := os.Remove(upFile(c)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 1, err
	}
	if err := startServe(ctx, c, config); err != nil {
		return 1, err
	}
	return statusVerb(ctx, nil)
}

// startServe starts the background process in its own session and waits for its test bed file.
func startServe(ctx context.Context, c cache.Dir, config *run.Config) error {
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	self, err := durableProgram(c)
	if err != nil {
		return err
	}
	log, err := os.Create(c.Path("up.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envServe+"="+string(b))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // the process outlives this one on purpose
	what := "the test bed"
	return testbed.WaitFor(ctx, upLimit, what, func(context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			b, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the test bed ended early (%v):\n%s", err, strings.TrimSpace(string(b)))
		default:
		}
		_, err := os.Stat(config.Publish)
		return err
	})
}

// durableProgram returns the path of this program, copied if necessary: `go run` removes its
// program when it ends.
func durableProgram(c cache.Dir) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if !strings.Contains(self, "/go-build") {
		return self, nil
	}
	b, err := os.ReadFile(self)
	if err != nil {
		return "", err
	}
	path := c.Path("testbed")
	part := path + ".part"
	if err := os.WriteFile(part, b, 0o755); err != nil {
		return "", err
	}
	return path, os.Rename(part, path)
}

// serve runs the background process of upVerb.
func serve() (int, error) {
	var config run.Config
	if err := json.Unmarshal([]byte(os.Getenv(envServe)), &config); err != nil {
		return 1, fmt.Errorf("testbed: %s: %w", envServe, err)
	}
	os.Unsetenv(envServe)
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	lock, err := c.Lock("up", 0)
	if err != nil {
		return 1, errors.New("another test bed is starting")
	}
	defer lock.Close()
	for _, path := range config.Entries() { // the foreground process holds them only until it ends
		e, err := os.Open(path)
		if err == nil {
			err = syscall.Flock(int(e.Fd()), syscall.LOCK_SH)
			defer e.Close()
		}
		if err != nil {
			return 1, err
		}
	}
	defer os.Remove(config.Publish)
	return run.Run(&config, c)
}

// isUp reports whether a background process is running.
func isUp(c cache.Dir) bool {
	lock, err := c.Lock("up", 0)
	if err != nil {
		return true
	}
	lock.Close()
	return false
}

func downVerb(ctx context.Context, args []string) (int, error) {
	if len(args) > 0 {
		return 2, errors.New("testbed down: takes no arguments")
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	if !isUp(c) {
		fmt.Fprintln(os.Stderr, "no test bed is up")
		return 0, nil
	}
	b, err := testbed.Open(upFile(c))
	if err != nil {
		return 1, fmt.Errorf("the test bed is still starting, or its file is gone: %w", err)
	}
	if err := b.Stop(ctx); err != nil {
		return 1, err
	}
	err = testbed.WaitFor(ctx, downLimit, "the end of the test bed", func(context.Context) error {
		if isUp(c) {
			return errors.New("it is still running")
		}
		return nil
	})
	if err != nil {
		return 1, err
	}
	fmt.Fprintln(os.Stderr, "the test bed is down")
	return 0, nil
}

func statusVerb(ctx context.Context, args []string) (int, error) {
	if len(args) > 0 {
		return 2, errors.New("testbed status: takes no arguments")
	}
	b, err := openTestbed()
	if err != nil {
		return 1, err
	}
	for _, n := range b.Nodes {
		state, err := n.State(ctx)
		if err != nil {
			return 1, err
		}
		fmt.Printf("%s  %s  rack %s  %s", n.Name, n.IP, n.Rack, state)
		if n.Storage != "" {
			fmt.Printf("  DataNode %s", n.Storage)
		}
		fmt.Println()
	}
	if h := b.HDFS; h != nil {
		live, safe, err := h.LiveDataNodes(ctx)
		if err != nil {
			return 1, err
		}
		fmt.Printf("HDFS  hdfs://%s  web http://%s  live DataNodes: %d of %d", h.NameNode, h.Web, live, len(h.DataNodes))
		if safe {
			fmt.Print("  safe mode")
		}
		fmt.Println()
	}
	fmt.Printf("logs and consoles in %s\n", b.File.Dir)
	return 0, nil
}

// enterVerb runs a command in the namespaces of the running test bed, with DROVER_TESTBED set.
func enterVerb(ctx context.Context, args []string) (int, error) {
	f := newFlagSet("enter")
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	command := f.Args()
	if len(command) == 0 {
		command = []string{"bash"}
	}
	b, err := openTestbed()
	if err != nil {
		return 1, err
	}
	if b.File.PID == 0 {
		return 1, errors.New("testbed enter: this test bed has no namespaces: run the command directly")
	}
	// All three namespaces, so that the command dies with the test bed. nsenter must fork for the
	// process namespace.
	argv := append([]string{"-t", strconv.Itoa(b.File.PID), "-n", "-m", "-p", "--wdns=" + absolutePath("."), "--"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), testbed.EnvFile+"="+b.File.Dir+"/testbed.json")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return 1, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

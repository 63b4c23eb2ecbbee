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

	"github.com/drover-run/drover/integration/bed"
	"github.com/drover-run/drover/integration/internal/cache"
	"github.com/drover-run/drover/integration/internal/run"
)

// envServe makes this program the background half of `bed up`; its value is the configuration.
const envServe = "DROVER_BED_SERVE"

const (
	upLimit   = 5 * time.Minute
	downLimit = 30 * time.Second
)

// upVerb leaves a bed running. The lock "up" is held by the background process for as long as it lives, so a bed
// is up exactly when the lock is taken, however the one before it ended.
func upVerb(ctx context.Context, args []string) (int, error) {
	f := flags("up")
	b := addBedFlags(f)
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
		fmt.Fprintln(os.Stderr, "a bed is up already; bed status shows it, bed down ends it")
		return 0, nil
	}
	config, held, err := b.prepare(ctx, c)
	if err != nil {
		return 1, err
	}
	defer held.Close()
	config.Publish = upFile(c)
	if err := os.Remove(upFile(c)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return 1, err
	}
	if err := startServe(ctx, c, config); err != nil {
		return 1, err
	}
	return statusVerb(ctx, nil)
}

// startServe starts the background half in a session of its own and waits until its bed file is there.
func startServe(ctx context.Context, c cache.Dir, config *run.Config) error {
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	self, err := ownProgram(c)
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
	what := "the bed"
	return bed.WaitFor(ctx, upLimit, what, func(context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			b, _ := os.ReadFile(log.Name())
			return fmt.Errorf("the bed ended at once (%v):\n%s", err, strings.TrimSpace(string(b)))
		default:
		}
		_, err := os.Stat(config.Publish)
		return err
	})
}

// ownProgram returns this program at a path that lasts: that of `go run` is removed when it ends.
func ownProgram(c cache.Dir) (string, error) {
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
	kept := c.Path("bed")
	part := kept + ".part"
	if err := os.WriteFile(part, b, 0o755); err != nil {
		return "", err
	}
	return kept, os.Rename(part, kept)
}

// serve is the background half of upVerb.
func serve() (int, error) {
	var config run.Config
	if err := json.Unmarshal([]byte(os.Getenv(envServe)), &config); err != nil {
		return 1, fmt.Errorf("bed: %s: %w", envServe, err)
	}
	os.Unsetenv(envServe)
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	lock, err := c.Lock("up", 0)
	if err != nil {
		return 1, errors.New("another bed is coming up")
	}
	defer lock.Close()
	for _, path := range config.Entries() { // held by the foreground half only until it ends
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

// isUp tells whether a background half lives.
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
		return 2, errors.New("bed down: takes no arguments")
	}
	c, err := openCache()
	if err != nil {
		return 1, err
	}
	if !isUp(c) {
		fmt.Fprintln(os.Stderr, "no bed is up")
		return 0, nil
	}
	b, err := bed.Open(upFile(c))
	if err != nil {
		return 1, fmt.Errorf("the bed is still coming up, or its file is gone: %w", err)
	}
	if err := b.Stop(ctx); err != nil {
		return 1, err
	}
	err = bed.WaitFor(ctx, downLimit, "the end of the bed", func(context.Context) error {
		if isUp(c) {
			return errors.New("it is still there")
		}
		return nil
	})
	if err != nil {
		return 1, err
	}
	fmt.Fprintln(os.Stderr, "the bed is down")
	return 0, nil
}

func statusVerb(ctx context.Context, args []string) (int, error) {
	if len(args) > 0 {
		return 2, errors.New("bed status: takes no arguments")
	}
	b, err := openBed()
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
		live, safe, err := h.Live(ctx)
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

// enterVerb runs a command in the namespaces of the bed that is up, with DROVER_BED set.
func enterVerb(ctx context.Context, args []string) (int, error) {
	f := flags("enter")
	if err := f.Parse(args); err != nil {
		return 2, errUsage
	}
	command := f.Args()
	if len(command) == 0 {
		command = []string{"bash"}
	}
	b, err := openBed()
	if err != nil {
		return 1, err
	}
	if b.File.PID == 0 {
		return 1, errors.New("bed enter: this bed has no namespaces of its own: run the command as it is")
	}
	// All three namespaces: the command then dies with the bed. nsenter has to fork for the process namespace.
	argv := append([]string{"-t", strconv.Itoa(b.File.PID), "-n", "-m", "-p", "--wdns=" + absolute("."), "--"}, command...)
	cmd := exec.CommandContext(ctx, "nsenter", argv...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), bed.EnvFile+"="+b.File.Dir+"/bed.json")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Run()
	if cmd.ProcessState == nil {
		return 1, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

package runtimetest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// Marker is the first argument by which Main recognises that the test binary was
// started as the program of a container.
const Marker = "drover-runtimetest-program"

// ProgramEnv is the environment of Program inside its container.
type ProgramEnv struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Getenv         func(string) string
	// Signals returns the channel of signals other than SIGKILL; after the call
	// they no longer end the program.
	Signals func() <-chan syscall.Signal
	// child runs another process that ignores SIGTERM; may be nil.
	child func(ctx context.Context) error
}

// Program performs the verb in its first argument and returns the exit code:
//
//	exit N           exits with N
//	echo OUT ERR N   writes OUT and ERR, one line each, to the streams and exits with N
//	env NAME         writes the variable's value
//	sleep            writes "ready" and waits until it is killed
//	trap             writes "ready", and on a signal "got N" and exits with 5
//	child            like sleep, next to a child process that ignores SIGTERM
//	flood N          writes N numbered lines of 16 bytes to standard output
//	cat              copies standard input
func Program(ctx context.Context, w ProgramEnv, args []string) int {
	if len(args) == 0 {
		return 100
	}
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	number := func(i int) int { n, _ := strconv.Atoi(arg(i)); return n }
	switch args[0] {
	case "exit":
		return number(1)
	case "echo":
		fmt.Fprintln(w.Stdout, arg(1))
		fmt.Fprintln(w.Stderr, arg(2))
		return number(3)
	case "env":
		fmt.Fprintln(w.Stdout, w.Getenv(arg(1)))
	case "sleep":
		fmt.Fprintln(w.Stdout, "ready")
		<-ctx.Done()
	case "trap":
		c := w.Signals()
		fmt.Fprintln(w.Stdout, "ready")
		select {
		case s := <-c:
			fmt.Fprintln(w.Stdout, "got", int(s))
			return 5
		case <-ctx.Done():
		}
	case "child":
		if w.child == nil {
			fmt.Fprintln(w.Stdout, "ready")
			<-ctx.Done()
			return 0
		}
		if err := w.child(ctx); err != nil {
			fmt.Fprintln(w.Stderr, err)
			return 101
		}
	case "flood":
		b := bufio.NewWriter(w.Stdout)
		for i := range number(1) {
			fmt.Fprintf(b, "%015d\n", i)
		}
		if b.Flush() != nil {
			return 102
		}
	case "cat":
		if _, err := io.Copy(w.Stdout, w.Stdin); err != nil {
			return 103
		}
	default:
		fmt.Fprintf(w.Stderr, "unknown verb %q\n", args[0])
		return 104
	}
	return 0
}

// Main takes over the process if it was started as `binary Marker verb …`; a
// driver's TestMain calls it first.
func Main() {
	if len(os.Args) < 2 || os.Args[1] != Marker {
		return
	}
	// With a registered signal the Go runtime does not consider a program whose
	// only goroutine sleeps to be deadlocked.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR2)
	if len(os.Args) > 2 && os.Args[2] == "stubborn" {
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
		os.Stdout.WriteString("ready\n")
		select {} // until SIGKILL
	}
	w := ProgramEnv{
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Getenv: os.Getenv, Signals: osSignals, child: stubbornChild,
	}
	os.Exit(Program(context.Background(), w, os.Args[2:]))
}

func osSignals() <-chan syscall.Signal {
	in, out := make(chan os.Signal, 16), make(chan syscall.Signal, 16)
	signal.Notify(in, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	go func() {
		for s := range in {
			out <- s.(syscall.Signal)
		}
	}()
	return out
}

func stubbornChild(context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := exec.Command(self, Marker, "stubborn")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	signal.Ignore(syscall.SIGTERM)
	if err := c.Run(); err != nil && !strings.Contains(err.Error(), "signal") {
		return err
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/integration/testbed"
)

// nodeFlags parses the flag -node and returns that machine.
func nodeFlags(name string, args []string) (*testbed.Node, *flag.FlagSet, error) {
	f := newFlagSet(name)
	k := f.Int("node", 1, "number of the machine, from 1")
	if err := f.Parse(args); err != nil {
		return nil, nil, errUsage
	}
	b, err := openTestbed()
	if err != nil {
		return nil, nil, err
	}
	if *k < 1 || *k > len(b.Nodes) {
		return nil, nil, fmt.Errorf("testbed %s: -node %d: this test bed has machines 1 to %d", name, *k, len(b.Nodes))
	}
	return b.Nodes[*k-1], f, nil
}

func execVerb(ctx context.Context, args []string) (int, error) {
	n, f, err := nodeFlags("exec", args)
	if err != nil {
		return 1, err
	}
	if f.NArg() == 0 {
		return 2, errors.New("testbed exec: missing command after --")
	}
	r, err := n.ExecCommand(ctx, testbed.Command{Argv: f.Args(), Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	return r.ExitCode, err
}

func putVerb(ctx context.Context, args []string) (int, error) {
	n, f, err := nodeFlags("put", args)
	if err != nil {
		return 1, err
	}
	if f.NArg() != 2 {
		return 2, errors.New("testbed put: usage: testbed put [-node K] LOCAL REMOTE")
	}
	return 0, n.Put(ctx, f.Arg(0), f.Arg(1))
}

func getVerb(ctx context.Context, args []string) (int, error) {
	n, f, err := nodeFlags("get", args)
	if err != nil {
		return 1, err
	}
	if f.NArg() != 2 {
		return 2, errors.New("testbed get: usage: testbed get [-node K] REMOTE LOCAL")
	}
	return 0, n.Get(ctx, f.Arg(0), f.Arg(1))
}

// shellVerb connects this terminal to a shell on a machine.
func shellVerb(ctx context.Context, args []string) (int, error) {
	n, _, err := nodeFlags("shell", args)
	if err != nil {
		return 1, err
	}
	fd := int(os.Stdin.Fd())
	old, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return 2, errors.New("testbed shell: standard input is not a terminal; use testbed exec")
	}
	restore, err := rawTerminal(fd, *old)
	if err != nil {
		return 1, err
	}
	defer restore()
	rows, cols := terminalSize(fd)
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	defer signal.Stop(changed)
	sizes := make(chan [2]uint16)
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-changed:
				r, c := terminalSize(fd)
				select {
				case sizes <- [2]uint16{r, c}:
				case <-done:
					return
				}
			case <-done:
				return
			}
		}
	}()
	return n.RunOnTerminal(ctx, []string{"bash", "-l"}, rows, cols, os.Stdin, os.Stdout, sizes)
}

// rawTerminal sets the terminal to raw mode until restore is called.
func rawTerminal(fd int, old unix.Termios) (restore func(), err error) {
	raw := old
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	return func() { unix.IoctlSetTermios(fd, unix.TCSETS, &old) }, nil
}

func terminalSize(fd int) (rows, cols uint16) {
	s, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
	if err != nil {
		return 24, 80
	}
	return s.Row, s.Col
}

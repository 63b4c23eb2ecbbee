package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// waitDelay is how long a child of an ended command may keep its output open.
const waitDelay = 2 * time.Second

// execute runs a command with its streams on the connection. When the client disconnects, the
// command's process group is killed.
func execute(ctx context.Context, r Request, in io.Reader, out *frames) (End, error) {
	c, err := command(r)
	if err != nil {
		return End{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	input := &inputReader{r: in}
	if r.TTY {
		return runOnTerminal(ctx, c, r, input, out)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Stdout, c.Stderr = stream{out, kindOutput}, stream{out, kindErrors}
	c.WaitDelay = waitDelay
	stdin, err := c.StdinPipe()
	if err != nil {
		return End{}, err
	}
	if err := c.Start(); err != nil {
		return End{}, err
	}
	pid := c.Process.Pid
	go func() { // ends when the connection closes, which follows the end of this function
		_, err := io.Copy(stdin, input)
		stdin.Close()
		if err == nil || errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
			_, err = io.Copy(io.Discard, input) // detects that the client disconnects
		}
		if err != nil && ctx.Err() == nil {
			syscall.Kill(-pid, syscall.SIGKILL)
		}
	}()
	err = c.Wait()
	return ended(c, err)
}

func ended(c *exec.Cmd, err error) (End, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return End{}, err
	}
	return End{Code: exitCode(c.ProcessState)}, nil
}

// runOnTerminal runs a command on a new pseudo terminal.
func runOnTerminal(ctx context.Context, c *exec.Cmd, r Request, input *inputReader, out *frames) (End, error) {
	master, slave, err := openTerminal()
	if err != nil {
		return End{}, err
	}
	defer master.Close()
	resize := func(rows, cols uint16) {
		unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
	}
	resize(r.Rows, r.Cols)
	input.resize = resize
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	err = c.Start()
	slave.Close()
	if err != nil {
		return End{}, err
	}
	pid := c.Process.Pid
	go func() { // ends when the connection closes
		if _, err := io.Copy(master, input); err != nil && ctx.Err() == nil {
			syscall.Kill(-pid, syscall.SIGKILL)
		}
	}()
	io.Copy(stream{out, kindOutput}, master) // returns an error when the terminal has no more users
	return ended(c, c.Wait())
}

func openTerminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("agent: terminal: %w", err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		slave, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("agent: terminal: %w", err)
	}
	return master, slave, nil
}

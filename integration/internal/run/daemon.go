package run

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"

	"github.com/drover-run/drover/integration/internal/control"
)

// daemon is the NameNode or a DataNode of HDFS.
type daemon struct {
	argv []string // of its JVM
	dir  string
	log  string // file to which the JVM's log is appended

	mu  sync.Mutex // held while a JVM starts or ends, not during its commands
	jvm *jvm       // nil: not launched, or killed
}

// errKilled is the answer of a daemon without a JVM.
var errKilled = errors.New("the daemon was killed: start it first")

// launch starts the JVM, which starts the daemon, and returns at once.
func (d *daemon) launch() (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.jvm, err = startJVM(d.argv, d.dir, d.log)
	return err
}

// running returns the daemon's JVM, in which it may be stopped; nil if it was killed.
func (d *daemon) running() *jvm {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.jvm
}

// awaitReady waits until the daemon that was launched is up.
func (d *daemon) awaitReady(ctx context.Context) error {
	j := d.running()
	if j == nil {
		return errKilled
	}
	return j.awaitReady(ctx, d.log)
}

// handle stops, starts or kills the daemon. args follow the operation in a command to the JVM.
func (d *daemon) handle(ctx context.Context, op control.Op, args ...string) (string, error) {
	switch op {
	case control.KillNameNode, control.KillDataNode:
		return "", d.kill()
	case control.StartNameNode, control.StartDataNode:
		if killed, err := d.restart(ctx); killed {
			return "", err
		}
	}
	return d.call(ctx, append([]string{op.String()}, args...)...)
}

// restart starts a daemon that was killed and waits until it is up. It reports whether it was killed.
func (d *daemon) restart(ctx context.Context) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jvm != nil {
		return false, nil
	}
	j, err := startJVM(d.argv, d.dir, d.log)
	if err != nil {
		return true, err
	}
	if err := j.awaitReady(ctx, d.log); err != nil {
		j.stop()
		return true, err
	}
	d.jvm = j
	return true, nil
}

// kill kills the JVM (SIGKILL) and waits for its end. A command in progress does not delay it.
func (d *daemon) kill() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.jvm == nil {
		return errKilled
	}
	d.jvm.stop()
	d.jvm = nil
	return nil
}

// call sends a command to the JVM and returns its answer.
func (d *daemon) call(ctx context.Context, words ...string) (string, error) {
	j := d.running()
	if j == nil {
		return "", errKilled
	}
	return j.call(ctx, words...)
}

// jvm is a running JVM of the host program. It handles one command at a time.
type jvm struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string // closed when the JVM ends

	mu           sync.Mutex
	staleAnswers int // answers that timed out and must be skipped
}

// startJVM starts a JVM in dir and returns at once.
func startJVM(argv []string, dir, log string) (*jvm, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	j := &jvm{cmd: exec.Command(argv[0], argv[1:]...), lines: make(chan string, 16), staleAnswers: 1} // the first line is "ok ready"
	j.cmd.Dir, j.cmd.Stderr = dir, out
	j.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL} // Ctrl-C is meant only for the command
	if j.in, err = j.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	lines, err := j.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := j.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting HDFS: %w", err)
	}
	go j.readLines(lines) // ends when the JVM ends; stop waits for it through lines
	return j, nil
}

func (j *jvm) readLines(out io.Reader) {
	defer close(j.lines)
	s := bufio.NewScanner(out)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		j.lines <- s.Text()
	}
}

// awaitReady waits until the JVM's daemon is up.
func (j *jvm) awaitReady(ctx context.Context, log string) error {
	ctx, cancel := context.WithTimeout(ctx, hdfsReadyLimit)
	defer cancel()
	j.mu.Lock()
	defer j.mu.Unlock()
	var said []string // lines of the JVM itself, such as warnings
	for {
		select {
		case line, ok := <-j.lines:
			switch {
			case !ok:
				return fmt.Errorf("HDFS ended before it was ready (%v, having said %q); the end of %s:\n%s", j.cmd.Wait(), said, log, lastLines(log, 12))
			case line == "ok ready":
				j.staleAnswers = 0
				return nil
			}
			said = append(said, line)
		case <-ctx.Done():
			return fmt.Errorf("HDFS was not ready in %v, and said %q; the end of %s:\n%s", hdfsReadyLimit, said, log, lastLines(log, 12))
		}
	}
}

// call sends a command to the JVM and returns its answer.
func (j *jvm) call(ctx context.Context, words ...string) (string, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := io.WriteString(j.in, strings.Join(words, "\t")+"\n"); err != nil {
		return "", fmt.Errorf("HDFS has ended: %w", err)
	}
	j.staleAnswers++
	for {
		select {
		case line, ok := <-j.lines:
			if !ok {
				return "", errors.New("HDFS has ended")
			}
			if j.staleAnswers--; j.staleAnswers > 0 {
				continue // the answer to a command that timed out
			}
			answer, isOK := strings.CutPrefix(line, "ok")
			if !isOK {
				return "", errors.New(strings.TrimPrefix(line, "error "))
			}
			return strings.TrimSpace(answer), nil
		case <-ctx.Done():
			return "", fmt.Errorf("no answer from HDFS: %w", ctx.Err())
		}
	}
}

// stop kills the JVM and waits for its end.
func (j *jvm) stop() {
	j.cmd.Process.Kill()
	for range j.lines { // until the reader has seen the end
	}
	j.cmd.Wait()
}

// lastLines returns the end of a log for an error message.
func lastLines(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	l := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(l[max(0, len(l)-n):], "\n")
}

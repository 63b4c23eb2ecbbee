package pipe

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/scheduler"
)

// Limits of the process.
const (
	answerTimeout = time.Minute      // for one response
	exitTimeout   = 10 * time.Second // from the end of its input to its exit
	maxLine       = 64 << 20         // bytes of one response
)

// Policy is a scheduling policy in another process. It serves one simulation. Decide cannot return
// an error: after a failure it decides nothing, and Err returns why.
type Policy struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     io.ReadCloser
	lines   chan []byte // closed when the process ends its output
	readErr error       // set before lines is closed
	err     error
	// The limits, which tests change.
	answerTimeout, exitTimeout time.Duration
}

// Start starts the process. Its standard error goes to stderr.
func Start(command []string, stderr io.Writer) (*Policy, error) {
	if len(command) == 0 {
		return nil, errors.New("a policy as a process needs a command: pipe:COMMAND")
	}
	p := &Policy{name: "pipe:" + strings.Join(command, " "), cmd: exec.Command(command[0], command[1:]...), lines: make(chan []byte),
		answerTimeout: answerTimeout, exitTimeout: exitTimeout}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // kill ends its children too
	p.cmd.WaitDelay = exitTimeout
	p.cmd.Stderr = stderr
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.out, err = p.cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", p.name, err)
	}
	go p.read(p.out)
	return p, nil
}

// kill ends the process and its children, and the pipes to them: a child that has left the process
// group may keep the other ends open.
func (p *Policy) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // fails if none of them is left
	_ = p.in.Close()
	_ = p.out.Close()
}

// read passes on the lines of the process until its output ends. Close waits for that.
func (p *Policy) read(out io.Reader) {
	s := bufio.NewScanner(out)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	for s.Scan() {
		p.lines <- append([]byte(nil), s.Bytes()...)
	}
	p.readErr = s.Err()
	close(p.lines)
}

// Name returns "pipe:" and the command.
func (p *Policy) Name() string { return p.name }

// Err returns the failure that ended the policy, nil if there is none.
func (p *Policy) Err() error { return p.err }

// Decide asks the process, unless nothing waits.
func (p *Policy) Decide(s *scheduler.State, now scheduler.Time, limit int) scheduler.Decision {
	none := scheduler.Decision{Base: s.Index(), At: now}
	if p.err != nil {
		return none
	}
	r := newRequest(s, now)
	if len(r.Waiting) == 0 {
		return none
	}
	answer, err := p.ask(r)
	if err == nil {
		var d scheduler.Decision
		if d, err = answer.decide(s, now, limit); err == nil {
			return d
		}
	}
	p.err = fmt.Errorf("%s, at %.6g s: %w", p.name, r.Now, err)
	return none
}

// ask sends a request and waits for the response, at most answerTimeout.
func (p *Policy) ask(r *request) (*response, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	timer := time.AfterFunc(p.answerTimeout, p.kill) // also unblocks the write
	defer timer.Stop()
	late := fmt.Errorf("it did not answer within %v", p.answerTimeout)
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		if !timer.Stop() {
			return nil, late
		}
		return nil, fmt.Errorf("it ended before it read the request: %w", err)
	}
	line, ok := <-p.lines
	if !ok && !timer.Stop() {
		return nil, late
	}
	if !ok {
		return nil, fmt.Errorf("it ended without an answer; its errors are above: %w", errors.Join(p.readErr, io.ErrUnexpectedEOF))
	}
	return parseResponse(line)
}

// Close ends the input of the process, waits until it exits, at most ten seconds, and returns Err or
// the error of its exit.
func (p *Policy) Close() error {
	timer := time.AfterFunc(p.exitTimeout, p.kill)
	defer timer.Stop()
	_ = p.in.Close() // fails if the process has ended
	for range p.lines {
	}
	err := p.cmd.Wait()
	if p.err != nil {
		return p.err
	}
	if err != nil {
		return fmt.Errorf("%s: %w", p.name, err)
	}
	return nil
}

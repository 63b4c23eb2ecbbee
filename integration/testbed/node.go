package testbed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/drover-run/drover/integration/internal/agent"
	"github.com/drover-run/drover/integration/internal/control"
)

// Node is one machine of a test bed.
type Node struct {
	NodeInfo
	number int // counted from 1
	socket string
	client *agent.Client
}

func newNode(f *File, k int) *Node {
	n := &Node{NodeInfo: f.Nodes[k-1], number: k, socket: f.Control}
	n.client = &agent.Client{Name: n.Name, Dial: func(ctx context.Context) (net.Conn, error) {
		if path, ok := strings.CutPrefix(n.Agent, "unix:"); ok {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
		return control.DialThrough(ctx, f.Control, n.Agent)
	}}
	return n
}

// Result is the result of a command.
type Result struct {
	Stdout, Stderr string
	ExitCode       int // 128 + signal if it was killed
}

// Err returns nil for exit code 0, else an error with the code and the output.
func (r Result) Err() error {
	if r.ExitCode == 0 {
		return nil
	}
	return fmt.Errorf("exit code %d: %s", r.ExitCode, strings.TrimSpace(r.Stderr+"\n"+r.Stdout))
}

// Command is a command with its options.
type Command struct {
	Argv  []string
	Env   []string // NAME=value, added to the agent's environment
	Dir   string
	Stdin io.Reader // nil: empty
	// Stdout and Stderr, if not nil, receive the output as it arrives; it is then not in the
	// Result.
	Stdout, Stderr io.Writer
}

// Exec runs a command on the machine and waits for its end. The error is the test bed's; a command
// that fails sets ExitCode (see Result.Err). When ctx ends, the command's process group is killed.
func (n *Node) Exec(ctx context.Context, argv ...string) (Result, error) {
	return n.ExecCommand(ctx, Command{Argv: argv})
}

// Sh runs a shell script on the machine and returns its standard output without the final newline.
// A script that fails is an error.
func (n *Node) Sh(ctx context.Context, script string) (string, error) {
	r, err := n.Exec(ctx, "bash", "-c", script)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return r.Stdout, fmt.Errorf("on %s: %w", n.Name, err)
	}
	return strings.TrimSuffix(r.Stdout, "\n"), nil
}

// ExecCommand is Exec with options.
func (n *Node) ExecCommand(ctx context.Context, c Command) (Result, error) {
	var stdout, stderr bytes.Buffer
	s := agent.Streams{In: c.Stdin, Out: c.Stdout, Err: c.Stderr}
	if s.Out == nil {
		s.Out = &stdout
	}
	if s.Err == nil {
		s.Err = &stderr
	}
	end, err := n.client.Do(ctx, agent.Request{Op: agent.Exec, Argv: c.Argv, Env: c.Env, Dir: c.Dir}, s)
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), ExitCode: end.Code}, err
}

// RunOnTerminal runs a command on a terminal of the machine.
func (n *Node) RunOnTerminal(ctx context.Context, argv []string, rows, cols uint16, in io.Reader, out io.Writer, resize <-chan [2]uint16) (int, error) {
	r := agent.Request{Op: agent.Exec, Argv: argv, TTY: true, Rows: rows, Cols: cols, Env: []string{"TERM=" + os.Getenv("TERM")}}
	end, err := n.client.Do(ctx, r, agent.Streams{In: in, Out: out, Resize: resize})
	return end.Code, err
}

// Process is a background process on a machine. It outlives the program that started it but not the
// test bed.
type Process struct {
	pid  int    // also its process group and session
	log  string // file on the machine with its output
	node *Node
}

// Start starts a process in its own session, with its output appended to a log file on the machine.
func (n *Node) Start(ctx context.Context, log string, argv ...string) (*Process, error) {
	return n.startWith(ctx, log, Command{Argv: argv})
}

// startWith is Start with Env and Dir; the streams of the command must be nil.
func (n *Node) startWith(ctx context.Context, log string, c Command) (*Process, error) {
	if c.Stdin != nil || c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("testbed: a started process has no streams: its output is in its log")
	}
	end, err := n.client.Do(ctx, agent.Request{Op: agent.Start, Argv: c.Argv, Env: c.Env, Dir: c.Dir, Log: log}, agent.Streams{})
	if err != nil {
		return nil, err
	}
	return &Process{pid: end.PID, log: log, node: n}, nil
}

// Signal sends a signal to the process and its group.
func (p *Process) Signal(ctx context.Context, s syscall.Signal) error {
	_, err := p.node.client.Do(ctx, agent.Request{Op: agent.Signal, PID: p.pid, Signal: int(s)}, agent.Streams{})
	return err
}

// Kill kills the process and its group (SIGKILL) and waits until the process has ended.
func (p *Process) Kill(ctx context.Context) error {
	if err := p.Signal(ctx, syscall.SIGKILL); err != nil {
		if running, _, err := p.Running(ctx); err == nil && !running {
			return nil
		}
		return err
	}
	_, err := p.Wait(ctx, time.Minute)
	return err
}

// Running reports whether the process runs, and else its exit code.
func (p *Process) Running(ctx context.Context) (bool, int, error) {
	end, err := p.node.client.Do(ctx, agent.Request{Op: agent.Status, PID: p.pid}, agent.Streams{})
	return end.Running, end.Code, err
}

// Wait waits until the process has ended and returns its exit code.
func (p *Process) Wait(ctx context.Context, limit time.Duration) (code int, err error) {
	what := fmt.Sprintf("the end of process %d on %s", p.pid, p.node.Name)
	err = WaitFor(ctx, limit, what, func(ctx context.Context) error {
		running, c, err := p.Running(ctx)
		if err == nil && running {
			err = errors.New("it runs")
		}
		code = c
		return err
	})
	return code, err
}

// Output returns the contents of the log.
func (p *Process) Output(ctx context.Context) (string, error) {
	b, err := p.node.ReadFile(ctx, p.log)
	return string(b), err
}

// Put copies a local file to the machine atomically, with its mode, and creates missing folders.
func (n *Node) Put(ctx context.Context, local, remote string) error {
	return n.client.PutFile(ctx, local, remote, 0)
}

// Get copies a file from the machine to a local one.
func (n *Node) Get(ctx context.Context, remote, local string) error {
	return n.client.GetFile(ctx, remote, local)
}

// ReadFile reads a file of the machine, also below /proc and /sys.
func (n *Node) ReadFile(ctx context.Context, remote string) ([]byte, error) {
	var b bytes.Buffer
	_, err := n.client.Do(ctx, agent.Request{Op: agent.Get, Path: remote}, agent.Streams{Out: &b})
	return b.Bytes(), err
}

func (n *Node) control(ctx context.Context, op control.Op) (string, error) {
	return control.Call(ctx, n.socket, control.Request{Op: op, N: n.number})
}

// Kill cuts the machine's power. It cannot be restarted within this test bed.
func (n *Node) Kill(ctx context.Context) error {
	_, err := n.control(ctx, control.KillMachine)
	return err
}

// Reset cuts the machine's power and switches it on again. Its disks keep what was written to them, its memory is
// lost, and nothing that was started runs. It returns when the machine has booted, which takes about a minute.
func (n *Node) Reset(ctx context.Context) error {
	_, err := n.control(ctx, control.ResetMachine)
	return err
}

// Pause stops the whole machine: connections stay open without an answer. Its clock goes on, so it
// has jumped after Continue.
func (n *Node) Pause(ctx context.Context) error {
	_, err := n.control(ctx, control.PauseMachine)
	return err
}

// Continue ends Pause.
func (n *Node) Continue(ctx context.Context) error {
	_, err := n.control(ctx, control.ContinueMachine)
	return err
}

// Partition unplugs the machine's network cable. Its agent is unreachable until Heal.
func (n *Node) Partition(ctx context.Context) error {
	_, err := n.control(ctx, control.PartitionMachine)
	return err
}

// Heal ends Partition and waits until the agent answers again.
func (n *Node) Heal(ctx context.Context) error {
	if _, err := n.control(ctx, control.HealMachine); err != nil {
		return err
	}
	return WaitFor(ctx, time.Minute, "the agent of "+n.Name, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := n.client.Do(ctx, agent.Request{Op: agent.Ping}, agent.Streams{})
		return err
	})
}

// State returns "running", "paused" or "dead".
func (n *Node) State(ctx context.Context) (string, error) {
	return n.control(ctx, control.MachineState)
}

// ImportImage imports an OCI archive of the host side into a namespace of the machine's containerd
// and returns the image's name.
func (n *Node) ImportImage(ctx context.Context, archive, namespace string) (string, error) {
	remote := "/data/testbed-import.tar"
	if err := n.Put(ctx, archive, remote); err != nil {
		return "", err
	}
	out, err := n.Sh(ctx, fmt.Sprintf("ctr -n %s image import %s && rm -f %s", namespace, remote, remote))
	if err != nil {
		return "", err
	}
	for _, w := range strings.Fields(out) {
		if strings.Contains(w, "/") && strings.Contains(w, ":") {
			return strings.TrimSuffix(w, "..."), nil
		}
	}
	return "", fmt.Errorf("testbed: no image name in the output of ctr: %s", out)
}

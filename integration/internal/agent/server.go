package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// Server answers requests on one machine. The zero value is ready.
type Server struct {
	mu      sync.Mutex
	started map[int]*process // by process id; retained after the end for the exit code
}

// process is a process that outlives the connection that started it.
type process struct {
	done chan struct{} // closed at the end
	code int           // valid once done is closed
}

// Serve serves connections until the context ends. Started processes continue.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("agent: %w", err)
		}
		wg.Go(func() {
			defer c.Close()
			stop := context.AfterFunc(ctx, func() { c.Close() })
			defer stop()
			s.serve(ctx, c)
		})
	}
}

// requestLimit limits the time until a client has sent its request.
const requestLimit = 10 * time.Second

func (s *Server) serve(ctx context.Context, c net.Conn) {
	in, out := bufio.NewReaderSize(c, 64<<10), &frames{w: c}
	c.SetReadDeadline(time.Now().Add(requestLimit))
	k, b, err := readFrame(in)
	if err != nil || k != kindRequest {
		return
	}
	c.SetReadDeadline(time.Time{})
	var r Request
	end := End{}
	if err = json.Unmarshal(b, &r); err == nil {
		end, err = s.do(ctx, r, in, out)
	}
	if err != nil {
		end.Error = err.Error()
	}
	out.sendJSON(kindEnd, end) // a disconnected client needs no answer
}

func (s *Server) do(ctx context.Context, r Request, in io.Reader, out *frames) (End, error) {
	switch r.Op {
	case Ping:
		return End{}, nil
	case Clock:
		tv := syscall.NsecToTimeval(r.Time.UnixNano())
		return End{}, syscall.Settimeofday(&tv)
	case Exec:
		return execute(ctx, r, in, out)
	case Start:
		pid, err := s.start(r)
		return End{PID: pid}, err
	case Status:
		return s.status(r.PID)
	case Signal:
		if _, err := s.find(r.PID); err != nil {
			return End{}, err
		}
		return End{}, syscall.Kill(-r.PID, syscall.Signal(r.Signal))
	case Put:
		return End{}, put(r, in)
	case Get:
		return End{}, get(r, out)
	default:
		return End{}, fmt.Errorf("agent: unknown operation %d", r.Op)
	}
}

func command(r Request) (*exec.Cmd, error) {
	if len(r.Argv) == 0 {
		return nil, errors.New("agent: no command")
	}
	c := exec.Command(r.Argv[0], r.Argv[1:]...)
	c.Env, c.Dir = append(os.Environ(), r.Env...), r.Dir
	return c, nil
}

// exitCode returns the exit code of a process, or 128 + signal.
func exitCode(p *os.ProcessState) int {
	if w, ok := p.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return 128 + int(w.Signal())
	}
	return p.ExitCode()
}

// start runs a process in its own session.
func (s *Server) start(r Request) (int, error) {
	c, err := command(r)
	if err != nil {
		return 0, err
	}
	if r.Log == "" {
		return 0, errors.New("agent: a started process needs a log file")
	}
	if err := os.MkdirAll(filepath.Dir(r.Log), 0o755); err != nil {
		return 0, err
	}
	log, err := os.OpenFile(r.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := c.Start(); err != nil {
		return 0, err
	}
	p := &process{done: make(chan struct{})}
	s.mu.Lock()
	if s.started == nil {
		s.started = map[int]*process{}
	}
	s.started[c.Process.Pid] = p
	s.mu.Unlock()
	go func() { // outlives the server on purpose, as the process does
		c.Wait()
		p.code = exitCode(c.ProcessState)
		close(p.done)
	}()
	return c.Process.Pid, nil
}

// KillStarted kills all started processes with their process groups and waits for their end.
func (s *Server) KillStarted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for pid, p := range s.started {
		select {
		case <-p.done:
		default:
			syscall.Kill(-pid, syscall.SIGKILL)
			<-p.done
		}
	}
}

func (s *Server) find(pid int) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.started[pid]
	if p == nil {
		return nil, fmt.Errorf("agent: process %d was not started here", pid)
	}
	return p, nil
}

func (s *Server) status(pid int) (End, error) {
	p, err := s.find(pid)
	if err != nil {
		return End{}, err
	}
	select {
	case <-p.done:
		return End{PID: pid, Code: p.code}, nil
	default:
		return End{PID: pid, Running: true}, nil
	}
}

// inputReader presents a client's input frames as a byte stream; resize frames go to resize.
type inputReader struct {
	r      io.Reader
	rest   []byte
	resize func(rows, cols uint16)
}

func (i *inputReader) Read(b []byte) (int, error) {
	for len(i.rest) == 0 {
		k, p, err := readFrame(i.r)
		switch {
		case err != nil:
			return 0, fmt.Errorf("agent: client disconnected: %w", err)
		case k == kindInput:
			i.rest = p
		case k == kindInputEnd:
			return 0, io.EOF
		case k == kindResize && len(p) == 4 && i.resize != nil:
			i.resize(uint16(p[0])<<8|uint16(p[1]), uint16(p[2])<<8|uint16(p[3]))
		}
	}
	n := copy(b, i.rest)
	i.rest = i.rest[n:]
	return n, nil
}

// put writes to a temporary file and renames it, so that a running program can be replaced and no
// partial file is visible.
func put(r Request, in io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(r.Path), 0o755); err != nil {
		return err
	}
	part := r.Path + ".part"
	f, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, os.FileMode(r.Mode))
	if err != nil {
		return err
	}
	_, err = io.Copy(f, &inputReader{r: in})
	err = errors.Join(err, f.Chmod(os.FileMode(r.Mode)), f.Close())
	if err == nil {
		err = os.Rename(part, r.Path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return nil
}

func get(r Request, out *frames) error {
	f, err := os.Open(r.Path)
	if err != nil {
		return err
	}
	defer f.Close()
	if i, err := f.Stat(); err != nil || i.IsDir() {
		return errors.Join(err, fmt.Errorf("agent: %s is not a file", r.Path))
	}
	_, err = io.CopyBuffer(struct{ io.Writer }{stream{out, kindOutput}}, struct{ io.Reader }{f}, make([]byte, 256<<10))
	return err
}

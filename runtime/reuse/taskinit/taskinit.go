// Package taskinit is process 1 of a container that is used again: it starts one task's command
// after the other for the node daemon, reaps what they leave, and reports how they end. It runs as
// the tenant, without capabilities and under the container's seccomp profile, and so does what it
// starts. A task cannot read or trace it. Signals that it sends with kill do not end it. One that
// it queues (rt_sigqueueinfo) can: the Go runtime takes a queued SEGV for a fault. The container
// ends then, and that counts against the task.
//
// It trusts the socket that it connects to at its start and nothing else. If the connection ends,
// it waits for the command that runs, and exits with the code of the last one: so the engine knows
// how a task ended whose node daemon was killed, and no container waits for a daemon that is gone.
//
// The program is cmd/drover-init, or drover itself where that is not built in.
package taskinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/environ"
	"github.com/drover-run/drover/internal/execerror"
	"github.com/drover-run/drover/internal/exechint"
	"github.com/drover-run/drover/internal/fault"
)

// Main runs the program with the arguments after Verb and returns the exit code.
func Main(args []string) int {
	if err := run(args); err != nil {
		fmt.Fprintln(os.Stderr, "drover:", err)
		return 1
	}
	return 0
}

func run(args []string) error {
	if len(args) != 1 {
		return fault.New(fault.Invalid, "%s: want the folder of a socket, have %d arguments: the node daemon calls this, not you", Verb, len(args))
	}
	// Otherwise processes of the same user could read and write its memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return err
	}
	// Caught, not ignored: what is ignored would be ignored in the tasks' programs too.
	signal.Notify(make(chan os.Signal, 1))
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil { // or it would keep a folder of a task in use
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(args[0], SocketName)}); err != nil {
		return os.NewSyscallError("connect", err)
	}
	s := &server{conn: fd, dir: dir, env: os.Environ(), started: map[int]bool{}, forked: make(chan struct{}, 1)}
	go s.reap() // ends with the process
	for {
		q, files, err := s.receive()
		if err != nil {
			s.disconnected()
			select {} // reap exits
		}
		s.serve(q, files)
	}
}

// server starts and reaps processes.
type server struct {
	conn   int
	dir    string   // working folder of a command that gives none
	env    []string // the container's
	forked chan struct{}

	mu      sync.Mutex   // held while a process is started, so that its end is reported after its start
	started map[int]bool // by process ID: whether it is a task's command
	last    int          // exit code of the last command
	alone   bool         // the connection has ended
}

// receive reads the next request with its files.
func (s *server) receive() (q Request, files []int, err error) {
	length, oob := make([]byte, 4), make([]byte, unix.CmsgSpace(3*4))
	n, oobn, _, _, err := retry4(func() (int, int, int, unix.Sockaddr, error) {
		return unix.Recvmsg(s.conn, length, oob, unix.MSG_CMSG_CLOEXEC|unix.MSG_WAITALL)
	})
	if err == nil && n != len(length) {
		err = io.EOF
	}
	if err != nil {
		return q, nil, err
	}
	all, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return q, nil, err
	}
	for i := range all {
		if fds, err := unix.ParseUnixRights(&all[i]); err == nil {
			files = append(files, fds...)
		}
	}
	return q, files, Decode(reader(s.conn), length, &q)
}

// retry4 repeats a call that a signal interrupted.
func retry4(call func() (int, int, int, unix.Sockaddr, error)) (n, oobn, flags int, from unix.Sockaddr, err error) {
	for {
		if n, oobn, flags, from, err = call(); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// reader reads from a blocking file.
type reader int

func (r reader) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(r), b)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return max(n, 0), err
		}
	}
}

// serve performs one request and closes its files.
func (s *server) serve(q Request, files []int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if q.Kill > 0 {
		if _, ok := s.started[q.Kill]; ok {
			_ = unix.Kill(q.Kill, unix.SIGKILL) // it may have ended
		}
		return
	}
	pid, err := s.start(q, files)
	for _, f := range files {
		unix.Close(f)
	}
	if err != nil {
		s.send(Reply{Event: Refused, Error: err.Error(), Permanent: execerror.IsPermanent(err)})
		return
	}
	s.started[pid] = !q.Extra
	select {
	case s.forked <- struct{}{}:
	default:
	}
	s.send(Reply{Event: Started, PID: pid})
}

// start starts a process in a session of its own.
func (s *server) start(q Request, files []int) (int, error) {
	if len(files) != 3 || len(q.Args) == 0 {
		return 0, fmt.Errorf("a request with %d files and %d arguments", len(files), len(q.Args))
	}
	env := environ.Merge(s.env, q.Env)
	path, err := lookPath(q.Args[0], env)
	if err != nil {
		return 0, err
	}
	attr := &syscall.ProcAttr{Dir: q.Dir, Env: env, Sys: &syscall.SysProcAttr{Setsid: true}}
	if attr.Dir == "" {
		attr.Dir = s.dir
	}
	for _, f := range files {
		attr.Files = append(attr.Files, uintptr(f))
	}
	pid, err := syscall.ForkExec(path, q.Args, attr)
	if err != nil {
		if !filepath.IsAbs(path) {
			path = filepath.Join(attr.Dir, path)
		}
		if hint := exechint.Of(path, err); hint != "" {
			err = fmt.Errorf("%w: %s", err, hint)
		}
		return 0, fmt.Errorf("exec: %q in folder %s: %w", q.Args[0], attr.Dir, err)
	}
	return pid, nil
}

// lookPath returns the file of a command. One with a slash is relative to the working
// folder.
func lookPath(name string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, kv := range env {
		list, ok := strings.CutPrefix(kv, "PATH=")
		if !ok {
			continue
		}
		for _, dir := range filepath.SplitList(list) {
			file := filepath.Join(dir, name)
			if st, err := os.Stat(file); err == nil && filepath.IsAbs(dir) && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
				return file, nil
			}
		}
	}
	return "", fault.New(fault.Invalid, "exec: %q: executable file not found in $PATH", name)
}

// reap waits for all children, those that others left to process 1 included.
func (s *server) reap() {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // no children
			<-s.forked
			continue
		}
		code := ws.ExitStatus()
		if ws.Signaled() {
			code = 128 + int(ws.Signal())
		}
		s.ended(pid, code)
	}
}

// ended reports the end of a process that was started for the node.
func (s *server) ended(pid, code int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	command, ok := s.started[pid]
	if !ok {
		return
	}
	delete(s.started, pid)
	if command {
		s.last = code
		if s.alone {
			os.Exit(code)
		}
	}
	s.send(Reply{Event: Exited, PID: pid, Code: code})
}

// disconnected is called when the node has closed the connection, or is gone.
func (s *server) disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alone = true
	for _, command := range s.started {
		if command {
			return
		}
	}
	os.Exit(s.last)
}

// send sends a reply. An error is not returned: receive sees the end of the connection too.
func (s *server) send(r Reply) {
	b, err := Encode(r)
	for err == nil && len(b) > 0 {
		var n int
		if n, err = unix.SendmsgN(s.conn, b, nil, nil, unix.MSG_NOSIGNAL); errors.Is(err, unix.EINTR) {
			n, err = 0, nil
		}
		b = b[max(n, 0):]
	}
}

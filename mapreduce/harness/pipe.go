package harness

import (
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	pipeBytes   = 1 << 20 // size asked for the pipes of a program
	setPipeSize = 1031    // F_SETPIPE_SZ

	pollIn   = 1 // POLLIN, POLLOUT
	pollOut  = 4
	pollStep = 100 * time.Millisecond // between looks at the deadline
)

// pipeEnd is our end of a pipe to a program. It is not an os.File because Go's
// poller would be woken by every write of the program into the pipe, also
// while nobody reads: with Python and PYTHONUNBUFFERED=1 that was four times
// for each word, and most of the harness's CPU time. For one reader or writer.
type pipeEnd struct {
	fd       int
	deadline atomic.Int64 // nanoseconds of the wall clock, 0: none
}

// newPipe makes a pipe of which we keep one end, the writing one or the other.
func newPipe(write bool) (ours *pipeEnd, theirs *os.File, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	us, them := p[0], p[1]
	if write {
		us, them = p[1], p[0]
	}
	// A pipe that stays small is slower and nothing else.
	syscall.Syscall(syscall.SYS_FCNTL, uintptr(us), setPipeSize, pipeBytes)
	theirs = os.NewFile(uintptr(them), "pipe")
	if err := syscall.SetNonblock(us, true); err != nil {
		syscall.Close(us)
		theirs.Close()
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	return &pipeEnd{fd: us}, theirs, nil
}

// expire makes waiting fail with os.ErrDeadlineExceeded after d.
func (p *pipeEnd) expire(d time.Duration) { p.deadline.Store(time.Now().Add(d).UnixNano()) }

// pollFd is struct pollfd of poll(2).
type pollFd struct {
	fd      int32
	events  int16
	revents int16
}

// wait waits until the pipe is ready or its deadline has passed.
func (p *pipeEnd) wait(events int16) error {
	for {
		if d := p.deadline.Load(); d != 0 && time.Now().UnixNano() >= d {
			return os.ErrDeadlineExceeded
		}
		f := pollFd{fd: int32(p.fd), events: events}
		ts := syscall.NsecToTimespec(pollStep.Nanoseconds())
		n, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&f)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		switch {
		case e != 0 && e != syscall.EINTR:
			return os.NewSyscallError("ppoll", e)
		case e == 0 && n > 0:
			return nil
		}
	}
}

// Read implements io.Reader.
func (p *pipeEnd) Read(b []byte) (int, error) {
	for {
		n, err := syscall.Read(p.fd, b)
		switch {
		case err == syscall.EAGAIN:
			if err := p.wait(pollIn); err != nil {
				return 0, err
			}
		case err == syscall.EINTR:
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		case n == 0 && len(b) > 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// Write implements io.Writer.
func (p *pipeEnd) Write(b []byte) (int, error) {
	done := 0
	for done < len(b) {
		n, err := syscall.Write(p.fd, b[done:])
		if n > 0 {
			done += n
		}
		switch {
		case err == syscall.EAGAIN:
			if err := p.wait(pollOut); err != nil {
				return done, err
			}
		case err == syscall.EINTR:
		case err != nil:
			return done, os.NewSyscallError("write", err)
		}
	}
	return done, nil
}

// Close closes the end once.
func (p *pipeEnd) Close() error {
	if p.fd < 0 {
		return nil
	}
	fd := p.fd
	p.fd = -1
	return syscall.Close(fd)
}

// A program that writes each word by itself would still wake its reader each
// time. So after a read of less than paceBelow bytes the next waits for pace,
// in which the wide pipe takes what comes.
const (
	pace      = time.Millisecond
	paceBelow = 32 << 10
)

// pacedReader reads the stdout of a program in pieces worth waking up for.
type pacedReader struct {
	r     io.Reader
	short bool
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if p.short {
		time.Sleep(pace)
	}
	n, err := p.r.Read(b)
	p.short = n < min(paceBelow, len(b))
	return n, err
}

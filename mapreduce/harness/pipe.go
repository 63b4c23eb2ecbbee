package harness

import (
	"io"
	"math"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const (
	pipeBytes   = 1 << 20 // requested size of a program's pipes
	setPipeSize = 1031    // F_SETPIPE_SZ

	pollIn      = 1 // POLLIN, POLLOUT
	pollOut     = 4
	maxPollTime = 100 * time.Millisecond // how often waitReady checks whether its time is up
)

// pipeEnd is the harness's end of a pipe to a program, for one reader or writer.
// It is not an os.File, because Go's poller wakes up at every write of the
// program into the pipe, even while nothing reads from it. With Python and
// PYTHONUNBUFFERED=1 that was four wake-ups for each word, and most of the
// harness's CPU time.
type pipeEnd struct {
	fd   int
	left atomic.Int64 // remaining waiting time in nanoseconds; noLimit: unlimited
}

// noLimit means that waiting never expires.
const noLimit = math.MaxInt64

// newPipe creates a pipe. The harness keeps the writing end if write is set,
// otherwise the reading end.
func newPipe(write bool) (own *pipeEnd, child *os.File, err error) {
	var p [2]int
	if err := syscall.Pipe2(p[:], syscall.O_CLOEXEC); err != nil {
		return nil, nil, os.NewSyscallError("pipe2", err)
	}
	ownFD, childFD := p[0], p[1]
	if write {
		ownFD, childFD = p[1], p[0]
	}
	// Failure is harmless: a small pipe is only slower.
	syscall.Syscall(syscall.SYS_FCNTL, uintptr(ownFD), setPipeSize, pipeBytes)
	child = os.NewFile(uintptr(childFD), "pipe")
	if err := syscall.SetNonblock(ownFD, true); err != nil {
		syscall.Close(ownFD)
		child.Close()
		return nil, nil, os.NewSyscallError("fcntl", err)
	}
	own = &pipeEnd{fd: ownFD}
	own.left.Store(noLimit)
	return own, child, nil
}

// expireIn makes waiting fail with os.ErrDeadlineExceeded once the wait has taken d from now on.
// Time during which the task was frozen or its clock was set does not count.
func (p *pipeEnd) expireIn(d time.Duration) { p.left.Store(d.Nanoseconds()) }

// pollfd is struct pollfd of poll(2).
type pollfd struct {
	fd      int32
	events  int16
	revents int16
}

// waitReady waits until the pipe is ready or its waiting time is up.
func (p *pipeEnd) waitReady(events int16) error {
	for {
		if p.left.Load() <= 0 {
			return os.ErrDeadlineExceeded
		}
		f := pollfd{fd: int32(p.fd), events: events}
		ts := syscall.NsecToTimespec(maxPollTime.Nanoseconds())
		began := time.Now()
		n, _, e := syscall.Syscall6(syscall.SYS_PPOLL, uintptr(unsafe.Pointer(&f)), 1, uintptr(unsafe.Pointer(&ts)), 0, 0, 0)
		if p.left.Load() != noLimit {
			p.left.Add(-max(0, min(time.Since(began), maxPollTime)).Nanoseconds()) // a longer time means that the task was frozen
		}
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
			if err := p.waitReady(pollIn); err != nil {
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
			if err := p.waitReady(pollOut); err != nil {
				return done, err
			}
		case err == syscall.EINTR:
		case err != nil:
			return done, os.NewSyscallError("write", err)
		}
	}
	return done, nil
}

// Close closes the end. Further calls do nothing.
func (p *pipeEnd) Close() error {
	if p.fd < 0 {
		return nil
	}
	fd := p.fd
	p.fd = -1
	return syscall.Close(fd)
}

// A program that writes every word separately would still wake its reader each
// time. After a read of less than shortReadBytes the next read therefore waits
// for shortReadPause, while the large pipe buffers the output.
const (
	shortReadPause = time.Millisecond
	shortReadBytes = 32 << 10
)

// pacedReader reads the stdout of a program in chunks that are worth a wake-up.
type pacedReader struct {
	r         io.Reader
	lastShort bool
}

func (p *pacedReader) Read(b []byte) (int, error) {
	if p.lastShort {
		time.Sleep(shortReadPause)
	}
	n, err := p.r.Read(b)
	p.lastShort = n < min(shortReadBytes, len(b))
	return n, err
}

// Package logger is the process that writes a container's standard output and
// error to rotated files. The shim starts it (containerd's "binary" logging) with
// the two pipes as files 3 and 4; it signals on file 5 that it is ready. It lives
// as long as the pipes have writers, so it outlives the node daemon and
// containerd, and a full disk never stops the task: see internal/rotate.
//
// The program is cmd/drover-logger, or drover itself where that is not built in:
// `drover logger CONFIG`. Both call Main before anything else.
package logger

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/rotate"
)

// Verb is the first argument of the executable that selects the logger.
const Verb = "logger"

// drainLimit is how long after SIGTERM (the shim was asked to exit) the logger
// still reads from pipes that a stray process holds open.
const drainLimit = 2 * time.Second

// Config configures the log files.
type Config struct {
	Dir      string `json:"dir"`       // for stdout.log and stderr.log; made if missing
	MaxBytes int64  `json:"max_bytes"` // per file; 0 is rotate's default
	MaxFiles int    `json:"max_files"` // per stream; 0 is rotate's default
	// BytesPerS is what both streams together may write; 0: no limit. A program that
	// writes faster waits for its pipe, so that logs, which the logger writes outside
	// of the container's cgroup, have the container's own limit.
	BytesPerS int64 `json:"bytes_per_s,omitempty"`
}

// URI returns the logging address for containerd. The configuration is a single
// argument, since the shim passes several in random order.
func URI(executable string, c Config) (*url.URL, error) {
	if !filepath.IsAbs(executable) || !filepath.IsAbs(c.Dir) {
		return nil, fault.New(fault.Invalid, "logger: executable %q and folder %q must be absolute paths", executable, c.Dir)
	}
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	q := url.Values{Verb: {base64.RawURLEncoding.EncodeToString(b)}}
	return &url.URL{Scheme: "binary", Path: executable, RawQuery: q.Encode()}, nil
}

// parse decodes the argument that URI made.
func parse(arg string) (Config, error) {
	var c Config
	b, err := base64.RawURLEncoding.DecodeString(arg)
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return Config{}, fault.New(fault.Invalid, "logger: its argument is not a configuration: %w", err)
	}
	if !filepath.IsAbs(c.Dir) {
		return Config{}, fault.New(fault.Invalid, "logger: folder %q is not an absolute path", c.Dir)
	}
	return c, nil
}

// Main runs the logger with the arguments after Verb and returns the exit code.
func Main(args []string) int {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGPIPE)
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	if err := run(args, term); err != nil {
		fmt.Fprintln(os.Stderr, "drover:", err)
		return 1
	}
	return 0
}

func run(args []string, term <-chan os.Signal) error {
	if len(args) != 1 {
		return fault.New(fault.Invalid, "logger: want one argument, have %d: containerd's shim calls this, not you", len(args))
	}
	c, err := parse(args[0])
	if err != nil {
		return err
	}
	stdout, err1 := pipe(3, "standard output of the container")
	stderr, err2 := pipe(4, "standard error of the container")
	ready, err3 := pipe(5, "ready signal")
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	return copyStreams(c, stdout, stderr, ready, term)
}

// pipe takes over a file that the shim opened and registers it with Go's poller, so
// that reads can have a deadline.
func pipe(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fault.New(fault.Invalid, "logger: file %d, the %s, is not open: containerd's shim calls this, not you: %w", fd, name, err)
	}
	unix.CloseOnExec(fd)
	return os.NewFile(uintptr(fd), name), nil
}

// copyStreams writes both streams to their files until both end, or until drainLimit
// after term. It signals ready as soon as the files are open.
func copyStreams(c Config, stdout, stderr, ready *os.File, term <-chan os.Signal) error {
	out, errs, err := rotate.OpenPair(c.Dir, c.MaxBytes, c.MaxFiles)
	if err != nil {
		return fmt.Errorf("logger: %w", err) // the process's exit closes ready: the container does not start
	}
	defer out.Close()
	defer errs.Close()
	held, err := rotate.Hold(c.Dir) // the node daemon reads the end of standard error when this is over
	if err != nil {
		return fmt.Errorf("logger: %w", err)
	}
	defer held.Close()
	// containerd 2 expects a byte, 1.x the end of the file.
	if _, err := ready.Write([]byte{0}); err != nil {
		return fmt.Errorf("logger: ready signal: %w", err)
	}
	ready.Close()

	limit := newRateLimit(c.BytesPerS, time.Now())
	var wg sync.WaitGroup
	var failed [2]error
	for i, s := range []struct {
		from *os.File
		to   io.Writer
	}{{stdout, out}, {stderr, errs}} {
		wg.Go(func() { failed[i] = drain(s.from, s.to, limit) })
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	select {
	case <-done:
	case <-term:
		limit.lift()
		deadline := time.Now().Add(drainLimit)
		err = errors.Join(stdout.SetReadDeadline(deadline), stderr.SetReadDeadline(deadline))
		if err == nil {
			<-done
		}
	}
	return errors.Join(err, failed[0], failed[1])
}

// drain copies to the end of from or to its deadline, within the limit.
func drain(from *os.File, to io.Writer, limit *rateLimit) error {
	defer from.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return werr
			}
			if err == nil {
				limit.pause(from, n)
			}
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return fmt.Errorf("logger: %w", err)
		}
	}
}

package helper

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/leash"
)

// maxLine bounds a line between daemon and helper: an Update of a job with very
// many maps.
const maxLine = 64 << 20

// Copy is the argument with which the helper only copies standard input to
// standard output: a file of a task, charged to the task.
const Copy = "copy"

// Main is the helper as a program: argv[1] "helper", no arguments, Copy, or a verb
// of package leash with its file. It gives the exit code: 0 when the last event
// said Done.
func Main(args []string) int {
	if len(args) == 2 && (args[0] == leash.Verb || args[0] == leash.VerbWatch) {
		if err := leash.Main([]string{"helper"}, args[0], args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "drover helper: %s: %v\n", args[0], err)
			return 1
		}
		return 0
	}
	if len(args) == 1 && args[0] == Copy {
		if _, err := io.Copy(os.Stdout, os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "drover helper: copy:", err)
			return 1
		}
		return 0
	}
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "drover helper:", err)
		return 1
	}
	return 0
}

// serve reads the request and says on out how it goes.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	var r Request
	if err := readLine(lines, &r); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	say := &speaker{out: out}
	updates := make(chan Update)
	go func() { // ends with the process: nothing ends a read of standard input
		defer cancel()
		for {
			var u Update
			if readLine(lines, &u) != nil {
				return
			}
			select {
			case updates <- u:
			case <-ctx.Done():
				return
			}
		}
	}()
	files := fsys.New(r.Files, func(_ string, w hdfs.Waiting) { say.emit(Event{Waiting: w.String()}) })
	defer files.Close()
	ca := ""
	if r.Shuffle != nil {
		ca = r.Shuffle.CA
	}
	web, err := HTTPClient(ca)
	if err != nil {
		return err
	}
	defer web.CloseIdleConnections()
	err = Run(ctx, &r, Tools{Files: files, HTTP: web, Updates: updates, Emit: say.emit})
	say.end(err)
	return err
}

// HTTPClient makes a client for shuffles; with a CA (PEM) it trusts that one
// alone.
func HTTPClient(ca string) (*http.Client, error) {
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		ResponseHeaderTimeout: 20 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   shuffleAtOnce,
		DisableCompression:    true,
	}
	if ca != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(ca)) {
			return nil, fault.New(fault.Invalid, "the cluster's authority is no PEM certificate")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13}
	}
	return &http.Client{Transport: t}, nil
}

// readLine reads one line of JSON.
func readLine(r *bufio.Reader, v any) error {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return fault.New(fault.Exhausted, "a line is longer than %d bytes", maxLine)
		}
		if err == nil {
			return json.Unmarshal(line, v)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}

// speaker writes events, one a line, from any goroutine.
type speaker struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *speaker) emit(e Event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic("helper: an event that JSON cannot hold: " + err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// A daemon that is gone closes standard input too, and that ends us.
	_, _ = s.out.Write(append(b, '\n'))
}

// end says how it ended.
func (s *speaker) end(err error) {
	if err == nil {
		s.emit(Event{Done: true})
		return
	}
	e := Event{Error: err.Error()}
	if c := fault.Class(err); c != nil {
		e.Class = c.Error()
	}
	s.emit(e)
}

// Err is the error that an event brings, with its class; nil without one.
func (e Event) Err() error {
	if e.Error == "" {
		return nil
	}
	for _, c := range fault.Classes() {
		if c.Error() == e.Class {
			return fault.New(c, "%s", e.Error)
		}
	}
	return errors.New(e.Error)
}

// Encode gives a request or an update as its line.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}

// Decode reads one event.
func Decode(r *bufio.Reader) (Event, error) {
	var e Event
	err := readLine(r, &e)
	return e, err
}

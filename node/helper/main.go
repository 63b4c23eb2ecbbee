package helper

import (
	"bufio"
	"context"
	"crypto/sha256"
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
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/node/fsys"
	"github.com/drover-run/drover/node/watchdog"
)

// maxLine bounds a line between daemon and helper. The largest is an Update with a
// million map outputs, of 31 bytes each at most, on ten thousand nodes.
const maxLine = 64 << 20

// VerbCopy is the argument that makes the helper only copy standard input to
// standard output: a task's file, charged to the task. The next argument is the
// digest of what is copied, sha256: and hexadecimal digits.
const VerbCopy = "copy"

// ExitDamaged is the exit code of a copy whose input has another digest.
const ExitDamaged = 3

// Main is the helper program after argv[1] "helper". args is empty, VerbCopy with a
// digest, or a verb of package watchdog with its file. It returns the exit code: 0 if the
// last event was Done.
func Main(args []string) int {
	if len(args) == 2 && (args[0] == watchdog.VerbStart || args[0] == watchdog.VerbRun) {
		if err := watchdog.Main([]string{"helper"}, args[0], args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "drover helper: %s: %v\n", args[0], err)
			return 1
		}
		return 0
	}
	if len(args) == 2 && args[0] == VerbCopy {
		return copyVerified(os.Stdin, os.Stdout, os.Stderr, args[1])
	}
	if err := serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "drover helper:", err)
		return 1
	}
	return 0
}

// copyVerified is VerbCopy; it returns the exit code.
func copyVerified(in io.Reader, out, said io.Writer, digest string) int {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(out, sum), in)
	if err != nil {
		fmt.Fprintln(said, "drover helper: copy:", err)
		return 1
	}
	if got := fmt.Sprintf("sha256:%x", sum.Sum(nil)); got != digest {
		fmt.Fprintf(said, "has %s, %d bytes", got, n)
		return ExitDamaged
	}
	return 0
}

// serve reads the request from in, performs it and writes events to out.
func serve(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	var r Request
	if err := readLine(lines, &r); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	say := &eventWriter{out: out}
	updates := make(chan Update)
	go func() { // ends with the process: a read of standard input cannot be interrupted
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
	files := fsys.New(r.Files, func(_ string, w hdfs.WaitNotice) { say.write(Event{Waiting: w.String()}) }, func(text string) { say.write(Event{Warning: text}) })
	defer files.Close()
	ca := ""
	if r.Shuffle != nil {
		ca = r.Shuffle.CA
	}
	web, err := HTTPClient(ca, nil)
	if err != nil {
		return err
	}
	defer web.CloseIdleConnections()
	err = Run(ctx, &r, Tools{Files: files, HTTP: web, Updates: updates, Emit: say.write})
	say.writeEnd(err)
	return err
}

// HTTPClient returns a client of other nodes; with a CA (PEM) it trusts that CA
// only. dial connects to them; nil: by TCP, or through a unix socket of this machine.
func HTTPClient(ca string, dial func(ctx context.Context, network, address string) (net.Conn, error)) (*http.Client, error) {
	if dial == nil {
		dial = unixhttp.DialContext(&net.Dialer{Timeout: 5 * time.Second})
	}
	t := &http.Transport{
		DialContext:           dial,
		TLSHandshakeTimeout:   5 * time.Second,
		ResponseHeaderTimeout: 20 * time.Second,
		IdleConnTimeout:       30 * time.Second,
		MaxIdleConnsPerHost:   maxShuffleFetches,
		DisableCompression:    true,
	}
	if ca != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(ca)) {
			return nil, fault.New(fault.Invalid, "the cluster's CA is not a PEM certificate")
		}
		t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS13, VerifyConnection: requireNode}
	}
	return &http.Client{Transport: t}, nil
}

// requireNode accepts only the certificates of nodes: those of users are signed
// by the same CA.
func requireNode(s tls.ConnectionState) error {
	kind, name, err := pki.PeerIdentity(&s)
	if err == nil && kind != pki.KindNode {
		err = fault.New(fault.Denied, "%s has the certificate of %s/%s, not of a node", s.ServerName, kind, name)
	}
	return err
}

// readLine decodes one line of JSON.
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

// eventWriter writes one event per line; it is safe for concurrent use.
type eventWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (s *eventWriter) write(e Event) {
	b, err := json.Marshal(e)
	if err != nil {
		panic("helper: an event that JSON cannot hold: " + err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// If the daemon is gone, standard input is closed too, which ends the helper.
	_, _ = s.out.Write(append(b, '\n'))
}

// writeEnd writes the final event.
func (s *eventWriter) writeEnd(err error) {
	if err == nil {
		s.write(Event{Done: true})
		return
	}
	e := Event{Error: err.Error()}
	if c := fault.Class(err); c != nil {
		e.Class = c.Error()
	}
	s.write(e)
}

// Err returns the error of an event with its class; nil if it has none.
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

// Encode encodes a request or an update as a line.
func Encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	return append(b, '\n'), err
}

// Decode decodes one event.
func Decode(r *bufio.Reader) (Event, error) {
	var e Event
	err := readLine(r, &e)
	return e, err
}

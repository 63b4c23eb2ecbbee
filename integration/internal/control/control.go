// Package control is the control protocol of a running test bed: requests on a unix socket, one
// JSON line each way per connection. A dial request turns its connection into a pipe to an address
// in the test bed's network, so that the machines are reachable from outside.
package control

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Op is the operation of a request.
type Op int

// The operations. N is the number of a machine or DataNode, from 1.
const (
	Dial             Op = iota + 1 // become a pipe to Address
	Stop                           // end the test bed
	StopDataNode                   // N
	StartDataNode                  // N
	KillDataNode                   // N: SIGKILL
	StopNameNode                   //
	StartNameNode                  //
	KillNameNode                   // SIGKILL
	PauseHDFS                      // stop all HDFS daemons with SIGSTOP
	ContinueHDFS                   //
	LiveDataNodes                  // Answer: number of live DataNodes, and "normal" or "safemode"
	LoadFile                       // Local, Remote, BlockBytes, Places
	KillMachine                    // N: cut the power
	PauseMachine                   // N: stop the whole machine with SIGSTOP
	ContinueMachine                // N
	PartitionMachine               // N: unplug the network cable
	HealMachine                    // N: plug the network cable in again
	MachineState                   // N: Answer: running, paused or dead
	ResetMachine                   // N: cut the power and switch it on again; answered once it has booted
)

var opNames = [...]string{"", "dial", "stop", "stop-datanode", "start-datanode", "kill-datanode",
	"stop-namenode", "start-namenode", "kill-namenode", "pause-hdfs", "continue-hdfs", "live-datanodes", "load-file",
	"kill-machine", "pause-machine", "continue-machine", "cut-machine", "heal-machine", "machine-state", "reset-machine"}

func (o Op) String() string {
	if o < Dial || int(o) >= len(opNames) {
		return fmt.Sprintf("op(%d)", int(o))
	}
	return opNames[o]
}

// ParseOp is the inverse of String.
func ParseOp(s string) (Op, error) {
	for i, n := range opNames {
		if i > 0 && n == s {
			return Op(i), nil
		}
	}
	return 0, fmt.Errorf("unknown operation %q", s)
}

// MarshalText writes the operation's name.
func (o Op) MarshalText() ([]byte, error) { return []byte(o.String()), nil }

// UnmarshalText reads the operation's name.
func (o *Op) UnmarshalText(b []byte) (err error) {
	*o, err = ParseOp(string(b))
	return err
}

// Request is a request to the test bed.
type Request struct {
	Op         Op     `json:"op"`
	N          int    `json:"n,omitempty"`
	Address    string `json:"address,omitempty"`
	Local      string `json:"local,omitempty"`
	Remote     string `json:"remote,omitempty"`
	BlockBytes int    `json:"block_bytes,omitempty"`
	Places     []int  `json:"places,omitempty"` // block i goes to DataNode Places[i mod len]
}

// response answers a Request.
type response struct {
	Answer string `json:"answer,omitempty"`
	Error  string `json:"error,omitempty"`
}

// maxLine limits a request or response.
const maxLine = 1 << 20

// Call sends a request to a test bed's socket and returns its answer.
func Call(ctx context.Context, socket string, r Request) (string, error) {
	c, err := connect(ctx, socket, r)
	if err != nil {
		return "", err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := readLine(bufio.NewReaderSize(c, 4096))
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("testbed: %v: %w", r.Op, err)
	}
	return parseResponse(r, line)
}

// DialThrough connects to an address in the test bed's network.
func DialThrough(ctx context.Context, socket, address string) (net.Conn, error) {
	r := Request{Op: Dial, Address: address}
	c, err := connect(ctx, socket, r)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	line, err := readUnbuffered(c)
	if err == nil {
		_, err = parseResponse(r, line)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("testbed: dial %s: %w", address, err)
	}
	return c, nil
}

func connect(ctx context.Context, socket string, r Request) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("the test bed does not answer (has it ended?): %w", err)
	}
	b, err := json.Marshal(r)
	if err == nil {
		_, err = c.Write(append(b, '\n'))
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("testbed: %v: %w", r.Op, err)
	}
	return c, nil
}

func parseResponse(r Request, line []byte) (string, error) {
	var a response
	if err := json.Unmarshal(line, &a); err != nil {
		return "", fmt.Errorf("testbed: answer to %v: %w", r.Op, err)
	}
	if a.Error != "" {
		return "", fmt.Errorf("testbed: %v: %s", r.Op, a.Error)
	}
	return a.Answer, nil
}

// readUnbuffered reads a line byte by byte, so that nothing after it is consumed.
func readUnbuffered(r io.Reader) ([]byte, error) {
	var line, b []byte
	for b = make([]byte, 1); len(line) < maxLine; line = append(line, b[0]) {
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		if b[0] == '\n' {
			return line, nil
		}
	}
	return nil, errors.New("line too long")
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var line []byte
	for len(line) < maxLine {
		part, more, err := r.ReadLine()
		line = append(line, part...)
		if err != nil || !more {
			return line, err
		}
	}
	return nil, errors.New("line too long")
}

// Handler handles requests other than Dial.
type Handler func(context.Context, Request) (string, error)

// Serve serves requests until the context ends, then waits for those in progress.
func Serve(ctx context.Context, l net.Listener, handle Handler) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			serveConn(ctx, c, handle)
		}()
	}
}

const (
	dialLimit   = 10 * time.Second // of a Dial request
	answerLimit = 5 * time.Second  // of the rest of an answer, once the context has ended
)

// serveConn serves one request. When the context ends, reading and piping end, but not the writing
// of an answer: the answer to Stop is written while the context ends because of Stop.
func serveConn(ctx context.Context, c net.Conn, handle Handler) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() {
		c.SetReadDeadline(time.Unix(1, 0))
		c.SetWriteDeadline(time.Now().Add(answerLimit))
	})
	defer stop()
	line, err := readUnbuffered(c)
	if err != nil {
		return
	}
	var r Request
	if err := json.Unmarshal(line, &r); err != nil {
		respond(c, "", err)
		return
	}
	if r.Op != Dial {
		answer, err := handle(ctx, r)
		respond(c, answer, err)
		return
	}
	dctx, cancel := context.WithTimeout(ctx, dialLimit)
	defer cancel()
	to, err := new(net.Dialer).DialContext(dctx, "tcp", r.Address)
	if err != nil {
		respond(c, "", err)
		return
	}
	defer to.Close()
	stopTo := context.AfterFunc(ctx, func() { to.Close() })
	defer stopTo()
	if respond(c, "", nil) == nil {
		pipe(c, to)
	}
}

func respond(w io.Writer, answer string, err error) error {
	r := response{Answer: answer}
	if err != nil {
		r.Error = err.Error()
	}
	b, err := json.Marshal(r)
	if err == nil {
		_, err = w.Write(append(b, '\n'))
	}
	return err
}

// pipe copies in both directions until both have ended, and passes on the end of each.
func pipe(a, b net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		copyHalf(a, b)
	}()
	copyHalf(b, a)
	<-done
}

func copyHalf(dst, src net.Conn) {
	_, err := io.Copy(dst, src)
	if w, ok := dst.(interface{ CloseWrite() error }); ok && err == nil {
		w.CloseWrite()
		return
	}
	dst.Close()
	src.Close()
}

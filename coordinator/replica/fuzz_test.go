package replica

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fuzztest"
)

// scriptedConn is a connection whose other side has sent in and reads everything.
type scriptedConn struct {
	in     io.Reader
	out    bytes.Buffer // what was written
	closed chan struct{}
	once   sync.Once
}

func newScriptedConn(in []byte) *scriptedConn {
	return &scriptedConn{in: bytes.NewReader(in), closed: make(chan struct{})}
}

func (c *scriptedConn) Read(p []byte) (int, error)       { return c.in.Read(p) }
func (c *scriptedConn) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *scriptedConn) Close() error                     { c.once.Do(func() { close(c.closed) }); return nil }
func (c *scriptedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scriptedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *scriptedConn) SetDeadline(time.Time) error      { return nil }
func (c *scriptedConn) SetReadDeadline(time.Time) error  { return nil }
func (c *scriptedConn) SetWriteDeadline(time.Time) error { return nil }

// scriptedLayer is a network whose connections come from two channels.
type scriptedLayer struct{ accept, dial chan net.Conn }

func (l *scriptedLayer) Accept() (net.Conn, error) {
	if c, ok := <-l.accept; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l *scriptedLayer) Close() error   { close(l.accept); return nil }
func (l *scriptedLayer) Addr() net.Addr { return &net.TCPAddr{} }
func (l *scriptedLayer) Dial(raft.ServerAddress, time.Duration) (net.Conn, error) {
	return <-l.dial, nil
}

func scriptedTransport(f testing.TB) (*raft.NetworkTransport, *scriptedLayer) {
	l := &scriptedLayer{accept: make(chan net.Conn), dial: make(chan net.Conn, 1)}
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: guardedLayer{l, func() {}}, MaxPool: 0, MaxRPCsInFlight: 1, Timeout: time.Second, Logger: hclog.NewNullLogger()})
	f.Cleanup(func() { _ = t.Close() })
	return t, l
}

// peerCalls are the calls that one coordinator makes of another one.
var peerCalls = []func(t *raft.NetworkTransport) error{
	func(t *raft.NetworkTransport) error {
		r := &raft.AppendEntriesRequest{Term: 3, PrevLogEntry: 7, PrevLogTerm: 2, LeaderCommitIndex: 6, RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("c1"), Addr: []byte("h:1")},
			Entries: []*raft.Log{{Index: 8, Term: 3, Type: raft.LogCommand, Data: []byte("entry"), AppendedAt: time.Unix(1_700_000_000, 0)}, {Index: 9, Term: 3}}}
		return t.AppendEntries("c2", "h:2", r, &raft.AppendEntriesResponse{})
	},
	func(t *raft.NetworkTransport) error {
		return t.RequestVote("c2", "h:2", &raft.RequestVoteRequest{Term: 3, LastLogIndex: 9, LastLogTerm: 3, RPCHeader: raft.RPCHeader{ProtocolVersion: 3, ID: []byte("c1"), Addr: []byte("h:1")}}, &raft.RequestVoteResponse{})
	},
	func(t *raft.NetworkTransport) error {
		return t.RequestPreVote("c2", "h:2", &raft.RequestPreVoteRequest{Term: 3, LastLogIndex: 9}, &raft.RequestPreVoteResponse{})
	},
	func(t *raft.NetworkTransport) error {
		r := &raft.InstallSnapshotRequest{SnapshotVersion: 1, Term: 3, LastLogIndex: 9, Size: 8, Configuration: []byte("conf"), ConfigurationIndex: 1}
		return t.InstallSnapshot("c2", "h:2", r, &raft.InstallSnapshotResponse{}, bytes.NewReader([]byte("snapshot")))
	},
	func(t *raft.NetworkTransport) error {
		return t.TimeoutNow("c2", "h:2", &raft.TimeoutNowRequest{}, &raft.TimeoutNowResponse{})
	},
}

// FuzzTransport reads what another coordinator may send on the port for raft, with the bytes
// of a snapshot: each message ends, and none makes the server allocate what it only announces.
func FuzzTransport(f *testing.F) {
	own, l := scriptedTransport(f)
	for _, call := range peerCalls {
		c := newScriptedConn(nil)
		l.dial <- c
		_ = call(own) // nobody answers
		f.Add(c.out.Bytes())
	}
	f.Add([]byte("\x00\xdf\xff\xff\xff\xff\xa7Entries\xdd\xff\xff\xff\xff")) // announces four billion entries
	f.Add([]byte("\x02\x81\xadConfiguration\xc6\xff\xff\xff\xff"))           // and bytes
	f.Add([]byte("\x00\x81\xa1x\xc9\xff\xff\xff\xff\xff"))                   // and an extension
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { answerAll(ctx, own) })
	f.Cleanup(func() { cancel(); wg.Wait() })
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		c := newScriptedConn(b)
		l.accept <- c
		select {
		case <-c.closed:
		case <-time.After(20 * time.Second):
			t.Error("the connection was not given up")
		}
	})
}

// answerAll is raft in its simplest form, until ctx ends.
func answerAll(ctx context.Context, t *raft.NetworkTransport) {
	for {
		select {
		case rpc := <-t.Consumer():
			if rpc.Reader != nil {
				_, _ = io.Copy(io.Discard, rpc.Reader)
			}
			rpc.Respond(&raft.AppendEntriesResponse{}, nil)
		case <-ctx.Done():
			return
		}
	}
}

// FuzzTransportAnswer reads what another coordinator may answer.
func FuzzTransportAnswer(f *testing.F) {
	own, l := scriptedTransport(f)
	for i := range peerCalls {
		f.Add(uint8(i), []byte("\xa0\x84\xa4Term\x03\xa7LastLog\x09\xa7Success\xc3\xa7Granted\xc3"))
		f.Add(uint8(i), []byte("\xa3bad\x80"))
	}
	f.Add(uint8(0), []byte("\xdb\xff\xff\xff\xff"))
	fuzztest.Run(f, func(_ *testing.T, call uint8, b []byte) {
		l.dial <- newScriptedConn(b)
		_ = peerCalls[int(call)%len(peerCalls)](own) // an error or an answer
	})
}

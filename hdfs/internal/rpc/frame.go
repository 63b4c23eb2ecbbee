package rpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	pw "google.golang.org/protobuf/encoding/protowire"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

const (
	contextCallID = -3
	rpcVersion    = 9
)

// frame joins delimited parts and prefixes their total length.
func frame(parts ...[]byte) []byte {
	b := make(wire.Message, 4, 256)
	for _, part := range parts {
		b = b.Delimited(part)
	}
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

// requestHeader encodes RpcRequestHeaderProto.
func requestHeader(clientID []byte, callID int32, retry int) []byte {
	m := wire.Message(nil).
		Uint(1, 2). // rpcKind: protocol buffers
		Uint(2, 0). // rpcOp: final packet
		Sint(3, int64(callID)).
		Bytes(4, clientID)
	if retry > 0 {
		m = m.Sint(5, int64(retry))
	}
	return m
}

// connectionContext encodes IpcConnectionContextProto.
func connectionContext(user, protocol string) []byte {
	return wire.Message(nil).Bytes(2, wire.Message(nil).String(1, user)).String(3, protocol)
}

// methodHeader encodes RequestHeaderProto.
func methodHeader(method, protocol string) []byte {
	return wire.Message(nil).String(1, method).String(2, protocol).Uint(3, 1)
}

// readFrame reads one frame of at most limit bytes.
func readFrame(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if uint64(n) > uint64(limit) {
		return nil, fmt.Errorf("%w: RPC frame of %d bytes is over the limit of %d", hdfs.ErrProtocol, n, limit)
	}
	return wire.ReadN(r, nil, int(n))
}

// response is one decoded frame from the server.
type response struct {
	callID int32
	fatal  bool // the server closes the connection
	err    *RemoteError
	body   []byte // aliases the frame; nil when err is set
}

// decodeResponse decodes a frame.
func decodeResponse(b []byte) (response, error) {
	header, rest, err := wire.CutDelimited(b)
	if err != nil {
		return response{}, fmt.Errorf("%w: RPC response header: %w", hdfs.ErrProtocol, err)
	}
	var r response
	var remote RemoteError
	var status uint64
	err = wire.Each(header, func(f wire.Field) error {
		switch f.Number {
		case 1:
			r.callID = int32(f.Varint)
			return f.CheckType(pw.VarintType)
		case 2:
			return f.SetUint(&status)
		case 4:
			return f.SetString(&remote.Class)
		case 5:
			remote.message = firstLine(f.Bytes)
		}
		return nil
	})
	if err != nil {
		return response{}, fmt.Errorf("%w: RPC response header: %w", hdfs.ErrProtocol, err)
	}
	switch status {
	case 0:
		r.body, _, err = wire.CutDelimited(rest)
		if err != nil {
			return response{}, fmt.Errorf("%w: RPC response: %w", hdfs.ErrProtocol, err)
		}
	case 1, 2:
		r.err, r.fatal = &remote, status == 2
	default:
		return response{}, fmt.Errorf("%w: RPC response with status %d", hdfs.ErrProtocol, status)
	}
	return r, nil
}

// firstLine returns the first line of a Java message, without the stack trace.
func firstLine(b []byte) string {
	const limit = 1000
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	return string(b[:min(len(b), limit)])
}

package datanode

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/wire"
)

// fileVersion is the version of block and meta files that this package can read; HDFS has no other.
const fileVersion = 1

// A ShortCircuitError says that a block cannot be read from local files, which is no fault of the
// replica: the DataNode serves it over TCP.
type ShortCircuitError struct {
	Err error
	// Socket: no block can be read through this socket now, not only this one.
	Socket bool
	// Expected: the block is being changed, so that only the DataNode knows which bytes its
	// checksums cover. Nothing is configured wrongly.
	Expected bool
}

func (e *ShortCircuitError) Error() string { return "short-circuit read: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *ShortCircuitError) Unwrap() error { return e.Err }

// requestFiles asks the DataNode behind a domain socket for the open files of a block: its data and
// its meta file. Both are regular files, and the caller closes them. Errors are of type
// ShortCircuitError, unless the context ended.
func requestFiles(ctx context.Context, socket string, request ReadRequest, o Options) (data, meta *os.File, err error) {
	conn, err := connect(ctx, "unix", socket, o)
	if err == nil {
		defer conn.Close()
		data, meta, err = exchangeForFiles(conn, request)
	} else {
		// A full queue of connections is not a broken socket.
		err = &ShortCircuitError{Err: err, Socket: !errors.Is(err, syscall.EAGAIN)}
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return data, meta, err
}

func exchangeForFiles(conn *timedConn, request ReadRequest) (data, meta *os.File, err error) {
	unixConn, ok := conn.Conn.(*net.UnixConn)
	if !ok {
		return nil, nil, &ShortCircuitError{Err: fmt.Errorf("%w: not a Unix socket", hdfs.ErrUnsupported), Socket: true}
	}
	in := &descriptorReader{conn: unixConn, timeout: conn.timeout}
	defer in.closeAll()
	err = sendOp(conn, opRequestFiles, wire.Message(nil).
		Bytes(1, baseHeader(request.Block, request.Token)).
		Uint(2, fileVersion).
		Bool(4, false)) // supportsReceiptVerification, which is for slots in shared memory
	if err != nil {
		return nil, nil, &ShortCircuitError{Err: err, Socket: true}
	}
	r := bufio.NewReaderSize(in, 4<<10)
	response, err := readOpResponse(r)
	if err != nil {
		return nil, nil, &ShortCircuitError{Err: err, Socket: true}
	}
	if err := checkFilesResponse(response); err != nil {
		return nil, nil, err
	}
	if _, err := r.ReadByte(); err != nil { // the descriptors arrive with it
		return nil, nil, &ShortCircuitError{Err: err, Socket: true}
	}
	return in.take()
}

// checkFilesResponse returns an error unless the DataNode is about to send descriptors.
func checkFilesResponse(response opResponse) error {
	err := statusError(response.status, response.message)
	switch {
	case response.status == statusUnsupported, err == nil && response.fileVersion != fileVersion:
		return &ShortCircuitError{Socket: true, Err: fmt.Errorf("%w: the DataNode's files are of version %d, and %d is supported (%s)",
			hdfs.ErrUnsupported, response.fileVersion, fileVersion, response.message)}
	case err != nil:
		return &ShortCircuitError{Err: err}
	}
	return nil
}

// blockDescriptors is the number of descriptors of one answer: data and meta file.
const blockDescriptors = 2

// descriptorReader reads from a Unix socket and holds the descriptors that arrive with the bytes,
// wherever among them: the kernel may return the bytes of two messages as one.
type descriptorReader struct {
	conn        *net.UnixConn
	timeout     time.Duration
	descriptors []int
	excess      bool // more arrived than belong to one block; they are closed
}

// Read implements io.Reader.
func (d *descriptorReader) Read(b []byte) (int, error) {
	if err := d.conn.SetReadDeadline(time.Now().Add(d.timeout)); err != nil {
		return 0, err
	}
	oob := make([]byte, unix.CmsgSpace(4*blockDescriptors))
	n, oobn, flags, _, err := d.conn.ReadMsgUnix(b, oob) // descriptors are closed on exec
	d.excess = d.excess || flags&unix.MSG_CTRUNC != 0
	if oobn > 0 {
		err = errors.Join(err, d.collect(oob[:oobn]))
	}
	return max(n, 0), err // n is -1 after a time-out
}

// collect holds the descriptors of a control message.
func (d *descriptorReader) collect(oob []byte) error {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return fmt.Errorf("%w: control message: %w", hdfs.ErrProtocol, err)
	}
	for _, m := range messages {
		descriptors, err := unix.ParseUnixRights(&m)
		if err != nil {
			continue // carries no descriptors
		}
		for _, fd := range descriptors {
			if len(d.descriptors) == blockDescriptors {
				d.excess = true
				unix.Close(fd)
				continue
			}
			d.descriptors = append(d.descriptors, fd)
		}
	}
	return nil
}

// take returns the two files. Afterwards closeAll does not close them.
func (d *descriptorReader) take() (data, meta *os.File, err error) {
	if len(d.descriptors) != blockDescriptors || d.excess {
		return nil, nil, &ShortCircuitError{Socket: true, Err: fmt.Errorf("%w: %d descriptors for a block, want %d (more: %v)",
			hdfs.ErrProtocol, len(d.descriptors), blockDescriptors, d.excess)}
	}
	for _, fd := range d.descriptors {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			return nil, nil, &ShortCircuitError{Err: fmt.Errorf("%w: a descriptor is not of a regular file (mode %o, %v)", hdfs.ErrProtocol, st.Mode, err)}
		}
	}
	data, meta = os.NewFile(uintptr(d.descriptors[0]), "block file"), os.NewFile(uintptr(d.descriptors[1]), "meta file")
	d.descriptors = nil
	return data, meta, nil
}

func (d *descriptorReader) closeAll() {
	for _, fd := range d.descriptors {
		unix.Close(fd)
	}
	d.descriptors = nil
}

package shuffle

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/hardlink"
	"github.com/drover-run/drover/mapreduce"
)

// headerDescriptor requests a descriptor of the map output in place of its bytes. In the response
// it is the offset of the first byte in that file.
const headerDescriptor = "Drover-Descriptor"

const (
	maxAnswerHead = 16 << 10
	handOverLimit = 10 * time.Second
)

// handOver responds with an open file instead of its bytes, to a reader on a socket of this
// machine: the bytes then pass through no process. If that is impossible, it returns false and has
// sent nothing.
func handOver(w http.ResponseWriter, r *http.Request, status int, data io.Reader, offset int64) bool {
	file, ok := data.(*os.File)
	if !ok || r.Header.Get(headerDescriptor) == "" || r.Method != http.MethodGet {
		return false
	}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); !ok || local.Network() != "unix" {
		return false
	}
	h := w.Header().Clone() // copied before Hijack, after which it cannot be used
	hijacked, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return false
	}
	defer hijacked.Close()
	conn, ok := hijacked.(*net.UnixConn)
	if !ok {
		return true // closing the connection makes the reader try again
	}
	h.Set(headerDescriptor, strconv.FormatInt(offset, 10))
	h.Set("Content-Length", "0")
	h.Set("Connection", "close")
	var head bytes.Buffer
	fmt.Fprintf(&head, "HTTP/1.1 %d %s\r\n", status, http.StatusText(status))
	_ = h.Write(&head) // a bytes.Buffer takes all
	head.WriteString("\r\n")
	_ = conn.SetWriteDeadline(time.Now().Add(handOverLimit)) // without one the write fails no later
	_, _, _ = conn.WriteMsgUnix(head.Bytes(), unix.UnixRights(int(file.Fd())), nil)
	return true
}

// doLocal sends a request to a socket of this machine. If the response brings a descriptor, its
// body is read from that file.
func doLocal(ctx context.Context, socket string, req *http.Request) (*http.Response, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	conn := c.(*net.UnixConn)
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	res, err := exchange(conn, req)
	if err != nil {
		stop()
		return nil, errors.Join(err, context.Cause(ctx), conn.Close())
	}
	body := &localBody{Reader: res.Body, free: func() { stop(); _ = conn.Close() }}
	if inner, ok := res.Body.(*localBody); ok {
		body.file = inner.file
		body.free = func() { stop(); _ = conn.Close(); inner.free() }
	}
	res.Body = body
	return res, nil
}

// exchange sends the request and reads the head of the response with its descriptor.
func exchange(conn *net.UnixConn, req *http.Request) (*http.Response, error) {
	req.Header.Set(headerDescriptor, "1")
	req.Close = true
	if err := req.Write(conn); err != nil {
		return nil, err
	}
	head, rights := make([]byte, maxAnswerHead), make([]byte, unix.CmsgSpace(4))
	n, nr, _, _, err := conn.ReadMsgUnix(head, rights)
	if err != nil {
		return nil, err
	}
	file, err := receivedFile(rights[:nr])
	if err != nil {
		return nil, err
	}
	res, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head[:n]), conn)), req)
	if err != nil || file == nil {
		return res, errors.Join(err, closeFile(file))
	}
	offset, err := strconv.ParseInt(res.Header.Get(headerDescriptor), 10, 64)
	if err != nil || offset < 0 {
		return nil, errors.Join(fmt.Errorf("a descriptor with the offset %q", res.Header.Get(headerDescriptor)), closeFile(file))
	}
	res.Body = &localBody{Reader: io.NewSectionReader(file, offset, math.MaxInt64-offset), file: file, free: func() { _ = file.Close() }}
	return res, nil
}

// receivedFile returns the file in a control message, nil if there is none.
func receivedFile(control []byte) (*os.File, error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, err
	}
	for i := range messages {
		if fds, err := unix.ParseUnixRights(&messages[i]); err == nil && len(fds) == 1 {
			return os.NewFile(uintptr(fds[0]), "map output"), nil
		}
	}
	return nil, errors.New("a control message without a descriptor")
}

func closeFile(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// localBody reads a body, and closes its connection and file.
type localBody struct {
	io.Reader
	file *os.File // the map output; nil if the bytes come over the socket
	free func()
}

// link links the map output to name, if the partition is all of it and the link can replace a copy
// at the place of the file to. It reports whether it did.
func (b *localBody) link(name string, r mapreduce.PartitionRange, to *os.File) bool {
	if b.file == nil || r.Length == 0 {
		return false
	}
	st, err := b.file.Stat()
	if err != nil || st.Size() != r.Length || hardlink.Check(b.file, to) != nil {
		return false
	}
	return hardlink.Create(b.file, unix.AT_FDCWD, name) == nil
}

func (b *localBody) Close() error {
	b.free()
	return nil
}

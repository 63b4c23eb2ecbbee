package datanode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/internal/namenode"
	"github.com/drover-run/drover/hdfs/internal/wire"
	"github.com/drover-run/drover/internal/fuzztest"
)

// serveSocket serves one connection of a Unix socket. The test waits for serve.
func serveSocket(t *testing.T, serve func(*net.UnixConn)) (path string, o Options) {
	t.Helper()
	dir, err := os.MkdirTemp("", "dn") // t.TempDir may be too long for a socket
	must(t, err)
	path = filepath.Join(dir, "s")
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := listener.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		serve(conn)
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
		os.RemoveAll(dir)
	})
	return path, Options{DialTimeout: time.Second, IOTimeout: 5 * time.Second, Dial: (&net.Dialer{}).DialContext}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// replica is what a DataNode stores of a block.
type replica struct{ data, meta []byte }

// newReplica returns a replica with checksums of a type (0, 1 or 2).
func newReplica(data []byte, kind byte, bytesPerChecksum int) replica {
	meta := binary.BigEndian.AppendUint32([]byte{0, 1, kind}, uint32(bytesPerChecksum))
	for chunk := range slices.Chunk(data, bytesPerChecksum) {
		switch kind {
		case 1:
			meta = binary.BigEndian.AppendUint32(meta, crc32.ChecksumIEEE(chunk))
		case 2:
			meta = binary.BigEndian.AppendUint32(meta, crc32.Checksum(chunk, castagnoli))
		}
	}
	return replica{bytes.Clone(data), meta}
}

// with returns the replica with another meta file or data.
func (r replica) with(change func(*replica)) replica {
	r.data, r.meta = bytes.Clone(r.data), bytes.Clone(r.meta)
	change(&r)
	return r
}

// open opens the files of the replica for reading.
func (r replica) open(t *testing.T) []*os.File {
	t.Helper()
	dir := t.TempDir()
	var files []*os.File
	for name, content := range map[string][]byte{"0": r.data, "1": r.meta} {
		must(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
	}
	for _, name := range []string{"0", "1"} {
		f, err := os.Open(filepath.Join(dir, name))
		must(t, err)
		files = append(files, f)
	}
	return files
}

// pass sends the descriptors of files with one byte, and closes the files.
func pass(conn *net.UnixConn, files ...*os.File) {
	var descriptors []int
	for _, f := range files {
		descriptors = append(descriptors, int(f.Fd()))
	}
	_, _, _ = conn.WriteMsgUnix([]byte{0}, unix.UnixRights(descriptors...), nil)
	for _, f := range files {
		f.Close()
	}
}

func filesResponse(status, version uint64) []byte {
	m := wire.Message(nil).Uint(1, status).String(5, "a reason")
	if version > 0 {
		m = m.Uint(6, version)
	}
	return wire.Message(nil).Delimited(m)
}

func readLocal(ctx context.Context, socket string, o Options, blockBytes, offset, length int64) ([]byte, error) {
	r, err := OpenLocalReader(ctx, socket, ReadRequest{Block: namenode.ExtendedBlock{Pool: "BP", ID: 7, Length: blockBytes}, Offset: offset, Length: length}, o)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

// openDescriptors lists the descriptors of this process.
func openDescriptors(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	var all []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasSuffix(to, "/fd") {
			all = append(all, to)
		}
	}
	slices.Sort(all)
	return all
}

func TestLocalReaderReturnsExactRange(t *testing.T) {
	block := blockBytes(2*batchBytes + 12_345)
	size := int64(len(block))
	for kind, bytesPerChecksum := range map[byte]int{0: 512, 1: 1000, 2: 512} {
		stored := newReplica(block, kind, bytesPerChecksum)
		for _, c := range []struct{ offset, length int64 }{
			{0, size}, {0, 1}, {511, 2}, {512, 512}, {700, size - 700}, {size - 1, 1}, {batchBytes - 1, 2}, {1234, batchBytes},
		} {
			socket, o := serveSocket(t, func(conn *net.UnixConn) {
				readOp(conn)
				conn.Write(filesResponse(0, 1))
				pass(conn, stored.open(t)...)
			})
			got, err := readLocal(t.Context(), socket, o, size, c.offset, c.length)
			if err != nil || !bytes.Equal(got, block[c.offset:c.offset+c.length]) {
				t.Errorf("type %d, %+v: %d bytes, %v", kind, c, len(got), err)
			}
		}
	}
}

// The request names the block and the only version of files that is supported, without a slot in
// shared memory.
func TestRequestForFiles(t *testing.T) {
	got := make(chan []byte, 1)
	socket, o := serveSocket(t, func(conn *net.UnixConn) {
		b := make([]byte, 1000)
		n, _ := conn.Read(b)
		got <- b[:n]
	})
	block := namenode.ExtendedBlock{Pool: "BP", ID: 7, Length: 3}
	if _, err := OpenLocalReader(t.Context(), socket, ReadRequest{Block: block, Token: []byte("token"), Length: 3}, o); err == nil {
		t.Error("opened without an answer")
	}
	base := wire.Message(nil).Bytes(1, block.Encode()).String(2, "token")
	want := wire.Message{0, 28, 87}.Delimited(wire.Message(nil).Bytes(1, base).Uint(2, 1).Bool(4, false))
	if b := <-got; !bytes.Equal(b, want) {
		t.Errorf("sent %x, want %x", b, want)
	}
}

// What a damaged replica or a hostile DataNode may answer.
const (
	overTCP   = 1 + iota // this block is to be read over TCP
	allTCP               // every block is
	silentTCP            // this block is, and that is no cause for a warning
	damaged              // the replica is unusable
)

func TestHostileAnswersToARequestForFiles(t *testing.T) {
	block := blockBytes(4096)
	good := newReplica(block, 2, 512)
	answer := func(status, version uint64) func(*testing.T, *net.UnixConn) {
		return func(_ *testing.T, conn *net.UnixConn) { conn.Write(filesResponse(status, version)) }
	}
	files := func(open func(t *testing.T) []*os.File) func(*testing.T, *net.UnixConn) {
		return func(t *testing.T, conn *net.UnixConn) {
			conn.Write(filesResponse(0, 1))
			pass(conn, open(t)...)
		}
	}
	some := func(n int) func(t *testing.T) []*os.File { // n files, in turn the data and the meta file of a good replica
		return func(t *testing.T) (all []*os.File) {
			for len(all) < n {
				all = append(all, good.open(t)...)
			}
			for _, f := range all[n:] {
				f.Close()
			}
			return all[:n]
		}
	}
	stored := func(change func(*replica)) func(*testing.T, *net.UnixConn) { return files(good.with(change).open) }
	header := func(b ...byte) func(*testing.T, *net.UnixConn) {
		return stored(func(r *replica) { copy(r.meta, b) })
	}
	for claim, c := range map[string]struct {
		serve func(*testing.T, *net.UnixConn)
		class error
		want  int
	}{
		"a hang-up":                  {func(*testing.T, *net.UnixConn) {}, io.EOF, allTCP},
		"no status":                  {func(_ *testing.T, conn *net.UnixConn) { conn.Write(wire.Message(nil).Delimited(nil)) }, hdfs.ErrProtocol, allTCP},
		"a message over the limit":   {func(_ *testing.T, conn *net.UnixConn) { conn.Write([]byte{0xff, 0xff, 0xff, 0xff, 0x0f}) }, wire.ErrMalformed, allTCP},
		"a refused token":            {answer(statusAccessToken, 0), hdfs.ErrPermission, overTCP},
		"a failure":                  {answer(1, 0), nil, overTCP},
		"files that are not passed":  {answer(statusUnsupported, 0), hdfs.ErrUnsupported, allTCP},
		"a version that is too new":  {answer(statusUnsupported, 2), hdfs.ErrUnsupported, allTCP},
		"success with a new version": {answer(0, 2), hdfs.ErrUnsupported, allTCP},
		"success without a version":  {answer(0, 0), hdfs.ErrUnsupported, allTCP},
		"no descriptors":             {answer(0, 1), io.EOF, allTCP},
		"one descriptor":             {files(some(1)), hdfs.ErrProtocol, allTCP},
		"three descriptors":          {files(some(3)), hdfs.ErrProtocol, allTCP},
		"many descriptors":           {files(some(40)), hdfs.ErrProtocol, allTCP},
		"a byte without descriptors": {func(_ *testing.T, conn *net.UnixConn) { conn.Write(append(filesResponse(0, 1), 0)) }, hdfs.ErrProtocol, allTCP},
		"descriptors before the answer": {func(t *testing.T, conn *net.UnixConn) {
			pass(conn, good.open(t)...)
			conn.Write([]byte{0})
		}, hdfs.ErrProtocol, allTCP},
		"descriptors with a failure": {func(t *testing.T, conn *net.UnixConn) {
			fs := good.open(t)
			_, _, _ = conn.WriteMsgUnix(filesResponse(1, 0), unix.UnixRights(int(fs[0].Fd()), int(fs[1].Fd())), nil)
			fs[0].Close()
			fs[1].Close()
		}, nil, overTCP},
		"folders": {files(func(t *testing.T) []*os.File {
			a, _ := os.Open("/")
			b, _ := os.Open("/")
			return []*os.File{a, b}
		}), hdfs.ErrProtocol, overTCP},
		"a pipe": {files(func(t *testing.T) []*os.File {
			a, b, _ := os.Pipe()
			return []*os.File{a, b}
		}), hdfs.ErrProtocol, overTCP},
		"files for writing": {files(func(t *testing.T) []*os.File {
			a, _ := os.OpenFile(filepath.Join(t.TempDir(), "a"), os.O_CREATE|os.O_WRONLY, 0o600)
			_ = a.Truncate(int64(len(block)))
			more := good.open(t)
			more[0].Close()
			return []*os.File{a, more[1]}
		}), unix.EBADF, damaged},
		"the files the wrong way round": {files(func(t *testing.T) []*os.File { fs := good.open(t); return []*os.File{fs[1], fs[0]} }), nil, damaged},
		"a short block file":            {stored(func(r *replica) { r.data = r.data[:4000] }), nil, damaged},
		"a block file that grows":       {stored(func(r *replica) { r.data = append(r.data, 1) }), hdfs.ErrChanged, silentTCP},
		"a flipped bit":                 {stored(func(r *replica) { r.data[4000] ^= 1 }), errChecksum, damaged},
		"a flipped bit of a checksum":   {stored(func(r *replica) { r.meta[10] ^= 1 }), errChecksum, damaged},
		"an empty meta file":            {stored(func(r *replica) { r.meta = nil }), io.ErrUnexpectedEOF, damaged},
		"half a header":                 {stored(func(r *replica) { r.meta = r.meta[:4] }), io.ErrUnexpectedEOF, damaged},
		"checksums that end early":      {stored(func(r *replica) { r.meta = r.meta[:len(r.meta)-1] }), io.ErrUnexpectedEOF, damaged},
		"a meta file that is too new":   {header(0, 2), hdfs.ErrUnsupported, overTCP},
		"an unknown type of checksums":  {header(0, 1, 4), hdfs.ErrUnsupported, overTCP},
		"no bytes per checksum":         {header(0, 1, 2, 0, 0, 0, 0), hdfs.ErrProtocol, damaged},
		"negative bytes per checksum":   {header(0, 1, 2, 0xff, 0xff, 0xff, 0xff), hdfs.ErrProtocol, damaged},
		"a checksum of 16 MiB":          {header(0, 1, 2, 1, 0, 0, 0), hdfs.ErrUnsupported, overTCP},
		"a checksum of 256 KiB":         {header(0, 1, 2, 0, 4, 0, 0), errChecksum, damaged},
		"a checksum of more":            {header(0, 1, 2, 0, 4, 0, 1), hdfs.ErrUnsupported, overTCP},
		"a checksum of one byte":        {header(0, 1, 2, 0, 0, 0, 1), io.ErrUnexpectedEOF, damaged},
	} {
		t.Run(claim, func(t *testing.T) {
			before := openDescriptors(t)
			t.Cleanup(func() { // after all others
				if after := openDescriptors(t); !slices.Equal(before, after) {
					t.Errorf("descriptors are left: %q before, %q after", before, after)
				}
			})
			socket, o := serveSocket(t, func(conn *net.UnixConn) {
				readOp(conn)
				c.serve(t, conn)
			})
			_, err := readLocal(t.Context(), socket, o, int64(len(block)), 0, int64(len(block)))
			if err == nil || c.class != nil && !errors.Is(err, c.class) {
				t.Errorf("%v, want %v", err, c.class)
			}
			got := damaged
			if failure := (*ShortCircuitError)(nil); errors.As(err, &failure) {
				switch {
				case failure.Expected:
					got = silentTCP
				case failure.Socket:
					got = allTCP
				default:
					got = overTCP
				}
			}
			if got != c.want {
				t.Errorf("%v: kind %d, want %d", err, got, c.want)
			}
		})
	}
}

// An append that begins after the files were opened changes the checksum of the last chunk.
func TestAppendToAnOpenBlock(t *testing.T) {
	block := blockBytes(1000)
	files := newReplica(block, 2, 512).open(t)
	dir := filepath.Dir(files[0].Name())
	more := append(bytes.Clone(block), "more"...)
	b := &blockFiles{data: files[0], meta: files[1], blockBytes: 1000, end: 1000}
	must(t, b.readHeader())
	must(t, os.WriteFile(filepath.Join(dir, "0"), more, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "1"), newReplica(more, 2, 512).meta, 0o600))
	got := b.readBatch(nil)
	b.close()
	if failure := (*ShortCircuitError)(nil); !errors.As(got.err, &failure) || !failure.Expected {
		t.Errorf("%v", got.err)
	}
}

// Files that were passed remain readable when the DataNode has ended and removed the block.
func TestFilesOutliveTheDataNode(t *testing.T) {
	block := blockBytes(3 * batchBytes)
	socket, o := serveSocket(t, func(conn *net.UnixConn) {
		readOp(conn)
		conn.Write(filesResponse(0, 1))
		files := newReplica(block, 2, 512).open(t)
		must(t, os.RemoveAll(filepath.Dir(files[0].Name())))
		pass(conn, files...)
	})
	if got, err := readLocal(t.Context(), socket, o, int64(len(block)), 5, int64(len(block))-5); err != nil || !bytes.Equal(got, block[5:]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

func TestSocketThatCannotBeUsed(t *testing.T) {
	socket, o := serveSocket(t, func(conn *net.UnixConn) {})
	o.IOTimeout = 50 * time.Millisecond
	silent, _ := serveSocket(t, func(conn *net.UnixConn) { _, _ = io.Copy(io.Discard, conn) })
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket + ".dead", Net: "unix"})
	must(t, err)
	dead.SetUnlinkOnClose(false)
	dead.Close()
	for claim, c := range map[string]struct {
		path  string
		class error
	}{
		"absent":             {socket + ".absent", unix.ENOENT},
		"nobody listens":     {socket + ".dead", unix.ECONNREFUSED},
		"it does not answer": {silent, os.ErrDeadlineExceeded},
	} {
		_, err := readLocal(t.Context(), c.path, o, 1, 0, 1)
		if failure := (*ShortCircuitError)(nil); !errors.As(err, &failure) || !failure.Socket || !errors.Is(err, c.class) {
			t.Errorf("%s: %v, want %v", claim, err, c.class)
		}
	}
	o.Dial = func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("dial: %w", unix.EAGAIN)
	}
	_, err = readLocal(t.Context(), socket, o, 1, 0, 1)
	if failure := (*ShortCircuitError)(nil); !errors.As(err, &failure) || failure.Socket {
		t.Errorf("a queue that is full for a moment: %v", err)
	}
}

func TestContextEndsARequestForFiles(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	socket, o := serveSocket(t, func(conn *net.UnixConn) {
		readOp(conn)
		cancel() // and never answer
		_, _ = io.Copy(io.Discard, conn)
	})
	if _, err := readLocal(ctx, socket, o, 1, 0, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A disk that hangs delays its reader by the time-out, and Close by a moment.
func TestDiskThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &LocalReader{timeout: 30 * time.Second, full: make(chan batch), free: make(chan []byte), done: make(chan struct{})}
		r.ctx, r.stop = context.WithCancel(t.Context())
		begin := time.Now()
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != 30*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		if r.Close(); time.Since(begin) != 30*time.Second+closeWait {
			t.Errorf("closed after %v", time.Since(begin))
		}
	})
}

// A reader that is closed early ends its goroutine and closes the files.
func TestLocalReaderIsClosedEarly(t *testing.T) {
	block := blockBytes(4 * batchBytes)
	files := newReplica(block, 2, 512).open(t)
	r := newLocalReader(t.Context(), &blockFiles{data: files[0], meta: files[1], blockBytes: int64(len(block)), end: int64(len(block))}, time.Minute)
	if n, err := r.Read(make([]byte, 100)); n != 100 || err != nil {
		t.Errorf("%d bytes, %v", n, err)
	}
	r.Close()
	if err := files[0].Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the block file was still open: %v", err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("%v", err)
	}
}

// FuzzMetaFile reads a good block with an arbitrary meta file: correct bytes or an error.
func FuzzMetaFile(f *testing.F) {
	block := blockBytes(3000)
	for _, kind := range []byte{0, 1, 2} {
		f.Add(newReplica(block, kind, 512).meta)
	}
	f.Add(newReplica(block, 2, 1).meta)
	f.Add([]byte{0, 1, 2, 0, 4, 0, 0})
	f.Add([]byte{})
	data := memoryFile(f, block)
	fuzztest.Run(f, func(t *testing.T, meta []byte) {
		m := memoryFile(t, meta)
		defer m.Close()
		files := &blockFiles{data: data, meta: m, blockBytes: int64(len(block)), next: 600, end: 2600}
		if files.readHeader() != nil {
			return
		}
		var got []byte
		for files.next < files.end {
			b := files.readBatch(nil)
			if b.err != nil {
				return
			}
			if len(b.data) == 0 || cap(b.buffer) > 2*batchBytes {
				t.Fatalf("a batch of %d bytes in %d", len(b.data), cap(b.buffer))
			}
			got = append(got, b.data...)
		}
		if !bytes.Equal(got, block[600:2600]) {
			t.Errorf("%d other bytes without an error", len(got))
		}
	})
	data.Close()
}

// memoryFile returns a file without a name.
func memoryFile(t testing.TB, content []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("block", unix.MFD_CLOEXEC)
	must(t, err)
	file := os.NewFile(uintptr(fd), "memory")
	_, err = file.WriteAt(content, 0)
	must(t, err)
	return file
}

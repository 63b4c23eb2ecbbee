package shuffle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/internal/unixhttp"
	"github.com/drover-run/drover/mapreduce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var key = OutputKey{Job: 7, Stage: 1, Task: 2, Attempt: 3, Run: 4}

// fakeOutputs is one map output of three partitions; the middle one is empty.
type fakeOutputs struct {
	mu     sync.Mutex
	data   []byte
	gone   bool
	dir    string  // data is opened as a file in here, if not empty
	single bool    // data is one partition
	fails  []error // of the next calls of Open
	counts map[int]int
	bytes  int64
}

func (s *fakeOutputs) CountRequest(status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts == nil {
		s.counts = map[int]int{}
	}
	s.counts[status]++
}

func (s *fakeOutputs) counted() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.counts {
		n += c
	}
	return n
}

func (s *fakeOutputs) CountBytes(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += n
}

func (s *fakeOutputs) Token(k OutputKey) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || k.Task != key.Task {
		return "", fault.New(fault.NotFound, "not here")
	}
	return "token", nil
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

func (s *fakeOutputs) Open(OutputKey) (*Output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.fails) > 0 {
		err := s.fails[0]
		s.fails = s.fails[1:]
		return nil, err
	}
	half := int64(len(content()) / 2)
	whole := content()
	part := func(from, to int64) mapreduce.PartitionRange {
		return mapreduce.PartitionRange{Offset: from, Length: to - from, RawLength: to - from, Records: 1, CRC32C: mapreduce.CRC32C(0, whole[from:to])}
	}
	x := &mapreduce.Index{Codec: mapreduce.CodecNone, Parts: []mapreduce.PartitionRange{part(0, half), part(half, half), part(half, int64(len(whole)))}}
	if s.single {
		x.Parts = []mapreduce.PartitionRange{part(0, int64(len(whole)))}
	}
	out := &Output{Index: x, Data: nopCloser{bytes.NewReader(s.data)}}
	if s.dir == "" {
		return out, nil
	}
	path := filepath.Join(s.dir, "data")
	err := os.WriteFile(path, s.data, 0o600)
	if err == nil {
		out.Data, err = os.Open(path)
	}
	return out, err
}

func content() []byte {
	var b bytes.Buffer
	for i := range 20000 {
		fmt.Fprintf(&b, "%d,", i*i)
	}
	return b.Bytes()
}

// way is how a reader and a server are connected.
type way string

const (
	network  way = "network"
	socket   way = "socket"    // bytes over a socket
	openFile way = "open file" // a descriptor over a socket
)

func eachWay(t *testing.T, f func(t *testing.T, w way)) {
	t.Helper()
	for _, w := range []way{network, socket, openFile} {
		t.Run(string(w), func(t *testing.T) { f(t, w) })
	}
}

// serve returns a client and the address of a server; wrap may intercept requests.
func serve(t *testing.T, w way, s *fakeOutputs, most int, wrap func(http.Handler) http.Handler) (*Client, string) {
	t.Helper()
	var h http.Handler = NewServer(s, most, slog.New(slog.DiscardHandler), s)
	if wrap != nil {
		h = wrap(h)
	}
	if w == openFile {
		s.dir = t.TempDir()
	}
	srv := httptest.NewUnstartedServer(h)
	address := strings.TrimPrefix(srv.Listener.Addr().String(), "http://")
	if w != network {
		path := filepath.Join(t.TempDir(), "s")
		l, err := unixhttp.Listen(path, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_ = srv.Listener.Close() // the socket takes its place
		srv.Listener, address = l, unixhttp.Scheme+path
	}
	srv.Start()
	t.Cleanup(srv.Close)
	return &Client{HTTP: srv.Client(), Scheme: "http", Token: "token"}, address
}

// countingWriter counts the bytes of bodies.
type countingWriter struct {
	http.ResponseWriter
	n *atomic.Int64
}

func (w countingWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
func (w countingWriter) Write(p []byte) (int, error) {
	w.n.Add(int64(len(p)))
	return w.ResponseWriter.Write(p)
}

func TestFetch(t *testing.T) {
	eachWay(t, func(t *testing.T, w way) {
		var sent atomic.Int64
		s := &fakeOutputs{data: content()}
		c, address := serve(t, w, s, 10, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(countingWriter{w, &sent}, r) })
		})
		testFetch(t, c, address)
		for end := time.Now().Add(10 * time.Second); s.counted() < 6 && time.Now().Before(end); time.Sleep(time.Millisecond) { // a request counts when it has ended
		}
		if s.bytes != int64(len(content())) || s.counts[http.StatusOK] != 4 || s.counts[http.StatusPartialContent] != 2 {
			t.Errorf("counted %d bytes and, by status, %v", s.bytes, s.counts)
		}
		if want := int64(len(content())); w != openFile && sent.Load() != want || w == openFile && sent.Load() != 0 {
			t.Errorf("%d bytes were sent, of %d", sent.Load(), want)
		}
	})
}

func testFetch(t *testing.T, c *Client, address string) {
	t.Helper()
	half := len(content()) / 2
	for partition, want := range [][]byte{content()[:half], nil, content()[half:]} {
		path := filepath.Join(t.TempDir(), "p")
		got, err := c.Fetch(t.Context(), address, key, partition, path)
		if err != nil {
			t.Fatalf("partition %d: %v", partition, err)
		}
		b, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(b, want) || got.Range.Length != int64(len(want)) || got.Range.Offset != 0 || got.Codec != mapreduce.CodecNone {
			t.Errorf("partition %d: %d bytes, %+v, %v", partition, len(b), got, err)
		}
		// A repetition fetches only the header and verifies the file.
		if _, err := c.Fetch(t.Context(), address, key, partition, path); err != nil {
			t.Errorf("partition %d again: %v", partition, err)
		}
	}
}

// A whole map output of this machine is linked, whatever an earlier helper left behind; damage is
// found all the same, and never written to.
func TestFetchLinksWholeOutput(t *testing.T) {
	damaged := append([]byte(nil), content()...)
	damaged[10] ^= 1
	eachWay(t, func(t *testing.T, w way) {
		s := &fakeOutputs{data: content(), single: true}
		c, address := serve(t, w, s, 10, nil)
		path := filepath.Join(t.TempDir(), "p")
		for range 2 {
			got, err := c.Fetch(t.Context(), address, key, 0, path)
			if err != nil {
				t.Fatal(err)
			}
			want := path
			if w == openFile {
				want = path + linkSuffix
			}
			b, err := os.ReadFile(got.Path)
			if err != nil || !bytes.Equal(b, content()) || got.Path != want || got.Range.Offset != 0 {
				t.Errorf("%d bytes, %+v, %v", len(b), got, err)
			}
			if w != openFile {
				continue
			}
			a, aErr := os.Stat(got.Path)
			b2, bErr := os.Stat(filepath.Join(s.dir, "data"))
			if aErr != nil || bErr != nil || !os.SameFile(a, b2) {
				t.Errorf("%s is no link: %v %v", got.Path, aErr, bErr)
			}
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s is left behind: %v", path, err)
			}
		}
		s.data = damaged
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		if _, err := c.Fetch(t.Context(), address, key, 0, path); !errors.Is(err, fault.Corrupt) {
			t.Errorf("%v, want %v", err, fault.Corrupt)
		}
		if _, err := os.Stat(path + linkSuffix); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a damaged output is left behind: %v", err)
		}
		if w == openFile {
			if b, err := os.ReadFile(filepath.Join(s.dir, "data")); err != nil || !bytes.Equal(b, damaged) {
				t.Errorf("the map output was changed: %d bytes, %v", len(b), err)
			}
		}
	})
}

// A server on a socket that answers nothing, or not in HTTP, or with a descriptor and no
// offset, is tried again, and nothing is left open.
func TestSocketAnswers(t *testing.T) {
	for name, answer := range map[string]func(c *net.UnixConn) error{
		"nothing": func(*net.UnixConn) error { return nil },
		"no HTTP": func(c *net.UnixConn) error {
			_, err := c.Write([]byte("hello\r\n\r\n"))
			return err
		},
		"a descriptor without an offset": func(c *net.UnixConn) error {
			f, err := os.Open(os.DevNull)
			if err != nil {
				return err
			}
			defer f.Close()
			_, _, err = c.WriteMsgUnix([]byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), syscall.UnixRights(int(f.Fd())), nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if err := l.SetDeadline(time.Now().Add(time.Minute)); err != nil { // nobody may call
				t.Fatal(err)
			}
			answered := make(chan error, 1)
			go func() {
				conn, err := l.AcceptUnix()
				if err == nil {
					_, err = conn.Read(make([]byte, 4096))
					err = errors.Join(err, answer(conn), conn.Close())
				}
				answered <- err
			}()
			c := &Client{Scheme: "http", Token: "token"}
			if _, err := c.Fetch(t.Context(), unixhttp.Scheme+l.Addr().String(), key, 0, filepath.Join(t.TempDir(), "p")); !errors.Is(err, fault.Unavailable) {
				t.Errorf("%v, want unavailable", err)
			}
			if err := <-answered; err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A server that is silent for longer than the limit is given up.
func TestSilentSocket(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := &Client{Scheme: "http", Token: "token", stallLimit: time.Millisecond}
	if _, err := c.Fetch(t.Context(), unixhttp.Scheme+l.Addr().String(), key, 0, filepath.Join(t.TempDir(), "p")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("%v, want unavailable", err)
	}
}

// A connection that breaks every few bytes still transfers the whole partition,
// resuming where it broke.
func TestResume(t *testing.T) { eachWay(t, testResume) }

func testResume(t *testing.T, w way) {
	breaks := 0
	c, address := serve(t, w, &fakeOutputs{data: content()}, 10, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			next.ServeHTTP(&cutWriter{ResponseWriter: w, left: 30000}, r)
		})
	})
	path := filepath.Join(t.TempDir(), "p")
	for {
		_, err := c.Fetch(t.Context(), address, key, 0, path)
		if err == nil {
			break
		}
		if breaks++; !errors.Is(err, fault.Unavailable) || breaks > 100 {
			t.Fatalf("break %d: %v", breaks, err)
		}
	}
	b, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(b, content()[:len(content())/2]) || breaks < 2 {
		t.Errorf("%d bytes after %d breaks, %v", len(b), breaks, err)
	}
}

// cutWriter lets some bytes through and then breaks the connection.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (w *cutWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		n, _ := w.ResponseWriter.Write(p[:w.left])
		w.left = 0
		return n, errors.New("cut")
	}
	w.left -= len(p)
	return w.ResponseWriter.Write(p)
}

func TestRefusals(t *testing.T) { eachWay(t, testRefusals) }

func testRefusals(t *testing.T, w way) {
	damaged := append([]byte(nil), content()...)
	damaged[10] ^= 1
	for name, c := range map[string]struct {
		shelf     *fakeOutputs
		most      int
		token     string
		partition int
		have      int // bytes already in the file
		err       error
	}{
		"another token":                      {&fakeOutputs{data: content()}, 10, "other", 0, 0, fault.Denied},
		"no token":                           {&fakeOutputs{data: content()}, 10, "", 0, 0, fault.Denied},
		"an output that is gone":             {&fakeOutputs{gone: true}, 10, "token", 0, 0, fault.NotFound},
		"no such partition":                  {&fakeOutputs{data: content()}, 10, "token", 3, 0, fault.NotFound},
		"damaged bytes":                      {&fakeOutputs{data: damaged}, 10, "token", 0, 0, fault.Corrupt},
		"a shortened file":                   {&fakeOutputs{data: content()[:100]}, 10, "token", 0, 0, fault.Unavailable},
		"a server that is full":              {&fakeOutputs{data: content()}, 0, "token", 0, 0, fault.Unavailable},
		"too much is here":                   {&fakeOutputs{data: content()}, 10, "token", 0, len(content()), fault.Unavailable},
		"the partial file has other content": {&fakeOutputs{data: content()}, 10, "token", 0, 50, fault.Corrupt},
	} {
		t.Run(name, func(t *testing.T) {
			client, address := serve(t, w, c.shelf, c.most, nil)
			client.Token = c.token
			path := filepath.Join(t.TempDir(), "p")
			if err := os.WriteFile(path, make([]byte, c.have), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := client.Fetch(t.Context(), address, key, c.partition, path)
			if !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if busy := new(Busy); errors.As(err, &busy) != (c.most == 0) || c.most == 0 && busy.Pause != time.Second {
				t.Errorf("%v: a pause of %v", err, busy.Pause)
			}
			if errors.Is(c.err, fault.Corrupt) || c.have == len(content()) {
				if st, err := os.Stat(path); err != nil || st.Size() != 0 {
					t.Errorf("the bad bytes are still there: %v %v", st, err)
				}
			}
		})
	}
}

// A pause is bounded, whatever a node asks for.
func TestPausesOfBusyNodes(t *testing.T) {
	for asked, want := range map[string]time.Duration{
		"": time.Second, "0": time.Second, "-5": time.Second, "soon": time.Second, "7": 7 * time.Second, "86400": maxBusyPause, "99999999999999999999": maxBusyPause,
	} {
		if got := busy(http.Header{"Retry-After": {asked}}).Pause; got != want {
			t.Errorf("%q: %v, want %v", asked, got, want)
		}
	}
}

// A server that cannot open an output just now has not lost it: the client is to ask again. Damage is what is wrong with the files.
func TestOutputsThatCannotBeOpened(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		class error
		busy  bool
	}{
		"no descriptors":      {&os.PathError{Op: "open", Path: "data", Err: syscall.EMFILE}, fault.Unavailable, true},
		"no memory":           {syscall.ENOMEM, fault.Unavailable, true},
		"a damaged index":     {fault.New(fault.Corrupt, "checksum differs"), fault.Corrupt, false},
		"a pipe in its place": {fault.New(fault.Invalid, "data is not a regular file"), fault.Corrupt, false},
		"a damaged disk":      {&os.PathError{Op: "read", Path: "index", Err: syscall.EIO}, fault.Corrupt, false},
		"no file":             {os.ErrNotExist, fault.NotFound, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, address := serve(t, network, &fakeOutputs{data: content(), fails: []error{c.err}}, 1, nil)
			file := filepath.Join(t.TempDir(), "p")
			var busy *Busy
			if _, err := client.Fetch(t.Context(), address, key, 0, file); !errors.Is(err, c.class) || errors.As(err, &busy) != c.busy {
				t.Errorf("%v", err)
			}
			if got, err := client.Fetch(t.Context(), address, key, 0, file); err != nil || got.Range.Length == 0 {
				t.Errorf("the next try: %+v %v", got, err)
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	c, address := serve(t, network, &fakeOutputs{}, 1, nil)
	for _, gone := range []string{strings.Split(address, ":")[0] + ":1", unixhttp.Scheme + filepath.Join(t.TempDir(), "s")} {
		if _, err := c.Fetch(t.Context(), gone, key, 0, filepath.Join(t.TempDir(), "p")); !errors.Is(err, fault.Unavailable) {
			t.Errorf("%s: %v, want unavailable", gone, err)
		}
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add(Path(key, 5))
	f.Add("/shuffle/1/2/3.4.5/6/7")
	f.Add("/shuffle/../2/3.4.5/6")
	fuzztest.Run(f, func(t *testing.T, s string) {
		if k, p, ok := parsePath(s); ok && Path(k, p) != s {
			t.Errorf("%q reads as %v %d", s, k, p)
		}
	})
}

func FuzzRange(f *testing.F) {
	f.Add("bytes=5-")
	f.Add("bytes=-5")
	fuzztest.Run(f, func(t *testing.T, s string) {
		if n, ok := rangeStart(s); ok && s != "" && n < 0 {
			t.Errorf("%q reads as %d", s, n)
		}
	})
}

package shuffle

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var key = &droverv1.AttemptKey{Job: 7, Stage: 1, Task: 2, Attempt: 3, Run: 4}

// fakeOutputs is one map output of three partitions; the middle one is empty.
type fakeOutputs struct {
	mu   sync.Mutex
	data []byte
	gone bool
}

func (s *fakeOutputs) Token(k *droverv1.AttemptKey) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || k.GetTask() != key.GetTask() {
		return "", fault.New(fault.NotFound, "not here")
	}
	return "token", nil
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

func (s *fakeOutputs) Open(*droverv1.AttemptKey) (*Output, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	half := int64(len(content()) / 2)
	whole := content()
	part := func(from, to int64) mapreduce.PartitionRange {
		return mapreduce.PartitionRange{Offset: from, Length: to - from, RawLength: to - from, Records: 1, CRC32C: mapreduce.CRC32C(0, whole[from:to])}
	}
	x := &mapreduce.Index{Codec: mapreduce.CodecNone, Parts: []mapreduce.PartitionRange{part(0, half), part(half, half), part(half, int64(len(whole)))}}
	return &Output{Token: "token", Index: x, Data: nopCloser{bytes.NewReader(s.data)}}, nil
}

func content() []byte {
	var b bytes.Buffer
	for i := range 20000 {
		fmt.Fprintf(&b, "%d,", i*i)
	}
	return b.Bytes()
}

// serve returns a client and the address of a server; wrap may intercept requests.
func serve(t *testing.T, s *fakeOutputs, most int, wrap func(http.Handler) http.Handler) (*Client, string) {
	t.Helper()
	var h http.Handler = NewServer(s, most, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &Client{HTTP: srv.Client(), Scheme: "http", Token: "token"}, strings.TrimPrefix(srv.URL, "http://")
}

func TestFetch(t *testing.T) {
	c, address := serve(t, &fakeOutputs{data: content()}, 10, nil)
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

// A connection that breaks every few bytes still transfers the whole partition,
// resuming where it broke.
func TestResume(t *testing.T) {
	breaks := 0
	c, address := serve(t, &fakeOutputs{data: content()}, 10, func(next http.Handler) http.Handler {
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

func TestRefusals(t *testing.T) {
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
			client, address := serve(t, c.shelf, c.most, nil)
			client.Token = c.token
			path := filepath.Join(t.TempDir(), "p")
			if err := os.WriteFile(path, make([]byte, c.have), 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Fetch(t.Context(), address, key, c.partition, path); !errors.Is(err, c.err) {
				t.Errorf("%v, want %v", err, c.err)
			}
			if errors.Is(c.err, fault.Corrupt) || c.have == len(content()) {
				if st, err := os.Stat(path); err != nil || st.Size() != 0 {
					t.Errorf("the bad bytes are still there: %v %v", st, err)
				}
			}
		})
	}
}

func TestNobodyThere(t *testing.T) {
	c, address := serve(t, &fakeOutputs{}, 1, nil)
	srvGone := strings.Split(address, ":")[0] + ":1"
	if _, err := c.Fetch(t.Context(), srvGone, key, 0, filepath.Join(t.TempDir(), "p")); !errors.Is(err, fault.Unavailable) {
		t.Errorf("%v, want unavailable", err)
	}
}

func FuzzParsePath(f *testing.F) {
	f.Add(Path(key, 5))
	f.Add("/shuffle/1/2/3.4.5/6/7")
	f.Add("/shuffle/../2/3.4.5/6")
	f.Fuzz(func(t *testing.T, s string) {
		if k, p, ok := parsePath(s); ok && Path(k, p) != s {
			t.Errorf("%q reads as %v %d", s, k, p)
		}
	})
}

func FuzzRange(f *testing.F) {
	f.Add("bytes=5-")
	f.Add("bytes=-5")
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := rangeStart(s); ok && s != "" && n < 0 {
			t.Errorf("%q reads as %d", s, n)
		}
	})
}

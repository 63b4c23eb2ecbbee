package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"connectrpc.com/connect"
	"go.uber.org/goleak"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// blobServer serves bytes in small chunks; cut breaks the n-th stream after one
// chunk, garble changes a byte of it.
type blobServer struct {
	droverv1connect.UnimplementedNodeServiceHandler
	blobs       map[string][]byte
	calls       atomic.Int64
	cut, garble int64
}

const chunk = 1000

func (s *blobServer) GetBlob(_ context.Context, r *connect.Request[droverv1.GetBlobRequest], out *connect.ServerStream[droverv1.BlobChunk]) error {
	n := s.calls.Add(1)
	b, ok := s.blobs[r.Msg.GetDigest()]
	if !ok {
		return wire.Error(fault.New(fault.NotFound, "no such blob"))
	}
	for at := int(r.Msg.GetOffset()); at < len(b); at += chunk {
		part := append([]byte(nil), b[at:min(at+chunk, len(b))]...)
		if n == s.garble {
			part[0] ^= 1
		}
		if err := out.Send(&droverv1.BlobChunk{Data: part}); err != nil {
			return err
		}
		if n == s.cut {
			return wire.Error(fault.New(fault.Unavailable, "going down"))
		}
	}
	return nil
}

func (s *blobServer) add(b []byte) string {
	sum := sha256.Sum256(b)
	d := "sha256:" + hex.EncodeToString(sum[:])
	if s.blobs == nil {
		s.blobs = map[string][]byte{}
	}
	s.blobs[d] = b
	return d
}

func serve(t *testing.T, s *blobServer, limit int64) *Cache {
	t.Helper()
	_, h := droverv1connect.NewNodeServiceHandler(s)
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	c, err := Open(filepath.Join(t.TempDir(), "blobs"), limit, droverv1connect.NewNodeServiceClient(srv.Client(), srv.URL))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func content(seed byte, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = seed + byte(i*7)
	}
	return b
}

func read(t *testing.T, c *Cache, digest string) []byte {
	t.Helper()
	f, err := c.Get(t.Context(), digest)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConcurrentGetsShareOneFetch(t *testing.T) {
	s := &blobServer{}
	d := s.add(content(1, 5500))
	c := serve(t, s, 1<<20)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			f, err := c.Get(t.Context(), d)
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
		})
	}
	wg.Wait()
	if n := s.calls.Load(); n != 1 {
		t.Errorf("fetched %d times", n)
	}
	if got := read(t, c, d); string(got) != string(s.blobs[d]) {
		t.Error("other bytes")
	}
}

// TestPruneRemovesPartialFetches: not those that are still wanted, nor those under way.
func TestPruneRemovesPartialFetches(t *testing.T) {
	s := &blobServer{cut: 1}
	d := s.add(content(2, 5500))
	c := serve(t, s, 1<<20)
	if _, err := c.Get(t.Context(), d); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("a broken stream: %v, want unavailable", err)
	}
	count := func() int {
		files, err := os.ReadDir(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		return len(files)
	}
	h := d[len("sha256:"):]
	for _, step := range []struct {
		fetching bool
		wanted   []string
		left     int
	}{{false, []string{d}, 1}, {true, nil, 1}, {false, nil, 0}} {
		c.setFetching(h, step.fetching)
		if c.Prune(step.wanted); count() != step.left {
			t.Errorf("%+v: %d files are left", step, count())
		}
	}
	if got := read(t, c, d); string(got) != string(s.blobs[d]) || len(c.fetching) != 0 {
		t.Errorf("other bytes after that; under way: %v", c.fetching)
	}
}

func TestResumesAfterABreak(t *testing.T) {
	s := &blobServer{cut: 1}
	d := s.add(content(2, 5500))
	c := serve(t, s, 1<<20)
	if _, err := c.Get(t.Context(), d); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("a broken stream: %v, want unavailable", err)
	}
	if got := read(t, c, d); string(got) != string(s.blobs[d]) {
		t.Error("other bytes after the resume")
	}
}

// What cannot be synced gets no final name, under which the next daemon would take it for a blob, and is fetched again.
func TestABlobThatCannotBeSyncedIsNone(t *testing.T) {
	s := &blobServer{}
	d := s.add(content(2, 5500))
	c := serve(t, s, 1<<20)
	if err := os.Symlink(os.DevNull, filepath.Join(c.dir, d[len("sha256:"):]+partSuffix)); err != nil { // it takes every write, and no sync
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), d); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("a file without a sync: %v", err)
	}
	if left, err := os.ReadDir(c.dir); err != nil || len(left) > 0 || c.Bytes() != 0 {
		t.Errorf("left of it: %v %v, %d bytes", left, err, c.Bytes())
	}
	if got := read(t, c, d); string(got) != string(s.blobs[d]) {
		t.Error("other bytes after that")
	}
}

// TestACoordinatorThatDropsPackets: a step waits without a limit for what is unavailable alone.
func TestACoordinatorThatDropsPackets(t *testing.T) {
	drop := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: context.DeadlineExceeded}
	}
	h := &http.Client{Transport: &http.Transport{DialContext: drop}}
	c, err := Open(filepath.Join(t.TempDir(), "blobs"), 1<<20, droverv1connect.NewNodeServiceClient(h, "http://coordinator"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Get(t.Context(), (&blobServer{}).add(content(2, 5500))); !errors.Is(err, fault.Unavailable) {
		t.Errorf("a dial without an answer: %v, want unavailable", err)
	}
}

func TestRefusesOtherBytes(t *testing.T) {
	s := &blobServer{garble: 1}
	d := s.add(content(3, 2500))
	c := serve(t, s, 1<<20)
	if _, err := c.Get(t.Context(), d); !errors.Is(err, fault.Corrupt) {
		t.Fatalf("garbled: %v, want corrupt", err)
	}
	if got := read(t, c, d); string(got) != string(s.blobs[d]) {
		t.Error("other bytes after the second fetch")
	}
	if _, err := c.Get(t.Context(), "sha256:../../etc/passwd"); !errors.Is(err, fault.Invalid) {
		t.Errorf("a digest that is a path: %v, want invalid", err)
	}
	missing := "sha256:" + hex.EncodeToString(make([]byte, 32))
	if _, err := c.Get(t.Context(), missing); !errors.Is(err, fault.NotFound) {
		t.Errorf("missing: %v, want not found", err)
	}
}

func TestLimitAndPrune(t *testing.T) {
	s := &blobServer{}
	a, b, e := s.add(content(1, 1000)), s.add(content(2, 1000)), s.add(content(3, 1000))
	c := serve(t, s, 2500)
	held, err := c.Get(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	read(t, c, b)
	read(t, c, e)
	if n := c.Bytes(); n != 2000 {
		t.Errorf("over the limit: %d bytes", n)
	}
	calls := s.calls.Load()
	read(t, c, a)
	if s.calls.Load() != calls {
		t.Error("a blob in use was removed")
	}
	c.Prune(nil)
	if n := c.Bytes(); n != 1000 {
		t.Errorf("Keep left %d bytes, want the 1000 in use", n)
	}
	held.Close()
	c.Prune([]string{a})
	if n := c.Bytes(); n != 1000 {
		t.Errorf("Prune removed a blob to be kept: %d bytes", n)
	}
	c.Prune(nil)
	if left, _ := os.ReadDir(c.dir); len(left) != 0 || c.Bytes() != 0 {
		t.Errorf("%d files left, %d bytes", len(left), c.Bytes())
	}
}

func TestOpenFindsExistingFiles(t *testing.T) {
	s := &blobServer{}
	d := s.add(content(1, 1000))
	c := serve(t, s, 1<<20)
	read(t, c, d)
	again, err := Open(c.dir, c.limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, again, d); string(got) != string(s.blobs[d]) {
		t.Error("other bytes after a restart")
	}
}

package blobs

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

func digestOf(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

func open(t *testing.T, dir string, quota int64) *Store {
	t.Helper()
	s, err := Open(dir, quota, 100)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestReopen(t *testing.T) {
	dir, data := t.TempDir(), []byte("some bytes")
	d := digestOf(data)
	if err := open(t, dir, 1000).Put(d, int64(len(data)), bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "incoming", "up-left"), data, 0o600); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir, 1000)
	f, err := s.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%q %v", got, err)
	}
	if used, _ := s.Used(); used != int64(len(data)) {
		t.Errorf("used %d", used)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "incoming")); len(left) != 0 {
		t.Errorf("%d files of broken uploads are left", len(left))
	}
	if list, err := s.List(); err != nil || len(list) != 1 || list[0] != d {
		t.Errorf("%v %v", list, err)
	}
	if err := errors.Join(s.Remove(d), s.Remove(d)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Open(d); !errors.Is(err, fault.NotFound) {
		t.Errorf("after the removal: %v", err)
	}
	if used, _ := s.Used(); used != 0 {
		t.Errorf("used %d after the removal", used)
	}
}

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestPutRefuses(t *testing.T) {
	data := []byte("some bytes")
	d, n := digestOf(data), int64(len(data))
	tests := map[string]struct {
		digest string
		size   int64
		from   io.Reader
		quota  int64
		want   error // nil: any
	}{
		"too few bytes":           {d, n, bytes.NewReader(data[1:]), 1000, fault.Invalid},
		"too many bytes":          {d, n, bytes.NewReader(append([]byte("x"), data...)), 1000, fault.Invalid},
		"other bytes":             {d, n, strings.NewReader("same width"), 1000, fault.Invalid},
		"more than the quota":     {d, n, bytes.NewReader(data), 9, fault.Exhausted},
		"a blob that is too big":  {d, 101, bytes.NewReader(data), 1000, fault.Exhausted},
		"a negative size":         {d, -1, bytes.NewReader(data), 1000, fault.Invalid},
		"a digest that is a path": {"sha256:../../../../etc/passwd", n, bytes.NewReader(data), 1000, fault.Invalid},
		"a broken connection":     {d, n, failingReader{}, 1000, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir, tc.quota)
			err := s.Put(tc.digest, tc.size, tc.from)
			if err == nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if left, _ := os.ReadDir(filepath.Join(dir, "incoming")); len(left) != 0 {
				t.Errorf("%d files are left", len(left))
			}
			if used, _ := s.Used(); used != 0 {
				t.Errorf("used %d", used)
			}
		})
	}
}

// Who announces another size than a stored blob has must show its bytes, like everybody else:
// the size that he announced was believed, for the quota and by the other coordinators. Where the
// file on the disk is wrong, the bytes mend it.
func TestSizeOfAStoredBlobIsNotBelieved(t *testing.T) {
	s, data := open(t, t.TempDir(), 1000), []byte("some bytes")
	d, n := digestOf(data), int64(len(data))
	if err := s.Put(d, n, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{-1, 0, 1, n + 1, 100} {
		if err := s.Put(d, size, bytes.NewReader(data)); !errors.Is(err, fault.Invalid) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if err := s.Put(d, n, failingReader{}); err != nil {
		t.Errorf("its own size: %v", err)
	}
	overwrite(t, s.path(d), data[:3])
	if err := s.Put(d, n, bytes.NewReader(data)); err != nil {
		t.Fatal(err)
	}
	got, err := sent(s, d, 0, 100)
	if used, _ := s.Used(); err != nil || !bytes.Equal(got, data) || used != n {
		t.Errorf("after damage: %q, %v, %d bytes in use", got, err, used)
	}
}

func TestConcurrentPutsOfOneBlob(t *testing.T) {
	s := open(t, t.TempDir(), 1000)
	data := []byte("some bytes")
	var wg sync.WaitGroup
	errs := make([]error, maxUploads)
	for i := range errs {
		wg.Go(func() { errs[i] = s.Put(digestOf(data), int64(len(data)), bytes.NewReader(data)) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if used, _ := s.Used(); used != int64(len(data)) {
		t.Errorf("used %d, want %d", used, len(data))
	}
}

func FuzzCheckDigest(f *testing.F) {
	f.Add("sha256:" + strings.Repeat("0", 64))
	fuzztest.Run(f, func(t *testing.T, d string) {
		s := &Store{dir: "/store"}
		if CheckDigest(d) == nil && !strings.HasPrefix(s.path(d), "/store/sha256/") {
			t.Fatalf("%q leaves the store: %s", d, s.path(d))
		}
	})
}

// slowSyncs makes each sync of a folder wait: syncing delivers when one begins, and it ends with what
// result delivers.
func slowSyncs(s *Store) (syncing <-chan struct{}, result chan<- error) {
	began, end := make(chan struct{}), make(chan error)
	s.syncDir = func(string) error { began <- struct{}{}; return <-end }
	return began, end
}

// within fails the test if do does not return.
func within(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); do() }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("does not return: " + what)
	}
}

// A disk that is slow to sync a new blob holds up nobody who uses another one: files are removed while the
// facts are locked.
func TestASlowSyncHoldsUpItsUploadAlone(t *testing.T) {
	s, other, data := open(t, t.TempDir(), 1000), []byte("another"), []byte("some bytes")
	put := func(b []byte) error { return s.Put(digestOf(b), int64(len(b)), bytes.NewReader(b)) }
	if err := put(other); err != nil {
		t.Fatal(err)
	}
	syncing, result := slowSyncs(s)
	stored := make(chan error, 1)
	go func() { stored <- put(data) }()
	<-syncing
	within(t, "a look at another blob and its removal", func() {
		if _, ok := s.Has(digestOf(other)); !ok {
			t.Error("the other blob is not there")
		}
		if err := s.Remove(digestOf(other)); err != nil {
			t.Error(err)
		}
	})
	result <- nil
	if err := <-stored; err != nil {
		t.Error(err)
	}
	if used, _ := s.Used(); used != int64(len(data)) {
		t.Errorf("used %d, want %d", used, len(data))
	}
}

// Until its name is synced a loss of power may undo an upload. Meanwhile nobody is told that the blob is
// here, and a second upload of it waits for a sync of its own. Nor is it here when the sync has failed.
func TestABlobIsHereWhenItsNameIsSynced(t *testing.T) {
	s, data := open(t, t.TempDir(), 1000), []byte("some bytes")
	d := digestOf(data)
	stored := make(chan error, 2)
	put := func() { stored <- s.Put(d, int64(len(data)), bytes.NewReader(data)) }
	has := func() bool { _, ok := s.Has(d); return ok }
	syncing, result := slowSyncs(s)
	go put()
	<-syncing
	if has() {
		t.Error("the blob is here before its name is synced")
	}
	go put()
	within(t, "the second upload to its sync", func() { <-syncing })
	result <- errors.New("the disk is broken")
	result <- nil
	first, second := <-stored, <-stored
	if (first == nil) == (second == nil) || !has() {
		t.Errorf("after a failed sync and one that succeeded: %v, %v, or it is not here", first, second)
	}
	if err := s.Remove(d); err != nil || has() {
		t.Fatalf("%v, or it is still here", err)
	}
	go put()
	<-syncing
	result <- errors.New("the disk is broken")
	if err := <-stored; err == nil || has() {
		t.Errorf("after a sync that failed: %v, or it is here", err)
	}
	go put()
	<-syncing
	result <- nil
	if err := <-stored; err != nil || !has() {
		t.Errorf("after a new upload: %v, or it is not here", err)
	}
	if used, _ := s.Used(); used != int64(len(data)) {
		t.Errorf("used %d, want %d", used, len(data))
	}
}

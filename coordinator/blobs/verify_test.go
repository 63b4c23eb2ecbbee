package blobs

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/drover-run/drover/internal/fault"
)

// TestSendFindsDamage changes a stored blob in several ways: it is sent to
// nobody as whole, moved aside, no longer there, and can be put again.
func TestSendFindsDamage(t *testing.T) {
	data := []byte("twenty bytes of data")
	for name, c := range map[string]struct {
		change func([]byte) []byte
		offset int64
		want   error
	}{
		"whole":                       {func(b []byte) []byte { return b }, 0, nil},
		"whole, from an offset":       {func(b []byte) []byte { return b }, 7, nil},
		"whole, offset behind it":     {func(b []byte) []byte { return b }, 21, fault.Invalid},
		"a flipped bit":               {func(b []byte) []byte { b[12] ^= 1; return b }, 0, fault.Corrupt},
		"a flipped bit before offset": {func(b []byte) []byte { b[2] ^= 1; return b }, 7, fault.Corrupt},
		"cut short":                   {func(b []byte) []byte { return b[:19] }, 0, fault.Corrupt},
		"cut short before offset":     {func(b []byte) []byte { return b[:3] }, 7, fault.Corrupt},
		"longer":                      {func(b []byte) []byte { return append(b, 'x') }, 0, fault.Corrupt},
		"empty":                       {func([]byte) []byte { return nil }, 0, fault.Corrupt},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := open(t, t.TempDir(), 1000), digestOf(data)
			put := func() {
				if err := s.Put(d, int64(len(data)), bytes.NewReader(data)); err != nil {
					t.Fatal(err)
				}
			}
			put()
			if err := errors.Join(os.Chmod(s.path(d), 0o600), os.WriteFile(s.path(d), c.change(bytes.Clone(data)), 0o600)); err != nil {
				t.Fatal(err)
			}
			var got []byte
			send := func(part []byte) error { got = append(got, part...); return nil }
			err := s.Send(d, c.offset, make([]byte, 8), send)
			if fault.Class(err) != c.want || (c.want == nil && err != nil) {
				t.Fatalf("%v, want class %v", err, c.want)
			}
			if c.want == nil && !bytes.Equal(got, data[c.offset:]) {
				t.Errorf("sent %q", got)
			}
			if c.want != fault.Corrupt {
				return
			}
			if _, ok := s.Has(d); ok {
				t.Error("the store still has the damaged blob")
			}
			if list, _ := filepath.Glob(filepath.Join(s.dir, "damaged", "*-1")); len(list) != 1 {
				t.Errorf("moved aside: %v", list)
			}
			put()
			got = nil
			if err := s.Send(d, 0, make([]byte, 8), send); err != nil || !bytes.Equal(got, data) {
				t.Errorf("after a new upload: %q, %v", got, err)
			}
		})
	}
}

// A reader that finds damage moves aside the file that it read, and not the one that was uploaded
// in its place meanwhile, which was acknowledged.
func TestASlowReaderLeavesTheNewUpload(t *testing.T) {
	s, data := open(t, t.TempDir(), 1000), []byte("twenty bytes of data")
	d := digestOf(data)
	put := func() {
		t.Helper()
		if err := s.Put(d, int64(len(data)), bytes.NewReader(data)); err != nil {
			t.Fatal(err)
		}
	}
	put()
	overwrite(t, s.path(d), []byte("twenty other letters"))
	var results [2]chan error
	var goOn [2]chan struct{}
	for i := range results {
		results[i], goOn[i] = make(chan error, 1), make(chan struct{})
		reading := make(chan struct{})
		go func() {
			results[i] <- s.Send(d, 0, make([]byte, 100), func([]byte) error { close(reading); <-goOn[i]; return nil })
		}()
		<-reading
	}
	close(goOn[0])
	if err := <-results[0]; !errors.Is(err, fault.Corrupt) {
		t.Errorf("the first reader: %v", err)
	}
	put()
	close(goOn[1])
	if err := <-results[1]; !errors.Is(err, fault.Unavailable) {
		t.Errorf("the second reader: %v", err)
	}
	if got, err := sent(s, d, 0, 100); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the new upload: %q, %v", got, err)
	}
	if used, _ := s.Used(); used != int64(len(data)) {
		t.Errorf("%d bytes in use", used)
	}
}

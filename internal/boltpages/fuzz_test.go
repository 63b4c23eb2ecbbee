package boltpages

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"

	"github.com/drover-run/drover/internal/fuzztest"
)

// FuzzPages reads files of any content: the reader must end, and never panic.
func FuzzPages(f *testing.F) {
	for _, pairs := range []int{0, 3, 200} {
		f.Add(fileWith(f, pairs))
	}
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		in := inMemory{Reader: bytes.NewReader(b)}
		total := 0
		if err := EachLeaf(in, func(k, v []byte) { total += len(k) + len(v) }); err != nil {
			t.Fatal(err)
		}
		p, err := Open(in)
		if err != nil {
			return
		}
		if _, err := p.Each([]byte("b"), func(_, v []byte) error { total += len(v); return nil }); err == nil && total > 64*len(b) {
			t.Errorf("%d bytes of pairs in a file of %d", total, len(b))
		}
	})
}

// inMemory is a file in memory.
type inMemory struct {
	*bytes.Reader
	os.FileInfo
}

func (inMemory) Name() string                        { return "f" }
func (m inMemory) Size() int64                       { return m.Reader.Size() }
func (m inMemory) Stat() (info os.FileInfo, _ error) { return m, nil }

// fileWith returns the bytes of a database with a bucket of this number of pairs.
func fileWith(f *testing.F, pairs int) []byte {
	f.Helper()
	path := filepath.Join(f.TempDir(), "db")
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true, PageSize: 1024})
	if err != nil {
		f.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket([]byte("b"))
		for i := range pairs {
			if err == nil {
				err = b.Put(fmt.Appendf(nil, "key-%04d", i), bytes.Repeat([]byte("v"), i%40))
			}
		}
		return err
	})
	if err != nil {
		f.Fatal(err)
	}
	if err := db.Close(); err != nil {
		f.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	return b
}

package raftstore

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

// Of a meta page: what a disk writes at once, and what the database uses.
const (
	metaSector = 512
	metaUsed   = 80
)

var metaPage = os.Getpagesize() // its size

// lastWrite is the last of some transactions of one file of a store: the files before it and after it.
type lastWrite struct {
	name          string
	meta          int // where in the file the meta page is that it wrote
	before, after map[string][]byte
}

// newLastWrite makes a store in dir with some transactions in one of its files.
func newLastWrite(t *testing.T, r *rand.Rand, dir, name string, transactions int) lastWrite {
	t.Helper()
	s, err := Open(dir, Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	w := lastWrite{name: name}
	for i := range uint64(transactions) {
		w.before = readFiles(t, dir)
		if name == StableFile {
			err = s.SetUint64([]byte("CurrentTerm"), i+1)
		} else {
			err = s.StoreLog(&raft.Log{Index: i + 1, Term: 3, Data: make([]byte, r.IntN(9000))})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.after = readFiles(t, dir)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(w.before[name][:metaPage], w.after[name][:metaPage]) {
		w.meta = metaPage
	}
	return w
}

func readFiles(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for _, name := range []string{LogFile, StableFile} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = b
	}
	return files
}

// openFiles opens a store in dir of these files, one of which has other bytes, and returns its last
// index and its term, and what was logged.
func openFiles(t *testing.T, dir string, files map[string][]byte, name string, bad []byte) (state [2]uint64, logged string, _ error) {
	t.Helper()
	for n, b := range files {
		if n == name && bad != nil {
			b = bad
		}
		if err := os.WriteFile(filepath.Join(dir, n), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	s, err := Open(dir, Options{NoSync: true, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		return state, log.String(), err
	}
	if state[0], err = s.LastIndex(); err != nil {
		t.Fatal(err)
	}
	if state[1], err = s.GetUint64([]byte("CurrentTerm")); err != nil && !errors.Is(err, errKeyNotFound) {
		t.Fatal(err)
	}
	if err := errors.Join(s.StoreLog(&raft.Log{Index: state[0] + 1, Term: 4}), s.SetUint64([]byte("CurrentTerm"), state[1]+1), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Verify(dir); err != nil {
		t.Fatalf("after it was written to: %v", err)
	}
	return state, log.String(), nil
}

// A loss of power while the newest meta page is written leaves the state before that transaction or
// the one after it, and no file that is refused: whatever sectors were written, and of the sector that
// the database uses whatever words, first to last.
func TestATornMetaPageIsTheStateBefore(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, name := range []string{LogFile, StableFile} {
		for transactions := 1; transactions < 8; transactions++ {
			dir := t.TempDir()
			w := newLastWrite(t, r, dir, name, transactions)
			old, _, err := openFiles(t, dir, w.before, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			now, _, err := openFiles(t, dir, w.after, "", nil)
			if err != nil || now == old {
				t.Fatalf("the transaction changed nothing, or %v", err)
			}
			torn := func(what string, file []byte) (logged string) {
				got, logged, err := openFiles(t, dir, w.after, name, file)
				if err != nil || (got != old && got != now) {
					t.Errorf("seed %d, %s, %d transactions, %s: %v, %v, want %v or %v", seed, name, transactions, what, got, err, old, now)
				}
				if n := strings.Count(logged, "\n"); n > 1 || (n == 1) != strings.Contains(logged, "a loss of power") || (n == 1 && got != old) {
					t.Errorf("seed %d, %s, %d transactions, %s: logged %q for state %v of %v and %v", seed, name, transactions, what, logged, got, old, now)
				}
				return logged
			}
			said := 0
			for at := 0; at <= metaUsed; at += 8 {
				file := bytes.Clone(w.after[name])
				copy(file[w.meta+at:w.meta+metaPage], w.before[name][w.meta+at:])
				if torn(fmt.Sprintf("%d bytes of it were written", at), file) != "" {
					said++
				}
			}
			if said == 0 {
				t.Errorf("%s, %d transactions: no tear was said", name, transactions)
			}
			file := bytes.Clone(w.after[name])
			for at := 0; at < metaPage; at += metaSector {
				if r.IntN(2) == 0 {
					copy(file[w.meta+at:w.meta+at+metaSector], w.before[name][w.meta+at:])
				}
			}
			if logged := torn("some sectors", file); logged != "" {
				t.Errorf("sectors that were not written: %s", logged)
			}
		}
	}
}

// What was acknowledged is never taken for a write that was cut short: of a file that was synced, damage of
// the newest meta page is refused, and damage of the older one is refused or without effect.
func TestDamageOfAMetaPageIsNoTornWrite(t *testing.T) {
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 0))
	for _, name := range []string{LogFile, StableFile} {
		dir := t.TempDir()
		w := newLastWrite(t, r, dir, name, 2+r.IntN(6))
		want, _, err := openFiles(t, dir, w.after, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, meta := range []int{w.meta, metaPage - w.meta} {
			newest := meta == w.meta
			try := func(what string, change func(page []byte)) {
				file := bytes.Clone(w.after[name])
				change(file[meta : meta+metaPage])
				if bytes.Equal(file, w.after[name]) {
					return
				}
				got, _, err := openFiles(t, dir, w.after, name, file)
				switch {
				case err == nil && (newest || got != want):
					t.Errorf("seed %d, %s, newest %v, %s: opened with %v, acknowledged was %v", seed, name, newest, what, got, want)
				case err != nil && (!errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), name)):
					t.Errorf("seed %d, %s, newest %v, %s: %v", seed, name, newest, what, err)
				}
			}
			for bit := range 8 * metaUsed {
				if byteOf := bit / 8; byteOf < 8 || byteOf >= 16 { // the kind and size of a page are not used of this one
					try(fmt.Sprint("bit ", bit), func(p []byte) { p[byteOf] ^= 1 << (bit % 8) })
				}
			}
			try("zeros", func(p []byte) { clear(p) })
			try("half of it zeros", func(p []byte) { clear(p[:metaUsed/2]) })
			try("the end of it zeros", func(p []byte) { clear(p[metaUsed/2:]) })
			for range 100 {
				try("noise", func(p []byte) {
					p[16+r.IntN(metaUsed-16)] ^= 1 + byte(r.IntN(255))
					for range r.IntN(40) {
						p[16+r.IntN(metaUsed-16)] = byte(r.IntN(256))
					}
				})
			}
		}
	}
}

package raftstore

import (
	"encoding/binary"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/raft"
	bolt "go.etcd.io/bbolt"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
)

func TestMain(m *testing.M) {
	// Every check opens real files: few are enough unless more were requested.
	flag.Parse()
	set := false
	flag.Visit(func(f *flag.Flag) { set = set || f.Name == "rapid.checks" })
	if !set {
		_ = flag.Set("rapid.checks", "25") // the flag exists: rapid registers it
	}
	os.Exit(m.Run())
}

func open(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestEmptyStore(t *testing.T) {
	s := open(t, t.TempDir())
	first, err1 := s.FirstIndex()
	last, err2 := s.LastIndex()
	if first != 0 || last != 0 || err1 != nil || err2 != nil {
		t.Fatalf("first %d %v, last %d %v, want zeros", first, err1, last, err2)
	}
	if err := s.GetLog(1, &raft.Log{}); !errors.Is(err, raft.ErrLogNotFound) {
		t.Fatalf("GetLog of nothing: %v", err)
	}
	// raft compares the text of the error.
	if _, err := s.GetUint64([]byte("CurrentTerm")); err == nil || err.Error() != "not found" {
		t.Fatalf("GetUint64 of nothing: %v", err)
	}
	if _, err := s.Get([]byte("LastVoteCand")); err == nil || err.Error() != "not found" {
		t.Fatalf("Get of nothing: %v", err)
	}
}

func TestEntriesRoundTrip(t *testing.T) {
	dir := t.TempDir()
	want := []*raft.Log{
		{Index: 7, Term: 2, Type: raft.LogCommand, Data: []byte("place"), Extensions: []byte("x"), AppendedAt: time.Unix(3, 9)},
		{Index: 8, Term: 2, Type: raft.LogBarrier},
		{Index: 9, Term: 3, Type: raft.LogConfiguration, Data: make([]byte, 1<<20)},
	}
	s := open(t, dir)
	if err := s.StoreLogs(want); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	for _, w := range want {
		var got raft.Log
		if err := s.GetLog(w.Index, &got); err != nil {
			t.Fatal(err)
		}
		if w.Data == nil {
			w.Data = []byte{}
		}
		if !reflect.DeepEqual(*w, got) { // a diff of a mebibyte would take long
			t.Errorf("index %d is another entry", w.Index)
		}
	}
}

// TestStoreMatchesModel applies the same operations to the store and a simple
// model, closing and reopening the store in between.
func TestStoreMatchesModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(t.TempDir(), "s")
		if err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		model, next := map[uint64]string{}, uint64(1)
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "op") {
			case 0:
				var logs []*raft.Log
				for range rapid.IntRange(1, 20).Draw(rt, "n") {
					d := rapid.String().Draw(rt, "data")
					logs = append(logs, &raft.Log{Index: next, Term: 1, Data: []byte(d)})
					model[next] = d
					next++
				}
				if err := s.StoreLogs(logs); err != nil {
					rt.Fatal(err)
				}
			case 1:
				// As raft does: from the low end, or up to the high end.
				lo, hi := uint64(0), rapid.Uint64Range(0, next+5).Draw(rt, "end")
				if rapid.Bool().Draw(rt, "suffix") {
					lo, hi = hi, max(hi, next)
				}
				if err := s.DeleteRange(lo, hi); err != nil {
					rt.Fatal(err)
				}
				if hi >= next {
					next = max(1, min(next, lo))
				}
				for i := lo; i <= hi; i++ {
					delete(model, i)
				}
			case 2:
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				if s, err = Open(dir, Options{NoSync: true}); err != nil {
					rt.Fatal(err)
				}
			}
			compareWithModel(rt, s, model, next)
		}
	})
}

func compareWithModel(rt *rapid.T, s *Store, model map[uint64]string, next uint64) {
	var first, last uint64
	for i := range next {
		want, ok := model[i]
		var got raft.Log
		err := s.GetLog(i, &got)
		if ok != (err == nil) || (ok && string(got.Data) != want) {
			rt.Fatalf("index %d: got %q %v, want %q present=%v", i, got.Data, err, want, ok)
		}
		if ok {
			last = i
			if first == 0 {
				first = i
			}
		}
	}
	f, _ := s.FirstIndex()
	l, _ := s.LastIndex()
	if f != first || l != last {
		rt.Fatalf("edges %d..%d, want %d..%d", f, l, first, last)
	}
}

func TestDeleteRangeInManyTransactions(t *testing.T) {
	s, err := Open(t.TempDir(), Options{NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	var logs []*raft.Log
	for i := uint64(1); i <= 3*deleteBatch; i++ {
		logs = append(logs, &raft.Log{Index: i})
	}
	if err := s.StoreLogs(logs); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteRange(1, 2*deleteBatch+10); err != nil {
		t.Fatal(err)
	}
	if first, _ := s.FirstIndex(); first != 2*deleteBatch+11 {
		t.Fatalf("first index %d, want %d", first, 2*deleteBatch+11)
	}
}

// TestCrashKeepsStoredLogs kills another process that stores entries and prints
// each index after StoreLogs has returned; every printed entry must be stored.
func TestCrashKeepsStoredLogs(t *testing.T) {
	if dir := os.Getenv("DROVER_TEST_CRASH_DIR"); dir != "" {
		crashWriter(t, dir)
		return
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashKeepsStoredLogs$")
	cmd.Env = append(os.Environ(), "DROVER_TEST_CRASH_DIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	told, buf := uint64(0), make([]byte, 8)
	for told < 40 {
		if _, err := out.Read(buf); err != nil {
			t.Fatalf("the writer ended early: %v", err)
		}
		told = binary.BigEndian.Uint64(buf)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	s := open(t, dir)
	for i := uint64(1); i <= told; i++ {
		var l raft.Log
		if err := s.GetLog(i, &l); err != nil || string(l.Data) != strconv.FormatUint(i, 10) {
			t.Fatalf("%d entries acknowledged, index %d: %q %v", told, i, l.Data, err)
		}
	}
}

func crashWriter(t *testing.T, dir string) {
	s, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i < 100_000; i++ {
		if err := s.StoreLog(&raft.Log{Index: i, Data: []byte(strconv.FormatUint(i, 10))}); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stdout.Write(binary.BigEndian.AppendUint64(nil, i)); err != nil {
			return
		}
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := map[string]struct {
		break_ func(t *testing.T, dir string)
		want   error
	}{
		"a file of a newer program": {func(t *testing.T, dir string) {
			db, err := bolt.Open(filepath.Join(dir, LogFile), 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = db.Update(func(tx *bolt.Tx) error {
				return tx.Bucket(metaBucket).Put(versionKey, binary.BigEndian.AppendUint32(nil, schemaVersion+1))
			})
			if err := errors.Join(err, db.Close()); err != nil {
				t.Fatal(err)
			}
		}, fault.Unsupported},
		"another file": {func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, StableFile), make([]byte, 1<<16), 0o600); err != nil {
				t.Fatal(err)
			}
		}, fault.Corrupt},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := open(t, dir).Close(); err != nil {
				t.Fatal(err)
			}
			tc.break_(t, dir)
			s, err := Open(dir, Options{})
			if !errors.Is(err, tc.want) {
				t.Fatalf("Open returned %v, %v, want %v", s, err, tc.want)
			}
		})
	}
}

func TestUnknownRecordVersionIsCorrupt(t *testing.T) {
	s := open(t, t.TempDir())
	err := s.log.Update(func(tx *bolt.Tx) error {
		return tx.Bucket(logBucket).Put(indexKey(1), []byte{99, 0, 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.GetLog(1, &raft.Log{}); !errors.Is(err, fault.Corrupt) {
		t.Fatalf("GetLog: %v, want corrupt", err)
	}
}

func FuzzDecode(f *testing.F) {
	b, _ := encode(&raft.Log{Index: 1, Term: 3, Data: []byte("d"), Extensions: []byte("e")})
	f.Add(b)
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		var l raft.Log
		if decode(1, b, &l) != nil {
			return
		}
		again, err := encode(&l)
		if err != nil || !cmp.Equal(b, again) {
			t.Fatalf("%x decodes and encodes to %x, %v", b, again, err)
		}
	})
}

// BenchmarkStoreLogs measures the gain of batching: entries per second with
// several entries per transaction, with fsync.
func BenchmarkStoreLogs(b *testing.B) {
	for _, batch := range []int{1, 16, 64} {
		b.Run(strconv.Itoa(batch), func(b *testing.B) {
			s := open(b, b.TempDir())
			data, next := make([]byte, 256), uint64(1)
			for b.Loop() {
				logs := make([]*raft.Log, batch)
				for i := range logs {
					logs[i] = &raft.Log{Index: next, Data: data}
					next++
				}
				if err := s.StoreLogs(logs); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N*batch)/b.Elapsed().Seconds(), "entries/s")
		})
	}
}

// A follower that gets a newer snapshot empties its log: all pages of it in one
// transaction.
func TestDeletingTheWholeLogEnds(t *testing.T) {
	for _, n := range []uint64{1, 100, 3000, 2 * deleteBatch} {
		s, err := Open(t.TempDir(), Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		var logs []*raft.Log
		for i := uint64(1); i <= n; i++ {
			logs = append(logs, &raft.Log{Index: i, Term: 1, Data: make([]byte, 200)})
		}
		if err := s.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
		if err := s.DeleteRange(1, n); err != nil {
			t.Fatal(err)
		}
		if last, err := s.LastIndex(); last != 0 || err != nil {
			t.Errorf("%d entries deleted: the last is %d, %v", n, last, err)
		}
		if err := s.StoreLog(&raft.Log{Index: n + 100, Term: 2}); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A crash between two transactions of a deletion leaves a log that Open takes: the rest of a prefix or of a suffix follows
// what stays.
func TestADeletionThatIsCutShortLeavesNoGap(t *testing.T) {
	const n = 3 * deleteBatch
	for _, c := range []struct{ first, last, wantFirst, wantLast uint64 }{
		{1, 2*deleteBatch + 10, deleteBatch + 1, n},
		{100, n, 1, n - deleteBatch},
		{100, n + 5, 1, n - deleteBatch},
		{1, n, 1, n - deleteBatch},
	} {
		dir, writes := t.TempDir(), 0
		s, err := Open(dir, Options{NoSync: true, Writing: func(string, bool) {
			if writes++; writes == 3 {
				panic("a crash")
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		var logs []*raft.Log
		for i := uint64(1); i <= n; i++ {
			logs = append(logs, &raft.Log{Index: i})
		}
		if err := s.StoreLogs(logs); err != nil {
			t.Fatal(err)
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Error("it did not crash")
				}
			}()
			_ = s.DeleteRange(c.first, c.last)
		}()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = open(t, dir)
		first, err1 := s.FirstIndex()
		last, err2 := s.LastIndex()
		if first != c.wantFirst || last != c.wantLast || err1 != nil || err2 != nil {
			t.Errorf("%d to %d: entries %d to %d are left, want %d to %d (%v, %v)", c.first, c.last, first, last, c.wantFirst, c.wantLast, err1, err2)
		}
	}
}

// Entries that leave a gap are refused when they are written: the next start would refuse the whole log.
func TestEntriesThatLeaveAGapAreRefused(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.StoreLogs([]*raft.Log{{Index: 7}, {Index: 8}}); err != nil {
		t.Fatal(err)
	}
	for _, logs := range [][]*raft.Log{{{Index: 10}}, {{Index: 8}}, {{Index: 9}, {Index: 11}}} {
		if err := s.StoreLogs(logs); !errors.Is(err, fault.Corrupt) {
			t.Errorf("from entry %d on: %v", logs[0].Index, err)
		}
	}
	if err := s.StoreLog(&raft.Log{Index: 9}); err != nil {
		t.Error(err)
	}
}

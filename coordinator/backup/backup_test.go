package backup

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/seed"
)

const helloSum = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // SHA-256 of "hello"

// sample returns an archive with facts, a history and a file.
func sample(t *testing.T) []byte {
	t.Helper()
	f := facts.New()
	f.Apply(1, &droverv1.Entry{Version: 1, Body: &droverv1.Entry_Cluster{Cluster: &droverv1.ClusterFact{Id: "abc"}}})
	var snapshot, out bytes.Buffer
	if err := f.Snapshot().Encode(&snapshot); err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(&out, Manifest{Cluster: "abc", Index: 1, Term: 7})
	if err != nil {
		t.Fatal(err)
	}
	history := "{\"job\":0}\n{\"job\":5}\n{\"job\":"
	err = errors.Join(w.Facts(int64(snapshot.Len()), &snapshot), w.History("history-000001.jsonl", int64(len(history)), strings.NewReader(history)),
		w.Blob(helloSum, 5, strings.NewReader("hello")), w.Close())
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// contents returns what the members of an archive hold.
func contents(archive []byte) (string, error) {
	var all strings.Builder
	m, err := Read(bytes.NewReader(archive), func(name string, _ int64, r io.Reader) error {
		all.WriteString(name)
		_, err := io.Copy(&all, r)
		return err
	})
	return fmt.Sprintf("%s %+v", all.String(), m), err
}

// TestReadFindsDamage flips one bit or cuts the archive: it is never believed.
func TestReadFindsDamage(t *testing.T) {
	good := sample(t)
	m, err := Read(bytes.NewReader(good), nil)
	if err != nil || m.Cluster != "abc" || len(m.Members) != 3 {
		t.Fatalf("the archive as written: %+v, %v", m, err)
	}
	want, err := contents(good)
	if err != nil {
		t.Fatal(err)
	}
	seed := seed.New(t)
	r := rand.New(rand.NewPCG(seed, 1))
	// What gzip's checksum does not cover: flags, time and the kind of machine in
	// its first ten bytes.
	for range 300 {
		bad := bytes.Clone(good)
		at := 10 + r.IntN(len(bad)-10)
		bad[at] ^= 1 << r.IntN(8)
		// Some bits of a compressed file change nothing: a repeat of zeros may begin
		// at one zero or another.
		if now, err := contents(bad); err == nil && now != want {
			t.Fatalf("seed %d: a flipped bit in byte %d of %d was believed", seed, at, len(bad))
		}
	}
	for n := range good {
		if _, err := Read(bytes.NewReader(good[:n]), nil); err == nil {
			t.Fatalf("cut to %d of %d bytes, it was believed", n, len(good))
		}
	}
}

// The version of an archive is believed only when gzip's checksum is right: a flipped bit in it is damage.
func TestAFlippedBitInTheVersion(t *testing.T) {
	gz, err := gzip.NewReader(bytes.NewReader(sample(t)))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	stored := func(b []byte) []byte {
		var out bytes.Buffer
		w, err := gzip.NewWriterLevel(&out, gzip.NoCompression)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(b); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	old, next := []byte(`"version": 1,`), []byte(`"version": 3,`)
	if _, err := Read(bytes.NewReader(stored(bytes.Replace(plain, old, next, 1))), nil); !errors.Is(err, fault.Unsupported) {
		t.Errorf("an archive of a newer program: %v", err)
	}
	if _, err := Read(bytes.NewReader(bytes.Replace(stored(plain), old, next, 1)), nil); !errors.Is(err, fault.Corrupt) {
		t.Errorf("an archive with a flipped bit in its version: %v", err)
	}
}

// TestRestoreWritesState restores files, the history without what has not ended,
// and a log that opens with a higher term.
func TestRestoreWritesState(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tar.gz")
	if err := os.WriteFile(path, sample(t), 0o600); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(dir, "state")
	if _, err := Restore(path, Target{Dir: to, ID: "c1", SeenTerm: 100}); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(path, Target{Dir: to, ID: "c1"}); !errors.Is(err, fault.Exists) {
		t.Errorf("a second restore: %v, want Exists", err)
	}
	if b, err := os.ReadFile(filepath.Join(to, "history", "history-000001.jsonl")); err != nil || string(b) != "{\"job\":0}\n" {
		t.Errorf("the history is %q (%v)", b, err)
	}
	r, err := replica.Open(replica.Config{Dir: filepath.Join(to, "raft"), ID: "c1", NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	<-r.Leadership()
	if _, err := r.BeginTerm(context.Background()); err != nil {
		t.Fatal(err)
	}
	if r.Term() <= 100+replica.TermJump {
		t.Errorf("term %d, want above %d", r.Term(), 100+replica.TermJump)
	}
	r.Read(func(f *facts.Facts) {
		if f.Cluster() != "abc" || f.LastJob() != replica.JobGap {
			t.Errorf("cluster %q, last job %d", f.Cluster(), f.LastJob())
		}
		// Who has seen a thousand events that the archive does not know misses none of those that follow the restore.
		if list := f.EventLog().Since(f.EventLog().Last()-1, 1); len(list) != 1 || list[0].Kind != "cluster.restored" || list[0].Seq < 1000 {
			t.Errorf("the last event is %+v, want the restore with a number above those of the lost log", list)
		}
	})
}

// rotten returns an archive of an earlier version, whose uploaded file was damaged before it was saved.
func rotten(t *testing.T) []byte {
	t.Helper()
	var facts, out bytes.Buffer
	if _, err := Read(bytes.NewReader(sample(t)), func(name string, _ int64, r io.Reader) error {
		if name != factsName {
			return nil
		}
		_, err := io.Copy(&facts, r)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w, err := NewWriter(&out, Manifest{Cluster: "abc", Index: 1, Term: 7})
	if err != nil {
		t.Fatal(err)
	}
	sum := strings.Repeat("ab", 32)
	err = errors.Join(w.Facts(int64(facts.Len()), &facts), w.add("blobs/"+sum, 5, strings.NewReader("hallo")), w.Blob(helloSum, 5, strings.NewReader("hello")), w.Close())
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// TestADamagedFileIsFoundAndLeftOut: no new archive holds a file with other bytes than its name says; one of an earlier
// version is called damaged, and restored without that file.
func TestADamagedFileIsFoundAndLeftOut(t *testing.T) {
	w, err := NewWriter(io.Discard, Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Blob(helloSum, 5, strings.NewReader("hallo")); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), helloSum) {
		t.Errorf("a damaged file is written: %v", err)
	}
	bad := strings.Repeat("ab", 32)
	if m, err := Read(bytes.NewReader(rotten(t)), nil); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), bad) {
		t.Errorf("an archive with a damaged file: %+v, %v", m, err)
	}
	dir := t.TempDir()
	path, to := filepath.Join(dir, "a.tar.gz"), filepath.Join(dir, "state")
	if err := os.WriteFile(path, rotten(t), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := Restore(path, Target{Dir: to, ID: "c1"})
	if err != nil || len(m.MissingFiles) != 1 || m.MissingFiles[0] != "sha256:"+bad {
		t.Fatalf("%+v, %v", m, err)
	}
	if !replica.Exists(filepath.Join(to, "raft")) {
		t.Error("no log was made")
	}
	if list, _ := filepath.Glob(filepath.Join(to, "blobs", "sha256", "*", "*")); len(list) != 1 || filepath.Base(list[0]) != helloSum {
		t.Errorf("files: %v", list)
	}
}

// TestAFolderIsUnfinishedUntilItIsRestored ends a restore after each of its steps, as a crash does: until the last one the
// folder says so, to a coordinator and to the next restore, and has no log that nobody has told of the restore.
func TestAFolderIsUnfinishedUntilItIsRestored(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.tar.gz")
	if err := os.WriteFile(path, sample(t), 0o600); err != nil {
		t.Fatal(err)
	}
	to := Target{Dir: filepath.Join(dir, "state"), ID: "c1"}
	m, err := Read(bytes.NewReader(sample(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	steps := newExtractor(bytes.NewReader(sample(t)), m, to).steps()
	for i, step := range steps {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if i == len(steps)-1 {
			break
		}
		if err := Unfinished(to.Dir); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "Remove the folder") {
			t.Errorf("after step %d: %v", i, err)
		}
		if _, err := Restore(path, to); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), "Remove the folder") {
			t.Errorf("a restore after step %d: %v", i, err)
		}
	}
	if err := Unfinished(to.Dir); err != nil {
		t.Errorf("when it is restored: %v", err)
	}
	names, err := filepath.Glob(filepath.Join(to.Dir, "*"))
	if err != nil || len(names) != 3 { // blobs, history, raft
		t.Errorf("%v, %v", names, err)
	}
}

// TestAFailedRestoreLeavesItsMark restores facts that cannot be read.
func TestAFailedRestoreLeavesItsMark(t *testing.T) {
	var out bytes.Buffer
	w, err := NewWriter(&out, Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path, to := filepath.Join(dir, "a.tar.gz"), filepath.Join(dir, "state")
	if err := errors.Join(w.Facts(3, strings.NewReader("abc")), w.Close()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(path, Target{Dir: to, ID: "c1"}); err == nil || !strings.Contains(err.Error(), "remove that before") {
		t.Fatal(err)
	}
	if err := Unfinished(to); !errors.Is(err, fault.Corrupt) {
		t.Error(err)
	}
}

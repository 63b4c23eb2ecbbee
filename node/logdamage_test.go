package node

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/rotate"
	"github.com/drover-run/drover/internal/seed"
	"github.com/drover-run/drover/node/pastlogs"
)

// keptLogs keeps rotated logs of two attempts, each of one letter, and returns the
// store's folder.
func keptLogs(t *testing.T, random *rand.Rand) string {
	t.Helper()
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	s, err := pastlogs.Open(kept, pastlogs.Options{MaxBytes: 1 << 20, MaxAge: time.Hour, MaxFile: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, letter := range []byte("ab") {
		from := folder(filepath.Join(dir, string(letter)))
		if err := os.MkdirAll(from.logs(), 0o755); err != nil {
			t.Fatal(err)
		}
		w := rotate.New(from.join(nameLogs, "stdout.log"), 5000, 3)
		for range 30 {
			_, _ = w.Write(append(bytes.Repeat([]byte{letter}, random.IntN(900)), '\n'))
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Keep(string(letter), string(from), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	return kept
}

// readKept opens the store as a new daemon does, and reads an attempt's log. The position
// must lie where the log is, or before it.
func readKept(t *testing.T, kept, attempt string, r *droverv1.LogsRequest) (all []byte) {
	t.Helper()
	s, err := pastlogs.Open(kept, pastlogs.Options{MaxBytes: 1 << 20, MaxAge: time.Hour, MaxFile: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLogs(folder(s.Folder(attempt)), "stdout")
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	if err := l.seek(r); err != nil {
		t.Fatal(err)
	}
	if err := l.copy(func(b []byte, lost int64) error {
		if lost < 0 {
			t.Errorf("%d bytes are lost", lost)
		}
		all = append(all, b...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// Kept logs have no checksum: they are text that a task wrote, which nothing reads but
// people, and a changed letter changes no job. Whatever happens to a file of them, or to
// the mark of its position, reading ends, and shows what is in the attempt's own files,
// in their order, and nothing of another attempt.
func TestDamagedLogsShowNothingOfOthers(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	kept := keptLogs(t, random)
	files, err := filepath.Glob(filepath.Join(kept, "a", nameLogs, "*"))
	if err != nil || len(files) < 3 {
		t.Fatal(files, err)
	}
	other := readKept(t, kept, "b", &droverv1.LogsRequest{})
	for range bitrot.Rounds(t, 1) {
		file := files[random.IntN(len(files))]
		whole, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		bad, what := bitrot.Damage(random, whole)
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		var stored []byte // as it lies on disk, oldest first
		for i := range slices.Backward(make([]int, 4)) {
			b, err := os.ReadFile(rotate.RotatedPath(filepath.Join(kept, "a", nameLogs, "stdout.log"), i))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			stored = append(stored, b...)
		}
		if got := readKept(t, kept, "a", &droverv1.LogsRequest{}); !bytes.Equal(got, stored) {
			t.Fatalf("%s of %s: %d bytes, not the %d that are stored", what, filepath.Base(file), len(got), len(stored))
		}
		for _, r := range []*droverv1.LogsRequest{{Tail: 1 + random.Int64N(40)}, {After: fmt.Sprint(random.Int64N(40_000))}, {After: fmt.Sprint(random.Int64())}} {
			if got := readKept(t, kept, "a", r); !bytes.HasSuffix(stored, got) {
				t.Fatalf("%s of %s: %v: what is read is not the end of what is stored", what, filepath.Base(file), r)
			}
		}
		if got := readKept(t, kept, "b", &droverv1.LogsRequest{}); !bytes.Equal(got, other) {
			t.Fatalf("%s of %s: the log of another attempt changed", what, filepath.Base(file))
		}
		if err := os.WriteFile(file, whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A task whose file, or image, lost a bit in the node's cache gets the whole one: the
// step is tried again, which counts as no attempt and no failure of the node.
func TestDamageInTheCacheReachesNoTask(t *testing.T) {
	b := newTestNode(t, programs())
	const digest = "sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"
	b.blobs[digest] = []byte("hello")
	b.start()
	cached := filepath.Join(b.config.Data, "blobs", digest[len("sha256:"):])
	for i := range int32(3) {
		w := with(groupTask(i, "hang"), func(w *droverv1.WantedAttempt) {
			w.Spec.Files = []*droverv1.FileRef{{Name: "hello.txt", Digest: digest}}
		})
		b.put(w)
		b.await(t, w, running)
		got, err := os.ReadFile(filepath.Join(b.attemptFolder(w), "task", "hello.txt"))
		if err != nil || string(got) != "hello" {
			t.Errorf("task %d has %q (%v)", i, got, err)
		}
		if err := os.WriteFile(cached, []byte("hellO"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

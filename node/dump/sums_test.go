package dump

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/drover-run/drover/internal/bitrot"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/linesum"
	"github.com/drover-run/drover/internal/seed"
)

// TestDamageOfASuspendedFolderIsFound: of its files, and of the file with the checksums.
func TestDamageOfASuspendedFolderIsFound(t *testing.T) {
	dir := t.TempDir()
	s := seed.New(t)
	random := rand.New(rand.NewPCG(s, 0))
	content := map[string][]byte{"task/a": []byte("a"), "task/sub/b": make([]byte, 10_000), "tmp/c": []byte(strings.Repeat("text\n", 3000)), "logs/l": []byte("log")}
	for i := range content["task/sub/b"] {
		content["task/sub/b"][i] = byte(random.Uint32())
	}
	put := func(name string, b []byte) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700), os.WriteFile(filepath.Join(dir, name), b, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for name, b := range content {
		put(name, b)
	}
	if err := os.Symlink("a", filepath.Join(dir, "task", "link")); err != nil {
		t.Fatal(err)
	}
	if err := CheckSums(t.Context(), filepath.Join(dir, "sums"), filepath.Join(dir, "none"), "task", "tmp"); err != nil {
		t.Fatalf("without checksums the folder is looked at: %v", err)
	}
	if err := WriteSums(t.Context(), filepath.Join(dir, "sums"), dir, "task", "tmp"); err != nil {
		t.Fatal(err)
	}
	check := func() error { return CheckSums(t.Context(), filepath.Join(dir, "sums"), dir, "task", "tmp") }
	if err := check(); err != nil {
		t.Fatal(err)
	}
	var err error
	if content["sums"], err = os.ReadFile(filepath.Join(dir, "sums")); err != nil {
		t.Fatal(err)
	}
	names := []string{"task/a", "task/sub/b", "tmp/c", "sums"}
	for range bitrot.Rounds(t, 1) {
		name := names[random.IntN(len(names))]
		bad, what := bitrot.Damage(random, content[name])
		put(name, bad)
		err := check()
		if same := string(bad) == string(content[name]); same != (err == nil) || err != nil && !errors.Is(err, fault.Corrupt) {
			t.Errorf("%s, %s: %v", name, what, err)
		} else if err != nil && name != "sums" && !strings.Contains(err.Error(), name) {
			t.Errorf("%s is not named: %v", name, err)
		}
		put(name, content[name])
	}
	put("logs/l", []byte("another log"))
	put("task/new", []byte("what a restore put there"))
	if err := check(); err != nil {
		t.Errorf("what has no checksum: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "task", "link")); err != nil {
		t.Fatal(err)
	}
	if err := check(); !errors.Is(err, fault.Corrupt) || !strings.Contains(err.Error(), `"task/link" is gone`) {
		t.Errorf("a link that is gone: %v", err)
	}
}

// A hole is not read: a task can make one of any size.
func TestSumsOfAHugeHole(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "task", "hole")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(at int64, text string) {
		t.Helper()
		f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteAt([]byte(text), at)
		if err := errors.Join(err, f.Truncate(1<<40), f.Close()); err != nil {
			t.Skip("not proved here: that a hole of a TiB is not read; the file system has none:", err)
		}
	}
	write(1<<39+7, "in the middle")
	sums := filepath.Join(dir, "sums")
	if err := WriteSums(t.Context(), sums, dir, "task"); err != nil {
		t.Fatal(err)
	}
	if err := CheckSums(t.Context(), sums, dir, "task"); err != nil {
		t.Error(err)
	}
	write(1<<38, "x")
	if err := CheckSums(t.Context(), sums, dir, "task"); !errors.Is(err, fault.Corrupt) {
		t.Errorf("a byte in the hole: %v", err)
	}
}

// The sum of a file is that of its content, however much of it are holes and however it is read: a slow obvious version is the judge.
func TestBlockSums(t *testing.T) {
	random := rand.New(rand.NewPCG(seed.New(t), 0))
	seen := map[string]string{}
	for range bitrot.Rounds(t, 1) {
		dir := t.TempDir()
		content := make([]byte, random.IntN(6*blockBytes))
		f, err := os.Create(filepath.Join(dir, "f"))
		if err != nil {
			t.Fatal(err)
		}
		for range random.IntN(4) { // some data, in a hole or not
			if at := random.IntN(len(content) + 1); at < len(content) {
				part := content[at:min(len(content), at+random.IntN(2*blockBytes))]
				if random.IntN(3) > 0 {
					for i := range part {
						part[i] = byte(random.Uint32())
					}
				}
				if _, err := f.WriteAt(part, int64(at)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := errors.Join(f.Truncate(int64(len(content))), f.Close()); err != nil {
			t.Fatal(err)
		}
		both, err := List(t.Context(), wholeFilesVersion, Folder, dir)
		if err != nil {
			t.Fatal(err)
		}
		sparse, err := list(t.Context(), Folder, dir, hashBlocks)
		if err != nil {
			t.Fatal(err)
		}
		whole := sha256.Sum256(content)
		if both[0].SHA256 != hex.EncodeToString(whole[:]) || both[0].Blocks != sparse[0].Blocks || both[0].Bytes != int64(len(content)) || sparse[0].Bytes != both[0].Bytes {
			t.Fatalf("%d bytes: %+v and %+v", len(content), both[0], sparse[0])
		}
		if old, ok := seen[sparse[0].Blocks]; ok && old != string(content) {
			t.Fatal("two contents have one sum")
		}
		seen[sparse[0].Blocks] = string(content)
		hasZeros := false
		for at := 0; at < len(content); at += blockBytes {
			part := content[at:min(len(content), at+blockBytes)]
			hasZeros = hasZeros || bytes.Equal(part, zeros[:len(part)])
		}
		if hasZeros != (sparse[0].Blocks != both[0].SHA256) {
			t.Errorf("with a block of zeros %v: sums %s and %s", hasZeros, sparse[0].Blocks, both[0].SHA256)
		}
	}
}

// Files of checksums that an earlier daemon has written are believed.
func TestSumsOfAnEarlierVersion(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "task"), 0o700), os.WriteFile(filepath.Join(dir, "task", "f"), make([]byte, 3*blockBytes), 0o600)); err != nil {
		t.Fatal(err)
	}
	old := sums{Version: 1}
	var err error
	if old.Files, err = listParts(t.Context(), dir, []string{"task"}, hashEntry); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sums")
	if err := os.WriteFile(file, append(linesum.Seal(b), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func() error {
		ctx := t.Context()
		all, err := List(ctx, Version, Folder, dir)
		return errors.Join(err, CheckSums(ctx, file, dir, "task"), CompareSums(ctx, file, dir, all, "task"))
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "task", "f"), append(make([]byte, 3*blockBytes-1), 1), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := check(); !errors.Is(err, fault.Corrupt) {
		t.Errorf("a file that has changed: %v", err)
	}
}

package containerd

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// However much was followed during writing, and whatever was truncated or removed
// meanwhile, the sums equal those of reading the files at the end.
func TestFollowerSumsMatchFiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "sums-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		image := filepath.Join(dir, imageDir)
		if err := os.Mkdir(image, 0o700); err != nil {
			t.Fatal(err)
		}
		names := []string{"pages-1.img", "pages-2.img", "core-1.img"}
		noise := rand.NewChaCha8([32]byte{byte(rapid.IntRange(0, 255).Draw(t, "noise"))})
		ctx, end := context.WithCancel(context.Background())
		f := newFollower(dir)
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			path := filepath.Join(image, rapid.SampledFrom(names).Draw(t, "file"))
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				delete(f.partialSums, filepath.Base(path)) // criu writes no file twice: only truncation must be noticed
			case 1:
				end() // the dump ends during a pass
			case 2, 3, 4:
				f.catchUp(ctx)
			default:
				b := make([]byte, rapid.SampledFrom([]int{1, 4095, windowBytes - 1, windowBytes, windowBytes + 1, 2*windowBytes + 7}).Draw(t, "bytes"))
				noise.Read(b)
				grow(t, path, b)
			}
		}
		end()
		got, err := f.finish(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(names)
		var want []manifestFile
		for _, n := range names {
			one, err := sumFile(context.Background(), filepath.Join(image, n), sumXXH64)
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, one)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("(-want +got)\n%s", d)
		}
	})
}

func grow(t *rapid.T, path string, b []byte) {
	o, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	_, err = o.Write(b)
	if err := errors.Join(err, o.Close()); err != nil {
		t.Fatal(err)
	}
}

// A file truncated below the summed part is summed again from its start.
func TestTruncatedFileIsSummedAgain(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, imageDir, "pages-1.img")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 2*windowBytes), 0o600)); err != nil {
		t.Fatal(err)
	}
	f := newFollower(dir)
	f.catchUp(t.Context())
	if got := f.partialSums["pages-1.img"].bytes; got != 2*windowBytes {
		t.Fatalf("it followed %d bytes", got)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	got, err := f.finish(t.Context())
	want, werr := sumFile(t.Context(), path, sumXXH64)
	if err != nil || werr != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%+v, %v; want %+v, %v", got, err, want, werr)
	}
}

// Unreadable pages, here because the file is shorter, cause an error and do not
// crash the process.
func TestUnreadablePageIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages-1.img")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, m := range map[string]sumMethod{"xxh64": sumXXH64, "crc32c": sumCRC32C, "sha256": sumSHA256} {
		if n, err := sumPart(t.Context(), m.newHash(), f, 0, windowBytes+3); err == nil || n != 0 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := sumPart(ended, sumXXH64.newHash(), f, 0, 100); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("with a context that has ended: %d bytes, %v", n, err)
	}
}

func TestFollowerEndLeavesNothing(t *testing.T) {
	dir := t.TempDir() // without an image there is nothing to follow, which is no error before finish
	f := newFollower(dir)
	end := f.follow(t.Context())
	end()
	end()
	if _, err := f.finish(t.Context()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func BenchmarkSums(b *testing.B) {
	path := filepath.Join(b.TempDir(), "pages-1.img")
	if err := os.WriteFile(path, make([]byte, 64<<20), 0o600); err != nil {
		b.Fatal(err)
	}
	for name, m := range map[string]sumMethod{"xxh64": sumXXH64, "crc32c": sumCRC32C, "sha256": sumSHA256} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(64 << 20)
			for b.Loop() {
				if _, err := sumFile(b.Context(), path, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

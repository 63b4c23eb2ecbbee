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

// Whatever was followed of the files while they were written, whatever was cut
// or removed meanwhile: the sums are those of reading them once at the end.
func TestSumsBehindAWriterAreThoseOfTheFiles(t *testing.T) {
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
				delete(f.heads, filepath.Base(path)) // criu makes no file twice: only what is cut is to be noticed
			case 1:
				end() // the dump is over in the middle of a look
			case 2, 3, 4:
				f.catchUp(ctx)
			default:
				b := make([]byte, rapid.SampledFrom([]int{1, 4095, window - 1, window, window + 1, 2*window + 7}).Draw(t, "bytes"))
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
			one, err := sumFile(context.Background(), filepath.Join(image, n), byXXH64)
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

// A file that became shorter than what was followed of it is summed up anew.
func TestAFileThatWasCutIsSummedUpAnew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, imageDir, "pages-1.img")
	if err := errors.Join(os.Mkdir(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 2*window), 0o600)); err != nil {
		t.Fatal(err)
	}
	f := newFollower(dir)
	f.catchUp(t.Context())
	if got := f.heads["pages-1.img"].bytes; got != 2*window {
		t.Fatalf("it followed %d bytes", got)
	}
	if err := os.Truncate(path, 10); err != nil {
		t.Fatal(err)
	}
	got, err := f.finish(t.Context())
	want, werr := sumFile(t.Context(), path, byXXH64)
	if err != nil || werr != nil || len(got) != 1 || got[0] != want {
		t.Errorf("%+v, %v; want %+v, %v", got, err, want, werr)
	}
}

// Pages that the disk does not give, here because the file ends before them, are
// an error and not the end of the process.
func TestAPageThatCannotBeReadIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pages-1.img")
	if err := os.WriteFile(path, make([]byte, 100), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for name, m := range map[string]method{"xxh64": byXXH64, "crc32c": byCRC32C, "sha256": bySHA256} {
		if n, err := sumPart(t.Context(), m.new(), f, 0, window+3); err == nil || n != 0 {
			t.Errorf("%s: %d bytes, %v", name, n, err)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := sumPart(ended, byXXH64.new(), f, 0, 100); !errors.Is(err, context.Canceled) || n != 0 {
		t.Errorf("with a context that has ended: %d bytes, %v", n, err)
	}
}

func TestAFollowerThatEndsLeavesNothing(t *testing.T) {
	dir := t.TempDir() // without an image: it finds nothing, and that is no error before the end
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
	for name, m := range map[string]method{"xxh64": byXXH64, "crc32c": byCRC32C, "sha256": bySHA256} {
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

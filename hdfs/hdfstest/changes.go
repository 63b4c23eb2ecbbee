package hdfstest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"testing"

	"github.com/drover-run/drover/hdfs"
)

func (s *suite) create(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	s.put(t, name, content(10))
	_, err := s.fs.Create(t.Context(), name, s.createOptions())
	s.want(t, hdfs.ErrExist, err)
	_, err = s.fs.Create(t.Context(), dir, s.createOptions())
	s.want(t, hdfs.ErrExist, err)
	_, err = s.fs.Create(t.Context(), path.Join(dir, "none/file"), s.createOptions())
	s.want(t, hdfs.ErrNotExist, err)
	_, err = s.fs.Create(t.Context(), path.Join(name, "below"), s.createOptions())
	s.want(t, hdfs.ErrNotDirectory, err)
	options := s.createOptions()
	options.Replication = -1
	_, err = s.fs.Create(t.Context(), path.Join(dir, "negative"), options)
	s.want(t, hdfs.ErrInvalid, err)
	s.wantContent(t, name, content(10))
}

func (s *suite) overwrite(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	options := s.createOptions()
	options.Overwrite = true
	for _, n := range []int{9000, 10, 0, 5000} { // the first write has no file to replace
		s.must(t, hdfs.WriteFile(t.Context(), s.fs, name, content(n), options))
		s.wantContent(t, name, content(n))
	}
	_, err := s.fs.Create(t.Context(), dir, options)
	s.want(t, hdfs.ErrExist, err)
}

func (s *suite) abort(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	for _, n := range []int{0, 10, 2*BlockBytes + 10} {
		w, err := s.fs.Create(t.Context(), name, s.createOptions())
		s.must(t, err)
		_, err = w.Write(content(n))
		s.must(t, err)
		s.must(t, w.Abort())
		s.must(t, w.Abort())
		_, err = s.fs.Stat(t.Context(), name)
		s.want(t, hdfs.ErrNotExist, err)
		if _, err := w.Write([]byte("x")); err == nil {
			t.Error("a write after abort succeeded")
		}
		if err := w.Commit(); err == nil {
			t.Error("a commit after abort succeeded")
		}
	}
	w, err := s.fs.Create(t.Context(), name, s.createOptions())
	s.must(t, err)
	_, err = w.Write(content(10))
	s.must(t, err)
	s.must(t, w.Commit())
	s.must(t, w.Abort())
	s.wantContent(t, name, content(10))
	if err := w.Commit(); err == nil {
		t.Error("a second commit succeeded")
	}
}

func (s *suite) cancelledWrite(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	ctx, cancel := context.WithCancel(t.Context())
	w, err := s.fs.Create(ctx, name, s.createOptions())
	s.must(t, err)
	_, err = w.Write(content(BlockBytes + 10))
	s.must(t, err)
	cancel()
	s.want(t, context.Canceled, w.Commit())
	s.must(t, w.Abort())
	_, err = s.fs.Stat(t.Context(), name)
	s.want(t, hdfs.ErrNotExist, err)
}

// delayedWrite pauses a writer until another writer has replaced its file, and then resumes it. The
// paused writer has sent nothing, has finished its blocks, or has an unfinished block. It resumes
// before or after the new file is renamed and its folder deleted.
func (s *suite) delayedWrite(t *testing.T, dir string) {
	options := s.createOptions()
	options.Overwrite = true
	for i, n := range []int{10, BlockBytes + 10, 2 * BlockBytes, 100_000} {
		if n == 100_000 {
			options.BlockSizeBytes = 1 << 20
		}
		for _, renamed := range []bool{false, true} {
			below := path.Join(dir, fmt.Sprint(i, renamed))
			name, last := path.Join(below, "unfinished/file"), path.Join(below, "file")
			s.must(t, s.fs.Mkdir(t.Context(), path.Dir(name)))
			w, err := s.fs.Create(t.Context(), name, options)
			s.must(t, err)
			_, err = w.Write(content(n))
			s.must(t, err)
			want := content(n + 500)[500:] // as long as the content that the paused writer ends with, but different
			s.must(t, hdfs.WriteFile(t.Context(), s.fs, name, want, options))
			rename := func() {
				s.must(t, s.fs.Rename(t.Context(), name, last))
				s.must(t, s.fs.Delete(t.Context(), path.Dir(name)))
			}
			if renamed {
				rename()
			}
			_, err = w.Write(content(100))
			if commit := w.Commit(); errors.Join(err, commit) != nil { // an error, or a commit of a file that no longer has a name
				s.must(t, w.Abort())
			}
			if !renamed {
				s.wantContent(t, name, want)
				rename()
			}
			s.wantContent(t, last, want)
			inside, err := s.fs.List(t.Context(), below)
			s.must(t, err)
			if len(inside) != 1 {
				t.Errorf("beside the new file there is %v", inside)
			}
		}
	}
}

func (s *suite) cancelledRead(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	s.put(t, name, content(300_000))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := s.fs.Open(ctx, name, 0, -1)
	s.must(t, err)
	_, err = io.ReadFull(r, make([]byte, 10))
	s.must(t, err)
	cancel()
	// Bytes received before may still be returned.
	_, err = io.Copy(io.Discard, r)
	s.want(t, context.Canceled, err)
	s.must(t, r.Close())
	_, err = s.fs.Stat(ctx, name)
	s.want(t, context.Canceled, err)
}

func (s *suite) mkdir(t *testing.T, dir string) {
	deep := path.Join(dir, "a/b/c")
	for range 2 {
		s.must(t, s.fs.Mkdir(t.Context(), deep))
		info, err := s.fs.Stat(t.Context(), deep)
		s.must(t, err)
		if !info.Dir {
			t.Fatal("made something that is no directory")
		}
	}
	file := path.Join(dir, "file")
	s.put(t, file, nil)
	s.want(t, hdfs.ErrExist, s.fs.Mkdir(t.Context(), file))
	s.want(t, hdfs.ErrNotDirectory, s.fs.Mkdir(t.Context(), path.Join(file, "x")))
}

func (s *suite) rename(t *testing.T, dir string) {
	ctx := t.Context()
	s.must(t, s.fs.Mkdir(ctx, path.Join(dir, "from/sub")))
	s.put(t, path.Join(dir, "from/sub/file"), content(6000))
	s.must(t, s.fs.Rename(ctx, path.Join(dir, "from"), path.Join(dir, "to")))
	s.wantContent(t, path.Join(dir, "to/sub/file"), content(6000))
	_, err := s.fs.Stat(ctx, path.Join(dir, "from"))
	s.want(t, hdfs.ErrNotExist, err)
	s.must(t, s.fs.Rename(ctx, path.Join(dir, "to/sub/file"), path.Join(dir, "file")))
	s.wantContent(t, path.Join(dir, "file"), content(6000))
	s.want(t, hdfs.ErrNotExist, s.fs.Rename(ctx, path.Join(dir, "none"), path.Join(dir, "other")))
	s.want(t, hdfs.ErrNotExist, s.fs.Rename(ctx, path.Join(dir, "file"), path.Join(dir, "none/other")))
	s.want(t, hdfs.ErrInvalid, s.fs.Rename(ctx, path.Join(dir, "to"), path.Join(dir, "to/sub/itself")))
}

func (s *suite) renameExists(t *testing.T, dir string) {
	ctx := t.Context()
	names := []string{"file", "file2", "empty", "full"}
	s.put(t, path.Join(dir, "file"), content(1))
	s.put(t, path.Join(dir, "file2"), content(2))
	s.must(t, s.fs.Mkdir(ctx, path.Join(dir, "empty")))
	s.must(t, s.fs.Mkdir(ctx, path.Join(dir, "full/sub")))
	for _, from := range names {
		for _, to := range names {
			err := s.fs.Rename(ctx, path.Join(dir, from), path.Join(dir, to))
			if !errors.Is(err, hdfs.ErrExist) {
				t.Errorf("rename %s onto %s: %v, want ErrExist", from, to, err)
			}
		}
	}
	entries, err := s.fs.List(ctx, dir)
	s.must(t, err)
	if len(entries) != len(names) {
		t.Errorf("left: %v", paths(entries))
	}
	s.wantContent(t, path.Join(dir, "file"), content(1))
	s.wantContent(t, path.Join(dir, "file2"), content(2))
}

func (s *suite) renameRace(t *testing.T, dir string) {
	const racers = 8
	for i := range racers {
		s.put(t, path.Join(dir, fmt.Sprint(i)), []byte{byte(i)})
	}
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() { errs[i] = s.fs.Rename(t.Context(), path.Join(dir, fmt.Sprint(i)), path.Join(dir, "winner")) })
	}
	wg.Wait()
	winner := -1
	for i, err := range errs {
		switch {
		case err == nil && winner >= 0:
			t.Fatalf("%d and %d both won", winner, i)
		case err == nil:
			winner = i
		default:
			s.want(t, hdfs.ErrExist, err)
		}
	}
	if winner < 0 {
		t.Fatal("nobody won")
	}
	s.wantContent(t, path.Join(dir, "winner"), []byte{byte(winner)})
}

func (s *suite) remove(t *testing.T, dir string) {
	ctx := t.Context()
	s.must(t, s.fs.Mkdir(ctx, path.Join(dir, "a/b")))
	s.put(t, path.Join(dir, "a/b/file"), content(5000))
	s.put(t, path.Join(dir, "keep"), content(1))
	for range 2 {
		s.must(t, s.fs.Delete(ctx, path.Join(dir, "a")))
	}
	s.must(t, s.fs.Delete(ctx, path.Join(dir, "none/at/all")))
	_, err := s.fs.Stat(ctx, path.Join(dir, "a/b/file"))
	s.want(t, hdfs.ErrNotExist, err)
	s.wantContent(t, path.Join(dir, "keep"), content(1))
	s.want(t, hdfs.ErrInvalid, s.fs.Delete(ctx, "/"))
}

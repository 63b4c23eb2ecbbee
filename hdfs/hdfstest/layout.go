package hdfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/google/go-cmp/cmp"
)

func (s *suite) locations(t *testing.T, dir string) {
	const blocks, rest = 7, 100
	name, length := path.Join(dir, "file"), int64(blocks*BlockBytes+rest)
	s.put(t, name, content(int(length)))
	all, err := s.fs.Locations(t.Context(), name, 0, -1)
	s.must(t, err)
	s.must(t, all.Err())
	if all.Path != name || all.FileLengthBytes != length || all.UnderConstruction || len(all.Blocks) != blocks+1 {
		t.Fatalf("layout %+v", all)
	}
	ids := map[uint64]bool{}
	for i, b := range all.Blocks {
		if b.OffsetBytes != int64(i)*BlockBytes || b.LengthBytes != min(BlockBytes, length-b.OffsetBytes) || b.Corrupt || ids[b.ID] {
			t.Errorf("block %d: %+v", i, b)
		}
		ids[b.ID] = true
		for _, r := range b.Replicas {
			if r.IP == "" || r.Host == "" || !strings.HasPrefix(r.Rack, "/") {
				t.Errorf("replica %+v", r)
			}
		}
	}
	for _, c := range []struct{ offset, length, first, last int64 }{
		{0, 1, 0, 0}, {BlockBytes - 1, 2, 0, 1}, {BlockBytes, BlockBytes, 1, 1}, {3*BlockBytes + 5, 2 * BlockBytes, 3, 5}, {length - 1, 100, blocks, blocks},
	} {
		part, err := s.fs.Locations(t.Context(), name, c.offset, c.length)
		s.must(t, err)
		if diff := cmp.Diff(all.Blocks[c.first:c.last+1], part.Blocks, sameReplicas); diff != "" {
			t.Errorf("offset %d, length %d (-want +got):\n%s", c.offset, c.length, diff)
		}
	}
	empty, err := s.fs.Locations(t.Context(), name, length, 10)
	s.must(t, err)
	if len(empty.Blocks) != 0 {
		t.Errorf("blocks past the end: %+v", empty.Blocks)
	}
}

// sameReplicas compares replicas as a set, because a NameNode shuffles equal ones.
var sameReplicas = cmp.Transformer("set", func(rs []hdfs.Replica) map[string]hdfs.Replica {
	set := map[string]hdfs.Replica{}
	for _, r := range rs {
		set[r.Addr()] = r
	}
	return set
})

func (s *suite) locationsReplaced(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	for _, n := range []int{3 * BlockBytes, BlockBytes, 5*BlockBytes + 1} {
		s.must(t, s.fs.Delete(t.Context(), name))
		s.put(t, name, content(n))
		layout, err := s.fs.Locations(t.Context(), name, 0, -1)
		s.must(t, err)
		if want := (n + BlockBytes - 1) / BlockBytes; len(layout.Blocks) != want || layout.FileLengthBytes != int64(n) {
			t.Errorf("%d bytes: %d blocks of %d bytes, want %d", n, len(layout.Blocks), layout.FileLengthBytes, want)
		}
	}
}

func (s *suite) oddNames(t *testing.T, dir string) {
	names := []string{"with space", "ünïcödé", "日本", "quote'\"", "star*", "per%20cent", "-dash", "a=b,c", "tab\tname", "plus+"}
	for _, name := range names {
		p := path.Join(dir, name)
		s.put(t, p, []byte(name))
		s.wantContent(t, p, []byte(name))
		info, err := s.fs.Stat(t.Context(), p)
		s.must(t, err)
		if info.Path != p {
			t.Errorf("path %q, want %q", info.Path, p)
		}
	}
	entries, err := s.fs.List(t.Context(), dir)
	s.must(t, err)
	byPath := func(a, b hdfs.Info) int { return strings.Compare(a.Path, b.Path) }
	if len(entries) != len(names) || !slices.IsSortedFunc(entries, byPath) {
		t.Errorf("%d entries, want %d, sorted by the bytes of their paths: %+v", len(entries), len(names), entries)
	}
	for _, entry := range entries {
		s.wantContent(t, entry.Path, []byte(path.Base(entry.Path)))
	}
}

func (s *suite) badPaths(t *testing.T, dir string) {
	ctx := t.Context()
	for _, bad := range []string{"", "relative", "/../etc", dir + "/../x", dir + "/a\x00b"} {
		_, err := s.fs.Stat(ctx, bad)
		s.want(t, hdfs.ErrInvalid, err)
		_, err = s.fs.List(ctx, bad)
		s.want(t, hdfs.ErrInvalid, err)
		_, err = s.fs.Open(ctx, bad, 0, 1)
		s.want(t, hdfs.ErrInvalid, err)
		_, err = s.fs.Locations(ctx, bad, 0, 1)
		s.want(t, hdfs.ErrInvalid, err)
		_, err = s.fs.Create(ctx, bad, s.createOptions())
		s.want(t, hdfs.ErrInvalid, err)
		s.want(t, hdfs.ErrInvalid, s.fs.Mkdir(ctx, bad))
		s.want(t, hdfs.ErrInvalid, s.fs.Delete(ctx, bad))
		s.want(t, hdfs.ErrInvalid, s.fs.Rename(ctx, bad, path.Join(dir, "x")))
		s.want(t, hdfs.ErrInvalid, s.fs.Rename(ctx, dir, bad))
	}
}

func (s *suite) concurrent(t *testing.T, dir string) {
	const workers, rounds = 6, 4
	errs := make(chan error, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			for round := range rounds {
				name := path.Join(dir, fmt.Sprintf("%d-%d", i, round))
				want := content(BlockBytes*2 + i*100 + round)
				err := hdfs.WriteFile(t.Context(), s.fs, name, want, s.createOptions())
				var got []byte
				if err == nil {
					got, err = hdfs.ReadFile(t.Context(), s.fs, name, 1<<20)
				}
				if err == nil && !bytes.Equal(got, want) {
					err = fmt.Errorf("%s: %d bytes differ from %d written", name, len(got), len(want))
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	entries, err := s.fs.List(t.Context(), dir)
	s.must(t, err)
	if len(entries) != workers*rounds {
		t.Errorf("%d files, want %d", len(entries), workers*rounds)
	}
}

func (s *suite) upload(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	opened := 0
	options := hdfs.UploadOptions{CreateOptions: s.createOptions()}
	open := func() (io.ReadCloser, error) {
		opened++
		return io.NopCloser(bytes.NewReader(content(3*BlockBytes + 5))), nil
	}
	n, err := hdfs.Upload(t.Context(), s.fs, name, options, open)
	s.must(t, err)
	if n != 3*BlockBytes+5 || opened != 1 {
		t.Errorf("%d bytes in %d attempts", n, opened)
	}
	s.wantContent(t, name, content(3*BlockBytes+5))
	_, err = hdfs.Upload(t.Context(), s.fs, name, options, open)
	s.want(t, hdfs.ErrExist, err)
	if opened != 2 {
		t.Errorf("a name that is taken was tried %d times", opened-1)
	}
	s.wantContent(t, name, content(3*BlockBytes+5))
	// Unreadable content is not retried and leaves nothing behind.
	broken := errors.New("disk on fire")
	_, err = hdfs.Upload(t.Context(), s.fs, path.Join(dir, "broken"), options, func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(content(100)), errReader{broken})), nil
	})
	s.want(t, broken, err)
	_, err = s.fs.Stat(t.Context(), path.Join(dir, "broken"))
	s.want(t, hdfs.ErrNotExist, err)
}

type errReader struct{ err error }

func (e errReader) Read([]byte) (int, error) { return 0, e.err }

package hdfstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/hdfs"
)

// BlockBytes is the block size of the suite's files: small, and not smaller
// than what the test bed's NameNode allows.
const BlockBytes = 4096

// Options describe the file system under test.
type Options struct {
	// Dir is a directory that exists, is empty, and that the suite may fill.
	Dir string
	// Replication is how many replicas a file of the suite asks for; 0 is 1.
	Replication int
}

type suite struct {
	fs hdfs.FS
	o  Options
}

// Run runs the whole suite.
func Run(t *testing.T, fs hdfs.FS, o Options) {
	s := &suite{fs, o}
	for _, test := range []struct {
		claim string
		run   func(t *testing.T, dir string)
	}{
		{"a file written and committed is read back, whatever its length", s.roundTrip},
		{"any byte range is read as a plain slice would give it", s.ranges},
		{"ranges past the end are cut and negative offsets refused", s.rangeEdges},
		{"stat describes files and directories", s.stat},
		{"list gives the direct entries in the order of their bytes", s.list},
		{"glob expands wildcards, classes and braces", s.glob},
		{"create refuses names that are taken and parents that are missing", s.create},
		{"overwrite replaces a file and nothing else", s.overwrite},
		{"abort leaves nothing, and does nothing after commit", s.abort},
		{"a writer whose context ended fails and can be aborted", s.cancelledWrite},
		{"a reader whose context ended fails", s.cancelledRead},
		{"mkdir makes parents and is safe to repeat", s.mkdir},
		{"rename moves files and directories", s.rename},
		{"rename never overwrites", s.renameExists},
		{"one of many renames onto a name wins", s.renameRace},
		{"delete is recursive and safe to repeat", s.remove},
		{"locations cover the range with whole blocks", s.locations},
		{"locations follow a file that was replaced", s.locationsReplaced},
		{"odd names are kept byte for byte", s.oddNames},
		{"paths that are not absolute or go up are refused", s.badPaths},
		{"many goroutines share it", s.concurrent},
		{"upload repeats nothing it was not asked for", s.upload},
	} {
		t.Run(strings.ReplaceAll(test.claim, " ", "_"), func(t *testing.T) {
			dir := path.Join(o.Dir, strings.ReplaceAll(strings.ReplaceAll(test.claim, " ", "-"), ",", ""))
			s.must(t, fs.Mkdir(t.Context(), dir))
			test.run(t, dir)
			s.must(t, fs.Delete(t.Context(), dir))
		})
	}
}

func (s *suite) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails unless err is of the class.
func (s *suite) want(t *testing.T, class, err error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error %v, want one of class %q", err, class)
	}
}

func (s *suite) options() hdfs.CreateOptions {
	return hdfs.CreateOptions{Replication: max(s.o.Replication, 1), BlockSizeBytes: BlockBytes}
}

func (s *suite) put(t *testing.T, name string, content []byte) {
	t.Helper()
	s.must(t, hdfs.WriteFile(t.Context(), s.fs, name, content, s.options()))
}

func (s *suite) get(t *testing.T, name string, offset, length int64) []byte {
	t.Helper()
	r, err := s.fs.Open(t.Context(), name, offset, length)
	s.must(t, err)
	defer r.Close()
	b, err := io.ReadAll(r)
	s.must(t, err)
	return b
}

func (s *suite) wantContent(t *testing.T, name string, content []byte) {
	t.Helper()
	if got := s.get(t, name, 0, -1); !bytes.Equal(got, content) {
		t.Fatalf("%s: read %d bytes that differ from the %d written", name, len(got), len(content))
	}
}

// content is n bytes that no two offsets share the neighbourhood of.
func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + i>>16)
	}
	return b
}

func (s *suite) roundTrip(t *testing.T, dir string) {
	for _, n := range []int{0, 1, 511, 512, 513, BlockBytes - 1, BlockBytes, BlockBytes + 1, 3 * BlockBytes, 5*BlockBytes + 77} {
		name := path.Join(dir, fmt.Sprint(n))
		s.put(t, name, content(n))
		s.wantContent(t, name, content(n))
		info, err := s.fs.Stat(t.Context(), name)
		s.must(t, err)
		if info.LengthBytes != int64(n) {
			t.Fatalf("length %d, want %d", info.LengthBytes, n)
		}
	}
	// The size of single writes does not matter.
	name, all := path.Join(dir, "pieces"), content(10_000)
	w, err := s.fs.Create(t.Context(), name, s.options())
	s.must(t, err)
	for rest := all; len(rest) > 0; {
		n := min(len(rest), 1+len(rest)%1777)
		wrote, err := w.Write(rest[:n])
		s.must(t, err)
		if wrote != n {
			t.Fatalf("wrote %d of %d bytes without an error", wrote, n)
		}
		rest = rest[n:]
	}
	s.must(t, w.Commit())
	s.wantContent(t, name, all)
}

func (s *suite) ranges(t *testing.T, dir string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	name, all := path.Join(dir, "file"), content(6*BlockBytes+1234)
	s.put(t, name, all)
	for range 40 {
		from := random.IntN(len(all))
		to := from + random.IntN(len(all)-from+1)
		if got := s.get(t, name, int64(from), int64(to-from)); !bytes.Equal(got, all[from:to]) {
			t.Fatalf("[%d, %d): %d bytes that differ", from, to, len(got))
		}
	}
}

func (s *suite) rangeEdges(t *testing.T, dir string) {
	name, all := path.Join(dir, "file"), content(BlockBytes+10)
	s.put(t, name, all)
	n := int64(len(all))
	for _, c := range []struct{ offset, length, from, to int64 }{
		{0, 0, 0, 0}, {5, 0, 5, 5}, {n, 10, n, n}, {n + 100, 10, n, n}, {n - 3, 10, n - 3, n}, {n - 3, -1, n - 3, n}, {0, 1 << 62, 0, n},
	} {
		if got := s.get(t, name, c.offset, c.length); !bytes.Equal(got, all[c.from:c.to]) {
			t.Errorf("offset %d, length %d: %d bytes, want %d", c.offset, c.length, len(got), c.to-c.from)
		}
		if _, err := s.fs.Locations(t.Context(), name, c.offset, c.length); err != nil {
			t.Errorf("locations of offset %d, length %d: %v", c.offset, c.length, err)
		}
	}
	_, err := s.fs.Open(t.Context(), name, -1, 10)
	s.want(t, hdfs.ErrInvalid, err)
	_, err = s.fs.Locations(t.Context(), name, -1, 10)
	s.want(t, hdfs.ErrInvalid, err)
}

func (s *suite) stat(t *testing.T, dir string) {
	file := path.Join(dir, "file")
	s.put(t, file, content(100))
	info, err := s.fs.Stat(t.Context(), file)
	s.must(t, err)
	if info.Path != file || info.Dir || info.LengthBytes != 100 || info.ModTime.IsZero() || info.Owner == "" ||
		info.Perm == 0 || info.ID == 0 || info.Replication < 1 || info.BlockSizeBytes != BlockBytes {
		t.Errorf("stat of a file: %+v", info)
	}
	again, err := s.fs.Stat(t.Context(), file+"/")
	s.must(t, err)
	if !info.Same(again) || again.Path != file {
		t.Errorf("stat with a slash at the end: %+v, want %+v", again, info)
	}
	info, err = s.fs.Stat(t.Context(), dir)
	s.must(t, err)
	if info.Path != dir || !info.Dir || info.LengthBytes != 0 {
		t.Errorf("stat of a directory: %+v", info)
	}
	root, err := s.fs.Stat(t.Context(), "/")
	s.must(t, err)
	if !root.Dir || root.Path != "/" {
		t.Errorf("stat of the root: %+v", root)
	}
	_, err = s.fs.Stat(t.Context(), path.Join(dir, "none"))
	s.want(t, hdfs.ErrNotExist, err)
	_, err = s.fs.Open(t.Context(), path.Join(dir, "none"), 0, -1)
	s.want(t, hdfs.ErrNotExist, err)
	_, err = s.fs.Locations(t.Context(), path.Join(dir, "none"), 0, -1)
	s.want(t, hdfs.ErrNotExist, err)
	_, err = s.fs.Open(t.Context(), dir, 0, -1)
	s.want(t, hdfs.ErrIsDirectory, err)
	_, err = s.fs.Locations(t.Context(), dir, 0, -1)
	s.want(t, hdfs.ErrIsDirectory, err)
}

func paths(infos []hdfs.Info) []string {
	out := []string{}
	for _, info := range infos {
		out = append(out, info.Path)
	}
	return out
}

func (s *suite) list(t *testing.T, dir string) {
	entries, err := s.fs.List(t.Context(), dir)
	s.must(t, err)
	if len(entries) != 0 {
		t.Fatalf("an empty directory lists %v", paths(entries))
	}
	var want []string
	for _, name := range []string{"b", "a", "a.b", "aa", "B", "_SUCCESS", ".hidden", "z9", "z10"} {
		want = append(want, path.Join(dir, name))
		s.put(t, path.Join(dir, name), content(len(name)))
	}
	s.must(t, s.fs.Mkdir(t.Context(), path.Join(dir, "sub/deep")))
	want = append(want, path.Join(dir, "sub"))
	slices.Sort(want)
	entries, err = s.fs.List(t.Context(), dir)
	s.must(t, err)
	if diff := cmp.Diff(want, paths(entries)); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for _, entry := range entries {
		info, err := s.fs.Stat(t.Context(), entry.Path)
		s.must(t, err)
		if diff := cmp.Diff(info, entry); diff != "" {
			t.Errorf("stat and list of %s differ (-stat +list):\n%s", entry.Path, diff)
		}
	}
	_, err = s.fs.List(t.Context(), path.Join(dir, "none"))
	s.want(t, hdfs.ErrNotExist, err)
	_, err = s.fs.List(t.Context(), path.Join(dir, "a"))
	s.want(t, hdfs.ErrNotDirectory, err)
}

func (s *suite) glob(t *testing.T, dir string) {
	for _, name := range []string{"2024/a.txt", "2024/b.txt", "2024/b.csv", "2025/a.txt", "2025/x/a.txt", "top.txt"} {
		s.must(t, s.fs.Mkdir(t.Context(), path.Dir(path.Join(dir, name))))
		s.put(t, path.Join(dir, name), []byte(name))
	}
	for _, c := range []struct{ pattern, want string }{
		{"*.txt", "top.txt"},
		{"*/a.txt", "2024/a.txt 2025/a.txt"},
		{"202?/*.txt", "2024/a.txt 2024/b.txt 2025/a.txt"},
		{"202[5-9]/*", "2025/a.txt 2025/x"},
		{"202[^5]/*", "2024/a.txt 2024/b.csv 2024/b.txt"},
		{"2024/b.{txt,csv}", "2024/b.csv 2024/b.txt"},
		{"{2024,2025/x}/a.txt", ""},
		{"*/*/*", "2025/x/a.txt"},
		{"*/none", ""},
		{"none/*", ""},
		{"top.txt/*", ""},
		{"top.txt", "top.txt"},
	} {
		if c.pattern == "{2024,2025/x}/a.txt" {
			_, err := hdfs.Glob(t.Context(), s.fs, path.Join(dir, c.pattern))
			s.want(t, hdfs.ErrInvalid, err) // braces stay within one path part
			continue
		}
		infos, err := hdfs.Glob(t.Context(), s.fs, path.Join(dir, c.pattern))
		s.must(t, err)
		got := strings.ReplaceAll(strings.Join(paths(infos), " "), dir+"/", "")
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.pattern, got, c.want)
		}
	}
	_, err := hdfs.Glob(t.Context(), s.fs, path.Join(dir, "none"))
	s.want(t, hdfs.ErrNotExist, err)
}

func (s *suite) create(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	s.put(t, name, content(10))
	_, err := s.fs.Create(t.Context(), name, s.options())
	s.want(t, hdfs.ErrExist, err)
	_, err = s.fs.Create(t.Context(), dir, s.options())
	s.want(t, hdfs.ErrExist, err)
	_, err = s.fs.Create(t.Context(), path.Join(dir, "none/file"), s.options())
	s.want(t, hdfs.ErrNotExist, err)
	_, err = s.fs.Create(t.Context(), path.Join(name, "below"), s.options())
	s.want(t, hdfs.ErrNotDirectory, err)
	options := s.options()
	options.Replication = -1
	_, err = s.fs.Create(t.Context(), path.Join(dir, "negative"), options)
	s.want(t, hdfs.ErrInvalid, err)
	s.wantContent(t, name, content(10))
}

func (s *suite) overwrite(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	options := s.options()
	options.Overwrite = true
	for _, n := range []int{9000, 10, 0, 5000} { // the first time there is nothing to replace
		s.must(t, hdfs.WriteFile(t.Context(), s.fs, name, content(n), options))
		s.wantContent(t, name, content(n))
	}
	_, err := s.fs.Create(t.Context(), dir, options)
	s.want(t, hdfs.ErrExist, err)
}

func (s *suite) abort(t *testing.T, dir string) {
	name := path.Join(dir, "file")
	for _, n := range []int{0, 10, 2*BlockBytes + 10} {
		w, err := s.fs.Create(t.Context(), name, s.options())
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
	w, err := s.fs.Create(t.Context(), name, s.options())
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
	w, err := s.fs.Create(ctx, name, s.options())
	s.must(t, err)
	_, err = w.Write(content(BlockBytes + 10))
	s.must(t, err)
	cancel()
	s.want(t, context.Canceled, w.Commit())
	s.must(t, w.Abort())
	_, err = s.fs.Stat(t.Context(), name)
	s.want(t, hdfs.ErrNotExist, err)
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
	// What was received already may still be given.
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

// sameReplicas compares replicas as a set: a NameNode shuffles equals.
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
	for _, name := range []string{"with space", "ünïcödé", "quote'\"", "star*", "per%20cent", "-dash", "a=b,c", "tab\tname", "plus+"} {
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
		_, err = s.fs.Create(ctx, bad, s.options())
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
				err := hdfs.WriteFile(t.Context(), s.fs, name, want, s.options())
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
	options := hdfs.UploadOptions{CreateOptions: s.options()}
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
	// Content that cannot be read is no reason to try again, and leaves nothing.
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

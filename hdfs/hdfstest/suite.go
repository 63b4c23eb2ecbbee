package hdfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/drover-run/drover/hdfs"
)

// BlockBytes is the block size of the suite's files: small, but at least the
// minimum of the test bed's NameNode.
const BlockBytes = 4096

// Options describes the file system under test.
type Options struct {
	// Dir is an existing, empty directory for the suite.
	Dir string
	// Replication is the replication of the suite's files; 0: 1.
	Replication int
}

type suite struct {
	fs   hdfs.FS
	opts Options
}

// Run runs the whole suite.
func Run(t *testing.T, fs hdfs.FS, o Options) {
	s := &suite{fs, o}
	for _, test := range []struct {
		claim string
		run   func(t *testing.T, dir string)
	}{
		{"a file written and committed is read back, whatever its length", s.roundTrip},
		{"any byte range is read as from a plain slice", s.ranges},
		{"ranges past the end are cut and negative offsets refused", s.rangeEdges},
		{"stat describes files and directories", s.stat},
		{"list returns the direct entries in the order of their bytes", s.list},
		{"glob expands wildcards, classes and braces", s.glob},
		{"create refuses names that are taken and parents that are missing", s.create},
		{"overwrite replaces a file and nothing else", s.overwrite},
		{"abort leaves nothing, and does nothing after commit", s.abort},
		{"a writer whose context ended fails and can be aborted", s.cancelledWrite},
		{"a writer whose file was replaced changes nothing of the new one, nor once that has another name", s.delayedWrite},
		{"a reader whose context ended fails", s.cancelledRead},
		{"mkdir makes parents and is safe to repeat", s.mkdir},
		{"rename moves files and directories", s.rename},
		{"rename never overwrites", s.renameExists},
		{"one of many renames onto a name wins", s.renameRace},
		{"delete is recursive and safe to repeat", s.remove},
		{"locations cover the range with whole blocks", s.locations},
		{"locations follow a file that was replaced", s.locationsReplaced},
		{"odd names are preserved byte for byte", s.oddNames},
		{"paths that are not absolute or go up are refused", s.badPaths},
		{"many goroutines share it", s.concurrent},
		{"upload retries only transient failures", s.upload},
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

// want fails the test unless err is of the class.
func (s *suite) want(t *testing.T, class, err error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("error %v, want one of class %q", err, class)
	}
}

func (s *suite) createOptions() hdfs.CreateOptions {
	return hdfs.CreateOptions{Replication: max(s.opts.Replication, 1), BlockSizeBytes: BlockBytes}
}

func (s *suite) put(t *testing.T, name string, content []byte) {
	t.Helper()
	s.must(t, hdfs.WriteFile(t.Context(), s.fs, name, content, s.createOptions()))
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

// content returns n bytes in which no short sequence occurs twice.
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
	// The sizes of single writes must not matter.
	name, all := path.Join(dir, "pieces"), content(10_000)
	w, err := s.fs.Create(t.Context(), name, s.createOptions())
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
	if !info.SameVersion(again) || again.Path != file {
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

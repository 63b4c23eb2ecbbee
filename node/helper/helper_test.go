package helper

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/fuzztest"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/fsys"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type singleFS struct{ fs hdfs.FS }

func (o singleFS) Open(hdfs.URI, string) (hdfs.FS, error) { return o.fs, nil }

// events collects a helper's events.
type events struct {
	mu  sync.Mutex
	all []Event
}

func (e *events) emit(x Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, x)
}

func writeTestFile(t interface{ Fatal(...any) }, fs hdfs.FS, name string, content []byte) {
	if err := hdfs.WriteFile(context.Background(), fs, name, content, hdfs.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// However a file is cut into splits and whichever read fails once, the splits
// together contain each line once.
func TestFetchBringsEachLineOnce(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		var content []byte
		for i, length := range rapid.SliceOfN(rapid.IntRange(0, 300), 1, 40).Draw(rt, "lines") {
			content = append(content, fmt.Sprintf("%d %s\n", i, strings.Repeat("x", length))...)
		}
		cuts := rapid.SliceOfN(rapid.IntRange(0, len(content)), 0, 5).Draw(rt, "cuts")
		cuts = append(cuts, 0, len(content))
		slices.Sort(cuts)
		var got []byte
		for i, from := range cuts[:len(cuts)-1] {
			to := cuts[i+1]
			if from == to {
				continue
			}
			// A file system of its own: a fault that one split does not reach
			// must not add up with the next split's to more than a fetch retries.
			fs := fake.New(fake.Options{BlockBytes: 512})
			writeTestFile(rt, fs, "/in", content)
			if at := rapid.IntRange(0, 6).Draw(rt, "fails"); at > 0 {
				fs.FailNth(fake.OpRead, at, hdfs.ErrBlockMissing)
			}
			file := filepath.Join(dir, fmt.Sprintf("%d-%d", n, i))
			req := &Request{Version: Version, Fetch: &Fetch{File: file, Pieces: []mapreduce.Piece{
				{Path: "hdfs:///in", Offset: int64(from), Length: int64(to - from), Codec: mapreduce.CodecNone}}}}
			said := &events{}
			if err := run(req, Tools{Files: singleFS{fs}, Emit: said.emit}); err != nil {
				rt.Fatal(err)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				rt.Fatal(err)
			}
			got = append(got, b...)
			j := mapreduce.JournalReader{Path: file + mapreduce.JournalSuffix}
			if _, err := j.Poll(); err != nil || !j.Done || j.TotalBytes != int64(len(b)) {
				rt.Fatalf("journal %+v %v", j.Journal, err)
			}
			j.Close()
		}
		if !bytes.Equal(got, content) {
			rt.Fatalf("%d bytes, want %d", len(got), len(content))
		}
	})
}

// run calls Run with short pauses between tries.
func run(r *Request, t Tools) error {
	t.pause = time.Microsecond
	return Run(context.Background(), r, t)
}

// The harness is told that its input will not come only of errors for which the daemon starts no other helper: what it is
// told is final, and another helper may succeed.
func TestFetchGivesUp(t *testing.T) {
	for name, c := range map[string]struct {
		fail  error
		times int
		want  error
		told  bool
	}{
		"a file that is gone":         {hdfs.ErrNotExist, 1, fault.NotFound, true},
		"a file that may not be read": {hdfs.ErrPermission, 1, fault.Denied, true},
		"a NameNode that is down":     {hdfs.ErrUnavailable, maxFetchTries, fault.Unavailable, false},
	} {
		t.Run(name, func(t *testing.T) {
			fs := fake.New(fake.Options{})
			writeTestFile(t, fs, "/in", []byte("line\n"))
			for i := range c.times {
				fs.FailNth(fake.OpOpen, i+1, c.fail)
			}
			file := filepath.Join(t.TempDir(), "f")
			req := &Request{Version: Version, Fetch: &Fetch{File: file, Pieces: []mapreduce.Piece{{Path: "hdfs:///in", Length: 5, Codec: mapreduce.CodecNone}}}}
			err := run(req, Tools{Files: singleFS{fs}, Emit: func(Event) {}})
			if !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			j := mapreduce.JournalReader{Path: file + mapreduce.JournalSuffix}
			defer j.Close()
			if _, err := j.Poll(); err != nil || (j.FailReason != "") != c.told {
				t.Errorf("what the harness is told: %+v %v", j.Journal, err)
			}
			if c.told {
				return
			}
			if err := run(req, Tools{Files: singleFS{fs}, Emit: func(Event) {}}); err != nil {
				t.Errorf("the next helper: %v", err)
			}
			if _, err := j.Poll(); err != nil || !j.Done || j.FailReason != "" {
				t.Errorf("after the next helper: %+v %v", j.Journal, err)
			}
		})
	}
}

// A large split may meet any number of failures that pass: each new byte makes the tries start again.
func TestFetchGoesOnWhileItGetsFurther(t *testing.T) {
	fs, text := fake.New(fake.Options{}), bytes.Repeat([]byte("line\n"), 1<<20)
	writeTestFile(t, fs, "/in", text)
	for i := range 3 * maxFetchTries {
		fs.FailNth(fake.OpRead, 2*i+2, hdfs.ErrUnavailable)
	}
	file := filepath.Join(t.TempDir(), "f")
	req := &Request{Version: Version, Fetch: &Fetch{File: file, Pieces: []mapreduce.Piece{{Path: "hdfs:///in", Length: int64(len(text)), Codec: mapreduce.CodecNone}}}}
	if err := run(req, Tools{Files: singleFS{fs}, Emit: func(Event) {}}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, text) {
		t.Errorf("%d bytes of %d, %v", len(got), len(text), err)
	}
}

func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789"), 5000)
	sum := crc32.Checksum(content, castagnoli)
	for name, c := range map[string]struct {
		uri   string
		name  string
		bytes int64
		sum   uint32
		fail  func(*fake.FS)
		want  error
	}{
		"a file":                          {"hdfs:///out/_temporary/7/1.1/part", "part", 50000, sum, nil, nil},
		"a DataNode dies in the middle":   {"hdfs:///out/_temporary/7/1.1/part", "part", 50000, sum, func(fs *fake.FS) { fs.FailNth(fake.OpWrite, 1, hdfs.ErrUnavailable) }, nil},
		"the end of the file fails once":  {"hdfs:///out/_temporary/7/1.1/part", "part", 50000, sum, func(fs *fake.FS) { fs.FailNth(fake.OpCommit, 1, hdfs.ErrUnavailable) }, nil},
		"the job has ended":               {"hdfs:///out/_temporary/8/1.1/part", "part", 50000, sum, nil, fault.Invalid},
		"the file was changed afterwards": {"hdfs:///out/_temporary/7/1.1/part", "part", 50000, sum + 1, nil, fault.Corrupt},
		"a link out of the folder":        {"hdfs:///out/_temporary/7/1.1/part", "link", 50000, sum, nil, errors.ErrUnsupported},
		"a pipe":                          {"hdfs:///out/_temporary/7/1.1/part", "pipe", 50000, sum, nil, fault.Invalid},
		"refused by the NameNode":         {"hdfs:///out/_temporary/7/1.1/part", "part", 50000, sum, func(fs *fake.FS) { fs.FailNth(fake.OpCreate, 1, hdfs.ErrRefused) }, fault.Conflict},
		"over the quota":                  {"hdfs:///out/_temporary/7/1.1/part", "part", 50000, sum, func(fs *fake.FS) { fs.FailNth(fake.OpWrite, 1, hdfs.ErrQuota) }, fault.Exhausted},
	} {
		t.Run(name, func(t *testing.T) {
			dir, fs := t.TempDir(), fake.New(fake.Options{})
			if err := fs.Mkdir(t.Context(), "/out/_temporary/7"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "part"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := mkfifo(filepath.Join(dir, "pipe")); err != nil {
				t.Fatal(err)
			}
			if c.fail != nil {
				c.fail(fs)
			}
			req := &Request{Version: Version, Upload: &Upload{Root: dir, Name: c.name, URI: c.uri, Bytes: c.bytes, CRC32C: c.sum}}
			err := Run(t.Context(), req, Tools{Files: singleFS{fs}, Emit: func(Event) {}})
			if c.name == "link" {
				if err == nil {
					t.Error("a link was followed out of the folder")
				}
				return
			}
			if !errors.Is(err, c.want) || err != nil && IsRetryable(err) {
				t.Fatalf("%v, want %v", err, c.want)
			}
			if err == nil {
				if got, err := hdfs.ReadFile(t.Context(), fs, "/out/_temporary/7/1.1/part", 1<<20); err != nil || !bytes.Equal(got, content) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
			}
			if _, err := fs.Stat(t.Context(), "/out/_temporary/8"); err == nil {
				t.Error("a late attempt made the temporary folder of an ended job again")
			}
		})
	}
}

// On one file system of the machine an upload costs no second copy; what it checks is the same.
func TestUploadLinksLocalFiles(t *testing.T) {
	content := []byte("a line\n")
	sum := crc32.Checksum(content, castagnoli)
	for name, c := range map[string]struct {
		sum  uint32
		want error
	}{"a file": {sum, nil}, "the file was changed afterwards": {sum + 1, fault.Corrupt}} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, folder := range []string{"task", "out"} {
				if err := os.Mkdir(filepath.Join(dir, folder), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			from, to := filepath.Join(dir, "task/part"), filepath.Join(dir, "out/1.1/part")
			if err := os.WriteFile(from, content, 0o600); err != nil {
				t.Fatal(err)
			}
			set := fsys.New(fsys.Config{Local: true}, nil, nil)
			defer set.Close()
			req := &Request{Version: Version, Upload: &Upload{Root: filepath.Join(dir, "task"), Name: "part", URI: "file://" + to, Bytes: int64(len(content)), CRC32C: c.sum}}
			for range 2 { // a repetition replaces the file
				if err := Run(t.Context(), req, Tools{Files: set, Emit: func(Event) {}}); !errors.Is(err, c.want) {
					t.Fatalf("%v, want %v", err, c.want)
				}
				a, aErr := os.Stat(from)
				b, bErr := os.Stat(to)
				if aErr != nil || bErr != nil || !os.SameFile(a, b) {
					t.Errorf("the file was copied: %v %v", aErr, bErr)
				}
			}
		})
	}
}

// The helper program answers in lines, and ends when its daemon does.
func TestServe(t *testing.T) {
	dir := t.TempDir()
	input := filepath.Join(dir, "in")
	if err := os.WriteFile(input, []byte("a\nb\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	ask := func(r *Request, open bool) (Event, error) {
		line, err := Encode(r)
		if err != nil {
			t.Fatal(err)
		}
		in, feed := io.Pipe()
		defer feed.Close()
		go func() {
			if _, err := feed.Write(line); err == nil && !open {
				feed.Close()
			}
		}()
		var out bytes.Buffer
		err = serve(context.Background(), in, &out)
		in.Close()
		lines := bufio.NewReader(&out)
		var last Event
		for {
			e, derr := Decode(lines)
			if derr != nil {
				return last, err
			}
			last = e
		}
	}
	files := fsys.Config{Local: true}
	fetch := func(path string) *Request {
		return &Request{Version: Version, Files: files, Fetch: &Fetch{File: filepath.Join(dir, filepath.Base(path)+".got"),
			Pieces: []mapreduce.Piece{{Path: "file://" + path, Length: 4, Codec: mapreduce.CodecNone}}}}
	}
	if e, err := ask(fetch(input), true); !e.Done || err != nil {
		t.Errorf("a fetch: %+v %v", e, err)
	}
	if e, err := ask(fetch(input+"x"), true); !errors.Is(e.Err(), fault.NotFound) || err == nil {
		t.Errorf("a missing file: %+v %v", e, err)
	}
	if e, err := ask(&Request{Version: Version + 1}, true); !errors.Is(e.Err(), fault.Unsupported) || err == nil {
		t.Errorf("a newer request: %+v %v", e, err)
	}
	waits := &Request{Version: Version, Files: files, Shuffle: &Shuffle{Maps: 1, Dir: dir, Journal: filepath.Join(dir, "j")}}
	if e, err := ask(waits, false); e.Done || err == nil {
		t.Errorf("a daemon that is gone did not end the helper: %+v %v", e, err)
	}
}

func FuzzReadLine(f *testing.F) {
	f.Add([]byte(`{"version":1,"fetch":{"file":"x"}}` + "\n"))
	fuzztest.Run(f, func(t *testing.T, b []byte) {
		var r Request
		if err := readLine(bufio.NewReader(bytes.NewReader(b)), &r); err == nil && !bytes.ContainsRune(b, '\n') {
			t.Error("a line without an end was taken")
		}
	})
}

func TestCopySaysWhenItsInputIsAnotherFile(t *testing.T) {
	const abc = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	for text, want := range map[string]int{"abc": 0, "abd": ExitDamaged, "ab": ExitDamaged, "": ExitDamaged} {
		var out, said bytes.Buffer
		if code := copyVerified(strings.NewReader(text), &out, &said, abc); code != want || out.String() != text || (said.Len() > 0) != (code != 0) {
			t.Errorf("%q: exit code %d, %q, %q", text, code, out.String(), said.String())
		}
	}
}

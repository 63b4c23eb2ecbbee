package dump

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
)

const (
	attemptName = "1.0.0.1.1"
	program     = "780d84b20d7ae7e6292919399348bdbf96025270136198083fc8a4da398b5ca9" // of "elf"
)

// singleSource is a Source with one dump.
type singleSource struct {
	dirs  map[Root]string
	limit int // the newest version that it has; 0: Version
}

func (o singleSource) Dump(name string) (*LocalDump, error) {
	if name != attemptName {
		return nil, fault.New(fault.NotFound, "no %s", name)
	}
	return &LocalDump{Token: "t", Dirs: o.dirs, Manifest: func(_ context.Context, version int) (*Manifest, error) {
		version = min(version, cmp.Or(o.limit, Version))
		m := &Manifest{Version: version, Attempt: name, HarnessSHA256: program, RanNS: 7}
		for _, r := range Roots {
			files, err := List(context.Background(), version, r, o.dirs[r])
			if err != nil {
				return nil, err
			}
			m.Files = append(m.Files, files...)
		}
		return m, nil
	}}, nil
}

// localDump makes a dump with a file of every type.
func localDump(t *testing.T) singleSource {
	t.Helper()
	dir := t.TempDir()
	o := singleSource{dirs: map[Root]string{Image: filepath.Join(dir, "image"), Folder: filepath.Join(dir, "folder"), Harness: filepath.Join(dir, "harness")}}
	for name, text := range map[string]string{"image/pages": strings.Repeat("p", 700_000), "image/empty": "", "folder/task/a/b": "deep", "harness/drover": "elf"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("b", filepath.Join(dir, "folder/task/a/link")), unix.Mkfifo(filepath.Join(dir, "folder/task/pipe"), 0o600),
		os.Link(filepath.Join(dir, "folder/task/a/b"), filepath.Join(dir, "folder/task/again")), writeSparse(filepath.Join(dir, "folder/task/sparse")),
		os.Chmod(filepath.Join(dir, "folder/task/a"), 0o500)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "folder/task/a"), 0o700) })
	return o
}

// sparseBytes is the size of the file of writeSparse, and sparseData how much of it is no hole.
const (
	sparseBytes = 1 << 32
	sparseData  = 3 * 4096
)

// writeSparse makes a file with data in its middle, in a hole.
func writeSparse(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = f.WriteAt([]byte(strings.Repeat("x", sparseData)), 5*4096)
	return errors.Join(err, f.Truncate(sparseBytes), f.Close())
}

func serve(t *testing.T, wrap func(http.Handler) http.Handler) (*Client, singleSource) {
	t.Helper()
	o := localDump(t)
	var h http.Handler = NewServer(o, 4, slog.New(slog.DiscardHandler))
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return &Client{HTTP: srv.Client(), Scheme: "http", Address: strings.TrimPrefix(srv.URL, "http://"), Token: "t", Attempt: attemptName}, o
}

func destinations(t *testing.T) (map[Root]Destination, string) {
	dir := t.TempDir()
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "folder/task/a"), 0o700) })
	p := map[Root]Destination{}
	for _, r := range []Root{Image, Folder, Harness} {
		p[r] = Destination{Dir: filepath.Join(dir, string(r)), UID: os.Getuid(), GID: os.Getgid()}
	}
	return p, dir
}

func checkSameFiles(t *testing.T, o singleSource, dir string) {
	t.Helper()
	for _, r := range []Root{Image, Folder, Harness} {
		want, err := List(t.Context(), Version, r, o.dirs[r])
		if err != nil {
			t.Fatal(err)
		}
		got, err := List(t.Context(), Version, r, filepath.Join(dir, string(r)))
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %d things, want %d", r, len(got), len(want))
		}
		for i := range want {
			if want[i].Link != "" || want[i].Mode.Type() != 0 && !want[i].Mode.IsDir() {
				want[i].MTime, got[i].MTime = 0, 0 // irrelevant
			}
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Errorf("%s: got %+v, want %+v", r, got[i], want[i])
			}
		}
	}
}

func TestFetchReproducesEverything(t *testing.T) {
	c, o := serve(t, nil)
	m, err := c.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, dir := destinations(t)
	moved := int64(0)
	if err := c.Fetch(t.Context(), m, p, func(n int64) { moved += n }); err != nil {
		t.Fatal(err)
	}
	checkSameFiles(t, o, dir)
	if moved != 700_000+4+3+sparseData || m.RanNS != 7 {
		t.Errorf("%d bytes moved, ran %d", moved, m.RanNS)
	}
	moved = 0 // a repetition transfers nothing
	if err := os.Chmod(filepath.Join(dir, "folder/task/a"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.Fetch(t.Context(), m, p, func(n int64) { moved += n }); err != nil || moved != 0 {
		t.Errorf("again: %d bytes, %v", moved, err)
	}
}

// TestFetchFromAnEarlierSource: a node that knows no holes sends them, and gets none sent that it cannot read.
func TestFetchFromAnEarlierSource(t *testing.T) {
	asked := ""
	c, o := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked = r.Header.Get(versionHeader)
			r.Header.Del(versionHeader)
			h.ServeHTTP(w, r)
		})
	})
	if err := os.Truncate(filepath.Join(o.dirs[Folder], "task/sparse"), 1<<20); err != nil {
		t.Fatal(err)
	}
	m, err := c.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		if f.Mode.IsRegular() && f.SHA256 == "" || f.HardLink != "" || len(f.Ranges) > 0 {
			t.Errorf("an earlier client gets %+v", f)
		}
	}
	p, dir := destinations(t)
	if err := c.Fetch(t.Context(), m, p, func(int64) {}); err != nil || asked != "2" || m.Version != wholeFilesVersion {
		t.Fatalf("version %d, asked for %q: %v", m.Version, asked, err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "folder/task/sparse"))
	if err != nil || len(b) != 1<<20 || b[5*4096] != 'x' || b[0] != 0 {
		t.Errorf("a file with holes: %d bytes, %v", len(b), err)
	}
}

// TestSparseFileResumes cuts the data of a file with holes at every place where a try may have ended.
func TestSparseFileResumes(t *testing.T) {
	c, o := serve(t, nil)
	m, err := c.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, dir := destinations(t)
	file := filepath.Join(dir, "folder/task/sparse")
	for _, c2 := range []struct{ have, moves int64 }{{0, sparseData}, {1, sparseData}, {5 * 4096, sparseData}, {5*4096 + 100, sparseData - 100}, {8 * 4096, 0}, {sparseBytes - 1, 0}, {sparseBytes + 1, sparseData}} {
		if err := c.Fetch(t.Context(), m, p, func(int64) {}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(filepath.Join(dir, "folder/task/a"), 0o700), os.Truncate(file, c2.have)); err != nil {
			t.Fatal(err)
		}
		moved := int64(0)
		if err := c.Fetch(t.Context(), m, p, func(n int64) { moved += n }); err != nil || moved != c2.moves {
			t.Errorf("from %d on: %d bytes, %v", c2.have, moved, err)
		}
		checkSameFiles(t, o, dir)
		if err := os.Chmod(filepath.Join(dir, "folder/task/a"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// cutWriter breaks the connection in the middle of a large file, once.
type cutWriter struct {
	http.ResponseWriter
	left int
}

func (c *cutWriter) Write(b []byte) (int, error) {
	if c.left -= len(b); c.left < 0 {
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(b)
}

func TestInterruptedTransferResumes(t *testing.T) {
	broken, ranges := false, []string{}
	c, o := serve(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.RawQuery, "pages") {
				ranges = append(ranges, r.Header.Get("Range"))
				if !broken {
					broken = true
					w = &cutWriter{w, 400_000}
				}
			}
			h.ServeHTTP(w, r)
		})
	})
	m, err := c.Manifest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	p, dir := destinations(t)
	if err := c.Fetch(t.Context(), m, p, func(int64) {}); !errors.Is(err, fault.Unavailable) {
		t.Fatalf("the first try: %v", err)
	}
	if err := c.Fetch(t.Context(), m, p, func(int64) {}); err != nil {
		t.Fatal(err)
	}
	checkSameFiles(t, o, dir)
	if len(ranges) != 2 || ranges[1] == "" {
		t.Errorf("asked for %q: it did not resume", ranges)
	}
}

// TestBusySourceIsAskedAgain has a source answer three times that it is busy: with too many requests, or with the
// listing of a large dump.
func TestBusySourceIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		c := &Client{Scheme: "http", Address: "n", Attempt: attemptName, HTTP: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			rec := httptest.NewRecorder()
			if asked++; asked <= 3 {
				refuseBusy(rec, "too many requests at once")
			} else {
				_ = json.NewEncoder(rec).Encode(&Manifest{Version: Version, HarnessSHA256: program, Files: []File{{Root: Harness, Path: HarnessName, SHA256: program}}})
			}
			return rec.Result(), nil
		})}}
		if _, err := c.Manifest(t.Context()); err != nil || asked != 4 {
			t.Errorf("asked %d times, %v", asked, err)
		}
		asked = -1 << 20 // and a source that stays busy is given up
		start := time.Now()
		if _, err := c.Manifest(t.Context()); !errors.Is(err, fault.Unavailable) || time.Since(start) > busyLimit+2*time.Second {
			t.Errorf("after %s: %v", time.Since(start), err)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestServerRefusals(t *testing.T) {
	for name, f := range map[string]struct {
		harm func(*testing.T, *Client, *Manifest, singleSource)
		want error
	}{
		"another token":   {func(_ *testing.T, c *Client, _ *Manifest, _ singleSource) { c.Token = "guess" }, fault.Denied},
		"another attempt": {func(_ *testing.T, c *Client, _ *Manifest, _ singleSource) { c.Attempt = "1.0.0.1.2" }, fault.NotFound},
		"a file that was removed": {func(t *testing.T, _ *Client, _ *Manifest, o singleSource) {
			os.Remove(filepath.Join(o.dirs[Image], "pages"))
		}, fault.NotFound},
		"another content":    {func(_ *testing.T, _ *Client, m *Manifest, _ singleSource) { m.Files[1].SHA256 = program }, fault.Unavailable},
		"a node that is not": {func(_ *testing.T, c *Client, _ *Manifest, _ singleSource) { c.Address = "127.0.0.1:1" }, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			c, o := serve(t, nil)
			m, err := c.Manifest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			f.harm(t, c, m, o)
			p, _ := destinations(t)
			if err := c.Fetch(t.Context(), m, p, func(int64) {}); !errors.Is(err, f.want) {
				t.Errorf("got %v, want %v", err, f.want)
			}
		})
	}
}

// A node's certificate may be stolen: what its dump names is written by a daemon that is root, and run by tasks of
// others. The last cases were taken: a folder of the machine in the place of the task's was mounted into the
// container, a link in the place of a log was written to as root, and any program could have any harness's name.
func TestManifestCannotEscapeItsRoots(t *testing.T) {
	other := strings.Repeat("0", 64)
	good := Manifest{Version: Version, HarnessSHA256: program, Files: []File{
		{Root: Image, Path: "image", Mode: fs.ModeDir}, {Root: Image, Path: "image/pages"},
		{Root: Folder, Path: "logs", Mode: fs.ModeDir}, {Root: Folder, Path: "logs/stdout.log"},
		{Root: Folder, Path: "task", Mode: fs.ModeDir}, {Root: Folder, Path: "task/link", Mode: fs.ModeSymlink, Link: "/etc"},
		{Root: Folder, Path: "task/file", Bytes: 9, Ranges: []Range{{1, 3}, {4, 9}}}, {Root: Folder, Path: "task/name", HardLink: "task/file"},
		{Root: Harness, Path: HarnessName, SHA256: program},
	}}
	add := func(f File) func(*Manifest) { return func(m *Manifest) { m.Files = append(slices.Clone(m.Files), f) } }
	for name, harm := range map[string]func(*Manifest){
		"up":                              add(File{Root: Folder, Path: "task/../../x"}),
		"up at once":                      add(File{Root: Folder, Path: "../x"}),
		"absolute":                        add(File{Root: Folder, Path: "/etc/passwd"}),
		"an unknown root":                 add(File{Root: "etc", Path: "x"}),
		"a program's way":                 func(m *Manifest) { m.HarnessSHA256 = "../" + program[3:] },
		"a newer version":                 func(m *Manifest) { m.Version++ },
		"a link in the task's place":      add(File{Root: Folder, Path: "task", Mode: fs.ModeSymlink, Link: "/etc"}),
		"it, by another name":             add(File{Root: Folder, Path: "logs/../task", Mode: fs.ModeSymlink, Link: "/etc"}),
		"a file in the task's place":      add(File{Root: Folder, Path: "task"}),
		"a link in a log's place":         add(File{Root: Folder, Path: "logs/stderr.log", Mode: fs.ModeSymlink, Link: "/etc/cron.d/x"}),
		"a pipe in a log's place":         add(File{Root: Folder, Path: "logs/stderr.log", Mode: fs.ModeNamedPipe}),
		"a link where criu writes":        add(File{Root: Image, Path: "work/restore.log", Mode: fs.ModeSymlink, Link: "/etc/passwd"}),
		"another harness":                 func(m *Manifest) { add(File{Root: Harness, Path: HarnessName, SHA256: other})(m) },
		"another harness under this name": func(m *Manifest) { m.HarnessSHA256 = other },
		"another program":                 add(File{Root: Harness, Path: "sh", SHA256: program}),
		"bytes beyond its end":            add(File{Root: Folder, Path: "task/x", Bytes: 5, Ranges: []Range{{0, 6}}}),
		"bytes before its begin":          add(File{Root: Folder, Path: "task/x", Bytes: 5, Ranges: []Range{{-1, 2}}}),
		"bytes twice":                     add(File{Root: Folder, Path: "task/x", Bytes: 5, Ranges: []Range{{0, 3}, {2, 5}}}),
		"parts of an image":               add(File{Root: Image, Path: "x", Bytes: 5, Ranges: []Range{{0, 3}}}),
		"another name of a log":           add(File{Root: Folder, Path: "task/x", HardLink: "logs/stdout.log"}),
		"a log that is a task's file":     add(File{Root: Folder, Path: "logs/x", HardLink: "task/file"}),
		"another name of a link":          add(File{Root: Folder, Path: "task/x", HardLink: "task/link"}),
		"another name of what is outside": add(File{Root: Folder, Path: "task/x", HardLink: "../../x"}),
		"another name of a later file":    add(File{Root: Folder, Path: "task/x", HardLink: "task/y"}),
		"no harness":                      func(m *Manifest) { m.Files = m.Files[:len(m.Files)-1] },
		"a negative time":                 func(m *Manifest) { m.RanNS = -1 },
		"a negative usage":                func(m *Manifest) { m.ReadBytes = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			m := good
			harm(&m)
			if err := m.validate(); !errors.Is(err, fault.Corrupt) && !errors.Is(err, fault.Unsupported) {
				t.Errorf("it was taken: %v", err)
			}
		})
	}
	if err := good.validate(); err != nil {
		t.Error(err)
	}
	c, _ := serve(t, nil)
	for _, path := range []string{"../image/pages", "/etc/passwd", "task/pipe", ""} {
		res, cancel, err := c.get(t.Context(), Prefix+attemptName+"/file", map[string][]string{"root": {"folder"}, "path": {path}}, 0)
		if err == nil {
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			cancel()
			t.Errorf("%q was served: %.40q", path, b)
		}
	}
}

package dump

import (
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
type singleSource struct{ dirs map[Root]string }

func (o singleSource) Dump(name string) (*LocalDump, error) {
	if name != attemptName {
		return nil, fault.New(fault.NotFound, "no %s", name)
	}
	return &LocalDump{Token: "t", Dirs: o.dirs, Manifest: func(context.Context) (*Manifest, error) {
		m := &Manifest{Version: Version, Attempt: name, HarnessSHA256: program, RanNS: 7}
		for _, r := range []Root{Image, Folder, Harness} {
			files, err := List(context.Background(), r, o.dirs[r])
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
	o := singleSource{map[Root]string{Image: filepath.Join(dir, "image"), Folder: filepath.Join(dir, "folder"), Harness: filepath.Join(dir, "harness")}}
	for name, text := range map[string]string{"image/pages": strings.Repeat("p", 700_000), "image/empty": "", "folder/task/a/b": "deep", "harness/drover": "elf"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o640)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Symlink("b", filepath.Join(dir, "folder/task/a/link")), unix.Mkfifo(filepath.Join(dir, "folder/task/pipe"), 0o600),
		os.Chmod(filepath.Join(dir, "folder/task/a"), 0o500)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(dir, "folder/task/a"), 0o700) })
	return o
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
		want, err := List(t.Context(), r, o.dirs[r])
		if err != nil {
			t.Fatal(err)
		}
		got, err := List(t.Context(), r, filepath.Join(dir, string(r)))
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
			if got[i] != want[i] {
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
	if moved != 700_000+4+3 || m.RanNS != 7 {
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
		"no harness":                      func(m *Manifest) { m.Files = m.Files[:len(m.Files)-1] },
		"a negative time":                 func(m *Manifest) { m.RanNS = -1 },
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

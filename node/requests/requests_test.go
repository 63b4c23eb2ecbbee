package requests

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/fake"
	"github.com/drover-run/drover/hdfs/localfs"
	"github.com/drover-run/drover/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// singleFS is a FileSystems with a single file system.
type singleFS struct{ fs hdfs.FS }

func (o singleFS) Open(hdfs.URI, string) (hdfs.FS, error) { return o.fs, nil }

// testServer is a Server on a fake file system.
type testServer struct {
	*Server
	fs       *fake.FS
	notified chan struct{}
}

func newTestServer(t *testing.T) *testServer {
	t.Helper()
	o := &testServer{fs: fake.New(fake.Options{}), notified: make(chan struct{}, 100)}
	o.Server = NewServer(singleFS{o.fs}, nil, func() { o.notified <- struct{}{} }, func(string, error) {})
	t.Cleanup(o.Wait)
	return o
}

// request performs one request and returns its final response.
func (o *testServer) request(t *testing.T, req *droverv1.NodeRequest) *droverv1.NodeResponse {
	t.Helper()
	o.Handle(t.Context(), req)
	for {
		select {
		case <-o.notified:
		case <-time.After(20 * time.Second):
			t.Fatal("no answer")
		}
		taken, _ := o.TakeResponses()
		for _, a := range taken {
			if a.GetId() == req.GetId() && a.GetProgress() == "" {
				return a
			}
		}
	}
}

func write(t interface {
	Helper()
	Fatal(...any)
}, fs hdfs.FS, name string, n int) {
	t.Helper()
	ctx := context.Background()
	if err := fs.Mkdir(ctx, path.Dir(name)); err != nil {
		t.Fatal(err)
	}
	if err := hdfs.WriteFile(ctx, fs, name, make([]byte, n), hdfs.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func locate(id uint64, first, most int32, paths ...string) *droverv1.NodeRequest {
	return &droverv1.NodeRequest{Id: id, User: "u", Operation: &droverv1.NodeRequest_Locate{Locate: &droverv1.LocateRequest{Paths: paths, FirstBlock: first, MaxBlocks: most}}}
}

func TestLocate(t *testing.T) {
	for name, c := range map[string]struct {
		paths   []string
		files   []string
		class   error
		recurse bool
	}{
		"a file": {[]string{"hdfs:///in/a"}, []string{"/in/a"}, nil, false},
		"a glob takes a folder's files, not hidden ones": {[]string{"hdfs:///in/*"}, []string{"/in/a", "/in/b", "/in/deep/c"}, nil, false},
		"a folder":                             {[]string{"hdfs:///flat"}, []string{"/flat/a", "/flat/b"}, nil, false},
		"a folder inside a folder is refused":  {[]string{"hdfs:///in"}, nil, fault.Invalid, false},
		"recurse reads the folders inside":     {[]string{"hdfs:///in"}, []string{"/in/a", "/in/b", "/in/deep/c", "/in/deep/er/d"}, nil, true},
		"a glob of folders inside folders":     {[]string{"hdfs:///*/deep/*"}, []string{"/in/deep/c", "/in/deep/er/d"}, nil, false},
		"a hidden file by its name":            {[]string{"hdfs:///in/_x"}, []string{"/in/_x"}, nil, false},
		"named twice, read twice":              {[]string{"hdfs:///in/a", "hdfs:///flat", "hdfs:///in/?"}, []string{"/in/a", "/flat/a", "/flat/b", "/in/a", "/in/b"}, nil, false},
		"an empty folder is an empty input":    {[]string{"hdfs:///empty"}, nil, nil, false},
		"a folder of hidden files is empty":    {[]string{"hdfs:///hidden"}, nil, nil, false},
		"nothing there":                        {[]string{"hdfs:///none"}, nil, fault.NotFound, false},
		"a glob that matches nothing":          {[]string{"hdfs:///in/*.gz"}, nil, fault.NotFound, false},
		"a glob that matches only hidden ones": {[]string{"hdfs:///hidden/*"}, nil, fault.NotFound, false},
		"one good path and one that errs":      {[]string{"hdfs:///in/a", "hdfs:///none"}, nil, fault.NotFound, false},
		"no URI":                               {[]string{"/in/a"}, nil, fault.Invalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestServer(t)
			write(t, o.fs, "/in/a", 10000)
			write(t, o.fs, "/in/b", 1)
			write(t, o.fs, "/in/_x", 5)
			write(t, o.fs, "/in/.y", 5)
			write(t, o.fs, "/in/deep/c", 5)
			if !strings.HasSuffix(c.paths[0], "/in/*") {
				write(t, o.fs, "/in/deep/er/d", 5)
			}
			write(t, o.fs, "/in/_deep/c", 5)
			write(t, o.fs, "/flat/a", 5)
			write(t, o.fs, "/flat/b", 5)
			write(t, o.fs, "/hidden/_x", 5)
			if err := o.fs.Mkdir(t.Context(), "/empty"); err != nil {
				t.Fatal(err)
			}
			request := locate(1, 0, 0, c.paths...)
			request.GetLocate().Recurse = c.recurse
			a := o.request(t, request)
			if c.class != nil {
				if a.GetErrorClass() != c.class.Error() || a.GetError() == "" {
					t.Errorf("class %q, %q; want %v", a.GetErrorClass(), a.GetError(), c.class)
				}
				return
			}
			var got []string
			for _, b := range a.GetLocate().GetBlocks() {
				if f := strings.TrimPrefix(b.GetUri(), "hdfs://"); len(got) == 0 || got[len(got)-1] != f {
					got = append(got, f)
				}
				if len(b.GetHosts()) == 0 || len(b.GetRacks()) != len(b.GetHosts()) {
					t.Errorf("block %v: hosts and racks", b)
				}
			}
			if d := cmp.Diff(c.files, got); d != "" || a.GetError() != "" {
				t.Errorf("%s\n%s", a.GetError(), d)
			}
		})
	}
}

// openFile is a file system whose files are still being written.
type openFile struct{ hdfs.FS }

func (f openFile) Locations(ctx context.Context, name string, offset, length int64) (hdfs.Layout, error) {
	layout, err := f.FS.Locations(ctx, name, offset, length)
	layout.UnderConstruction = true
	return layout, err
}

// What is there of a file that is still being written ends anywhere, so its last record would be cut.
func TestLocateRefusesAnOpenFile(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 100)
	o.files = singleFS{openFile{o.fs}}
	if a := o.request(t, locate(1, 0, 0, "hdfs:///in")); a.GetErrorClass() != fault.Conflict.Error() || !strings.Contains(a.GetError(), "hdfs:///in/a is still being written") {
		t.Errorf("an open file: %v", a)
	}
	again := locate(2, 0, 0, "hdfs:///in") // of a job that was accepted before somebody appended
	again.GetLocate().Refresh = true
	if a := o.request(t, again); a.GetError() != "" || len(a.GetLocate().GetBlocks()) != 1 {
		t.Errorf("a refresh: %v", a)
	}
}

// For every page size, the pages together equal the unpaged answer.
func TestPagesAddUp(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs := fake.New(fake.Options{BlockBytes: 100})
		for i, n := range rapid.SliceOfN(rapid.IntRange(0, 1200), 1, 6).Draw(rt, "lengths") {
			write(rt, fs, fmt.Sprintf("/in/%d", i), n)
		}
		d := NewServer(singleFS{fs}, nil, func() {}, func(string, error) {})
		all, err := d.locate(t.Context(), locate(1, 0, 0, "hdfs:///in").GetLocate(), "u")
		if err != nil {
			rt.Fatal(err)
		}
		page := int32(rapid.IntRange(1, 20).Draw(rt, "page"))
		var got []*droverv1.FileBlock
		for next := int32(0); ; {
			a, err := d.locate(t.Context(), locate(1, next, page, "hdfs:///in").GetLocate(), "u")
			if err != nil || a.GetTotalBytes() != all.GetTotalBytes() || len(a.GetBlocks()) > int(page) {
				rt.Fatalf("page at %d: %d blocks, %d bytes, %v", next, len(a.GetBlocks()), a.GetTotalBytes(), err)
			}
			got = append(got, a.GetBlocks()...)
			if next = a.GetNextBlock(); next == 0 {
				break
			}
		}
		if d := cmp.Diff(all.GetBlocks(), got, protocmp.Transform()); d != "" {
			rt.Fatal(d)
		}
	})
}

// Nodes that serve the pages of one input may have listed it before and after a file came or went.
func TestPagesOfDifferentNodesAddUp(t *testing.T) {
	fs := fake.New(fake.Options{BlockBytes: 100})
	for i := range 10 {
		write(t, fs, fmt.Sprintf("/in/%d", i), 100)
	}
	server := func() *Server { return NewServer(singleFS{fs}, nil, func() {}, func(string, error) {}) }
	first, other := server(), server()
	page := func(d *Server, from int32, listing uint64) (*droverv1.LocateResponse, error) {
		o := locate(1, from, 5, "hdfs:///in").GetLocate()
		o.Listing = listing
		return d.locate(t.Context(), o, "u")
	}
	if _, err := page(other, 0, 0); err != nil { // it has listed ten files
		t.Fatal(err)
	}
	write(t, fs, "/in/00", 100) // comes second
	a, err := page(first, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := a.GetBlocks()
	for from := a.GetNextBlock(); from > 0; {
		b, err := page(other, from, a.GetListing())
		if err != nil {
			t.Fatal(err)
		}
		got, from = append(got, b.GetBlocks()...), b.GetNextBlock()
	}
	times := map[string]int{}
	for _, b := range got {
		times[b.GetUri()]++
	}
	if len(got) != 11 || len(times) != 11 {
		t.Errorf("%d blocks of %d files, want 11 of 11: %v", len(got), len(times), times)
	}
	if err := fs.Delete(t.Context(), "/in/3"); err != nil {
		t.Fatal(err)
	}
	if _, err := page(server(), 5, a.GetListing()); !errors.Is(err, fault.Conflict) || !strings.Contains(err.Error(), "hdfs:///in") {
		t.Errorf("a page of other files: %v", err)
	}
}

func TestRefreshSeesALostDataNode(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 100)
	first := o.request(t, locate(1, 0, 0, "hdfs:///in/a"))
	o.fs.StopDataNode(first.GetLocate().GetBlocks()[0].GetHosts()[0])
	again := locate(2, 0, 0, "hdfs:///in/a")
	again.GetLocate().Refresh = true
	if a := o.request(t, again); a.GetError() != "" || len(a.GetLocate().GetBlocks()[0].GetHosts()) != 0 {
		t.Errorf("after the loss: %v", a)
	}
}

// cachedFS is a file system that keeps locations until it is told to forget them.
type cachedFS struct {
	hdfs.FS
	forgotten *[]string
}

func (f cachedFS) Forget(name string) { *f.forgotten = append(*f.forgotten, name) }

func TestRefreshForgetsCachedLocations(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 100)
	var forgotten []string
	fs := cachedFS{o.fs, &forgotten}
	var _ hdfs.Forgetter = fs
	o.files = singleFS{fs}
	for id, refresh := range []bool{false, true} {
		req := locate(uint64(id+1), 0, 0, "hdfs:///in/a")
		req.GetLocate().Refresh = refresh
		if a := o.request(t, req); a.GetError() != "" {
			t.Fatal(a)
		}
	}
	if !slices.Equal(forgotten, []string{"/in/a"}) {
		t.Errorf("forgot %v", forgotten)
	}
}

func check(id uint64, prepare bool) *droverv1.NodeRequest {
	return checkAt(id, prepare, "hdfs:///out/x")
}

func checkAt(id uint64, prepare bool, output string) *droverv1.NodeRequest {
	return &droverv1.NodeRequest{Id: id, User: "u", Operation: &droverv1.NodeRequest_CheckOutput{CheckOutput: &droverv1.CheckOutputRequest{
		Path: output, Prepare: prepare, Temporary: output + "/_temporary/7"}}}
}

func TestCheckOutput(t *testing.T) {
	for name, c := range map[string]struct {
		there   string // an existing file
		prepare bool
		class   string
	}{
		"free":                           {"/other", false, ""},
		"free, and prepared":             {"/other", true, ""},
		"taken":                          {"/out/x/part-00000", true, "already exists"},
		"a file in its place":            {"/out/x", false, "already exists"},
		"a file above":                   {"/out", false, "invalid"},
		"another job's temporary folder": {"/out/x/_temporary/8/f", true, ""},
		"the temporary of the same job":  {"/out/x/_temporary/7/f", true, ""},
		"a result beside its temporary":  {"/out/x/_SUCCESS", true, "already exists"},
		"a folder above that is missing": {"/else/y", false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestServer(t)
			write(t, o.fs, c.there, 1)
			for id := uint64(1); id <= 2; id++ { // a repetition has the same answer
				if a := o.request(t, check(id, c.prepare)); a.GetErrorClass() != c.class || (a.GetError() == "") != (c.class == "") {
					t.Errorf("time %d: class %q, %q; want %q", id, a.GetErrorClass(), a.GetError(), c.class)
				}
			}
			if c.prepare && c.class == "" {
				if _, err := o.fs.Stat(t.Context(), "/out/x/_temporary/7"); err != nil {
					t.Errorf("the temporary folder: %v", err)
				}
			}
		})
	}
}

// Where the user may make folders and HDFS takes no files, as in an encryption zone, a job is refused before it runs.
func TestPrepareRefusesWhereNoFileCanBe(t *testing.T) {
	for class, want := range map[error]error{hdfs.ErrUnsupported: fault.Unsupported, hdfs.ErrRefused: fault.Conflict, hdfs.ErrQuota: fault.Exhausted, hdfs.ErrPermission: fault.Denied} {
		o := newTestServer(t)
		o.fs.FailNth(fake.OpCreate, 1, class)
		if a := o.request(t, check(1, true)); a.GetErrorClass() != want.Error() || !strings.Contains(a.GetError(), "hdfs:///out/x") {
			t.Errorf("%v: %v", class, a)
		}
		if inside, err := o.fs.List(t.Context(), "/"); err != nil || len(inside) > 0 {
			t.Errorf("%v: the refused job left %v, %v", class, inside, err)
		}
		for id := uint64(2); id <= 3; id++ { // when it has passed, and once more
			if a := o.request(t, check(id, true)); a.GetError() != "" {
				t.Errorf("after %v: %v", class, a)
			}
		}
		if inside, err := o.fs.List(t.Context(), "/"); err != nil || len(inside) != 1 {
			t.Errorf("%v: beside the folder of the output there is %v, %v", class, inside, err)
		}
		if n := o.fs.Calls(fake.OpCreate); n != 2 {
			t.Errorf("%v: %d files were created, want none by the repetition", class, n)
		}
	}
}

const parts = 5

func prepared(t interface {
	Helper()
	Fatal(...any)
}) (*fake.FS, *droverv1.CommitOutputRequest) {
	t.Helper()
	fs := fake.New(fake.Options{})
	c := &droverv1.CommitOutputRequest{Path: "hdfs:///out/x", Temporary: "hdfs:///out/x/_temporary/7"}
	for i := range parts {
		src := fmt.Sprintf("/out/x/_temporary/7/%d.1/part", i)
		write(t, fs, src, 10+i)
		c.Files = append(c.Files, &droverv1.CommitFile{Source: "hdfs://" + src, Name: fmt.Sprintf("part-%05d", i), Length: int64(10 + i)})
	}
	return fs, c
}

func wholeResult(t interface {
	Helper()
	Errorf(string, ...any)
}, fs hdfs.FS) {
	t.Helper()
	ctx := context.Background()
	for i := range parts {
		if info, err := fs.Stat(ctx, fmt.Sprintf("/out/x/part-%05d", i)); err != nil || info.LengthBytes != int64(10+i) {
			t.Errorf("part %d: %+v %v", i, info, err)
		}
	}
	all, err := fs.List(ctx, "/out/x")
	if err != nil || len(all) < parts+1 {
		t.Errorf("%d entries, %v", len(all), err)
	}
	if _, err := fs.Stat(ctx, "/out/x/_SUCCESS"); err != nil {
		t.Errorf("_SUCCESS: %v", err)
	}
	if _, err := fs.Stat(ctx, "/out/x/_temporary/7"); !errors.Is(err, hdfs.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
}

// A commit that fails at any call and is repeated has the same result as one that
// does not fail; before _SUCCESS exists, no complete result is visible.
func TestCommitBreaksAnywhere(t *testing.T) {
	for _, op := range []fake.Op{fake.OpMkdir, fake.OpList, fake.OpStat, fake.OpRename, fake.OpCreate, fake.OpCommit, fake.OpDelete} {
		for n := 1; ; n++ {
			fs, c := prepared(t)
			fs.FailNth(op, n, hdfs.ErrUnavailable)
			d := NewServer(singleFS{fs}, nil, func() {}, func(string, error) {})
			err := d.commitOutput(t.Context(), c, "u")
			if err == nil {
				if n == 1 {
					t.Errorf("%s is never called", op)
				}
				break
			}
			if _, serr := fs.Stat(t.Context(), "/out/x/_SUCCESS"); serr == nil && op != fake.OpDelete {
				t.Errorf("%s number %d failed, and _SUCCESS is there", op, n)
			}
			for range 2 { // and once more after the end
				if err := d.commitOutput(t.Context(), c, "u"); err != nil {
					t.Fatalf("%s number %d failed, then the repetition: %v", op, n, err)
				}
			}
			wholeResult(t, fs)
		}
	}
}

func TestCommitOnTwoNodesAtOnce(t *testing.T) {
	for range 50 {
		fs, c := prepared(t)
		var wg sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			wg.Go(func() {
				d := NewServer(singleFS{fs}, nil, func() {}, func(string, error) {})
				errs[i] = d.commitOutput(t.Context(), c, "u")
			})
		}
		wg.Wait()
		if errs[0] != nil || errs[1] != nil {
			t.Fatalf("of two runs one failed: %v; %v", errs[0], errs[1])
		}
		wholeResult(t, fs)
	}
}

// A duplicate of a commit may arrive after the job has succeeded and its user has moved the result: it must leave nothing.
func TestLateCommitLeavesNothing(t *testing.T) {
	for name, moved := range map[string]bool{"the result is there": false, "the result was moved": true} {
		t.Run(name, func(t *testing.T) {
			fs, c := prepared(t)
			d := NewServer(singleFS{fs}, nil, func() {}, func(string, error) {})
			if err := d.commitOutput(t.Context(), c, "u"); err != nil {
				t.Fatal(err)
			}
			if !moved {
				if err := d.commitOutput(t.Context(), c, "u"); err != nil {
					t.Errorf("once more: %v", err)
				}
				wholeResult(t, fs)
				return
			}
			if err := fs.Rename(t.Context(), "/out/x", "/moved"); err != nil {
				t.Fatal(err)
			}
			if err := d.commitOutput(t.Context(), c, "u"); !errors.Is(err, fault.NotFound) {
				t.Errorf("once more: %v", err)
			}
			if _, err := fs.Stat(t.Context(), "/out/x"); !errors.Is(err, hdfs.ErrNotExist) {
				t.Errorf("the folder was made again: %v", err)
			}
		})
	}
}

// steppedFS is a file system on which a test acts before each call of a commit. An error of step is that of the call.
type steppedFS struct {
	hdfs.FS
	step func() error
}

func (f steppedFS) Stat(ctx context.Context, name string) (hdfs.Info, error) {
	if err := f.step(); err != nil {
		return hdfs.Info{}, err
	}
	return f.FS.Stat(ctx, name)
}

func (f steppedFS) List(ctx context.Context, name string) ([]hdfs.Info, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	return f.FS.List(ctx, name)
}

func (f steppedFS) Mkdir(ctx context.Context, name string) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.FS.Mkdir(ctx, name)
}

func (f steppedFS) Rename(ctx context.Context, from, to string) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.FS.Rename(ctx, from, to)
}

func (f steppedFS) Delete(ctx context.Context, name string) error {
	if err := f.step(); err != nil {
		return err
	}
	return f.FS.Delete(ctx, name)
}

func (f steppedFS) Create(ctx context.Context, name string, o hdfs.CreateOptions) (hdfs.Writer, error) {
	if err := f.step(); err != nil {
		return nil, err
	}
	w, err := f.FS.Create(ctx, name, o)
	return steppedWriter{w, f.step}, err
}

type steppedWriter struct {
	hdfs.Writer
	step func() error
}

func (w steppedWriter) Commit() error {
	if err := w.step(); err != nil {
		return err
	}
	return w.Writer.Commit()
}

// After a change of the leader, or when a node is silent, two nodes publish the same result. Before each call of the
// one, the other one does all of its commit, or breaks off at any call.
func TestCommitBesideAnother(t *testing.T) {
	for n, reached := int64(1), true; reached; n++ {
		for m := int64(1); ; m++ {
			fs, c := prepared(t)
			commit := func(step func() error) error {
				d := NewServer(singleFS{steppedFS{fs, step}}, nil, func() {}, func(string, error) {})
				return d.commitOutput(t.Context(), c, "u")
			}
			var calls, others atomic.Int64
			var otherErr error
			err := commit(func() error {
				if calls.Add(1) == n {
					otherErr = commit(func() error {
						if others.Add(1) == m {
							return hdfs.ErrUnavailable
						}
						return nil
					})
				}
				return nil
			})
			if err != nil || otherErr != nil && !errors.Is(otherErr, hdfs.ErrUnavailable) {
				t.Fatalf("before call %d another commit did %d calls: %v; the other: %v", n, others.Load(), err, otherErr)
			}
			wholeResult(t, fs)
			reached = calls.Load() >= n
			if others.Load() < m {
				break // the other one did all
			}
		}
	}
}

func TestCommitNeverOverwrites(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*testing.T, *fake.FS, *droverv1.CommitOutputRequest)
		class  error
	}{
		"another program's result": {func(t *testing.T, fs *fake.FS, _ *droverv1.CommitOutputRequest) {
			write(t, fs, "/out/x/_SUCCESS", 0)
		}, fault.Exists},
		"the last file of another program's": {func(t *testing.T, fs *fake.FS, _ *droverv1.CommitOutputRequest) {
			write(t, fs, "/out/x/part-00004", 14)
		}, fault.Exists},
		"another program's file": {func(t *testing.T, fs *fake.FS, _ *droverv1.CommitOutputRequest) {
			write(t, fs, "/out/x/part-00002", 12)
		}, fault.Exists},
		"a result of another length": {func(_ *testing.T, _ *fake.FS, c *droverv1.CommitOutputRequest) { c.Files[1].Length++ }, fault.Corrupt},
		"a result that is gone": {func(t *testing.T, fs *fake.FS, _ *droverv1.CommitOutputRequest) {
			if err := fs.Delete(t.Context(), "/out/x/_temporary/7/3.1"); err != nil {
				t.Fatal(err)
			}
		}, fault.NotFound},
		"a name that leads away":              {func(_ *testing.T, _ *fake.FS, c *droverv1.CommitOutputRequest) { c.Files[0].Name = "../part" }, fault.Invalid},
		"a source that is not ours":           {func(_ *testing.T, _ *fake.FS, c *droverv1.CommitOutputRequest) { c.Files[0].Source = "hdfs:///etc/x" }, fault.Invalid},
		"a part that is called like the mark": {func(_ *testing.T, _ *fake.FS, c *droverv1.CommitOutputRequest) { c.Files[0].Name = "_SUCCESS" }, fault.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestServer(t)
			fs, req := prepared(t)
			o.fs, o.files = fs, singleFS{fs}
			c.change(t, fs, req)
			a := o.request(t, &droverv1.NodeRequest{Id: 1, Operation: &droverv1.NodeRequest_CommitOutput{CommitOutput: req}})
			if a.GetErrorClass() != c.class.Error() {
				t.Errorf("class %q, %q; want %v", a.GetErrorClass(), a.GetError(), c.class)
			}
			if _, err := fs.Stat(t.Context(), "/out/x/_SUCCESS"); err == nil && name != "another program's result" {
				t.Error("_SUCCESS is there")
			}
			if c.class == fault.Exists && fs.Calls(fake.OpRename) > 0 {
				t.Error("files were renamed beside those of another program")
			}
		})
	}
}

func TestRequestIsDoneOnceAndRemembered(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 10)
	first := o.request(t, locate(1, 0, 0, "hdfs:///in/a"))
	calls := o.fs.Calls(fake.OpLocations)
	if again := o.request(t, locate(1, 0, 0, "hdfs:///in/a")); !cmp.Equal(first, again, protocmp.Transform()) {
		t.Errorf("another answer: %v", again)
	}
	if o.fs.Calls(fake.OpLocations) != calls {
		t.Error("the file system was asked again")
	}
	o.fs.FailNth(fake.OpStat, 1, hdfs.ErrUnavailable)
	if a := o.request(t, locate(2, 0, 0, "hdfs:///in/a")); a.GetErrorClass() != fault.Unavailable.Error() {
		t.Errorf("an unavailable NameNode: %v", a)
	}
	if a := o.request(t, locate(2, 0, 0, "hdfs:///in/a")); a.GetError() != "" {
		t.Errorf("asked again later: %v", a)
	}
}

// A node that has too much to do is asked again later: no job may fail of it.
func TestBusyNodeIsUnavailable(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 10)
	for id := range uint64(maxInFlight) {
		o.inFlight[id+2] = &flight{}
	}
	if a := o.request(t, locate(1, 0, 0, "hdfs:///in/a")); a.GetErrorClass() != fault.Unavailable.Error() {
		t.Errorf("above the limit: %v", a)
	}
	delete(o.inFlight, 2)
	if a := o.request(t, locate(1, 0, 0, "hdfs:///in/a")); a.GetError() != "" {
		t.Errorf("below the limit: %v", a)
	}
}

// byAuthority is a FileSystems with a file system for each authority.
type byAuthority map[string]hdfs.FS

func (o byAuthority) Open(uri hdfs.URI, _ string) (hdfs.FS, error) { return o[uri.Authority], nil }

// A NameNode that answers nothing holds up the requests to itself alone.
func TestDeadNameNodeHoldsUpNoOther(t *testing.T) {
	o := newTestServer(t)
	dead := fake.New(fake.Options{})
	dead.Delay(fake.OpStat, time.Hour)
	write(t, o.fs, "/in/a", 10)
	o.files = byAuthority{"dead:1": dead, "live:1": o.fs}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for id := range uint64(2 * maxConcurrent) {
		o.Handle(ctx, locate(id+2, 0, 0, "hdfs://live:1/in", "hdfs://dead:1/in"))
		o.Handle(ctx, locate(id+100, 0, 0, "hdfs://dead:1/in"))
	}
	for end := time.Now().Add(20 * time.Second); dead.Calls(fake.OpStat) < 2*maxConcurrent; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests wait for the dead NameNode, want %d", dead.Calls(fake.OpStat), 2*maxConcurrent)
		}
	}
	if a := o.request(t, locate(1, 0, 0, "hdfs://live:1/in/a")); a.GetError() != "" {
		t.Errorf("the other file system: %v", a)
	}
	cancel()
	o.Wait()
	if len(o.slots) > 0 {
		t.Errorf("slots of %v are kept", slices.Collect(maps.Keys(o.slots)))
	}
}

func TestLimitAndProgress(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 10)
	o.fs.Delay(fake.OpStat, time.Hour)
	req := locate(1, 0, 0, "hdfs:///in/a")
	req.TimeoutMs = 2000 // within which the progress is told
	o.Handle(t.Context(), req)
	o.SetWaiting("other-user", "waiting for nothing")
	o.SetWaiting("u", "waiting for the NameNode at nn:1, 12 s left")
	<-o.notified
	if a, _ := o.TakeResponses(); len(a) != 1 || !strings.Contains(a[0].GetProgress(), "12 s left") {
		t.Fatalf("progress: %v", a)
	}
	a := o.request(t, req)
	if a.GetErrorClass() != fault.Unavailable.Error() || !strings.Contains(a.GetError(), "within 2s; it was waiting for the NameNode at nn:1") {
		t.Errorf("over its limit: %v", a)
	}
}

// TestNamesThatAreNotUTF8: no file's name can make an answer that the node cannot send, for all that it has to say goes
// in the same reports.
func TestNamesThatAreNotUTF8(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "caf\xe9.txt"), []byte("text"), 0o600); err != nil {
		t.Skip("not proved here: that a name which is not UTF-8 is refused; the file system has no such names: ", err)
	}
	fs, err := localfs.New(localfs.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer fs.Close()
	o := newTestServer(t)
	o.files = singleFS{fs}
	a := o.request(t, locate(1, 0, 0, "file://"+dir))
	if _, err := proto.Marshal(a); err != nil || a.GetErrorClass() != fault.Invalid.Error() || !strings.Contains(a.GetError(), `caf\xe9.txt`) {
		t.Errorf("%v, class %q, %q", err, a.GetErrorClass(), a.GetError())
	}
	for name, c := range map[string]struct {
		answer *droverv1.NodeResponse
		err    error
		want   error
	}{
		"a name":       {&droverv1.NodeResponse{Locate: &droverv1.LocateResponse{Blocks: []*droverv1.FileBlock{{Uri: "caf\xe9"}}}}, nil, fault.Invalid},
		"an error":     {nil, fault.New(fault.Denied, "caf\xe9"), fault.Denied},
		"large":        {&droverv1.NodeResponse{Locate: &droverv1.LocateResponse{Blocks: []*droverv1.FileBlock{{Uri: strings.Repeat("u", maxAnswerBytes)}}}}, nil, fault.Exhausted},
		"a long error": {nil, fault.New(fault.Conflict, "%s", strings.Repeat("é", maxAnswerBytes)), fault.Conflict},
	} {
		o.complete(&droverv1.NodeRequest{Id: 2}, c.answer, c.err)
		taken, more := o.TakeResponses()
		if len(taken) != 1 || more || taken[0].GetErrorClass() != c.want.Error() {
			t.Fatalf("%s: %d answers, class %q", name, len(taken), taken[0].GetErrorClass())
		}
		if b, err := proto.Marshal(taken[0]); err != nil || len(b) > 2*maxErrorBytes {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}

// TestListingsAreForgotten: with a million files each they take hundreds of megabytes.
func TestListingsAreForgotten(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/in/a", 10)
	write(t, o.fs, "/in/b", 10)
	pages := 0
	for first := int32(0); pages == 0 || first > 0; pages++ {
		req := locate(uint64(pages+1), first, 1, "hdfs:///in")
		a := o.request(t, req)
		if a.GetError() != "" {
			t.Fatal(a)
		}
		first = a.GetLocate().GetNextBlock()
	}
	if pages != 2 || len(o.listings.byKey) > 0 {
		t.Errorf("after %d pages %d listings are kept", pages, len(o.listings.byKey))
	}
	l, now := listings{byKey: map[string]*listing{}}, time.Now()
	large := make([]inputFile, maxListed/2+1)
	for k, x := range map[string]*listing{"old": {madeAt: now.Add(-maxListingAge)}, "older": {madeAt: now.Add(-time.Minute), files: large}} {
		l.byKey[k] = x
	}
	l.put("small", &listing{madeAt: now})
	if len(l.byKey) != 2 || l.byKey["old"] != nil {
		t.Errorf("kept %v", slices.Sorted(maps.Keys(l.byKey)))
	}
	l.put("large", &listing{madeAt: now, files: large})
	if got := slices.Sorted(maps.Keys(l.byKey)); !slices.Equal(got, []string{"large", "small"}) {
		t.Errorf("kept %v", got)
	}
}

func TestDelete(t *testing.T) {
	o := newTestServer(t)
	write(t, o.fs, "/tmp/j/a", 10)
	for id := uint64(1); id <= 2; id++ {
		if a := o.request(t, &droverv1.NodeRequest{Id: id, Operation: &droverv1.NodeRequest_DeletePath{DeletePath: &droverv1.DeletePathRequest{Path: "hdfs:///tmp/j"}}}); a.GetError() != "" {
			t.Errorf("time %d: %v", id, a)
		}
	}
	if a := o.request(t, &droverv1.NodeRequest{Id: 3, Operation: &droverv1.NodeRequest_DeletePath{DeletePath: &droverv1.DeletePathRequest{Path: "hdfs:///"}}}); a.GetErrorClass() != fault.Invalid.Error() {
		t.Errorf("the root: %v", a)
	}
}

// TestLocalPermissionsNameTheDaemon: files of this machine are read and written by the daemon, and not by the job's user, of
// whom the machine may know nothing.
func TestLocalPermissionsNameTheDaemon(t *testing.T) {
	daemon := fmt.Sprintf("the node daemon (uid %d) may not ", os.Geteuid())
	read := "input file:///in/a: " + daemon + "read it: change its permissions or those of the folders above it, or name another path"
	for name, c := range map[string]struct {
		op      fake.Op
		request *droverv1.NodeRequest
		want    string
	}{
		"to look at an input":      {fake.OpStat, locate(1, 0, 0, "file:///in/a"), read},
		"to open an input":         {fake.OpLocations, locate(1, 0, 0, "file:///in/a"), read},
		"to make an output":        {fake.OpCreate, checkAt(1, true, "file:///out/x"), "output file:///out/x: " + daemon + "write there: "},
		"to make an output's root": {fake.OpMkdir, checkAt(1, true, "file:///out/x"), "output file:///out/x: " + daemon + "write there: "},
		"HDFS knows the user":      {fake.OpCreate, checkAt(1, true, "hdfs:///out/x"), `output hdfs:///out/x: user "u" may not write there: `},
	} {
		t.Run(name, func(t *testing.T) {
			o := newTestServer(t)
			write(t, o.fs, "/in/a", 1)
			o.fs.FailNth(c.op, 1, hdfs.ErrPermission)
			if a := o.request(t, c.request); !strings.HasPrefix(a.GetError(), c.want) || a.GetErrorClass() != fault.Denied.Error() {
				t.Errorf("class %q, %q, want %q", a.GetErrorClass(), a.GetError(), c.want)
			}
		})
	}
	if a := newTestServer(t).request(t, locate(1, 0, 0, "file:///none")); !strings.HasSuffix(a.GetError(), fmt.Sprintf("and that the node daemon (uid %d) may read it", os.Geteuid())) {
		t.Errorf("%q", a.GetError())
	}
}

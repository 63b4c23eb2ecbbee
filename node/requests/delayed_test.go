package requests

import (
	"bytes"
	"io"
	"testing"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/hdfs/fake"
)

// delayedContent is the content of an upload that stands still once, when so many bytes of it were read.
type delayedContent struct {
	io.Reader
	left    int // until it stands still
	still   chan<- struct{}
	further <-chan struct{}
}

func (c *delayedContent) Read(p []byte) (int, error) {
	if c.left == 0 && c.still != nil {
		close(c.still)
		c.still = nil
		<-c.further
	}
	if c.still != nil {
		p = p[:min(len(p), c.left)]
		c.left -= len(p)
	}
	return c.Reader.Read(p)
}

func (c *delayedContent) Close() error { return nil }

// A helper stands still in its upload, as on a machine that was paused. The next run of the attempt has the same name for
// its result, and wins. Then the first one goes on, or tries again, before or after the result is published: it fails, and
// the published result is that of the next run, with nothing beside it.
func TestDelayedUploadChangesNothing(t *testing.T) {
	const part, length = 2, 10 + 2 // of prepared
	source := "/out/x/_temporary/7/2.1/part"
	first, next := bytes.Repeat([]byte{'1'}, length), bytes.Repeat([]byte{'2'}, length)
	overwrite := hdfs.CreateOptions{Overwrite: true} // as helpers upload
	for name, c := range map[string]struct {
		read         int // when it stands still; -1: before it creates the file
		published    bool
		fails        fake.Op // its next call, so that it tries again
		createsAgain bool
	}{
		"in the middle, goes on before the publish":             {read: 5},
		"in the middle, goes on after the publish":              {read: 5, published: true},
		"before its commit, goes on before the publish":         {read: length},
		"before its commit, goes on after the publish":          {read: length, published: true},
		"before its commit, tries again after the publish":      {read: length, published: true, fails: fake.OpCommit, createsAgain: true},
		"before it creates the file, goes on after the publish": {read: -1, published: true},
	} {
		t.Run(name, func(t *testing.T) {
			fs, req := prepared(t)
			d := NewServer(singleFS{fs}, nil, func() {}, func(string, error) {})
			still, further, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				opened := false
				_, err := hdfs.Upload(t.Context(), fs, source, hdfs.UploadOptions{CreateOptions: overwrite}, func() (io.ReadCloser, error) {
					content := &delayedContent{Reader: bytes.NewReader(first), left: c.read, still: still, further: further}
					switch {
					case opened:
						content.still = nil
					case c.read < 0:
						content.still = nil
						close(still)
						<-further
					}
					opened = true
					return content, nil
				})
				ended <- err
			}()
			<-still
			if err := hdfs.WriteFile(t.Context(), fs, source, next, overwrite); err != nil {
				t.Fatal(err)
			}
			goOn := func() {
				creates := fs.Calls(fake.OpCreate)
				if c.fails != 0 {
					fs.FailNth(c.fails, 1, hdfs.ErrUnavailable)
				}
				close(further)
				if err := <-ended; err == nil {
					t.Error("the upload that stood still has succeeded")
				}
				if again := fs.Calls(fake.OpCreate) > creates; again != (c.createsAgain || c.read < 0) {
					t.Errorf("it created the file again: %v", again)
				}
			}
			if !c.published {
				goOn()
			}
			if err := d.commitOutput(t.Context(), req, "u"); err != nil {
				t.Fatal(err)
			}
			if c.published {
				goOn()
			}
			wholeResult(t, fs)
			if got, err := hdfs.ReadFile(t.Context(), fs, "/out/x/part-00002", 1<<10); err != nil || !bytes.Equal(got, next) {
				t.Errorf("part %d is %q, %v; want that of the next run", part, got, err)
			}
			for dir, want := range map[string]int{"/out/x": parts + 2, "/out/x/_temporary": 0} { // the files, _SUCCESS and that folder, which is not the job's
				if inside, err := fs.List(t.Context(), dir); err != nil || len(inside) != want {
					t.Errorf("%s has %v, %v", dir, inside, err)
				}
			}
		})
	}
}

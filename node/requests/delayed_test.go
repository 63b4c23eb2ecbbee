package requests

import (
	"bytes"
	"io"
	"path"
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

// A helper stands still in its upload, as on a machine that was paused. The next run of the attempt has a folder of its own
// for its result, and wins. Then the first one goes on, or tries again, before or after the result is published, which is
// that of the next run, with nothing beside it. The same holds where both had one name, for as long as the first one
// writes the file that it had created: a node starts no helper while an earlier one of the same run is alive.
func TestDelayedUploadChangesNothing(t *testing.T) {
	const length = 10 + 2 // of the third part of prepared
	const winner, run, name = "/out/x/_temporary/7/2.1/part", "/out/x/_temporary/7/2.0/part", "/out/x/part-00002"
	first, next := bytes.Repeat([]byte{'1'}, length), bytes.Repeat([]byte{'2'}, length)
	overwrite := hdfs.CreateOptions{Overwrite: true} // as helpers upload
	const uncreated = -1
	for what, c := range map[string]struct {
		file      string
		read      int // bytes, when it stands still
		published bool
		fails     fake.Op // its next call, so that it tries again
		succeeds  bool
	}{
		"in the middle, goes on before the publish":              {file: run, read: 5, succeeds: true},
		"in the middle, goes on after the publish":               {file: run, read: 5, published: true},
		"before its commit, goes on before the publish":          {file: run, read: length, succeeds: true},
		"before its commit, goes on after the publish":           {file: run, read: length, published: true},
		"before its commit, tries again before the publish":      {file: run, read: length, fails: fake.OpCommit, succeeds: true},
		"before its commit, tries again after the publish":       {file: run, read: length, published: true, fails: fake.OpCommit},
		"before it creates the file, goes on before the publish": {file: run, read: uncreated, succeeds: true},
		"before it creates the file, goes on after the publish":  {file: run, read: uncreated, published: true},

		"one name, in the middle, goes on before the publish":             {file: winner, read: 5},
		"one name, in the middle, goes on after the publish":              {file: winner, read: 5, published: true},
		"one name, before its commit, goes on before the publish":         {file: winner, read: length},
		"one name, before its commit, goes on after the publish":          {file: winner, read: length, published: true},
		"one name, before its commit, tries again after the publish":      {file: winner, read: length, published: true, fails: fake.OpCommit},
		"one name, before it creates the file, goes on after the publish": {file: winner, read: uncreated, published: true},
	} {
		t.Run(what, func(t *testing.T) {
			fs, req := prepared(t)
			if err := fs.Mkdir(t.Context(), path.Dir(run)); err != nil {
				t.Fatal(err)
			}
			d := NewServer(singleFS{fs}, nil, func() {}, func(string, error) {})
			still, further, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
			go func() {
				opened := false
				_, err := hdfs.Upload(t.Context(), fs, c.file, hdfs.UploadOptions{CreateOptions: overwrite}, func() (io.ReadCloser, error) {
					content := &delayedContent{Reader: bytes.NewReader(first)}
					switch {
					case opened:
					case c.read == uncreated:
						close(still)
						<-further
					default:
						content.left, content.still, content.further = c.read, still, further
					}
					opened = true
					return content, nil
				})
				ended <- err
			}()
			<-still
			if err := hdfs.WriteFile(t.Context(), fs, winner, next, overwrite); err != nil {
				t.Fatal(err)
			}
			goOn := func() {
				if c.fails != 0 {
					fs.FailNth(c.fails, 1, hdfs.ErrUnavailable)
				}
				close(further)
				if err := <-ended; (err == nil) != c.succeeds {
					t.Errorf("the upload that stood still: %v", err)
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
			if got, err := hdfs.ReadFile(t.Context(), fs, name, 1<<10); err != nil || !bytes.Equal(got, next) {
				t.Errorf("%s is %q, %v; want that of the next run", name, got, err)
			}
			for dir, want := range map[string]int{"/out/x": parts + 2, "/out/x/_temporary": 0} { // the files, _SUCCESS and that folder, which is not the job's
				if inside, err := fs.List(t.Context(), dir); err != nil || len(inside) != want {
					t.Errorf("%s has %v, %v", dir, inside, err)
				}
			}
		})
	}
}

package helper

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/fsys"
)

// Limits of a fetch.
const (
	fetchTries = 4
	fetchPause = 500 * time.Millisecond // doubles
	emitEvery  = 500 * time.Millisecond
	// tailBytes is read past the end of a piece at once, to finish its last
	// line; a longer line is read in further steps of this size.
	tailBytes = 256 << 10
)

// runFetch brings a split. The harness reads behind it; when the fetch is
// given up, the journal says so and the harness ends at once.
func runFetch(ctx context.Context, r *Request, t Tools) error {
	w, err := mapreduce.NewGrowingWriter(r.Fetch.File)
	if err != nil {
		return err
	}
	defer w.Close()
	src := &source{files: t.Files, user: r.User, lengths: map[place]int64{}, emit: t.Emit}
	for _, p := range r.Fetch.Pieces {
		src.lengths[place{p.Path, p.Offset}] = p.Length
		src.event.Of += p.Length
	}
	err = retry(ctx, t.Pause, func() error {
		src.event.Bytes = w.Size()
		return fsys.Classed(mapreduce.Fetch(ctx, src, &mapreduce.Split{Pieces: r.Fetch.Pieces}, 0, w))
	})
	if err != nil {
		if ctx.Err() == nil {
			err = errors.Join(err, w.Fail(err.Error()))
		}
		return err
	}
	t.Emit(src.event)
	return nil
}

// retry repeats f while its error may pass.
func retry(ctx context.Context, pause time.Duration, f func() error) error {
	if pause <= 0 {
		pause = fetchPause
	}
	for try := 1; ; try++ {
		err := f()
		if err == nil || try == fetchTries || !errors.Is(err, fault.Unavailable) {
			return err
		}
		if hdfs.Sleep(ctx, pause) != nil {
			return err
		}
		pause *= 2
	}
}

type place struct {
	path   string
	offset int64
}

// source opens input files for mapreduce.Fetch. It asks the file system for
// the piece and a little more, so that a DataNode does not send what is not
// wanted, and for more when a line is longer.
type source struct {
	files   FileSystems
	user    string
	lengths map[place]int64
	emit    func(Event)
	event   Event
	last    time.Time
}

// Open implements mapreduce.Source.
func (s *source) Open(ctx context.Context, path string, offset int64) (io.ReadCloser, error) {
	fs, uri, err := open(s.files, path, s.user)
	if err != nil {
		return nil, err
	}
	r := &stepped{ctx: ctx, fs: fs, path: uri.Path, next: offset, step: s.lengths[place{path, offset}] + tailBytes, source: s}
	return r, r.more()
}

// stepped reads a file range by range.
type stepped struct {
	ctx    context.Context
	fs     hdfs.FS
	path   string
	next   int64 // offset of the next byte
	step   int64 // bytes of the next range
	in     io.ReadCloser
	inEnd  int64 // where the open range ends, if the file does not end before
	source *source
}

// more opens the next range.
func (r *stepped) more() error {
	in, err := r.fs.Open(r.ctx, r.path, r.next, r.step)
	if err != nil {
		return err
	}
	r.in, r.inEnd, r.step = in, r.next+r.step, tailBytes
	return nil
}

func (r *stepped) Read(p []byte) (int, error) {
	for {
		n, err := r.in.Read(p)
		r.next += int64(n)
		r.source.count(int64(n))
		if n > 0 && err == io.EOF {
			err = nil // asked again, it says so again
		}
		if n > 0 || err != io.EOF {
			return n, err
		}
		if r.next < r.inEnd {
			return 0, io.EOF // the file ended, not just the range
		}
		if err := errors.Join(r.in.Close(), r.more()); err != nil {
			return 0, err
		}
	}
}

// Close closes the open range.
func (r *stepped) Close() error { return r.in.Close() }

func (s *source) count(n int64) {
	s.event.Bytes += n
	if now := time.Now(); now.Sub(s.last) >= emitEvery {
		s.last = now
		s.emit(s.event)
	}
}

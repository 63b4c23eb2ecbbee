package helper

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/drover-run/drover/hdfs"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/mapreduce"
	"github.com/drover-run/drover/node/fsys"
)

// Limits of a fetch.
const (
	maxFetchTries = 4
	fetchPause    = 500 * time.Millisecond // doubles with each retry
	emitEvery     = 500 * time.Millisecond
	// tailBytes is read past the end of a piece to complete its last line; a
	// longer line is read in further ranges of this size.
	tailBytes = 256 << 10
)

// runFetch fetches a split while the harness reads it. If no other helper could succeed either, the
// journal tells the harness, which then ends at once.
func runFetch(ctx context.Context, r *Request, t Tools) error {
	w, err := mapreduce.NewGrowingWriter(r.Fetch.File)
	if err != nil {
		return err
	}
	defer w.Close()
	src := &source{files: t.Files, user: r.User, emit: t.Emit}
	for _, p := range r.Fetch.Pieces {
		src.event.Total += p.Length
	}
	err = retry(ctx, t.pause, w.Size, func() error {
		src.event.Bytes = w.Size()
		err := mapreduce.FetchSplit(ctx, src, &mapreduce.Split{Pieces: r.Fetch.Pieces}, w)
		if errors.Is(err, mapreduce.ErrShrunk) {
			return fault.New(fault.Invalid, "%w", err)
		}
		return fsys.Classed(err)
	})
	if err != nil {
		if ctx.Err() == nil && !IsRetryable(err) {
			err = errors.Join(err, w.Fail(err.Error()))
		}
		return err
	}
	t.Emit(src.event)
	return nil
}

// retry repeats f while its error is Unavailable, up to maxFetchTries without progress: a large
// split may meet many transient failures.
func retry(ctx context.Context, pause time.Duration, progress func() int64, f func() error) error {
	if pause <= 0 {
		pause = fetchPause
	}
	next := pause
	for try := 1; ; try++ {
		before := progress()
		err := f()
		if progress() > before {
			try, next = 1, pause
		}
		if err == nil || try == maxFetchTries || !errors.Is(err, fault.Unavailable) {
			return err
		}
		if !sleep.For(ctx, next) {
			return err
		}
		next *= 2
	}
}

// source opens input files for mapreduce.Fetch. It opens a range with the piece
// and a little more, so that a DataNode sends no unneeded data, and further
// ranges if a line is longer.
type source struct {
	files    FileSystems
	user     string
	emit     func(Event)
	event    Event
	lastEmit time.Time
}

// Open implements mapreduce.Source.
func (s *source) Open(ctx context.Context, path string, offset, bytes int64) (io.ReadCloser, error) {
	fs, uri, err := openFS(s.files, path, s.user)
	if err != nil {
		return nil, err
	}
	r := &rangeReader{ctx: ctx, fs: fs, path: uri.Path, next: offset, rangeBytes: bytes + tailBytes, source: s}
	return r, r.openNextRange()
}

// rangeReader reads a file range by range.
type rangeReader struct {
	ctx        context.Context
	fs         hdfs.FS
	path       string
	next       int64 // offset of the next byte
	rangeBytes int64 // bytes of the next range
	in         io.ReadCloser
	inEnd      int64 // end of the open range, if the file does not end before
	source     *source
}

// openNextRange opens the next range.
func (r *rangeReader) openNextRange() error {
	in, err := r.fs.Open(r.ctx, r.path, r.next, r.rangeBytes)
	if err != nil {
		return err
	}
	r.in, r.inEnd, r.rangeBytes = in, r.next+r.rangeBytes, tailBytes
	return nil
}

func (r *rangeReader) Read(p []byte) (int, error) {
	for {
		n, err := r.in.Read(p)
		r.next += int64(n)
		r.source.addBytes(int64(n))
		if n > 0 && err == io.EOF {
			err = nil // the next Read returns EOF again
		}
		if n > 0 || err != io.EOF {
			return n, err
		}
		if r.next < r.inEnd {
			return 0, io.EOF // the file ended, not only the range
		}
		if err := errors.Join(r.in.Close(), r.openNextRange()); err != nil {
			return 0, err
		}
	}
}

// Close closes the open range.
func (r *rangeReader) Close() error { return r.in.Close() }

func (s *source) addBytes(n int64) {
	s.event.Bytes += n
	if now := time.Now(); now.Sub(s.lastEmit) >= emitEvery {
		s.lastEmit = now
		s.emit(s.event)
	}
}

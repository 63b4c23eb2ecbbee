package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// UploadOptions bounds an Upload. The zero value is sensible.
type UploadOptions struct {
	CreateOptions
	// Attempts is how often the whole file is tried; 0 means 4.
	Attempts int
	// Pause is the wait before the second attempt; it doubles. 0 means 500 ms.
	Pause time.Duration
	// Notify, if set, is told about each attempt that failed and is repeated.
	Notify func(attempt int, err error)
}

// Upload writes a whole file and tries again from its start where a failure
// may pass: above all when a DataNode of the pipeline died in the middle of a
// block. open is called once for each attempt and gives the content from its
// first byte; Upload closes it. It returns the number of bytes of the file.
//
// A repeated attempt replaces what the attempt before left behind, and only
// that: unless Overwrite is set, a file that was there before the first attempt
// is ErrExist and stays untouched.
func Upload(ctx context.Context, sink Sink, path string, options UploadOptions, open func() (io.ReadCloser, error)) (int64, error) {
	attempts, pause := options.Attempts, options.Pause
	if attempts <= 0 {
		attempts = 4
	}
	if pause <= 0 {
		pause = 500 * time.Millisecond
	}
	for attempt := 1; ; attempt++ {
		n, leftBehind, err := uploadOnce(ctx, sink, path, options.CreateOptions, open)
		if err == nil {
			return n, nil
		}
		// The half file of this attempt could not be removed: it is ours to replace.
		options.Overwrite = options.Overwrite || leftBehind
		if !Retryable(err) || ctx.Err() != nil {
			return 0, err
		}
		if attempt == attempts {
			return 0, fmt.Errorf("upload %s: gave up after %d attempts: %w", path, attempts, err)
		}
		if options.Notify != nil {
			options.Notify(attempt, err)
		}
		if err := Sleep(ctx, pause); err != nil {
			return 0, err
		}
		pause *= 2
	}
}

func uploadOnce(ctx context.Context, sink Sink, path string, options CreateOptions, open func() (io.ReadCloser, error)) (n int64, leftBehind bool, err error) {
	content, err := open()
	if err != nil {
		return 0, false, fmt.Errorf("upload %s: open the content: %w", path, err)
	}
	defer content.Close()
	w, err := sink.Create(ctx, path, options)
	if err != nil {
		return 0, false, err
	}
	// The buffer is as large as a few packets; neither side may bypass it.
	n, err = io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{content}, make([]byte, 256<<10))
	if err == nil {
		err = w.Commit()
	}
	if err == nil {
		return n, false, nil
	}
	err = fmt.Errorf("upload %s: %w", path, err)
	if aborted := w.Abort(); aborted != nil {
		return 0, true, errors.Join(err, aborted)
	}
	return 0, false, err
}

// ReadFile reads a whole file of at most limit bytes; a larger one is ErrInvalid.
func ReadFile(ctx context.Context, source Source, path string, limit int64) ([]byte, error) {
	r, err := source.Open(ctx, path, 0, limit+1)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("%w: %s is longer than %d bytes", ErrInvalid, path, limit)
	}
	return b, nil
}

// WriteFile writes a small whole file.
func WriteFile(ctx context.Context, sink Sink, path string, content []byte, options CreateOptions) error {
	w, err := sink.Create(ctx, path, options)
	if err != nil {
		return err
	}
	if _, err := w.Write(content); err != nil {
		return errors.Join(err, w.Abort())
	}
	if err := w.Commit(); err != nil {
		return errors.Join(err, w.Abort())
	}
	return nil
}

// Sleep waits, or returns the context's error as soon as that ends.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Waiting tells that a request is being held back because the file system
// cannot answer now.
type Waiting struct {
	Address string        // of the NameNode
	Reason  string        // such as "safe mode" or "connection refused"
	Left    time.Duration // until the request gives up
}

func (w Waiting) String() string {
	return fmt.Sprintf("waiting for the NameNode at %s (%s), %d s left", w.Address, w.Reason, int(w.Left.Round(time.Second).Seconds()))
}

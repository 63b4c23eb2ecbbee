package hdfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// UploadOptions configures Upload. The zero value is usable.
type UploadOptions struct {
	CreateOptions
	// Attempts limits how often the whole file is tried; 0: 4.
	Attempts int
	// initialBackoff is the pause before the second attempt; it doubles. 0: 500 ms.
	initialBackoff time.Duration
	// OnRetry, if set, is called after each failed attempt that will be repeated.
	OnRetry func(attempt int, err error)
}

// Upload writes a whole file. It starts again from the beginning after a transient
// failure, above all if a DataNode of the pipeline died in the middle of a block.
// open is called once for each attempt and returns the content from its first
// byte; Upload closes it. Upload returns the length of the file in bytes.
//
// A repeated attempt replaces only what the previous attempt left behind: unless
// Overwrite is set, a file that existed before the first attempt is ErrExist and
// is not changed.
func Upload(ctx context.Context, sink Sink, path string, options UploadOptions, open func() (io.ReadCloser, error)) (int64, error) {
	attempts, pause := options.Attempts, options.initialBackoff
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
		// The unfinished file of this attempt could not be removed; the next may replace it.
		options.Overwrite = options.Overwrite || leftBehind
		if !Retryable(err) || ctx.Err() != nil {
			return 0, err
		}
		if attempt == attempts {
			return 0, fmt.Errorf("upload %s: gave up after %d attempts: %w", path, attempts, err)
		}
		if options.OnRetry != nil {
			options.OnRetry(attempt, err)
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
	// The buffer holds a few packets. The wrappers keep io.CopyBuffer from bypassing it.
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

// ReadFile reads a whole file of at most limit bytes; ErrInvalid if it is larger.
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

// WriteFile writes a small file.
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

// Sleep waits for d. It returns the context's cause as soon as ctx ends.
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

// WaitNotice reports that a request is waiting because the file system cannot
// answer now.
type WaitNotice struct {
	Address   string        // of the NameNode
	Reason    string        // e.g. "safe mode" or "connection refused"
	Remaining time.Duration // until the request gives up
}

func (w WaitNotice) String() string {
	return fmt.Sprintf("waiting for the NameNode at %s (%s), %d s left", w.Address, w.Reason, int(w.Remaining.Round(time.Second).Seconds()))
}

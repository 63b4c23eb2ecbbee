package dump

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/sleep"
	"github.com/drover-run/drover/internal/unixhttp"
)

// stallLimit bounds the time without a byte, and busyLimit that for which a source says that it is busy: it serves
// others, or reads the dump to list it.
const (
	stallLimit = 30 * time.Second
	busyLimit  = 10 * time.Minute
)

// Client fetches a dump.
type Client struct {
	HTTP    *http.Client
	Scheme  string // http or https
	Address string // of the source node
	Token   string // of the job
	Attempt string // its ID on the source node
}

// Destination is where a root is written and who owns it. UID and GID are ignored
// if the daemon is not root.
type Destination struct {
	Dir      string
	UID, GID int
}

// Manifest fetches the manifest. NotFound: the node does not have the dump.
func (c *Client) Manifest(ctx context.Context) (*Manifest, error) {
	res, cancel, err := c.get(ctx, Prefix+c.Attempt+"/manifest", nil, 0)
	if err != nil {
		return nil, err
	}
	defer cancel()
	defer res.Body.Close()
	m := &Manifest{}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxManifestBytes)).Decode(m); err != nil {
		return nil, fault.New(fault.Unavailable, "manifest of a dump from %s: %w", c.Address, err)
	}
	return m, m.validate()
}

// Fetch fetches and verifies all files; complete files are not fetched again.
// progress is called with the bytes received. Folders get their modes last.
func (c *Client) Fetch(ctx context.Context, m *Manifest, places map[Root]Destination, progress func(bytes int64)) error {
	roots := map[Root]*os.Root{}
	defer func() {
		for _, r := range roots {
			r.Close()
		}
	}()
	for name, p := range places {
		if err := os.MkdirAll(p.Dir, 0o700); err != nil {
			return err
		}
		r, err := os.OpenRoot(p.Dir)
		if err != nil {
			return err
		}
		roots[name] = r
	}
	for i := range m.Files {
		f := &m.Files[i]
		root := roots[f.Root]
		if root == nil {
			continue // it exists already
		}
		if err := c.fetchEntry(ctx, root, f, places[f.Root], progress); err != nil {
			return fmt.Errorf("%s of the dump of %s: %w", f.Path, c.Attempt, err)
		}
	}
	for i := len(m.Files) - 1; i >= 0; i-- {
		f := &m.Files[i]
		if root := roots[f.Root]; root != nil && f.Mode.IsDir() {
			at := time.Unix(0, f.MTime)
			if err := errors.Join(root.Chmod(f.Path, f.Mode.Perm()), root.Chtimes(f.Path, at, at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// fetchEntry fetches one entry of the manifest.
func (c *Client) fetchEntry(ctx context.Context, root *os.Root, f *File, p Destination, progress func(int64)) error {
	var err error
	switch f.Mode.Type() {
	case fs.ModeDir:
		if err = root.Mkdir(f.Path, 0o700); errors.Is(err, fs.ErrExist) {
			err = nil
		}
	case fs.ModeSymlink:
		if err = root.Remove(f.Path); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		err = errors.Join(err, root.Symlink(f.Link, f.Path))
	case fs.ModeNamedPipe:
		err = makePipe(root, p.Dir, f)
	case 0:
		if f.HardLink != "" { // owner, mode and time are those of the file, which has been fetched
			return makeLink(root, f)
		}
		err = c.fetchFile(ctx, root, f, progress)
	default:
		return fault.New(fault.Corrupt, "files of mode %s cannot be transferred", f.Mode)
	}
	if err == nil && os.Geteuid() == 0 {
		err = root.Lchown(f.Path, p.UID, p.GID)
	}
	if err == nil && f.Mode.IsRegular() {
		at := time.Unix(0, f.MTime)
		err = errors.Join(root.Chmod(f.Path, f.Mode.Perm()), root.Chtimes(f.Path, at, at))
	}
	return err
}

// makePipe makes a FIFO in a folder opened through the root, so that no link can
// redirect it.
func makePipe(root *os.Root, _ string, f *File) error {
	if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	dir, err := root.Open(filepath.Dir(f.Path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Mkfifoat(int(dir.Fd()), filepath.Base(f.Path), uint32(f.Mode.Perm()))
}

// makeLink gives a file that was fetched another name.
func makeLink(root *os.Root, f *File) error {
	if err := root.Remove(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return root.Link(f.HardLink, f.Path)
}

// fetchFile fetches one regular file, resuming where it ends.
func (c *Client) fetchFile(ctx context.Context, root *os.Root, f *File, progress func(int64)) error {
	out, err := root.OpenFile(f.Path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	have, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if have > f.Bytes {
		if have = 0; out.Truncate(0) != nil {
			return fault.New(fault.Unavailable, "the partial file cannot be truncated")
		}
	}
	if have < f.Bytes {
		if err := c.receive(ctx, f, out, have, progress); err != nil {
			return err
		}
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return err
	}
	got, want := "", f.SHA256
	if want != "" {
		h := sha256.New()
		_, err = io.Copy(untilDone{ctx, h}, out)
		got = hex.EncodeToString(h.Sum(nil))
	} else {
		want = f.Blocks
		_, got, err = sumBlocks(ctx, out)
	}
	if err != nil || got != want {
		return errors.Join(fault.New(fault.Unavailable, "the sum is %s, want %s: it is fetched again", got, want), err, out.Truncate(0))
	}
	return out.Sync()
}

// receive fetches what a file lacks that ends at have, but for its holes.
func (c *Client) receive(ctx context.Context, f *File, out *os.File, have int64, progress func(int64)) error {
	what, ranges := "/data", f.Ranges
	if f.SHA256 != "" {
		what, ranges = "/file", []Range{{0, f.Bytes}}
	}
	skip, todo := int64(0), []Range(nil)
	for _, r := range ranges {
		if from := max(r.From, min(have, r.To)); from < r.To {
			todo = append(todo, Range{from, r.To})
			skip += from - r.From
		} else {
			skip += r.To - r.From
		}
	}
	if len(todo) > 0 {
		res, cancel, err := c.get(ctx, Prefix+c.Attempt+what, url.Values{"root": {string(f.Root)}, "path": {f.Path}}, skip)
		if err != nil {
			return err
		}
		defer cancel()
		defer res.Body.Close()
		buf := make([]byte, 256<<10)
		for _, r := range todo {
			if err := receiveRange(res.Body, out, r, buf, progress); err != nil {
				return err
			}
		}
	}
	return out.Truncate(f.Bytes) // it may end with a hole
}

// receiveRange writes one range of a file.
func receiveRange(body io.Reader, out *os.File, r Range, buf []byte, progress func(int64)) error {
	for at := r.From; at < r.To; {
		n, err := body.Read(buf[:min(int64(len(buf)), r.To-at)])
		if _, werr := out.WriteAt(buf[:n], at); werr != nil {
			return werr
		}
		at += int64(n)
		progress(int64(n))
		if err != nil && at < r.To {
			return fault.New(fault.Unavailable, "the transfer ended %d bytes before the end of a part: %w", r.To-at, err)
		}
	}
	return nil
}

// get sends a request, again while the source is busy, and returns classed errors. The caller must call
// the CancelFunc after reading the body.
func (c *Client) get(ctx context.Context, path string, q url.Values, from int64) (*http.Response, context.CancelFunc, error) {
	for start := time.Now(); ; {
		res, cancel, err := c.getOnce(ctx, path, q, from)
		busy := (*busyError)(nil)
		if !errors.As(err, &busy) || time.Since(start) > busyLimit || !sleep.For(ctx, busy.pause) {
			return res, cancel, err
		}
	}
}

// busyError is an answer of a source that is busy.
type busyError struct {
	error
	pause time.Duration // after which to ask again
}

func (e *busyError) Unwrap() error { return e.error }

// busyPauseOf returns after how long to ask a busy source again; false for other answers.
func busyPauseOf(res *http.Response) (time.Duration, bool) {
	seconds, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 8)
	return time.Duration(seconds) * time.Second, err == nil && res.StatusCode == http.StatusServiceUnavailable
}

// getOnce sends one request.
func (c *Client) getOnce(ctx context.Context, path string, q url.Values, from int64) (*http.Response, context.CancelFunc, error) {
	ctx, cancel := context.WithCancel(ctx)
	u := url.URL{Scheme: c.Scheme, Host: unixhttp.Host(c.Address), Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		cancel()
		return nil, nil, fault.New(fault.Invalid, "%w", err)
	}
	req.Header.Set(versionHeader, strconv.Itoa(Version))
	req.Header.Set("Authorization", proof(c.Token, signedPath(path, q)))
	if from > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
	}
	res, err := c.HTTP.Do(req)
	if err != nil {
		cancel()
		return nil, nil, fault.New(fault.Unavailable, "node %s: %w", c.Address, err)
	}
	res.Body = &movingBody{res.Body, time.AfterFunc(stallLimit, cancel)}
	if res.StatusCode == http.StatusOK || res.StatusCode == http.StatusPartialContent {
		return res, cancel, nil
	}
	said, _ := io.ReadAll(io.LimitReader(res.Body, 300))
	err = errors.Join(res.Body.Close(), statusError(res.StatusCode, c.Address, string(said)))
	if pause, busy := busyPauseOf(res); busy {
		err = &busyError{err, pause}
	}
	cancel()
	return nil, nil, err
}

// movingBody ends a response that brought nothing for stallLimit.
type movingBody struct {
	io.ReadCloser
	idle *time.Timer
}

// Read implements io.Reader.
func (b *movingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.idle.Reset(stallLimit)
	return n, err
}

// Close implements io.Closer.
func (b *movingBody) Close() error {
	b.idle.Stop()
	return b.ReadCloser.Close()
}

func statusError(status int, address, said string) error {
	switch status {
	case http.StatusNotFound:
		return fault.New(fault.NotFound, "node %s does not have the dump: %s", address, said)
	case http.StatusUnauthorized:
		return fault.New(fault.Denied, "node %s does not take the job's token", address)
	case http.StatusInternalServerError:
		return fault.New(fault.Corrupt, "node %s cannot read the dump: %s", address, said)
	default:
		return fault.New(fault.Unavailable, "node %s answered %d: %s", address, status, said)
	}
}

func signedPath(path string, q url.Values) string { return path + "?" + q.Encode() }

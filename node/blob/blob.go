// Package blob caches files and images of the coordinator's store on a node,
// by digest. A digest is fetched once however many ask for it, verified before
// anybody sees it, resumed after a break, and kept while it is used; over the
// size limit the one unused for longest goes.
//
// On disk: <dir>/<sha256 in hex>, and <dir>/<sha256>.part while it comes. A
// file under its final name was verified and synced. The folder is the node's
// alone.
package blob

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"connectrpc.com/connect"
	"golang.org/x/sync/singleflight"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// Source is where blobs come from: the coordinator.
type Source interface {
	GetBlob(context.Context, *connect.Request[droverv1.GetBlobRequest]) (*connect.ServerStreamForClient[droverv1.BlobChunk], error)
}

// Cache is the folder of blobs. Its methods may be called from many goroutines.
type Cache struct {
	dir    string
	limit  int64 // bytes
	source Source
	flight singleflight.Group

	mu    sync.Mutex
	have  map[string]*entry // by hex
	total int64             // bytes of have
	tick  int64             // rises with every use
}

type entry struct {
	size  int64
	users int
	used  int64 // tick of the last use
}

// Open reads the folder, which is made if missing. What a crash left half
// fetched stays, to be resumed.
func Open(dir string, limit int64, source Source) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{dir: dir, limit: limit, source: source, have: map[string]*entry{}}
	for _, f := range files {
		st, err := f.Info()
		if err != nil || len(f.Name()) != 2*sha256.Size {
			continue
		}
		c.have[f.Name()] = &entry{size: st.Size()}
		c.total += st.Size()
	}
	return c, nil
}

// Bytes is how much the cache holds.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// File is an open blob. It stays in the cache until Close.
type File struct {
	*os.File
	once    sync.Once
	release func()
}

// Close closes the file and gives it free.
func (f *File) Close() error {
	f.once.Do(f.release)
	return f.File.Close()
}

// parse gives the hex of "sha256:<hex>".
func parse(digest string) (string, error) {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(h); !ok || err != nil || len(raw) != sha256.Size || strings.ToLower(h) != h {
		return "", fault.New(fault.Invalid, "digest %q: want sha256: and 64 hexadecimal digits", digest)
	}
	return h, nil
}

// Get opens the blob, fetching it if needed. NotFound: the coordinator does
// not have it. Corrupt: what came has another digest.
func (c *Cache) Get(ctx context.Context, digest string) (*File, error) {
	h, err := parse(digest)
	if err != nil {
		return nil, err
	}
	for range 3 { // between the fetch and the hold it may be removed, though hardly three times
		if f, err := c.hold(h); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		if err := c.fetchOnce(ctx, digest, h); err != nil {
			return nil, err
		}
	}
	return nil, fault.New(fault.Exhausted, "blob %s is removed as soon as it is fetched: the cache limit of %d bytes is too small", digest, c.limit)
}

// fetchOnce joins a fetch that is under way. When the one who started it gives
// up, the others start it again.
func (c *Cache) fetchOnce(ctx context.Context, digest, h string) error {
	for {
		done := c.flight.DoChan(h, func() (any, error) { return nil, c.fetch(ctx, digest, h) })
		select {
		case r := <-done:
			if r.Shared && ctx.Err() == nil && (errors.Is(r.Err, context.Canceled) || errors.Is(r.Err, context.DeadlineExceeded)) {
				continue
			}
			return r.Err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Cache) hold(h string) (*File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.have[h]
	if !ok {
		return nil, fs.ErrNotExist
	}
	f, err := os.Open(filepath.Join(c.dir, h))
	if errors.Is(err, fs.ErrNotExist) { // somebody cleaned up behind our back
		c.total -= e.size
		delete(c.have, h)
	}
	if err != nil {
		return nil, err
	}
	c.tick++
	e.users, e.used = e.users+1, c.tick
	return &File{File: f, release: func() { c.free(e) }}, nil
}

func (c *Cache) free(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	c.evictLocked()
}

// evictLocked removes unused blobs, the longest unused first, while the cache
// is over its limit.
func (c *Cache) evictLocked() {
	for c.total > c.limit {
		oldest := ""
		for h, e := range c.have {
			if e.users == 0 && (oldest == "" || e.used < c.have[oldest].used || e.used == c.have[oldest].used && h < oldest) {
				oldest = h
			}
		}
		if oldest == "" {
			return
		}
		c.dropLocked(oldest)
	}
}

func (c *Cache) dropLocked(h string) {
	// A file that cannot be removed is found again by the next Open.
	_ = os.Remove(filepath.Join(c.dir, h))
	c.total -= c.have[h].size
	delete(c.have, h)
}

// Keep removes what is neither in digests nor in use.
func (c *Cache) Keep(digests []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for h, e := range c.have {
		if e.users == 0 && !slices.Contains(digests, "sha256:"+h) {
			c.dropLocked(h)
		}
	}
}

// fetch brings one blob: from where an earlier part ends, verified as a whole.
func (c *Cache) fetch(ctx context.Context, digest, h string) error {
	part := filepath.Join(c.dir, h+".part")
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f) // what is there already; leaves the offset at its end
	if err != nil {
		return err
	}
	if n, err = c.receive(ctx, digest, n, io.MultiWriter(f, sum)); err != nil {
		return fmt.Errorf("blob %s: %w", digest, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != h {
		return errors.Join(fault.New(fault.Corrupt, "blob %s arrived as sha256:%s, %d bytes: it is fetched again from its start", digest, got, n), os.Remove(part))
	}
	if err := errors.Join(f.Sync(), os.Rename(part, filepath.Join(c.dir, h))); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick++
	if c.have[h] == nil {
		c.have[h] = &entry{size: n, used: c.tick}
		c.total += n
	}
	// The limit is enforced when a user gives a blob free: the new one is about
	// to be used.
	return nil
}

// receive streams from offset on and gives the length so far.
func (c *Cache) receive(ctx context.Context, digest string, offset int64, to io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream also when writing fails
	stream, err := c.source.GetBlob(ctx, connect.NewRequest(&droverv1.GetBlobRequest{Digest: digest, Offset: offset}))
	if err != nil {
		return offset, wire.FromError(err)
	}
	defer stream.Close()
	for stream.Receive() {
		n, err := to.Write(stream.Msg().GetData())
		offset += int64(n)
		if err != nil {
			return offset, err
		}
	}
	return offset, wire.FromError(stream.Err())
}

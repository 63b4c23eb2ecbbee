// Package blob caches files and images of the coordinator's store on a node, by digest. Concurrent
// requests for a digest share one fetch. A blob is verified when it arrives and again with every
// use, since disks lose bits; a damaged one is removed, so that the next use fetches it. A broken
// fetch resumes, unless it filled the disk, and blobs in use are kept; over the size limit, the
// least recently used blobs are evicted.
//
// On disk: <dir>/<sha256 in hex>, and <dir>/<sha256>.part during a fetch. A file under its final
// name was verified and synced. The folder is inaccessible to tenants.
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
	"golang.org/x/sys/unix"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/internal/fault"
)

// Source fetches blobs: the coordinator.
type Source interface {
	GetBlob(context.Context, *connect.Request[droverv1.GetBlobRequest]) (*connect.ServerStreamForClient[droverv1.BlobChunk], error)
}

// Cache is the folder of blobs. It is safe for concurrent use.
type Cache struct {
	dir      string
	limit    int64 // bytes
	source   Source
	inFlight singleflight.Group

	mu       sync.Mutex
	entries  map[string]*entry // by sha256 in hex
	fetching map[string]bool   // digests (sha256 in hex) whose partial file is in use
	total    int64             // bytes of entries
	tick     int64             // incremented with every use
}

type entry struct {
	size     int64
	users    int
	lastUsed int64 // tick of the last use
}

// Open reads the folder, and creates it if it is missing. Partial fetches are kept until Prune, so
// that they can resume.
func Open(dir string, limit int64, source Source) (*Cache, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	c := &Cache{dir: dir, limit: limit, source: source, entries: map[string]*entry{}, fetching: map[string]bool{}}
	for _, f := range files {
		st, err := f.Info()
		if err != nil || len(f.Name()) != 2*sha256.Size {
			continue
		}
		c.entries[f.Name()] = &entry{size: st.Size()}
		c.total += st.Size()
	}
	return c, nil
}

// Bytes returns the size of the cached blobs.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.total
}

// File is an open blob. It stays in the cache until Close. Its content was verified when it was
// fetched, and may be damaged since: use CopyTo or Verify, or compare the digest and call Damaged.
type File struct {
	*os.File
	cache *Cache
	hex   string
	entry *entry
	once  sync.Once
}

// Close closes the file and allows its eviction.
func (f *File) Close() error {
	f.once.Do(func() { f.cache.releaseEntry(f.entry) })
	return f.File.Close()
}

// CopyTo writes the blob to w. Unavailable: the blob is damaged. What was written to w must not be
// used, and the next Get fetches the blob again.
func (f *File) CopyTo(w io.Writer) error {
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(w, sum), f.File)
	if err != nil {
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != f.hex {
		return f.Damaged(fmt.Sprintf("has sha256:%s, %d bytes", got, n))
	}
	return nil
}

// Verify reads the whole blob and returns to its start. Its errors are those of CopyTo.
func (f *File) Verify() error {
	if err := f.CopyTo(io.Discard); err != nil {
		return err
	}
	_, err := f.Seek(0, io.SeekStart)
	return err
}

// Damaged removes the blob from the cache, unless it is removed already, and returns the error.
// what describes the damage.
func (f *File) Damaged(what string) error {
	c := f.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries[f.hex] == f.entry {
		c.removeLocked(f.hex)
	}
	return fault.New(fault.Unavailable, "blob sha256:%s was damaged on this node's disk: it %s; it is fetched again", f.hex, what)
}

// parseDigest returns the hex part of "sha256:<hex>".
func parseDigest(digest string) (string, error) {
	h, ok := strings.CutPrefix(digest, "sha256:")
	if raw, err := hex.DecodeString(h); !ok || err != nil || len(raw) != sha256.Size || strings.ToLower(h) != h {
		return "", fault.New(fault.Invalid, "digest %q: want sha256: and 64 hexadecimal digits", digest)
	}
	return h, nil
}

// Get opens the blob, and fetches it if needed. NotFound: the coordinator does not have it.
// Invalid: the coordinator's copy is damaged. Corrupt: it was damaged on the way.
func (c *Cache) Get(ctx context.Context, digest string) (*File, error) {
	h, err := parseDigest(digest)
	if err != nil {
		return nil, err
	}
	for range 3 { // the blob may be evicted between fetch and acquire, though hardly three times
		if f, err := c.acquire(h); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		if err := c.fetchOnce(ctx, digest, h); err != nil {
			return nil, err
		}
	}
	return nil, fault.New(fault.Exhausted, "blob %s is removed as soon as it is fetched: the cache limit of %d bytes is too small", digest, c.limit)
}

// fetchOnce joins a fetch in progress. If the caller that started it is cancelled, the others start
// it again.
func (c *Cache) fetchOnce(ctx context.Context, digest, h string) error {
	for {
		done := c.inFlight.DoChan(h, func() (any, error) { return nil, c.fetch(ctx, digest, h) })
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

func (c *Cache) acquire(h string) (*File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[h]
	if !ok {
		return nil, fs.ErrNotExist
	}
	f, err := os.Open(filepath.Join(c.dir, h))
	if errors.Is(err, fs.ErrNotExist) { // removed by another program
		c.total -= e.size
		delete(c.entries, h)
	}
	if err != nil {
		return nil, err
	}
	c.tick++
	e.users, e.lastUsed = e.users+1, c.tick
	return &File{File: f, cache: c, hex: h, entry: e}, nil
}

func (c *Cache) releaseEntry(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.users--
	c.evictLocked()
}

// evictLocked removes unused blobs, least recently used first, while the cache exceeds its limit.
func (c *Cache) evictLocked() {
	for c.total > c.limit {
		oldest := ""
		for h, e := range c.entries {
			if e.users == 0 && (oldest == "" || e.lastUsed < c.entries[oldest].lastUsed || e.lastUsed == c.entries[oldest].lastUsed && h < oldest) {
				oldest = h
			}
		}
		if oldest == "" {
			return
		}
		c.removeLocked(oldest)
	}
}

func (c *Cache) removeLocked(h string) {
	// A file that cannot be removed is found again by the next Open.
	_ = os.Remove(filepath.Join(c.dir, h))
	c.total -= c.entries[h].size
	delete(c.entries, h)
}

// partSuffix ends the name of a partial fetch.
const partSuffix = ".part"

// Prune removes blobs that are neither in digests nor in use, and partial fetches that are neither
// in digests nor in progress.
func (c *Cache) Prune(digests []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for h, e := range c.entries {
		if e.users == 0 && !slices.Contains(digests, "sha256:"+h) {
			c.removeLocked(h)
		}
	}
	files, _ := os.ReadDir(c.dir) // what cannot be read is removed by the next call
	for _, f := range files {
		if h, ok := strings.CutSuffix(f.Name(), partSuffix); ok && !c.fetching[h] && !slices.Contains(digests, "sha256:"+h) {
			_ = os.Remove(filepath.Join(c.dir, f.Name()))
		}
	}
}

func (c *Cache) setFetching(h string, yes bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(c.fetching, h); yes {
		c.fetching[h] = true
	}
}

// fetch fetches one blob, resuming a partial fetch, and verifies the whole. A partial fetch that
// fills the disk is removed: it would never be completed, and would keep the node from other work.
func (c *Cache) fetch(ctx context.Context, digest, h string) error {
	c.setFetching(h, true)
	defer c.setFetching(h, false)
	part := filepath.Join(c.dir, h+partSuffix)
	f, err := os.OpenFile(part, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	n, err := io.Copy(sum, f) // what is present; leaves the offset at its end
	if err != nil {
		return err
	}
	if n, err = c.receive(ctx, digest, n, io.MultiWriter(f, sum)); errors.Is(err, fault.Corrupt) {
		// The coordinator's copy is damaged. That is no failure of this node, and no other node
		// would get a better copy.
		return errors.Join(fault.New(fault.Invalid, "%w", err), os.Remove(part))
	} else if err != nil {
		err = fmt.Errorf("blob %s: %w", digest, err)
		if isFull(err) {
			err = errors.Join(err, os.Remove(part))
		}
		return err
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != h {
		return errors.Join(fault.New(fault.Corrupt, "blob %s arrived as sha256:%s, %d bytes: it is fetched again from its start", digest, got, n), os.Remove(part))
	}
	if err := f.Sync(); err != nil { // nobody knows what the disk has of it
		return errors.Join(fmt.Errorf("blob %s: %w", digest, err), os.Remove(part))
	}
	if err := os.Rename(part, filepath.Join(c.dir, h)); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick++
	if c.entries[h] == nil {
		c.entries[h] = &entry{size: n, lastUsed: c.tick}
		c.total += n
	}
	// The limit is enforced when a blob is released: the new one is about to be
	// used.
	return nil
}

// isFull reports whether an error means that there is no room on the disk.
func isFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }

// receive streams the blob from offset on and returns the length reached.
func (c *Cache) receive(ctx context.Context, digest string, offset int64, to io.Writer) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // also ends the stream when writing fails
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

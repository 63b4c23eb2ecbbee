package coordinator

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
)

// Limits of stored files.
const (
	collectAtOnce = 200
	maxTouched    = 100_000
)

// storedFiles manages the uploaded files on this server, and removes those that nothing needs any
// more.
type storedFiles struct {
	blobs   *blobs.Store
	peers   *peers // nil for one server
	view    func(func(*facts.Facts))
	propose func(ctx context.Context, actor string, body *droverv1.Entry) (facts.Result, error)
	now     func() time.Time
	minAge  time.Duration // how long a file without a job is kept
	log     *slog.Logger

	mu    sync.Mutex
	asked map[string]int64 // digests that clients asked for recently, Unix ns
}

func newStoredFiles(c *core) *storedFiles {
	return &storedFiles{blobs: c.blobs, peers: c.peers, view: c.view, propose: c.propose, now: c.now, minAge: c.cfg.blobMinAge, log: c.log, asked: map[string]int64{}}
}

// ask is has for a client that is about to rely on the file: the file is then not collected for a
// while. Digests of missing files are not remembered, or callers could fill the memory with
// invented ones.
func (s *storedFiles) ask(ctx context.Context, d string) bool {
	known := false
	s.view(func(f *facts.Facts) {
		if known = f.Blob(d) != nil; known {
			s.touch(d)
		}
	})
	return known && s.has(ctx, d)
}

// has reports whether a file is a fact and present here. It fetches the file from another
// coordinator if necessary.
func (s *storedFiles) has(ctx context.Context, d string) (has bool) {
	s.view(func(f *facts.Facts) { has = f.Blob(d) != nil })
	if has && s.peers.keeper().ensure(ctx, d) == nil {
		_, has = s.blobs.Has(d)
		return has
	}
	return false
}

// collect proposes to remove blobs that no job references and no client
// asked for recently, and reports whether there may be more. O(blobs).
func (s *storedFiles) collect(ctx context.Context) (more bool) {
	s.pruneTouched(s.now().Add(-s.minAge))
	old := s.now().Add(-s.minAge).UnixNano()
	var gone []string
	s.view(func(f *facts.Facts) {
		f.EachBlob(func(b *facts.Blob) {
			if b.Refs == 0 && b.Added < old && !s.touched(b.Digest) {
				gone = append(gone, b.Digest)
			}
		})
	})
	slices.Sort(gone)
	more = len(gone) > collectAtOnce
	for _, d := range gone[:min(len(gone), collectAtOnce)] {
		if _, err := s.propose(ctx, actorSelf, &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: d, Removed: true}}}); err != nil {
			return false
		}
	}
	return more
}

// pruneTouched drops the blobs that were last asked for before a time.
func (s *storedFiles) pruneTouched(before time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for d, at := range s.asked {
		if at < before.UnixNano() {
			delete(s.asked, d)
		}
	}
}

// touch records that a client relies on a blob.
func (s *storedFiles) touch(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.asked) < maxTouched {
		s.asked[digest] = s.now().UnixNano()
	}
}

// touched reports whether a client asked for a blob lately.
func (s *storedFiles) touched(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.asked[digest]
	return ok
}

// remove removes the file of a blob that left the facts.
func (s *storedFiles) remove(digest string) {
	if err := s.blobs.Remove(digest); err != nil {
		s.log.Error("cannot remove a blob", "digest", digest, "err", err)
	}
	if k := s.peers.keeper(); k != nil {
		k.gone(digest)
	}
}

// replaceDamaged fetches a damaged file, which was moved aside, again from another coordinator, and
// reports whether one had it. If none had it, an event names the file.
func (s *storedFiles) replaceDamaged(ctx context.Context, digest string, why error) bool {
	if s.peers != nil {
		s.peers.files.gone(digest)
		if err := s.peers.files.ensure(ctx, digest); err == nil {
			s.log.Warn("an uploaded file was damaged and moved aside; it was fetched again from another coordinator", "digest", digest, "err", why)
			return true
		}
	}
	s.log.Error("an uploaded file is damaged and was moved aside; its jobs fail until it is uploaded again", "digest", digest, "err", why)
	e := &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: digest, Damaged: true, Reason: why.Error()}}}
	if _, err := s.propose(ctx, actorSelf, e); err != nil {
		s.log.Warn("the damaged file is not in the events", "digest", digest, "err", err)
	}
	return false
}

// removeUnknown removes files that are no facts, left by a coordinator that crashed between an
// upload and its entry. It is called under the facts' lock before this server leads, when no upload
// is in progress.
func (s *storedFiles) removeUnknown(f *facts.Facts) {
	list, err := s.blobs.List()
	if err != nil {
		s.log.Error("cannot list the blob store", "err", err)
		return
	}
	for _, d := range list {
		if f.Blob(d) == nil {
			s.remove(d)
		}
	}
}

package coordinator

import (
	"sync"
	"time"

	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// uploadShare bounds the files of one user that no job references to one part
// in so many of the blob quota. They are kept for blobMinAge, and would
// otherwise fill the store for everybody.
const uploadShare = 4

// uploadLedger records who sent which files that no job references yet. It is
// lost with the process; files whose sender is unknown count for nobody and are
// collected as all others.
type uploadLedger struct {
	view   func(func(*facts.Facts))
	share  int64         // bytes of one user
	minAge time.Duration // how long a file without a job is kept

	mu   sync.Mutex
	sent map[string]*sender // by identity
}

// minUploadBytes is what a file counts at least. It bounds the number of files that one user keeps in the store.
const minUploadBytes = 4 << 10

// sender is a user with files that no job referenced when they were last looked through.
type sender struct {
	files map[string]upload // by digest
	bytes int64             // of files
	look  int               // so many files are looked through again: twice as many as were left the last time
}

type upload struct {
	size     int64 // bytes
	complete bool
}

func newUploadLedger(c *core) *uploadLedger {
	return &uploadLedger{view: c.view, share: c.cfg.BlobQuota / uploadShare, minAge: c.cfg.blobMinAge, sent: map[string]*sender{}}
}

// claim counts a file against its sender's share, or returns an error.
// The sender must call done with the upload's outcome. Nobody has verified size yet.
func (l *uploadLedger) claim(id identity, digest string, size int64) (done func(stored bool), err error) {
	if size < 0 {
		return nil, fault.New(fault.Invalid, "%s: invalid size of %d bytes", digest, size)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.sent[id.name]
	if own == nil {
		own = &sender{files: map[string]upload{}}
	}
	if _, again := own.files[digest]; again || id.kind == kindLocal {
		return func(bool) {}, nil
	}
	counted := max(size, minUploadBytes)
	if counted > l.share-own.bytes || len(own.files) > own.look {
		l.view(own.forgetUsed)
	}
	if counted > l.share-own.bytes {
		return nil, fault.New(fault.Exhausted, "%s has %d MiB of uploads that no job uses, %d more are over the share of %d: submit the jobs they are for, or wait %s",
			id.displayName(), own.bytes>>20, counted>>20, l.share>>20, l.minAge)
	}
	own.files[digest] = upload{size: counted}
	own.bytes += counted
	l.sent[id.name] = own
	return func(stored bool) { l.finish(id.name, digest, stored) }, nil
}

// forgetUsed forgets the files that a job references, and those that were collected.
func (s *sender) forgetUsed(f *facts.Facts) {
	for d, u := range s.files {
		if b := f.Blob(d); u.complete && (b == nil || b.Refs > 0) {
			s.bytes -= u.size
			delete(s.files, d)
		}
	}
	s.look = 2 * len(s.files)
}

func (l *uploadLedger) finish(name, digest string, stored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.sent[name]
	u := own.files[digest]
	if stored {
		own.files[digest] = upload{size: u.size, complete: true}
		return
	}
	own.bytes -= u.size
	delete(own.files, digest)
	if len(own.files) == 0 {
		delete(l.sent, name)
	}
}

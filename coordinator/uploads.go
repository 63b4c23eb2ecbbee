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
	sent map[string]map[string]upload // by identity and digest
}

type upload struct {
	size     int64 // bytes
	complete bool
}

func newUploadLedger(c *core) *uploadLedger {
	return &uploadLedger{view: c.view, share: c.cfg.BlobQuota / uploadShare, minAge: c.cfg.blobMinAge, sent: map[string]map[string]upload{}}
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
	if _, again := own[digest]; again || id.kind == kindLocal {
		return func(bool) {}, nil
	}
	unused := int64(0)
	l.view(func(f *facts.Facts) {
		for d, u := range own {
			if b := f.Blob(d); u.complete && (b == nil || b.Refs > 0) {
				delete(own, d) // collected, or a job's
				continue
			}
			unused += u.size
		}
	})
	if size > l.share-unused {
		return nil, fault.New(fault.Exhausted, "%s has %d MiB of uploads that no job uses, %d more are over the share of %d: submit the jobs they are for, or wait %s",
			id.displayName(), unused>>20, size>>20, l.share>>20, l.minAge)
	}
	if own == nil {
		own = map[string]upload{}
		l.sent[id.name] = own
	}
	own[digest] = upload{size: size}
	return func(stored bool) { l.finish(id.name, digest, stored) }, nil
}

func (l *uploadLedger) finish(name, digest string, stored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.sent[name]
	if u := own[digest]; stored {
		own[digest] = upload{size: u.size, complete: true}
		return
	}
	delete(own, digest)
	if len(own) == 0 {
		delete(l.sent, name)
	}
}

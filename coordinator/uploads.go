package coordinator

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// uploadShare is the divisor of the blob quota that bounds the unreferenced files of one user. They
// are kept for blobMinAge, and would otherwise fill the store for everybody.
const uploadShare = 4

// uploadLedger records which user sent which files that no job references yet. It is lost with the
// process. Files whose sender is unknown are charged to nobody, and collected like all others.
type uploadLedger struct {
	view   func(func(*facts.Facts))
	share  int64         // bytes of one user
	minAge time.Duration // how long a file without a job is kept

	mu   sync.Mutex
	sent map[string]*sender // by identity
}

// minUploadBytes is the least that a file is charged, which bounds the number of files of one user.
const minUploadBytes = 4 << 10

// sender is a user with files that no job referenced at the last check.
type sender struct {
	files map[string]upload // by digest
	bytes int64             // of files
	look  int               // at this many files they are checked again: twice as many as the last check left
}

// upload is a file of a sender: stored, on its way, or both.
type upload struct {
	size   int64 // charged: the largest announced size while an upload is open, then the stored size
	stored int64 // bytes charged for the stored file; 0 if no upload of it was stored
	open   int   // claims whose outcome is not known
}

func newUploadLedger(c *core) *uploadLedger {
	return &uploadLedger{view: c.view, share: c.cfg.BlobQuota / uploadShare, minAge: c.cfg.blobMinAge, sent: map[string]*sender{}}
}

// claim charges a file to its sender, or returns an error. Uploads of one file are charged once.
// The caller must call done with the upload's outcome. size is what the sender announced; nobody
// has verified it yet.
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
	if id.kind == kindLocal {
		return func(bool) {}, nil
	}
	counted := max(size, minUploadBytes)
	u, again := own.files[digest]
	more := max(0, counted-u.size)
	if more > l.share-own.bytes || !again && len(own.files) > own.look {
		l.view(own.forgetUsed)
		u = own.files[digest]
		more = max(0, counted-u.size)
	}
	if more > l.share-own.bytes {
		return nil, fault.New(fault.Exhausted, "%s has %d MiB of uploads that no job uses, %d more are over the share of %d: submit the jobs they are for, or wait %s",
			id.displayName(), own.bytes>>20, more>>20, l.share>>20, l.minAge)
	}
	own.files[digest] = upload{size: u.size + more, stored: u.stored, open: u.open + 1}
	own.bytes += more
	l.sent[id.name] = own
	return func(stored bool) { l.finish(id.name, digest, counted, stored) }, nil
}

// forgetUsed drops the files that a job references, and those that were collected.
func (s *sender) forgetUsed(f *facts.Facts) {
	for d, u := range s.files {
		if b := f.Blob(d); u.open == 0 && (b == nil || b.Refs > 0) {
			s.bytes -= u.size
			delete(s.files, d)
		}
	}
	s.look = 2 * len(s.files)
}

// finish ends a claim that was charged counted bytes. A file that was never stored is dropped with
// its last open claim; until then it is charged the largest claim, which may still be stored.
func (l *uploadLedger) finish(name, digest string, counted int64, stored bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	own := l.sent[name]
	u := own.files[digest]
	u.open--
	if stored {
		u.stored = counted // the store has verified it
	}
	if u.open == 0 {
		own.bytes -= u.size - u.stored
		u.size = u.stored
	}
	own.files[digest] = u
	if u.size > 0 {
		return
	}
	delete(own.files, digest)
	if len(own.files) == 0 {
		delete(l.sent, name)
	}
}

// HasBlobs returns which of the digests must be uploaded. It tells any submitter whether any file
// is here: see docs/explanation/threat-model.md.
func (s *clientService) HasBlobs(ctx context.Context, req *connect.Request[droverv1.HasBlobsRequest]) (*connect.Response[droverv1.HasBlobsResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if n := len(req.Msg.GetDigests()); n > maxDigests {
		return nil, fault.New(fault.Exhausted, "%d digests, at most %d can be asked for at once", n, maxDigests)
	}
	res := &droverv1.HasBlobsResponse{}
	for _, d := range req.Msg.GetDigests() {
		if err := blobs.CheckDigest(d); err != nil {
			return nil, err
		}
		if !s.core.files.ask(ctx, d) {
			res.Missing = append(res.Missing, d)
		}
	}
	return connect.NewResponse(res), nil
}

// PutBlob stores a file. It is durable, on a majority of the coordinators, and a
// fact before the response.
func (s *clientService) PutBlob(ctx context.Context, stream *connect.ClientStream[droverv1.PutBlobRequest]) (*connect.Response[droverv1.PutBlobResponse], error) {
	if err := s.core.rights.needUser(ctx); err != nil {
		return nil, err
	}
	if !stream.Receive() {
		return nil, errors.Join(fault.New(fault.Invalid, "an upload without a message"), stream.Err())
	}
	digest, size := stream.Msg().GetDigest(), stream.Msg().GetSize()
	if err := blobs.CheckDigest(digest); err != nil {
		return nil, err
	}
	if err := s.core.disk.requireSpace(size); err != nil {
		return nil, err
	}
	done, err := s.core.uploads.claim(caller(ctx), digest, size)
	if err != nil {
		return nil, err
	}
	stored := false
	defer func() { done(stored) }()
	s.core.files.touch(digest)
	r := &uploadReader{stream: stream, rest: bytes.Clone(stream.Msg().GetData())}
	if err := s.core.blobs.Put(digest, size, r); err != nil {
		return nil, err
	}
	if err := s.core.peers.keeper().replicate(ctx, fileSize{digest, size}); err != nil {
		return nil, err
	}
	e := &droverv1.Entry{Body: &droverv1.Entry_Blob{Blob: &droverv1.BlobFact{Digest: digest, Size: size}}}
	res, err := s.core.propose(ctx, caller(ctx).name, e)
	if err = errors.Join(err, res.Err); err != nil {
		return nil, err
	}
	if !s.core.files.has(ctx, digest) { // it was collected in the meantime
		return nil, fault.New(fault.Unavailable, "%s was removed while it was sent: send it again", digest)
	}
	stored = true
	return connect.NewResponse(&droverv1.PutBlobResponse{Digest: digest}), nil
}

// uploadReader reads the bytes of an upload's messages.
type uploadReader struct {
	stream *connect.ClientStream[droverv1.PutBlobRequest]
	rest   []byte
}

// Read implements io.Reader.
func (r *uploadReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

package coordinator

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/raft"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/wire"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/internal/fault"
)

// Limits of the copies of uploaded files.
const (
	copyLimit     = 30 * time.Second // of one copy, and a second more for each copyRate bytes
	copyRate      = 1 << 20          // bytes/s; slower ones are given up
	copyRetry     = 30 * time.Second // before a file that no server has is asked for again
	maxFetchPass  = 1000             // files fetched in one pass
	recheckEvery  = time.Minute      // between two looks at the files themselves
	sweepEvery    = 10 * time.Minute // between two removals of files that are no facts
	maxCopyErrors = 3                // in one message
)

// fileKeeper keeps the uploaded files on the servers of a cluster. The facts say
// which files there are; a file is a fact only when a majority has it (replicate),
// and every server fetches what it lacks (fetchMissing). So no file is lost with
// a server.
type fileKeeper struct {
	p *peers

	mu      sync.Mutex // guards the fields below
	seen    map[string]bool
	seenAt  time.Time
	retryAt map[string]time.Time
	sweptAt time.Time
}

// fileSize is an uploaded file and its size in bytes.
type fileSize struct {
	digest string
	size   int64
}

// missing returns the files of the facts that this server lacks, by digest. O(files).
func (k *fileKeeper) missing() (out []fileSize) {
	var all []fileSize
	k.p.eachFile(func(b *facts.Blob) { all = append(all, fileSize{b.Digest, b.Size}) })
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.p.c.now(); k.seen == nil || now.Sub(k.seenAt) > recheckEvery {
		k.seen, k.seenAt = map[string]bool{}, now
	}
	for _, f := range all {
		if k.seen[f.digest] {
			continue
		}
		if _, ok := k.p.c.blobs.Has(f.digest); ok {
			k.seen[f.digest] = true
			continue
		}
		out = append(out, f)
	}
	slices.SortFunc(out, func(a, b fileSize) int { return strings.Compare(a.digest, b.digest) })
	return out
}

// eachFile calls fn with each file of the facts, in no order, under the facts' lock;
// with none before the log is open.
func (p *peers) eachFile(fn func(*facts.Blob)) {
	r := p.replica.Load()
	if r == nil {
		return
	}
	r.Read(func(f *facts.Facts) { f.EachBlob(fn) })
}

// gone makes the next call of missing check a file again, after the file was removed or moved
// aside.
func (k *fileKeeper) gone(digest string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.seen, digest)
}

// fetchMissing fetches the files that this server lacks from the others.
func (k *fileKeeper) fetchMissing(ctx context.Context) error {
	now := k.p.c.now()
	var err error
	failed := 0
	for i, f := range k.missing() {
		if i >= maxFetchPass || ctx.Err() != nil || failed >= maxCopyErrors {
			break
		}
		k.mu.Lock()
		wait := k.retryAt[f.digest].After(now)
		k.mu.Unlock()
		if wait {
			continue
		}
		if e := k.fetch(ctx, f); e != nil {
			err, failed = errors.Join(err, e), failed+1
			k.mu.Lock()
			if k.retryAt == nil || len(k.retryAt) > maxTouched {
				k.retryAt = map[string]time.Time{}
			}
			k.retryAt[f.digest] = now.Add(copyRetry)
			k.mu.Unlock()
		}
	}
	return err
}

// ensure fetches a file of the facts if this server lacks it. It returns an error
// if no server that answers has the file.
func (k *fileKeeper) ensure(ctx context.Context, digest string) error {
	if k == nil {
		return nil
	}
	if _, ok := k.p.c.blobs.Has(digest); ok {
		return nil
	}
	size := int64(-1)
	k.p.c.view(func(f *facts.Facts) {
		if b := f.Blob(digest); b != nil {
			size = b.Size
		}
	})
	if size < 0 {
		return fault.New(fault.NotFound, "%s is not in the store", digest)
	}
	return k.fetch(ctx, fileSize{digest, size})
}

// fetch fetches a file from a server that has it, the leader first.
func (k *fileKeeper) fetch(ctx context.Context, f fileSize) error {
	servers, leader, err := k.p.c.replica.Servers()
	if err != nil {
		return err
	}
	slices.SortStableFunc(servers, func(a, b raft.Server) int { return boolInt(string(b.ID) == leader) - boolInt(string(a.ID) == leader) })
	why := fault.New(fault.NotFound, "no other coordinator is in the cluster")
	for _, s := range servers {
		if string(s.ID) == k.p.c.cfg.ID {
			continue
		}
		if why = k.fetchFrom(ctx, string(s.Address), f.digest, f.size); why == nil {
			k.p.c.log.Info("fetched a file that this coordinator lacked", "digest", f.digest, "from", s.ID)
			return nil
		}
	}
	return fault.New(fault.Unavailable, "no coordinator that answers has %s: %w", f.digest, why)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// fetchFrom fetches a file from the server at a peer address, unless this one has
// it.
func (k *fileKeeper) fetchFrom(ctx context.Context, address, digest string, size int64) error {
	if have, ok := k.p.c.blobs.Has(digest); ok && have == size {
		return nil
	}
	if err := k.p.c.disk.requireSpace(size); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, copyTime(size))
	defer cancel()
	stream, err := k.p.net.Client(address).GetFile(ctx, connect.NewRequest(&droverv1.GetBlobRequest{Digest: digest}))
	if err != nil {
		return wire.FromError(err)
	}
	r := &chunkReader{stream: stream}
	return errors.Join(k.p.c.blobs.Put(digest, size, r), stream.Close())
}

func copyTime(size int64) time.Duration {
	return copyLimit + time.Duration(size/copyRate)*time.Second
}

// chunkReader reads the bytes of a file that another coordinator sends.
type chunkReader struct {
	stream *connect.ServerStreamForClient[droverv1.BlobChunk]
	rest   []byte
}

// Read implements io.Reader.
func (r *chunkReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, wire.FromError(err)
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// replicate has the other servers fetch a file that this one has, and returns when a majority of
// the voters has it durably. The others continue to fetch. Unavailable: too few of them have it.
func (k *fileKeeper) replicate(ctx context.Context, f fileSize) error {
	if k == nil {
		return nil
	}
	servers, _, err := k.p.c.replica.Servers()
	if err != nil {
		return err
	}
	type answer struct {
		voter bool
		err   error
	}
	answers := make(chan answer, len(servers)) // none of the copies waits for this call
	voters, have, asked := 0, 0, 0
	for _, s := range servers {
		voter := s.Suffrage == raft.Voter
		voters += boolInt(voter)
		if string(s.ID) == k.p.c.cfg.ID {
			have += boolInt(voter)
			continue
		}
		asked++
		k.p.wg.Go(func() { answers <- answer{voter, k.push(string(s.Address), f)} })
	}
	var last error
	for ; asked > 0 && have < voters/2+1; asked-- {
		select {
		case a := <-answers:
			have += boolInt(a.voter && a.err == nil)
			last = cmpError(a.err, last)
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "gave up waiting for the other coordinators to store %s: %w", f.digest, ctx.Err())
		}
	}
	if have < voters/2+1 {
		return fault.New(fault.Unavailable, "%s is stored by %d of %d coordinators and %d must have it: %w", f.digest, have, voters, voters/2+1, last)
	}
	return nil
}

// cmpError returns the first error that is not nil.
func cmpError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// push has the server at a peer address fetch a file from this one. It continues after the upload's
// call has returned, until the coordinator stops.
func (k *fileKeeper) push(address string, f fileSize) error {
	ctx, cancel := context.WithTimeout(k.p.background, copyTime(f.size))
	defer cancel()
	_, err := k.p.net.Client(address).FetchFiles(ctx, connect.NewRequest(&droverv1.FetchFilesRequest{Address: k.p.c.cfg.PeerAddress,
		Files: []*droverv1.FileSize{{Digest: f.digest, Size: f.size}}}))
	return wire.FromError(err)
}

// removeUnknown removes files that this follower received for uploads that never became facts. A
// leader may have uploads in progress; it removes such files when it begins to lead.
func (k *fileKeeper) removeUnknown() {
	c := k.p.c
	now := c.now()
	k.mu.Lock()
	due := k.sweptAt.IsZero() || now.Sub(k.sweptAt) > sweepEvery
	if due {
		k.sweptAt = now
	}
	k.mu.Unlock()
	if !due || !c.gate.follows() {
		return
	}
	c.files.pruneTouched(now.Add(-c.cfg.blobMinAge))
	list, err := c.blobs.List()
	if err != nil {
		c.log.Error("cannot list the blob store", "err", err)
		return
	}
	for _, d := range list {
		at, ok := c.blobs.Stored(d)
		known := false
		c.view(func(f *facts.Facts) { known = f.Blob(d) != nil })
		if ok && !known && !c.files.touched(d) && now.Sub(at) > c.cfg.blobMinAge {
			c.files.remove(d)
		}
	}
}

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"connectrpc.com/connect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/coordinator/backup"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/history"
	"github.com/drover-run/drover/internal/fault"
	"github.com/drover-run/drover/internal/version"
)

// operatorService serves `drover operator`.
type operatorService struct {
	core   *core
	saving sync.Mutex // one archive at a time
}

var _ droverv1connect.OperatorServiceHandler = (*operatorService)(nil)

// SaveSnapshot streams an archive while the coordinator runs. The facts are of
// one log index; the history is copied after them, so that no ended job is
// missing, and the files that live jobs need cannot be collected meanwhile.
func (s *operatorService) SaveSnapshot(ctx context.Context, req *connect.Request[droverv1.SaveSnapshotRequest], stream *connect.ServerStream[droverv1.SaveSnapshotResponse]) error {
	if err := s.core.rights.needOperator(ctx, "save the cluster's state"); err != nil {
		return err
	}
	if !s.saving.TryLock() {
		return fault.New(fault.Exhausted, "another snapshot is being saved: try again when it is done")
	}
	defer s.saving.Unlock()
	all := req.Msg.GetAllFiles()
	m := s.describe(all)
	snapshot, term := s.core.replica.Copy()
	m.Index, m.Term = snapshot.Index(), term
	if !all {
		snapshot.ForgetUnneededFiles()
	}
	digests := snapshot.Digests()
	for _, d := range digests {
		s.core.files.touch(d) // it is not collected meanwhile
	}
	w, err := backup.NewWriter(&chunkWriter{ctx: ctx, stream: stream}, m)
	if err != nil {
		return err
	}
	if err := s.saveFacts(w, snapshot); err != nil {
		return err
	}
	if err := s.saveHistory(w); err != nil {
		return err
	}
	for _, d := range digests {
		if err := s.saveBlob(ctx, w, d); err != nil {
			return err
		}
	}
	return w.Close()
}

// describe returns the manifest's description of the cluster.
func (s *operatorService) describe(all bool) backup.Manifest {
	m := backup.Manifest{Program: version.Version, SavedAt: s.core.now().UTC(), AllFiles: all}
	s.core.view(func(f *facts.Facts) {
		m.Cluster, m.LastJob, m.Nodes = f.Cluster(), f.LastJob(), len(f.Nodes())
		m.Jobs, m.LiveJobs = f.JobCount()
	})
	return m
}

// saveFacts encodes the facts to a temporary file first, because an archive needs the size in
// advance.
func (s *operatorService) saveFacts(w *backup.Writer, snapshot *facts.Snapshot) error {
	f, err := os.CreateTemp(s.core.cfg.Dir, "saving-*")
	if err != nil {
		return fmt.Errorf("save the facts: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Remove(f.Name()); err != nil { // nothing is left of it, whatever happens
		return fmt.Errorf("save the facts: %w", err)
	}
	if err := snapshot.Encode(f); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return err
	}
	return w.Facts(size, f)
}

func (s *operatorService) saveHistory(w *backup.Writer) error {
	if err := s.core.ended.flush(); err != nil {
		return err
	}
	files, err := history.Files(filepath.Join(s.core.cfg.Dir, "history"))
	if err != nil {
		return err
	}
	for _, path := range files {
		if err := saveFile(path, func(size int64, r io.Reader) error { return w.History(filepath.Base(path), size, r) }); err != nil {
			return err
		}
	}
	return nil
}

// saveFile calls add with a file and its present size; the file may grow meanwhile.
func saveFile(path string, add func(int64, io.Reader) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = add(info.Size(), f)
	}
	return errors.Join(err, f.Close())
}

// saveBlob adds an uploaded file, or a note that no whole copy is here. It reads the whole file
// before adding it, because a damaged file would make the archive damaged.
func (s *operatorService) saveBlob(ctx context.Context, w *backup.Writer, digest string) error {
	if err := s.core.peers.keeper().ensure(ctx, digest); err != nil {
		s.core.log.Warn("cannot fetch a file for the archive", "digest", digest, "err", err)
	}
	err := s.checkBlob(ctx, digest)
	if errors.Is(err, fault.Unavailable) || errors.Is(err, fault.Corrupt) && s.core.files.replaceDamaged(ctx, digest, err) {
		err = s.checkBlob(ctx, digest) // it was stored again
	}
	if errors.Is(err, fault.NotFound) || errors.Is(err, fault.Corrupt) {
		s.core.log.Warn("a file is missing from the store, or damaged; the archive says so", "digest", digest, "err", err)
		w.MissingBlob(digest)
		return nil
	}
	if err != nil {
		return err
	}
	f, err := s.core.blobs.Open(digest)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil {
		err = w.Blob(strings.TrimPrefix(digest, "sha256:"), info.Size(), f)
	}
	return errors.Join(err, f.Close())
}

// checkBlob reads an uploaded file to its end; a damaged file is moved aside (see
// blobs.Store.Send).
func (s *operatorService) checkBlob(ctx context.Context, digest string) error {
	return s.core.blobs.Send(digest, 0, make([]byte, blobChunk), func([]byte) error { return ctx.Err() })
}

// chunkWriter sends the data written to it as messages of a stream.
type chunkWriter struct {
	ctx    context.Context
	stream *connect.ServerStream[droverv1.SaveSnapshotResponse]
}

// Write implements io.Writer.
func (w *chunkWriter) Write(p []byte) (int, error) {
	for n := 0; n < len(p); {
		if err := w.ctx.Err(); err != nil {
			return n, err
		}
		part := p[n:min(len(p), n+blobChunk)]
		if err := w.stream.Send(&droverv1.SaveSnapshotResponse{Data: part}); err != nil {
			return n, err
		}
		n += len(part)
	}
	return len(p), nil
}

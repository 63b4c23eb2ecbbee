package replica

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"
)

// unfinishedSuffix ends the names of the folders of unfinished snapshots.
const unfinishedSuffix = ".tmp"

// removeUnfinished removes the snapshots that a stop of the server cut short. raft never does, and
// each is as large as the facts.
func removeUnfinished(dir string) error {
	list, err := filepath.Glob(filepath.Join(dir, snapshotFolder, "*"+unfinishedSuffix))
	for _, path := range list {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// tidySnapshots leaves nothing of a snapshot that cannot be written. raft's own store leaves its
// folder, so that on a disk that is full each try takes more of what is left.
type tidySnapshots struct {
	raft.SnapshotStore
	dir string // of the replica
}

// Create implements raft.SnapshotStore.
func (s tidySnapshots) Create(version raft.SnapshotVersion, index, term uint64, c raft.Configuration, configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, c, configurationIndex, trans)
	if err != nil {
		return nil, err
	}
	return tidySink{sink, filepath.Join(s.dir, snapshotFolder, sink.ID()+unfinishedSuffix)}, nil
}

// tidySink removes its folder when the snapshot fails.
type tidySink struct {
	raft.SnapshotSink
	unfinished string
}

// Close implements io.Closer.
func (s tidySink) Close() error {
	err := s.SnapshotSink.Close()
	if err != nil {
		err = errors.Join(err, os.RemoveAll(s.unfinished))
	}
	return err
}

// Cancel implements raft.SnapshotSink.
func (s tidySink) Cancel() error {
	return errors.Join(s.SnapshotSink.Cancel(), os.RemoveAll(s.unfinished))
}

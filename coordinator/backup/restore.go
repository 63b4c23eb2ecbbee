package backup

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/drover-run/drover/coordinator/blobs"
	"github.com/drover-run/drover/coordinator/facts"
	"github.com/drover-run/drover/coordinator/replica"
	"github.com/drover-run/drover/internal/durable"
	"github.com/drover-run/drover/internal/fault"
)

// Target says where an archive is restored.
type Target struct {
	Dir string // the coordinator's folder: absent or empty
	ID  string // of the server; "c1" for a single one
	// SeenTerm is a term that nodes are known to have seen, 0 for unknown. The
	// restored log begins replica.TermJump above it and above the archive's.
	SeenTerm uint64
}

// Restore checks an archive and writes it to an empty folder as the state of a
// single server. The first entry of its log says that it was restored: job
// numbers continue after a gap (replica.JobGap), so that no number of a job that
// the archive does not know is given again, and the log's term is above every
// term that nodes can have seen, so that they follow it. Uploaded files that were
// damaged when the archive was saved are left out: MissingFiles of the Manifest
// names them, too. If it fails or is cut short, the folder is Unfinished.
func Restore(path string, t Target) (*Manifest, error) {
	if err := requireEmpty(t.Dir); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fault.New(fault.Invalid, "archive: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	m, err := read(f, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	x := newExtractor(f, m, t)
	for _, step := range x.steps() {
		if err := step(); err != nil {
			return nil, fmt.Errorf("%s: %w; %s holds a part of it: remove that before the next try", path, err, t.Dir)
		}
	}
	return m, nil
}

// Names of what a folder has only until it is restored. The facts are there from the first step to
// the last: they mark the folder as one on which no coordinator may start.
const (
	factsPart = "facts.restoring"
	logPart   = "raft.restoring"
)

// Unfinished returns an error, Corrupt, if a restore into dir has failed or was cut short: a
// coordinator would begin a new, empty cluster there, or one that does not know that it was
// restored.
func Unfinished(dir string) error {
	for _, name := range []string{factsPart, logPart} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); err == nil {
			return fault.New(fault.Corrupt, "%s is there: %s holds a part of an archive, of which a restore failed or was cut short. Remove the folder and restore the archive again (drover operator snapshot restore)", path, dir)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// requireEmpty returns an error unless dir is absent or an empty folder.
func requireEmpty(dir string) error {
	if err := Unfinished(dir); err != nil {
		return err
	}
	list, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(list) > 0:
		return fault.New(fault.Exists, "%s is not empty (it has %s): a restore never overwrites; move the folder away, or name another", dir, list[0].Name())
	}
	return nil
}

// extractor writes the members of an archive that was checked already.
type extractor struct {
	archive  io.ReadSeeker
	manifest *Manifest
	to       Target
	blobs    *blobs.Store
	facts    *facts.Facts
	rotten   map[string]bool // names of members that are left out
}

func newExtractor(archive io.ReadSeeker, m *Manifest, to Target) *extractor {
	x := &extractor{archive: archive, manifest: m, to: to, rotten: map[string]bool{}}
	for _, f := range m.rotten() { // archives of earlier versions have such
		x.rotten[f.Name] = true
		m.MissingFiles = append(m.MissingFiles, "sha256:"+strings.TrimPrefix(f.Name, "blobs/"))
	}
	return x
}

// steps returns the steps of a restore. The folder is Unfinished after each but the last.
func (x *extractor) steps() []func() error {
	return []func() error{x.begin, x.extractAll, x.seed, x.publish, x.finish}
}

func (x *extractor) path(name string) string { return filepath.Join(x.to.Dir, name) }

// begin marks the folder before anything else is in it.
func (x *extractor) begin() error {
	if err := os.MkdirAll(x.to.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(x.path(factsPart), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), durable.SyncFolder(x.to.Dir))
}

func (x *extractor) extractAll() (err error) {
	m := x.manifest
	if x.blobs, err = blobs.Open(x.path("blobs"), m.Size()+1, m.Size()+1); err != nil {
		return err
	}
	if _, err := x.archive.Seek(0, io.SeekStart); err != nil {
		return err
	}
	again, err := read(x.archive, x.extract)
	if err != nil {
		return err
	}
	if again.Index != m.Index || again.Cluster != m.Cluster {
		return fault.New(fault.Conflict, "it was changed while it was read")
	}
	return nil
}

// seed makes the log under a name that no coordinator opens.
func (x *extractor) seed() error {
	raw, err := os.Open(x.path(factsPart))
	if err != nil {
		return err
	}
	m := x.manifest
	err = replica.Seed(x.path(logPart), replica.SeedState{
		ID: x.to.ID, Index: m.Index, SnapshotTerm: m.Term, AboveTerm: max(m.Term, x.to.SeenTerm), Facts: raw,
		What: fmt.Sprintf("restored from an archive of %s, log index %d", m.SavedAt.UTC().Format("2006-01-02 15:04:05Z"), m.Index),
	})
	return errors.Join(err, raw.Close())
}

// publish gives the log its name when everything is durable.
func (x *extractor) publish() error {
	err := filepath.WalkDir(x.to.Dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return durable.SyncFolder(path)
	})
	if err != nil {
		return err
	}
	if err := os.Rename(x.path(logPart), x.path("raft")); err != nil {
		return err
	}
	return durable.SyncFolder(x.to.Dir)
}

func (x *extractor) finish() error {
	if err := os.Remove(x.path(factsPart)); err != nil {
		return err
	}
	return durable.SyncFolder(x.to.Dir)
}

func (x *extractor) extract(name string, size int64, r io.Reader) error {
	kind, base, _ := strings.Cut(name, "/")
	switch kind {
	case factsName:
		return x.extractFacts(r)
	case "history":
		return x.extractHistory(base, r)
	default:
		if x.rotten[name] {
			return nil
		}
		return x.blobs.Put("sha256:"+base, size, r)
	}
}

func (x *extractor) extractFacts(r io.Reader) error {
	f, err := os.OpenFile(x.path(factsPart), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, r); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		x.facts, err = facts.Restore(f)
	}
	return errors.Join(err, f.Close())
}

// extractHistory leaves out jobs that have not ended in the facts: they ended
// between the snapshot and the copy of the history, and will end again.
func (x *extractor) extractHistory(base string, r io.Reader) error {
	dir := x.path("history")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, base), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	in, out := bufio.NewReaderSize(r, 1<<20), bufio.NewWriterSize(f, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) { // a last line without its end was being written
			break
		}
		if err != nil {
			return errors.Join(err, f.Close())
		}
		if x.endedBefore(line) {
			if _, err := out.Write(line); err != nil {
				return errors.Join(err, f.Close())
			}
		}
	}
	return errors.Join(out.Flush(), f.Sync(), f.Close())
}

func (x *extractor) endedBefore(line []byte) bool {
	var j struct {
		Job uint64 `json:"job"`
	}
	if json.Unmarshal(line, &j) != nil || j.Job > x.facts.LastJob() {
		return false
	}
	known := x.facts.Job(j.Job)
	return known == nil || known.HasEnded()
}

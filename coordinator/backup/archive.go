// Package backup writes, checks and restores archives of a coordinator's state.
//
// An archive is a tar file compressed with gzip. Its members, in this order:
//
//	facts.jsonl              a snapshot of the facts (package facts)
//	history/history-N.jsonl  ended jobs (package history)
//	blobs/HEX                uploaded files, by the SHA-256 of their bytes
//	manifest.json            the Manifest: every other member with size and SHA-256
//
// The manifest comes last: an archive that was cut short has none. Nothing of an
// archive is used before all of it was read and every checksum was right.
//
// The caller of Write gives a consistent set: the files that the facts name. The
// caller of Restore gives an empty folder; no coordinator may run on it.
package backup

import (
	"archive/tar"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/drover-run/drover/internal/fault"
)

// version is the version of the archive; Read refuses a higher one.
const version = 1

// Names of members.
const (
	factsName    = "facts.jsonl"
	manifestName = "manifest.json"
	kind         = "coordinator snapshot"
)

const (
	maxManifest = 64 << 20 // bytes
	maxMembers  = 1 << 20
)

// Manifest describes an archive.
type Manifest struct {
	Drover       string    `json:"drover"` // "coordinator snapshot"
	Version      int       `json:"version"`
	Program      string    `json:"program"` // version of the program that wrote it
	Cluster      string    `json:"cluster"`
	Index        uint64    `json:"index"` // of the last log entry in it
	Term         uint64    `json:"term"`  // of the log when it was saved
	SavedAt      time.Time `json:"saved_at"`
	Jobs         int       `json:"jobs"`
	LiveJobs     int       `json:"live_jobs"`
	LastJob      uint64    `json:"last_job"`
	Nodes        int       `json:"nodes"`
	AllFiles     bool      `json:"all_files"`               // also files that no live job needs
	MissingFiles []string  `json:"missing_files,omitempty"` // digests that the facts name and of which the store had no whole copy
	Members      []Member  `json:"members"`
}

// Member is one file of an archive.
type Member struct {
	Name   string `json:"name"`
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"` // hexadecimal
}

// isRotten reports whether it is an uploaded file with other bytes than its name says: it was
// damaged when it was saved, and the manifest has the checksum of the damaged bytes.
func (m *Member) isRotten() bool {
	digest, isBlob := strings.CutPrefix(m.Name, "blobs/")
	return isBlob && digest != m.SHA256
}

// Size returns the bytes of all members, unpacked.
func (m *Manifest) Size() (n int64) {
	for _, f := range m.Members {
		n += f.Bytes
	}
	return n
}

var memberName = regexp.MustCompile(`^(facts\.jsonl|history/history-[0-9]{6,12}\.jsonl|blobs/[0-9a-f]{64})$`)

// Writer writes an archive. Its methods are called in the order Facts, History,
// Blob, Close; the caller closes what it gave to NewWriter.
type Writer struct {
	gz       *gzip.Writer
	tar      *tar.Writer
	manifest Manifest
}

// NewWriter begins an archive. It fills in what only the archive knows.
func NewWriter(w io.Writer, m Manifest) (*Writer, error) {
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return nil, err
	}
	m.Drover, m.Version, m.Members = kind, version, nil
	return &Writer{gz: gz, tar: tar.NewWriter(gz), manifest: m}, nil
}

// Facts adds the snapshot of the facts.
func (w *Writer) Facts(size int64, r io.Reader) error { return w.add(factsName, size, r) }

// History adds a file of the history by its base name.
func (w *Writer) History(name string, size int64, r io.Reader) error {
	return w.add("history/"+name, size, r)
}

// Blob adds an uploaded file by the hexadecimal part of its digest. Corrupt: its bytes have another
// digest; then the archive is of no use.
func (w *Writer) Blob(hexDigest string, size int64, r io.Reader) error {
	if err := w.add("blobs/"+hexDigest, size, r); err != nil {
		return err
	}
	if m := w.manifest.Members[len(w.manifest.Members)-1]; m.isRotten() {
		return fault.New(fault.Corrupt, "archive, %s: the file is damaged: its bytes have SHA-256 %s", m.Name, m.SHA256)
	}
	return nil
}

// MissingBlob records that the store does not have a file, or that its copy is damaged.
func (w *Writer) MissingBlob(digest string) {
	w.manifest.MissingFiles = append(w.manifest.MissingFiles, digest)
}

func (w *Writer) add(name string, size int64, r io.Reader) error {
	if !memberName.MatchString(name) {
		return fault.New(fault.Invalid, "%q is no name of a member", name)
	}
	if err := w.tar.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: size, Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("archive, %s: %w", name, err)
	}
	h := sha256.New()
	n, err := io.Copy(io.MultiWriter(w.tar, h), io.LimitReader(r, size))
	if err != nil {
		return fmt.Errorf("archive, %s: %w", name, err)
	}
	if n != size {
		return fault.New(fault.Corrupt, "archive, %s: it has %d bytes, expected were %d", name, n, size)
	}
	w.manifest.Members = append(w.manifest.Members, Member{name, size, hex.EncodeToString(h.Sum(nil))})
	return nil
}

// Close writes the manifest and ends the archive.
func (w *Writer) Close() error {
	b, err := json.MarshalIndent(&w.manifest, "", " ")
	if err != nil {
		return err
	}
	if err := w.tar.WriteHeader(&tar.Header{Name: manifestName, Mode: 0o600, Size: int64(len(b)), Format: tar.FormatPAX}); err != nil {
		return fmt.Errorf("archive, %s: %w", manifestName, err)
	}
	_, err = w.tar.Write(b)
	return errors.Join(err, w.tar.Close(), w.gz.Close())
}

// Read reads a whole archive and checks it: every member has the size and the
// checksum that the manifest says, every uploaded file the one of its name, and
// none is missing or added. It calls visit, if not nil, for each member but the
// manifest; what visit does not read is skipped. Corrupt: it is damaged or cut
// short; Unsupported: a newer program wrote it.
func Read(r io.Reader, visit func(name string, size int64, r io.Reader) error) (*Manifest, error) {
	m, err := read(r, visit)
	if err != nil {
		return nil, err
	}
	if bad := m.rotten(); len(bad) > 0 {
		return nil, fault.New(fault.Corrupt, "%d uploaded files in the archive were damaged when it was saved, for example %s, whose bytes have SHA-256 %s; a restore leaves them out", len(bad), bad[0].Name, bad[0].SHA256)
	}
	return m, nil
}

// rotten returns the uploaded files that were damaged when the archive was saved.
func (m *Manifest) rotten() (bad []Member) {
	for _, f := range m.Members {
		if f.isRotten() {
			bad = append(bad, f)
		}
	}
	return bad
}

// read is Read for an archive that may have rotten files.
func read(r io.Reader, visit func(name string, size int64, r io.Reader) error) (*Manifest, error) {
	gz, err := gzip.NewReader(r)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "it is no archive of Drover: %w", err)
	}
	t := tar.NewReader(gz)
	var got []Member
	for {
		head, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil, fault.New(fault.Corrupt, "the archive has no manifest: it was cut short, or is no archive of Drover")
		}
		if err != nil {
			return nil, fault.New(fault.Corrupt, "the archive is damaged after %d members: %w", len(got), err)
		}
		if head.Name == manifestName {
			m, err := readManifest(t, got)
			// gzip's own checksum stands at the end. Nothing that the manifest says is believed
			// before, its version neither.
			if _, end := io.Copy(io.Discard, gz); end != nil && (err == nil || errors.Is(err, fault.Unsupported)) {
				return nil, fault.New(fault.Corrupt, "the archive's end is damaged: %w", end)
			}
			return m, err
		}
		if !memberName.MatchString(head.Name) || head.Typeflag != tar.TypeReg || head.Size < 0 || len(got) >= maxMembers {
			return nil, fault.New(fault.Corrupt, "the archive has a member %.80q, which does not belong there", head.Name)
		}
		m, err := readMember(t, head, visit)
		if err != nil {
			return nil, err
		}
		got = append(got, m)
	}
}

func readMember(t io.Reader, head *tar.Header, visit func(string, int64, io.Reader) error) (Member, error) {
	h := &hashReader{r: t, h: sha256.New()}
	if visit != nil {
		if err := visit(head.Name, head.Size, h); err != nil {
			return Member{}, fmt.Errorf("%s: %w", head.Name, err)
		}
	}
	if _, err := io.Copy(io.Discard, h); err != nil {
		return Member{}, fmt.Errorf("%s: %w", head.Name, err)
	}
	return Member{head.Name, h.n, hex.EncodeToString(h.h.Sum(nil))}, nil
}

func readManifest(r io.Reader, got []Member) (*Manifest, error) {
	var m Manifest
	if err := json.NewDecoder(io.LimitReader(r, maxManifest)).Decode(&m); err != nil {
		return nil, fault.New(fault.Corrupt, "the archive's manifest cannot be read: %w", err)
	}
	switch {
	case m.Drover != kind:
		return nil, fault.New(fault.Corrupt, "it is no archive of a coordinator: its manifest says %.80q", m.Drover)
	case m.Version > version:
		return nil, fault.New(fault.Unsupported, "the archive has version %d, this program knows up to %d: upgrade it", m.Version, version)
	case len(m.Members) != len(got):
		return nil, fault.New(fault.Corrupt, "the archive has %d members and its manifest %d", len(got), len(m.Members))
	case len(got) == 0 || got[0].Name != factsName:
		return nil, fault.New(fault.Corrupt, "the archive does not begin with %s", factsName)
	}
	for i, want := range m.Members {
		if got[i] != want {
			return nil, fault.New(fault.Corrupt, "the archive is damaged: %s has %d bytes and SHA-256 %s, its manifest says %s, %d bytes, %s", got[i].Name, got[i].Bytes, got[i].SHA256, want.Name, want.Bytes, want.SHA256)
		}
	}
	return &m, nil
}

// hashReader hashes and counts what is read through it.
type hashReader struct {
	r io.Reader
	h hash.Hash
	n int64
}

func (h *hashReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.n += int64(n)
	_, _ = h.h.Write(p[:n]) // a hash does not fail
	if err != nil && !errors.Is(err, io.EOF) {
		err = fault.New(fault.Corrupt, "the archive is damaged: %w", err)
	}
	return n, err
}

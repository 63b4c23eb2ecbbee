package mapreduce

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// JournalVersion is the version of the journal; JournalSuffix is added to the
// name of a growing input to name its journal.
const (
	JournalVersion = 1
	JournalSuffix  = ".journal"

	maxJournalLine  = 64 << 10
	maxJournalBytes = 256 << 20
)

// The operations of a journal line.
const (
	opJournal = "journal"
	opPiece   = "piece"
	opSegment = "segment"
	opAlive   = "alive"
	opDone    = "done"
	opFail    = "fail"
)

// Segment is a partition file that is complete in the folder of a reducer.
type Segment struct {
	Map   int       `json:"map"`  // index of the map task: the order of equal keys
	File  string    `json:"file"` // name within ReduceInput.Dir, or absolute
	Codec Codec     `json:"codec"`
	Range PartRange `json:"range"` // Offset is within File
}

type journalLine struct {
	Op       string   `json:"op"`
	Version  int      `json:"version,omitempty"`
	Bytes    int64    `json:"bytes,omitempty"`
	Segments int      `json:"segments,omitempty"`
	Segment  *Segment `json:"segment,omitempty"`
	Reason   string   `json:"reason,omitempty"`
}

// Journal is what a journal file says so far.
type Journal struct {
	Ends     []int64   // input: end of each complete piece in the growing file
	Segments []Segment // reduce: in order of arrival
	Done     bool
	Total    int64  // input: length of the file, once Done
	Failed   string // reason; not empty means that nothing more will come
}

// JournalReader follows a journal file. The zero value with Path set is ready.
type JournalReader struct {
	Path string
	Journal

	file   *os.File
	rest   []byte // start of a line whose newline has not come
	read   int64
	headed bool
}

// Poll reads what was added since the last call and reports whether anything
// was. A file that does not exist yet is no error.
func (r *JournalReader) Poll() (changed bool, err error) {
	if r.file == nil {
		f, err := os.Open(r.Path)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		r.file = f
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := r.file.Read(buf)
		r.read += int64(n)
		if n > 0 {
			changed = true
			if e := r.add(buf[:n]); e != nil {
				return changed, fmt.Errorf("mapreduce: journal %s: %w", r.Path, e)
			}
		}
		if err == io.EOF {
			return changed, nil
		}
		if err != nil {
			return changed, err
		}
	}
}

// Close closes the file.
func (r *JournalReader) Close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}

func (r *JournalReader) add(p []byte) error {
	if r.read > maxJournalBytes {
		return fmt.Errorf("larger than %d bytes", maxJournalBytes)
	}
	r.rest = append(r.rest, p...)
	for {
		i := bytes.IndexByte(r.rest, '\n')
		if i > maxJournalLine || (i < 0 && len(r.rest) > maxJournalLine) {
			return fmt.Errorf("a line is longer than %d bytes", maxJournalLine)
		}
		if i < 0 {
			return nil
		}
		if err := r.line(r.rest[:i]); err != nil {
			return err
		}
		r.rest = r.rest[i+1:]
	}
}

func (r *JournalReader) line(b []byte) error {
	var l journalLine
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("line %.80q: %w", b, err)
	}
	if r.headed == (l.Op == opJournal) {
		return fmt.Errorf("line %.80q: the first line, and only it, must name the version", b)
	}
	if r.Done && l.Op != opDone {
		return fmt.Errorf("line %.80q after done", b)
	}
	switch l.Op {
	case opJournal:
		if l.Version != JournalVersion {
			return fmt.Errorf("version %d, this program knows %d", l.Version, JournalVersion)
		}
		r.headed = true
	case opPiece:
		if n := len(r.Ends); l.Bytes < 0 || (n > 0 && l.Bytes < r.Ends[n-1]) {
			return fmt.Errorf("line %.80q: pieces must follow each other", b)
		}
		r.Ends = append(r.Ends, l.Bytes)
	case opSegment:
		if l.Segment == nil {
			return fmt.Errorf("line %.80q: segment is missing", b)
		}
		r.Segments = append(r.Segments, *l.Segment)
	case opAlive:
	case opDone:
		r.Done, r.Total = true, l.Bytes
	case opFail:
		r.Failed = l.Reason
		if r.Failed == "" {
			r.Failed = "no reason given"
		}
	default:
		return fmt.Errorf("line %.80q: unknown operation", b)
	}
	return nil
}

// journalWriter appends lines; each is one write.
type journalWriter struct{ f *os.File }

// openJournal opens or creates a journal for appending and returns what it
// already says. A last line without newline, from a writer that died, is cut.
func openJournal(path string) (*journalWriter, *Journal, error) {
	r := JournalReader{Path: path}
	_, err := r.Poll()
	r.Close()
	if err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if err := f.Truncate(r.read - int64(len(r.rest))); err != nil {
		f.Close()
		return nil, nil, err
	}
	w := &journalWriter{f}
	if !r.headed {
		if err := w.put(journalLine{Op: opJournal, Version: JournalVersion}); err != nil {
			f.Close()
			return nil, nil, err
		}
	}
	return w, &r.Journal, nil
}

func (w *journalWriter) put(l journalLine) error {
	if len(l.Reason) > maxJournalLine/8 {
		l.Reason = l.Reason[:maxJournalLine/8]
	}
	b, err := json.Marshal(l)
	if err != nil {
		return err
	}
	_, err = w.f.Write(append(b, '\n'))
	return err
}

// GrowingWriter is the helper's end of a growing input. Not for concurrent use.
type GrowingWriter struct {
	data    *os.File
	journal *journalWriter
	size    int64
	state   Journal
}

// NewGrowingWriter opens or creates the growing file at path and its journal.
// After a crash of the helper it goes on where the files end: Size and Pieces
// say where that is.
func NewGrowingWriter(path string) (*GrowingWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	j, state, err := openJournal(path + JournalSuffix)
	if err != nil {
		f.Close()
		return nil, err
	}
	return &GrowingWriter{data: f, journal: j, size: st.Size(), state: *state}, nil
}

// Size is the length of the growing file in bytes.
func (w *GrowingWriter) Size() int64 { return w.size }

// Pieces is how many pieces are complete.
func (w *GrowingWriter) Pieces() int { return len(w.state.Ends) }

// pieceSize is how much of the piece that is not complete is in the file.
func (w *GrowingWriter) pieceSize() int64 {
	if n := len(w.state.Ends); n > 0 {
		return w.size - w.state.Ends[n-1]
	}
	return w.size
}

// Write appends bytes of the current piece.
func (w *GrowingWriter) Write(p []byte) (int, error) {
	n, err := w.data.Write(p)
	w.size += int64(n)
	return n, err
}

// EndPiece says that the piece being written is complete.
func (w *GrowingWriter) EndPiece() error {
	w.state.Ends = append(w.state.Ends, w.size)
	return w.journal.put(journalLine{Op: opPiece, Bytes: w.size})
}

// Done says that nothing follows.
func (w *GrowingWriter) Done() error {
	if w.state.Done {
		return nil
	}
	w.state.Done = true
	return w.journal.put(journalLine{Op: opDone, Bytes: w.size})
}

// Alive tells a harness that waits that somebody is still at work, so that it
// does not count this time as a stall.
func (w *GrowingWriter) Alive() error { return w.journal.put(journalLine{Op: opAlive}) }

// Fail says that the input will not come, and why; the harness ends with
// ClassInput and this reason.
func (w *GrowingWriter) Fail(reason string) error {
	return w.journal.put(journalLine{Op: opFail, Reason: reason})
}

// Close closes both files; it says nothing to the harness.
func (w *GrowingWriter) Close() error {
	return errors.Join(w.data.Close(), w.journal.f.Close())
}

// SegmentWriter is the helper's end of a reducer's folder. Not for concurrent use.
type SegmentWriter struct {
	journal *journalWriter
	have    map[int]bool
}

// NewSegmentWriter opens or creates the journal of a reducer's folder. After a
// crash of the helper it knows which segments were announced.
func NewSegmentWriter(journal string) (*SegmentWriter, error) {
	j, state, err := openJournal(journal)
	if err != nil {
		return nil, err
	}
	w := &SegmentWriter{journal: j, have: map[int]bool{}}
	for _, s := range state.Segments {
		w.have[s.Map] = true
	}
	return w, nil
}

// Has reports whether the segment of a map task was announced.
func (w *SegmentWriter) Has(mapIndex int) bool { return w.have[mapIndex] }

// Add announces a segment whose file is complete and verified. A second
// announcement for one map task is ignored.
func (w *SegmentWriter) Add(s Segment) error {
	if w.have[s.Map] {
		return nil
	}
	w.have[s.Map] = true
	return w.journal.put(journalLine{Op: opSegment, Segment: &s})
}

// Done says that all segments are there.
func (w *SegmentWriter) Done() error {
	return w.journal.put(journalLine{Op: opDone, Segments: len(w.have)})
}

// Alive tells a harness that waits that somebody is still at work: that maps
// are still running, say. Call it a few times in each stall limit.
func (w *SegmentWriter) Alive() error { return w.journal.put(journalLine{Op: opAlive}) }

// Fail says that a segment will not come, and why.
func (w *SegmentWriter) Fail(reason string) error {
	return w.journal.put(journalLine{Op: opFail, Reason: reason})
}

// Close closes the journal.
func (w *SegmentWriter) Close() error { return w.journal.f.Close() }

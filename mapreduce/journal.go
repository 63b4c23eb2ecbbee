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

// journalVersion is the version of the journal; JournalSuffix is added to the
// name of a growing input to name its journal.
const (
	journalVersion = 1
	JournalSuffix  = ".journal"

	maxJournalLine  = 64 << 10
	maxJournalBytes = 256 << 20
)

// The operations of a journal line.
const (
	opJournal = "journal"
	opPiece   = "piece"
	opSegment = "segment"
	opDone    = "done"
	opFail    = "fail"
)

// Segment is a partition of one map output, stored as a complete file in a reducer's folder.
type Segment struct {
	Map   int            `json:"map"`  // index of the map task; decides the order of equal keys
	File  string         `json:"file"` // name within ReduceInput.Dir, or absolute
	Codec Codec          `json:"codec"`
	Range PartitionRange `json:"range"` // Offset is within File
}

type journalLine struct {
	Op       string   `json:"op"`
	Version  int      `json:"version,omitempty"`
	Bytes    int64    `json:"bytes,omitempty"`
	Segments int      `json:"segments,omitempty"`
	Segment  *Segment `json:"segment,omitempty"`
	Reason   string   `json:"reason,omitempty"`
}

// Journal is the content of a journal file so far.
type Journal struct {
	PieceEnds  []int64   // input: end offset of each complete piece in the growing file
	Segments   []Segment // reduce: in order of arrival
	Done       bool
	TotalBytes int64  // input: length of the file, once Done
	FailReason string // not empty: the helper gave up, nothing more will come
}

// JournalReader follows a journal file. The zero value with Path set is ready.
type JournalReader struct {
	Path string
	Journal

	file        *os.File
	buf         []byte
	partialLine []byte // start of a line whose newline has not come
	bytesRead   int64
	sawHeader   bool
}

// Poll reads what was added since the last call and reports whether there was anything new. A file
// that does not exist yet is no error.
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
	if r.buf == nil {
		r.buf = make([]byte, 32<<10)
	}
	for {
		n, err := r.file.Read(r.buf)
		r.bytesRead += int64(n)
		if n > 0 {
			changed = true
			if e := r.parse(r.buf[:n]); e != nil {
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

func (r *JournalReader) parse(p []byte) error {
	if r.bytesRead > maxJournalBytes {
		return fmt.Errorf("larger than %d bytes", maxJournalBytes)
	}
	r.partialLine = append(r.partialLine, p...)
	for {
		i := bytes.IndexByte(r.partialLine, '\n')
		if i > maxJournalLine || (i < 0 && len(r.partialLine) > maxJournalLine) {
			return fmt.Errorf("a line is longer than %d bytes", maxJournalLine)
		}
		if i < 0 {
			return nil
		}
		if err := r.applyLine(r.partialLine[:i]); err != nil {
			return err
		}
		r.partialLine = r.partialLine[i+1:]
	}
}

func (r *JournalReader) applyLine(b []byte) error {
	var l journalLine
	if err := json.Unmarshal(b, &l); err != nil {
		return fmt.Errorf("line %.80q: %w", b, err)
	}
	if r.sawHeader == (l.Op == opJournal) {
		return fmt.Errorf("line %.80q: the first line, and only it, must name the version", b)
	}
	if r.Done && l.Op != opDone {
		return fmt.Errorf("line %.80q after done", b)
	}
	switch l.Op {
	case opJournal:
		if l.Version != journalVersion {
			return fmt.Errorf("version %d, this program knows %d", l.Version, journalVersion)
		}
		r.sawHeader = true
	case opPiece:
		if n := len(r.PieceEnds); l.Bytes < 0 || (n > 0 && l.Bytes < r.PieceEnds[n-1]) {
			return fmt.Errorf("line %.80q: pieces must follow each other", b)
		}
		r.PieceEnds = append(r.PieceEnds, l.Bytes)
	case opSegment:
		if l.Segment == nil {
			return fmt.Errorf("line %.80q: segment is missing", b)
		}
		r.Segments = append(r.Segments, *l.Segment)
	case opDone:
		r.Done, r.TotalBytes = true, l.Bytes
	case opFail:
		r.FailReason = l.Reason
		if r.FailReason == "" {
			r.FailReason = "no reason given"
		}
	default:
		return fmt.Errorf("line %.80q: unknown operation", b)
	}
	return nil
}

// journalWriter appends lines; each is one write.
type journalWriter struct{ f *os.File }

// openJournal opens or creates a journal for appending and returns its content.
// An unfinished last line, left by a writer that died, is truncated.
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
	if err := f.Truncate(r.bytesRead - int64(len(r.partialLine))); err != nil {
		f.Close()
		return nil, nil, err
	}
	w := &journalWriter{f}
	if !r.sawHeader {
		if err := w.appendLine(journalLine{Op: opJournal, Version: journalVersion}); err != nil {
			f.Close()
			return nil, nil, err
		}
	}
	return w, &r.Journal, nil
}

func (w *journalWriter) appendLine(l journalLine) error {
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

// GrowingWriter is the helper's side of a growing input. It is not safe for
// concurrent use.
type GrowingWriter struct {
	data    *os.File
	journal *journalWriter
	size    int64
	state   Journal
}

// NewGrowingWriter opens or creates the growing file at path and its journal. After a crash of the
// helper it resumes at the end of the files, which Size and pieceCount return.
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

// Size returns the length of the growing file in bytes.
func (w *GrowingWriter) Size() int64 { return w.size }

// pieceCount returns the number of complete pieces.
func (w *GrowingWriter) pieceCount() int { return len(w.state.PieceEnds) }

// bytesInPiece returns how many bytes of the incomplete piece the file holds.
func (w *GrowingWriter) bytesInPiece() int64 {
	if n := len(w.state.PieceEnds); n > 0 {
		return w.size - w.state.PieceEnds[n-1]
	}
	return w.size
}

// Write appends bytes of the current piece.
func (w *GrowingWriter) Write(p []byte) (int, error) {
	n, err := w.data.Write(p)
	w.size += int64(n)
	return n, err
}

// EndPiece records that the current piece is complete.
func (w *GrowingWriter) EndPiece() error {
	w.state.PieceEnds = append(w.state.PieceEnds, w.size)
	return w.journal.appendLine(journalLine{Op: opPiece, Bytes: w.size})
}

// Done records that the input is complete.
func (w *GrowingWriter) Done() error {
	if w.state.Done {
		return nil
	}
	w.state.Done = true
	return w.journal.appendLine(journalLine{Op: opDone, Bytes: w.size})
}

// Fail records that the input will not come. The harness then ends with
// ClassInput and this reason.
func (w *GrowingWriter) Fail(reason string) error {
	return w.journal.appendLine(journalLine{Op: opFail, Reason: reason})
}

// Close closes both files. It records nothing in the journal.
func (w *GrowingWriter) Close() error {
	return errors.Join(w.data.Close(), w.journal.f.Close())
}

// SegmentWriter is the helper's side of a reducer's folder. It is not safe for
// concurrent use.
type SegmentWriter struct {
	journal *journalWriter
	have    map[int]bool
}

// NewSegmentWriter opens or creates the journal of a reducer's folder. After a
// crash of the helper it knows which segments have been announced.
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

// Has reports whether the segment of a map task has been announced.
func (w *SegmentWriter) Has(mapIndex int) bool { return w.have[mapIndex] }

// Count returns how many segments have been announced.
func (w *SegmentWriter) Count() int { return len(w.have) }

// Add announces a segment whose file is complete and verified. A second
// announcement for one map task is ignored.
func (w *SegmentWriter) Add(s Segment) error {
	if w.have[s.Map] {
		return nil
	}
	w.have[s.Map] = true
	return w.journal.appendLine(journalLine{Op: opSegment, Segment: &s})
}

// Done records that all segments are present.
func (w *SegmentWriter) Done() error {
	return w.journal.appendLine(journalLine{Op: opDone, Segments: len(w.have)})
}

// Fail records that a segment will not come, and why.
func (w *SegmentWriter) Fail(reason string) error {
	return w.journal.appendLine(journalLine{Op: opFail, Reason: reason})
}

// Close closes the journal.
func (w *SegmentWriter) Close() error { return w.journal.f.Close() }

package sortmerge

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/drover-run/drover/mapreduce"
)

// Segment is a sorted file of one or more partitions.
type Segment struct {
	Path  string
	Index mapreduce.Index
	temp  bool // created by this package; removed once it is merged
}

func (r *Segment) bytes() (n int64) {
	for _, p := range r.Index.Parts {
		n += p.Length
	}
	return n
}

// ExternalMerge configures and counts the merging of segments.
type ExternalMerge struct {
	Dir        string // for intermediate segments
	NamePrefix string // start of their file names
	FanIn      int    // segments open at once, at least 2
	Memory     int64  // bytes for read and write buffers, and for records that are larger than a buffer

	Passes  int   // result: number of intermediate merges
	Records int64 // result: records written by them
	Bytes   int64

	created int
}

// need is what a merge holds of one segment.
type need struct {
	record  int64 // bytes of its largest record, 0 if that is unknown
	decoder int64 // bytes of its decoder, 0 if it is not compressed
}

// neededBytes returns the memory of a merge of segments with these needs. A reader holds its
// decoder and a buffer, or a whole record if that is larger; the writer has at most two buffers.
func neededBytes(needs []need, buffer int64) int64 {
	n := 2 * buffer
	for _, s := range needs {
		n += max(buffer, s.record) + s.decoder
	}
	return n
}

// bufferBytes returns the size of each buffer when segments are merged.
func (g *ExternalMerge) bufferBytes(segments []Segment) int {
	needs := needsOf(segments)
	b := min(max(g.Memory/int64(len(segments)+2), minBufferBytes), maxBufferBytes)
	for b > minBufferBytes && neededBytes(needs, b) > g.Memory {
		b = max(b/2, minBufferBytes)
	}
	return int(b)
}

// fits reports whether segments with these needs may be open at once. Two always may, because
// there is no other way to merge them. Records that fit into the smallest buffer never count;
// decoders always do.
func (g *ExternalMerge) fits(needs []need) bool {
	n := int64(len(needs))
	return n <= 2 || n <= int64(g.FanIn) && neededBytes(needs, minBufferBytes) <= max(g.Memory, (n+2)*minBufferBytes)
}

// MergeToFanIn merges adjacent segments until at most FanIn are left, and so few
// that their largest records and decoders fit into Memory. Each merge takes the adjacent
// segments with the fewest bytes, no more of them than needed. Only adjacent
// segments are merged, so that equal keys keep their order.
func (g *ExternalMerge) MergeToFanIn(segments []Segment) ([]Segment, error) {
	for {
		needs := needsOf(segments)
		if g.fits(needs) {
			return segments, nil
		}
		at, width := g.nextMerge(segments, needs)
		g.created++
		path := filepath.Join(g.Dir, fmt.Sprintf("%s-%d.segment", g.NamePrefix, g.created))
		merged, err := g.mergeToFile(segments[at:at+width], path, mapreduce.CodecNone)
		if err != nil {
			return nil, err
		}
		g.Passes++
		for _, p := range merged.Index.Parts {
			g.Records += p.Records
			g.Bytes += p.RawLength
		}
		segments = slices.Replace(slices.Clone(segments), at, at+width, *merged)
	}
}

// needsOf returns what a merge holds of each segment.
func needsOf(segments []Segment) []need {
	needs := make([]need, len(segments))
	for i := range segments {
		for _, p := range segments[i].Index.Parts {
			needs[i].record = max(needs[i].record, int64(p.Largest))
		}
		if segments[i].Index.Codec == mapreduce.CodecZstd {
			needs[i].decoder = decoderBytes
		}
	}
	return needs
}

// mergedNeed returns the need of the segment, not compressed, into which these are merged.
func mergedNeed(needs []need) (merged need) {
	for _, s := range needs {
		merged.record = max(merged.record, s.record)
	}
	return merged
}

// nextMerge returns which segments to merge next: as few as bring their number down to FanIn, or
// make them fit into Memory. If no merge is enough, or the segments of such a merge
// do not fit into Memory themselves, it returns as many segments as fit.
func (g *ExternalMerge) nextMerge(segments []Segment, needs []need) (at, width int) {
	width = min(g.FanIn, len(segments)-g.FanIn+1)
	if len(segments) <= g.FanIn {
		for width = 2; width < len(segments); width++ {
			if at := smallestWindow(segments, width, func(at int) bool {
				end := at + width
				rest := slices.Concat(needs[:at], []need{mergedNeed(needs[at:end])}, needs[end:])
				return g.fits(needs[at:end]) && g.fits(rest)
			}); at >= 0 {
				return at, width
			}
		}
		width = len(segments) - 1
	}
	for ; ; width-- { // two always fit
		if at := smallestWindow(segments, width, func(at int) bool { return g.fits(needs[at : at+width]) }); at >= 0 {
			return at, width
		}
	}
}

// smallestWindow returns the start of the window of width adjacent segments with the fewest bytes
// among the windows that mayMerge accepts; -1 if there is none.
func smallestWindow(segments []Segment, width int, mayMerge func(at int) bool) int {
	best, least, sum := -1, int64(0), int64(0)
	for end := range segments {
		sum += segments[end].bytes()
		at := end - width + 1
		if at < 0 {
			continue
		}
		if (best < 0 || sum < least) && mayMerge(at) {
			best, least = at, sum
		}
		sum -= segments[at].bytes()
	}
	return best
}

// mergeToFile merges at most FanIn segments into one file and removes the
// temporary ones among them.
func (g *ExternalMerge) mergeToFile(segments []Segment, path string, codec mapreduce.Codec) (*Segment, error) {
	w, err := createSegment(path, codec, g.bufferBytes(segments))
	if err != nil {
		return nil, err
	}
	if err := g.mergeInto(w, segments); err != nil {
		w.abort()
		return nil, err
	}
	index, err := w.close()
	if err != nil {
		return nil, err
	}
	for _, r := range segments {
		if r.temp {
			os.Remove(r.Path)
		}
	}
	return &Segment{Path: path, Index: *index, temp: true}, nil
}

func (g *ExternalMerge) mergeInto(w *segmentWriter, segments []Segment) error {
	c, err := g.Open(segments)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		m, err := c.nextPart()
		if m == nil || err != nil {
			return err
		}
		ok, err := m.next()
		for ; ok; ok, err = m.next() {
			if err := w.addRecord(m.current().encoded); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if err := w.endPart(); err != nil {
			return err
		}
	}
}

// Cursor reads several segments as one, partition by partition.
type Cursor struct {
	segments    []Segment
	files       []*os.File
	bufferBytes int
	parts       int
	part        int
	merger      *merger
	decoders    decoders
}

// Open opens at most FanIn segments. The caller closes the cursor.
func (g *ExternalMerge) Open(segments []Segment) (*Cursor, error) {
	c := &Cursor{segments: segments, bufferBytes: g.bufferBytes(segments), merger: &merger{}}
	for _, r := range segments {
		f, err := os.Open(r.Path)
		if err != nil {
			c.Close()
			return nil, err
		}
		c.files = append(c.files, f)
		c.parts = max(c.parts, len(r.Index.Parts))
	}
	return c, nil
}

// nextPart advances to the next partition and returns its Merger, which must be
// read to its end. It returns nil after the last partition.
func (c *Cursor) nextPart() (*merger, error) {
	c.merger.close()
	c.merger = &merger{}
	if c.part == c.parts {
		return nil, nil
	}
	readers := make([]*Reader, 0, len(c.segments))
	for i, r := range c.segments {
		rd, err := newReader(r.Path, c.files[i], r.Index.Codec, r.Index.Parts[c.part], c.bufferBytes, &c.decoders)
		if err != nil {
			for _, rd := range readers {
				rd.close()
			}
			return nil, err
		}
		readers = append(readers, rd)
	}
	c.part++
	c.merger = newMerger(readers)
	return c.merger, nil
}

// Next reads all partitions as one sequence. It returns the next record, valid until the next
// call, or nil at the end. It must not be mixed with nextPart.
func (c *Cursor) Next() (*Record, error) {
	for {
		ok, err := c.merger.next()
		if ok {
			return c.merger.record(), nil
		}
		if err != nil {
			return nil, err
		}
		m, err := c.nextPart()
		if m == nil || err != nil {
			return nil, err
		}
	}
}

// Close closes the readers and files.
func (c *Cursor) Close() {
	c.merger.close()
	c.decoders.close()
	for _, f := range c.files {
		f.Close()
	}
}

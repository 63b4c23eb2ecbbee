package sortmerge

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/drover-run/drover/mapreduce"
)

// Run is a sorted file of one or more partitions.
type Run struct {
	Path  string
	Index mapreduce.Index
	Temp  bool // ours: removed once it is merged
}

func (r *Run) bytes() (n int64) {
	for _, p := range r.Index.Parts {
		n += p.Length
	}
	return n
}

// Merging says how runs are merged.
type Merging struct {
	Dir    string // for intermediate runs
	Name   string // starts their names
	FanIn  int    // runs open at once, at least 2
	Memory int64  // bytes for read and write buffers

	Passes  int   // counted: intermediate merges
	Records int64 // counted: records written by them
	Bytes   int64

	made int
}

// buffer is the size of each of n buffers.
func (g *Merging) buffer(n int) int {
	return int(min(max(g.Memory/int64(n+2), minBuffer), maxBuffer))
}

// Narrow merges neighbouring runs until at most FanIn are left. Each time it
// takes the window of neighbours with the fewest bytes, no wider than needed
// (only neighbours, so that equal keys keep their order).
func (g *Merging) Narrow(runs []Run) ([]Run, error) {
	for len(runs) > g.FanIn {
		width := min(g.FanIn, len(runs)-g.FanIn+1)
		at := lightest(runs, width)
		g.made++
		path := filepath.Join(g.Dir, fmt.Sprintf("%s-%d.run", g.Name, g.made))
		merged, err := g.mergeTo(runs[at:at+width], path, mapreduce.CodecNone)
		if err != nil {
			return nil, err
		}
		g.Passes++
		for _, p := range merged.Index.Parts {
			g.Records += p.Records
			g.Bytes += p.Raw
		}
		runs = slices.Replace(slices.Clone(runs), at, at+width, *merged)
	}
	return runs, nil
}

func lightest(runs []Run, width int) int {
	var sum int64
	for i := range width {
		sum += runs[i].bytes()
	}
	best, least := 0, sum
	for i := width; i < len(runs); i++ {
		sum += runs[i].bytes() - runs[i-width].bytes()
		if sum < least {
			best, least = i-width+1, sum
		}
	}
	return best
}

// mergeTo merges at most FanIn runs into one file and removes the temporary
// ones among them.
func (g *Merging) mergeTo(runs []Run, path string, codec mapreduce.Codec) (*Run, error) {
	w, err := createRun(path, codec, g.buffer(len(runs)))
	if err != nil {
		return nil, err
	}
	if err := g.copyTo(w, runs); err != nil {
		w.abort()
		return nil, err
	}
	index, err := w.close()
	if err != nil {
		return nil, err
	}
	for _, r := range runs {
		if r.Temp {
			os.Remove(r.Path)
		}
	}
	return &Run{Path: path, Index: *index, Temp: true}, nil
}

func (g *Merging) copyTo(w *writer, runs []Run) error {
	c, err := g.Open(runs)
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		m, err := c.NextPart()
		if m == nil || err != nil {
			return err
		}
		ok, err := m.Next()
		for ; ok; ok, err = m.Next() {
			if err := w.add(m.current().encoded); err != nil {
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

// Cursor reads several runs as one, partition by partition.
type Cursor struct {
	runs   []Run
	files  []*os.File
	buffer int
	parts  int
	part   int
	merger *Merger
}

// Open opens runs, at most FanIn. The caller closes the cursor.
func (g *Merging) Open(runs []Run) (*Cursor, error) {
	c := &Cursor{runs: runs, buffer: g.buffer(len(runs)), merger: &Merger{}}
	for _, r := range runs {
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

// NextPart moves to the next partition; its records come from the Merger,
// which must be read to its end. It returns nil after the last.
func (c *Cursor) NextPart() (*Merger, error) {
	c.merger.Close()
	c.merger = &Merger{}
	if c.part == c.parts {
		return nil, nil
	}
	readers := make([]*Reader, 0, len(c.runs))
	for i, r := range c.runs {
		rd, err := NewReader(r.Path, c.files[i], r.Index.Codec, r.Index.Parts[c.part], c.buffer)
		if err != nil {
			return nil, err
		}
		readers = append(readers, rd)
	}
	c.part++
	c.merger = NewMerger(readers)
	return c.merger, nil
}

// Next reads all partitions as one row. Do not mix it with NextPart.
func (c *Cursor) Next() (Record, bool, error) {
	for {
		ok, err := c.merger.Next()
		if ok || err != nil {
			if !ok {
				return Record{}, false, err
			}
			return c.merger.Record(), true, nil
		}
		m, err := c.NextPart()
		if m == nil || err != nil {
			return Record{}, false, err
		}
	}
}

// Close closes readers and files.
func (c *Cursor) Close() {
	c.merger.Close()
	for _, f := range c.files {
		f.Close()
	}
}

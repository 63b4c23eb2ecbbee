package sortmerge

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/mapreduce"
)

// Combiner reduces a sorted sequence of records before it is written. next returns the records in
// order of partition and key, each valid until the next call, and nil at the end. emit copies the
// records that replace them into partitions, in any order and with any key.
type Combiner interface {
	Combine(next func() (*Record, error), emit func(part int, r Record) error) error
}

// Options configures a Collector.
type Options struct {
	Parts    int    // partitions, 1 to mapreduce.MaxReduces
	Memory   int64  // bytes in memory for records and their index
	Dir      string // existing folder for segments
	FanIn    int
	Combiner Combiner // nil: none; otherwise a quarter of Memory is reserved for its output
	// Precombined says that the records have been combined already, e.g. by a
	// table of counts: spills are written as they are, and the combiner runs only
	// when several segments are merged.
	Precombined bool
}

// Stats counts the work of a Collector.
type Stats struct {
	Added, CombineIn, CombineOut, Spilled mapreduce.Flow
	Spills, MergePasses                   int
}

// minCombineSegments is the number of segments from which running the combiner
// again during the merge pays off (Hadoop's min.num.spills.for.combine).
const minCombineSegments = 3

// entryBytes is the memory of one index entry and its slot in the scratch space.
const entryBytes = 32

// Collector takes records in any order and writes one sorted map output.
type Collector struct {
	opt         Options
	prefix      string // start of segment file names
	arena       []byte
	index       []indexEntry
	scratch     []indexEntry
	combinedOut *Collector // receives the combiner's output
	segments    []Segment
	created     int
	stats       Stats
	touched     byte // result of the reads in touch, so that the compiler cannot remove them
}

// NewCollector allocates the memory; pages are touched only as records come.
func NewCollector(opt Options) *Collector {
	c := &Collector{opt: opt, prefix: "spill"}
	memory := opt.Memory
	if opt.Combiner != nil {
		c.opt.Memory = memory - memory/4
		sub := opt
		sub.Combiner, sub.Memory = nil, memory/4
		c.combinedOut = NewCollector(sub)
		c.combinedOut.prefix = "combined"
	}
	c.arena = make([]byte, 0, c.opt.Memory)
	n := c.opt.Memory/(entryBytes+2) + 1
	c.index, c.scratch = make([]indexEntry, 0, n), make([]indexEntry, n)
	return c
}

// Stats returns the counts so far.
func (c *Collector) Stats() Stats { return c.stats }

// Add copies a record into a partition. O(len) plus the amortised sorting cost.
func (c *Collector) Add(part int, r Record) error {
	var head [maxHeaderBytes]byte
	h := putHeader(head[:], r)
	size := h + len(r.Key) + len(r.Value)
	if int64(len(c.arena)+size+(len(c.index)+1)*entryBytes) > c.opt.Memory && len(c.index) > 0 {
		if err := c.spill(); err != nil {
			return err
		}
	}
	if size > math.MaxUint32/2 {
		return fmt.Errorf("a record of %d bytes is too large", size)
	}
	off := len(c.arena)
	c.arena = append(append(append(c.arena, head[:h]...), r.Key...), r.Value...)
	c.index = append(c.index, indexEntry{prefixAt(c.arena[:cap(c.arena)], off+h, len(r.Key)), uint32(off), uint16(part), uint16(min(len(r.Key), longKeyLen))})
	c.stats.Added.Records++
	c.stats.Added.Bytes += int64(len(r.Key) + len(r.Value))
	return nil
}

// sortRecords sorts the buffered records and returns an iterator over them.
func (c *Collector) sortRecords() func() (part int, encoded []byte, ok bool) {
	(&radixSorter{c.arena, c.scratch}).sort(c.index, c.opt.Parts)
	i, touched := 0, 0
	return func() (int, []byte, bool) {
		if i == len(c.index) {
			return 0, nil, false
		}
		if i == touched {
			touched = min(i+touchAhead, len(c.index))
			c.touch(c.index[i:touched])
		}
		e := c.index[i]
		i++
		size, klen, vlen, _ := readHeader(c.arena[e.off:])
		return int(e.part), c.arena[e.off : int(e.off)+size+klen+max(vlen, 0)], true
	}
}

// touchAhead is how many records ahead touch reads: enough that the processor overlaps many loads,
// few enough to fit into its first-level cache.
const touchAhead = 32

// cacheLine is the size in bytes of a line of the processor's cache.
const cacheLine = 64

// touch reads the first bytes of each record in two cache lines. Sorted records lie anywhere in the
// arena, so reading one after the other costs a cache miss each; here the misses overlap.
func (c *Collector) touch(es []indexEntry) {
	sum := byte(0)
	last := uint32(len(c.arena) - 1)
	for _, e := range es {
		sum += c.arena[e.off] + c.arena[min(e.off+cacheLine, last)]
	}
	c.touched += sum
}

// resetBuffers drops the buffered records. An arena that grew for a large record
// shrinks to its configured size.
func (c *Collector) resetBuffers() {
	c.index = c.index[:0]
	if int64(cap(c.arena)) > c.opt.Memory {
		c.arena = make([]byte, 0, c.opt.Memory)
	}
	c.arena = c.arena[:0]
}

// combinesSpills reports whether each spill goes through the combiner.
func (c *Collector) combinesSpills() bool { return c.opt.Combiner != nil && !c.opt.Precombined }

// spill writes the buffered records as a segment, through the combiner if
// combinesSpills.
func (c *Collector) spill() error {
	if c.combinesSpills() {
		return c.spillCombined()
	}
	c.created++
	path := filepath.Join(c.opt.Dir, fmt.Sprintf("%s-%d.segment", c.prefix, c.created))
	index, err := c.writeSorted(path, mapreduce.CodecNone)
	if err != nil {
		return err
	}
	c.segments = append(c.segments, Segment{Path: path, Index: *index, temp: true})
	c.stats.Spills++
	c.resetBuffers()
	return nil
}

func (c *Collector) writeSorted(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	w, err := createSegment(path, codec, int(min(max(c.opt.Memory/8, minBufferBytes), maxBufferBytes)))
	if err != nil {
		return nil, err
	}
	next := c.sortRecords()
	at := 0
	for part, rec, ok := next(); ok && err == nil; part, rec, ok = next() {
		for ; at < part && err == nil; at++ {
			err = w.endPart()
		}
		if err == nil {
			err = w.addRecord(rec)
		}
	}
	for ; at < c.opt.Parts && err == nil; at++ {
		err = w.endPart()
	}
	if err != nil {
		w.abort()
		return nil, err
	}
	index, err := w.close()
	if err == nil {
		c.countSpilled(index)
	}
	return index, err
}

func (c *Collector) countSpilled(x *mapreduce.Index) {
	for _, p := range x.Parts {
		c.stats.Spilled.Records += p.Records
		c.stats.Spilled.Bytes += p.RawLength
	}
}

// spillCombined passes the buffered records through the combiner into
// combinedOut, whose segments become segments of c.
func (c *Collector) spillCombined() error {
	nextRec := c.sortRecords()
	var r Record
	next := func() (*Record, error) {
		_, b, ok := nextRec()
		if !ok {
			return nil, nil
		}
		r = decodeRecord(b)
		return &r, nil
	}
	if err := c.runCombiner(next, c.combinedOut); err != nil {
		return err
	}
	c.resetBuffers()
	if len(c.combinedOut.index) > 0 {
		if err := c.combinedOut.spill(); err != nil {
			return err
		}
	}
	c.adoptCombined()
	return nil
}

// adoptCombined moves the segments and counts of combinedOut to c.
func (c *Collector) adoptCombined() {
	c.segments = append(c.segments, c.combinedOut.segments...)
	c.stats.Spills += c.combinedOut.stats.Spills
	c.stats.Spilled.Records += c.combinedOut.stats.Spilled.Records
	c.stats.Spilled.Bytes += c.combinedOut.stats.Spilled.Bytes
	c.combinedOut.segments, c.combinedOut.stats = nil, Stats{}
}

func decodeRecord(b []byte) Record {
	size, klen, vlen, _ := readHeader(b)
	return Record{Key: b[size : size+klen], Value: b[size+klen:], NoValue: vlen < 0}
}

// runCombiner runs the combiner on next and adds its output to the collector to,
// counting records on both sides.
func (c *Collector) runCombiner(next func() (*Record, error), to *Collector) error {
	in := func() (*Record, error) {
		r, err := next()
		if r != nil {
			c.stats.CombineIn.Records++
			c.stats.CombineIn.Bytes += int64(len(r.Key) + len(r.Value))
		}
		return r, err
	}
	return c.opt.Combiner.Combine(in, func(part int, r Record) error {
		c.stats.CombineOut.Records++
		c.stats.CombineOut.Bytes += int64(len(r.Key) + len(r.Value))
		return to.Add(part, r)
	})
}

// Finish writes the map output to path with codec and removes all segments. The
// Collector must not be used afterwards.
func (c *Collector) Finish(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	if len(c.segments) == 0 && (!c.combinesSpills() || len(c.index) == 0) {
		return c.writeSorted(path, codec)
	}
	if len(c.index) > 0 {
		if err := c.spill(); err != nil {
			return nil, err
		}
	}
	if c.opt.Combiner != nil && len(c.segments) >= minCombineSegments {
		return c.finishWithCombiner(path, codec)
	}
	return c.finishMerge(path, codec)
}

func (c *Collector) finishMerge(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	if len(c.segments) == 0 {
		return c.writeSorted(path, codec)
	}
	if len(c.segments) == 1 && codec == mapreduce.CodecNone && os.Rename(c.segments[0].Path, path) == nil {
		return &c.segments[0].Index, nil
	}
	c.releaseBuffers()
	g := c.newMerge("merge")
	segments, err := g.MergeToFanIn(c.segments)
	if err != nil {
		return nil, err
	}
	out, err := g.mergeToFile(segments, path, codec)
	c.stats.MergePasses += g.Passes
	if err != nil {
		return nil, err
	}
	c.countSpilled(&out.Index)
	return &out.Index, nil
}

// finishWithCombiner merges all segments through the combiner into combinedOut,
// which takes over the memory of c and writes the output.
func (c *Collector) finishWithCombiner(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	g := c.newMerge("premerge")
	g.Memory = c.opt.Memory / 4
	segments, err := g.MergeToFanIn(c.segments)
	if err != nil {
		return nil, err
	}
	last := c.combinedOut
	last.prefix = "last"
	last.opt.Memory = c.opt.Memory / 2
	last.arena, last.index, last.scratch = c.arena[:0:last.opt.Memory], c.index[:0], c.scratch // the capacity is limited, so that the collector allocates no larger arena
	c.stats.MergePasses += g.Passes
	if err := c.combineSegments(g, segments, last); err != nil {
		return nil, err
	}
	for _, r := range segments {
		os.Remove(r.Path)
	}
	index, err := last.Finish(path, codec)
	c.segments = nil
	c.adoptCombined()
	return index, err
}

func (c *Collector) combineSegments(g *ExternalMerge, segments []Segment, to *Collector) error {
	cursor, err := g.Open(segments)
	if err != nil {
		return err
	}
	defer cursor.Close()
	return c.runCombiner(cursor.Next, to)
}

func (c *Collector) newMerge(name string) *ExternalMerge {
	return &ExternalMerge{Dir: c.opt.Dir, NamePrefix: name, FanIn: c.opt.FanIn, Memory: c.opt.Memory}
}

// releaseBuffers frees the arena before merge buffers are allocated.
func (c *Collector) releaseBuffers() { c.arena, c.index, c.scratch = nil, nil, nil }

package sortmerge

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/drover-run/drover/mapreduce"
)

// Combiner shrinks a sorted row of records before it is written. next gives
// records in order of partition and key until ok is false; emit takes those
// that replace them, in any order and with any key, and copies them.
type Combiner interface {
	Combine(next func() (rec Record, ok bool, err error), emit func(Record) error) error
}

// Options of a Collector.
type Options struct {
	Parts   int    // partitions, 1 to mapreduce.MaxReduces
	Memory  int64  // bytes of records and their index in memory
	Dir     string // for runs; exists
	FanIn   int
	Combine Combiner // or nil; a quarter of Memory is then for what it emits
	// Combined says that records come combined already, as a table of counts
	// gives them: runs are written as they are, and the combiner runs only where
	// several runs are merged.
	Combined bool
}

// Stats count what a Collector did.
type Stats struct {
	Added, CombineIn, CombineOut, Spilled mapreduce.Flow
	Spills, MergePasses                   int
}

// minCombineRuns is the number of runs from which the combiner is worth a
// second run at the merge (Hadoop's min.num.spills.for.combine).
const minCombineRuns = 3

// entryBytes is the memory of one index entry and its place for sorting.
const entryBytes = 32

// Collector takes records in any order and writes one sorted map output.
type Collector struct {
	opt    Options
	prefix string // of run names
	arena  []byte
	index  []entry
	tmp    []entry
	sub    *Collector // takes what the combiner emits
	runs   []Run
	made   int
	stats  Stats
}

// NewCollector reserves memory; it is touched only as records come.
func NewCollector(opt Options) *Collector {
	c := &Collector{opt: opt, prefix: "spill"}
	memory := opt.Memory
	if opt.Combine != nil {
		c.opt.Memory = memory - memory/4
		sub := opt
		sub.Combine, sub.Memory = nil, memory/4
		c.sub = NewCollector(sub)
		c.sub.prefix = "combined"
	}
	c.arena = make([]byte, 0, c.opt.Memory)
	n := c.opt.Memory/(entryBytes+2) + 1
	c.index, c.tmp = make([]entry, 0, n), make([]entry, n)
	return c
}

// Stats returns the counts so far.
func (c *Collector) Stats() Stats { return c.stats }

// Add copies a record into a partition. Cost: O(len), amortised O(sorting).
func (c *Collector) Add(part int, r Record) error {
	var head [maxHeader]byte
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
	c.index = append(c.index, entry{prefix8(r.Key), uint32(off), uint16(part), uint16(min(len(r.Key), longKey))})
	c.stats.Added.Records++
	c.stats.Added.Bytes += int64(len(r.Key) + len(r.Value))
	return nil
}

// sorted sorts what is in memory and returns a way to read it.
func (c *Collector) sorted() func() (part int, encoded []byte, ok bool) {
	(&sorter{c.arena, c.tmp}).sort(c.index, c.opt.Parts)
	i := 0
	return func() (int, []byte, bool) {
		if i == len(c.index) {
			return 0, nil, false
		}
		e := c.index[i]
		i++
		size, klen, vlen, _ := header(c.arena[e.off:])
		return int(e.part), c.arena[e.off : int(e.off)+size+klen+max(vlen, 0)], true
	}
}

// reset forgets what is in memory; an arena that grew for one large record
// goes back to its size.
func (c *Collector) reset() {
	c.index = c.index[:0]
	if int64(cap(c.arena)) > c.opt.Memory {
		c.arena = make([]byte, 0, c.opt.Memory)
	}
	c.arena = c.arena[:0]
}

// combinesRuns tells whether each run goes through the combiner.
func (c *Collector) combinesRuns() bool { return c.opt.Combine != nil && !c.opt.Combined }

// spill writes what is in memory as a run, through the combiner if there is one.
func (c *Collector) spill() error {
	if c.combinesRuns() {
		return c.spillCombined()
	}
	c.made++
	path := filepath.Join(c.opt.Dir, fmt.Sprintf("%s-%d.run", c.prefix, c.made))
	index, err := c.writeSorted(path, mapreduce.CodecNone)
	if err != nil {
		return err
	}
	c.runs = append(c.runs, Run{Path: path, Index: *index, Temp: true})
	c.stats.Spills++
	c.reset()
	return nil
}

func (c *Collector) writeSorted(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	w, err := createRun(path, codec, int(min(max(c.opt.Memory/8, minBuffer), maxBuffer)))
	if err != nil {
		return nil, err
	}
	next := c.sorted()
	at := 0
	for part, rec, ok := next(); ok && err == nil; part, rec, ok = next() {
		for ; at < part && err == nil; at++ {
			err = w.endPart()
		}
		if err == nil {
			err = w.add(rec)
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
		c.stats.Spilled.Bytes += p.Raw
	}
}

// spillCombined sends what is in memory through the combiner into sub, whose
// runs become ours.
func (c *Collector) spillCombined() error {
	nextRec := c.sorted()
	next := func() (Record, bool, error) {
		_, b, ok := nextRec()
		if !ok {
			return Record{}, false, nil
		}
		return decode(b), true, nil
	}
	if err := c.combine(next, c.sub); err != nil {
		return err
	}
	c.reset()
	if len(c.sub.index) > 0 {
		if err := c.sub.spill(); err != nil {
			return err
		}
	}
	c.adopt()
	return nil
}

// adopt takes over runs and counts of sub.
func (c *Collector) adopt() {
	c.runs = append(c.runs, c.sub.runs...)
	c.stats.Spills += c.sub.stats.Spills
	c.stats.Spilled.Records += c.sub.stats.Spilled.Records
	c.stats.Spilled.Bytes += c.sub.stats.Spilled.Bytes
	c.sub.runs, c.sub.stats = nil, Stats{}
}

func decode(b []byte) Record {
	size, klen, vlen, _ := header(b)
	return Record{Key: b[size : size+klen], Value: b[size+klen:], NoValue: vlen < 0}
}

// combine runs the combiner from next into to, counting both sides.
func (c *Collector) combine(next func() (Record, bool, error), to *Collector) error {
	in := func() (Record, bool, error) {
		r, ok, err := next()
		if ok {
			c.stats.CombineIn.Records++
			c.stats.CombineIn.Bytes += int64(len(r.Key) + len(r.Value))
		}
		return r, ok, err
	}
	return c.opt.Combine.Combine(in, func(r Record) error {
		c.stats.CombineOut.Records++
		c.stats.CombineOut.Bytes += int64(len(r.Key) + len(r.Value))
		return to.Add(mapreduce.Partition(r.Key, c.opt.Parts), r)
	})
}

// Finish writes the map output to path with codec and removes all runs. The
// Collector is of no use afterwards.
func (c *Collector) Finish(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	if len(c.runs) == 0 && (!c.combinesRuns() || len(c.index) == 0) {
		return c.writeSorted(path, codec)
	}
	if len(c.index) > 0 {
		if err := c.spill(); err != nil {
			return nil, err
		}
	}
	if c.opt.Combine != nil && len(c.runs) >= minCombineRuns {
		return c.finishCombined(path, codec)
	}
	return c.finishRuns(path, codec)
}

func (c *Collector) finishRuns(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	if len(c.runs) == 0 {
		return c.writeSorted(path, codec)
	}
	if len(c.runs) == 1 && codec == mapreduce.CodecNone && os.Rename(c.runs[0].Path, path) == nil {
		return &c.runs[0].Index, nil
	}
	c.free()
	g := c.merging("merge")
	runs, err := g.Narrow(c.runs)
	if err != nil {
		return nil, err
	}
	out, err := g.mergeTo(runs, path, codec)
	c.stats.MergePasses += g.Passes
	if err != nil {
		return nil, err
	}
	c.countSpilled(&out.Index)
	return &out.Index, nil
}

// finishCombined merges all runs through the combiner into a collector that
// takes over our memory, and lets it write the output.
func (c *Collector) finishCombined(path string, codec mapreduce.Codec) (*mapreduce.Index, error) {
	g := c.merging("premerge")
	g.Memory = c.opt.Memory / 4
	runs, err := g.Narrow(c.runs)
	if err != nil {
		return nil, err
	}
	last := c.sub
	last.prefix = "last"
	last.opt.Memory, last.arena, last.index, last.tmp = c.opt.Memory/2, c.arena[:0], c.index[:0], c.tmp
	c.stats.MergePasses += g.Passes
	if err := c.combineRuns(g, runs, last); err != nil {
		return nil, err
	}
	for _, r := range runs {
		os.Remove(r.Path)
	}
	index, err := last.Finish(path, codec)
	c.runs = nil
	c.adopt()
	return index, err
}

func (c *Collector) combineRuns(g *Merging, runs []Run, to *Collector) error {
	cursor, err := g.Open(runs)
	if err != nil {
		return err
	}
	defer cursor.Close()
	return c.combine(cursor.Next, to)
}

func (c *Collector) merging(name string) *Merging {
	return &Merging{Dir: c.opt.Dir, Name: name, FanIn: c.opt.FanIn, Memory: c.opt.Memory}
}

// free drops the arena before merge buffers are made.
func (c *Collector) free() { c.arena, c.index, c.tmp = nil, nil, nil }

package harness

import (
	"strconv"

	"github.com/drover-run/drover/mapreduce/sortmerge"
)

// isSpace marks the bytes that separate words.
var isSpace = [256]bool{' ': true, '\t': true, '\n': true, '\v': true, '\f': true, '\r': true}

func eachWord(text []byte, use func(word []byte) error) error {
	for i := 0; i < len(text); {
		for i < len(text) && isSpace[text[i]] {
			i++
		}
		start := i
		for i < len(text) && !isSpace[text[i]] {
			i++
		}
		if start == i {
			return nil
		}
		if err := use(text[start:i]); err != nil {
			return err
		}
	}
	return nil
}

// wordSlot is one word of the table. An empty slot has count 0.
type wordSlot struct {
	off, size uint32 // position and length in the arena
	hash      uint32 // mapreduce.HashKey, which also determines the partition
	count     uint32
}

const (
	initialSlots  = 1 << 12
	wordSlotBytes = 16
	maxCount      = 1<<32 - 1
)

// wordTable counts words in memory: an open-addressing hash table (linear
// probing, at most half full) over one arena. It replaces both mapper and
// combiner. When it is full, its counts go to the collector, which sorts them.
type wordTable struct {
	collector *sortmerge.Collector
	parts     int
	memory    int64
	slots     []wordSlot
	shift     uint // number of hash bits not used for the slot index
	used      int
	arena     []byte
	words     int64 // words passed to the collector, and their bytes including the value 1
	bytes     int64
}

func newWordTable(to *sortmerge.Collector, parts int, memory int64) *wordTable {
	w := &wordTable{collector: to, parts: parts, memory: memory}
	w.resize(initialSlots)
	return w
}

// countText counts the words of whole lines.
func (w *wordTable) countText(text []byte) error {
	for i := 0; i < len(text); {
		for isSpace[text[i]] { // whole lines end with a newline, so i stays in range below
			if i++; i == len(text) {
				return nil
			}
		}
		start := i
		h := int32(1)
		for ; !isSpace[text[i]]; i++ {
			h = 31*h + int32(int8(text[i]))
		}
		if err := w.add(text[start:i], uint32(h)); err != nil {
			return err
		}
	}
	return nil
}

// hashMultiplier scatters Hadoop's hash, whose high bits are poor for short words.
const hashMultiplier = 0x9E3779B1

func (w *wordTable) add(word []byte, hash uint32) error {
	mask := uint32(len(w.slots) - 1)
	for at := hash * hashMultiplier >> w.shift; ; at = (at + 1) & mask {
		s := &w.slots[at]
		if s.count == 0 {
			return w.insert(s, word, hash)
		}
		if s.hash == hash && int(s.size) == len(word) && string(w.arena[s.off:s.off+s.size]) == string(word) {
			if s.count++; s.count == maxCount {
				return w.flush()
			}
			return nil
		}
	}
}

func (w *wordTable) insert(s *wordSlot, word []byte, hash uint32) error {
	*s = wordSlot{uint32(len(w.arena)), uint32(len(word)), hash, 1}
	w.arena = append(w.arena, word...)
	w.used++
	if 2*w.used < len(w.slots) && int64(cap(w.arena)+len(w.slots)*wordSlotBytes) <= w.memory {
		return nil
	}
	if grown := int64(cap(w.arena)) + int64(len(w.slots))*3*wordSlotBytes; 2*w.used >= len(w.slots) && grown <= w.memory {
		w.resize(2 * len(w.slots))
		return nil
	}
	return w.flush()
}

func (w *wordTable) resize(n int) {
	old := w.slots
	w.slots = make([]wordSlot, n)
	w.shift = 32
	for m := n; m > 1; m /= 2 {
		w.shift--
	}
	mask := uint32(n - 1)
	for _, s := range old {
		if s.count == 0 {
			continue
		}
		at := s.hash * hashMultiplier >> w.shift
		for w.slots[at].count != 0 {
			at = (at + 1) & mask
		}
		w.slots[at] = s
	}
}

// flush passes all counts to the collector and empties the table.
func (w *wordTable) flush() error {
	var digits [20]byte
	for i := range w.slots {
		s := &w.slots[i]
		if s.count == 0 {
			continue
		}
		r := sortmerge.Record{Key: w.arena[s.off : s.off+s.size], Value: strconv.AppendUint(digits[:0], uint64(s.count), 10)}
		if err := w.collector.Add(int(s.hash&0x7fffffff)%w.parts, r); err != nil {
			return err
		}
		w.words += int64(s.count)
		w.bytes += int64(s.count) * int64(s.size+1)
		*s = wordSlot{}
	}
	w.used = 0
	if int64(cap(w.arena)) > w.memory {
		w.arena = nil
	}
	w.arena = w.arena[:0]
	return nil
}

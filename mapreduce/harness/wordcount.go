package harness

import (
	"encoding/binary"
	"math/bits"
	"strconv"

	"github.com/drover-run/drover/mapreduce"
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

// wordSlot is one word of the table.
type wordSlot struct {
	word  uint64 // the bytes of a short word, the first one lowest, or the hash of a long one
	count uint32 // 0: the slot is empty
	at    uint32 // length of a short word; offset in the arena of a long word, which is above shortWord
}

const (
	initialSlots  = 1 << 12 // halved until they take at most half of the memory
	wordSlotBytes = 16
	maxCount      = 1<<32 - 1
	shortWord     = 8 // largest length in bytes of a word that its slot holds
	lengthBytes   = 4 // length prefix of a long word in the arena
)

// wordTable counts words in memory: an open-addressing hash table (linear probing, at most half
// full). Words of more than eight bytes are in an arena; counting a shorter word touches only one
// line of the processor's cache. The table replaces both mapper and combiner. When it is full, its
// counts go to the collector, which sorts them.
type wordTable struct {
	collector *sortmerge.Collector
	keys      *mapreduce.Keys
	coder     *mapreduce.KeyCoder // nil: words are sorted by their bytes
	parts     int
	memory    int64
	slots     []wordSlot
	shift     uint // number of hash bits not used for the slot index
	used      int
	arena     []byte // long words, each after its length; the first shortWord+1 bytes are unused
	words     int64  // words passed to the collector, and their bytes including the value 1
	bytes     int64
	found     [wordsAhead]foundWord
	touched   byte // result of the reads ahead in count and touch, so that the compiler cannot remove them
}

func newWordTable(to *sortmerge.Collector, spec *mapreduce.TaskSpec, coder *mapreduce.KeyCoder, memory int64) *wordTable {
	w := &wordTable{collector: to, keys: &spec.Keys, coder: coder, parts: spec.Reduces, memory: memory, arena: make([]byte, shortWord+1)}
	slots := initialSlots
	for int64(2*slots*wordSlotBytes) > memory { // a task has at least mapreduce.MinSortMemory
		slots /= 2
	}
	w.resize(slots)
	return w
}

// spacesIn returns a word in which the highest bit of each byte is set where the byte of x
// separates words (isSpace).
func spacesIn(x uint64) uint64 {
	const ones, highest = 0x0101010101010101, 0x8080808080808080
	low := x &^ highest // adding to low carries into no other byte
	space := (low + ones*(0x80-' ')) &^ (low + ones*(0x80-' '-1))
	control := (low + ones*(0x80-'\t')) &^ (low + ones*(0x80-'\r'-1))
	return (space | control) &^ x & highest
}

// load returns the eight bytes of text from i on, the first one lowest, with zeros for bytes past
// its end.
func load(text []byte, i int) uint64 {
	if i+8 <= len(text) {
		return binary.LittleEndian.Uint64(text[i:])
	}
	var tail [8]byte
	copy(tail[:], text[i:])
	return binary.LittleEndian.Uint64(tail[:])
}

// foundWord is a word of a text that has been found but not yet counted.
type foundWord struct {
	word   uint64 // as in wordSlot
	slot   uint32 // where the search for it begins
	length uint32
	from   int // in the text
}

// wordsAhead is how many words are found before they are counted: enough that the processor
// overlaps many loads, few enough to fit into its first-level cache.
const wordsAhead = 64

// countText counts the words of whole lines: the last byte is a newline.
func (w *wordTable) countText(text []byte) error {
	for i := 0; i < len(text); {
		n := 0
		for ; n < wordsAhead && i < len(text); n++ {
			if i = w.find(text, i, &w.found[n]); w.found[n].length == 0 {
				break
			}
		}
		if err := w.count(text, w.found[:n]); err != nil {
			return err
		}
	}
	return nil
}

// find finds the next word of a text from i on and returns where to search for the word after it.
// f.length is 0 if there is no word.
func (w *wordTable) find(text []byte, i int, f *foundWord) int {
	for ; i < len(text); i++ {
		x := load(text, i)
		spaces := spacesIn(x)
		n := bits.TrailingZeros64(spaces) / 8
		if n == 0 {
			continue
		}
		end, word := i+n, x&(1<<(8*n)-1)
		if spaces == 0 {
			if end, word = longWord(text, i, x); end == i+shortWord {
				word = x
			}
		}
		*f = foundWord{word, w.slotOf(word), uint32(end - i), i}
		return end + 1
	}
	f.length = 0
	return i
}

// count counts the words of list, which find found in text.
func (w *wordTable) count(text []byte, list []foundWord) error {
	sum, slots := uint32(0), len(w.slots)
	for i := range list { // each slot is a cache miss; here the misses overlap
		sum += w.slots[list[i].slot].count
	}
	w.touched += byte(sum)
	for i := range list {
		f := &list[i]
		if len(w.slots) != slots { // the table has grown since find
			f.slot = w.slotOf(f.word)
		}
		var err error
		if f.length <= shortWord {
			err = w.addShort(f)
		} else {
			err = w.addLong(f, text[f.from:f.from+int(f.length)])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// hashMultiplier scatters the bits of a word. The high bits of the product are the well-mixed ones.
const hashMultiplier = 0x9E3779B97F4A7C15

// longWord returns the end of the word that begins at i with the eight bytes first, and its hash.
func longWord(text []byte, i int, first uint64) (end int, hash uint64) {
	hash = first * hashMultiplier
	for i += 8; ; i += 8 {
		x := load(text, i)
		spaces := spacesIn(x)
		n := bits.TrailingZeros64(spaces) / 8 // 8 if there are none
		hash = (bits.RotateLeft64(hash, 29) ^ x&(1<<(8*n)-1) ^ uint64(n)) * hashMultiplier
		if spaces != 0 {
			return i + n, hash
		}
	}
}

// slotOf returns the index at which the search for a word begins.
func (w *wordTable) slotOf(word uint64) uint32 { return uint32(word * hashMultiplier >> w.shift) }

// addShort counts a word of at most eight bytes once.
func (w *wordTable) addShort(f *foundWord) error {
	mask := uint32(len(w.slots) - 1)
	for i := f.slot; ; i = (i + 1) & mask {
		s := &w.slots[i]
		if s.count == 0 {
			*s = wordSlot{f.word, 1, f.length}
			return w.added()
		}
		if s.word == f.word && s.at == f.length {
			return w.again(s)
		}
	}
}

// addLong counts a longer word once.
func (w *wordTable) addLong(f *foundWord, word []byte) error {
	mask := uint32(len(w.slots) - 1)
	for i := f.slot; ; i = (i + 1) & mask {
		s := &w.slots[i]
		if s.count == 0 {
			*s = wordSlot{f.word, 1, uint32(len(w.arena))}
			w.arena = append(binary.LittleEndian.AppendUint32(w.arena, f.length), word...)
			return w.added()
		}
		if s.word == f.word && s.at > shortWord && string(w.longWordAt(s.at)) == string(word) {
			return w.again(s)
		}
	}
}

func (w *wordTable) longWordAt(at uint32) []byte {
	from := at + lengthBytes
	return w.arena[from : from+binary.LittleEndian.Uint32(w.arena[at:])]
}

// again counts another occurrence of a word that is in the table.
func (w *wordTable) again(s *wordSlot) error {
	if s.count++; s.count == maxCount {
		return w.flush()
	}
	return nil
}

// added makes space for another word after a word was added.
func (w *wordTable) added() error {
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
	w.shift = 64 - uint(bits.Len(uint(n-1)))
	mask := uint32(n - 1)
	for _, s := range old {
		if s.count == 0 {
			continue
		}
		i := w.slotOf(s.word)
		for w.slots[i].count != 0 {
			i = (i + 1) & mask
		}
		w.slots[i] = s
	}
}

// flush passes all counts to the collector and empties the table.
func (w *wordTable) flush() error {
	const ahead = 64 // slots whose words touch reads before collect does
	for from := 0; from < len(w.slots); from += ahead {
		list := w.slots[from:min(from+ahead, len(w.slots))]
		w.touch(list)
		for i := range list {
			if list[i].count == 0 {
				continue
			}
			if err := w.collect(&list[i]); err != nil {
				return err
			}
		}
	}
	w.used = 0
	if int64(cap(w.arena)+len(w.slots)*wordSlotBytes) > w.memory { // otherwise the next word would find the table full
		w.arena = make([]byte, shortWord+1)
	}
	w.arena = w.arena[:shortWord+1]
	return nil
}

// collect passes the count of one word to the collector and empties its slot.
func (w *wordTable) collect(s *wordSlot) error {
	var digits [20]byte
	var short [shortWord]byte
	word := short[:]
	if s.at > shortWord {
		word = w.longWordAt(s.at)
	} else {
		binary.LittleEndian.PutUint64(short[:], s.word)
		word = word[:s.at]
	}
	r := sortmerge.Record{Key: word, Value: strconv.AppendUint(digits[:0], uint64(s.count), 10)}
	part := 0
	if w.coder == nil {
		part = w.keys.Partition(word, w.parts)
	} else {
		part, r.Key = w.coder.Encode(word)
	}
	if err := w.collector.Add(part, r); err != nil {
		return err
	}
	w.words += int64(s.count)
	w.bytes += int64(s.count) * int64(len(word)+1)
	*s = wordSlot{}
	return nil
}

// touch reads the first byte of each long word. The words lie anywhere in the arena, so reading one
// after the other costs a cache miss each; here the misses overlap.
func (w *wordTable) touch(list []wordSlot) {
	sum := byte(0)
	for i := range list {
		if s := &list[i]; s.count != 0 && s.at > shortWord {
			sum += w.arena[s.at]
		}
	}
	w.touched += sum
}

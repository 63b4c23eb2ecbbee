package sortmerge

import (
	"bytes"
	"cmp"
	"math"
	"math/bits"
	"slices"
)

// indexEntry describes one record in the arena. It has 16 bytes and holds most
// of what sorting compares, so that sorting moves and reads little memory.
type indexEntry struct {
	prefix uint64 // key bytes [depth, depth+8), padded with zeros
	off    uint32 // offset of the encoded record in the arena
	part   uint16
	keyLen uint16 // length of the key, at most longKeyLen
}

const (
	longKeyLen       = math.MaxUint16
	maxInsertionSort = 48 // up to this length insertion sort is faster than counting
	maxDepth         = 64 // beyond this depth keys are compared instead of counted
)

// radixSorter sorts the entries of one arena. scratch is as long as the entries.
type radixSorter struct {
	arena   []byte
	scratch []indexEntry
}

func (s *radixSorter) key(e indexEntry) []byte {
	size, klen, _, _ := readHeader(s.arena[e.off:])
	at := int(e.off) + size
	return s.arena[at : at+klen]
}

// sort orders es by partition, key and offset: one stable counting pass over
// partitions, then a stable most-significant-byte-first radix sort of each
// partition. es must be ordered by offset. O(n * distinguishing bytes).
func (s *radixSorter) sort(es []indexEntry, parts int) {
	if parts == 1 {
		s.sortByPrefix(es, 0, 56)
		return
	}
	ends := make([]int, parts+1)
	for _, e := range es {
		ends[e.part+1]++
	}
	for i := 1; i <= parts; i++ {
		ends[i] += ends[i-1]
	}
	tmp := s.scratch[:len(es)]
	for _, e := range es {
		tmp[ends[e.part]] = e
		ends[e.part]++
	}
	copy(es, tmp)
	start := 0
	for p := range parts {
		s.sortByPrefix(es[start:ends[p]], 0, 56)
		start = ends[p]
	}
}

// sortByPrefix sorts by the prefix, from the byte at shift down, then by the rest
// of the keys. The keys agree on all earlier bytes. The recursion is at most 8
// deep for each 8 bytes of key up to maxDepth.
func (s *radixSorter) sortByPrefix(es []indexEntry, depth int, shift int) {
	for ; shift >= 0; shift -= 8 {
		if len(es) <= maxInsertionSort {
			s.sortByComparing(es, depth)
			return
		}
		var counts [256]int32
		for i := range es {
			counts[byte(es[i].prefix>>shift)]++
		}
		if counts[byte(es[0].prefix>>shift)] == int32(len(es)) {
			// Equal keys are common, and must not be counted byte by byte.
			shift = highestDifference(es) + 8
			continue
		}
		s.scatter(es, &counts, shift)
		start := int32(0)
		for _, end := range counts {
			if end-start > 1 {
				s.sortByPrefix(es[start:end], depth, shift-8)
			}
			start = end
		}
		return
	}
	s.sortByNextPrefix(es, depth)
}

// highestDifference returns the shift of the first byte in which the prefixes differ, -8 if they
// are equal.
func highestDifference(es []indexEntry) int {
	var d uint64
	for _, e := range es {
		d |= e.prefix ^ es[0].prefix
	}
	return (bits.Len64(d)+7)/8*8 - 8
}

// scatter groups es by the byte at shift and keeps the order within a group.
// Afterwards counts holds the end of each group.
func (s *radixSorter) scatter(es []indexEntry, counts *[256]int32, shift int) {
	sum := int32(0)
	for i, n := range counts {
		counts[i] = sum
		sum += n
	}
	tmp := s.scratch[:len(es)]
	for _, e := range es {
		b := byte(e.prefix >> shift)
		tmp[counts[b]] = e
		counts[b]++
	}
	copy(es, tmp)
}

// sortByNextPrefix sorts entries whose keys agree on all bytes up to depth+8.
// Keys that end there come first, ordered by length (the rest is padding); for
// the others the next eight bytes become the prefix.
func (s *radixSorter) sortByNextPrefix(es []indexEntry, depth int) {
	if len(es) <= maxInsertionSort || depth >= maxDepth {
		s.sortByComparing(es, depth)
		return
	}
	first, same := es[0].keyLen, true
	for _, e := range es {
		same = same && e.keyLen == first
	}
	if same && int(first) <= depth+8 {
		return
	}
	within := func(e indexEntry) int { return min(int(e.keyLen), depth+9) }
	if !same {
		slices.SortStableFunc(es, func(a, b indexEntry) int { return cmp.Compare(within(a), within(b)) })
	}
	long, _ := slices.BinarySearchFunc(es, depth+9, func(e indexEntry, n int) int { return cmp.Compare(within(e), n) })
	es = es[long:]
	for i := range es {
		es[i].prefix = keyPrefix(s.key(es[i])[depth+8:])
	}
	s.sortByPrefix(es, depth+8, 56)
}

// sortByComparing sorts by comparing keys: a short range, or keys beyond
// maxDepth.
func (s *radixSorter) sortByComparing(es []indexEntry, depth int) {
	if len(es) > maxInsertionSort {
		slices.SortFunc(es, func(a, b indexEntry) int { return cmp.Or(s.compare(a, b, depth), cmp.Compare(a.off, b.off)) })
		return
	}
	for i := 1; i < len(es); i++ {
		e := es[i]
		j := i
		for ; j > 0 && s.compare(es[j-1], e, depth) > 0; j-- {
			es[j] = es[j-1]
		}
		es[j] = e
	}
}

// compare orders two keys that agree on their first depth bytes.
func (s *radixSorter) compare(a, b indexEntry, depth int) int {
	if a.prefix != b.prefix {
		return cmp.Compare(a.prefix, b.prefix)
	}
	if end := depth + 8; int(a.keyLen) <= end || int(b.keyLen) <= end {
		return cmp.Compare(a.keyLen, b.keyLen)
	}
	return bytes.Compare(s.key(a)[depth+8:], s.key(b)[depth+8:])
}

package sortmerge

import (
	"bytes"
	"cmp"
	"math"
	"slices"
)

// entry is the index of one record in the arena: 16 bytes, so that sorting
// moves little and mostly looks at nothing else.
type entry struct {
	prefix uint64 // key bytes [depth, depth+8), padded with zeros
	off    uint32 // of the encoded record in the arena
	part   uint16
	klen   uint16 // length of the key, longKey if it is that or more
}

const (
	longKey    = math.MaxUint16
	smallRange = 48 // below, insertion beats counting
	maxDepth   = 64 // beyond, keys are compared instead of counted
)

// sorter sorts entries of one arena. tmp is as long as what is sorted.
type sorter struct {
	arena []byte
	tmp   []entry
}

func (s *sorter) key(e entry) []byte {
	size, klen, _, _ := header(s.arena[e.off:])
	at := int(e.off) + size
	return s.arena[at : at+klen]
}

// sort orders es by partition, key and offset: one stable counting pass over
// partitions, then a stable radix sort, most significant byte first, of each.
// es must be ordered by offset. O(n * distinguishing bytes).
func (s *sorter) sort(es []entry, parts int) {
	if parts == 1 {
		s.word(es, 0, 56)
		return
	}
	ends := make([]int, parts+1)
	for _, e := range es {
		ends[e.part+1]++
	}
	for i := 1; i <= parts; i++ {
		ends[i] += ends[i-1]
	}
	tmp := s.tmp[:len(es)]
	for _, e := range es {
		tmp[ends[e.part]] = e
		ends[e.part]++
	}
	copy(es, tmp)
	start := 0
	for p := range parts {
		s.word(es[start:ends[p]], 0, 56)
		start = ends[p]
	}
}

// word sorts by the prefix from the byte at shift down, then by the rest of
// the keys; all keys agree on what comes before. The depth of recursion is at
// most 8 for each 8 bytes of key up to maxDepth.
func (s *sorter) word(es []entry, depth int, shift int) {
	for ; shift >= 0; shift -= 8 {
		if len(es) <= smallRange {
			s.insertion(es, depth)
			return
		}
		var counts [256]int32
		for i := range es {
			counts[byte(es[i].prefix>>shift)]++
		}
		if counts[byte(es[0].prefix>>shift)] == int32(len(es)) {
			continue
		}
		s.scatter(es, &counts, shift)
		start := int32(0)
		for _, end := range counts {
			if end-start > 1 {
				s.word(es[start:end], depth, shift-8)
			}
			start = end
		}
		return
	}
	s.rest(es, depth)
}

// scatter groups es by the byte at shift, keeping order; afterwards counts
// holds the end of each group.
func (s *sorter) scatter(es []entry, counts *[256]int32, shift int) {
	sum := int32(0)
	for i, n := range counts {
		counts[i] = sum
		sum += n
	}
	tmp := s.tmp[:len(es)]
	for _, e := range es {
		b := byte(e.prefix >> shift)
		tmp[counts[b]] = e
		counts[b]++
	}
	copy(es, tmp)
}

// rest sorts entries whose keys agree on all bytes up to depth+8. Keys that
// end there differ only in how many of those bytes are theirs (the rest is
// padding), and come first; the others load their next eight bytes.
func (s *sorter) rest(es []entry, depth int) {
	if len(es) <= smallRange || depth >= maxDepth {
		s.insertion(es, depth)
		return
	}
	first, same := es[0].klen, true
	for _, e := range es {
		same = same && e.klen == first
	}
	if same && int(first) <= depth+8 {
		return
	}
	within := func(e entry) int { return min(int(e.klen), depth+9) }
	if !same {
		slices.SortStableFunc(es, func(a, b entry) int { return cmp.Compare(within(a), within(b)) })
	}
	long, _ := slices.BinarySearchFunc(es, depth+9, func(e entry, n int) int { return cmp.Compare(within(e), n) })
	es = es[long:]
	for i := range es {
		es[i].prefix = prefix8(s.key(es[i])[depth+8:])
	}
	s.word(es, depth+8, 56)
}

// insertion sorts a small range, or one whose keys are too deep, by comparing.
func (s *sorter) insertion(es []entry, depth int) {
	if len(es) > smallRange {
		slices.SortFunc(es, func(a, b entry) int { return cmp.Or(s.compare(a, b, depth), cmp.Compare(a.off, b.off)) })
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
func (s *sorter) compare(a, b entry, depth int) int {
	if a.prefix != b.prefix {
		return cmp.Compare(a.prefix, b.prefix)
	}
	if end := depth + 8; int(a.klen) <= end || int(b.klen) <= end {
		return cmp.Compare(a.klen, b.klen)
	}
	return bytes.Compare(s.key(a)[depth+8:], s.key(b)[depth+8:])
}

package scheduler

import "math/bits"

// bitset is a set of small numbers with two summary levels above it, so that
// the next member after any number is found in a few steps. Memory: n/8 bytes.
type bitset struct {
	l0, l1, l2 []uint64
	n          int32
}

func newBitset(n int32) bitset {
	w0 := (int(n) + 63) / 64
	w1 := (w0 + 63) / 64
	w2 := (w1 + 63) / 64
	all := make([]uint64, w0+w1+w2)
	return bitset{l0: all[:w0:w0], l1: all[w0 : w0+w1 : w0+w1], l2: all[w0+w1:], n: n}
}

func (b *bitset) grow(n int32) {
	if n <= b.n {
		return
	}
	*b = b.cloneFor(max(n, 2*b.n, 64))
}

// cloneFor returns a copy of the set for numbers below n, which must not be smaller than b.n.
func (b *bitset) cloneFor(n int32) bitset {
	c := newBitset(n)
	copy(c.l0, b.l0)
	copy(c.l1, b.l1)
	copy(c.l2, b.l2)
	return c
}

func (b *bitset) has(i int32) bool { return b.l0[i>>6]&(1<<(i&63)) != 0 }

func (b *bitset) set(i int32) {
	b.l0[i>>6] |= 1 << (i & 63)
	b.l1[i>>12] |= 1 << (i >> 6 & 63)
	b.l2[i>>18] |= 1 << (i >> 12 & 63)
}

func (b *bitset) clear(i int32) {
	w := i >> 6
	if b.l0[w] &^= 1 << (i & 63); b.l0[w] != 0 {
		return
	}
	v := i >> 12
	if b.l1[v] &^= 1 << (w & 63); b.l1[v] != 0 {
		return
	}
	b.l2[i>>18] &^= 1 << (v & 63)
}

// setWord replaces the members among the 64 numbers from 64*w on. word must be a subset of the present members.
func (b *bitset) setWord(w int32, word uint64) {
	if b.l0[w] = word; word == 0 {
		b.clear(w << 6)
	}
}

func (b *bitset) setAll(n int32) {
	for _, level := range [...][]uint64{b.l0, b.l1, b.l2} {
		full := int(n) / 64
		for i := range level {
			level[i] = 0
			if i < full {
				level[i] = ^uint64(0)
			}
		}
		if n%64 > 0 {
			level[full] = 1<<(n%64) - 1
		}
		n = (n + 63) / 64
	}
}

// next returns the least member >= from, or -1.
func (b *bitset) next(from int32) int32 {
	from = max(from, 0)
	if from >= b.n {
		return -1
	}
	w := from >> 6
	if x := b.l0[w] >> (from & 63); x != 0 {
		return from + int32(bits.TrailingZeros64(x))
	}
	if w = nextInWord(b.l1, w+1); w < 0 {
		v := int32(-1)
		for i := from>>12 + 1; v < 0 && int(i>>6) < len(b.l2); i = (i>>6 + 1) << 6 {
			v = nextInWord(b.l2, i)
		}
		if v < 0 {
			return -1
		}
		w = v<<6 + int32(bits.TrailingZeros64(b.l1[v]))
	}
	return w<<6 + int32(bits.TrailingZeros64(b.l0[w]))
}

// nextInWord returns the next set bit >= i of a summary within the word that contains bit i, or -1.
func nextInWord(sum []uint64, i int32) int32 {
	if int(i>>6) < len(sum) {
		if x := sum[i>>6] >> (i & 63); x != 0 {
			return i + int32(bits.TrailingZeros64(x))
		}
	}
	return -1
}

// nth returns the member >= from that is preceded by n other members, counted from from; -1 if
// there are no more than n. O(numbers passed / 64).
func (b *bitset) nth(from, n int32) int32 {
	i := b.next(from)
	if i < 0 {
		return -1
	}
	word := b.l0[i>>6] & (^uint64(0) << (i & 63))
	for w := i >> 6; ; word = b.l0[w] {
		if c := int32(bits.OnesCount64(word)); n >= c {
			n -= c
		} else {
			for ; n > 0; n-- {
				word &= word - 1
			}
			return w<<6 + int32(bits.TrailingZeros64(word))
		}
		if w++; int(w) == len(b.l0) {
			return -1
		}
	}
}

// countIn returns the number of members in [from, to). O((to-from)/64).
func (b *bitset) countIn(from, to int32) int32 {
	c := 0
	for i := from; i < to; i = (i>>6 + 1) << 6 {
		word := b.l0[i>>6] >> (i & 63)
		if left := to - i; left < 64-i&63 {
			word &= 1<<left - 1
		}
		c += bits.OnesCount64(word)
	}
	return int32(c)
}
